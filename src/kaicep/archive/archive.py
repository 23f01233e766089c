"""An archive, a folder with one table for each stream, and its snapshots."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from kaicep.archive.parquet import LATE, PART, SEQ, TS, DataFile, TableShape, events_of, in_time, moments
from kaicep.archive.stream_table import StreamTable
from kaicep.archive.table import DEAD_LETTERS, ArchiveTable, DeadLetters
from kaicep.errors import Failure, Mistake, did_you_mean
from kaicep.plan.events import Event
from kaicep.plan.nodes import Interval
from kaicep.storage.delta import damages, mend, parquet_dataset
from kaicep.storage.places import place_of

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset


# ----------------------------------------------------------------------------------------------------------
# A cut: for each part of each stream, the position of the next event, so that everything before it is in.


@dataclass(frozen=True)
class Cut:
    """A set of source positions: stream -> part -> the first position that is not in it.

    >>> cut = Cut({"meter": {0: 120, 1: 80}})
    >>> cut.next("meter", 1), cut.next("meter", 7)
    (80, 0)
    >>> Cut.parse(cut.text()) == cut
    True
    """

    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def next(self, stream: str, part: int) -> int:
        """The position at which a part goes on after the cut."""
        return self.positions.get(stream, {}).get(part, 0)

    def beyond(self, other: Cut) -> Iterator[tuple[str, int, int]]:
        """Where this cut goes further than the other: stream, part, the position there.

        >>> list(Cut({"meter": {0: 5, 1: 2}}).beyond(Cut({"meter": {0: 4, 1: 2}})))
        [('meter', 0, 5)]
        """
        for stream, parts in self.positions.items():
            for part, position in parts.items():
                if position > other.next(stream, part):
                    yield stream, part, position

    def text(self) -> str:
        """The cut as JSON: the same cut, the same text."""
        return json.dumps(self.positions, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Cut:
        """The cut that a text of `text` says."""
        try:
            found = json.loads(text)
            return cls(
                {name: {int(part): int(at) for part, at in parts.items()} for name, parts in found.items()}
            )
        except (AttributeError, TypeError, ValueError):
            raise Failure(f"not a cut: {text[:80]}") from None


# ----------------------------------------------------------------------------------------------------------
# A snapshot: the archive at one moment, read by stretch of time.

_BATCH = 65_536
EVERYTHING = Interval()


@dataclass(frozen=True)
class Snapshot:
    """Tables at their versions. With `until`, of each part only what lies before that cut.

    With `since`, only what came in after that snapshot.
    """

    tables: Mapping[str, StreamTable] = field(default_factory=dict)
    until: Cut | None = None
    since: Snapshot | None = None

    @cached_property
    def cut(self) -> Cut:
        """The source positions that it holds: all before these, and none after."""
        held = {name: each.positions for name, each in self.tables.items()}
        return self.until if self.until is not None else Cut(held)

    @cached_property
    def versions(self) -> Mapping[str, int]:
        """The versions of its tables."""
        return {name: each.table.version for name, each in self.tables.items()}

    def shape(self, stream: str) -> TableShape:
        """What the events of a stream hold."""
        return self.tables[stream].shape

    def expired(self, stream: str) -> int | None:
        """The time before which events were removed."""
        return self.tables[stream].table.state.expired

    def files(self, stream: str, within: Interval = EVERYTHING) -> list[DataFile]:
        """The files that may hold events inside the bounds, by time; no other is opened."""
        found = [each for each in self.tables[stream].files() if each.touches(within)]
        if self.since is None or stream not in self.since.tables:
            return found
        known = {each.path for each in self.since.tables[stream].files()}
        return [each for each in found if each.path not in known]

    def batches(
        self,
        stream: str,
        within: Interval = EVERYTHING,
        where: pyarrow.dataset.Expression | None = None,
        as_seen: bool = False,
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows inside the bounds in the order of the stream, as Arrow batches.

        `where` is a condition on the columns besides; `as_seen` leaves late rows out. Files whose times
        overlap are sorted together in memory: compaction keeps them apart.
        """
        table = self.tables[stream]
        condition = _all_of(chain(_bounds(within), self._before(stream), () if where is None else (where,)))
        if as_seen:
            import pyarrow.compute as pc

            seen = ~pc.field(LATE)
            condition = seen if condition is None else condition & seen
        for group in _overlapping(self.files(stream, within)):
            rows = _read(table, group, condition)
            if rows.num_rows:
                yield from in_time(rows).to_batches(max_chunksize=_BATCH)

    def events(
        self,
        stream: str,
        within: Interval = EVERYTHING,
        where: pyarrow.dataset.Expression | None = None,
        as_seen: bool = False,
    ) -> Iterator[Event]:
        """The events inside the bounds, in the order of the stream."""
        shape = self.shape(stream)
        for batch in self.batches(stream, within, where, as_seen):
            yield from events_of(stream, batch, shape)

    def _before(self, stream: str) -> Iterator[pyarrow.dataset.Expression]:
        """What keeps rows beyond the cut out, and those that were there before, where there are any."""
        if self.until is not None and self.until.positions.get(stream) != self.tables[stream].positions:
            yield _below(self.until, stream)
        if self.since is not None:
            yield ~_below(self.since.cut, stream)


