"""Figures 8 and 9 of the SCEPter paper, its section 8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kaicep_bench.figures.claim import Claim, Drawing, Row, first, number, rows_titled, value
from kaicep_bench.plot import Line, Panel, Point
from kaicep_bench.table import Report

__all__ = ["figure8", "figure9"]

# Events a second, where the text of section 8.1 says them: what a strategy keeps up with.
_THROUGHPUT = {
    "query 1": 100_000.0,
    "query 5, bare": 80.0,
    "query 5, buffer 1 s": 500.0,
    "query 5, cache 5%": 170.0,
    "query 5, cache 25%": 1_200.0,
    "query 5, both, 25%, 2 s": 3_000.0,
}
# What stands for what in the drawing: colour and dashes.
_DRAWN = {
    "query 1": (5, 0),
    "query 5, compiled": (4, 0),
    "query 5, both, 25%, 2 s": (1, 0),
    "query 5, buffer 2 s": (0, 0),
    "query 5, buffer 1 s": (0, 1),
    "query 5, cache 25%": (2, 0),
    "query 5, cache 5%": (2, 1),
    "query 5, bare": (3, 0),
}
_SAID = {
    "query 1": "keeps up with 100,000 events/s, the most that was tried",
}
_MODULES = ("annotate", "cache", "evaluate", "match")


def figure8(report: Report) -> Drawing:
    """(a) The throughput of every strategy over the rate of the input; (b) where the time goes."""
    rated, modules = (rows_titled(report, f"(figure 8{part})") for part in "ab")
    asked = [row for row in modules if row["host"] == "reference"]
    stacked = [
        Line(each, [Point(str(row["strategy"]), value(row, each)) for row in asked]) for each in _MODULES
    ]
    return Drawing(
        [
            Panel(
                "(a) throughput",
                "input, events/s",
                "output, events/s",
                list(_over_rates(rated)),
                "lines",
                "xy",
            ),
            Panel(
                "(b) time an event, every event asked about", "strategy", "microseconds", stacked, "stacked"
            ),
        ],
        [*_strategies(rated, rows_titled(report, "throughput")), *_times(asked)],
    )


def _over_rates(rows: Sequence[Row]) -> Iterator[Line]:
    """A line for each strategy; the paper's number stands at the rate from which on it was so."""
    for strategy, (colour, dash) in _DRAWN.items():
        said = _THROUGHPUT.get(strategy)
        own = [(value(row, "input/s"), value(row, "output/s")) for row in rows if row["strategy"] == strategy]
        at = next((rate for rate, _ in own if said is not None and rate >= said), None)
        points = [Point(rate, out, paper=said if rate == at else None) for rate, out in own]
        yield Line(strategy, points, colour, dash)


def _strategies(rated: Sequence[Row], rows: Sequence[Row]) -> list[Claim]:
    def most(strategy: str) -> str | None:
        out = [value(row, "output/s") for row in rated if row["strategy"] == strategy]
        return number(max(out), "events/s") if out else None

    found = [
        Claim(
            f"(a) {strategy}, the most that comes out",
            most(strategy),
            _SAID.get(strategy, f"{said:,.0f} events/s"),
            "8.1",
        )
        for strategy, said in _THROUGHPUT.items()
    ]
    compiled = first(rows, "events/s", {"host": "in process", "strategy": "query 5, compiled"})
    twin = first(rows, "events/s", {"host": "in process", "strategy": "query 1, fewer matches"})
    share = None if not twin else float(compiled or 0) / float(twin)
    return [
        *found,
        Claim(
            "(a) query 5 compiled, in process", number(compiled, "events/s"), "has no such strategy", "8.1"
        ),
        Claim(
            "(a) the same, of query 1 with as many matches", number(share), "0.03 (3,000 of 100,000)", "8.1"
        ),
    ]


def _times(rows: Sequence[Row]) -> list[Claim]:
    def spent(strategy: str) -> str | None:
        both = [first(rows, each, {"strategy": strategy}) for each in ("cache", "evaluate")]
        return None if None in both else number(sum(float(each or 0) for each in both) / 1_000, "ms")

    return [
        Claim(
            "(b) the semantic filter on an event, nothing remembered", spent("query 5, bare"), "12 ms", "8.1"
        ),
        Claim(
            "(b) the semantic filter on an event, buffered",
            spent("query 5, buffer 1 s"),
            "below 1 ms (2 s at 1,000 events/s), 1.7 ms (at 3,000)",
            "8.1",
        ),
    ]


# Strategy, archive and minutes of outage: seconds to the first match and until caught up (section 8.2).
_FIRST = {("replay", "120 min", 10): 15.0, ("replay", "60 min", 10): 9.0}
_CAUGHT_UP = {("replay", "120 min", 10): 36.0}
_STRATEGIES = ("hybrid", "replay", "rewrite")


def figure9(report: Report) -> Drawing:
    """Query 5 after an outage: (a) the first match, (b) until caught up, (c) events a second meanwhile."""
    both = rows_titled(report, "back after an outage")
    rows = [row for row in both if row["query"] == "query 5"]
    panels = [
        Panel(
            "(a) first match", "outage, minutes", "seconds", _recovery(rows, "first match s", _FIRST), log="y"
        ),
        Panel(
            "(b) caught up", "outage, minutes", "seconds", _recovery(rows, "caught up s", _CAUGHT_UP), log="y"
        ),
        Panel("(c) meanwhile", "outage, minutes", "events/s", _recovery(rows, "events/s", {}), log="y"),
    ]
    claims = [
        Claim(f"{what}, {strategy}, archive of {archive}, outage of {outage} min", here, f"{said:g} s", "8.2")
        for what, column, numbers in (
            ("(a) first match", "first match s", _FIRST),
            ("(b) caught up", "caught up s", _CAUGHT_UP),
        )
        for (strategy, archive, outage), said in numbers.items()
        for here in [
            number(first(rows, column, {"strategy": strategy, "archive": archive, "outage min": outage}), "s")
        ]
    ]
    return Drawing(panels, [*claims, _hybrid(rows), _rewriting(both)])


def _hybrid(rows: Sequence[Row]) -> Claim:
    """The longest outage, by the strategy that we recommend."""
    row = max((r for r in rows if r["strategy"] == "hybrid"), key=lambda r: value(r, "events"))
    return Claim(
        f"(b) caught up, hybrid, archive of {row['archive']}, outage of {row['outage min']} min",
        number(row["caught up s"], "s"),
        "a little less than by rewriting alone",
        "8.2",
    )


def _rewriting(rows: Sequence[Row]) -> Claim:
    found = [r for r in rows if r["query"] == "query 7" and r["strategy"] == "rewrite"]
    worst = max(found, key=lambda r: value(r, "events"), default=None)
    here = None if worst is None else f"{number(worst['caught up s'], 's')} for {worst['events']:,} events"
    return Claim("query 7 by rewriting alone", here, "more than 10 min even for short outages", "8.2")


def _recovery(rows: Sequence[Row], column: str, paper: dict[tuple[str, str, int], float]) -> list[Line]:
    archives = list(dict.fromkeys(str(row["archive"]) for row in rows))
    lines = []
    for colour, strategy in enumerate(_STRATEGIES):
        for dash, archive in enumerate(archives):
            points = [
                Point(
                    value(row, "outage min"),
                    value(row, column),
                    paper=paper.get((strategy, archive, int(value(row, "outage min")))),
                )
                for row in rows
                if row["strategy"] == strategy and row["archive"] == archive
            ]
            if points:
                lines.append(Line(f"{strategy}, archive of {archive}", points, colour, dash))
    return lines
