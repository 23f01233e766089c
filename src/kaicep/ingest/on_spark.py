"""Files and topics into the archive by Spark: tasks read, type and write, the driver commits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import LATE, PART, SEQ, TS, in_time, write_files
from kaicep.archive.stream_table import Appended, Overtaken, StreamTable, conforming, marked
from kaicep.connectors.kafka import KafkaSourceOptions, kafka_record
from kaicep.connectors.kafka_offsets import Records
from kaicep.connectors.kafka_spark import connector_for, kafka_frame
from kaicep.connectors.shape import SAMPLE, DeadLetter, Form, Schema, Shaper
from kaicep.errors import Failure
from kaicep.ingest.files import (
    Ingested,
    Origin,
    Piece,
    Plan,
    covered_by,
    gathered,
    planned,
    rows_of_piece,
    rows_of_records,
    shape_with,
)
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.disk import read_sealed, replace_sealed

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kaicep.hosts.spark.sent import Sent
    from kaicep.ingest.materialise import Knowing, Materialise

# ----------------------------------------------------------------------------------------------------------
# Files and topics into the archive by Spark: its workers read, type and write, the driver commits.
#
# A round is a job over some pieces of the source. Each task reads its pieces by columns and writes a
# Parquet file in order of time into the table's folder; only what it says of them comes back. Nothing
# counts before the driver commits all files of a round in one step, with the positions that they cover. A
# round that was cut short anywhere leaves files that nobody speaks of, and is done again from the archive's
# positions.
#
# A late mark hangs on the largest time before an event in its part (semantics 1), and that may lie in
# another task. A task marks by what it has itself; the driver then knows the largest time before each task,
# and only where a task has an event that far behind are its files written anew.

ROUND = 4_000_000
"""So many positions are committed at a time, about."""

TASK = 250_000
"""So many positions are read by one task, about."""

_ATTEMPTS = 10
_WAITS = (1.0, 2.0, 4.0)
_CANNOT_WRITE = "cannot write to"


@dataclass(frozen=True)
class Job:
    """What every task of a round needs to know."""

    form: Form
    schema: Schema
    origin: Origin
    columns: pyarrow.Schema
    lateness: int | None
    knowing: Sent[Knowing] | None = None
    folder: Path = Path()


@dataclass(frozen=True)
class Written:
    """What a task says of its work: its files and what could not be read.

    `parts` has the first position, the smallest and the largest time of each part in the files, `seen` the
    first and the last position of each part that the task has come across, good or bad.
    """

    paths: tuple[str, ...] = ()
    parts: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    dead: tuple[DeadLetter, ...] = ()
    seen: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def text(self) -> str:
        """The same as it travels."""
        dead = [astuple(each) for each in self.dead]
        return json.dumps([self.paths, list(self.parts.items()), dead, list(self.seen.items())])

    @classmethod
    def parse(cls, text: str) -> Written:
        """What `text` says."""
        paths, parts, dead, seen = json.loads(text)
        times = {part: tuple(found) for part, found in parts}
        return cls(tuple(paths), times, tuple(DeadLetter(*each) for each in dead), dict(seen))


def ingest(
    spark: SparkSession,
    archive: Archive,
    form: Form,
    origin: Origin,
    lateness: int | None = None,
    tell: Callable[[Ingested], None] = lambda done: None,
    waiting: Callable[[str], None] = lambda trouble: None,
    growing: bool = False,
    materialise: Materialise | None = None,
) -> Ingested:
    """Appends what the archive does not hold yet, exactly as `kaicep.ingest.files.ingest` does."""
    done = Ingested(form.stream)
    for _ in range(_ATTEMPTS):
        plan = planned(archive, form, origin, waiting, growing, materialise)
        if plan is None:
            return done
        done = replace(done, positions=plan.held)
        try:
            for group in gathered(plan.pieces, ROUND):
                done = take_round(spark, archive, plan, group, lateness, done)
                tell(done)
            return done
        except Overtaken as overtaken:
            waiting(f"{overtaken}; looking again")
    raise Failure(f"{form.stream}: other writers were faster {_ATTEMPTS} times in a row")


def take_round(
    spark: SparkSession,
    archive: Archive,
    plan: Plan,
    group: Sequence[Piece],
    lateness: int | None,
    done: Ingested,
) -> Ingested:
    """Reads pieces, writes their rows and commits them, all or none."""
    plan.table.widen(plan.shape)
    knowing = plan.knowing.packed if plan.knowing is not None else None
    job = Job(plan.form, plan.schema, plan.origin, plan.table.table.schema, lateness, knowing)
    covered = covered_by(group, done.positions)
    added, dead = append_written(
        spark,
        archive,
        plan.table,
        job,
        lambda job: _written(spark, job, group),
        lambda _: covered,
        plan.sources.__getitem__,
    )
    after = plan.table.positions
    return replace(done.plus(added.rows, added.late, dead), positions=after, behind=plan.behind(after))


def append_written(
    spark: SparkSession,
    archive: Archive,
    table: StreamTable,
    job: Job,
    write: Callable[[Job], list[Written]],
    covers: Callable[[Sequence[Written]], Mapping[int, tuple[int, int]]],
    source: Callable[[int], str],
) -> tuple[Appended, list[DeadLetter]]:
    """Lets tasks write, and commits what they have written, all or none.

    `covers` says what that is of each part, `source` what stands behind it. A disk that is full is tried
    again a few times.
    """
    for wait in (*_WAITS, None):
        folder = table.table.folder / f"round-{uuid4().hex}"
        try:
            return _appended(spark, archive, table, replace(job, folder=folder), write, covers, source)
        except BaseException as error:
            with suppress(OSError):
                table.table.drop(f"{folder.name}/{each.name}" for each in folder.iterdir())
                folder.rmdir()
            if wait is None or not isinstance(error, Failure) or _CANNOT_WRITE not in str(error):
                raise
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _appended(
    spark: SparkSession,
    archive: Archive,
    table: StreamTable,
    job: Job,
    write: Callable[[Job], list[Written]],
    covers: Callable[[Sequence[Written]], Mapping[int, tuple[int, int]]],
    source: Callable[[int], str],
) -> tuple[Appended, list[DeadLetter]]:
    from kaicep.hosts.spark.session import describe, told

    describe(spark, f"{job.form.stream} into the archive")
    try:
        job.folder.mkdir()
    except OSError as error:
        raise Failure(f"{_CANNOT_WRITE} {job.folder.parent}: {error}; nothing was appended") from None
    newest = table.newest
    with told():
        written = _marked(spark, job, write(job), newest)
    covered = covers(written)
    dead = sorted((each for some in written for each in some.dead), key=lambda each: (each.part, each.seq))
    archive.dead_letters.append(job.form.stream, [each.to_dict() for each in dead], covered)
    paths = [job.folder / each for some in written for each in some.paths]
    added = table.commit_files(paths, covered, sources={part: source(part) for part in covered})
    for each in set(job.folder.iterdir()) - set(paths):  # of tasks that ran twice, or before late marks
        each.unlink(missing_ok=True)
    if not added.rows:
        with suppress(OSError):
            job.folder.rmdir()
    return added, dead


# --- jobs ---------------------------------------------------------------------------------------------


def _written(spark: SparkSession, job: Job, group: Sequence[Piece]) -> list[Written]:
    """Lets the workers read and write the pieces; what they say of it, in the order of the pieces."""
    if isinstance(job.origin, KafkaSourceOptions) and connector_for(spark, job.origin):
        frame = _by_connector(spark, job.origin, group)
        work = task_of_records(job)
    else:
        tasks = list(gathered(group, TASK))
        frame = spark.range(0, len(tasks), 1, len(tasks))
        work = _task_of_pieces(job, tasks)
    return _done(frame, work)


def _done(frame: DataFrame, work: Work) -> list[Written]:
    """What the workers say of their work, in the order of its parts and positions."""
    told = frame.mapInArrow(work, "told string").collect()
    found = [Written.parse(row["told"]) for row in told]
    return sorted(found, key=lambda each: sorted((part, at[0]) for part, at in each.parts.items()))


def _by_connector(spark: SparkSession, options: KafkaSourceOptions, group: Sequence[Piece]) -> DataFrame:
    """The same offsets by Spark's own connector."""
    first = {each.part: each.first for each in reversed(group)}
    after = {each.part: each.after for each in group}
    return kafka_frame(spark, options, first, after, len(group)).select("part", "seq", "value")


