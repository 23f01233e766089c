"""A stream with its engine in the driver: the shortest way from an event to its match, on one core.

Spark reads, filters and joins; what is left comes to the driver, micro-batch by micro-batch, and the matches
go to a function. The state is a file for each micro-batch beside Spark's own checkpoint. A micro-batch that
was cut short is taken up again from the state before it, and gives the same matches under the same number: a
function that writes each number once gets each match once. The knowledge is that of this process: an update
judges from the next micro-batch on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from kaicep.errors import Failure
from kaicep.hosts.spark.clock import clocked, clocked_type
from kaicep.hosts.spark.job import Opened
from kaicep.hosts.spark.layout import layouts_of
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.stream import Bucket, Frames, Streamed, addressed, target_of
from kaicep.plan.events import Match

__all__ = ["Sink", "deliver"]

Sink = Callable[[int, list[Match]], None]
"""Takes the number of a micro-batch and its matches, in the order of their end, then of their id."""

_KEPT = 3
"""So many states are kept; Spark may ask for the last one again."""


def deliver(
    query: Streamed, frames: Frames, sink: Sink, checkpoint: Path, trigger: dict[str, Any]
) -> StreamingQuery:
    """Starts the stream."""
    held = _Held(query, checkpoint / "kaicep", sink)
    rows = reduce(DataFrame.unionByName, frames(held.layout).values())
    writer = rows.writeStream.foreachBatch(held.take).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def _together(query: Streamed) -> Part:
    """All queries as one part, as the knowledge is now."""
    parts = physical(query.program, query.catalog, query.knowledge)
    optimised = {each.name: each for part in parts for each in part.optimised}
    return Part(
        query.program.queries,
        tuple(optimised[each.name] for each in query.program.queries),
        "one",
        "since one core is enough",
    )


class _Held:
    """The engine between two micro-batches, and its states on disk."""

    def __init__(self, query: Streamed, folder: Path, sink: Sink) -> None:
        self.query = query
        self.folder = folder
        self.sink = sink
        self.part = _together(query)
        self.version = query.knowledge.version
        (own,), self.layout = layouts_of([self.part], query.catalog)
        self.target = target_of(query, self.part, own, 1)
        self.opened = Opened(query.program, query.catalog, query.knowledge, own)
        self.next: int | None = None
        self.bucket: Bucket | None = None

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch: its matches to the sink, then its state to disk."""
        if self.bucket is None or self.next != number:
            self.bucket = Bucket(self.target, self._state(number - 1), self.opened)
        bucket, self.bucket = self.bucket, None  # what fails half-way is not gone on with
        self.sink(number, bucket.take(self._used(rows).toArrow()))
        self._save(number, bucket.saved())
        self.bucket, self.next = bucket, number + 1

    def _used(self, rows: DataFrame) -> DataFrame:
        """What the engine needs of a micro-batch, as the knowledge is now."""
        if self.version != self.query.knowledge.version:
            self.version = self.query.knowledge.version
            self.part = _together(self.query)
        streams = self.layout.streams
        several = {name: rows.where(sf.col("_stream") == self.layout.place(name)) for name in streams}
        frames = several if len(streams) > 1 else {streams[0]: rows}
        some = addressed(self.query, frames, [self.part], [self.target], self.layout, 0)
        used = reduce(DataFrame.unionByName, some)
        everybody = {stream: self.target.numbers(0) for stream in self.target.streams}
        return used.mapInArrow(clocked(everybody), clocked_type(used))

    def _state(self, number: int) -> bytes | None:
        if number < 0:
            return None
        try:
            return (self.folder / f"{number}.state").read_bytes()
        except FileNotFoundError:
            raise Failure(
                f"the checkpoint {self.folder.parent} has no state after micro-batch {number}: it is of "
                "another kind of stream, or files of it are missing"
            ) from None

    def _save(self, number: int, state: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{number}.state"
        new = file.with_suffix(".new")
        with new.open("wb") as written:
            written.write(state)
            written.flush()
            os.fsync(written.fileno())
        new.replace(file)
        (self.folder / f"{number - _KEPT}.state").unlink(missing_ok=True)
