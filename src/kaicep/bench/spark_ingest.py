"""Ingest into the archive: rows a second from files and from a topic, in this process and by Spark.

Reports of sensors, four attributes each, in the order of time, with a lateness of five seconds; every turn
makes a new archive. A topic is measured where KAICEP_BENCH_KAFKA names the servers of a broker.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from kaicep.archive.archive import Archive
from kaicep.bench.table import Cell, Table
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.kafka import KafkaOptions
from kaicep.endtoend import ingest, spark_ingest
from kaicep.endtoend.taking import Origin

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

__all__ = ["SERVERS", "measure"]

SERVERS = "KAICEP_BENCH_KAFKA"
"""The environment variable with the servers of a broker."""

_FORM = Form("airflowReport", "timestamp", {}, True)
_LATENESS = 5_000_000
_PARTS = 2


def measure(spark: SparkSession, folder: Path, count: int, turns: int) -> Table:
    """Takes the same events in from every kind of source, by both hosts."""
    folder.mkdir()
    sources = _files(folder, count)
    if servers := os.environ.get(SERVERS):
        sources["Kafka"] = _topic(servers, folder / "a.jsonl")
    hosts: dict[str, Callable[[Archive, Origin], ingest.Ingested]] = {
        "in process": lambda archive, origin: ingest.ingest(archive, _FORM, origin, _LATENESS),
        "Spark": lambda archive, origin: spark_ingest.ingest(spark, archive, _FORM, origin, _LATENESS),
    }
    _seconds(folder / "archive", hosts["Spark"], sources["CSV"], count)  # workers are started, code is loaded
    rows: list[dict[str, Cell]] = []
    for source, origin in sources.items():
        for host, take in hosts.items():
            seconds = [_seconds(folder / "archive", take, origin, count) for _ in range(turns)]
            taken = statistics.median(seconds)
            rows.append({"from": source, "host": host, "s": round(taken, 2), "rows/s": round(count / taken)})
    return Table(f"ingest: {count:,} events into a new archive", rows)


def _seconds(
    folder: Path, take: Callable[[Archive, Origin], ingest.Ingested], origin: Origin, count: int
) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    done = take(Archive(folder), origin)
    seconds = time.perf_counter() - began
    if done.rows != count:
        raise AssertionError(f"{done.rows} of {count} events came in")
    return seconds


def _events(count: int) -> pyarrow.Table:
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(7)
    names = pa.array([f"S{number}" for number in range(20_000)])
    chosen = pa.DictionaryArray.from_arrays(chance.integers(0, 20_000, count), names)
    return pa.table(
        {
            "timestamp": pa.array(
                1_336_381_200_000_000 + np.arange(count) * 1_500, pa.timestamp("us", tz="UTC")
            ),
            "sensorID": chosen.cast(pa.string()),
            "flowrate": chance.normal(400.0, 80.0, count).round(1),
            "status": chance.integers(0, 5, count),
        }
    )


def _files(folder: Path, count: int) -> dict[str, Origin]:
    import pyarrow.csv
    import pyarrow.parquet

    events = _events(count)
    pyarrow.parquet.write_table(events, folder / "a.parquet")
    pyarrow.csv.write_csv(events, folder / "a.csv")
    with (folder / "a.csv").open() as rows, (folder / "a.jsonl").open("w") as lines:
        next(rows)
        for row in rows:
            at, sensor, rate, status = row.rstrip("\n").split(",")
            at = at.replace(" ", "T")
            lines.write(
                f'{{"timestamp": "{at}", "sensorID": {sensor}, "flowrate": {rate}, "status": {status}}}\n'
            )
    return {"CSV": folder / "a.csv", "JSON Lines": folder / "a.jsonl", "Parquet": folder / "a.parquet"}


def _topic(servers: str, lines: Path) -> KafkaOptions:
    """A new topic with the lines of a file."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"kaicep-bench-{uuid4().hex[:8]}"
    for made in (
        AdminClient({"bootstrap.servers": servers}).create_topics([NewTopic(topic, _PARTS, 1)]).values()
    ):
        made.result(30)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    with lines.open("rb") as file:
        for number, line in enumerate(file):
            producer.produce(topic, line.rstrip(b"\n"), partition=number % _PARTS)
            if number % 10_000 == 0:
                producer.poll(0)
                while len(producer) > 500_000:
                    producer.poll(0.1)
    producer.flush()
    return KafkaOptions(servers, topic)
