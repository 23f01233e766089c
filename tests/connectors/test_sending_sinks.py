"""Kafka, MQTT and webhook sinks against real servers: nothing is lost, and what comes twice can be told."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.connectors.matches import matches
from tests.connectors.mqtt_by_hand import PUBLISH, BrokerByHand, Connection, Packet
from tests.servers import Broker, Mosquitto, free_port, make_topics, need

from kaicep.connectors.contract import Sink
from kaicep.connectors.registry import make_sink
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match

need("confluent_kafka")
need("paho.mqtt")

SECONDS = 120.0


@contextmanager
def opened(**options: object) -> Iterator[Sink]:
    with make_sink("out", options) as sink:
        assert sink.open() is None, "whoever drives such a sink keeps the mark"
        yield sink


def in_background(work: Callable[[], None], daemon: bool = False) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    return thread


def wait(done: Callable[[], bool], why: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def send_with_a_crash_before_the_mark_is_saved(**options: object) -> None:
    """Matches 0 to 4 are delivered, the process dies, the next one goes on from an older mark, at 2."""
    with opened(**options) as sink:
        sink.write(matches(*range(5)))
        sink.commit({"n": 5})
    with opened(**options) as sink:
        sink.write(matches(*range(2, 7)))
        sink.commit({"n": 7})


def check_that_a_consumer_can_deduplicate(received: list[str]) -> None:
    """By the id alone: each match once, and a second delivery is the same bytes."""
    by_id = {json.loads(each)["id"]: each for each in received}
    assert len(received) > len(by_id), "the test would show nothing if none came twice"
    assert sorted(by_id) == [f"{number:05}" for number in range(7)]
    assert set(received) == set(by_id.values())


# --- Kafka ------------------------------------------------------------------------------------------


def make_topic(servers: str, name: str | None = None) -> str:
    name = name or f"t-{uuid.uuid4().hex[:8]}"
    make_topics(servers, {name: 1})
    return name


def consume(servers: str, topic: str, count: int) -> list[tuple[str, str]]:
    """The keys and values of so many messages."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, str]] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, found
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message.key().decode(), message.value().decode()))
    consumer.close()
    return found


@pytest.mark.servers
def test_kafka_consumers_deduplicate_by_key(kafka: str) -> None:
    topic = make_topic(kafka)
    send_with_a_crash_before_the_mark_is_saved(kind="kafka", servers=kafka, topic=topic)
    received = consume(kafka, topic, 10)
    assert all(key == json.loads(value)["id"] for key, value in received)
    check_that_a_consumer_can_deduplicate([value for _, value in received])


@pytest.mark.servers
def test_kafka_takes_more_than_its_client_holds(kafka: str) -> None:
    topic = make_topic(kafka)
    settings = {"queue.buffering.max.messages": 50}
    with opened(kind="kafka", servers=kafka, topic=topic, settings=settings) as sink:
        sink.write(matches(*range(500)))
        sink.commit({})
    assert [key for key, _ in consume(kafka, topic, 500)] == [f"{number:05}" for number in range(500)]


@pytest.mark.servers
def test_a_match_that_kafka_refuses_is_said_and_kept(kafka: str) -> None:
    topic = make_topic(kafka)
    with opened(kind="kafka", servers=kafka, topic=f"no-{topic}", patience="1s") as sink:
        sink.write(matches(0))
        for _ in range(2):
            with pytest.raises(Failure, match="sink out: topic no-"):
                sink.commit({})


def commit_at_last(sink: Sink) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return sink.commit({})
        except Failure:
            if time.monotonic() > deadline:
                raise


@pytest.mark.servers
def test_what_kafka_refuses_keeps_its_place(kafka: str) -> None:
    """The topic is made only after fifty of the matches came back, while the others waited."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    settings = {"queue.buffering.max.messages": 50, "topic.metadata.propagation.max.ms": 10}
    with opened(kind="kafka", servers=kafka, topic=topic, settings=settings) as sink:
        sink.write(matches(*range(120)))
        with pytest.raises(Failure, match="Unknown topic"):
            sink.commit({})
        make_topic(kafka, topic)
        commit_at_last(sink)
    assert [key for key, _ in consume(kafka, topic, 120)] == [f"{number:05}" for number in range(120)]


@pytest.mark.servers
def test_a_match_too_large_for_kafka_is_said_and_kept(kafka: str) -> None:
    topic = make_topic(kafka)
    with opened(kind="kafka", servers=kafka, topic=topic, settings={"message.max.bytes": 1_000}) as sink:
        large = Match("hot", "00001", 1, 1, {"x": "x" * 2_000})
        sink.write([*matches(0), large, *matches(2)])
        for _ in range(2):
            with pytest.raises(Failure, match="too large"):
                sink.commit({})
    assert [key for key, _ in consume(kafka, topic, 1)] == ["00000"]


@pytest.mark.servers
@pytest.mark.slow
def test_a_kafka_broker_that_is_down_is_waited_for(own_broker: Broker) -> None:
    own_broker.start()
    topic = make_topic(own_broker.address)
    own_broker.stop()
    with opened(kind="kafka", servers=own_broker.address, topic=topic, patience="1s") as sink:
        sink.write(matches(0, 1))
        with pytest.raises(Failure, match="2 matches could not be sent"):
            sink.commit({})
        own_broker.start()
        sink.write(matches(2))
        commit_at_last(sink)
    assert [key for key, _ in consume(own_broker.address, topic, 3)] == ["00000", "00001", "00002"]


# --- MQTT -------------------------------------------------------------------------------------------


@contextmanager
def subscriber(server: str, topic: str) -> Iterator[list[str]]:
    """What arrives at a topic."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    received: list[str] = []
    ready = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _client, _data, message: received.append(message.payload.decode())
    host, _, port = server.partition(":")
    client.connect(host, int(port))
    client.subscribe(topic, qos=1)
    client.loop_start()
    try:
        assert ready.wait(SECONDS)
        yield received
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.servers
def test_mqtt_subscribers_deduplicate_by_id(mosquitto: str) -> None:
    topic = f"t{uuid.uuid4().hex[:8]}"
    with subscriber(mosquitto, topic) as received:
        send_with_a_crash_before_the_mark_is_saved(kind="mqtt", server=mosquitto, topic=topic)
        wait(lambda: len(received) >= 10, lambda: received)
        check_that_a_consumer_can_deduplicate(received)


