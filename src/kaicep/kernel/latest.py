"""LATEST: the last known events of something else, between finished matches and AFTER MATCH (semantics 2).

Events that LATEST variables may take come in, and the matches that the machine has found. A match waits until
no event at the time of its last one can come any more; then its LATEST events are looked up, and it leaves
with them, or is none. Candidates that nothing tells apart, since they have the same keys and say the same to
the PATHs, are one list; the last of it that is early enough, and no event of the match, stands for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from kaicep.kernel import tables as t
from kaicep.kernel.automaton import variables_in
from kaicep.kernel.columns import Array
from kaicep.kernel.output import Finished
from kaicep.kernel.shape import Requirement, Roots, Shape, requirement_of
from kaicep.kernel.solutions import Scene, fields_of, mentions, value_in
from kaicep.plan.chi import Place
from kaicep.plan.expressions import variables_of
from kaicep.plan.nodes import Latest, Pattern, Semantic
from kaicep.plan.types import Value

__all__ = ["Judge", "LatestStage"]

_ENOUGH = 16_384
"""Below so many candidates, it is not worth while to look for those that can be forgotten."""

Rounds = Mapping[str, Sequence[Any]]
"""The events of a match by variable; nothing for one that was left out."""


class Judge(Protocol):
    """What the stage asks of the pattern operator."""

    def seen(self, row: int, events: Array) -> Any:
        """An event of these rows, as conditions see it."""
        ...

    def holds(self, requirement: Requirement, rounds: Rounds) -> bool:
        """Whether events meet a requirement, in every way in which it applies."""
        ...

    def rounds_of(self, m: int, found: Finished) -> dict[str, list[Any]]:
        """The events of a match by variable."""
        ...

    def occurs(self, absent: str, rounds: Rounds, end: int) -> bool:
        """Whether an event that must be absent lies between its neighbours, in a match that ends then."""
        ...

    def awaited(self) -> Array:
        """The rows of the last events of matches whose deadline has not been reached."""
        ...


@dataclass
class _Known:
    """Candidates that nothing tells apart, in order: their times, and their rows among all candidates."""

    times: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class _Candidates:
    """The events that a LATEST variable may take.

    `given` are those of its own PATHs that speak of the match's partition: they are asked of each match.
    """

    def __init__(self, latest: Latest, shape: Shape, given: Sequence[Semantic]) -> None:
        self.latest = latest
        self.chain = latest.chain
        self.semantics = [each for each in self.chain.semantics if each not in given]
        self.asked = [requirement_of(each) for each in (*latest.semantics, *given)]
        self.tested = [requirement_of(each) for each in latest.conditions]
        self._alike = [Roots(each.path, latest.variable) for each in self.asked if each.path is not None]
        self._fields = [
            each
            for requirement in self.asked
            if isinstance(requirement.of, Semantic)
            for expr in requirement.of.conditions
            for each in fields_of(expr)
            if each.variable == latest.variable
        ]
        self.events = np.zeros((0, t.E_FIXED + len(shape.kept)), np.int64)
        self._groups: dict[tuple[Value, ...], dict[tuple[Any, ...], _Known]] = {}
        self._settled = 0
        self._span = _span(shape.pattern)
        # So many events before the last one may be events of the match itself.
        self._spare: int | None = 0
        if any(set(each.streams) & set(self.chain.streams) for each in shape.pattern.chains):
            self._spare = None if shape.loops else len(shape.variables)

    def __len__(self) -> int:
        return len(self.events)

    def add(self, rows: Array, judge: Judge) -> None:
        """Takes events that pass the variable's own conditions, the next ones in order."""
        if len(rows):
            begin = len(self.events)
            self.events = np.concatenate([self.events, rows])
            self._note(begin, judge)

    def _note(self, begin: int, judge: Judge) -> None:
        for row in range(begin, len(self.events)):
            seen = judge.seen(row, self.events)
            scene = Scene({self.latest.variable: seen})
            key = tuple([value_in(own, scene) for own, _ in self.latest.keys])
            alike = (*(seen.word(each) for each in self._alike), *(seen.value(each) for each in self._fields))
            known = self._groups.setdefault(key, {}).setdefault(alike, _Known())
            known.times.append(int(self.events[row, t.E_TS]))
            known.rows.append(row)

    def last(self, rounds: Rounds, until: int, judge: Judge) -> int | None:
        """The row of the last candidate for a match whose last event is at that time."""
        own = {each.identity for some in rounds.values() for each in some}
        every = (self._last_of(known, own, until) for known in self._equal(rounds))
        lasts = [row for row in every if row is not None]
        for row in sorted(lasts, reverse=True):
            beside = {**rounds, self.latest.variable: [judge.seen(row, self.events)]}
            if all(judge.holds(each, beside) for each in self.asked):
                return row
        return None

    def _equal(self, rounds: Rounds) -> Iterable[_Known]:
        """The candidates that have the keys of a match; one about an event left out does not apply."""
        scene = Scene({name: some[0] for name, some in rounds.items()})
        wanted = {
            at: value_in(other, scene)
            for at, (_, other) in enumerate(self.latest.keys)
            if variables_of(other) <= rounds.keys()
        }
        if None in wanted.values():
            return ()  # null is equal to nothing
        if len(wanted) == len(self.latest.keys):
            return self._groups.get(tuple(wanted.values()), {}).values()
        return [
            known
            for key, some in self._groups.items()
            if all(key[at] == value for at, value in wanted.items())
            for known in some.values()
        ]

    def _last_of(self, known: _Known, own: set[tuple[int, int]], until: int) -> int | None:
        for at in range(bisect_right(known.times, until) - 1, -1, -1):
            low, high = self.events[known.rows[at], t.E_LOW : t.E_HIGH + 1].tolist()
            if (low, high) not in own:
                return known.rows[at]
        return None

    def fits(self, found: Rounds, judge: Judge) -> bool:
        """Whether the conditions and the WINDOWs of the last candidate hold; all other events are found."""
        for window in self.latest.windows:
            times = [each.ts for name in window.variables for each in found.get(name, ())]
            if times and max(times) - min(times) > window.width:
                return False
        return all(judge.holds(each, found) for each in self.tested)

    def forget(self, before: int, judge: Judge) -> None:
        """Lets go of what no match takes whose last event is not before that time."""
        if len(self.events) <= 2 * self._settled + _ENOUGH:
            return
        if self._spare is None and self._span is None:
            return
        # A match with loops may have any number of candidates among its own events.
        horizon = before - int(self._span or 0) if self._spare is None else before
        keep: list[int] = []
        for known in (known for some in self._groups.values() for known in some.values()):
            first = bisect_right(known.times, horizon) - 1 - (self._spare or 0)
            keep += known.rows[max(first, 0) :]
        rows = np.sort(np.array(keep, np.int64))
        if not self.latest.optional and self._span is not None and self.latest.windows:
            width = min(each.width for each in self.latest.windows)
            rows = rows[self.events[rows, t.E_TS] >= before - self._span - width]
        self.events = self.events[rows]
        self._groups.clear()
        self._note(0, judge)
        self._settled = len(self.events)


