"""Finds a match again, from its own range of events or from what a deployment keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.api import FiniteRun
from kaicep.archive.archive import Archive
from kaicep.connectors.records import json_object
from kaicep.connectors.shape import DeadLetter
from kaicep.deployment.config import Config
from kaicep.deployment.registered import Registry, absolute, upstream
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean
from kaicep.history.strategies import history_of
from kaicep.knowledge.annotation import prefixes_of
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.catalog import Stream
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, EpPlan, QueryPlan
from kaicep.plan.time import format_time
from kaicep.plan.types import Unfit, Value, convert
from kaicep.storage.places import place_of
from kaicep.why.match import Reading, Why, derived, prove, why
from kaicep.why.misses import Mended, WhyNot, around, has_value, path_text, why_not
from kaicep.why.sources import (
    Archived,
    EventSource,
    events_of,
    match_of,
    needed,
    only_one,
    seen_in,
    stretch_of,
    unmarked,
    upstream_of,
)

if TYPE_CHECKING:
    from kaicep.knowledge.store import Knowledge
    from kaicep.plan.chi import ChiQuery
    from kaicep.plan.sparql import EpQuery
    from kaicep.server.service import Client

# ----------------------------------------------------------------------------------------------------------
# The events that a match of EP-SPARQL rests on: with them alone it is there.
#
# A solution does not say which triples it used, so this is found out by leaving events out, first many at a
# time, then one by one, as long as the match stays.

_MOST_TRIES = 400


def supporting(run: FiniteRun, match: Match) -> list[Event]:
    """The fewest events, left to right, that still give the match; more of them where there are very many."""
    everything = [each for each in events_of(run) if not each.late]
    inside = [each for each in everything if match.start_us <= _start(each) and each.ts <= match.end_us]
    kept = inside if _gives(run, inside, match) else everything
    tries, size = _MOST_TRIES, len(kept) // 2
    while size and tries > 0:
        place = 0
        while place < len(kept) and tries > 0:
            without = kept[:place] + kept[place + size :]
            tries -= 1
            if _gives(run, without, match):
                kept = without
            else:
                place += size
        size //= 2
    return kept


def _start(event: Event) -> int:
    return event.ts if event.start is None else event.start


def _gives(run: FiniteRun, events: Sequence[Event], match: Match) -> bool:
    return any(each.id == match.id for each in replace(run, batches=(events,)).matches())


# ----------------------------------------------------------------------------------------------------------
# Why there is no match near a time, with what was left out before: late events, records nobody could read.
#
# Whether these would have matched is found out by letting them: late events as if they had come in time,
# records without the values that do not fit.


def why_not_near(source: EventSource, name: str, near: int, key: str | None = None) -> WhyNot:
    """Why there is no match of a query near a time, and whether what was left out would have been one."""
    return why_not_between(source, name, *around(_plan(source, name), near), key)


def why_not_between(source: EventSource, name: str, low: int, high: int, key: str | None = None) -> WhyNot:
    """Why there is no match of a query in a range of time, and whether what was left out would be one."""
    plan = _plan(source, name)
    program = upstream_of(source.program, name)
    run = source.part(program, stretch_of(program, name, low, high))
    seen = run.matches()
    made = [derived(each, source.catalog) for each in seen if each.query != name]
    reason = why_not(plan, source.catalog, source.knowledge, [*events_of(run), *made], low, high, key)
    late = [each for each in events_of(run) if each.late and has_value(each, key)]
    dead = list(_near(run, source, low, high, key))
    whole = [each.event for each in dead if each.event is not None]
    near_by = [each for each in seen if each.query == name and low <= each.end_us <= high]
    return replace(
        reason,
        complete=sum(key is None or _takes_part(each, run, key) for each in near_by),
        with_late=_gained(unmarked(run, late), seen, name) if late else (),
        dead=tuple(dead),
        with_dead=_gained(replace(run, batches=(*run.batches, whole)), seen, name) if whole else (),
    )


def _plan(source: EventSource, name: str) -> QueryPlan:
    plans = {each.name: each for each in source.program.queries}
    if name not in plans:
        raise Mistake(f"no query is called {name}", hint=did_you_mean(name, plans))
    return plans[name]


def _takes_part(match: Match, run: FiniteRun, key: str) -> bool:
    """Whether a match has an event with a value."""
    shown = [
        one for each in (match.events or {}).values() for one in (each if isinstance(each, list) else [each])
    ]
    return any(each.identity in shown and has_value(each, key) for each in events_of(run))


def _gained(run: FiniteRun, seen: Sequence[Match], name: str) -> tuple[Match, ...]:
    """The matches of a query that were not there before."""
    before = {each.id for each in seen}
    return tuple(each for each in run.matches() if each.query == name and each.id not in before)


def _near(run: FiniteRun, source: EventSource, low: int, high: int, key: str | None) -> Iterator[Mended]:
    """The records that could not be read and belong there: by their time, or else by their position."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for each in events_of(run):
        place = each.stream, each.part
        first, last = spans.get(place, (each.seq, each.seq))
        spans[place] = min(first, each.seq), max(last, each.seq)
    streams = {each for plan in run.program.queries for each in plan.reads}
    for letter in source.dead():
        if letter.stream not in streams:
            continue
        found = mended(letter, source.catalog.streams[letter.stream])
        if found.event is not None:
            if low <= found.event.ts <= high and has_value(found.event, key):
                yield found
        elif key is None or key in letter.record_text:
            # One beside the first or the last record may belong there as well.
            first, last = spans.get((letter.stream, letter.part), (letter.seq, letter.seq))
            if first - 1 <= letter.seq <= last + 1:
                yield found


