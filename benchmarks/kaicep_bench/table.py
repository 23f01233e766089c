"""What a benchmark found, as a person or a machine reads it, with the machine that it was found on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kaicep import __version__

__all__ = ["Report", "Table", "as_json", "as_text", "machine"]

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows with the same columns, and what they are about."""

    title: str
    rows: Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Report:
    """The tables of a benchmark, and what one must know to read them."""

    name: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    about: Mapping[str, Cell] = field(default_factory=lambda: machine())
    failures: Sequence[str] = ()
    """What could not be measured, where the rest could."""
    raw: Sequence[Mapping[str, Cell]] = ()
    """A row for every single run, for whoever wants to work out other figures; only machines get it."""


def machine() -> dict[str, Cell]:
    """Where and when this runs."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kaicep": __version__,
        "pyoxigraph": version("pyoxigraph"),
    }


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def as_json(report: Report) -> dict[str, Any]:
    """The report for a machine: every number as it was measured."""
    return {
        "benchmark": report.name,
        "machine": dict(report.about),
        "tables": [{"title": each.title, "rows": [dict(row) for row in each.rows]} for each in report.tables],
        "notes": list(report.notes),
        **({"raw": [dict(row) for row in report.raw]} if report.raw else {}),
    }


def as_text(report: Report) -> str:
    """The report for a person: aligned tables.

    >>> print(as_text(Report("none", [Table("t", [{"way": "a", "events/s": 1200.0}])], about={"cores": 2})))
    none: cores 2
    <BLANKLINE>
    t
    way  events/s
    a       1,200
    """
    parts = [f"{report.name}: " + ", ".join(f"{name} {value}" for name, value in report.about.items())]
    parts += [f"{each.title}\n" + _aligned(each.rows) for each in report.tables]
    if report.notes:
        parts.append("\n".join(f"- {each}" for each in report.notes))
    return "\n\n".join(parts)


def _aligned(rows: Sequence[Mapping[str, Cell]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([_shown(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    numeric = [all(not isinstance(row.get(name), str) for row in rows) for name in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
