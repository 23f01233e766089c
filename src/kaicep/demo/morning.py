"""`kaicep demo`: the morning archived, queries over past and present, and how it is all shown."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from kaicep.api import read_queries
from kaicep.archive.archive import Archive, Snapshot
from kaicep.demo.campus import OPENING, SCALES, Campus, Folder, Morning, SensorReport, check_empty
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.errors import Mistake
from kaicep.history.strategies import History, history_of
from kaicep.ingest.files import ingest
from kaicep.join.handoff import HandOff, PositionRange, archived
from kaicep.knowledge.annotation import Annotation, prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, WindowAggregate
from kaicep.plan.terms import Iri, Literal, Term
from kaicep.plan.text import resolved_text
from kaicep.plan.time import format_time
from kaicep.server.service import Service
from kaicep.why.match import Statement, Why, why

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console, RenderableType


# ----------------------------------------------------------------------------------------------------------
# What is shown of a match: when, which room, whose, and why it holds.

TITLES: Mapping[str, str] = {
    "query1": "above 500 cfm, as vendor A says it",
    "query2": "above 500 cfm on the average of five minutes, everywhere",
    "query3": "above 500 cfm, and within five minutes 50 more",
    "query4": "an EE office above 500 cfm, whatever its vendor says",
    "query5": "an EE office above what the ontology calls green",
    "query6": "EE offices above 500 cfm on the average of five minutes",
    "query7": "a meeting room above 500 cfm, and within five minutes 50 more",
    "empty-but-cooled": "a meeting room is empty and cooled",
    "disagree": "two sensors of one room disagree",
    "fan-after-closing": "a fan runs in a building that has closed",
    "silent": "a sensor has said nothing for ten minutes",
    "rising": "three readings, each higher than the one before",
    "over-budget": "a department stays above its green budget",
}
"""What each query asks, in a few words."""

_MOST = 3
EventOf = Callable[[str, int], Event]
"""The event of a stream at a position."""


@dataclass(frozen=True)
class Whereabouts:
    """Where something is, and whose that is."""

    where: str
    department: str

    def __str__(self) -> str:
        return f"{self.where} of {self.department}"


def places(campus: Campus) -> dict[str, Whereabouts]:
    """Where things are, by what events and knowledge call them."""
    found: dict[str, Whereabouts] = {}
    floors: dict[str, str] = {}
    for room in campus.rooms:
        kind = re.sub(r"(?<!^)(?=[A-Z])", " ", room.kind).lower()
        place = Whereabouts(f"{room.sign}, {kind}", room.department.label)
        found[room.name] = found[room.sign] = place
        floors[f"{room.building.code}-FAN{room.number[0]}"] = room.department.label
        for sensor in campus.by_room[room.name]:
            found[sensor.name] = place
    for fan, building in campus.fans.items():
        found[fan] = Whereabouts(f"{building.code}, floor {fan[-1]}", floors[fan])
    for each in campus.departments:
        found[each.meter] = Whereabouts("all rooms", each.label)
    return found


@dataclass(frozen=True)
class ShownMatch:
    """A match as the demo shows it: when, where, and why it holds."""

    when: str
    where: str
    why: str


def told(match: Match, place: Whereabouts | None, why: Sequence[str]) -> ShownMatch:
    """What there is to show of a match."""
    start, end = (format_time(each)[11:19] for each in (match.start_us, match.end_us))
    where = str(place) if place is not None else "nowhere that is known"
    return ShownMatch(end if start == end else f"{start}-{end}", where, "; ".join(why) or "no more is asked")


def place_of(match: Match, event_of: EventOf, known: Mapping[str, Whereabouts]) -> Whereabouts | None:
    """Where a match is: where the first of its events is that is somewhere."""
    for identity in _identities(match):
        event = event_of(identity["stream"], identity["seq"])
        for name in ("sensorID", "room", "fan", "meter"):
            found = known.get(str(event.values.get(name)))
            if found is not None:
                return found
    return None


def reasons(match: Match, history: History, event_of: EventOf) -> list[str]:
    """Why a match holds: its conditions with the numbers in them, and what follows from the knowledge."""
    (plan,) = history.program.queries
    if isinstance(plan, ChiPlan) and isinstance(plan.body, WindowAggregate):
        return _of_window(match, plan.body)
    events = [event_of(each["stream"], each["seq"]) for each in _identities(match)]
    made = why(match, history, events)
    return [*_conditions(made), *_spans(made), *_absences(match, made), *_knowledge(made)]


def _of_window(match: Match, node: WindowAggregate) -> list[str]:
    """A window may hold more events than one wants to go through again: what it came to is in the match."""
    asked = " and ".join(resolved_text(each) for each in node.having)
    came = ", ".join(_short(each) for each in match.select.values())
    return [f"{asked} is {came}", f"over {_lasting(match.end_us - match.start_us)}"]


def _identities(match: Match) -> Iterator[dict[str, Any]]:
    for shown in (match.events or {}).values():
        yield from shown if isinstance(shown, list) else [shown]


def _conditions(made: Why) -> Iterator[str]:
    for each in made.conditions:
        same = re.fullmatch(r"(.+) = (.+)", each.filled)
        if same is None or same[1] != same[2]:  # that something is itself tells nobody anything
            yield re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), each.filled)


def _spans(made: Why) -> Iterator[str]:
    for each in made.windows:
        if each.spans:
            yield f"{_lasting(each.spans)} apart"


def _absences(match: Match, made: Why) -> Iterator[str]:
    if made.events and match.end_us > made.events[-1].event.ts:
        last = made.events[-1].event.ts
        yield f"nothing since {format_time(last)[11:19]}, for {_lasting(match.end_us - last)}"


def _knowledge(made: Why) -> list[str]:
    """What the knowledge has to say: numbers, then what was inferred, then what was asserted."""
    numbers: dict[str, None] = {}
    inferred: dict[str, None] = {}
    asserted: dict[str, None] = {}
    for shown in made.paths:
        for name, term in sorted(shown.proof.bindings.items()):
            if isinstance(term, Literal) and re.fullmatch(r"[\d.Ee+-]+", term.lexical):
                numbers[f"?{name} is {float(term.lexical):g}"] = None
        for each in shown.proof.statements:
            if each.rule != "event" and isinstance(each.triple[2], Iri):
                (asserted if each.rule == "asserted" else inferred)[_statement(each)] = None
    return [*numbers, *[*inferred, *asserted][:_MOST]]


def _statement(statement: Statement) -> str:
    subject, predicate, value = (_name(each) for each in statement.triple)
    if predicate != "type":
        return f"{subject} {predicate} {value}"
    asserted = next((each for each in statement.premises if each.triple[0] == statement.triple[0]), None)
    if asserted is None:
        return f"{subject} is {_one(value)}"
    return f"{subject} is {_one(_name(asserted.triple[2]))}, hence {_one(value)}"


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOU' else 'a'} {noun}"


def _lasting(microseconds: int) -> str:
    """How long something takes.

    >>> _lasting(196_000_000), _lasting(23_000_000)
    ('3 min 16 s', '23 s')
    """
    minutes, seconds = divmod(microseconds // 1_000_000, 60)
    shown = [f"{minutes} min"] if minutes else []
    return " ".join([*shown, f"{seconds} s"] if seconds or not minutes else shown)


def _name(term: Term) -> str:
    text = term.value if isinstance(term, Iri) else term.lexical if isinstance(term, Literal) else str(term)
    return re.split(r"[#/]", text)[-1]


def _short(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


# ----------------------------------------------------------------------------------------------------------
# Where the demo is seen: a terminal that is updated in place, or plain lines.

_WIDE = 110
"""Columns of a terminal that has room for what each query asks."""


class _Found:
    """The matches by query: how many, and the one that is shown."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(TITLES, 0)
        self.shown: dict[str, ShownMatch] = {}

    def take(self, query: str, total: int, told: ShownMatch | None) -> None:
        self.totals[query] = total
        if told is not None:
            self.shown[query] = told

    def rows(self) -> Iterator[tuple[str, str, str, ShownMatch]]:
        """Of each query its name, how many matches it has, what it asks for, and one of them."""
        for name, total in self.totals.items():
            yield (
                name,
                f"{total:,}" if total else "",
                TITLES[name],
                self.shown.get(name, ShownMatch("", "", "")),
            )


