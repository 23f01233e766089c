"""The strategy `hybrid` on Spark: the files of a snapshot, through the host over finite data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from kaicep.archive.columns import LATE, PART, SEQ, START, TRIPLES, TS
from kaicep.endtoend.prefilter import spans
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match, by_end
from kaicep.plan.nodes import QueryPlan
from kaicep.plan.spark_sql import SQL_TYPES, name_sql
from kaicep.plan.types import Type
from kaicep.query import Query
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.places import StorePath

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from kaicep.archive.snapshot import Snapshot
    from kaicep.hosts.spark.wire import Layout
    from kaicep.plan.nodes import Interval

__all__ = ["archived_frame", "archived_rows", "spark_history", "takes"]


def takes(plans: Sequence[QueryPlan], catalog: Catalog) -> bool:
    """Whether Spark is there, and can take the queries: they read records, by names that are free."""
    if find_spec("pyspark") is None or which("java") is None:
        return False
    streams = [catalog.streams[name] for name in spans(plans, catalog)]
    return not any(each.rdf or {"part", "seq"} & dict(each.attributes).keys() for each in streams)


def spark_history(query: Query, snapshot: Snapshot, as_seen: bool = False) -> list[Match]:
    """All matches, in the order of their end, then of their id."""
    from kaicep.hosts.spark.batch import match_batch
    from kaicep.hosts.spark.session import own_session, told

    frames = archived_rows(own_session(), query, snapshot, as_seen)
    with told():
        found = match_batch(frames, query).select("match").toArrow()
    matches = [Match.from_json(line) for line in found["match"].to_pylist()]
    return sorted(matches, key=by_end)


def archived_rows(
    spark: SparkSession, query: Query, snapshot: Snapshot, as_seen: bool = False
) -> Callable[[Layout], dict[str, DataFrame]]:
    """The events of a snapshot that queries may read, as the rows of a layout."""
    from kaicep.hosts.spark.source import rows_of_frame

    bounds = spans(query.program.queries, query.catalog)

    def frames(layout: Layout) -> dict[str, DataFrame]:
        made: dict[str, DataFrame] = {}
        for stream in layout.streams:
            rows = archived_frame(spark, snapshot, stream, bounds[stream])
            seen = rows.where(f"NOT {LATE}") if as_seen else rows
            named = seen.withColumnsRenamed({PART: "part", SEQ: "seq"})
            made[stream] = rows_of_frame(named, query.catalog.streams[stream], layout)
        return made

    return frames


def archived_frame(spark: SparkSession, snapshot: Snapshot, stream: str, within: Interval) -> DataFrame:
    """The rows of the files of a snapshot that may hold events inside the bounds."""
    table, shape = snapshot.tables[stream].table, snapshot.shape(stream)
    files = [table.folder / each.path for each in snapshot.files(stream, within)]
    columns = {PART: "INT", SEQ: "BIGINT", LATE: "BOOLEAN", TS: "TIMESTAMP"}
    if shape.rdf:
        columns |= {START: "TIMESTAMP", TRIPLES: "ARRAY<STRING>"}
    for name, type in shape.attributes:
        columns.setdefault(name, "TIMESTAMP" if type is Type.TIMESTAMP else SQL_TYPES[type])
    schema = ", ".join(f"{name_sql(name)} {type}" for name, type in columns.items())
    if not files:
        return spark.createDataFrame([], schema)
    if isinstance(table.folder, StorePath):
        # Spark's own way to a store hangs on jars and on settings of its own; ours has written the files.
        work = _task_of_files(files, [table.schema.field(name) for name in columns])
        return spark.range(0, len(files), 1, len(files)).mapInArrow(work, schema)
    return spark.read.schema(schema).parquet(*map(str, files))


def _task_of_files(
    files: Sequence[Path], fields: Sequence[pyarrow.Field]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The rows of files of a store, read by the workers."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        schema = pyarrow.schema(fields)
        for number in (each for batch in batches for each in batch.column(0).to_pylist()):
            yield from parquet_dataset([files[number]], schema).to_batches(schema.names)

    return work
