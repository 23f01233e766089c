"""Which consumers are left out because nothing reaches them in time anyway.

Validity alone sheds what is outdated, one event at a time and after others have worked for it. A consumer
whose events all die at the same node wastes whatever was done for it before that node. Such a one is left
out for a while, with all that only it needs, and named with the node; then it is tried again, and at once
where others had too much to do and have no longer. Nobody else is touched: a consumer that gets anything in
time stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Admission", "Hopeless", "Passed"]

ENOUGH, INTERVALS = 8, 2
"""So many events must have died at a node, in so many intervals, and none come through, before that says
anything. Those that were kept waiting by others all die in one interval, as soon as it is their turn."""
_RELAXED = 2
"""After so many intervals in which nothing had to wait, whoever was left out because of others is tried."""
_FIRST, _LONGEST = 10, 160
"""For how many intervals a consumer is left out, the first time and at most; a failed try doubles it."""


@dataclass(frozen=True)
class Passed:
    """What happened at a node so far: how many events came through it, and how many died of lack of time."""

    through: int
    missed: int


@dataclass(frozen=True)
class Hopeless:
    """A consumer that is left out: where its events died, and how many in a row."""

    consumer: str
    node: str
    missed: int


class Admission:
    """Watches the figures of the nodes, one interval after the other.

    >>> some = Admission()
    >>> upstream = {"airbag": ["spectrum", "airbag"], "screen": ["screen"]}
    >>> counted = {name: Passed(0, 0) for name in ("spectrum", "airbag", "screen")}
    >>> some.observe(upstream, counted.__getitem__)
    False
    >>> counted |= {"spectrum": Passed(9, 0), "airbag": Passed(0, 4), "screen": Passed(1, 50)}
    >>> some.observe(upstream, counted.__getitem__)
    False
    >>> counted |= {"spectrum": Passed(19, 0), "airbag": Passed(0, 9)}
    >>> some.observe(upstream, counted.__getitem__), list(some.hopeless.values())
    (True, [Hopeless(consumer='airbag', node='airbag', missed=9)])
    """

    def __init__(self) -> None:
        self.hopeless: dict[str, Hopeless] = {}
        self._since: dict[str, Passed] = {}
        self._before: dict[str, Passed] = {}
        self._intervals: Counter[str] = Counter()
        self._left: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._pressed: dict[str, int] = {}
        self._relaxed = 0

    def observe(
        self,
        upstream: Mapping[str, Iterable[str]],
        counted: Callable[[str], Passed],
        pressed: bool = True,
    ) -> bool:
        """Takes the figures of all nodes; returns whether anybody is left out now, or let in, who was not.

        `upstream` has for each consumer the nodes that its events pass, itself included. `pressed` is whether
        anything had to wait in this interval because all cores were in use.
        """
        changed = self._let_in(upstream.keys(), pressed)
        nodes = {node for some in upstream.values() for node in some}
        dead = {node: missed for node in nodes if (missed := self._missed(node, counted(node)))}
        for consumer, some in upstream.items():
            if consumer not in self.hopeless:
                for node in some:
                    if node in dead:
                        self._leave_out(Hopeless(consumer, node, dead[node]))
                        changed = True
                        break
        return changed

    def _let_in(self, known: Iterable[str], pressed: bool) -> bool:
        known = set(known)
        self._relaxed = 0 if pressed else self._relaxed + 1
        over = [
            name
            for name, left in self._left.items()
            if left <= 1 or name not in known or (self._relaxed >= _RELAXED and self._others_pressed(name))
        ]
        for name in over:
            del self._left[name], self.hopeless[name], self._pressed[name]
        for name in self._pressed:
            self._pressed[name] += pressed
        for name in self._left:
            self._left[name] -= 1
        return bool(over)

    def _others_pressed(self, name: str) -> bool:
        """Whether there was too much to do also without a consumer; the first interval may be its own."""
        return self._pressed[name] > 1

    def _leave_out(self, found: Hopeless) -> None:
        self.hopeless[found.consumer] = found
        self._pressed[found.consumer] = 0
        self._left[found.consumer] = self._next.get(found.consumer, _FIRST)
        self._next[found.consumer] = min(2 * self._left[found.consumer], _LONGEST)

    def _missed(self, node: str, now: Passed) -> int:
        """How many events died at a node since the last one came through; 0 while that says nothing."""
        since, before = self._since.setdefault(node, now), self._before.get(node, now)
        self._before[node] = now
        if now.through != since.through or now.missed < since.missed:
            self._next.pop(node, None)  # if it is a consumer: it got something, and is new to us again
            self._forget(node, now)
            return 0
        self._intervals[node] += now.missed > before.missed
        missed = now.missed - since.missed
        if missed < ENOUGH or self._intervals[node] < INTERVALS:
            return 0
        self._forget(node, now)
        return missed

    def _forget(self, node: str, now: Passed) -> None:
        self._since[node] = now
        self._intervals[node] = 0
