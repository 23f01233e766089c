"""ABSENT: what the knowledge expects and no event of a window is about (semantics 2.16).

Windows follow each other without a gap, from that of the first event of the streams to that of the last one;
any event tells the time, also one that no PATH holds for. Of each open window the solutions that came are
kept, as numbers of terms.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.columns import Matches, Table
from kaicep.kernel.operator import refuse
from kaicep.kernel.state import read_state, write_state
from kaicep.kernel.vectors import sees, spread
from kaicep.kernel.windowing import WindowMachine
from kaicep.plan.nodes import Semantic
from kaicep.plan.results import Answer, absence

_MOST_WINDOWS = 100_000
"""So many windows between two events are answered for; more come of a time that is wrong."""


class AbsentMachine(WindowMachine):
    """A batch window of which those groups answer that have no event."""

    def _begin(self) -> None:
        super()._begin()
        self._next: int | None = None
        self._newest = -1
        self._came: dict[int, set[tuple[int, ...]]] = {}
        self._known: dict[int, list[tuple[int, ...]]] = {}

    @property
    def size(self) -> int:
        """How many solutions are kept, of all windows that are open."""
        return sum(map(len, self._came.values()))

    @property
    def _expected(self) -> Semantic:
        assert self.node.expected is not None
        return self.node.expected

    @property
    def _span(self) -> int:
        assert self.node.window.width is not None
        return self.node.window.width

    def feed(self, table: Table) -> list[Matches]:
        """What is found by these events, the next ones in order."""
        found: list[Matches] = []
        inside = table.ts[spread(sees(self.node.chain, table), table)]
        if len(inside):
            first = int(inside[0]) // self._span
            self._next = first if self._next is None else self._next
            self._newest = max(self._newest, int(inside[-1]) // self._span)
            rows = np.flatnonzero(self._passes(table))
            if len(rows):
                self._note(table.take(rows))
        if len(table):
            found += self.advance(int(table.ts[-1]))
        return found

    def _note(self, table: Table) -> None:
        """Takes note of the solutions of events that pass."""
        rows, cases = self._meanings.cases(table)
        self.passed.paths += len(np.unique(rows))
        self.passed.fits[self.node.chain.variable] = self.passed.paths
        windows = table.ts[rows] // self._span
        terms = [self._meanings.group_terms(name, cases) for name in self._expected.selected]
        for window, *row in np.unique(np.stack([windows, *terms]), axis=1).T.tolist():
            self._came.setdefault(window, set()).add(tuple(row))
        if self.size > self._limit:
            instead = "make its window narrower, or select less of the PATH"
            raise refuse(f"{self.plan.name} (ABSENT ?{self.node.window.variable})", self.size, instead)

    def advance(self, watermark: float) -> list[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        if self._next is None:
            return []
        last = self._newest if math.isinf(watermark) else min(self._newest, int(watermark // self._span) - 1)
        if last - self._next >= _MOST_WINDOWS:
            raise Failure(
                f"{self.plan.name}: {last - self._next:,} windows lie between two events, more than "
                "ABSENT answers for: check whether the time of an event is wrong, or widen its WINDOW"
            )
        answers = [each for number in range(self._next, last + 1) for each in self._answers(number)]
        self._next = max(self._next, last + 1)
        return [self._matched(answers)] if answers else []

    def _answers(self, number: int) -> Iterable[Answer]:
        start, end = number * self._span, (number + 1) * self._span
        came = self._came.pop(number, set())
        terms = self._meanings.terms.terms
        for row in self._expected_at(end - 1):
            if row not in came:
                named = {name: terms[at] for name, at in zip(self._expected.selected, row, strict=True)}
                yield absence(self.plan, start, end, named)

    def _expected_at(self, ts: int) -> list[tuple[int, ...]]:
        """What the knowledge expects at some time, as numbers of terms."""
        epoch = bisect_right(self._meanings.epochs, ts)
        if epoch not in self._known:
            number = self._meanings.terms.number
            rows = self.semantics.known(self._expected, ts)
            self._known[epoch] = [tuple(map(number, row)) for row in rows]
        return self._known[epoch]

    def _matched(self, answers: list[Answer]) -> Matches:
        rows = [each.match for each in answers]
        low, high = (np.array([int(each.id[at], 16) for each in rows], np.uint64) for at in _HALVES)
        start, end = ([getattr(each, name) for each in rows] for name in ("start_us", "end_us"))
        names = tuple(each.name for each in self._columns)
        terms = {name: [each.select[name] for each in rows] for name in names}
        times = np.array(start, np.int64), np.array(end, np.int64)
        version = self.version if self.versioned else None
        head = self.plan.name, self.streams, self.strings, lambda: (low, high)
        return Matches(*head, *times, names, {}, {}, terms, version=version)

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        super().renew()
        self._known.clear()

    def snapshot(self) -> bytes:
        """The state."""
        rows = sorted((window, *row) for window, some in self._came.items() for row in some)
        numbers = sorted({each for row in rows for each in row[1:]})
        document = {
            "layout": self._signature(),
            "next": self._next,
            "newest": self._newest,
            "terms": [self._meanings.terms.saved(each) for each in numbers],
        }
        at = {each: place for place, each in enumerate(numbers)}
        came = [[window, *(at[each] for each in row)] for window, *row in rows]
        width = 1 + len(self._expected.selected)
        return write_state("absent", document, {"came": np.array(came, np.int64).reshape(len(came), width)})

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        document, arrays = read_state("absent", state)
        if document["layout"] != self._signature():
            raise Failure(f"this is the saved state of another window than that of {self.plan.name}")
        self._begin()
        self._next, self._newest = document["next"], document["newest"]
        terms = [self._meanings.terms.loaded(each) for each in document["terms"]]
        for window, *row in arrays["came"].tolist():
            self._came.setdefault(window, set()).add(tuple(terms[each] for each in row))

    def _signature(self) -> list[object]:
        return ["absent", self._span, list(self._expected.selected)]


_HALVES = slice(0, 16), slice(16, 32)
