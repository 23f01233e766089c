"""The sinks of a deployment: they get matches together with the progress of the queries.

A sink works in a thread of its own, so that one which is down holds nobody up. Its mark says for every
session how far it was told: `{"sessions": {id: entry}}`. The state folder keeps a copy of it. For a sink that
commits no mark of its own the copy is the mark; for one that does, it says how far a mark is good that
stayed the same because there was nothing to write.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kaicep.connectors.contract import Guarantee, Sink
from kaicep.connectors.contract import Mark as SinkMark
from kaicep.deployment.config import SinkConfig
from kaicep.errors import KaicepError, reason_of
from kaicep.plan.events import Match
from kaicep.storage.disk import read_sealed, replace_sealed

_log = logging.getLogger("kaicep.run")

Entry = Mapping[str, Any]
"""How far a session was told: its mark, how many matches so far and when the last one ended, whether it
is complete."""

BACKLOG = 100_000
"""So many matches may wait for a sink before events are not taken in any more."""

_QUIET = 2.0
_RETRY = 1.0


class NoSink(Sink):
    """The sink of a deployment that has none: only followers see the matches."""

    guarantee = Guarantee.BEST_EFFORT

    def open(self) -> SinkMark | None:
        """There is nothing to open."""
        return None

    def write(self, matches: Sequence[Match]) -> None:
        """There is nowhere to write."""

    def commit(self, mark: SinkMark) -> None:
        """There is nothing to make final."""

    def close(self) -> None:
        """There is nothing to close."""


class Outlet:
    """A sink and the thread that serves it.

    `entries` says how far it was told when it was opened. `send` takes the matches of a moment and how
    far all sessions stand then; a moment is final when `settled` has reached its number.
    """

    def __init__(self, config: SinkConfig, folder: Path, sink: Sink | None = None) -> None:
        self.config = config
        self.name = config.name
        self.entries: dict[str, Entry] = {}
        self.settled = 0
        self.written = 0
        self._sink = sink if sink is not None else config.open_sink()
        self._copy = _copy_of(folder, config.name)
        self._base = ""
        self._trouble: str | None = None
        self.broken: str | None = None
        """Why it is served no more: what it was not told by then, it is told after a restart."""
        self._changed = threading.Condition()
        self._matches: list[Match] = []
        self._moment = 0
        self._closing = False
        self._committed = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name=f"kaicep-sink-{self.name}", daemon=True)

    @property
    def backlog(self) -> int:
        """How many matches wait."""
        return len(self._matches)

    @property
    def trouble(self) -> str | None:
        """What it waits for, in words."""
        return self.broken or self._trouble or self._sink.trouble

    def status(self, moment: int) -> dict[str, Any]:
        """How it is going, at a moment of the deployment."""
        behind = moment - self.settled
        return {"written": self.written, "backlog": self.backlog, "behind": behind, "trouble": self.trouble}

    def open(self) -> None:
        """Opens the sink, finds out how far it was told, and begins to serve it."""
        self.entries = dict(self.look())
        self._thread.start()

    def look(self) -> Mapping[str, Entry]:
        """Opens the sink; how far each session was told."""
        mark = self._sink.open()
        self._base = _digest(mark)
        try:
            copy = json.loads(read_sealed(self._copy))
        except FileNotFoundError:
            copy = None
        if copy is not None and copy["base"] == self._base:
            mark = copy["mark"]
        sessions: Mapping[str, Entry] = (mark or {}).get("sessions", {})
        return sessions

    def send(self, matches: Sequence[Match], entries: Mapping[str, Entry], moment: int) -> None:
        """Takes the matches of a moment, and how far everybody stands then."""
        if self.broken is not None:
            return
        with self._changed:
            self._matches += matches
            self.entries = dict(entries)
            self._moment = moment
            self._changed.notify_all()

    def wait(self, moment: int, seconds: float) -> bool:
        """Waits until a moment is final; says whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.settled >= moment or self.broken is not None, seconds)
            return self.settled >= moment

    def close(self, seconds: float) -> None:
        """Makes final what can be, and closes the sink."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._sink.close()

    # --- its own thread ---

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        except Exception as error:
            _log.error(
                "sink %s: %s; it gets nothing until a restart", self.name, reason_of(error), exc_info=error
            )
            with self._changed:
                self.broken = reason_of(error)
                self._matches = []
                self._changed.notify_all()

    def _serve_until_closed(self) -> None:
        pending = 0
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, _QUIET)
                matches, self._matches = self._matches, []
                mark, moment, closing = {"sessions": self.entries}, self._moment, self._closing
            due = matches or pending or closing or time.monotonic() - self._committed > _QUIET
            if moment > self.settled and due:
                pending += len(matches)
                if self._deliver(matches, mark, pending > 0):
                    self._done(moment, pending)
                    pending = 0
            if closing and (self.settled >= self._moment or self._trouble):
                return

    def _has_work(self) -> bool:
        return bool(self._matches) or self._closing

    def _deliver(self, matches: Sequence[Match], mark: SinkMark, news: bool) -> bool:
        """Writes and commits; False where the commit has to be tried again: the sink has the matches."""
        try:
            self._sink.write(matches)
            self._sink.commit(mark)
            if news and self._sink.guarantee is Guarantee.EXACTLY_ONCE:
                self._base = _digest(mark)
            replace_sealed(self._copy, json.dumps({"base": self._base, "mark": mark}).encode())
        except (KaicepError, OSError) as error:
            if str(error) != self._trouble:
                _log.warning("sink %s: %s; trying again", self.name, error)
                self._trouble = str(error)
            time.sleep(_RETRY)
            return False
        if self._trouble:
            _log.info("sink %s: it works again", self.name)
            self._trouble = None
        return True

    def _done(self, moment: int, count: int) -> None:
        self._committed = time.monotonic()
        with self._changed:
            self.settled = moment
            self.written += count
            self._changed.notify_all()


def copied_entries(folder: Path, name: str) -> Mapping[str, Entry]:
    """How far each session was told at least, by the copy of a sink's mark in a folder."""
    try:
        mark = json.loads(read_sealed(_copy_of(folder, name)))["mark"]
    except FileNotFoundError:
        return {}
    found: Mapping[str, Entry] = (mark or {}).get("sessions", {})
    return found


def _copy_of(folder: Path, name: str) -> Path:
    return folder / f"{quote(name, safe='')}.json"


def _digest(mark: SinkMark | None) -> str:
    """A mark in short, to tell whether a sink's own is still the one that a copy was made beside."""
    if mark is None:
        return ""
    return hashlib.sha256(json.dumps(mark, sort_keys=True).encode()).hexdigest()
