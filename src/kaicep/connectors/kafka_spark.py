"""Ranges of a Kafka topic: which offsets there are, and the records between two of them.

The end of a range is fixed before it is read, so that a second reader gets the same records. What
the broker no longer has, or does not have yet, is an error that names the offsets: nothing is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaicep.connectors.kafka import KafkaSourceOptions, client_settings, is_gone, is_passing
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from kaicep.connectors.contract import read_position

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "OFFSETS",
    "PATIENCE",
    "Offsets",
    "Records",
    "TopicEnds",
    "offsets_of",
    "read_offsets",
    "topic_ends",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "FORMAT",
    "KafkaRecords",
    "connector_for",
    "kafka_frame",
    "kafka_stream",
]

OFFSETS = 200_000
"""The largest number of offsets in one range."""

PATIENCE = 60.0
"""Seconds to wait for a broker that is down."""

_BATCH = 10_000
_SILENCE = 30.0


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets `first` to `after` (not included) of a partition."""

    part: int
    first: int
    after: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition: their offsets, keys and values, in order."""

    part: int
    seq: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


def topic_ends(
    options: KafkaSourceOptions, where: str, waiting: Callable[[str], None] = lambda trouble: None
) -> dict[int, tuple[int, int]]:
    """The oldest offset of each partition, and the one after its newest.

    A broker that is down is waited for, and `waiting` hears why; after a while it is a failure.
    """
    with _Client(options, where) as consumer:
        return _ends(consumer, options, where, waiting)


class TopicEnds:
    """The same, asked for over and over: one client stays connected."""

    def __init__(self, options: KafkaSourceOptions, where: str) -> None:
        self._options, self._where = options, where
        self._client: _Client | None = None

    def __reduce__(self) -> tuple[type[TopicEnds], tuple[KafkaSourceOptions, str]]:
        """Another process has a client of its own."""
        return TopicEnds, (self._options, self._where)

    def now(self) -> dict[int, tuple[int, int]]:
        """The ends as they are now."""
        client, self._client = self._client or _Client(self._options, self._where), None
        with client.unless_it_fails() as consumer:
            found = _ends(consumer, self._options, self._where)
        self._client = client
        return found


def _ends(
    consumer: Consumer,
    options: KafkaSourceOptions,
    where: str,
    waiting: Callable[[str], None] = lambda trouble: None,
) -> dict[int, tuple[int, int]]:
    from confluent_kafka import KafkaException, TopicPartition

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            found = {}
            for part in sorted(_partitions(consumer, options, where)):
                low, high = consumer.get_watermark_offsets(TopicPartition(options.topic, part), timeout=10)
                found[part] = low, high
            return found
        except KafkaException as error:
            _wait(options, where, error.args[0], deadline, waiting)


def _wait(
    options: KafkaSourceOptions,
    where: str,
    error: KafkaError,
    deadline: float,
    waiting: Callable[[str], None],
) -> None:
    if not is_passing(error):
        raise Failure(f"{where}: topic {options.topic}: {error.str()}") from None
    trouble = f"{where}: {options.servers} cannot be reached: {error.str()}"
    if time.monotonic() > deadline:
        raise Failure(f"{trouble}; waited {PATIENCE:.0f} s") from None
    waiting(trouble)
    time.sleep(0.5)


def _partitions(consumer: Consumer, options: KafkaSourceOptions, where: str) -> set[int]:
    from confluent_kafka import KafkaException

    topic = consumer.list_topics(options.topic, 5).topics[options.topic]
    if topic.error is None:
        return set(topic.partitions)
    if not is_gone(topic.error):
        raise KafkaException(topic.error)
    others = [each for each in consumer.list_topics(timeout=5).topics if each[:2] != "__"]
    hint = did_you_mean(options.topic, others) or "it has no topics at all: create this one first"
    raise Mistake(
        Diagnostic(f"{where}: topic {options.topic}: there is none on {options.servers}", hint=hint)
    )


def offsets_of(
    options: KafkaSourceOptions, where: str, ends: Mapping[int, tuple[int, int]], held: Mapping[int, int]
) -> Iterator[Offsets]:
    """The ranges between the archived offsets and the ends; a failure if some records are gone.

    >>> topic = KafkaSourceOptions("a:9092", "t")
    >>> list(offsets_of(topic, "stream s", {0: (0, 9), 1: (5, 7)}, {0: 4, 1: 5}))
    [Offsets(part=0, first=4, after=9), Offsets(part=1, first=5, after=7)]
    >>> list(offsets_of(topic, "stream s", {0: (6, 9)}, {0: 4}))
    Traceback (most recent call last):
    kaicep.errors.Failure: stream s: topic t, partition 0: offsets 4 to 5 have expired: the broker removed \
