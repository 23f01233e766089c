"""Absolute time consistency: events are valid from their creation on, for a while (CPEP, section II.B).

All times here are nanoseconds of the monotonic clock, which no correction of the wall clock moves.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FOR_EVER", "Event", "derived", "is_outdated"]

FOR_EVER = 1 << 62
"""The end of what never gets outdated."""


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
