"""A durable log on the local disk, between the senders of events and the source that reads them."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import zlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from kaicep.connectors.columnar import value_events
from kaicep.connectors.contract import Guarantee, Position, Source, SourceBatch, read_position
from kaicep.connectors.records import Record
from kaicep.connectors.shape import SAMPLE, Form, Schema, Shaper, refuse_wide
from kaicep.errors import Failure, Mistake
from kaicep.storage.disk import sync_folder, write_all

# ----------------------------------------------------------------------------------------------------------
# A log on the local disk: records in order, each with its number, durable before `append` returns.
#
# Sources that are pushed to (HTTP, MQTT) write here before they acknowledge, so that nothing acknowledged
# is lost, and give their events the numbers of the log. The log is a folder of segments, each named after
# the number of its first record. A record is its length, a checksum over its number and its bytes, and its
# bytes. What a crash left half-written at the end is cut off when the log is opened, and kept beside it.

_HEAD = struct.Struct("<II")
_CHUNK = 1 << 20
SEGMENT = 64 << 20
"""How many bytes a segment has before the next one begins."""


class Log:
    """An append-only log with positions. One process has it open; its threads may share it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Log(Path(folder))
    ...     log.append([b"a", b"b"])
    ...     log.read(1, 10)
    ...     log.close()
    range(0, 2)
    [b'b']
    """

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        self._folder = folder
        self._segment = segment
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._news = threading.Condition()
        self._closed = False
        self._broken: str | None = None
        self._read_place = (0, 0, 0)  # a seq, the first seq of its segment, and its byte in there
        self._lock = self._lock_folder()
        self._firsts = sorted(int(each.stem) for each in folder.glob("*.log")) or [0]
        self._file = os.open(self._path(self._firsts[-1]), os.O_RDWR | os.O_CREAT, 0o644)
        self._end, self._size = self._recover()
        self._written = self._end
        sync_folder(folder)

    @property
    def first(self) -> int:
        """The number of the oldest record that is still there (or of the next, where there is none)."""
        return self._firsts[0]

    @property
    def end(self) -> int:
        """The number that the next record will get: one past the last durable one."""
        return self._end

    def append(self, records: Sequence[bytes]) -> range:
        """Writes records, all or none; returns their numbers when they are on the disk.

        Threads that append at the same time share one wait for the disk.
        """
        with self._writing:
            self._refuse()
            start = self._written
            data = b"".join(_frame(seq, each) for seq, each in enumerate(records, start))
            try:
                write_all(self._file, data, self._size)
            except OSError as error:
                os.ftruncate(self._file, self._size)
                raise Failure(f"cannot write to the log {self._folder}: {error.strerror}") from None
            self._size += len(data)
            self._written += len(records)
            target = self._written
        self._sync(target)
        return range(start, target)

    def read(self, seq: int, limit: int) -> list[bytes]:
        """Up to `limit` records, the one numbered `seq` first; none where it is not there yet.

        Records are read by one thread at a time, most cheaply one batch after the other.
        """
        if not self.first <= seq <= self._end:
            raise Failure(
                f"the log {self._folder} has records {self.first} to {self._end - 1}, but {seq} is asked: "
                "it is the log of another stream, or a part of it was removed"
            )
        found: list[bytes] = []
        while len(found) < limit and seq + len(found) < self._end:
            found += self._read_some(seq + len(found), limit - len(found))
        return found

    def wait(self, seq: int, timeout: float) -> bool:
        """Waits until the record numbered `seq` is there; says whether it is."""
        with self._news:
            return self._news.wait_for(lambda: self._end > seq or self._closed, timeout) and self._end > seq

    def forget(self, before: int) -> None:
        """Removes segments that hold nothing from `before` on. The newest segment always stays."""
        with self._writing:
            while len(self._firsts) > 1 and self._firsts[1] <= before:
                self._path(self._firsts[0]).unlink()
                self._firsts.pop(0)

    def close(self) -> None:
        """Closes the log; may be called twice."""
        with self._syncing, self._writing:
            if not self._closed:
                self._closed = True
                os.close(self._file)
                os.close(self._lock)
        with self._news:
            self._news.notify_all()

    # --- writing --------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        if self._closed:
            raise Failure(f"the log {self._folder} is closed")
        if self._broken:
            raise Failure(self._broken)

    def _sync(self, target: int) -> None:
        """Waits until everything before `target` is on the disk."""
        with self._syncing:
            if self._end >= target:
                return
            self._refuse()
            with self._writing:
                written = self._written
            try:
                os.fsync(self._file)
            except OSError as error:
                # What is on disk now is unknown: a second try could succeed and prove nothing.
                self._broken = (
                    f"the disk did not take what was written to the log {self._folder}: {error.strerror}"
                )
                raise Failure(self._broken) from None
            self._end = written
            with self._writing:
                if self._size >= self._segment and self._written == written:
                    self._next_segment()
        with self._news:
            self._news.notify_all()

    def _next_segment(self) -> None:
        """Begins a new segment; everything in the old one is on the disk."""
        file = os.open(self._path(self._end), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        sync_folder(self._folder)
        os.close(self._file)
        self._file, self._size = file, 0
        self._firsts.append(self._end)

    # --- reading --------------------------------------------------------------------------------------

    def _read_some(self, seq: int, limit: int) -> list[bytes]:
        """Records of one segment, as many as a chunk holds, or one; all of them are durable."""
        limit = min(limit, self._end - seq)
        first = self._firsts[bisect_right(self._firsts, seq) - 1]
        at, segment, offset = self._read_place
        if segment != first or at > seq:
            at, offset = first, 0
        file = os.open(self._path(first), os.O_RDONLY)
        try:
            while True:
                frames = _read_frames(file, offset, at)[: seq + limit - at]
                if not frames:
                    raise Failure(f"{self._path(first)} is damaged at byte {offset}, in record {at}")
                offset += sum(_HEAD.size + len(each) for each in frames)
                at += len(frames)
                if at > seq:
                    self._read_place = (at, first, offset)
                    return frames[seq - at :]
        finally:
            os.close(file)

    # --- opening --------------------------------------------------------------------------------------

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:020}.log"

    def _lock_folder(self) -> int:
        """Makes the folder this process's own."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise Mistake(f"cannot keep a log in {self._folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise Mistake(f"the log {self._folder} is in use by another process") from None
        return lock

    def _recover(self) -> tuple[int, int]:
        """The number of the next record, and the size of the newest segment without a torn end."""
        seq, offset = self._firsts[-1], 0
        size = os.fstat(self._file).st_size
        while offset < size:
            frames = _read_frames(self._file, offset, seq)
            if not frames:
                break
            seq += len(frames)
            offset += sum(_HEAD.size + len(each) for each in frames)
        if offset < size:
            torn = self._folder / f"{seq:020}.torn"
            torn.write_bytes(os.pread(self._file, size - offset, offset))
            os.ftruncate(self._file, offset)
        os.fsync(self._file)
        return seq, offset