class PlainView:
    """Lines: what is said, and a table of what was found at the end of each part."""

    def __init__(self) -> None:
        self._found = _Found()

    def say(self, text: str) -> None:
        """Prints it."""
        print(text, flush=True)

    def found(self, query: str, total: int, told: ShownMatch | None) -> None:
        """Keeps it for the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Says nothing: what changes all the time is for a screen."""

    def rest(self) -> None:
        """Prints the table."""
        rows = [("query", "matches", "one of them", "where", "why")]
        rows += [(name, total, *vars(told).values()) for name, total, _, told in self._found.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(4)]
        for name, total, *rest in rows:
            cells = [each.ljust(width) for each, width in zip(rest, widths[2:], strict=False)]
            print("  ".join(["", name.ljust(widths[0]), total.rjust(widths[1]), *cells, rest[-1]]).rstrip())
        print(flush=True)

    def close(self) -> None:
        """Has nothing to let go of."""


class Terminal:
    """What is said scrolls by; below it stands a table of what was found, drawn anew a few times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._found = _Found()
        self._status = ""
        self._share = 0.0
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=6)
        self._live.start()

    def say(self, text: str) -> None:
        """Prints it above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=not self._live.is_started)

    def found(self, query: str, total: int, told: ShownMatch | None) -> None:
        """Shows it in the table."""
        self._found.take(query, total, told)

    def status(self, text: str, share: float) -> None:
        """Shows it below the table, with a bar."""
        self._status, self._share = text, share

    def rest(self) -> None:
        """The table is there all the time."""

    def close(self) -> None:
        """Leaves the last picture on the screen, without the bar."""
        self._status = ""
        self._live.stop()

    def _drawn(self) -> RenderableType:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        wide = self._console.width >= _WIDE
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("query", style="bold cyan", no_wrap=True)
        table.add_column("matches", justify="right", style="green", no_wrap=True)
        if wide:
            table.add_column("asks for", no_wrap=True, ratio=4)
        table.add_column("when", style="magenta", no_wrap=True)
        table.add_column("where", style="yellow", no_wrap=True, ratio=3)
        table.add_column("why", style="dim", no_wrap=True, ratio=4)
        for name, total, title, told in self._found.rows():
            asked = [Text(title)] if wide else []
            table.add_row(name, total, *asked, told.when, Text(told.where), Text(told.why))
        if not self._status:
            return Group(Text(""), table)
        bar = ProgressBar(total=1.0, completed=self._share, width=30)
        return Group(Text(""), table, Columns([bar, Text(self._status, style="cyan")]))


