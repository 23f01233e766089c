"""AFTER MATCH: which of the matches of a partition are taken (semantics 2).

Matches are taken in the order of their last event, first event, longer first, then from left to right.
Whatever is found later has a later last event, so the order is settled event by event. Only a match that
still awaits a deadline is undecided, and holds back those behind it that it could rule out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Candidate", "Group", "Skipping", "Start"]


class Start:
    """A first event: its place in the order, its time, and how many partial matches begin with it."""

    __slots__ = ("live", "position", "ts", "used")

    def __init__(self, position: int, ts: int) -> None:
        self.position = position
        self.ts = ts
        self.live = 0
        self.used = False
        """Whether a match that was taken rules out every later one with this first event."""


class Candidate:
    """A complete match: its events' places in the order, and whether it stands.

    `valid` is None while a deadline is awaited. `resume` is the place before which no later match may
    begin if this one is taken.
    """

    __slots__ = ("emitted", "match", "positions", "resume", "start", "valid")

    def __init__(self, match: Any, positions: tuple[int, ...], start: Start, resume: int) -> None:
        self.match = match
        self.positions = positions
        self.start = start
        self.resume = resume
        self.valid: bool | None = None
        self.emitted = False


class Group:
    """Matches of the same events, which stand or fall together."""

    __slots__ = ("members", "taken")

    def __init__(self, members: list[Candidate]) -> None:
        self.members = members
        self.taken = False

    @property
    def first(self) -> int:
        """The place in the order of the first event."""
        return self.members[0].positions[0]

    @property
    def open(self) -> bool:
        """Whether any of them still awaits a deadline."""
        return any(each.valid is None for each in self.members)

    def resume(self) -> int:
        """The place before which it may rule out all that begins."""
        return max((each.resume for each in self.members if each.valid is not False), default=-1)


class Skipping:
    """The matches of one partition that are not settled yet, in their order."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.resume = -1
        """No match found from now on may begin before this place in the order."""
        self.settled = -1
        """The same, as far as those matches say that no undecided one stands before."""
        self.groups: list[Group] = []

    def add(self, found: Iterable[Candidate]) -> None:
        """The matches that one event completed."""
        same: dict[tuple[int, ...], list[Candidate]] = {}
        for each in found:
            same.setdefault(each.positions, []).append(each)
        for at in sorted(same, key=lambda at: (at[-1], at[0], -len(at), at)):
            self.groups.append(Group(same[at]))

    def settle(self) -> Iterator[Candidate]:
        """The matches that are certain by now."""
        resume = self.settled
        used: set[int] = set()
        threats: list[Group] = []
        kept: list[Group] = []
        for group in self.groups:
            ruled_out = group.first < resume or (self.mode == "next" and self._is_used(group, used))
            if ruled_out or not any(each.valid is not False for each in group.members):
                for each in group.members:
                    each.valid = False
                continue
            if any(self._may_rule_out(each, group) for each in threats):
                threats.append(group)
                kept.append(group)
                continue
            yield from self._emit(group)
            if group.open:
                threats.append(group)
                kept.append(group)
                continue
            group.taken = True
            resume = max(resume, group.resume())
            used.add(group.first)
            if self.mode == "next":
                group.members[0].start.used = True
            if threats:
                kept.append(group)  # it stays to be counted after those before it
            else:
                self.settled = resume
        self.groups = kept
        self.resume = max(self.resume, resume)

    def _is_used(self, group: Group, used: set[int]) -> bool:
        """Whether its first event is that of a match taken before it."""
        if group.first in used:
            return True
        # The mark may come from a match behind it, which has no say over this one.
        marked = group.members[0].start.used and not group.taken
        behind = any(each.taken and each.first == group.first for each in self.groups)
        return marked and not behind

    def _may_rule_out(self, threat: Group, group: Group) -> bool:
        if self.mode == "next":
            return threat.first == group.first
        return group.first < threat.resume()

    def _emit(self, group: Group) -> Iterator[Candidate]:
        for each in group.members:
            if each.valid and not each.emitted:
                each.emitted = True
                yield each
