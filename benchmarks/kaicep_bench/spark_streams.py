"""Streams on Spark: the highest rate that holds, and how long after an event its match is there.

At full speed a stream takes what is there, micro-batch after micro-batch. For the delay events come at their
own time, so many a second, in a new file five times a second or by a topic; it is counted from the time of a
match's last event to the call of the sink, with no lateness to wait for.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kaicep as kai
from kaicep.query import Query
from kaicep_bench.spark_campus import STREAM, reports, tell
from kaicep_bench.spark_ingest import SERVERS, new_topic, send
from kaicep_bench.table import Cell, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure_delay", "measure_rate"]

_SLICE = 0.2
_JSON = "timestamp timestamp, sensorID string, flowrate double"


def measure_rate(
    spark: SparkSession, folder: Path, queries: dict[str, Query], files: int, sensors: int, of_topic: int
) -> Table:
    """How fast a stream goes through what is there, by the engine's place and the size of micro-batches."""
    rows: list[dict[str, Cell]] = []
    for name, query in queries.items():
        for engine, each in (("driver", 1), ("driver", 4), ("workers", 4)):
            tell(f"stream, query {name}, engine {engine}, {each} files in a micro-batch")
            schema = spark.read.parquet(str(folder / "events")).schema
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", min(each, files))
            source = reader.parquet(str(folder / "events"))
            taken = _taken(source, query, engine, folder / f"rate-{name}-{engine}-{each}")
            rows.append({"from": "files", "query": name, "engine": engine, **taken})
    if servers := os.environ.get(SERVERS):
        topic = new_topic(servers)
        send(servers, topic, reports(0, of_topic, 600, sensors))
        for name, query in queries.items():
            tell(f"stream, query {name}, from a topic")
            source = _records(spark, servers, topic, of_topic // 8)
            taken = _taken(source, query, "driver", folder / f"rate-{name}-topic", {STREAM: range(2)})
            rows.append({"from": "Kafka", "query": name, "engine": "driver", **taken})
    return Table("streams at full speed, lateness 1s, after the first two micro-batches", rows)


def _records(spark: SparkSession, servers: str, topic: str, most: int | None = None) -> DataFrame:
    """The records of a topic as events."""
    from pyspark.sql import functions as sf

    records = kai.spark.kafka(spark, servers, topic, streaming=True, most=most)
    parsed = sf.from_json(sf.col("value").cast("string"), _JSON).alias("of")
    return records.select("part", "seq", parsed).select("part", "seq", "of.*")


def _taken(
    source: DataFrame, query: Query, engine: str, checkpoint: Path, parts: Any = None
) -> dict[str, Cell]:
    running = kai.spark.deliver(
        source,
        query,
        _nowhere,
        lateness="1s",
        checkpoint=checkpoint,
        engine=engine,
        parts=parts,
        availableNow=True,
    )
    try:
        running.awaitTermination()
        progress: list[Any] = [each for each in running.recentProgress if each["numInputRows"]][2:]
    finally:
        running.stop()
    seconds = [each["batchDuration"] / 1000 for each in progress]
    rows = sum(each["numInputRows"] for each in progress)
    return {
        "micro-batches": len(progress),
        "events each": round(rows / max(len(progress), 1)),
        "events/s": round(rows / max(sum(seconds), 1e-9)),
        "p50 s": round(statistics.median(seconds), 2) if seconds else None,
        "most s": round(max(seconds), 2) if seconds else None,
    }


def _nowhere(number: int, matches: list[kai.Match]) -> None:
    """A sink that keeps nothing."""


def measure_delay(
    spark: SparkSession, folder: Path, queries: dict[str, Query], sensors: int, rate: int, seconds: int
) -> Table:
    """How long after its last event a match is there, while so many events come in a second."""
    load = _Load(rate, seconds, sensors)
    rows: list[dict[str, Cell]] = []
    for name, query in queries.items():
        tell(f"stream, query {name}, {rate:,} events/s for {seconds} s")
        own = folder / f"delay-{name}"
        own.mkdir()
        source = spark.readStream.schema(
            "seq bigint, timestamp timestamp, sensorID string, flowrate double"
        ).parquet(str(own))
        delays = _delays(source, query, folder / f"delay-{name}-checkpoint", partial(_to_file, own), load)
        rows.append({"from": "files", "query": name, **delays})
        if servers := os.environ.get(SERVERS):
            tell(f"stream, query {name}, {rate:,} events/s by a topic")
            topic = new_topic(servers)
            by_topic = _records(spark, servers, topic)
            delays = _delays(
                by_topic,
                query,
                folder / f"delay-{name}-topic",
                partial(send, servers, topic),
                load,
                {STREAM: range(2)},
            )
            rows.append({"from": "Kafka", "query": name, **delays})
    return Table(f"from event to match, {rate:,} events/s, engine in the driver", rows)


@dataclass(frozen=True)
class _Load:
    """So many events a second, for so long, of so many sensors."""

    rate: int
    seconds: int
    sensors: int


def _delays(
    source: DataFrame,
    query: Query,
    checkpoint: Path,
    write: Callable[[Any], None],
    load: _Load,
    parts: Any = None,
) -> dict[str, Cell]:
    found: list[tuple[float, float]] = []  # when a match was there, and how long after its end

    def sink(number: int, matches: list[kai.Match]) -> None:
        now = time.time()
        found.extend((now, now - match.end_us / 1e6) for match in matches)

    running = kai.spark.deliver(
        source, query, sink, lateness=0, checkpoint=checkpoint, engine="driver", parts=parts
    )
    try:
        with _coming(write, load) as began:
            time.sleep(load.seconds)
        progress: list[Any] = [each for each in running.recentProgress if each["numInputRows"]]
    finally:
        running.stop()
    steady = sorted(delay for at, delay in found if at > began + load.seconds / 3)
    if not steady:
        return {"matches": 0}
    taken = [each["batchDuration"] / 1000 for each in progress[len(progress) // 3 :]]
    return {
        "matches": len(steady),
        "p50 s": round(statistics.median(steady), 2),
        "p95 s": round(steady[len(steady) * 95 // 100], 2),
        "most s": round(steady[-1], 2),
        "micro-batch s": round(statistics.median(taken), 2),
    }


@contextmanager
def _coming(write: Callable[[Any], None], load: _Load) -> Iterator[float]:
    """Events that come at their time while one is inside; gives the time of the first.

    They are made in a process of their own, as the sensors of a campus are not in its driver either.
    """
    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    maker = spawned.Process(target=_make, args=(there, write, load), daemon=True)
    maker.start()
    there.close()  # so that nobody waits for a process that has died
    here.recv()
    began = time.time()
    here.send(began)
    try:
        yield began
    finally:
        maker.terminate()
        maker.join()


def _make(told: Connection, write: Callable[[Any], None], load: _Load) -> None:
    """Writes what has happened, slice by slice, from the time on that it is told."""
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    each = int(load.rate * _SLICE)
    reports(0, each, load.rate, load.sensors)  # what has to be loaded for it, is
    told.send(None)
    began: float = told.recv()
    for number in range(int(load.seconds / _SLICE)):
        some = reports(number * each, (number + 1) * each, load.rate, load.sensors, int(began * 1e6))
        time.sleep(max(began + (number + 1) * _SLICE - time.time(), 0))
        write(some)


def _end_with_the_driver() -> None:
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(1)


def _to_file(folder: Path, table: Any) -> None:
    """A new file, there as a whole or not at all."""
    import pyarrow.parquet as pq

    name = f"{table['seq'][0]}.parquet"
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)
