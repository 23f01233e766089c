"""A Kafka topic as a source and as a sink, and what both have in common."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from kaicep.connectors.columnar import value_events
from kaicep.connectors.contract import (
    Guarantee,
    Lost,
    Mark,
    Position,
    Sink,
    Source,
    SourceBatch,
    read_position,
)
from kaicep.connectors.documents import value_record
from kaicep.connectors.records import Record
from kaicep.connectors.registry import Count, Duration, Variable, secret
from kaicep.connectors.shape import SAMPLE, Form, Schema, Shaper, refuse_wide
from kaicep.errors import Failure, Mistake, did_you_mean
from kaicep.plan.events import Match
from kaicep.plan.types import Notation

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

# ----------------------------------------------------------------------------------------------------------
# What the Kafka source and the Kafka sink have in common: settings, secrets, the words for errors.

Setting = str | int | float | bool
"""A setting of librdkafka."""


def client_settings(
    where: str,
    servers: str,
    settings: Mapping[str, Setting],
    secrets: Mapping[str, Variable],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a client: those of the user, then those that the promises of kaicep rest on.

    >>> client_settings("stream s", "a:9092", {"security.protocol": "ssl"}, {}, {"acks": "all"})["acks"]
    'all'
    >>> client_settings("stream s", "a:9092", {"acks": 0}, {}, {"acks": "all"})
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: stream s: settings: acks is set by kaicep, whose promises rest on it
      = help: leave it out
    """
    own = {"bootstrap.servers": servers, **own}
    for name in (*settings, *secrets):
        if name in own:
            message = f"{where}: settings: {name} is set by kaicep, whose promises rest on it"
            raise Mistake(message, hint="leave it out")
    hidden = {name: secret(variable, where) for name, variable in secrets.items()}
    # Errors come by callback; librdkafka would also print them.
    return {"log_level": 0, "reconnect.backoff.max.ms": 2_000, **settings, **hidden, **own}


def kafka_record(topic: str, part: int, seq: int, value: bytes | None, notation: Notation) -> Record:
    """The record of a message, good or bad.

    >>> kafka_record("t", 0, 7, None, Notation()).reason
    'it has no value, only a key'
    """
    file = f"{topic}/{part}"
    if value is None:
        return Record(part, seq, seq + 1, file, None, "", "it has no value, only a key")
    return value_record(part, seq, file, value, notation)


def is_gone(error: KafkaError) -> bool:
    """Whether an error says that there is no such topic or partition."""
    from confluent_kafka import KafkaError

    gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
    return error.code() in gone


def is_passing(error: KafkaError) -> bool:
    """Whether an error may be over the next time: a broker that is down, or that is busy electing."""
    from confluent_kafka import KafkaError

    passing = (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    )
    return bool(error.retriable()) or error.code() in passing


# ----------------------------------------------------------------------------------------------------------
# A Kafka topic as a source: `part` is the partition, `seq` the offset.
#
# Where to read is said by offsets alone: no consumer group is joined and none is changed, so that any
# number of readers see the same events under the same identities.

_LOOK_AGAIN = 5.0
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class KafkaSourceOptions:
    """Which topic of which servers; whether to follow it, or stop at what is its end when it is opened.

    `expired` says what happens when records were removed before they were read. `settings` go to
    librdkafka as they are; `secrets` too, each from an environment variable.
    """

    servers: str
    topic: str
    follow: bool = True
    expired: Literal["stop", "continue"] = "stop"
    batch: Count = Count(10_000)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    secrets: Mapping[str, Variable] = field(default_factory=dict)


