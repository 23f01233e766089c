"""Drawings as numbers: charts, timelines and plans laid out here, written as SVG by the templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_LINES = 7
_LONGEST = 46
_NARROW = 300.0
_LABEL = 30.0
_MOST_LANES = 3
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


# --- charts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line of a chart: what it shows, its points as SVG writes them, the last value."""

    name: str
    points: str
    area: str
    last: str


@dataclass(frozen=True)
class Chart:
    """A chart with its curves, its ticks (height and text), and the seconds that it reaches back.

    The texts of the ticks stand left of where the curves begin.
    """

    width: int
    height: int
    left: float
    curves: tuple[Curve, ...]
    ticks: tuple[tuple[float, str], ...]
    seconds: int


def chart(
    rows: Sequence[tuple[str, Sequence[float | None]]], unit: str = "", width: int = 320, height: int = 110
) -> Chart:
    """Curves over the same seconds, the newest at the right.

    >>> made = chart([("events", [0.0, 5.0])])
    >>> made.curves[0].points, [text for _, text in made.ticks]
    ('48.0,98.0 320.0,16.0', ['0', '2.5', '5'])
    """
    seconds = max((len(values) for _, values in rows), default=0)
    top = _round_up(max((each for _, values in rows for each in values if each is not None), default=1.0))
    low, high, left = height - 12.0, 16.0, 48.0

    def place(index: int, value: float) -> str:
        x = left + (width - left) * index / max(1, seconds - 1)
        return f"{x:.1f},{low - (low - high) * value / top:.1f}"

    curves = []
    for name, values in rows:
        shown = [(index, each) for index, each in enumerate(values) if each is not None]
        points = " ".join(place(index, each) for index, each in shown)
        first, last = (place(shown[at][0], 0.0) for at in (0, -1)) if shown else ("", "")
        newest = _figure(shown[-1][1]) + unit if shown else "none yet"
        curves.append(Curve(name, points, f"{first} {points} {last}".strip(), newest))
    ticks = tuple((low - (low - high) * share, _figure(top * share) + unit) for share in (0.0, 0.5, 1.0))
    return Chart(width, height, left, tuple(curves), ticks, seconds)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value * 0.999) if value else 1.0


def _figure(value: float) -> str:
    """A number as an axis shows it.

    >>> [_figure(each) for each in (0.0, 0.25, 12.0, 1500.0, 2_500_000.0)]
    ['0', '0.25', '12', '1.5k', '2.5M']
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


# --- the timeline of a match -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timeline:
    """The events of a match from left to right, what lies between, and where there had to be nothing.

    Heights are in pixels, all else in percent of the width: it fits every page.
    """

    height: int
    base: float
    dots: tuple[Mapping[str, Any], ...]
    spans: tuple[Mapping[str, Any], ...]
    absent: tuple[Mapping[str, Any], ...]


def timeline(readings: Sequence[Mapping[str, Any]], absences: Sequence[Mapping[str, Any]]) -> Timeline | None:
    """Where the events of a match stand between its first and its last moment."""
    times = [each["ts"] for each in readings] + [each["until"] for each in absences if each["until"]]
    if not times:
        return None
    left, right = 6.0, 94.0
    first, length = min(times), max(times) - min(times)

    def at(ts: int) -> float:
        return left + (right - left) * ((ts - first) / length if length else 0.5)

    dots = _labelled([{**each, "x": at(each["ts"])} for each in readings])
    base = 26.0 + 18.0 * max((each["lane"] for each in dots if each["lane"] is not None), default=0)
    placed = tuple(
        {
            **each,
            "x": round(each["x"], 2),
            "y": None if each["lane"] is None else base - 14.0 - 18.0 * each["lane"],
            "figure": _first_number(each),
        }
        for each in dots
    )
    spans = ({"x": round(at(first), 2), "width": round(at(first + length) - at(first), 2)},) if length else ()
    absent = tuple(
        {
            "x": round(at(each["after"]), 2),
            "width": round(max(0.5, at(each["until"]) - at(each["after"])), 2),
            "variable": each["variable"],
        }
        for each in absences
        if each["until"]
    )
    return Timeline(int(base + (52 if absent else 14)), base, placed, spans, absent)


def _labelled(dots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The dots with the lane of each one's label; None where all lanes are full. No label covers another.

    >>> [each["lane"] for each in _labelled([{"x": 6.0}, {"x": 20.0}, {"x": 94.0}])]
    [0, 1, 0]
    """
    ends: list[float] = []
    found = []
    for each in dots:
        x = each["x"]
        anchor, begin = (
            ("start", x) if x < 30 else ("end", x - _LABEL) if x > 70 else ("middle", x - _LABEL / 2)
        )
        lane = next((index for index, end in enumerate(ends) if end <= begin), len(ends))
        if lane < _MOST_LANES:
            ends[lane : lane + 1] = [begin + _LABEL]
        found.append({**each, "anchor": anchor, "lane": lane if lane < _MOST_LANES else None})
    return found


def _first_number(reading: Mapping[str, Any]) -> str:
    """The first of an event's values that is a number, as its dot shows it."""
    shown = (value for _, value, *_ in reading.get("values", ()))
    return next((each for each in shown if _NUMBER.fullmatch(each)), "")


