"""A stream whose matches go to a function, micro-batch by micro-batch, in one order over all buckets."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from kaicep.errors import Failure
from kaicep.hosts.spark.batch import FEW
from kaicep.hosts.spark.clock import END, EVENT_ROW, FOREVER, NEVER
from kaicep.hosts.spark.job import Opened
from kaicep.hosts.spark.layout import EVENT, Layout, layouts_of, rows_of
from kaicep.hosts.spark.output import FOUND_ARROW
from kaicep.hosts.spark.physical import Part, chosen_engine, physical
from kaicep.hosts.spark.prefilter import filtered
from kaicep.hosts.spark.session import each_batch, is_connect, own_session, told
from kaicep.hosts.spark.stream import (
    BUCKETS,
    Bucket,
    Frames,
    Published,
    Streamed,
    found_stream,
    match_stream,
    target_of,
)
from kaicep.hosts.spark.watch import DELIVERED, MatchCounts
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match, by_end
from kaicep.query import FiniteQuery
from kaicep.storage.disk import read_sealed, replace_sealed

# ----------------------------------------------------------------------------------------------------------
# States in files, one for each micro-batch: for what runs in the driver, beside Spark's own checkpoint.

_KEPT = 3
"""So many states are kept; Spark may ask for the last one again."""


class States:
    """The states after the last few micro-batches, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, number: int) -> bytes | None:
        """The state after a micro-batch; None before the first."""
        if number < 0:
            return None
        try:
            return read_sealed(self.folder / f"{number}.state")
        except FileNotFoundError:
            raise Failure(
                f"the checkpoint {self.folder.parent} has no state after micro-batch {number}: it is of "
                "another kind of stream, or files of it are missing"
            ) from None

    def begun(self, number: int) -> int:
        """When a micro-batch was begun, in milliseconds; one that is taken up again is as old as it was."""
        file = self.folder / f"{number}.begun"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_sealed(file, str(time.time_ns() // 1_000_000).encode())
        return int(read_sealed(file))

    def save(self, number: int, state: bytes) -> None:
        """Keeps the state after a micro-batch."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_sealed(self.folder / f"{number}.state", state)
        for kind in ("state", "begun"):
            (self.folder / f"{number - _KEPT}.{kind}").unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------------------
# One order over all buckets of a stream: a match is held back until nobody can find one that ends before.
#
# Every bucket tells how far it has come with each micro-batch. The driver keeps what all of them found, and
# lets go, in the order of end and id, of what ends before the least of their watermarks. What it keeps is
# saved for each micro-batch, so that a restart neither loses nor repeats a match.


class InOneOrder:
    """Takes the rows of so many buckets, and gives their matches to a function in one order."""

    def __init__(self, buckets: int, states: States, sink: Callable[[int, list[Match]], None]) -> None:
        self.buckets = buckets
        self.states = states
        self.sink = sink
        self.reached: dict[str, int] = {}
        self.waiting = FOUND_ARROW.empty_table()
        self.next: int | None = None

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch: what it settles to the sink, then the rest to disk."""
        if self.next != number:
            self._go_on(self.states.read(number - 1))
        self.next = None  # what fails half-way is not gone on with
        ready = self.settled(rows.toArrow().cast(FOUND_ARROW))
        self.sink(number, [Match.from_json(line) for line in ready["match"].to_pylist()])
        self.states.save(number, self._saved())
        self.next = number + 1

    def settled(self, come: pa.Table) -> pa.Table:
        """The matches that no other can stand before, in their order, once these rows have come."""
        told = come.group_by(["owner", "bucket"]).aggregate([("watermark", "max")])
        for row in told.to_pylist():
            place = f"{row['owner']}/{row['bucket']}"
            self.reached[place] = max(self.reached.get(place, NEVER), row["watermark_max"])
        every = pa.concat_tables([self.waiting, come.filter(pc.is_valid(come["match"]))])
        every = every.sort_by([("end", "ascending"), ("id", "ascending")])
        least = min(self.reached.values()) if len(self.reached) == self.buckets else NEVER
        ready = every if least == FOREVER else every.filter(pc.less(every["end"], pa.scalar(least)))
        self.waiting = every.slice(len(ready))
        return ready

    def _saved(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, FOUND_ARROW) as writer:
            writer.write_table(self.waiting)
        rows: bytes = sink.getvalue().to_pybytes()
        return json.dumps(self.reached).encode() + b"\n" + rows

    def _go_on(self, state: bytes | None) -> None:
        head, _, rows = (state or b"{}").partition(b"\n")
        self.reached = json.loads(head)
        self.waiting = FOUND_ARROW.empty_table()
        if rows:
            with pa.ipc.open_stream(rows) as reader:
                self.waiting = reader.read_all()


# ----------------------------------------------------------------------------------------------------------
# A stream whose matches go to a function, micro-batch by micro-batch, in one order.
#
# With its engine in the driver that is the shortest way from an event to its match, on one core: Spark
# reads, filters and joins, and what is left comes to the driver. The state is a file for each micro-batch
# beside Spark's own checkpoint. A micro-batch that was cut short is taken up again from the state before
# it, and gives the same matches under the same number: a function that writes each number once gets each
# match once.
#
# With engines on the workers, each for a bucket of the keys, the state is in Spark's state store, and a
# stage more puts the matches into one order.
#
# An update of this process's knowledge judges from the next micro-batch on, wherever the engines are: it is
# written down beside the checkpoint (`published`) before the micro-batch is evaluated.

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
    counts = MatchCounts()

    def counted(number: int, matches: list[Match]) -> None:
        sink(number, matches)
        counts.count(matches)

    if engine == "driver":
        held = _Held(query, states, counted, published)
        rows = reduce(DataFrame.unionByName, frames(held.layout).values())
        writer = rows.writeStream.foreachBatch(each_batch(held.take))
    else:
        found, _, count = found_stream([(query, frames)], buckets, marks=True)
        order = InOneOrder(count, states, counted)

        def take(rows: DataFrame, number: int) -> None:
            if published is not None:
                published.publish(query.knowledge)  # now, since what follows makes the workers work
            order.take(rows, number)

        writer = found.writeStream.foreachBatch(each_batch(take))
    writer = writer.option("checkpointLocation", str(checkpoint))
    name = ", ".join(each.name for each in query.program.queries)
    if name not in {each.name for each in own_session().streams.active}:  # which Spark refuses
        writer = writer.queryName(name)
    running = (writer.trigger(**trigger) if trigger else writer).start()
    DELIVERED[str(running.runId)] = counts
    return running


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


# ----------------------------------------------------------------------------------------------------------
# Finite runs as streams: the events of a run, batch by batch, through the host for endless data.
#
# Each batch becomes a file, each file a micro-batch of Spark; the last row says that the input has ended.

_SECONDS = 10
"""One core is enough for a finite input if it is through with it by then."""


def run_stream(run: FiniteQuery) -> list[Match]:
    """All matches of a run, in the order of their end, then of their id.

    The engine is in the driver unless there are so many events that workers earn what they cost, or the
    driver is a Spark Connect server, from which nothing comes back but tables.
    """
    spark = own_session()
    if is_connect(spark):
        return run_streams([run])[0]
    found: dict[int, list[Match]] = {}
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name, told():
        streamed, frames = _query(spark, run, Path(name) / "events")
        parts = physical(run)
        engine = chosen_engine(parts, sum(map(len, run.batches)) / _SECONDS)
        trigger = {"availableNow": True}
        query = deliver(streamed, frames, found.__setitem__, Path(name) / "checkpoint", trigger, engine, FEW)
        try:
            query.awaitTermination()
        finally:
            query.stop()
    matches = [match for some in found.values() for match in some]
    return sorted(matches, key=by_end)


def run_streams(runs: Sequence[FiniteQuery]) -> list[list[Match]]:
    """All matches of several runs, in one stream of Spark's, with engines on the workers."""
    spark = own_session()
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name, told():
        folder = Path(name)
        queries = [_query(spark, run, folder / str(number)) for number, run in enumerate(runs)]
        found = match_stream(queries, FEW).select("owner", "match")
        query = (
            found.writeStream.format("parquet")
            .option("path", str(folder / "matches"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        rows = spark.read.schema(found.schema).parquet(str(folder / "matches")).collect()
    matches: list[list[Match]] = [[] for _ in runs]
    for row in rows:
        matches[row["owner"]].append(Match.from_json(row["match"]))
    return [sorted(some, key=by_end) for some in matches]


def _query(spark: SparkSession, run: FiniteQuery, folder: Path) -> tuple[Streamed, Frames]:
    batches = [[each for each in batch if not each.late] for batch in run.batches]
    if len(batches) == 1:
        # A stream is no stream if it is all there at once.
        half = len(batches[0]) // 2
        batches = [batches[0][:half], batches[0][half:]]
    parts: dict[str, list[int]] = {name: [] for name in run.catalog.streams}
    for event in (each for batch in batches for each in batch):
        if event.part not in parts[event.stream]:
            parts[event.stream].append(event.part)
    streamed = Streamed(run.program, run.catalog, run.knowledge, _disorder(batches), parts)

    def frames(layout: Layout) -> dict[str, DataFrame]:
        return {
            stream: _source(spark, batches, stream, layout, folder / str(number))
            for number, stream in enumerate(layout.streams)
        }

    return streamed, frames


def _disorder(batches: Sequence[Sequence[Event]]) -> int:
    """The lateness with which no event is late: how far one stands behind the latest before it in a part."""
    most = 0
    latest: dict[tuple[str, int], int] = {}
    for event in (each for batch in batches for each in batch):
        place = event.stream, event.part
        latest[place] = max(latest.get(place, event.ts), event.ts)
        most = max(most, latest[place] - event.ts)
    return most


def _source(
    spark: SparkSession, batches: Sequence[Sequence[Event]], stream: str, layout: Layout, folder: Path
) -> DataFrame:
    """The events of one stream as files that Spark reads one after the other."""
    folder.mkdir(parents=True)
    schema = layout.schema().append(pa.field("_kind", pa.int32()))
    for number, batch in enumerate(batches):
        rows = [rows_of((each for each in batch if each.stream == stream), layout)]
        kinds = [EVENT_ROW] * rows[0].num_rows
        if number == len(batches) - 1:
            end = {"_stream": layout.place(stream), "_part": 0, "_seq": 0, "_ts": 0}
            rows.append(pa.RecordBatch.from_pylist([end], layout.schema()))
            kinds.append(END)
        table = pa.Table.from_batches(rows).append_column("_kind", pa.array(kinds, pa.int32()))
        file = folder / f"{number:08}.parquet"
        pq.write_table(table, file)
        os.utime(file, (number, number))  # files are taken in the order of their age
    return (
        spark.readStream.schema(from_arrow_schema(schema))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
    )
