"""Files as a source: a file or a folder of JSON Lines, CSV, Parquet or RDF, read to its end or followed.

Followed means: lines that are appended and files that are added are picked up, and rotated ones are read to
their end. A last line without its end waits for it, a Parquet file without its footer too, and a document
that cannot be parsed. Which file is
which part is kept beside them (`kaicep.connectors.parts`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from kaicep.connectors.columnar import ColumnEvents, EventColumns, EventRows
from kaicep.connectors.contract import Guarantee, Position, Source, SourceBatch, read_position
from kaicep.connectors.files import SUFFIXES, check_suffix, is_whole, parts_of
from kaicep.connectors.parts import (
    FileRange,
    Located,
    is_read_whole,
    kind_of,
    note_of,
    read_some,
    records_of,
    remember,
    stretches,
)
from kaicep.connectors.records import Record, TextPosition, parquet_columns
from kaicep.connectors.registry import Count
from kaicep.connectors.shape import SAMPLE, DeadLetter, Form, Schema, Shaper
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.types import INT64_MIN

_log = logging.getLogger("kaicep.run")

_POLL = 0.05
_SAMPLE = 100
_UNFINISHED = (".tmp", ".part")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileSourceOptions:
    """Where the files are, whether to follow them, and how many records make a batch at most."""

    path: Path
    follow: bool = False
    batch: Count = Count(100_000)


class FileSource(Source):
    """A file, or a folder of files, as a stream: `part` is the place of the file, `seq` the line or row.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.jsonl").write_text('{"ts": 1}' + chr(10) + '{"ts": 2}' + chr(10))
    ...     with FileSource(Form("s"), FileSourceOptions(Path(folder), batch=Count(1))) as source:
    ...         source.open({0: 1})
    ...         batch = source.next_batch(0)
    >>> [each.seq for each in batch.events], batch.position
    ([1], {0: 2})
    """

    guarantee = Guarantee.REPLAYABLE

    def __init__(self, form: Form, options: FileSourceOptions) -> None:
        super().__init__(form)
        self._options = options
        self._shaper = Shaper(form)
        self._parts: dict[int, _File] = {}
        self._start: dict[int, int] = {}
        self._refused: set[str] = set()
        self._letters: list[DeadLetter] = []
        self._first: dict[int, int] = {}
        self._there: dict[str, tuple[int, int, int]] | None = None
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """That the file which is followed is not there."""
        return self._trouble

    @property
    def finite(self) -> bool:
        """Whether it ends with the last file."""
        return not self._options.follow

    @property
    def schema(self) -> Schema | None:
        """The attributes, inferred from the first records of the files, wherever the source was opened."""
        return self._shaper.schema

    @property
    def position(self) -> dict[int, int]:
        """One past the last line or row given, in every file."""
        return {**self._start, **{part: each.seq for part, each in self._parts.items()}}

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Finds the files, and in each the line or row to begin with."""
        self._start = read_position(position)
        self._shaper = Shaper(self.form, schema)
        self._look()
        known = 1 + max(self._parts, default=-1)
        ahead = sorted(part for part, seq in self._start.items() if part >= known and seq)
        if ahead and not self._options.follow:
            raise Failure(
                f"stream {self.form.stream}: the position speaks of part {ahead[0]}, but "
                f"{self._options.path} has only {known} file(s): some are gone, or the position "
                "belongs to another stream"
            )
        if self.finite and schema is None:
            self._learn()

    def next_batch(self, timeout: float) -> SourceBatch:
        """The next lines and rows, file by file."""
        deadline = time.monotonic() + timeout
        while True:
            self._look()
            events, dead = self._read()
            letters, self._letters = self._letters, []
            ended = self.finite and all(each.done for each in self._parts.values())
            if events or dead or letters or ended or time.monotonic() >= deadline:
                return SourceBatch(self.position, events, [*letters, *dead], ended=ended)
            time.sleep(max(0.0, min(_POLL, deadline - time.monotonic())))

    def _read(self) -> tuple[Sequence[Event], Sequence[DeadLetter]]:
        """Up to a batch of events; what is wrong with a whole file of a followed folder is a dead letter."""
        files = sorted(self._parts.items())
        if self.schema is None:
            there = [self._tried(part, file, file.find) for part, file in files]
            if any(there):
                self._learn()
        found: list[tuple[int, EventColumns | EventRows]] = []
        left: int = self._options.batch
        for part, file in files:
            while left > 0 and (read := self._tried(part, file, partial(file.take, self.schema, left))):
                found.append((part, read[0]))
                left -= len(read[0]) + len(read[0].dead)
        dead = [letter for _, each in found for letter in each.dead]
        rows = [event for _, each in found if isinstance(each, EventRows) for event in each.events]
        columns = [(part, each) for part, each in found if isinstance(each, EventColumns)]
        return ColumnEvents(self.form, columns) if columns else rows, dead

    def finished(self, reached: Mapping[int, int]) -> Collection[int]:
        """Files that are whole or gone, and those that others came after.

        Lines may be appended to any file. But where each file begins when another ends, all through the
        folder, they are written one after the other, and only the newest grows. Two that overlap in time are
        written side by side: then nobody can tell.
        """
        gone = set(self._start) - set(self._parts)
        over = gone | {part for part, each in self._parts.items() if each.over}
        growing = {part: each for part, each in self._parts.items() if not each.done}
        if not self._options.follow or len(growing) < 2:
            return over
        times = sorted((self._first_time(part), part) for part in growing if part in reached)
        if all(reached[part] <= first for (_, part), (first, _) in pairwise(times)):
            over |= {part for _, part in times[:-1] if growing[part].read_to_end}
        return over

    def _first_time(self, part: int) -> int:
        """The time of the first event of a file."""
        if part not in self._first:
            events, _ = self._shaper.shape(islice(self._parts[part].records(), _SAMPLE))
            self._first[part] = min((each.ts for each in events), default=INT64_MIN)
        return self._first[part]

    def close(self) -> None:
        """Closes what is open."""
        for each in self._parts.values():
            each.close()

    def _look(self) -> None:
        """Takes note of the files that are there now."""
        path = self._options.path
        if self._options.follow:
            self._follow(path)
        elif not self._parts:
            for part, file in parts_of(self.form.stream, path).items():
                self._parts[part] = _File(self.form, part, file, self._start.get(part, 0))

    def _follow(self, path: Path) -> None:
        """Finds the files that are followed, wherever they are by now, if anything has changed."""
        if self._there is None and not path.is_dir():
            check_suffix(self.form.stream, path)
            parts_of(self.form.stream, path)  # a mistake where it cannot be read
        folder = path if path.is_dir() else path.parent
        names = self._names() if path.is_dir() else [path.name] if path.exists() else []
        there = {name: _stamp(folder / name) for name in names}
        if there == self._there:
            return
        self._there = there
        self._trouble = None if names or path.is_dir() else f"{path} is gone"
        found = remember(note_of(path), names)
        known = {str(folder / str(each.now)) for each in found.values()}
        self._letters = [each for each in self._letters if each.file not in known]
        for part, file in self._parts.items():
            if part not in found and not file.gone:
                file.gone = True
                self._tell_loss(file)
        for part, each in found.items():
            place = folder / str(each.now)
            if part in self._parts:
                self._parts[part].moved(each, place)
            else:
                self._parts[part] = _File(self.form, part, place, self._start.get(part, 0), each)

    def _tell_loss(self, file: _File) -> None:
        """A file that is gone before it was read to its end."""
        if not file.done and not file.given_up and file.size > file.offset:
            _log.warning(
                "%s: part %d: %s is gone before it was read to its end: lost are its records from %d on, "
                "bytes %d to %d",
                *(self.form.stream, file.part, file.path, file.seq, file.offset, file.size - 1),
            )

    def _names(self) -> list[str]:
        """The files of a followed folder that can be read; a dead letter for each that cannot, once."""
        names = []
        for each in os.scandir(self._options.path):
            suffix = Path(each.name).suffix.lower()
            if each.name.startswith((".", "_")) or suffix in _UNFINISHED or each.name in self._refused:
                continue
            if suffix in SUFFIXES and each.is_file():
                names.append(each.name)
                continue
            self._refused.add(each.name)
            reason = (
                "a folder inside the stream's folder"
                if each.is_dir()
                else "neither .jsonl, .csv, .parquet nor RDF"
            )
            self._letters.append(_letter(self.form.stream, -1, each.path, f"not read: it is {reason}"))
        return names

    def _tried(self, part: int, file: _File, what: Callable[[], T]) -> T | None:
        """What is read; None where something is wrong with a whole file of a followed folder."""
        try:
            return what()
        except Mistake as mistake:
            if not self._options.follow:
                raise
            file.give_up()
            reason = "; ".join(each.message for each in mistake.diagnostics)
            self._letters.append(_letter(self.form.stream, part, str(file.path), reason))
            return None

    def _learn(self) -> None:
        """Looks at the first records of the files, as if the source had been opened at their beginning."""
        learned = 0
        for _, file in sorted(self._parts.items()):
            try:
                if file.kind == "parquet" and file.ready:
                    self._shaper.columns(parquet_columns(self.form.stream, file.path))
                for each in file.records(self._shaper.header):
                    if (learned := self._shaper.learn(each)) >= SAMPLE:
                        break
            except Mistake:
                if not self._options.follow:
                    raise
            if learned >= SAMPLE:
                break
        if learned or self.finite:
            self._shaper.settle()
            for file in self._parts.values():
                file.look_again()


