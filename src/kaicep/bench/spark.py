"""The Spark hosts over a campus: history by part (scan, filter, shuffle, kernel), streams by rate and delay.

One warm session on all cores of this machine. History is two hours of 20,000 sensors at 600 events a second,
as Parquet. Each stage of a query is run by itself, into nothing; the time of a part is what it adds to the
one before. Streams read the same files, one for each micro-batch.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kaicep as kai
from kaicep.bench.campus import ANNOTATION, QUERY1, QUERY5, turtle
from kaicep.bench.spark_ingest import SERVERS
from kaicep.bench.spark_ingest import measure as ingest
from kaicep.bench.table import Cell, Report, Table
from kaicep.knowledge.store import Knowledge
from kaicep.queries import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

_IN_ROOM = """?{0} evt:hasSource ?src{0} . ?src{0} rdf:type ee:AirflowSensor .
  ?src{0} bd:hasLocation ?loc{0} . ?loc{0} rdf:type bd:{1}"""
_PAIR = """SELECT ?e1.sensorID
  FILTER (?e1.flowrate > 500)
  JOIN (?e2.sensorID = ?e1.sensorID) JOIN (?e2.flowrate - ?e1.flowrate > 50)
  SEQ (?e1, ?e2) WINDOW (?e1, ?e2, 5min)"""

# The queries of section 3.2 of the SCEPter paper, by their numbers.
QUERIES: Mapping[str, str] = {
    "1": QUERY1,
    "3": _PAIR,
    "5": QUERY5,
    "6": "SELECT AVG(?e.flowrate) > 500 AS avgrate WINDOW (?e, sliding, 5min) PATH {"
    + _IN_ROOM.format("e", "Office")
    + " . ?loce bd:belongsTo org:EEDepartment}",
    "7": _PAIR
    + " PATH {"
    + _IN_ROOM.format("e1", "MeetingRoom")
    + " . "
    + _IN_ROOM.format("e2", "MeetingRoom")
    + "}",
}
STREAMED = ("5", "7")
TYPES = {"sensorID": "string", "flowrate": "float64", "timestamp": "timestamp"}


def measure(quick: bool = False) -> Report:
    """Runs every query over history, and two of them as streams."""
    from kaicep.hosts.spark.session import own_session

    seconds, rate, sensors = (60, 600, 500) if quick else (7_200, 600, 20_000)
    files, turns = (4, 1) if quick else (36, 3)
    spark = own_session()
    knowledge = Knowledge.parse(turtle(sensors))
    queries = {name: _compiled(text, name, knowledge) for name, text in QUERIES.items()}
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name:
        folder = Path(name)
        count = seconds * rate
        _write(folder / "events", files, seconds * rate, rate, sensors)
        events = spark.read.parquet(str(folder / "events"))
        _same_answers(events, queries["7"])
        history = [_history(each, queries[each], events, count, turns) for each in queries]
        ways = [(each, engine) for each in STREAMED for engine in ("workers", "driver")]
        streams = [_stream(spark, *way, queries[way[0]], events, folder) for way in ways]
        taken = ingest(spark, folder / "ingest", 20_000 if quick else 4_000_000, turns)
    return Report(
        "spark",
        [
            Table(f"history: {count:,} events, {sensors:,} sensors; seconds that each part adds", history),
            Table("streams from files, lateness 1s, after the first two micro-batches", streams),
            taken,
        ],
        [
            "scan reads the columns that the query needs; filter is FILTER and PATH in the JVM",
            "shuffle moves and sorts what is left; kernel is Python, the matches included",
            "of bare is the whole against scan and filter alone",
            f"the load of the machine was {os.getloadavg()[0]:.1f} at the end; both cores are ours below 2.5",
            f"ingest from Kafka is measured where {SERVERS} names the servers of a broker",
        ],
    )


def _compiled(text: str, name: str, knowledge: Knowledge) -> Query:
    return kai.compile(
        text,
        name=f"query{name}",
        knowledge=knowledge,
        annotations=[ANNOTATION],
        streams={"airflowReport": TYPES},
    )


def _write(folder: Path, files: int, count: int, rate: int, sensors: int) -> None:
    """Reports in the order of time, in several files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    chance = np.random.default_rng(7)
    names = pa.array([f"S{number}" for number in range(sensors)])
    edges = np.linspace(0, count, files + 1).astype(int)
    for number, (low, high) in enumerate(pairwise(edges)):
        seq = np.arange(low, high)
        ts = 1_336_381_200_000_000 + seq * 1_000_000 // rate
        chosen = pa.DictionaryArray.from_arrays(chance.integers(0, sensors, high - low), names)
        columns = {
            "seq": seq,
            "timestamp": pa.array(ts, pa.timestamp("us", tz="UTC")),
            "sensorID": chosen.cast(pa.string()),
            "flowrate": chance.normal(400.0, 80.0, high - low).round(1),
        }
        pq.write_table(pa.table(columns), folder / f"{number:04}.parquet")


