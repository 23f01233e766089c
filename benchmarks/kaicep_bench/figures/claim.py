"""What a figure is made of: panels, and what the paper says beside what was found here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaicep_bench.plot import Panel
from kaicep_bench.table import Cell, Report

__all__ = ["Claim", "Drawing", "Row", "first", "number", "rows_titled", "value"]

Row = Mapping[str, Cell]
"""A row of a table."""


@dataclass(frozen=True)
class Claim:
    """One number, or one sentence, of a paper; `here` is None where this run has nothing to compare."""

    what: str
    here: str | None
    paper: str
    where: str
    """The section of the paper that says so."""


@dataclass(frozen=True)
class Drawing:
    """A figure before it is drawn."""

    panels: Sequence[Panel]
    claims: Sequence[Claim]


def number(value: Cell, unit: str = "") -> str | None:
    """A number for a person.

    >>> number(1234.5, "events/s"), number(0.0123, "s"), number(None)
    ('1,234 events/s', '0.0123 s', None)
    """
    if value is None or isinstance(value, str):
        return value
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def rows_titled(report: Report, part: str) -> Sequence[Row]:
    """The rows of the table that has this in its title.

    >>> from kaicep_bench.table import Table
    >>> rows_titled(Report("r", [Table("speed (figure 1a)", [{"x": 1}])], about={}), "(figure 1a)")
    [{'x': 1}]
    """
    return next(each.rows for each in report.tables if part in each.title)


def value(row: Row, column: str) -> float:
    """A number of a row; 0 where there is none."""
    return float(row[column] or 0)


def first(rows: Sequence[Row], wanted: str, where: Row) -> Cell:
    """The value of a column in the first row that has these others, if there is one.

    >>> first([{"a": 1, "b": 2}, {"a": 3, "b": 4}], "b", {"a": 3})
    4
    """
    return next((row[wanted] for row in rows if where.items() <= row.items()), None)