class _File:
    """A file of the stream and how far it was read.

    It is read stretch by stretch; `located` is what is known of one that is followed.
    """

    def __init__(self, form: Form, part: int, path: Path, seq: int, located: Located | None = None) -> None:
        self._form, self.part, self.path, self._located = form, part, path, located
        self.kind = kind_of(located.name if located is not None else path.name)
        """Its format: how its first name ended."""
        self._whole = is_read_whole(self.kind)
        self._growing = located is not None and not self._whole
        self.size = 0
        """How large it was when somebody looked."""
        self.gone = False
        """Whether it is not there any more."""
        self._position = seq
        self._waits = False  # it was emptied: what comes to it is another file
        self._cursor = self._before = TextPosition()
        self._ranges: Iterator[FileRange] | None = None
        self._found: FileRange | None = None  # the stretch to be read next
        self._exhausted = False
        self._read: EventColumns | EventRows | None = None  # what was read and not given yet
        self._after = 0
        self._size_given_up: int | None = None
        if seq and not self._whole:
            self._skip(seq)

    @property
    def seq(self) -> int:
        """The number of the next record."""
        return self._position

    @property
    def offset(self) -> int:
        """So many bytes of it were read."""
        return self._cursor.offset

    @property
    def given_up(self) -> bool:
        """Whether nothing of it can be read."""
        return self._size_given_up is not None

    def moved(self, located: Located, path: Path) -> None:
        """It has another name, perhaps, and more of its beginning is known."""
        self._located, self.path, self.gone = located, path, False
        if self._waits:
            self._skip(self._position)

    @property
    def done(self) -> bool:
        """Whether all of it was given, and nothing can come to it."""
        return self._exhausted and self._read is None

    @property
    def over(self) -> bool:
        """Whether nothing more will come: it was read to its end, or it is gone."""
        return self.done or self.gone

    @property
    def read_to_end(self) -> bool:
        """Whether all that it has was given."""
        if self._read is not None or self._found is not None:
            return False
        try:
            return self.path.stat().st_size <= self._cursor.offset
        except FileNotFoundError:
            return True

    @property
    def ready(self) -> bool:
        """Whether there is something to read: of a Parquet file, all of it."""
        if self.gone or self._waits:
            return False
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False
        if self._size_given_up is not None and size == self._size_given_up:
            return False
        if self._whole:
            return self._located is None or self._ranges is not None or is_whole(self.path)
        self.size = max(self.size, size)
        if size < self._cursor.offset:
            if self._emptied():
                return False
            raise Failure(
                f"stream {self._form.stream}: {self.path} has become shorter: {self._cursor.seq} records "
                f"({self._cursor.offset} bytes) of it were read, and now it has {size} bytes; "
                "you may append lines to a file, but not remove any"
            )
        return not self._growing or size > self._cursor.offset

    def _emptied(self) -> bool:
        """Whether no record is left of it, as when a log is rotated: then it waits for what comes."""
        with self.path.open("rb") as file:
            first = file.readline()
            return not first.endswith(b"\n") or (self.kind == "csv" and not file.read(1))

    @property
    def _has_moved(self) -> bool:
        """Whether another file has come to its name, so that what was read there is not its own."""
        return self._growing and self._located is not None and not self._located.is_at(self.path)

    def records(self, header: Callable[[list[str]], None] = lambda names: None) -> Iterator[Record]:
        """Its records from the beginning on, one by one, as far as they can be read by now."""
        if not self.gone and self.path.exists() and (not self._whole or self.ready):
            yield from records_of(self._form, self.part, self.path, self.kind, self._growing, header)

    def find(self, schema: Schema | None = None) -> FileRange | None:
        """The stretch that comes next; None where there is none by now."""
        if self._found is None and not self._exhausted and self.ready:
            self._before = replace(self._cursor)
            if self._ranges is None:
                place = self.part, self.path, self._position
                self._ranges = stretches(self._form, schema, *place, self._growing, self.kind, self._cursor)
            self._found = next(self._ranges, None)
            self._exhausted = self._found is None and not self._growing
            if self._growing:
                self._ranges = None
        return self._found

    def look_again(self) -> None:
        """Now that the types are known, there may be a better way to read what comes next."""
        if self.kind == "parquet":
            self._ranges = self._found = None

    def take(self, schema: Schema | None, count: int) -> tuple[EventColumns | EventRows] | None:
        """The next events, up to so many, and what could not be read; None where there is nothing."""
        if self._read is None and not self._fetch(schema):
            return None
        assert self._read is not None
        if len(self._read) > count:
            some, self._read, self._position = self._read.split(count)
        else:
            some, self._read, self._position = self._read, None, self._after
        return (some,)

    def _fetch(self, schema: Schema | None) -> bool:
        """Reads the next stretch; says whether there was one, and whether it was of this file."""
        found = self.find(schema)
        if found is None:
            return False
        try:
            read = read_some(found, self._form, schema)
        except Failure:
            if not self._has_moved:
                raise
            read = None
        self._found = None
        if read is None or self._has_moved:
            self._cursor = self._before
            return False
        self._read, self._after = read, found.after
        if not self._growing:
            self.find(schema)  # whether there is another
        return True

    def _skip(self, seq: int) -> None:
        """Moves to a record; a failure where the file does not reach that far."""
        self._cursor, self._waits = TextPosition(), False
        place = self.part, self.path, seq
        try:
            found = next(stretches(self._form, None, *place, False, self.kind, self._cursor), None)
        except Failure:
            self._cursor, self._waits = TextPosition(), self._growing and self._emptied()
            if not self._waits:
                raise
            return
        if found is not None:
            rows = found.rows[0] - found.blank
            self._cursor = TextPosition(found.offset, rows, found.line, list(found.header) or None)

    def give_up(self) -> None:
        """Reads the file no more, unless it changes."""
        self._size_given_up = self.path.stat().st_size
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._ranges = self._found = self._read = None


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes when something comes to a file, or another one takes its place."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _letter(stream: str, part: int, file: str, reason: str) -> DeadLetter:
    """A dead letter for a whole file."""
    return DeadLetter(stream, part, 0, 0, file, reason, "")
