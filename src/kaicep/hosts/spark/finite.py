"""Finite runs as streams: the events of a run, batch by batch, through the host for endless data.

Each batch becomes a file, each file a micro-batch of Spark; the last row says that the input has ended.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kaicep.hosts.spark.batch import FEW
from kaicep.hosts.spark.clock import END, EVENT_ROW
from kaicep.hosts.spark.deliver import deliver
from kaicep.hosts.spark.physical import chosen_engine, physical
from kaicep.hosts.spark.session import is_connect, own_session, told
from kaicep.hosts.spark.stream import Frames, Streamed, match_stream
from kaicep.hosts.spark.wire import Layout, rows_of
from kaicep.plan.events import Event, Match, by_end
from kaicep.query import FiniteQuery

__all__ = ["run_stream", "run_streams"]


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
