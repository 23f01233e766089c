"""A session: one query of a deployment, from its past on into what comes, and how far it was told.

Queries whose output it reads are evaluated with it, in silence. The EP-SPARQL queries of a deployment are one
session, since what one of them constructs all of them read.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from kaicep.archive.cut import Cut
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.concurrent import Concurrent
from kaicep.endtoend.config import QueryConfig
from kaicep.endtoend.history import History
from kaicep.endtoend.joint import HandOff, Joined, Joint, Mark
from kaicep.endtoend.outlets import Entry
from kaicep.endtoend.planning import choose_plan
from kaicep.endtoend.reach import reach_of
from kaicep.endtoend.seam import Stretch
from kaicep.errors import Failure, KaicepError, reason_of
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.settings import Settings
from kaicep.kernel.operator import Limits
from kaicep.kernel.sort import Lateness
from kaicep.plan.events import Event, Match
from kaicep.plan.time import format_time
from kaicep.storage.disk import read_sealed, replace_sealed

__all__ = ["Asked", "Session", "Told", "recovery"]

_log = logging.getLogger("kaicep.run")

_SAVE_EVERY = 10.0

T = TypeVar("T")


@dataclass(frozen=True)
class Told:
    """A match, and which of those who were told already are to be told of it: see `recovery`.

    Those who follow get what is found in the present at once; sinks get matches in the order of their end,
    so that what is found while the past is gone through waits for that.
    """

    match: Match
    leg: int
    to_sinks: bool = True
    to_followers: bool = True


@dataclass(frozen=True)
class Asked:
    """What a session is about: its id, whose matches it tells, and the queries resolved.

    A single step of it may take as many seconds as its `patience`: others wait for it meanwhile.
    """

    id: str
    names: tuple[str, ...]
    history: History
    config: QueryConfig = QueryConfig()
    limits: Limits = Limits()
    patience: float = math.inf


@dataclass(frozen=True)
class Recovery:
    """From which marks a session goes on: the one that everybody has, and those of who is ahead."""

    mark: Mark | None
    later: tuple[Mark, ...]
    legs: Mapping[str, float]
    told: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False
    beyond: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def is_news(self, sink: str, told: Told) -> bool:
        """Whether a match that is found on a leg was not told to a sink before."""
        return told.leg >= self.legs.get(sink, 0) and told.match.id not in self.beyond.get(sink, ())


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
    for mark in sorted(marks.values(), key=_order):
        if not ordered or ordered[-1] != mark:
            ordered.append(mark)
    everybody = len(marks) == len(behind)
    first = 1 if everybody else 0
    legs: dict[str, float] = dict.fromkeys(entries.keys() - behind.keys(), math.inf)
    legs |= {name: ordered.index(mark) + 1 - first for name, mark in marks.items()}
    beyond = {name: frozenset(each["beyond"]) for name, each in behind.items() if each is not None}
    shared = ordered[0] if everybody else None
    return Recovery(shared, tuple(ordered[first:]), legs, told, last, beyond=beyond)


def _order(mark: Mark) -> tuple[int, float]:
    positions = sum(at for parts in mark.cut.positions.values() for at in parts.values())
    return positions, mark.watermark


class Session:
    """A query that is being answered. Whoever drives it calls `work` until there is no past left."""

    def __init__(
        self,
        asked: Asked,
        snapshot: Snapshot,
        lateness: Lateness,
        parts: Mapping[str, Sequence[int]],
        states: Path,
        start: Recovery,
        since: Cut | None = None,
    ) -> None:
        self.asked = asked
        self.start = start
        self.told = Counter(start.told)
        self.last = dict(start.last)
        self.plan = "hand-off"
        self.joined = False
        self.complete = start.complete
        self.failed: str | None = None
        self.reach = reach_of(asked.history.program)
        self.streams = tuple(asked.history.spans())
        self._file = states / f"{quote(asked.id, safe='')}.state"
        self._found: list[Told] = []
        self._saved_at = time.monotonic()
        self._past: Iterator[list[Match]] | None = None
        if self.complete:
            return
        own = Snapshot({name: snapshot.tables[name] for name in self.streams})
        saved = self._saved(start.mark) if self.reach == math.inf and start.mark is not None else None
        settings = Settings(asked.limits, parts=parts)
        self.made = self._made(own, lateness, settings, saved, since)
        self._past = self.made.past()
        self._warn_of_holes(own)

    def _made(
        self,
        snapshot: Snapshot,
        lateness: Lateness,
        settings: Settings,
        state: tuple[Mark, bytes] | None,
        since: Cut | None,
    ) -> Joint:
        """By the plan that suits it; one that goes on from where it stood has little past, and hands over."""
        start, history = self.start, self.asked.history
        if start.mark is None and not start.later and since is None:
            config = self.asked.config
            choice = choose_plan(history, snapshot, lateness, config.urgency, config.plan)
            _log.info("%s: %s", ", ".join(self.asked.names), choice)
            self.plan = choice.plan
            if choice.plan == "concurrent":
                return Concurrent(history, snapshot, lateness, settings)
        return HandOff(history, snapshot, lateness, settings, start.mark, state, start.later, since)

    @property
    def answers(self) -> bool:
        """Whether it answers what comes: when the past is done, or beside it."""
        return self.live or (self._past is not None and self.failed is None and self.made.at_once)

    @property
    def live(self) -> bool:
        """Whether the past is done, and it goes on with what comes."""
        return self._past is None and not self.complete and self.failed is None

    @property
    def recovering(self) -> bool:
        """Whether it was told before, and is on the way to where it was."""
        return self._past is not None and self.failed is None and self.start.mark is not None

    @property
    def state(self) -> str:
        """In a word, what it is doing."""
        if self.failed is not None:
            return "failed"
        return "complete" if self.complete else "live" if self.live else "catching up"

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

    # --- what it does ---

    def work(self, until: float) -> list[Told]:
        """Goes on with the past until some moment of the clock; all that it found, when it is done."""
        while self._past is not None and self.failed is None and time.monotonic() < until:
            some = self._step(lambda: next(self._past, None) if self._past is not None else None)
            if some is not None:
                self._found += [Told(each, self.made.leg) for each in self._own(some)]
            elif self.failed is None:
                self._past = None
                found, self._found = self._found, []
                return self._counted(found)
        return []

    def take(self, stretches: Iterable[Stretch]) -> list[Told]:
        """Takes what has come of its streams."""
        own = [each for each in stretches if each.stream in self.streams]
        if not own and not self.waiting:
            return []
        taken = ", ".join(
            f"{each.stream} part {each.part}, positions {each.low} to {each.high - 1}" for each in own
        )
        return self._try(lambda: self.made.live_all(own), f" (it was given {taken})" if taken else "")

    def idle(self, stream: str, part: int) -> list[Told]:
        """A part has fallen silent."""
        if stream not in self.streams or not self.answers:
            return []
        return self._try(lambda: self.made.idle(stream, part))

    def has_passed(self, event: Event) -> bool:
        """Whether it went on as if this event would not come."""
        if not self.answers or event.stream not in self.streams:
            return False
        return bool(self._step(lambda: self.made.has_passed(event)))

    def end_if(self, ended: Iterable[str]) -> list[Told]:
        """Ends the query where nothing more can come: its streams have ended, or WITHIN is over."""
        if not self.live or not (set(self.streams) <= set(ended) or self._is_over()):
            return []
        found = self._try(self.made.finish)
        self.complete = self.failed is None
        return found

    def edit(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""
        reason = self._step(lambda: self.made.edited(history))
        if self.failed is not None:
            return "it failed"
        if reason is None:
            self.asked = replace(self.asked, history=history)
            self.reach = reach_of(history.program)
        return reason

    def _is_over(self) -> bool:
        highs = [each.high for each in self.asked.history.spans().values()]
        if not highs or None in highs:
            return False
        latest = max(each for each in highs if each is not None)
        wait = self.reach if self.reach < math.inf else 0
        return self.made.watermark > latest + wait

    def _try(self, what: Callable[[], list[Match]], given: str = "") -> list[Told]:
        if self.failed is not None or self.complete:
            return []
        matches = self._own(self._step(what, given) or [])
        if self._past is None:
            return self._counted([Told(each, len(self.start.later)) for each in matches])
        self._found += [Told(each, 0, to_followers=False) for each in matches]
        return self._counted([Told(each, 0, to_sinks=False) for each in matches])

    def _step(self, what: Callable[[], T], given: str = "") -> T | None:
        """What a step gives; where it fails, or takes too long, the session is over, and others go on."""
        begun = time.monotonic()
        try:
            found = what()
            if time.monotonic() - begun > self.asked.patience:
                raise Failure(f"it takes longer than {self.asked.patience:g} s at a time")
        except Exception as error:
            self.failed = reason_of(error) + given
            unforeseen = None if isinstance(error, KaicepError) else error
            _log.error("%s: %s", ", ".join(self.asked.names), self.failed, exc_info=unforeseen)
            return None
        return found

    def _own(self, matches: Iterable[Match]) -> list[Match]:
        return [each for each in matches if each.query in self.asked.names]

    def _counted(self, found: list[Told]) -> list[Told]:
        """Counts what is news to whoever was told most."""
        known = set().union(*self.start.beyond.values())
        news = [each for each in found if each.leg >= len(self.start.later) and each.match.id not in known]
        for each in news:
            if each.to_sinks:
                name, end = each.match.query, format_time(each.match.end_us)
                self.told[name] += 1
                self.last[name] = max(self.last.get(name, end), end)
        return found

    # --- what survives ---

    def entry(self) -> Entry:
        """How far it has told."""
        return {
            "mark": self.made.mark.to_json() if not self.start.complete else _NOWHERE,
            "told": dict(self.told),
            "last": dict(self.last),
            "complete": self.complete,
            "beyond": list(self.made.beyond) if not self.start.complete else [],
        }

    def snapshot(self) -> tuple[Mark, bytes] | None:
        """Its state now and then, where no window bounds what it needs; None where it is not to be saved."""
        due = time.monotonic() - self._saved_at >= _SAVE_EVERY
        if self.reach < math.inf or not self.live or not due or not isinstance(self.made, HandOff):
            return None
        self._saved_at = time.monotonic()
        engine, mark = self.made.engine, self.made.mark
        state = self._step(engine.snapshot)
        return None if state is None else (mark, state)

    def save(self, mark: Mark, state: bytes) -> None:
        """Writes a state down, once everybody was told what it stands for."""
        head = json.dumps({"mark": mark.to_json()}).encode()
        replace_sealed(self._file, head + b"\n" + state)

    def _saved(self, mark: Mark) -> tuple[Mark, bytes] | None:
        """The state that was saved, unless somebody was told less than it stands for."""
        try:
            head, _, state = read_sealed(self._file).partition(b"\n")
        except FileNotFoundError:
            return None
        read = json.loads(head)
        then = Mark.from_json(read["mark"])
        ahead = any(then.cut.beyond(mark.cut)) or then.watermark > mark.watermark
        return None if ahead else (then, state)

    @property
    def waiting(self) -> bool:
        """Whether it has taken something that is not answered yet."""
        return self.live and self.made.waiting

    @property
    def engine(self) -> Engine | None:
        """The engine that goes on with the present, where it is in this process."""
        if self.start.complete or not isinstance(self.made, Joined):
            return None
        return self.made.engine

    def forget(self) -> None:
        """Removes what was saved of it."""
        self._file.unlink(missing_ok=True)

    @property
    def held(self) -> int:
        """How many events and partial matches it holds."""
        return 0 if self.complete or self.failed is not None else self.made.size

    @property
    def watermark(self) -> float | None:
        """The time up to which everything is told; None where it has not begun, or is over."""
        if not self.live:
            return None
        found = self.made.watermark
        return found if math.isfinite(found) else None


_NOWHERE: Mapping[str, Any] = {
    "cut": {},
    "standing": [[], [], "-inf", []],
    "watermark": "inf",
    "lateness": None,
}
