"""One step of matching on Spark: new rows of the archive in, files of matches and of states out.

All queries go through one job. Each event is sent to the buckets whose queries may use it, a bucket has one
engine for all queries with its key, and what has no key is a bucket of its own. A task writes the matches of
its buckets, and what their engines keep, into files, and reports their names: nothing counts before the
driver commits them together with the cut up to which they answer. A task may run twice, anywhere.

Which events are late, and how far time has come, stands in the archive; so there is no clock here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.archive.columns import LATE, PART, SEQ, START, TRIPLES, TS
from kaicep.archive.snapshot import Snapshot
from kaicep.archive.triples import read_triple
from kaicep.connectors.sinks.delta import match_rows
from kaicep.endtoend.prefilter import spans
from kaicep.endtoend.registered import Registered
from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import Interval, Program
from kaicep.plan.types import Type
from kaicep.query import Query
from kaicep.storage.delta import write_parquet
from kaicep.storage.disk import read_sealed, replace_sealed

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from kaicep.hosts.spark.physical import Part
    from kaicep.hosts.spark.sent import Sent
    from kaicep.hosts.spark.wire import Layout
    from kaicep.plan.catalog import Catalog, Stream

__all__ = ["SMALL", "Done", "Group", "Step", "Unit", "grouped", "match_step"]

SMALL = 20_000
"""So many rows are matched in the driver: a round of workers costs more than they do."""

_MOST_LIVE = 256
_EVENT, _CLOCK = 0, 1


@dataclass(frozen=True)
class Unit:
    """Queries that are resolved together: those reported, and all whose output they read, as registered."""

    query: Query
    part: Part
    names: tuple[str, ...]
    registered: tuple[Registered, ...]


@dataclass(frozen=True)
class Group:
    """Units with the same key, which one engine a bucket runs, and whose matches are reported.

    `states` has by bucket the file of what its engine keeps; one that has seen nothing has none.
    """

    id: str
    units: tuple[Unit, ...]
    query: Query
    buckets: int
    reported: tuple[str, ...]
    states: Mapping[int, str] = field(default_factory=dict)
    watermark: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """How its units are spread, which is the same way for all."""
        return tuple(each.part for each in self.units)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the archive that it reads."""
        from kaicep.hosts.spark.layout import sources_of

        found = (name for part in self.parts for name in sources_of(part, self.query.catalog))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Step:
    """What is matched at a time: the new rows of a snapshot, and how far time has come for each group.

    `ended` are the groups for which nothing comes any more. With `past`, late events count too.
    """

    groups: Sequence[Group]
    rows: Snapshot
    watermarks: Mapping[str, int | None]
    ended: frozenset[str] = frozenset()
    past: bool = False


@dataclass(frozen=True)
class Done:
    """What became of a bucket: the file of its matches, how many of each query, the file of its state."""

    group: str
    bucket: int
    state: str
    kept: int
    path: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, int] = field(default_factory=dict)


def grouped(units: Sequence[Unit], buckets: int) -> list[Group]:
    """Units put together by their key; those of several queries have an engine of their own."""
    found: dict[Any, list[Unit]] = {}
    for number, unit in enumerate(units):
        alone = len(unit.part.queries) > 1 or bool(unit.query.program.ep_plans)
        found.setdefault(number if alone else _key_of(unit.part), []).append(unit)
    return [_group_of(tuple(some), buckets) for some in found.values()]


def _group_of(units: tuple[Unit, ...], buckets: int) -> Group:
    plans = tuple(plan for each in units for plan in each.query.program.queries)
    streams = {name: stream for each in units for name, stream in each.query.catalog.streams.items()}
    first = units[0].query
    whole = Query(Program(plans), replace(first.catalog, streams=streams), first.knowledge)
    count = buckets if units[0].part.way in ("rows", "buckets") else 1
    return Group(uuid4().hex, units, whole, count, tuple(name for each in units for name in each.names))