def mended(letter: DeadLetter, stream: Stream) -> Mended:
    """The event of a record without the values that do not fit; none where even its time is unknown.

    >>> from kaicep.plan.types import Type
    >>> meter = Stream("meter", (("ts", Type.TIMESTAMP), ("kW", Type.FLOAT64), ("id", Type.STRING)))
    >>> text = '{"ts": 1, "kW": "lots", "id": "m1"}'
    >>> mended(DeadLetter("meter", 0, 3, 4, "meter.jsonl", "kW: no number", text), meter).event.values
    {'ts': 1000000, 'kW': None, 'id': 'm1'}
    """
    fields, _ = json_object(letter.record_text.encode())
    if fields is None or stream.rdf:
        return Mended(letter)
    values: dict[str, Value] = {}
    for name, type in stream.attributes:
        try:
            values[name] = convert(fields.get(name), type, stream.notation)
        except Unfit:
            values[name] = None
    ts = values.get(stream.time)
    if not isinstance(ts, int):
        return Mended(letter)
    return Mended(letter, Event(letter.stream, letter.part, letter.seq, ts, values))


# ----------------------------------------------------------------------------------------------------------
# A match found again: looked up by its id, recomputed from the events around it, and explained.
#
# It reads the events from the match's start to its end, and what the queries before it need. If they do not
# give the match, something has changed since, and the message says what, as far as that can be found out.


def searched(source: EventSource, id: str) -> Match | None:
    """The match with an id, or with the beginning of it, among all that the queries give."""
    every: list[Match] = []
    for as_seen in (True, False) if source.uses_late else (True,):
        every = source.search(as_seen)
        match = only_one([each for each in every if each.id.startswith(id.lower())], id)
        if match is not None:
            return match
    return None


def explained(source: EventSource, match: Match, version: int | None = None) -> Why:
    """What made a match, which was seen somewhere: its query, its id, its start and its end are known.

    `version` is that of the knowledge of a running deployment.
    """
    names = [each.name for each in source.program.queries]
    if match.query not in names:
        hint = did_you_mean(match.query, names)
        raise Mistake(
            f"the match {match.id} is one of {match.query}, which is not among the queries", hint=hint
        )
    program = upstream_of(source.program, match.query)
    run = source.part(program, needed(program, match))
    given = run
    for given in (run, unmarked(run)) if _has_late(source, run) else (run,):
        matches = given.matches()
        found = next((each for each in matches if each.id == match.id), None)
        if found is not None:
            events = [each for each in events_of(run) if given is not run or not each.late]
            reason = why(found, run, events, matches)
            if isinstance(reason.plan, ChiPlan):
                return reason
            return replace(reason, events=tuple(Reading("", each) for each in supporting(given, found)))
    raise Mistake(_gone(source, match, given, version))


