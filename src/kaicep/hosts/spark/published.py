"""The knowledge of a running stream in files: every engine judges a micro-batch by one and the same version.

A version is written down when it counts from then on, under the next number. The first engine that works on a
micro-batch writes down which number is the newest; all others, and all of them once more when the micro-batch
has to be run again, read that. So nobody has to be told of anything, and engines may be anywhere that the
folder can be reached from.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from kaicep.errors import Failure
from kaicep.knowledge.lineage import catch_up, fingerprint
from kaicep.knowledge.store import Knowledge

__all__ = ["Published", "folder_of"]

_KEPT = 8
"""So many micro-batches are remembered; Spark may ask for the last one again."""

_ORIGINS: WeakKeyDictionary[Knowledge, str] = WeakKeyDictionary()
"""What knowledge of this process was when a stream first began with it."""

_READ: dict[tuple[Path, int, int], Knowledge] = {}
"""The last few versions that this process has read, by their files: all buckets of a worker share them."""

_MOST_READ = 4


def folder_of(checkpoint: Path) -> Path:
    """Where the knowledge of a stream is, beside its checkpoint."""
    return checkpoint.absolute() / "kaicep" / "knowledge"


class Published:
    """The folder of one stream; `own` is the number of what this process has written down last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = -1
        self._version = -1

    def begin(self, knowledge: Knowledge) -> None:
        """A stream begins, or goes on: then with the updates that it has had, if they are of this knowledge.

        Whoever has changed the files that the knowledge is loaded from gets what these say now.
        """
        with knowledge.lock:
            origin = _ORIGINS.get(knowledge)
            if origin is None:
                origin = _ORIGINS[knowledge] = fingerprint(knowledge)
            newest = self._newest()
            head = self._head(newest) if newest >= 0 else {}
            if head.get("origin") != origin or head["version"] < knowledge.version:
                self.publish(knowledge)
                return
            if head["version"] > knowledge.version:
                catch_up(knowledge, self.read(newest))
            self.own, self._version = newest, knowledge.version

    def publish(self, knowledge: Knowledge) -> None:
        """Lets the knowledge count as it is, from the next micro-batch on; unless it does so already."""
        with knowledge.lock:
            if knowledge.version == self._version:
                return
            newest = self._newest()
            origin = _ORIGINS.get(knowledge) or (self._head(newest)["origin"] if newest >= 0 else None)
            head = {"version": knowledge.version, "origin": origin}
            content = json.dumps(head).encode() + b"\n" + pickle.dumps(knowledge, protocol=5)
            self._version = knowledge.version
        number = newest + 1
        while not _created(self.folder / f"{number}.knowledge", content):
            number += 1
        self.own = number

    def chosen(self, batch: int) -> int:
        """The number of the version by which a micro-batch is judged, whoever asks, and however often."""
        file = self.folder / f"{batch}.chosen"
        if not file.exists():
            newest = self._newest()
            if newest < 0:
                raise Failure(
                    f"no knowledge is published in {self.folder}: it must be a folder of all workers"
                )
            if _created(file, str(newest).encode()):
                self._forget(batch)
        return int(file.read_text())

    def read(self, number: int) -> Knowledge:
        """The version of a number; it is read once in each process, and must not be changed."""
        file = self.folder / f"{number}.knowledge"
        # Of a folder that was emptied meanwhile, a number says nothing.
        stamp = file.stat()
        key = file, stamp.st_ino, stamp.st_mtime_ns
        found = _READ.pop(key, None)
        if found is None:
            _, _, content = file.read_bytes().partition(b"\n")
            found = pickle.loads(content)
        assert isinstance(found, Knowledge)
        while len(_READ) >= _MOST_READ:
            del _READ[next(iter(_READ))]
        _READ[key] = found
        return found

    def _newest(self) -> int:
        return max(self._numbers("knowledge"), default=-1)

    def _numbers(self, kind: str) -> Iterator[int]:
        return (int(file.stem) for file in self.folder.glob(f"*.{kind}"))

    def _head(self, number: int) -> dict[str, Any]:
        with (self.folder / f"{number}.knowledge").open("rb") as file:
            head: dict[str, Any] = json.loads(file.readline())
        return head

    def _forget(self, batch: int) -> None:
        """Removes what is of micro-batches long ago."""
        batches = sorted(self._numbers("chosen"))
        for each in batches[:-_KEPT]:
            if each != batch:
                (self.folder / f"{each}.chosen").unlink(missing_ok=True)
        oldest = min(int((self.folder / f"{each}.chosen").read_text()) for each in {batch, *batches[-_KEPT:]})
        for number in self._numbers("knowledge"):
            if number < oldest:
                (self.folder / f"{number}.knowledge").unlink(missing_ok=True)


def _created(file: Path, content: bytes) -> bool:
    """Writes a file as a whole, unless there is one of its name; whether it was this one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{uuid4().hex}.new")
    try:
        with new.open("wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        os.link(new, file)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True
