"""Solutions as columns, and tables of them that can be asked by key and can forget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.dictionary import Array, Dictionary
from kaicep.kernel.epsparql.state import Keeper


@dataclass(slots=True, eq=False)
class Rows:
    """Solutions as columns, in the order of their end; -1 is unbound. Nobody changes them.

    Many are made where triples come one at a time; a frozen record takes three times as long.
    """

    values: Array
    start: Array
    end: Array

    def __len__(self) -> int:
        return len(self.end)

    def take(self, places: Array) -> Rows:
        """Some of them."""
        return Rows(self.values[places], self.start[places], self.end[places])

    def before(self, end: float) -> Rows:
        """Those that end earlier."""
        return self if end == math.inf else self.take(np.flatnonzero(self.end < end))

    def once(self) -> Rows:
        """Without what is the same."""
        if len(self) < 2:
            return self
        return self.take(first_of(np.column_stack((self.end, self.start, self.values))))

    @staticmethod
    @cache
    def none(width: int) -> Rows:
        """No solution of so many variables."""
        return Rows(np.empty((0, width), np.int32), np.empty(0, np.int64), np.empty(0, np.int64))

    @staticmethod
    def of(rows: Sequence[tuple[int, int, Sequence[int]]], width: int) -> Rows:
        """Solutions (start, end, values) in the order of their end."""
        ordered = sorted(rows, key=lambda row: row[1])
        values = np.array([each[2] for each in ordered], np.int32).reshape(len(ordered), width)
        start, end = (np.array([each[i] for each in ordered], np.int64) for i in (0, 1))
        return Rows(values, start, end)

    def listed(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """The solutions (start, end, values)."""
        times = self.start.tolist(), self.end.tolist()
        return list(zip(*times, map(tuple, self.values.tolist()), strict=True))

    @staticmethod
    def merged(parts: Sequence[Rows]) -> Rows:
        """Several lists of solutions as one."""
        some = [each for each in parts if len(each)] or [parts[0]]
        if len(some) == 1:
            return some[0]
        end = np.concatenate([each.end for each in some])
        order = np.argsort(end, kind="stable")
        values = np.concatenate([each.values for each in some])[order]
        return Rows(values, np.concatenate([each.start for each in some])[order], end[order])


def first_of(rows: Array) -> Array:
    """Where each different row stands for the first time."""
    if not rows.shape[1]:
        return np.arange(min(len(rows), 1))
    _, first = np.unique(rows, axis=0, return_index=True)
    return np.sort(first)


class SolutionTable(Keeper):
    """Solutions in the order of their end, chained by their key; it forgets what ended too long ago.

    With `witness`, the first of those that agree at its places stays: that there is one still matters.
    """

    def __init__(
        self,
        width: int,
        places: Array,
        bound: int | None,
        dictionary: Dictionary,
        witness: Array | None = None,
    ) -> None:
        self.bound = bound
        self._places, self._witness, self._dictionary = places, witness, dictionary
        self._length = self._old = 0
        self._fresh = 0  # so many of the last rows may be taken back
        self.vague = False  # whether a key may leave something unbound
        self.mixed = False  # whether rows came that ended before others
        self._settled = 0
        self._now = kernels.FIRST
        self._make(256, width)

    def _make(self, room: int, width: int) -> None:
        self._values = np.empty((room, width), np.int32)
        self._start, self._end = np.empty(room, np.int64), np.empty(room, np.int64)
        self._before = np.empty(room, np.int64)
        self._keys, self._heads = np.empty(2 * room, np.int64), np.full(2 * room, -1, np.int64)

    def arrays(self) -> tuple[Any, ...]:
        """What the kernel reads and writes."""
        rows = self._values, self._start, self._end, self._before
        return (*rows, self._keys, self._heads, self._length)

    def expect(self, rows: Rows) -> None:
        """Makes room for rows that the kernel may add."""
        self.reserve(len(rows.end))
        self.vague = self.vague or kernels.is_any_vague(rows.values, self._places)

    def grown(self, length: int, now: int) -> None:
        """Takes note of what the kernel added."""
        self._fresh += length - self._length
        self._length, self._now = length, max(self._now, now)

    def live(self) -> Rows:
        """What is of use still."""
        begin = self._begin()
        chosen: Any = slice(begin, self._length)
        if self._witness is not None and begin:
            first = first_of(self._values[:begin, self._witness])
            chosen = np.concatenate((first, np.arange(begin, self._length)))
        return Rows(self._values[chosen], self._start[chosen], self._end[chosen])

    def _begin(self) -> int:
        if self.bound is None or self.mixed:
            return 0
        return int(np.searchsorted(self._end[: self._length], self._now - self.bound))

    def __len__(self) -> int:
        return self._length - max(self._begin() - self._old, 0)

    def reserve(self, more: int) -> None:
        """Makes room for so many rows."""
        if self._length + more <= len(self._end):
            return
        self._rebuild(self.live(), more)

    def forget(self, now: int) -> None:
        """See `Keeper`."""
        self._now = max(self._now, now)
        middle = self._old + self._length // 2 + 1
        if self._length <= 256 or self.bound is None or self.mixed or middle >= self._length:
            return
        if self._end[middle - 1] < self._now - self.bound:  # less than half of it is of use
            self._rebuild(self.live(), 0)

    def settle(self) -> None:
        """Brings the rows into the order of their end, after they came in any."""
        if self.mixed:
            self.mixed = False
            ends = self._end[max(self._settled - 1, 0) : self._length]
            if (ends[1:] < ends[:-1]).any():
                rows = Rows(*(each[: self._length] for each in (self._values, self._start, self._end)))
                self._rebuild(rows.take(np.argsort(rows.end, kind="stable")), 0)
        self._settled = self._length

    def add(self, rows: Rows) -> None:
        """Adds rows that end no earlier than all before."""
        if len(rows):
            self.reserve(len(rows))
            self._put(rows)

    def _put(self, rows: Rows) -> None:
        first, last = self._length, self._length + len(rows)
        self._values[first:last], self._start[first:last] = rows.values, rows.start
        self._end[first:last] = rows.end
        self.vague = self.vague or kernels.is_any_vague(rows.values, self._places)
        kernels.link(self._values, self._places, self._before, self._keys, self._heads, first, last)
        self.grown(last, int(rows.end[-1]))

    def _rebuild(self, rows: Rows, more: int) -> None:
        """Starts anew with some rows; at least half of the room is then free, so that this is seldom."""
        room, fresh = 256, self._fresh
        while room < 2 * (len(rows) + more):
            room *= 2
        self._make(room, self._values.shape[1])
        self._length = self._old = self._settled = 0
        self.vague = False
        if len(rows):
            self._put(rows)
            self._old = self._begin()
        self._fresh = fresh

    # --- state -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return len(self)

    def exceeds(self, cap: int) -> bool:
        """See `Keeper`."""
        return self._length > cap and len(self) > cap

    def undo(self) -> None:
        """See `Keeper`."""
        first = self._length - self._fresh
        kernels.unlink(self._values, self._places, self._before, self._keys, self._heads, first, self._length)
        self._length, self._fresh = first, 0

    def commit(self) -> None:
        """See `Keeper`."""
        self._fresh = 0

    def dump(self, before: float = math.inf) -> Any:
        """Its rows as text, but for what matters at one instant only."""
        if self.bound == 0:
            return []
        rows, of = self.live().before(before), self._dictionary.of
        values = [[of(code) for code in row] for row in rows.values.tolist()]
        found = zip(rows.start.tolist(), rows.end.tolist(), values, strict=True)
        return sorted(found, key=lambda row: (row[1], row[0], [text or "" for text in row[2]]))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        if state:
            codes = [self._dictionary.codes(row[2]) for row in state]
            values = np.array(codes, np.int32).reshape(len(state), -1)
            self.add(Rows(values, *(np.array([row[i] for row in state], np.int64) for i in (0, 1))))
