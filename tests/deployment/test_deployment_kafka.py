"""A deployment on Kafka, killed under load: every match is told, and by its id one knows what came twice."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deployment.processes import kaicep, matches, spawn, wait_for, write
from tests.servers import Broker, make_topics, need

from kaicep.archive.archive import Archive
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment

need("confluent_kafka")
pytestmark = [pytest.mark.random, pytest.mark.servers, pytest.mark.slow]

KILLS = int(os.environ.get("KAICEP_KILLS", "2"))
RISE = (
    "SELECT ?a.k, ?b.x - ?a.x AS rise FROM (?a, s), (?b, s) WITHIN [2012-01-01, ) WHERE JOIN (?b.k = ?a.k) "
    "JOIN (?b.x - ?a.x > 800) SEQ (?a, ?b) WINDOW (?a, ?b, 5s)"
)


class Topics:
    """Two topics for a test: events of two partitions come in by one, matches go out by the other."""

    def __init__(self, servers: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.servers = servers
        self.events, self.matches = (f"{each}-{uuid.uuid4().hex[:8]}" for each in ("events", "matches"))
        self.admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        make_topics(servers, {self.events: 2, self.matches: 1})
        self.producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        self.sent: dict[int, list[str]] = {0: [], 1: []}

    def send(self, seq: int) -> None:
        chance = random.Random(seq)
        part = chance.randrange(2)
        ts = 1336381200 + (seq + chance.choice((0, 0, -3, -30))) * 0.05
        text = json.dumps({"ts": ts, "k": f"k{chance.randrange(12)}", "x": chance.randrange(1000)})
        self.sent[part].append(text)
        self.producer.produce(self.events, text, partition=part)

    @contextmanager
    def load(self) -> Iterator[None]:
        over = threading.Event()

        def produce() -> None:
            seq = 0
            while not over.wait(0.02):
                for _ in range(5):
                    self.send(seq)
                    seq += 1
                self.producer.flush(30)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def told(self) -> list[str]:
        """The ids of the matches that somebody who reads the topic sees."""
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer({"bootstrap.servers": self.servers, "group.id": "reader", "log_level": 0})
        _, end = reader.get_watermark_offsets(TopicPartition(self.matches, 0), timeout=30)
        reader.assign([TopicPartition(self.matches, 0, 0)])
        found: list[str] = []
        while len(found) < end:
            message = reader.poll(1.0)
            if message is not None and message.error() is None:
                found.append(json.loads(message.value() or b"")["id"])
        reader.close()
        return found


def toml(topics: Topics, extra: str = "") -> str:
    return f"""
