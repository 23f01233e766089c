"""Matches on standard output, one JSON object a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.plan.events import Match

__all__ = ["ConsoleOptions", "ConsoleSink"]


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """It takes none."""


class ConsoleSink(Sink):
    """Prints matches as they come.

    >>> with ConsoleSink("screen", ConsoleOptions()) as sink:  # doctest: +ELLIPSIS
    ...     sink.open()
    ...     sink.write([Match("hot", "f3", 0, 0, {"x": 1})])
    {"query": "hot", "id": "f3", "start": "1970-01-01T00:00:00.000000Z", ..., "select": {"x": 1}}
    """

    guarantee = Guarantee.BEST_EFFORT

    def __init__(self, name: str, options: ConsoleOptions) -> None:
        self.name = name

    def open(self) -> None:
        """There is nothing to open."""

    def write(self, matches: Sequence[Match]) -> None:
        """Prints the matches."""
        for each in matches:
            sys.stdout.write(each.to_json() + "\n")

    def commit(self, mark: Mark) -> None:
        """Sees to it that what was printed can be seen."""
        sys.stdout.flush()

    def close(self) -> None:
        """Sees to it that what was printed can be seen."""
        sys.stdout.flush()
