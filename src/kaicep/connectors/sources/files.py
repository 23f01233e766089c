"""Files as a source: a file or a folder of JSON Lines, CSV or Parquet, read to its end or followed.

Followed means: lines that are appended and files that are added are picked up, and rotated ones are read to
their end. A last line without its end waits for it, a Parquet file without its footer too. Which file is
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

from kaicep.connectors.columnar import ColumnEvents, EventColumns, has_arrow
from kaicep.connectors.contract import Guarantee, Position, Source, SourceBatch, read_position
from kaicep.connectors.files import SUFFIXES, check_suffix, is_whole, parts_of
from kaicep.connectors.parts import Located, next_stretch, note_of, read_stretch, remember
from kaicep.connectors.records import (
    Record,
    TextPosition,
    json_columns_of,
    parquet_columns,
    read_csv,
    read_json_lines,
    read_parquet,
    row_width,
    skip_json_lines,
)
from kaicep.connectors.registry import Count
from kaicep.connectors.shape import SAMPLE, DeadLetter, Form, Schema, Shaper
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.types import INT64_MIN

__all__ = ["FileSourceOptions", "FileSource"]

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
                f"{self._options.path} has only {known} file(s): some are gone, or it is of another stream"
            )
        if self.finite and schema is None:
            self._learn()
            self._shaper.settle()

    def next_batch(self, timeout: float) -> SourceBatch:
        """The next lines and rows, file by file."""
        deadline = time.monotonic() + timeout
        while True:
            self._look()
            events, dead = self._read_columns()
            if not events and not dead:
                events, dead = self._read_records()
            letters, self._letters = self._letters, []
            ended = self.finite and all(each.done for each in self._parts.values())
            if events or dead or letters or ended or time.monotonic() >= deadline:
                return SourceBatch(self.position, events, [*letters, *dead], ended=ended)
            time.sleep(max(0.0, min(_POLL, deadline - time.monotonic())))

    def _read_columns(self) -> tuple[Sequence[Event], Sequence[DeadLetter]]:
        """Up to a batch of events by columns, where all files can be read so."""
        if self.schema is None or any(each.kind == ".csv" for each in self._parts.values()):
            return (), ()
        if not has_arrow():
            return (), ()
        pieces: list[tuple[int, EventColumns]] = []
        dead: list[DeadLetter] = []
        left: int = self._options.batch
        for part, file in sorted(self._parts.items()):
            while left > 0:
                columns = self._tried(part, file, partial(file.columns, self._shaper, left))
                if columns is None:
                    break
                pieces.append((part, columns))
                dead += columns.dead
                left -= len(columns.seq) + len(columns.dead)
        return ColumnEvents(self.form, pieces), dead

    def _read_records(self) -> tuple[Sequence[Event], Sequence[DeadLetter]]:
        """Up to a batch of events, one by one."""
        records = self._read()
        if records and self.schema is None and any(each.fields is not None for each in records):
            self._learn()
            self._shaper.settle()
        return self._shaper.shape(records)

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
            file = self._parts[part].again(None)
            events, _ = self._shaper.shape(islice(file.read(), _SAMPLE))
            file.close()
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
                self._parts[part] = _File(self.form, part, file, False, self._start.get(part, 0))

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
                file = _File(self.form, part, place, True, self._start.get(part, 0), located=each)
                self._parts[part] = file

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
                else "neither .jsonl, .csv nor .parquet"
            )
            self._letters.append(_letter(self.form.stream, -1, each.path, f"not read: it is {reason}"))
        return names

    def _read(self) -> list[Record]:
        """Up to a batch of records; what is wrong with a whole file of a followed folder is a dead letter."""
        records: list[Record] = []
        for part in sorted(self._parts):
            file, left = self._parts[part], self._options.batch - len(records)
            records += self._tried(part, file, partial(file.taken, left)) or ()
            if len(records) >= self._options.batch:
                break
        return records

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
        for part in sorted(self._parts):
            path, follow = self._parts[part].path, self._options.follow
            file = self._parts[part].again(self._shaper)
            try:
                if file.kind == ".parquet" and file.ready:
                    self._shaper.columns(parquet_columns(self.form.stream, path))
                if any(self._shaper.learn(each) >= SAMPLE for each in file.read()):
                    return
            except Mistake:
                if not follow:
                    raise
            finally:
                file.close()


class _File:
    """A file of the stream and how far it was read."""

    def __init__(
        self,
        form: Form,
        part: int,
        path: Path,
        growing: bool,
        seq: int,
        shaper: Shaper | None = None,
        located: Located | None = None,
    ) -> None:
        self._form, self.part, self.path, self._growing = form, part, path, growing
        self._header = shaper.header if shaper else lambda names: None
        self._located = located
        self._kind = Path(located.name if located is not None else path.name).suffix.lower()
        self.size = 0
        """How large it was when somebody looked."""
        self.gone = False
        """Whether it is not there any more."""
        self._waits: int | None = None
        """The number of the next record, in a file that was emptied: what comes to it is another file."""
        self._cursor = TextPosition()
        self._size_given_up: int | None = None
        self._rows: Iterator[Record] | None = None
        self._read: EventColumns | None = None  # what was read and not given yet, up to a position
        self._after = 0
        self.done = False
        if seq:
            self._skip(seq)

    @property
    def seq(self) -> int:
        """The number of the next record."""
        if self._waits is not None:
            return self._waits
        return self._cursor.seq * self._width if self._cursor.seq else 0

    @property
    def _width(self) -> int:
        """How many numbers a row uses up."""
        notation = self._form.notation
        if notation.wide is None:
            return 1
        if self._kind == ".parquet":
            return row_width(notation, [name for name, _ in parquet_columns(self._form.stream, self.path)])
        return row_width(notation, self._cursor.header or json_columns_of(notation))

    @property
    def offset(self) -> int:
        """So many bytes of it were read."""
        return self._cursor.offset

    @property
    def kind(self) -> str:
        """Its format: how its first name ended."""
        return self._kind

    @property
    def given_up(self) -> bool:
        """Whether nothing of it can be read."""
        return self._size_given_up is not None

    def again(self, shaper: Shaper | None) -> _File:
        """The same file from its beginning."""
        return _File(self._form, self.part, self.path, self._growing, 0, shaper, self._located)

    def moved(self, located: Located, path: Path) -> None:
        """It has another name, perhaps, and more of its beginning is known."""
        self._located, self.path, self.gone = located, path, False
        if self._waits is not None:
            self._skip(self._waits)

    @property
    def over(self) -> bool:
        """Whether nothing more will come: it was read to its end, or it is gone."""
        return self.done or self.gone

    @property
    def read_to_end(self) -> bool:
        """Whether all that it has was read."""
        try:
            return self.path.stat().st_size <= self._cursor.offset
        except FileNotFoundError:
            return True

    @property
    def ready(self) -> bool:
        """Whether there is something to read: of a Parquet file, all of it."""
        if self.gone or self._waits is not None:
            return False
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False
        if self._size_given_up is not None and size == self._size_given_up:
            return False
        if self._kind != ".parquet":
            self.size = max(self.size, size)
            if size < self._cursor.offset:
                if self._emptied():
                    return False
                raise Failure(
                    f"stream {self._form.stream}: {self.path} has become shorter: {self._cursor.seq} records "
                    f"({self._cursor.offset} bytes) of it were read, and now it has {size} bytes; "
                    "lines may be appended to a file, not taken from it"
                )
            return not self._growing or size > self._cursor.offset
        if self._growing and not self.done:
            return is_whole(self.path)
        return True

    def _emptied(self) -> bool:
        """Whether no record is left of it, as when a log is rotated: then it waits for what comes."""
        with self.path.open("rb") as file:
            first = file.readline()
            return not first.endswith(b"\n") or (self._kind == ".csv" and not file.read(1))

    def taken(self, count: int) -> list[Record]:
        """So many records at most; none where another file has come to its name meanwhile."""
        before = replace(self._cursor)
        found = list(islice(self.read(), count))
        if found and self._has_moved:
            self._cursor = before
            return []
        return found

    @property
    def _has_moved(self) -> bool:
        """Whether another file has come to its name, so that what was read there is not its own."""
        located = self._located if self._kind != ".parquet" else None
        return located is not None and not located.is_at(self.path)

    def columns(self, shaper: Shaper, rows: int) -> EventColumns | None:
        """The next events by columns, up to so many; None where there is nothing that can be read so."""
        if self.done or self._rows is not None or shaper.schema is None:
            return None
        if self._read is None and not self.ready:  # what was read is given, though the file be gone
            return None
        form, schema = self._form, shaper.schema
        if self._read is None:
            place = self.part, self.path, self._kind
            found = next_stretch(form, schema, *place, self._cursor, self._growing, rows)
            if found is None:
                return None
            try:
                read = read_stretch(found, form, schema)
            except Failure:
                if self._has_moved:
                    return None
                raise
            if self._has_moved:
                return None
            self._read, self._after = read, found.after
            self._cursor.offset += found.size
        some, self._read = self._read.split(rows)
        self._cursor.seq = self._after if self._read is None else some.seq[-1].as_py() + 1
        self.done = self._kind != ".parquet" and not self._growing and self.read_to_end
        return some

    def read(self) -> Iterator[Record]:
        """The records from the next one on, as many as are taken."""
        if self.done or not self.ready:
            return
        try:
            if self._kind == ".parquet":
                self._rows = self._rows or read_parquet(
                    self._form.stream, self.part, self.path, self._cursor.seq, self._form.notation
                )
                for record in self._rows:
                    self._cursor.seq = record.line
                    yield record
                self.done = True
            elif self._kind == ".csv":
                yield from self._read_csv(self._header, self._growing)
            else:
                notation = self._form.notation
                yield from read_json_lines(self.part, self.path, self._cursor, self._growing, notation)
        except OSError as error:
            raise Failure(f"stream {self._form.stream}: cannot read {self.path}: {error.strerror}") from None
        self.done = self.done or not self._growing

    def _read_csv(self, header: Callable[[list[str]], None], growing: bool) -> Iterator[Record]:
        form = self._form
        return read_csv(self.part, self.path, form.time, header, self._cursor, growing, form.notation)

    def _skip(self, seq: int) -> None:
        """Moves to a record; a failure where the file does not reach that far."""
        self._cursor, self._waits = TextPosition(), None
        if self._kind == ".parquet":
            self._cursor.seq = seq // self._width
        elif self._kind == ".csv":
            for _ in self._read_csv(lambda names: None, growing=False):
                if self.seq >= seq:
                    break
        else:
            self._cursor = skip_json_lines(self.path, seq // self._width)
        if self.seq < seq and self._growing and self._emptied():
            self._cursor, self._waits = TextPosition(), seq
        elif self.seq < seq:
            raise Failure(
                f"stream {self._form.stream}: the position is record {seq} of {self.path}, but the file "
                f"has only {self.seq}: it was cut short, or it is another one"
            )

    def give_up(self) -> None:
        """Reads the file no more, unless it changes."""
        self._size_given_up = self.path.stat().st_size
        self._rows = self._read = None

    def close(self) -> None:
        """Closes the file."""
        self._rows = self._read = None


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
