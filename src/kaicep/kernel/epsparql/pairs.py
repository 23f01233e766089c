"""GROUP BY over `P SEQ Q` without its pairs.

Where each key and each value hangs on one side, a group needs of each Q only how many P stand before it, and
the sum or the best of their values. So each key that both share has a cell: the P that a Q can follow now. A
P enters a cell when a Q comes that begins after it, and leaves when the bound on the duration has passed it,
each once: an aggregate costs the same whatever the bound. That takes sides of one instant each. Where one
takes time, the partners of a Q are looked for one by one, as a join does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.answers import bound_variables, is_movable
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, shared_places
from kaicep.kernel.epsparql.dictionary import NOT_WHOLE, Array, Dictionary
from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, existences, expression_variables, is_end
from kaicep.kernel.epsparql.grouping import Removable
from kaicep.kernel.epsparql.groups import FAST, MOST, GroupedColumns, Weighed
from kaicep.kernel.epsparql.tables import Rows, SolutionTable
from kaicep.plan.expressions import Aggregate, Call, Expr, walk
from kaicep.plan.nodes import Extend, FilterSolutions, Grouping, Node, Temporal
from kaicep.plan.program import conjuncts, duration_bound, duration_comparison, tighter

_IDEMPOTENT = ("MIN", "MAX", "SAMPLE")


@dataclass(frozen=True)
class Apart:
    """The sides of a SEQ with all that is said of them, its bound, and which values hang on the left."""

    left: Node
    right: Node
    bound: int | None
    on_left: tuple[bool, ...]


def apart(node: Grouping) -> Apart | None:
    """A GROUP BY over SEQ by its sides, where all keys hang on the right one, and each value on one."""
    layers: list[Extend | FilterSolutions] = []
    below = node.input
    while isinstance(below, Extend | FilterSolutions):
        layers.append(below)
        below = below.input
    if not isinstance(below, Temporal) or (below.op, below.consumption) != ("SEQ", "unrestricted"):
        return None
    sides: list[Node] = [below.left, below.right]
    names = [bound_variables(each) for each in sides]
    bound: int | None = None

    def side(expr: Expr) -> int | None:
        known = expression_variables(expr)
        return 1 if known <= names[1] else 0 if known <= names[0] else None

    for layer in reversed(layers):
        if isinstance(layer, Extend):
            at = side(layer.expr)
            if at is None or not _is_of(layer.expr, at):
                return None
            sides[at] = replace(layer, input=sides[at])
            names[at].add(layer.name)
            continue
        for each in conjuncts(layer.condition):
            compared = duration_comparison(each)
            if compared is not None and compared[0] in ("<", "<="):
                bound = tighter(bound, duration_bound(each))
                continue
            at = side(each)
            if at is None or not is_movable(each):
                return None
            sides[at] = FilterSolutions(sides[at], each)
    for name, expr in node.keys:
        if name not in names[1] if expr is None else side(expr) != 1 or not _is_of(expr, 1):
            return None
    on_left: list[bool] = []
    for _, each in node.aggregates:
        at = 1 if each.of is None else side(each.of)
        if at is None or each.op not in FAST or (each.of is not None and not _is_of(each.of, at)):
            return None
        if each.distinct and each.op not in _IDEMPOTENT and (at == 0 or each.of is None):
            return None
        on_left.append(at == 0)
    return Apart(sides[0], sides[1], bound, tuple(on_left))


def _is_of(expr: Expr, side: int) -> bool:
    """Whether an expression says of a pair what it says of its side: a pair ends when its right side does."""
    calls = {each.op for each in walk(expr) if isinstance(each, Call)}
    return not existences(expr) and not calls & (BOUND_TO_PLACE - ({"getendtime"} if side else set()))


def by_end(node: Grouping) -> bool:
    """Whether a key is the time at which a solution ends: no group has solutions of two instants."""
    ends, below = {name for name, expr in node.keys if is_end(expr)}, node.input
    while isinstance(below, Extend | FilterSolutions):
        if isinstance(below, Extend) and is_end(below.expr):
            ends.add(below.name)
        below = below.input
    return any(name in ends for name, _ in node.keys)


class CellTable(SolutionTable):
    """Solutions in cells by their key; where these are `stale`, all that is kept enters them anew.

    `after` is the next solution of a cell, `cells` are the oldest one that is in, and the next to enter.
    """

    def _make(self, room: int, width: int) -> None:
        super()._make(room, width)
        self.after, self.cells = np.empty(room, np.int64), np.empty((2 * room, 2), np.int64)
        self.stale = True

    def _put(self, rows: Rows) -> None:
        super()._put(rows)
        self.stale = True

    def undo(self) -> None:
        """See `Keeper`."""
        super().undo()
        self.stale = True

    def refresh(self) -> bool:
        """Empties all cells; whether each solution takes no time."""
        kernels.relink(self._before, self._heads, self.after, self.cells)
        self.stale = False
        return bool((self._start[: self._length] == self._end[: self._length]).all())

    def column(self, place: int) -> Array:
        """The codes of one variable, by row."""
        return self._values[:, place]


class _Tally:
    """One aggregate of the values at a place, cell by cell; of the rows themselves without a place."""

    def __init__(self, aggregate: Aggregate, place: int, dictionary: Dictionary) -> None:
        self.aggregate, self._place, self._dictionary = aggregate, place, dictionary
        self._op = 0 if place < 0 else FAST.index(aggregate.op)
        self.exact: dict[int, Removable] | None = None
        self._peak = 0.0

    def clear(self, table: CellTable) -> None:
        """All cells are empty."""
        slots, rows = len(table.cells) + 1, len(table.after)
        self._sums = np.zeros((slots, 2), np.int64)
        self._ends = np.full((slots, 2), -1, np.int64)
        self._links = np.empty((rows if self._op > 2 else 0, 2), np.int64)
        self.exact = None if self.exact is None else {}

    def is_simple(self, rows: Sequence[Rows], most: int, total: float) -> bool:
        """Whether values are integers still with these, and `most` of them and a total cannot overflow."""
        codes = np.concatenate([each.values[:, self._place] for each in rows])
        if (codes < 0).any():
            return False
        if self._op == 0:
            return True
        values = self._dictionary.wholes()[codes]
        if (values == NOT_WHOLE).any():
            return False
        self._peak = max(self._peak, float(np.abs(values).max(initial=0)))
        return self._peak * most + total < MOST

    def weighed(self, table: CellTable, log: Array, count: int) -> Weighed:
        """What each of so many right sides gets."""
        if self.exact is not None:
            return Weighed(np.ones(count, np.int64), exact=self._exactly(self.exact, table, log.tolist()))
        codes = table.column(max(self._place, 0)) if self._place >= 0 else _NO_CODES
        whole = self._dictionary.wholes() if self._op else _NO_NUMBERS
        cells = self._sums, self._ends, self._links
        times, sums, best = kernels.tally(self._op, log, count, codes, whole, *cells)
        return Weighed(times, sums, best)

    def _exactly(
        self, cells: dict[int, Removable], table: CellTable, log: list[list[int]]
    ) -> Iterator[Removable]:
        of, codes, op = self._dictionary.of, table.column(self._place), self.aggregate.op
        for row, cell, what in log:
            if what == 0:
                yield cells[cell]
            elif what == kernels.EMPTIED:
                cells[cell] = Removable(op, False, "")
            else:
                if cell not in cells:
                    cells[cell] = Removable(op, False, "")
                cells[cell].change(of(int(codes[row])), str(row), what)


_NO_CODES, _NO_NUMBERS = np.empty(0, np.int32), np.empty(0, np.int64)


class GroupedPairs(GroupedColumns):
    """GROUP BY over `left SEQ right`; an aggregate has a place on the left or on the right (-1 is none)."""

    def __init__(
        self,
        left: ColumnOperator,
        right: ColumnOperator,
        bound: int | None,
        keys: Sequence[tuple[str, int]],
        aggregates: Sequence[tuple[str, Aggregate, int, bool]],
        certain: frozenset[str],
        dictionary: Dictionary,
        anew: bool,
    ) -> None:
        on_right = [(name, each, -1 if on_left else at) for name, each, at, on_left in aggregates]
        super().__init__(right, right.names, keys, on_right, certain, dictionary, anew)
        (lefts, rights), self._loose = shared_places(left, right)
        self._left, self._bound, self._places = left, -1 if bound is None else bound, (lefts, rights)
        self.table = CellTable(len(left.names), lefts, bound, dictionary)
        self.table.about = left.names
        self._count = _Tally(Aggregate("COUNT", None), -1, dictionary)
        self._tallies = [
            _Tally(each, at, dictionary) if on_left else self._count for _, each, at, on_left in aggregates
        ]
        self._all = list(dict.fromkeys((self._count, *self._tallies)))
        self._instants = True

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        left, right = self._left.step(chunk), self.below.step(chunk)
        if self._anew:
            self._begin()
        if not len(left) and not len(right):
            return Rows.none(len(self.names))
        self._prepare(left, right)
        table = self.table
        vague = table.vague or len(self._loose) > 0
        how = self._places, self._loose, np.array((vague, self._instants), np.bool_)
        rows = (left.values, left.start, left.end, right.values, right.start, right.end)
        store = table.arrays()
        log, begun, length, self._instants = kernels.follow(
            self._bound, *rows, store, table.after, table.cells, *how
        )
        table.grown(length, max(int(each.end[-1]) for each in (left, right) if len(each)))
        some = log[log[:, 2] == 0, 0]
        count = len(some)
        weighed = {each: each.weighed(table, log, count) for each in self._all}
        times = Weighed(weighed[self._count].times)
        weights = [times if each is self._count else weighed[each] for each in self._tallies]
        found = self._with(Rows(right.values[some], begun[some], right.end[some]), weights)
        for each in weighed.values():
            for _ in each.exact or ():
                pass  # what leaves after the last answer
        return found

    def _prepare(self, left: Rows, right: Rows) -> None:
        """Makes room, and has cells filled anew where they are no longer right."""
        table = self.table
        table.expect(left)
        new = [table.live(), left] if table.stale else [left]
        most = (len(table) + len(left)) * max(len(right), 1)
        for totals, tally in zip(self._totals, self._tallies, strict=True):
            if tally is self._count or tally.exact is not None:
                continue
            total = float(np.abs(totals.sum).max())
            if totals.exact is not None or not tally.is_simple(new, most, total):
                tally.exact, table.stale = {}, True
        if table.stale:
            self._instants = table.refresh()
            for each in self._all:
                each.clear(table)