def _span(pattern: Pattern) -> int | None:
    """How long a match can be; None where no WINDOW says that."""
    names = {name for each in pattern.sequence for name in variables_in(each)}
    if len(names) == 1 and isinstance(pattern.sequence[0], Place):
        return 0
    return min((each.width for each in pattern.windows if names.issubset(each.variables)), default=None)


class LatestStage:
    """The matches that wait for their LATEST events, and the candidates."""

    def __init__(self, shape: Shape, given: Sequence[str]) -> None:
        self._shape = shape
        self.candidates = [
            _Candidates(each, shape, [one for one in _own_paths(each) if _is_given(one, given)])
            for each in shape.pattern.latest
        ]
        self.waiting: list[Finished] = []
        self.until = int(t.NULL)
        """No event before this time will come any more."""

    def __len__(self) -> int:
        return sum(map(len, self.candidates)) + sum(map(len, self.waiting))

    def add(self, found: Finished) -> None:
        """Takes matches that the machine has found."""
        if len(found):
            self.waiting.append(found.packed())

    def decided(self, judge: Judge) -> Iterator[Finished]:
        """The matches that have their LATEST events, in rows of `found` behind those of the pattern."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            late = each.events[each.last, t.E_TS] >= self.until
            if late.any():
                self.waiting.append(each.rows(np.flatnonzero(late)).packed())
            rows = np.flatnonzero(~late)
            if len(rows):
                yield self._looked_up(each.rows(rows), judge)
        self._forget(judge)

    def _looked_up(self, found: Finished, judge: Judge) -> Finished:
        chosen: list[list[int]] = []
        taken: list[int] = []
        begins = np.cumsum([len(found.events), *map(len, self.candidates)])[:-1].tolist()
        for m in range(len(found)):
            rows = self._of(judge.rounds_of(m, found), int(found.end[m]), int(found.last[m]), found, judge)
            if rows is not None:
                taken.append(m)
                chosen.append(
                    [-1 if row is None else begin + row for begin, row in zip(begins, rows, strict=True)]
                )
        events = np.concatenate([found.events, *(each.events for each in self.candidates)])
        more = np.array(chosen, np.int64).reshape(len(taken), len(self.candidates)).T
        some = found.rows(np.array(taken, np.int64))
        return replace(some, events=events, found=np.concatenate([some.found, more])).packed()

    def _of(
        self, rounds: Rounds, end: int, last: int, found: Finished, judge: Judge
    ) -> list[int | None] | None:
        """The row of each candidate that a match takes; None where it is no match."""
        until = int(found.events[last, t.E_TS])
        rows = [each.last(rounds, until, judge) for each in self.candidates]
        every = dict(rounds)
        for each, row in zip(self.candidates, rows, strict=True):
            if row is not None:
                every[each.latest.variable] = [judge.seen(row, each.events)]
            elif not each.latest.optional:
                return None
        if not all(each.fits(every, judge) for each in self.candidates):
            return None
        if any(judge.occurs(absent, every, end) for absent in self._shape.late):
            return None
        return rows

    def _forget(self, judge: Judge) -> None:
        times = [int(each.events[each.last, t.E_TS].min()) for each in self.waiting]
        times += judge.awaited()[:, t.E_TS].tolist()
        before = min([self.until - (self._shape.pattern.deadline or 0), *times])
        for each in self.candidates:
            each.forget(before, judge)

    # --- saved state ---

    def kept(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Rows of events, which the pattern writes as it writes its own, and other arrays; by name."""
        rows = {f"of {each.latest.variable}": each.events.copy() for each in self.candidates}
        others: dict[str, Array] = {"until": np.array([self.until])}
        for number, each in enumerate(self.waiting):
            rows[f"waiting {number}"] = each.events.copy()
            others[f"{number} found"] = each.found
            others[f"{number} last"], others[f"{number} end"] = each.last, each.end
            others[f"{number} versions"] = each.versions
            for name, (offsets, events) in each.rounds.items():
                others[f"{number} offsets {name}"], others[f"{number} rounds {name}"] = offsets, events
        return rows, others

    def load(self, rows: Mapping[str, Array], others: Mapping[str, Array], judge: Judge) -> None:
        """Goes on from what was kept."""
        self.until = int(others["until"][0])
        for each in self.candidates:
            each.add(rows[f"of {each.latest.variable}"], judge)
        for name, events in rows.items():
            if not name.startswith("waiting "):
                continue
            number = name.removeprefix("waiting ")
            rounds = {
                name: (others[f"{number} offsets {name}"], others[f"{number} rounds {name}"])
                for name in self._shape.loops
            }
            found, last, end, versions = (
                others[f"{number} {each}"] for each in ("found", "last", "end", "versions")
            )
            self.waiting.append(Finished(events, found, rounds, last, end, versions))

    # --- what others must know ---

    @property
    def first_end(self) -> int | None:
        """When the first of the matches that wait has ended."""
        return min((int(each.end.min()) for each in self.waiting), default=None)

    @property
    def first_position(self) -> int | None:
        """The place in the order of the first event of the matches that wait."""
        return min((int(each.events[:, t.E_POSITION].min()) for each in self.waiting), default=None)

    def last_rows(self) -> Array:
        """The rows of the last events of the matches that wait."""
        width = t.E_FIXED + len(self._shape.kept)
        return np.concatenate([np.zeros((0, width), np.int64), *(w.events[w.last] for w in self.waiting)])


def _own_paths(latest: Latest) -> tuple[Semantic, ...]:
    return latest.chain.semantics


def _is_given(condition: Semantic, given: Sequence[str]) -> bool:
    return any(mentions(condition, each) for each in given)
