"""The process of a posted query: it reads the archive as it grows, and reports matches.

What the deployment archives is what a guest is given: the deployment says how far it is, and which parts are
silent, and the guest reads up to there when it comes to it. So however slow it is, nobody waits for it, and
nothing piles up anywhere. Lines of JSON go both ways, nothing else.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kaicep.archive.archive import Archive, Cut, Snapshot
from kaicep.archive.stream_table import StreamTable
from kaicep.deployment.config import Config
from kaicep.deployment.registered import Registered, absolute
from kaicep.deployment.sessions import (
    FoundMatch,
    Session,
    SessionRun,
    SessionSubject,
    figures_of,
    recovery,
    runs_of,
)
from kaicep.deployment.sinks import Entry
from kaicep.deployment.versions import PostedVersions
from kaicep.errors import KaicepError, reason_of
from kaicep.history.strategies import history_of
from kaicep.join.handoff import Mark, Seam
from kaicep.kernel.operator import Limits
from kaicep.knowledge.annotation import prefixes_of

_log = logging.getLogger("kaicep.run")

_SLICE = 0.2
_SHOW_EVERY = 0.25
_AT_ONCE = 200
_ADDRESSES = 4 << 30
"""Allocators and threads take addresses in advance, for which there is no memory."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Errand:
    """What a guest is to answer, and where it stood: all that its process is told at the start.

    `entries` are how far it was told, by sink; `version` is that of the knowledge at the moment.
    """

    id: str
    name: str
    config: Config
    queries: Sequence[Registered]
    finite: bool
    entries: Mapping[str, Entry | None]
    since: Cut | None
    parts: Mapping[str, Sequence[int]]
    version: int
    limits: Limits
    memory: int
    nice: int


def work(connection: Connection, errand: Errand) -> None:
    """Answers a query until it is complete, has failed, or is ended by whoever started it."""
    _bind(errand)
    guest = _Guest(connection, errand)
    try:
        guest.run()
    except EOFError:
        return  # whoever started it is gone
    except KaicepError as error:
        guest.say(wrong=reason_of(error))
    except MemoryError:
        guest.say(failed="it needs more memory than a query from outside may have")
    except Exception as error:
        _log.error("%s: %s", errand.name, reason_of(error), exc_info=error)
        guest.say(failed=reason_of(error))


def _bind(errand: Errand) -> None:
    """It goes when the deployment does, comes after it in everything, and can take no more than its share."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(errand.nice)
    with suppress(OSError, ValueError):
        # What counts is what it holds, which the deployment looks at; this stops one jump beyond all measure.
        most = _mapped() + errand.memory + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _mapped() -> int:
    """The addresses that the process has by now, many of which stand for nothing."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


class _Sender(logging.Handler):
    """What is logged in the process of a guest is logged by the deployment."""

    def __init__(self, guest: _Guest) -> None:
        super().__init__()
        self._guest = guest

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._guest.say(log=[record.levelno, self.format(record)[:10_000]])


