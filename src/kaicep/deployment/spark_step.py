"""One step of matching on Spark: new rows of the archive in, files of matches and of states out.

All queries go through one job. Each event is sent to the buckets whose queries may use it, a bucket has
one engine for all queries with its key, and what has no key is a bucket of its own. A task writes the
matches of its buckets, and what their engines keep, into files, and reports their names: nothing counts
before the driver commits them together with the cut up to which they answer. A task may run twice,
anywhere.

Which events are late, and how far time has come, stands in the archive; so there is no clock here.

Where new rows are many windows long (the past of a query, or what has piled up), a bucket without a key is
cut into slices of time that overlap by the window. Each has an engine of its own; the last one goes on.

What an engine keeps is written whole only now and then. In between, a step writes the rows that came to the
engine: they are what has changed. Whoever has no such engine at hand reads the whole state, and lets it
take those rows once more. When the rows have grown to half of the state, it is written whole again; so what
is written goes with the rate, and hardly with the window.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.archive.archive import Snapshot
from kaicep.archive.parquet import LATE, PART, SEQ, START, TRIPLES, TS, read_triple
from kaicep.connectors.sinks.delta import match_rows
from kaicep.deployment.registered import Registered
from kaicep.errors import Failure
from kaicep.history.hybrid import spans
from kaicep.history.strategies import History
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
    from pyspark.sql import Column, DataFrame, SparkSession

    from kaicep.hosts.spark.layout import Layout
    from kaicep.hosts.spark.physical import Part
    from kaicep.hosts.spark.sent import Sent
    from kaicep.plan.catalog import Catalog, Stream

SMALL = 20_000
"""So many rows are matched in the driver: a round of workers costs more than they do."""

_MOST_LIVE = 256
_SMALL_STATE, _MOST_HERE = 1 << 16, 1 << 26
_TOGETHER = 8
_EVENT, _CLOCK = 0, 1


@dataclass(frozen=True)
class QueryUnit:
    """Queries that are resolved together: those reported, and all whose output they read, as registered."""

    query: History
    part: Part
    names: tuple[str, ...]
    registered: tuple[Registered, ...]

    @property
    def outside(self) -> bool:
        """Whether it is of somebody from outside."""
        return any(each.outside for each in self.registered if each.name in self.names)


@dataclass(frozen=True)
class SavedState:
    """What the engine of a bucket keeps: the file of a whole state, and those of the rows that came since.

    `size` and `grown` are the bytes of both. `live` is the name of the engine, in a process that has it.
    """

    whole: str
    since: tuple[str, ...]
    size: int
    grown: int
    live: str

    @property
    def files(self) -> tuple[str, ...]:
        """All of its files."""
        return (self.whole, *self.since)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> SavedState:
        """What was written of it."""
        return cls(**{**read, "since": tuple(read["since"])})


@dataclass(frozen=True)
class UnitGroup:
    """Units with the same key, which one engine a bucket runs, and whose matches are reported.

    `states` has by bucket what its engine keeps; one that has seen nothing has none.
    """

    id: str
    units: tuple[QueryUnit, ...]
    query: Query
    buckets: int
    reported: tuple[str, ...]
    states: Mapping[int, SavedState] = field(default_factory=dict)
    watermark: int | None = None

    @property
    def files(self) -> set[str]:
        """The files of its states."""
        return {name for each in self.states.values() for name in each.files}

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
class MatchStep:
    """What is matched at a time: the new rows of a snapshot, and how far time has come for each group.

    `ended` are the groups for which nothing comes any more. With `past`, late events count too. With `whole`,
    all states are written whole, by engines with the knowledge with which they were sent last. `slices` is
    how many slices of time a bucket may be cut into.
    """

    groups: Sequence[UnitGroup]
    rows: Snapshot
    watermarks: Mapping[str, int | None]
    ended: frozenset[str] = frozenset()
    past: bool = False
    whole: bool = False
    slices: int = 1

    @property
    def events(self) -> int:
        """How many events the files have that are new, for all that use them."""
        streams = {name for group in self.groups for name in group.streams} & self.rows.tables.keys()
        return sum(each.rows for name in streams for each in self.rows.files(name))

    def sliced(self, group: UnitGroup) -> TimeSlices:
        """Where the time of a group is cut: not at all, unless there is much more of it than overlaps."""
        window = max(each.window for each in group.parts)
        ahead = max(each.ahead for each in group.parts)
        bounds = self._bounds(group) if group.parts[0].way == "slices" and self.events > SMALL else None
        low, high = bounds or (0, 0)
        count = min(self.slices, (high - low) // (2 * (window + ahead) + 1))
        return TimeSlices(low, (high - low) // max(count, 1), max(count, 1), window, ahead)

    def _bounds(self, group: UnitGroup) -> tuple[int, int] | None:
        """From when on its engine has seen no event, and until when all are there."""
        tables = [self.rows.tables[name] for name in group.streams if name in self.rows.tables]
        if group.id in self.ended:
            high = max((ts for table in tables for ts in table.newest.values()), default=None)
        else:
            high = self.watermarks.get(group.id)
        if group.states:
            before = self.rows.since.tables if self.rows.since is not None else {}
            lows = [ts for name in group.streams if name in before for ts in before[name].newest.values()]
            low = max(lows, default=None)
        else:
            within = spans(group.query.program.queries, group.query.catalog)
            read = [
                (name, within.get(name, Interval())) for name in group.streams if name in self.rows.tables
            ]
            begins = [each.low for name, some in read for each in self.rows.files(name, some)]
            said = [some.low for _, some in read]
            known = [each for each in begins if each is not None]
            low = min(known) if known and len(known) == len(begins) else None
            if low is not None and None not in said:
                low = max(low, min(each for each in said if each is not None))
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True)
class TimeSlices:
    """Slices of time from `low` on, of this width; the first and the last have no end on their outer side.

    Each gets the events of a `window` before it, and those that come up to `ahead` after it.
    """

    low: int
    width: int
    count: int
    window: int
    ahead: int

    @property
    def edges(self) -> list[tuple[int | None, int | None]]:
        """In which times the matches of each slice end."""
        cuts = [self.low + each * self.width for each in range(1, self.count)]
        return list(zip([None, *cuts], [*cuts, None], strict=True))

    def numbers(self, first: int) -> Column:
        """The slices of an event, of which the first has this number."""
        from pyspark.sql import functions as sf

        from kaicep.hosts.spark.batch import slices_at

        since = sf.least(sf.col("_ts") - sf.lit(self.low), sf.lit(self.width * self.count - 1 - self.window))
        own = slices_at(since, sf.lit(self.width), self.window, self.ahead)
        return sf.transform(own, lambda each: (each + sf.lit(first)).cast("int"))


@dataclass(frozen=True)
class Done:
    """What became of a bucket: how many rows it got, the file of its matches, its state.

    Only the last slice of a bucket has a state.
    `written` is how many bytes of state were written, `counts` are the matches of each query, `held` what is
    kept for each, `last` the end of its last match.
    """

    group: str
    bucket: int
    rows: int
    state: SavedState | None
    written: int
    held: Mapping[str, int]
    path: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, int] = field(default_factory=dict)


def grouped(units: Sequence[QueryUnit], buckets: int) -> list[UnitGroup]:
    """Units put together by their key; those of several queries, or from outside, have their own engines."""
    found: dict[Any, list[QueryUnit]] = {}
    for number, unit in enumerate(units):
        alone = unit.outside or len(unit.part.queries) > 1 or bool(unit.query.program.ep_plans)
        found.setdefault(number if alone else _key_of(unit.part), []).append(unit)
    return [_group_of(tuple(some), buckets) for some in found.values()]


def _group_of(units: tuple[QueryUnit, ...], buckets: int) -> UnitGroup:
    plans = tuple(plan for each in units for plan in each.query.program.queries)
    streams = {name: stream for each in units for name, stream in each.query.catalog.streams.items()}
    first = units[0].query
    whole = Query(Program(plans), replace(first.catalog, streams=streams), first.knowledge)
    count = buckets if units[0].part.way in ("rows", "buckets") else 1
    return UnitGroup(uuid4().hex, units, whole, count, tuple(name for each in units for name in each.names))


def _key_of(part: Part) -> tuple[Any, ...]:
    """What parts have in common that may share their buckets."""
    if part.way == "rows":
        return ("rows",)
    if part.way != "buckets":
        return (part.way,)
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
class _TaskWork:
    """What every task of a step needs to know, besides the rows."""

    targets: Sequence[Sent[_Target]]
    places: Sequence[tuple[int, int]]  # of each number in `_target`: the target, and its bucket
    states: Sequence[SavedState | None]
    reached: Sequence[int | None]
    watermarks: Sequence[int | None]
    whole: Sequence[bool]
    ended: Sequence[bool]
    edges: Sequence[tuple[int | None, int | None]]
    matches: Path
    folder: Path


def match_step(
    spark: SparkSession, step: MatchStep, number: int, matches: Path, folder: Path, sending: dict[str, Any]
) -> list[Done]:
    """Matches new rows, on workers or, where they are few, here; what became of every bucket.

    `sending` keeps what was packed for the way, by group, from one step to the next.
    """
    from kaicep.hosts.spark.session import describe, told

    targets, whole, catalog = _laid_out(step.groups)
    cuts = [step.sliced(group) for group, _ in targets]
    cells = [
        (place, bucket, edges)
        for place, (group, _) in enumerate(targets)
        for bucket in range(group.buckets)
        for edges in cuts[place].edges
    ]
    places = [(place, bucket) for place, bucket, _ in cells]
    groups = [targets[place][0] for place, _ in places]
    ended = [each.id in step.ended for each in groups]
    work = _TaskWork(
        [sending[each.id][1] if step.whole else _packed(each, own, sending) for each, own in targets],
        places,
        [targets[place][0].states.get(bucket) if low is None else None for place, bucket, (low, _) in cells],
        [each.watermark for each in groups],
        [step.watermarks.get(each.id) for each in groups],
        [step.whole or each for each in ended],
        ended,
        [edges for *_, edges in cells],
        matches / f"{number:012d}",
        folder,
    )
    frame = _addressed(spark, step, targets, cuts, whole, catalog)
    describe(spark, ", ".join(name for each in step.groups for name in each.reported) + f", step {number}")
    with told():
        size = sum(each.size + each.grown for each in work.states if each is not None)
        if step.events <= SMALL if frame is not None else size <= _MOST_HERE:
            batches = frame.toArrow().to_batches() if frame is not None else []
            reports = [line for batch in _worked(work, batches, range(len(places))) for line in batch]
        else:
            clock = spark.range(len(places)).select(*_clock_columns(frame))
            spread = clock if frame is None else frame.unionByName(clock)
            spread = spread.repartition(len(places), "_target")
            reports = [row["told"] for row in spread.mapInArrow(_task(work), "told string").collect()]
    told_of = (json.loads(line) for line in reports)
    return [Done(**{**each, "state": _read_state(each["state"])}) for each in told_of]


def _read_state(read: Mapping[str, Any] | None) -> SavedState | None:
    return None if read is None else SavedState.from_json(read)


def _laid_out(groups: Sequence[UnitGroup]) -> tuple[list[tuple[UnitGroup, Layout]], Layout, Catalog]:
    """The groups of a step with the columns that each reads; all columns; and all streams."""
    from kaicep.hosts.spark.layout import Layout, layouts_of

    streams = {name: each for group in groups for name, each in group.query.catalog.streams.items()}
    catalog = replace(groups[0].query.catalog, streams=streams)
    layouts, whole = layouts_of([part for group in groups for part in group.parts], catalog)
    own = iter(layouts)
    targets: list[tuple[UnitGroup, Layout]] = []
    for group in groups:
        some = [next(own) for _ in group.parts]
        attributes = tuple(
            tuple(dict.fromkeys(each for one in some for each in one.attributes[place]))
            for place in range(len(whole.streams))
        )
        targets.append((group, Layout(whole.streams, whole.columns, attributes, whole.rdf)))
    return targets, whole, catalog


def pack_groups(groups: Sequence[UnitGroup], sending: dict[str, Any]) -> None:
    """Packs groups for the way, as their knowledge is now, before a step needs them."""
    for group, layout in _laid_out(groups)[0] if groups else ():
        _packed(group, layout, sending)


def _packed(group: UnitGroup, layout: Layout, sending: dict[str, Any]) -> Sent[_Target]:
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
    step: MatchStep,
    targets: Sequence[tuple[UnitGroup, Layout]],
    cuts: Sequence[TimeSlices],
    whole: Layout,
    catalog: Catalog,
) -> DataFrame | None:
    """The rows of all streams, each once for every bucket that wants it, with its number in `_target`."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    from kaicep.hosts.spark.batch import bucket
    from kaicep.hosts.spark.prefilter import candidates

    found: list[DataFrame] = []
    nowhere = sf.array().cast("array<int>")
    plans = [plan for group, _ in targets for plan in group.query.program.queries]
    bounds = spans(plans, catalog) if step.past else {}
    for stream in whole.streams:
        if stream not in step.rows.tables or not step.rows.files(stream):
            continue
        rows = _archived(spark, step, catalog.streams[stream], whole, bounds.get(stream, Interval()))
        to, several = [], []
        first = tag = 0
        for (group, _), cut in zip(targets, cuts, strict=True):
            wanted = None
            for part in group.parts if stream in group.streams else ():
                rows, some = candidates(rows, stream, part, whole, catalog, group.query.knowledge, str(tag))
                tag += 1
                wanted = some if wanted is None else wanted | some
            if wanted is not None:
                part = group.parts[0]
                if cut.count > 1:
                    several.append(sf.when(wanted, cut.numbers(first)).otherwise(nowhere))
                elif part.way == "rows":
                    own = sf.pmod(sf.xxhash64("_part", "_seq"), sf.lit(group.buckets)).cast("int")
                    to.append(sf.when(wanted, sf.lit(first) + own))
                else:
                    own = bucket(part, stream, whole, group.buckets)
                    to.append(sf.when(wanted, sf.lit(first) + own))
            first += group.buckets * cut.count
        if to or several:
            one = sf.array_compact(sf.array(*to)) if to else nowhere
            address = sf.explode(sf.concat(one, *several)).alias("_target")
            found.append(rows.select(*whole.names(), sf.lit(_EVENT).alias("_kind"), address))
    return reduce(DataFrame.unionByName, found) if found else None