Work = Callable[[Iterator[Any]], Iterator[Any]]


def _task_of_pieces(job: Job, tasks: Sequence[Sequence[Piece]]) -> Work:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for number in (each for batch in batches for each in batch.column(0).to_pylist()):
            read = (rows_of_piece(each, job.form, job.schema, job.origin) for each in tasks[number])
            yield _told(_write(job, read))

    return work


def task_of_records(job: Job) -> Work:
    """The task for rows of a topic: `part`, `seq`, `value`."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        assert isinstance(job.origin, KafkaSourceOptions)
        topic = job.origin.topic
        read = (
            rows_of_records(each, job.form, job.schema, topic)
            for batch in batches
            for each in _records(batch)
        )
        yield _told(_write(job, read))

    return work


def _records(batch: pyarrow.RecordBatch) -> Iterator[Records]:
    """Rows of a topic as records of the partitions in them."""
    import pyarrow.compute as pc

    for part in pc.unique(batch.column("part")).to_pylist():
        own = batch.filter(pc.equal(batch.column("part"), part))
        seq, values = own.column("seq").to_pylist(), own.column("value").to_pylist()
        yield Records(part, seq, [None] * len(seq), values)


def _write(job: Job, read: Iterator[tuple[pyarrow.Table, Sequence[DeadLetter]]]) -> Written:
    """Writes what a task has read, with the late marks that it can know of."""
    import pyarrow

    stream = job.form.stream
    tables: list[pyarrow.Table] = []
    dead: list[DeadLetter] = []
    for rows, letters in read:
        tables.append(conforming(stream, rows, job.columns))
        dead += letters
    rows = pyarrow.concat_tables(tables) if tables else job.columns.empty_table()
    if job.knowing is not None:
        rows = job.knowing.opened().beside(rows)
    rows, _ = marked(rows, {}, job.lateness)
    try:
        files = write_files(job.folder, in_time(rows))
    except OSError as error:
        raise Failure(f"{_CANNOT_WRITE} {job.folder.parent}: {error}; nothing was appended") from None
    parts = _parts(rows)
    seen = {part: (first, last) for part, (first, last, *_) in parts.items()}
    for each in dead:
        first, last = seen.get(each.part, (each.seq, each.seq))
        seen[each.part] = min(first, each.seq), max(last, each.seq)
    times = {part: (first, low, high) for part, (first, _, low, high) in parts.items()}
    return Written(tuple(each.path for each in files), times, tuple(dead), seen)


def _parts(rows: pyarrow.Table) -> dict[int, tuple[int, int, int, int]]:
    """The first and the last position, the smallest and the largest time of each part."""
    import pyarrow

    found = rows.group_by(PART).aggregate([(SEQ, "min"), (SEQ, "max"), (TS, "min"), (TS, "max")])
    columns = [
        found.column(f"{name}_{each}").cast(pyarrow.int64()) for name in (SEQ, TS) for each in ("min", "max")
    ]
    rest = zip(*(each.to_pylist() for each in columns), strict=True)
    return dict(zip(found.column(PART).to_pylist(), rest, strict=True))


def _told(written: Written) -> Any:
    import pyarrow

    return pyarrow.RecordBatch.from_pydict({"told": [written.text()]})


# --- late marks ---------------------------------------------------------------------------------------


def _marked(
    spark: SparkSession, job: Job, written: Sequence[Written], newest: Mapping[int, int]
) -> list[Written]:
    """The files with the marks that hang on other tasks: few, where events come about in order."""
    if job.lateness is None:
        return list(written)
    largest = dict(newest)
    bounds: dict[int, dict[int, int]] = {}
    for number, each in enumerate(written):
        for part, (_, low, high) in each.parts.items():
            bound = largest.get(part, low) - job.lateness
            if low < bound:
                bounds.setdefault(number, {})[part] = bound
            largest[part] = max(high, largest.get(part, high))
    if not bounds:
        return list(written)
    numbers = sorted(bounds)
    todo = [(written[each].paths, bounds[each]) for each in numbers]
    frame = spark.range(0, len(todo), 1, len(todo)).mapInArrow(
        _task_of_marks(job, todo), "n bigint, p string"
    )
    found = list(written)
    for row in frame.collect():
        number = numbers[row["n"]]
        found[number] = replace(found[number], paths=tuple(json.loads(row["p"])))
    return found


def _task_of_marks(job: Job, todo: Sequence[tuple[Sequence[str], Mapping[int, int]]]) -> Work:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for number in (each for batch in batches for each in batch.column(0).to_pylist()):
            paths, bounds = todo[number]
            made = json.dumps([path for each in paths for path in _with_marks(job.folder, each, bounds)])
            yield pyarrow.RecordBatch.from_pydict({"n": [number], "p": [made]})

    return work


def _with_marks(folder: Path, path: str, bounds: Mapping[int, int]) -> list[str]:
    """A file written anew, with a mark on every event that is before the bound of its part.

    What it is made of stays until the round is committed: Spark may run a task twice.
    """
    import pyarrow
    import pyarrow.compute as pc

    rows = parquet_dataset([folder / path]).to_table()
    times = rows.column(TS).cast(pyarrow.int64())
    late = rows.column(LATE)
    for part, bound in bounds.items():
        late = pc.or_(late, pc.and_(pc.equal(rows.column(PART), part), pc.less(times, bound)))
    files = write_files(folder, rows.set_column(rows.schema.get_field_index(LATE), LATE, late))
    return [each.path for each in files]


# ----------------------------------------------------------------------------------------------------------
# Records of a topic as a Structured Streaming job, into the archive, each record once.
#
# What came in is what the archive says; Spark's checkpoint only says what to look at next. Beside it lies a
# note for each micro-batch, of the table and of how far the archive was after it. So a checkpoint that is
# of another archive, or an archive that has gone back, is told apart from one in order, and refused.

_KEPT = 3


def follow(
    rows: DataFrame,
    archive: Archive,
    form: Form,
    options: KafkaSourceOptions,
    checkpoint: Path,
    lateness: int | None,
    trigger: Mapping[str, Any],
    materialise: Materialise | None = None,
) -> StreamingQuery:
    """Starts a job that appends the records of a streaming DataFrame (`part`, `seq`, `value`)."""
    from kaicep.hosts.spark.session import each_batch

    notes = _Notes(checkpoint / "kaicep", form.stream, options.topic)
    job = _FollowedTopic(archive, form, notes, lateness, materialise, options)
    writer = rows.select("part", "seq", "value").writeStream.foreachBatch(each_batch(job.take))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


@dataclass
class _FollowedTopic:
    """What is followed, and where it goes."""

    archive: Archive
    form: Form
    notes: _Notes
    lateness: int | None
    materialise: Materialise | None
    options: KafkaSourceOptions

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch; what the archive holds of it already does not come in again."""
        from pyspark.sql import functions as sf

        table = self._table(rows)
        table.table.refresh()
        held = table.positions
        self.notes.check(table, number - 1)
        known = {**dict(table.shape.attributes), **self.form.types}
        schema = Schema(rdf=True) if table.shape.rdf else Schema(tuple(known.items()))
        knowing = self.materialise.of(self.form.stream, schema) if self.materialise is not None else None
        table.widen(shape_with(self.form, schema, knowing))
        for part, at in held.items():
            rows = rows.where((sf.col("part") != part) | (sf.col("seq") >= at))
        packed = knowing.packed if knowing is not None else None
        job = Job(self.form, schema, self.options, table.table.schema, self.lateness, packed)

        def covers(written: Sequence[Written]) -> dict[int, tuple[int, int]]:
            last: dict[int, int] = {}
            for each in written:
                for part, (first, at) in each.seen.items():
                    if number == 0 and first > held.get(part, first):
                        raise Failure(
                            f"{self.form.stream}: the archive holds part {part} up to position {held[part]}"
                            f", and the stream begins at {first}: the events between are missing"
                        )
                    last[part] = max(at, last.get(part, at))
            return {part: (held.get(part, 0), at + 1) for part, at in last.items()}

        append_written(
            rows.sparkSession,
            self.archive,
            table,
            job,
            lambda job: _done(rows, task_of_records(job)),
            covers,
            lambda part: f"{self.options.topic}/{part}",
        )
        self.notes.write(table, number)

    def _table(self, rows: DataFrame) -> StreamTable:
        """The stream's table; where there is none, it is made of what the first records have."""
        name = self.form.stream
        if name in self.archive.streams():
            return self.archive.stream(name)
        shaper = Shaper(self.form)
        for row in rows.orderBy("part", "seq").limit(SAMPLE).collect():
            value = None if row["value"] is None else bytes(row["value"])
            place = self.options.topic, row["part"], row["seq"]
            shaper.learn(kafka_record(*place, value, self.form.notation))
        shaper.settle()
        assert shaper.schema is not None
        return self.archive.made(name, shape_with(self.form, shaper.schema))


