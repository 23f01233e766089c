"""A bound on how deep a query may be, so that whoever walks it by recursion comes to its end."""

from __future__ import annotations

from dataclasses import is_dataclass

from kaicep.errors import Span
from kaicep.language.report import Report

__all__ = ["refuse_deep"]

_DEEPEST = 150


def refuse_deep(query: object, report: Report) -> None:
    """Ends the parsing where nodes lie too deep in each other, as in a chain of a thousand `+`.

    Brackets are counted while they are read; a chain of operators leans to the left and is deep
    without any.
    """
    pending: list[tuple[object, int]] = [(query, 0)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, tuple):
            pending.extend((each, depth) for each in node)
        elif is_dataclass(node) and hasattr(node, "__dict__"):
            if depth > _DEEPEST:
                _refuse(node, report)
            pending.extend((each, depth + 1) for each in vars(node).values())


def _refuse(node: object, report: Report) -> None:
    span = getattr(node, "span", None) or Span(0, 0)
    hint = "split it into several conditions or groups; for one value among many use IN"
    report.fail(f"more than {_DEEPEST} operators are chained or nested here", span, hint)