# --- plans -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanDrawing:
    """Boxes with their lines of text, and the edges between them, each with what flows there."""

    width: int
    height: int
    nodes: tuple[Mapping[str, Any], ...]
    edges: tuple[Mapping[str, Any], ...]


@dataclass
class _Box:
    card: Mapping[str, Any]
    lines: list[str]
    width: float
    height: float
    below: list[_Box] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0

    @property
    def span(self) -> float:
        """How much room it takes with all that is below it."""
        return max(self.width, sum(each.span for each in self.below) + 24.0 * max(0, len(self.below) - 1))


def plan_graph(card: Mapping[str, Any]) -> tuple[PlanDrawing, PlanDrawing]:
    """A plan as it flows: events at the bottom, matches at the top; and the same as one column, for phones.

    The `flow` of a card is what is written on the edge above it.
    """
    root = _box(card, 360.0)
    levels: list[float] = []
    for depth, each in _walk(root, 0):
        levels[depth:] = levels[depth:] or [0.0]
        levels[depth] = max(levels[depth], each.height)
    _place(root, 12.0, 0, levels)
    column = _box(card, _NARROW)
    at = 12.0
    for depth, each in _walk(column, 0):
        each.x, each.y = 2.0 + 14.0 * depth, at
        at += each.height + 30.0
    return _graph(root, _edge), _graph(column, _bracket)


def _graph(root: _Box, edge: Callable[[_Box, _Box], Mapping[str, Any]]) -> PlanDrawing:
    boxes = [each for _, each in _walk(root, 0)]
    nodes = tuple(_node(each, each is root) for each in boxes)
    edges = tuple(edge(upper, lower) for upper in boxes for lower in upper.below)
    return PlanDrawing(
        int(
            max(
                *(each.x + each.width for each in boxes),
                *(each["x"] + 6.6 * len(each["count"]) for each in edges),
                0.0,
            )
            + 12
        ),
        int(max(each.y + each.height for each in boxes) + 14),
        nodes,
        edges,
    )


def _box(card: Mapping[str, Any], widest: float) -> _Box:
    longest_line = min(_LONGEST, int((widest - 24.0) / 7.0))
    lines = [each if len(each) <= longest_line else each[: longest_line - 1] + "…" for each in _lines(card)]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"and {len(lines) - _MOST_LINES + 1} more lines"]
    title = f"{card['operator']} {card.get('what', '')}".strip()
    longest = max((len(title) * 1.12, *(len(each) for each in lines)))
    made = _Box(card, lines, min(widest, 28.0 + 7.0 * longest), 34.0 + 16.0 * len(lines))
    made.below = [_box(each, widest) for each in card.get("inputs", ())]
    return made


def _lines(card: Mapping[str, Any]) -> Iterator[str]:
    for kind, some in card.items():
        if kind in ("operator", "what", "inputs", "flow"):
            continue
        for text in some:
            for index, line in enumerate(str(text).split("\n")):
                yield " ".join(f"{kind + ' ' if index == 0 else '  '}{line}".split())


def _walk(box: _Box, depth: int) -> Iterator[tuple[int, _Box]]:
    yield depth, box
    for each in box.below:
        yield from _walk(each, depth + 1)


def _place(box: _Box, left: float, depth: int, levels: Sequence[float]) -> None:
    box.x = left + (box.span - box.width) / 2
    box.y = 12.0 + sum(levels[:depth]) + 46.0 * depth
    own = sum(each.span for each in box.below) + 24.0 * max(0, len(box.below) - 1)
    at = left + (box.span - own) / 2
    for each in box.below:
        _place(each, at, depth + 1, levels)
        at += each.span + 24.0


def _node(box: _Box, root: bool) -> Mapping[str, Any]:
    title = f"{box.card['operator']} {box.card.get('what', '')}".strip()
    most = int((box.width - 22) / 7.7)
    kind = "root" if root else "scan" if not box.below else "path" if "path" in box.card else "inner"
    return {
        "x": round(box.x, 1),
        "y": round(box.y, 1),
        "width": round(box.width, 1),
        "height": round(box.height, 1),
        "title": title if len(title) <= most else title[: most - 1] + "…",
        "full": "\n".join([title, *_lines(box.card)]),
        "lines": box.lines,
        "kind": kind,
    }


def _edge(upper: _Box, lower: _Box) -> Mapping[str, Any]:
    x1, y1 = lower.x + lower.width / 2, lower.y
    x2, y2 = upper.x + upper.width / 2, upper.y + upper.height
    middle = (y1 + y2) / 2
    return {
        "d": f"M{x1:.1f} {y1:.1f} C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}",
        "x": round(x1 - 8 if x2 > x1 + 1 else x1 + 8, 1),
        "y": round(y1 - 7, 1),
        "anchor": "end" if x2 > x1 + 1 else "start",
        "count": lower.card.get("flow", ""),
    }


def _bracket(upper: _Box, lower: _Box) -> Mapping[str, Any]:
    """An edge of the narrow form: down the left side, and into the box from there."""
    x, y = upper.x + 7.0, lower.y + 17.0
    return {
        "d": f"M{lower.x:.1f} {y:.1f} H{x:.1f} V{upper.y + upper.height:.1f}",
        "x": lower.x + 8.0,
        "y": lower.y - 8.0,
        "anchor": "start",
        "count": lower.card.get("flow", ""),
    }
