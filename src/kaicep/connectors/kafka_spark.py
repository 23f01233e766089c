"""A Kafka topic as a DataFrame, by a Python data source over confluent-kafka: no jar is needed."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from kaicep.connectors.columnar import value_columns
from kaicep.connectors.contract import read_position
from kaicep.connectors.kafka import KafkaSourceOptions, kafka_record
from kaicep.connectors.kafka_offsets import Offsets, Records, TopicEnds, offsets_of, read_offsets, topic_ends
from kaicep.connectors.records import Record
from kaicep.connectors.shape import Form, Schema, Shaper, refuse_wide
from kaicep.errors import Failure, Mistake
from kaicep.plan.types import Type

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


# ----------------------------------------------------------------------------------------------------------
# What PySpark 4.2 asks of the reader of a stream, and 4.0 and 4.1 do not know.
#
# Those ask for the latest offset without saying where the stream is, or how much they want: a reader goes
# by what it gave last, and by its options.
#


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """How much a micro-batch has at most."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Whatever there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """So many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader that can stop at what there is when it begins."""


# ----------------------------------------------------------------------------------------------------------
# A Kafka topic as a DataFrame, by a Python data source over confluent-kafka: no jar is needed.
#
# The columns are `part` (the partition), `seq` (the offset), `key` and `value`. Where Spark's own connector
# is on the class path it reads instead, and the columns hold the same.
#
# Of a form that is given, JSON values become columns where they are read: Arrow takes a batch of them apart
# at once, and only typed columns cross over to the JVM. Spark's connector would send every value to Python
# and back.


FORMAT = "kaicep-kafka"
"""The name of the data source."""

_WHERE = "Spark"

Ends = Mapping[int, tuple[int, int]]
"""The oldest offset of each partition, and the one after its newest."""


@dataclass
class _Partition(InputPartition):
    part: int
    first: int
    after: int


class KafkaRecords(DataSource):
    """The records of a topic.

    Options: `servers`, `topic`; `starting` and `ending`, offsets by partition as JSON (the end is not
    included); `maxOffsetsPerTrigger`; `settings` of librdkafka as JSON; `form`, of JSON values.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns."""
        form = _form_of(self.options)
        if form is None:
            return "part int, seq bigint, key binary, value binary"
        cells = (f"`{name}` {_SPARK[type]}" for name, type in _attributes(form))
        return ", ".join(["part int", "seq bigint", *cells, f"`{DEAD}` string"])

    def reader(self, schema: Any) -> DataSourceReader:
        """For a table."""
        return _TopicReader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """For a stream."""
        return _StreamReader(self.options)


class _Topic:
    """What both readers have in common."""

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in ("servers", "topic"):
            if not options.get(name):
                raise Mistake(f"{FORMAT}: the option {name} is missing")
        self.options = KafkaSourceOptions(
            options["servers"], options["topic"], settings=json.loads(options.get("settings", "{}"))
        )
        self.starting = read_position(json.loads(options.get("starting", "{}")))
        self.ending = read_position(json.loads(options.get("ending", "{}")))
        self.most = int(options["maxOffsetsPerTrigger"]) if "maxOffsetsPerTrigger" in options else None
        self.form = _form_of(options)

    def pieces(self, first: Mapping[int, int], ends: Mapping[int, tuple[int, int]]) -> list[InputPartition]:
        """The ranges between two offsets of every partition."""
        found = offsets_of(self.options, _WHERE, ends, first)
        return [_Partition(each.part, each.first, each.after) for each in found]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The records of a range."""
        import pyarrow

        assert isinstance(partition, _Partition)
        wanted = Offsets(partition.part, partition.first, partition.after)
        for each in read_offsets(self.options, _WHERE, wanted):
            if self.form is not None:
                yield _decoded(each, self.form, self.options.topic)
                continue
            columns = {
                "part": pyarrow.array([each.part] * len(each.seq), pyarrow.int32()),
                "seq": pyarrow.array(each.seq, pyarrow.int64()),
                "key": pyarrow.array(each.keys, pyarrow.binary()),
                "value": pyarrow.array(each.values, pyarrow.binary()),
            }
            yield pyarrow.RecordBatch.from_pydict(columns)


# --- JSON values as columns ---------------------------------------------------------------------------

DEAD = "dead"
"""The column that says why a value is no event; null where it is one."""

_SPARK = {
    Type.BOOL: "boolean",
    Type.INT64: "bigint",
    Type.FLOAT64: "double",
    Type.STRING: "string",
    Type.TIMESTAMP: "timestamp",
}


