"""The queries of a deployment: those of a watched folder, and those that were posted.

A query that was registered stays so until its file is gone, or it is removed. Of each there is a session,
as soon as the streams that it reads are known. A query that reads the output of others evaluates those
with it, so its session begins anew when one of them does.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kaicep.archive.archive import Archive, Cut, Snapshot
from kaicep.deployment.config import Config, QueryConfig, SinkConfig
from kaicep.deployment.guest_process import Errand
from kaicep.deployment.guests import Guest, Guests
from kaicep.deployment.registered import (
    SUFFIXES,
    Registered,
    Registry,
    Suspects,
    absolute,
    check_name,
    readers_of,
    upstream,
)
from kaicep.deployment.sessions import (
    Session,
    SessionRun,
    SessionSubject,
    begins_later,
    figures_of,
    recovery,
    runs_of,
)
from kaicep.deployment.sinks import Entry
from kaicep.deployment.streams import Feed
from kaicep.deployment.versions import Versions, posted_file
from kaicep.errors import Failure, KaicepError, Mistake, reason_of
from kaicep.history.strategies import History, history_of
from kaicep.kernel.operator import Limits
from kaicep.knowledge.store import Knowledge
from kaicep.plan.chi import ChiQuery
from kaicep.plan.sparql import EpQuery
from kaicep.plan.time import format_time

_log = logging.getLogger("kaicep.run")

FROM_OUTSIDE = Limits(held=200_000, bytes=256 << 20)
"""What a query that came in from outside may hold."""

_STATES = {"waiting": "waiting", "set": "failed"}
"""What a query is that has a problem that begins so."""

Query = ChiQuery | EpQuery
Told = Mapping[str, Mapping[str, Entry]]
"""By sink, how far each session was told."""


class Catalogue:
    """Registered queries and their sessions. `refresh` keeps up with the folder and with the streams."""

    def __init__(
        self,
        config: Config,
        archive: Archive,
        knowledge: Knowledge,
        prefixes: Mapping[str, str],
        feeds: Mapping[str, Feed],
        versions: Versions,
        now: int | None = None,
    ) -> None:
        self._versions = versions
        self.sessions: dict[str, Session] = {}
        self.guests = Guests()
        self.suspects = Suspects(config.state)
        self.aside: set[str] = set()
        """The sessions that would be, of queries that are set aside: where they stood is kept."""
        self.runs: list[SessionRun] = []
        self.problems: dict[str, str] = {}
        self.trouble: str | None = None
        self.over: list[tuple[str, str]] = []
        """The guests that were ended, and why, until somebody has taken note."""
        self.changed = False
        self.shape_changed = True
        self.registry = Registry(config.state / "registered.json")
        self._config = config
        self._archive = archive
        self._knowledge = knowledge
        self._prefixes = prefixes
        self._classed = [
            name for name, each in config.asked.items() if each.annotation and each.annotation.event_class
        ]
        self._feeds = feeds
        self._finite = all(each.finite for each in feeds.values())
        self._now = now
        self._seen: dict[Path, tuple[int, int]] = {}
        self._texts: dict[Path, str] = {}
        self._parsed: dict[str, Query] = {}
        self._others = dict(self._parsed_texts())
        """Those of the folder and the registered ones, whichever of them can be answered by now."""
        self._tried: set[str] = set()

    # --- queries come and go ---

    def refresh(
        self, told: Told, parts: Mapping[str, Sequence[int]], sinks: Mapping[str, SinkConfig]
    ) -> None:
        """Looks at the folder, and sees to it that every query has its session."""
        self._look_again()
        self._look()
        self._end_guests()
        if self.shape_changed:
            self._tried.clear()
            self.shape_changed = False
        self._parse()
        self._see_to_sessions(told, parts, sinks)
        self.registry.save()

    def register(self, name: str, language: str, text: str) -> None:
        """Takes a query in from outside, or the new text of one."""
        check_name(name, self._config.streams)
        self._look_again()
        known = self.registry.queries.get(name)
        if known is not None and not known.outside:
            hint = f"edit its file in {self._config.queries}, or use another name"
            raise Mistake(f"{name} is a query of the deployment itself", hint=hint)
        made = self._registered(Registered(name, SUFFIXES[language], text, None, outside=True))
        if known is None:
            self._add(made)
        elif (known.suffix, known.text) != (made.suffix, made.text):
            _log.info("%s: changed, and starts over", name)
            self.registry.put(replace(made, generation=known.generation + 1))
            self._tried.clear()
        self.problems.pop(name, None)
        self.registry.ended.pop(name, None)
        try:
            self.registry.save()
        except Exception:  # whoever is answered with an error has registered nothing
            self._drop(name)
            raise

    def remove(self, name: str) -> None:
        """Removes a query that came in from outside."""
        known = self.registry.queries.get(name)
        if known is None and self.registry.ended.pop(name, None) is not None:
            self.registry.save()
            return
        if known is None:
            raise Mistake(f"no query is called {name}")
        if not known.outside:
            hint = f"remove its file from {self._config.queries}"
            raise Mistake(f"{name} is a query of the deployment itself", hint=hint)
        self._parse()
        readers = readers_of(name, self._parsed, self._classed)
        if readers:
            raise Mistake(f"{name} is read by {', '.join(readers)}", hint="remove those first")
        self._drop(name)
        self.registry.save()

    def _end_guests(self) -> None:
        """Those that took too much, or failed, are over: no restart tries them again."""
        for guest in [each for each in self.guests.running.values() if each.state in ("failed", "wrong")]:
            reason = guest.problem or "it failed"
            if guest.state == "wrong":  # as others are: it is tried again when something has changed
                self._complain(guest.name, Failure(reason))
            elif guest.name in self.registry.queries:
                self.registry.drop(guest.name)
                self._others.pop(guest.name, None)
                self.registry.end(guest.name, reason)
                _log.error("%s: %s; it was stopped, and is no longer registered", guest.name, reason)
                self.over.append((guest.name, reason))
            self.guests.drop(guest.id)
            self.changed = True

    def _look(self) -> None:
        """Takes note of what is new, changed or gone in the folder. One that is missing says nothing."""
        if not self._config.queries.is_dir():
            trouble = f"there is no folder {self._config.queries}: the queries stay unchanged"
            if trouble != self.trouble:
                _log.warning(trouble)
            self.trouble = trouble
            return
        self.trouble = None
        found = dict(self._files())
        for path in [each for each in self._texts if each not in found]:
            del self._texts[path]
            self.problems.pop(path.stem, None)
            if path.stem in self.registry.queries and not self.registry.queries[path.stem].outside:
                self._drop(path.stem)
        if found != self._texts:
            self._texts = found
            self._others = dict(self._parsed_texts())
        inside = Counter(path.stem for path in found)
        for name in [each.name for each in self.registry.queries.values() if not each.outside]:
            if name not in inside:
                self._drop(name)
        for path, text in found.items():
            try:
                self._came(path, text, inside[path.stem] > 1)
            except Exception as error:
                self._complain(path.stem, error)

    def _files(self) -> Iterator[tuple[Path, str]]:
        """The query files with their texts; those that did not change are not read again."""
        for path in sorted(self._config.queries.glob("*")):
            if path.suffix not in SUFFIXES.values() or path.name.startswith("."):
                continue
            try:
                stat = path.stat()
                stamp = stat.st_mtime_ns, stat.st_size
                if self._seen.get(path) == stamp and path in self._texts:
                    yield path, self._texts[path]
                    continue
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self._complain(path.stem, Failure(f"cannot read {path}: {error}"))
                continue
            self._seen[path] = stamp
            yield path, text

    def _parsed_texts(self) -> Iterator[tuple[str, Query]]:
        """The queries as they are registered, or as they stand in the folder; those that are wrong, not."""
        texts = [Registered(path.stem, path.suffix, text, None) for path, text in self._texts.items()]
        for each in (*self.registry.queries.values(), *texts):
            with suppress(Exception):  # which is said where the query is registered
                yield each.name, each.parse(self._prefixes)

    def _came(self, path: Path, text: str, twice: bool) -> None:
        name = path.stem
        known = self.registry.queries.get(name)
        if known is not None and not known.outside and (known.suffix, known.text) == (path.suffix, text):
            return
        if twice:
            raise Mistake(f"two queries are named {name}", hint="rename one of them")
        check_name(name, self._config.streams)
        if known is not None and known.outside:
            _log.warning("%s: the file of this name in the folder replaces the posted query", name)
            self._drop(name)
            known = None
        made = self._registered(Registered(name, path.suffix, text, None))
        self.problems.pop(name, None)
        if known is None:
            self._add(made)
        else:
            self._edit(known, made)

    def _registered(self, made: Registered) -> Registered:
        """A query with the event time that is its `now`: the newest of all events of its streams so far."""
        own = made.parse(self._prefixes)
        if self._now is not None:
            return replace(made, now=self._now)
        self._others[made.name] = own
        seen = self._seen_by(made, self._others)
        read = [seen[each] for each in upstream(made.name, seen, self._classed)]
        newest = (ts for name, ts in self._newest.items() if may_read(read, name))
        return replace(made, now=max(newest, default=None))

    @cached_property
    def _held(self) -> Snapshot:
        """What the archive holds, as long as nobody looks again (`_look_again`)."""
        return self._archive.snapshot()

    @cached_property
    def _newest(self) -> dict[str, int]:
        """The time of the newest event of each archived stream."""
        tables = self._held.tables.items()
        return {name: max(table.newest.values()) for name, table in tables if table.newest}

    def _look_again(self) -> None:
        for each in ("_held", "_newest"):
            self.__dict__.pop(each, None)

    def _add(self, made: Registered) -> None:
        _log.info("%s: registered", made.name)
        self.registry.put(made)
        self._tried.clear()  # others may have waited for its output

    def _drop(self, name: str) -> None:
        _log.info("%s: removed", name)
        self.registry.drop(name)
        self._others.pop(name, None)
        self.problems.pop(name, None)
        self._tried.clear()

    def _edit(self, known: Registered, made: Registered) -> None:
        """Another text of a query: it goes on with what it holds where that is sound, or begins anew."""
        self._parse()
        session = self.sessions.get(self._id((known.name,)))
        if session is not None and session.run is not None and session.run.recovering:
            return  # it is asked again when it has caught up, which it must do under its old text
        reason = self._why_anew(session, known, replace(made, now=known.now))
        if reason is None:
            _log.info("%s: changed, and keeps its state", made.name)
            self.registry.put(replace(made, now=known.now, generation=known.generation))
        else:
            _log.info("%s: changed, and starts over: %s", made.name, reason)
            self.registry.put(replace(made, generation=known.generation + 1))
        self._tried.clear()

    def _why_anew(self, session: Session | None, known: Registered, made: Registered) -> str | None:
        """Why a query begins anew; where it does not, its session has the new text when this returns."""
        if session is None or not session.live:
            return "it has nothing to go on with"
        readers = readers_of(known.name, self._seen_by(known, self._parsed), self._classed)
        if len(self._needed((known.name,))) > 1 or readers:
            return "it reads the output of another query, or its own is read"
        if known.suffix != ".chi" or made.suffix != ".chi":
            return "only chi-CEP queries go on"
        try:
            history = self._history([made])
        except KaicepError:
            return "it waits for what it reads"
        return session.edit(history)

    # --- sessions ---

    def _parse(self) -> None:
        parsed: dict[str, Query] = {}
        for name, each in self.registry.queries.items():
            try:
                parsed[name] = absolute(each.parse(self._prefixes), each.now, self._finite)
            except Exception as error:  # the prefixes, or kaicep itself, are others than they were
                self._complain(name, error)
        self._parsed = parsed

    def _id(self, names: tuple[str, ...]) -> str:
        """The id of a session: another one as soon as one of its queries begins anew."""
        generations = ((each, self.registry.queries[each].generation) for each in self._needed(names))
        return "+".join(f"{each}#{generation}" for each, generation in generations)

    def _needed(self, names: tuple[str, ...]) -> list[str]:
        """Queries and all whose output they need."""
        found: dict[str, None] = {}
        for name in names:
            seen = self._seen_by(self.registry.queries[name], self._parsed)
            found |= dict.fromkeys(upstream(name, seen, self._classed))
        return list(found)

    def _seen_by(self, query: Registered, queries: Mapping[str, Query]) -> Mapping[str, Query]:
        """The queries whose output one may read: the deployment's own see nothing of those from outside."""
        guests = self.registry.outside
        if query.outside or not guests:
            return queries
        return {each: own for each, own in queries.items() if each == query.name or each not in guests}

    def _see_to_sessions(
        self, told: Told, parts: Mapping[str, Sequence[int]], sinks: Mapping[str, SinkConfig]
    ) -> None:
        wanted = self._set_aside({self._id((name,)): (name,) for name in self._parsed})
        self._drop_sessions([each for each in self.sessions if each not in wanted])
        for id in [each for each in self.guests.running if each not in wanted]:
            self.guests.drop(id)
            posted_file(self._config, id).unlink(missing_ok=True)
            self.changed = True
        known = {*self.sessions, *self.guests.running, *self._tried}
        new = {id: names for id, names in wanted.items() if id not in known}
        if self._knowledge.version < self._versions.last:  # who was not judged by it does not begin with it
            new = {id: names for id, names in new.items() if self._versions.gates(id)}
        if not new:
            return
        self._tried |= new.keys()
        snapshot = self._held
        together = self._together(new.values())
        made: list[Session] = []
        since: dict[str, Cut | None] = {}
        self.registry.since = {id: at for id, at in self.registry.since.items() if id in wanted}
        for id, names in new.items():
            since[id] = self._since(id, names, snapshot)
            outside = self.registry.queries[names[0]].outside
            takers = [
                name
                for name in told
                if name not in sinks or any(sinks[name].takes(each, outside) for each in names)
            ]
            entries = {name: told[name].get(id) for name in takers}
            if outside:
                self._begin_guest(id, names[0], since[id], entries, parts)
                continue
            start = recovery(entries)
            try:
                asked = self._asked(id, names, together)
                states = self._config.state / "states"
                made.append(Session(asked, snapshot, states, start, self._versions.gates(id)))
            except Exception as error:
                for name in names:
                    self._complain(name, error)
        self._begin(made, together, snapshot, parts, since)

    def _set_aside(self, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Without the queries that the process died of, and those that need them."""
        self.suspects.look({name: each.text for name, each in self.registry.queries.items()})
        self.aside.clear()
        for id, names in list(wanted.items()):
            for reason in filter(None, map(self.suspects.aside, self._needed(names))):
                self.aside.add(id)
                self._complain(names[0], Failure(reason))
        return {id: names for id, names in wanted.items() if id not in self.aside}

    def _begin_guest(
        self,
        id: str,
        name: str,
        since: Cut | None,
        entries: Mapping[str, Entry | None],
        parts: Mapping[str, Sequence[int]],
    ) -> None:
        """Lets a query from outside be answered, in a process of its own."""
        needed = self._needed((name,))
        missing = self._missing([self._parsed[each] for each in needed])
        if missing:
            self._complain(name, Failure(f"waiting for the first records of {', '.join(missing)}"))
            return
        errand = Errand(
            id,
            name,
            self._config,
            [self.registry.queries[each] for each in needed],
            self._finite,
            entries,
            since,
            {stream: tuple(each) for stream, each in parts.items()},
            self._knowledge.version,
            FROM_OUTSIDE,
            self.guests.allowed.memory,
            self.guests.allowed.nice,
        )
        self.guests.start(Guest(errand, to_sinks=bool(entries)))
        self.problems.pop(name, None)
        self.changed = True

    def _begin(
        self,
        made: Sequence[Session],
        together: History | None,
        snapshot: Snapshot,
        parts: Mapping[str, Sequence[int]],
        since: Mapping[str, Cut | None],
    ) -> None:
        """Lets sessions be answered: those that can be together; each alone where that fails."""
        waiting = [each for each in made if not each.complete]
        try:
            made_runs = list(runs_of(waiting, together, snapshot, self._lateness(), parts, since))
        except Exception as error:
            if len(waiting) > 1:
                for each in made:
                    self._begin([each], None, snapshot, parts, since)
                return
            for name in waiting[0].asked.names:
                self._complain(name, error)
            return
        for run in made_runs:
            run.suspects = self.suspects
        self.runs += made_runs
        for each in made:
            self.sessions[each.asked.id] = each
            self.changed = True
            for name in each.asked.names:
                self.problems.pop(name, None)
            self._tell(each, snapshot)

    def _drop_sessions(self, ids: Sequence[str]) -> None:
        gone = {self.sessions.pop(each) for each in ids}
        for session in gone:
            session.forget()
            self.changed = True
        for run in self.runs if gone else ():
            run.drop(gone)
        self.runs = [each for each in self.runs if each.sessions]

    def unite(self) -> None:
        """Runs that stand at the same point become one."""
        if len(self.runs) < 2:
            return
        first = next((each for each in self.runs if each.shared and each.made.alone and each.joined), None)
        if first is not None:
            self.runs = [each for each in self.runs if each is first or not first.absorb(each)]

    def _together(self, units: Iterable[tuple[str, ...]]) -> History | None:
        """The queries of chi-CEP that are the deployment's own, resolved in one; None where one is wrong."""
        needed = dict.fromkeys(name for names in units for name in self._needed(names))
        queries = [self.registry.queries[each] for each in needed]
        own = {
            each.name
            for each in queries
            if not each.outside
            and isinstance(self._parsed[each.name], ChiQuery)
            and each.name not in self.suspects.deaths  # which runs alone
        }
        chosen = [
            each
            for each in queries
            if own.issuperset(self._needed((each.name,))) and not self._missing([self._parsed[each.name]])
        ]
        names = {each.name for each in chosen}
        chosen = [each for each in chosen if names.issuperset(self._needed((each.name,)))]
        if not chosen:
            return None
        try:
            return self._history(chosen)
        except Exception:  # which is said of the query that it comes from
            return None

    def _lateness(self) -> dict[str, int | None]:
        """By stream; what is archived and has no source is all there, and never late."""
        others = dict.fromkeys(self._held.tables, 0)
        return {**others, **self._config.lateness}

    def _asked(self, id: str, names: tuple[str, ...], together: History | None) -> SessionSubject:
        queries = [self.registry.queries[each] for each in self._needed(names)]
        own_names = {each.name for each in queries}
        if together is not None and together.program.has(own_names):
            history = together.only(own_names)
        else:
            history = self._history(queries)
        own = self._config.of_query(names[0]) if len(names) == 1 else QueryConfig()
        return SessionSubject(id, names, history, own)

    def _history(self, queries: Sequence[Registered]) -> History:
        """Queries, resolved; a failure while a stream is missing that nobody has seen a record of."""
        parsed = [absolute(each.parse(self._prefixes), each.now, self._finite) for each in queries]
        missing = self._missing(parsed)
        if missing:
            raise Failure(f"waiting for the first records of {', '.join(missing)}")
        return history_of(parsed, self._archive, self._knowledge, self._config.annotations, 0)

    def _missing(self, parsed: Sequence[Query]) -> list[str]:
        """The streams that queries need and of which nobody has seen a record."""
        held = self._held.tables
        return [name for name in self._config.streams if name not in held and may_read(parsed, name)]

    def _since(self, id: str, names: tuple[str, ...], snapshot: Snapshot) -> Cut | None:
        """EP-SPARQL has no WITHIN: its queries begin at the positions at which they were registered."""
        if not isinstance(self._parsed[names[0]], EpQuery):
            return None
        if id not in self.registry.since:
            self.registry.since[id] = json.loads(snapshot.cut.text())
        return Cut.parse(json.dumps(self.registry.since[id]))

    def _complain(self, name: str, error: Exception) -> None:
        problem = reason_of(error)
        if self.problems.get(name) != problem:
            level = logging.INFO if problem.startswith("waiting") else logging.WARNING
            unforeseen = None if isinstance(error, KaicepError) else error
            _log.log(level, "%s: %s", name, problem, exc_info=unforeseen)
            self.problems[name] = problem

    def _tell(self, session: Session, snapshot: Snapshot) -> None:
        """What there is to know of a query that begins."""
        if session.complete:
            return
        name = ", ".join(session.asked.names)
        for plan in session.asked.history.program.queries:
            for each in plan.warnings:
                if each.severity == "warning" and plan.name in session.asked.names:
                    _log.warning("%s: %s", name, each.message)
        for stream, within in session.asked.history.spans().items():
            lows = [each.low for each in snapshot.files(stream) if each.low is not None]
            if within.low is not None and session.start.mark is None and lows and within.low < min(lows):
                _log.info(
                    "%s: reads from %s on, but the archive has %s only from %s on",
                    *(name, format_time(within.low), stream, format_time(min(lows))),
                )
        tables = snapshot.tables.items()
        note = begins_later(
            session, {name: max(each.newest.values()) for name, each in tables if each.newest}
        )
        if note is not None:
            _log.warning("%s: %s", name, note)

    # --- figures ---

    def status(self) -> dict[str, dict[str, Any]]:
        """How every query is doing: its state, its figures, and why there may be nothing of it."""
        found: dict[str, dict[str, Any]] = {}
        owners = {name: each for each in self.sessions.values() for name in each.asked.names}
        newest = {each: max(feed.newest.values()) for each, feed in self._feeds.items() if feed.newest}
        for name in sorted({*self.registry.queries, *self.problems}):
            known = self.registry.queries.get(name)
            row: dict[str, Any] = {"state": "wrong", "outside": known.outside if known else False}
            problem = self.problems.get(name)
            if problem is not None:
                row["state"] = _STATES.get(problem.split(" ")[0].rstrip(":"), "wrong")
                row["problem"] = problem
            if name in owners:
                row |= figures_of(name, owners[name], newest, self._silence)
            found[name] = row
        for guest in self.guests.running.values():
            found[guest.name] |= guest.row
        for name, reason in self.registry.ended.items():
            found.setdefault(name, {"state": "failed", "outside": True, "problem": reason})
        return found

    def _silence(self, stream: str, part: int) -> float | None:
        return self._feeds[stream].silence(part) if stream in self._feeds else None

    def text(self, name: str) -> Registered | None:
        """A registered query."""
        return self.registry.queries.get(name)

    def session(self, name: str) -> Session | None:
        """The session that tells the matches of a query."""
        return next((each for each in self.sessions.values() if name in each.asked.names), None)


def may_read(queries: Sequence[Query], stream: str) -> bool:
    """Whether one of the queries reads a stream, or may: by a class of events, by naming none, as triples."""
    for query in queries:
        if isinstance(query, EpQuery) or not query.froms:
            return True
        sources = [source for clause in query.froms for source in clause.sources]
        if stream in sources or not all(isinstance(each, str) for each in sources):
            return True
    return False
