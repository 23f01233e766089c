"""The host in this process: queries registered with an engine, events pushed, matches at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported
from kaicep.kernel.codec import decode, encode
from kaicep.kernel.operator import Limits, Operator, Semantics
from kaicep.kernel.pattern import PatternOperator
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Parts, Sorter
from kaicep.kernel.windows import WindowOperator
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.runtime import Settings as PathSettings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.catalog import Catalog
from kaicep.plan.convert import Unfit, convert
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Pattern, Program, Project, QueryPlan, SemanticFilter, WindowAggregate
from kaicep.plan.results import Answer
from kaicep.plan.types import Type, Value

__all__ = ["Engine", "Settings", "run_inprocess"]


@dataclass(frozen=True)
class Settings:
    """How an engine works: what its operators may hold, how PATHs are decided at run time.

    `parts` are the parts of sources to wait for, by stream; part 0 of each where nothing is said.
    """

    limits: Limits = Limits()
    paths: PathSettings = field(default_factory=PathSettings)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)


class _Query:
    """A registered query: its plan as resolved, its operator, its columns, the sort stage that feeds it."""

    def __init__(self, plan: QueryPlan, sorter: Sorter) -> None:
        self.plan = plan
        self.sorter = sorter
        self.optimized = plan
        self.operator: Operator
        self.projection: Projection
        self.version = 0
        self.versioned = _asks_the_knowledge(plan)


class Engine:
    """Runs the queries of a program over events as they come.

    `push` takes events in the order of arrival and returns the matches that are certain by then, each
    once; `finish` ends the input. `lateness` is how far behind the newest of its part an event may be
    (None: any distance, so that only the end settles anything). `on_match` is called for every match,
    `late` has the events that came too late. Knowledge may be updated between two pushes: events that
    were judged keep their verdict, and a match shows the version that its last event was judged under.
    """

    def __init__(
        self,
        program: Program,
        catalog: Catalog,
        knowledge: Knowledge,
        *,
        lateness: int | None = None,
        on_match: Callable[[Match], None] | None = None,
        settings: Settings | None = None,
        unknown: UnknownEntities | None = None,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.settings = settings or Settings()
        self.late: list[Event] = []
        self._on_match = on_match
        self._parts = Parts(lateness)
        self._relations = Relations(catalog, knowledge, unknown, self.settings.paths)
        self._queries: dict[str, _Query] = {}
        self._sorters: list[Sorter] = []
        shared: dict[tuple[str, ...], Sorter] = {}
        for plan in program.queries:
            streams = _streams(plan)
            if streams not in shared:
                shared[streams] = self._sorter(streams)
            self._add(plan, shared[streams])

    # --- queries come and go ---

    def register(self, plan: QueryPlan, catalog: Catalog | None = None) -> None:
        """Adds a query; it sees what is pushed from now on.

        `catalog` is the one that it was resolved against, where that knows more streams than before.
        """
        if plan.name in self._queries:
            raise Mistake(Diagnostic(f"a query named {plan.name} is registered already"))
        if catalog is not None:
            self.catalog = self._relations.catalog = self._relations.runtime.catalog = catalog
        self._add(plan, self._sorter(_streams(plan)))

    def unregister(self, name: str) -> None:
        """Removes a query and what it holds; the others go on untouched."""
        if name not in self._queries:
            raise Mistake(Diagnostic(f"no query named {name} is registered"))
        readers = [each for each, query in self._queries.items() if name in query.sorter.places]
        if readers:
            raise Mistake(
                Diagnostic(f"{name} is read by {', '.join(readers)}", hint=f"remove {readers[0]} first")
            )
        gone = self._queries.pop(name)
        self._parts.drop(name)
        if all(query.sorter is not gone.sorter for query in self._queries.values()):
            self._sorters.remove(gone.sorter)

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the registered queries, each after those that it reads."""
        return tuple(self._queries)

    @property
    def size(self) -> int:
        """How many events and partial matches are held, those that wait for their turn included."""
        waiting = sum(len(each) for each in self._sorters)
        return waiting + sum(each.operator.size for each in self._queries.values())

    def _sorter(self, streams: tuple[str, ...]) -> Sorter:
        made = Sorter(streams, self._parts)
        self._sorters.append(made)
        return made

    def _add(self, plan: QueryPlan, sorter: Sorter) -> None:
        query = _Query(plan, sorter)
        query.version = self.knowledge.version
        query.optimized, _ = optimize(plan, self.catalog, self.knowledge)
        query.operator = self._operator(query.optimized)
        query.operator.version = query.version
        query.projection = Projection(query.optimized, query.versioned)
        self._queries[plan.name] = query
        self._parts.derive(plan.name)
        for stream in sorter.streams:
            if stream not in self._queries:
                for part in self.settings.parts.get(stream, (0,)):
                    self._parts.expect(stream, part)

    def _operator(self, plan: QueryPlan) -> Operator:
        return operator_of(plan, self._relations, self.settings.limits)

    # --- events come ---

    def push(self, events: Iterable[Event]) -> list[Match]:
        """Takes events in the order of arrival; returns what is certain by now."""
        arrived: dict[str, list[Event]] = {}
        for event in events:
            marked = self._parts.arrive(event)
            if not marked.late and any(
                event.stream in each.places and each.has_passed(event) for each in self._sorters
            ):
                marked = _late(marked)
            if marked.late:
                self.late.append(marked)
            else:
                arrived.setdefault(marked.stream, []).append(marked)
        for sorter in self._sorters:
            for stream in sorter.streams:
                if stream in arrived:
                    sorter.offer(arrived[stream])
        return self._run()

    def idle(self, stream: str, part: int = 0) -> list[Match]:
        """A part has been silent for so long that it holds nobody back; returns what that settles."""
        self._parts.idle(stream, part)
        return self._run()

    def advance(self, ts: int) -> list[Match]:
        """No part will send an event below this time; returns what that settles."""
        self._parts.reach(ts)
        return self._run()

    def finish(self) -> list[Match]:
        """Ends the input; returns the rest of the matches."""
        self._parts.finished = True
        return self._run()

    def _run(self) -> list[Match]:
        """Lets what is in order go through all queries, each after those that it reads."""
        self._renew()
        found: list[Match] = []
        released: dict[Sorter, list[Event]] = {}
        for name, query in self._queries.items():
            sorter = query.sorter
            if sorter not in released:
                released[sorter] = sorter.release()
            made = [*query.operator.feed(released[sorter]), *query.operator.advance(sorter.watermark)]
            answers = list(query.projection.answers(made))
            self._parts.derive(name, query.operator.promise(sorter.watermark))
            if answers:
                self._pass_on(name, answers)
                found.extend(each.match for each in answers)
        found.sort(key=lambda match: (match.end, match.id))
        if self._on_match is not None:
            for match in found:
                self._on_match(match)
        return found

    def _pass_on(self, name: str, answers: list[Answer]) -> None:
        """Gives the matches of a query to those that read its output."""
        readers = [each for each in self._sorters if name in each.places]
        if readers:
            events = [derived_event(each, self.catalog) for each in answers]
            for sorter in readers:
                sorter.offer(events)

    def _renew(self) -> None:
        """Lets a new version of the knowledge judge from here on."""
        version = self.knowledge.version
        for query in self._queries.values():
            if query.version == version:
                continue
            query.version = version
            plan, _ = optimize(query.plan, self.catalog, self.knowledge)
            if plan.root != query.optimized.root:
                state = query.operator.snapshot()
                query.operator = self._operator(plan)
                query.operator.restore(state)
                query.optimized = plan
                query.projection = Projection(plan, query.versioned)
            query.operator.version = version

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state of all queries, and of the sort stages before them."""
        sorters = [
            [[name for name, query in self._queries.items() if query.sorter is sorter], sorter.document()]
            for sorter in self._sorters
        ]
        queries = {
            name: [query.plan.text, query.operator.snapshot().decode()]
            for name, query in self._queries.items()
        }
        return encode(
            "engine",
            {
                "lateness": self._parts.lateness,
                "parts": self._parts.document(),
                "sorters": sorters,
                "queries": queries,
            },
        )

    def restore(self, state: bytes) -> None:
        """Goes on from the state of an engine with the same queries."""
        document: dict[str, Any] = decode("engine", state)
        saved = document["queries"]
        if list(saved) != list(self._queries) or document["lateness"] != self._parts.lateness:
            raise Failure(
                f"the saved state is of the queries {', '.join(saved)} with lateness {document['lateness']}"
            )
        self._parts.load(document["parts"])
        self._sorters = []
        for names, held in document["sorters"]:
            sorter = self._sorter(self._queries[names[0]].sorter.streams)
            sorter.load(held)
            for name in names:
                self._queries[name].sorter = sorter
        for name, (text, inner) in saved.items():
            if text != self._queries[name].plan.text:
                raise Failure(f"the saved state is of another text of {name}")
            self._queries[name].operator.restore(inner.encode())


def operator_of(plan: QueryPlan, semantics: Semantics, limits: Limits) -> Operator:
    """The operator of an optimised plan."""
    if not isinstance(plan.root, Project):
        raise Unsupported(f"{plan.name}: EP-SPARQL does not run in process yet; use the host reference")
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
    raise Unsupported(f"{plan.name}: EP-SPARQL does not run in process yet; use the host reference")


def _asks_the_knowledge(plan: QueryPlan) -> bool:
    return any(
        isinstance(node, SemanticFilter) or bool(getattr(node, "semantics", ())) for node in plan.root.walk()
    )


def _late(event: Event) -> Event:
    from dataclasses import replace

    return replace(event, late=True)


def derived_event(answer: Answer, catalog: Catalog) -> Event:
    """A match as an event of the query's output stream, at the match's end."""
    match = answer.match
    types = dict(catalog.streams[match.query].attributes)
    values = {name: _as_type(value, types[name]) for name, value in answer.values.items() if name in types}
    return Event(match.query, 0, 0, match.end, values, id=match.id)


def _as_type(value: Value, wanted: Type) -> Value:
    """A value as the type of its attribute; None where it cannot be: a term may be anything."""
    try:
        return value if wanted is Type.TIMESTAMP and isinstance(value, int) else convert(value, wanted)
    except Unfit:
        return None


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
    engine = Engine(run.program, run.catalog, run.knowledge, unknown=unknown)
    found: list[Match] = []
    for batch in run.batches:
        found += engine.push(batch)
    found += engine.finish()
    run.unknown = dict(unknown.counts)
    return sorted(found, key=lambda match: (match.end, match.id))
