"""The demo: a campus is made, its morning archived, asked back in time, and followed live."""

from __future__ import annotations

import logging
import shlex
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from kaicep.archive.archive import Archive
from kaicep.demo.archiving import Starting, archive_here, archive_on_spark, missing, need_delta
from kaicep.demo.campus import SCALES, Campus
from kaicep.demo.folder import Folder, check_empty
from kaicep.demo.morning import OPENING, Morning
from kaicep.demo.telling import Place, place_of, places, reasons, told
from kaicep.demo.views import View
from kaicep.demo.watching import Query, Recent, opened
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.time import format_time

__all__ = ["Figures", "Options", "commands", "run", "summary"]

_FIRST, _MORNING = 6, 120  # minutes
_SHOWN = {"first": 1, "past": 2, "live": 3}
_STATUS, _PAUSE = 0.25, 0.005  # seconds
_AT_ONCE = 100


@dataclass(frozen=True)
class Options:
    """What is asked for. `command` is how kaicep is called here; without `keep` the folder is temporary."""

    scale: str = "campus"
    seed: int = 7
    seconds: float = 20.0
    keep: Path | None = None
    command: str = "kaicep"


@dataclass
class Figures:
    """What was measured; times are in seconds."""

    first: float | None = None
    archived: tuple[int, float, str] = (0, 0.0, "")
    past: tuple[int, float] = (0, 0.0)
    live: tuple[int, float] = (0, 0.0)
    latencies: list[float] = field(default_factory=list)
    matches: dict[str, int] = field(default_factory=dict)
    told: Match | None = None


def run(options: Options, view: View, began: float) -> None:
    """Runs the demo; `began` is when whoever looks at it began to wait (`time.perf_counter`)."""
    need_delta()
    if options.keep is not None:
        check_empty(options.keep)
    # What the knowledge does not know is no news here.
    logging.getLogger("kaicep").addHandler(logging.NullHandler())
    lacks = missing()
    spark = Starting() if lacks is None else None
    try:
        with _folder(options.keep) as path:
            demo = _Demo(path, options, view, began)
            try:
                demo.all(spark, lacks)
            except KeyboardInterrupt:
                view.say("Stopped. So far:")
            view.close()
            for each in (*summary(demo.figures), "", *commands(options, demo.figures.told)):
                view.say(each)
    finally:
        view.close()
        if spark is not None:
            spark.stop()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with TemporaryDirectory(prefix="kaicep-demo-") as made:
        yield Path(made)


class _Source:
    """The campus from the end of the morning on: events when they are due, and in the files by then."""

    def __init__(self, morning: Morning, folder: Folder) -> None:
        self._morning = morning
        self._folder = folder
        self._minute = _MORNING
        self._events: deque[Event] = deque()
        self.celsius = 0.0

    def due(self, seconds: float) -> list[Event]:
        """What came until so many seconds after the morning: not too much at a time, where one is behind."""
        now = OPENING + int((_MORNING * 60 + seconds) * 1_000_000)
        while not self._events or (self._events[-1].ts <= now and len(self._events) < _AT_ONCE):
            reports = self._morning.minute(self._minute)
            self._minute += 1
            said = [each.record["celsius"] for each in reports if each.stream == "weather"]
            self.celsius = said[-1] if said else self.celsius
            self._events += self._folder.events(reports)
            self._folder.write(reports)
        found: list[Event] = []
        while self._events and self._events[0].ts <= now and len(found) < _AT_ONCE:
            found.append(self._events.popleft())
        return found


