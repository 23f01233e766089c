"""Which consumers are left out because nothing reaches them in time anyway.

Validity alone sheds what is outdated, one event at a time and after others have worked for it. A consumer
whose events all die at the same node wastes whatever was done for it before that node. Such a one is left
out for a while, with all that only it needs, and named with the node; then it is tried again. Nobody else is
touched: a consumer that gets anything in time stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Admission", "Hopeless", "Passed"]

ENOUGH = 8
"""So many events must have died at a node, and none come through, before that says anything."""
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
    >>> counted |= {"spectrum": Passed(9, 0), "airbag": Passed(0, 9), "screen": Passed(1, 50)}
    >>> some.observe(upstream, counted.__getitem__), list(some.hopeless.values())
    (True, [Hopeless(consumer='airbag', node='airbag', missed=9)])
    """

    def __init__(self) -> None:
        self.hopeless: dict[str, Hopeless] = {}
        self._before: dict[str, Passed] = {}
        self._left: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def observe(self, upstream: Mapping[str, Iterable[str]], counted: Callable[[str], Passed]) -> bool:
        """Takes the figures of all nodes; returns whether anybody is left out now, or let in, who was not.

        `upstream` has for each consumer the nodes that its events pass, itself included.
        """
        changed = self._let_in(upstream.keys())
        nodes = {node for some in upstream.values() for node in some}
        dead = {node: missed for node in nodes if (missed := self._missed(node, counted(node))) >= ENOUGH}
        for consumer, some in upstream.items():
            if consumer not in self.hopeless:
                for node in some:
                    if node in dead:
                        self._leave_out(Hopeless(consumer, node, dead[node]))
                        changed = True
                        break
        return changed

    def _let_in(self, known: Iterable[str]) -> bool:
        known = set(known)
        over = [name for name, left in self._left.items() if left <= 1 or name not in known]
        for name in over:
            del self._left[name], self.hopeless[name]
        for name in self._left:
            self._left[name] -= 1
        return bool(over)

    def _leave_out(self, found: Hopeless) -> None:
        self.hopeless[found.consumer] = found
        self._left[found.consumer] = self._next.get(found.consumer, _FIRST)
        self._next[found.consumer] = min(2 * self._left[found.consumer], _LONGEST)

    def _missed(self, node: str, now: Passed) -> int:
        """How many events died at a node since the last one came through."""
        before = self._before.setdefault(node, now)
        if now.through != before.through or now.missed < before.missed:
            self._next.pop(node, None)  # if it is a consumer: it got something, and is new to us again
            self._before[node] = now
        elif now.missed - before.missed >= ENOUGH:
            self._before[node] = now
        return now.missed - before.missed if now.through == before.through else 0