def _key_of(part: Part) -> tuple[Any, ...]:
    """What parts have in common that may share their buckets."""
    if part.way == "rows":
        return ("rows",)
    if part.way != "buckets":
        return ("one",)
    return ("buckets", *((each.sources, each.type) if isinstance(each, Field) else each for each in part.key))


# --- the job ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """A group as a task needs it."""

    group: str
    query: Query
    layout: Layout
    reported: frozenset[str]


@dataclass(frozen=True)
class _Work:
    """What every task of a step needs to know, besides the rows."""

    targets: Sequence[Sent[_Target]]
    places: Sequence[tuple[int, int]]  # of each number in `_target`: the target, and its bucket
    states: Sequence[Path | None]
    watermarks: Sequence[int | None]
    ended: Sequence[bool]
    matches: Path
    folder: Path


def match_step(
    spark: SparkSession, step: Step, number: int, matches: Path, folder: Path, sending: dict[str, Any]
) -> list[Done]:
    """Matches new rows, on workers or, where they are few, here; what became of every bucket.

    `sending` keeps what was packed for the way, by group, from one step to the next.
    """
    from kaicep.hosts.spark.layout import layouts_of
    from kaicep.hosts.spark.session import describe, told
    from kaicep.hosts.spark.wire import Layout

    parts = [part for group in step.groups for part in group.parts]
    catalog = replace(
        step.groups[0].query.catalog,
        streams={name: each for group in step.groups for name, each in group.query.catalog.streams.items()},
    )
    layouts, whole = layouts_of(parts, catalog)
    own = iter(layouts)
    targets: list[tuple[Group, Layout]] = []
    for group in step.groups:
        some = [next(own) for _ in group.parts]
        attributes = tuple(
            tuple(dict.fromkeys(each for one in some for each in one.attributes[place]))
            for place in range(len(whole.streams))
        )
        targets.append((group, Layout(whole.streams, whole.columns, attributes, whole.rdf)))
    places = [(place, bucket) for place, (group, _) in enumerate(targets) for bucket in range(group.buckets)]
    work = _Work(
        [_packed(group, layout, sending) for group, layout in targets],
        places,
        [_state_of(targets[place][0], bucket, folder) for place, bucket in places],
        [step.watermarks.get(targets[place][0].id) for place, _ in places],
        [targets[place][0].id in step.ended for place, _ in places],
        matches / f"{number:012d}",
        folder,
    )
    frame = _addressed(spark, step, targets, whole, catalog)
    known = step.rows.tables.keys() & set(whole.streams)
    rows = sum(each.rows for stream in known for each in step.rows.files(stream))
    describe(spark, ", ".join(name for each in step.groups for name in each.reported) + f", step {number}")
    with told():
        if frame is None or rows <= SMALL:
            batches = frame.toArrow().to_batches() if frame is not None else []
            reports = [line for batch in _worked(work, batches, range(len(places))) for line in batch]
        else:
            clock = spark.range(len(places)).select(*_clock_columns(frame))
            spread = frame.unionByName(clock).repartition(len(places), "_target")
            reports = [row["told"] for row in spread.mapInArrow(_task(work), "told string").collect()]
    return [Done(**json.loads(line)) for line in reports]


def _state_of(group: Group, bucket: int, folder: Path) -> Path | None:
    name = group.states.get(bucket)
    return None if name is None else folder / name


def _packed(group: Group, layout: Layout, sending: dict[str, Any]) -> Sent[_Target]:
    """A group for the way: packed anew only where its knowledge or the columns of the step are others."""
    from kaicep.hosts.spark.sent import sent

    mark = group.query.knowledge.version, layout, group.reported
    known = sending.get(group.id)
    if known is None or known[0] != mark:
        target = _Target(group.id, group.query, layout, frozenset(group.reported))
        known = sending[group.id] = (mark, sent(target))
    return known[1]