def _has_late(source: EventSource, run: FiniteRun) -> bool:
    return source.uses_late and any(each.late for each in events_of(run))


# --- a match that is not found again --------------------------------------------------------------------


def _gone(source: EventSource, match: Match, run: FiniteRun, version: int | None) -> Diagnostic:
    plan = next(each for each in run.program.queries if each.name == match.query)
    reason, hint = next(_reasons(source, match, plan, run, version))
    where = f"{match.query}, {format_time(match.start_us)} to {format_time(match.end_us)}"
    return Diagnostic(f"recomputing does not find the match {match.id} ({where}): {reason}", hint=hint)


def _reasons(
    source: EventSource, match: Match, plan: QueryPlan, run: FiniteRun, version: int | None
) -> Iterator[tuple[str, str]]:
    """What has changed, the surest first, and what to do about it."""
    chains = plan.body.all_chains if isinstance(plan, ChiPlan) else ()
    if chains and not any(match.start_us in each.within for each in chains):
        yield (
            "it lies outside the bounds of WITHIN",
            "`now` is the time of this command: pass --now TIME with the time of the run",
        )
    for stream, ts in source.expired().items():
        if match.start_us < ts:
            message = f"events of {stream} before {format_time(ts)} have been removed from the archive"
            yield message, "removed events cannot be explained; `retention` says how long events are kept"
    alike = [each for each in run.matches() if _alike(each, match)]
    for name, now in _other_values(match, alike):
        said = f"the same events match, but {name} is {now} now, and was {match.select.get(name)}"
        yield f"{said}: {_versions(match, version)}", "give the knowledge as it was when the match was seen"
    if alike and not match.select and _selects_known(plan):
        said = "the same events match, but under another id: the knowledge gives other values"
        yield (
            f"{said}, or the text of the query has changed",
            "give both as they were when the match was seen",
        )
    if alike:
        yield (
            "the same events match, but under another id: the text of the query has changed since",
            "give the query as it was when the match was seen",
        )
    events = {(each.stream, each.part, each.seq): each for each in events_of(run)}
    bound = {name: list(_identities(shown)) for name, shown in (match.events or {}).items()}
    own = {name: [key for each in found if (key := _key(each)) is not None] for name, found in bound.items()}
    lost = [key for found in own.values() for key in found if key not in events]
    if lost:
        stream, part, seq = lost[0]
        yield (
            f"the event {seq} of part {part} of {stream} is missing",
            "give the streams, or the archive, in which it was seen",
        )
    rounds = {name: [events[key] for key in found] for name, found in own.items() if found}
    for path in _unproved(plan, rounds, source):
        yield (
            f"{path} no longer holds for its events: {_versions(match, version)}",
            "give the knowledge as it was when the match was seen",
        )
    yield (
        f"the query, the annotations or the knowledge have changed; {_versions(match, version)}",
        "give them as they were when the match was seen",
    )


def _alike(one: Match, other: Match) -> bool:
    same = (one.query, one.start, one.end) == (other.query, other.start, other.end)
    return same and other.events is not None and dict(one.events or {}) == dict(other.events)


def _selects_known(plan: QueryPlan) -> bool:
    """Whether values of the knowledge are selected: they are part of the id."""
    return isinstance(plan, ChiPlan) and any(each.selected for each in plan.body.all_semantics)


def _other_values(match: Match, alike: list[Match]) -> Iterator[tuple[str, object]]:
    """Columns that none of the matches of the same events has as this one: the knowledge gives others."""
    names = [name for each in alike[:1] for name in each.select if name in match.select]
    for name in names:
        if all(each.select[name] != match.select[name] for each in alike):
            yield name, alike[0].select[name]


def _identities(shown: Any) -> Iterator[Mapping[str, Any]]:
    for each in shown if isinstance(shown, list) else (shown,):
        yield from (each["first"], each["last"]) if "first" in each else (each,)