def _archived(
    spark: SparkSession, step: MatchStep, stream: Stream, layout: Layout, within: Interval
) -> DataFrame:
    """The new rows of a stream as the rows of a layout; what the archive has is typed and clean already."""
    from pyspark.sql import functions as sf

    from kaicep.history.hybrid import archived_frame
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


def _clock_columns(frame: DataFrame | None) -> Iterator[Any]:
    """A row for a bucket without an event, with which it learns how far time has come."""
    from pyspark.sql import functions as sf

    yield sf.col("id").cast("int").alias("_target")
    yield sf.lit(_CLOCK).alias("_kind")
    for each in frame.schema.fields if frame is not None else ():
        if each.name not in ("_target", "_kind"):
            yield sf.lit(None).cast(each.dataType).alias(each.name)


# --- a task -------------------------------------------------------------------------------------------


def _task(work: _TaskWork) -> Any:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        for lines in _worked(work, list(batches)):
            yield pyarrow.RecordBatch.from_pydict({"told": lines})

    return run


def _worked(
    work: _TaskWork, batches: Sequence[pyarrow.RecordBatch], numbers: Sequence[int] | None = None
) -> Iterator[list[str]]:
    """What became of the buckets whose rows these are, or of these buckets, whatever rows there are."""
    import pyarrow
    import pyarrow.compute as pc

    from kaicep.hosts.spark.job import prepare

    prepare()
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


