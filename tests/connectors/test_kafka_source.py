"""A Kafka topic as a source, against a real broker: offsets, resuming, and what can go wrong."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.connectors import messages
from tests.servers import Broker, make_topics, need, wait_for_partitions

from kaicep.archive.archive import Archive
from kaicep.connectors.contract import Lost, Position, SourceBatch
from kaicep.connectors.kafka import KafkaSource, KafkaSourceOptions
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form, Schema
from kaicep.errors import Failure, Mistake
from kaicep.ingest.files import ingest
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.types import Type

need("confluent_kafka")
pytestmark = pytest.mark.servers

SECONDS = 120.0


class Topic:
    """A topic of its own for a test."""

    def __init__(self, servers: str, partitions: int = 1) -> None:
        from confluent_kafka.admin import AdminClient

        self.servers = servers
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        make_topics(servers, {self.name: partitions})

    def wait(self, futures: dict[str, object]) -> None:
        for each in futures.values():
            each.result(SECONDS)  # type: ignore[attr-defined]

    def send(self, *values: object, part: int = 0, **settings: object) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, **settings})
        for each in values:
            producer.produce(self.name, each if isinstance(each, bytes) else json.dumps(each), partition=part)
        assert producer.flush(SECONDS) == 0

    def wait_for_end(self, end: int, part: int = 0) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        deadline = time.monotonic() + SECONDS
        place = TopicPartition(self.name, part)
        while self.admin.list_offsets({place: OffsetSpec.latest()})[place].result(SECONDS).offset != end:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def expire(self, before: int, part: int = 0) -> None:
        from confluent_kafka import TopicPartition

        self.wait(self.admin.delete_records([TopicPartition(self.name, part, before)]))

    def delete(self) -> None:
        self.wait(self.admin.delete_topics([self.name]))

    @contextmanager
    def source(
        self, position: Position | None = None, schema: Schema | None = None, **options: object
    ) -> Iterator[KafkaSource]:
        table = {"kind": "kafka", "servers": self.servers, "topic": self.name, **options}
        with make_source(Form("s"), table) as source:
            assert isinstance(source, KafkaSource)
            source.open(position, schema)
            yield source


def rows(*seconds: int) -> list[object]:
    return [{"ts": each, "x": each} for each in seconds]


def until(source: KafkaSource, done: Callable[[list[SourceBatch]], bool]) -> list[SourceBatch]:
    """Batches, until there are enough."""
    batches: list[SourceBatch] = []
    deadline = time.monotonic() + SECONDS
    while not done(batches):
        assert time.monotonic() < deadline, (source.trouble, batches)
        batches.append(source.next_batch(0.2))
    return batches


def ended(batches: list[SourceBatch]) -> bool:
    return bool(batches) and batches[-1].ended


def has(count: int) -> Callable[[list[SourceBatch]], bool]:
    return lambda batches: len(ids(*batches)) >= count


def ids(*batches: SourceBatch) -> list[tuple[int, int]]:
    return sorted((each.part, each.seq) for batch in batches for each in batch.events)


def test_the_part_is_the_partition_and_the_seq_the_offset(kafka: str) -> None:
    topic = Topic(kafka, partitions=2)
    topic.send(*rows(0, 1, 2), part=0)
    topic.send(*rows(3, 4), part=1)
    with topic.source(follow=False) as source:
        batches = until(source, ended)
    assert ids(*batches) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert batches[-1].position == {0: 3, 1: 2}
    assert source.schema == Schema((("ts", Type.TIMESTAMP), ("x", Type.INT64)))


def test_opened_at_a_position_it_gives_the_record_there_first(kafka: str) -> None:
    topic = Topic(kafka, partitions=2)
    topic.send(*rows(*range(5)), part=0)
    topic.send(*rows(*range(5)), part=1)
    with topic.source({0: 3, 1: 5}, follow=False) as source:
        assert ids(*until(source, ended)) == [(0, 3), (0, 4)]


def test_every_batch_can_be_resumed_after(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(*range(6)))
    with topic.source(follow=False, batch=2) as source:
        batches = until(source, ended)
    assert all(len(each.events) <= 2 for each in batches)
    for cut, each in enumerate(batches):
        with topic.source(each.position, follow=False) as again:
            assert ids(*batches[: cut + 1], *until(again, ended)) == [(0, seq) for seq in range(6)]


def test_it_goes_on_with_what_is_sent_later(kafka: str) -> None:
    topic = Topic(kafka)
    with topic.source() as source:
        assert not source.next_batch(0.2)
        assert source.schema is None
        topic.send(*rows(0))
        assert ids(*until(source, has(1))) == [(0, 0)]
        topic.send(*rows(1))
        assert ids(*until(source, has(1))) == [(0, 1)]


def test_two_readers_see_the_same_and_no_group_is_left_behind(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(*range(3)))
    with topic.source(follow=False) as one, topic.source(follow=False) as other:
        assert ids(*until(one, ended)) == ids(*until(other, ended))
    groups = topic.admin.list_consumer_groups(request_timeout=SECONDS).result().valid
    assert "kaicep-s" not in [each.group_id for each in groups]


def test_bad_records_become_dead_letters_and_use_up_their_offset(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send({"ts": 1, "x": 1}, b"oops", {"x": 2}, {"ts": 2, "x": 3})
    with topic.source(follow=False) as source:
        batches = until(source, ended)
    assert ids(*batches) == [(0, 0), (0, 3)]
    dead = [each for batch in batches for each in batch.dead]
    assert [(each.seq, each.reason) for each in dead] == [
        (1, "not JSON: expecting value at column 1"),
        (2, "no time: it has no attribute ts, and no annotation names another"),
    ]
    assert dead[0].file == f"{topic.name}/0"


def test_types_are_those_of_the_oldest_records_wherever_it_is_opened(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send({"ts": 0, "x": 1.5}, {"ts": 1, "x": 2})
    with topic.source({0: 1}, follow=False) as source:
        [event] = [each for batch in until(source, ended) for each in batch.events]
    assert repr(event.values["x"]) == "2.0"


def test_marks_of_transactions_are_no_records(kafka: str) -> None:
    """They use up offsets; an aborted transaction is not seen; the end is reached all the same."""
    from confluent_kafka import Producer

    topic = Topic(kafka)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(SECONDS)
    for seconds, commit in ((0, True), (1, False), (2, True)):
        producer.begin_transaction()
        producer.produce(topic.name, json.dumps({"ts": seconds}))
        producer.flush(SECONDS)
        (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)
    topic.wait_for_end(6)  # the last mark is written when the commit has been answered
    with topic.source(follow=False) as source:
        batches = until(source, ended)
    assert ids(*batches) == [(0, 0), (0, 4)]
    assert batches[-1].position == {0: 6}


def test_a_new_partition_is_read_from_its_beginning(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka.admin import NewPartitions

    monkeypatch.setattr("kaicep.connectors.kafka._LOOK_AGAIN", 0.1)
    topic = Topic(kafka)
    topic.send(*rows(0))
    with topic.source() as source:
        until(source, has(1))
        topic.wait(topic.admin.create_partitions([NewPartitions(topic.name, 2)]))
        wait_for_partitions(kafka, topic.name, 2)
        topic.send(*rows(1), part=1)
        assert ids(*until(source, has(1))) == [(1, 0)]
        assert source.position == {0: 1, 1: 1}


def test_old_offsets_that_are_sent_again_are_left_out(kafka: str) -> None:
    from confluent_kafka import TopicPartition

    topic = Topic(kafka)
    topic.send(*rows(0, 1, 2))
    with topic.source() as source:
        until(source, has(3))
        assert source._consumer is not None
        source._consumer.seek(TopicPartition(topic.name, 0, 0))
        topic.send(*rows(3))
        assert ids(*until(source, has(1))) == [(0, 3)]


# --- faults -----------------------------------------------------------------------------------------


def test_expired_offsets_are_said_with_their_range(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(*range(30)))
    topic.expire(20)
    with topic.source({0: 5}, follow=False) as source:
        message = r"topic t-\w+, partition 0: offsets 5 to 19 have expired"
        with pytest.raises(Failure, match=message):
            until(source, ended)
        assert source.position == {0: 5}


def test_expired_offsets_can_be_reported_as_lost(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(*range(30)))
    topic.expire(20)
    with topic.source({0: 5}, follow=False, expired="continue") as source:
        batches = until(source, ended)
    assert [each for batch in batches for each in batch.lost] == [Lost(0, 5, 20)]
    assert ids(*batches) == [(0, seq) for seq in range(20, 30)]


def test_what_was_never_asked_for_is_not_lost(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(*range(30)))
    topic.expire(20)
    with topic.source(follow=False) as source:
        batches = until(source, ended)
    assert ids(*batches)[0] == (0, 20)
    assert not any(each.lost for each in batches)


def test_offsets_that_expire_while_it_reads_are_said_too(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(0))
    # The client fetches ahead; one record at a time keeps it from having what is about to expire.
    with topic.source(settings={"queued.min.messages": 1, "fetch.message.max.bytes": 100}) as source:
        until(source, has(1))
        payload = {"ts": 1, "x": 1, "pad": "." * 200_000}
        topic.send(*[payload] * 20, **{"linger.ms": 0, "batch.num.messages": 1})
        until(source, has(1))
        given = source.position[0]
        topic.expire(21)
        topic.send(*rows(2))
        with pytest.raises(Failure, match=r"offsets \d+ to 20 have expired"):
            until(source, has(21 - given + 1))


def test_a_topic_that_was_made_anew_is_said(kafka: str) -> None:
    topic = Topic(kafka)
    topic.send(*rows(0))
    with (
        topic.source({0: 7}) as source,
        pytest.raises(Failure, match="the position is offset 7, but it ends at 1"),
    ):
        until(source, ended)


def test_a_topic_that_does_not_exist_is_a_mistake_with_a_hint(kafka: str) -> None:
    topic = Topic(kafka)
    right, topic.name = topic.name, topic.name + "x"
    with topic.source() as source, pytest.raises(Mistake) as caught:
        until(source, ended)
    assert f"topic {right}x: there is none" in str(caught.value)
    assert f"did you mean {right}" in str(caught.value)


def test_a_topic_that_disappears_is_said(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaicep.connectors.kafka._LOOK_AGAIN", 0.2)
    topic = Topic(kafka)
    topic.send(*rows(0))
    with topic.source() as source:
        until(source, has(1))
        topic.delete()
        with pytest.raises(Failure, match=r"has disappeared .* it was read up to \{0: 1\}"):
            until(source, ended)


@pytest.mark.slow
def test_a_broker_that_is_down_is_waited_for(own_broker: Broker) -> None:
    """Down at the start, then down in the middle: what was sent comes once, in order."""
    own_broker.start()
    topic = Topic(own_broker.address)
    topic.send(*rows(0, 1))
    own_broker.stop()
    with topic.source({0: 1}) as source:
        until(source, lambda batches: source.trouble is not None)
        assert "cannot be reached" in str(source.trouble)
        assert source.position == {0: 1}
        own_broker.start()
        assert ids(*until(source, has(1))) == [(0, 1)]
        # The client may speak of the last attempt that failed only after one that did not.
        until(source, lambda batches: source.trouble is None)
        own_broker.stop()
        until(source, lambda batches: source.trouble is not None)
        own_broker.start()
        topic.send(*rows(2))
        assert ids(*until(source, has(1))) == [(0, 2)]


@pytest.mark.parametrize("format", FORMATS)
def test_values_may_be_documents_of_rdf(kafka: str, format: str) -> None:
    topic = Topic(kafka)
    topic.send(*messages.messages(format))
    table = {"kind": "kafka", "servers": topic.servers, "topic": topic.name, "follow": False}
    with make_source(messages.form(format), table) as source:
        assert isinstance(source, KafkaSource)
        source.open()
        messages.check(until(source, ended))
        assert source.schema == Schema(rdf=True)


def test_documents_are_taken_into_the_archive(kafka: str, tmp_path: Path) -> None:
    topic = Topic(kafka)
    topic.send(*messages.messages("ttl"))
    archive, options = Archive(tmp_path), KafkaSourceOptions(topic.servers, topic.name)
    done = ingest(archive, messages.form("ttl"), options)
    assert (done.rows, [each.seq for each in done.dead]) == (2, [2, 3])
    assert archive.stream("s").shape.rdf
    assert ingest(archive, messages.form("ttl"), options).rows == 0
