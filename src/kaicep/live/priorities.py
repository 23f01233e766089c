"""Priorities of threads: SCHED_FIFO and locks with priority inheritance, where the system allows them."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from types import TracebackType
from typing import Protocol

__all__ = ["Guard", "allowed", "guard", "real_time"]

TOP = 80
"""The priority of what takes events in; the levels follow below. The kernel's own threads stay above."""

_PRIO_INHERIT = 1
_MUTEX_BYTES = 64  # more than any C library on Linux uses


class Guard(Protocol):
    """A lock."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


def allowed() -> bool:
    """Whether this process may have real-time priorities; tried on a thread that ends at once."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    answers: list[bool] = []
    probe = threading.Thread(target=lambda: answers.append(real_time(0, 1)), name="kaicep-probe")
    probe.start()
    probe.join()
    return answers[0]


def real_time(thread: int, priority: int) -> bool:
    """Gives a thread (0: this one) a priority under SCHED_FIFO; False where that is not allowed."""
    try:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(max(1, min(priority, 98))))
    except OSError:
        return False
    return True


def guard(inherits: bool) -> Guard:
    """A lock; where wanted and possible, one whose holder inherits the priority of whoever waits for it."""
    if inherits and sys.platform == "linux":
        try:
            return _InheritingLock()
        except (OSError, AttributeError):
            pass
    return threading.Lock()


class _InheritingLock:
    """A mutex of the C library with PTHREAD_PRIO_INHERIT; Python's own locks do not know priorities.

    It is first tried without letting go of the interpreter, since most of the time it is free.
    """

    def __init__(self) -> None:
        kept, released = ctypes.PyDLL(None), ctypes.CDLL(None)
        self._mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
        attributes = ctypes.create_string_buffer(_MUTEX_BYTES)
        for code in (
            kept.pthread_mutexattr_init(attributes),
            kept.pthread_mutexattr_setprotocol(attributes, _PRIO_INHERIT),
            kept.pthread_mutex_init(self._mutex, attributes),
        ):
            if code:
                raise OSError(code, os.strerror(code))
        self._try = kept.pthread_mutex_trylock
        self._wait = released.pthread_mutex_lock
        self._unlock = kept.pthread_mutex_unlock

    def __enter__(self) -> None:
        code = self._try(self._mutex)
        if code == errno.EBUSY:
            code = self._wait(self._mutex)
        if code:
            raise OSError(code, os.strerror(code))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlock(self._mutex)
