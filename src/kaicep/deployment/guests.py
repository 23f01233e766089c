"""Posted queries, each in a process of its own, under limits that hold at all times.

A process is forked from one that has everything imported: that takes 20 ms and 3 MB, where a new one would
take a second and 50 MB, and one for all of them could not say whose time and memory it is. A thread listens
to the processes and looks at what they take; a guest that takes more than it may is killed in the middle of
whatever it does. The deployment's own thread only leaves a note of how far everything is, and takes what
has been found.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from kaicep.archive.archive import Cut
from kaicep.deployment.guest_process import Errand, work
from kaicep.deployment.sessions import FoundMatch, Recovery, recovery
from kaicep.deployment.sinks import Entry
from kaicep.errors import reason_of
from kaicep.plan.events import Match

_log = logging.getLogger("kaicep.run")

_LOOK_EVERY = 0.1
_NOTES = 1_000
_AT_ONCE = 2_000
_WAITING = 20_000
_LONGEST = 64 << 20
_MINUTE = 60.0


@dataclass(frozen=True)
class Allowance:
    """What a query from outside may take; above that its process is ended, whatever it is doing.

    Seconds of processor time: `loading` the knowledge, `setting_up` (to resolve and compile it), a single
    `step`, and any `minute` of the present. `memory` is beyond what it was forked with, in bytes; `together`
    is that of all guests. `matches` and `output` (bytes of their JSON) are per second, on the average of a
    hundred seconds. `silence` is by the clock: who says nothing for so long is stuck. Each is as `nice` as
    that to all others.
    """

    loading: float = 300.0
    setting_up: float = 20.0
    step: float = 5.0
    minute: float = 30.0
    memory: int = 1 << 30
    together: int = 4 << 30
    matches: float = 1_000.0
    output: float = 1 << 20
    silence: float = 600.0
    nice: int = 5

    def seconds(self, what: str) -> float:
        """How many it may take for what it says that it does."""
        return {"loading": self.loading, "setting up": self.setting_up}.get(what, self.step)


ALLOWED = Allowance()
"""What queries from outside may take where the deployment says nothing else."""


@dataclass
class _Bucket:
    """So much a second, and a hundred seconds' worth at once."""

    rate: float
    level: float = 0.0
    at: float = field(default_factory=time.monotonic)

    def overflows(self, amount: float) -> bool:
        """Whether it is too much with this amount.

        >>> bucket = _Bucket(1.0)
        >>> bucket.overflows(99), bucket.overflows(10)
        (False, True)
        """
        now = time.monotonic()
        self.level = max(0.0, self.level - (now - self.at) * self.rate) + amount
        self.at = now
        return self.level > 100 * self.rate


