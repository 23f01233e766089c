"""A progress bar on stderr, for work that takes longer than a moment, where somebody is looking."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["PATIENCE", "progress"]

PATIENCE = 1.0
"""Seconds before a bar appears."""


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a bar while the work inside goes on; the work says how far it has come, if it knows."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    bar: Progress | None = None
    reached = 0

    def appear() -> None:
        nonlocal bar
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            bar.add_task(text, total=total, completed=reached)
            bar.start()

    def advance(done: int) -> None:
        nonlocal reached
        reached = done
        if bar is not None and bar.task_ids:
            bar.update(bar.task_ids[0], completed=done)

    timer = threading.Timer(PATIENCE, appear)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bar is not None:
            bar.stop()
