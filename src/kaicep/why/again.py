"""Where events and matches are, and a match found again and explained."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.api import FiniteRun
from kaicep.archive.archive import Archive
from kaicep.connectors.files import StreamData
from kaicep.connectors.records import json_object
from kaicep.connectors.shape import DeadLetter
from kaicep.deployment.config import Config
from kaicep.deployment.registered import Registry, absolute, upstream
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean
from kaicep.history.hybrid import both
from kaicep.history.strategies import history_of
from kaicep.join.handoff import reach_of
from kaicep.knowledge.annotation import prefixes_of
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.plan.catalog import Stream
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, EpPlan, Interval, Pattern, Program, QueryPlan
from kaicep.plan.time import format_time, parse_time
from kaicep.plan.types import Unfit, Value, convert
from kaicep.storage.places import options_of, place_of
from kaicep.why.match import Reading, Why, derived, prove, why
from kaicep.why.misses import Mended, WhyNot, around, has_value, path_text, why_not

if TYPE_CHECKING:
    from kaicep.archive.archive import Snapshot
    from kaicep.history.strategies import History
    from kaicep.knowledge.store import Knowledge
    from kaicep.plan.chi import ChiQuery
    from kaicep.plan.sparql import EpQuery
    from kaicep.server.service import Client

# ----------------------------------------------------------------------------------------------------------
# A match where somebody saw it: in a file of results, or in what a file or Delta sink has written.

# Of CSV and Parquet no other column: there, selected ones have names of their own choice.
_COLUMNS = ("query", "id", "start", "end", "events")
_FORMS = "results are JSON Lines, CSV, Parquet, or the folder of a Delta sink"


def seen_in(places: Iterable[Path], id: str) -> list[Match]:
    """The matches there whose id begins with `id`, each once. Of all others nothing is made."""
    wanted = id.lower()
    found: dict[str, Match] = {}
    for path in places:
        for row in _rows(path, wanted):
            if str(row.get("id", "")).startswith(wanted):
                match = match_of(row, path)
                found[match.id] = match
    return list(found.values())


def only_one(matches: Sequence[Match], id: str) -> Match | None:
    """The one match of these; None where there is none, a mistake where it could be several.

    >>> only_one([Match("hot", "f3a1", 0, 0)], "f3").id
    'f3a1'
    """
    if len(matches) > 1:
        raise Mistake(f"{len(matches)} matches have an id that begins with {id}", hint="give more of it")
    return matches[0] if matches else None


def match_of(row: Mapping[str, Any], path: Path | str) -> Match:
    """The match of a row of results; the selected values only where they are together, as in JSON Lines.

    >>> row = {"query": "hot", "id": "f3", "start": "1970-01-01", "end": "1970-01-01T00:00:01"}
    >>> match_of(row, "matches.jsonl").end_us
    1000000
    """
    try:
        times = [parse_time(row[name]) for name in ("start", "end")]
        query, id = str(row["query"]), str(row["id"])
    except (KeyError, TypeError):
        raise _no_results(path) from None
    start, end = times
    if start is None or end is None:
        raise _no_results(path)
    given = row.get("select")
    select = dict(given) if isinstance(given, Mapping) else {}
    return Match(query, id, start, end, select, _events(row, path), version=row.get("knowledge"))


def _events(row: Mapping[str, Any], path: Path | str) -> Any:
    """The events by variable; tables and CSV have them as JSON."""
    value = row.get("events") or None
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise _no_results(path) from None


def _no_results(path: Path | str) -> Mistake:
    return Mistake(f"{path} holds no matches that can be read", hint=_FORMS)


def _rows(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    """The rows that may be the one; times are texts in all of them."""
    try:
        if path.is_dir():
            yield from _delta(path, wanted)
        elif path.suffix.lower() == ".parquet":
            yield from _parquet(path, wanted)
        elif path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {name: row.get(name) for name in _COLUMNS}
        else:
            yield from _json_lines(path, wanted)
    except OSError as error:
        raise Mistake(f"cannot read the results {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _no_results(path) from None
    except ImportError as error:
        hint = "pip install 'kaicep[delta]'"
        raise Mistake(f"the results {path} need the package {error.name}", hint=hint) from None


def _json_lines(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    needle = f'"{wanted}'.encode()
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == 0 and not line.lstrip().startswith(b"{"):
                raise _no_results(path)
            if needle not in line:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a line that a running sink has not finished
            if isinstance(row, dict):
                yield row


def _parquet(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.dataset

    try:
        yield from _filtered(pyarrow.dataset.dataset(str(path), format="parquet"), _COLUMNS, wanted)
    except pyarrow.ArrowException:
        raise _no_results(path) from None


def _delta(path: Path, wanted: str) -> Iterator[Mapping[str, Any]]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path)):
        raise _no_results(path)
    table = DeltaTable(str(path), storage_options=options_of(path))
    yield from _filtered(table.to_pyarrow_dataset(), (*_COLUMNS, "knowledge"), wanted)


def _filtered(rows: Any, columns: Sequence[str], wanted: str) -> Iterator[Mapping[str, Any]]:
    import pyarrow.compute as pc

    names = [name for name in columns if name in rows.schema.names]
    if "id" not in names:
        return
    found = rows.to_table(columns=names, filter=pc.starts_with(pc.field("id"), wanted))
    for row in found.to_pylist():
        yield {**row, **{name: row[name].isoformat() for name in ("start", "end") if row.get(name)}}


# ----------------------------------------------------------------------------------------------------------
# Where events are read again from: the files of a run, or an archive; as much of it as a reason needs.


@dataclass(frozen=True)
class Streams:
    """The files of a run."""

    query: FiniteRun
    uses_late = False
    """Whether a match may have an event that came too late: a query back in time takes them."""

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        return self.query.matches()

    def part(self, program: Program, within: Interval) -> FiniteRun:
        """Some of the queries over the events inside the bounds."""
        return _run(self, program, self.query.data, [e for e in events_of(self.query) if e.ts in within])

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        return self.query.dead

    def expired(self) -> Mapping[str, int]:
        """Nothing was removed from files."""
        return {}


@dataclass(frozen=True)
class Archived:
    """The archive, as it was when somebody looked."""

    query: History
    snapshot: Snapshot
    uses_late = True

    def search(self, as_seen: bool) -> list[Match]:
        """All matches."""
        from kaicep.history.strategies import past_matches

        return past_matches(self.query, "auto", as_seen, self.snapshot)

    def part(self, program: Program, within: Interval) -> FiniteRun:
        """Some of the queries over the events inside the bounds; no other file is opened."""
        own = replace(self.query, program=program).spans()
        data = [self._stream(name, both(bounds, within)) for name, bounds in own.items()]
        return _run(self, program, data, [event for each in data for event in each.events])

    def _stream(self, name: str, within: Interval) -> StreamData:
        shape = self.snapshot.shape(name)
        events = list(self.snapshot.events(name, within))
        return StreamData(name, shape.attributes, events, rdf=shape.rdf)

    def dead(self) -> list[DeadLetter]:
        """The records that could not be read."""
        own = self.query.spans()
        names = ("stream", "part", "seq", "line", "file", "reason", "record")
        rows = self.query.archive.dead_letters.read()
        return [DeadLetter(*(row[each] for each in names)) for row in rows if row["stream"] in own]

    def expired(self) -> Mapping[str, int]:
        """The times before which the events of streams were removed."""
        found = {name: self.snapshot.expired(name) for name in self.query.spans()}
        return {name: ts for name, ts in found.items() if ts is not None}


EventSource = Streams | Archived
"""Resolved queries, and the events that they are about."""


def _run(
    source: EventSource, program: Program, data: Sequence[StreamData], events: Sequence[Event]
) -> FiniteRun:
    return FiniteRun(program, source.query.catalog, source.query.knowledge, (events,), tuple(data))


def events_of(run: FiniteRun) -> list[Event]:
    """All events of a run."""
    return [each for batch in run.batches for each in batch]


def unmarked(run: FiniteRun, late: Sequence[Event] | None = None) -> FiniteRun:
    """The run as if some events, or all, had come in time."""
    chosen = None if late is None else set(late)
    events = [
        replace(each, late=False) if each.late and (chosen is None or each in chosen) else each
        for each in events_of(run)
    ]
    return replace(run, batches=(events,))


# --- how much is needed ------------------------------------------------------------------------------------


def upstream_of(program: Program, name: str) -> Program:
    """A query, and before it all whose output it needs; an EP-SPARQL query may read everybody's."""
    by_name = {each.name: each for each in program.queries}
    found = {name}
    waiting = [name]
    while waiting:
        plan = by_name[waiting.pop()]
        reads = set(by_name) if isinstance(plan, EpPlan) else {each for each in plan.reads if each in by_name}
        waiting += reads - found
        found |= reads
    return Program(tuple(each for each in program.queries if each.name in found))


