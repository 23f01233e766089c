"""Where the demo is seen: a terminal that is updated in place, or plain lines."""

from __future__ import annotations

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
    """What is told scrolls by; below it stands a table of the queries, drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._totals = dict.fromkeys(TITLES, 0)
        self._status = ""
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=6)
        self._live.start()

    def say(self, text: str) -> None:
        """Prints it above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._live.is_started)

    def found(self, query: str, total: int, line: str | None) -> None:
        """Counts, and prints the match above the table, where there is a line of it."""
        self._totals[query] = total
        if line is not None:
            self._console.print(f"  {line}", markup=False)

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
        return Group(Text(""), table, Text(self._status, style="cyan"))