_LIVE: dict[str, Engine] = {}
"""Engines of this process that are as they were saved, by their names in their states."""


def _bucket(work: _TaskWork, number: int, rows: pyarrow.Table | None) -> dict[str, Any]:
    """Lets the engine of a bucket go on, and writes what it found and what has changed in it."""
    place, bucket = work.places[number]
    target = work.targets[place].opened()
    engine = _engine(target, work, number)
    low, high = work.edges[number]
    watermark = work.watermarks[number] if high is None else None
    found = _taken(engine, rows, target.layout, watermark)
    if work.ended[number] or high is not None:
        found += engine.finish()
    own = (each for each in found if each.query in target.reported)
    kept = sorted((each for each in own if _is_inside(each.end_us, low, high)), key=by_end)
    state: SavedState | None = None
    written = 0
    if high is None:
        before = None if work.whole[number] else work.states[number]
        state, written = _saved(engine, before, rows, target.layout, watermark, work.folder)
        while len(_LIVE) >= _MOST_LIVE:
            del _LIVE[next(iter(_LIVE))]
        _LIVE[state.live] = engine
    counts: dict[str, int] = {}
    last: dict[str, int] = {}
    for each in kept:
        counts[each.query] = counts.get(each.query, 0) + 1
        last[each.query] = each.end_us
    path = _write_matches(work.matches, kept) if kept else None
    return {
        "group": target.group,
        "bucket": bucket,
        "rows": rows.num_rows if rows is not None else 0,
        "state": None if state is None else asdict(state),
        "written": written,
        "held": {each: engine.size_of([each]) for each in sorted(target.reported) if high is None},
        "path": path,
        "counts": counts,
        "last": last,
    }


