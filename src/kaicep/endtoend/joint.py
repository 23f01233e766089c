"""One query over past, present and what comes: two plans, the same matches (SCEPter paper, section 6).

The *cut* is what a version of the archive holds, by source position. **Hand-off** puts the archive up to
the cut through an engine and lets it go on with the live source from the cut on: what spans the cut needs
nothing special. **Concurrent** starts on the live source at once, with nothing; the archive is put through
an engine of its own, and the matches that lie across the cut are found by a third, which sees one window on
either side of it. Late events are left out, as they would have been had the query been there before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kaicep.archive.cut import Cut
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.history import History, replayed
from kaicep.endtoend.seam import Seam, Stretch
from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine, Settings
from kaicep.kernel.sort import Lateness, allowed_lateness
from kaicep.plan.chi import Absent
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Interval, Node, Pattern, Program, Project, QueryPlan, Scan, WindowAggregate
from kaicep.plan.results import loops_of

__all__ = ["Concurrent", "HandOff", "Joint", "Mark", "joined", "reach_of", "why_not_concurrent"]


class Joint(Protocol):
    """A query over archive and live source, as somebody drives it."""

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive, a bit at every step; matches as they are certain."""
        ...

    def live(self, stretch: Stretch) -> list[Match]:
        """Takes what the live source has; matches that are certain by now."""
        ...

    def poll(self, snapshot: Snapshot) -> list[Match]:
        """Looks whether the archive has what the live source skipped."""
        ...

    def finish(self) -> list[Match]:
        """The source has ended; the rest of the matches."""
        ...

    @property
    def cut(self) -> Cut:
        """The source positions that the answers so far are made from."""
        ...


def joined(
    history: History,
    snapshot: Snapshot,
    lateness: Lateness,
    plan: str = "auto",
    settings: Settings | None = None,
) -> Joint:
    """The plan for a query: `hand-off`, `concurrent`, or what suits it best.

    `settings.parts` are the parts of the live source, where the archive may not know of all of them.
    """
    if plan == "auto":
        plan = "hand-off"
    if plan == "concurrent":
        reason = why_not_concurrent(history.program, lateness)
        if reason is not None:
            raise Failure(f"a concurrent plan is not possible: {reason}")
        return Concurrent(history, snapshot, lateness, settings)
    return HandOff(history, snapshot, lateness, settings)


