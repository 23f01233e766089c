"""Small archives for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import TableShape
from kaicep.archive.stream_table import Appended, StreamTable
from kaicep.plan.events import Event
from kaicep.plan.types import Type

METER = TableShape((("ts", Type.TIMESTAMP), ("kW", Type.FLOAT64), ("room", Type.STRING)))


def reading(seq: int, ts: int | None = None, part: int = 0, kw: float | None = 1.5) -> Event:
    """An event of the stream `meter`; without a time, one a second."""
    at = seq * 1_000_000 if ts is None else ts
    return Event("meter", part, seq, at, {"ts": at, "kW": kw, "room": f"r{seq % 3}"})


def readings(first: int, after: int, part: int = 0) -> list[Event]:
    return [reading(seq, part=part) for seq in range(first, after)]


def meter(folder: Path) -> StreamTable:
    """A table of the stream `meter`, empty."""
    return Archive(folder).made("meter", METER)


def append(table: StreamTable, events: Sequence[Event], lateness: int | None = None) -> Appended:
    """Appends events that cover their parts without a gap."""
    ranges: dict[int, tuple[int, int]] = {}
    for each in events:
        first, after = ranges.get(each.part, (each.seq, each.seq))
        ranges[each.part] = min(first, each.seq), max(after, each.seq + 1)
    return table.append(events, ranges, lateness=lateness)


def held(folder: Path) -> list[Event]:
    """All events of the stream `meter`."""
    return list(Archive(folder).snapshot().events("meter"))
