"""Matches as tables: Arrow, pandas, polars, and what a notebook shows of them.

A row has the columns query, id, start and end, then what the queries selected. A selected column that is
called like one of the first four, or `triples`, is `select.NAME`, as on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kaicep.errors import arrow_for
from kaicep.plan.events import Match, html_table
from kaicep.plan.terms import XSD, Literal
from kaicep.plan.time import format_time
from kaicep.plan.types import json_text
from kaicep.plan.values import native

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_FIXED = ("query", "id", "start", "end")
_RESERVED = (*_FIXED, "events", "triples")
_MOST_ROWS = 60


class MatchList(list[Match]):
    """Matches that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        names = _selected(self)
        rows = [
            (each.query, format_time(each.start_us), format_time(each.end_us), *_values(each, names))
            for each in self[:_MOST_ROWS]
        ]
        triples = ["triples"] if any(each.triples is not None for each in self) else []
        if triples:
            rows = [(*row, " ".join(m.triples or ())) for row, m in zip(rows, self, strict=False)]
        count = f"<div>{len(self):,} match{'' if len(self) == 1 else 'es'}"
        more = f", the first {_MOST_ROWS} of them here" if len(self) > _MOST_ROWS else ""
        return f"{count}{more}</div>" + html_table(["query", "start", "end", *names, *triples], rows)


def to_arrow(matches: Iterable[Match]) -> pyarrow.Table:
    """Matches as an Arrow table: query, id, start, end, and a column for each selected value.

    Values are those of the matches, so that a selected time is its text; of EP-SPARQL's terms, numbers and
    truth values are such, the others are text. `run_arrow` is faster for many, and has their events too.

    >>> found = [Match("rise", "f3", 0, 1, {"x": 2.5}), Match("rise", "f4", 1, 2, {"x": None})]
    >>> to_arrow(found)["x"].to_pylist()
    [2.5, None]
    """
    pyarrow = arrow_for("a table of matches")
    rows = list(matches)
    names = _selected(rows)
    instants = pyarrow.timestamp("us", tz="UTC")
    columns: dict[str, Any] = {
        "query": pyarrow.array([each.query for each in rows], pyarrow.string()),
        "id": pyarrow.array([each.id for each in rows], pyarrow.string()),
        "start": pyarrow.array([each.start_us for each in rows], pyarrow.int64()).cast(instants),
        "end": pyarrow.array([each.end_us for each in rows], pyarrow.int64()).cast(instants),
    }
    values = [_values(each, names) for each in rows]
    for place, name in enumerate(names):
        columns[f"select.{name}" if name in _RESERVED else name] = _array([row[place] for row in values])
    if any(each.triples is not None for each in rows):
        columns["triples"] = pyarrow.array([list(each.triples or ()) for each in rows])
    return pyarrow.table(columns)


def to_pandas(matches: Iterable[Match]) -> pandas.DataFrame:
    """Matches as a data frame of pandas; the columns are those of `to_arrow`."""
    return to_arrow(matches).to_pandas()


def to_polars(matches: Iterable[Match]) -> polars.DataFrame:
    """Matches as a data frame of polars; the columns are those of `to_arrow`."""
    import polars

    return polars.DataFrame(to_arrow(matches))


def _selected(matches: Sequence[Match]) -> list[str]:
    return list(dict.fromkeys(name for each in matches for name in each.select))


def _values(match: Match, names: Sequence[str]) -> list[Any]:
    return [_value(match.select.get(name)) for name in names]


def _value(value: Any) -> Any:
    """A selected value; a term of EP-SPARQL as a plain one."""
    if not isinstance(value, Mapping):
        return value
    text = str(value["value"])
    if value["type"] != "literal":
        return ("_:" if value["type"] == "bnode" else "") + text
    return native(Literal(text, value.get("datatype", XSD + "string"), value.get("xml:lang")))


def _array(values: list[Any]) -> pyarrow.Array:
    """Values as a column; those of no common type as texts."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        texts = [each if each is None or isinstance(each, str) else json_text(each) for each in values]
        return pyarrow.array(texts, pyarrow.string())
