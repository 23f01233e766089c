"""LATEST: the last known events of something else, between finished matches and AFTER MATCH (semantics 2).

Events that LATEST variables may take come in, and the matches that the machine has found. A match waits until
no event at the time of its last one can come any more; then its LATEST events are looked up, and it leaves
with them, or is none. Candidates that nothing tells apart, since they have the same keys and say the same to
the PATHs, are one list; the last of it that is early enough, and no event of the match, stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from kaicep.kernel import tables as t
from kaicep.kernel.automaton import variables_in
from kaicep.kernel.columns import Array, Column
from kaicep.kernel.keys import Keys, value_words
from kaicep.kernel.output import Finished
from kaicep.kernel.shape import Requirement, Roots, Shape, requirement_of
from kaicep.kernel.solutions import fields_of, mentions
from kaicep.plan.chi import Place
from kaicep.plan.expressions import Expr, type_of, variables_of
from kaicep.plan.nodes import Latest, Pattern, Semantic
from kaicep.plan.types import Type

__all__ = ["Judge", "LatestStage"]

_FEW = 1_024
"""So many rows are sorted again and again."""
_ROW_BITS = 40
"""The bits of a row where it stands behind its group."""
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

    def alone(self, variable: str, rows: Array) -> Finished:
        """Matches of one event each, which the variable has."""
        ...

    def column(self, expr: Expr, found: Finished, type: Type | None = None) -> Column:
        """The values of an expression of single events; null where one was left out."""
        ...

    def are_bound(self, variables: Iterable[str], found: Finished) -> Array:
        """Whether matches have an event for each of these variables."""
        ...

    def hold(self, requirement: Requirement, found: Finished) -> Array:
        """Whether matches meet a requirement, in every way in which it applies."""
        ...

    def place(self, variable: str) -> int:
        """Where the event of a variable stands in `found`."""
        ...

    def awaited(self) -> Array:
        """The rows of the last events of matches whose deadline has not been reached."""
        ...


class _ByGroup:
    """Rows by group, in which the last one before another is looked for."""

    def __init__(self) -> None:
        self._settled: Array = np.zeros(0, np.int64)
        self._fresh: Array = np.zeros(0, np.int64)

    def add(self, groups: Array, rows: Array) -> None:
        """Takes rows. A few are sorted in often, all of them only after many."""
        self._fresh = np.sort(np.concatenate([self._fresh, groups << _ROW_BITS | rows]))
        if len(self._fresh) > max(_FEW, len(self._settled) // 4):
            self._settled = np.sort(np.concatenate([self._settled, self._fresh]))
            self._fresh = self._fresh[:0]

    def last(self, groups: Array, before: Array) -> Array:
        """The last row of each group that is before another; -1 where there is none."""
        found = np.full(len(groups), -1, np.int64)
        for rows in (self._settled, self._fresh):
            if len(rows):
                at = np.searchsorted(rows, groups << _ROW_BITS | before) - 1
                own = rows[np.maximum(at, 0)]
                there = (at >= 0) & (own >> _ROW_BITS == groups)
                found = np.where(there, np.maximum(found, own & ((1 << _ROW_BITS) - 1)), found)
        return found


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
        alike: list[object] = [
            Roots(each.path, latest.variable) for each in self.asked if each.path is not None
        ]
        alike += [
            each
            for requirement in self.asked
            if isinstance(requirement.of, Semantic)
            for expr in requirement.of.conditions
            for each in fields_of(expr)
            if each.variable == latest.variable
        ]
        self._alike = [t.E_FIXED + shape.keep(each) for each in alike]
        self._room = np.zeros((64, t.E_FIXED + len(shape.kept)), np.int64)
        self._count = 0
        self._settled = 0
        self._span = _span(shape.pattern)
        # So many events before the last one may be events of the match itself.
        self._spare: int | None = 0
        if any(set(each.streams) & set(self.chain.streams) for each in shape.pattern.chains):
            self._spare = None if shape.loops else len(shape.variables)
        self._begin()

    def __len__(self) -> int:
        return self._count

    @property
    def events(self) -> Array:
        """The candidates, in order."""
        return self._room[: self._count]

    def _begin(self) -> None:
        self._keys = Keys(len(self.latest.keys))
        self._groups = Keys(1 + len(self._alike))
        self._of_key: dict[int, list[int]] = {}
        self._rows = _ByGroup()
        self._group_of: list[Array] = []

    def add(self, rows: Array, judge: Judge) -> None:
        """Takes events that pass the variable's own conditions, the next ones in order."""
        if not len(rows):
            return
        begin, self._count = self._count, self._count + len(rows)
        if self._count > len(self._room):
            more = np.zeros((2 * self._count - len(self._room), self._room.shape[1]), np.int64)
            self._room = np.concatenate([self._room, more])
        self._room[begin : self._count] = rows
        self._note(begin, judge)

    def _note(self, begin: int, judge: Judge) -> None:
        """Sorts candidates by their keys, and by what PATHs can tell of them."""
        rows = self.events[begin:]
        found = judge.alone(self.latest.variable, rows)
        groups = self._keys.numbers(
            [value_words(judge.column(own, found)) for own, _ in self.latest.keys], len(rows)
        )
        if self._alike:
            known, keys = len(self._groups), groups
            groups = self._groups.numbers([keys, *rows[:, self._alike].T])
            for key, *_ in self._groups.words[:, known:].T.tolist():
                self._of_key.setdefault(key, []).append(known)
                known += 1
        self._rows.add(groups, begin + np.arange(len(rows)))
        self._group_of.append(groups)

    def last(self, found: Finished, judge: Judge) -> Array:
        """The row of the last candidate for each match; -1 where there is none."""
        if not len(self):
            return np.full(len(found), -1, np.int64)
        matches, groups = self._groups_of(found, judge)
        some = found if matches is None else found.rows(matches)
        until = some.events[some.last, t.E_TS]
        rows = self._rows.last(groups, np.searchsorted(self.events[:, t.E_TS], until, "right"))
        while self._spare != 0 and len(own := np.flatnonzero(self._is_own(rows, some))):
            rows[own] = self._rows.last(groups[own], rows[own])
        if matches is None:
            return rows
        made = np.full(len(found), -1, np.int64)
        for m, row in sorted(zip(matches.tolist(), rows.tolist(), strict=True), reverse=True):
            if row >= 0 and made[m] < 0 and self._meets(row, m, found, judge):
                made[m] = row
        return made

    def _meets(self, row: int, m: int, found: Finished, judge: Judge) -> bool:
        beside = {**judge.rounds_of(m, found), self.latest.variable: [judge.seen(row, self.events)]}
        return all(judge.holds(each, beside) for each in self.asked)

    def _groups_of(self, found: Finished, judge: Judge) -> tuple[Array | None, Array]:
        """The groups of candidates that have the keys of a match, and of which match; None: of each one."""
        words = np.zeros((len(self.latest.keys), len(found)), np.int64)
        bound = np.ones(words.shape, np.bool_)
        for at, (own, other) in enumerate(self.latest.keys):
            words[at] = value_words(judge.column(other, found, type_of(own)))
            bound[at] = judge.are_bound(variables_of(other), found)
        keys = np.where((words == t.NULL).any(axis=0), -1, self._keys.numbers(words, len(found)))
        open_: Array = ~np.all(bound, axis=0)
        if not (open_.any() or self._alike):
            return None, keys
        matches: list[int] = []
        groups: list[int] = []
        for m in range(len(found)):
            some = [int(keys[m])]
            if open_[m]:  # an equality with an event that was left out does not apply
                wanted, there = words[:, m], bound[:, m]
                alike = np.all(self._keys.words[there] == wanted[there][:, None], axis=0)
                some = [] if t.NULL in wanted[there] else np.flatnonzero(alike).tolist()
            if self._alike:
                some = [group for key in some for group in self._of_key.get(key, ())]
            matches += [m] * len(some)
            groups += some
        return np.array(matches, np.int64), np.array(groups, np.int64)

    def _is_own(self, rows: Array, found: Finished) -> Array:
        """Whether a candidate is an event of the match itself."""
        own = np.zeros(len(rows), np.bool_)
        identities = self.events[rows, t.E_LOW : t.E_HIGH + 1]
        for events in found.found[:-1]:
            same = (found.events[events, t.E_LOW : t.E_HIGH + 1] == identities).all(axis=1)
            own |= same & (events >= 0)
        for offsets, events in found.rounds.values():
            of = np.repeat(np.arange(len(rows)), np.diff(offsets))
            same = found.events[events, t.E_LOW : t.E_HIGH + 1] == identities[of]
            own[of[np.flatnonzero(same.all(axis=1))]] = True
        return own & (rows >= 0)

    def forget(self, before: int, judge: Judge) -> None:
        """Lets go of what no match takes whose last event is not before that time."""
        if max(len(self), len(self._keys)) <= 2 * self._settled + _ENOUGH:
            return
        if self._spare is None and self._span is None:
            return
        # A match with loops may have any number of candidates among its own events.
        horizon = before - int(self._span or 0) if self._spare is None else before
        groups, times = np.concatenate(self._group_of), self.events[:, t.E_TS]
        count = int(np.searchsorted(times, horizon, "right"))
        order = np.argsort(groups[:count], kind="stable")
        _, places, sizes = np.unique(groups[order], return_inverse=True, return_counts=True)
        after = np.cumsum(sizes)[places] - np.arange(count)  # so many of the group, itself among them
        rows = np.sort(np.concatenate([order[after <= 1 + (self._spare or 0)], np.arange(count, len(self))]))
        if not self.latest.optional and self._span is not None and self.latest.windows:
            width = min(each.width for each in self.latest.windows)
            rows = rows[times[rows] >= before - self._span - width]
        kept = self.events[rows]
        self._room[: len(rows)] = kept
        self._settled = self._count = len(rows)
        self._begin()
        if len(rows):
            self._note(0, judge)


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
        rows = [each.last(found, judge) for each in self.candidates]
        there = [
            own >= 0 for own, each in zip(rows, self.candidates, strict=True) if not each.latest.optional
        ]
        taken = np.flatnonzero(np.logical_and.reduce([np.ones(len(found), np.bool_), *there]))
        every, begin = found.rows(taken), len(found.events)
        events, more = [found.events], []
        for own, each in zip(rows, self.candidates, strict=True):
            chosen = own[taken]
            more.append(np.where(chosen < 0, -1, begin + np.arange(len(taken))))
            events.append(each.events[np.maximum(chosen, 0)] if len(each) else each.events)
            begin += len(events[-1])
        every = replace(
            every,
            events=np.concatenate(events),
            found=np.concatenate([every.found, np.array(more, np.int64)]),
        )
        fits = np.ones(len(every), np.bool_)
        for each in self.candidates:
            fits &= self._in_windows(each.latest, every, judge)
        for requirement in (requirement for each in self.candidates for requirement in each.tested):
            own = np.flatnonzero(fits)
            fits[own] = judge.hold(requirement, every.rows(own))
        for absent in self._shape.late:
            for m in np.flatnonzero(fits).tolist():
                fits[m] = not judge.occurs(absent, judge.rounds_of(m, every), int(every.end[m]))
        return every.rows(np.flatnonzero(fits)).packed()

    def _in_windows(self, latest: Latest, found: Finished, judge: Judge) -> Array:
        """Whether matches are as short as the WINDOWs that name a LATEST variable want them."""
        fits = np.ones(len(found), np.bool_)
        for window in latest.windows:
            first, last = np.full(len(found), t.FOREVER), np.full(len(found), t.NULL)
            for name in window.variables:
                offsets, events = found.of(name, judge.place(name))
                of, times = np.repeat(np.arange(len(found)), np.diff(offsets)), found.events[events, t.E_TS]
                np.minimum.at(first, of, times)
                np.maximum.at(last, of, times)
            fits &= (first > last) | (last - first <= window.width)
        return fits

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
