"""From a plan to operators over columns, where there are such for all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from kaicep.kernel.epsparql import identities, kernels
from kaicep.kernel.epsparql.asking import (
    NONE,
    PARTNERS,
    SOME,
    Asker,
    Asking,
    Extended,
    Given,
    ProjectedColumns,
    UnitedColumns,
)
from kaicep.kernel.epsparql.columnar import (
    Chunk,
    ColumnOperator,
    FilterColumns,
    JoinedPatterns,
    Joiner,
    PatternColumns,
)
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import Array, Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.exists import is_choice
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.expressions import Value, existences
from kaicep.kernel.epsparql.fitting import Slide, fits_columns, slide
from kaicep.kernel.epsparql.groups import GroupedColumns
from kaicep.kernel.epsparql.operators import nothing_between
from kaicep.kernel.epsparql.reading import TYPE, KnownFacts, StreamReader
from kaicep.kernel.epsparql.rules import Block, pushed
from kaicep.kernel.epsparql.sliding import SlidingWindow, as_rows
from kaicep.kernel.epsparql.state import OperatorContext
from kaicep.kernel.epsparql.tables import Rows
from kaicep.kernel.epsparql.tables import SolutionTable as Stored
from kaicep.plan.algebra import only_grows, pattern_variables
from kaicep.plan.events import MatchId
from kaicep.plan.expressions import Call, Exists, Expr
from kaicep.plan.nodes import (
    Bgp,
    EpPlan,
    Extend,
    FilterSolutions,
    Grouping,
    Join,
    LeftJoin,
    Minus,
    Node,
    Solutions,
    Temporal,
    Triples,
    Union,
    ValuesTable,
)
from kaicep.plan.program import conjuncts, duration_bound, tighter
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Steps, TriplePattern
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Blank, Iri, Variable

__all__ = ["ColumnQuery", "ColumnRule", "SlidingQuery", "lowered", "rules_in_order"]

# How long each side is kept after its end: None is as long as the duration may be, -1 not at all.
_REACH: dict[str, tuple[int | None, int | None]] = {
    "SEQ": (None, -1),
    "DURING": (None, -1),
    "EQUALS": (0, 0),
    "FINISHES": (0, 0),
    "MEETS": (None, 0),
    "STARTS": (None, 0),
    "PAR": (None, None),
}
_MOST_FACTS = 2_000_000
_MOST_WAYS = 64


class _Unfit(Exception):
    """There are no operators over columns for a part of a plan."""


def lowered(
    plan: EpPlan, root: Node, facts: KnownFacts, cap: int, dictionary: Dictionary, reader: StreamReader
) -> ColumnQuery | None:
    """The query over columns; None where a part of its plan takes the other operators."""
    sliding = slide(plan.root)
    if sliding is not None:
        return _sliding(plan, sliding, facts, cap, dictionary, reader)
    if not fits_columns(root):
        return None
    assert isinstance(root, Solutions | Triples)
    context = OperatorContext(facts, plan.name, cap, replays=False)
    counts = any(isinstance(each, Grouping) for each in root.walk())
    builder = _ColumnBuilder(context, facts, dictionary, counts)
    try:
        made = builder.operator(root.input, None)
        if isinstance(root, Triples):
            return ColumnRule(plan, made, made.names, context, builder, dictionary)
        return ColumnQuery(plan, made, root.names, context, builder, dictionary)
    except _Unfit:
        return None


def _sliding(
    plan: EpPlan, found: Slide, facts: KnownFacts, cap: int, dictionary: Dictionary, reader: StreamReader
) -> ColumnQuery | None:
    """A SELECT of one window that slides: what is in it is found by a pattern with a bound."""
    inside = OperatorContext(facts, plan.name, cap, replays=False)
    builder = _ColumnBuilder(inside, facts, dictionary, False)
    try:
        below = builder.operator(
            pushed(found.below), (found.window.rows or found.window.width or 0) - 1, timeless=True
        )
    except _Unfit:
        return None
    context = OperatorContext(facts, plan.name, cap, replays=False)
    window = SlidingWindow(found, below, context, dictionary, reader)
    return SlidingQuery(plan, window, found.names, context, builder, dictionary)


class _Kept:
    """A table of solutions as part of a state; its rows are written as those of the other operators."""

    def __init__(self, table: Stored, operator: str, brief: bool, dictionary: Dictionary) -> None:
        self.table, self.operator = table, operator
        self._brief, self._dictionary = brief, dictionary

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return len(self.table)

    def undo(self) -> None:
        """Nothing is tried twice here."""

    def commit(self) -> None:
        """Nothing waits for the end of an instant."""

    def due(self) -> int | None:
        """It forgets when it is told to."""
        return None

    def sweep(self, now: int) -> None:
        """See `Keeper`."""
        self.table.forget(now)

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        if self._brief:
            return []
        rows, of = self.table.live().before(before), self._dictionary.of
        values = [[of(code) for code in row] for row in rows.values.tolist()]
        found = zip(rows.start.tolist(), rows.end.tolist(), values, strict=True)
        return sorted(found, key=lambda row: (row[1], row[0], [text or "" for text in row[2]]))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        if self._brief or not state:
            return
        code = self._dictionary.code
        values = np.array(
            [[-1 if text is None else code(text) for text in row[2]] for row in state], np.int32
        )
        times = (np.array([row[i] for row in state], np.int64) for i in (0, 1))
        self.table.add(Rows(values.reshape(len(state), -1), *times))


class _Brief:
    """What the other operators keep for one instant, and these have no need of."""

    size = 0

    def undo(self) -> None:
        """There is nothing."""

    commit = undo

    def due(self) -> int | None:
        """There is nothing to forget."""
        return None

    def sweep(self, now: int) -> None:
        """There is nothing to forget."""

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        return []

    def load(self, state: Any) -> None:
        """See `Keeper`."""


_Steps = list[tuple[TriplePattern, tuple[Iri, ...] | None]]
"""Triple patterns; of one whose predicate is a variable, which predicates it must not be."""
_Made = TypeVar("_Made", Asker, Extended)


class _ColumnBuilder:
    """Makes the operators, in the order in which `build` makes its own, so that states are in one order."""

    def __init__(
        self, context: OperatorContext, facts: KnownFacts, dictionary: Dictionary, counts: bool
    ) -> None:
        self.context, self._facts, self._dictionary = context, facts, dictionary
        self.kept: list[_Kept] = []
        self.patterns: list[PatternColumns] = []
        self.joiners: list[Joiner] = []
        self.counts = counts
        self._count = 0

    def operator(self, node: Node, bound: int | None, timeless: bool = False) -> ColumnOperator:
        """The operator of a plan; `timeless` where what knowledge alone gives is asked for as well."""
        match node:
            case Bgp():
                return self._basic(node, bound, timeless)
            case FilterSolutions():
                return self._filter(node, bound, timeless)
            case Extend(below, name, expr):
                inner = self.operator(below, bound, timeless)
                if name in inner.names:
                    raise _Unfit
                value = Value(expr, inner.names, {})
                return _known(Extended(inner, name, expr, value, self._dictionary), timeless)
            case Temporal("NOT" | "OPTIONALSEQ" | "EQUALSOPTIONAL"):
                return self._one_sided(node, bound, timeless)
            case Temporal(op, left, right):
                reach = tuple(bound if each is None else each for each in _REACH[op])
                sides = self.operator(left, bound), self.operator(right, bound)
                brief = tuple(each == 0 for each in _REACH[op])
                return self._joiner(op, sides, bound, (reach[0], reach[1]), brief)
            case Join(left, right):
                sides = self.operator(left, bound, True), self.operator(right, bound, True)
                return self._joiner("a join of groups", sides, bound, (bound, bound), (False, False))
            case LeftJoin():
                return self._left_join(node, bound, timeless)
            case Minus(left, right):
                sides = self.operator(left, bound, timeless), self.operator(right, None, True)
                shared = frozenset(sides[0].names) & frozenset(sides[1].names)
                how = Asking(NONE, once=True, common=True)
                return self._asker(*sides, how, "MINUS", (), None, timeless, shared)
            case Union(left, right):
                return UnitedColumns(
                    self.operator(left, bound, timeless), self.operator(right, bound, timeless)
                )
            case ValuesTable(names, rows):
                texts = [[None if each is None else str(each) for each in row] for row in rows]
                return Given(names, texts, self._dictionary)
            case Grouping():
                return self._grouping(node)
            case Solutions(below, names, distinct):
                return ProjectedColumns(self.operator(below, bound, timeless), names, distinct)
        raise _Unfit

    def _left_join(self, node: LeftJoin, bound: int | None, timeless: bool) -> ColumnOperator:
        near = duration_bound(node.condition)
        left, right = self.operator(node.left, bound, timeless), self.operator(node.right, near, True)
        witness = near is None and node.condition is None and _is_exact(left, right)
        keep = near if near is not None else bound if witness else None
        how = Asking(PARTNERS, bound=bound, near=near, keep=keep, witness=witness)
        names = left.names + tuple(each for each in right.names if each not in left.names)
        return self._asker(left, right, how, "OPTIONAL", names, node.condition, timeless)

    def _one_sided(self, node: Temporal, bound: int | None, timeless: bool) -> ColumnOperator:
        """NOT, and the temporal operators one side of which may be missing."""
        op, relation, near = node.op, kernels.ASKS[node.op], duration_bound(node.condition)
        first = op == "OPTIONALSEQ"
        left = self.operator(node.left, near if first else bound, timeless and not first and op != "NOT")
        right = self.operator(node.right, bound, timeless and first)
        if op == "NOT":
            how = Asking(NONE, relation, bound=bound, keep=bound, timed=True)
            return self._asker(left, right, how, op, (), None, timeless=False)
        names = left.names + tuple(each for each in right.names if each not in left.names)
        if not first:
            self.context.keep(_Brief())
            how = Asking(PARTNERS, relation, near=near, keep=0, timed=True)
            return self._asker(left, right, how, op, names, node.condition, timeless, brief=True)
        witness = near is None and node.condition is None and _is_exact(left, right)
        keep = near if near is not None else bound if witness else None
        how = Asking(PARTNERS, relation, bound, near, keep, witness, timed=True)
        return self._asker(right, left, how, op, names, node.condition, timeless)

    def _asker(
        self,
        asking: ColumnOperator,
        kept: ColumnOperator,
        how: Asking,
        op: str,
        names: Many[str],
        condition: Expr | None,
        timeless: bool,
        matters: frozenset[str] | None = None,
        brief: bool = False,
    ) -> Asker:
        parts = conjuncts(condition)
        if any(existences(each) for each in parts):
            raise _Unfit
        made = Asker(asking, kept, how, names, lambda seen: Check(parts, seen, self._dictionary), matters)
        self._keep(made.table, op, brief)
        return _known(made, timeless)

    def _keep(self, table: Stored, op: str, brief: bool) -> None:
        self.kept.append(_Kept(table, op, brief, self._dictionary))
        self.context.keep(self.kept[-1])

    def _joiner(
        self,
        op: str,
        sides: tuple[ColumnOperator, ColumnOperator],
        bound: int | None,
        reach: tuple[int | None, int | None],
        brief: Many[bool],
    ) -> Joiner:
        made = Joiner(kernels.OPERATORS.get(op, kernels.JOIN), sides, bound, reach, self._dictionary)
        self.joiners.append(made)
        for i, table in enumerate(made.tables):
            if reach[i] != -1:
                self._keep(table, op, brief[i])
        return made

    def _filter(self, node: FilterSolutions, bound: int | None, timeless: bool) -> ColumnOperator:
        if nothing_between(node.input, node.condition) is not None:
            raise _Unfit
        parts = [each for each in conjuncts(node.condition) if not existences(each)]
        groups = [each for each in conjuncts(node.condition) if isinstance(each, Exists)]
        if len(parts) + len(groups) < len(conjuncts(node.condition)) or len(set(groups)) < len(groups):
            raise _Unfit
        inner = self.operator(node.input, tighter(bound, duration_bound(node.condition)), timeless)
        if isinstance(inner, Joiner) and not timeless:
            inner.check = inner.check.and_also(parts)
        elif parts:
            made = FilterColumns(inner, Check(parts, inner.names, self._dictionary))
            if timeless and len(inner.still):
                made.still = inner.still.take(made.check.timeless(inner.still.values))
            inner = made
        for each in groups:
            inner = self._exists(each, inner, timeless)
        return inner

    def _grouping(self, node: Grouping) -> ColumnOperator:
        below = self.operator(node.input, None, True)
        names, made = below.names, below
        places: list[int] = []
        for expr in (*(expr for _, expr in node.keys), *(each.of for _, each in node.aggregates)):
            if expr is None:
                places.append(-1)
                continue
            value = Value(expr, names, {})
            extended = Extended(made, f"_:grouped {len(places)}", expr, value, self._dictionary, len(names))
            made = _known(extended, True)
            places.append(len(made.names) - 1)
        keys = [
            (name, names.index(name) if expr is None and name in names else place)
            for (name, expr), place in zip(node.keys, places, strict=False)
        ]
        aggregates = [
            (name, each, place)
            for (name, each), place in zip(node.aggregates, places[len(keys) :], strict=True)
        ]
        certain = below.certain & {name for name, expr in node.keys if expr is None}
        return GroupedColumns(made, names, keys, aggregates, certain, self._dictionary, self.context)

    def _exists(self, expr: Exists, asking: ColumnOperator, timeless: bool) -> ColumnOperator:
        """EXISTS as a question to a group that is evaluated beside the query (see `exists`)."""
        core, conditions = expr.group, list[Expr]()
        while isinstance(core, FilterSolutions):
            conditions += conjuncts(core.condition)
            core = core.input
        assert isinstance(core, Node)
        if not is_choice(core, frozenset(asking.names)):
            raise _Unfit
        kept = self.operator(core, None, True)
        names = kept.names + tuple(each for each in asking.names if each not in kept.names)
        matters = None if conditions else frozenset(asking.names) & frozenset(kept.names)
        how = Asking(NONE if expr.negated else SOME, once=not conditions, theirs=True)
        condition = Call("and", tuple(conditions)) if conditions else None
        return self._asker(asking, kept, how, "EXISTS", names, condition, timeless, matters)

    def _basic(self, node: Bgp, bound: int | None, timeless: bool) -> ColumnOperator:
        ways = [[each for part in way for each in part] for way in product(*map(self._read, node.patterns))]
        single = len(node.patterns) == 1 and not isinstance(node.patterns[0].predicate, Path)
        if len(ways) > _MOST_WAYS:
            raise _Unfit
        made = [[PatternColumns(each, self._dictionary, refused) for each, refused in way] for way in ways]
        for pattern in (pattern for way in made for pattern in way):
            self.patterns.append(pattern)
            if timeless or not single:
                self._know(pattern)
        if single:
            return made[0][0]
        names = dict.fromkeys(name for each in node.patterns for name in pattern_variables(each))
        group = JoinedPatterns(made, tuple(names), bound, self._dictionary, self.context, self.counts)
        self.joiners += group.joiners
        return group

    def _read(self, pattern: TriplePattern) -> list[_Steps]:
        """The ways in which a pattern can be read as plain ones: each alternative of its path is one."""
        subject, path, of = pattern.subject, pattern.predicate, pattern.object
        match path:
            case Inverse(inner):
                return self._read(TriplePattern(of, inner, subject))
            case Alternative(parts):
                return [way for each in parts for way in self._read(TriplePattern(subject, each, of))]
            case Steps(parts):
                places = [subject, *(self._hidden() for _ in parts[1:]), of]
                steps = zip(places, parts, places[1:], strict=False)
                read = [self._read(TriplePattern(*each)) for each in steps]
                return [[step for part in way for step in part] for way in product(*read)]
            case Negated(forward, inverse):
                ways: list[_Steps] = []
                if forward or not inverse:
                    ways.append([(TriplePattern(subject, self._hidden(), of), forward)])
                if inverse:
                    ways.append([(TriplePattern(of, self._hidden(), subject), inverse)])
                return ways
            case Path():
                raise _Unfit
        return [[(pattern, None)]]

    def _hidden(self) -> Variable:
        """A variable that nobody sees."""
        self._count += 1
        return Variable(f"_:on the way {self._count}")

    def _know(self, pattern: PatternColumns) -> None:
        found = self._facts.match(*pattern.asked())
        if len(found) > _MOST_FACTS:
            raise _Unfit
        pattern.know(found, self._dictionary)


def _known(made: _Made, timeless: bool) -> _Made:
    """An operator that knows what it has of knowledge alone, where somebody asks for that."""
    if timeless:
        made.know()
    return made


def _is_exact(left: ColumnOperator, right: ColumnOperator) -> bool:
    """Whether both sides always bind what they share."""
    return set(left.names) & set(right.names) <= left.certain & right.certain


class ColumnQuery:
    """A standing SELECT over columns: chunks of occurrences in, blocks of answers out."""

    def __init__(
        self,
        plan: EpPlan,
        operator: ColumnOperator | SlidingWindow,
        names: tuple[str, ...],
        context: OperatorContext,
        builder: _ColumnBuilder,
        dictionary: Dictionary,
    ) -> None:
        self.name, self.context, self.patterns = plan.name, context, builder.patterns
        self.joiners = builder.joiners
        self.grows = only_grows(plan.root.input)
        self._operator, self._kept, self._dictionary = operator, builder.kept, dictionary
        shown = [name for name in names if name in operator.names]
        self._shown = tuple(shown)
        self._places = [operator.names.index(name) for name in shown]
        visible = sorted((name, i) for i, name in enumerate(shown) if not name.startswith("_:"))
        self._visible = np.array([i for _, i in visible], np.int64)
        labels = [f" ?{name}=".encode() for name, _ in visible]
        self._labels = np.frombuffer(b"".join(labels), np.uint8)
        self._label_ends = np.cumsum([len(each) for each in labels]).astype(np.int64)
        self._id, self._plan = MatchId(plan.name, plan.text), plan

    def step(self, chunk: Chunk) -> Block | None:
        """The distinct answers that end with a chunk of whole instants."""
        assert isinstance(self._operator, ColumnOperator)
        rows = self._operator.step(chunk)
        for each in self._kept:
            if each.size > self.context.cap:
                raise self.context.refuse_more(each.operator, each.table.bound is not None)
        return self._block(rows) if len(rows) else None

    def commit(self, end: int) -> None:
        """Nothing waits for the end of an instant."""

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        self._operator.forget(now)

    def _identified(self, values: Array, start: Array, end: Array, seed: MatchId) -> tuple[Array, Array]:
        """The ids of solutions that go on from one."""
        how = self._visible, self._labels, self._label_ends, *self._dictionary.letters()
        low, high = identities.identify(values, start, end, *how, np.uint64(seed.low), np.uint64(seed.high))
        return low, high

    def _block(self, rows: Rows) -> Block:
        values = np.ascontiguousarray(rows.values[:, self._places])
        low, high = self._identified(values, rows.start, rows.end, self._id)
        order = np.arange(len(rows))
        if not identities.in_order(rows.end, low, high, order):
            order = np.lexsort((high, low, rows.end))
        end, one, two = rows.end[order], low[order], high[order]
        again = (end[1:] == end[:-1]) & (one[1:] == one[:-1]) & (two[1:] == two[:-1])
        order = order[np.concatenate(([True], ~again))] if again.any() else order
        found = Block(self.name, self._shown, self._dictionary.texts, values, rows.start, rows.end, low, high)
        return found.take(order)


class SlidingQuery(ColumnQuery):
    """A SELECT of one window: it goes by the triples of a stream, and answers at instants of its own."""

    def take(self, stream: str, triples: OccurrenceColumns, expansion: Expansion) -> None:
        """Triples of a stream, as they came."""
        if stream in self.window.streams:
            self.window.take_columns(triples, expansion)

    def until(self, limit: float, after: int) -> Block | None:
        """The answers at all instants before `limit`, of which those up to `after` are done."""
        found = self.window.until(limit, after)
        return self._block(as_rows(found, len(self.window.names))) if found else None

    @property
    def window(self) -> SlidingWindow:
        """What is in the window."""
        assert isinstance(self._operator, SlidingWindow)
        return self._operator

    def step(self, chunk: Chunk) -> Block | None:
        """It goes by `take` alone."""
        return None


class ColumnRule(ColumnQuery):
    """A CONSTRUCT rule over columns: its answers, and what it makes of them."""

    recursive = False

    def mix(self) -> None:
        """It reads what it makes, or what others make of that."""
        self.recursive = True
        for each in self.joiners:
            each.mix()

    def settle(self) -> None:
        """All that ends by now has come."""
        for each in self.joiners:
            each.settle()

    @property
    def template(self) -> tuple[TriplePattern, ...]:
        """What it makes of an answer."""
        assert isinstance(self._plan.root, Triples)
        return self._plan.root.template

    @property
    def reads(self) -> frozenset[str] | None:
        """The predicates of the triples that it looks at; None is any."""
        found = [each.asked()[1] for each in self.patterns]
        return None if None in found else frozenset(each for each in found if each is not None)

    def fill(self, block: Block) -> tuple[Block, OccurrenceColumns]:
        """The answers of which triples are made, and these; as `rules.Query.construct`."""
        blanks = {each.label for one in self.template for each in _places(one) if isinstance(each, Blank)}
        nodes = {each: self._nodes(block, each) for each in sorted(blanks)}
        made = [[self._filled(block, each, nodes) for each in _places(one)] for one in self.template]
        bound = np.ones(len(block), np.bool_)
        for column in (column for columns in made for column in columns):
            bound &= column >= 0
        triples = tuple((s, p, o, bound & ~self._begins(s, '"') & self._begins(p, "<")) for s, p, o in made)
        some = np.zeros(len(block), np.bool_)
        for *_, is_one in triples:
            some |= is_one
        block = replace(block, triples=triples).take(np.flatnonzero(some))
        parts = [
            OccurrenceColumns(s, p, o, block.start, block.end).take(np.flatnonzero(is_one))
            for s, p, o, is_one in block.triples or ()
        ]
        columns = OccurrenceColumns.joined(parts)
        return block, columns.take(np.argsort(columns.end, kind="stable"))

    def _filled(self, block: Block, place: Place, nodes: Mapping[str, Array]) -> Array:
        if isinstance(place, Blank):
            return nodes[place.label]
        if not isinstance(place, Variable):
            return np.full(len(block), self._dictionary.code(str(place)), np.int32)
        if place.name in block.names and not place.name.startswith("_:"):
            return np.ascontiguousarray(block.values[:, block.names.index(place.name)])
        return np.full(len(block), -1, np.int32)

    def _nodes(self, block: Block, label: str) -> Array:
        """One node for each solution."""
        low, high = self._identified(block.values, block.start, block.end, MatchId(self.name, label))
        code, pairs = self._dictionary.code, zip(low.tolist(), high.tolist(), strict=True)
        return np.array([code(f"_:n{a:016x}{b:016x}") for a, b in pairs], np.int32)

    def _begins(self, codes: Array, letter: str) -> Array:
        """Which terms begin with a letter: what kind they are."""
        found, place = np.unique(codes, return_inverse=True)
        texts = [self._dictionary.of(code) or "" for code in found.tolist()]
        return np.array([each.startswith(letter) for each in texts], np.bool_)[place]


def _places(pattern: TriplePattern) -> Many[Place]:
    return pattern.subject, pattern.predicate, pattern.object  # type: ignore[return-value]


def rules_in_order(rules: Many[ColumnRule], reader: StreamReader) -> list[list[ColumnRule]]:
    """The rules, each after those whose triples it reads; those that read each other's stand together.

    These are closed round by round, so what comes to them comes in no order (`ColumnRule.mix`).
    """
    made = {each.name: _predicates(each, reader) for each in rules}
    before: dict[str, set[str]] = {}
    for rule in rules:
        reads = rule.reads
        before[rule.name] = {
            name for name, found in made.items() if found is None or reads is None or found & reads
        }
    reach = {name: set(found) for name, found in before.items()}
    for middle in reach:
        for found in reach.values():
            if middle in found:
                found |= reach[middle]
    # Whoever reads another reads what that one reads, and that one too, but for those that read it in turn.
    earlier = {name: sum(name not in reach[other] for other in found) for name, found in reach.items()}
    groups: list[list[ColumnRule]] = []
    for rule in sorted(rules, key=lambda each: earlier[each.name]):
        for group in groups:
            if rule.name in reach[group[0].name] and group[0].name in reach[rule.name]:
                group.append(rule)
                break
        else:
            groups.append([rule])
    for group in groups:
        if any(rule.name in reach[rule.name] for rule in group):
            for rule in group:
                rule.mix()
    return groups


def _predicates(rule: ColumnRule, reader: StreamReader) -> frozenset[str] | None:
    """The predicates of the triples that a rule makes, and of what these entail; None is any."""
    found: set[str] = set()
    for pattern in rule.template:
        predicate, of = pattern.predicate, pattern.object
        if not isinstance(predicate, Iri) or (str(predicate) == TYPE and isinstance(of, Variable)):
            return None
        for about in ("_:any", '"any"') if isinstance(of, Variable) else (str(of),):
            template = reader.template(("_:any", str(predicate), about))
            if template is None:
                return None
            found |= {str(predicate), *(p for _, p, _ in template)}
    return frozenset(found)
