"""A stream of a deployment: from its source into the archive first, then to the queries.

What the archive holds, by position, is what there is: a source is opened there, and what was read and not
archived when a process was lost is read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kaicep.archive.archive import Archive, Cut, Snapshot
from kaicep.archive.parquet import TS, TableShape, arrow_schema, extended, rows_of
from kaicep.archive.stream_table import StreamTable, conforming
from kaicep.connectors.columnar import ColumnEvents
from kaicep.connectors.contract import Lost, SourceBatch
from kaicep.connectors.http import HttpSource
from kaicep.connectors.parts import is_history
from kaicep.connectors.shape import DeadLetter, Form, Schema
from kaicep.deployment.config import Config, StreamConfig
from kaicep.errors import Failure, KaicepError, Mistake, reason_of
from kaicep.ingest.files import attach, rows_of_columns
from kaicep.join.handoff import PositionRange, Seam, stretches
from kaicep.plan.events import Event
from kaicep.plan.time import format_time

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("kaicep.run")

_LOST_KEPT = 100
_RETRY = 1.0
_RETRY_MOST = 60.0

IsLate = Callable[[Event], bool]
"""Whether somebody went on as if an event would not come."""


@dataclass
class Counts:
    """What came in since the process began."""

    events: int = 0
    late: int = 0
    dead: int = 0


@dataclass
class _Silence:
    """Since when nothing came of a part, by the wall clock, and whether it counts as silent."""

    since: float
    idle: bool = False
    waking: bool = True  # nobody knows yet how far the others went without it


class Feed:
    """One stream: its source, its table in the archive, and which of its parts are silent."""

    def __init__(self, config: StreamConfig, archive: Archive) -> None:
        self.config = config
        self.name = config.name
        self.counts = Counts()
        self.lost: list[Lost] = []
        self.ended = False
        self.failed: Exception | None = None
        """Why a finite source was given up; one that goes on for ever is opened again."""
        self._down: str | None = None
        self._again = 0.0
        self._patience = _RETRY
        self._archive = archive
        self._source = config.open_source()
        self._table: StreamTable | None = None
        self._position: dict[int, int] = {}
        self._letters: list[DeadLetter] = []
        self._parts: dict[int, _Silence] = {}
        self._said: str | None = None

    @property
    def finite(self) -> bool:
        """Whether it will end."""
        return self._source.finite

    @property
    def table(self) -> StreamTable | None:
        """Its table; None until enough records were seen to tell their types."""
        return self._table

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that its source has."""
        return tuple(sorted({*self._position, *self._source.position}))

    @property
    def positions(self) -> dict[int, int]:
        """Where each part goes on after what is archived."""
        return dict(self._position) if self._table is not None else {}

    @property
    def newest(self) -> dict[int, int]:
        """The largest time of each part of the source so far."""
        return _of_source(self._table.newest) if self._table is not None else {}

    def silence(self, part: int) -> float | None:
        """For how many seconds nothing has come of a part; None where it is not known."""
        known = self._parts.get(part)
        return round(time.monotonic() - known.since, 1) if known is not None else None

    @property
    def idle_parts(self) -> list[int]:
        """Those that are silent, or have ended."""
        return [part for part, each in self._parts.items() if each.idle]

    @property
    def history(self) -> list[int]:
        """The parts that are files which were ingested beside the source."""
        return [part for part in self._table.positions if is_history(part)] if self._table is not None else []

    def open(self) -> None:
        """Opens the source where the archive ends; where that fails, this stream alone waits.

        An archive that cannot be read keeps the deployment from starting.
        """
        schema = self._resume()
        try:
            self._open(schema)
        except Mistake:
            raise
        except Exception as error:
            self._give_up(error)

    def _resume(self) -> Schema | None:
        """Looks up in the archive where the stream goes on, and with which types."""
        found = self._archive.writable(self.name)
        if found is None:
            if self._table is not None:
                folder = self._table.table.folder
                raise Failure(f"{folder} is gone; no events are taken in until it is there again")
            return None
        self._table = found
        self._position = _of_source(self._table.positions)
        return self._schema(self._table.shape)

    def _open(self, schema: Schema | None) -> None:
        self._source.open(self._position, schema)
        now = time.monotonic()
        self._parts = {part: _Silence(now) for part in self.parts or (0,)}

    def _schema(self, shape: TableShape) -> Schema:
        if shape.rdf:
            return Schema(rdf=True)
        form = self.config.form
        declared = TableShape(tuple(form.types.items()), form.time)
        return Schema(extended(self.name, shape, declared).attributes)

    def close(self) -> None:
        """Closes the source."""
        self._source.close()

    # --- events come ---

    def take(self, timeout: float, is_late: IsLate) -> list[PositionRange]:
        """Takes what the source has, archives it, and returns it; nothing where nothing came.

        Where something fails, the source is opened again after a while; the others go on meanwhile.
        """
        if self.ended or self.failed is not None or time.monotonic() < self._again:
            return []
        try:
            if self._down is not None:
                return self._reopen()
            found = self._take(timeout, is_late)
        except Exception as error:
            self._give_up(error)
            return []
        self._patience = _RETRY
        return found

    def _give_up(self, error: Exception) -> None:
        """Closes the source; what it gave and the archive did not get is read again."""
        reason = reason_of(error)
        if reason != self._said:
            unforeseen = None if isinstance(error, KaicepError) else error
            _log.error("%s: %s", self.name, reason, exc_info=unforeseen)
            self._said = reason
        self._letters.clear()
        try:
            self._source.close()
        except Exception as second:
            _log.error("%s: the source cannot be closed: %s", self.name, reason_of(second))
        self._down = reason
        if self.finite:
            self.failed = error
        self._again = time.monotonic() + self._patience
        self._patience = min(2 * self._patience, _RETRY_MOST)

    def _reopen(self) -> list[PositionRange]:
        """Opens the source again; what was archived and nobody was given comes first."""
        given = self._position
        self._source = self.config.open_source()
        self._open(self._resume())
        self._down = None
        if self._table is None:
            return []
        held = Snapshot({self.name: self._table})
        past = {part: self._table.positions[part] for part in self.history}
        seam = Seam(Cut({self.name: {**past, **given}}))
        return list(seam.beyond(held))

    def _take(self, timeout: float, is_late: IsLate) -> list[PositionRange]:
        batch = self._source.next_batch(timeout)
        self._tell_trouble()
        self._tell_lost(batch)
        self._letters += batch.dead
        self.counts.dead += len(batch.dead)
        for part in batch.position:  # some sources know their parts only now; one may never send anything
            self._parts.setdefault(part, _Silence(time.monotonic()))
        if self._table is None and not self._made():
            self.ended = batch.ended
            return []
        before, after = self._position, dict(batch.position)
        covered = {part: (before.get(part, 0), at) for part, at in after.items() if at > before.get(part, -1)}
        assert self._table is not None
        shape = self._table.shape
        events = self._judged(batch.events, is_late)
        rows = _rows_of(events, shape, self.config.form)
        self._archived(rows, covered)
        self._position = after
        self._awake(part for part, (low, high) in covered.items() if high > low)
        self.ended = batch.ended  # not before the last records are archived: then they come again
        return list(stretches(self.name, before, after, events if shape.rdf else rows))

    def _made(self) -> bool:
        """Makes the table, once it is known what it holds."""
        schema = self._source.schema
        if schema is None:
            return False
        shape = TableShape(schema.attributes, TS if schema.rdf else self.config.form.time, schema.rdf)
        self._table = self._archive.made(self.name, shape)
        self._position = _of_source(self._table.positions)
        return True

    def _judged(self, events: Sequence[Event], is_late: IsLate) -> Sequence[Event]:
        """Events of a part that was silent may come after others went on without it: they are late."""
        waking = {part for part, each in self._parts.items() if each.waking}
        if not waking:
            return events
        first = events.earliest() if isinstance(events, ColumnEvents) else events
        if not any(event.part in waking and is_late(event) for event in first):
            return events
        return [
            replace(each, late=True) if each.part in waking and is_late(each) else each for each in events
        ]

    def _archived(self, rows: pyarrow.Table, covered: dict[int, tuple[int, int]]) -> None:
        if not covered:
            return
        assert self._table is not None
        letters, self._letters = self._letters, []
        whole = [each for each in letters if each.line == 0]  # a whole file, which has no position
        for each in whole:
            _log.warning("%s: %s: %s", self.name, each.file, each.reason)
        dead: list[dict[str, Any]] = [each.to_dict() for each in letters if each.line != 0]
        if dead:
            self._archive.dead_letters.append(self.name, dead, covered)
            _log.warning(
                "%s: %d records could not be read, such as: %s", self.name, len(dead), dead[0]["reason"]
            )
        known = {part: name for part in covered if (name := self._source.named(part)) is not None}
        added = self._table.append(rows, covered, lateness=self.config.lateness, sources=known)
        self.counts.events += added.rows
        self.counts.late += added.late
        self._source.forget(_of_source(self._table.positions))

    def _tell_lost(self, batch: SourceBatch) -> None:
        for each in batch.lost:
            _log.warning(
                "%s: part %d: the positions %d to %d are lost: the source no longer has them",
                *(self.name, each.part, each.start, each.end - 1),
            )
        self.lost = [*self.lost, *batch.lost][-_LOST_KEPT:]

    def _tell_trouble(self) -> None:
        trouble = self._source.trouble
        if trouble != self._said:
            _log.warning("%s: %s", self.name, trouble or "it works again")
            self._said = trouble

    # --- silence ---

    def _awake(self, parts: Iterable[int]) -> None:
        now = time.monotonic()
        for part in parts:
            self._parts[part] = _Silence(now, waking=False)

    def fall_silent(self) -> list[int]:
        """The parts that count as silent from now on: nothing came for a while, or nothing will."""
        now, found = time.monotonic(), []
        over = self._finished()
        for part, each in self._parts.items():
            silent = now - each.since > self.config.idle / 1_000_000
            if not each.idle and (self.ended or silent or part in over):
                each.idle = each.waking = True
                found.append(part)
        return found

    def _finished(self) -> Collection[int]:
        """The parts that will send nothing more, as far as the source can tell."""
        if len(self._parts) < 2 or self._table is None or all(each.idle for each in self._parts.values()):
            return ()
        if self._down is not None:
            return ()
        lateness = self.config.lateness
        newest = self.newest.items() if lateness is not None else ()
        return self._source.finished({part: ts - (lateness or 0) for part, ts in newest})

    # --- figures ---

    def status(self) -> dict[str, Any]:
        """How it is going."""
        return {
            **reached_status(self._position, self.newest, self.config.lateness),
            "events": self.counts.events,
            "late": self.counts.late,
            "dead": self.counts.dead,
            "lost": [{"part": each.part, "from": each.start, "to": each.end} for each in self.lost],
            "idle": self.idle_parts,
            "ended": self.ended,
            "trouble": self._down or self._source.trouble,
            **self.address,
        }

    @property
    def address(self) -> dict[str, str]:
        """Where events are posted to, for the status, if that is how they come."""
        if not isinstance(self._source, HttpSource) or self._down is not None:
            return {}
        return {"address": self._source.address}


