"""History on Spark: what each part costs, the strategies beside each other, and archives ten times as long.

The events are in an archive. Each stage of a query is run by itself, into nothing; the time of a part is what
it adds to the one before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kaicep as kai
from kaicep.api import parse_query
from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.errors import SourceText
from kaicep.history.strategies import History, history_of, past_matches
from kaicep.ingest.files import ingest
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Match
from kaicep.plan.time import format_time
from kaicep_bench.campus import ANNOTATION, PREFIXES
from kaicep_bench.spark_campus import BEGIN, IN_ROOM, QUERIES, STREAM, TYPES, tell
from kaicep_bench.table import Cell, Table

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["archived", "measure_parts", "measure_reach", "measure_rival", "measure_strategies"]

_TOO_LONG_IN_SQL = ("6",)
"""Sliding windows list their members in SQL: ten thousand for each event here."""


def archived(folder: Path, events: pyarrow.Table) -> Archive:
    """An archive of events."""
    import pyarrow.parquet as pq

    archive, file = Archive(folder), folder.with_suffix(".parquet")
    pq.write_table(events.drop_columns("seq"), file)
    ingest(archive, Form(STREAM, "timestamp", {}, True), file)
    return archive


def _history(name: str, archive: Archive, knowledge: Knowledge, within: str = "") -> History:
    text = f"{QUERIES[name]} {within}"
    query = parse_query(SourceText(f"query{name}.chi", text), PREFIXES)
    return history_of([query], archive, knowledge, tuple(parse_annotations(ANNOTATION)), 0)


def measure_parts(
    spark: SparkSession, archive: Archive, knowledge: Knowledge, count: int, turns: int
) -> Table:
    """What scan, filter, shuffle and kernel add, query by query."""
    rows = []
    for name in QUERIES:
        tell(f"history, query {name} by parts")
        rows.append(_parts(spark, name, _history(name, archive, knowledge), count, turns))
    return Table(f"history on Spark: {count:,} events in the archive; seconds that each part adds", rows)


def _parts(spark: SparkSession, name: str, history: History, count: int, turns: int) -> dict[str, Cell]:
    from kaicep.history.hybrid import archived_rows
    from kaicep.hosts.spark.batch import BUCKETS, gathered, match_batch, thinned
    from kaicep.hosts.spark.layout import layouts_of
    from kaicep.hosts.spark.physical import physical

    (part,) = physical(history)
    _, layout = layouts_of([part], history.catalog)
    frames = archived_rows(spark, history, history.archive.snapshot())
    rows = frames(layout)
    thin = thinned(part, rows, layout, history.catalog, history.knowledge, BUCKETS)
    stages: dict[str, DataFrame] = {"scan": rows[STREAM], "filter": thin}
    if part.way != "rows":
        stages["shuffle"] = gathered(part, thin, BUCKETS)
    found = match_batch(frames, history)
    stages["kernel"] = found.select("query", "id", "start", "end", "match")
    taken = {stage: _computed(each, turns) for stage, each in stages.items()}
    row: dict[str, Cell] = {"query": name, "way": part.way, "kept": thin.count(), "matches": found.count()}
    before = 0.0
    for stage in ("scan", "filter", "shuffle", "kernel"):
        now = taken.get(stage, before)
        row[stage] = round(max(now - before, 0.0), 2)
        before = max(now, before)
    row["events/s"] = round(count / taken["kernel"])
    row["of bare"] = round(taken["kernel"] / max(taken["scan"], taken["filter"]), 2)
    return row


def _computed(frame: DataFrame, turns: int) -> float:
    """How long it takes to compute a frame."""
    return _seconds(lambda: frame.write.format("noop").mode("overwrite").save(), turns)


def _seconds(work: Callable[[], Any], turns: int) -> float:
    """The median of some turns, after one that warms up."""
    times = []
    for _ in range(turns + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measure_strategies(archive: Archive, knowledge: Knowledge, count: int) -> Table:
    """The same matches by every strategy, as Python has them."""
    from kaicep.history.hybrid import spark_history
    from kaicep.history.rewrite import sql_matches

    snapshot = archive.snapshot()
    rows: list[dict[str, Cell]] = []
    for name in QUERIES:
        history = _history(name, archive, knowledge)
        ways: dict[str, Callable[[], list[Match]]] = {
            "replay": partial(past_matches, history, "replay"),
            "hybrid": partial(past_matches, history, "hybrid"),
            "hybrid, Spark": partial(spark_history, history, snapshot),
            "rewrite, Spark SQL": partial(sql_matches, history, snapshot),
        }
        if name in _TOO_LONG_IN_SQL:
            del ways["rewrite, Spark SQL"]
        row: dict[str, Cell] = {"query": name}
        wanted: list[str] | None = None
        for way, work in ways.items():
            tell(f"history, query {name} by {way}")
            began = time.perf_counter()
            lines = [each.to_json() for each in work()]
            row[way] = round(time.perf_counter() - began, 2)
            if wanted is not None and lines != wanted:
                raise AssertionError(f"query {name}: {way} finds {len(lines)} matches, not {len(wanted)}")
            wanted = lines
        rows.append({**row, "matches": len(wanted or ())})
    return Table(f"strategies over {count:,} events: seconds until all matches are there, in order", rows)


_WINDOW = 300_000_000


def measure_rival(spark: SparkSession, archive: Archive, knowledge: Knowledge, turns: int) -> Table:
    """Query 7 beside what somebody writes by hand: a semi-join, and a join by sensor and slot of time."""
    from kaicep.history.hybrid import archived_rows
    from kaicep.hosts.spark.batch import match_batch

    tell("history, query 7 beside a join that is written by hand")
    history = _history("7", archive, knowledge)
    found = match_batch(archived_rows(spark, history, archive.snapshot()), history).select("match")
    joined = _by_hand(spark, archive, _in_meeting_rooms(knowledge, archive))
    counts = found.count(), joined.count()
    if counts[0] != counts[1]:
        raise AssertionError(f"{counts[0]} matches, and {counts[1]} by hand")
    ours, theirs = (_computed(each, turns) for each in (found, joined))
    row: dict[str, Cell] = {"query": "7", "matches": counts[0], "kaicep s": round(ours, 2)}
    row |= {"by hand s": round(theirs, 2), "times faster": round(theirs / ours, 2)}
    return Table("history on Spark beside a range join that is written by hand", [row])


def _in_meeting_rooms(knowledge: Knowledge, archive: Archive) -> list[str]:
    """The sensors for which the PATH of query 7 holds: found beforehand, as by hand too."""
    rows = archive.snapshot().batches(STREAM)
    sensors = {name for batch in rows for name in batch.column("sensorID").unique().to_pylist()}
    query = kai.compile(
        f"SELECT ?e.sensorID PATH {{{IN_ROOM.format('e', 'MeetingRoom')}}}",
        knowledge=knowledge,
        annotations=[ANNOTATION],
        streams={STREAM: TYPES},
    )
    events = [{"timestamp": at, "sensorID": name} for at, name in enumerate(sorted(sensors))]
    return [str(match.select["sensorID"]) for match in kai.run(query, events)]


def _by_hand(spark: SparkSession, archive: Archive, sensors: list[str]) -> DataFrame:
    from pyspark.sql import functions as sf

    from kaicep.history.hybrid import archived_frame
    from kaicep.plan.nodes import Interval

    rooms = spark.createDataFrame([(each,) for each in sensors], "sensorID string")
    rows = archived_frame(spark, archive.snapshot(), STREAM, Interval())
    events = rows.select("sensorID", "flowrate", sf.unix_micros("timestamp").alias("ts"))
    some = events.join(sf.broadcast(rooms), "sensorID", "left_semi")
    slot = sf.expr(f"ts div {_WINDOW}")
    first = some.where("flowrate > 500").select(
        "sensorID", slot.alias("slot"), sf.struct("ts", "flowrate").alias("a")
    )
    slots = sf.explode(sf.array(slot, slot - 1)).alias("slot")
    second = some.select("sensorID", slots, sf.struct("ts", "flowrate").alias("b"))
    within = f"b.ts > a.ts AND b.ts - a.ts <= {_WINDOW} AND b.flowrate - a.flowrate > 50"
    return first.join(second, ["sensorID", "slot"]).where(within)


def measure_reach(
    folder: Path, events: pyarrow.Table, whole: Archive, knowledge: Knowledge, rate: float, turns: int
) -> Table:
    """The same time asked of an archive that has no more, and of one that is ten times as long."""
    from kaicep.history.hybrid import spark_history

    count = len(events)
    first, last = count * 9 // 20, count * 11 // 20
    low, high = (format_time(BEGIN + int(at * 1_000_000 / rate)) for at in (first, last))
    archives = {"a tenth": archived(folder / "tenth", events.slice(first, last - first)), "all": whole}
    rows: list[dict[str, Cell]] = []
    for name in ("5", "7"):
        tell(f"history, query {name} over a tenth of the time")
        taken: dict[str, list[float]] = {"Spark": [], "in process": []}
        for archive in archives.values():
            history = _history(name, archive, knowledge, f"WITHIN [{low}, {high})")
            taken["Spark"].append(_seconds(partial(spark_history, history, archive.snapshot()), turns))
            taken["in process"].append(_seconds(partial(past_matches, history, "hybrid"), turns))
        for host, seconds in taken.items():
            named = dict(zip(archives, (round(each, 2) for each in seconds), strict=True))
            rows.append({"query": name, "host": host, **named, "ratio": round(seconds[1] / seconds[0], 2)})
    return Table(f"{last - first:,} events asked for, of an archive of as many and of one of {count:,}", rows)
