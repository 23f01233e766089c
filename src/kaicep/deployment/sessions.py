"""Queries of a deployment, from the past into the present, and the plan for that."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from kaicep.archive.archive import Cut, Snapshot
from kaicep.deployment.config import URGENCY, QueryConfig
from kaicep.deployment.registered import Suspects
from kaicep.deployment.sinks import Entry
from kaicep.errors import Failure, KaicepError, reason_of
from kaicep.history.strategies import History
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.join.handoff import (
    Concurrent,
    Gate,
    HandOff,
    JoinedRun,
    Mark,
    PositionRange,
    in_force,
    reach_of,
    why_not_concurrent,
)
from kaicep.kernel.operator import Limits
from kaicep.kernel.sort import Lateness
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Interval, Program
from kaicep.plan.time import format_duration, format_time
from kaicep.storage.disk import read_sealed, replace_sealed

# ----------------------------------------------------------------------------------------------------------
# Which plan a query over past and present gets, and why: by its window, its range, and how urgent it is.

EVENTS_A_SECOND = 1_000_000
"""How many archived events an engine gets through in a second; `kaicep bench recovery` measures it."""

_WINDOWS = 4
"""The windows around the cut are gone through twice: they pay where the range is so many times as long."""


@dataclass(frozen=True)
class PlanChoice:
    """A plan, `hand-off` or `concurrent`, and the reason for it in words."""

    plan: str
    reason: str

    def __str__(self) -> str:
        return f"{self.plan}: {self.reason}"


def choose_plan(
    history: History, snapshot: Snapshot, lateness: Lateness, urgency: int = URGENCY, plan: str = "auto"
) -> PlanChoice:
    """The plan that suits queries over a snapshot and what comes after it.

    A hand-off costs least. It lets the live source wait until the past is done: where that takes longer
    than `urgency` (microseconds), and the range is much longer than the window, both go on side by side.
    """
    impossible = why_not_concurrent(history.program, lateness)
    if plan == "concurrent" and impossible is not None:
        raise Failure(f"a concurrent plan is not possible: {impossible}")
    if plan != "auto":
        return PlanChoice(plan, "as configured")
    events, length = events_within(history, snapshot)
    reach = reach_of(history.program)
    wait = events * 1_000_000 // EVENTS_A_SECOND
    if wait <= urgency:
        return PlanChoice("hand-off", f"{events:,} events of the past take little time")
    if impossible is not None:
        return PlanChoice("hand-off", f"although there are {events:,} events of the past, since {impossible}")
    if reach * _WINDOWS > length:
        window = format_duration(int(reach))
        return PlanChoice("hand-off", f"the window of {window} is a large part of the past that it reads")
    patience = format_duration(urgency)
    return PlanChoice(
        "concurrent", f"{events:,} events of the past would delay live matches for longer than {patience}"
    )


def explained(program: Program) -> str:
    """How queries would be joined over an archive and what comes, for a reader."""
    impossible = why_not_concurrent(program, 0)
    if impossible is not None:
        return f"hand-off, since {impossible}"
    window = format_duration(int(reach_of(program) * _WINDOWS))
    many = URGENCY * EVENTS_A_SECOND // 1_000_000
    return f"hand-off; concurrent from {many:,} events of the past on, if these cover {window} or more"


def events_within(history: History, snapshot: Snapshot) -> tuple[int, float]:
    """How many archived events the queries have to look at, at most, and how long a time these cover."""
    events, length = 0, 0.0
    for stream, within in history.spans().items():
        files = snapshot.files(stream, within)
        events += sum(each.rows for each in files)
        length = max(length, _covered(within, [(each.low, each.high) for each in files]))
    return events, length


def _covered(within: Interval, ranges: list[tuple[int | None, int | None]]) -> float:
    """How long a time files cover inside the bounds; where nothing is known of one, it may be any."""
    if not ranges:
        return 0.0
    low = min(-math.inf if low is None else low for low, _ in ranges)
    high = max(math.inf if high is None else high for _, high in ranges)
    low = low if within.low is None else max(low, within.low)
    high = high if within.high is None else min(high, within.high)
    return high - low


def joined(
    history: History,
    snapshot: Snapshot,
    lateness: Lateness,
    plan: str = "auto",
    settings: Settings | None = None,
) -> JoinedRun:
    """A query over a snapshot and what comes after it, by a plan or by the one that suits it.

    `settings.parts` are the parts of the live source, where the archive may not know of all of them.
    """
    chosen = choose_plan(history, snapshot, lateness, plan=plan)
    made = Concurrent if chosen.plan == "concurrent" else HandOff
    return made(history, snapshot, lateness, settings)


# ----------------------------------------------------------------------------------------------------------
# Queries of a deployment, from their past on into what comes, and how far each was told.
#
# A session is a query: what it has found, and how far it was told. A run is what finds it: queries that
# begin at one point are one run, with one engine, which sorts each stream once, and evaluates what queries
# read of each other once. Each run goes through its own past; in the present, runs become one. A query that
# fails leaves its run, and the others go on. An EP-SPARQL query has a run of its own, with all that
# construct what it may read. Each query from outside has a process of its own (`guests`), and its session
# and its run are there.

_log = logging.getLogger("kaicep.run")

_SAVE_EVERY = 10.0

T = TypeVar("T")

Silence = Callable[[str, int], float | None]
"""For how many seconds nothing has come of a part of a stream; None where nobody knows."""


@dataclass(frozen=True)
class FoundMatch:
    """A match, and which of those who were told already are to be told of it: see `recovery`.

    Those who follow get what is found in the present at once; sinks get matches in the order of their end,
    so that what is found while the past is gone through waits for that.
    """

    match: Match
    leg: int
    to_sinks: bool = True
    to_followers: bool = True


@dataclass(frozen=True)
class SessionSubject:
    """What a session is about: its id, whose matches it tells, and the queries resolved."""

    id: str
    names: tuple[str, ...]
    history: History
    config: QueryConfig = QueryConfig()
    limits: Limits = Limits()


@dataclass(frozen=True)
class Recovery:
    """From which marks a session goes on: the one that everybody has, and those of who is ahead."""

    mark: Mark | None
    later: tuple[Mark, ...]
    legs: Mapping[str, float]
    told: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False

    def is_news(self, sink: str, told: FoundMatch) -> bool:
        """Whether a match that is found on a leg was not told to a sink before."""
        return told.leg >= self.legs.get(sink, 0)


def recovery(entries: Mapping[str, Entry | None]) -> Recovery:
    """What the entries of a session say, by sink; None where a sink was told nothing yet."""
    if not entries:
        return Recovery(None, (), {})
    known = [each for each in entries.values() if each is not None]
    furthest = max(known, key=lambda each: sum(each["told"].values()), default=None)
    told, last = (furthest["told"], furthest["last"]) if furthest else ({}, {})
    if len(known) == len(entries) and all(each["complete"] for each in known):
        return Recovery(None, (), {}, told, last, complete=True)
    behind = {name: each for name, each in entries.items() if each is None or not each["complete"]}
    marks = {name: Mark.from_json(each["mark"]) for name, each in behind.items() if each is not None}
    ordered: list[Mark] = []
    for mark in sorted(marks.values(), key=lambda each: each.order):
        if not ordered or ordered[-1] != mark:
            ordered.append(mark)
    everybody = len(marks) == len(behind)
    first = 1 if everybody else 0
    legs: dict[str, float] = dict.fromkeys(entries.keys() - behind.keys(), math.inf)
    legs |= {name: ordered.index(mark) + 1 - first for name, mark in marks.items()}
    shared = ordered[0] if everybody else None
    return Recovery(shared, tuple(ordered[first:]), legs, told, last)


class Session:
    """A query that is being answered, by a run."""

    def __init__(
        self,
        asked: SessionSubject,
        snapshot: Snapshot,
        states: Path,
        start: Recovery,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.id = asked.id
        self.start = start
        self.gates = tuple(gates)
        """Where versions of the knowledge came."""
        self.kept: Mark | None = None
        """Where the state stood that was saved last, if one was."""
        self.told = Counter(start.told)
        self.last = dict(start.last)
        self.plan = "hand-off"
        self.complete = start.complete
        self.failed: str | None = None
        self.run: SessionRun | None = None
        self.found: list[FoundMatch] = []
        """What was found in the past, before all of that was gone through."""
        self._mark: Mapping[str, Any] = NOWHERE
        self._file = states / f"{quote(asked.id, safe='')}.state"
        self._saved_at = time.monotonic()
        self._learn(asked)
        if not self.complete:
            self._warn_of_holes(snapshot)

    def _learn(self, asked: SessionSubject) -> None:
        self.asked = asked
        self.reach = reach_of(asked.history.program)
        spans = asked.history.spans()
        self.streams = tuple(spans)
        self.needed = asked.history.names
        highs = [each.high for each in spans.values() if each.high is not None]
        wait = self.reach if self.reach < math.inf else 0
        self._over = max(highs) + wait if highs and len(highs) == len(spans) else math.inf

    @property
    def active(self) -> bool:
        """Whether it is still to be answered."""
        return self.run is not None and not self.complete and self.failed is None

    @property
    def live(self) -> bool:
        """Whether the past is done, and it goes on with what comes."""
        return self.active and self.run is not None and self.run.live

    @property
    def state(self) -> str:
        """In a word, what it is doing."""
        if self.failed is not None:
            return "failed"
        return "complete" if self.complete else "live" if self.live else "catching up"

    @property
    def is_over(self) -> bool:
        """Whether nothing that comes can matter any more: WITHIN is over."""
        return self._over < math.inf and self._reached > self._over

    @property
    def _reached(self) -> float:
        return self.run.made.engine.watermark_of(self.needed) if self.run is not None else -math.inf

    def _warn_of_holes(self, snapshot: Snapshot) -> None:
        """Says what cannot be answered any more, because the archive has let go of it."""
        for stream, within in self.asked.history.spans().items():
            expired = snapshot.expired(stream)
            wanted = -math.inf if within.low is None else within.low
            if self.start.mark is not None:
                wanted = max(wanted, self.start.mark.watermark - self.reach)
            if expired is not None and wanted < expired:
                begin = format_time(int(wanted)) if wanted > -math.inf else "the beginning"
                _log.warning(
                    "%s: events of %s from %s to %s are no longer in the archive: matches that need them "
                    "cannot be found",
                    *(", ".join(self.asked.names), stream, begin, format_time(expired)),
                )

    # --- what becomes of it ---

    def counted(self, found: Sequence[FoundMatch]) -> list[tuple[Session, FoundMatch]]:
        """Counts what is news to whoever was told most."""
        for each in found:
            if each.leg >= len(self.start.later) and each.to_sinks:
                name, end = each.match.query, format_time(each.match.end_us)
                self.told[name] += 1
                self.last[name] = max(self.last.get(name, end), end)
        return [(self, each) for each in found]

    def fail(self, error: Exception, given: str) -> None:
        """It is over; others go on."""
        if self.failed is None and not self.complete:
            self.failed = reason_of(error) + given
            unforeseen = None if isinstance(error, KaicepError) else error
            _log.error("%s: %s", ", ".join(self.asked.names), self.failed, exc_info=unforeseen)

    def conclude(self) -> None:
        """It is complete."""
        self._mark, self.complete = self.entry()["mark"], True

    def edit(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""
        assert self.run is not None
        reason = self.run.edit(history)
        if self.failed is not None:
            return "it failed"
        if reason is None:
            self._learn(replace(self.asked, history=history))
        return reason

    # --- what survives ---

    def entry(self) -> Entry:
        """How far it has told."""
        mark = self._mark
        if self.active and self.run is not None:
            mark = {**self.run.mark, "watermark": str(self._reached)}
        return {"mark": mark, "told": dict(self.told), "last": dict(self.last), "complete": self.complete}

    def snapshot(self) -> tuple[Mark, bytes] | None:
        """Its state now and then, where no window bounds what it needs; None where it is not to be saved."""
        due = time.monotonic() - self._saved_at >= _SAVE_EVERY
        run = self.run
        if self.reach < math.inf or not due or not self.live or run is None or not run.made.alone:
            return None
        self._saved_at = time.monotonic()
        try:
            state = run.made.engine.snapshot(self.needed)
        except Exception as error:
            self.fail(error, "")
            return None
        return Mark.from_json(self.entry()["mark"]), state

    def save(self, mark: Mark, state: bytes) -> None:
        """Writes a state down, once everybody was told what it stands for."""
        self.kept = mark
        head = json.dumps({"mark": mark.to_json()}).encode()
        replace_sealed(self._file, head + b"\n" + state)

    def saved(self) -> tuple[Mark, bytes] | None:
        """The state that was saved, unless somebody was told less than it stands for."""
        mark = self.start.mark
        if self.reach < math.inf or mark is None:
            return None
        try:
            head, _, state = read_sealed(self._file).partition(b"\n")
        except FileNotFoundError:
            return None
        read = json.loads(head)
        then = Mark.from_json(read["mark"])
        ahead = any(then.cut.beyond(mark.cut)) or then.watermark > mark.watermark
        return None if ahead else (then, state)

    @property
    def engine(self) -> Engine | None:
        """The engine that goes on with the present."""
        return self.run.made.engine if self.run is not None else None

    def forget(self) -> None:
        """Removes what was saved of it."""
        self._file.unlink(missing_ok=True)

    @property
    def held(self) -> int:
        """How many events and partial matches it holds."""
        if not self.active or self.run is None:
            return 0
        made = self.run.made
        return made.engine.size_of(self.needed) if self.run.shared and not made.at_once else made.size

    @property
    def watermark(self) -> float | None:
        """The time up to which everything is told; None where it has not begun, or is over."""
        return self._reached if self.live and math.isfinite(self._reached) else None


class SessionRun:
    """Sessions that are answered together. Whoever drives it calls `work` until there is no past left.

    One that may be `shared` becomes one with others like it.
    """

    def __init__(self, made: JoinedRun, sessions: Sequence[Session], shared: bool = False) -> None:
        self.suspects: Suspects | None = None
        """Who takes note of what is being worked on, should the process die of it."""
        self.made = made
        self.sessions = list(sessions)
        self.streams = {name for each in sessions for name in each.streams}
        self.shared = shared
        self.joined = False
        """Whether the parts that are silent hold it back no more."""
        self._past: Iterator[list[Match]] | None = made.past()
        self._given = ""
        self._ended: set[str] = set()
        self._owners: dict[str, Session] = {}
        self._mark: Mapping[str, Any] | None = None
        if shared:
            made.engine.on_failure = self._fail
        self._take_on(sessions)

    def _take_on(self, sessions: Iterable[Session]) -> None:
        for each in sessions:
            each.run = self
            self._owners |= dict.fromkeys(each.asked.names, each)

    @property
    def live(self) -> bool:
        """Whether the past is done."""
        return self._past is None

    @property
    def names(self) -> Collection[str]:
        """The queries whose matches it finds."""
        return self._owners.keys()

    @property
    def answers(self) -> bool:
        """Whether it answers what comes: when the past is done, or beside it."""
        return bool(self._active) and (self.live or self.made.at_once)

    @property
    def recovering(self) -> bool:
        """Whether it was told before, and is on the way to where it was."""
        return not self.live and any(each.start.mark is not None or each.gates for each in self._active)

    def wanted(self, newest: int) -> int:
        """The version of the knowledge that its past is to be judged by as it goes on."""
        own = self.made.version
        return newest if own is None or self.live or not self._active else own

    @property
    def mark(self) -> Mapping[str, Any]:
        """Where the answers stand, as JSON."""
        if self._mark is None:
            self._mark = self.made.mark.to_json()
        return self._mark

    @property
    def _active(self) -> list[Session]:
        return [each for each in self.sessions if each.active]

    def work(self, until: float, version: int, newest: int) -> list[tuple[Session, FoundMatch]]:
        """Goes on with the past until some moment of the clock; all that it found, when it is done.

        It waits where it is to be judged by another version of the knowledge than the one that there is.
        """
        while self._past is not None and self._active and time.monotonic() < until:
            if self.wanted(newest) != version:
                return []
            some = self._step(self._next)
            if some is None and self._active:
                self._past = None
                return [pair for each in self._active for pair in self._all_found(each)]
            for match in some or ():
                session = self._owners.get(match.query)
                if session is not None:
                    session.found.append(FoundMatch(match, self.made.leg))
        return []

    def _next(self) -> list[Match] | None:
        return next(self._past, None) if self._past is not None else None

    def _all_found(self, session: Session) -> list[tuple[Session, FoundMatch]]:
        found, session.found = session.found, []
        return session.counted(found)

    def take(self, stretches: Iterable[PositionRange]) -> list[tuple[Session, FoundMatch]]:
        """Takes what has come of its streams."""
        own = [each for each in stretches if each.stream in self.streams]
        if not own:
            return []
        taken = ", ".join(
            f"{each.stream} part {each.part}, positions {each.low} to {each.high - 1}" for each in own
        )
        return self._tell(lambda: self.made.live_all(own), f" (it was given {taken})")

    def idle(self, stream: str, part: int) -> list[tuple[Session, FoundMatch]]:
        """A part has fallen silent."""
        if stream not in self.streams or not self.answers:
            return []
        return self._tell(lambda: self.made.idle(stream, part))

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come."""
        if not self.answers or event.stream not in self.streams:
            return False
        return bool(self._step(lambda: self.made.has_passed(event)))

    def end_if(self, ended: Collection[str]) -> list[tuple[Session, FoundMatch]]:
        """Ends the sessions of which nothing more can come: their streams have ended, or WITHIN is over."""
        if not self.live:
            return []
        found: list[tuple[Session, FoundMatch]] = []
        news = (self.streams & set(ended)) - self._ended
        if news:
            self._ended |= news
            found += self._tell(lambda: self.made.end(news))
        over = [each for each in self._active if each.is_over and not set(each.streams) <= self._ended]
        if over:
            names = {name for each in over for name in each.asked.names}
            found += self._tell(lambda: self.made.conclude(names))
        for each in self._active:
            if each in over or set(each.streams) <= self._ended:
                each.conclude()
                _log.info("%s: complete, %d matches", *(", ".join(each.asked.names), each.told.total()))
        return found

    def edit(self, history: History) -> str | None:
        """Another text of one of its queries; None where that goes on, else why it does not."""
        return self._step(lambda: self.made.edited(history), only=history.names)

    def absorb(self, other: SessionRun) -> bool:
        """Goes on with the sessions of another run, if that stands where this one does; says whether."""
        if not (self.shared and other.shared and self.joined and other.joined and other.made.alone):
            return False
        try:
            if self.made.absorb(other.made) is not None:
                return False
        except Exception as error:
            _log.error("queries stay apart: %s", reason_of(error), exc_info=error)
            other.shared = False
            return False
        self.streams |= other.streams
        self.sessions += other.sessions
        self._take_on(other.sessions)
        self._mark = None
        return True

    def drop(self, sessions: Collection[Session]) -> None:
        """Lets go of sessions, and of the queries that nobody else needs."""
        self.sessions = [each for each in self.sessions if each not in sessions]
        self._owners = {name: each for name, each in self._owners.items() if each not in sessions}
        if self.shared and self.live and self._active:
            self.made.engine.keep({name for each in self._active for name in each.needed})

    def _tell(self, what: Callable[[], list[Match]], given: str = "") -> list[tuple[Session, FoundMatch]]:
        if not self._active:
            return []
        self._given = given
        matches = self._step(what) or []
        self._given = ""
        found: dict[Session, list[Match]] = {}
        for match in matches:
            session = self._owners.get(match.query)
            if session is not None and session.active:
                found.setdefault(session, []).append(match)
        return [pair for session, own in found.items() for pair in self._told(session, own)]

    def _told(self, session: Session, matches: Sequence[Match]) -> list[tuple[Session, FoundMatch]]:
        if self.live:
            return session.counted([FoundMatch(each, len(session.start.later)) for each in matches])
        leg = self.made.leg  # the last one, in the moment in which the past is done
        session.found += [FoundMatch(each, leg, to_followers=False) for each in matches]
        return session.counted([FoundMatch(each, leg, to_sinks=False) for each in matches])

    def _step(self, what: Callable[[], T], only: Collection[str] | None = None) -> T | None:
        """What a step gives; where it fails, the sessions are over, and others go on."""
        self._mark = None
        suspects = self.suspects
        if suspects is not None:
            if len(self._owners) == 1:
                suspects.begin(tuple(self._owners))
            self.made.engine.on_work = suspects.begin if len(self._owners) > 1 else None
        try:
            found = what()
        except Exception as error:
            self._fail(self._owners if only is None else only, error)
            return None
        finally:
            if suspects is not None:
                suspects.end()
        return found

    def _fail(self, names: Collection[str], error: Exception) -> None:
        """Queries are over, because of an error, and the sessions that need them."""
        for each in self.sessions:
            if set(each.needed) & set(names):
                each.fail(error, self._given)


