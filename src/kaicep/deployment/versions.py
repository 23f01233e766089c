"""The versions of a deployment's knowledge, and the positions from which each of them counts.

What is processed again after a crash uses the version that was used the first time. So each version is
written down before an event is judged by it: what its files say, and a mark for every query, which is where
that stood when the version came. A version that no query goes back to is let go of. A posted query, which
may be behind, writes down by itself where it stood.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from kaicep.deployment.config import Config
from kaicep.deployment.sinks import copied_entries
from kaicep.errors import Failure, Mistake, reason_of
from kaicep.join.handoff import Gate, Mark, in_force
from kaicep.knowledge.closure import Change
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.storage.disk import make_folder, read_sealed, replace_sealed

_log = logging.getLogger("kaicep.run")

_T = TypeVar("_T")
_TRIES = 20

Contents = Mapping[Path, bytes | None]
"""What files say, those that are gone as None."""


@dataclass(frozen=True)
class _Version:
    """A version: the files that are others than before, and by session where it stood."""

    number: int
    files: Mapping[str, str | None]
    marks: Mapping[str, Mapping[str, Any]]


class Versions:
    """The log of a state folder: the oldest version that matters, and those after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "versions.json"
        self._base: dict[str, str] = {}
        self._first = 0
        self._later: list[_Version] = []
        make_folder(folder)
        try:
            read = json.loads(read_sealed(self._file))
            self._base, self._first = read["files"], read["version"]
            marks = read["marks"]
            self._later = [
                _Version(
                    each["version"],
                    each["files"],
                    {id: marks[number] for id, number in each["marks"].items()},
                )
                for each in read["later"]
            ]
            self.begun = True
        except FileNotFoundError:
            self.begun = False
        except (KeyError, TypeError, ValueError, IndexError):
            raise Failure(
                f"{self._file} is damaged: it does not tell the versions of the knowledge"
            ) from None

    @property
    def last(self) -> int:
        """The newest version."""
        return self._later[-1].number if self._later else self._first

    def oldest(self) -> tuple[Mapping[Path, bytes], int]:
        """What the files said in the oldest version that matters, and its number."""
        return {Path(path): self._content(digest) for path, digest in self._base.items()}, self._first

    def after(self, version: int, most: float = math.inf) -> tuple[int, Contents] | None:
        """The version that came after another: its number (`most` at most), and what its files say."""
        for each in self._later:
            if version < each.number <= most:
                return each.number, {
                    Path(path): None if digest is None else self._content(digest)
                    for path, digest in each.files.items()
                }
        return None

    def since(self, version: int, most: float = math.inf) -> Iterator[tuple[int, Contents]]:
        """All versions that came after another, in their order, up to `most`."""
        while (found := self.after(version, most)) is not None:
            yield found
            version = found[0]

    def gates(self, session: str) -> tuple[Gate, ...]:
        """Where a session stood when versions came, in their order."""
        return tuple(
            Gate(each.number, Mark.from_json(each.marks[session]))
            for each in self._later
            if session in each.marks
        )

    def begin(self, contents: Contents) -> None:
        """Writes down the first version."""
        self._base = {str(path): self._kept(data) for path, data in contents.items() if data is not None}
        self.begun = True
        self._save()

    def add(self, number: int, contents: Contents, marks: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes down a version that came, and where everybody stands; on the disk when this returns."""
        files = {str(path): None if data is None else self._kept(data) for path, data in contents.items()}
        self._later.append(_Version(number, files, dict(marks)))
        self._save()

    def forget(self, is_needed: Callable[[str, Gate], bool]) -> None:
        """Lets go of the marks to which no session goes back, and of versions that nobody is judged by."""
        kept = [
            _Version(
                each.number,
                each.files,
                {
                    id: mark
                    for id, mark in each.marks.items()
                    if is_needed(id, Gate(each.number, Mark.from_json(mark)))
                },
            )
            for each in self._later
        ]
        while kept and not kept[0].marks:
            gone = kept.pop(0)
            self._first = gone.number
            self._base = {
                path: digest for path, digest in {**self._base, **gone.files}.items() if digest is not None
            }
        if kept != self._later:
            self._later = kept
            self._save()

    def _kept(self, data: bytes) -> str:
        """Writes down what a file says, once."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._folder / digest
        if not path.exists():
            replace_sealed(path, data)
        return digest

    def _content(self, digest: str) -> bytes:
        path = self._folder / digest
        try:
            return read_sealed(path)
        except FileNotFoundError:
            raise Failure(
                f"{path} is gone, in which the state folder keeps an older version of the knowledge: "
                f"without it, what was found before cannot be found again"
            ) from None

    def _save(self) -> None:
        marks: dict[str, int] = {}
        told: list[Mapping[str, Any]] = []
        later = []
        for each in self._later:
            numbers: dict[str, int] = {}
            for id, mark in each.marks.items():
                text = json.dumps(mark, sort_keys=True)
                if text not in marks:
                    marks[text] = len(told)
                    told.append(mark)
                numbers[id] = marks[text]
            later.append({"version": each.number, "files": each.files, "marks": numbers})
        document = {"version": self._first, "files": self._base, "marks": told, "later": later}
        replace_sealed(self._file, json.dumps(document).encode())
        used = set(self._digests())
        for path in self._folder.iterdir():
            if path != self._file and path.name not in used:
                path.unlink()

    def _digests(self) -> Iterator[str]:
        files: Sequence[Mapping[str, str | None]] = [self._base, *(each.files for each in self._later)]
        yield from (digest for each in files for digest in each.values() if digest is not None)


class PostedVersions:
    """The versions that a posted query is judged by, as its own process takes them.

    `version` is the newest that it was judged by, `gates` are where it stood when versions came, in a file
    beside the states. `files` is the knowledge as it goes on. `entries` are how far the query was told.
    """

    def __init__(self, config: Config, id: str, version: int, entries: Mapping[str, Any]) -> None:
        self._config, self._id, self._sinks = config, id, tuple(entries)
        self._file = posted_file(config, id)
        self.version = version
        self.gates: tuple[Gate, ...] = ()
        if any(entries.values()):  # else nothing of it is known to anybody
            self._read()
        self.files = self._tried(self._begun)
        self.become(self.needs)

    def _read(self) -> None:
        try:
            read = json.loads(read_sealed(self._file))
        except FileNotFoundError:
            return
        self.version = read["version"]
        self.gates = tuple(Gate(number, Mark.from_json(mark)) for number, mark in read["gates"])

    @property
    def needs(self) -> int:
        """The oldest version that it would begin with, were it lost now."""
        return self.gates[0].version - 1 if self.gates else self.version

    def become(self, version: int) -> None:
        """Lets the knowledge be that of a later version."""
        known = self.files.knowledge.version
        if known < version:
            for number, contents in self._tried(lambda log: list(log.since(known, version))):
                self.files.follow(contents, number)

    def take(self, version: int, mark: Mark, reach: float) -> None:
        """A version counts from a mark on, which is on the disk when this returns."""
        self.gates = (*self._passed_again(reach), Gate(version, mark))
        self.version = version
        gates = [[each.version, each.mark.to_json()] for each in self.gates]
        replace_sealed(self._file, json.dumps({"version": version, "gates": gates}).encode())
        self.become(version)

    def _passed_again(self, reach: float) -> Iterator[Gate]:
        """The gates that it would pass once more, were it lost now, by what its sinks have for sure."""
        marks: list[Mark | None] = []
        for sink in self._sinks:
            entry = copied_entries(self._config.state / "marks", sink).get(self._id)
            marks.append(None if entry is None else Mark.from_json(entry["mark"]))
        yield from (gate for gate in self.gates if any(in_force([gate], each, None, reach) for each in marks))

    def _begun(self, log: Versions) -> KnowledgeFiles:
        return KnowledgeFiles(self._config.known, self._config.reasoning, before=log.oldest())

    def _tried(self, what: Callable[[Versions], _T]) -> _T:
        """Reads the log; once more where the deployment has just let go of something in it."""
        for _ in range(_TRIES):
            try:
                return what(Versions(self._config.state / "versions"))
            except Failure:
                time.sleep(0.1)
        return what(Versions(self._config.state / "versions"))


def posted_file(config: Config, id: str) -> Path:
    """Where a posted query writes down where it stood when versions came."""
    return config.state / "states" / f"{quote(id, safe='')}.versions"


def opened(config: Config, folder: Path) -> tuple[KnowledgeFiles, Versions]:
    """The knowledge of a deployment as it was in the oldest version that matters, and the log in a folder."""
    versions = Versions(folder)
    knowledge = config.open_knowledge(versions.oldest() if versions.begun else None)
    files = knowledge.news_of_files()
    if not versions.begun:
        versions.begin(files)
    return knowledge, versions


def news_of(knowledge: KnowledgeFiles) -> tuple[Change | None, str | None]:
    """What is new in the knowledge; and why it cannot be known, in words."""
    try:
        change = knowledge.poll()
    except Exception as error:
        _log.error("the knowledge stays unchanged: %s", reason_of(error), exc_info=error)
        return None, reason_of(error)
    if isinstance(change, Mistake):
        _log.warning("the knowledge stays unchanged: %s", change)
        return None, knowledge.trouble
    if change is not None:
        files = ", ".join(knowledge.news)
        _log.info("the knowledge has changed: version %d, since %s", change.version, files)
    return change, knowledge.trouble