def _same_answers(events: DataFrame, query: Query) -> None:
    """The first events give the same matches here and in this process."""
    some = events.where("seq < 20000")
    wanted = {match.to_json() for match in kai.run(query, some.toArrow().sort_by("seq"))}
    found = {row["match"] for row in kai.spark.match(some, query).select("match").collect()}
    if found != wanted:
        raise AssertionError(f"{len(found ^ wanted)} matches differ")


def _history(name: str, query: Query, events: DataFrame, count: int, turns: int) -> dict[str, Cell]:
    from kaicep.hosts.spark.batch import BUCKETS, gathered, thinned
    from kaicep.hosts.spark.layout import layouts_of
    from kaicep.hosts.spark.physical import physical
    from kaicep.hosts.spark.source import rows_of_frame

    (part,) = physical(query.program, query.catalog, query.knowledge)
    _, layout = layouts_of([part], query.catalog)
    rows = rows_of_frame(events, query.catalog.streams["airflowReport"], layout)
    frames = {"airflowReport": rows}
    thin = thinned(part, frames, layout, query.catalog, query.knowledge, BUCKETS)
    stages: dict[str, DataFrame] = {"scan": rows, "filter": thin}
    if part.way != "rows":
        stages["shuffle"] = gathered(part, thin, BUCKETS)
    found = kai.spark.match(events, query)
    stages["kernel"] = found.select("query", "id", "start", "end", "match")
    taken = {stage: _seconds(each, turns) for stage, each in stages.items()}
    row: dict[str, Cell] = {"query": name, "way": part.way, "kept": thin.count(), "matches": found.count()}
    before = 0.0
    for stage in ("scan", "filter", "shuffle", "kernel"):
        now = taken.get(stage, before)
        row[stage] = round(max(now - before, 0.0), 2)
        before = max(now, before)
    row["events/s"] = round(count / taken["kernel"])
    row["of bare"] = round(taken["kernel"] / taken["filter"], 2)
    return row


def _seconds(frame: DataFrame, turns: int) -> float:
    """How long it takes to compute a frame: the median of some turns, after one that warms up."""
    times = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _stream(
    spark: SparkSession, name: str, engine: str, query: Query, events: DataFrame, folder: Path
) -> dict[str, Cell]:
    reader = spark.readStream.schema(events.schema).option("maxFilesPerTrigger", 1)
    source, checkpoint = reader.parquet(str(folder / "events")), folder / f"{engine}{name}"
    if engine == "workers":
        writer = kai.spark.match(source, query, lateness="1s").writeStream.format("noop")
        started = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        running = started.start()
    else:
        running = kai.spark.deliver(
            source, query, _nowhere, lateness="1s", checkpoint=checkpoint, engine=engine, availableNow=True
        )
    try:
        running.awaitTermination()
        progress: list[Any] = [each for each in running.recentProgress if each["numInputRows"]][2:]
    finally:
        running.stop()
    seconds = [each["batchDuration"] / 1000 for each in progress]
    rows = sum(each["numInputRows"] for each in progress)
    return {
        "query": name,
        "engine": engine,
        "micro-batches": len(progress),
        "events each": round(rows / max(len(progress), 1)),
        "events/s": round(rows / max(sum(seconds), 1e-9)),
        "p50 s": round(statistics.median(seconds), 2) if seconds else None,
        "most s": round(max(seconds), 2) if seconds else None,
    }


def _nowhere(number: int, matches: list[kai.Match]) -> None:
    """A sink that keeps nothing."""
