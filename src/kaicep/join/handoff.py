"""Past and present as one answer: the past first and then the present in one engine, or both at once."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kaicep.archive.archive import Cut, Snapshot
from kaicep.archive.parquet import PART, SEQ
from kaicep.connectors.parts import is_history
from kaicep.history.strategies import History, batch_of_rows, replayed
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.kernel.sort import Lateness, allowed_lateness
from kaicep.plan.chi import span_bound
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.nodes import ChiPlan, EpPlan, Interval, Pattern, Program, QueryPlan, WindowAggregate

if TYPE_CHECKING:
    import pyarrow

    from kaicep.archive.archive import Snapshot
    from kaicep.hosts.inprocess import Engine
    from kaicep.kernel.batches import Batch

# ----------------------------------------------------------------------------------------------------------
# Events from archive and live source together: every position once, in order.
#
# Both say what they cover of a part: from one position to another, with the events that are there (a record
# that could not be read has a position and no event). What was taken is not taken again, however often a
# source repeats itself: that is the paper's negative gap. What a live source does not have any more,
# because it was opened too late, is waited for until the archive holds it: the positive gap.

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


# ----------------------------------------------------------------------------------------------------------
# How far back the matches of queries reach, and what that means for cutting time in two.


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
    if isinstance(plan, EpPlan):
        return math.inf
    source = plan.body
    if plan.is_absent:  # windows count from the first event of all
        return math.inf
    if isinstance(source, WindowAggregate):
        return source.window.width if source.window.width is not None else math.inf
    if source.latest or source.skip != "none":  # which depend on all that came before
        return math.inf
    span = span_bound(source.sequence, source.windows)
    return max(math.inf if span is None else span, source.deadline or 0.0)


def why_not_concurrent(program: Program, lateness: Lateness) -> str | None:
    """Why queries cannot be answered by three engines; None where they can."""
    if len(program.queries) > 1 and any(
        each in {query.name for query in program.queries} for plan in program.queries for each in plan.reads
    ):
        return "one query reads the output of another"
    for plan in program.queries:
        if not isinstance(plan, ChiPlan):
            return f"{plan.name} is EP-SPARQL"
        source = plan.body
        if isinstance(source, Pattern) and source.skip != "none":
            return f"{plan.name} skips after a match, so that a match depends on all before it"
        if isinstance(source, Pattern) and source.deadline is not None:
            return f"{plan.name} waits for an absence at its end"
        if plan.is_absent:
            return f"{plan.name} answers for windows without events too (ABSENT)"
        if isinstance(source, WindowAggregate) and source.window.width is None:
            return f"{plan.name} counts events, so that a window depends on all before it"
    if any(allowed_lateness(lateness, name) is None for plan in program.queries for name in plan.reads):
        return "nothing is ever certain without a bound on lateness"
    if reach_of(program) == math.inf:
        return "no WINDOW says how far back a match can reach"
    return None


# ----------------------------------------------------------------------------------------------------------
# One query over past, present and what comes: what its plans have in common, and the hand-off.
#
# The *cut* is what a version of the archive holds, by source position. A hand-off puts the archive up to
# the cut through an engine and lets it go on with the live source from the cut on: what spans the cut needs
# nothing special. The other plan is `Concurrent`; `deployment.sessions` chooses between them. Late events are
# left out, as they would have been had the query been there before.


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

    @property
    def order(self) -> tuple[int, float]:
        """What grows while an answer goes on."""
        positions = sum(at for parts in self.cut.positions.values() for at in parts.values())
        return positions, self.watermark

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mark:
        """The mark that `to_json` wrote."""
        cut = Cut.parse(json.dumps(data["cut"]))
        return cls(cut, data["standing"], float(data["watermark"]), data["lateness"])


@dataclass(frozen=True)
class Gate:
    """A version of the knowledge, and where an answer stood when it came: it counts from there on."""

    version: int
    mark: Mark


class JoinedRun(ABC):
    """A query over archive and live source, or several, by whichever plan, as somebody drives it.

    With `at_once` it answers the live source also while it works through the past.
    """

    at_once = False
    engine: Engine
    """The one that goes on with the present."""
    leg = 0
    """How many marks of those who were told were passed."""
    version: int | None = None
    """The version of the knowledge that the past is judged by as it goes on; None: by the newest."""
    _seam: Seam

    @property
    @abstractmethod
    def size(self) -> int:
        """How many events and partial matches it holds."""

    @property
    @abstractmethod
    def alone(self) -> bool:
        """Whether nothing is left to do but what its engine does with the present."""

    @abstractmethod
    def past(self) -> Iterator[list[Match]]:
        """Works through the archive, a bit at every step; matches as they are certain."""

    @abstractmethod
    def do(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        """Lets the present do something; matches that are certain by now."""

    @abstractmethod
    def edited(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""

    def live(self, stretch: PositionRange) -> list[Match]:
        """Takes what the live source has; matches that are certain by now."""
        return self.live_all([stretch])

    def live_all(self, stretches: Iterable[PositionRange]) -> list[Match]:
        """Takes what several parts have, as having come at once."""
        for each in stretches:
            self._seam.offer(each)
        return self._go_on()

    def poll(self, snapshot: Snapshot) -> list[Match]:
        """Looks whether the archive has what the live source skipped."""
        self._seam.fill(snapshot)
        return self._go_on()

    def idle(self, stream: str, part: int) -> list[Match]:
        """A part has been silent for so long that it holds nobody back."""
        return self.do(lambda engine: engine.idle(stream, part))

    def end(self, streams: Collection[str]) -> list[Match]:
        """Nothing more will come of some streams."""
        return self.do(lambda engine: engine.end(streams))

    def conclude(self, names: Collection[str]) -> list[Match]:
        """Some queries end, whatever comes; the rest of their matches."""
        return self.do(lambda engine: engine.conclude(names))

    def finish(self) -> list[Match]:
        """The source has ended; the rest of the matches."""
        return self.do(lambda engine: engine.finish())

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come."""
        return self.engine.has_passed(event)

    def absorb(self, other: JoinedRun) -> str | None:
        """Goes on with the queries of another one in its engine; why not, where that is not possible, yet."""
        if not self._seam.adopt(other._seam):
            return "one of them has taken more than the other"
        return self.engine.take_over(other.engine)

    def _go_on(self) -> list[Match]:
        taken = self._seam.take()
        if not taken:
            return []
        return self.do(lambda engine: engine.push_batches([each.batch(engine) for each in taken]))

    @property
    def cut(self) -> Cut:
        """The source positions that the answers so far are made from."""
        return self._seam.cut

    @property
    def mark(self) -> Mark:
        """Where the answer stands, once the past is done: where the present does."""
        return Mark(self.cut, self.engine.standing, self.engine.watermark, self.engine.lateness)

    @property
    def watermark(self) -> float:
        """The time up to which everything is told."""
        return self.engine.watermark


