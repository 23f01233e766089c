"""Where the demo is seen: a terminal that is updated in place, or plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from kaicep.demo.telling import TITLES, Told

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Plain", "Terminal", "View"]

_WIDE = 110
"""Columns of a terminal that has room for what each query asks."""


class View(Protocol):
    """Takes what there is to show."""

    def say(self, text: str) -> None:
        """Says how things go on."""
        ...

    def found(self, query: str, total: int, told: Told | None) -> None:
        """A query has so many matches; one of them may be shown."""
        ...

    def status(self, text: str, share: float) -> None:
        """What is being done, and how much of it, from 0 to 1."""
        ...

    def rest(self) -> None:
        """A part of the demo is over: shows what was found in it."""
        ...

    def close(self) -> None:
        """Lets go of the screen; what is said after that stays."""
        ...


class _Found:
    """The matches by query: how many, and the one that is shown."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(TITLES, 0)
        self.shown: dict[str, Told] = {}

    def take(self, query: str, total: int, told: Told | None) -> None:
        self.totals[query] = total
        if told is not None:
            self.shown[query] = told

    def rows(self) -> Iterator[tuple[str, str, str, Told]]:
        """Of each query its name, how many matches it has, what it asks for, and one of them."""
        for name, total in self.totals.items():
            yield name, f"{total:,}" if total else "", TITLES[name], self.shown.get(name, Told("", "", ""))


class Plain:
    """Lines: what is said, and a table of what was found at the end of each part."""

    def __init__(self) -> None:
        self._found = _Found()

    def say(self, text: str) -> None:
        """Prints it."""
        print(text, flush=True)

    def found(self, query: str, total: int, told: Told | None) -> None:
        """Keeps it for the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Says nothing: what changes all the time is for a screen."""

    def rest(self) -> None:
        """Prints the table."""
        rows = [("query", "matches", "one of them", "where", "why")]
        rows += [(name, total, *vars(told).values()) for name, total, _, told in self._found.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for name, total, *rest in rows:
            cells = [each.ljust(width) for each, width in zip(rest, widths[2:], strict=False)]
            print("  ".join(["", name.ljust(widths[0]), total.rjust(widths[1]), *cells, rest[-1]]).rstrip())
        print(flush=True)

    def close(self) -> None:
        """Has nothing to let go of."""


class Terminal:
    """What is said scrolls by; below it stands a table of what was found, drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._found = _Found()
        self._status = ""
        self._share = 0.0
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=6)
        self._live.start()

    def say(self, text: str) -> None:
        """Prints it above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._live.is_started)

    def found(self, query: str, total: int, told: Told | None) -> None:
        """Shows it in the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Shows it below the table, with a bar."""
        self._status, self._share = text, share

    def rest(self) -> None:
        """The table is there all the time."""

    def close(self) -> None:
        """Leaves the last picture on the screen, without the bar."""
        self._status = ""
        self._live.stop()

    def _drawn(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        wide = self._console.width >= _WIDE
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("query", style="bold cyan", no_wrap=True)
        table.add_column("matches", justify="right", style="green", no_wrap=True)
        if wide:
            table.add_column("asks for", no_wrap=True, ratio=4)
        table.add_column("when", style="magenta", no_wrap=True)
        table.add_column("where", style="yellow", no_wrap=True, ratio=3)
        table.add_column("why", style="dim", no_wrap=True, ratio=4)
        for name, total, title, told in self._found.rows():
            asked = [Text(title)] if wide else []
            table.add_row(name, total, *asked, told.when, Text(told.where), Text(told.why))
        if not self._status:
            return Group(Text(""), table)
        bar = ProgressBar(total=1.0, completed=self._share, width=30)
        return Group(Text(""), table, Columns([bar, Text(self._status, style="cyan")]))
