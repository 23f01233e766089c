"""Arrival orders: every one of them must give the same answer (semantics 1)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kaicep.connectors.files import mark_late
from kaicep.plan.events import Event

__all__ = ["arrivals", "in_batches"]


def arrivals(events: Sequence[Event], lateness: int | None, count: int, seed: int) -> Iterator[list[int]]:
    """Orders in which the events might have arrived without any being late, as indices into them.

    The first is the given one. Where some event is late there is no other, since the mark depends on
    the order. Events of one part with the same time keep their order: it decides between them.
    """
    given = list(range(len(events)))
    yield given
    if any(event.late for event in mark_late(events, lateness)):
        return
    for turn in range(count):
        yield _shuffled(events, lateness, random.Random(f"{seed}/{turn}"))


def _shuffled(events: Sequence[Event], lateness: int | None, chance: random.Random) -> list[int]:
    waiting = list(range(len(events)))
    order: list[int] = []
    while waiting:
        oldest: dict[tuple[str, int], int] = {}
        first: dict[tuple[str, int, int], int] = {}
        for index in waiting:
            event = events[index]
            part = (event.stream, event.part)
            oldest[part] = min(event.ts, oldest.get(part, event.ts))
            first.setdefault((*part, event.ts), index)
        ready = [
            index
            for (stream, part, ts), index in first.items()
            if lateness is None or ts <= oldest[stream, part] + lateness
        ]
        taken = chance.choice(ready)
        waiting.remove(taken)
        order.append(taken)
    return order


def renumbered(events: Sequence[Event], order: Sequence[int]) -> list[Event]:
    """The events in that order, each with the position that it then has in its part."""
    positions: dict[tuple[str, int], int] = {}
    moved: list[Event] = []
    for index in order:
        event = events[index]
        part = (event.stream, event.part)
        moved.append(replace(event, seq=positions.get(part, 0)))
        positions[part] = positions.get(part, 0) + 1
    return moved


def in_batches(events: Sequence[Event], chance: random.Random) -> list[list[Event]]:
    """The events cut into batches at random, some of them empty."""
    cuts = sorted(chance.choices(range(len(events) + 1), k=chance.randint(0, 4)))
    return [list(events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
