"""Where the demo is seen: a terminal that is updated in place, or plain lines."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from kaicep.demo.telling import TITLES

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Plain", "Terminal", "View"]


class View(Protocol):
    """Takes what there is to tell."""

    def say(self, text: str) -> None:
        """Tells how things go on."""
        ...

    def found(self, query: str, total: int, line: str | None) -> None:
        """Tells that a query has so many matches, and of one of them."""
        ...

    def status(self, text: str) -> None:
        """Tells where the clock stands, and how fast it all is."""
        ...

    def close(self) -> None:
        """Lets go of the screen; what is said after that stays."""
        ...


class Plain:
    """A line for everything."""

    def say(self, text: str) -> None:
        """Prints it."""
        print(text, flush=True)

    def found(self, query: str, total: int, line: str | None) -> None:
        """Prints the match, where there is a line of it."""
        if line is not None:
            print(f"  {line}", flush=True)

    def status(self, text: str) -> None:
        """Says nothing: what changes all the time is for a screen."""

    def close(self) -> None:
        """Has nothing to let go of."""


class Terminal:
    """A table of the queries with the newest matches below it, drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._totals = dict.fromkeys(TITLES, 0)
        self._lines: deque[str] = deque(maxlen=8)
        self._said: deque[str] = deque(maxlen=6)
        self._status = ""
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=6, transient=False)
        self._live.start()

    def say(self, text: str) -> None:
        """Puts it on top, or below the picture once that stands still."""
        if self._live.is_started:
            self._said.append(text)
        else:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def found(self, query: str, total: int, line: str | None) -> None:
        """Counts, and shows the match among the newest."""
        self._totals[query] = total
        if line is not None:
            self._lines.append(line)

    def status(self, text: str) -> None:
        """Shows it below the table."""
        self._status = text

    def close(self) -> None:
        """Leaves the last picture on the screen."""
        self._live.stop()

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("query", style="bold")
        table.add_column("matches", justify="right", style="green")
        table.add_column("it asks for", style="dim")
        for name, total in self._totals.items():
            table.add_row(name, f"{total:,}" if total else "", TITLES[name])
        newest = [Text(each, overflow="ellipsis", no_wrap=False) for each in self._lines]
        return Group(*map(Text, self._said), Text(""), table, Text(self._status, style="cyan"), *newest)