def _key(identity: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """The place of an event; None for one that another query derived."""
    return None if "id" in identity else (identity["stream"], identity["part"], identity["seq"])


def _unproved(plan: QueryPlan, rounds: Mapping[str, list[Event]], source: EventSource) -> Iterator[str]:
    """The PATHs that do not hold for the events of a match."""
    if isinstance(plan, EpPlan):
        return
    paths = (path for each in (*plan.body.chains, plan.body) for path in each.semantics)
    for path in paths:
        if set(path.variables) <= rounds.keys():
            binding = {name: rounds[name][0] for name in path.variables}
            if prove(path, binding, source.catalog, source.knowledge) is None:
                yield path_text(path, dict(source.catalog.known_prefixes(plan.prefixes)))


def _versions(match: Match, version: int | None) -> str:
    then = f"the match used version {match.version or 0} of the knowledge"
    if version is not None:
        return f"{then}, and the deployment has version {version}"
    return f"{then}, and the files that are loaded now have today's"


# ----------------------------------------------------------------------------------------------------------
# Reasons for what a deployment found, while it runs or after: its file says where everything is.


@dataclass(frozen=True)
class Deployed:
    """The queries of a deployment as they are registered, its knowledge as the files are now."""

    config: Config
    queries: dict[str, ChiQuery | EpQuery]
    knowledge: Knowledge

    @classmethod
    def of(cls, config: Config, knowledge: Knowledge | None = None) -> Deployed:
        """What is there of a deployment; a mistake where it never ran. Nothing is written or locked.

        Its knowledge is read from its files where it is not given.
        """
        registered = Registry(config.state / "registered.json").queries
        if not registered:
            raise config.not_run
        prefixes = prefixes_of(config.annotations)
        finite = all(each.open_source().finite for each in config.streams.values())
        queries = {
            name: absolute(each.parse(prefixes), each.now, finite) for name, each in registered.items()
        }
        return cls(config, queries, knowledge or KnowledgeFiles(config.known, config.reasoning).knowledge)

    def source(self, name: str) -> Archived:
        """A query, those whose output it reads, and the archive."""
        if name not in self.queries:
            hint = did_you_mean(name, self.queries)
            raise Mistake(f"{self.config.name} has no query {name}", hint=hint)
        classed = [
            each for each, of in self.config.asked.items() if of.annotation and of.annotation.event_class
        ]
        needed = [self.queries[each] for each in upstream(name, self.queries, classed)]
        archive = Archive.open(self.config.archive)
        history = history_of(needed, archive, self.knowledge, self.config.annotations, 0)
        return Archived(history, archive.snapshot())

    def why(self, id: str) -> Why:
        """What made a match: it is looked for in the sinks, in the running deployment, in the archive."""
        client = self._client()
        match = self.written(id)
        if match is None and client is not None:
            remembered = [match_of(each, self.config.name) for each in client.remembered(id)]
            match = only_one(remembered, id)
        if match is None:
            match = self._searched(id)
        version = client.status()["knowledge"]["version"] if client is not None else None
        return explained(self.source(match.query), match, version)

    def written(self, id: str) -> Match | None:
        """The match of that id, or of one that begins so, in the files and tables of the sinks."""
        return only_one(seen_in(self._written(), id), id)

    def _written(self) -> list[Path]:
        """The files and tables that its sinks have written."""
        paths = [
            place_of(each.options["path"], "a sink")
            for each in self.config.sinks.values()
            if each.options["kind"] in ("files", "delta")
        ]
        return [each for each in paths if each.exists()]

    def _client(self) -> Client | None:
        """Somebody to ask; None where it does not run, or does not let us in."""
        from kaicep.server.service import Client

        try:
            client = Client(self.config)
            client.status()
        except (Failure, Mistake):
            return None
        return client

    def _searched(self, id: str) -> Match:
        for name in self.queries:
            try:
                source = self.source(name)
            except Mistake:
                continue  # it waits for the first records of a stream
            match = searched(source, id)
            if match is not None:
                return match
        where = "its sinks" if self._written() else "no file or table that it writes"
        raise Mistake(
            f"no match of {self.config.name} has the id {id}",
            hint=f"it is neither in {where} nor found again in its archive",
        )
