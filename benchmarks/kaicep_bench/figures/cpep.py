"""Figures 6, 8 and 9 of the CPEP paper, its section V."""

from __future__ import annotations

from collections.abc import Sequence

from kaicep_bench.figures.claim import Claim, Drawing, Row, number, rows_titled, value
from kaicep_bench.plot import Line, Panel, Point
from kaicep_bench.table import Report

__all__ = ["figure6", "figure8", "figure9"]

_LEVELS = ("high", "middle", "low")
_LOW_PERIOD_US = 20_000
"""The streams of the low level have 50 events a second."""


def figure6(report: Report) -> Drawing:
    """Latency of each level while the middle one grows, with and without priorities."""
    rows = rows_titled(report, "(figure 6)")
    panels = [
        Panel(
            f"{level} level",
            "load",
            "p99, microseconds",
            [
                _line(
                    f"priorities: {answer}", [r for r in rows if r["level"] == level], {"priorities": answer}
                )
                for answer in ("yes", "no")
            ],
            log="y",
        )
        for level in _LEVELS
    ]
    low = max(
        _p99(r) for r in rows if r["level"] == "low" and r["priorities"] == "yes" and r["wanted load"] != 1.2
    )
    return Drawing(
        panels,
        [
            Claim(
                "high, priorities: p99 at 95% load, of 45%", _growth(rows, "high", "yes"), "maintained", "V.A"
            ),
            Claim("high, no priorities: the same", _growth(rows, "high", "no"), "increased", "V.A"),
            Claim("middle, priorities: the same", _growth(rows, "middle", "yes"), "as high", "V.A"),
            Claim(
                "low, priorities: p99 up to 95% load, of its period",
                number(low / _LOW_PERIOD_US),
                "less than half, and higher than without priorities",
                "V.A",
            ),
        ],
    )


def _growth(rows: Sequence[Row], level: str, priorities: str) -> str | None:
    found = {
        row["wanted load"]: _p99(row)
        for row in rows
        if row["level"] == level and row["priorities"] == priorities
    }
    return number(found[0.95] / found[0.45]) if {0.45, 0.95} <= found.keys() and found[0.45] else None


def figure8(report: Report) -> Drawing:
    """Latency of each level with more and more copies of the graph, with and without sharing."""
    rows = rows_titled(report, "(figure 8)")
    panels = [
        Panel(
            f"{level} level",
            "copies",
            "p99, microseconds",
            _ways([row for row in rows if row["level"] == level and row["delivered"]], "p99 us"),
            log="y",
        )
        for level in _LEVELS
    ]
    copies = min(value(row, "copies") for row in rows)
    claims = []
    for level in _LEVELS:
        with_, without = (
            next(
                _p99(row)
                for row in rows
                if row["level"] == level
                and row["copies"] == copies
                and (row["sharing"], row["shedding"]) == (sharing, "no")
            )
            for sharing in ("yes", "no")
        )
        said = "not noticeably more" if level == "high" else "less, the lower the level"
        what = f"{level}: p99 with sharing, of that without, {copies:.0f} copies"
        claims.append(Claim(what, number(with_ / without) if without else None, said, "V.B"))
    return Drawing(panels, claims)


def figure9(report: Report) -> Drawing:
    """What is delivered in time with more and more copies of the graph."""
    rows = rows_titled(report, "(figure 9)")
    most = max(value(row, "copies") for row in rows)

    def mbps(sharing: str, shedding: str) -> float:
        wanted = {"copies": most, "sharing": sharing, "shedding": shedding}
        return next(value(row, "timely Mbps") for row in rows if wanted.items() <= row.items())

    more = mbps("yes", "yes") - mbps("yes", "no")
    return Drawing(
        [Panel("timely throughput", "copies", "Mbps", _ways(rows, "timely Mbps"))],
        [
            Claim(
                f"no sharing, shedding, {most:.0f} copies",
                number(mbps("no", "yes"), "Mbps"),
                "200 Mbps up to 19 copies (full from nine on, three cores)",
                "V.B",
            ),
            Claim(
                f"sharing: what shedding adds, {most:.0f} copies",
                number(more, "Mbps"),
                "100 Mbps at 15 copies, less with more copies",
                "V.B",
            ),
        ],
    )


def _ways(rows: Sequence[Row], column: str) -> list[Line]:
    lines = []
    for colour, sharing in enumerate(("yes", "no")):
        for dash, shedding in enumerate(("yes", "no")):
            wanted = {"sharing": sharing, "shedding": shedding}
            points = [r for r in rows if wanted.items() <= r.items()]
            if points:
                lines.append(
                    Line(
                        f"sharing: {sharing}, shedding: {shedding}",
                        [Point(value(r, "copies"), value(r, column), _error(r)) for r in points],
                        colour,
                        dash,
                    )
                )
    return lines


def _line(label: str, rows: Sequence[Row], wanted: Row) -> Line:
    points = [r for r in rows if wanted.items() <= r.items()]
    return Line(label, [Point(value(r, "load"), _p99(r), _error(r)) for r in points])


def _error(row: Row) -> float | None:
    return None if row["+-"] is None else float(row["+-"])


def _p99(row: Row) -> float:
    return value(row, "p99 us")
