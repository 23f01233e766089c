"""What is shown on stderr of work that takes longer than a moment, where somebody is looking."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kaicep.cli.guard import say

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["PATIENCE", "compile_kernel", "progress"]

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


def compile_kernel() -> None:
    """Compiles the kernel, and says so, where that was not done when kaicep was installed.

    Where nobody is looking, each part is compiled when it is first needed, as quietly.
    """
    if not sys.stderr.isatty():
        return
    from kaicep.kernel.warm import can_be_warm, is_warm, warm

    if can_be_warm() and not is_warm():
        say("compiling the kernel, once for this installation ...")
        warm()
