"""GROUP BY over columns: running aggregates of groups, one result for each group that an instant changes.

Counts, and sums, averages and extremes of integers are calculated by compiled kernels. Where another value
comes, its aggregate goes on with exact arithmetic, value by value (`grouping.Running`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator
from kaicep.kernel.epsparql.dictionary import NOT_WHOLE, Array, Dictionary
from kaicep.kernel.epsparql.grouping import Removable, Running, solution_line
from kaicep.kernel.epsparql.state import Keeper
from kaicep.kernel.epsparql.tables import Rows
from kaicep.plan.expressions import Aggregate
from kaicep.plan.values import Number, calculate, numeral

_Saved = tuple[tuple[Array, ...], int, dict[int, Running | None] | None]
FAST = ("COUNT", "SUM", "AVG", "MIN", "MAX", "SAMPLE")
"""The aggregates that kernels know, by their number there."""
MOST = 2.0**62


@dataclass(frozen=True)
class Weighed:
    """Of rows that stand for several solutions each: how many, the sum of their values, the code of the best.

    Where values are no integers there is an aggregate for one row after the other instead.
    """

    times: Array
    sums: Array = None
    best: Array = None
    exact: Iterator[Removable] | None = None


class Numbered:
    """Rows of codes that are numbered in the order in which they come first."""

    def __init__(self, width: int) -> None:
        self.rows = np.empty((256, width), np.int32)
        self._slots = np.full(512, -1, np.int64)
        self.count = 0

    def numbers(self, rows: Array) -> Array:
        """The number of each row."""
        needed = self.count + len(rows)
        if needed > len(self.rows):
            known = self.rows[: self.count]
            self.rows = np.empty((2 * needed, known.shape[1]), np.int32)
            self._slots = np.full(4 * _power(needed), -1, np.int64)
            self.count = 0
            kernels.enumerate_rows(known, self.rows, self._slots, 0)
            self.count = len(known)
        rows = np.ascontiguousarray(rows, np.int32)
        found, self.count = kernels.enumerate_rows(rows, self.rows, self._slots, self.count)
        return found

    def cut(self, count: int) -> None:
        """Forgets all but the first ones."""
        if count < self.count:
            known = self.rows[:count].copy()
            self._slots[:] = -1
            kernels.enumerate_rows(known, self.rows, self._slots, 0)
            self.count = count


def _power(least: int) -> int:
    size = 256
    while size < least:
        size *= 2
    return size


class _Totals:
    """One aggregate of all groups: counts, sums and best values by the number of the group."""

    def __init__(
        self, aggregate: Aggregate, place: int, names: Sequence[str], dictionary: Dictionary
    ) -> None:
        self.aggregate, self._place, self._names, self._dictionary = aggregate, place, names, dictionary
        self.count, self.sum = np.zeros(256, np.int64), np.zeros(256, np.int64)
        self.best = np.full(256, -1, np.int64)
        self.wrong = np.zeros(256, np.bool_)
        self._seen = Numbered(2)
        self.exact: dict[int, Running] | None = None
        if aggregate.op not in FAST or (aggregate.distinct and place < 0):
            self.exact = {}

    def reserve(self, groups: int) -> None:
        """Makes room for so many groups."""
        more = groups - len(self.count)
        if more > 0:
            more = _power(groups) * 2 - len(self.count)
            self.count, self.sum = (np.pad(each, (0, more)) for each in (self.count, self.sum))
            self.best = np.pad(self.best, (0, more), constant_values=-1)
            self.wrong = np.pad(self.wrong, (0, more))

    def take(self, groups: Array, rows: Rows, shown: Array, weighed: Weighed | None = None) -> Array:
        """Takes the values of solutions of some groups; the codes of the results at the places `shown`."""
        codes = rows.values[:, self._place] if self._place >= 0 else np.zeros(len(groups), np.int32)
        if weighed is None:
            weighed = Weighed(np.ones(len(groups), np.int64))
        times, sums = weighed.times, weighed.sums
        if weighed.best is not None:
            codes = weighed.best.astype(np.int32)
        if self.exact is None and (weighed.exact is not None or not self._is_simple(codes, times)):
            self.exact = {group: self.running(group) for group in np.flatnonzero(self._used()).tolist()}
        if self.exact is not None:
            return self._taken_exactly(self.exact, groups, rows, codes, shown, weighed)
        if self.aggregate.distinct:
            known = self._seen.count
            first = kernels.first_times(self._seen.numbers(np.column_stack((groups, codes))), known)
            times = first.astype(np.int64)
        counted = self._place < 0 and weighed.best is None
        whole, op = _NOTHING if counted else self._dictionary.wholes(), FAST.index(self.aggregate.op)
        state = self.count, self.sum, self.best, self.wrong
        sums = _NOTHING if sums is None else sums
        found = kernels.total(op, groups, codes, times, sums, counted, whole, *state)
        return self._results(groups[shown], *(each[shown] for each in found))

    def _used(self) -> Array:
        return (self.count > 0) | self.wrong

    def _is_simple(self, codes: Array, times: Array) -> bool:
        """Whether all values are integers that cannot overflow."""
        if self._place < 0 or self.aggregate.op == "COUNT":
            return True
        values = self._dictionary.wholes()[codes[codes >= 0]]
        if (values == NOT_WHOLE).any():
            return False
        added = float(np.abs(values.astype(np.float64)).sum()) * float(times.max(initial=1))
        return float(np.abs(self.sum).max()) + added < MOST

    def _results(self, groups: Array, values: Array, counts: Array) -> Array:
        op = self.aggregate.op
        if op in ("MIN", "MAX", "SAMPLE"):
            return values.astype(np.int32)
        if op != "AVG":
            found = self._dictionary.integers(values)
            if op == "SUM":
                found[counts < 0] = -1
            return found
        pairs, place = np.unique(np.column_stack((values, counts)), axis=0, return_inverse=True)
        code = self._dictionary.code
        codes = [code(_average(total, count)) if count >= 0 else -1 for total, count in pairs.tolist()]
        return np.array(codes, np.int32)[place.reshape(-1)]

    def _taken_exactly(
        self,
        exact: dict[int, Running],
        groups: Array,
        rows: Rows,
        codes: Array,
        shown: Array,
        weighed: Weighed,
    ) -> Array:
        found = np.full(len(groups), -1, np.int32)
        of, code, distinct = self._dictionary.of, self._dictionary.code, self.aggregate.distinct
        wanted = np.zeros(len(groups), np.bool_)
        wanted[shown] = True
        parts, times = weighed.exact, [1] * len(groups) if distinct else weighed.times.tolist()
        for i, (group, show) in enumerate(zip(groups.tolist(), wanted.tolist(), strict=True)):
            running = exact.get(group)
            if running is None:
                running = exact[group] = self._begun()
            if parts is not None:
                next(parts).add_to(running)
            elif self._place >= 0:
                running.add(of(int(codes[i])), times[i])
            elif not distinct:
                running.add("", times[i])
            else:
                texts = map(of, rows.values[i, : len(self._names)].tolist())
                running.add(solution_line(self._names, tuple(texts)))
            if show and (result := running.result()) is not None:
                found[i] = code(result)
        return found[shown]

    # --- one group, value by value -------------------------------------------------------------------

    def saved(self, groups: Array) -> _Saved:
        """What there is of some groups."""
        arrays = tuple(each[groups] for each in (self.count, self.sum, self.best, self.wrong))
        exact = None
        if self.exact is not None:
            exact = {group: copy.deepcopy(self.exact.get(group)) for group in groups.tolist()}
        return arrays, self._seen.count, exact

    def back(self, groups: Array, saved: _Saved) -> None:
        """Makes some groups what they were; what was not exact then may go on as such."""
        arrays, seen, exact = saved
        if exact is None and self.exact is not None:
            for group in groups.tolist():
                self.exact.pop(group, None)
            for each, values in zip((self.count, self.sum, self.best, self.wrong), arrays, strict=True):
                each[groups] = values
            self._seen.cut(seen)
            kept, self.exact = self.exact, None
            self.exact = kept | {group: self.running(group) for group in groups.tolist()}
            return
        for each, values in zip((self.count, self.sum, self.best, self.wrong), arrays, strict=True):
            each[groups] = values
        self._seen.cut(seen)
        for group, running in (exact or {}).items():
            assert self.exact is not None
            self.exact.pop(group, None)
            if running is not None:
                self.exact[group] = running

    def _begun(self) -> Running:
        return Running(self.aggregate.op, self.aggregate.distinct, self.aggregate.separator)

    def running(self, group: int) -> Running:
        """The aggregate of a group."""
        if self.exact is not None:
            return self.exact.get(group) or self._begun()
        made, of = self._begun(), self._dictionary.of
        seen = self._seen.rows[: self._seen.count]
        values = [of(code) for code in seen[seen[:, 0] == group, 1].tolist()]
        total = int(self.sum[group])
        made.resume(values, int(self.count[group]), bool(self.wrong[group]), of(int(self.best[group])), total)
        return made

    def settle(self, runnings: dict[int, Running]) -> None:
        """Goes on from aggregates of some groups."""
        code = self._dictionary.code
        best = {group: -1 if each.best is None else code(each.best) for group, each in runnings.items()}
        whole = self._dictionary.wholes()
        plain = all(each.is_whole for each in runnings.values())
        if self.exact is None and plain and all(at < 0 or whole[at] != NOT_WHOLE for at in best.values()):
            for group, each in runnings.items():
                self.count[group], self.sum[group] = each.count, int(each.whole)
                self.best[group], self.wrong[group] = best[group], each.wrong
                if each.seen:
                    codes = [-1 if text is None else code(text) for text in each.seen]
                    self._seen.numbers(np.column_stack((np.full(len(codes), group), codes)))
            return
        if self.exact is None:
            self.exact = {group: self.running(group) for group in np.flatnonzero(self._used()).tolist()}
        self.exact.update(runnings)


_NOTHING = np.empty(0, np.int64)


def _average(total: int, count: int) -> str:
    if not count:
        return str(numeral(Number(0, 0)))
    return str(numeral(calculate("/", Number(0, total), Number(0, count))))


class GroupedColumns(ColumnOperator, Keeper):
    """GROUP BY: keys and aggregates by name, with the columns below that they are about (-1 is none).

    Where they begin `anew` at each step, that is one evaluation, or groups of one instant each: without keys
    there is always one group.
    """

    label = "an aggregate"

    def __init__(
        self,
        below: ColumnOperator,
        seen: Sequence[str],
        keys: Sequence[tuple[str, int]],
        aggregates: Sequence[tuple[str, Aggregate, int]],
        certain: frozenset[str],
        dictionary: Dictionary,
        anew: bool,
    ) -> None:
        self.below, self._dictionary, self._anew = below, dictionary, anew
        self.names = (*(name for name, _ in keys), *(name for name, _, _ in aggregates))
        self.certain = certain
        self.about, self.bound = tuple(name for name, _ in keys), 0 if anew else None
        self._keys = [place for _, place in keys]
        self._aggregates, self._seen = aggregates, seen
        self._begin()
        self._ordered = any(each.op == "GROUP_CONCAT" for _, each, _ in aggregates)
        self.still = self._with(below.still)

    def _begin(self) -> None:
        self._numbered = Numbered(len(self._keys))
        self._begun = np.full(256, kernels.LAST)
        self._totals = [_Totals(each, at, self._seen, self._dictionary) for _, each, at in self._aggregates]
        self._undone: list[Callable[[], None]] = []

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        rows = self.below.step(chunk)
        if self._anew:
            self._begin()
            if not self._keys and not len(rows):
                return self._empty(int(chunk.until))
        return self._with(rows)

    def _empty(self, now: int) -> Rows:
        results = (each.running(0).result() for each in self._totals)
        return Rows.of([(now, now, self._dictionary.codes(results))], len(self.names))

    def _with(self, rows: Rows, weighed: Sequence[Weighed] | None = None) -> Rows:
        if not len(rows):
            return Rows.none(len(self.names))
        if self._ordered:
            rows = rows.take(self._in_order(rows))
        known = self._numbered.count
        groups = self._numbered.numbers(self._key_columns(rows))
        self._reserve()
        if self.replays:
            self._remember(np.unique(groups), known)
        shown, start = kernels.run_groups(groups, rows.start, rows.end, self._begun, self._numbered.count)
        weights: Sequence[Weighed | None] = weighed or [None] * len(self._totals)
        results = [
            each.take(groups, rows, shown, weight) for each, weight in zip(self._totals, weights, strict=True)
        ]
        keys = self._numbered.rows[groups[shown]]
        values = np.column_stack([keys, *results]).astype(np.int32)
        return Rows(values.reshape(len(shown), len(self.names)), start[shown], rows.end[shown])

    def _key_columns(self, rows: Rows) -> Array:
        found = np.full((len(rows), len(self._keys)), -1, np.int32)
        for i, place in enumerate(self._keys):
            if place >= 0:
                found[:, i] = rows.values[:, place]
        return found

    def _reserve(self) -> None:
        more = self._numbered.count - len(self._begun)
        if more > 0:
            more = 2 * _power(self._numbered.count) - len(self._begun)
            self._begun = np.pad(self._begun, (0, more), constant_values=kernels.LAST)
        for each in self._totals:
            each.reserve(len(self._begun))

    def _in_order(self, rows: Rows) -> Array:
        of, width = self._dictionary.of, len(self._seen)
        lines = [solution_line(self._seen, tuple(map(of, row[:width]))) for row in rows.values.tolist()]
        keys = list(zip(rows.end.tolist(), rows.start.tolist(), lines, strict=True))
        return np.array(sorted(range(len(keys)), key=keys.__getitem__))

    # --- state ---------------------------------------------------------------------------------------

    def _remember(self, groups: Array, known: int) -> None:
        """How to make some groups what they are now; before, so many were known."""
        begun, saved = self._begun[groups], [each.saved(groups) for each in self._totals]

        def back() -> None:
            self._begun[groups] = begun
            for each, values in zip(self._totals, saved, strict=True):
                each.back(groups, values)
            self._numbered.cut(known)

        self._undone.append(back)

    @property
    def size(self) -> int:
        """How many groups there are."""
        return int((self._begun < kernels.LAST).sum())

    def exceeds(self, cap: int) -> bool:
        """See `Keeper`."""
        return self._numbered.count > cap and self.size > cap

    def undo(self) -> None:
        """See `Keeper`."""
        for back in reversed(self._undone):
            back()
        self._undone = []

    def commit(self) -> None:
        """See `Keeper`."""
        self._undone = []

    def dump(self, before: float = math.inf) -> Any:
        """Each group with its key, its start and its aggregates."""
        of, keys = self._dictionary.of, self._numbered.rows
        return [
            [list(map(of, keys[at].tolist())), int(self._begun[at]), self._dumped(at)]
            for at in np.flatnonzero(self._begun < kernels.LAST).tolist()
        ]

    def _dumped(self, group: int) -> Any:
        return [each.running(group).dump() for each in self._totals]

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        runnings = [dict[int, Running]() for _ in self._totals]
        for key, start, aggregates in state:
            codes = np.array([self._dictionary.codes(key)], np.int32)
            [group] = self._numbered.numbers(codes.reshape(1, len(self._keys))).tolist()
            self._reserve()
            self._begun[group] = start
            for found, totals, dumped in zip(runnings, self._totals, aggregates, strict=True):
                each = totals.aggregate
                found[group] = Running(each.op, each.distinct, each.separator)
                found[group].load(dumped)
        for totals, found in zip(self._totals, runnings, strict=True):
            totals.settle(found)
