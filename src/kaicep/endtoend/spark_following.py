"""Records of a topic as a Structured Streaming job, into the archive, each record once.

What came in is what the archive says; Spark's checkpoint only says what to look at next. Beside it lies a
note for each micro-batch, of the table and of how far the archive was after it. So a checkpoint that is of
another archive, or an archive that has gone back, is told apart from one in order, and refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.archive.archive import Archive
from kaicep.archive.stream import StreamTable
from kaicep.connectors.kafka import kafka_record
from kaicep.connectors.kafka_offsets import TopicEnds
from kaicep.connectors.shape import SAMPLE, Form, Schema, Shaper
from kaicep.connectors.sources.kafka import KafkaOptions
from kaicep.endtoend.ingest import Ingested
from kaicep.endtoend.spark_ingest import Job, Written, append_written, task_of_records
from kaicep.endtoend.taking import shape_with
from kaicep.errors import Failure
from kaicep.storage.disk import read_sealed, replace_sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from kaicep.endtoend.materialise import Materialise

__all__ = ["follow"]

_KEPT = 3
Tell = Callable[[Ingested], None]


def follow(
    rows: DataFrame,
    archive: Archive,
    form: Form,
    options: KafkaOptions,
    checkpoint: Path,
    lateness: int | None,
    trigger: Mapping[str, Any],
    tell: Tell = lambda done: None,
    materialise: Materialise | None = None,
) -> StreamingQuery:
    """Starts a job that appends the records of a streaming DataFrame (`part`, `seq`, `value`)."""
    notes = _Notes(checkpoint / "kaicep", form.stream, options.topic)
    job = _Topic(archive, form, notes, lateness, tell, materialise, options)
    return _started(rows.select("part", "seq", "value"), job.take, checkpoint, trigger)


def _started(
    rows: DataFrame,
    take: Callable[[DataFrame, int], None],
    checkpoint: Path,
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    from kaicep.hosts.spark.session import each_batch

    writer = rows.writeStream.foreachBatch(each_batch(take)).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


@dataclass
class _Topic:
    """What is followed, between two micro-batches: where it goes, and how far it has come."""

    archive: Archive
    form: Form
    notes: _Notes
    lateness: int | None
    tell: Tell
    materialise: Materialise | None
    options: KafkaOptions
    done: Ingested = field(init=False)
    ends: TopicEnds = field(init=False)

    def __post_init__(self) -> None:
        self.done = Ingested(self.form.stream)
        self.ends = TopicEnds(self.options, f"stream {self.form.stream}")

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

        def write(job: Job) -> list[Written]:
            told = rows.mapInArrow(task_of_records(job), "told string").collect()
            found = [Written.parse(row["told"]) for row in told]
            return sorted(found, key=lambda each: sorted((part, at[0]) for part, at in each.parts.items()))

        def covers(written: Sequence[Written]) -> dict[int, tuple[int, int]]:
            last: dict[int, int] = {}
            for each in written:
                for part, (first, at) in each.seen.items():
                    if number == 0 and first > held.get(part, first):
                        raise Failure(
                            f"{self.form.stream}: the archive holds part {part} up to position {held[part]}"
                            f", and the stream begins at {first}: what lies between is missing"
                        )
                    last[part] = max(at, last.get(part, at))
            return {part: (held.get(part, 0), at + 1) for part, at in last.items()}

        added, dead = append_written(
            rows.sparkSession,
            self.archive,
            table,
            job,
            write,
            covers,
            lambda part: f"{self.options.topic}/{part}",
        )
        self.notes.write(table, number)
        positions = table.positions
        done = self.done.plus(added.rows, added.late, dead)
        self.done = replace(done, positions=positions, behind=self._behind(positions))
        self.tell(self.done)

    def _behind(self, positions: Mapping[int, int]) -> int | None:
        """How many records are still to come, where it is known whom to ask."""
        if not self.options.servers:
            return None
        ends = self.ends.now().items()
        return sum(max(0, high - positions.get(part, low)) for part, (low, high) in ends)

    def _table(self, rows: DataFrame) -> StreamTable:
        """The stream's table; where there is none, it is made of what the first records have."""
        name = self.form.stream
        if name in self.archive.streams():
            return self.archive.stream(name)
        shaper = Shaper(self.form)
        for row in rows.orderBy("part", "seq").limit(SAMPLE).collect():
            value = None if row["value"] is None else bytes(row["value"])
            shaper.learn(kafka_record(self.options.topic, row["part"], row["seq"], value))
        shaper.settle()
        assert shaper.schema is not None
        return self.archive.made(name, shape_with(self.form, shaper.schema))


@dataclass(frozen=True)
class _Notes:
    """What is written down beside Spark's checkpoint with each micro-batch."""

    folder: Path
    stream: str
    topic: str

    def check(self, table: StreamTable | None, number: int) -> None:
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
        held = table.positions if table is not None else {}
        for part, at in note["next"].items():
            if held.get(int(part), 0) < at:
                raise Failure(
                    f"{self.stream}: the checkpoint goes on at position {at} of part {part}, and the "
                    f"archive holds it up to {held.get(int(part), 0)}: what lies between is missing"
                )

    def write(self, table: StreamTable | None, number: int) -> None:
        """Says how far the archive is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {**self._about(table), "next": table.positions if table is not None else {}}
        replace_sealed(self.folder / f"{number}.json", json.dumps(said).encode())
        (self.folder / f"{number - _KEPT}.json").unlink(missing_ok=True)

    def _about(self, table: StreamTable | None) -> dict[str, str | None]:
        known = None if table is None else table.table.id
        return {"stream": self.stream, "topic": self.topic, "table": known}
