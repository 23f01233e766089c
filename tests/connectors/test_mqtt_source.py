"""MQTT as a source, against a real broker: what is acknowledged is durable, what is missed is kept."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.connectors import messages
from tests.connectors.mqtt_by_hand import PUBACK, BrokerByHand
from tests.servers import Mosquitto, need

from kaicep.connectors.contract import Position, SourceBatch
from kaicep.connectors.log import Log
from kaicep.connectors.mqtt import MqttSource
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.plan.rdf_text import FORMATS
from kaicep.processes import bound

need("paho.mqtt")
pytestmark = pytest.mark.servers

SECONDS = 120.0


@pytest.fixture
def name() -> str:
    """A topic, and the name of a session, of the test's own."""
    return f"t{uuid.uuid4().hex[:8]}"


@contextmanager
def subscribed(
    server: str, name: str, log: Path, position: Position | None = None, **options: object
) -> Iterator[MqttSource]:
    table = {"kind": "mqtt", "server": server, "topic": f"{name}/#", "log": str(log), "client": name}
    with make_source(Form("s"), {**table, **options}) as source:
        assert isinstance(source, MqttSource)
        source.open(position)
        yield source


def ready(source: MqttSource) -> None:
    wait(lambda: source.trouble is None, lambda: source.trouble)


