"""What is seen of Spark while it works: the status of a deployment, and of streams in a session."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.spark.deployed import QUERIES, laid_out

import kaicep as kai
from kaicep.cli.deployment import lines_of
from kaicep.deployment import spark_step
from kaicep.deployment.config import load_config
from kaicep.deployment.on_spark import SparkDeployment
from kaicep.server.app import as_prometheus

pytestmark = pytest.mark.spark


def test_a_deployment_says_what_its_micro_batches_move(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_step, "SMALL", 0)
    engine = '[engine]\nkind = "spark"\nbuckets = 2'
    deployment = SparkDeployment(load_config(laid_out(tmp_path / "small", 300, engine=engine)))
    deployment.run()
    status = deployment.status()
    assert status["archive"]["events"] == 300
    assert status["streams"]["airflowReport"]["watermark"] is not None
    assert status["engine"]["written"] > 0
    high = status["queries"]["high"]
    assert high["matches"] <= high["sent"] < 300
    assert (high["state"], high["plan"], high["held"], high["from"]) == ("complete", "2 buckets", 0, None)
    lines = "\n".join(lines_of(status))
    assert f"query high: complete, {high['matches']:,} matches" in lines
    assert f"  {high['sent']:,} events sent to its engines" in lines
    assert "on Spark, micro-batches: newest " in lines
    figures = as_prometheus(status)
    assert f'kaicep_query_sent_total{{query="high"}} {float(high["sent"])}' in figures
    for each in ("seconds", "events", "sent", "widest", "written_bytes"):
        assert f"\nkaicep_step_{each} " in figures
    assert {Path(name).stem for name in QUERIES} == status["queries"].keys()


STREAMS = {"s": {"x": "int64", "k": "string"}}
SCHEMA = "seq bigint, ts bigint, x bigint, k string"
PAIR = """SELECT ?a.x AS x, ?b.x AS y FROM (?a, s), (?b, s)
    WHERE JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"""


def until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.05)


def test_a_watch_sees_the_streams_of_a_session(spark: Any, tmp_path: Path) -> None:
    """Whoever writes the matches, and wherever the engine is: what was read, found, and went wrong."""
    watch = kai.spark.watch(spark)
    assert str(watch) == "no stream has started"
    query = kai.compile({"pair": PAIR, "high": "SELECT ?e.x FROM (?e, s) FILTER (?e.x > 6)"}, streams=STREAMS)
    rows = [(seq, seq, seq % 8, "pq"[seq % 2]) for seq in range(40)] + [(40, 1_000, 0, "p")]
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.parquet(str(tmp_path / "events"))
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "events"))
    records = [{"ts": ts, "x": x, "k": k} for _, ts, x, k in rows]
    wanted = Counter(match.query for match in kai.run(query, records, lateness="1s"))
    assert set(wanted) == {"pair", "high"}

    def sink(number: int, matches: list[kai.Match]) -> None:
        if len(matches) < 20:
            raise OSError("the disk is full")

    try:
        found = kai.spark.match(events, query, lateness="1s", buckets=2)
        writer = found.writeStream.option("checkpointLocation", str(tmp_path / "c")).queryName("written")
        writer.trigger(availableNow=True).format("parquet").start(str(tmp_path / "m")).awaitTermination()
        again = {"lateness": "1s", "checkpoint": tmp_path / "d", "availableNow": True}
        kai.spark.deliver(events, query, sink, **again).awaitTermination()
        until(lambda: [each["state"] for each in watch.status().values()] == ["stopped", "stopped"])
        few = kai.compile("SELECT ?e.x FILTER (?e.x > 6)", name="few", streams=STREAMS)
        with pytest.raises(StreamingQueryException):
            kai.spark.deliver(events, few, sink, **{**again, "checkpoint": tmp_path / "e"}).awaitTermination()
        until(lambda: watch.status().get("few", {}).get("problem"))
    finally:
        spark.streams.removeListener(watch)
    status = watch.status()
    assert status.keys() == {"written", "pair, high", "few"}
    for name in ("written", "pair, high"):
        assert status[name]["events"] == len(rows)
        told = {query: each["matches"] for query, each in status[name]["queries"].items()}
        assert told == wanted
    assert status["written"]["queries"] == status["pair, high"]["queries"]
    assert status["written"]["state_bytes"] > 0
    assert "the disk is full" in status["few"]["problem"]
    assert f"  query pair: {wanted['pair']:,} matches, the last at " in str(watch)
