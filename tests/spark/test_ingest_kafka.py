"""A topic by Spark: as DataFrames, into the archive, as a job that goes on; and what can go wrong with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.test_kafka_source import Topic
from tests.servers import Broker, need
from tests.spark.test_ingest import LATENESS, contents, lines
from tests.spark.test_ingest_files import Steps
from typer.testing import CliRunner

import kaicep as kai
from kaicep.archive.archive import Archive
from kaicep.cli import archive as cli
from kaicep.cli.main import app
from kaicep.connectors import kafka_offsets
from kaicep.connectors.kafka import KafkaSourceOptions
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake
from kaicep.ingest import files as inprocess
from kaicep.ingest import on_spark
from kaicep.knowledge.annotation import load_annotations

need("confluent_kafka")
need("pyspark")

from kaicep.connectors.kafka_spark import kafka_frame, kafka_stream  # noqa: E402
from kaicep.ingest.on_spark import follow  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.servers]

FORM = Form("meter")
ROOT = Path(__file__).parent.parent.parent


def of(topic: Topic) -> KafkaSourceOptions:
    return KafkaSourceOptions(topic.servers, topic.name)


def rows(topic: Topic, count: int, part: int = 0, seed: int = 1) -> None:
    topic.send(*(each.encode() for each in lines(count, seed)), part=part)


def started(rows: Any, folder: Path, topic: Topic, archive: str = "S", **trigger: Any) -> Any:
    trigger = trigger or {"availableNow": True}
    query = follow(rows, Archive(folder / archive), FORM, of(topic), folder / "checkpoint", LATENESS, trigger)
    if "availableNow" in trigger:
        query.awaitTermination()
    return query


class TestDataFrames:
    def test_the_records_between_two_offsets(self, spark: Any, kafka: str) -> None:
        topic = Topic(kafka, 2)
        topic.send(*({"n": at} for at in range(20)))
        topic.send(*({"n": -at} for at in range(9)), part=1)
        found = kafka_frame(spark, of(topic), {0: 10, 1: 5}, {0: 20, 1: 7}).orderBy("part", "seq").collect()
        assert [(row["part"], row["seq"]) for row in found] == [
            *((0, at) for at in range(10, 20)),
            (1, 5),
            (1, 6),
        ]
        assert [json.loads(bytes(row["value"]))["n"] for row in found[:2]] == [10, 11]
        assert kafka_frame(spark, of(topic)).count() == 29

    def test_offsets_that_have_expired(self, spark: Any, kafka: str) -> None:
        topic = Topic(kafka)
        topic.send(*({"n": at} for at in range(20)))
        topic.expire(8)
        with pytest.raises(Exception, match=r"partition 0: offsets 3 to 7 have expired.*nothing was skipped"):
            kafka_frame(spark, of(topic), {0: 3}, {0: 10}).collect()
        assert kafka_frame(spark, of(topic), {0: 8}, {0: 10}).count() == 2

    def test_offsets_that_are_not_there_yet(self, spark: Any, kafka: str) -> None:
        topic = Topic(kafka)
        topic.send({"n": 1})
        with pytest.raises(Exception, match="ends at 1, and was to be read up to 5"):
            kafka_frame(spark, of(topic), {0: 0}, {0: 5}).collect()

    def test_a_stream_goes_on_where_it_stopped(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka, 2)

        def taken(name: str, of_topic: Topic = topic) -> list[tuple[int, int]]:
            stream = kafka_stream(spark, of(of_topic), most=4).writeStream.format("parquet")
            stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = stream.trigger(availableNow=True).start(str(tmp_path / name))
            query.awaitTermination()
            assert all(each["numInputRows"] <= 4 for each in query.recentProgress)
            found = spark.read.parquet(str(tmp_path / name)).orderBy("part", "seq").collect()
            return [(row["part"], row["seq"]) for row in found]

        topic.send(*({"n": at} for at in range(6)))
        assert taken("a") == [(0, at) for at in range(6)]
        topic.send({"n": 1}, part=1)
        topic.send({"n": 6})
        assert taken("a") == [*((0, at) for at in range(7)), (1, 0)]
        other = Topic(kafka)
        other.send({"n": 1})
        with pytest.raises(Exception, match=f"the checkpoint is of topic {topic.name}, and the stream reads"):
            taken("b", other)


TYPES = {"kW": "float64", "n": "int64", "name": "string", "on": "bool"}


class TestTypedColumns:
    """JSON values become columns where they are read, as the archive reads them."""

    GOOD = ('{"at": "2024-01-01T00:00:00Z", "kW": 1.5, "n": 3, "name": "a", "on": true}',)
    VALUES = (
        *GOOD,
        '{"at": 1704067201, "kW": 2, "other": [1]}',
        '{"at": 1704067202.5, "kW": "NaN", "n": null}',
        "not JSON",
        '{"kW": 1}',
        '{"at": 1704067203, "n": 1.5}',
        None,
    )

    def test_they_are_what_the_archive_has(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka, 2)
        for part in (0, 1):
            topic.send(*(None if each is None else each.encode() for each in self.VALUES), part=part)
        note = tmp_path / "annotation.json"
        note.write_text(json.dumps({"stream": "meter", "time": "at", "types": TYPES}))
        frame = kai.spark.kafka(spark, topic.servers, topic.name, annotation=note)
        assert frame.columns == ["part", "seq", *TYPES, "at", "dead"]
        found = [row.asDict() for row in frame.orderBy("part", "seq").collect()]
        (said,) = load_annotations(note)
        inprocess.ingest(Archive(tmp_path / "A"), Form.of("meter", said), of(topic))
        archive = Archive(tmp_path / "A")
        wanted = [(e.part, e.seq, e.values) for e in archive.snapshot().events("meter")]
        moment = found[0]["at"].replace(tzinfo=UTC)
        assert moment == datetime(2024, 1, 1, tzinfo=UTC)
        good = [each for each in found if each["dead"] is None]
        shown = [(e["part"], e["seq"], {name: e[name] for name in TYPES}) for e in good]
        told = [(part, seq, {name: values.get(name) for name in TYPES}) for part, seq, values in wanted]
        assert shown == sorted(told, key=lambda each: each[:2])
        dead = {(e["part"], e["seq"]): e["dead"] for e in found if e["dead"] is not None}
        letters = archive.dead_letters.read()
        assert dead == {(e["part"], e["seq"]): e["reason"] for e in letters}
        assert len(dead) == 8

    def test_a_stream_of_them_is_matched(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka)
        topic.send(*(json.dumps({"ts": at, "n": at % 5}).encode() for at in range(40)), b"{}")
        types = {"n": "int64"}
        query = kai.compile("SELECT ?e.n FILTER (?e.n > 3)", name="q", streams={"s": types})
        events = kai.spark.kafka(spark, topic.servers, topic.name, streaming=True, types=types, most=15)
        found: dict[int, list[kai.Match]] = {}
        running = kai.spark.deliver(
            events.where("dead IS NULL"),
            query,
            found.__setitem__,
            lateness=0,
            checkpoint=tmp_path / "checkpoint",
            availableNow=True,
        )
        running.awaitTermination()
        matches = [match.to_json() for some in found.values() for match in some]
        wanted = kai.run(query, [{"ts": at, "n": at % 5} for at in range(40)])
        assert matches == [match.to_json() for match in wanted][: len(matches)]
        assert len(matches) == 7  # of 8: what comes with the last instant is not certain yet

    @pytest.mark.parametrize(
        ("types", "said"),
        [({"n": "int"}, "n: there is no type int"), ({"seq": "int64"}, "a column seq is there already")],
    )
    def test_a_wrong_column_is_a_mistake(self, types: dict[str, str], said: str, spark: Any) -> None:
        with pytest.raises(Mistake, match=said):
            kai.spark.kafka(spark, "localhost:1", "t", types=types)


class TestIngest:
    def test_the_same_as_in_process(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka, 2)
        rows(topic, 60)
        rows(topic, 40, 1, seed=2)
        for wanted in (100, 30):
            done = on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, of(topic), LATENESS)
            again = inprocess.ingest(Archive(tmp_path / "P"), FORM, of(topic), LATENESS)
            assert contents(tmp_path / "S") == contents(tmp_path / "P")
            assert done == again
            assert done.rows + len(done.dead) == wanted
            assert done.behind == 0
            rows(topic, 30, 1, seed=3)

    def test_what_has_expired_is_told(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka)
        rows(topic, 20)
        archive = Archive(tmp_path / "S")
        on_spark.ingest(spark, archive, FORM, of(topic))
        rows(topic, 20)
        topic.expire(25)
        for take in (
            lambda: on_spark.ingest(spark, archive, FORM, of(topic)),
            lambda: inprocess.ingest(archive, FORM, of(topic)),
        ):
            with pytest.raises(Failure, match="offsets 20 to 24 have expired"):
                take()
        assert archive.stream("meter").positions == {0: 20}

    def test_a_topic_whose_beginning_is_gone_begins_later(
        self, spark: Any, kafka: str, tmp_path: Path
    ) -> None:
        topic = Topic(kafka)
        rows(topic, 20)
        topic.expire(15)
        assert on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, of(topic)).positions == {0: 20}

    def test_a_topic_that_disappears(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka)
        rows(topic, 20)
        archive = Archive(tmp_path / "S")
        on_spark.ingest(spark, archive, FORM, of(topic))
        topic.delete()
        with pytest.raises(Mistake, match="there is none on"):
            on_spark.ingest(spark, archive, FORM, of(topic))
        assert len(contents(tmp_path / "S")[0]) > 15

    @pytest.mark.night
    def test_a_broker_that_comes_later(
        self, spark: Any, own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own_broker.start()
        topic = Topic(own_broker.address)
        rows(topic, 20)
        own_broker.stop()
        heard: list[str] = []

        def waiting(trouble: str) -> None:
            if not heard:
                threading.Thread(target=own_broker.start).start()
            heard.append(trouble)

        done = on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, of(topic), waiting=waiting)
        assert done.positions == {0: 20}
        assert "cannot be reached" in heard[0]
        own_broker.stop()
        monkeypatch.setattr(kafka_offsets, "PATIENCE", 0.1)
        with pytest.raises(Failure, match=r"cannot be reached.*waited"):
            on_spark.ingest(spark, Archive(tmp_path / "S"), FORM, of(topic))


class TestAJobThatGoesOn:
    def test_gives_what_ingest_gives(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka, 2)
        rows(topic, 50)
        started(kafka_stream(spark, of(topic), most=20), tmp_path, topic)
        rows(topic, 30, 1, seed=2)
        rows(topic, 30, seed=3)
        query = started(kafka_stream(spark, of(topic)), tmp_path, topic, processingTime="0 seconds")
        try:
            deadline = time.monotonic() + 300
            while Archive(tmp_path / "S").stream("meter").positions != {0: 80, 1: 30}:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            query.stop()
        inprocess.ingest(Archive(tmp_path / "P"), FORM, of(topic), LATENESS)
        assert contents(tmp_path / "S") == contents(tmp_path / "P")

    def test_leaves_out_what_the_archive_has_already(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        topic = Topic(kafka)
        rows(topic, 30)
        inprocess.ingest(Archive(tmp_path / "S"), FORM, of(topic), LATENESS)
        before = contents(tmp_path / "S")
        started(kafka_stream(spark, of(topic)), tmp_path, topic)
        assert contents(tmp_path / "S") == before

    def test_refuses_what_does_not_go_together(self, spark: Any, kafka: str, tmp_path: Path) -> None:
        """A checkpoint with another archive; a stream that begins beyond what the archive holds."""
        topic = Topic(kafka)
        rows(topic, 30)
        started(kafka_stream(spark, of(topic)), tmp_path, topic)
        rows(topic, 10)
        with pytest.raises(Exception, match=r"is of table .*give each ingest a checkpoint of its own"):
            started(kafka_stream(spark, of(topic)), tmp_path, topic, "another")
        with pytest.raises(Exception, match="holds part 0 up to position 30, and the stream begins at 35"):
            started(kafka_stream(spark, of(topic), {0: 35}), tmp_path / "new", topic, "../S")

    def test_as_one_types_it(
        self, spark: Any, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It begins where the archive ends, goes on with what comes, and says how it goes."""
        topic = Topic(kafka, 2)
        rows(topic, 50)
        for archive in "SP":
            inprocess.ingest(Archive(tmp_path / archive), FORM, of(topic), LATENESS)
        rows(topic, 20, 1, seed=2)

        def more() -> bool:
            if Archive(tmp_path / "S").stream("meter").positions != {0: 50, 1: 20}:
                return False
            rows(topic, 30, seed=3)
            return True

        def all_of_it() -> bool:
            return Archive(tmp_path / "S").stream("meter").positions == {0: 80, 1: 20}

        monkeypatch.setattr(cli, "time", Steps(more, all_of_it))
        monkeypatch.setattr(cli, "_EVERY", 0.0)
        words = ["ingest", "--stream", f"meter=kafka://{topic.servers}/{topic.name}", "--lateness", "3s"]
        words += ["--archive", str(tmp_path / "S"), "--host", "spark", "--follow"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
        inprocess.ingest(Archive(tmp_path / "P"), FORM, of(topic), LATENESS)
        assert contents(tmp_path / "S") == contents(tmp_path / "P")
        assert re.search(r"^meter: [\d,]+ new, [\d,]+/s, 0 behind$", done.stderr, re.MULTILINE)


@pytest.mark.night
def test_with_sparks_own_connector_everything_is_the_same(kafka: str, tmp_path: Path) -> None:
    """In a process of its own, since jars cannot be added to a session that runs."""
    if not (mvn := shutil.which("mvn")):
        pytest.skip("Spark's connector comes by Maven, which is not installed")
    pom, jars = ROOT / "scripts" / "spark-kafka-pom.xml", tmp_path / "jars"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    subprocess.run([mvn, "-B", "-q", "-f", str(pom), *goal], check=True, capture_output=True)
    topic = Topic(kafka, 2)
    rows(topic, 60)
    rows(topic, 40, 1, seed=2)
    topic.expire(5)
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("connector_driver.py")),
            jars,
            kafka,
            topic.name,
            tmp_path,
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("identities") == [*([0, at] for at in range(10, 20)), [1, 5], [1, 6]]
    assert "partition 0: offsets 0 to 4 have expired" in found.pop("expired")
    assert found == {"connector": True, "ingested": True, "followed": True}
