"""A stream whose matches go to a function, micro-batch by micro-batch, in one order.

With its engine in the driver that is the shortest way from an event to its match, on one core: Spark reads,
filters and joins, and what is left comes to the driver. The state is a file for each micro-batch beside
Spark's own checkpoint. A micro-batch that was cut short is taken up again from the state before it, and gives
the same matches under the same number: a function that writes each number once gets each match once.

With engines on the workers, each for a bucket of the keys, the state is in Spark's state store, and a stage
more puts the matches into one order.

An update of this process's knowledge judges from the next micro-batch on, wherever the engines are: it is
written down beside the checkpoint (`published`) before the micro-batch is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from kaicep.hosts.spark.clock import EVENT_ROW
from kaicep.hosts.spark.job import Opened
from kaicep.hosts.spark.layout import layouts_of
from kaicep.hosts.spark.order import InOneOrder
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.prefilter import filtered
from kaicep.hosts.spark.published import Published
from kaicep.hosts.spark.session import each_batch
from kaicep.hosts.spark.states import States
from kaicep.hosts.spark.stream import BUCKETS, Bucket, Frames, Streamed, found_stream, target_of
from kaicep.hosts.spark.wire import EVENT
from kaicep.knowledge.store import Knowledge
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
    published = _begun(query)
    if engine == "driver":
        held = _Held(query, states, sink, published)
        rows = reduce(DataFrame.unionByName, frames(held.layout).values())
        writer = rows.writeStream.foreachBatch(each_batch(held.take))
    else:
        found, _, count = found_stream([(query, frames)], buckets, marks=True)
        order = InOneOrder(count, states, sink)

        def take(rows: DataFrame, number: int) -> None:
            if published is not None:
                published.publish(query.knowledge)  # now, since what follows makes the workers work
            order.take(rows, number)

        writer = found.writeStream.foreachBatch(each_batch(take))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def _begun(query: Streamed) -> Published | None:
    if query.published is None:
        return None
    published = Published(query.published)
    published.begin(query.knowledge)
    return published


def _together(query: Streamed, knowledge: Knowledge) -> Part:
    """All queries as one part, as the knowledge is now."""
    parts = physical(replace(query, knowledge=knowledge))
    optimised = {each.name: each for part in parts for each in part.optimised}
    return Part(
        query.program.queries,
        tuple(optimised[each.name] for each in query.program.queries),
        "one",
        "since one core is enough",
    )


class _Held:
    """The engine between two micro-batches, and its states on disk."""

    def __init__(self, query: Streamed, states: States, sink: Sink, published: Published | None) -> None:
        self.query = query
        self.states = states
        self.sink = sink
        self.published = published
        part = _together(query, query.knowledge)
        (own,), self.layout = layouts_of([part], query.catalog)
        self.target = target_of(query, part, own, 1)
        self.opened = Opened(query, own)
        self.next: int | None = None
        self.bucket: Bucket | None = None
        self.columns: list[Column] = []
        self.columns_of: tuple[Knowledge, int] | None = None

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch: its matches to the sink, then its state to disk."""
        with self.query.knowledge.lock:  # one version judges all of it
            own = self._opened(number)
            if (
                self.bucket is None
                or self.next != number
                or self.bucket.opened.query.knowledge is not own.query.knowledge
            ):
                self.bucket = Bucket(self.target, self.states.read(number - 1), own)
            bucket, self.bucket = self.bucket, None  # what fails half-way is not gone on with
            now = self.states.begun(number) if self.query.idle is not None else 0
            found = bucket.take(self._seen(rows, own.query.knowledge).toArrow().to_batches(), now)
        self.sink(number, found)
        self.states.save(number, bucket.saved())
        self.bucket, self.next = bucket, number + 1

    def _opened(self, number: int) -> Opened:
        """The queries, with the knowledge that judges a micro-batch.

        That is mostly what this process knows. It is another version where the micro-batch was begun before
        an update, and is run again; or where another process has published one.
        """
        if self.published is None:
            return self.opened
        self.published.publish(self.query.knowledge)
        chosen = self.published.chosen(number)
        if chosen == self.published.own:
            return self.opened
        return replace(self.opened, query=replace(self.query, knowledge=self.published.read(chosen)))

    def _seen(self, rows: DataFrame, knowledge: Knowledge) -> DataFrame:
        """A micro-batch as the engine takes it: every event's place and time, and the values of those used.

        Whether an event is late hangs on all events of its part, used or not. No plan that Spark would have
        to make anew is worth its time here, so PATHs are the engine's: FILTER and WITHIN, as the knowledge is
        now, say which values need not come.
        """
        version = knowledge, knowledge.version
        if self.columns_of != version:
            self.columns, self.columns_of = self._columns(knowledge), version
        return rows.select(*self.columns)

    def _columns(self, knowledge: Knowledge) -> list[Column]:
        part, layout = _together(self.query, knowledge), self.layout
        tests = [
            (sf.col("_stream") == layout.place(name)) & filtered(name, part, layout, self.query.catalog)
            for name in layout.streams
        ]
        used = (sf.col("_kind") == EVENT_ROW) & reduce(lambda left, right: left | right, tests)
        values = [name for name in layout.names() if name not in EVENT]
        cells = [sf.when(used, sf.col(name)).alias(name) for name in values]
        return [*(sf.col(name) for name in (*EVENT, "_kind")), *cells, used.alias("_used")]