@pytest.mark.servers
@pytest.mark.parametrize(
    "run", [pytest.param(each, marks=[pytest.mark.night] * (each > 0)) for each in range(50)]
)
def test_mqtt_takes_more_than_it_has_under_way(run: int, mosquitto: str) -> None:
    """Whoever subscribes first gets all of them in their order, in each of fifty runs."""
    topic = f"t{uuid.uuid4().hex[:8]}"
    with (
        subscriber(mosquitto, topic) as received,
        opened(kind="mqtt", server=mosquitto, topic=topic) as sink,
    ):
        sink.write(matches(*range(2_500)))
        sink.commit({})
        wait(lambda: len(received) >= 2_500, lambda: len(received))
    assert [json.loads(each)["id"] for each in received] == [f"{number:05}" for number in range(2_500)]


@pytest.fixture
def by_hand() -> Iterator[BrokerByHand]:
    broker = BrokerByHand()
    yield broker
    broker.close()


def published(connection: Connection, count: int) -> list[Packet]:
    return [connection.read(PUBLISH) for _ in range(count)]


def ids(packets: list[Packet]) -> list[int]:
    return [int(json.loads(each.payload)["id"]) for each in packets]


def test_mqtt_publishes_nothing_before_the_broker_has_accepted(by_hand: BrokerByHand) -> None:
    """Else what is written while the connection is made overtakes what was written before."""
    with opened(kind="mqtt", server=by_hand.address, topic="t") as sink:
        sink.write(matches(0, 1))
        with by_hand.connection() as connection:
            sink.write(matches(2, 3))
            assert connection.silent()
            connection.accept()
            committing = in_background(lambda: sink.commit({}))
            received = published(connection, 4)
            assert ids(received) == [0, 1, 2, 3]
            for each in received:
                connection.acknowledge(each)
            committing.join(SECONDS)
            assert not committing.is_alive()


def test_mqtt_sends_again_in_order_what_was_under_way(by_hand: BrokerByHand) -> None:
    """Matches 0, 1 and 3 are acknowledged, 2 and 4 are not when the connection is lost; 5 comes after."""
    with opened(kind="mqtt", server=by_hand.address, topic="t") as sink:
        sink.write(matches(*range(5)))
        with by_hand.connection() as connection:
            connection.accept()
            committing = in_background(lambda: sink.commit({}))
            received = published(connection, 5)
            assert ids(received) == [0, 1, 2, 3, 4]
            for number in (0, 1, 3):
                connection.acknowledge(received[number])
        wait(lambda: "is gone" in str(sink.trouble), lambda: sink.trouble)
        with by_hand.connection() as connection:
            sink.write(matches(5))
            assert connection.silent()
            connection.accept()
            received = published(connection, 3)
            assert ids(received) == [2, 4, 5]
            for each in received:
                connection.acknowledge(each)
            committing.join(SECONDS)
            assert not committing.is_alive()
            assert sink.trouble is None


@pytest.mark.parametrize("topic", ["building/+/hot", "#"])
def test_an_mqtt_topic_with_wildcards_is_a_mistake(topic: str) -> None:
    with pytest.raises(Mistake, match="is not a topic"):
        make_sink("out", {"kind": "mqtt", "server": "127.0.0.1", "topic": topic})


@pytest.mark.servers
def test_two_mqtt_sinks_of_one_name_do_not_cut_each_other_off(mosquitto: str) -> None:
    topic = f"t{uuid.uuid4().hex[:8]}"
    options = {"kind": "mqtt", "server": mosquitto, "topic": topic}
    with opened(**options) as one, opened(**options) as other:
        for sink in (one, other):
            sink.write(matches(0))
            sink.commit({})
        assert (one.trouble, other.trouble) == (None, None)