def _form_of(options: Mapping[str, str]) -> Form | None:
    """What is said of the values, as it travels among the options."""
    text = options.get("form")
    return None if text is None else pickle.loads(base64.b64decode(text))


def _attributes(form: Form) -> tuple[tuple[str, Type], ...]:
    types = {**form.types, form.time: Type.TIMESTAMP}
    return tuple(types.items())


def check_form(form: Form) -> None:
    """Refuses what a DataFrame of a topic cannot hold."""
    taken = [name for name, _ in _attributes(form) if name in ("part", "seq", DEAD)]
    if taken:
        hint = "leave types out, and take the value apart with from_json"
        raise Mistake(f"a column {taken[0]} is there already, beside the attribute", hint=hint)
    refuse_wide(form, "Kafka")
    if form.notation.rdf is not None:
        raise Mistake("documents of RDF are no columns", hint="leave the annotation out, and parse `value`")


def _decoded(records: Records, form: Form, topic: str) -> pyarrow.RecordBatch:
    """Records as typed columns, followed by those that are no events, with the reason."""
    import pyarrow

    def exact(at: int) -> Record:
        return kafka_record(topic, records.part, records.seq[at], records.values[at], form.notation)

    attributes = _attributes(form)
    found = value_columns(Shaper(form, Schema(attributes)), records.seq, records.values, exact)
    utc = pyarrow.timestamp("us", "UTC")
    cells = {
        name: found.values[name].cast(utc) if type is Type.TIMESTAMP else found.values[name]
        for name, type in attributes
    }
    rows = pyarrow.table({"seq": found.seq, **cells})
    if found.dead:
        letters = {"seq": [each.seq for each in found.dead], DEAD: [each.reason for each in found.dead]}
        rows = pyarrow.concat_tables([rows, pyarrow.table(letters)], promote_options="default")
    else:
        rows = rows.append_column(DEAD, pyarrow.nulls(len(rows), pyarrow.string()))
    part = pyarrow.array([records.part] * len(rows), pyarrow.int32())
    (batch,) = rows.add_column(0, "part", part).combine_chunks().to_batches() or [None]
    return batch


class _TopicReader(_Topic, DataSourceReader):
    """A table: up to `ending`, else up to what is the end when it is read."""

    def partitions(self) -> Sequence[InputPartition]:
        ends = topic_ends(self.options, _WHERE)
        if self.ending:
            for part, after in self.ending.items():
                if after > ends.get(part, (0, 0))[1]:
                    raise Failure(
                        f"topic {self.options.topic}, partition {part} ends at {ends.get(part, (0, 0))[1]}, "
                        f"and was to be read up to {after}"
                    )
            ends = {part: (ends[part][0], after) for part, after in self.ending.items()}
        return self.pieces({part: at for part, at in self.starting.items() if part in ends}, ends)


