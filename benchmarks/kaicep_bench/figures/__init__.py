"""The figures of the three papers, drawn anew from our own runs, with the papers' numbers beside them.

A figure takes the report of a benchmark and gives panels, and claims: what the paper says in its text,
beside what was found here. Each is left as a picture, as the rows behind it, and in one page of numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import kaicep_bench.figures.cpep as cpep
import kaicep_bench.figures.etalis as etalis
import kaicep_bench.figures.scepter as scepter
from kaicep_bench.figures.claim import Claim, Drawing
from kaicep_bench.figures.page import page
from kaicep_bench.plot import draw, needs_matplotlib, write_csv
from kaicep_bench.table import Cell, Report, Table, machine

__all__ = ["FIGURES", "FOLDER", "Figure", "measure"]

FOLDER = Path("benchmarks/results")
"""Where the files go unless told otherwise."""


@dataclass(frozen=True)
class Figure:
    """A figure of a paper: what it shows, the benchmark that measures it, and how it is drawn."""

    name: str
    title: str
    benchmark: str
    drawn: Callable[[Report], Drawing]


FIGURES = (
    Figure("scepter-8", "SCEPter figure 8: what knowledge costs", "semantic", scepter.figure8),
    Figure("scepter-9", "SCEPter figure 9: back after an outage", "recovery", scepter.figure9),
    Figure("etalis-1", "ETALIS figure 1: throughput by window", "epsparql", etalis.figure1),
    Figure("etalis-2", "ETALIS figure 2: delay by reasoning", "epsparql", etalis.figure2),
    Figure("etalis-3", "ETALIS figure 3: goods delivery", "delivery", etalis.figure3),
    Figure("etalis-4", "ETALIS figure 4: tsunamis", "tsunami", etalis.figure4),
    Figure("cpep-6", "CPEP figure 6: latency, with and without priorities", "live", cpep.figure6),
    Figure("cpep-8", "CPEP figure 8: latency, with and without sharing", "live", cpep.figure8),
    Figure("cpep-9", "CPEP figure 9: timely throughput", "live", cpep.figure9),
)
"""The figures, in the order in which they are drawn."""


def measure(quick: bool = False, folder: Path = FOLDER) -> Report:
    """Measures and draws every figure; one that fails does not keep the others from being drawn."""
    needs_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    reports: dict[str, Report | Exception] = {}
    drawings: list[tuple[Figure, Drawing]] = []
    failures: list[str] = []
    for figure in FIGURES:
        started = time.monotonic()
        try:
            drawings.append((figure, _drawn(figure, quick, folder, reports, about)))
        except Exception as error:
            failures.append(f"{figure.name}: {error}")
            print(f"{figure.name} failed: {error}", file=sys.stderr)
        else:
            print(f"{figure.name} drawn, {time.monotonic() - started:.0f} s", file=sys.stderr)
    parts = [(each.name, each.title, drawing) for each, drawing in drawings]
    (folder / "numbers.md").write_text(page(about, quick, parts, failures), "utf-8")
    return Report(
        "figures",
        [Table(each.title, _rows(drawing.claims)) for each, drawing in drawings],
        [f"pictures, rows and numbers.md are in {folder}"],
        about,
        failures,
    )


def _drawn(
    figure: Figure,
    quick: bool,
    folder: Path,
    reports: dict[str, Report | Exception],
    about: Mapping[str, Cell],
) -> Drawing:
    """Draws a figure. A benchmark runs once, however many figures need it, and fails once."""
    if figure.benchmark not in reports:
        try:
            reports[figure.benchmark] = _measured(figure.benchmark, quick)
        except Exception as error:
            reports[figure.benchmark] = error
    found = reports[figure.benchmark]
    if isinstance(found, Exception):
        raise found
    drawing = figure.drawn(found)
    footer = f"kaicep {about['kaicep']}, {about['cpu']}, {about['cores']} cores, {about['date']}"
    draw(
        folder / f"{figure.name}.png",
        drawing.panels,
        figure.title,
        footer + (", quick: little input" if quick else ""),
    )
    write_csv(folder / f"{figure.name}.csv", drawing.panels)
    return drawing


def _measured(benchmark: str, quick: bool) -> Report:
    from kaicep_bench import BENCHMARKS, run
    from kaicep_bench.figures.examples import EXAMPLES

    return run(benchmark, quick) if benchmark in BENCHMARKS else EXAMPLES[benchmark](quick)


def _rows(claims: Sequence[Claim]) -> list[dict[str, Cell]]:
    return [{"what": c.what, "here": c.here, "paper": c.paper, "where": c.where} for c in claims]