def _is_inside(end: int, low: int | None, high: int | None) -> bool:
    return (low is None or end >= low) and (high is None or end < high)


def _taken(engine: Engine, rows: pyarrow.Table | None, layout: Layout, watermark: int | None) -> list[Match]:
    """What an engine finds by some rows, and by how far time has come after them."""
    found: list[Match] = []
    for batch in rows.to_batches() if rows is not None else ():
        found += _push(engine, batch, layout)
    return found + (engine.advance(watermark) if watermark is not None else [])


def _engine(target: _Target, work: _TaskWork, number: int) -> Engine:
    """The engine of a bucket: the one at hand, or one from its state and the rows that came since.

    What it finds by those rows was found before.
    """
    state = work.states[number]
    if state is None:
        return Engine(target.query)
    live = _LIVE.pop(state.live, None)
    if live is not None and live.knowledge is target.query.knowledge:
        return live
    engine = Engine(target.query)
    try:
        engine.restore(read_sealed(work.folder / state.whole))
        for name in state.since:
            for step in _steps_in(read_sealed(work.folder / name)):
                _taken(engine, *_rows_in(step))
    except OSError as error:
        raise Failure(
            f"the state {work.folder / state.whole} of a bucket is gone: {error.strerror}"
        ) from None
    reached = work.reached[number]
    if reached is not None:
        engine.advance(reached)
    return engine