class Guest:
    """A query from outside, as the deployment sees it: how far it was told, how it is doing."""

    def __init__(self, errand: Errand, to_sinks: bool) -> None:
        self.errand = errand
        self.id, self.name = errand.id, errand.name
        self.to_sinks = to_sinks
        """Whether a sink takes its matches: those must get them together with how far they go."""
        self.start: Recovery = recovery(errand.entries)
        self.state = "starting"
        self.row: dict[str, Any] = {"state": "starting", "plan": None, "matches": 0, "held": 0}
        self.problem: str | None = None
        self.pid: int | None = None
        self.needs = -1
        """The oldest version of the knowledge that it would begin with, were it lost now."""
        self._entry: Entry | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing more can come of it."""
        return self.state == "complete"

    @property
    def over(self) -> bool:
        """Whether it is not answered any more."""
        return self.state in ("complete", "failed", "wrong")

    def entry(self) -> Entry | None:
        """How far it has told; None where it has not come to where it stood."""
        return self._entry

    def learn(self, report: Mapping[str, Any]) -> None:
        """Takes note of how far it is."""
        self.state, self.needs = report["state"], report["needs"]
        self.row |= report.get("row", {})
        self.row |= {"state": self.state, "matches": report["told"].get(self.name, 0)}
        self._entry = report["entry"] or self._entry


@dataclass(frozen=True)
class _Ready:
    """What a guest has found, and how far it is with that; or what became of it."""

    guest: Guest
    found: list[FoundMatch] = field(default_factory=list)
    report: Mapping[str, Any] | None = None
    wrong: str | None = None
    failed: str | None = None


class _Seat:
    """The process of a guest, and what it has taken so far; only the thread of the guests touches it."""

    def __init__(self, guest: Guest, allowed: Allowance) -> None:
        self.guest = guest
        self.allowed = allowed
        self.found: list[FoundMatch] = []
        self.doing: tuple[str, float, float] | None = ("starting", math.inf, time.monotonic())
        self.asks = True
        self.notes: deque[dict[str, Any]] = deque()
        self.waiting = 0
        self.matches = _Bucket(allowed.matches)
        self.output = _Bucket(allowed.output)
        self.minutes: deque[tuple[float, float]] = deque()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([work.__module__])
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, guest.errand), daemon=True)
        self.process.start()
        theirs.close()
        guest.pid = self.process.pid
        self.begun_with = _memory_of(self.process.pid) or 0
        self.memory = 0

    def excess(self) -> str | None:
        """What it takes too much of, in words."""
        used, allowed, now = _processor_time(self.process.pid), self.allowed, time.monotonic()
        if self.doing is not None:
            what, since, at = self.doing
            taken = used - since if used is not None else now - at
            if taken > allowed.seconds(what):
                return f"{what} takes longer than {allowed.seconds(what):g} s of processor time"
            if now - at > max(allowed.silence, allowed.seconds(what)):
                return f"{what} takes longer than {now - at:.0f} s"
        memory = _memory_of(self.process.pid)
        self.memory = max(0, (memory or 0) - self.begun_with)
        if self.memory > allowed.memory:
            return f"it needs more than {allowed.memory >> 20} MiB of memory"
        if used is None or self.guest.state != "live":
            self.minutes.clear()
            return None
        self.minutes.append((now, used))
        while now - self.minutes[0][0] > _MINUTE:
            self.minutes.popleft()
        if used - self.minutes[0][1] > allowed.minute:
            return f"it takes more than {allowed.minute:g} s of processor time a minute"
        return None

    def take(self, rows: list[list[Any]]) -> str | None:
        """Takes matches; what is too much of them, in words."""
        if self.matches.overflows(len(rows)):
            return f"it finds more than {self.allowed.matches:g} matches a second"
        if self.output.overflows(sum(len(each[3]) for each in rows)):
            return f"its matches are more than {self.allowed.output / (1 << 20):g} MiB a second"
        self.found += [
            FoundMatch(Match.from_json(line), leg, to_sinks, to_followers)
            for leg, to_sinks, to_followers, line in rows
        ]
        return None

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self.process.kill()
        self.process.join(5.0)
        self.connection.close()


class Guests:
    """All of them, and the thread that looks after them."""

    def __init__(self, allowed: Allowance | None = None) -> None:
        self.allowed = allowed or ALLOWED
        self.running: dict[str, Guest] = {}
        self._lock = threading.Lock()
        self._new: list[Guest] = []
        self._gone: list[Guest] = []
        self._note: dict[str, Any] | None = None
        self._news: deque[dict[str, Any]] = deque()
        self._ready: deque[_Ready] = deque()
        self._taken: dict[Guest, int] = {}
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    # --- what the deployment's thread does, which never waits here ---

    def start(self, guest: Guest) -> None:
        """Begins to answer a query."""
        self.running[guest.id] = guest
        with self._lock:
            self._new.append(guest)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="kaicep-guests", daemon=True)
            self._thread.start()
        self._wake()

    def drop(self, id: str) -> None:
        """Lets go of a query."""
        guest = self.running.pop(id, None)
        if guest is not None:
            with self._lock:
                self._gone.append(guest)
            self._wake()

    def note(self, cut: Cut, idle: Collection[tuple[str, int]], ended: Collection[str], version: int) -> None:
        """Says how far the archive is, which parts are silent, which streams are over, what is known."""
        if not self.running:
            self._note = None
            return
        note = {
            "cut": json.loads(cut.text()),
            "idle": sorted(idle),
            "ended": sorted(ended),
            "version": version,
        }
        if note != self._note:
            self._note = note
            with self._lock:
                self._news.append(note)
            self._wake()

    def take(self) -> Iterator[tuple[Guest, FoundMatch]]:
        """What has been found; what became of each guest is to be read from it when this is over."""
        count = 0
        while count < _AT_ONCE:
            with self._lock:
                if not self._ready:
                    return
                ready = self._ready.popleft()
                some = ready.found
                if not ready.guest.to_sinks and len(some) > _AT_ONCE:
                    rest = _Ready(ready.guest, some[_AT_ONCE:], ready.report, ready.wrong, ready.failed)
                    self._ready.appendleft(rest)
                    ready, some = _Ready(ready.guest), some[:_AT_ONCE]
                self._taken[ready.guest] = self._taken.get(ready.guest, 0) + len(some)
            guest = ready.guest
            if self.running.get(guest.id) is not guest:
                continue
            count += len(some)
            yield from ((guest, each) for each in some)
            if ready.report is not None:
                guest.learn(ready.report)
            if ready.wrong is not None:
                guest.state, guest.problem = "wrong", ready.wrong
            if ready.failed is not None:
                guest.state, guest.problem = "failed", ready.failed

    def close(self) -> None:
        """Ends all of them."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(10.0)
        for each in (self._wake_read, self._wake_write):
            os.close(each)

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    # --- the thread of its own ---

    def _serve(self) -> None:
        seats: dict[Guest, _Seat] = {}
        looked = 0.0
        try:
            while not self._closing:
                self._come_and_go(seats)
                heard = {each.connection: each for each in seats.values() if each.waiting < _WAITING}
                for some in wait([*heard, self._wake_read], _LOOK_EVERY if seats else None):
                    if some == self._wake_read:
                        os.read(self._wake_read, 4_096)
                    else:
                        self._guarded(seats, heard[some], self._hear)  # type: ignore[index]
                for each in list(seats.values()):
                    self._guarded(seats, each, self._send)
                if time.monotonic() - looked > _LOOK_EVERY:
                    looked = time.monotonic()
                    self._look(seats)
        finally:
            for each in seats.values():
                each.end()

    def _come_and_go(self, seats: dict[Guest, _Seat]) -> None:
        with self._lock:
            new, self._new = self._new, []
            gone, self._gone = self._gone, []
            news = list(self._news)
            self._news.clear()
            taken, self._taken = self._taken, {}
        for guest, count in taken.items():
            if guest in seats:
                seats[guest].waiting -= count
        for each in seats.values():
            _add_notes(each.notes, news)
        for guest in new:
            if guest in gone:
                continue
            try:
                seats[guest] = _Seat(guest, self.allowed)
                _add_notes(seats[guest].notes, [self._note] if self._note else news[-1:])
            except Exception as error:
                _log.error("%s: its process cannot be started: %s", guest.name, reason_of(error))
                self._tell(_Ready(guest, failed=f"its process cannot be started: {reason_of(error)}"))
        for guest in gone:
            if (seat := seats.pop(guest, None)) is not None:
                seat.end()

    def _guarded(self, seats: dict[Guest, _Seat], seat: _Seat, what: Callable[[_Seat], str | None]) -> None:
        """Does something with a guest; where that shows that it is over, it is."""
        if seat.guest not in seats:
            return
        try:
            reason = what(seat)
        except (EOFError, OSError):
            reason = _why_ended(seat.process)
        if reason is not None:
            self._end(seats, seat, reason)

    def _end(self, seats: dict[Guest, _Seat], seat: _Seat, reason: str) -> None:
        seats.pop(seat.guest, None)
        seat.end()
        if not reason:
            return
        self._tell(_Ready(seat.guest, failed=reason))

    def _tell(self, ready: _Ready) -> None:
        with self._lock:
            self._ready.append(ready)

    def _hear(self, seat: _Seat) -> str | None:
        """A message of a guest; why it is over, if it is (nothing to add: it has said so itself)."""
        said = json.loads(seat.connection.recv_bytes(_LONGEST))
        if "begin" in said:
            seat.doing = (said["begin"], said["at"], time.monotonic())
        elif "found" in said:
            return seat.take(said["found"])
        elif "log" in said:
            _log.log(*said["log"])
        elif "wrong" in said or "failed" in said:
            self._tell(_Ready(seat.guest, wrong=said.get("wrong"), failed=said.get("failed")))
            return ""
        else:
            report = said["report"]
            found, seat.found = seat.found, []
            seat.waiting += len(found)
            seat.doing, seat.asks = None, True
            self._tell(_Ready(seat.guest, found, report, failed=report.get("failed")))
            if report["state"] in ("complete", "failed"):
                return ""
        return None

    def _send(self, seat: _Seat) -> str | None:
        """Gives a guest what it has to know, once it has gone through what it was given before."""
        if len(seat.notes) > _NOTES:
            return "it is too far behind"
        if seat.asks and seat.notes:
            seat.connection.send_bytes(json.dumps(list(seat.notes)).encode())
            seat.notes.clear()
            seat.asks = False
        return None

    def _look(self, seats: dict[Guest, _Seat]) -> None:
        for each in list(seats.values()):
            self._guarded(seats, each, _Seat.excess)
        together = sum(each.memory for each in seats.values())
        if together > self.allowed.together:
            most = max(seats.values(), key=lambda each: each.memory)
            limit = f"{self.allowed.together >> 20} MiB of memory"
            self._end(seats, most, f"all queries from outside together need more than {limit}, and it most")


def _add_notes(notes: deque[dict[str, Any]], news: list[dict[str, Any]]) -> None:
    """Adds what is new; of notes that say the same of everything but how far it is, the last is enough.

    >>> notes = deque([{"cut": 1, "idle": []}])
    >>> _add_notes(notes, [{"cut": 2, "idle": []}, {"cut": 3, "idle": [["s", 0]]}])
    >>> list(notes)
    [{'cut': 2, 'idle': []}, {'cut': 3, 'idle': [['s', 0]]}]
    """
    for each in news:
        if notes and {**notes[-1], "cut": None} == {**each, "cut": None}:
            notes[-1] = each
        else:
            notes.append(each)


def _why_ended(process: Any) -> str:
    """Why a process is gone that did not say why."""
    process.join(5.0)
    code = process.exitcode
    if code is None or code >= 0:
        return f"its process ended with status {code}"
    return f"its process ended by {signal.Signals(-code).name}: it may have needed too much memory"


def _processor_time(pid: int | None) -> float | None:
    """The seconds of processor time that a process has taken; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_of(pid: int | None) -> int | None:
    """The bytes that a process holds in memory; None where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return None
    return int(pages[1]) * resource.getpagesize()