class _Guest:
    def __init__(self, connection: Connection, errand: Errand) -> None:
        self._connection = connection
        self._errand = errand
        self._tables: dict[str, StreamTable] = {}
        self._archive = Archive(errand.config.archive)
        self._notes: deque[dict[str, Any]] = deque()
        self._idle: set[tuple[str, int]] = set()
        self._ended: list[str] = []
        self._shown = 0.0
        logging.basicConfig(handlers=[_Sender(self)], level=logging.INFO, format="%(message)s", force=True)

    def say(self, **what: Any) -> None:
        """Sends a message to the deployment."""
        self._connection.send_bytes(json.dumps(what, ensure_ascii=False).encode())

    def _begin(self, what: str) -> None:
        self.say(begin=what, at=time.process_time())

    def run(self) -> None:
        """Goes through the past, and on with what comes."""
        self._begin("loading")
        errand = self._errand
        self._versions = PostedVersions(errand.config, errand.id, errand.version, errand.entries)
        self._begin("setting up")
        session = self._session()
        if session.complete:
            self._report(session, [])
            return
        (run,) = self._runs(session)
        self._report(session, [])
        while session.active:
            self._hear(wait=run.live and not self._notes)
            self._begin("step")
            found: list[tuple[Session, FoundMatch]] = []
            # The past is judged by the versions that it was judged by the first time.
            if self._notes and (run.live or self._notes[0]["version"] <= self._versions.version):
                self._take(session, run, self._notes.popleft(), found)
            if not run.live:
                version = run.wanted(self._versions.version)
                self._versions.become(version)
                found += run.work(time.monotonic() + _SLICE, version, self._versions.version)
            self._join(run, found)
            found += run.end_if(self._ended)
            self._report(session, found)

    def _session(self) -> Session:
        errand, config = self._errand, self._errand.config
        prefixes = prefixes_of(config.annotations)
        parsed = [absolute(each.parse(prefixes), each.now, errand.finite) for each in errand.queries]
        history = history_of(parsed, self._archive, self._versions.files.knowledge, config.annotations, 0)
        asked = SessionSubject(
            errand.id, (errand.name,), history, config.of_query(errand.name), errand.limits
        )
        self._snapshot = self._archive.snapshot()  # with tables of its own: those of `_look` move on
        self._at = {name: dict(parts) for name, parts in self._snapshot.cut.positions.items()}
        states, start = config.state / "states", recovery(errand.entries)
        return Session(asked, self._snapshot, states, start, self._versions.gates)

    def _runs(self, session: Session) -> Iterator[SessionRun]:
        errand = self._errand
        lateness = {**dict.fromkeys(self._archive.streams(), 0), **errand.config.lateness}
        return runs_of([session], None, self._snapshot, lateness, errand.parts, {errand.id: errand.since})

    def _look(self) -> Snapshot:
        """The archive as it is now; of tables that are open already, only what is new is read."""
        for name in self._archive.streams():
            if name in self._tables:
                self._tables[name].table.refresh()
            else:
                self._tables[name] = self._archive.stream(name)
        return Snapshot(dict(self._tables))

    def _hear(self, wait: bool) -> None:
        """Listens to what the deployment has to say; waits for it where there is nothing else to do."""
        while wait or self._connection.poll():
            self._notes += json.loads(self._connection.recv_bytes())
            wait = False

    def _take(
        self,
        session: Session,
        run: SessionRun,
        note: Mapping[str, Any],
        found: list[tuple[Session, FoundMatch]],
    ) -> None:
        """Reads what has come by the moment of a note, and learns who is silent then."""
        if note["version"] > self._versions.version:
            self._versions.take(note["version"], Mark.from_json(session.entry()["mark"]), session.reach)
        until = Cut.parse(json.dumps(note["cut"]))
        if any(until.beyond(Cut(self._at))):
            seam = Seam(Cut(self._at))
            own = {name: each for name, each in self._look().tables.items() if name in run.streams}
            found += run.take(list(seam.beyond(Snapshot(own, until))))
            for stream, part, at in list(until.beyond(Cut(self._at))):
                self._at.setdefault(stream, {})[part] = at
        idle = {(stream, part) for stream, part in note["idle"]}
        for stream, part in sorted(idle - self._idle):
            found += run.idle(stream, part)
        self._idle, self._ended = idle, note["ended"]

    def _join(self, run: SessionRun, found: list[tuple[Session, FoundMatch]]) -> None:
        """A run that comes to the present: parts that are silent by now hold it back no more."""
        if run.joined or not run.answers:
            return
        run.joined = True
        followed = self._errand.config.streams
        for stream in sorted(run.streams):
            parts: Iterable[int] = [part for name, part in self._idle if name == stream]
            for part in parts if stream in followed else self._archive.stream(stream).positions:
                found += run.idle(stream, part)

    def _report(self, session: Session, found: Sequence[tuple[Session, FoundMatch]]) -> None:
        """Says what was found, and then how far the query is with it."""
        for at in range(0, len(found), _AT_ONCE):
            rows = [
                [each.leg, each.to_sinks, each.to_followers, each.match.to_json()]
                for _, each in found[at : at + _AT_ONCE]
            ]
            self.say(found=rows)
        told: dict[str, Any] = {
            "state": session.state,
            "entry": session.entry() if session.live or session.complete else None,
            "told": dict(session.told),
            "needs": self._versions.needs,
        }
        if time.monotonic() - self._shown > _SHOW_EVERY or not session.active:
            self._shown = time.monotonic()
            tables = {**self._snapshot.tables, **self._tables}
            newest = {name: max(each.newest.values()) for name, each in tables.items() if each.newest}
            told["row"] = figures_of(self._errand.name, session, newest, lambda stream, part: None)
        if session.failed is not None:
            told["failed"] = session.failed
        self.say(report=told)
