"""Small text tables of events and matches, and other orders in which the events may arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kaicep.connectors.files import mark_late
from kaicep.plan.events import Event

__all__ = ["format_table", "parse_table", "arrivals", "in_batches"]


# ----------------------------------------------------------------------------------------------------------
# Small text tables: how a test writes down events and expected matches.
#
#     event | ts | sensor | x
#     a1    | 0  | s1     | 510.0
#     a2    | 60 | s1     |
#
# Cells are read as a CSV cell would be; an empty one is null. A row of dashes is passed over.


def parse_table(text: str) -> list[dict[str, str]]:
    """The rows of a table by column.

    >>> parse_table('''
    ...   a | b
    ...   1 |
    ... ''')
    [{'a': '1', 'b': ''}]
    """
    lines = [line for line in text.splitlines() if line.strip() and set(line.strip()) - set("-+| ")]
    if not lines:
        return []
    header = [cell.strip() for cell in lines[0].split("|")]
    rows: list[dict[str, str]] = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} cells under {len(header)} columns: {line.strip()}")
        rows.append(dict(zip(header, cells, strict=True)))
    return rows


def format_table(columns: list[str], rows: list[tuple[str, ...]]) -> str:
    """The rows as a table that a person reads.

    >>> print(format_table(["a", "b"], [("1", "22")]))
    a | b
    1 | 22
    """
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [tuple(columns), *rows]
    )
    return "\n".join(line.rstrip() for line in lines)


# ----------------------------------------------------------------------------------------------------------
# Arrival orders: every one of them must give the same answer (semantics 1).


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
