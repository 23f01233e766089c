"""Where events are read again from: the files of a run, or an archive; as much of it as a reason needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kaicep.api import Run
from kaicep.connectors.files import DeadLetter, StreamData
from kaicep.endtoend.prefilter import both
from kaicep.endtoend.reach import reach_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import EpPlan, Interval, Pattern, Program, QueryPlan

if TYPE_CHECKING:
    from kaicep.archive.snapshot import Snapshot
    from kaicep.endtoend.history import History

__all__ = ["Archived", "Source", "Streams", "events_of", "needed", "stretch_of", "unmarked", "upstream_of"]


class Source(Protocol):
    """Resolved queries, and the events that they are about."""

    @property
    def program(self) -> Program:
        """The queries."""
        ...

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        ...

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        ...

    @property
    def uses_late(self) -> bool:
        """Whether a match may have an event that came too late: a query back in time takes them."""
        ...

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        ...

    def part(self, program: Program, within: Interval) -> Run:
        """Some of the queries over the events inside the bounds, late ones with their mark."""
        ...

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        ...

    def expired(self) -> Mapping[str, int]:
        """The times before which the events of streams were removed."""
        ...


@dataclass(frozen=True)
class Streams:
    """The files of a run."""

    run: Run
    uses_late = False

    @property
    def program(self) -> Program:
        """The queries."""
        return self.run.program

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        return self.run.catalog

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        return self.run.knowledge

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        return self.run.matches()

    def part(self, program: Program, within: Interval) -> Run:
        """Some of the queries over the events inside the bounds."""
        return _run(self, program, self.run.data, [e for e in events_of(self.run) if e.ts in within])

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        return self.run.dead

    def expired(self) -> Mapping[str, int]:
        """Nothing was removed from files."""
        return {}


@dataclass(frozen=True)
class Archived:
    """The archive, as it was when somebody looked."""

    history: History
    snapshot: Snapshot
    uses_late = True

    @property
    def program(self) -> Program:
        """The queries."""
        return self.history.program

    @property
    def catalog(self) -> Catalog:
        """Their streams."""
        return self.history.catalog

    @property
    def knowledge(self) -> Knowledge:
        """What is known."""
        return self.history.knowledge

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        from kaicep.endtoend.history import past_matches

        return past_matches(self.history, "auto", as_seen, self.snapshot)

    def part(self, program: Program, within: Interval) -> Run:
        """Some of the queries over the events inside the bounds; no other file is opened."""
        own = replace(self.history, program=program).spans()
        data = [self._stream(name, both(bounds, within)) for name, bounds in own.items()]
        return _run(self, program, data, [event for each in data for event in each.events])

    def _stream(self, name: str, within: Interval) -> StreamData:
        shape = self.snapshot.shape(name)
        events = list(self.snapshot.events(name, within))
        return StreamData(name, shape.attributes, events, rdf=shape.rdf)

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        own = self.history.spans()
        names = ("stream", "part", "seq", "line", "file", "reason", "record")
        rows = self.history.archive.dead_letters.read()
        return [DeadLetter(*(row[each] for each in names)) for row in rows if row["stream"] in own]

    def expired(self) -> Mapping[str, int]:
        """The times before which the events of streams were removed."""
        found = {name: self.snapshot.expired(name) for name in self.history.spans()}
        return {name: ts for name, ts in found.items() if ts is not None}


def _run(source: Source, program: Program, data: Sequence[StreamData], events: Sequence[Event]) -> Run:
    return Run(program, source.catalog, source.knowledge, (events,), tuple(data))


def events_of(run: Run) -> list[Event]:
    """All events of a run."""
    return [each for batch in run.batches for each in batch]


def unmarked(run: Run, late: Sequence[Event] | None = None) -> Run:
    """The run as if some events, or all, had come in time."""
    chosen = None if late is None else set(late)
    events = [
        replace(each, late=False) if each.late and (chosen is None or each in chosen) else each
        for each in events_of(run)
    ]
    return replace(run, batches=(events,))


# --- how much is needed ------------------------------------------------------------------------------------


def upstream_of(program: Program, name: str) -> Program:
    """A query, and before it all whose output it needs; an EP-SPARQL query may read everybody's."""
    by_name = {each.name: each for each in program.queries}
    found = {name}
    waiting = [name]
    while waiting:
        plan = by_name[waiting.pop()]
        reads = set(by_name) if isinstance(plan, EpPlan) else {each for each in plan.reads if each in by_name}
        waiting += reads - found
        found |= reads
    return Program(tuple(each for each in program.queries if each.name in found))


def needed(program: Program, match: Match) -> Interval:
    """The range of time whose events decide about a match (including those of absences, before its end)."""
    own = next(each for each in program.queries if each.name == match.query)
    low = None if _depends_on_all_before(own) else match.start_us
    return stretch_of(program, match.query, low, match.end_us)


def stretch_of(program: Program, name: str, low: int | None, high: int) -> Interval:
    """The events for what a query reads from `low` to `high`: other queries' outputs reach back further."""
    below = reach_of(Program(tuple(each for each in program.queries if each.name != name)))
    if low is None or below == math.inf:
        return Interval(None, True, high, True)
    return Interval(low - int(below), True, high, True)


def _depends_on_all_before(plan: QueryPlan) -> bool:
    if isinstance(plan, EpPlan):
        return True
    if isinstance(plan.body, Pattern):
        return plan.body.skip != "none"
    return plan.body.window.width is None and plan.body.window.kind != "sliding"