View = PlainView | Terminal
"""Takes what there is to show."""


# ----------------------------------------------------------------------------------------------------------
# The queries of the demo, each from the archived past on into what comes.


class DemoQuery:
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
            PositionRange(stream, 0, some[0].seq, some[-1].seq + 1, some) for stream, some in own.items()
        )


def opened(
    paths: Sequence[Path], archive: Archive, knowledge: Knowledge, annotations: Sequence[Annotation]
) -> list[DemoQuery]:
    """The queries of some files, over what the archive holds now."""
    snapshot = archive.snapshot()
    parsed = read_queries(paths, prefixes_of(annotations))
    now = time.time_ns() // 1_000
    return [DemoQuery(history_of([each], archive, knowledge, annotations, now), snapshot) for each in parsed]


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


# ----------------------------------------------------------------------------------------------------------
# The morning into the archive: by Spark where there is Java, in this process where there is none.


def missing() -> str | None:
    """What Spark lacks on this machine; None where all is here."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'kaicep[spark]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        return "no Java was found, and Spark needs Java 17 or later: `kaicep doctor` tells how to get it"
    return None


def need_delta() -> None:
    """Refuses to begin without what an archive is kept with."""
    if find_spec("deltalake") is None or find_spec("pyarrow") is None:
        raise Mistake("the demo keeps an archive", hint="pip install 'kaicep[delta]'")


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what a JVM writes to stderr while it starts: it would stand in the middle of the picture."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Starting:
    """A Spark session that starts in the background: a JVM takes a while."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._trouble: str | None = None
        self._thread = Thread(target=self._start, name="spark", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from kaicep.hosts.spark.session import own_session

        try:
            with _hushed():
                self._session = own_session()
        except Exception as error:  # whatever it is, the demo can do without
            self._trouble = (str(error) or type(error).__name__).splitlines()[0]

    def wait(self) -> tuple[SparkSession | None, str | None]:
        """The session, once it is there, or what kept it from starting."""
        self._thread.join()
        return self._session, self._trouble

    def stop(self) -> None:
        """Ends the session; one that has not started yet ends with the process."""
        if self._session is not None:
            self._session.stop()


def archive_here(folder: Folder) -> int:
    """Archives what the files have that the archive does not, in this process; says how many events."""
    archive = Archive(folder.archive)
    return sum(ingest(archive, folder.form(each), folder.data(each)).rows for each in folder.next)


def archive_on_spark(folder: Folder, session: SparkSession) -> int:
    """The same by Spark, whose workers read the files and write those of the archive."""
    from kaicep.ingest.on_spark import ingest as ingest_on_spark

    archive = Archive(folder.archive)
    return sum(
        ingest_on_spark(session, archive, folder.form(each), folder.data(each)).rows for each in folder.next
    )


# ----------------------------------------------------------------------------------------------------------
# The campus as a deployment that goes on: its morning is archived, and then it reports as time passes.

_FIRST_HOURS = 120  # minutes
_EVERY = 0.1  # seconds


def keep_alive(
    path: Path,
    scale: str,
    seed: int,
    seconds: float | None,
    say: Callable[[str], None],
    stopped_by: Callable[[Deployment], AbstractContextManager[None]],
) -> None:
    """Makes a campus in a folder and runs it; `say` is told where its console is."""
    need_delta()
    campus = Campus.make(SCALES[scale], seed)
    morning = Morning(campus, seed)
    folder = Folder(path, campus)
    for reports in morning.minutes(0, _FIRST_HOURS):
        folder.write(reports)
    say(f"A campus of {len(campus.sensors):,} airflow sensors; its morning is archived ...")
    archive_here(folder)
    deployment = Deployment(load_config(path / "kaicep.toml"))
    over = threading.Event()
    pace = campus.scale.pace
    with Service(deployment) as service, stopped_by(deployment):
        say(f"It runs at {pace} times real time. The console: {service.url}/console")
        reporting = threading.Thread(target=_report, args=(morning, folder, pace, over), daemon=True)
        reporting.start()
        try:
            deployment.run(seconds)
        finally:
            over.set()
            reporting.join()


def _report(morning: Morning, folder: Folder, pace: int, over: threading.Event) -> None:
    """Writes every report into the file of its stream when it is due."""
    started = time.monotonic()
    minute = _FIRST_HOURS
    waiting: deque[SensorReport] = deque()
    while not over.wait(_EVERY):
        now = OPENING + int((_FIRST_HOURS * 60 + (time.monotonic() - started) * pace) * 1_000_000)
        while not waiting or waiting[-1].ts <= now:
            waiting += morning.minute(minute)
            minute += 1
        due: list[SensorReport] = []
        while waiting and waiting[0].ts <= now:
            due.append(waiting.popleft())
        if due:
            folder.write(due)


# ----------------------------------------------------------------------------------------------------------
# The demo: a campus is made, its morning archived, asked back in time, and followed live.

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


class _CampusSource:
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
        self.places: dict[str, Whereabouts] = places(self.campus)
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

    def _queries(self, knowledge: Knowledge) -> list[DemoQuery]:
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

    def _past(self, queries: Sequence[DemoQuery], phase: str) -> None:
        for number, query in enumerate(queries):
            self.view.status(f"{query.name} goes through the archive", number / len(queries))
            for found in query.past():
                for match in found:
                    self._take(query, match, phase)
        self.view.rest()

    def _live(self, queries: Sequence[DemoQuery]) -> None:
        started = shown = time.perf_counter()
        source = _CampusSource(self.morning, self.folder)
        count = 0
        while (now := time.perf_counter() - started) < self.seconds:
            events = source.due(now * self.campus.scale.pace)
            if not events:
                time.sleep(_PAUSE)
                continue
            self.recent.take(events)
            pushed = time.perf_counter()
            found: list[tuple[DemoQuery, Match]] = []
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

    def _take(self, query: DemoQuery, match: Match, phase: str) -> None:
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
