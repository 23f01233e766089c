"""A stream whose matches go to a function, micro-batch by micro-batch, in one order.

With its engine in the driver that is the shortest way from an event to its match, on one core: Spark reads,
filters and joins, and what is left comes to the driver. The state is a file for each micro-batch beside
Spark's own checkpoint. A micro-batch that was cut short is taken up again from the state before it, and gives
the same matches under the same number: a function that writes each number once gets each match once. The
knowledge is that of this process: an update judges from the next micro-batch on.

With engines on the workers, each for a bucket of the keys, the state is in Spark's state store, and a stage
more puts the matches into one order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from kaicep.hosts.spark.clock import clocked, clocked_type
from kaicep.hosts.spark.job import Opened
from kaicep.hosts.spark.layout import layouts_of
from kaicep.hosts.spark.order import InOneOrder
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.states import States
from kaicep.hosts.spark.stream import BUCKETS, Bucket, Frames, Streamed, addressed, found_stream, target_of
from kaicep.plan.events import Match

__all__ = ["Sink", "deliver"]

Sink = Callable[[int, list[Match]], None]
"""Takes the number of a micro-batch and its matches, in the order of their end, then of their id."""


def deliver(
    query: Streamed,
    frames: Frames,
    sink: Sink,
    checkpoint: Path,
    trigger: dict[str, Any],
    engine: str = "driver",
    buckets: int = BUCKETS,
) -> StreamingQuery:
    """Starts the stream; `engine` is `driver` or `workers`."""
    states = States(checkpoint / "kaicep")
    if engine == "driver":
        held = _Held(query, states, sink)
        rows = reduce(DataFrame.unionByName, frames(held.layout).values())
        writer = rows.writeStream.foreachBatch(held.take)
    else:
        found, _, count = found_stream([(query, frames)], buckets, marks=True)
        writer = found.writeStream.foreachBatch(InOneOrder(count, states, sink).take)
    writer = writer.option("checkpointLocation", str(checkpoint))
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

    def __init__(self, query: Streamed, states: States, sink: Sink) -> None:
        self.query = query
        self.states = states
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
            self.bucket = Bucket(self.target, self.states.read(number - 1), self.opened)
        bucket, self.bucket = self.bucket, None  # what fails half-way is not gone on with
        now = self.states.begun(number) if self.query.idle is not None else 0
        self.sink(number, bucket.take(self._used(rows).toArrow().to_batches(), now))
        self.states.save(number, bucket.saved())
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