tick = "20ms"
[streams.s]
lateness = "500ms"
source = {{kind = "kafka", servers = "{topics.servers}", topic = "{topics.events}"{extra}}}
[sinks.out]
kind = "files"
path = "out.jsonl"
[sinks.others]
kind = "kafka"
servers = "{topics.servers}"
topic = "{topics.matches}"
"""


def test_killed_under_load_every_match_is_told(kafka: str, tmp_path: Path) -> None:
    topics, chance = Topics(kafka), random.Random(5)
    write(tmp_path, {"kaicep.toml": toml(topics), "queries/rise.chi": RISE})
    commit = tmp_path / ".out.jsonl.commit"
    with topics.load():
        for _ in range(KILLS):
            before = commit.read_bytes() if commit.exists() else b""
            process = spawn(tmp_path, "run")
            try:
                wait_for(lambda old=before: commit.exists() and commit.read_bytes() != old, tmp_path, process)
                threading.Event().wait(chance.uniform(0, 0.5))
            finally:
                process.kill()
                process.wait()
    write(tmp_path, {"kaicep.toml": toml(topics, ", follow = false")})
    done = kaicep(tmp_path, "run")
    assert done.returncode == 0, done.stderr
    write(tmp_path, {f"s/{part}.jsonl": "\n".join(lines) + "\n" for part, lines in topics.sent.items()})
    wanted = kaicep(tmp_path, "match", "queries/rise.chi", "--stream", "s=s", "--lateness", "500ms")
    ids = sorted(json.loads(each)["id"] for each in wanted.stdout.splitlines())
    assert len(ids) > 20
    told = matches(tmp_path / "out.jsonl")
    assert sorted(each["id"] for each in told) == ids
    assert [each["end"] for each in told] == sorted(each["end"] for each in told)
    assert sorted(set(topics.told())) == ids
    archive = Archive(tmp_path / "state" / "archive")
    held = sorted((each.part, each.seq) for each in archive.snapshot().events("s"))
    assert held == [(part, seq) for part, lines in topics.sent.items() for seq in range(len(lines))]


def test_a_broker_that_is_started_again_doubles_and_loses_nothing(own_broker: Broker, tmp_path: Path) -> None:
    """Sources and sinks wait for it; whatever it gives again after that is known by its position."""
    own_broker.start()
    topics = Topics(own_broker.address)
    folder = tmp_path / "run"
    write(folder, {"kaicep.toml": toml(topics), "queries/rise.chi": RISE})
    made = Deployment(load_config(folder / "kaicep.toml"))
    made.open()
    try:
        for first in (0, 60):
            for seq in range(first, first + 60):
                topics.send(seq)
            topics.producer.flush(30)
            while made.feeds["s"].counts.events < first + 60:
                made.tick()
            own_broker.stop()
            made.tick()
            own_broker.start()
            made.feeds["s"]._source.close()
            made.feeds["s"]._source = made.feeds["s"].config.open_source()
            made.feeds["s"]._source.open(dict.fromkeys((0, 1), 0), None)  # all of it, once more
        while made.tick():
            pass
        made.drain()
    finally:
        made.close()
    archive = Archive(folder / "state" / "archive")
    held = sorted((each.part, each.seq) for each in archive.snapshot().events("s"))
    assert held == [(part, seq) for part, lines in topics.sent.items() for seq in range(len(lines))]
    write(folder, {f"s/{part}.jsonl": "\n".join(lines) + "\n" for part, lines in topics.sent.items()})
    wanted = kaicep(folder, "match", "queries/rise.chi", "--stream", "s=s", "--lateness", "500ms")
    whole = [json.loads(each)["id"] for each in wanted.stdout.splitlines()]
    told = [each["id"] for each in matches(folder / "out.jsonl")]
    assert told == whole[: len(told)]
    assert len(told) > 5


def test_what_the_broker_has_removed_is_told_and_the_rest_goes_on(
    kafka: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import TopicPartition

    topics = Topics(kafka)
    every = "SELECT ?e.x FROM (?e, s) WITHIN [2012-01-01, )"
    for seq in range(20):
        topics.send(seq)
    topics.producer.flush(30)
    extra = ', follow = false, expired = "continue"'
    write(tmp_path, {"kaicep.toml": toml(topics, extra), "queries/every.chi": every})
    Deployment(load_config(tmp_path / "kaicep.toml")).run()
    first = len(matches(tmp_path / "out.jsonl"))
    for seq in range(20, 60):
        topics.send(seq)
    topics.producer.flush(30)
    held = len([each for each in topics.sent[0] if each]) - 5
    for each in topics.admin.delete_records([TopicPartition(topics.events, 0, held)]).values():
        each.result(30)
    write(tmp_path, {"queries/again.chi": every})
    caplog.set_level(logging.INFO)
    running = Deployment(load_config(tmp_path / "kaicep.toml"))
    running.run()
    lost = running.feeds["s"].status()["lost"]
    assert [(each["part"], each["to"]) for each in lost] == [(0, held)]
    assert "are lost: the source no longer has them" in caplog.text
    again = [each for each in matches(tmp_path / "out.jsonl") if each["query"] == "again"]
    assert len(again) >= first + 5
