"""A deployment that runs: sources into the archive, sessions over both, matches to the sinks.

One thread does all of it, tick by tick. What came in is archived first, then answered, then handed to
the sinks together with how far the answers stand. So whatever moment a process is lost at, the archive is
never behind a sink's mark, and what lies between the two is answered again and told once.
"""

from __future__ import annotations

import fcntl
import logging
import math
import queue
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaicep.archive.archive import Archive, Cut
from kaicep.archive.stream_table import StreamTable, at_most, compact, expire
from kaicep.deployment.catalogue import Catalogue
from kaicep.deployment.check import check_progress
from kaicep.deployment.config import Config, SinkConfig
from kaicep.deployment.guests import Guest
from kaicep.deployment.sessions import NOWHERE, FoundMatch, Session, SessionRun
from kaicep.deployment.sinks import BACKLOG, Entry, NoSink, Outlet
from kaicep.deployment.streams import Feed, attach_tables
from kaicep.deployment.versions import news_of, opened
from kaicep.errors import Failure, Mistake, reason_of
from kaicep.join.handoff import Gate, Mark, PositionRange, in_force
from kaicep.knowledge.annotation import prefixes_of
from kaicep.plan.events import Event, Match
from kaicep.plan.time import format_time

_log = logging.getLogger("kaicep.run")

STEPS = 100
"""How many of the last steps the status sums up."""
_WATCH_EVERY = 1.0
_UPKEEP_EVERY = 300.0
_SHOW_EVERY = 0.25
_SHOW_SELDOM = 20
_SLICE = 0.1
_DRAIN = 10.0
_LAST = 600.0
"""So many seconds a sink has for what is left: when somebody stops the deployment; when all sources ended."""
_KEPT_HOURS = 24
_SHARE = 0.1
"""At most so much of a stream is removed at once: there is time to see that it is too much."""


def engine_status(kind: str, took: Sequence[float]) -> dict[str, Any]:
    """What runs the queries, and how many seconds its last steps took: the newest, their median, the longest.

    >>> engine_status("spark", [0.5, 2.0, 0.4])
    {'kind': 'spark', 'newest': 0.4, 'median': 0.5, 'longest': 2.0}
    """
    if not took:
        return {"kind": kind, "newest": None, "median": None, "longest": None}
    return {"kind": kind, "newest": took[-1], "median": statistics.median(took), "longest": max(took)}


def archive_status(folder: Path, tables: Iterable[StreamTable]) -> dict[str, Any]:
    """How much an archive holds."""
    files = [file for each in tables for file in each.files()]
    return {
        "folder": str(folder),
        "events": sum(each.rows for each in files),
        "files": len(files),
        "bytes": sum(each.size for each in files),
    }


class Commands:
    """What other threads ask the thread of a deployment to do between two steps."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def ask(self, what: Callable[[], Any], seconds: float) -> Any:
        """Has something done; for other threads."""
        answer: Future[Any] = Future()
        self._asked.put((what, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            if not answer.cancel():
                return answer.result()  # it is being done: to say that it is not would be a lie
            raise Failure("the deployment is busy: try again") from None

    def wake(self) -> None:
        """Ends a wait."""
        self._asked.put((lambda: None, Future()))

    def do_all(self) -> None:
        """Does what is asked for by now."""
        while not self._asked.empty():
            self._do(*self._asked.get())

    def do_until(self, moment: float, is_over: Callable[[], bool]) -> None:
        """Does what is asked for until a moment (of `time.monotonic`), or until it is over."""
        while not is_over():
            try:
                self._do(*self._asked.get(timeout=max(0.0, moment - time.monotonic())))
            except queue.Empty:
                return

    def _do(self, what: Callable[[], Any], answer: Future[Any]) -> None:
        if not answer.set_running_or_notify_cancel():
            return  # whoever asked has been told that nothing is done
        try:
            answer.set_result(what())
        except BaseException as error:
            answer.set_exception(error)


Listener = Callable[[Sequence[tuple[str, Match]]], None]
"""Called, in the deployment's thread, with the new matches of a tick, each with the id of its session."""

Ending = Callable[[str, str], None]
"""Called, in the deployment's thread, with the name of a query from outside that was ended, and why."""


@dataclass(frozen=True)
class _Saving:
    """A state that is written down as soon as the sinks have what it stands for."""

    session: Session
    moment: int
    state: tuple[Mark, bytes]