def runs_of(
    sessions: Sequence[Session],
    together: History | None,
    snapshot: Snapshot,
    lateness: Lateness,
    parts: Mapping[str, Sequence[int]],
    since: Mapping[str, Cut | None],
) -> Iterator[SessionRun]:
    """The runs that answer some sessions: one for those of `together` that begin at one point.

    Each goes by the plan that suits it; one that goes on from where it stood has little past, and hands over.
    `since` is where a session begins that begins at a position.
    """
    groups: dict[object, list[Session]] = {}
    known = set(together.names) if together is not None else set()
    for each in sessions:
        asked, start = each.asked, each.start
        shared = known.issuperset(each.needed)
        settings = Settings(asked.limits, parts=parts)
        fresh = start.mark is None and not start.later and not each.gates
        if fresh and since[asked.id] is None:
            choice = _chosen(each, snapshot, lateness)
            _log.info("%s: %s", ", ".join(asked.names), choice)
            each.plan = choice.plan
        if each.plan == "concurrent":
            made = Concurrent(asked.history, _of(snapshot, each.streams), lateness, settings)
            yield SessionRun(made, [each], shared)
        elif shared and not start.later and (start.mark is None or each.reach < math.inf):
            groups.setdefault(_beginning(each), []).append(each)
        else:
            own = _of(snapshot, each.streams)
            handed = HandOff(
                *(asked.history, own, lateness, settings, start.mark, each.saved(), start.later),
                since=since[asked.id],
                gates=each.gates,
            )
            yield SessionRun(handed, [each], shared)
    for group in groups.values():
        assert together is not None
        history = together.only({name for each in group for name in each.needed})
        marks = [each.start.mark for each in group if each.start.mark is not None]
        mark = min(marks, key=lambda each: each.watermark) if marks else None
        own = _of(snapshot, history.spans())
        settings, gates = Settings(parts=parts), in_force(group[0].gates, mark, None, group[0].reach)
        yield SessionRun(HandOff(history, own, lateness, settings, mark, gates=gates), group, shared=True)


