"""Events, how long they are valid (CPEP, section II.B), and the EventStore that keeps them (section III.B).

It has one ring for each type of event, and references to its slots. All times here
are nanoseconds of the monotonic clock, which no correction of the wall clock moves.

An event is put here once, by the worker that took or made it; everybody who needs it is bound to its slot,
and nothing is copied. The ring of a type has as many slots as there can be valid events of it, so what is
overwritten is outdated.

All of this happens under the lock of the service, which makes a writer wait for readers and the other way
round; an operator that runs has taken its events out of their slots before, and keeps them alive itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

FOR_EVER = 1 << 62
"""The end of what never gets outdated."""

GROWTH = 4096
"""How far a ring may grow beyond its size, where nothing may be lost."""


class Event:
    """Something that a supplier pushed or an operator made; nothing of it is changed any more.

    It is valid on [begin, end). `pushed` is when the service took the latest of the suppliers' events in it,
    and `sent` when its supplier sent it, perhaps on another machine, in the service's own time.
    `trace` has, by supplier, the number of its event in here, where somebody downstream must know.
    `wall` is the event time in microseconds, for queries.
    """

    __slots__ = ("begin", "end", "payload", "pushed", "sent", "seq", "trace", "wall")

    def __init__(
        self,
        seq: int,
        begin: int,
        end: int,
        pushed: int,
        wall: int,
        payload: Any,
        trace: dict[str, int],
        sent: int | None = None,
    ) -> None:
        self.seq = seq
        self.begin = begin
        self.end = end
        self.pushed = pushed
        self.sent = pushed if sent is None else sent
        self.wall = wall
        self.payload = payload
        self.trace = trace


def derived(seq: int, payload: Any, parts: list[Event]) -> Event:
    """An event made of others: valid where all of them are.

    >>> made = derived(0, None, [Event(0, 1, 8, 1, 0, None, {}), Event(0, 3, 6, 3, 0, None, {})])
    >>> made.begin, made.end
    (3, 6)
    """
    if len(parts) == 1:
        (one,) = parts
        return Event(seq, one.begin, one.end, one.pushed, one.wall, payload, one.trace, one.sent)
    trace = {name: number for part in parts for name, number in part.trace.items()}
    return Event(
        seq,
        max(part.begin for part in parts),
        min(part.end for part in parts),
        max(part.pushed for part in parts),
        max(part.wall for part in parts),
        payload,
        trace,
        max(part.sent for part in parts),
    )


def is_outdated(event: Event, now: int) -> bool:
    """Whether an event is valid no longer. The interval is half open, as the paper defines it.

    >>> is_outdated(Event(0, 0, 10, 0, 0, None, {}), 9), is_outdated(Event(0, 0, 10, 0, 0, None, {}), 10)
    (False, True)
    """
    return now >= event.end


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