@dataclass(frozen=True)
class Mark:
    """Where an answer stands: the source positions that it is made from, and how far the sources had come.

    What was certain then, under the lateness of then, has been told. It is kept beside what was told, in one
    step.
    """

    cut: Cut
    standing: list[Any]
    watermark: float
    lateness: Lateness

    def to_json(self) -> dict[str, Any]:
        """The mark as JSON holds it."""
        return {
            "cut": json.loads(self.cut.text()),
            "standing": self.standing,
            "watermark": str(self.watermark),
            "lateness": dict(self.lateness) if isinstance(self.lateness, Mapping) else self.lateness,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mark:
        """The mark that `to_json` wrote."""
        cut = Cut.parse(json.dumps(data["cut"]))
        return cls(cut, data["standing"], float(data["watermark"]), data["lateness"])


class HandOff:
    """One engine: first the archive up to the cut, then the live source from there.

    With a `mark`, it goes on where another one stood when it was lost: what was certain then is not told
    again. Of a windowed query that takes the last window before the mark, once more and in silence; of
    any other, a `saved` state of its engine from before the mark, or else all that the archive has.

    Those who were told may have come differently far. `later` are the marks of those who are ahead, in
    order; `leg` says how many of these were passed, so that what is found meanwhile is news to those
    only whose marks come before. Without a `mark`, somebody was told nothing yet.

    A query that begins at a position, and not at a time, sees nothing of what lies before `since`. The
    `strategy` is how the archive is gone through: `hybrid`, or `replay` (`endtoend.history`).
    """

    def __init__(
        self,
        history: History,
        snapshot: Snapshot,
        lateness: Lateness,
        settings: Settings | None = None,
        mark: Mark | None = None,
        saved: tuple[Mark, bytes] | None = None,
        later: Sequence[Mark] = (),
        since: Cut | None = None,
        strategy: str = "hybrid",
    ) -> None:
        self.history = history
        self.snapshot = snapshot
        self.lateness = lateness
        self.engine = _engine(history, snapshot, lateness, settings)
        self.leg = 0
        self._mark = mark
        self._saved = saved
        self._later = tuple(later)
        self._since = since
        self._strategy = strategy
        self._seam = Seam(snapshot.cut)
        self._done = False

    @property
    def cut(self) -> Cut:
        """The source positions that the answers so far are made from."""
        return self._seam.cut

    @property
    def mark(self) -> Mark:
        """Where the answer stands."""
        return Mark(self.cut, self.engine.standing, self.engine.watermark, self.engine.lateness)

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive; when it is done, the engine stands where the source stood then."""
        at, low = self._since, -math.inf
        if self._mark is not None:
            at, low = yield from self._recover(self._mark)
        for mark in self._later:
            self.engine.lateness = mark.lateness
            yield from self._leg(at, mark.cut, low)
            yield self.engine.settle(mark.standing)
            at, low = mark.cut, mark.watermark
            self.leg += 1
        self.engine.lateness = self.lateness
        yield from self._last_leg(at, low)
        yield _stand(self.engine, self.snapshot)
        self._done = True
        yield self._go_on()

    def _last_leg(self, at: Cut | None, low: float) -> Iterator[list[Match]]:
        """From there to what the archive has now, as far as nothing can come before it any more."""
        yield self._wake(at, self.snapshot.cut)
        settled = _settled(self.engine, self.snapshot)
        yield from self._leg(at, self.snapshot.cut, low, settled)

    def _recover(self, mark: Mark) -> Generator[list[Match], None, tuple[Cut, float]]:
        """Brings the engine to where it stood at the mark; what it finds on the way has been told."""
        reach = reach_of(self.history.program)
        self.engine.lateness = mark.lateness
        if self._saved is not None:
            then, state = self._saved
            self.engine.lateness = then.lateness
            self.engine.restore(state)
            self.engine.lateness = mark.lateness
            way = self._leg(then.cut, mark.cut, then.watermark)
        else:
            way = self._leg(self._since, mark.cut, mark.watermark - reach)
        for _ in way:
            yield []
        self.engine.settle(mark.standing)
        return mark.cut, mark.watermark

    def _leg(
        self, after: Cut | None, until: Cut, low: float, reach: float = -math.inf
    ) -> Iterator[list[Match]]:
        """Puts through the engine what the archive has between two cuts, in order of time.

        Nothing of that is earlier than `low`, but what is late.
        """
        yield self._wake(after, until)
        since = Snapshot({}, after) if after is not None else None
        stretch = Snapshot(self.snapshot.tables, until, since)
        bounds = Interval(low=int(low)) if low > -math.inf else Interval()
        yield from replayed(self.history, self.engine, stretch, self._strategy, True, bounds, reach)

    def _wake(self, after: Cut | None, until: Cut) -> list[Match]:
        """A part that was silent at the first cut, and is not in between, holds the others back again."""
        parts, *rest = self.engine.standing
        moved = {(name, part) for name, part, _ in until.beyond(after or Cut())}
        woken = [[*each[:4], each[4] and (each[0], each[1]) not in moved] for each in parts]
        return self.engine.settle([woken, *rest])

    def live(self, stretch: Stretch) -> list[Match]:
        """Takes what the live source has; nothing is answered before the past is."""
        return self.live_all([stretch])

    def live_all(self, stretches: Iterable[Stretch]) -> list[Match]:
        """Takes what several parts have, as having come at once."""
        for each in stretches:
            self._seam.offer(each)
        return self._go_on() if self._done else []

    def poll(self, snapshot: Snapshot) -> list[Match]:
        """Looks whether the archive has what the live source skipped."""
        self._seam.fill(snapshot)
        return self._go_on() if self._done else []

    def idle(self, stream: str, part: int) -> list[Match]:
        """A part has been silent for so long that it holds nobody back."""
        return self.engine.idle(stream, part) if self._done else []

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come."""
        return self._done and self.engine.has_passed(event)

    def finish(self) -> list[Match]:
        """The source has ended; the rest of the matches."""
        return self.engine.finish()

    def _go_on(self) -> list[Match]:
        events = self._seam.take()
        return self.engine.push(events) if events else []


class Concurrent:
    """Three engines: the past, the present, and what lies across.

    They are parted at a time before which nothing can come any more but what is late. Events before it
    are the past's, events from it on the present's, also those that the archive has already.
    """

    def __init__(
        self, history: History, snapshot: Snapshot, lateness: Lateness, settings: Settings | None = None
    ) -> None:
        self.history = history
        self.snapshot = snapshot
        self._past, self._present, self._across = (
            _engine(history, snapshot, lateness, settings) for _ in range(3)
        )
        self._at = _settled(self._past, snapshot)
        self._reach = reach_of(history.program)
        self._windows = {each.name: _source(each) for each in history.program.queries}
        self._seam = Seam(snapshot.cut)
        self._behind: list[list[Event]] = []
        self._ready = False
        self._over = False
        self._first = self._begun(self._present, self._at)

    @property
    def cut(self) -> Cut:
        """The source positions that the answers so far are made from."""
        return self._seam.cut

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive, then through the window before the time of the cut once more."""
        first, self._first = self._first, []
        yield self._of("present", first)
        before = Interval(high=int(self._at)) if self._at > -math.inf else _NOTHING
        for found in replayed(self.history, self._past, self.snapshot, "hybrid", True, before):
            yield self._of("past", found)
        yield self._of("past", self._past.finish())
        yield self._of("across", self._begun(self._across, self._at - self._reach))
        while self._behind:  # what comes while this is worked through waits its turn
            yield self._spanning(self._behind.pop(0))
        self._ready = True

    def live(self, stretch: Stretch) -> list[Match]:
        """Takes what the live source has, and answers at once what lies after the cut alone."""
        self._seam.offer(stretch)
        return self._go_on()

    def poll(self, snapshot: Snapshot) -> list[Match]:
        """Looks whether the archive has what the live source skipped."""
        self._seam.fill(snapshot)
        return self._go_on()

    def finish(self) -> list[Match]:
        """The source has ended; the rest of the matches."""
        found = self._of("present", self._present.finish())
        if not self._over:
            found += self._of("across", self._across.finish())
        return sorted(found, key=lambda each: (each.end, each.id))

    def _begun(self, engine: Engine, low: float) -> list[Match]:
        """Puts what the archive has from a time on through an engine, which then goes on from the cut."""
        bounds = Interval(low=int(low)) if low > -math.inf else Interval()
        found = [
            each
            for some in replayed(self.history, engine, self.snapshot, "hybrid", True, bounds, self._at)
            for each in some
        ]
        return found + _stand(engine, self.snapshot)

    def _go_on(self) -> list[Match]:
        events = self._seam.take()
        if not events:
            return []
        found = self._of("present", self._present.push(events))
        if not self._ready:
            self._behind.append(events)
        elif not self._over:
            found += self._spanning(events)
        return found

    def _spanning(self, events: Sequence[Event]) -> list[Match]:
        found = self._of("across", self._across.push(events))
        self._over = self._across.watermark > self._at + self._reach  # what began before cannot go on
        return found

    def _of(self, side: str, matches: Sequence[Match]) -> list[Match]:
        return [each for each in matches if self._side(each) == side]

    def _side(self, match: Match) -> str:
        """Who tells of a match: each is told by one of the three."""
        source = self._windows[match.query]
        if isinstance(source, WindowAggregate) and source.window.kind == "sliding":
            if match.end < self._at:
                return "past"
            return "across" if match.end < self._at + self._reach else "present"
        over = match.end <= self._at if isinstance(source, WindowAggregate) else match.end < self._at
        if over:
            return "past"
        return "present" if match.start >= self._at else "across"


_NOTHING = Interval(low=0, low_inclusive=False, high=0)


def _stand(engine: Engine, snapshot: Snapshot) -> list[Match]:
    """Lets an engine stand where the source stood at the cut."""
    return [
        each
        for stream, table in snapshot.tables.items()
        for part, newest in table.newest.items()
        for each in engine.stand(stream, part, newest, table.positions[part])
    ]


def _engine(history: History, snapshot: Snapshot, lateness: Lateness, settings: Settings | None) -> Engine:
    chosen = settings or Settings()
    parts = {
        stream: sorted({*table.positions, *chosen.parts.get(stream, ())}) or (0,)
        for stream, table in snapshot.tables.items()
    }
    return Engine(
        history.program,
        history.catalog,
        history.knowledge,
        lateness=lateness,
        settings=replace(chosen, parts={**chosen.parts, **parts}),
        unknown=history.unknown,
    )


def _settled(engine: Engine, snapshot: Snapshot) -> float:
    """The time below which the source sends nothing after the cut but what is late.

    A part that has sent nothing yet may send anything, unless it counts as silent.
    """
    settled = math.inf
    for stream, part, *_, idle in engine.standing[0]:
        if stream in snapshot.tables and not idle:
            allowed = allowed_lateness(engine.lateness, stream)
            newest = snapshot.tables[stream].newest.get(part, -math.inf)
            settled = min(settled, newest - allowed if allowed is not None else -math.inf)
    return settled if settled < math.inf else -math.inf


def _source(plan: QueryPlan) -> Pattern | WindowAggregate | None:
    source = plan.root.input if isinstance(plan.root, Project) else None
    return source if isinstance(source, Pattern | WindowAggregate) else None


def reach_of(program: Program) -> float:
    """How far back the events of a match of any of the queries can lie: infinity where nothing bounds it.

    A query that reads the output of another reaches as far as both together.
    """
    reach: dict[str, float] = {}
    for plan in program.queries:  # each comes after those that it reads
        below = max((reach[name] for name in plan.reads if name in reach), default=0.0)
        reach[plan.name] = _own_reach(plan) + below
    return max(reach.values(), default=0.0)


def _own_reach(plan: QueryPlan) -> float:
    source = _source(plan)
    if isinstance(source, WindowAggregate):
        return source.window.width if source.window.width is not None else math.inf
    if source is None or source.skip != "none":  # what was skipped depends on all before
        return math.inf
    if len(source.chains) + len(loops_of(source.sequence)) == 1:
        return source.deadline or 0.0
    every = set(map(_variable, source.chains))
    widths = [each.width for each in source.windows if every <= {*each.variables, *_absent(source)}]
    return max(min(widths, default=math.inf), source.deadline or 0.0)


def _absent(pattern: Pattern) -> set[str]:
    return {each.variable for each in pattern.sequence if isinstance(each, Absent)}


def _variable(chain: Node) -> str:
    return next(each.variable for each in chain.walk() if isinstance(each, Scan))


def why_not_concurrent(program: Program, lateness: Lateness) -> str | None:
    """Why queries cannot be answered by three engines; None where they can."""
    if len(program.queries) > 1 and any(
        each in {query.name for query in program.queries} for plan in program.queries for each in plan.reads
    ):
        return "one query reads the output of another"
    for plan in program.queries:
        source = _source(plan)
        if source is None:
            return f"{plan.name} is EP-SPARQL"
        if isinstance(source, Pattern) and source.skip != "none":
            return f"{plan.name} skips after a match, so that a match depends on all before it"
        if isinstance(source, Pattern) and source.deadline is not None:
            return f"{plan.name} waits for an absence at its end"
        if isinstance(source, WindowAggregate) and source.window.width is None:
            return f"{plan.name} counts events, so that a window depends on all before it"
    if any(allowed_lateness(lateness, name) is None for plan in program.queries for name in plan.reads):
        return "nothing is ever certain without a bound on lateness"
    if reach_of(program) == math.inf:
        return "no WINDOW says how far back a match can reach"
    return None
