"""Complex event processing in Spark: DataFrames of events in, a DataFrame of matches out.

>>> import kaicep as kai
>>> query = kai.compile("SELECT ?e.x FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
>>> print(kai.spark.explain(query))
query: each event where it is, since no match has more than one event
  a stream: in the driver up to 500,000 events/s, on workers by bucket above that

`match` is the same call for a table and for a stream.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.errors import Failure, Mistake, a_kind_of, did_you_mean
from kaicep.plan.time import parse_duration
from kaicep.query import Query, require_query
from kaicep.storage.places import local_path, place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kaicep.connectors.shape import Form
    from kaicep.hosts.spark.layout import Layout
    from kaicep.hosts.spark.stream import Streamed
    from kaicep.hosts.spark.watch import Watch
    from kaicep.knowledge.store import Knowledge
    from kaicep.plan.events import Event, Match

__all__ = [
    "archive",
    "deliver",
    "events",
    "explain",
    "ingest",
    "kafka",
    "late",
    "match",
    "numbered",
    "publish",
    "register",
    "ship",
    "watch",
]


def match(
    events: DataFrame | Mapping[str, DataFrame],
    query: Query,
    *,
    lateness: str | int | None = None,
    buckets: int | None = None,
    parts: Mapping[str, Sequence[int]] | None = None,
    idle: str | None = None,
    refresh: str | Path | None = None,
    streaming: bool | None = None,
) -> DataFrame:
    """The matches of a query over events: a DataFrame, which is streaming if the events are.

    `events` is one DataFrame, or one for each stream by name. It has the attributes of the stream, its time,
    `seq` and, if there are several source partitions, `part`. `lateness` is how far an event may be behind
    the newest one of its source partition (a text such as "5min", or microseconds); a stream needs it.
    `buckets` is the number of groups over which the events of a query are spread. `parts` are the source
    partitions to wait for before time moves on (part 0, if you do not say). If a source partition of a stream
    has been silent for `idle` ("30s") by the wall clock, the others no longer wait for it.

    A stream of triples, for EP-SPARQL, has `start` and `end` (without an end, they hold for an instant), and
    N-Triples: a line in `triple`, a list of lines in `triples`, or terms in `subject`, `predicate`, `object`.

    The columns are `query`, `id`, `start`, `end`, `select` (a struct of the selected columns), `events`
    (JSON) and `match`: the line that `kaicep match` prints. A stream also has `bucket` and `watermark`: a
    bucket has no later match that ends before its watermark.

    Say whether the events are `streaming` where Spark cannot be asked what they are, as in the functions of
    Declarative Pipelines. Columns then have the types that the query was compiled for, times are timestamps,
    and both `part` and `seq` are there. This is for records, not for triples.

    A stream keeps the knowledge that it starts with, unless `refresh` names a folder that all workers can
    reach, such as the stream's checkpoint, and that no other stream uses. It then takes up what `publish`
    puts there, with the next micro-batch.
    """
    from kaicep.hosts.spark.batch import BUCKETS, match_batch
    from kaicep.hosts.spark.output import presented
    from kaicep.hosts.spark.session import share_python
    from kaicep.hosts.spark.source import counted_once
    from kaicep.hosts.spark.stream import BUCKETS as STREAM_BUCKETS
    from kaicep.hosts.spark.stream import Published, match_stream

    given = _by_stream(events, query)
    share_python(next(iter(given.values())).sparkSession)
    allowed = _duration(lateness)
    asked = streaming is None
    if not (_is_endless(given) if asked else streaming):
        frames = _frames(given, query, allowed, asked)
        return match_batch(frames, query, buckets or BUCKETS, counted_once)
    streamed = _streamed(query, allowed, parts, idle, refresh)
    if streamed.published is not None:
        Published(streamed.published).begin(query.knowledge)
    found = match_stream([(streamed, _frames(given, query, None, asked))], buckets or STREAM_BUCKETS)
    return presented(found, query.program, "bucket", "watermark")


def deliver(
    events: DataFrame | Mapping[str, DataFrame],
    query: Query,
    sink: Callable[[int, list[Match]], None],
    *,
    lateness: str | int,
    checkpoint: str | Path,
    parts: Mapping[str, Sequence[int]] | None = None,
    idle: str | None = None,
    engine: str = "auto",
    rate: float | None = None,
    refresh: bool = True,
    **trigger: Any,
) -> StreamingQuery:
    """Starts a stream whose matches go to a function, and returns Spark's handle on it.

    Spark reads, filters and joins the events on its workers. The rest is matched in this process, on one
    core and without a state store, as long as that is enough; otherwise by engines on the workers. `rate` is
    the number of events in a second that you expect. With `engine` ("driver", "workers") you choose yourself.

    `sink` is called with the number of each micro-batch and its matches (`kaicep.Match`), in the order of
    their end and id. After a restart it may get the last number again, with the same matches. `trigger` is as
    in Spark: `processingTime="1 second"`, `availableNow=True`. The other options are those of `match`.

    An update of the query's knowledge takes effect with the next micro-batch, without a restart, and a stream
    that is started again continues with it. For this, engines on workers need all events that pass FILTER and
    WITHIN. With `refresh=False` they keep the knowledge that they start with, and Spark applies PATHs too.
    """
    from kaicep.hosts.spark.deliver import deliver as started
    from kaicep.hosts.spark.physical import ENGINES, chosen_engine
    from kaicep.hosts.spark.session import is_connect

    given = _by_stream(events, query)
    if not _is_endless(given):
        raise Mistake("this DataFrame is not a stream", hint="use kaicep.spark.match for it")
    place = local_path(checkpoint, "the checkpoint")
    if engine not in ENGINES:
        raise Mistake(f"there is no engine {engine}", hint=did_you_mean(engine, ENGINES))
    streamed = _streamed(query, _duration(lateness), parts, idle, place if refresh else None)
    if is_connect(next(iter(given.values())).sparkSession):
        message = "over Spark Connect the function runs in the server: what it changes stays there"
        warnings.warn(message, stacklevel=2)
    if engine == "auto":
        engine = chosen_engine(streamed.divided, rate)
    return started(streamed, _frames(given, query), sink, place, trigger, engine)


def publish(query: Query, folder: str | Path) -> None:
    """Makes a running stream use the knowledge of a query, as it is now, from its next micro-batch on.

    `folder` is the folder that you gave to `match` as `refresh`. Streams of `deliver` need no call, except
    over Spark Connect, where their function is not in this process: there, `folder` is their `checkpoint`.
    """
    from kaicep.hosts.spark.stream import Published, folder_of

    Published(folder_of(local_path(folder, "the folder"))).publish(query.knowledge)


def late(events: DataFrame, query: Query, stream: str | None = None, *, lateness: str | int) -> DataFrame:
    """The events of a stream that are too late for `match`, unchanged: the late output.

    It is streaming if the events are. `stream` is the name of the stream, if the query reads several.
    """
    from kaicep.hosts.spark.session import share_python
    from kaicep.hosts.spark.source import late_rows

    share_python(events.sparkSession)
    names = _streams(query)
    if stream is None and len(names) > 1:
        raise Mistake(f"the queries read {', '.join(names)}", hint="say which: stream=...")
    wanted = stream or names[0]
    if wanted not in names:
        raise Mistake(f"no query reads {wanted}", hint=did_you_mean(wanted, names))
    return late_rows(events, query.catalog.streams[wanted], _duration(lateness) or 0)


def kafka(
    spark: SparkSession,
    servers: str,
    topic: str,
    *,
    streaming: bool = False,
    starting: Mapping[int, int] | None = None,
    ending: Mapping[int, int] | None = None,
    most: int | None = None,
    settings: Mapping[str, str | int | float | bool] | None = None,
    types: Mapping[str, str] | None = None,
    annotation: str | Path | None = None,
) -> DataFrame:
    """The records of a Kafka topic: `part` (the partition), `seq` (the offset), `key`, `value`.

    With `types` ({"flowrate": "float64"}), or an annotation that declares them, values are JSON objects, and
    the columns are the attributes and the time instead of `key` and `value`. This is much faster than
    `from_json`, and reads values as the archive does. A value that is no event has the reason in `dead`, and
    null everywhere else: `where("dead IS NULL")` leaves such rows out.

    It needs no jar. If Spark's own connector is on the class path, that one reads instead, with the same
    rows. `starting` and `ending` (excluded) are offsets by partition; without them it is everything there is.
    With `streaming` it continues from there, with at most `most` records in a micro-batch. `settings` are
    those of librdkafka. If offsets have expired, the job stops and names the lost range.
    """
    from kaicep.connectors.kafka import KafkaSourceOptions
    from kaicep.connectors.kafka_spark import kafka_frame, kafka_stream

    options = KafkaSourceOptions(servers, topic, settings=settings or {})
    form = None if types is None and annotation is None else _form(topic, types or {}, annotation)
    if streaming:
        return kafka_stream(spark, options, starting, most, form)
    return kafka_frame(spark, options, starting, ending, form=form)


def _form(stream: str, types: Mapping[str, str], annotation: str | Path | None) -> Form:
    """What is said of the values of a topic."""
    from kaicep.connectors.kafka_spark import check_form
    from kaicep.connectors.shape import Form
    from kaicep.knowledge.annotation import load_annotations
    from kaicep.plan.types import Type

    known = [str(each) for each in Type]
    for name, type in types.items():
        if type not in known:
            hint = did_you_mean(type, known) or ", ".join(known)
            raise Mistake(f"{name}: there is no type {type}", hint=hint)
    said = None
    if annotation is not None:
        every = load_annotations(Path(annotation))
        said = next((each for each in every if each.stream == stream), every[0])
    form = Form.of(stream, said, {name: Type(type) for name, type in types.items()})
    check_form(form)
    return form


def ingest(
    records: DataFrame,
    archive: str | Path,
    stream: str,
    *,
    topic: str,
    checkpoint: str | Path,
    annotations: Sequence[str | Path] = (),
    lateness: str | int | None = None,
    knowledge: Knowledge | None = None,
    materialise: Mapping[str, str] | None = None,
    **trigger: Any,
) -> StreamingQuery:
    """Starts a job that appends a stream of records to an archive, each once, and returns Spark's handle.

    `records` is the DataFrame that `kafka(..., streaming=True)` returns, with JSON objects in `value`, and
    `topic` names the topic. (A folder whose files come and grow is a stream of a deployment.) Records that
    cannot be read go to the archive's dead letters, and late ones are marked. What the archive already has
    does not come in again. A checkpoint of another archive is refused. `trigger` is as in Spark.

    `materialise` has columns to add, by name: each is a PATH from the event `?e` to a variable of that name
    (`{"room": "?e evt:hasSource/bd:hasLocation ?room"}`), which the knowledge answers.
    """
    from kaicep.archive.archive import Archive
    from kaicep.connectors.kafka import KafkaSourceOptions
    from kaicep.connectors.shape import Form
    from kaicep.hosts.spark.session import share_python
    from kaicep.ingest.on_spark import follow
    from kaicep.knowledge.annotation import load_annotations

    every = [each for path in annotations for each in load_annotations(Path(path))]
    said = next((each for each in every if each.stream == stream), None)
    form = Form.of(stream, said)
    # Absolute, since workers may have been started in another folder than this process is in by now.
    target = Archive(place_of(archive, "the archive").absolute())
    saved, allowed = local_path(checkpoint, "the checkpoint").absolute(), _duration(lateness)
    wanted: Materialise | None = None
    if materialise:
        from kaicep.ingest.materialise import Materialise

        if knowledge is None:
            raise Mistake("materialise: no knowledge is given", hint="knowledge=...")
        wanted = Materialise(materialise, knowledge, every)
    if not getattr(records, "isStreaming", False):
        hint = "kaicep.spark.kafka(..., streaming=True); a folder of files is a stream of a deployment"
        raise Mistake("the records are not a stream of Spark's", hint=hint)
    share_python(records.sparkSession)
    options = KafkaSourceOptions("", topic)
    return follow(records, target, form, options, saved, allowed, trigger, materialise=wanted)


def _is_endless(given: Mapping[str, DataFrame]) -> bool:
    endless = {each.isStreaming for each in given.values()}
    if len(endless) > 1:
        raise Mistake("some of the events are a stream and others are not", hint="make all of them one")
    return True in endless


def _streamed(
    query: Query,
    lateness: int | None,
    parts: Mapping[str, Sequence[int]] | None,
    idle: str | None,
    refresh: str | Path | None,
) -> Streamed:
    from kaicep.hosts.spark.stream import Streamed, folder_of, hangs_on_knowledge

    if lateness is None:
        raise Mistake(
            "a stream needs a lateness: how long to wait for an event", hint='such as lateness="1min"'
        )
    silence = _duration(idle)
    millis = None if silence is None else silence // 1_000
    folder = None
    if refresh is not None and hangs_on_knowledge(query.program):
        folder = folder_of(local_path(refresh, "refresh"))
    return Streamed(
        query.program,
        query.catalog,
        query.knowledge,
        lateness,
        parts or {},
        millis,
        published=folder,
    )


def _frames(
    given: Mapping[str, DataFrame], query: Query, lateness: int | None = None, asked: bool = True
) -> Callable[[Layout], dict[str, DataFrame]]:
    """The events as rows of a layout, without those that are late where a lateness is given."""
    from kaicep.hosts.spark.source import rows_of_frame, rows_of_triples, without_late

    def rows_of(name: str, layout: Layout) -> DataFrame:
        stream = query.catalog.streams[name]
        if stream.rdf:
            return rows_of_triples(given[name], stream, layout, partial(_triples_event, name))
        return rows_of_frame(given[name], stream, layout, asked)

    def frames(layout: Layout) -> dict[str, DataFrame]:
        rows = {name: rows_of(name, layout) for name in layout.streams}
        if lateness is None:
            return rows
        return {name: without_late(each, lateness) for name, each in rows.items()}

    return frames


def _triples_event(stream: str, part: int, seq: int, fields: Mapping[str, object]) -> Event:
    """The event of a row of triples; one that cannot be read stops the job."""
    from kaicep.connectors.records import Record
    from kaicep.connectors.shape import Form, Schema, Shaper

    events, dead = Shaper(Form(stream), Schema(rdf=True)).shape([Record(part, seq, seq, "", fields)])
    if dead:
        raise Failure(f"an event of {stream} (part {part}, seq {seq}) cannot be read: {dead[0].reason}")
    return events[0]


def register(
    spark: SparkSession,
    *,
    knowledge: Knowledge | None = None,
    annotations: Sequence[str | Path] = (),
) -> None:
    """Gives a session the table function `kaicep_match`, for queries in SQL.

    `SELECT * FROM kaicep_match(TABLE(events) PARTITION BY sensor, query => 'SELECT ...')` gives `id`,
    `start`, `end`, `select` and `match`, of one query of chi-CEP about one stream, whatever its name is
    there. The table has `seq`, and `part` if there are several, as for `match`. Each partition is matched by
    itself.
    """
    from pyspark.sql.functions import udtf

    from kaicep.hosts.spark.session import share_python
    from kaicep.knowledge.store import Knowledge
    from kaicep.spark_sql import NAME, table_function

    share_python(spark)
    read = [json.loads(Path(each).read_text("utf-8")) for each in annotations]
    function: Any = udtf(table_function(knowledge or Knowledge.empty(), read))
    spark.udtf.register(NAME, function)


def archive(spark: SparkSession, archive: str | Path, stream: str) -> DataFrame:
    """The events of a stream of an archive, as it is now, for `match` and whatever else reads tables.

    Beside the attributes it has `ts`, `part` and `seq`, and `late`, which says whether an event came late.
    """
    from kaicep.archive.archive import Archive
    from kaicep.archive.parquet import LATE, PART, SEQ
    from kaicep.history.hybrid import archived_frame
    from kaicep.plan.nodes import Interval

    rows = archived_frame(spark, Archive.open(archive).snapshot(), stream, Interval())
    return rows.withColumnsRenamed({PART: "part", SEQ: "seq", LATE: "late"})


def explain(query: Query) -> str:
    """How Spark would run the queries: how each is spread, and where the engine of a stream runs."""
    from kaicep.hosts.spark.physical import explained, physical, streamed

    require_query(query)
    parts = physical(query)
    return "\n".join(f"{explained(part)}\n  a stream: {streamed(part)}" for part in parts)


def events(rows: DataFrame, identity: str | Sequence[str]) -> DataFrame:
    """The rows with `part` and `seq`: where each stands in its source, which is what it is known by.

    `identity` is "kafka" for what Spark's own connector reads (`partition` and `offset` of one topic);
    "files" for a table that is read from files, where each is a part, by name, and its rows are counted;
    "delta" for the row ids of a Delta table that tracks rows, as delta-spark reads them; or the names of two
    columns, such as `("shard", "number")`, or of one, where there is one part.

    Positions are whole numbers from 0. Where one comes twice with the same content, the event counts once;
    with different content, the job stops.
    """
    from kaicep.hosts.spark.source import identified

    return identified(rows, identity)


def numbered(events: DataFrame, time: str = "ts") -> DataFrame:
    """The events with `part` 0 and `seq`, in the order of their time and then of all other columns.

    The numbers are the same each time. All events go through one task, so use it for small data: above
    100,000 rows it warns.
    """
    from kaicep.hosts.spark.source import numbered as with_numbers

    return with_numbers(events, time)


def ship(spark: SparkSession, folder: str | Path) -> Path:
    """Sends this package to the executors of a session, for clusters that do not have it installed.

    It writes a zip file into the folder and returns its path. The packages that kaicep needs (pyoxigraph,
    pyarrow, numpy, numba, pandas) must be installed on the executors.

    The compiled kernel is sent too, in a zip file of its own. It is compiled here once, or taken from the
    cache of this machine. Executors with the same processor and the same Numba load it.
    """
    from kaicep.hosts.spark.job import pack
    from kaicep.kernel.warm import warm

    package = Path(__file__).parent
    target = Path(folder) / "kaicep.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path("kaicep") / file.relative_to(package))
    spark.addArtifacts(str(target), pyfile=True)
    warm()
    spark.addArtifacts(str(pack(Path(folder))), pyfile=True)
    return target


def watch(spark: SparkSession) -> Watch:
    """Follows the streams of a session from now on: what they read, how long it takes, how many matches.

    `print` the result to see it, in a notebook too; `status()` has the same figures. Over Spark Connect the
    matches of `deliver` are not in it, since its function runs in the server.
    """
    from kaicep.hosts.spark.watch import Watch

    made = Watch()
    spark.streams.addListener(made)
    return made


def _by_stream(events: DataFrame | Mapping[str, DataFrame], query: Query) -> dict[str, DataFrame]:
    """The events of each stream that the queries read."""
    _check(events, query)
    needed = _streams(query)
    if not isinstance(events, Mapping):
        if len(needed) != 1:
            raise Mistake(
                f"the queries read {', '.join(needed)}, and one DataFrame is given",
                hint="give one for each stream by name: {" + f'"{needed[0]}": events, ...' + "}",
            )
        return {needed[0]: events}
    for name in needed:
        if name not in events:
            raise Mistake(f"there are no events for {name}", hint=did_you_mean(name, tuple(events)) or None)
    return {name: events[name] for name in needed}


def _check(events: object, query: object) -> None:
    """Refuses what is no compiled query, and no DataFrame of Spark's, before anything is made of it."""
    require_query(query)
    for each in events.values() if isinstance(events, Mapping) else (events,):
        if not hasattr(each, "sparkSession"):
            said = f"the events are {a_kind_of(each)}, and no DataFrame of Spark's"
            hint = "spark.createDataFrame(...); kai.run takes what is in this process"
            raise Mistake(said, hint=hint)


def _streams(query: Query) -> tuple[str, ...]:
    from kaicep.hosts.spark.layout import sources_of
    from kaicep.hosts.spark.physical import physical

    parts = physical(query)
    return tuple(dict.fromkeys(name for part in parts for name in sources_of(part, query.catalog)))


def _duration(given: str | int | None) -> int | None:
    if not isinstance(given, str):
        return given
    found = parse_duration(given)
    if found is None:
        raise Mistake(f"{given!r} is not a duration", hint="write 5min")
    return found
