"""A deployment on Spark: sources, archive, table of matches and sinks, each arrow by a commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.archive.parquet import LATE, PART, SEQ, START, TRIPLES, TS, read_triple
from kaicep.archive.snapshot import Snapshot
from kaicep.connectors.sinks.delta import match_rows
from kaicep.deployment.registered import Registered
from kaicep.errors import Failure
from kaicep.history.hybrid import spans
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

    from kaicep.hosts.spark.layout import Layout
    from kaicep.hosts.spark.physical import Part
    from kaicep.hosts.spark.sent import Sent
    from kaicep.plan.catalog import Catalog, Stream
import logging
import math
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import DataFile, measured
from kaicep.archive.snapshot import Cut
from kaicep.archive.table import ArchiveTable, TableState
from kaicep.connectors.kafka import KafkaSourceOptions
from kaicep.connectors.registry import read_options
from kaicep.connectors.sinks.delta import match_of_row, match_schema
from kaicep.connectors.sources.files import FileSourceOptions
from kaicep.deployment.config import Config, SinkConfig, StreamConfig
from kaicep.deployment.registered import SUFFIXES, absolute, check_name, readers_of, upstream
from kaicep.deployment.running import STEPS, Ending, Listener, engine_status, locked
from kaicep.deployment.sinks import BACKLOG, NoSink, Outlet
from kaicep.deployment.streams import Feed
from kaicep.errors import Diagnostic, KaicepError, Mistake
from kaicep.history.strategies import history_of
from kaicep.hosts.queries import asks_the_knowledge
from kaicep.knowledge.annotation import prefixes_of
from kaicep.optimize import RULES, STEADY
from kaicep.plan.sparql import EpQuery
from kaicep.plan.time import format_time
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.disk import make_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SMALL", "Done", "UnitGroup", "MatchStep", "QueryUnit", "grouped", "match_step", "SparkDeployment"]

# ----------------------------------------------------------------------------------------------------------
# One step of matching on Spark: new rows of the archive in, files of matches and of states out.
#
# All queries go through one job. Each event is sent to the buckets whose queries may use it, a bucket has
# one engine for all queries with its key, and what has no key is a bucket of its own. A task writes the
# matches of its buckets, and what their engines keep, into files, and reports their names: nothing counts
# before the driver commits them together with the cut up to which they answer. A task may run twice,
# anywhere.
#
# Which events are late, and how far time has come, stands in the archive; so there is no clock here.

SMALL = 20_000
"""So many rows are matched in the driver: a round of workers costs more than they do."""

_MOST_LIVE = 256
_EVENT, _CLOCK = 0, 1


@dataclass(frozen=True)
class QueryUnit:
    """Queries that are resolved together: those reported, and all whose output they read, as registered."""

    query: Query
    part: Part
    names: tuple[str, ...]
    registered: tuple[Registered, ...]


@dataclass(frozen=True)
class UnitGroup:
    """Units with the same key, which one engine a bucket runs, and whose matches are reported.

    `states` has by bucket the file of what its engine keeps; one that has seen nothing has none.
    """

    id: str
    units: tuple[QueryUnit, ...]
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
class MatchStep:
    """What is matched at a time: the new rows of a snapshot, and how far time has come for each group.

    `ended` are the groups for which nothing comes any more. With `past`, late events count too.
    """

    groups: Sequence[UnitGroup]
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


def grouped(units: Sequence[QueryUnit], buckets: int) -> list[UnitGroup]:
    """Units put together by their key; those of several queries have an engine of their own."""
    found: dict[Any, list[QueryUnit]] = {}
    for number, unit in enumerate(units):
        alone = len(unit.part.queries) > 1 or bool(unit.query.program.ep_plans)
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
class _TaskWork:
    """What every task of a step needs to know, besides the rows."""

    targets: Sequence[Sent[_Target]]
    places: Sequence[tuple[int, int]]  # of each number in `_target`: the target, and its bucket
    states: Sequence[Path | None]
    watermarks: Sequence[int | None]
    ended: Sequence[bool]
    matches: Path
    folder: Path


def match_step(
    spark: SparkSession, step: MatchStep, number: int, matches: Path, folder: Path, sending: dict[str, Any]
) -> list[Done]:
    """Matches new rows, on workers or, where they are few, here; what became of every bucket.

    `sending` keeps what was packed for the way, by group, from one step to the next.
    """
    from kaicep.hosts.spark.layout import Layout, layouts_of
    from kaicep.hosts.spark.session import describe, told

    parts = [part for group in step.groups for part in group.parts]
    catalog = replace(
        step.groups[0].query.catalog,
        streams={name: each for group in step.groups for name, each in group.query.catalog.streams.items()},
    )
    layouts, whole = layouts_of(parts, catalog)
    own = iter(layouts)
    targets: list[tuple[UnitGroup, Layout]] = []
    for group in step.groups:
        some = [next(own) for _ in group.parts]
        attributes = tuple(
            tuple(dict.fromkeys(each for one in some for each in one.attributes[place]))
            for place in range(len(whole.streams))
        )
        targets.append((group, Layout(whole.streams, whole.columns, attributes, whole.rdf)))
    places = [(place, bucket) for place, (group, _) in enumerate(targets) for bucket in range(group.buckets)]
    work = _TaskWork(
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


def _state_of(group: UnitGroup, bucket: int, folder: Path) -> Path | None:
    name = group.states.get(bucket)
    return None if name is None else folder / name


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

    from kaicep.hosts.spark.job import unpack

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


def _bucket(work: _TaskWork, number: int, rows: pyarrow.Table | None) -> dict[str, Any]:
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


# ----------------------------------------------------------------------------------------------------------
# A deployment on Spark: sources -> archive -> matches table -> sinks, each arrow by a commit.
#
# *Ingest* are jobs whose tasks write the files of the archive. *Match* are jobs over what the archive got
# since the last one, for all queries at once; their commit to the table of matches carries how far they
# answer, the queries, and the files of what their engines keep. So a driver that is lost goes on from that
# commit, and what it had begun beyond it never was. *Sinks* read the table of matches. The driver controls,
# and commits.
#
# What registers a query is a commit too: its past are the versions of the archive before, its present those
# after it. Sources that send to this process (MQTT, HTTP) are archived by it.

_log = logging.getLogger("kaicep.run")

_MATCHES, _STATES = "matches", "states"
_SHOWN = {"spark.ui.enabled": "true", "spark.log.level": "WARN"}
"""What is seen of Spark while a deployment runs, unless the file says otherwise; a command is quieter."""
_SHOW_EVERY = 0.25
_DRAIN = 30.0


@dataclass
class _StreamIngest:
    """A stream on its way into the archive, by Spark or, where it comes to this process, by this process."""

    config: StreamConfig
    origin: Path | KafkaSourceOptions | None
    follow: bool
    feed: Feed | None = None
    ended: bool = False
    rows: int = 0
    late: int = 0
    dead: int = 0
    trouble: str | None = None
    heard: dict[int, tuple[int, float]] = field(default_factory=dict)

    def silent(self, part: int, position: int) -> bool:
        """Whether nothing has come of a part for so long that it holds nobody back."""
        now = time.monotonic()
        known = self.heard.get(part)
        if known is None or known[0] != position:
            self.heard[part] = (position, now)
            return False
        return now - known[1] > self.config.idle / 1_000_000


class SparkDeployment:
    """What `kaicep.toml` describes, on Spark. `run` works until it is stopped, or all sources ended."""

    def __init__(self, config: Config, now: int | None = None) -> None:
        self.config = config
        self.started = time.time()
        self.ticked = time.monotonic()
        self.archive = Archive(config.archive.absolute())
        self.listeners: list[Listener] = []
        self.endings: list[Ending] = []
        self.published: dict[str, Any] = {}
        """The status of a moment ago, for other threads."""
        self._took: deque[float] = deque(maxlen=STEPS)
        self.problems: dict[str, str] = {}
        self.told: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self._now = now
        self._stopping = threading.Event()
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._lock = locked(config.state)
        for folder in (config.state / "marks", config.changes):
            folder.mkdir(exist_ok=True)
        kept = config.checkpoint.absolute()
        self._states = kept / _STATES
        make_folder(self._states)
        self.knowledge = config.open_knowledge()
        self._prefixes = prefixes_of(config.annotations)
        self.sources = {name: self._source(each) for name, each in config.streams.items()}
        wanted = config.sinks or {"none": SinkConfig("none", {})}
        self.outlets = {
            name: Outlet(each, config.state / "marks", None if config.sinks else NoSink())
            for name, each in wanted.items()
        }
        matches = kept / _MATCHES
        ArchiveTable.create(matches, _MATCHES, match_schema())
        self.matches = ArchiveTable(matches, _MATCHES)
        progress = self.matches.state.progress or {}
        self.number: int = progress.get("number", 0)
        self.queries = {each["name"]: Registered(**each) for each in progress.get("queries", ())}
        self._outside: dict[str, Registered] = {n: q for n, q in self.queries.items() if q.outside}
        self._held = Snapshot({}, _cut(progress.get("cut", {})))
        self._since = {name: _cut(each) for name, each in progress.get("since", {}).items()}
        self._saved: list[Mapping[str, Any]] = progress.get("groups", [])
        self.told.update(progress.get("told", {}))
        self.last.update(progress.get("last", {}))
        self.groups: list[UnitGroup] = []
        self._sending: dict[str, Any] = {}
        self._ingest_failed: BaseException | None = None
        self._ended: frozenset[str] = frozenset()
        self._closed: set[str] = set()
        self._shown = 0.0
        self._moment = 0
        self.spark: SparkSession | None = None

    def _source(self, config: StreamConfig) -> _StreamIngest:
        options = {name: value for name, value in config.source.items() if name != "kind"}
        where = f"stream {config.name}"
        if config.source["kind"] == "files":
            files = read_options(FileSourceOptions, options, where)
            return _StreamIngest(config, files.path.absolute(), files.follow)
        if config.source["kind"] == "kafka":
            topic = read_options(KafkaSourceOptions, options, where)
            return _StreamIngest(config, topic, topic.follow)
        feed = Feed(config, self.archive)
        return _StreamIngest(config, None, not feed.finite, feed)

    @property
    def catalogue(self) -> SparkDeployment:
        """Who has the texts of the queries, for those who ask a deployment for its catalogue."""
        return self

    def text(self, name: str) -> Registered | None:
        """A registered query."""
        return self.queries.get(name)

    # --- beginning and end ---

    def run(self, seconds: float | None = None) -> None:
        """Runs until all sources have ended and all is answered, `stop` is called, or the time is over."""
        deadline = time.monotonic() + seconds if seconds is not None else math.inf
        ingesting = threading.Thread(target=self._ingest, name="kaicep-ingest", daemon=True)
        try:
            self.open()
            ingesting.start()
            while not self._stopping.is_set() and time.monotonic() < deadline:
                begun = time.monotonic()
                busy = self.tick()
                if self.is_over:
                    _log.info("all sources have ended")
                    break
                if not busy:
                    self._rest(begun + self.config.engine.trigger / 1_000_000 - time.monotonic())
        finally:
            self._stopping.set()
            if ingesting.ident is not None:
                ingesting.join()
            self.close()

    def stop(self) -> None:
        """Lets `run` come to an end: what is committed by then is what counts. May be called by anybody."""
        self._stopping.set()
        self._commands.put((lambda: None, Future()))

    def open(self) -> None:
        """Starts the session, sends this package to its executors, and goes on where everything stood."""
        from kaicep.hosts.spark.session import configured, is_connect, own_session, use_cluster
        from kaicep.spark import ship

        self.published = self.status()
        cluster = self.config.engine.cluster
        use_cluster(replace(cluster, conf={**_SHOWN, **cluster.conf}))
        self.spark = own_session()
        url, said_by = configured()
        if is_connect(self.spark) or not url.startswith("local"):
            (self.config.state / "ship").mkdir(exist_ok=True)
            ship(self.spark, (self.config.state / "ship").absolute())
        for outlet in self.outlets.values():
            outlet.open()
        for each in self.sources.values():
            if each.feed is not None:
                each.feed.open()
        self._restore()
        self._look_at_queries()
        self.published = self.status()
        counts = len(self.sources), len(self.queries)
        _log.info(
            "%s runs on Spark, %s (%s): %d streams, %d queries", self.config.name, url, said_by, *counts
        )
        if not is_connect(self.spark) and self.spark.sparkContext.uiWebUrl:
            _log.info("Spark's own pages: %s", self.spark.sparkContext.uiWebUrl)

    @property
    def is_over(self) -> bool:
        """Whether all sources have ended, and everything is answered and delivered."""
        answered = all(each.id in self._closed for each in self.groups)
        return len(self._ended) == len(self.sources) and answered

    def close(self) -> None:
        """Waits until the sinks have everything, and lets others have the state folder."""
        for outlet in self.outlets.values():
            outlet.close(_DRAIN)
        behind = [name for name, each in self.outlets.items() if each.settled < self._moment]
        for source in self.sources.values():
            if source.feed is not None:
                source.feed.close()
        for name in self.queries:
            _log.info("%s: stopped, %d matches", name, self.told[name])
        self._lock.close()
        if behind:
            _log.warning("sink %s did not take everything: it gets the rest next time", behind[0])

    def ask(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Has something done by the deployment's own thread, between two steps; for other threads."""
        answer: Future[Any] = Future()
        self._commands.put((what, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise Failure("the deployment is busy: try again") from None

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping.is_set():
            try:
                self._do(*self._commands.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                return

    def _do(self, what: Callable[[], Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(what())
        except BaseException as error:
            answer.set_exception(error)

    # --- ingest: a thread of its own ---

    def _ingest(self) -> None:
        """Takes in what the sources have, by jobs of Spark's, until there is no more or this is stopped."""
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                behind = any(each.backlog > BACKLOG for each in self.outlets.values())
                for source in () if behind else self.sources.values():
                    if not (source.ended or self._stopping.is_set()):
                        self._take(source)
                left = begun + self.config.engine.trigger / 1_000_000 - time.monotonic()
                if all(each.ended for each in self.sources.values()) or self._stopping.wait(max(0.0, left)):
                    return
        except BaseException as error:  # raised again, in the deployment's own thread
            self._ingest_failed = error

    def _take(self, source: _StreamIngest) -> None:
        from kaicep.ingest.on_spark import ingest

        if source.feed is not None:
            source.feed.take(0.0, lambda event: False)
            source.ended, counts = source.feed.ended, source.feed.counts
            source.rows, source.late, source.dead = counts.events, counts.late, counts.dead
            return
        assert source.origin is not None
        assert self.spark is not None

        def trouble(said: str) -> None:
            source.trouble = said

        form, lateness = source.config.form, source.config.lateness
        done = ingest(
            self.spark, self.archive, form, source.origin, lateness, waiting=trouble, growing=source.follow
        )
        source.rows += done.rows
        source.late += done.late
        source.dead += len(done.dead)
        source.ended = not source.follow

    # --- match ---

    def tick(self) -> bool:
        """Answers what the archive has got, and hands on what is certain; whether there was anything."""
        self.ticked = time.monotonic()
        if self._ingest_failed is not None:
            raise self._ingest_failed
        while not self._commands.empty():
            self._do(*self._commands.get())
        self._look_at_knowledge()
        self._ended = frozenset(
            name for name, each in self.sources.items() if each.ended
        )  # before the archive
        self._look_at_queries()
        busy = self._match()
        self._deliver()
        if busy:
            self._took.append(time.monotonic() - self.ticked)
        if time.monotonic() - self._shown > _SHOW_EVERY:
            self.published, self._shown = self.status(), time.monotonic()
        return busy

    def _match(self) -> bool:
        """One step for all groups, where anything is new for one of them."""
        now = self.archive.snapshot()
        watermarks = {each.id: self._watermark(each, now) for each in self.groups}
        ended = frozenset(each.id for each in self.groups if self._ended.issuperset(each.streams))
        new = now.cut != self._held.cut
        moved = any(watermarks[each.id] != each.watermark for each in self.groups)
        if not (new or moved or ended - self._closed):
            return False
        live = [each for each in self.groups if each.id not in self._closed]
        if live:
            rows = Snapshot(now.tables, None, self._held)
            self.groups = self._stepped(MatchStep(live, rows, watermarks, ended), now)
        self._held = Snapshot(now.tables)
        self._closed |= ended
        return True

    def _stepped(self, step: MatchStep, now: Snapshot) -> list[UnitGroup]:
        """Does a step and commits it: matches, states and cut in one; the groups as they are after it."""
        assert self.spark is not None
        done = match_step(self.spark, step, self.number + 1, self.matches.folder, self._states, self._sending)
        by_group: dict[str, list[Done]] = {}
        for each in done:
            by_group.setdefault(each.group, []).append(each)
            self.told.update(each.counts)
            for name, end in each.last.items():
                self.last[name] = max(end, self.last.get(name, end))
        before = {name for each in self.groups for name in each.states.values()}
        stepped = {each.id: each for each in self._after(step, by_group)}
        groups = [stepped.pop(each.id, each) for each in self.groups] + list(stepped.values())
        files = [measured(self.matches.folder, each.path) for each in done if each.path is not None]
        self._commit(groups, now.cut, files)
        for name in before - {name for each in groups for name in each.states.values()}:
            (self._states / name).unlink(missing_ok=True)
        return groups

    def _after(self, step: MatchStep, done: Mapping[str, Sequence[Done]]) -> Iterator[UnitGroup]:
        for group in step.groups:
            states = {each.bucket: each.state for each in done.get(group.id, ())}
            yield replace(group, states=states, watermark=step.watermarks.get(group.id))

    def _commit(self, groups: Sequence[UnitGroup], cut: Cut, files: Sequence[DataFile] = ()) -> None:
        """Makes a version of the table of matches: what is new in it, and from where to go on."""
        self.number += 1
        progress = {
            "number": self.number,
            "cut": json.loads(cut.text()),
            "queries": [asdict(each) for each in self.queries.values()],
            "groups": [self._written(each) for each in groups],
            "since": {name: json.loads(cut.text()) for name, cut in self._since.items()},
            "told": dict(self.told),
            "last": self.last,
        }
        self.matches.commit(TableState(progress=progress), files)

    def _written(self, group: UnitGroup) -> dict[str, Any]:
        queries = {each.name: each for unit in group.units for each in unit.registered}
        return {
            "id": group.id,
            "units": [unit.names for unit in group.units],
            "queries": [asdict(each) for each in queries.values()],
            "reported": group.reported,
            "buckets": group.buckets,
            "states": group.states,
            "watermark": group.watermark,
        }

    def _watermark(self, group: UnitGroup, now: Snapshot) -> int | None:
        """How far time has come for a group: the least of its parts, those left out that are silent."""
        active: list[float] = []
        silent: list[float] = []
        for name in group.streams:
            source, table = self.sources.get(name), now.tables.get(name)
            if table is None:
                return group.watermark
            lateness = 0 if source is None else source.config.lateness
            if lateness is None:
                return group.watermark  # only the end settles anything
            for part, position in table.positions.items():
                reached = table.newest.get(part, -math.inf) - lateness
                over = source is None or source.ended or source.silent(part, position)
                (silent if over else active).append(reached)
        found = min(active) if active else max(silent, default=-math.inf)
        if found == -math.inf:
            return group.watermark
        return int(found) if group.watermark is None else max(int(found), group.watermark)

    # --- deliver ---

    def _deliver(self) -> None:
        """Gives every sink what the table of matches has got since it committed last."""
        committed = {name: self._delivered(each) for name, each in self.outlets.items()}
        if all(number >= self.number for number in committed.values()):
            return
        least = min(committed.values())
        files = sorted(each.path for each in self.matches.files() if int(each.path[:12]) > least)
        self._moment += 1
        fresh: list[Match] = []
        found: dict[int, list[Match]] = {}
        for path in files:
            found.setdefault(int(path[:12]), []).extend(_read(self.matches.folder / path))
        for number in sorted(found):
            some = sorted(found[number], key=by_end)
            found[number] = some
            fresh += some
        for name, outlet in self.outlets.items():
            wanted = [
                match
                for number, some in sorted(found.items())
                if number > committed[name]
                for match in some
                if outlet.config.takes(match.query, match.query in self._outside)
            ]
            outlet.send(wanted, {_MATCHES: {"number": self.number}}, self._moment)
        for listen in self.listeners if fresh else ():
            listen([(match.query, match) for match in fresh])

    @staticmethod
    def _delivered(outlet: Outlet) -> int:
        number: int = outlet.entries.get(_MATCHES, {}).get("number", 0)
        return number

    # --- queries and knowledge ---

    def register(self, name: str, language: str, text: str) -> None:
        """Takes a query in from outside: back in time if it says so, then on with what comes."""
        check_name(name, self.config.streams)
        known = self.queries.get(name)
        if known is not None and not known.outside:
            hint = f"edit its file in {self.config.queries}, or use another name"
            raise Mistake(Diagnostic(f"{name} is a query of the deployment itself", hint=hint))
        made = Registered(name, SUFFIXES[language], text, None, outside=True)
        made.parse(self._prefixes)
        self._outside[name] = made
        self._look_at_queries()
        self.published = self.status()

    def unregister(self, name: str) -> None:
        """Removes a query that came in from outside."""
        known = self.queries.get(name)
        if known is None:
            raise Mistake(Diagnostic(f"no query is called {name}"))
        if not known.outside:
            hint = f"remove its file from {self.config.queries}"
            raise Mistake(Diagnostic(f"{name} is a query of the deployment itself", hint=hint))
        parsed = {each.name: each.parse(self._prefixes) for each in self.queries.values()}
        readers = readers_of(name, parsed, self._classed)
        if readers:
            raise Mistake(Diagnostic(f"{name} is read by {', '.join(readers)}", hint="remove those first"))
        del self._outside[name]
        self._look_at_queries()
        self.published = self.status()

    @property
    def _classed(self) -> list[str]:
        asked = self.config.asked.items()
        return [name for name, each in asked if each.annotation and each.annotation.event_class]

    def _look_at_knowledge(self) -> None:
        change = self.knowledge.poll()
        if isinstance(change, Mistake):
            _log.warning("the knowledge stays unchanged: %s", change)
        elif change is not None:
            files = ", ".join(self.knowledge.news)
            _log.info("the knowledge has changed: version %d, since %s", change.version, files)

    def _files(self) -> Iterator[Registered]:
        """The queries of the folder; one that is missing says nothing."""
        if not self.config.queries.is_dir():
            yield from (each for each in self.queries.values() if not each.outside)
            return
        for path in sorted(self.config.queries.glob("*")):
            if path.suffix in SUFFIXES.values() and not path.name.startswith("."):
                yield Registered(path.stem, path.suffix, path.read_text("utf-8"), None)

    def _look_at_queries(self) -> None:
        """Takes note of what is new, changed or gone; begins what can begin, and ends what is gone."""
        wanted = {each.name: each for each in (*self._files(), *self._outside.values())}
        texts = {name: (each.suffix, each.text) for name, each in wanted.items()}
        known = {name: (each.suffix, each.text) for name, each in self.queries.items()}
        gone = {name for name in known if known[name] != texts.get(name)}
        new = {name for name in texts if texts[name] != known.get(name)}
        if any(
            name.endswith(".epsparql")
            for name in _files_of((*wanted.values(), *self.queries.values()), gone | new)
        ):
            # What one EP-SPARQL query constructs all of them read: they begin together.
            triples = {name for name, (suffix, _) in texts.items() if suffix == ".epsparql"}
            gone, new = gone | (triples & known.keys()), new | triples
        for name in gone:
            _log.info("%s: %s", name, "changed, and starts again" if name in new else "removed")
            del self.queries[name]
            self.problems.pop(name, None)
        for name in sorted(new):
            self._note(wanted[name])
        self.groups = [kept for each in self.groups if (kept := _without(each, frozenset(gone)))]
        begun = self._begin()
        if (gone or new) and not begun:
            self._commit(self.groups, self._held.cut)

    def _note(self, query: Registered) -> None:
        """Registers a query: what `now` is in it, and for EP-SPARQL from which positions on it counts."""
        tables = self._held.tables or self.archive.snapshot().tables
        newest = [ts for table in tables.values() for ts in table.newest.values()]
        moment = self._now if self._now is not None else max(newest, default=None)
        try:
            query.parse(self._prefixes)
            check_name(query.name, self.config.streams)
        except Mistake as mistake:
            self._complain((query.name,), mistake)
        self.queries[query.name] = replace(query, now=moment)
        if query.suffix == ".epsparql":
            self._since[query.name] = self._held.cut
        _log.info("%s: registered", query.name)

    def _begin(self) -> bool:
        """Lets registered queries without a group work through the past, if their streams are known."""
        running = {name for each in self.groups for name in each.reported}
        waiting = [name for name in self.queries if name not in running]
        if not waiting:
            return False
        if not self._held.tables:
            cut = self._held.cut
            self._held = self.archive.snapshot(cut=cut) if cut.positions else self.archive.snapshot()
        triples = tuple(name for name in waiting if self.queries[name].suffix == ".epsparql")
        units: dict[bool, list[QueryUnit]] = {}
        for names in (*([triples] if triples else []), *((each,) for each in waiting if each not in triples)):
            try:
                unit = self._resolved(names, self.queries)
            except KaicepError as error:
                self._complain(names, error)
            else:
                units.setdefault(names == triples, []).append(unit)
        for of_triples, some in units.items():
            began = grouped(some, self.config.engine.buckets)
            since = Snapshot({}, self._since[triples[0]]) if of_triples else None
            rows = Snapshot(self._held.tables, None, since)
            watermarks = {each.id: self._watermark(each, self._held) for each in began}
            self.groups = self._stepped(MatchStep(began, rows, watermarks, past=True), self._held)
            for name in (name for each in began for name in each.reported):
                self.problems.pop(name, None)
                _log.info("%s: up to date, %d matches", name, self.told[name])
        return bool(units)

    def _complain(self, names: Sequence[str], error: KaicepError) -> None:
        for name in names:
            if self.problems.get(name) != str(error):
                waits = str(error).startswith("waiting")
                _log.log(logging.INFO if waits else logging.WARNING, "%s: %s", name, error)
                self.problems[name] = str(error)

    def _resolved(self, names: tuple[str, ...], every: Mapping[str, Registered]) -> QueryUnit:
        """Queries with all whose output they need, resolved, and how they are spread."""
        from kaicep.hosts.spark.physical import physical

        parsed: dict[str, Any] = {}
        for name, each in every.items():
            with suppress(Mistake):
                parsed[name] = each.parse(self._prefixes)
        for name in names:
            every[name].parse(self._prefixes)
        needed = [each for name in names for each in upstream(name, parsed, self._classed)]
        finite = not any(each.follow for each in self.sources.values())
        used = tuple(every[name] for name in dict.fromkeys(needed))
        own = [absolute(parsed[each.name], each.now, finite) for each in used]
        missing = [name for name in self.config.streams if name not in self.archive.streams()]
        if missing and any(isinstance(each, EpQuery) or _mentions(each, missing) for each in own):
            raise Failure(f"waiting for the first records of {', '.join(missing)}")
        history = history_of(own, self.archive, self.knowledge.knowledge, self.config.annotations, 0)
        steady = history.program.ep_plans or any(map(asks_the_knowledge, history.program.chi_plans))
        parts = physical(history, STEADY if steady else RULES)
        if len(parts) > 1:
            raise Failure(f"{', '.join(names)}: its queries do not go together")
        return QueryUnit(history, parts[0], names, used)

    def _restore(self) -> None:
        """The groups of the last commit, with their states."""
        for saved in self._saved:
            every = {each["name"]: Registered(**each) for each in saved["queries"]}
            units = [self._resolved(tuple(names), every) for names in saved["units"]]
            (group,) = grouped(units, saved["buckets"])
            states = {int(bucket): name for bucket, name in saved["states"].items()}
            reported = tuple(saved["reported"])
            rest = {"states": states, "reported": reported, "watermark": saved["watermark"]}
            self.groups.append(replace(group, id=saved["id"], **rest))

    # --- figures ---

    def status(self) -> dict[str, Any]:
        """How everything is going."""
        files = self.matches.files()
        return {
            "name": self.config.name,
            "since": format_time(int(self.started * 1_000_000)),
            "engine": engine_status("spark", list(self._took)),
            "streams": {name: self._of_source(name, each) for name, each in self.sources.items()},
            "trouble": None,
            "queries": self._of_queries(),
            "sinks": {
                name: each.status(self._moment) for name, each in self.outlets.items() if self.config.sinks
            },
            "archive": {
                "folder": str(self.config.archive),
                "events": sum(each.rows for each in self.sources.values()),
                "files": len(files),
                "bytes": sum(each.size for each in files),
            },
            "knowledge": {
                "statements": len(self.knowledge.knowledge),
                "version": self.knowledge.knowledge.version,
                "trouble": self.knowledge.trouble,
            },
        }

    def _of_source(self, name: str, source: _StreamIngest) -> dict[str, Any]:
        table = self._held.tables.get(name)
        newest = max(table.newest.values(), default=None) if table is not None else None
        return {
            "positions": {str(part): at for part, at in table.positions.items()} if table is not None else {},
            "newest": format_time(newest) if newest is not None else None,
            "watermark": None,
            "lag": round(time.time() - newest / 1_000_000, 3) if newest is not None else None,
            "events": source.rows,
            "late": source.late,
            "dead": source.dead,
            "lost": [],
            "idle": [],
            "ended": source.ended,
            "trouble": source.trouble,
        }

    def _of_queries(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        group_of = {name: each for each in self.groups for name in each.reported}
        for name in sorted({*self.queries, *self.problems}):
            known, group = self.queries.get(name), group_of.get(name)
            row: dict[str, Any] = {"state": "wrong", "outside": known is not None and known.outside}
            if name in self.problems:
                waits = self.problems[name].startswith("waiting")
                row |= {"state": "waiting" if waits else "wrong", "problem": self.problems[name]}
            if group is not None:
                time_of = format_time(group.watermark) if group.watermark is not None else None
                row |= {
                    "state": "complete" if group.id in self._closed else "live",
                    "plan": f"{group.buckets} buckets",
                    "matches": self.told[name],
                    "last": format_time(self.last[name]) if name in self.last else None,
                    "held": None,
                    "watermark": time_of,
                    "from": None,
                    "until": None,
                }
            found[name] = row
        return found


def _files_of(queries: Sequence[Registered], names: Collection[str]) -> set[str]:
    return {f"{each.name}{each.suffix}" for each in queries if each.name in names}


def _mentions(query: Any, streams: Sequence[str]) -> bool:
    sources = [source for clause in query.froms for source in clause.sources]
    return not query.froms or any(not isinstance(each, str) or each in streams for each in sources)


def _without(group: UnitGroup, names: frozenset[str]) -> UnitGroup | None:
    """A group that reports these queries no more; None where it has no others."""
    kept = tuple(name for name in group.reported if name not in names)
    return replace(group, reported=kept) if kept else None


def _cut(read: Mapping[str, Any]) -> Cut:
    return Cut.parse(json.dumps(read))


def _read(path: Path) -> list[Match]:
    return [match_of_row(row) for row in parquet_dataset([path]).to_table().to_pylist()]
