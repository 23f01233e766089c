"""Panels of lines or bars: as a picture (PNG), and as the rows behind it (CSV)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kaicep.errors import Mistake
from kaicep_bench.table import Cell, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "Panel", "Point", "draw", "line_of", "needs_matplotlib", "rows_of", "write_csv"]

_COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774")
_DASHES = ("-", "--", ":", "-.")
_PAPER = "#222222"
_MANY = 5  # from so many lines on, the legend names what a paper has once for all


@dataclass(frozen=True)
class Point:
    """A measured value, half the width of its confidence interval, and what a paper has there."""

    x: float | str
    y: float
    error: float | None = None
    paper: float | None = None


@dataclass(frozen=True)
class Line:
    """Points that belong together; lines of the same colour or dashes have something in common."""

    label: str
    points: Sequence[Point]
    colour: int | None = None
    dash: int = 0


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Of `bars`, a line is a group; `stacked`, a line is one segment of every bar."""

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    log: str = ""
    """Which axes are logarithmic: any of x and y. The values of bars lie on y, wherever that is drawn."""


def line_of(table: Table, across: str, up: str) -> Line:
    """The column `up` over the column `across`.

    >>> line_of(Table("t", [{"n": 10, "ns": 5.0}]), "n", "ns").points
    [Point(x=10.0, y=5.0, error=None, paper=None)]
    """
    return Line(up, [Point(float(row[across] or 0), float(row[up] or 0)) for row in table.rows])


def rows_of(panels: Sequence[Panel]) -> Iterator[dict[str, Cell]]:
    """A row for each point: what a figure can be drawn from again.

    >>> list(rows_of([Panel("p", "n", "ns", [Line("a", [Point(1, 2.0, paper=3.0)])])]))
    [{'panel': 'p', 'line': 'a', 'across': 'n', 'x': 1, 'up': 'ns', 'y': 2.0, '+-': None, 'paper': 3.0}]
    """
    for panel in panels:
        for line in panel.lines:
            for each in line.points:
                about: dict[str, Cell] = {"panel": panel.title, "line": line.label, "across": panel.across}
                yield {
                    **about,
                    "x": each.x,
                    "up": panel.up,
                    "y": each.y,
                    "+-": each.error,
                    "paper": each.paper,
                }


def write_csv(path: Path, panels: Sequence[Panel]) -> None:
    """The rows of panels as a file."""
    rows = list(rows_of(panels))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def needs_matplotlib() -> None:
    """Says how to get matplotlib where it is missing: before minutes are spent on measuring."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise Mistake("matplotlib is needed to draw", hint="pip install matplotlib") from error


def draw(path: Path, panels: Sequence[Panel], title: str = "", footer: str = "") -> None:
    """Draws panels side by side as a PNG of few colours, small enough to be committed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    bars = max((len(each.lines[0].points) for each in panels if each.kind != "lines"), default=0)
    size = (4.6 * len(panels) + 0.6, max(4.2, min(0.3 * bars + 1.9, 6.5)))
    drawn, axes = pyplot.subplots(1, len(panels), figsize=size, squeeze=False)
    for panel, axis in zip(panels, axes[0], strict=True):
        _KINDS[panel.kind](axis, panel)
        axis.set_title(panel.title, fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        if len(axis.get_legend_handles_labels()[1]) > 1:
            axis.legend(
                fontsize=6.5,
                frameon=False,
                ncols=2,
                loc="upper left",
                bbox_to_anchor=(-0.12, -0.17),
                handlelength=4.5,  # so that dashes show on either side of the marker
                handletextpad=0.5,
                columnspacing=0.8,
            )
    drawn.suptitle(title, fontsize=11)
    drawn.text(0.99, 0.01, footer, ha="right", fontsize=6, color="#777777")
    drawn.tight_layout(rect=(0, 0.03, 1, 1))
    drawn.savefig(path, dpi=90)
    pyplot.close(drawn)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(48)
    few.save(path, optimize=True)


def _lines(axis: Axes, panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        x: Any = [each.x for each in line.points]
        axis.errorbar(
            x,
            [each.y for each in line.points],
            [each.error or 0 for each in line.points] if any(each.error for each in line.points) else None,
            label=line.label,
            color=_colour(number, line),
            linestyle=_DASHES[line.dash % len(_DASHES)],
            marker="o" if len(x) < 200 else "",
            markersize=4,
            linewidth=1.5 if len(x) < 200 else 0.8,
            capsize=2,
        )
        known = [each for each in line.points if each.paper is not None]
        if known:
            px: Any = [each.x for each in known]
            py: Any = [each.paper for each in known]
            label = f"{line.label}, paper" if len(panel.lines) < _MANY else "_paper"
            axis.plot(
                px, py, "D", color=_colour(number, line), mfc="white", ms=6, label=label, linestyle="none"
            )
    if len(panel.lines) >= _MANY and any(each.paper for line in panel.lines for each in line.points):
        axis.plot([], [], "D", color=_PAPER, mfc="white", ms=6, label="paper, by colour", linestyle="none")
    axis.set(xlabel=panel.across, ylabel=panel.up)
    axis.set_xscale("log" if "x" in panel.log else "linear")
    axis.set_yscale("log" if "y" in panel.log else "linear")
    if "y" not in panel.log and all(each.y >= 0 for line in panel.lines for each in line.points):
        axis.set_ylim(bottom=0)


def _bars(axis: Axes, panel: Panel) -> None:
    """Groups of horizontal bars, the first on top; a diamond is what the paper has."""
    names = [str(each.x) for each in panel.lines[0].points]
    height = 0.8 / len(panel.lines)
    for number, line in enumerate(panel.lines):
        at = [place + height * (number - (len(panel.lines) - 1) / 2) for place in range(len(names))]
        axis.barh(
            at,
            [each.y for each in line.points],
            height,
            label=line.label if len(panel.lines) > 1 else None,
            color=_colour(number, line),
        )
        known = [(each.paper, y) for each, y in zip(line.points, at, strict=True) if each.paper is not None]
        if known:
            axis.plot(*zip(*known, strict=True), "D", color=_PAPER, mfc="white", ms=6, label="paper")
    _named(axis, panel, names)


def _stacked(axis: Axes, panel: Panel) -> None:
    names = [str(each.x) for each in panel.lines[0].points]
    reached = [0.0] * len(names)
    for number, line in enumerate(panel.lines):
        values = [each.y for each in line.points]
        axis.barh(
            range(len(names)), values, 0.7, reached, label=line.label, color=_COLOURS[number % len(_COLOURS)]
        )
        reached = [sum(pair) for pair in zip(reached, values, strict=True)]
    _named(axis, panel, names)


def _named(axis: Axes, panel: Panel, names: Sequence[str]) -> None:
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(xlabel=panel.up)
    if "y" in panel.log:
        axis.set_xscale("log")


def _colour(number: int, line: Line) -> str:
    return _COLOURS[(number if line.colour is None else line.colour) % len(_COLOURS)]


_KINDS = {"lines": _lines, "bars": _bars, "stacked": _stacked}