def _addressed(
    spark: SparkSession,
    step: Step,
    targets: Sequence[tuple[Group, Layout]],
    whole: Layout,
    catalog: Catalog,
) -> DataFrame | None:
    """The rows of all streams, each once for every bucket that wants it, with its number in `_target`."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    from kaicep.hosts.spark.batch import bucket
    from kaicep.hosts.spark.prefilter import candidates

    found: list[DataFrame] = []
    plans = [plan for group, _ in targets for plan in group.query.program.queries]
    bounds = spans(plans, catalog) if step.past else {}
    for stream in whole.streams:
        if stream not in step.rows.tables or not step.rows.files(stream):
            continue
        rows = _archived(spark, step, catalog.streams[stream], whole, bounds.get(stream, Interval()))
        to = []
        first = tag = 0
        for group, _ in targets:
            wanted = None
            for part in group.parts if stream in group.streams else ():
                rows, some = candidates(rows, stream, part, whole, catalog, group.query.knowledge, str(tag))
                tag += 1
                wanted = some if wanted is None else wanted | some
            if wanted is not None:
                part = group.parts[0]
                if part.way == "rows":
                    own = sf.pmod(sf.xxhash64("_part", "_seq"), sf.lit(group.buckets)).cast("int")
                else:
                    own = bucket(part, stream, whole, group.buckets)
                to.append(sf.when(wanted, sf.lit(first) + own))
            first += group.buckets
        if to:
            address = sf.explode(sf.array_compact(sf.array(*to))).alias("_target")
            found.append(rows.select(*whole.names(), sf.lit(_EVENT).alias("_kind"), address))
    return reduce(DataFrame.unionByName, found) if found else None


def _archived(spark: SparkSession, step: Step, stream: Stream, layout: Layout, within: Interval) -> DataFrame:
    """The new rows of a stream as the rows of a layout; what the archive has is typed and clean already."""
    from pyspark.sql import functions as sf

    from kaicep.endtoend.spark_history import archived_frame
    from kaicep.hosts.spark.source import SPARK_TYPES

    name = stream.name
    rows = archived_frame(spark, step.rows, name, within)
    if not step.past:
        rows = rows.where(f"NOT {LATE}")
    if step.rows.since is not None:
        for part, after in step.rows.since.cut.positions.get(name, {}).items():
            rows = rows.where((sf.col(PART) != part) | (sf.col(SEQ) >= after))
    base = [
        sf.lit(layout.place(name)).alias("_stream"),
        sf.col(PART).cast("bigint").alias("_part"),
        sf.col(SEQ).alias("_seq"),
        sf.unix_micros(TS).alias("_ts"),
    ]
    own = {number: attribute for attribute, number in layout.of_stream(name).items()}
    cells = []
    for number, type in enumerate(layout.columns):
        cell = sf.lit(None) if number not in own else sf.col(f"`{own[number]}`")
        if type is Type.TIMESTAMP and number in own:
            cell = sf.unix_micros(cell)
        cells.append(cell.cast(SPARK_TYPES[type]).alias(f"a{number}"))
    if layout.rdf:
        text = sf.lit(None)
        if stream.rdf:
            text = sf.to_json(
                sf.struct(sf.unix_micros(START).alias("start"), sf.col(TRIPLES).alias("triples"))
            )
        cells.append(text.cast("string").alias("_rdf"))
    return rows.select(*base, *cells)


def _clock_columns(frame: DataFrame) -> Iterator[Any]:
    """A row for a bucket without an event, with which it learns how far time has come."""
    from pyspark.sql import functions as sf

    for each in frame.schema.fields:
        if each.name == "_target":
            yield sf.col("id").cast("int").alias("_target")
        else:
            value = sf.lit(_CLOCK if each.name == "_kind" else None)
            yield value.cast(each.dataType).alias(each.name)


# --- a task -------------------------------------------------------------------------------------------


def _task(work: _Work) -> Any:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for lines in _worked(work, list(batches)):
            yield pyarrow.RecordBatch.from_pydict({"told": lines})

    return run


def _worked(
    work: _Work, batches: Sequence[pyarrow.RecordBatch], numbers: Sequence[int] | None = None
) -> Iterator[list[str]]:
    """What became of the buckets whose rows these are, or of these buckets, whatever rows there are."""
    import pyarrow
    import pyarrow.compute as pc

    from kaicep.hosts.spark.kernels import unpack

    unpack()
    some = [each for each in batches if each.num_rows]
    rows = pyarrow.Table.from_batches(some).combine_chunks() if some else None
    if numbers is None:
        numbers = sorted(pc.unique(rows["_target"]).to_pylist()) if rows is not None else ()
    for number in numbers:
        own = None
        if rows is not None:
            mine = pc.and_(pc.equal(rows["_target"], number), pc.equal(rows["_kind"], _EVENT))
            own = rows.filter(mine).combine_chunks()
        yield [json.dumps(_bucket(work, number, own))]


_LIVE: dict[Path, Engine] = {}
"""Engines of this process that are as they were saved, by the file of their state."""


def _bucket(work: _Work, number: int, rows: pyarrow.Table | None) -> dict[str, Any]:
    """Lets the engine of a bucket go on, and writes what it found and what it keeps."""
    place, bucket = work.places[number]
    target = work.targets[place].opened()
    engine = _engine(target, work.states[number])
    found: list[Match] = []
    for batch in rows.to_batches() if rows is not None else ():
        found += _push(engine, batch, target.layout)
    watermark = work.watermarks[number]
    if watermark is not None:
        found += engine.advance(watermark)
    if work.ended[number]:
        found += engine.finish()
    kept = sorted((each for each in found if each.query in target.reported), key=by_end)
    name = f"{uuid4().hex}.state"
    replace_sealed(work.folder / name, engine.snapshot())
    while len(_LIVE) >= _MOST_LIVE:
        del _LIVE[next(iter(_LIVE))]
    _LIVE[work.folder / name] = engine
    counts: dict[str, int] = {}
    last: dict[str, int] = {}
    for each in kept:
        counts[each.query] = counts.get(each.query, 0) + 1
        last[each.query] = each.end_us
    path = _write_matches(work.matches, kept) if kept else None
    return {
        "group": target.group,
        "bucket": bucket,
        "state": name,
        "kept": engine.size,
        "path": path,
        "counts": counts,
        "last": last,
    }


def _engine(target: _Target, state: Path | None) -> Engine:
    live = _LIVE.pop(state, None) if state is not None else None
    if live is not None and live.knowledge is target.query.knowledge:
        return live
    engine = Engine(target.query)
    if state is not None:
        try:
            engine.restore(read_sealed(state))
        except OSError as error:
            raise Failure(f"the state {state} of a bucket is gone: {error.strerror}") from None
    return engine


def _push(engine: Engine, rows: pyarrow.RecordBatch, layout: Layout) -> list[Match]:
    """Gives rows to an engine; triples travel as the archive has them."""
    import pyarrow.compute as pc

    from kaicep.hosts.spark.wire import push

    if not layout.rdf:
        return push(engine, rows, layout)
    found: list[Match] = []
    for name in layout.streams:
        own = rows.filter(pc.equal(rows["_stream"], layout.place(name)))
        if name not in layout.rdf:
            found += push(engine, own, layout)
            continue
        events: list[Event] = []
        columns = (own[each].to_pylist() for each in ("_part", "_seq", "_ts", "_rdf"))
        for part, seq, ts, text in zip(*columns, strict=True):
            said = json.loads(text)
            triples = tuple(read_triple(each) for each in said["triples"])
            events.append(Event(name, part, seq, ts, {}, start=said["start"], triples=triples))
        found += engine.push(events)
    return found


def _write_matches(begin: Path, matches: Sequence[Match]) -> str:
    """Writes matches into a file beside the table that will speak of it; its name."""
    return write_parquet(begin.parent, match_rows(matches), f"{begin.name}-{uuid4().hex}")
