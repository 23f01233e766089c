"""A deployment on Spark: sources -> archive -> matches table -> sinks, each arrow by a commit.

*Ingest* are jobs whose tasks write the files of the archive. *Match* are jobs over what the archive got
since the last one, for all queries at once; their commit to the table of matches carries how far they
answer, the queries, and the files of what their engines keep. So a driver that is lost goes on from that
commit, and what it had begun beyond it never was. *Sinks* read the table of matches. The driver controls,
and commits.

What registers a query is a commit too: its past are the versions of the archive before, its present those
after it. Sources that send to this process (MQTT, HTTP) are archived by it.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kaicep.archive.archive import Archive, Cut, Snapshot
from kaicep.archive.parquet import DataFile, measured
from kaicep.archive.table import ArchiveTable, TableState
from kaicep.connectors.kafka import KafkaSourceOptions
from kaicep.connectors.registry import read_options
from kaicep.connectors.sinks.delta import match_of_row, match_schema
from kaicep.connectors.sources.files import FileSourceOptions
from kaicep.deployment.config import Config, SinkConfig, StreamConfig
from kaicep.deployment.registered import SUFFIXES, Registered, absolute, check_name, readers_of, upstream
from kaicep.deployment.running import STEPS, Commands, Ending, Listener, archive_status, engine_status, locked
from kaicep.deployment.sessions import bounds_of
from kaicep.deployment.sinks import BACKLOG, NoSink, Outlet
from kaicep.deployment.spark_step import (
    Done,
    MatchStep,
    QueryUnit,
    SavedState,
    UnitGroup,
    grouped,
    match_step,
    pack_groups,
)
from kaicep.deployment.streams import Feed, attach_tables, reached_status
from kaicep.deployment.versions import news_of, opened
from kaicep.errors import Failure, KaicepError, Mistake, reason_of
from kaicep.history.strategies import history_of
from kaicep.hosts.queries import asks_the_knowledge
from kaicep.knowledge.annotation import prefixes_of
from kaicep.optimize import RULES, STEADY
from kaicep.plan.events import Match, by_end
from kaicep.plan.sparql import EpQuery
from kaicep.plan.time import format_time
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.disk import make_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger("kaicep.run")

_MATCHES, _STATES = "matches", "states"
_SHOWN = {"spark.ui.enabled": "true", "spark.log.level": "WARN"}
"""What is seen of Spark while a deployment runs, unless the file says otherwise; a command is quieter."""
_SHOW_EVERY = 0.25
_DRAIN = 30.0


@dataclass
class _StreamIngest:
    """A stream on its way into the archive, by Spark or, where it comes to this process, by this process."""

    config: StreamConfig
    origin: Path | KafkaSourceOptions | None
    follow: bool
    feed: Feed | None = None
    ended: bool = False
    rows: int = 0
    late: int = 0
    dead: int = 0
    trouble: str | None = None
    heard: dict[int, tuple[int, float]] = field(default_factory=dict)

    def silent(self, part: int, position: int) -> bool:
        """Whether nothing has come of a part for so long that it holds nobody back."""
        now = time.monotonic()
        known = self.heard.get(part)
        if known is None or known[0] != position:
            self.heard[part] = (position, now)
            return False
        return now - known[1] > self.config.idle / 1_000_000


class SparkDeployment:
    """What `kaicep.toml` describes, on Spark. `run` works until it is stopped, or all sources ended."""

    def __init__(self, config: Config, now: int | None = None) -> None:
        self.config = config
        self.started = time.time()
        self.ticked = time.monotonic()
        self.archive = Archive(config.archive.absolute())
        self.listeners: list[Listener] = []
        self.endings: list[Ending] = []
        self.published: dict[str, Any] = {}
        """The status of a moment ago, for other threads."""
        self._took: deque[float] = deque(maxlen=STEPS)
        self._step: dict[str, int] = {}
        """Of the last step: the new events, those sent to engines, to the busiest one, the bytes of state."""
        self._sent: Counter[str] = Counter()
        """How many events the engines of each group got since the start."""
        self._kept: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        """The queries from outside that were ended, and why."""
        self.told: Counter[str] = Counter()
        self.last: dict[str, int] = {}
        self._now = now
        self._stopping = threading.Event()
        self._commands = Commands()
        self._lock = locked(config.state)
        for folder in (config.state / "marks", config.changes):
            folder.mkdir(exist_ok=True)
        kept = config.checkpoint.absolute()
        self._states = kept / _STATES
        make_folder(self._states)
        self.knowledge, self._versions = opened(config, kept / "versions")
        self._again = True
        """Whether the next step may have been done before, and is done by the knowledge of that time."""
        self._unknown: str | None = None
        self._prefixes = prefixes_of(config.annotations)
        self.sources = {name: self._source(each) for name, each in config.streams.items()}
        wanted = config.sinks or {"none": SinkConfig("none", {})}
        self.outlets = {
            name: Outlet(each, config.state / "marks", None if config.sinks else NoSink())
            for name, each in wanted.items()
        }
        matches = kept / _MATCHES
        ArchiveTable.create(matches, _MATCHES, match_schema())
        self.matches = ArchiveTable(matches, _MATCHES)
        progress = self.matches.state.progress or {}
        self.number: int = progress.get("number", 0)
        self.queries = {each["name"]: Registered(**each) for each in progress.get("queries", ())}
        self._outside: dict[str, Registered] = {n: q for n, q in self.queries.items() if q.outside}
        self._held = Snapshot({}, _cut(progress.get("cut", {})))
        self._committed: Mapping[str, int] = progress.get("versions", {})
        self._first: set[str] = set()
        """The queries that were there before any event: nothing is past for them."""
        self._since = {name: _cut(each) for name, each in progress.get("since", {}).items()}
        self._saved: list[Mapping[str, Any]] = progress.get("groups", [])
        self.told.update(progress.get("told", {}))
        self.last.update(progress.get("last", {}))
        self.groups: list[UnitGroup] = []
        self._sending: dict[str, Any] = {}
        self._ingest_failed: BaseException | None = None
        self._ended: frozenset[str] = frozenset()
        self._closed: set[str] = set()
        self._shown = 0.0
        self._moment = 0
        self.spark: SparkSession | None = None

    def _source(self, config: StreamConfig) -> _StreamIngest:
        options = {name: value for name, value in config.source.items() if name != "kind"}
        where = f"stream {config.name}"
        if config.source["kind"] == "files":
            files = read_options(FileSourceOptions, options, where)
            return _StreamIngest(config, files.path.absolute(), files.follow)
        if config.source["kind"] == "kafka":
            topic = read_options(KafkaSourceOptions, options, where)
            return _StreamIngest(config, topic, topic.follow)
        feed = Feed(config, self.archive)
        return _StreamIngest(config, None, not feed.finite, feed)

    @property
    def catalogue(self) -> SparkDeployment:
        """Who has the texts of the queries, for those who ask a deployment for its catalogue."""
        return self

    def text(self, name: str) -> Registered | None:
        """A registered query."""
        return self.queries.get(name)

    # --- beginning and end ---

    def run(self, seconds: float | None = None) -> None:
        """Runs until all sources have ended and all is answered, `stop` is called, or the time is over."""
        deadline = time.monotonic() + seconds if seconds is not None else math.inf
        ingesting = threading.Thread(target=self._ingest, name="kaicep-ingest", daemon=True)
        try:
            self.open()
            ingesting.start()
            while not self._stopping.is_set() and time.monotonic() < deadline:
                begun = time.monotonic()
                busy = self.tick()
                if self.is_over:
                    _log.info("all sources have ended")
                    break
                if not busy:
                    after = begun + self.config.engine.trigger / 1_000_000
                    self._commands.do_until(after, self._stopping.is_set)
        finally:
            self._stopping.set()
            if ingesting.ident is not None:
                ingesting.join()
            self.close()

    def stop(self) -> None:
        """Lets `run` come to an end: what is committed by then is what counts. May be called by anybody."""
        self._stopping.set()
        self._commands.wake()

    def open(self) -> None:
        """Starts the session, sends this package to its executors, and goes on where everything stood."""
        from kaicep.hosts.spark.session import configured, is_connect, own_session, use_cluster
        from kaicep.spark import ship

        self.published = self.status()
        cluster = self.config.engine.cluster
        use_cluster(replace(cluster, conf={**_SHOWN, **cluster.conf}))
        self.spark = own_session()
        url, said_by = configured()
        if is_connect(self.spark) or not url.startswith("local"):
            (self.config.state / "ship").mkdir(exist_ok=True)
            ship(self.spark, (self.config.state / "ship").absolute())
        for outlet in self.outlets.values():
            outlet.open()
        attach_tables(self.config, self.archive, self._files_of)
        for each in self.sources.values():
            if each.feed is not None:
                each.feed.open()
        self._restore()
        pack_groups(self.groups, self._sending)
        later = list(self._versions.since(self.knowledge.knowledge.version))
        if later:
            self._write_states()
        for number, contents in later:
            self.knowledge.follow(contents, number)
        self._look_at_queries()
        self.published = self.status()
        counts = len(self.sources), len(self.queries)
        _log.info(
            "%s runs on Spark, %s (%s): %d streams, %d queries", self.config.name, url, said_by, *counts
        )
        if not is_connect(self.spark) and self.spark.sparkContext.uiWebUrl:
            _log.info("Spark's own pages: %s", self.spark.sparkContext.uiWebUrl)

    def _files_of(self, table: str) -> list[str]:
        """The files of a table of the catalog."""
        from pyspark.errors import PySparkException

        assert self.spark is not None
        try:
            files = self.spark.table(table).inputFiles()
        except PySparkException as error:
            raise Mistake(f"{table}: {str(error).splitlines()[0]}") from None
        return sorted(re.sub("^file:/+", "/", unquote(each)) for each in files)

    @property
    def is_over(self) -> bool:
        """Whether all sources have ended, and everything is answered and delivered."""
        answered = all(each.id in self._closed for each in self.groups)
        return len(self._ended) == len(self.sources) and answered

    def close(self) -> None:
        """Waits until the sinks have everything, and lets others have the state folder."""
        for outlet in self.outlets.values():
            outlet.close(_DRAIN)
        behind = [name for name, each in self.outlets.items() if each.settled < self._moment]
        for source in self.sources.values():
            if source.feed is not None:
                source.feed.close()
        for name in self.queries:
            _log.info("%s: stopped, %d matches", name, self.told[name])
        self._lock.close()
        if behind:
            _log.warning("sink %s did not take everything: it gets the rest next time", behind[0])

    def ask(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Has something done by the deployment's own thread, between two steps; for other threads."""
        return self._commands.ask(what, seconds)

    # --- ingest: a thread of its own ---

    def _ingest(self) -> None:
        """Takes in what the sources have, by jobs of Spark's, until there is no more or this is stopped."""
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                behind = any(each.backlog > BACKLOG for each in self.outlets.values())
                for source in () if behind else self.sources.values():
                    if not (source.ended or self._stopping.is_set()):
                        self._take(source)
                left = begun + self.config.engine.trigger / 1_000_000 - time.monotonic()
                if all(each.ended for each in self.sources.values()) or self._stopping.wait(max(0.0, left)):
                    return
        except BaseException as error:  # raised again, in the deployment's own thread
            self._ingest_failed = error

    def _take(self, source: _StreamIngest) -> None:
        from kaicep.ingest.on_spark import ingest

        if source.feed is not None:
            source.feed.take(0.0, lambda event: False)
            source.ended, counts = source.feed.ended, source.feed.counts
            source.rows, source.late, source.dead = counts.events, counts.late, counts.dead
            return
        assert source.origin is not None
        assert self.spark is not None

        def trouble(said: str) -> None:
            source.trouble = said

        form, lateness = source.config.form, source.config.lateness
        done = ingest(
            self.spark, self.archive, form, source.origin, lateness, waiting=trouble, growing=source.follow
        )
        source.rows += done.rows
        source.late += done.late
        source.dead += len(done.dead)
        source.ended = not source.follow

    # --- match ---

    def tick(self) -> bool:
        """Answers what the archive has got, and hands on what is certain; whether there was anything."""
        self.ticked = time.monotonic()
        if self._ingest_failed is not None:
            raise self._ingest_failed
        self._commands.do_all()
        self._look_at_knowledge()
        self._ended = frozenset(
            name for name, each in self.sources.items() if each.ended
        )  # before the archive
        self._look_at_queries()
        busy = self._match()
        self._again = False
        self._deliver()
        if busy:
            self._took.append(time.monotonic() - self.ticked)
        if time.monotonic() - self._shown > _SHOW_EVERY:
            self.published, self._shown = self.status(), time.monotonic()
        return busy

    def _match(self) -> bool:
        """One step for all groups, where anything is new for one of them."""
        now = self.archive.snapshot()
        watermarks = {each.id: self._watermark(each, now) for each in self.groups}
        ended = frozenset(each.id for each in self.groups if self._ended.issuperset(each.streams))
        new = now.cut != self._held.cut or not self._held.tables
        moved = any(watermarks[each.id] != each.watermark for each in self.groups)
        if not (new or moved or ended - self._closed):
            return False
        live = [each for each in self.groups if each.id not in self._closed]
        if live:
            rows = Snapshot(now.tables, None, self._held)
            step = MatchStep(live, rows, watermarks, ended, slices=self.config.engine.buckets)
            self.groups = self._stepped(step, now)
        self._held = Snapshot(now.tables)
        self._closed |= ended
        return True

    def _stepped(self, step: MatchStep, now: Snapshot) -> list[UnitGroup]:
        """Does a step and commits it: matches, states and cut in one; the groups as they are after it."""
        done = self._done(step)
        by_group: dict[str, list[Done]] = {}
        kept: Counter[str] = Counter()
        for each in done:
            by_group.setdefault(each.group, []).append(each)
            self.told.update(each.counts)
            self._sent[each.group] += each.rows
            kept.update(each.held)
            for name, end in each.last.items():
                self.last[name] = max(end, self.last.get(name, end))
        self._kept |= kept
        self._step = {
            "events": step.events,
            "sent": sum(each.rows for each in done),
            "widest": max((each.rows for each in done), default=0),
            "written": sum(each.written for each in done),
        }
        before = {name for each in self.groups for name in each.files}
        stepped = {each.id: each for each in self._after(step, by_group)}
        every = [stepped.pop(each.id, each) for each in self.groups] + list(stepped.values())
        groups = [each for each in every if not self.ended.keys() & set(each.reported)]
        files = [measured(self.matches.folder, each.path) for each in done if each.path is not None]
        self._commit(groups, now, files)
        for name in before - {name for each in groups for name in each.files}:
            (self._states / name).unlink(missing_ok=True)
        return groups

    def _done(self, step: MatchStep) -> list[Done]:
        """One job for all groups; where it fails, those of queries from outside are tried one by one.

        Whoever fails alone is ended: nothing that others ask ends the deployment's own queries.
        """
        assert self.spark is not None
        spark, place = self.spark, (self.number + 1, self.matches.folder, self._states, self._sending)
        guests = [each for each in step.groups if each.units[0].outside]
        try:
            return match_step(spark, step, *place)
        except Exception as error:
            if not guests:
                raise
            _log.warning("a step failed, and is tried without queries from outside: %s", reason_of(error))
        own = [each for each in step.groups if each not in guests]
        done = match_step(spark, replace(step, groups=own), *place) if own else []
        for guest in guests:
            try:
                done += match_step(spark, replace(step, groups=[guest]), *place)
            except Exception as error:
                self._end(guest, reason_of(error))
        return done

    def _end(self, guest: UnitGroup, reason: str) -> None:
        for name in guest.reported:
            _log.warning("%s: ended: %s", name, reason)
            self.ended[name] = reason
            self._outside.pop(name, None)
            self.queries.pop(name, None)
            for told in self.endings:
                told(name, reason)

    def _after(self, step: MatchStep, done: Mapping[str, Sequence[Done]]) -> Iterator[UnitGroup]:
        for group in step.groups:
            states = {each.bucket: each.state for each in done.get(group.id, ()) if each.state is not None}
            yield replace(group, states=states, watermark=step.watermarks.get(group.id))

    def _commit(self, groups: Sequence[UnitGroup], held: Snapshot, files: Sequence[DataFile] = ()) -> None:
        """Makes a version of the table of matches: what is new in it, and from where to go on."""
        self.number += 1
        progress = {
            "number": self.number,
            "cut": json.loads(held.cut.text()),
            "versions": held.versions,
            "queries": [asdict(each) for each in self.queries.values()],
            "groups": [self._written(each) for each in groups],
            "since": {name: json.loads(cut.text()) for name, cut in self._since.items()},
            "told": dict(self.told),
            "last": self.last,
        }
        self.matches.commit(TableState(progress=progress), files)
        self._versions.forget(
            lambda *_: False
        )  # what the last commit was found with is the oldest that matters

    def _written(self, group: UnitGroup) -> dict[str, Any]:
        queries = {each.name: each for unit in group.units for each in unit.registered}
        return {
            "id": group.id,
            "units": [unit.names for unit in group.units],
            "queries": [asdict(each) for each in queries.values()],
            "reported": group.reported,
            "buckets": group.buckets,
            "states": {bucket: asdict(each) for bucket, each in group.states.items()},
            "watermark": group.watermark,
        }

    def _watermark(self, group: UnitGroup, now: Snapshot) -> int | None:
        """How far time has come for a group: the least of its parts, those left out that are silent."""
        active: list[float] = []
        silent: list[float] = []
        for name in group.streams:
            source, table = self.sources.get(name), now.tables.get(name)
            if table is None:
                return group.watermark
            lateness = 0 if source is None else source.config.lateness
            if lateness is None:
                return group.watermark  # only the end settles anything
            for part, position in table.positions.items():
                reached = table.newest.get(part, -math.inf) - lateness
                over = source is None or source.ended or source.silent(part, position)
                (silent if over else active).append(reached)
        found = min(active) if active else max(silent, default=-math.inf)
        if found == -math.inf:
            return group.watermark
        return int(found) if group.watermark is None else max(int(found), group.watermark)

    # --- deliver ---

    def _deliver(self) -> None:
        """Gives every sink what the table of matches has got since it committed last."""
        committed = {name: self._delivered(each) for name, each in self.outlets.items()}
        if all(number >= self.number for number in committed.values()):
            return
        least = min(committed.values())
        files = sorted(each.path for each in self.matches.files() if int(each.path[:12]) > least)
        self._moment += 1
        fresh: list[Match] = []
        found: dict[int, list[Match]] = {}
        for path in files:
            found.setdefault(int(path[:12]), []).extend(_read(self.matches.folder / path))
        for number in sorted(found):
            some = sorted(found[number], key=by_end)
            found[number] = some
            fresh += some
        for name, outlet in self.outlets.items():
            wanted = [
                match
                for number, some in sorted(found.items())
                if number > committed[name]
                for match in some
                if outlet.config.takes(match.query, match.query in self._outside)
            ]
            outlet.send(wanted, {_MATCHES: {"number": self.number}}, self._moment)
        for listen in self.listeners if fresh else ():
            listen([(match.query, match) for match in fresh])

    @staticmethod
    def _delivered(outlet: Outlet) -> int:
        number: int = outlet.entries.get(_MATCHES, {}).get("number", 0)
        return number

    # --- queries and knowledge ---

    def register(self, name: str, language: str, text: str) -> None:
        """Takes a query in from outside: back in time if it says so, then on with what comes."""
        check_name(name, self.config.streams)
        known = self.queries.get(name)
        if known is not None and not known.outside:
            hint = f"edit its file in {self.config.queries}, or use another name"
            raise Mistake(f"{name} is a query of the deployment itself", hint=hint)
        made = Registered(name, SUFFIXES[language], text, None, outside=True)
        made.parse(self._prefixes)
        self._outside[name] = made
        self.ended.pop(name, None)
        self._look_at_queries()
        self.published = self.status()

    def unregister(self, name: str) -> None:
        """Removes a query that came in from outside."""
        known = self.queries.get(name)
        if known is None:
            raise Mistake(f"no query is called {name}")
        if not known.outside:
            hint = f"remove its file from {self.config.queries}"
            raise Mistake(f"{name} is a query of the deployment itself", hint=hint)
        parsed = {each.name: each.parse(self._prefixes) for each in self.queries.values()}
        readers = readers_of(name, parsed, self._classed)
        if readers:
            raise Mistake(f"{name} is read by {', '.join(readers)}", hint="remove those first")
        del self._outside[name]
        self._look_at_queries()
        self.published = self.status()

    @property
    def _classed(self) -> list[str]:
        asked = self.config.asked.items()
        return [name for name, each in asked if each.annotation and each.annotation.event_class]

    def _look_at_knowledge(self) -> None:
        """Takes what is new in the knowledge, and writes it down before an event is judged by it."""
        if self._again:
            return
        change, self._unknown = news_of(self.knowledge)
        if change is not None:
            self._write_states()
            self._versions.add(change.version, self.knowledge.news_of_files(), {})

    def _write_states(self) -> None:
        """Writes all states whole, by the knowledge that judged their rows, before that is another."""
        groups = [each for each in self.groups if any(state.since for state in each.states.values())]
        if groups:
            watermarks = {each.id: each.watermark for each in groups}
            step = MatchStep(groups, Snapshot({}), watermarks, whole=True)
            self.groups = self._stepped(step, self._held)

    def _files(self) -> Iterator[Registered]:
        """The queries of the folder; one that is missing says nothing."""
        if not self.config.queries.is_dir():
            yield from (each for each in self.queries.values() if not each.outside)
            return
        for path in sorted(self.config.queries.glob("*")):
            if path.suffix in SUFFIXES.values() and not path.name.startswith("."):
                yield Registered(path.stem, path.suffix, path.read_text("utf-8"), None)

    def _look_at_queries(self) -> None:
        """Takes note of what is new, changed or gone; begins what can begin, and ends what is gone."""
        wanted = {each.name: each for each in (*self._files(), *self._outside.values())}
        texts = {name: (each.suffix, each.text) for name, each in wanted.items()}
        known = {name: (each.suffix, each.text) for name, each in self.queries.items()}
        gone = {name for name in known if known[name] != texts.get(name)}
        new = {name for name in texts if texts[name] != known.get(name)}
        every = [*wanted.values(), *self.queries.values()]
        changed = [each for each in every if each.name in gone | new and not each.outside]
        if any(each.suffix == ".epsparql" for each in changed):
            # What one EP-SPARQL query of the deployment constructs all of them read: they begin together.
            triples = {name for name, (suffix, _) in texts.items() if suffix == ".epsparql"}
            gone, new = gone | (triples & known.keys()), new | triples
        for name in gone:
            _log.info("%s: %s", name, "changed, and starts again" if name in new else "removed")
            del self.queries[name]
            self.problems.pop(name, None)
        for name in sorted(new):
            self._note(wanted[name])
        self.groups = [kept for each in self.groups if (kept := _without(each, frozenset(gone)))]
        begun = self._begin()
        if (gone or new) and not begun:
            self._commit(self.groups, self._held)

    def _note(self, query: Registered) -> None:
        """Registers a query: what `now` is in it, and for EP-SPARQL from which positions on it counts."""
        tables = self._held.tables or self.archive.snapshot().tables
        if not any(any(each.positions.values()) for each in tables.values()):
            self._first.add(query.name)
        newest = [ts for table in tables.values() for ts in table.newest.values()]
        moment = self._now if self._now is not None else max(newest, default=None)
        try:
            query.parse(self._prefixes)
            check_name(query.name, self.config.streams)
        except Mistake as mistake:
            self._complain((query.name,), mistake)
        self.queries[query.name] = replace(query, now=moment)
        if query.suffix == ".epsparql":
            self._since[query.name] = self._held.cut
        _log.info("%s: registered", query.name)

    def _begin(self) -> bool:
        """Lets registered queries without a group work through the past, if their streams are known."""
        running = {name for each in self.groups for name in each.reported}
        waiting = [name for name in self.queries if name not in running]
        if not waiting:
            return False
        if self._held.tables:
            pass
        elif self._held.cut.positions:
            self._match()  # nobody knows what was new for the others: they go on first
        else:
            self._held = self.archive.snapshot()
        own = {name: each for name, each in self.queries.items() if not each.outside}
        triples = tuple(name for name in waiting if name in own and own[name].suffix == ".epsparql")
        units: dict[tuple[str | None, bool], list[QueryUnit]] = {}
        for names in (*([triples] if triples else []), *((each,) for each in waiting if each not in triples)):
            try:
                unit = self._resolved(names, own if names[0] in own else self.queries)
            except KaicepError as error:
                self._complain(names, error)
            else:
                of_triples = self.queries[names[0]].suffix == ".epsparql"
                past = not self._first.issuperset(names)
                units.setdefault((names[0] if of_triples else None, past), []).append(unit)
        for (name, past), some in units.items():
            began = grouped(some, self.config.engine.buckets)
            since = None if name is None else Snapshot({}, self._since[name])
            rows = Snapshot(self._held.tables, None, since)
            watermarks = {each.id: self._watermark(each, self._held) for each in began}
            step = MatchStep(began, rows, watermarks, past=past, slices=self.config.engine.buckets)
            self.groups = self._stepped(step, self._held)
            for each in (each for group in began for each in group.reported if each not in self.ended):
                self.problems.pop(each, None)
                _log.info("%s: up to date, %d matches", each, self.told[each])
        return bool(units)

    def _complain(self, names: Sequence[str], error: KaicepError) -> None:
        for name in names:
            if self.problems.get(name) != str(error):
                waits = str(error).startswith("waiting")
                _log.log(logging.INFO if waits else logging.WARNING, "%s: %s", name, error)
                self.problems[name] = str(error)

    def _resolved(self, names: tuple[str, ...], every: Mapping[str, Registered]) -> QueryUnit:
        """Queries with all whose output they need, resolved, and how they are spread."""
        from kaicep.hosts.spark.physical import physical

        parsed: dict[str, Any] = {}
        for name, each in every.items():
            with suppress(Mistake):
                parsed[name] = each.parse(self._prefixes)
        for name in names:
            every[name].parse(self._prefixes)
        needed = [each for name in names for each in upstream(name, parsed, self._classed)]
        finite = not any(each.follow for each in self.sources.values())
        used = tuple(every[name] for name in dict.fromkeys(needed))
        own = [absolute(parsed[each.name], each.now, finite) for each in used]
        missing = [name for name in self.config.streams if name not in self.archive.streams()]
        if missing and any(isinstance(each, EpQuery) or _mentions(each, missing) for each in own):
            raise Failure(f"waiting for the first records of {', '.join(missing)}")
        history = history_of(own, self.archive, self.knowledge.knowledge, self.config.annotations, 0)
        steady = history.program.ep_plans or any(map(asks_the_knowledge, history.program.chi_plans))
        parts = physical(history, STEADY if steady else RULES)
        if len(parts) > 1:
            raise Failure(f"{', '.join(names)}: its queries do not go together")
        return QueryUnit(history, parts[0], names, used)

    def _restore(self) -> None:
        """The groups of the last commit, with their states, and the archive as it was then."""
        with suppress(KaicepError):  # its log need not reach back so far
            tables = {name: self.archive.stream(name, at) for name, at in self._committed.items()}
            if Snapshot(tables).cut == self._held.cut:
                self._held = Snapshot(tables)
        for saved in self._saved:
            every = {each["name"]: Registered(**each) for each in saved["queries"]}
            units = [self._resolved(tuple(names), every) for names in saved["units"]]
            (group,) = grouped(units, saved["buckets"])
            states = {int(bucket): SavedState.from_json(each) for bucket, each in saved["states"].items()}
            reported = tuple(saved["reported"])
            rest = {"states": states, "reported": reported, "watermark": saved["watermark"]}
            self.groups.append(replace(group, id=saved["id"], **rest))

    # --- figures ---

    def status(self) -> dict[str, Any]:
        """How everything is going."""
        return {
            "name": self.config.name,
            "since": format_time(int(self.started * 1_000_000)),
            "engine": {**engine_status("spark", list(self._took)), **self._step},
            "streams": {name: self._of_source(name, each) for name, each in self.sources.items()},
            "trouble": None,
            "queries": self._of_queries(),
            "sinks": {
                name: each.status(self._moment) for name, each in self.outlets.items() if self.config.sinks
            },
            "archive": archive_status(self.config.archive, self._held.tables.values()),
            "knowledge": {
                "statements": len(self.knowledge.knowledge),
                "version": self.knowledge.knowledge.version,
                "trouble": self._unknown,
            },
        }

    def _of_source(self, name: str, source: _StreamIngest) -> dict[str, Any]:
        table = self._held.tables.get(name)
        positions, newest = (table.positions, table.newest) if table is not None else ({}, {})
        return {
            **reached_status(positions, newest, source.config.lateness),
            "events": source.rows,
            "late": source.late,
            "dead": source.dead,
            "lost": [],
            "idle": [part for part, at in positions.items() if source.silent(part, at)],
            "ended": source.ended,
            "trouble": source.trouble,
            **(source.feed.address if source.feed is not None else {}),
        }

    def _of_queries(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        group_of = {name: each for each in self.groups for name in each.reported}
        for name in sorted({*self.queries, *self.problems}):
            known, group = self.queries.get(name), group_of.get(name)
            row: dict[str, Any] = {"state": "wrong", "outside": known is not None and known.outside}
            if name in self.problems:
                waits = self.problems[name].startswith("waiting")
                row |= {"state": "waiting" if waits else "wrong", "problem": self.problems[name]}
            if group is not None:
                reached = format_time(group.watermark) if group.watermark is not None else None
                row |= {
                    "state": "complete" if group.id in self._closed else "live",
                    "plan": f"{group.buckets} bucket{'s' * (group.buckets > 1)}",
                    "matches": self.told[name],
                    "last": format_time(self.last[name]) if name in self.last else None,
                    "held": self._kept.get(name, 0),
                    "sent": self._sent[group.id],
                    "watermark": reached,
                    **bounds_of(next(each.query for each in group.units if name in each.names)),
                }
            found[name] = row
        for name, reason in self.ended.items():
            found.setdefault(name, {"state": "failed", "outside": True, "problem": reason})
        return found


def _mentions(query: Any, streams: Sequence[str]) -> bool:
    sources = [source for clause in query.froms for source in clause.sources]
    return not query.froms or any(not isinstance(each, str) or each in streams for each in sources)


def _without(group: UnitGroup, names: frozenset[str]) -> UnitGroup | None:
    """A group that reports these queries no more; None where it has no others."""
    kept = tuple(name for name in group.reported if name not in names)
    return replace(group, reported=kept) if kept else None


def _cut(read: Mapping[str, Any]) -> Cut:
    return Cut.parse(json.dumps(read))


def _read(path: Path) -> list[Match]:
    return [match_of_row(row) for row in parquet_dataset([path]).to_table().to_pylist()]