def wait(done: Callable[[], bool], why: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def publish(server: str, topic: str, *payloads: object) -> None:
    """Publishes, and returns when the broker has everything."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    host, _, port = server.partition(":")
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect(host, int(port))
    client.loop_start()
    for each in payloads:
        body = each if isinstance(each, bytes) else json.dumps(each)
        client.publish(topic, body, qos=1).wait_for_publish(SECONDS)
    client.disconnect()
    client.loop_stop()


def take(source: MqttSource, count: int) -> list[SourceBatch]:
    """Batches with that many records in all."""
    batches: list[SourceBatch] = []
    deadline = time.monotonic() + SECONDS
    while sum(len(each.events) + len(each.dead) for each in batches) < count:
        assert time.monotonic() < deadline, (source.trouble, batches)
        batches.append(source.next_batch(0.2))
    return batches


def xs(batches: list[SourceBatch]) -> list[object]:
    return [each.values["x"] for batch in batches for each in batch.events]


def test_messages_get_their_numbers_as_they_come(mosquitto: str, name: str, tmp_path: Path) -> None:
    with subscribed(mosquitto, name, tmp_path, topic_as="topic") as source:
        ready(source)
        publish(mosquitto, f"{name}/a", {"ts": 1, "x": 1}, b"oops")
        publish(mosquitto, f"{name}/b", {"ts": 2, "x": 2})
        batches = take(source, 3)
    events = [each for batch in batches for each in batch.events]
    assert [(each.part, each.seq, each.values["topic"]) for each in events] == [
        (0, 0, f"{name}/a"),
        (0, 2, f"{name}/b"),
    ]
    [dead] = [each for batch in batches for each in batch.dead]
    assert (dead.seq, dead.file, dead.record_text) == (1, f"mqtt {name}/a", "oops")


def test_what_is_published_while_we_are_away_comes_when_we_are_back(
    mosquitto: str, name: str, tmp_path: Path
) -> None:
    with subscribed(mosquitto, name, tmp_path) as source:
        ready(source)
        publish(mosquitto, f"{name}/a", {"ts": 1, "x": 1})
        position = take(source, 1)[-1].position
    publish(mosquitto, f"{name}/a", {"ts": 2, "x": 2}, {"ts": 3, "x": 3})
    with subscribed(mosquitto, name, tmp_path, position) as source:
        batches = take(source, 2)
        assert xs(batches) == [2, 3]
        assert batches[-1].position == {0: 3}


def test_the_log_gives_again_what_was_acknowledged(mosquitto: str, name: str, tmp_path: Path) -> None:
    with subscribed(mosquitto, name, tmp_path) as source:
        ready(source)
        publish(mosquitto, f"{name}/a", {"ts": 1, "x": 1}, {"ts": 2, "x": 2})
        take(source, 2)
    with subscribed(mosquitto, name, tmp_path, {0: 1}) as source:
        assert xs(take(source, 1)) == [2]


def test_a_reader_that_does_not_keep_up_leaves_the_rest_with_the_broker(
    mosquitto: str, name: str, tmp_path: Path
) -> None:
    count = 100
    with subscribed(mosquitto, name, tmp_path, backlog=10) as source:
        ready(source)
        publish(mosquitto, f"{name}/a", *[{"ts": each, "x": each} for each in range(count)])
        assert source.backlog < count
        assert xs(take(source, count)) == list(range(count))


def test_a_log_that_cannot_be_written_loses_nothing(
    mosquitto: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with subscribed(mosquitto, name, tmp_path) as source:
        ready(source)
        monkeypatch.setattr("kaicep.connectors.log.os.pwrite", full)
        publish(mosquitto, f"{name}/a", {"ts": 1, "x": 1})
        wait(lambda: "No space left" in str(source.trouble), lambda: source.trouble)
        monkeypatch.undo()
        assert xs(take(source, 1)) == [1]
        ready(source)


def test_a_broker_that_is_down_is_waited_for(own_mosquitto: Mosquitto, name: str, tmp_path: Path) -> None:
    """Down at the start, then down in the middle; the broker keeps its sessions on disk."""
    with subscribed(own_mosquitto.address, name, tmp_path / "log") as source:
        assert not source.next_batch(0.2)
        assert source.trouble == f"{own_mosquitto.address} has not answered yet"
        own_mosquitto.start()
        ready(source)
        publish(own_mosquitto.address, f"{name}/a", {"ts": 1, "x": 1})
        assert xs(take(source, 1)) == [1]
        own_mosquitto.stop()
        wait(lambda: source.trouble is not None, lambda: "it should notice")
        own_mosquitto.start()
        publish(own_mosquitto.address, f"{name}/a", {"ts": 2, "x": 2})
        given = xs(take(source, 1))
        if given == [1]:  # the broker was gone before it was acknowledged
            given = xs(take(source, 1))
        assert given == [2]


def test_a_message_is_acknowledged_on_its_own_connection_or_not_at_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the next connection its number may be that of another message, which is not on the disk yet."""
    written, go_on = threading.Event(), threading.Event()
    append = Log.append

    def slow_disk(log: Log, records: Sequence[bytes]) -> range:
        written.set()
        assert go_on.wait(SECONDS)
        return append(log, records)

    broker = BrokerByHand()
    with subscribed(broker.address, name, tmp_path) as source:
        with broker.connection() as connection:
            connection.accept()
            connection.subscribe()
            monkeypatch.setattr(Log, "append", slow_disk)
            connection.publish(f"{name}/a", 1, b'{"ts": 1, "x": 1}')
            assert written.wait(SECONDS)
        with broker.connection() as connection:
            go_on.set()
            assert connection.silent()
            connection.accept()
            connection.subscribe()
            connection.publish(f"{name}/a", 1, b'{"ts": 2, "x": 2}')
            assert connection.read(PUBACK).number == b"\0\1"
            assert xs(take(source, 2)) == [1, 2]
    broker.close()


@pytest.mark.slow
def test_what_was_acknowledged_survives_kill_9(mosquitto: str, name: str, tmp_path: Path) -> None:
    """The broker forgets a message once it is acknowledged; then it is in the log. Some may be twice."""
    program = """
        import sys, threading
        from kaicep.connectors.registry import make_source
        from kaicep.connectors.shape import Form
        server, name, log = sys.argv[1:]
        table = {"kind": "mqtt", "server": server, "topic": name + "/#", "log": log, "client": name}
        source = make_source(Form("s"), table)
        source.open()
        while True:
            if source.next_batch(0.1):
                print(source.position[0], flush=True)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program), mosquitto, name, str(tmp_path)]
    with subscribed(mosquitto, name, tmp_path) as source:
        ready(source)
    count = 0
    for _ in range(3):
        publish(mosquitto, f"{name}/a", *[{"ts": 1, "x": count + each} for each in range(60)])
        count += 60
        process = subprocess.Popen(bound(arguments), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.kill()
        process.wait()
    with subscribed(mosquitto, name, tmp_path) as source:
        seen: set[object] = set()
        deadline = time.monotonic() + SECONDS
        while seen < set(range(count)) and time.monotonic() < deadline:
            seen |= set(xs([source.next_batch(0.2)]))
    assert seen == set(range(count))


@pytest.mark.parametrize("format", FORMATS)
def test_messages_may_be_documents_of_rdf(mosquitto: str, name: str, tmp_path: Path, format: str) -> None:
    table = {"kind": "mqtt", "server": mosquitto, "topic": name, "log": str(tmp_path), "client": name}
    with make_source(messages.form(format), table) as source:
        assert isinstance(source, MqttSource)
        source.open()
        ready(source)
        publish(mosquitto, name, *messages.messages(format))
        messages.check(take(source, 4))
    with make_source(messages.form(format), table) as source:  # read again from the log
        assert isinstance(source, MqttSource)
        source.open({0: 0})
        messages.check(take(source, 4))
