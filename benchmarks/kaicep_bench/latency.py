"""One event at a time: from `push` to the last match that it makes, with query 3 and 20,000 live sensors.

Query 7 of the SCEPter paper (its section 3.2.6) asks the same of sensors in meeting rooms; here all are, so
that it has the matches of query 3 and costs what knowledge costs. Where Maven is at hand, Esper and Siddhi
are measured on the same events, and must have the same matches.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from pathlib import Path

import numpy as np

import kaicep as kai
from kaicep.errors import Failure
from kaicep.plan.events import Match
from kaicep_bench import jvm
from kaicep_bench.campus import ANNOTATION, turtle
from kaicep_bench.data import SETS, STREAM, Columns, make, write
from kaicep_bench.engine import Tally, compiled
from kaicep_bench.pattern import query3
from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

EVENTS, QUICK = 600_000, 6_000
GOALS = {"p50 us": 10.0, "p99 us": 40.0}

PATH = """PATH {?e1 evt:hasSource ?src1 . ?src1 rdf:type ee:AirflowSensor . ?src1 bd:hasLocation ?loc1 .
  ?loc1 rdf:type bd:MeetingRoom .
  ?e2 evt:hasSource ?src2 . ?src2 rdf:type ee:AirflowSensor . ?src2 bd:hasLocation ?loc2 .
  ?loc2 rdf:type bd:MeetingRoom}"""


def query7(names: list[str]) -> kai.Query:
    """Query 7, with knowledge that has every one of these sensors in a meeting room."""
    places = "\n".join(f"ee:{name} a ee:VavAirflowSensor ; bd:hasLocation bd:M1 ." for name in names)
    knowledge = kai.Knowledge.parse(f"{turtle(20)}\nbd:M1 a bd:MeetingRoom .\n{places}")
    annotation = {**ANNOTATION, "stream": STREAM, "time": "ts"}
    return compiled(query3() + "\n" + PATH, knowledge=knowledge, annotations=[annotation])


def measure(quick: bool = False) -> Report:
    """Measures kaicep, and the peers if they can be built."""
    data = make(SETS["A"]).first(QUICK if quick else EVENTS)
    queries = {"query 3": compiled(query3()), "query 7": query7(data.names())}
    rows = [_own(name, query, data, reads) for name, query in queries.items() for reads in (False, True)]
    reason = jvm.missing()
    if reason is None:
        rows += _peers(data, quick)
    if len({(row["matches"], row["checksum"]) for row in rows}) > 1:
        raise Failure("the engines have different matches")
    return Report(
        "latency",
        [Table("microseconds from an event to its last match", rows)],
        [
            f"{len(data):,} events of A, one by one; of the second half, the events with a match count",
            "goals for query 3: " + ", ".join(f"{name} at most {goal:g}" for name, goal in GOALS.items()),
            *([] if reason is None else [f"without peers: {reason}"]),
        ],
    )


class _Consumer:
    """Takes matches and notes when; reads them as one would: who, from when to when, how much."""

    def __init__(self, reads: bool) -> None:
        self.when = 0
        self.last: tuple[object, ...] = ()
        self.kept: list[Match] = []
        self._reads = reads

    def take(self, match: Match) -> None:
        """Takes a match."""
        if self._reads:
            select = match.select
            self.last = select["sensorID"], match.start_us, match.end_us, select["flowrate"]
        self.when = time.perf_counter_ns()
        self.kept.append(match)


def _own(name: str, query: kai.Query, data: Columns, reads: bool) -> dict[str, Cell]:
    consumer, tally = _Consumer(reads), Tally(data)
    engine = kai.Engine(query, lateness=0, on_match=consumer.take)
    names = data.names()
    columns = data.ts.tolist(), data.sensor.tolist(), data.flowrate.tolist()
    seqs = array("q")
    taken: list[int] = []
    for number, (ts, sensor, flowrate) in enumerate(zip(*columns, strict=True)):
        record = {"ts": ts / 1e6, "sensorID": names[sensor], "flowrate": flowrate}
        started = time.perf_counter_ns()
        engine.push(record)
        if consumer.kept:
            if number >= len(data) // 2:
                taken.append(consumer.when - started)
            for match in consumer.kept:
                events = match.events or {}
                seqs.extend((events["e1"]["seq"], events["e2"]["seq"]))
            consumer.kept.clear()
    engine.finish()
    tally.positions(np.frombuffer(seqs, np.int64).reshape(-1, 2))
    taken.sort()
    return _row(
        "kaicep", name, reads, tally.matches, tally.checksum, len(taken), _at(taken, 0.5), _at(taken, 0.99)
    )


def _peers(data: Columns, quick: bool) -> list[dict[str, Cell]]:
    jvm.build()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "columns"
        write(data, file)
        taken = [
            each
            for peer in (jvm.ESPER, jvm.SIDDHI)
            for each in jvm.run(peer, "latency", file, len(data), quick=quick)
        ]
    return [
        _row(
            each.engine,
            "query 3",
            True,
            each.matches,
            each.checksum,
            each.samples,
            each.p50,
            each.p99,
        )
        for each in taken
    ]


def _row(
    engine: str, query: str, reads: bool, matches: int, checksum: int, samples: int, p50: float, p99: float
) -> dict[str, Cell]:
    return {
        "engine": engine,
        "query": query,
        "until": "it is read" if reads else "it is told",
        "matches": matches,
        "checksum": f"{checksum:016x}",
        "samples": samples,
        "p50 us": round(p50, 2),
        "p99 us": round(p99, 2),
    }


def _at(ordered: list[int], share: float) -> float:
    """The microseconds that so large a share of them stays below."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1_000 if ordered else 0.0
