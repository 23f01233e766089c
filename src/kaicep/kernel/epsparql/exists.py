"""EXISTS: a group that is asked, for a solution, whether it has one for the same terms by then.

Mostly the group is evaluated once, beside the query, and asked by its key. That is right as long as
putting in the terms and choosing by them is the same, which `is_choice` finds out. Where it is not, the
group is evaluated for each combination of terms that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter
from typing import Protocol

from kaicep.kernel.epsparql.expressions import (
    Probe,
    SolutionTest,
    existences,
    expression_variables,
)
from kaicep.kernel.epsparql.operators import SolutionOperator, picker
from kaicep.kernel.epsparql.patterns import has_empty
from kaicep.kernel.epsparql.state import InstantBatch, OccurrenceGraph, OperatorContext, Row, Store, Values
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
from kaicep.plan.sparql import Path
from kaicep.plan.terms import Variable

__all__ = ["is_choice", "probe"]


class Builder(Protocol):
    """Makes the operator of a plan; handed in, since it makes probes itself."""

    def __call__(
        self,
        node: Node,
        context: OperatorContext,
        bound: int | None = None,
        given: Mapping[str, str] | None = None,
    ) -> SolutionOperator: ...


def probe(expr: Exists, outer: frozenset[str], context: OperatorContext, build: Builder) -> Probe:
    """What answers an EXISTS whose surroundings may bind the `outer` variables."""
    assert isinstance(expr.group, Node)
    core, conditions = expr.group, []
    while isinstance(core, FilterSolutions):
        conditions.append(core.condition)
        core = core.input
    if is_choice(core, outer):
        return _Standing(core, conditions, outer, context, build)
    return _Anew(expr.group, context, build)


class _Standing:
    """A group that is evaluated beside the query; its filters see the solution that asks."""

    def __init__(
        self,
        core: Node,
        conditions: list[Expr],
        outer: frozenset[str],
        context: OperatorContext,
        build: Builder,
    ) -> None:
        self._core = build(core, context)
        names = self._core.names
        self._outer = sorted(outer - set(names))
        everything = (*names, *self._outer)
        parts = [part for each in conditions for part in conjuncts(each)]
        probes = {
            one: probe(one, frozenset(everything), context, build)
            for each in parts
            for one in existences(each)
        }
        self._condition = SolutionTest(parts, everything, probes)
        # Where no filter looks at them, solutions that agree on what can be asked are one.
        self._matters = None if parts else outer & set(names)
        self._keys = [name for name in names if name in outer and name in self._core.certain]
        self._store = Store(context, "EXISTS", picker([names.index(name) for name in self._keys]))

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._condition.reads(self._core)

    def step(self, batch: InstantBatch) -> None:
        """See `SolutionOperator`."""
        self._condition.step(batch)
        for row in self._core.step(batch):
            if self._matters is None:
                self._store.add(row)
            elif (values := self._cut(row[2])) not in self._known(values):
                self._store.add((row[0], row[1], values))

    def _cut(self, values: Values) -> Values:
        pairs = zip(self._core.names, values, strict=True)
        return tuple(text if self._matters and name in self._matters else None for name, text in pairs)

    def _known(self, values: Values) -> list[Values]:
        return [row[2] for row in self._store.at(self._store.key(values))]

    def seen(self, given: Mapping[str, str], end: int | None) -> bool:
        if end is not None and any(
            row[1] <= end and self._core.fits(row[2], given) and self._holds(row[2], row[0], row[1], given)
            for row in self._candidates(given)
        ):
            return True
        return any(self._holds(each, None, None, given) for each in self._core.still(given))

    def _candidates(self, given: Mapping[str, str]) -> Iterable[Row]:
        if any(name not in given for name in self._keys):
            return chain.from_iterable(self._store.rows.values())
        values = tuple(given.get(name) for name in self._core.names)
        return self._store.at(self._store.key(values))

    def _holds(self, values: Values, start: int | None, end: int | None, given: Mapping[str, str]) -> bool:
        if not self._condition:
            return True
        inside = zip(self._core.names, values, strict=True)
        merged = (given.get(name) if text is None else text for name, text in inside)
        return self._condition.holds((*merged, *(given.get(name) for name in self._outer)), start, end)


class _Anew:
    """A group that is evaluated for each combination of terms, over all occurrences that it may look at."""

    def __init__(self, group: Node, context: OperatorContext, build: Builder) -> None:
        self._group = group
        self._context = context
        self._build = build
        self._graph = OccurrenceGraph(context, "EXISTS", None)
        self._reads = self._fresh({})[1].reads()

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._reads

    def step(self, batch: InstantBatch) -> None:
        """See `SolutionOperator`."""
        for each in batch.all:
            if self._reads is None or each[1] in self._reads:
                self._graph.add(each)

    def seen(self, given: Mapping[str, str], end: int | None) -> bool:
        context, operator = self._fresh(given)
        if operator.still({}):
            return True
        if end is None:
            return False
        for instant, occurrences in groupby(self._graph, key=itemgetter(4)):
            if instant > end:
                break
            if operator.step(InstantBatch(instant, list(occurrences))):
                return True
            context.commit(instant)
        return False

    def _fresh(self, given: Mapping[str, str]) -> tuple[OperatorContext, SolutionOperator]:
        context = OperatorContext(self._context.facts, self._context.query, self._context.cap, replays=False)
        return context, self._build(self._group, context, None, given)


# --- when choosing is enough -------------------------------------------------------------------------


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
        named |= _mentioned(each.group)
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


def _mentioned(node: Node) -> set[str]:
    """All variables that a group mentions, its filters and the groups in them included."""
    found: set[str] = set()
    for each in node.walk():
        found |= bindable(each)
        for expr in _expressions(each):
            found |= expression_variables(expr)
            for one in existences(expr):
                assert isinstance(one.group, Node)
                found |= _mentioned(one.group)
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
