"""Ranges of a Kafka topic: its offsets, and the records between two of them.

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
from kaicep.errors import Failure, Mistake, did_you_mean

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

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
    raise Mistake(f"{where}: topic {options.topic}: there is none on {options.servers}", hint=hint)


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