def _below(cut: Cut, stream: str) -> pyarrow.dataset.Expression:
    """Whether a row lies before a cut."""
    import pyarrow.compute as pc

    made = pc.scalar(False)
    for part, after in cut.positions.get(stream, {}).items():
        made = made | ((pc.field(PART) == part) & (pc.field(SEQ) < after))
    return made


def _read(table: StreamTable, files: Iterable[DataFile], condition: Any) -> pyarrow.Table:
    """The rows of some files for which a condition holds; a column that a file does not have is null."""
    import pyarrow

    folder, schema, attached = table.table.folder, table.table.schema, table.attached
    theirs = {each.path for each in attached.listed} if attached is not None else set()
    own = [folder / each.path for each in files if each.path not in theirs]
    try:
        found = [parquet_dataset(own, schema).to_table(filter=condition)] if own else []
        for path in sorted(theirs.intersection(each.path for each in files)):
            assert attached is not None
            rows = pyarrow.Table.from_batches(attached.batches(path, schema), schema)
            found.append(rows if condition is None else rows.filter(condition))
        return pyarrow.concat_tables(found)
    except (OSError, pyarrow.ArrowException) as error:
        raise Failure(f"cannot read {folder}: {error}") from None


def _overlapping(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Files, which come by time, in groups whose times do not overlap those of other groups."""
    group: list[DataFile] = []
    reached = -math.inf
    for each in sorted(files, key=lambda file: -math.inf if file.low is None else file.low):
        if group and each.low is not None and each.low > reached:
            yield group
            group = []
        group.append(each)
        reached = max(reached, each.reach)
    if group:
        yield group


def _bounds(within: Interval) -> Iterator[pyarrow.dataset.Expression]:
    import pyarrow
    import pyarrow.compute as pc

    ts = pc.field(TS)
    if within.low is not None:
        low = pyarrow.scalar(within.low, moments())
        yield ts >= low if within.low_inclusive else ts > low
    if within.high is not None:
        high = pyarrow.scalar(within.high, moments())
        yield ts <= high if within.high_inclusive else ts < high


def _all_of(conditions: Iterable[pyarrow.dataset.Expression]) -> pyarrow.dataset.Expression | None:
    made = None
    for each in conditions:
        made = each if made is None else made & each
    return made


# ----------------------------------------------------------------------------------------------------------
# An archive: a folder with one table for each stream, and one for the records that could not be read.

_log = logging.getLogger("kaicep.run")


class Archive:
    """The archive in a folder; the folder is made when the first stream comes in."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = place_of(folder, "the archive")

    @classmethod
    def open(cls, folder: str | Path) -> Archive:
        """An archive that there is."""
        if not place_of(folder, "the archive").is_dir():
            raise Mistake(
                f"there is no archive in {folder}",
                hint=f"make one: kaicep ingest --stream NAME=FILE --archive {folder}",
            )
        return cls(folder)

    def streams(self) -> list[str]:
        """The names of the archived streams."""
        try:
            found = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        return [
            unquote(each.name.replace("~", "%"))
            for each in found
            if not each.name.startswith((".", "_")) and ArchiveTable.exists(each)
        ]

    def stream(self, name: str, version: int | None = None) -> StreamTable:
        """The table of a stream, at its newest version or at the one that is wanted."""
        folder = self._folder(name)
        if not ArchiveTable.exists(folder):
            raise Mistake(
                f"the archive {self.folder} has no stream {name}", hint=did_you_mean(name, self.streams())
            )
        return StreamTable(folder, name, version)

    def made(self, name: str, shape: TableShape) -> StreamTable:
        """The table of a stream, to be written: it is made where there is none."""
        return self.writable(name) or StreamTable.create(self._folder(name), name, shape)

    def writable(self, name: str) -> StreamTable | None:
        """The table of a stream, as far as it is on the disk; None where there is none."""
        folder = self._folder(name)
        for each in mend(folder):
            _log.warning("%s: removed what a crash had left half-written: %s", name, each)
        if not ArchiveTable.exists(folder):
            return None
        found = StreamTable(folder, name)
        found.table.settle()
        return found

    def mend(self) -> list[str]:
        """Removes what a crash left half-written in any table; says what it was."""
        return [each for folder in self._tables() for each in mend(folder)]

    def damages(self) -> Iterator[tuple[str, str]]:
        """All that is not as it was written: the name of the stream, and what it is. Reads everything."""
        for folder in self._tables():
            name = unquote(folder.name.replace("~", "%"))
            yield from ((name, each) for each in table_damages(folder))

    def _tables(self) -> list[Path]:
        try:
            return sorted(each for each in self.folder.iterdir() if (each / "_delta_log").is_dir())
        except FileNotFoundError:
            return []

    @property
    def dead_letters(self) -> DeadLetters:
        """The records that could not be read."""
        return DeadLetters(self.folder / DEAD_LETTERS)

    def snapshot(self, versions: Mapping[str, int] | None = None, cut: Cut | None = None) -> Snapshot:
        """The archive as it is now, or at these versions of its tables; with a cut, up to there only."""
        tables = {name: self.stream(name, (versions or {}).get(name)) for name in self.streams()}
        held = Snapshot(tables)
        if cut is None:
            return held
        for stream, part, position in cut.beyond(held.cut):
            has = held.cut.next(stream, part)
            raise Failure(
                f"{stream}: the cut is at position {position} of part {part}, "
                f"and the archive holds up to {has}"
            )
        return Snapshot(tables, cut)

    def _folder(self, name: str) -> Path:
        return self.folder / _quoted(name)


def table_damages(folder: Path) -> Iterator[str]:
    """All that is not as it was written in the table of a folder."""
    try:
        files = [each.path for each in ArchiveTable(folder, folder.name).files()]
    except Failure as failure:
        found = [*damages(folder, (each.name for each in folder.glob("*.parquet")))]
        yield from found or [str(failure)]
    else:
        yield from damages(folder, files)


def _quoted(name: str) -> str:
    """A stream's name as that of a folder, in letters that no reader of tables takes for anything else.

    A leading underscore is for tables of the archive itself, a leading dot for nobody.

    >>> _quoted("air flow"), _quoted("_own")
    ('air~20flow', '~5Fown')
    """
    made = quote(name, safe="").replace("~", "%7E").replace("%", "~")
    return f"~{ord(made[0]):02X}{made[1:]}" if made.startswith((".", "_")) else made
