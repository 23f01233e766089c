"""The archive at one moment: cuts by source position, and snapshots read by range of time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.archive.parquet import LATE, PART, SEQ, TS, DataFile, TableShape, events_of, in_time, moments
from kaicep.archive.stream import StreamTable
from kaicep.errors import Failure
from kaicep.plan.events import Event
from kaicep.plan.nodes import Interval
from kaicep.storage.delta import parquet_dataset

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset

__all__ = ["Cut", "Snapshot"]


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
        found = [each for each in self.tables[stream].table.files() if each.touches(within)]
        if self.since is None or stream not in self.since.tables:
            return found
        known = {each.path for each in self.since.tables[stream].table.files()}
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
        table = self.tables[stream].table
        condition = _all_of(chain(_bounds(within), self._before(stream), () if where is None else (where,)))
        if as_seen:
            import pyarrow.compute as pc

            seen = ~pc.field(LATE)
            condition = seen if condition is None else condition & seen
        for group in _overlapping(self.files(stream, within)):
            rows = _read(table.folder, group, table.schema, condition)
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


def _read(folder: Path, files: Iterable[DataFile], schema: pyarrow.Schema, condition: Any) -> pyarrow.Table:
    """The rows of some files for which a condition holds; a column that a file does not have is null."""
    import pyarrow

    try:
        found = parquet_dataset([folder / each.path for each in files], schema)
        return found.to_table(filter=condition)
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
