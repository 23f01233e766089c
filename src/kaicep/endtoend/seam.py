"""Where archive and live source meet: every position once, in order, from whichever has it.

Both say what they cover of a part: from one position to another, with the events that are there (a record
that could not be read has a position and no event). What was taken is not taken again, however often a
source repeats itself: that is the paper's negative gap. What a live source does not have any more, because
it was opened too late, is waited for until the archive holds it: the positive gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kaicep.archive.columns import PART, SEQ
from kaicep.archive.cut import Cut
from kaicep.plan.events import Event

if TYPE_CHECKING:
    from kaicep.archive.snapshot import Snapshot

__all__ = ["Seam", "Stretch"]

Part = tuple[str, int]


class Stretch(NamedTuple):
    """What somebody has of a part: the positions from `low` to before `high`, and the events there."""

    stream: str
    part: int
    low: int
    high: int
    events: Sequence[Event]


class Seam:
    """Takes stretches as they come, gives events in the order of each part.

    >>> seam = Seam(Cut({"s": {0: 2}}))
    >>> seam.offer(Stretch("s", 0, 3, 4, [Event("s", 0, 3, 9)]))
    >>> seam.take(), list(seam.missing())
    ([], [('s', 0, 2, 3)])
    >>> seam.offer(Stretch("s", 0, 0, 3, [Event("s", 0, 1, 7), Event("s", 0, 2, 8)]))
    >>> [event.seq for event in seam.take()], seam.cut.next("s", 0)
    ([2, 3], 4)
    """

    def __init__(self, start: Cut) -> None:
        self._next: dict[Part, int] = {
            (stream, part): at for stream, parts in start.positions.items() for part, at in parts.items()
        }
        self._waiting: dict[Part, list[Stretch]] = {}

    @property
    def cut(self) -> Cut:
        """What was taken so far."""
        made: dict[str, dict[int, int]] = {}
        for (stream, part), at in sorted(self._next.items()):
            made.setdefault(stream, {})[part] = at
        return Cut(made)

    def offer(self, stretch: Stretch) -> None:
        """Takes what somebody has; what lies before the seam is there already."""
        key = stretch.stream, stretch.part
        if stretch.high > self._next.get(key, 0):
            waiting = self._waiting.setdefault(key, [])
            waiting.append(stretch)
            waiting.sort(key=lambda each: (each.low, each.high))

    def take(self) -> list[Event]:
        """The events that come next, part by part, as far as nothing is missing."""
        found: list[Event] = []
        for key in sorted(self._waiting):
            waiting = self._waiting[key]
            while waiting and waiting[0].low <= self._next.get(key, 0):
                stretch = waiting.pop(0)
                after = self._next.get(key, 0)
                found += [each for each in stretch.events if each.seq >= after]
                self._next[key] = max(after, stretch.high)
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting}
        return found

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

    def beyond(self, snapshot: Snapshot) -> Iterator[Stretch]:
        """What the archive holds after the seam."""
        for stream in snapshot.tables:
            for part, high in snapshot.cut.positions.get(stream, {}).items():
                low = self._next.get((stream, part), 0)
                if high > low:
                    yield Stretch(stream, part, low, high, archived(snapshot, stream, part, low, high))

    def fill(self, snapshot: Snapshot) -> None:
        """Takes from the archive what is missing, as far as it holds that."""
        for stream, part, low, high in list(self.missing()):
            if stream in snapshot.tables:
                high = min(high, snapshot.cut.next(stream, part))
                if high > low:
                    self.offer(Stretch(stream, part, low, high, archived(snapshot, stream, part, low, high)))


def archived(snapshot: Snapshot, stream: str, part: int, low: int, high: int) -> list[Event]:
    """The events of a stretch of positions, as the archive holds them."""
    import pyarrow.compute as pc

    seq = pc.field(SEQ)
    where = (pc.field(PART) == part) & (seq >= low) & (seq < high)
    return sorted(snapshot.events(stream, where=where), key=lambda each: each.seq)


def stretches(
    stream: str, before: dict[int, int], after: dict[int, int], events: Iterable[Event]
) -> Iterator[Stretch]:
    """A batch of a source as stretches: where it stood before it, and after."""
    by_part: dict[int, list[Event]] = {}
    for each in events:
        by_part.setdefault(each.part, []).append(each)
    for part, high in after.items():
        low = before.get(part, 0)
        if high > low:
            yield Stretch(stream, part, low, high, by_part.get(part, []))
