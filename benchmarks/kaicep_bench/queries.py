"""Many standing queries at once: query 3 with 1, 10, 100, 1,000 levels, and ten shapes mixed.

Where Maven is at hand, Esper runs the same levels on the same events, and must have the same matches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kaicep.errors import Failure
from kaicep_bench import jvm
from kaicep_bench.data import SETS, Columns, make, write
from kaicep_bench.engine import Result, compiled, run_columns
from kaicep_bench.pattern import QUERIES, query3
from kaicep_bench.table import Cell, Report, Table

__all__ = ["SHAPES", "levels", "measure"]

EVENTS = 100_000
NUMBERS = (1, 10, 100, 1_000)
QUICK_EVENTS = 2_000
QUICK_NUMBERS = (1, 10)

SHAPES: Mapping[str, str] = {
    **{f"shape {name}": text for name, text in QUERIES.items()},
    "shape last ten": """SELECT ?e.sensorID, MAX(?e.flowrate) > 900 AS highest
WINDOW (?e, sliding, 10) PARTITION BY ?e.sensorID""",
    "shape both": """SELECT ?e1.sensorID JOIN (?e1.sensorID = ?e2.sensorID)
FILTER (?e1.flowrate > 900) FILTER (?e2.flowrate < 100) WINDOW (?e1, ?e2, 1min)""",
    "shape three": """SELECT ?e1.sensorID
JOIN (?e1.sensorID = ?e2.sensorID) JOIN (?e2.sensorID = ?e3.sensorID)
FILTER (?e1.flowrate > 800) FILTER (?e2.flowrate < 200) FILTER (?e3.flowrate > 800)
SEQ (?e1, ?e2, ?e3) WINDOW (?e1, ?e3, 5min)""",
    "shape between": """SELECT ?e1.sensorID
JOIN (?e1.sensorID = ?e2.sensorID) JOIN (?e1.sensorID = ?e3.sensorID)
FILTER (?e1.flowrate > 900) FILTER (?e2.flowrate < 500) FILTER (?e3.flowrate > 900)
SEQ (?e1, !?e2, ?e3) WINDOW (?e1, ?e3, 5min)""",
}
"""Ten queries of different shapes, by name."""


def levels(number: int) -> dict[str, str]:
    """So many times query 3, with levels from 500 up to 900."""
    return {f"level {each}": query3(500.0 + 400.0 * each / number) for each in range(number)}


def measure(quick: bool = False) -> Report:
    """Runs them all, and Esper beside if it can be built."""
    data = make(SETS["A"]).first(QUICK_EVENTS if quick else EVENTS)
    numbers = QUICK_NUMBERS if quick else NUMBERS
    reason = jvm.missing()
    esper = _esper(data, numbers, quick) if reason is None else {}
    rows = list(_rows(data, numbers, esper))
    return Report(
        "queries",
        [Table(f"standing queries on the first {len(data):,} events of A", rows)],
        [
            "levels: query 3 with other levels, from 500 up to 900; shapes: ten queries of ten kinds",
            "each is compared with the sum of its queries alone where there are no more than ten",
            *([] if reason is None else [f"without Esper: {reason}"]),
        ],
    )


def _rows(
    data: Columns, numbers: tuple[int, ...], esper: Mapping[int, jvm.Taken]
) -> Iterator[dict[str, Cell]]:
    for number in numbers:
        found = _run(levels(number), data)
        taken = esper.get(number)
        if taken and (taken.matches, taken.checksum) != (found.matches, found.checksum):
            raise Failure(f"{number} queries: Esper has {taken.matches:,} matches, kaicep {found.matches:,}")
        yield _row("levels", number, data, found, taken)
    yield _row("shapes", len(SHAPES), data, _run(SHAPES, data), None)


def _run(texts: Mapping[str, str], data: Columns) -> Result:
    """Runs the queries together; few of them must find together what each finds alone."""
    run_columns(compiled(texts), data.first(400))  # what is to be compiled is, before time counts
    found = run_columns(compiled(texts), data)
    if len(texts) <= 10:
        alone = [run_columns(compiled({name: text}), data) for name, text in texts.items()]
        if found.checksum != sum(each.checksum for each in alone) % 2**64:
            raise Failure(f"{len(texts)} queries find other matches together than alone")
    return found


def _row(kind: str, number: int, data: Columns, found: Result, taken: jvm.Taken | None) -> dict[str, Cell]:
    speed = len(data) / found.seconds
    return {
        "queries": number,
        "kind": kind,
        "events/s": round(speed, 1),
        "matches": found.matches,
        "ns per match": round(found.seconds * 1e9 / found.matches, 1) if found.matches else None,
        "Esper events/s": round(taken.events / taken.seconds, 1) if taken else None,
        "of Esper": round(speed * taken.seconds / taken.events, 2) if taken else None,
        "peak MB": round(found.memory / 1e6, 1),
    }


def _esper(data: Columns, numbers: tuple[int, ...], quick: bool) -> dict[int, jvm.Taken]:
    jvm.build()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "columns"
        write(data, file)
        found = jvm.run(jvm.ESPER, "queries", file, len(data), [str(each) for each in numbers], quick)
    return {int(each.query): each for each in found}