def needed(program: Program, match: Match) -> Interval:
    """The range of time whose events decide about a match (including those of absences, before its end)."""
    own = next(each for each in program.queries if each.name == match.query)
    low = None if _depends_on_all_before(own) else match.start_us
    return stretch_of(program, match.query, low, match.end_us)


def stretch_of(program: Program, name: str, low: int | None, high: int) -> Interval:
    """The events for what a query reads from `low` to `high`: other queries' outputs reach back further."""
    below = reach_of(Program(tuple(each for each in program.queries if each.name != name)))
    if low is None or below == math.inf:
        return Interval(None, True, high, True)
    return Interval(low - int(below), True, high, True)


def _depends_on_all_before(plan: QueryPlan) -> bool:
    if isinstance(plan, EpPlan):
        return True
    if isinstance(plan.body, Pattern):
        return plan.body.skip != "none"
    return plan.body.window.width is None and plan.body.window.kind != "sliding"


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
    program = upstream_of(source.query.program, name)
    run = source.part(program, stretch_of(program, name, low, high))
    seen = run.matches()
    made = [derived(each, source.query.catalog) for each in seen if each.query != name]
    query, events = source.query, [*events_of(run), *made]
    reason = why_not(plan, query.catalog, query.knowledge, events, low, high, key)
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
    plans = {each.name: each for each in source.query.program.queries}
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
        found = mended(letter, source.query.catalog.streams[letter.stream])
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
    names = [each.name for each in source.query.program.queries]
    if match.query not in names:
        hint = did_you_mean(match.query, names)
        raise Mistake(
            f"the match {match.id} is one of {match.query}, which is not among the queries", hint=hint
        )
    program = upstream_of(source.query.program, match.query)
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
            if prove(path, binding, source.query.catalog, source.query.knowledge) is None:
                yield path_text(path, dict(source.query.catalog.known_prefixes(plan.prefixes)))


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