class HandOff(JoinedRun):
    """One engine: first the archive up to the cut, then the live source from there.

    With a `mark`, it goes on where another one stood when it was lost: what was certain then is not told
    again. Of a windowed query that takes the last window before the mark, once more and in silence; of
    any other, a `saved` state of its engine from before the mark, or else all that the archive has.

    Those who were told may have come differently far. `later` are the marks of those who are ahead, in
    order; `leg` says how many of these were passed, so that what is found meanwhile is news to those
    only whose marks come before. Without a `mark`, somebody was told nothing yet.

    `gates` are where versions of the knowledge came: before the first of them the version before it counts,
    and whoever drives this sees to it that the knowledge is that of `version` when the past goes on.

    A query that begins at a position, and not at a time, sees nothing of what lies before `since`. The
    `strategy` is how the archive is gone through: `hybrid`, or `replay` (`history.strategies`).
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
        gates: Sequence[Gate] = (),
    ) -> None:
        self.history = history
        self.snapshot = snapshot
        self.lateness = lateness
        self.engine = engine_for(history, snapshot, lateness, settings)
        self._mark = mark
        self._saved = saved
        self._later = tuple(later)
        self._gates = in_force(gates, mark, saved, reach_of(history.program))
        if self._gates:
            self.version = self._gates[0].version - 1
        self._since = since
        self._strategy = strategy
        self._seam = Seam(snapshot.cut)
        self._done = False

    @property
    def size(self) -> int:
        """How many events and partial matches it holds."""
        return self.engine.size

    @property
    def alone(self) -> bool:
        """Whether the past is done."""
        return self._done

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive; when it is done, the engine stands where the source stood then."""
        at, low = self._since, -math.inf
        if self._mark is not None:
            at, low = yield from self._recover(self._mark)
        for mark in self._later:
            yield from self._to(mark, at, low)
            at, low = mark.cut, mark.watermark
            self.leg += 1
        at = yield from self._through_gates(None, at, low)
        self.engine.lateness = self.lateness
        yield from self._last_leg(at, low)
        yield stood(self.engine, self.snapshot)
        self._done = True
        yield self._go_on()

    def _last_leg(self, at: Cut | None, low: float) -> Iterator[list[Match]]:
        """From there to what the archive has now, as far as nothing can come before it any more."""
        yield self._wake(at, self.snapshot.cut)
        reach = settled(self.engine, self.snapshot)
        yield from self._leg(at, self.snapshot.cut, low, reach, reach)

    def _recover(self, mark: Mark) -> Generator[list[Match], None, tuple[Cut, float]]:
        for _ in self.told_before(mark):
            yield []
        return mark.cut, mark.watermark

    def told_before(self, mark: Mark) -> Iterator[list[Match]]:
        """Brings the engine to where it stood at the mark; what it finds on the way has been told."""
        at, low = self._since, mark.watermark - reach_of(self.history.program)
        if self._saved is not None:
            then, state = self._saved
            self.engine.lateness = then.lateness
            self.engine.restore(state)
            at, low = then.cut, then.watermark
        yield from self._to(mark, at, low)

    def _to(self, mark: Mark, at: Cut | None, low: float) -> Iterator[list[Match]]:
        """From a cut to a mark, through the versions of the knowledge that came in between."""
        at = yield from self._through_gates(mark, at, low)
        self.engine.lateness = mark.lateness
        yield from self._leg(at, mark.cut, low, waits=mark.watermark)
        yield self.engine.settle(mark.standing)

    def _through_gates(
        self, until: Mark | None, at: Cut | None, low: float
    ) -> Generator[list[Match], None, Cut | None]:
        """Goes on to where versions of the knowledge came, up to a mark; the cut at which it is then."""
        while self._gates and (until is None or self._gates[0].mark.order <= until.order):
            gate, *self._gates = self._gates
            self.engine.lateness = gate.mark.lateness
            yield from self._leg(at, gate.mark.cut, low, waits=gate.mark.watermark)
            yield self.engine.settle(gate.mark.standing)
            at = gate.mark.cut
            self.version = gate.version
            yield []  # before the next step, the knowledge is that version
        return at

    def _leg(
        self,
        after: Cut | None,
        until: Cut,
        low: float,
        reach: float = -math.inf,
        waits: float = -math.inf,
    ) -> Iterator[list[Match]]:
        """Puts through the engine what the archive has between two cuts, in order of time.

        Nothing of that is earlier than `low`, but what is late.
        """
        yield self._wake(after, until)
        since = Snapshot({}, after) if after is not None else None
        stretch = Snapshot(self.snapshot.tables, until, since)
        bounds = Interval(low=int(low)) if low > -math.inf else Interval()
        way = self._strategy
        yield from replayed(self.history, self.engine, stretch, way, True, bounds, reach, waits)

    def _wake(self, after: Cut | None, until: Cut) -> list[Match]:
        """A part that was silent at the first cut, and is not in between, holds the others back again."""
        parts, *rest = self.engine.standing
        moved = {(name, part) for name, part, _ in until.beyond(after or Cut())}
        woken = [[*each[:4], each[4] and (each[0], each[1]) not in moved] for each in parts]
        return self.engine.settle([woken, *rest])

    def do(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        """Lets the present do something; there is none before the past is done."""
        return what(self.engine) if self._done else []

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come."""
        return self._done and self.engine.has_passed(event)

    def edited(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""
        (plan,) = history.program.queries
        reason = self.engine.go_on_as(plan, history.catalog)
        if reason is None:
            self.history = history
        return reason

    def _go_on(self) -> list[Match]:
        return super()._go_on() if self._done else []


def in_force(
    gates: Sequence[Gate], mark: Mark | None, saved: tuple[Mark, bytes] | None, reach: float
) -> list[Gate]:
    """The gates that are passed once more by whoever goes on from a mark, or from a state before it."""
    if saved is not None:
        return [each for each in gates if each.mark.order >= saved[0].order]
    low = mark.watermark - reach if mark is not None else -math.inf
    return [each for each in gates if each.mark.watermark > low]


def stood(engine: Engine, snapshot: Snapshot) -> list[Match]:
    """Lets an engine stand where the source stood at the cut."""
    return [
        each
        for stream, table in snapshot.tables.items()
        for part, newest in table.newest.items()
        for each in engine.stand(stream, part, newest, table.positions[part])
    ]


def engine_for(history: History, snapshot: Snapshot, lateness: Lateness, settings: Settings | None) -> Engine:
    """An engine for queries, which waits for all parts that the archive or the settings know of."""
    chosen = settings or Settings()
    parts = {
        stream: sorted({*table.positions, *chosen.parts.get(stream, ())}) or (0,)
        for stream, table in snapshot.tables.items()
    }
    return Engine(
        history,
        lateness=lateness,
        settings=replace(chosen, parts={**chosen.parts, **parts}),
        unknown=history.unknown,
    )


def settled(engine: Engine, snapshot: Snapshot) -> float:
    """The time below which the source sends nothing after the cut but what is late.

    A part that has sent nothing yet may send anything, unless it counts as silent.
    """
    found = math.inf
    for stream, part, *_, idle in engine.standing[0]:
        if stream in snapshot.tables and not idle and not is_history(part):
            allowed = allowed_lateness(engine.lateness, stream)
            newest = snapshot.tables[stream].newest.get(part, -math.inf)
            found = min(found, newest - allowed if allowed is not None else -math.inf)
    return found if found < math.inf else -math.inf


# ----------------------------------------------------------------------------------------------------------
# The concurrent plan (SCEPter paper, section 6): engines for past, present and the cut.
#
# It starts on the live source at once, with nothing. The archive is put through an engine of its own, and
# the matches that lie across the cut are found by a third, which sees one window on either side of it.

_NOTHING = Interval(low=0, low_inclusive=False, high=0)


class Concurrent(JoinedRun):
    """Events before some time are the past's, events from it on the present's, also if they are archived.

    That time is one before which nothing can come any more but what is late. Each match is told by one of
    the three engines; when the one across has seen a window after that time, the present goes on alone.
    """

    at_once = True

    def __init__(
        self, history: History, snapshot: Snapshot, lateness: Lateness, settings: Settings | None = None
    ) -> None:
        self.history = history
        self.snapshot = snapshot
        self._past, self.engine, self._across = (
            engine_for(history, snapshot, lateness, settings) for _ in range(3)
        )
        self._at = settled(self._past, snapshot)
        self._reach = reach_of(history.program)
        self._windows = {each.name: each.body for each in history.program.chi_plans}
        self._seam = Seam(snapshot.cut)
        self._behind: list[Callable[[Engine], list[Match]]] = []
        self._ready = False
        self._over = False
        self._first = self._begun(self.engine, self._at)

    @property
    def size(self) -> int:
        """How many events and partial matches it holds."""
        return self.engine.size + (0 if self._over else self._past.size + self._across.size)

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

    @property
    def alone(self) -> bool:
        """Whether the present goes on alone."""
        return self._over

    def edited(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""
        if not self._over:
            return "its matches across the cut are still being found"
        (plan,) = history.program.queries
        reason = self.engine.go_on_as(plan, history.catalog)
        if reason is None:
            self.history = history
        return reason

    def _begun(self, engine: Engine, low: float) -> list[Match]:
        """Puts what the archive has from a time on through an engine, which then goes on from the cut."""
        bounds = Interval(low=int(low)) if low > -math.inf else Interval()
        found = [
            each
            for some in replayed(self.history, engine, self.snapshot, "hybrid", True, bounds, self._at)
            for each in some
        ]
        return found + stood(engine, self.snapshot)

    def do(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        """Lets the present do something, and the one across as well, now or when it has come so far."""
        found = self._of("present", what(self.engine))
        if not self._ready:
            self._behind.append(what)
        elif not self._over:
            found += self._spanning(what)
        return sorted(found, key=by_end)

    def _spanning(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        found = self._of("across", what(self._across))
        self._over = self._across.watermark > self._at + self._reach  # what began before cannot go on
        return found

    def _of(self, side: str, matches: Sequence[Match]) -> list[Match]:
        return [each for each in matches if self._side(each) == side]

    def _side(self, match: Match) -> str:
        """Who tells of a match: each is told by one of the three."""
        source = self._windows[match.query]
        if isinstance(source, WindowAggregate) and source.window.kind == "sliding":
            if match.end_us < self._at:
                return "past"
            return "across" if match.end_us < self._at + self._reach else "present"
        over = match.end_us <= self._at if isinstance(source, WindowAggregate) else match.end_us < self._at
        if over:
            return "past"
        return "present" if match.start_us >= self._at else "across"
