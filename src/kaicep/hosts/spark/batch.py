"""The host over finite data: DataFrames of events in, a DataFrame of matches out.

Nothing runs until the matches are asked for. Events are filtered and joined in the JVM, moved once to
where they meet (by bucket of the key, by slice of time, or all to one task), sorted there, and given to an
engine. Each match belongs to the slice of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from kaicep.errors import Unsupported
from kaicep.hosts.spark.job import Job, in_order, job_of, row_by_row
from kaicep.hosts.spark.layout import Layout, layouts_of, rows_of
from kaicep.hosts.spark.output import MATCHES, known, presented
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.prefilter import candidates, key_column
from kaicep.hosts.spark.session import own_session, told
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match, by_end
from kaicep.plan.nodes import Program
from kaicep.query import FiniteQuery, Query

BUCKETS = 16
"""How many buckets, or slices, there are where nobody says; it does not depend on the machine."""

Frames = Callable[[Layout], Mapping[str, DataFrame]]
"""The events of each stream, as the rows of a layout."""

Check = Callable[[DataFrame, Layout], DataFrame]
"""The same rows, where nothing is wrong with them."""


def match_batch(
    frames: Frames, query: Query, buckets: int = BUCKETS, check: Check | None = None
) -> DataFrame:
    """The matches of queries over finite streams; `check` looks at the events that they may use."""
    found = [_matches(part, frames, query, buckets, check) for part in physical(query)]
    return presented(reduce(DataFrame.union, found), query.program)


def _matches(part: Part, frames: Frames, query: Query, buckets: int, check: Check | None) -> DataFrame:
    _, layout = layouts_of([part], query.catalog)
    job = job_of(replace(query, program=Program(part.queries)), layout)
    rows = thinned(part, frames(layout), layout, query.catalog, query.knowledge, buckets)
    if check is not None:
        rows = check(rows, layout)
    slices = part.way == "slices"
    number = pa.int64() if slices else pa.int32()
    columns = [
        *layout.schema(),
        *(pa.field(name, number) for name in ("_bucket", *(("_low", "_high") * slices))),
    ]
    if part.way != "rows":
        rows = gathered(part, rows, buckets)
    work = _each_row(job) if part.way == "rows" else _each_slice(job) if slices else _each_bucket(job)
    return known(rows, pa.schema(columns)).mapInArrow(work, MATCHES)


def thinned(
    part: Part,
    frames: Mapping[str, DataFrame],
    layout: Layout,
    catalog: Catalog,
    knowledge: Knowledge,
    buckets: int,
) -> DataFrame:
    """The events that the queries of a part may use, with the numbers of their buckets."""
    some: list[DataFrame] = []
    for stream, rows in frames.items():
        marked, wanted = candidates(rows, stream, part, layout, catalog, knowledge)
        number = bucket(part, stream, layout, buckets).alias("_bucket")
        some.append(marked.where(wanted).select(*layout.names(), number))
    return reduce(DataFrame.union, some)


def gathered(part: Part, rows: DataFrame, buckets: int) -> DataFrame:
    """The events moved to where they meet, and sorted there.

    How many tasks there are is the session's business: a bucket is small, and a task has its price.
    """
    if part.way == "slices":
        cut = _sliced(rows, part, buckets).repartition("_bucket")
        return cut.sortWithinPartitions("_bucket", "_low", "_high", "_ts")
    spread = rows.repartition("_bucket") if part.way == "buckets" else rows.repartition(1)
    return spread.sortWithinPartitions("_bucket", "_ts")


def bucket(part: Part, stream: str, layout: Layout, buckets: int) -> Column:
    """The number of an event's bucket."""
    if part.way != "buckets":
        return sf.lit(0)
    try:
        key = [key_column(each, stream, layout) for each in part.key]
    except Unsupported:
        return sf.lit(0)
    return sf.pmod(sf.xxhash64(*key), sf.lit(buckets)).cast("int")


