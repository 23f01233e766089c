"""The sort stage: events in the order of arrival enter, events in the order of a query leave (semantics 1).

`Parts` is what is known of the sources, shared by all queries: the latest time and position of every part,
and with it which events are late. A `Sorter` holds the events of some streams until none that is still to
come can stand before them: a part that has reached `max_ts` will send nothing below
(max_ts - lateness, place of its stream, part, next position).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from kaicep.kernel.state import read_event, write_event
from kaicep.plan.events import Event
from kaicep.plan.types import INT64_MIN

if TYPE_CHECKING:
    from kaicep.kernel.batches import Batch
    from kaicep.kernel.columns import Array

Place = tuple[float, int, str, int, float]
"""The place of an event in the order: its time, the place of its stream, its id, part and position."""


Lateness = int | Mapping[str, int | None] | None
"""How far behind the newest of its part an event may come, for all streams or by stream; None: any."""


def allowed_lateness(lateness: Lateness, stream: str) -> int | None:
    """The lateness of a stream.

    >>> allowed_lateness({"s": 5}, "s"), allowed_lateness({"s": 5}, "t"), allowed_lateness(7, "t")
    (5, None, 7)
    """
    return lateness.get(stream) if isinstance(lateness, Mapping) else lateness


class _Part:
    """A part of a source: the largest time so far, the next position, and whether it is silent."""

    __slots__ = ("idle", "max_ts", "next_seq")

    def __init__(self) -> None:
        self.max_ts: float = -math.inf
        self.next_seq = 0
        self.idle = False


class Parts:
    """How far each part of each source has come.

    `lateness` is one for all streams, or by stream. Without any, only the end settles anything.
    """

    def __init__(self, lateness: Lateness, expected: Iterable[tuple[str, int]] = ()) -> None:
        self.lateness = lateness
        self.finished = False
        self.ended: set[str] = set()
        """The streams of which nothing more will come."""
        self._reached: float = -math.inf
        self._parts: dict[tuple[str, int], _Part] = {}
        self._derived: dict[str, float] = {}
        for stream, part in expected:
            self.expect(stream, part)

    def expect(self, stream: str, part: int = 0) -> None:
        """A part that will send events: until it does, or is idle, nothing is settled without it."""
        self.part(stream, part)

    def derive(self, stream: str, promise: float = -math.inf) -> None:
        """A stream that a query makes, and the time below which it will send no event."""
        self._derived[stream] = promise

    def drop(self, stream: str) -> None:
        """Forgets a stream that a query made."""
        self._derived.pop(stream, None)

    def arrive(self, event: Event) -> Event:
        """Takes note of an event; it is returned with its mark if it is late.

        >>> parts = Parts(lateness=10)
        >>> [parts.arrive(Event("s", 0, seq, ts)).late for seq, ts in enumerate((20, 10, 9))]
        [False, False, True]
        """
        part = self.part(event.stream, event.part)
        part.idle = False
        part.next_seq = max(part.next_seq, event.seq + 1)
        if event.ts >= part.max_ts:
            part.max_ts = event.ts
        elif not event.late:
            allowed = self.allowed(event.stream)
            if allowed is not None and event.ts < part.max_ts - allowed:
                return replace(event, late=True)
        return event

    def allowed(self, stream: str) -> int | None:
        """How far behind the newest of its part an event of a stream may come."""
        return allowed_lateness(self.lateness, stream)

    def part(self, stream: str, number: int) -> _Part:
        """What is known of a part."""
        found = self._parts.get((stream, number))
        if found is None:
            found = self._parts[stream, number] = _Part()
        return found

    def numbers(self, stream: str) -> list[int]:
        """The parts of a stream that are known."""
        return [number for name, number in self._parts if name == stream]

    def idle(self, stream: str, part: int = 0) -> None:
        """A part has been silent for so long that it holds nobody back."""
        self.part(stream, part).idle = True

    def reach(self, ts: int) -> None:
        """No part will send anything below this time."""
        self._reached = max(self._reached, ts)

    def bound(self, places: dict[str, int]) -> Place:
        """The smallest place at which an event of these streams may still come.

        Where all parts are silent there is nobody that they could hold back: the furthest of them counts.
        """
        least: Place = (math.inf, 0, "", 0, 0)
        for stream, ts in self._derived.items():
            if stream in places:
                least = min(least, (ts, places[stream], "", INT64_MIN, INT64_MIN))
        if self.finished:
            return least
        silent: list[Place] = []
        active = False
        for (stream, number), part in self._parts.items():
            if stream not in places or stream in self.ended:
                continue
            allowed = self.allowed(stream)
            ts = -math.inf if allowed is None else part.max_ts - allowed
            place: Place = (ts, places[stream], "", number, part.next_seq)
            if ts < self._reached:
                place = (self._reached, 0, "", 0, 0)
            if part.idle:
                silent.append(place)
            else:
                active, least = True, min(least, place)
        return least if active or not silent else min(least, max(silent))

    def slowest(self, streams: Collection[str]) -> tuple[str, int, float] | None:
        """The part of these streams that holds the others back, and its largest time; None: none does."""
        own = [(part.max_ts, key) for key, part in self._parts.items() if key[0] in streams]
        active = [each for each in own if not self._parts[each[1]].idle]
        if not active or min(active)[0] == max(own)[0]:
            return None
        ts, (stream, number) = min(active)
        return stream, number, ts

    def unheard(self, streams: Collection[str]) -> list[str]:
        """The streams that are waited for and of which nothing has come yet."""
        quiet = (key[0] for key, part in self._parts.items() if part.max_ts == -math.inf and not part.idle)
        return [each for each in dict.fromkeys(quiet) if each in streams]

    def why_elsewhere(self, other: Parts, streams: Collection[str]) -> str | None:
        """Why the sources of some streams do not stand here where they stand there; None where they do."""
        if {*streams} & (self.ended ^ other.ended):
            return "a stream has ended"
        for key, part in other._parts.items():
            own = self._parts.get(key)
            if key[0] in streams and own and (own.max_ts, own.idle) != (part.max_ts, part.idle):
                return f"part {key[1]} of {key[0]} stands elsewhere"
        return None

    def adopt(self, other: Parts, streams: Collection[str]) -> None:
        """Goes on with what somebody else knows of the sources of some streams."""
        for key, part in other._parts.items():
            if key[0] in streams:
                own = self._parts.setdefault(key, part)
                own.next_seq = max(own.next_seq, part.next_seq)
        for stream, promise in other._derived.items():
            self._derived.setdefault(stream, promise)

    def document(self) -> list[Any]:
        """The state, for a snapshot."""
        parts = [
            [stream, number, _finite(part.max_ts), part.next_seq, part.idle]
            for (stream, number), part in sorted(self._parts.items())
        ]
        derived = [[stream, _finite(ts)] for stream, ts in sorted(self._derived.items())]
        return [parts, derived, _finite(self._reached)]

    def load(self, document: list[Any]) -> None:
        """Goes on from a state."""
        parts, derived, reached = document
        self._reached = _number(reached)
        self._parts.clear()
        for stream, number, max_ts, next_seq, idle in parts:
            part = self._parts[stream, number] = _Part()
            part.max_ts, part.next_seq, part.idle = _number(max_ts), next_seq, idle
        self._derived = {stream: _number(ts) for stream, ts in derived}


class Sorter:
    """The events of some streams, in an order that depends on the place of each."""

    def __init__(self, streams: Sequence[str], parts: Parts) -> None:
        self.streams = tuple(streams)
        self.places = {name: index for index, name in enumerate(self.streams)}
        self.parts = parts
        self._passed: Place = (-math.inf, 0, "", 0, 0)
        self._held: list[tuple[Place, Event]] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._held)

    @property
    def watermark(self) -> float:
        """No event that is released later is earlier than this."""
        return self._passed[0]

    @property
    def reached(self) -> Place:
        """The place in the order before which everything has been released."""
        return self._passed

    def pass_to(self, place: Place) -> None:
        """Moves on as if everything before this place in the order had been released."""
        self._passed = place

    def has_passed(self, event: Event) -> bool:
        """Whether events were released, or time moved on, as if this one would not come.

        That happens only where its part was idle, or nobody had heard of it.
        """
        return event.ts <= self._passed[0] and self._place_of(event) < self._passed

    def passed(self, batch: Batch) -> Array | None:
        """Which events of a batch it has passed; None: none."""
        if not len(batch) or batch.ts.min() > self._passed[0]:
            return None
        import numpy as np

        found = np.array([self.has_passed(event) for event in batch.events], np.bool_)
        return found if found.any() else None

    def _place_of(self, event: Event) -> Place:
        return event.ts, self.places[event.stream], event.id or "", event.part, event.seq

    def offer(self, events: Sequence[Event]) -> None:
        """Takes events in the order of arrival; they are of its streams, and none is late."""
        held = self._held
        few = len(events) * 8 < len(held)
        for event in events:
            place = self._place_of(event)
            if few:
                heappush(held, (place, event))
            else:
                held.append((place, event))
        if few:
            self._sorted = False
        elif events:
            held.sort(key=_place)  # a sorted list is a heap too
            self._sorted = True

    def release(self) -> list[Event]:
        """The events that nothing to come can stand before, in order; moves the watermark.

        >>> parts = Parts(lateness=0)
        >>> sorter = Sorter(["s"], parts)
        >>> sorter.offer([parts.arrive(Event("s", 0, 0, 7))])
        >>> [event.ts for event in sorter.release()], sorter.watermark
        ([7], 7)
        """
        bound = self._passed = max(self._passed, self.parts.bound(self.places))
        held = self._held
        if not held or held[0][0] >= bound:
            return []
        if self._sorted or bound[0] == math.inf:
            if not self._sorted:
                held.sort(key=_place)
                self._sorted = True
            cut = bisect_left(held, bound, key=_place)
            out = [event for _, event in held[:cut]]
            del held[:cut]
            return out
        out = []
        while held and held[0][0] < bound:
            out.append(heappop(held)[1])
        return out

    def document(self) -> list[Any]:
        """The state, for a snapshot."""
        return [
            written_place(self._passed),
            [write_event(each) for _, each in sorted(self._held, key=_place)],
        ]

    def load(self, document: list[Any]) -> None:
        """Goes on from a state."""
        self._passed = read_place(document[0])
        self._held = []
        self.offer([read_event(each) for each in document[1]])


def _place(entry: tuple[Place, Event]) -> Place:
    return entry[0]


def written_place(place: Place) -> list[Any]:
    """A place in the order, as JSON holds it."""
    return [_finite(place[0]), *place[1:]]


def read_place(row: list[Any]) -> Place:
    """What `written_place` wrote."""
    first, *others = row
    return (_number(first), *others)


def _finite(ts: float) -> float | str:
    """A time as JSON holds it."""
    return str(ts) if math.isinf(ts) else ts


def _number(ts: float | str) -> float:
    return float(ts) if isinstance(ts, str) else ts
