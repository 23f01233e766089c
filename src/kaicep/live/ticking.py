"""The suppliers of a graph that are driven by a clock or a source, and the priorities of threads."""

from __future__ import annotations

import ctypes
import errno
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from kaicep.errors import Mistake
from kaicep.live.graph import Supplier, problem

# ----------------------------------------------------------------------------------------------------------
# Priorities of threads: SCHED_FIFO and locks with priority inheritance, where the system allows them.

TOP = 80
"""The priority of what takes events in; the levels follow below. The kernel's own threads stay above."""

_PRIO_INHERIT = 1
_MUTEX_BYTES = 64  # more than any C library on Linux uses


class Lock(Protocol):
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


def guard(inherits: bool) -> Lock:
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


# ----------------------------------------------------------------------------------------------------------
# Where the events of `kaicep live run` come from when nothing real is connected: noise, waves, the clock.

GENERATED: Mapping[str, tuple[str, ...]] = {
    "noise": ("size",),
    "wave": ("size", "frequency", "noise"),
    "walk": ("keys", "attribute"),
    "clock": (),
}
"""The sources that make events themselves, and their settings."""


def payloads(supplier: Supplier) -> Iterator[Any]:
    """The payloads of a supplier whose source makes them, without end."""
    kind = supplier.source.get("kind")
    known = GENERATED.get(str(kind), ())
    for key in supplier.source:
        if key not in ("kind", *known):
            raise Mistake(problem(supplier, f"a source of kind {kind} has no {key}", ("source",), key, known))
    return _MAKERS[str(kind)](supplier)


def _noise(supplier: Supplier) -> Iterator[Any]:
    import numpy as np

    chance = np.random.default_rng(len(supplier.name))
    while True:
        yield chance.integers(0, 256, supplier.source.get("size", 512), dtype=np.uint8)


def _wave(supplier: Supplier) -> Iterator[Any]:
    """Bytes of a wave with noise, `frequency` turns per datapoint."""
    import numpy as np

    chance = np.random.default_rng(len(supplier.name))
    size, turns = supplier.source.get("size", 512), supplier.source.get("frequency", 0.05)
    at = 0
    while True:
        wave = 128 + 90 * np.cos(2 * np.pi * turns * (at + np.arange(size)))
        noisy = wave + chance.normal(0, supplier.source.get("noise", 8.0), size)
        yield np.clip(noisy, 0, 255).astype(np.uint8)
        at += size


def _walk(supplier: Supplier) -> Iterator[Any]:
    """A record for one of some sensors in turn, whose value goes up and down at random."""
    import random

    chance = random.Random(supplier.name)
    keys, attribute = int(supplier.source.get("keys", 4)), supplier.source.get("attribute", "value")
    values = [500.0] * keys
    number = 0
    while True:
        key = number % keys
        values[key] = min(900.0, max(100.0, values[key] + chance.gauss(0, 20)))
        yield {"sensor": f"sensor{key}", attribute: round(values[key], 1)}
        number += 1


def _clock(supplier: Supplier) -> Iterator[Any]:
    while True:
        yield time.time_ns() // 1000


_MAKERS: Mapping[str, Callable[[Supplier], Iterator[Any]]] = {
    "noise": _noise,
    "wave": _wave,
    "walk": _walk,
    "clock": _clock,
}


@dataclass
class Pulse:
    """Something to do again and again: every `period` microseconds, first after `offset`."""

    period: int
    beat: Callable[[], Any]
    offset: int = 0


class Ticker:
    """A thread that beats some pulses, each in its own rhythm, until it is stopped.

    A beat that came too late is not beaten twice: the rhythm goes on from now. `late` counts those.
    """

    def __init__(self, pulses: Sequence[Pulse], real_time: bool = False) -> None:
        self.late = 0
        self.failed: Exception | None = None
        self._pulses = list(pulses)
        self._real_time = real_time
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kaicep-live-ticker", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops it, and waits for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if self._real_time:
            real_time(0, TOP)
        now = time.monotonic_ns()
        due = [(now + each.offset * 1000, number) for number, each in enumerate(self._pulses)]
        heapq.heapify(due)
        try:
            while due:
                at, number = due[0]
                wait = (at - time.monotonic_ns()) / 1e9
                if wait > 0 and self._stopping.wait(wait):
                    return
                if self._stopping.is_set():
                    return
                pulse = self._pulses[number]
                pulse.beat()
                period, now = pulse.period * 1000, time.monotonic_ns()
                missed = max(0, now - at) // period
                self.late += missed
                heapq.heapreplace(due, (at + (missed + 1) * period, number))
        except StopIteration:
            return
        except Exception as error:
            self.failed = error
