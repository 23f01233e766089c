"""The queries of the demo, each from the archived past on into what comes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kaicep.api import read_queries
from kaicep.archive.archive import Archive
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.history import History, history_of
from kaicep.endtoend.joint import HandOff
from kaicep.endtoend.seam import Stretch, archived
from kaicep.knowledge.annotation import Annotation, prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match

__all__ = ["Query", "Recent", "opened"]


class Query:
    """One query: what the archive has of its matches, and then, event by event, what comes."""

    def __init__(self, history: History, snapshot: Snapshot) -> None:
        (plan,) = history.program.queries
        self.name = plan.name
        self.history = history
        self.streams = frozenset(history.spans())
        own = Snapshot({name: snapshot.tables[name] for name in self.streams})
        self._made = HandOff(history, own, 0, None)

    def past(self) -> Iterator[list[Match]]:
        """Goes through the archive, a bit at every step."""
        return self._made.past()

    def live(self, events: Sequence[Event]) -> list[Match]:
        """Takes events that came in this order; the matches that are certain by now."""
        own: dict[str, list[Event]] = {}
        for each in events:
            if each.stream in self.streams:
                own.setdefault(each.stream, []).append(each)
        return self._made.live_all(
            Stretch(stream, 0, some[0].seq, some[-1].seq + 1, some) for stream, some in own.items()
        )


def opened(
    paths: Sequence[Path], archive: Archive, knowledge: Knowledge, annotations: Sequence[Annotation]
) -> list[Query]:
    """The queries of some files, over what the archive holds now."""
    snapshot = archive.snapshot()
    parsed = read_queries(paths, prefixes_of(annotations))
    now = time.time_ns() // 1_000
    return [Query(history_of([each], archive, knowledge, annotations, now), snapshot) for each in parsed]


class Recent:
    """Events by their position: those that came live, and those of the archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._events: dict[tuple[str, int], Event] = {}

    def take(self, events: Iterable[Event]) -> None:
        """Remembers events."""
        self._events.update({(each.stream, each.seq): each for each in events})

    def event(self, stream: str, seq: int) -> Event:
        """The event at a position."""
        found = self._events.get((stream, seq))
        if found is None:
            (found,) = archived(self._archive.snapshot(), stream, 0, seq, seq + 1)
            self._events[stream, seq] = found
        return found
