"""Events from archive and live source together: every position once, in order.

Both say what they cover of a part: from one position to another, with the events that are there (a record
that could not be read has a position and no event). What was taken is not taken again, however often a
source repeats itself: that is the paper's negative gap. What a live source does not have any more, because
it was opened too late, is waited for until the archive holds it: the positive gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kaicep.archive.archive import Cut
from kaicep.archive.parquet import LATE, PART, SEQ, TableShape
from kaicep.plan.events import Event

if TYPE_CHECKING:
    import pyarrow

    from kaicep.archive.archive import Snapshot
    from kaicep.hosts.inprocess import Engine
    from kaicep.kernel.batches import Batch

Part = tuple[str, int]


class PositionRange(NamedTuple):
    """What somebody has of a part: the positions from `low` to before `high`, and the events there.

    The events are rows, as the archive has them, with their late marks; or they stand one by one.
    """

    stream: str
    part: int
    low: int
    high: int
    events: Sequence[Event] | pyarrow.Table

    def after(self, position: int) -> PositionRange:
        """What of it begins at a position."""
        if position <= self.low:
            return self
        if isinstance(self.events, Sequence):
            return self._replace(low=position, events=[each for each in self.events if each.seq >= position])
        import pyarrow.compute as pc

        return self._replace(
            low=position, events=self.events.filter(pc.greater_equal(self.events[SEQ], position))
        )

    def batch(self, engine: Engine) -> Batch:
        """The events as an engine takes them."""
        if isinstance(self.events, Sequence):
            return engine.batch(self.stream, self.events)
        return batch_of_rows(self.events, self.stream, engine)


class Seam:
    """Takes stretches as they come, gives events in the order of each part.

    >>> seam = Seam(Cut({"s": {0: 2}}))
    >>> seam.offer(PositionRange("s", 0, 3, 4, [Event("s", 0, 3, 9)]))
    >>> seam.take(), list(seam.missing())
    ([], [('s', 0, 2, 3)])
    >>> seam.offer(PositionRange("s", 0, 0, 3, [Event("s", 0, 1, 7), Event("s", 0, 2, 8)]))
    >>> [event.seq for each in seam.take() for event in each.events], seam.cut.next("s", 0)
    ([2, 3], 4)
    """

    def __init__(self, start: Cut) -> None:
        self._next: dict[Part, int] = {
            (stream, part): at for stream, parts in start.positions.items() for part, at in parts.items()
        }
        self._waiting: dict[Part, list[PositionRange]] = {}

    @property
    def cut(self) -> Cut:
        """What was taken so far."""
        made: dict[str, dict[int, int]] = {}
        for (stream, part), at in sorted(self._next.items()):
            made.setdefault(stream, {})[part] = at
        return Cut(made)

    def offer(self, stretch: PositionRange) -> None:
        """Takes what somebody has; what lies before the seam is there already."""
        key = stretch.stream, stretch.part
        if stretch.high > self._next.get(key, 0):
            waiting = self._waiting.setdefault(key, [])
            waiting.append(stretch)
            waiting.sort(key=lambda each: (each.low, each.high))

    def take(self) -> list[PositionRange]:
        """What comes next, part by part, as far as nothing is missing."""
        found: list[PositionRange] = []
        for key in sorted(self._waiting):
            waiting = self._waiting[key]
            while waiting and waiting[0].low <= self._next.get(key, 0):
                stretch = waiting.pop(0)
                after = self._next.get(key, 0)
                found.append(stretch.after(after))
                self._next[key] = max(after, stretch.high)
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting}
        return found

    def adopt(self, other: Seam) -> bool:
        """Goes on for the streams of another one too; says whether both have taken the same of each part."""
        both = self._next.keys() & other._next.keys()
        if self._waiting or other._waiting or any(self._next[key] != other._next[key] for key in both):
            return False
        self._next |= other._next
        return True

    def missing(self) -> Iterator[tuple[str, int, int, int]]:
        """The positions that something waits for: stream, part, from, to."""
        for (stream, part), waiting in sorted(self._waiting.items()):
            at = self._next.get((stream, part), 0)
            if waiting[0].low > at:
                yield stream, part, at, waiting[0].low

    def reach(self, snapshot: Snapshot) -> None:
        """Takes from the archive everything that comes after the seam."""
        for each in self.beyond(snapshot):
            self.offer(each)

    def beyond(self, snapshot: Snapshot) -> Iterator[PositionRange]:
        """What the archive holds after the seam."""
        for stream in snapshot.tables:
            for part, high in snapshot.cut.positions.get(stream, {}).items():
                low = self._next.get((stream, part), 0)
                if high > low:
                    yield PositionRange(stream, part, low, high, archived(snapshot, stream, part, low, high))

    def fill(self, snapshot: Snapshot) -> None:
        """Takes from the archive what is missing, as far as it holds that."""
        for stream, part, low, high in list(self.missing()):
            if stream in snapshot.tables:
                high = min(high, snapshot.cut.next(stream, part))
                if high > low:
                    self.offer(
                        PositionRange(stream, part, low, high, archived(snapshot, stream, part, low, high))
                    )


def archived(snapshot: Snapshot, stream: str, part: int, low: int, high: int) -> list[Event]:
    """The events of a stretch of positions, as the archive holds them."""
    import pyarrow.compute as pc

    seq = pc.field(SEQ)
    where = (pc.field(PART) == part) & (seq >= low) & (seq < high)
    return sorted(snapshot.events(stream, where=where), key=lambda each: each.seq)


def stretches(
    stream: str, before: Mapping[int, int], after: Mapping[int, int], events: Sequence[Event] | pyarrow.Table
) -> Iterator[PositionRange]:
    """A batch of a source as stretches: where it stood before it, and after."""
    moved = {part: high for part, high in after.items() if high > before.get(part, 0)}
    for part, high in moved.items():
        yield PositionRange(stream, part, before.get(part, 0), high, _of_part(events, part, len(moved) == 1))


def _of_part(
    events: Sequence[Event] | pyarrow.Table, part: int, alone: bool
) -> Sequence[Event] | pyarrow.Table:
    if alone:
        return events
    if isinstance(events, Sequence):
        return [each for each in events if each.part == part]
    import pyarrow.compute as pc

    return events.filter(pc.equal(events[PART], part))


def batch_of_rows(rows: pyarrow.Table | pyarrow.RecordBatch, stream: str, engine: Engine) -> Batch:
    """Rows of the archive, which are records, as a batch for an engine."""
    import pyarrow

    from kaicep.archive.parquet import events_of
    from kaicep.kernel.arrow import batch_of_arrow

    types = dict(engine.catalog.streams[stream].attributes)
    names = rows.schema.names
    if "part" in names or "seq" in names:  # attributes, which are not to be taken for the event's own
        return engine.batch(stream, list(events_of(stream, rows, TableShape(tuple(types.items())))))
    if isinstance(rows, pyarrow.Table):
        (rows,) = rows.combine_chunks().to_batches() or [_nothing(rows.schema)]
    named = rows.rename_columns([{PART: "part", SEQ: "seq"}.get(each, each) for each in names])
    made = batch_of_arrow(named, stream, types, engine.strings)
    marks = rows.column(LATE)
    if marks.true_count:
        made.late = marks.to_numpy(zero_copy_only=False).copy()
    return made


def _nothing(schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([], schema)
