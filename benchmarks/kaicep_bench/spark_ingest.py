"""Ingest into the archive: rows a second from files and from a topic, in this process and by Spark.

Reports of sensors, three attributes each, in the order of time, with a lateness of five seconds; every turn
makes a new archive. A topic is measured where KAICEP_BENCH_KAFKA names the servers of a broker.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from kaicep.archive.archive import Archive
from kaicep.connectors.kafka import KafkaSourceOptions
from kaicep.connectors.shape import Form
from kaicep.ingest import files, on_spark
from kaicep.ingest.files import Origin
from kaicep_bench.spark_campus import reports, tell
from kaicep_bench.table import Cell, Table

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

__all__ = ["SERVERS", "measure", "new_topic", "send"]

SERVERS = "KAICEP_BENCH_KAFKA"
"""The environment variable with the servers of a broker."""

_FORM = Form("airflowReport", "timestamp", {}, True)
_LATENESS = 5_000_000
_PARTS = 2


def measure(spark: SparkSession, folder: Path, count: int, turns: int) -> Table:
    """Takes the same events in from every kind of source, by both hosts."""
    folder.mkdir()
    events = reports(0, count, 600, 20_000).drop_columns("seq")
    sources = _files(folder, events)
    if servers := os.environ.get(SERVERS):
        sources["Kafka"] = _topic(servers, events)
    hosts: dict[str, Callable[[Archive, Origin], files.Ingested]] = {
        "in process": lambda archive, origin: files.ingest(archive, _FORM, origin, _LATENESS),
        "Spark": lambda archive, origin: on_spark.ingest(spark, archive, _FORM, origin, _LATENESS),
    }
    _seconds(folder / "archive", hosts["Spark"], sources["CSV"], count)  # workers are started, code is loaded
    rows: list[dict[str, Cell]] = []
    for source, origin in sources.items():
        for host, take in hosts.items():
            tell(f"ingest from {source}, {host}")
            seconds = [_seconds(folder / "archive", take, origin, count) for _ in range(turns)]
            taken = statistics.median(seconds)
            rows.append({"from": source, "host": host, "s": round(taken, 2), "rows/s": round(count / taken)})
    return Table(f"ingest: {count:,} events into a new archive", rows)


def _seconds(
    folder: Path, take: Callable[[Archive, Origin], files.Ingested], origin: Origin, count: int
) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    done = take(Archive(folder), origin)
    seconds = time.perf_counter() - began
    if done.rows != count:
        raise AssertionError(f"{done.rows} of {count} events came in")
    return seconds


def _files(folder: Path, events: pyarrow.Table) -> dict[str, Origin]:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(events, folder / "a.parquet")
    pyarrow.csv.write_csv(events, folder / "a.csv")
    with (folder / "a.jsonl").open("w") as lines:
        lines.writelines(f"{line}\n" for line in _lines(events))
    return {"CSV": folder / "a.csv", "JSON Lines": folder / "a.jsonl", "Parquet": folder / "a.parquet"}


def _topic(servers: str, events: pyarrow.Table) -> KafkaSourceOptions:
    """A new topic with events."""
    topic = new_topic(servers)
    send(servers, topic, events)
    return KafkaSourceOptions(servers, topic)


def new_topic(servers: str) -> str:
    """The name of a new topic with two partitions."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"kaicep-bench-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})  # by name: it must outlive what it is asked for
    admin.create_topics([NewTopic(topic, _PARTS, 1)])[topic].result(30)
    return topic


def send(servers: str, topic: str, events: pyarrow.Table) -> None:
    """Events as JSON objects to a topic, to one partition after the other."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000})
    for number, line in enumerate(_lines(events)):
        producer.produce(topic, line, partition=number % _PARTS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    producer.flush()


def _lines(events: pyarrow.Table) -> Iterator[str]:
    """Events as JSON objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times = events["timestamp"].cast(pa.timestamp("us"))
    shown = pc.strftime(times, "%Y-%m-%dT%H:%M:%SZ").to_pylist()
    for at, sensor, flow in zip(
        shown, events["sensorID"].to_pylist(), events["flowrate"].to_pylist(), strict=True
    ):
        yield f'{{"timestamp": "{at}", "sensorID": "{sensor}", "flowrate": {flow}}}'
