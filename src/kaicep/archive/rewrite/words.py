"""The words of a rewritten query: how events, their times and places, and durations are called."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kaicep.plan.literals import format_xsd_duration

__all__ = ["duration", "exists", "nested", "order_of", "stream_prefix", "time_of", "variable_name"]

_SAFE = re.compile(r"[^A-Za-z0-9_]")


def stream_prefix(stream: str) -> str:
    """The prefix for the attributes of a stream."""
    made = _SAFE.sub("_", stream)
    return made if made[:1].isalpha() else f"s{made}"


def variable_name(name: str) -> str:
    """A name as that of a SPARQL variable."""
    return _SAFE.sub("_", name)


def nested(lines: Iterable[str]) -> list[str]:
    """A group of its own."""
    return ["{", *(f"  {line}" for line in lines), "}"]


def exists(lines: Iterable[str]) -> list[str]:
    """What must be there for each solution, asked of it alone."""
    return ["FILTER EXISTS {", *(f"  {line}" for line in lines), "}"]


def time_of(slot: str) -> str:
    """The variable of the time of an event."""
    return f"?{slot}_ts"


def order_of(slot: str) -> str:
    """The variable of the place of an event in the order."""
    return f"?{slot}_order"


def duration(micros: int) -> str:
    """A duration as SPARQL writes it."""
    return f'"{format_xsd_duration(micros)}"^^xsd:dayTimeDuration'
