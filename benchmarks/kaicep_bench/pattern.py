"""Queries 1, 2 and 3 of the SCEPter paper (its section 3.2) on three data sets, a loop and an absence on one.

Query 3 is asked with every combination (`any`) and with the next that fits (`next`). A part of every answer
is compared with the reference's before any number is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kaicep.errors import Failure
from kaicep_bench.campus import QUERY1
from kaicep_bench.data import SETS, Columns, Shape, make
from kaicep_bench.engine import Result, compiled, run_columns, run_reference
from kaicep_bench.table import Cell, Report, Table

__all__ = ["CASES", "QUERIES", "Case", "about", "check", "columns", "measure", "query3"]


def query3(level: float = 500, match: str = "any") -> str:
    """Query 3 with another level, or another way to choose events."""
    return f"""SELECT ?e1.sensorID, ?e2.flowrate
FILTER (?e1.flowrate > {level})
JOIN (?e2.sensorID = ?e1.sensorID)
JOIN (?e2.flowrate - ?e1.flowrate > 50)
SEQ (?e1, ?e2)
MATCH {match}
WINDOW (?e1, ?e2, 5min)"""


QUERIES: Mapping[str, str] = {
    "1": QUERY1,
    "2": """SELECT ?e.sensorID, AVG(?e.flowrate) > 500 AS avgrate
WINDOW (?e, sliding, 5min)
PARTITION BY ?e.sensorID""",
    "3 any": query3(),
    "3 next": query3(match="next"),
    # Reports of a sensor, one right after the other, each above the one before: every length is a match.
    "loop": """SELECT ?first.sensorID, LAST(?up.flowrate) AS reached
JOIN (?up.flowrate > ?first.flowrate)
FILTER (?up.flowrate > PREV(?up.flowrate))
SEQ (?first, ?up+)
MATCH strict
WINDOW (?first, ?up, 5min)
PARTITION BY ?first.sensorID""",
    # A sensor is silent for a minute.
    "absence": """SELECT ?last.sensorID, ?last.flowrate
SEQ (?last, !?next)
WINDOW (?last, ?next, 1min)
PARTITION BY ?last.sensorID""",
}
"""The queries by name."""


@dataclass(frozen=True)
class Case:
    """A query on a data set."""

    query: str
    data: str


CASES: tuple[Case, ...] = (
    *(Case(query, data) for data in SETS for query in ("1", "2", "3 any", "3 next")),
    Case("loop", "A"),
    Case("absence", "A"),
)
"""What is measured."""

QUICK = 50
"""A quick run takes one event in so many: the first ones."""

COMPARED = 400
"""So many of the first events go through the reference as well."""


def columns(shape: Shape, quick: bool) -> Columns:
    """A data set, or its beginning."""
    made = make(shape)
    return made.first(shape.events // QUICK) if quick else made


def about(shape: Shape) -> str:
    """What a data set is like, for the notes."""
    return (
        f"{shape.name}: {shape.events:,} events, {shape.sensors:,} sensors, "
        f"{shape.rate:,} events a second of event time"
    )


def measure(quick: bool = False) -> Report:
    """Runs every query on its data sets."""
    rows = list(_rows(quick))
    return Report(
        "pattern",
        [Table("queries on data sets", rows)],
        [
            *map(about, SETS.values()),
            f"every match is delivered; the first {COMPARED} events give the reference's matches",
            "peak MB: what the run held at most, beyond what the process held before",
        ],
    )


def _rows(quick: bool) -> Iterator[dict[str, Cell]]:
    for name, shape in SETS.items():
        data = columns(shape, quick)
        for case in CASES:
            if case.data == name:
                check(case.query, data)
                yield _row(case, data, run_columns(compiled(QUERIES[case.query]), data))


def check(query: str, data: Columns) -> None:
    """Compares what comes of the first events with what the reference says."""
    first, made = data.first(COMPARED), compiled(QUERIES[query])
    found, truth = run_columns(made, first), run_reference(made, first)
    if (found.matches, found.checksum) != (truth.matches, truth.checksum):
        raise Failure(
            f"query {query}: {found.matches} matches, and others than the reference's {truth.matches}"
        )


def _row(case: Case, data: Columns, result: Result) -> dict[str, Cell]:
    return {
        "query": case.query,
        "data": case.data,
        "events": len(data),
        "events/s": round(len(data) / result.seconds, 1),
        "matches": result.matches,
        "ns per event": round(result.seconds * 1e9 / len(data), 1),
        "ns per match": round(result.seconds * 1e9 / result.matches, 1) if result.matches else None,
        "peak MB": round(result.memory / 1e6, 1),
    }
