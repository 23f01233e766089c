"""Ctrl-C and what must not be torn apart: a commit, and what is remembered of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupted_later"]


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Inside, Ctrl-C waits until the end; a second one does not.

    Where signals arrive elsewhere (in another thread), or somebody else takes them, nothing changes. An
    error inside comes before the interrupt.

    >>> done = []
    >>> try:
    ...     with interrupted_later():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("to its end")
    ... except KeyboardInterrupt:
    ...     done.append("interrupted")
    >>> done
    ['to its end', 'interrupted']
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
