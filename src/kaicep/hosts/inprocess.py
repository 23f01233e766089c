"""The host in this process: you register queries with an engine, push events, and get matches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kaicep.hosts.lane import Lane
from kaicep.hosts.queries import ChiSearch, Listed, Settings, TripleQueries
from kaicep.hosts.replacing import Replacing
from kaicep.hosts.routing import Routing
from kaicep.hosts.unknown import UnknownValues
from kaicep.kernel.batches import Batch, ColumnSorter, batch_of_matches, late_in
from kaicep.kernel.columns import Matches, Table
from kaicep.kernel.epsparql import Sent
from kaicep.kernel.sort import Lateness, Sorter, read_place, written_place
from kaicep.knowledge.event_graph import UnknownEntities, event_triples
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.results import derived_event, term_answer
from kaicep.plan.terms import Triple
from kaicep.query import Query

_LATE_KEPT = 10_000


class Engine(Replacing):
    """Runs the queries of a program over events as they come.

    `push` takes events in the order of arrival and returns the matches that are certain by then, each
    once; `finish` ends the input. `lateness` is how far behind the newest of its part an event may be, for
    all streams or by stream (None: any distance, so that only the end settles anything). `on_match` is
    called for every match. With `on_matches` they are given in chunks, those of chi-CEP as columns, and
    nothing is returned; a chunk is good until the call returns. `late` has the newest of the events that came
    too late, `late_count` says how many there were. Where a query fails, all do; with `on_failure` it leaves,
    and those that read it, and their names and the error are given to that. Knowledge may be updated between
    two pushes: events that were judged keep their verdict, and a match shows the version that its last event
    was judged under.

    Its queries are the business of the two layers below, `registering` and `replacing`; here events come,
    and go through them.
    """

    def __init__(
        self,
        query: Query,
        *,
        lateness: Lateness = None,
        on_match: Callable[[Match], None] | None = None,
        on_matches: Callable[[Matches | Listed], None] | None = None,
        settings: Settings | None = None,
        unknown: UnknownEntities | None = None,
        on_failure: Callable[[Sequence[str], Exception], None] | None = None,
    ) -> None:
        super().__init__(query, lateness, settings)
        self.late: deque[Event] = deque(maxlen=_LATE_KEPT)
        self.late_count = 0
        self._on_match = on_match
        self._on_matches = on_matches
        self.on_failure = on_failure
        self.on_work: Callable[[Sequence[str]], None] | None = None
        """Called with the names of the queries that are about to work."""
        self._unknown = unknown
        self._values = None if unknown is None else UnknownValues(query.knowledge, unknown)
        self._version = -1
        self._seen = 0

    # --- events come ---

    def push(self, events: Iterable[Event]) -> list[Match]:
        """Takes events in the order of arrival; returns what is certain by now."""
        return self.take(self.mark(events))

    def mark(self, events: Iterable[Event]) -> list[Event]:
        """Takes note that events have come, in the order of arrival; those that are late are marked."""
        marked: list[Event] = []
        for event in events:
            seen = self._parts.arrive(event)
            marked.append(_late(seen) if not seen.late and self.has_passed(event) else seen)
        return marked

    def has_passed(self, event: Event) -> bool:
        """Whether a query went on as if this event would not come, so that it is late by now."""
        return any(event.stream in each.places and each.has_passed(event) for each in self._sorters)

    def take(self, marked: Iterable[Event]) -> list[Match]:
        """Takes events that were marked; returns what is certain by now."""
        arrived: dict[str, list[Event]] = {}
        for event in marked:
            if event.late:
                self._note_late(event)
            else:
                self._seen += 1
                arrived.setdefault(event.stream, []).append(event)
        for stream, events in arrived.items():
            self._offer_events(stream, events)
        return self._run()

    def push_batch(self, batch: Batch) -> list[Match]:
        """Takes a batch of events of one stream; returns what is certain by now."""
        return self.push_batches([batch])

    def push_batches(self, batches: Iterable[Batch]) -> list[Match]:
        """Takes batches that came at once, each of one stream; returns what is certain by now."""
        for batch in [self._marked(each) for each in batches]:
            self._seen += len(batch)
            self._offer(batch)
        return self._run()

    def _marked(self, batch: Batch) -> Batch:
        """Takes note that a batch has come; what of it is not late."""
        if batch.strings is not self.strings:
            batch = self.batch(batch.stream, batch.events)  # it was made before strings got new codes
        late = late_in(batch, self._parts)
        for sorter in self._readers(batch.stream):
            passed = sorter.passed(batch)
            if passed is not None:
                late = passed if late is None else late | passed
        if late is None:
            return batch
        for event in batch.take(late).events:
            self._note_late(_late(event))
        return batch.take(~late)

    def _offer(self, batch: Batch) -> None:
        """Gives a batch to the sort stages that take its stream: as columns, or as events for EP-SPARQL."""
        if self._values is not None and self._is_asked_about(batch.stream):
            self._values.look(batch, self.catalog)
        for sorter in self._readers(batch.stream):
            if isinstance(sorter, Sorter):
                sorter.offer(batch.events)
            else:
                sorter.offer(batch)

    def _offer_events(self, stream: str, events: list[Event]) -> None:
        """The same for events; those that nobody takes as columns are none."""
        readers = self._readers(stream)
        if self._values is None and all(isinstance(each, Sorter) for each in readers):
            for sorter in readers:
                sorter.offer(events)  # type: ignore[arg-type]
        else:
            self._offer(self.batch(stream, events))

    def _is_asked_about(self, stream: str) -> bool:
        """Whether a query with a PATH reads a stream."""
        return any(each.versioned and stream in each.sorter.places for each in self._queries.values())

    def push_record(self, stream: str, record: Mapping[str, Any], seq: int) -> list[Match] | None:
        """Takes one record the short way (`hosts.lane`); None, and nothing is done, where that is closed."""
        lane = self._lane
        if lane is None or lane.stream != stream or self._version != self.knowledge.version:
            self._version = self.knowledge.version
            lane = self._lane = self._new_lane(stream)
            if lane is None:
                return None
        answers = lane.push(record, seq)
        if answers is None:
            return None
        found: list[Match] = []
        for query, matches in zip(self._steps, answers, strict=True):
            if self._on_matches is None or not matches:
                found += matches
                continue
            for name in query.names:
                own = [each for each in matches if each.query == name]
                if own:
                    self._on_matches(Listed(name, own))
        if len(answers) > 1 and len(found) > 1:
            found.sort(key=by_end)
        if self._on_match is not None:
            for match in found:
                self._on_match(match)
        return found

    def _new_lane(self, stream: str) -> Lane | None:
        """The short path for events of a stream, where it is open."""
        queries = [each for each in self._steps if isinstance(each, ChiSearch)]
        if len(queries) < len(self._steps) or len(self._sorters) != 1 or self._values is not None:
            return None
        (sorter,) = self._sorters
        parts = self._parts.numbers(stream)
        if sorter.streams != (stream,) or len(parts) != 1 or self._parts.allowed(stream) != 0:
            return None
        assert isinstance(sorter, ColumnSorter)
        if None in sorter.attributes.values():
            return None
        self._renew()
        known = self.catalog.streams[stream]
        operators = [each.operator for each in queries]
        types, notation = dict(known.attributes), known.notation
        if not notation.usual_values:
            return None
        return Lane(sorter, operators, types, known.time, parts[0], self.strings, notation)

    def _note_late(self, event: Event) -> None:
        self.late.append(event)
        self.late_count += 1

    def idle(self, stream: str, part: int = 0) -> list[Match]:
        """A part has been silent for so long that it holds nobody back; returns what that settles."""
        self._parts.idle(stream, part)
        return self._run()

    def advance(self, ts: int) -> list[Match]:
        """No part will send an event below this time; returns what that settles."""
        self._parts.reach(ts)
        return self._run()

    def stand(self, stream: str, part: int, newest: int, position: int) -> list[Match]:
        """A part stands at a position, its newest event so far being of this time.

        For an engine that was given the past by other means than the source; returns what that settles.
        """
        known = self._parts.part(stream, part)
        known.max_ts = max(known.max_ts, newest)
        known.next_seq = max(known.next_seq, position)
        return self._run()

    @property
    def standing(self) -> list[Any]:
        """How far each part of each source has come, and what was released, as JSON holds it.

        The one does not follow from the other: a part that was silent may have been passed.
        """
        passed = [[list(each.streams), written_place(each.reached)] for each in self._sorters]
        return [*self._parts.document(), passed]

    def settle(self, standing: list[Any]) -> list[Match]:
        """The sources stand where they stood before; returns what that settles."""
        *parts, passed = standing
        self._parts.load(parts)
        places = {tuple(streams): read_place(place) for streams, place in passed}
        for sorter in self._sorters:
            if sorter.streams in places:
                sorter.pass_to(max(sorter.reached, places[sorter.streams]))
        return self._run()

    @property
    def lateness(self) -> Lateness:
        """How far behind the newest of its part an event may be; a new one counts from the next event on."""
        return self._parts.lateness

    @lateness.setter
    def lateness(self, lateness: Lateness) -> None:
        self._parts.lateness = lateness

    @property
    def watermark(self) -> float:
        """No event that is still to be looked at is earlier than this."""
        return min((each.watermark for each in self._sorters), default=math.inf)

    def end(self, streams: Iterable[str]) -> list[Match]:
        """Nothing more will come of some streams; returns what that settles."""
        self._parts.ended.update(streams)
        return self._run()

    def conclude(self, names: Collection[str]) -> list[Match]:
        """Some queries end, whatever comes; returns the rest of their matches."""
        found: list[Match] = []
        for query in self._steps:
            if isinstance(query, ChiSearch) and set(query.names) & set(names) - query.over:
                self._contained(query, partial(self._over, query, found))
                query.over |= set(query.names) & set(names)
        return sorted(found, key=by_end)

    def _over(self, query: ChiSearch, found: list[Match]) -> None:
        for matches in query.operator.advance(math.inf):
            self._handle(query, matches, found)

    def finish(self) -> list[Match]:
        """Ends the input; returns the rest of the matches."""
        self._parts.finished = True
        return self._run()

    # --- queries work ---

    def _run(self) -> list[Match]:
        """Lets what is in order go through all queries, each after those that it reads."""
        self._renew()
        found: list[Match] = []
        released: dict[int, Any] = {}
        for query in list(self._steps):
            if id(query.sorter) not in released:
                released[id(query.sorter)] = _routed(query.sorter.release())
            if query in self._steps:  # it is not where one that it reads has failed
                self._contained(query, partial(self._answer, query, released[id(query.sorter)], found))
        found.sort(key=by_end)
        if self._on_match is not None:
            for match in found:
                self._on_match(match)
        if len(self.strings) > self._most_strings:
            self._forget_strings()
        return found

    def _contained(self, query: ChiSearch | TripleQueries, what: Callable[[], None]) -> None:
        """Lets a query do something; where it fails, it leaves, and all that read it."""
        if self.on_work is not None:
            self.on_work(query.names)
        try:
            what()
        except Exception as error:
            if self.on_failure is None:
                raise
            names = self._readers_of(query.names)
            self.keep(set(self.queries) - set(names))
            self.on_failure(names, error)

    def _answer(self, query: ChiSearch | TripleQueries, events: Any, found: list[Match]) -> None:
        if isinstance(query, ChiSearch):
            for matches in query.answers(events):
                self._handle(query, matches, found)
        else:
            self._work_triples(query, events, found)
        promise = query.operator.promise(query.sorter.watermark)
        for name in query.names:
            self._parts.derive(name, promise)

    def _handle(self, query: ChiSearch, matches: Matches, found: list[Match]) -> None:
        if self._readers(matches.query):
            types = dict(self.catalog.streams[matches.query].attributes)
            self._offer(batch_of_matches(matches, types))
        if matches.query not in query.over:
            self._deliver(matches, found)

    def _work_triples(self, query: TripleQueries, events: list[Event], found: list[Match]) -> None:
        rows: Iterable[Sent] = self._occurrences(events)
        if query.operator.streams:
            rows = ((*row, event.stream) for event in events for row in self._occurrences((event,)))
        answers = query.answers(rows)
        for name in query.names if answers else ():
            own = [each for each in answers if each.query == name]
            if own:
                self._deliver(Listed(name, own), found)
                if self._readers(name):
                    derived = [derived_event(term_answer(each), self.catalog) for each in own]
                    self._offer(self.batch(name, derived))

    def _deliver(self, matches: Matches | Listed, found: list[Match]) -> None:
        if self._on_matches is not None:
            self._on_matches(matches)
        else:
            found.extend(matches)

    def _readers(self, stream: str) -> list[Sorter | ColumnSorter]:
        """The sort stages that take a stream."""
        return [each for each in self._sorters if stream in each.places]

    def _occurrences(self, events: Iterable[Event]) -> Iterator[tuple[Triple, int, int]]:
        """Events as triples with intervals; a record is its event graph at its time."""
        for event in events:
            stream = self.catalog.streams[event.stream]
            if stream.rdf:
                start = event.ts if event.start is None else event.start
                yield from ((triple, start, event.ts) for triple in event.triples)
            else:
                graph = event_triples(event, stream, self.knowledge, self._unknown)
                for mistake in filter(None, graph.unknown.values()):
                    raise mistake
                yield from ((triple, event.ts, event.ts) for triple in graph.triples)


def _routed(events: Table | Any) -> Routing | Any:
    """Events as columns, to be routed to the queries; others as they are."""
    return Routing(events) if isinstance(events, Table) else events


def _late(event: Event) -> Event:
    return replace(event, late=True)


def run_inprocess(
    query: Query, batches: Iterable[Sequence[Event]], unknown: UnknownEntities | None = None
) -> list[Match]:
    """All matches over a finite input, in the order of their end, then of their id."""
    engine = Engine(query, unknown=unknown)
    found: list[Match] = []
    for batch in batches:
        found += engine.push(batch)
    found += engine.finish()
    return sorted(found, key=by_end)
