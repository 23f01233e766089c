"""The rows behind figures 6, 8 and 9 of the CPEP paper, as CSV and as plots."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kaicep.bench.table import Cell

__all__ = ["keep"]


def keep(rows: Mapping[str, Sequence[Mapping[str, Cell]]]) -> list[str]:
    """Writes the rows of each figure as CSV, and draws them where matplotlib is there."""
    if not Path("benchmarks").is_dir():
        return ["no files were written: they go to benchmarks/results below the repository's root"]
    folder = Path("benchmarks/results")
    folder.mkdir(exist_ok=True)
    for number, some in rows.items():
        with (folder / f"live-figure{number}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(some[0]))
            writer.writeheader()
            writer.writerows(some)
    try:
        import matplotlib
    except ModuleNotFoundError:
        return [f"rows in {folder}; for plots: pip install matplotlib"]
    matplotlib.use("Agg")
    for number, some in rows.items():
        _plot(number, some, folder)
    return [f"rows and plots in {folder}"]


def _plot(number: str, rows: Sequence[Mapping[str, Cell]], folder: Path) -> None:
    """One panel for each level (or one in all), a line for each way."""
    from matplotlib import pyplot

    value, error = ("timely Mbps", "+-") if number == "9" else ("p99 us", "+-")
    across = "load" if number == "6" else "copies"
    ways = ("priorities",) if number == "6" else ("sharing", "shedding")
    levels = list(dict.fromkeys(str(each["level"]) for each in rows))
    drawn, panels = pyplot.subplots(1, len(levels), figsize=(5 * len(levels), 4), squeeze=False)
    for panel, level in zip(panels[0], levels, strict=True):
        lines: dict[str, list[Mapping[str, Cell]]] = {}
        for row in rows:
            if row["level"] == level:
                lines.setdefault(", ".join(f"{way} {row[way]}" for way in ways), []).append(row)
        for label, points in lines.items():
            panel.errorbar(
                [each[across] for each in points],
                [each[value] for each in points],
                [each[error] or 0 for each in points],
                label=label,
                marker="o",
                capsize=3,
            )
        panel.set(title=level or "all levels", xlabel=across, ylabel=value)
        if number != "9":
            panel.set_yscale("log")
        panel.legend(fontsize="small")
    drawn.tight_layout()
    for ending in ("svg", "png"):
        drawn.savefig(folder / f"live-figure{number}.{ending}")
    pyplot.close(drawn)
