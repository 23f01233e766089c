"""Queries that were at work when the process died: after the second time they are set aside.

While a query works, its name stands in a small file that is mapped into memory: that costs a copy of some
bytes, and outlives the process. A death counts against a query if the process died of a fault (which Python
writes down as it happens), or in the middle of a step that had taken seconds, as one that eats all memory
does. Whoever kills the process at some other moment, or switches the machine off, says nothing about queries.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TextIO

from kaicep.errors import Failure
from kaicep.storage.disk import read_sealed, replace_sealed

__all__ = ["Suspects"]

_log = logging.getLogger("kaicep.run")

_SIZE = 1 << 16
_EVERY = 0.25
_SLOW = 3.0
"""A step that has taken so many seconds of processor time may be what the process died of."""
_DEATHS = 2
_IDLE, _WORKING, _LONG = b"-", b"w", b"l"


class Suspects:
    """What is known of the deaths of earlier processes, and what this one is doing."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "suspects.json"
        self._trace = folder / "fault.txt"
        self._fault: TextIO | None = None
        self.deaths: dict[str, int] = {}
        """How often the process died while a query worked."""
        self._texts: dict[str, str] = {}
        self._load()
        self._path = path = folder / "working"
        self._learn(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(file, _SIZE)
        self._map = mmap.mmap(file, _SIZE)
        os.close(file)
        self._map[0:1] = _IDLE
        self._begun: float | None = None
        self._closed = threading.Event()

    def _load(self) -> None:
        try:
            read = json.loads(read_sealed(self._notes))
            self.deaths, self._texts = read["deaths"], read["texts"]
        except FileNotFoundError:
            return
        except (KeyError, TypeError, ValueError):
            raise Failure(f"{self._notes} is damaged; without it, no query is suspected: remove it") from None

    def _learn(self, path: Path) -> None:
        """What the last process was doing when it died, if it did."""
        try:
            said = path.read_bytes()
            fault = self._trace.read_text("utf-8", "replace").splitlines() if self._trace.exists() else []
        except FileNotFoundError:
            return
        how = said[:1]
        if how not in (_WORKING, _LONG) or (how == _WORKING and not fault):
            return
        why = fault[0] if fault else "it was killed in the middle of a long step"
        names = said[1:].partition(b"\n")[0].decode("utf-8", "replace").split("\t")
        for name in names:
            self.deaths[name] = self.deaths.get(name, 0) + 1
        _log.error("the last process died while %s worked: %s", ", ".join(names), why)
        self._save()

    def _save(self) -> None:
        replace_sealed(self._notes, json.dumps({"deaths": self.deaths, "texts": self._texts}).encode())

    # --- who is suspected ---

    def look(self, texts: Mapping[str, str]) -> None:
        """The queries as they are now: whoever has another text, or is gone, is suspected no more."""
        now = {name: hashlib.sha256(texts[name].encode()).hexdigest() for name in texts}
        cleared = [name for name in self.deaths if self._texts.get(name, now.get(name)) != now.get(name)]
        for name in cleared:
            del self.deaths[name]
        known = {name: now[name] for name in self.deaths if name in now}
        if cleared or known != self._texts:
            self._texts = known
            self._save()

    def aside(self, name: str) -> str | None:
        """Why a query is not to run, if that is so."""
        count = self.deaths.get(name, 0)
        if count < _DEATHS:
            return None
        return (
            f"set aside: the process died {count} times while it worked; change it, or take its file away "
            "and put it back, to try it again"
        )

    def clear(self, names: Iterable[str]) -> None:
        """Queries have gone on for long enough: what they were suspected of was something else."""
        gone = [each for each in names if self.deaths.get(each, _DEATHS) < _DEATHS]
        for each in gone:
            del self.deaths[each]
        if gone:
            self._save()

    # --- what is being done ---

    def start(self) -> None:
        """Begins to watch."""
        if not faulthandler.is_enabled():
            self._fault = self._trace.open("w")
            faulthandler.enable(self._fault, all_threads=False)
        threading.Thread(target=self._watch, name="kaicep-suspects", daemon=True).start()

    def begin(self, names: Collection[str]) -> None:
        """Queries begin to work."""
        said = "\t".join(names).encode()[: _SIZE - 2]
        self._map[1 : len(said) + 2] = said + b"\n"
        self._map[0:1] = _WORKING
        self._begun = time.process_time()

    def end(self) -> None:
        """Nobody works any more."""
        self._begun = None
        self._map[0:1] = _IDLE

    def _watch(self) -> None:
        while not self._closed.wait(_EVERY):
            begun = self._begun
            if begun is not None and time.process_time() - begun > _SLOW:
                self._map[0:1] = _LONG
                if self._begun is None:  # it has come to an end meanwhile
                    self._map[0:1] = _IDLE

    def close(self) -> None:
        """The process ends as it should."""
        self._closed.set()
        self.end()
        self._path.unlink(missing_ok=True)
        if self._fault is not None:
            faulthandler.disable()
            self._fault.close()
            self._trace.unlink(missing_ok=True)
