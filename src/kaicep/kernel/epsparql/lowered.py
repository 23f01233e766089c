"""From a plan to operators over columns, where there are such for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import identities, kernels
from kaicep.kernel.epsparql.answers import Block
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, Filter, Group, Joiner, Pattern
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import Dictionary
from kaicep.kernel.epsparql.expressions import Value
from kaicep.kernel.epsparql.fitting import fits_columns
from kaicep.kernel.epsparql.state import Context
from kaicep.kernel.epsparql.tables import Rows, Table
from kaicep.kernel.epsparql.terms import Facts
from kaicep.plan.durations import conjuncts, duration_bound, tighter
from kaicep.plan.identity import MatchId
from kaicep.plan.nodes import Bgp, EpPlan, Extend, FilterSolutions, Join, Node, Solutions, Temporal

__all__ = ["ColumnQuery", "lowered"]

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


class _Unfit(Exception):
    """There are no operators over columns for a part of a plan."""


def lowered(plan: EpPlan, root: Node, facts: Facts, cap: int, dictionary: Dictionary) -> ColumnQuery | None:
    """The query over columns; None where a part of its plan takes the other operators."""
    if not isinstance(root, Solutions) or not fits_columns(root):
        return None
    context = Context(facts, plan.name, cap, replays=False)
    builder = _Builder(context, facts, dictionary)
    try:
        return ColumnQuery(plan, builder.operator(root.input, None), root.names, context, builder, dictionary)
    except _Unfit:
        return None


class _Kept:
    """A table of solutions as part of a state; its rows are written as those of the other operators."""

    def __init__(self, table: Table, operator: str, brief: bool, dictionary: Dictionary) -> None:
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

    def dump(self) -> Any:
        """See `Keeper`."""
        if self._brief:
            return []
        rows, texts = self.table.live(), self._dictionary.texts
        values = [[texts[code] for code in row] for row in rows.values.tolist()]
        found = zip(rows.start.tolist(), rows.end.tolist(), values, strict=True)
        return sorted(found, key=lambda row: (row[1], row[0], row[2]))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        if self._brief or not state:
            return
        code = self._dictionary.code
        values = np.array([[code(text) for text in row[2]] for row in state], np.int32)
        times = (np.array([row[i] for row in state], np.int64) for i in (0, 1))
        self.table.add(Rows(values.reshape(len(state), -1), *times))


class _Extended(ColumnOperator):
    """BIND: a value more for each solution, evaluated as SPARQL says."""

    def __init__(self, below: ColumnOperator, name: str, value: Value, dictionary: Dictionary) -> None:
        self.below, self.names = below, (*below.names, name)
        self._value, self._dictionary = value, dictionary
        self.still = Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        rows = self.below.step(chunk)
        made = np.full((len(rows), 1), -1, np.int32)
        texts, code = self._dictionary.texts, self._dictionary.code
        times = zip(rows.start.tolist(), rows.end.tolist(), strict=True)
        for i, (row, (start, end)) in enumerate(zip(rows.values.tolist(), times, strict=True)):
            found = self._value.of(tuple([texts[e] if e >= 0 else None for e in row]), start, end)
            if found is not None:
                made[i, 0] = code(found)
        return Rows(np.hstack((rows.values, made)), rows.start, rows.end)

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        self.below.forget(now)


class _Builder:
    """Makes the operators, in the order in which `build` makes its own, so that states are in one order."""

    def __init__(self, context: Context, facts: Facts, dictionary: Dictionary) -> None:
        self.context, self._facts, self._dictionary = context, facts, dictionary
        self.kept: list[_Kept] = []
        self.patterns: list[Pattern] = []

    def operator(self, node: Node, bound: int | None, timeless: bool = False) -> ColumnOperator:
        """The operator of a plan; `timeless` where what knowledge alone gives is asked for as well."""
        match node:
            case Bgp():
                return self._basic(node, bound, timeless)
            case FilterSolutions():
                return self._filter(node, bound, timeless)
            case Extend(below, name, expr) if not timeless:
                inner = self.operator(below, bound)
                if name in inner.names:
                    raise _Unfit
                return _Extended(inner, name, Value(expr, inner.names, {}), self._dictionary)
            case Temporal(op, left, right):
                reach = tuple(bound if each is None else each for each in _REACH[op])
                sides = self._side(left, bound, False), self._side(right, bound, False)
                brief = tuple(each == 0 for each in _REACH[op])
                return self._joiner(op, sides, bound, (reach[0], reach[1]), brief)
            case Join(left, right):
                sides = self._side(left, bound, True), self._side(right, bound, True)
                return self._joiner("a join of groups", sides, bound, (bound, bound), (False, False))
        raise _Unfit

    def _side(self, node: Node, bound: int | None, timeless: bool) -> ColumnOperator:
        made = self.operator(node, bound, timeless)
        if any(isinstance(each, _Extended) for each in _below(made)):
            raise _Unfit  # what a BIND leaves unbound agrees with everything
        return made

    def _joiner(
        self,
        op: str,
        sides: tuple[ColumnOperator, ColumnOperator],
        bound: int | None,
        reach: tuple[int | None, int | None],
        brief: Sequence[bool],
    ) -> Joiner:
        made = Joiner(kernels.OPERATORS.get(op, kernels.JOIN), sides, bound, reach, self._dictionary)
        for i, table in enumerate(made.tables):
            if reach[i] != -1:
                self.kept.append(_Kept(table, op, brief[i], self._dictionary))
                self.context.keep(self.kept[-1])
        return made

    def _filter(self, node: FilterSolutions, bound: int | None, timeless: bool) -> ColumnOperator:
        parts = conjuncts(node.condition)
        inner = self.operator(node.input, tighter(bound, duration_bound(node.condition)), timeless)
        if isinstance(inner, Joiner) and not timeless:
            inner.check = inner.check.and_also(parts)
            return inner
        sure = [name for each in _below(inner) if not isinstance(each, _Extended) for name in each.names]
        made = Filter(inner, Check(parts, inner.names, self._dictionary, sure))
        if timeless and len(inner.still):
            made.still = inner.still.take(made.check.timeless(inner.still.values))
        return made

    def _basic(self, node: Bgp, bound: int | None, timeless: bool) -> ColumnOperator:
        made = [Pattern(each, self._dictionary) for each in node.patterns]
        self.patterns += made
        if timeless or len(made) > 1:
            for each in made:
                self._know(each)
        if len(made) == 1:
            return made[0]
        names = dict.fromkeys(name for each in made for name in each.names)
        return Group(made, tuple(names), bound, self._dictionary, self.context)

    def _know(self, pattern: Pattern) -> None:
        found = self._facts.match(*pattern.asked())
        if len(found) > _MOST_FACTS:
            raise _Unfit
        pattern.know(found, self._dictionary)


def _below(operator: ColumnOperator) -> list[ColumnOperator]:
    """An operator and those that only pass its solutions on."""
    if isinstance(operator, Filter | _Extended):
        return [operator, *_below(operator.below)]
    return [operator]


class ColumnQuery:
    """A standing SELECT over columns: chunks of occurrences in, blocks of answers out."""

    def __init__(
        self,
        plan: EpPlan,
        operator: ColumnOperator,
        names: tuple[str, ...],
        context: Context,
        builder: _Builder,
        dictionary: Dictionary,
    ) -> None:
        self.name, self.context, self.patterns = plan.name, context, builder.patterns
        self._operator, self._kept, self._dictionary = operator, builder.kept, dictionary
        shown = [name for name in names if name in operator.names]
        self._shown = tuple(shown)
        self._places = [operator.names.index(name) for name in shown]
        visible = sorted((name, i) for i, name in enumerate(shown) if not name.startswith("_:"))
        self._visible = np.array([i for _, i in visible], np.int64)
        labels = [f" ?{name}=".encode() for name, _ in visible]
        self._labels = np.frombuffer(b"".join(labels), np.uint8)
        self._label_ends = np.cumsum([len(each) for each in labels]).astype(np.int64)
        seed = MatchId(plan.name, plan.text)
        self._seed = np.uint64(seed.low), np.uint64(seed.high)

    def step(self, chunk: Chunk) -> Block | None:
        """The distinct answers that end with a chunk of whole instants."""
        rows = self._operator.step(chunk)
        for each in self._kept:
            if each.size > self.context.cap:
                raise self.context.refuse_more(each.operator, each.table.bound is not None)
        return self._block(rows) if len(rows) else None

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        self._operator.forget(now)

    def _block(self, rows: Rows) -> Block:
        values = np.ascontiguousarray(rows.values[:, self._places])
        how = self._visible, self._labels, self._label_ends, *self._dictionary.letters(), *self._seed
        low, high = identities.identify(values, rows.start, rows.end, *how)
        order = np.arange(len(rows))
        if not identities.in_order(rows.end, low, high, order):
            order = np.lexsort((high, low, rows.end))
        end, one, two = rows.end[order], low[order], high[order]
        again = (end[1:] == end[:-1]) & (one[1:] == one[:-1]) & (two[1:] == two[:-1])
        order = order[np.concatenate(([True], ~again))] if again.any() else order
        found = (each[order] for each in (values, rows.start, rows.end, low, high))
        return Block(self.name, self._shown, self._dictionary.texts, *found)