class _Demo:
    """The demo as it goes on: what is on the campus, what was found, what was shown of that."""

    def __init__(self, path: Path, options: Options, view: View, began: float) -> None:
        self.view = view
        self.began = began
        self.seconds = options.seconds
        self.figures = Figures()
        self.campus = Campus.make(SCALES[options.scale], options.seed)
        self.morning = Morning(self.campus, options.seed)
        self.places: dict[str, Place] = places(self.campus)
        self.folder = Folder(path, self.campus)
        self.archive = Archive(self.folder.archive)
        self.recent = Recent(self.archive)
        self._seen: dict[str, set[str]] = {}
        self._shown: dict[tuple[str, str], int] = {}

    def all(self, spark: Starting | None, lacks: str | None) -> None:
        """From the first minutes to the end of the live part."""
        campus = self.campus
        self.view.say(
            f"A campus: {len(campus.buildings):,} buildings, {len(campus.rooms):,} rooms, "
            f"{len(campus.departments)} departments, {len(campus.sensors):,} airflow sensors of three "
            f"vendors, {len(campus.fans):,} fans, {len(campus.classes):,} classes."
        )
        if lacks is not None:
            self.view.say(f"Without Spark: {lacks}. The morning is archived in this process.")
        self._write(0, _FIRST)
        archive_here(self.folder)
        knowledge = Knowledge.load(self.folder.knowledge)
        self.view.say(
            f"Knowledge: {knowledge.asserted:,} statements, {knowledge.closed:,} with the inferred ones. "
            f"13 queries over its first {_FIRST} minutes" + (", while Spark starts:" if spark else ":")
        )
        self._past(self._queries(knowledge), "first")
        self._write(_FIRST, _MORNING)
        self._archive(spark)
        queries = self._queries(knowledge)
        self.view.say(
            f"13 queries back in time, over {sum(self.folder.next.values()):,} events from 08:00 on:"
        )
        started = time.perf_counter()
        self._past(queries, "past")
        self.figures.past = sum(self.folder.next.values()), time.perf_counter() - started
        pace = f"{self.campus.scale.pace} times real time"
        self.view.say(f"The same queries live, at {pace}, for {self.seconds:g} s:")
        self._live(queries)

    def _write(self, start: int, end: int) -> None:
        for minute, reports in enumerate(self.morning.minutes(start, end)):
            self.view.status("the morning happens", minute / (end - start))
            self.folder.write(reports)

    def _queries(self, knowledge: Knowledge) -> list[Query]:
        known = list(self.folder.annotations.values())
        return opened(self.folder.queries, self.archive, knowledge, known)

    def _archive(self, spark: Starting | None) -> None:
        started, by = time.perf_counter(), "in this process"
        self.view.status("Spark starts" if spark else "the morning is archived", 0.0)
        session, trouble = spark.wait() if spark is not None else (None, None)
        if trouble is not None:
            self.view.say(f"Spark does not start: {trouble}. The morning is archived in this process.")
        self.view.status("the morning is archived", 0.5)
        if session is not None:
            by, started = "by Spark", time.perf_counter()
            rows = archive_on_spark(self.folder, session)
        else:
            rows = archive_here(self.folder)
        took = time.perf_counter() - started
        self.figures.archived = rows, took, by
        self.view.say(f"The morning is archived {by}: {rows:,} events in {took:.1f} s.")

    # --- matches ---

    def _past(self, queries: Sequence[Query], phase: str) -> None:
        for number, query in enumerate(queries):
            self.view.status(f"{query.name} goes through the archive", number / len(queries))
            for found in query.past():
                for match in found:
                    self._take(query, match, phase)
        self.view.rest()

    def _live(self, queries: Sequence[Query]) -> None:
        started = shown = time.perf_counter()
        source = _Source(self.morning, self.folder)
        count = 0
        while (now := time.perf_counter() - started) < self.seconds:
            events = source.due(now * self.campus.scale.pace)
            if not events:
                time.sleep(_PAUSE)
                continue
            self.recent.take(events)
            pushed = time.perf_counter()
            found: list[tuple[Query, Match]] = []
            for query in queries:
                some = query.live(events)
                self.figures.latencies += [time.perf_counter() - pushed] * len(some)
                found += [(query, match) for match in some]
            for query, match in found:  # telling takes time of its own
                self._take(query, match, "live")
            count += len(events)
            self.figures.live = count, time.perf_counter() - started
            if time.perf_counter() - shown > _STATUS:
                shown = time.perf_counter()
                clock = f"{format_time(events[-1].ts)[11:16]} on the campus, {source.celsius:g} °C outside"
                rate = f"{count / (shown - started):,.0f} events/s"
                self.view.status(f"{clock}, {rate}", now / self.seconds)
        self.view.rest()

    def _take(self, query: Query, match: Match, phase: str) -> None:
        """Counts a match, once, and shows it where not enough of its kind were shown."""
        seen = self._seen.setdefault(query.name, set())
        if match.id in seen:
            return
        seen.add(match.id)
        self.figures.matches[query.name] = len(seen)
        shown = self._shown.get((query.name, phase), 0)
        shows = None
        if shown < _SHOWN[phase]:
            self._shown[query.name, phase] = shown + 1
            place = place_of(match, self.recent.event, self.places)
            shows = told(match, place, reasons(match, query.history, self.recent.event))
            if query.name == "query7" and self.figures.told is None:
                self.figures.told = match
        self.view.found(query.name, len(seen), shows)
        if self.figures.first is None:
            self.figures.first = time.perf_counter() - self.began


# --- the end -----------------------------------------------------------------------------------------------


def summary(figures: Figures) -> Iterator[str]:
    """What was measured, in lines."""
    yield ""
    yield "Summary"
    if figures.first is not None:
        yield f"  first match    after {figures.first:.1f} s"
    rows, took, by = figures.archived
    if rows:
        yield f"  archive        {rows:,} events {by} in {took:.1f} s, {rows / took:,.0f} a second"
    rows, took = figures.past
    if rows:
        yield f"  back in time   13 queries over {rows:,} events in {took:.1f} s"
    rows, took = figures.live
    if rows:
        yield f"  live           {rows:,} events in {took:.1f} s, {rows / took:,.0f} a second"
    if figures.latencies:
        ordered = sorted(figures.latencies)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] * 1_000 for share in (0.5, 0.99))
        of = f"of {len(ordered):,} matches"
        yield f"  latency        push to match: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {of}"
    shown = ", ".join(f"{name} {count:,}" for name, count in figures.matches.items())
    yield f"  matches        {shown or 'none'}"


def commands(options: Options, told: Match | None) -> Iterator[str]:
    """Commands to try; they work as they stand, one after the other. The last one is a page to look at."""
    kaicep, folder = options.command, options.keep or Path("kaicep-demo")
    at = shlex.quote(str(folder))
    about = f"--annotation {at}/annotations/airflowReport.json --knowledge {at}/knowledge"
    yield "Try next:"
    if options.keep is None:
        yield f"  {kaicep} demo --scale {options.scale} --seed {options.seed} --seconds 5 --keep {at}"
    yield f"  {kaicep} query {at}/queries/query7.chi --archive {at}/archive {about} --out table"
    if told is not None:
        events = f"--stream airflowReport={at}/data/airflowReport.jsonl"
        yield f"  {kaicep} why {told.id[:12]} {at}/queries/query7.chi {events} {about}"
    else:
        yield f"  {kaicep} explain {at}/queries/query7.chi {about}"
    if options.keep is not None:
        yield f"  {kaicep} run {at}/kaicep.toml --seconds 20"
    yield f"  {kaicep} demo --console"
