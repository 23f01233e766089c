"""The Spark hosts over a campus: history by part and by strategy, streams by rate and delay, ingest.

One warm session on all cores of this machine. History is two hours of 20,000 sensors at 600 events a second.
What is measured is said on standard error as it goes on: all of it takes about ten minutes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import kaicep as kai
from kaicep.knowledge.store import Knowledge
from kaicep_bench.campus import ANNOTATION, turtle
from kaicep_bench.spark_campus import QUERIES, STREAM, TYPES, reports, tell, write
from kaicep_bench.spark_deployment import measure_deployment
from kaicep_bench.spark_history import (
    archived,
    measure_parts,
    measure_reach,
    measure_rival,
    measure_strategies,
)
from kaicep_bench.spark_ingest import SERVERS
from kaicep_bench.spark_ingest import measure as measure_ingest
from kaicep_bench.spark_states import measure_states
from kaicep_bench.spark_streams import measure_delay, measure_rate
from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

_STREAMED = ("5", "7")
_RATE = 600


def measure(quick: bool = False) -> Report:
    """Runs every query over history, and two of them as streams."""
    from kaicep.hosts.spark.session import own_session

    count, sensors = (36_000, 500) if quick else (4_320_000, 20_000)
    files, turns = (12, 1) if quick else (36, 2)
    tell("begin: a session, the knowledge, the events, their archive")
    spark = own_session()
    knowledge = Knowledge.parse(turtle(sensors))
    streamed = {
        name: kai.compile(
            QUERIES[name],
            name=f"query{name}",
            knowledge=knowledge,
            annotations=[ANNOTATION],
            streams={STREAM: TYPES},
        )
        for name in _STREAMED
    }
    tables: dict[str, Table] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name:
        folder = Path(name)
        events = reports(0, count, _RATE, sensors)
        write(folder / "events", files, events)
        archive = archived(folder / "archive", events)
        of_topic, rate, seconds = (16_000, 5_000, 9) if quick else (1_600_000, 50_000, 30)
        work: dict[str, Callable[[], Table]] = {
            "parts": lambda: measure_parts(spark, archive, knowledge, count, turns),
            "rival": lambda: measure_rival(spark, archive, knowledge, turns),
            "strategies": lambda: measure_strategies(archive, knowledge, count),
            "reach": lambda: measure_reach(folder, events, archive, knowledge, _RATE, turns),
            "rate": lambda: measure_rate(spark, folder, streamed, files, sensors, of_topic),
            "delay": lambda: measure_delay(spark, folder, streamed, sensors, rate, seconds),
            "deployment": lambda: measure_deployment(folder / "deployment", quick),
            "states": lambda: measure_states(quick),
            "ingest": lambda: measure_ingest(spark, folder / "ingest", 20_000 if quick else 4_000_000, turns),
        }
        for what, measured in work.items():
            try:
                tables[what] = measured()
            except Exception as error:  # minutes of other measurements are not thrown away for it
                failures.append(f"{what}: {error}")
    return Report(
        "spark",
        [*tables.values(), Table("goals, on two cores and the whole input", list(_goals(tables)))],
        [
            "scan reads the columns that the query needs; filter is FILTER and PATH in the JVM",
            "shuffle moves and sorts what is left; kernel is Python, the matches included",
            "of bare is the whole against scan and filter alone",
            f"the load of the machine was {os.getloadavg()[0]:.1f} at the end; both cores are ours below 2.5",
            f"a topic is measured where {SERVERS} names the servers of a broker",
        ],
        failures=failures,
    )


def _goals(tables: Mapping[str, Table]) -> Iterator[dict[str, Cell]]:
    """What was wanted, and what was found; nothing of what could not be measured."""

    def found(table: str, column: str, **of: Cell) -> list[float]:
        rows = tables[table].rows if table in tables else ()
        return [
            float(cell)
            for row in rows
            if all(row.get(name) == value for name, value in of.items())
            if (cell := row.get(column)) is not None
        ]

    def row(goal: str, wanted: str, cells: list[float]) -> Iterator[dict[str, Cell]]:
        # The worst of what has to stay below, the best way to what has to be reached.
        if cells:
            yield {"goal": goal, "wanted": wanted, "found": max(cells)}

    for query, most in (("5", 1.3), ("7", 3.0)):
        cells = found("parts", "of bare", query=query)
        yield from row(f"history, query {query}: the whole, of scan and filter", f"<= {most}", cells)
    cells = found("rival", "times faster")
    yield from row("history, query 7: times faster than a join by hand", ">= 2", cells)
    yield from row("history: an archive ten times as long", "<= 1.2", found("reach", "ratio"))
    for query, rate in (("5", 500_000), ("7", 250_000)):
        for source in ("files", "Kafka"):
            cells = found("rate", "events/s", query=query, **{"from": source})
            yield from row(f"stream, query {query}, {source}: events/s", f">= {rate:,}", cells)
    yield from row("stream: p95 s from event to match", "<= 1", found("delay", "p95 s"))
    cells = found("deployment", "events/s", queries=10)
    yield from row("deployment, ten queries over the archive: events/s", ">= 300,000", cells)
    cells = found("deployment", "live after s", queries=20)
    yield from row("deployment, twenty queries: s until live", "<= 10", cells)
    yield from row(
        "deployment: state written by a micro-batch, of the whole state",
        "<= 0.1",
        found("states", "of whole"),
    )
    cells = [each for source in ("CSV", "Parquet") for each in found("ingest", "rows/s", **{"from": source})]
    yield from row("ingest from CSV or Parquet: rows/s", ">= 500,000", cells)
