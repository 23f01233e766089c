"""A stream of Spark's into the archive: a topic as a Structured Streaming job, each record once.

What came in is what the archive says; Spark's checkpoint only says what to read next. Beside it lies a note
for each micro-batch, of the table and of how far the archive was after it. So a checkpoint that is of
another archive, or an archive that has gone back, is told apart from one in order, and refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.archive.archive import Archive
from kaicep.archive.columns import TS, Shape
from kaicep.archive.stream import StreamTable
from kaicep.connectors.disk import replace_file
from kaicep.connectors.kafka import kafka_record
from kaicep.connectors.shape import SAMPLE, Form, Schema, Shaper
from kaicep.connectors.sources.kafka import KafkaOptions
from kaicep.endtoend.ingest import Ingested
from kaicep.endtoend.spark_ingest import Job, Written, append_written, task_of_records
from kaicep.errors import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["follow"]

_KEPT = 3


def follow(
    rows: DataFrame,
    archive: Archive,
    form: Form,
    options: KafkaOptions,
    checkpoint: Path,
    lateness: int | None,
    trigger: Mapping[str, Any],
    tell: Callable[[Ingested], None] = lambda done: None,
) -> StreamingQuery:
    """Starts a job that appends the records of a streaming DataFrame (`part`, `seq`, `value`)."""
    job = _Following(archive, form, options, checkpoint / "kaicep", lateness, tell)
    writer = rows.select("part", "seq", "value").writeStream.foreachBatch(job.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


class _Following:
    """The archive between two micro-batches."""

    def __init__(
        self,
        archive: Archive,
        form: Form,
        options: KafkaOptions,
        folder: Path,
        lateness: int | None,
        tell: Callable[[Ingested], None],
    ) -> None:
        self._archive, self._form, self._options = archive, form, options
        self._folder, self._lateness, self._tell = folder, lateness, tell
        self._done = Ingested(form.stream)

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch; what the archive holds of it already does not come in again."""
        from pyspark.sql import functions as sf

        table = self._table(rows)
        table.table.refresh()
        held = table.positions
        self._check(table, number - 1)
        known = {**dict(table.shape.attributes), **self._form.types}
        schema = Schema(rdf=True) if table.shape.rdf else Schema(tuple(known.items()))
        table.widen(_shape(self._form, schema))
        for part, at in held.items():
            rows = rows.where((sf.col("part") != part) | (sf.col("seq") >= at))
        job = Job(self._form, schema, self._options, table.table.schema, self._lateness)

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
                            f"{self._form.stream}: the archive holds part {part} up to position {held[part]}"
                            f", and the stream begins at {first}: what lies between is missing"
                        )
                    last[part] = max(at, last.get(part, at))
            return {part: (held.get(part, 0), at + 1) for part, at in last.items()}

        added, dead = append_written(
            rows.sparkSession,
            self._archive,
            table,
            job,
            write,
            covers,
            lambda part: f"{self._options.topic}/{part}",
        )
        self._note(table, number)
        self._done = replace(self._done.plus(added.rows, added.late, dead), positions=table.positions)
        self._tell(self._done)

    def _table(self, rows: DataFrame) -> StreamTable:
        """The stream's table; where there is none, it is made of what the first records have."""
        name = self._form.stream
        if name in self._archive.streams():
            return self._archive.stream(name)
        shaper = Shaper(self._form)
        for row in rows.orderBy("part", "seq").limit(SAMPLE).collect():
            value = None if row["value"] is None else bytes(row["value"])
            shaper.learn(kafka_record(self._options.topic, row["part"], row["seq"], value))
        shaper.settle()
        assert shaper.schema is not None
        return self._archive.made(name, _shape(self._form, shaper.schema))

    def _check(self, table: StreamTable, number: int) -> None:
        """Refuses a checkpoint that does not go with the archive."""
        if number < 0:
            return
        file = self._folder / f"{number}.json"
        if not file.exists():
            raise Failure(
                f"the checkpoint {self._folder.parent} has no note of micro-batch {number}: it is of another "
                "kind of stream, or files of it are missing"
            )
        note = json.loads(file.read_text("utf-8"))
        for what, was, now in (
            ("stream", note["stream"], self._form.stream),
            ("topic", note["topic"], self._options.topic),
            ("table", note["table"], table.table.id),
        ):
            if was != now:
                raise Failure(
                    f"the checkpoint {self._folder.parent} is of {what} {was}, and this is {now}: give each "
                    "ingest a checkpoint of its own"
                )
        held = table.positions
        for part, at in note["next"].items():
            if held.get(int(part), 0) < at:
                raise Failure(
                    f"{self._form.stream}: the checkpoint goes on at position {at} of part {part}, and the "
                    f"archive holds it up to {held.get(int(part), 0)}: what lies between is missing"
                )

    def _note(self, table: StreamTable, number: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        said = {
            "stream": self._form.stream,
            "topic": self._options.topic,
            "table": table.table.id,
            "next": table.positions,
        }
        replace_file(self._folder / f"{number}.json", json.dumps(said).encode())
        (self._folder / f"{number - _KEPT}.json").unlink(missing_ok=True)


def _shape(form: Form, schema: Schema) -> Shape:
    return Shape(schema.attributes, TS if schema.rdf else form.time, schema.rdf)