class _StreamReader(_Topic, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets carry the name of the topic: a checkpoint of another one is refused."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._ends = TopicEnds(self.options, _WHERE)
        self._goal: Ends | None = None
        self._planned: tuple[dict[str, Any], Ends] | None = None
        self._reached: dict[str, Any] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._goal = self._ends.now()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        starts = {part: low for part, (low, _) in self._ends.now().items()}
        return self._offset({**starts, **self.starting})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.most) if self.most else ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        start = start or self._reached  # PySpark below 4.2 says nothing
        self._reached = self._latest(self._positions(start) if start else {}, limit)
        return self._reached

    def _latest(self, first: Mapping[int, int], limit: ReadLimit | None) -> dict[str, Any]:
        if limit is None and first:
            limit = self.getDefaultReadLimit()
        ends = self._ends.now() if self._goal is None else self._goal
        behind = {part: high - first.get(part, low) for part, (low, high) in ends.items()}
        after = {part: high for part, (_, high) in ends.items()}
        if isinstance(limit, ReadMaxRows) and sum(behind.values()) > limit.max_rows:
            share = max(1, limit.max_rows // max(1, sum(each > 0 for each in behind.values())))
            after = {part: min(high, first.get(part, low) + share) for part, (low, high) in ends.items()}
        for part, at in first.items():
            if after.get(part, -1) < at:  # said by `partitions`, in full
                return self._offset({**after, part: at})
        reached = self._offset(after)
        self._planned = reached, ends
        return reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._reached = end
        first, after = self._positions(start), self._positions(end)
        if first == after:
            return []
        # Mostly it was asked for a moment ago; what has expired meanwhile is noticed when it is read.
        ends = self._planned[1] if self._planned and self._planned[0] == end else self._ends.now()
        for part, (_, high) in ends.items():
            if first.get(part, 0) > high:
                return self.pieces(first, ends)  # which tells that the topic is another one
        known = {part: (low, after[part]) for part, (low, _) in ends.items() if part in after}
        return self.pieces(first, known)

    def _offset(self, positions: Mapping[int, int]) -> dict[str, Any]:
        return {"topic": self.options.topic, "next": {str(part): at for part, at in positions.items()}}

    def _positions(self, offset: Mapping[str, Any]) -> dict[int, int]:
        if offset.get("topic") != self.options.topic:
            raise Failure(
                f"the checkpoint is of topic {offset.get('topic')}, and the stream reads "
                f"{self.options.topic}: give each stream a checkpoint of its own"
            )
        return read_position(offset["next"])


# --- one way or the other -----------------------------------------------------------------------------


def connector_for(spark: SparkSession, options: KafkaSourceOptions) -> bool:
    """Whether Spark's own connector is on the class path and can do what is asked for.

    Settings are those of librdkafka, whose names Spark's connector does not know.
    """
    from pyspark.errors import PySparkException

    if options.settings or options.secrets:
        return False
    try:
        spark.read.format("kafka").options(
            **{"kafka.bootstrap.servers": options.servers, "subscribe": options.topic}
        ).load()
    except PySparkException as error:
        if error.getCondition() in ("DATA_SOURCE_NOT_FOUND", "_LEGACY_ERROR_TEMP_2096") or (
            "Failed to find" in str(error)
        ):
            return False
        raise
    return True


def kafka_frame(
    spark: SparkSession,
    options: KafkaSourceOptions,
    starting: Mapping[int, int] | None = None,
    ending: Mapping[int, int] | None = None,
    pieces: int = 1,
    form: Form | None = None,
) -> DataFrame:
    """The records of a topic as a table; without offsets, from the oldest to what is the end by then."""
    if form is not None or not connector_for(spark, options):
        given = _own(options, starting, ending, form)
        return spark.read.format(_registered(spark)).options(**given).load()
    if starting:  # Spark's connector would say that some data is lost, and not which
        ends = topic_ends(options, _WHERE)
        list(offsets_of(options, _WHERE, {part: ends[part] for part in starting if part in ends}, starting))
    reader = spark.read.format("kafka").options(**_theirs(options, starting), minPartitions=str(pieces))
    if ending:
        reader = reader.option("endingOffsets", _by_topic(options, ending))
    return _named(reader.load())


def kafka_stream(
    spark: SparkSession,
    options: KafkaSourceOptions,
    starting: Mapping[int, int] | None = None,
    most: int | None = None,
    form: Form | None = None,
) -> DataFrame:
    """The records of a topic as a stream, at most so many in a micro-batch."""
    limit = {"maxOffsetsPerTrigger": str(most)} if most else {}
    if form is not None or not connector_for(spark, options):
        given = {**_own(options, starting, None, form), **limit}
        return spark.readStream.format(_registered(spark)).options(**given).load()
    return _named(spark.readStream.format("kafka").options(**_theirs(options, starting), **limit).load())


def _registered(spark: SparkSession) -> str:
    spark.dataSource.register(KafkaRecords)
    return FORMAT


def _own(
    options: KafkaSourceOptions,
    starting: Mapping[int, int] | None,
    ending: Mapping[int, int] | None,
    form: Form | None,
) -> dict[str, str]:
    if options.secrets:
        hint = "give the workers their settings by librdkafka's own means"
        raise Mistake("a DataFrame of a topic takes no secrets", hint=hint)
    return {
        "servers": options.servers,
        "topic": options.topic,
        "settings": json.dumps(dict(options.settings)),
        "starting": json.dumps({str(part): at for part, at in (starting or {}).items()}),
        "ending": json.dumps({str(part): at for part, at in (ending or {}).items()}),
        **({} if form is None else {"form": base64.b64encode(pickle.dumps(form)).decode()}),
    }


def _theirs(options: KafkaSourceOptions, starting: Mapping[int, int] | None) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": options.servers,
        "subscribe": options.topic,
        "startingOffsets": _by_topic(options, starting) if starting else "earliest",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
    }


def _by_topic(options: KafkaSourceOptions, offsets: Mapping[int, int]) -> str:
    return json.dumps({options.topic: {str(part): at for part, at in offsets.items()}})


def _named(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    place = sf.col("partition").alias("part"), sf.col("offset").alias("seq")
    return frame.select(*place, "key", "value")
