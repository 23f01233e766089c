"""What notebooks show of matches, queries and knowledge: small pieces of HTML, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; null is an empty cell, numbers stand to the right.

    >>> html_table(["x"], [["<a>"], [None]])
    '<table><thead><tr><th>x</th></tr></thead><tbody><tr><td>&lt;a&gt;</td></tr><tr><td></td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_text(title: str, text: str) -> str:
    """A text as it is laid out, below a line that says what it is."""
    return f"<div>{escape(title)}</div><pre>{escape(text)}</pre>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