@dataclass(frozen=True)
class _Notes:
    """What is written down beside Spark's checkpoint with each micro-batch."""

    folder: Path
    stream: str
    topic: str

    def check(self, table: StreamTable, number: int) -> None:
        """Refuses a checkpoint that does not go with the archive."""
        if number < 0:
            return
        file = self.folder / f"{number}.json"
        if not file.exists():
            raise Failure(
                f"the checkpoint {self.folder.parent} has no note of micro-batch {number}: it is of another "
                "kind of stream, or files of it are missing"
            )
        note = json.loads(read_sealed(file))
        for what, now in self._about(table).items():
            was = note.get(what)
            if was != now and (was is not None or what != "table"):  # there was none at first
                raise Failure(
                    f"the checkpoint {self.folder.parent} is of {what} {was}, and this is {now}: give each "
                    "ingest a checkpoint of its own"
                )
        held = table.positions
        for part, at in note["next"].items():
            if held.get(int(part), 0) < at:
                raise Failure(
                    f"{self.stream}: the checkpoint goes on at position {at} of part {part}, and the "
                    f"archive holds it up to {held.get(int(part), 0)}: the events between are missing"
                )

    def write(self, table: StreamTable, number: int) -> None:
        """Says how far the archive is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {**self._about(table), "next": table.positions}
        replace_sealed(self.folder / f"{number}.json", json.dumps(said).encode())
        (self.folder / f"{number - _KEPT}.json").unlink(missing_ok=True)

    def _about(self, table: StreamTable) -> dict[str, str]:
        return {"stream": self.stream, "topic": self.topic, "table": table.table.id}
