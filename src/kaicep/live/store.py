"""The EventStore: one ring for each type of event, and references to its slots (CPEP, section III.B).

An event is put here once, by the worker that took or made it; everybody who needs it is bound to its slot,
and nothing is copied. The ring of a type has as many slots as there can be valid events of it, so what is
overwritten is outdated.

All of this happens under the lock of the service, which makes a writer wait for readers and the other way
round; an operator that runs has taken its events out of their slots before, and keeps them alive itself.
"""

from __future__ import annotations

from collections import deque

from kaicep.live.validity import Event

__all__ = ["GROWTH", "EventStore", "Ring", "Slot"]

GROWTH = 4096
"""How far a ring may grow beyond its size, where nothing may be lost."""


class Slot:
    """A place in a ring: its event (None once it is overwritten), and how many are bound to it."""

    __slots__ = ("event", "pins")

    def __init__(self, event: Event) -> None:
        self.event: Event | None = event
        self.pins = 0


class Ring:
    """The slots of one type of event, oldest first.

    With `keep` (outdated events are marked, or never get outdated) a slot that somebody is bound to is not
    overwritten, and the ring grows instead.
    """

    def __init__(self, size: int, keep: bool) -> None:
        self.size = size
        self.keep = keep
        self.longest = 0
        self.overwritten = 0
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, event: Event) -> Slot:
        """Puts an event into the next slot; whatever was there is gone."""
        slots = self._slots
        while len(slots) >= self.size and (
            not slots[0].pins or not self.keep or len(slots) >= self.size + GROWTH
        ):
            old = slots.popleft()
            if old.pins:
                self.overwritten += old.pins
                old.event = None
        slot = Slot(event)
        slots.append(slot)
        if len(slots) > self.longest:
            self.longest = len(slots)
        return slot

    def events(self) -> list[Event]:
        """The events that are kept, oldest first."""
        return [each.event for each in self._slots if each.event is not None]


class EventStore:
    """The rings by the name of the node that makes the events."""

    def __init__(self) -> None:
        self.rings: dict[str, Ring] = {}

    def ring(self, name: str, size: int, keep: bool) -> Ring:
        """The ring of a node; its size follows the graph, which may have changed."""
        found = self.rings.setdefault(name, Ring(size, keep))
        found.size, found.keep = size, keep
        return found

    def newest(self, name: str) -> Event | None:
        """The last event of a node that is still kept."""
        events = self.rings[name].events() if name in self.rings else []
        return events[-1] if events else None
