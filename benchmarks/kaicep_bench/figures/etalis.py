"""Figures 1 to 4 of the EP-SPARQL paper, its section 6; its engine is ETALIS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kaicep_bench.figures.claim import Claim, Drawing, Row, number, rows_titled, value
from kaicep_bench.plot import Line, Panel, Point
from kaicep_bench.table import Report

__all__ = ["figure1", "figure2", "figure3", "figure4"]

_THRESHOLD = 30
"""Millimetres, as in the paper."""


def figure1(report: Report) -> Drawing:
    """Throughput by the size of a window: (a) of time, (b) of a number of sequences."""
    by_time, by_count = (rows_titled(report, f"(figure 1{part})") for part in "ab")
    a, b = _windows(by_time), _windows(by_count)
    said = "both engines between 4,000 and 10,000 (its axis), ETALIS above Esper"
    claims = [Claim(f"(a) window of {p.x:g} s", number(p.y, "events/s"), said, "6, test 1") for p in a.points]
    said = "both engines below 30,000 (its axis), ETALIS above Esper"
    claims += [
        Claim(f"(b) window of {p.x:,.0f} sequences", number(p.y, "events/s"), said, "6, test 1")
        for p in b.points
    ]
    return Drawing(
        [
            Panel("(a) queries (5) and (6), time window", "seconds", "events/s", [a], log="xy"),
            Panel("(b) sum over sequences, count window", "sequences", "events/s", [b], log="x"),
        ],
        claims,
    )


def _windows(rows: Sequence[Row]) -> Line:
    return Line("kaicep", [Point(_leading(str(row["strategy"])), value(row, "triples/s")) for row in rows])


def _leading(text: str) -> float:
    found = re.match(r"[\d,]+", text)
    assert found, text
    return float(found[0].replace(",", ""))


def figure2(report: Report) -> Drawing:
    """How long it takes to tell which of so many triples are of a class with 40,080 below it."""
    rows = [row for row in rows_titled(report, "(figure 2)") if value(row, "triples") <= 20_000]
    points = [Point(value(r, "triples"), value(r, "triples") / value(r, "triples/s") * 1_000) for r in rows]
    last = points[-1]
    return Drawing(
        [
            Panel(
                "is the subject of a triple of the class?",
                "triples",
                "milliseconds",
                [Line("kaicep", points)],
            )
        ],
        [
            Claim(
                f"{last.x:,.0f} triples",
                number(last.y, "ms"),
                "below 2,000 ms (its axis, up to 20,000 triples)",
                "6, test 2",
            ),
            Claim("beside the fastest earlier system", None, "more than 20 times as fast", "6, test 2"),
        ],
    )


def figure3(report: Report) -> Drawing:
    """Agents on their way through a city: (a) time and (b) memory by the number of locations."""
    (table,) = report.tables
    agents = list(dict.fromkeys(row["agents"] for row in table.rows))

    def lines(column: str) -> list[Line]:
        return [
            Line(
                f"{count} agent{'s' * (count != 1)}",
                [
                    Point(value(row, "locations"), value(row, column), paper=value(row, f"paper {column}"))
                    for row in table.rows
                    if row["agents"] == count
                ],
            )
            for count in agents
        ]

    claims = [
        Claim(
            f"({part}) agents: {row['agents']}, locations: {row['locations']}",
            number(row[unit], unit),
            f"{row[f'paper {unit}']:,} {unit}",
            "6, test 3, printed in figure 3",
        )
        for part, unit in (("a", "ms"), ("b", "kB"))
        for row in table.rows
    ]
    return Drawing(
        [
            Panel("(a) time", "locations", "ms", lines("ms"), log="y"),
            Panel("(b) memory", "locations", "kB", lines("kB"), log="y"),
        ],
        claims,
    )


def figure4(report: Report) -> Drawing:
    """The difference of a reading from what was expected: (a) how often, (b) when the tsunami comes."""
    histogram, wave, found = report.tables
    bars = Line("kaicep", [Point(f"{row['from mm']:+}", value(row, "readings")) for row in histogram.rows])
    difference = Line("difference", [Point(value(r, "hours"), value(r, "mm")) for r in wave.rows])
    ends = (difference.points[0].x, difference.points[-1].x)
    limits = [
        Line("threshold" if side > 0 else "", [Point(x, side * _THRESHOLD) for x in ends], 1, 1)
        for side in (1, -1)
    ]
    (facts,) = found.rows
    return Drawing(
        [
            Panel("(a) readings by difference", "mm", "readings (from so many mm on)", [bars], "bars", "y"),
            Panel("(b) the tsunami", "hours of 23 March 2010", "difference, mm", [difference, *limits]),
        ],
        [
            Claim("readings", number(facts["readings"]), "44,310, of a real buoy; ours are made", "6"),
            Claim(
                f"differences beyond {_THRESHOLD} mm",
                number(facts["beyond"]),
                "3, all within three hours on 23 March 2010",
                "6",
            ),
            Claim("hours from the first of them to the last", number(facts["hours"]), "3 at most", "6"),
        ],
    )