class Deployment:
    """What `kaicep.toml` describes, running. `run` works until it is told to stop, or all sources ended."""

    def __init__(self, config: Config, now: int | None = None) -> None:
        self.config = config
        self.started = time.time()
        self.ticked = time.monotonic()
        self.archive = Archive(config.archive)
        self.listeners: list[Listener] = []
        self.endings: list[Ending] = []
        self.published: dict[str, Any] = {}
        """The status of a moment ago, for other threads."""
        self._took: deque[float] = deque(maxlen=STEPS)
        self._stopping = False
        self._commands = Commands()
        self._lock = locked(config.state)
        for folder in (config.state / "marks", config.state / "states", config.changes):
            folder.mkdir(exist_ok=True)
        self.knowledge, self._versions = opened(config, config.state / "versions")
        attach_tables(config, self.archive)
        self.feeds = {name: Feed(each, self.archive) for name, each in config.streams.items()}
        wanted = config.sinks or {"none": SinkConfig("none", {}, guests=True)}
        self.outlets = {
            name: Outlet(each, config.state / "marks", None if config.sinks else NoSink())
            for name, each in wanted.items()
        }
        self.catalogue = Catalogue(
            config,
            self.archive,
            self.knowledge.knowledge,
            prefixes_of(config.annotations),
            self.feeds,
            self._versions,
            now=now,
        )
        self._unknown: str | None = None
        self._moment = 0
        self._saving: list[_Saving] = []
        self._found: list[tuple[Session | Guest, FoundMatch]] = []
        self._to_look = True
        """Whether the knowledge is looked at as soon as nobody goes through the past."""
        self._shown = 0.0
        self._watched = self._kept = time.monotonic()

    # --- beginning and end ---

    def run(self, seconds: float | None = None) -> None:
        """Runs until all sources have ended, `stop` is called, or so many seconds are over."""
        deadline = time.monotonic() + seconds if seconds is not None else None
        try:
            self.open()
            while not self._stopping and not (deadline is not None and time.monotonic() > deadline):
                begun = time.monotonic()
                busy = self.tick()
                if self.is_over:
                    _log.info("all sources have ended")
                    break
                if not busy:
                    self._commands.do_until(begun + self.config.tick / 1_000_000, lambda: self._stopping)
        finally:
            behind = self.drain()
            self.close()
        failed = next((each for each in self.feeds.values() if each.failed), None)
        if failed is not None and failed.failed is not None:
            if isinstance(failed.failed, Mistake):
                raise failed.failed
            raise Failure(f"stream {failed.name}: {reason_of(failed.failed)}") from failed.failed
        if behind and self.is_over:
            raise Failure(f"sink {behind[0]} did not take everything; it gets the rest at the next start")

    def stop(self) -> None:
        """Lets `run` come to an end: what was taken in is answered and told. May be called by anybody."""
        self._stopping = True
        self._commands.wake()

    def open(self) -> None:
        """Opens sinks and sources, and goes on where everything stood."""
        for outlet in self.outlets.values():
            outlet.open()
        check_progress(self.config, self.archive, {name: each.entries for name, each in self.outlets.items()})
        for feed in self.feeds.values():
            feed.open()
        self.catalogue.suspects.start()
        self._look_at_queries()
        self.published = self.status()
        _log.info("%s runs: %d streams, %d queries", self.config.name, len(self.feeds), len(self.sessions))

    @property
    def is_over(self) -> bool:
        """Whether all sources have ended, and everything is answered."""
        ended = (
            all(each.ended or each.failed for each in self.feeds.values())
            and not self.catalogue.shape_changed
        )
        return (
            ended
            and all(each.state != "catching up" for each in self.sessions.values())
            and all(each.over for each in self.catalogue.guests.running.values())
        )

    def drain(self) -> list[str]:
        """Waits until the sinks have everything, and closes them; those that could not take it in time."""
        patience = _LAST if self.is_over else _DRAIN
        for outlet in self.outlets.values():
            outlet.close(patience)
            if outlet.settled < self._moment and outlet.broken is None:
                _log.warning(
                    "sink %s did not take everything; it gets the rest at the next start", outlet.name
                )
        self._save_states()
        return [name for name, each in self.outlets.items() if each.settled < self._moment]

    def close(self) -> None:
        """Closes the sources, and lets others have the state folder."""
        for session in self.sessions.values():
            if session.live:
                _tell_count(session, "stopped")
        self.catalogue.guests.close()
        self.catalogue.suspects.close()
        for feed in self.feeds.values():
            feed.close()
        self._lock.close()

    def ask(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Has something done by the deployment's own thread, between two ticks; for other threads."""
        return self._commands.ask(what, seconds)

    # --- what others ask for, by way of `ask` ---

    def register(self, name: str, language: str, text: str) -> None:
        """Takes a query in from outside: back in time if it says so, then on with what comes."""
        self.catalogue.register(name, language, text)
        self._tell_ended()
        self._look_at_queries()
        self.published = self.status()

    def unregister(self, name: str) -> None:
        """Removes a query that came in from outside."""
        self.catalogue.remove(name)
        self._look_at_queries()
        self.published = self.status()

    def status(self) -> dict[str, Any]:
        """How everything is going."""
        return {
            "name": self.config.name,
            "since": format_time(int(self.started * 1_000_000)),
            "engine": engine_status("inprocess", list(self._took)),
            "streams": {name: each.status() for name, each in self.feeds.items()},
            "trouble": self.catalogue.trouble,
            "queries": self.catalogue.status(),
            "sinks": {
                name: each.status(self._moment) for name, each in self.outlets.items() if self.config.sinks
            },
            "archive": archive_status(
                self.config.archive, [each.table for each in self.feeds.values() if each.table is not None]
            ),
            "knowledge": {
                "statements": len(self.knowledge.knowledge),
                "version": self.knowledge.knowledge.version,
                "trouble": self._unknown,
            },
        }

    # --- a tick ---

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions by their ids."""
        return self.catalogue.sessions

    def tick(self) -> bool:
        """Takes in what came, answers it, hands on what is certain; whether there is more to do at once."""
        self.ticked = time.monotonic()
        self._commands.do_all()
        self._watch()
        self._follow_versions()
        if self._to_look:
            self._look_at_knowledge()
        behind = self._is_older or any(each.state == "catching up" for each in self.sessions.values())
        stretches = self._taken()
        found = self._answers(stretches)
        self._hand_on(found, news=bool(stretches))
        self._save_states()
        self._upkeep()
        if stretches or behind:
            self._took.append(time.monotonic() - self.ticked)
        self._publish()
        return bool(stretches) or behind

    def _publish(self) -> None:
        """Lays out how everything is going, from time to time: whoever asks reads that."""
        begun = time.monotonic()
        if begun > self._shown:
            self.published = self.status()
            took = time.monotonic() - begun
            self._shown = begun + max(_SHOW_EVERY, _SHOW_SELDOM * took)

    def _taken(self) -> list[PositionRange]:
        """What the sources have; nothing while a sink has more than enough to do.

        Nor while somebody finds out how far it was: until then nobody can say which events are late.
        """
        if any(each.backlog > BACKLOG for each in self.outlets.values()):
            return []
        if self._is_older or any(each.recovering for each in self.catalogue.runs):
            return []
        patience = self.config.tick / 1_000_000 / 5 / len(self.feeds)
        found: list[PositionRange] = []
        for feed in self.feeds.values():
            known = feed.table is not None
            found += feed.take(patience, self._is_late)
            if not known and feed.table is not None:
                self.catalogue.shape_changed = True
        return found

    def _is_late(self, event: Event) -> bool:
        return any(each.has_passed(event) for each in self.catalogue.runs)

    def _answers(self, stretches: Sequence[PositionRange]) -> Iterator[tuple[Session | Guest, FoundMatch]]:
        """What the sessions find: by what came, by what fell silent, in their past, or at their end."""
        silent = [(feed.name, part) for feed in self.feeds.values() for part in feed.fall_silent()]
        ended = [feed.name for feed in self.feeds.values() if feed.ended]
        until = time.monotonic() + _SLICE
        for run in self.catalogue.runs:
            yield from run.take(stretches)
            for stream, part in silent:
                yield from run.idle(stream, part)
            if not run.live:
                yield from self._go_through(run, until)
            if run.answers and not run.joined:
                yield from self._joins(run)
            yield from run.end_if(ended)
        self.catalogue.unite()
        yield from self.catalogue.guests.take()
        self._give_notes(ended)

    def _give_notes(self, ended: Sequence[str]) -> None:
        """Leaves word of how far everything is for the queries from outside, and sees who of them is over."""
        guests = self.catalogue.guests
        if any(each.state in ("failed", "wrong") for each in guests.running.values()):
            self._look_at_queries()
            self._tell_ended()
        idle = [(feed.name, part) for feed in self.feeds.values() for part in feed.idle_parts]
        cut = Cut({feed.name: feed.positions for feed in self.feeds.values()})
        guests.note(cut, idle, ended, self.knowledge.knowledge.version)

    def _tell_ended(self) -> None:
        over, self.catalogue.over = self.catalogue.over, []
        for name, reason in over:
            for told in self.endings:
                told(name, reason)

    def _go_through(self, run: SessionRun, until: float) -> Iterator[tuple[Session, FoundMatch]]:
        """Lets a run go on with its past."""
        yield from run.work(until, self._version, self._versions.last)
        for session in run.sessions if run.live else ():
            _tell_count(session, "up to date")

    def _joins(self, run: SessionRun) -> Iterator[tuple[Session, FoundMatch]]:
        """A run comes to the present: parts that are silent by now hold it back no more."""
        run.joined = True
        for stream in run.streams:
            feed = self.feeds.get(stream)
            # What is archived and has no source sends nothing any more.
            silent = (
                [*feed.idle_parts, *feed.history]
                if feed is not None
                else self.archive.stream(stream).positions
            )
            for part in silent:
                yield from run.idle(stream, part)

    def _hand_on(self, found: Iterator[tuple[Session | Guest, FoundMatch]], news: bool) -> None:
        """Gives matches to the sinks and to those who follow, with how far everybody stands.

        What queries find that go on where they stood has one order, whoever of them is the first to be there.
        """
        self._found += found
        if any(each.recovering for each in self.catalogue.runs):
            return
        told = sorted(self._found, key=lambda each: (each[1].match.end_us, each[1].match.id))
        self._found.clear()
        if not told and (self._is_older or not (news or self.catalogue.changed)):
            return  # while the knowledge is an older one, not all queries have their sessions
        self.catalogue.changed = False
        self._moment += 1
        for outlet in self.outlets.values():
            matches = [
                each.match
                for session, each in told
                if each.to_sinks
                and outlet.config.takes(each.match.query, isinstance(session, Guest))
                and session.start.is_news(outlet.name, each)
            ]
            outlet.send(matches, dict(self._entries(outlet)), self._moment)
        seen = [
            (session.id, each.match)
            for session, each in told
            if each.to_followers and each.leg >= len(session.start.later)
        ]
        for listen in self.listeners if seen else ():
            try:
                listen(seen)
            except Exception as error:
                _log.error("what follows the matches failed: %s", reason_of(error), exc_info=error)
        self._plan_saving()

    def _entries(self, outlet: Outlet) -> Iterator[tuple[str, Entry]]:
        """How far each session stands for a sink; one that is not in the present stands where it stood."""
        for id, session in self.sessions.items():
            if any(map(outlet.config.takes, session.asked.names)):
                if session.live or session.complete:
                    yield id, session.entry()
                elif id in outlet.entries:
                    yield id, outlet.entries[id]
        for id in self.catalogue.aside & outlet.entries.keys():
            yield id, outlet.entries[id]
        for id, guest in self.catalogue.guests.running.items():
            if outlet.config.takes(guest.name, outside=True):
                entry = guest.entry() or outlet.entries.get(id)
                if entry is not None:
                    yield id, entry

    # --- states ---

    def _plan_saving(self) -> None:
        for session in self.sessions.values():
            state = session.snapshot()
            if state is not None:
                self._saving.append(_Saving(session, self._moment, state))

    def _save_states(self) -> None:
        """Writes down the states that everybody was told the matches of."""
        settled = min(each.settled for each in self.outlets.values())
        ready = [each for each in self._saving if each.moment <= settled]
        for each in ready:
            if each.session in self.sessions.values():
                each.session.save(*each.state)
        self._saving = [each for each in self._saving if each.moment > settled]

    # --- what changes ---

    def _watch(self) -> None:
        """Looks at the query files and at the knowledge from time to time."""
        if time.monotonic() - self._watched < _WATCH_EVERY and not self.catalogue.shape_changed:
            return
        self._watched = time.monotonic()
        self._look_at_knowledge()
        self._look_at_queries()

    @property
    def _version(self) -> int:
        return self.knowledge.knowledge.version

    @property
    def _is_older(self) -> bool:
        """Whether the knowledge is still that of some time before the process began."""
        return self._version < self._versions.last

    def _follow_versions(self) -> None:
        """Takes the next version that there was, as soon as nobody is to be judged by this one any more."""
        newest = self._versions.last
        while self._is_older and all(each.wanted(newest) > self._version for each in self.catalogue.runs):
            found = self._versions.after(self._version)
            assert found is not None
            number, contents = found
            self.knowledge.follow(contents, number)
            if number == newest:
                self.catalogue.shape_changed = True  # queries that are new are resolved against this one
                self._look_at_queries()

    def _log_version(self, number: int) -> None:
        """Writes down a version before an event is judged by it, and lets go of those of long ago.

        A query that has failed is judged by it from where it stood on, when it is tried again.
        """
        marks: dict[str, Mapping[str, Any]] = {}
        for id, session in self.sessions.items():
            known = [each.entries[id]["mark"] for each in self.outlets.values() if id in each.entries]
            if session.live:
                marks[id] = session.entry()["mark"]
            elif not session.complete and known:
                marks[id] = max(known, key=lambda each: Mark.from_json(each).order)
        for id, guest in self.catalogue.guests.running.items():
            if not guest.over:
                marks[id] = (guest.entry() or {"mark": NOWHERE})["mark"]
        self._versions.add(number, self.knowledge.news_of_files(), marks)
        self._versions.forget(self._goes_back_to)

    def _goes_back_to(self, id: str, gate: Gate) -> bool:
        """Whether a session would pass a gate once more, were the process lost now."""
        guest = self.catalogue.guests.running.get(id)
        if guest is not None:
            return not guest.over and gate.version > guest.needs
        session = self.sessions.get(id)
        if session is None:
            return False
        takers = [each for each in self.outlets.values() if any(map(each.config.takes, session.asked.names))]
        if any(each.settled < self._moment or id not in each.entries for each in takers):
            return True
        if all(each.entries[id]["complete"] for each in takers):
            return False
        marks = [Mark.from_json(each.entries[id]["mark"]) for each in takers]
        if session.reach == math.inf:
            return (
                session.kept is None or min(each.order for each in (*marks, session.kept)) <= gate.mark.order
            )
        return any(in_force([gate], each, None, session.reach) for each in marks)

    def _look_at_knowledge(self) -> None:
        """Takes what is new in the knowledge, unless a query goes through its past (of one version)."""
        self._to_look = self._is_older or any(each.state == "catching up" for each in self.sessions.values())
        if self._to_look:
            return
        change, self._unknown = news_of(self.knowledge)
        if change is not None and change.version > self._versions.last:
            self._log_version(change.version)

    def _look_at_queries(self) -> None:
        told = {name: each.entries for name, each in self.outlets.items()}
        parts = {name: each.parts for name, each in self.feeds.items()}
        self.catalogue.refresh(told, parts, self.config.sinks)

    def _upkeep(self) -> None:
        """Puts small files of the archive together, and removes what is too old, rarely."""
        if time.monotonic() - self._kept < _UPKEEP_EVERY:
            return
        self._kept = time.monotonic()
        well = [name for each in self.sessions.values() if each.live for name in each.asked.names]
        self.catalogue.suspects.clear(well)
        if any(each.state == "catching up" for each in self.sessions.values()):
            return  # somebody reads what would be put together
        for feed in self.feeds.values():
            if feed.table is None:
                continue
            try:
                self._keep(feed)
            except Exception as error:
                _log.warning("upkeep of %s: %s", feed.name, reason_of(error), exc_info=error)

    def _keep(self, feed: Feed) -> None:
        assert feed.table is not None
        newest = feed.newest.values()
        if self.config.retention is not None and newest:
            # One wrong time, of an event or of the clock, must not remove everything.
            watermark = min(newest) - (feed.config.lateness or 0)
            reached = min(watermark, time.time_ns() // 1_000)
            before = at_most(_SHARE, feed.table.table.files(), reached - self.config.retention)
            kept = expire(feed.table, before)
            if kept.removed:
                _log.warning(
                    "%s: %d events before %s were removed, as the retention says",
                    *(feed.name, kept.removed, format_time(before)),
                )
        compact(feed.table)
        feed.table.table.vacuum(_KEPT_HOURS)


def _tell_count(session: Session, state: str) -> None:
    for name in session.asked.names:
        _log.info("%s: %s, %d matches", name, state, session.told[name])


def locked(folder: Path) -> Any:
    """The state folder, which one process has at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a")
    except OSError as error:
        raise Mistake(f"cannot make the state folder {folder}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Mistake(f"another process runs this deployment: it has {folder}") from None
    return file