def _frame(seq: int, record: bytes) -> bytes:
    return _HEAD.pack(len(record), _checksum(seq, record)) + record


def _checksum(seq: int, record: bytes) -> int:
    # Because of the number in it, a run of zeros is not a record, nor is one in the wrong place.
    return zlib.crc32(record, zlib.crc32(seq.to_bytes(8, "little")))


def _read_frames(file: int, offset: int, seq: int) -> list[bytes]:
    """The whole records from a byte of a segment on: as many as a chunk holds, or one that is larger."""
    data = os.pread(file, _CHUNK, offset)
    if frames := _frames(data, seq):
        return frames
    if len(data) == _CHUNK:
        length, _ = _HEAD.unpack_from(data)
        return _frames(os.pread(file, _HEAD.size + length, offset), seq)
    return []


def _frames(data: bytes, seq: int) -> list[bytes]:
    """The whole records at the beginning of the data."""
    found: list[bytes] = []
    offset = 0
    while offset + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, offset)
        record = data[offset + _HEAD.size : offset + _HEAD.size + length]
        if len(record) < length or _checksum(seq + len(found), record) != checksum:
            break
        found.append(record)
        offset += _HEAD.size + length
    return found


# ----------------------------------------------------------------------------------------------------------
# What sources that are pushed to have in common: a log between those who send and those who read.
#
# Whatever comes in is written to the log, and acknowledged when it is on the disk. Its number in the log is
# the `seq` of the event; it is given once, and a restart gives the same ones (semantics 1).


class PushSource(Source):
    """A source with a log; a subclass says how things come in, and what a record of the log holds."""

    guarantee = Guarantee.DURABLE
    finite = False

    def __init__(self, form: Form, log: Path, batch: int) -> None:
        super().__init__(form)
        refuse_wide(form, "what is sent record by record")
        self._folder = log
        self._batch = batch
        self._log: Log | None = None
        self._next = 0
        self._shaper = Shaper(form)

    @abstractmethod
    def _start(self, log: Log) -> None:
        """Begins to take in what is sent."""

    @abstractmethod
    def _stop(self) -> None:
        """Takes in nothing more."""

    @abstractmethod
    def _record(self, seq: int, raw: bytes) -> Record:
        """The record that the log holds under a number."""

    def _value(self, raw: bytes) -> bytes | None:
        """The JSON of a record that the log holds; None where there is more to it."""
        return raw

    @property
    def schema(self) -> Schema | None:
        """The attributes, inferred from the oldest records of the log."""
        return self._shaper.schema

    @property
    def position(self) -> dict[int, int]:
        """One past the number of the last record given."""
        return {0: self._next}

    @property
    def backlog(self) -> int:
        """How many records wait in the log to be read."""
        return self._log.end - self._next if self._log else 0

    def named(self, part: int) -> str | None:
        """The one part: what is sent."""
        return "what is sent"

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Opens the log at the position, and begins to take in what is sent."""
        self._log = Log(self._folder)
        try:
            self._next = read_position(position).get(0, self._log.first)
            self._log.read(self._next, 0)
            self._shaper = Shaper(self.form, schema)
            self._start(self._log)
        except BaseException:
            self.close()
            raise

    def next_batch(self, timeout: float) -> SourceBatch:
        """What is in the log and was not given yet."""
        assert self._log is not None
        self._log.wait(self._next, timeout)
        raw = self._log.read(self._next, self._batch)
        first = self._next
        if self.schema is None and any(self._record(0, each).fields is not None for each in raw):
            for seq, each in enumerate(self._log.read(self._log.first, SAMPLE), self._log.first):
                self._shaper.learn(self._record(seq, each))
            self._shaper.settle()
        taken = list(range(first, first + len(raw))), list(map(self._value, raw))
        events, dead = value_events(
            self._shaper, {0: taken}, lambda part, at: self._record(first + at, raw[at])
        )
        self._next += len(raw)
        return SourceBatch(self.position, events, dead)

    def forget(self, position: Position) -> None:
        """Removes from the log what lies before the position, in large pieces."""
        if self._log is not None:
            self._log.forget(min(self._next, read_position(position).get(0, 0)))

    def close(self) -> None:
        """Stops taking in, and closes the log."""
        self._stop()
        if self._log is not None:
            self._log.close()
            self._log = None