def attach_tables(config: Config, archive: Archive, files_of: FilesOf | None = None) -> None:
    """Makes the tables that a file names the history of their streams; `files_of` knows those of Spark."""
    for name, each in config.streams.items():
        if each.table is None:
            continue
        place, known = each.table, files_of is not None and not is_place(each.table)
        if files_of is None and not is_place(each.table):
            hint = 'kind = "spark" under [engine], or the folder of the table'
            raise Mistake(f"stream {name}: {place} is a table of Spark's catalog", hint=hint)
        files = files_of(place) if known and files_of is not None else ()
        attached = attach(archive, each.form, place, each.identity, files)
        rows = sum(file.rows for file in attached.files)
        _log.info("%s: its history is %s: %d events", name, place, rows)


FilesOf = Callable[[str], Sequence[str]]
"""The files of a table of Spark's catalog, by its name."""


def is_place(table: str) -> bool:
    """Whether it is a folder, and not a table of a catalog.

    >>> is_place("s3://lake/meter"), is_place("lake/meter"), is_place("sales.meter")
    (True, True, False)
    """
    return "/" in table


def reached_status(
    positions: Mapping[int, int], newest: Mapping[int, int], lateness: int | None
) -> dict[str, Any]:
    """How far a stream has come: its positions, its newest time, its watermark, its age."""
    reached = max(newest.values(), default=None)
    least = min(newest.values(), default=None) if lateness is not None else None
    return {
        "positions": {str(part): at for part, at in sorted(positions.items())},
        "newest": format_time(reached) if reached is not None else None,
        "watermark": format_time(least - (lateness or 0)) if least is not None else None,
        "lag": round(time.time() - reached / 1_000_000, 3) if reached is not None else None,
    }


def _of_source(parts: Mapping[int, int]) -> dict[int, int]:
    """What is said of parts, without those that are history."""
    return {part: said for part, said in parts.items() if not is_history(part)}


def _rows_of(events: Sequence[Event], shape: TableShape, form: Form) -> pyarrow.Table:
    """Events as rows of the archive: as they came, where they came by columns."""
    import pyarrow

    if not isinstance(events, ColumnEvents) or not events.pieces:
        return rows_of(events, shape)
    rows = pyarrow.concat_tables([rows_of_columns(columns, part, form) for part, columns in events.pieces])
    return conforming(form.stream, rows, arrow_schema(shape))