def _sliced(rows: DataFrame, part: Part, slices: int) -> DataFrame:
    """Each event in its own slice of time, and in those whose matches it can still be part of.

    The first and the last instant are found by Spark, in the same run.
    """
    edges = rows.agg(sf.min("_ts").alias("_from"), sf.max("_ts").alias("_to"))
    # Matches may end up to a window after the last event. A slice narrower than that would be all overlap.
    width = sf.greatest(
        sf.floor((sf.col("_to") + sf.lit(part.window) - sf.col("_from")) / sf.lit(slices)) + sf.lit(1),
        sf.lit(2 * (part.window + part.ahead) + 1),
    ).cast("bigint")
    spread = rows.crossJoin(sf.broadcast(edges.select("_from", width.alias("_width"))))
    since = sf.col("_ts") - sf.col("_from")
    own = slices_at(since, sf.col("_width"), part.window, part.ahead)
    several = spread.withColumn("_bucket", sf.explode(own))
    low = sf.col("_from") + sf.col("_bucket") * sf.col("_width")
    return several.withColumn("_low", low).withColumn("_high", low + sf.col("_width"))


def slices_at(since: Column, width: Column, window: int, ahead: int) -> Column:
    """The slices of an event so long after the first one began: its own, and those that it matters to."""
    first, last = (sf.greatest(since + sf.lit(shift), sf.lit(0)) for shift in (-ahead, window))
    return sf.sequence(_div(first, width), _div(last, width))


def _div(left: Column, right: Column) -> Column:
    """Whole division of numbers that are not negative, exact for all of them."""
    return sf.try_divide(left - sf.pmod(left, right), right).cast("bigint")


_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _each_row(job: Job) -> _Work:
    return partial(row_by_row, job)


def _each_bucket(job: Job) -> _Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in _by_bucket(batches):
            yield from in_order(job, rows)

    return work


def _each_slice(job: Job) -> _Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in _by_bucket(batches):
            first = next(rows)
            low, high = (first.column(name)[0].as_py() for name in ("_low", "_high"))
            for found in in_order(job, chain([first], rows)):
                end = found.column("end")
                yield found.filter(pc.and_(pc.greater_equal(end, low), pc.less(end, high)))

    return work


def _by_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows of each bucket, which stand together; each has to be read before the next.

    Spark can do that as well (`applyInArrow`), in almost twice the time.
    """

    def cut() -> Iterator[tuple[int, pa.RecordBatch]]:
        for rows in batches:
            numbers = rows.column("_bucket").to_numpy()
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
            for low, high in pairwise(edges if len(numbers) else ()):
                yield int(numbers[low]), rows.slice(low, high - low)

    for _, some in groupby(cut(), key=itemgetter(0)):
        yield (rows for _, rows in some)


FEW = 2
"""How many buckets there are where the events fit into this process."""


def run_batch(run: FiniteQuery) -> list[Match]:
    """All matches of a run, in the order of their end, then of their id."""
    return run_batches([run])[0]


def run_batches(runs: Sequence[FiniteQuery]) -> list[list[Match]]:
    """All matches of several runs, by one job of Spark's."""
    spark = own_session()
    matches: list[list[Match]] = [[] for _ in runs]
    with told():
        found = [
            match_batch(_frames(spark, run), run, FEW).select(sf.lit(owner).alias("owner"), "match")
            for owner, run in enumerate(runs)
        ]
        for row in reduce(DataFrame.union, found).collect():
            matches[row["owner"]].append(Match.from_json(row["match"]))
    return [sorted(some, key=by_end) for some in matches]


def _frames(spark: SparkSession, run: FiniteQuery) -> Frames:
    events = [each for batch in run.batches for each in batch if not each.late]

    def frames(layout: Layout) -> dict[str, DataFrame]:
        return {
            stream: spark.createDataFrame(
                pa.Table.from_batches([rows_of((e for e in events if e.stream == stream), layout)]),
                from_arrow_schema(layout.schema()),  # Connect infers none from an empty table
            )
            for stream in layout.streams
        }

    return frames