@pytest.mark.servers
def test_an_mqtt_broker_that_is_down_is_waited_for(own_mosquitto: Mosquitto) -> None:
    address = own_mosquitto.address
    with opened(kind="mqtt", server=address, topic="t") as sink:
        sink.write(matches(0, 1))
        committing = in_background(lambda: sink.commit({}))
        assert sink.trouble == f"{address} has not answered yet"
        own_mosquitto.start()
        committing.join(SECONDS)
        assert not committing.is_alive()
        assert sink.trouble is None
        own_mosquitto.stop()
        sink.write(matches(2))
        committing = in_background(lambda: sink.commit({}))
        own_mosquitto.start()
        committing.join(SECONDS)
        assert not committing.is_alive()


@pytest.mark.servers
def test_an_mqtt_sink_says_when_its_patience_is_over() -> None:
    with opened(kind="mqtt", server=f"127.0.0.1:{free_port()}", topic="t", patience="100ms") as sink:
        sink.write(matches(0))
        with pytest.raises(Failure, match="1 matches could not be sent"):
            sink.commit({})


# --- webhook ----------------------------------------------------------------------------------------


class Receiver:
    """A web server that answers as it is told, and remembers what it took in."""

    def __init__(self, port: int = 0) -> None:
        receiver = self
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[str] = []
        self.requests: list[tuple[str, dict[str, str], int]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                lines = self.rfile.read(int(self.headers["Content-Length"])).decode().splitlines()
                receiver.requests.append((self.path, dict(self.headers), len(lines)))
                status, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                if 200 <= status < 300:
                    receiver.received += lines
                if status == 0:  # took it in, and hangs up before it answers
                    receiver.received += lines
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook?a=b"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


def test_webhook_receivers_deduplicate_by_id(receiver: Receiver) -> None:
    send_with_a_crash_before_the_mark_is_saved(kind="webhook", url=receiver.url, batch=2)
    check_that_a_consumer_can_deduplicate(receiver.received)
    assert [(path, lines) for path, _, lines in receiver.requests] == [
        ("/hook?a=b", lines) for lines in (2, 2, 1, 2, 2, 1)
    ]


def test_a_webhook_that_may_recover_is_tried_again(receiver: Receiver) -> None:
    receiver.answers = [(503, {"Retry-After": "0"}), (429, {}), (500, {}), (0, {}), (204, {})]
    with opened(kind="webhook", url=receiver.url) as sink:
        sink.write(matches(0))
        sink.commit({})
    assert receiver.received == [matches(0)[0].to_json()] * 2, "the one whose answer got lost, and the last"
    assert len(receiver.requests) == 5


def test_a_webhook_that_refuses_is_a_failure_and_the_matches_are_kept(receiver: Receiver) -> None:
    receiver.answers = [(404, {})]
    with opened(kind="webhook", url=receiver.url) as sink:
        sink.write(matches(0))
        with pytest.raises(Failure, match=r"it answered 404 Not Found; 1 matches are kept"):
            sink.commit({})
        sink.commit({})
    assert len(receiver.received) == 1


def test_a_webhook_that_is_down_is_waited_for() -> None:
    port = free_port()
    with opened(kind="webhook", url=f"http://127.0.0.1:{port}/") as sink:
        sink.write(matches(0))
        committing = in_background(lambda: sink.commit({}))
        wait(lambda: "no connection" in str(sink.trouble), lambda: sink.trouble)
        receiver = Receiver(port)
        committing.join(SECONDS)
        receiver.close()
    assert len(receiver.received) == 1
    assert sink.trouble is None


def test_a_webhook_says_when_its_patience_is_over() -> None:
    with opened(kind="webhook", url=f"http://127.0.0.1:{free_port()}/", patience="1ms") as sink:
        sink.write(matches(0))
        with pytest.raises(Failure, match=r"1 matches could not be sent: .* no connection"):
            sink.commit({})


def test_a_webhook_that_never_answers_is_not_waited_for_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kaicep.connectors.sinks.webhook._ANSWER", 3_600.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        opened(kind="webhook", url=f"http://127.0.0.1:{silent.getsockname()[1]}/", patience="300ms") as sink,
    ):
        failures: list[Failure] = []

        def commit() -> None:
            with pytest.raises(Failure, match="1 matches could not be sent") as caught:
                sink.commit({})
            failures.append(caught.value)

        sink.write(matches(0))
        committing = in_background(commit, daemon=True)
        committing.join(SECONDS)
        assert failures


def test_a_webhook_gets_its_token_from_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "tell nobody")
    with opened(kind="webhook", url=receiver.url, token="HOOK") as sink:
        sink.write(matches(0))
        sink.commit({})
    assert receiver.requests[0][1]["Authorization"] == "Bearer tell nobody"


@pytest.mark.parametrize(
    ("url", "message"),
    [("example.org/x", "is not a web address"), ("https://me:pass@example.org/", "not put a password into")],
)
def test_an_address_that_is_none_is_a_mistake(url: str, message: str) -> None:
    with pytest.raises(Mistake, match=message) as caught:
        make_sink("out", {"kind": "webhook", "url": url})
    assert "me:pass" not in str(caught.value)
