"""The Spark hosts over a campus: history by part and by strategy, streams by rate and delay, ingest.

One warm session on all cores of this machine. History is two hours of 20,000 sensors at 600 events a second.
What is measured is said on standard error as it goes on: all of it takes about ten minutes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import kaicep as kai
from kaicep.bench.campus import ANNOTATION, turtle
from kaicep.bench.spark_campus import QUERIES, STREAM, TYPES, reports, tell, write
from kaicep.bench.spark_history import archived, measure_parts, measure_reach, measure_strategies
from kaicep.bench.spark_ingest import SERVERS
from kaicep.bench.spark_ingest import measure as measure_ingest
from kaicep.bench.spark_streams import measure_delay, measure_rate
from kaicep.bench.table import Report
from kaicep.knowledge.store import Knowledge

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
    with tempfile.TemporaryDirectory(prefix="kaicep-") as name:
        folder = Path(name)
        events = reports(0, count, _RATE, sensors)
        write(folder / "events", files, events)
        archive = archived(folder / "archive", events)
        tables = [
            measure_parts(spark, archive, knowledge, count, turns),
            measure_strategies(archive, knowledge, count),
            measure_reach(folder, events, archive, knowledge, _RATE, turns),
            measure_rate(spark, folder, streamed, files, sensors, 16_000 if quick else 1_600_000),
            measure_delay(spark, folder, streamed, sensors, 5_000 if quick else 50_000, 9 if quick else 30),
        ]
        tell("ingest")
        tables.append(measure_ingest(spark, folder / "ingest", 20_000 if quick else 4_000_000, turns))
    return Report(
        "spark",
        tables,
        [
            "scan reads the columns that the query needs; filter is FILTER and PATH in the JVM",
            "shuffle moves and sorts what is left; kernel is Python, the matches included",
            "of bare is the whole against scan and filter alone",
            f"the load of the machine was {os.getloadavg()[0]:.1f} at the end; both cores are ours below 2.5",
            f"a topic is measured where {SERVERS} names the servers of a broker",
        ],
    )