def _saved(
    engine: Engine,
    before: SavedState | None,
    rows: pyarrow.Table | None,
    layout: Layout,
    watermark: int | None,
    folder: Path,
) -> tuple[SavedState, int]:
    """The state of an engine after a step, and how many bytes were written for it."""
    live = uuid4().hex
    if before is not None:
        if rows is None or not rows.num_rows:
            return replace(before, live=live), 0
        data = _rows_as_bytes(rows, layout, watermark)
        grown = before.grown + len(data)
        if grown <= max(before.size // 2, _SMALL_STATE):
            since, written = _with_rows(before.since, data, folder, live)
            return replace(before, since=since, grown=grown, live=live), written
    state, name = engine.snapshot(), f"{live}.state"
    replace_sealed(folder / name, state)
    return SavedState(name, (), len(state), 0, live), len(state)


def _with_rows(since: tuple[str, ...], data: bytes, folder: Path, live: str) -> tuple[tuple[str, ...], int]:
    """Writes the rows of one more step: some files of one rank become one of the next, so they stay few."""
    pieces, rank = [len(data).to_bytes(8, "little") + data], 0
    while len(since) >= _TOGETHER - 1 and all(
        each.split(".")[1] == str(rank) for each in since[1 - _TOGETHER :]
    ):
        pieces = [*(read_sealed(folder / each) for each in since[1 - _TOGETHER :]), *pieces]
        since, rank = since[: 1 - _TOGETHER], rank + 1
    name, content = f"{live}.{rank}.rows", b"".join(pieces)
    replace_sealed(folder / name, content)
    return (*since, name), len(content)


def _steps_in(content: bytes) -> Iterator[bytes]:
    """What `_with_rows` put together, step by step."""
    at = 0
    while at < len(content):
        first = at + 8
        at = first + int.from_bytes(content[at:first], "little")
        yield content[first:at]


def _rows_as_bytes(rows: pyarrow.Table, layout: Layout, watermark: int | None) -> bytes:
    """The rows that came to an engine in a step, with all that is needed to take them once more."""
    import pyarrow

    about = {"layout": layout.to_json(), "watermark": watermark}
    needed = {f"a{number}" for each in layout.attributes for _, number in each}
    names = [each for each in layout.names() if each[0] == "_" or each in needed]
    own = rows.select(names).replace_schema_metadata({"kaicep": json.dumps(about)})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(
        sink, own.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(own)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _rows_in(data: bytes) -> tuple[pyarrow.Table, Layout, int | None]:
    """What `_rows_as_bytes` wrote."""
    import pyarrow

    from kaicep.hosts.spark.layout import Layout

    with pyarrow.ipc.open_stream(data) as reader:
        rows = reader.read_all()
    about = json.loads(rows.schema.metadata[b"kaicep"])
    return rows.combine_chunks(), Layout.from_json(about["layout"]), about["watermark"]


def _push(engine: Engine, rows: pyarrow.RecordBatch, layout: Layout) -> list[Match]:
    """Gives rows to an engine; triples travel as the archive has them."""
    import pyarrow.compute as pc

    from kaicep.hosts.spark.layout import push

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
