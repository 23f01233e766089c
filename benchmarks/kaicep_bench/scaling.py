"""How the cost of query 3 grows: with the events, the sensors, the window, and the knowledge of query 7.

It should be linear in the events (flat for each), flat in sensors and knowledge, and grow with the window
as the matches do. Plots go to benchmarks/results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import kaicep as kai
from kaicep.errors import Failure
from kaicep_bench.data import Columns, Shape, make
from kaicep_bench.engine import Result, compiled, run_columns
from kaicep_bench.jvm import FOLDER
from kaicep_bench.latency import query7
from kaicep_bench.pattern import query3
from kaicep_bench.plot import Panel, draw, line_of, needs_matplotlib
from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

RESULTS = FOLDER.parent / "results"


@dataclass(frozen=True)
class Axis:
    """What is varied, over which values, and what is run for each of them."""

    name: str
    values: Sequence[int]
    case: Callable[[int], tuple[kai.Query, Columns]]


def _data(events: int, sensors: int) -> Columns:
    """So many events of sensors that each report every twenty seconds: fifteen times in the window."""
    return make(Shape("scaling", events, sensors, max(sensors // 20, 1)))


def _axes(scale: int) -> Sequence[Axis]:
    events = 500_000 // scale

    def window(minutes: int) -> str:
        return query3().replace("5min", f"{minutes}min")

    return (
        Axis(
            "events",
            [each // scale for each in (50_000, 200_000, 1_000_000, 4_000_000)],
            lambda count: (compiled(query3()), _data(count, 2_000)),
        ),
        Axis(
            "sensors",
            [each for each in (100, 1_000, 10_000, 100_000, 1_000_000) if each <= 2 * events],
            lambda count: (compiled(query3()), _data(events, count)),
        ),
        Axis(
            "window, minutes",
            [1, 5, 20, 60],
            lambda minutes: (compiled(window(minutes)), _data(events, 2_000)),
        ),
        Axis(
            "sensors known to query 7",
            [each // min(scale, 20) for each in (2_000, 20_000, 100_000)],
            lambda count: (query7([f"s{number:05}" for number in range(count)]), _data(events, 100)),
        ),
    )


def measure(quick: bool = False) -> Report:
    """Runs along every axis, and draws it."""
    if not quick:
        needs_matplotlib()
    tables = [_table(axis) for axis in _axes(250 if quick else 1)]
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        for table in tables:
            name = table.title.split(",")[0].replace(" ", "-")
            line = line_of(table, table.title, "ns per event")
            panel = Panel(table.title, table.title, line.label, [line], log="xy")
            draw(RESULTS / f"scaling-{name}.png", [panel])
    return Report(
        "scaling",
        tables,
        [
            "each sensor reports every twenty seconds on average, wherever sensors are not the axis",
            "the same events in batches of another size give the same matches",
        ],
    )


def _table(axis: Axis) -> Table:
    return Table(axis.name, [_row(axis.name, value, *axis.case(value)) for value in axis.values])


def _row(axis: str, value: int, query: kai.Query, data: Columns) -> dict[str, Cell]:
    first = data.first(1_000)
    if run_columns(query, first, 300).checksum != run_columns(query, first).checksum:
        raise Failure(f"{axis} {value:,}: the size of a batch changes the matches")
    found: Result = run_columns(query, data)
    return {
        axis: value,
        "events in all": len(data),
        "events/s": round(len(data) / found.seconds, 1),
        "ns per event": round(found.seconds * 1e9 / len(data), 1),
        "matches": found.matches,
        "ns per match": round(found.seconds * 1e9 / found.matches, 1) if found.matches else None,
        "peak MB": round(found.memory / 1e6, 1),
    }
