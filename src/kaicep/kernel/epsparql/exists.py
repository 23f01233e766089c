"""EXISTS: a group that is asked, for a solution, whether it has one for the same terms by then.

Mostly the group is evaluated once, beside the query, and asked by its key. That is right as long as
putting in the terms and choosing by them is the same, which `is_choice` finds out. Where it is not, or
where EXISTS is a part of a larger condition, the group is evaluated for each combination of terms that is
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kaicep.kernel.epsparql.answers import is_movable, is_plain
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, PatternColumns
from kaicep.kernel.epsparql.dictionary import Dictionary, Growing, OccurrenceColumns
from kaicep.kernel.epsparql.expressions import existences, expression_variables
from kaicep.kernel.epsparql.state import Keeper
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.nodes import (
    Bgp,
    Extend,
    FilterSolutions,
    Grouping,
    Join,
    LeftJoin,
    Minus,
    Node,
    Solutions,
    Temporal,
    Union,
    ValuesTable,
)
from kaicep.plan.program import bindable, conjuncts
from kaicep.plan.sparql import Path, has_empty
from kaicep.plan.terms import Variable

Started = Callable[[Mapping[str, str]], tuple[ColumnOperator, Callable[[Chunk], None]]]
"""Makes the operator of a group for terms that are given, and what is to be stepped before it."""
_MOST = 1_000


class _Answer:
    """The group for one combination of terms: when its first solution ended, as far as is known."""

    def __init__(self, operator: ColumnOperator, before: Callable[[Chunk], None]) -> None:
        self.operator, self.before = operator, before
        self.taken = -1  # so many occurrences, or it was not asked yet
        self.first: float = -math.inf if len(operator.still) else math.inf


class Probe(Keeper):
    """All occurrences that a group may look at, and its answers for terms that were asked for.

    With `at_once`, the occurrences are those of one evaluation, and have no time.
    """

    label = "EXISTS"

    def __init__(
        self,
        variables: frozenset[str],
        patterns: Sequence[PatternColumns],
        start: Started,
        dictionary: Dictionary,
        at_once: bool,
    ) -> None:
        self._variables, self._patterns, self._start = variables, patterns, start
        self._dictionary, self._at_once = dictionary, at_once
        self._rows = Growing(np.int32, np.int32, np.int32, np.int64, np.int64)
        self._until = -math.inf
        self._answers: dict[tuple[tuple[str, str], ...], _Answer] = {}
        self._kept = 0

    def step(self, chunk: Chunk) -> None:
        """Takes note of new occurrences."""
        if self._at_once:
            self._answers, self._until = {}, chunk.until
            self._rows.cut(0)
        met = np.zeros(len(chunk.columns), np.bool_)
        for each in self._patterns:
            met[each.meeting(chunk)] = True
        if met.any():
            self._rows.extend(*chunk.columns.take(np.flatnonzero(met)).all())

    def seen(self, given: Mapping[str, str], end: int | None) -> bool:
        """Whether the group has a solution for these terms that ends by then, or has no time."""
        asked = tuple(sorted((name, text) for name, text in given.items() if name in self._variables))
        answer = self._answers.get(asked)
        if answer is None:
            if len(self._answers) >= _MOST:
                self._answers.clear()
            answer = self._answers[asked] = _Answer(*self._start(dict(asked)))
        if answer.first == math.inf and answer.taken < len(self._rows):
            new = OccurrenceColumns(*(each[max(answer.taken, 0) :] for each in self._rows.arrays()))
            chunk = Chunk(new, self._until)
            answer.before(chunk)
            rows, answer.taken = answer.operator.step(chunk), len(self._rows)
            if len(rows):
                answer.first = float(rows.end.min())
        if self._at_once:
            return answer.first < math.inf
        return answer.first <= (-math.inf if end is None else end)

    # --- state ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return len(self._rows)

    def undo(self) -> None:
        """See `Keeper`."""
        if self._kept < len(self._rows):
            self._rows.cut(self._kept)
            self._answers = {}

    def commit(self) -> None:
        """See `Keeper`."""
        self._kept = len(self._rows)

    def dump(self, before: float = math.inf) -> Any:
        """The occurrences."""
        texts = self._dictionary.texts
        rows = zip(*(each.tolist() for each in self._rows.arrays()), strict=True)
        return [[texts[s], texts[p], texts[o], start, end] for s, p, o, start, end in rows if end < before]

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        code = self._dictionary.code
        rows = [(code(s), code(p), code(o), start, end) for s, p, o, start, end in state]
        if rows:
            self.step(Chunk(OccurrenceColumns.of(rows)))


# --- when choosing is enough -------------------------------------------------------------------------


def loosened(expr: Exists, outer: frozenset[str]) -> tuple[Node, list[Expr]]:
    """A group without conditions that can as well be asked of its solutions, when these are chosen.

    These are all that it ends with, and those further inside that look at the outside.
    """
    core, conditions = expr.group, list[Expr]()
    while isinstance(core, FilterSolutions):
        conditions += conjuncts(core.condition)
        core = core.input
    assert isinstance(core, Node)
    core, others = _loosened(core, outer, outer - bindable(core))
    return core, conditions + others


def _loosened(node: Node, outer: frozenset[str], apart: frozenset[str]) -> tuple[Node, list[Expr]]:
    """The same of conditions inside; `apart` are variables of the outside that the group does not bind."""
    if isinstance(node, Join) or (is_plain(node) and isinstance(node, Temporal) and node.condition is None):
        (left, some), (right, others) = (_loosened(each, outer, apart) for each in (node.left, node.right))
        return replace(node, left=left, right=right), some + others
    if not isinstance(node, FilterSolutions):
        return node, []
    core, found = _loosened(node.input, outer, apart)
    known = certain(node.input) | apart
    free = [
        each
        for each in conjuncts(node.condition)
        if not _is_own(each, node.input, outer) and is_movable(each) and expression_variables(each) <= known
    ]
    for each in conjuncts(node.condition):
        core = core if each in free else FilterSolutions(core, each)
    return core, found + free


def is_choice(node: Node, outer: frozenset[str]) -> bool:
    """Whether the solutions for given terms are those, of all, that are compatible with them."""
    match node:
        case Bgp(patterns):
            return not any(
                isinstance(each.predicate, Path)
                and has_empty(each.predicate)
                and isinstance(each.subject, Variable)
                and isinstance(each.object, Variable)
                for each in patterns
            )
        case ValuesTable():
            return True
        case Join(left, right) | Union(left, right):
            return is_choice(left, outer) and is_choice(right, outer)
        case FilterSolutions(below, condition):
            return is_choice(below, outer) and _is_own(condition, below, outer)
        case Extend(below, _, expr):
            return is_choice(below, outer) and _is_own(expr, below, outer)
        case LeftJoin(left, right, condition):
            return _is_optional(left, right, condition, outer)
        case Minus(left, right):
            return _is_optional(left, right, None, outer)
        case Temporal():
            return _is_temporal_choice(node, outer)
        case Solutions(below, names):
            return is_choice(below, outer & frozenset(names))
        case Grouping(below, keys):
            plain = {name for name, expr in keys if expr is None} & certain(below)
            exprs = [expr for _, expr in keys] + [each.of for _, each in node.aggregates]
            own = all(_is_own(each, below, outer) for each in exprs if each is not None)
            return own and is_choice(below, outer) and outer & bindable(below) <= plain
    return False


def _is_temporal_choice(node: Temporal, outer: frozenset[str]) -> bool:
    left, right = node.left, node.right
    if node.consumption != "unrestricted" and node.op != "NOT":
        # Which partner is taken depends on all of them.
        apart = not outer & (bindable(left) | bindable(right))
        return apart and is_choice(left, outer) and is_choice(right, outer) and node.condition is None
    if node.op == "OPTIONALSEQ":
        return _is_optional(right, left, node.condition, outer)
    if node.op in ("EQUALSOPTIONAL", "NOT"):
        return _is_optional(left, right, node.condition, outer)
    return is_choice(left, outer) and is_choice(right, outer)


def _is_optional(left: Node, right: Node, condition: Expr | None, outer: frozenset[str]) -> bool:
    """An absence must not depend on terms that the mandatory side does not have."""
    sides = is_choice(left, outer) and is_choice(right, outer)
    own = condition is None or _is_own(condition, left, outer)
    return sides and own and outer & bindable(right) <= certain(left)


def _is_own(expr: Expr, below: Node, outer: frozenset[str]) -> bool:
    """Whether an expression sees nothing of the outside that its own solution does not have."""
    named = expression_variables(expr)
    for each in existences(expr):
        assert isinstance(each.group, Node)
        named |= mentioned(each.group)
    makes_nodes = any(isinstance(each, Call) and each.op == "bnode" for each in walk(expr))
    return not makes_nodes and named & outer <= certain(below)


def certain(node: Node) -> frozenset[str]:
    """The variables that every solution of an operator binds."""
    match node:
        case Bgp():
            return bindable(node)
        case Join(left, right):
            return certain(left) | certain(right)
        case Union(left, right):
            return certain(left) & certain(right)
        case LeftJoin(left) | Minus(left):
            return certain(left)
        case FilterSolutions(below) | Extend(below):
            return certain(below)
        case ValuesTable(names, rows):
            return frozenset(n for i, n in enumerate(names) if all(row[i] is not None for row in rows))
        case Temporal(op, left, right):
            if op in ("OPTIONALSEQ", "EQUALSOPTIONAL", "NOT"):
                return certain(right if op == "OPTIONALSEQ" else left)
            return certain(left) | certain(right)
        case Solutions(below, names):
            return certain(below) & frozenset(names)
        case Grouping(below, keys):
            return certain(below) & frozenset(name for name, expr in keys if expr is None)
    return frozenset()


def mentioned(node: Node) -> set[str]:
    """All variables that a group mentions, its filters and the groups in them included."""
    found: set[str] = set()
    for each in node.walk():
        found |= bindable(each)
        for expr in _expressions(each):
            found |= expression_variables(expr)
            for one in existences(expr):
                assert isinstance(one.group, Node)
                found |= mentioned(one.group)
    return found


def _expressions(node: Node) -> Iterator[Expr]:
    match node:
        case FilterSolutions(_, condition):
            yield condition
        case Extend(_, _, expr):
            yield expr
        case LeftJoin(condition=Expr() as condition) | Temporal(condition=Expr() as condition):
            yield condition
        case Grouping(_, keys, aggregates):
            yield from (expr for _, expr in keys if expr is not None)
            yield from (each.of for _, each in aggregates if each.of is not None)
