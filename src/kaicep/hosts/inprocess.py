"""The host in this process: queries registered with an engine, events pushed, matches at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported
from kaicep.hosts.columnar import (
    CompiledOperator,
    CompiledQuery,
    asks_the_knowledge,
    attribute_types,
    compiled_operator,
    derived_events,
    together,
    why_interpreted,
)
from kaicep.hosts.editing import asks_as_before, why_anew, why_anew_compiled
from kaicep.hosts.held import held_events, why_not_enough
from kaicep.kernel.codec import decode_with, encode_with
from kaicep.kernel.epsparql import EpOperator
from kaicep.kernel.operator import Found, Limits, Operator, Semantics, Windowed
from kaicep.kernel.pattern import PatternOperator
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Lateness, Parts, Sorter, read_place, written_place
from kaicep.kernel.windows import WindowOperator
from kaicep.knowledge.event_graph import UnknownEntities, event_triples
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.runtime import Settings as PathSettings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import RULES, Rule, optimize, subplan
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.nodes import Node, Pattern, Program, Project, QueryPlan, WindowAggregate
from kaicep.plan.results import Answer, derived_event, term_answer
from kaicep.plan.terms import Triple

if TYPE_CHECKING:
    from kaicep.hosts.growing import Growth
    from kaicep.hosts.lane import Lane
    from kaicep.kernel.batches import Batch, ColumnSorter
    from kaicep.kernel.columns import Matches, Strings
    from kaicep.kernel.compiled.group import GroupMatches

__all__ = ["Engine", "Listed", "Settings", "run_inprocess"]

MANY = 20_000
"""From so many events on it pays to compile, or to load what was compiled before."""

_LATE_KEPT = 10_000
_FEW_STRINGS = 1 << 16


@dataclass(frozen=True)
class Settings:
    """How an engine works: what its operators may hold, how PATHs are decided at run time.

    `parts` are the parts of sources to wait for, by stream; part 0 of each where nothing is said. `kernel`
    is "compiled" or "interpreted", the answers being the same; "auto" compiles at once where `events`, the
    number of events that are expected, makes it worth while, and else beside the work, when so many have
    come. What cannot be compiled is interpreted. `rules` are those of the optimiser.
    """

    limits: Limits = Limits()
    kernel: str = "auto"
    events: int | None = None
    paths: PathSettings = field(default_factory=PathSettings)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES


class _Query:
    """A registered query: its plan as resolved, its operator, its columns, the sort stage that feeds it."""

    def __init__(self, plan: QueryPlan, sorter: Sorter) -> None:
        self.plan = plan
        self.sorter = sorter
        self.optimized = plan
        self.operator: Operator
        self.projection: Projection
        self.version = 0
        self.since = 0  # the version of the knowledge that judged the first of its events
        self.versioned = asks_the_knowledge(plan)
        self.names = (plan.name,)
        self.text = plan.text


class _TripleQueries:
    """The EP-SPARQL queries of an engine: one operator, and the sort stage that feeds it."""

    def __init__(
        self, plans: tuple[QueryPlan, ...], sorter: Sorter, knowledge: Knowledge, settings: Settings
    ) -> None:
        self.plans = plans
        self.sorter = sorter
        self.settings = settings
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.version = knowledge.version
        self.operator = self._made(knowledge)

    def _made(self, knowledge: Knowledge) -> EpOperator:
        compiled = None if self.settings.kernel == "auto" else self.settings.kernel == "compiled"
        return EpOperator(self.plans, knowledge, held=self.settings.limits.held, compiled=compiled)

    def answers(self, occurrences: Iterable[tuple[Triple, int, int]]) -> list[Answer]:
        """The matches that these occurrences and the watermark settle; their columns are texts."""
        found = [*self.operator.feed(occurrences), *self.operator.advance(self.sorter.watermark)]
        return [term_answer(each) for each in found]

    def renew(self, knowledge: Knowledge) -> None:
        """Lets a new version of the knowledge be read from here on; what was derived stays."""
        if self.version != knowledge.version:
            self.version = knowledge.version
            state = self.operator.snapshot()
            self.operator = self._made(knowledge)
            self.operator.restore(state)


@dataclass(frozen=True)
class Listed:
    """Matches of one interpreted query, for whoever takes them in chunks (as `kernel.columns.Matches`)."""

    query: str
    rows: Sequence[Match]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)


class Engine:
    """Runs the queries of a program over events as they come.

    `push` takes events in the order of arrival and returns the matches that are certain by then, each
    once; `finish` ends the input. `lateness` is how far behind the newest of its part an event may be, for
    all streams or by stream (None: any distance, so that only the end settles anything). `on_match` is
    called for every match. With `on_matches` they are given in chunks, as columns where a query is compiled
    (of many that are alike together: `split` parts them), and nothing is returned; a chunk holds until the
    call returns. `late` has the
    newest of the events that came too late, `late_count` says how many there were. Knowledge may be updated
    between two pushes: events that were judged keep their verdict, and a match shows the version that its
    last event was judged under.
    """

    def __init__(
        self,
        program: Program,
        catalog: Catalog,
        knowledge: Knowledge,
        *,
        lateness: Lateness = None,
        on_match: Callable[[Match], None] | None = None,
        on_matches: Callable[[Matches | GroupMatches | Listed], None] | None = None,
        settings: Settings | None = None,
        unknown: UnknownEntities | None = None,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.settings = settings or Settings()
        self.late: deque[Event] = deque(maxlen=_LATE_KEPT)
        self.late_count = 0
        self._on_match = on_match
        self._on_matches = on_matches
        self._strings: Strings | None = None
        self._most_strings = _FEW_STRINGS
        self._lane: Lane | None = None
        self._version = -1
        self._seen = 0
        self._growth: Growth | None = None
        self._parts = Parts(lateness)
        self._relations = Relations(catalog, knowledge, unknown, self.settings.paths)
        self._unknown = unknown
        self._queries: dict[str, _Query | CompiledQuery] = {}
        self._triples: _TripleQueries | None = None
        self._steps: list[_Query | CompiledQuery | _TripleQueries] = []
        self._sorters: list[Sorter | ColumnSorter] = []
        shared: dict[tuple[str, ...], Sorter] = {}
        columns: dict[tuple[str, ...], ColumnSorter] = {}
        compiled: list[tuple[QueryPlan, QueryPlan]] = []
        for plan in program.queries:
            if plan.language == "EP-SPARQL":
                self._add_triples(program)
                continue
            optimized = self._optimized(plan, catalog)
            if self._is_to_compile(optimized, catalog):
                compiled.append((plan, optimized))
            else:
                # It may read what those before it derive.
                self._add_compiled(compiled, columns)
                compiled = []
                self._add(self._interpreted(plan, optimized, shared))
        self._add_compiled(compiled, columns)

    # --- queries come and go ---

    def register(self, plan: QueryPlan, catalog: Catalog | None = None) -> None:
        """Adds a query; it sees what is pushed from now on.

        `catalog` is the one that it was resolved against, where that knows more streams than before.
        """
        if plan.name in self.queries:
            raise Mistake(Diagnostic(f"a query named {plan.name} is registered already"))
        self._learn(catalog)
        self._begin(plan, self._optimized(plan, self.catalog))

    def _learn(self, catalog: Catalog | None) -> None:
        if catalog is not None:
            self.catalog = self._relations.catalog = self._relations.runtime.catalog = catalog

    def _optimized(self, plan: QueryPlan, catalog: Catalog) -> QueryPlan:
        return optimize(plan, catalog, self.knowledge, self.settings.rules)[0]

    def _begin(self, plan: QueryPlan, optimized: QueryPlan) -> None:
        if self._is_to_compile(optimized, self.catalog):
            self._add_compiled([(plan, optimized)], {})
        else:
            self._add(self._interpreted(plan, optimized, {}))

    def unregister(self, name: str) -> None:
        """Removes a query and what it holds; the others go on untouched."""
        if self._triples is not None and name in self._triples.names:
            raise Unsupported(f"{name}: the EP-SPARQL queries of an engine are one, and stay together")
        if name not in self._queries:
            raise Mistake(Diagnostic(f"no query named {name} is registered"))
        readers = [each for each, query in self._queries.items() if name in query.sorter.places]
        if self._triples is not None and name in self._triples.sorter.places:
            readers += self._triples.names
        if readers:
            raise Mistake(
                Diagnostic(f"{name} is read by {', '.join(readers)}", hint=f"remove {readers[0]} first")
            )
        self._dismiss(name)
        self._parts.drop(name)

    def _dismiss(self, name: str) -> None:
        """Takes a query out; those that are found in one pass with it go on without it."""
        gone = self._queries.pop(name)
        self._lane = None
        if isinstance(gone, CompiledQuery) and len(gone.names) > 1:
            self._without(gone, name)
            return
        self._steps.remove(gone)
        if all(query.sorter is not gone.sorter for query in self._queries.values()):
            self._sorters.remove(gone.sorter)

    def _without(self, query: CompiledQuery, name: str) -> None:
        left = [index for index, each in enumerate(query.names) if each != name]
        plans = [query.plans[index] for index in left]
        optimized = [query.optimized[index] for index in left]
        operator = self._compiled_operator(optimized, query.versioned)
        operator.restore(query.operator.snapshot())
        made = CompiledQuery(plans, optimized, operator, query.sorter, query.version, query.versioned)
        self._steps[self._steps.index(query)] = made
        self._queries.update(dict.fromkeys(made.names, made))

    def edit(self, plan: QueryPlan, catalog: Catalog | None = None) -> str | None:
        """Replaces a query by another of its name, from the next event on; the others go on untouched.

        It goes on with what the old one holds where that gives the same matches as if it had been there
        before. Returns None then, and else why it begins anew.
        """
        optimized = self._optimized(plan, catalog or self.catalog)
        reason = self._go_on_as(plan, optimized, catalog)
        if reason is not None:
            self._dismiss(plan.name)
            self._learn(catalog)
            self._begin(plan, optimized)
        return reason

    def go_on_as(self, plan: QueryPlan, catalog: Catalog | None = None) -> str | None:
        """Edits a query only where it can go on with what it holds; else says why not, and does nothing."""
        return self._go_on_as(plan, self._optimized(plan, catalog or self.catalog), catalog)

    def _go_on_as(self, plan: QueryPlan, optimized: QueryPlan, catalog: Catalog | None) -> str | None:
        self._renew()  # so that both plans are of the knowledge of now
        old = self._queries.get(plan.name)
        if old is None:
            raise Mistake(Diagnostic(f"no query named {plan.name} is registered"))
        reason = self._why_anew(old, plan, optimized, catalog or self.catalog)
        if reason is None:
            self._learn(catalog)
            made = (
                self._edited_compiled(old, plan, optimized)
                if isinstance(old, CompiledQuery)
                else self._edited(old, plan, optimized)
            )
            self._steps[self._steps.index(old)] = self._queries[plan.name] = made
            self._lane = None
        return reason

    def _why_anew(
        self, old: _Query | CompiledQuery, plan: QueryPlan, optimized: QueryPlan, catalog: Catalog
    ) -> str | None:
        if not isinstance(old, CompiledQuery):
            if self._is_to_compile(optimized, catalog):
                return "it is compiled now"
            judged_anew = asks_the_knowledge(plan) and self.knowledge.version != old.since
            return why_anew(old.optimized, optimized, judged_anew)
        if len(old.names) > 1:
            return "it is found in one pass with others that are like it"
        # Not whether it is to be: it may have been compiled while it ran.
        obstacle = why_interpreted(optimized, catalog)
        if obstacle is not None:
            return f"it was compiled, and cannot be any more: {obstacle}"
        return why_anew_compiled(old.optimized[0], optimized, catalog)

    def _edited(self, old: _Query, plan: QueryPlan, optimized: QueryPlan) -> _Query:
        """The new query, with what the old one holds; what is found in that was found before."""
        made = _Query(plan, old.sorter)
        made.version, made.since = old.version, old.since
        made.optimized = optimized
        made.projection = Projection(optimized, made.versioned)
        made.operator = self._operator(optimized)
        made.operator.version = old.version
        assert isinstance(old.optimized.root, Project)
        assert isinstance(optimized.root, Project)
        if asks_as_before(old.optimized.root.input, optimized.root.input):
            made.operator.restore(old.operator.snapshot())
        else:
            made.operator.feed(held_events(old.operator, old.sorter.streams))
            made.operator.advance(old.sorter.watermark)
        return made

    def _edited_compiled(self, old: CompiledQuery, plan: QueryPlan, optimized: QueryPlan) -> CompiledQuery:
        versioned = asks_the_knowledge(plan)
        operator = self._compiled_operator([optimized], versioned)
        operator.restore(old.operator.snapshot())
        old.sorter.attributes.update(attribute_types(operator, optimized, self.catalog))
        return CompiledQuery([plan], [optimized], operator, old.sorter, old.version, versioned)

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the registered queries."""
        return (*self._queries, *(self._triples.names if self._triples is not None else ()))

    @property
    def size(self) -> int:
        """How many events and partial matches are held, those that wait for their turn included."""
        waiting = sum(len(each) for each in self._sorters)
        operators = {id(each.operator): each.operator for each in self._steps}
        return waiting + sum(each.size for each in operators.values())

    @property
    def shed(self) -> dict[str, int]:
        """By query, how many partial matches it let go of because it held too many."""
        found = ((name, getattr(step.operator, "shed", 0)) for step in self._steps for name in step.names)
        return {name: count for name, count in found if count}

    def _sorter(self, streams: tuple[str, ...]) -> Sorter:
        made = Sorter(streams, self._parts)
        self._sorters.append(made)
        return made

    def _add(self, made: _Query | CompiledQuery) -> None:
        self._queries.update(dict.fromkeys(made.names, made))
        self._steps.append(made)
        self._lane = None
        for name in made.names:
            self._parts.derive(name)
        self._expect(made.sorter)

    def _interpreted(
        self, plan: QueryPlan, optimized: QueryPlan, shared: dict[tuple[str, ...], Sorter]
    ) -> _Query:
        streams = _streams(plan)
        if streams not in shared:
            shared[streams] = self._sorter(streams)
        query = _Query(plan, shared[streams])
        query.version = query.since = self.knowledge.version
        query.optimized = optimized
        query.operator = self._twin(query) or self._operator(query.optimized)
        query.operator.version = query.version
        query.projection = Projection(query.optimized, query.versioned)
        return query

    def _is_to_compile(self, plan: QueryPlan, catalog: Catalog) -> bool:
        wanted = self.settings.kernel
        if wanted == "auto":
            wanted = "compiled" if (self.settings.events or 0) >= MANY else "interpreted"
        return wanted == "compiled" and why_interpreted(plan, catalog) is None

    def _add_compiled(
        self, plans: Sequence[tuple[QueryPlan, QueryPlan]], columns: dict[tuple[str, ...], ColumnSorter]
    ) -> None:
        """Adds queries, each as resolved and as optimised; those that are alike are found in one pass."""
        if not plans:
            return
        from kaicep.kernel.batches import ColumnSorter

        resolved = {each.name: each for each, _ in plans}
        for group in together([each for _, each in plans], self.catalog):
            own = [resolved[each.name] for each in group]
            versioned = asks_the_knowledge(own[0])
            operator = self._compiled_operator(group, versioned)
            streams = _streams(own[0])
            if streams not in columns:
                columns[streams] = ColumnSorter(streams, self._parts, {}, self.strings)
                self._sorters.append(columns[streams])
            sorter = columns[streams]
            sorter.attributes.update(attribute_types(operator, group[0], self.catalog))
            self._add(CompiledQuery(own, group, operator, sorter, self.knowledge.version, versioned))

    def _compiled_operator(self, plans: Sequence[QueryPlan], versioned: bool) -> CompiledOperator:
        made = compiled_operator(
            plans, self.catalog, self._relations, self.strings, self.settings.limits, versioned
        )
        made.version = self.knowledge.version
        return made

    @property
    def strings(self) -> Strings:
        """The dictionary of all strings that compiled queries have to do with."""
        if self._strings is None:
            from kaicep.kernel.columns import Strings

            self._strings = Strings()
        return self._strings

    def _expect(self, sorter: Sorter | ColumnSorter) -> None:
        """The parts that the sort stage waits for; what queries derive is not a part of any source."""
        for stream in sorter.streams:
            if not self.catalog.streams[stream].derived:
                for part in self.settings.parts.get(stream, (0,)):
                    self._parts.expect(stream, part)

    def _add_triples(self, program: Program) -> None:
        """All EP-SPARQL queries at once: what one of them constructs, all of them read."""
        if self._triples is not None:
            return
        plans = tuple(each for each in program.queries if each.language == "EP-SPARQL")
        read = (each for each in self.catalog.streams.values() if each.rdf or each.annotated)
        own = {each.name for each in plans}
        sorter = self._sorter(tuple(each.name for each in read if each.name not in own))
        self._triples = _TripleQueries(plans, sorter, self.knowledge, self.settings)
        self._steps.append(self._triples)
        for each in plans:
            self._parts.derive(each.name)
        self._expect(sorter)

    def _twin(self, query: _Query) -> Operator | None:
        """The operator of a query with the same subplan, which sees the same events from the same time on."""
        wanted = subplan(query.optimized)
        for each in self._queries.values():
            if isinstance(each, CompiledQuery):
                continue
            same = each.sorter is query.sorter and each.version == query.version
            if same and subplan(each.optimized) == wanted:
                return each.operator
        return None

    def _operator(self, plan: QueryPlan) -> Operator:
        return operator_of(plan, self._relations, self.settings.limits)

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
        batches: dict[str, Batch] = {}
        for sorter in self._sorters:
            for stream in sorter.streams:
                if stream not in arrived:
                    continue
                if isinstance(sorter, Sorter):
                    sorter.offer(arrived[stream])
                else:
                    if stream not in batches:
                        batches[stream] = self.batch(stream, arrived[stream])
                    sorter.offer(batches[stream])
        return self._run()

    def batch(self, stream: str, events: Sequence[Event]) -> Batch:
        """Events of one stream as a batch for this engine."""
        from kaicep.kernel.batches import batch_of_events

        return batch_of_events(stream, events, dict(self.catalog.streams[stream].attributes), self.strings)

    def push_batch(self, batch: Batch) -> list[Match]:
        """Takes a batch of events of one stream; returns what is certain by now."""
        from kaicep.kernel.batches import late_in

        if batch.strings is not self.strings:
            batch = self.batch(batch.stream, batch.events)  # it was made before strings got new codes
        late = late_in(batch, self._parts)
        readers = [each for each in self._sorters if batch.stream in each.places]
        for sorter in readers:
            passed = sorter.passed(batch)
            if passed is not None:
                late = passed if late is None else late | passed
        if late is not None:
            for event in batch.take(late).events:
                self._note_late(_late(event))
            batch = batch.take(~late)
        self._seen += len(batch)
        for sorter in readers:
            if isinstance(sorter, Sorter):
                sorter.offer(batch.events)
            else:
                sorter.offer(batch)
        return self._run()

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
        if len(answers) > 1:
            found.sort(key=by_end)
        if self._on_match is not None:
            for match in found:
                self._on_match(match)
        return found

    def _new_lane(self, stream: str) -> Lane | None:
        """The short way for events of a stream, where it is open."""
        from kaicep.kernel.batches import ColumnSorter

        if not all(isinstance(each, CompiledQuery) for each in self._steps) or len(self._sorters) != 1:
            return None
        (sorter,) = self._sorters
        parts = self._parts.numbers(stream)
        if sorter.streams != (stream,) or len(parts) != 1 or self._parts.allowed(stream) != 0:
            return None
        assert isinstance(sorter, ColumnSorter)
        self._renew()
        from kaicep.hosts.lane import Lane

        known = self.catalog.streams[stream]
        operators = [each.operator for each in self._steps if isinstance(each, CompiledQuery)]
        return Lane(sorter, operators, dict(known.attributes), known.time, parts[0], self.strings)

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

    def finish(self) -> list[Match]:
        """Ends the input; returns the rest of the matches."""
        self._parts.finished = True
        return self._run()

    def _run(self) -> list[Match]:
        """Lets what is in order go through all queries, each after those that it reads."""
        self._renew()
        found: list[Match] = []
        released: dict[int, Any] = {}
        worked: dict[int, list[Found | Windowed]] = {}
        for query in self._steps:
            sorter = query.sorter
            if id(sorter) not in released:
                released[id(sorter)] = sorter.release()
            events = released[id(sorter)]
            if isinstance(query, CompiledQuery):
                read = [name for name in query.names if self._readers(name)]
                for matches in query.answers(events):
                    self._deliver(matches, found)
                    for each in matches.split() if read else ():
                        if each.query in read:
                            self._pass_on(each.query, derived_events(each, self.catalog))
            else:
                answers = self._answers(query, events, worked)
                for name in query.names:
                    own = [each for each in answers if each.match.query == name]
                    if own:
                        self._deliver(Listed(name, [each.match for each in own]), found)
                        if self._readers(name):
                            self._pass_on(name, [derived_event(each, self.catalog) for each in own])
            promise = query.operator.promise(sorter.watermark)
            for name in query.names:
                self._parts.derive(name, promise)
        found.sort(key=by_end)
        if self._on_match is not None:
            for match in found:
                self._on_match(match)
        if self._seen >= MANY and self.settings.kernel == "auto":
            self._grow()
        if self._strings is not None and len(self._strings) > self._most_strings:
            self._forget_strings()
        return found

    def _grow(self) -> None:
        """Has the queries compiled that can be (`hosts.growing`), and lets those take over that are ready."""
        small = [each for each in self._steps if isinstance(each, _Query)]
        if not small:
            return
        from kaicep.hosts.growing import Growth

        plans = [each.optimized for each in small]
        if self._growth is None or self._growth.is_over(plans):
            self._growth = Growth(plans, self.catalog, self.settings.limits)
        moved: dict[int, ColumnSorter] = {}
        for query in small:
            if not self._growth.is_ready(query.optimized):
                continue
            judged_anew = query.versioned and query.version != query.since
            assert isinstance(query.optimized.root, Project)
            reason = why_not_enough(query.optimized.root.input, judged_anew)
            if reason is None or query.operator.size == 0:
                self._move(query, moved)

    def _move(self, query: _Query, moved: dict[int, ColumnSorter]) -> None:
        """Gives a compiled operator what the interpreted one of a query holds, and its place."""
        from kaicep.kernel.batches import ColumnSorter

        old = query.sorter
        operator = self._compiled_operator([query.optimized], query.versioned)
        types = attribute_types(operator, query.optimized, self.catalog)
        if id(old) not in moved:
            moved[id(old)] = ColumnSorter(old.streams, self._parts, types, self.strings)
            self._sorters.append(moved[id(old)])
        sorter = moved[id(old)]
        sorter.attributes.update(types)
        sorter.load(old.document())
        past = ColumnSorter(old.streams, Parts(None), types, self.strings)
        held = held_events(query.operator, old.streams)
        for stream in old.streams:
            past.offer(self.batch(stream, [each for each in held if each.stream == stream]))
        past.parts.finished = True
        made = CompiledQuery(
            [query.plan], [query.optimized], operator, sorter, query.version, query.versioned
        )
        for matches in made.answers(past.release()):
            del matches  # it was told before
        self._steps[self._steps.index(query)] = self._queries[query.plan.name] = made
        self._lane = None
        if all(each.sorter is not old for each in self._steps):
            self._sorters.remove(old)

    def _forget_strings(self) -> None:
        """Gives the strings that are still of use new codes, and forgets the others.

        What is saved holds strings by their text, so everything is saved and goes on from there.
        """
        waiting = {id(each): each.document() for each in self._sorters if not isinstance(each, Sorter)}
        states = {
            id(each): each.operator.snapshot() for each in self._steps if isinstance(each, CompiledQuery)
        }
        self._strings = self._lane = None
        made: dict[int, ColumnSorter] = {}
        for query in self._steps:
            if isinstance(query, CompiledQuery):
                old = query.sorter
                if id(old) not in made:
                    made[id(old)] = old.anew(self.strings)
                    made[id(old)].load(waiting[id(old)])
                query.sorter = made[id(old)]
                query.operator = self._compiled_operator(query.optimized, query.versioned)
                query.operator.restore(states[id(query)])
        self._sorters = [made.get(id(each), each) for each in self._sorters]
        self._most_strings = max(_FEW_STRINGS, 2 * len(self.strings))

    def _answers(
        self, query: _Query | _TripleQueries, events: list[Event], worked: dict[int, list[Found | Windowed]]
    ) -> list[Answer]:
        """What an interpreted query makes of events; an operator that several share works once."""
        if isinstance(query, _TripleQueries):
            return query.answers(self._occurrences(events))
        operator = query.operator
        if id(operator) not in worked:
            worked[id(operator)] = [*operator.feed(events), *operator.advance(query.sorter.watermark)]
        return list(query.projection.answers(worked[id(operator)]))

    def _deliver(self, matches: Matches | GroupMatches | Listed, found: list[Match]) -> None:
        if self._on_matches is not None:
            self._on_matches(matches)
        else:
            found.extend(matches)

    def _readers(self, name: str) -> list[Sorter | ColumnSorter]:
        """The sort stages that take what a query derives."""
        return [each for each in self._sorters if name in each.places]

    def _pass_on(self, name: str, events: list[Event]) -> None:
        """Gives the matches of a query to those that read its output."""
        for sorter in self._readers(name):
            assert isinstance(sorter, Sorter)  # what queries derive is read by interpreted ones
            sorter.offer(events)

    def _occurrences(self, events: Iterable[Event]) -> Iterator[tuple[Triple, int, int]]:
        """Events as triples with intervals; a record is its event graph at its time."""
        for event in events:
            stream = self.catalog.streams[event.stream]
            if stream.rdf:
                start = event.ts if event.start is None else event.start
                yield from ((triple, start, event.ts) for triple in event.triples)
            else:
                graph = event_triples(event, stream, self.knowledge, self._unknown)
                yield from ((triple, event.ts, event.ts) for triple in graph.triples)

    def _renew(self) -> None:
        """Lets a new version of the knowledge judge from here on."""
        version = self.knowledge.version
        if self._triples is not None:
            self._triples.renew(self.knowledge)
        moved: dict[tuple[int, Node], tuple[Operator, Operator]] = {}
        for query in self._queries.values():
            if query.version == version:
                continue
            if isinstance(query, CompiledQuery):
                self._renew_compiled(query)
                continue
            query.version = version
            plan = self._optimized(query.plan, self.catalog)
            if plan.root != query.optimized.root:
                old = query.operator
                key = id(old), subplan(plan)  # what was shared stays shared, if it is still the same
                if key not in moved:
                    moved[key] = old, self._operator(plan)
                    moved[key][1].restore(old.snapshot())
                query.operator = moved[key][1]
                query.optimized = plan
                query.projection = Projection(plan, query.versioned)
            query.operator.version = version

    def _renew_compiled(self, query: CompiledQuery) -> None:
        """A new operator with the old state: what it knows by the codes of strings is asked anew."""
        query.version = self.knowledge.version
        query.optimized = tuple(self._optimized(each, self.catalog) for each in query.plans)
        state = query.operator.snapshot()
        query.operator = self._compiled_operator(query.optimized, query.versioned)
        query.operator.restore(state)

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state of all queries, and of the sort stages before them."""
        sorters = [
            [
                [name for query in self._steps if query.sorter is sorter for name in query.names],
                sorter.document(),
            ]
            for sorter in self._sorters
        ]
        states = [query.operator.snapshot() for query in self._steps]
        queries = {
            query.names[0]: [query.text, isinstance(query, CompiledQuery), len(state)]
            for query, state in zip(self._steps, states, strict=True)
        }
        return encode_with(
            "engine",
            {
                "lateness": _plain(self._parts.lateness),
                "parts": self._parts.document(),
                "sorters": sorters,
                "queries": queries,
            },
            b"".join(states),
        )

    def restore(self, state: bytes) -> None:
        """Goes on from the state of an engine with the same queries."""
        document, states = decode_with("engine", state)
        saved = document["queries"]
        steps = {query.names[0]: query for query in self._steps}
        if list(saved) != list(steps) or document["lateness"] != _plain(self._parts.lateness):
            raise Failure(
                f"the saved state is of the queries {', '.join(saved)} with lateness {document['lateness']}"
            )
        held = dict(zip(saved, _states(saved, states), strict=True))
        for name, (text, compiled, _) in held.items():
            if text != steps[name].text:
                raise Failure(f"the saved state is of another text of {name}")
            step = steps[name]
            if compiled and isinstance(step, _Query) and self.settings.kernel == "auto":
                self._move(step, {})  # it was compiled when so many events had come
                steps[name] = self._queries[name]
            if compiled != isinstance(steps[name], CompiledQuery):
                how = "compiled" if compiled else "interpreted"
                raise Failure(f"in the saved state {name} is {how}: an engine with that kernel can go on")
        self._parts.load(document["parts"])
        self._lane = None
        self._sorters = []
        for names, waiting in document["sorters"]:
            sorter = self._like(steps[names[0]])
            sorter.load(waiting)
            for name in names:
                if name in steps:
                    steps[name].sorter = sorter
        for name, (_, _, inner) in held.items():
            steps[name].operator.restore(inner)

    def _like(self, query: _Query | CompiledQuery | _TripleQueries) -> Sorter | ColumnSorter:
        """A new sort stage like that of a query."""
        if not isinstance(query, CompiledQuery):
            return self._sorter(query.sorter.streams)
        made = query.sorter.anew(self.strings)
        self._sorters.append(made)
        return made


def _plain(lateness: Lateness) -> Any:
    """The lateness as JSON holds it."""
    return dict(sorted(lateness.items())) if isinstance(lateness, Mapping) else lateness


def _states(saved: Mapping[str, list[Any]], data: bytes) -> Iterator[tuple[str, bool, bytes]]:
    """Of each saved query its text, whether it was compiled, and its state."""
    at = 0
    for text, *rest in saved.values():
        if len(rest) == 1:  # as format 1 had it: all queries interpreted, their states as texts
            yield text, False, rest[0].encode()
        else:
            compiled, length = rest
            yield text, compiled, data[at : at + length]
            at += length


def operator_of(plan: QueryPlan, semantics: Semantics, limits: Limits) -> Operator:
    """The operator of an optimised plan."""
    assert isinstance(plan.root, Project)
    source = plan.root.input
    if isinstance(source, Pattern):
        return PatternOperator(source, semantics, limits, plan.name)
    assert isinstance(source, WindowAggregate)
    return WindowOperator(source, plan.root.columns, semantics, limits, plan.name)


def _streams(plan: QueryPlan) -> tuple[str, ...]:
    """The streams of a query, in the order of their places."""
    source = plan.root.input if isinstance(plan.root, Project) else None
    if isinstance(source, Pattern | WindowAggregate):
        return source.streams
    raise Unsupported(f"{plan.name}: EP-SPARQL queries are given when an engine is made")


def _late(event: Event) -> Event:
    from dataclasses import replace

    return replace(event, late=True)


class _Run(Protocol):
    """What `run_inprocess` needs of a run."""

    program: Program
    catalog: Catalog
    knowledge: Knowledge
    batches: Sequence[Sequence[Event]]
    unknown: dict[tuple[str, str], int]


def run_inprocess(run: _Run) -> list[Match]:
    """All matches of a run over a finite input, in the order of their end, then of their id."""
    unknown = UnknownEntities()
    settings = Settings(events=sum(map(len, run.batches)))
    engine = Engine(run.program, run.catalog, run.knowledge, settings=settings, unknown=unknown)
    found: list[Match] = []
    for batch in run.batches:
        found += engine.push(batch)
    found += engine.finish()
    run.unknown = dict(unknown.counts)
    return sorted(found, key=by_end)