class KafkaSource(Source):
    """The records of a topic, JSON objects or documents of RDF, from all its partitions."""

    guarantee = Guarantee.REPLAYABLE

    def __init__(self, form: Form, options: KafkaSourceOptions) -> None:
        super().__init__(form)
        refuse_wide(form, "a topic")
        self._options = options
        self._where = f"stream {form.stream}: topic {options.topic}"
        self._settings = client_settings(
            f"stream {form.stream}",
            options.servers,
            options.settings,
            options.secrets,
            {
                "group.id": f"kaicep-{form.stream}",  # asked for by the client; nothing is ever committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": not options.follow,
                "allow.auto.create.topics": False,
            },
        )
        self._shaper = Shaper(form)
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._lost: list[Lost] = []
        self._consumer: Consumer | None = None
        self._assigned = False
        self._looked = 0.0
        self._trouble: str | None = None

    @property
    def finite(self) -> bool:
        """Whether it stops at what was the end of the topic when it was opened."""
        return not self._options.follow

    @property
    def schema(self) -> Schema | None:
        """The attributes, inferred from the oldest records that the topic still has."""
        return self._shaper.schema

    @property
    def trouble(self) -> str | None:
        """Why there is no connection."""
        return self._trouble

    @property
    def position(self) -> dict[int, int]:
        """One past the last offset given, in every partition."""
        return dict(self._next)

    def named(self, part: int) -> str | None:
        """The topic and the partition."""
        return f"{self._options.topic}/{part}"

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Makes a client; it connects when the first batch is asked for."""
        from confluent_kafka import Consumer

        self._next = read_position(position)
        self._shaper = Shaper(self.form, schema)
        self._consumer = Consumer({**self._settings, "error_cb": self._on_error})

    def close(self) -> None:
        """Leaves the broker."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def next_batch(self, timeout: float) -> SourceBatch:
        """The next records of all partitions, each partition in the order of its offsets."""
        came = self.values(timeout)

        def exact(part: int, at: int) -> Record:
            seq, values = came[part]
            return kafka_record(self._options.topic, part, seq[at], values[at], self.form.notation)

        if self.schema is None:
            self._learn_as_it_comes(
                exact(part, at) for part, own in came.items() for at in range(len(own[0]))
            )
        events, dead = value_events(self._shaper, came, exact)
        lost, self._lost = self._lost, []
        return SourceBatch(self.position, events, dead, lost, self.ended)

    def values(self, timeout: float) -> dict[int, tuple[list[int], list[bytes | None]]]:
        """The same as they were sent: by partition, their offsets and their values."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + timeout
        found: dict[int, tuple[list[int], list[bytes | None]]] = {}
        try:
            if not self._assigned or time.monotonic() - self._looked > _LOOK_AGAIN or self._trouble:
                self._look(max(0.1, timeout))
            for message in self._poll(max(0.0, deadline - time.monotonic())):
                if (place := self._place(message)) is not None:
                    seq, values = found.setdefault(place[0], ([], []))
                    seq.append(place[1])
                    values.append(message.value())
        except KafkaException as error:
            self._on_error(error.args[0])
        return found

    # --- records --------------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> list[Message]:
        """What the client has, or the first that comes within the timeout and what came with it."""
        if not self._assigned or self.ended:
            return []
        assert self._consumer is not None
        first = self._consumer.poll(timeout)
        if first is None:
            return []
        return [first, *self._consumer.consume(self._options.batch - 1, 0.0)]

    def _place(self, message: Message) -> tuple[int, int] | None:
        """Partition and offset of a message; None where it was given before or comes after the end."""
        if (error := message.error()) is not None:
            self._on_message_error(message, error)
            return None
        part, seq = message.partition(), message.offset()
        assert part is not None
        assert seq is not None
        if seq < self._next[part]:
            return None
        if seq >= self._ends.get(part, seq + 1):
            self._next[part] = self._ends[part]
            return None
        self._next[part] = seq + 1
        return part, seq

    @property
    def ended(self) -> bool:
        """Whether a finite topic was read up to what was its end."""
        if self._options.follow or not self._assigned:
            return False
        return all(self._next[part] >= end for part, end in self._ends.items())

    # --- partitions -----------------------------------------------------------------------------------

    def _look(self, timeout: float) -> None:
        """Sees which partitions there are, and begins to read those that are new."""
        assert self._consumer is not None
        parts = self._partitions(timeout)
        self._looked, self._trouble = time.monotonic(), None
        known = set(self._next) if self._assigned else set()
        if gone := sorted(set(self._next) - parts):
            raise Failure(f"{self._where}: partition {gone[0]} has disappeared: this is another topic")
        new = sorted(parts - known)
        if not new or (self._assigned and self.finite):
            return
        ranges = {part: self._watermarks(part) for part in new}
        if self.schema is None:
            self._learn({part: self._watermarks(part) for part in sorted(parts)})
        for part, (low, high) in ranges.items():
            self._next[part] = self._within(part, self._next.get(part, low), low, high)
            if self.finite:
                self._ends[part] = high
        self._assign(self._next)
        self._assigned = True

    def _partitions(self, timeout: float) -> set[int]:
        """The partitions that the topic has now."""
        assert self._consumer is not None
        topic = self._consumer.list_topics(self._options.topic, timeout).topics[self._options.topic]
        if topic.error is None:
            return set(topic.partitions)
        if not is_gone(topic.error):
            from confluent_kafka import KafkaException

            raise KafkaException(topic.error)
        if self._next:
            raise Failure(
                f"{self._where} has disappeared from {self._options.servers}; it was read up to {self._next}"
            )
        others = [each for each in self._consumer.list_topics(timeout=timeout).topics if each[:2] != "__"]
        hint = did_you_mean(self._options.topic, others) or "it has no topics at all: create this one first"
        raise Mistake(f"{self._where}: there is none on {self._options.servers}", hint=hint)

    def _watermarks(self, part: int) -> tuple[int, int]:
        """The oldest offset of a partition, and the one after its newest."""
        assert self._consumer is not None
        low, high = self._consumer.get_watermark_offsets(self._partition(part), timeout=_PATIENCE)
        return low, high

    def _within(self, part: int, start: int, low: int, high: int) -> int:
        """Where to read on, which is `start` unless the records there are gone."""
        place = f"{self._where}, partition {part}"
        if start > high:
            raise Failure(
                f"{place}: the position is offset {start}, but it ends at {high}: "
                "the topic was created again, or the position is of another topic"
            )
        if start >= low:
            return start
        if self._options.expired == "stop":
            raise Failure(
                f"{place}: offsets {start} to {low - 1} have expired: the broker removed them before they "
                'were read. Nothing was skipped; expired = "continue" goes on at the oldest that there is '
                "and reports the range as lost"
            )
        self._lost.append(Lost(part, start, low))
        return low

    def _assign(self, starts: Mapping[int, int]) -> None:
        assert self._consumer is not None
        self._consumer.assign([self._partition(part, seq) for part, seq in sorted(starts.items())])

    def _partition(self, part: int, seq: int = 0) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._options.topic, part, seq)

    # --- types ----------------------------------------------------------------------------------------

    def _learn(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Infers the types from the oldest records, partition by partition, wherever reading begins."""
        assert self._consumer is not None
        learned, deadline = 0, time.monotonic() + _PATIENCE
        for part, (low, high) in ranges.items():
            if low < high and learned < SAMPLE:
                self._assign({part: low})
            seq = low
            while seq < high and learned < SAMPLE and time.monotonic() < deadline:
                message = self._consumer.poll(0.1)
                if message is not None and message.error() is None:
                    seq = (message.offset() or 0) + 1
                    place = self._options.topic, part, seq - 1
                    record = kafka_record(*place, message.value(), self.form.notation)
                    learned = self._shaper.learn(record)
                elif message is not None:
                    break  # the end, where the last offsets hold no records
        if learned:
            self._shaper.settle()

    def _learn_as_it_comes(self, records: Iterable[Record]) -> None:
        """Infers the types from the first records of a topic that had none when it was opened."""
        good = islice((each for each in records if each.fields is not None), SAMPLE)
        learned = max(map(self._shaper.learn, good), default=0)
        if learned or self.ended:
            self._shaper.settle()

    # --- errors ---------------------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        """A broker that is down is waited for; anything else that is wrong with a client is a failure."""
        if not is_passing(error):
            raise Failure(f"{self._where}: {error.str()}")
        self._trouble = f"{self._options.servers} cannot be reached: {error.str()}"

    def _on_message_error(self, message: Message, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        part = message.partition()
        if error.code() == KafkaError._PARTITION_EOF and part is not None:
            # The last offsets of a partition may be marks of transactions, which are no records.
            end = message.offset() or 0
            self._next[part] = max(self._next[part], min(end, self._ends.get(part, end)))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            assert part is not None
            self._next[part] = self._within(part, self._next[part], *self._watermarks(part))
            self._assign(self._next)
        elif is_gone(error):
            self._look(_PATIENCE)
        else:
            self._on_error(error)


# ----------------------------------------------------------------------------------------------------------
# A Kafka topic as a sink, at least once: the key of a message is the match's id, its value the match.


@dataclass(frozen=True, slots=True)
class KafkaSinkOptions:
    """Which topic of which servers, and for how long a commit waits for them."""

    servers: str
    topic: str
    patience: Duration = Duration(300_000_000)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    secrets: Mapping[str, Variable] = field(default_factory=dict)


class KafkaSink(Sink):
    """Sends matches to a topic. All replicas have them when a commit returns."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, name: str, options: KafkaSinkOptions) -> None:
        self._where = f"sink {name}"
        self._options = options
        own = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
        self._settings = client_settings(self._where, options.servers, options.settings, options.secrets, own)
        self._producer: Producer | None = None
        self._waiting: deque[Match] = deque()
        self._under_way = 0
        self._returned: list[Match] = []
        self._refused: str | None = None
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why messages wait."""
        return self._trouble

    def open(self) -> None:
        """Makes a client; a broker that is down is waited for."""
        from confluent_kafka import Producer

        self._waiting.clear()
        self._returned.clear()
        self._under_way = 0
        self._producer = Producer({**self._settings, "error_cb": self._on_error})

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches, and sends as many as the client takes."""
        self._waiting.extend(matches)
        self._send()

    def commit(self, mark: Mark) -> None:
        """Waits until the broker has everything."""
        assert self._producer is not None, "open comes first"
        deadline = time.monotonic() + self._options.patience / 1_000_000
        self._refused = None
        while self._left:
            self._send()
            self._producer.poll(0.1)
            if not self._under_way and self._refused:
                raise Failure(f"{self._where}: {self._refused}")
            if self._left and time.monotonic() > deadline:
                raise Failure(
                    f"{self._where}: topic {self._options.topic}: {self._left} "
                    f"matches could not be sent: {self._trouble or 'no answer'}"
                )

    def close(self) -> None:
        """Leaves the broker."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None

    @property
    def _left(self) -> int:
        return len(self._waiting) + self._under_way + len(self._returned)

    def _send(self) -> None:
        from confluent_kafka import KafkaException

        assert self._producer is not None, "open comes first"
        # Not while some were refused and others are under way: those that are refused go first again.
        while self._waiting and not self._returned:
            match = self._waiting[0]

            def delivered(error: KafkaError | None, message: Message, match: Match = match) -> None:
                self._delivered(error, match)

            try:
                self._producer.produce(
                    self._options.topic, match.to_json().encode(), match.id.encode(), on_delivery=delivered
                )
            except BufferError:  # the client has enough for now
                return
            except KafkaException as error:  # such as one that is too large: the client itself refuses it
                self._refuse(error.args[0])
                return
            self._under_way += 1
            self._waiting.popleft()

    def _delivered(self, error: KafkaError | None, match: Match) -> None:
        self._under_way -= 1
        if error is None:
            self._trouble = None
        else:
            self._returned.append(match)
            self._refuse(error)
        if not self._under_way:
            self._waiting.extendleft(reversed(self._returned))
            self._returned.clear()

    def _refuse(self, error: KafkaError) -> None:
        self._refused = f"topic {self._options.topic} on {self._options.servers}: {error.str()}"

    def _on_error(self, error: Any) -> None:
        self._trouble = f"{self._options.servers} cannot be reached: {error.str()}"