def _of(snapshot: Snapshot, streams: Iterable[str]) -> Snapshot:
    return Snapshot({name: snapshot.tables[name] for name in streams})


def _chosen(session: Session, snapshot: Snapshot, lateness: Lateness) -> PlanChoice:
    own, asked = _of(snapshot, session.streams), session.asked
    return choose_plan(asked.history, own, lateness, asked.config.urgency, asked.config.plan)


def _beginning(session: Session) -> object:
    """Where a session begins: those that begin at the same point go through their past together.

    Those that have stood somewhere read back as far as they reach, so they reach about as far as each other;
    and they were judged by the same versions of the knowledge.
    """
    mark = session.start.mark
    gates = in_force(session.gates, mark, None, session.reach)
    known = tuple((each.version, json.dumps(each.mark.to_json())) for each in gates)
    if mark is None:
        return known
    stood = {**mark.to_json(), "watermark": None}
    return session.streams, json.dumps(stood), int(math.log2(session.reach + 1) // 2), known


NOWHERE: Mapping[str, Any] = {
    "cut": {},
    "standing": [[], [], "-inf", []],
    "watermark": "inf",
    "lateness": None,
}
"""The mark of what has not begun."""


def begins_later(session: Session, newest: Mapping[str, int]) -> str | None:
    """That a query begins after the newest event of its streams, in words: until then it finds nothing."""
    spans = session.asked.history.spans()
    lows = [each.low for each in spans.values() if each.low is not None]
    reached = max((newest[name] for name in spans if name in newest), default=None)
    if reached is None or len(lows) < len(spans) or min(lows) <= reached:
        return None
    low, last = format_time(min(lows)), format_time(reached)
    return f"begins at {low}, after the newest event of its streams, {last}: until then there is nothing"


def figures_of(name: str, session: Session, newest: Mapping[str, int], silence: Silence) -> dict[str, Any]:
    """How a query is doing, and why there may be nothing of it."""
    watermark = session.watermark
    return {
        "state": session.state,
        "plan": session.plan,
        "matches": session.told[name],
        "last": session.last.get(name),
        "held": session.held,
        "watermark": format_time(int(watermark)) if watermark is not None else None,
        **bounds_of(session.asked.history),
        **({"problem": session.failed} if session.failed is not None else {}),
        **_reasons(name, session, newest, silence),
    }


def bounds_of(history: History) -> dict[str, str | None]:
    """From when on queries look, and until when; None: without a bound."""
    spans = history.spans().values()
    lows, highs = [each.low for each in spans], [each.high for each in spans]
    low = None if None in lows else min((each for each in lows if each is not None), default=None)
    high = None if None in highs else max((each for each in highs if each is not None), default=None)
    return {
        "from": None if low is None else format_time(low),
        "until": None if high is None else format_time(high),
    }


def _reasons(name: str, session: Session, newest: Mapping[str, int], silence: Silence) -> dict[str, Any]:
    """How far events came, which part is waited for, what was left out: for whoever misses matches."""
    found: dict[str, Any] = {"note": begins_later(session, newest)}
    engine = session.engine
    if engine is None:
        return found
    passed = engine.passed(name)
    if passed is not None:
        found["steps"] = {"in": passed.came, "filter": passed.filters, "path": passed.paths}
        found["fits"] = dict(passed.fits)
    found["dropped"] = {
        "late": engine.late_count,
        "unknown": sum(session.asked.history.unknown.counts.values()),
        "shed": engine.shed_by(name),
    }
    slowest = engine.slowest(name) if session.live else None
    if slowest is not None:
        stream, part, ts = slowest
        found["behind"] = {
            "stream": stream,
            "part": part,
            "reached": format_time(int(ts)) if ts > -math.inf else None,
            "silent": silence(stream, part),
        }
    return found
