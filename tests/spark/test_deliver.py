"""Streams whose engine is in the driver: the same matches, exactly once, with knowledge that changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai

pytestmark = pytest.mark.spark

PAIR = "SELECT ?a.x AS x, ?b.x AS y FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"
SCHEMA = "seq bigint, ts bigint, x bigint, k string"
ROWS = [(0, 0, 1, "p"), (1, 5, 2, "q"), (2, 12, 3, "p"), (3, 11, 4, "q"), (4, 100, 5, "q")]


class Kept:
    """A sink that keeps each micro-batch once, and fails when it is told to."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.fails_at: int | None = None

    def __call__(self, number: int, matches: list[kai.Match]) -> None:
        lines = [match.to_json() for match in matches]
        assert self.batches.setdefault(number, lines) == lines
        if number == self.fails_at:
            raise OSError("the disk is full")

    @property
    def lines(self) -> list[str]:
        return [line for number in sorted(self.batches) for line in self.batches[number]]


def delivered(spark: Any, query: Any, folder: Path, rows: list[Any], sink: Kept, **options: Any) -> None:
    """Adds a file, and lets the stream take it."""
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(folder / "events"))
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "events"))
    checkpoint = folder / "checkpoint"
    running = kai.spark.deliver(
        events, query, sink, lateness="2s", checkpoint=checkpoint, availableNow=True, **options
    )
    running.awaitTermination()


def test_a_batch_that_failed_is_taken_up_again(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(PAIR, streams={"s": {"x": "int64"}})
    sink = Kept()
    delivered(spark, query, tmp_path, ROWS[:2], sink)
    sink.fails_at = 1
    with pytest.raises(Exception, match="the disk is full"):
        delivered(spark, query, tmp_path, ROWS[2:4], sink)
    sink.fails_at = None
    delivered(spark, query, tmp_path, ROWS[4:], sink)
    events = [{"ts": ts, "x": x} for _, ts, x, _ in ROWS]
    wanted = [match.to_json() for match in kai.run(query, events, lateness="2s")]
    assert sink.lines == wanted
    assert len(wanted) == 4


@pytest.mark.parametrize("engine", ["driver", "workers"])
def test_what_is_unknown_of_an_event_is_not_used(engine: str, spark: Any, tmp_path: Path) -> None:
    query = kai.compile("SELECT ?e.x FILTER (?e.x > 1)", streams={"s": {"x": "int64"}})
    rows = [(0, 0, None, "p"), (1, 1, 2, "p"), (2, 2, None, "p"), (3, 100, 1, "p")]
    sink = Kept()
    delivered(spark, query, tmp_path, rows, sink, engine=engine)
    assert [json.loads(line)["select"] for line in sink.lines] == [{"x": 2}]


def test_knowledge_may_change_while_the_stream_runs(spark: Any, tmp_path: Path) -> None:
    knowledge = kai.Knowledge.parse("<urn:p> <urn:in> <urn:r1> . <urn:q> <urn:in> <urn:r2> .")
    annotation = {
        "stream": "s",
        "prefixes": {"": "urn:"},
        "entities": {"k": {"property": ":from", "iri": ":{value}"}},
    }
    query = kai.compile(
        "SELECT ?e.x FROM (?e, s) WHERE PATH {?e :from ?k . ?k :in :r1}",
        knowledge=knowledge,
        annotations=[annotation],
        streams={"s": {"x": "int64", "k": "string"}},
    )
    folder = tmp_path / "events"
    sink = Kept()
    spark.createDataFrame(ROWS[:3], SCHEMA).coalesce(1).write.parquet(str(folder))
    events = spark.readStream.schema(SCHEMA).parquet(str(folder))
    running = kai.spark.deliver(events, query, sink, lateness=0, checkpoint=tmp_path / "checkpoint")
    try:
        running.processAllAvailable()
        knowledge.update(add="<urn:q> <urn:in> <urn:r1> .")
        spark.createDataFrame([(5, 200, 6, "q"), (6, 300, 7, "z")], SCHEMA).coalesce(1).write.mode(
            "append"
        ).parquet(str(folder))
        running.processAllAvailable()
    finally:
        running.stop()
    assert ['"x": 1' in line for line in sink.batches[0]] == [True]
    assert any('"x": 6' in line and '"knowledge": 1' in line for line in sink.lines)


KEYED = PAIR.replace("SEQ", "WHERE JOIN (?a.k = ?b.k) SEQ").replace("10s", "100s")


def test_the_engines_on_workers_deliver_the_same_in_the_same_order(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(KEYED, streams={"s": {"x": "int64", "k": "string"}})
    rows = [(seq, seq * 2, seq * 37 % 11, "pqrstu"[seq * 5 % 6]) for seq in range(60)]
    lines: dict[str, list[str]] = {}
    for engine in ("driver", "workers"):
        sink = Kept()
        delivered(spark, query, tmp_path / engine, rows[:30], sink, engine=engine)
        if engine == "workers":
            sink.fails_at = 1
            with pytest.raises(Exception, match="the disk is full"):
                delivered(spark, query, tmp_path / engine, rows[30:45], sink, rate=1e6)
            sink.fails_at = None
        else:
            delivered(spark, query, tmp_path / engine, rows[30:45], sink, rate=10)
        last = [*rows[45:], (60, 300, 0, "z")]
        delivered(spark, query, tmp_path / engine, last, sink, engine=engine)
        lines[engine] = sink.lines
    assert lines["driver"] == lines["workers"]
    ends = [json.loads(line)["end"] for line in lines["workers"]]
    assert ends == sorted(ends)
    assert len(ends) > 200


def test_over_connect_it_says_where_the_function_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaicep.hosts.spark import deliver, session

    events = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    query = kai.compile(PAIR, streams={"s": {"x": "int64", "k": "string", "ts": "timestamp"}})
    monkeypatch.setattr(deliver, "deliver", lambda *given: None)
    monkeypatch.setattr(session, "is_connect", lambda session: True)
    with pytest.warns(UserWarning, match="over Spark Connect the function runs in the server"):
        kai.spark.deliver(events, query, print, lateness="1s", checkpoint=tmp_path / "checkpoint")


def test_a_wrong_engine_is_told(spark: Any, tmp_path: Path) -> None:
    query = kai.compile(PAIR, streams={"s": {"x": "int64"}})
    with pytest.raises(kai.Mistake, match="there is no engine drivers"):
        delivered(spark, query, tmp_path, ROWS, Kept(), engine="drivers")