them before they were read; nothing was skipped
    """
    for part in sorted(held.keys() - ends.keys()):
        raise Failure(
            f"{where}: topic {options.topic}: partition {part} has disappeared: this is another topic; it "
            f"was read up to {held[part]}"
        )
    for part, (low, high) in sorted(ends.items()):
        first = held.get(part, low)
        place = f"{where}: topic {options.topic}, partition {part}"
        if first > high:
            raise Failure(
                f"{place}: the position is offset {first}, but it ends at {high}: the topic was "
                "created again, or the position is of another one"
            )
        if first < low:
            raise Failure(
                f"{place}: offsets {first} to {low - 1} have expired: the broker removed them before they "
                "were read; nothing was skipped"
            )
        for start in range(first, high, OFFSETS):
            yield Offsets(part, start, min(start + OFFSETS, high))


def read_offsets(options: KafkaSourceOptions, where: str, wanted: Offsets) -> Iterator[Records]:
    """The records of a range, in batches; offsets without a record (transaction markers) are skipped."""
    from confluent_kafka import TopicPartition

    with _Client(options, where) as consumer:
        consumer.assign([TopicPartition(options.topic, wanted.part, wanted.first)])
        seq, heard = wanted.first, time.monotonic()
        while seq < wanted.after:
            # No more than there are: for a batch that never fills the client would wait.
            messages = consumer.consume(min(_BATCH, wanted.after - seq), 0.5)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE:
                raise Failure(
                    f"{where}: {options.servers} sends nothing: topic {options.topic}, partition "
                    f"{wanted.part} was read up to {seq} of {wanted.after}"
                )
            good = []
            for message in messages:
                if (error := message.error()) is not None:
                    seq = max(seq, _after_error(options, where, wanted, seq, message, error))
                elif wanted.first <= (message.offset() or 0) < wanted.after:
                    good.append(message)
            if good:
                yield _records(wanted.part, good)
            reached = [each.offset() or 0 for each in messages if each.error() is None]
            seq = max([seq, *(each + 1 for each in reached)])


def _records(part: int, messages: list[Message]) -> Records:
    return Records(
        part,
        [each.offset() or 0 for each in messages],
        [each.key() for each in messages],
        [each.value() for each in messages],
    )


def _after_error(
    options: KafkaSourceOptions, where: str, wanted: Offsets, seq: int, message: Message, error: KafkaError
) -> int:
    """How far a partition is read where the client says that something is the matter."""
    from confluent_kafka import KafkaError

    place = f"{where}: topic {options.topic}, partition {wanted.part}"
    if error.code() == KafkaError._PARTITION_EOF:
        end = message.offset() or 0
        if end < wanted.after:
            raise Failure(f"{place} ends at {end}, and was to be read up to {wanted.after}")
        return end
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        low = topic_ends(options, where).get(wanted.part, (0, 0))[0]
        raise Failure(
            f"{place}: offsets {seq} to {max(low, seq + 1) - 1} have expired: the broker removed them before "
            "they were read; nothing was skipped"
        )
    if is_gone(error):
        raise Failure(f"{place} has disappeared from {options.servers}; it was read up to {seq}")
    if not is_passing(error):
        raise Failure(f"{place}: {error.str()}")
    return seq


class _Client:
    """A client that joins no group and commits nothing."""

    def __init__(self, options: KafkaSourceOptions, where: str) -> None:
        from confluent_kafka import Consumer

        own: dict[str, Any] = {
            "group.id": "kaicep",  # asked for by the client; nothing is ever committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }
        settings = client_settings(where, options.servers, options.settings, options.secrets, own)
        # What goes wrong comes back from calls, too; by callback it would only be heard twice.
        self._consumer = Consumer({**settings, "error_cb": lambda error: None})

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *error: object) -> None:
        self._consumer.close()

    @contextmanager
    def unless_it_fails(self) -> Iterator[Consumer]:
        """For a client that is used again: it is closed only where something goes wrong."""
        try:
            yield self._consumer
        except BaseException:
            self._consumer.close()
            raise


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
    included); `maxOffsetsPerTrigger`; `settings` of librdkafka as JSON.
    """

    @classmethod
    def name(cls) -> str:
        """What it is called in `spark.read.format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns."""
        return "part int, seq bigint, key binary, value binary"

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
                raise Mistake(Diagnostic(f"{FORMAT}: the option {name} is missing"))
        self.options = KafkaSourceOptions(
            options["servers"], options["topic"], settings=json.loads(options.get("settings", "{}"))
        )
        self.starting = read_position(json.loads(options.get("starting", "{}")))
        self.ending = read_position(json.loads(options.get("ending", "{}")))
        self.most = int(options["maxOffsetsPerTrigger"]) if "maxOffsetsPerTrigger" in options else None

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
            columns = {
                "part": pyarrow.array([each.part] * len(each.seq), pyarrow.int32()),
                "seq": pyarrow.array(each.seq, pyarrow.int64()),
                "key": pyarrow.array(each.keys, pyarrow.binary()),
                "value": pyarrow.array(each.values, pyarrow.binary()),
            }
            yield pyarrow.RecordBatch.from_pydict(columns)


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
) -> DataFrame:
    """The records of a topic as a table; without offsets, from the oldest to what is the end by then."""
    if not connector_for(spark, options):
        return spark.read.format(_registered(spark)).options(**_own(options, starting, ending)).load()
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
) -> DataFrame:
    """The records of a topic as a stream, at most so many in a micro-batch."""
    limit = {"maxOffsetsPerTrigger": str(most)} if most else {}
    if not connector_for(spark, options):
        given = {**_own(options, starting, None), **limit}
        return spark.readStream.format(_registered(spark)).options(**given).load()
    return _named(spark.readStream.format("kafka").options(**_theirs(options, starting), **limit).load())


def _registered(spark: SparkSession) -> str:
    spark.dataSource.register(KafkaRecords)
    return FORMAT


def _own(
    options: KafkaSourceOptions, starting: Mapping[int, int] | None, ending: Mapping[int, int] | None
) -> dict[str, str]:
    if options.secrets:
        hint = "give the workers their settings by librdkafka's own means"
        raise Mistake(Diagnostic("a DataFrame of a topic takes no secrets", hint=hint))
    return {
        "servers": options.servers,
        "topic": options.topic,
        "settings": json.dumps(dict(options.settings)),
        "starting": json.dumps({str(part): at for part, at in (starting or {}).items()}),
        "ending": json.dumps({str(part): at for part, at in (ending or {}).items()}),
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
