"""Matches as lines of JSON: in a file, exactly once, or on standard output."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match
from kaicep.storage.disk import read_sealed, replace_sealed, sync_folder, write_all

# ----------------------------------------------------------------------------------------------------------
# Matches on standard output, one JSON object a line.


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """It takes none."""


class ConsoleSink(Sink):
    """Prints matches as they come.

    >>> with ConsoleSink("screen", ConsoleOptions()) as sink:  # doctest: +ELLIPSIS
    ...     sink.open()
    ...     sink.write([Match("hot", "f3", 0, 0, {"x": 1})])
    {"query": "hot", "id": "f3", "start": "1970-01-01T00:00:00.000000Z", ..., "select": {"x": 1}}
    """

    guarantee = Guarantee.BEST_EFFORT

    def __init__(self, name: str, options: ConsoleOptions) -> None:
        self.name = name

    def open(self) -> None:
        """There is nothing to open."""

    def write(self, matches: Sequence[Match]) -> None:
        """Prints the matches."""
        for each in matches:
            sys.stdout.write(each.to_json() + "\n")

    def commit(self, mark: Mark) -> None:
        """Sees to it that what was printed can be seen."""
        sys.stdout.flush()

    def close(self) -> None:
        """Sees to it that what was printed can be seen."""
        sys.stdout.flush()


# ----------------------------------------------------------------------------------------------------------
# A file as a sink: JSON Lines, exactly once.
#
# Beside `matches.jsonl` lies `.matches.jsonl.commit`, which says how many bytes of it are committed, and
# with which mark. It is replaced in one step, after the matches are on the disk. Whatever stands after
# those bytes was never committed: opening the sink cuts it off.

_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class FileSinkOptions:
    """The file to write, one JSON object a line."""

    path: Path


class FileSink(Sink):
    """Appends matches to a file, and commits them together with the mark.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> options = FileSinkOptions(Path(folder.name) / "matches.jsonl")
    >>> with FileSink("out", options) as sink:
    ...     sink.open()
    ...     sink.write([Match("hot", "f3", 0, 0)])
    ...     sink.commit({"meter": {"0": 12}})
    >>> with FileSink("out", options) as sink:
    ...     sink.open()
    {'meter': {'0': 12}}
    >>> folder.cleanup()
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, name: str, options: FileSinkOptions) -> None:
        self._where = f"sink {name}"
        self._path = options.path
        self._commit = options.path.with_name(f".{options.path.name}.commit")
        self._file: int | None = None
        self._buffer = bytearray()
        self._end = 0
        self._committed = 0
        self._mark: Mark | None = None
        self._broken: str | None = None

    def open(self) -> Mark | None:
        """Cuts off what was not committed; gives the mark of what was."""
        try:
            self._file = self._opened()
        except OSError as error:
            hint = f"there is no folder {self._path.parent}" if isinstance(error, FileNotFoundError) else None
            raise Mistake(f"{self._where}: cannot write {self._path}: {error.strerror}", hint=hint) from None
        try:
            return self._recover(self._file)
        except BaseException:
            self.close()
            raise

    def _opened(self) -> int:
        """The file, which this process has alone."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise Mistake(f"{self._where}: another process writes {self._path}") from None
        return file

    def _recover(self, file: int) -> Mark | None:
        size = os.fstat(file).st_size
        committed: dict[str, Any] = {"bytes": 0, "mark": None, "file": _identity(file)}
        try:
            committed = json.loads(read_sealed(self._commit))
        except FileNotFoundError:
            if size:
                raise Mistake(
                    f"{self._where}: {self._path} is there already, and no sink wrote it",
                    hint="name another file, or move this one away",
                ) from None
            # Before any match is written, so that a crash before the first commit is told from that case.
            replace_sealed(self._commit, json.dumps(committed).encode())
        end, mark = committed["bytes"], committed["mark"]
        assert isinstance(end, int)
        assert mark is None or isinstance(mark, dict)
        if size == 0 and self._cut_rotated(committed["file"], end):
            self._begin(file, mark)
            end = 0
        if size < end:
            raise Failure(
                f"{self._where}: {self._path} has {size} bytes, but {end} were committed: it was cut short, "
                f"or removed without {self._commit.name}, which lies beside it"
            )
        os.ftruncate(file, end)
        sync_folder(self._path.parent)
        self._end = self._committed = end
        self._mark = mark
        self._buffer.clear()
        self._broken = None
        return mark

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches; from time to time they go to the file, where they are not final yet."""
        for each in matches:
            self._buffer += each.to_json().encode() + b"\n"
        if len(self._buffer) > _BUFFER:
            self._flush()

    def commit(self, mark: Mark) -> None:
        """Makes final what was written, and the mark with it."""
        assert self._file is not None, "open comes first"
        if self._broken is not None:
            raise Failure(self._broken)
        try:
            self._follow_rotation(self._file)
            self._flush()
            self._sync(self._file)
            said = {"bytes": self._end, "mark": dict(mark), "file": _identity(self._file)}
            replace_sealed(self._commit, json.dumps(said).encode())
        except OSError as error:
            raise self._failure(error) from None
        self._committed, self._mark = self._end, mark

    def _follow_rotation(self, file: int) -> None:
        """Goes on in a new file where somebody has renamed the old one, or emptied it after a copy.

        What was written since the last commit must be committed in one file: then it is done at the next.
        """
        if self._end != self._committed:
            return
        if os.fstat(file).st_size == 0 < self._end:
            self._begin(file, self._mark)
            self._end = self._committed = 0
        if self._path.exists() and os.path.samestat(self._path.stat(), os.fstat(file)):
            return
        new = self._opened()
        if os.fstat(new).st_size:
            os.close(new)
            raise Failure(f"{self._where}: {self._path} was replaced by a file that no sink wrote")
        sync_folder(self._path.parent)
        self._begin(new, self._mark)
        os.close(file)
        self._file, self._end, self._committed = new, 0, 0

    def _begin(self, file: int, mark: Mark | None) -> None:
        """Says that a file is ours, before anything is written to it."""
        said = {"bytes": 0, "mark": None if mark is None else dict(mark), "file": _identity(file)}
        replace_sealed(self._commit, json.dumps(said).encode())

    def _cut_rotated(self, identity: Sequence[int], end: int) -> bool:
        """Cuts what was not committed off the file that was renamed; whether there is such a file."""
        for each in self._path.parent.iterdir():
            found = each.stat()
            if [found.st_dev, found.st_ino] == identity and each != self._path and found.st_size >= end:
                with each.open("r+b") as old:
                    old.truncate(end)
                    os.fsync(old.fileno())
                return True
        return False

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _flush(self) -> None:
        assert self._file is not None, "open comes first"
        try:
            write_all(self._file, self._buffer, self._end)
        except OSError as error:
            raise self._failure(error) from None
        self._end += len(self._buffer)
        self._buffer.clear()

    def _sync(self, file: int) -> None:
        try:
            os.fsync(file)
        except OSError as error:
            # What is on disk now is unknown: a second try could succeed and prove nothing.
            self._broken = (
                f"{self._where}: the disk did not take what was written to {self._path}: {error.strerror}; "
                "opened again, it goes on from the last commit"
            )
            raise Failure(self._broken) from None

    def _failure(self, error: OSError) -> Failure:
        return Failure(f"{self._where}: cannot write {self._path}: {error.strerror}")


def _identity(file: int) -> list[int]:
    """What a file is known by, whatever its name."""
    found = os.fstat(file)
    return [found.st_dev, found.st_ino]
