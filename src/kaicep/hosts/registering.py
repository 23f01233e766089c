"""The queries of an engine: how they are added, get their operators and sort stages, and are removed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kaicep.errors import Mistake, Unsupported
from kaicep.hosts.queries import (
    ChiSearch,
    Settings,
    TripleQueries,
    asks_the_knowledge,
    attribute_types,
    awaited,
    operator_of,
)
from kaicep.kernel.batches import Batch, ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings
from kaicep.kernel.operator import KernelOperator, Passed
from kaicep.kernel.sort import Lateness, Parts, Sorter
from kaicep.kernel.together import groups
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.nodes import ChiPlan, EpPlan, Program, QueryPlan
from kaicep.plan.types import Type
from kaicep.query import Query

if TYPE_CHECKING:
    from kaicep.hosts.lane import Lane


class Registering:
    """What an engine knows of its queries: `_steps`, in the order of their work, and who sorts for whom.

    A step is a query of chi-CEP, or all of EP-SPARQL. The first layer of an `Engine`, below `replacing`.
    """

    def __init__(self, query: Query, lateness: Lateness, settings: Settings | None) -> None:
        self.catalog = query.catalog
        self.knowledge = query.knowledge
        self.settings = settings or Settings()
        self.strings = Strings()
        """The dictionary of all strings that the queries have to do with."""
        self._lane: Lane | None = None  # the short way for single events; it holds for these operators
        self._parts = Parts(lateness)
        self._relations = Relations(self.catalog, self.knowledge, settings=self.settings.paths)
        self._epochs = self.knowledge.epochs
        self._queries: dict[str, ChiSearch] = {}
        self._triples: TripleQueries | None = None
        self._steps: list[ChiSearch | TripleQueries] = []
        self._sorters: list[Sorter | ColumnSorter] = []
        self._begin_all(query.program)

    def _begin_all(self, program: Program) -> None:
        shared: dict[tuple[str, ...], ColumnSorter] = {}
        waiting: list[ChiPlan] = []
        for plan in program.queries:
            if isinstance(plan, EpPlan):
                self._begin_some(waiting, shared)
                waiting = []
                self._add_triples(program)
                continue
            if any(self.catalog.streams[name].derived for name in plan.body.streams):
                # It reads what those before it derive.
                self._begin_some(waiting, shared)
                waiting = []
            waiting.append(plan)
        self._begin_some(waiting, shared)

    def _begin_some(self, plans: Sequence[ChiPlan], shared: dict[tuple[str, ...], ColumnSorter]) -> None:
        """Adds queries that do not read each other; those that can be found in one search, together.

        Where the knowledge decides, the resolved plans must be alike: what it makes equal today it can part
        tomorrow, and a saved state is of the same groups, whatever is known when it is read.
        """
        optimized = {each.name: self._optimized(each, self.catalog) for each in plans}
        known = [each for each in plans if asks_the_knowledge(each)]
        steady = [optimized[each.name] for each in plans if each not in known]
        resolved = {each.name: each for each in plans}
        for group in (*groups(steady), *groups(known)):
            names = [each.name for each in group]
            self._begin([resolved[each] for each in names], [optimized[each] for each in names], shared)

    # --- queries come and go ---

    def register(self, plan: QueryPlan, catalog: Catalog | None = None) -> None:
        """Adds a query; it sees what is pushed from now on.

        `catalog` is the one that it was resolved against, where that knows more streams than before.
        """
        if isinstance(plan, EpPlan):
            raise Unsupported(f"{plan.name}: EP-SPARQL queries are given to an engine when it starts")
        if plan.name in self.queries:
            raise Mistake(f"a query named {plan.name} is registered already")
        self._learn(catalog)
        self._begin([plan], [self._optimized(plan, self.catalog)], {})

    def unregister(self, name: str) -> None:
        """Removes a query and what it holds; the others go on untouched."""
        if self._triples is not None and name in self._triples.names:
            raise Unsupported(f"{name}: the EP-SPARQL queries of an engine are one, and stay together")
        if name not in self._queries:
            raise Mistake(f"no query named {name} is registered")
        readers = [each for each, query in self._queries.items() if name in query.sorter.places]
        if self._triples is not None and name in self._triples.sorter.places:
            readers += self._triples.names
        if readers:
            raise Mistake(f"{name} is read by {', '.join(readers)}", hint=f"remove {readers[0]} first")
        self._dismiss(name)
        self._parts.drop(name)

    # --- what is there ---

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the registered queries."""
        return (*self._queries, *(self._triples.names if self._triples is not None else ()))

    @property
    def size(self) -> int:
        """How many events and partial matches are kept, those that wait for their turn included."""
        return sum(map(len, self._sorters)) + sum(each.operator.size for each in self._steps)

    @property
    def shed(self) -> dict[str, int]:
        """By query, how many partial matches it let go of because it kept too many."""
        found = {name: self.shed_by(name) for name in self._queries}
        return {name: count for name, count in found.items() if count}

    def shed_by(self, name: str) -> int:
        """How many partial matches a query let go of."""
        return self._queries[name].operator.shed if name in self._queries else 0

    def passed(self, name: str) -> Passed | None:
        """How far the events of a query came; None for one of EP-SPARQL, which takes triples."""
        found = self._queries.get(name)
        return found.operator.passed if found is not None else None

    def size_of(self, names: Collection[str]) -> int:
        """How many events and partial matches are kept for some queries."""
        steps = {id(each): each for each in self._steps_of(names)}.values()
        sorters = {id(each.sorter): len(each.sorter) for each in steps}
        return sum(sorters.values()) + sum(each.operator.size for each in steps)

    def watermark_of(self, names: Collection[str]) -> float:
        """No event that some queries are still to look at is earlier than this."""
        return min((each.sorter.watermark for each in self._steps_of(names)), default=math.inf)

    def _steps_of(self, names: Iterable[str]) -> Iterator[ChiSearch | TripleQueries]:
        for name in names:
            if name in self._queries:
                yield self._queries[name]
            elif self._triples is not None:
                yield self._triples

    def slowest(self, name: str) -> tuple[str, int, float] | None:
        """The part that holds a query's time back, and how far it has come; None where none is behind."""
        query = self._queries.get(name) or self._triples
        return self._parts.slowest(query.sorter.places) if query is not None else None

    @property
    def waiting(self) -> dict[str, str]:
        """By query, what it waits for; nothing of one that has looked at all that came."""
        found: dict[str, str] = {}
        for query in self._steps:
            sources = self._sources(query.sorter.places)
            for name in query.names:
                if (text := awaited(query, sources, self._parts)) is not None:
                    found[name] = text
        return found

    def _sources(self, streams: Iterable[str]) -> tuple[str, ...]:
        """The streams that come from outside, also those that are read through queries."""
        found: dict[str, None] = {}
        for each in streams:
            if not self.catalog.streams[each].derived:
                found[each] = None
            elif (maker := self._queries.get(each)) is not None:
                found |= dict.fromkeys(self._sources(maker.sorter.places))
        return tuple(found)

    def batch(self, stream: str, events: Sequence[Event]) -> Batch:
        """Events of one stream as a batch for this engine."""
        return batch_of_events(stream, events, self._types(stream), self.strings)

    def _types(self, stream: str) -> dict[str, Type | None]:
        """The attributes of a stream; of an open one, those besides that somebody reads."""
        known = self.catalog.streams[stream]
        types: dict[str, Type | None] = dict(known.attributes)
        if known.open:
            readers = (each for each in self._sorters if isinstance(each, ColumnSorter))
            for sorter in readers:
                if stream in sorter.places:
                    types = {**dict.fromkeys(sorter.attributes), **types}
        return types

    # --- how they get a place, and lose it ---

    def _begin(
        self,
        plans: Sequence[ChiPlan],
        optimized: Sequence[ChiPlan],
        shared: dict[tuple[str, ...], ColumnSorter],
    ) -> None:
        """Adds queries that are found in one search; queries of the same streams share a sort stage."""
        streams = plans[0].body.streams
        if streams not in shared:
            shared[streams] = self._column_sorter(streams)
        sorter = shared[streams]
        operator = self._operator(plans, optimized)
        made = ChiSearch(plans, optimized, operator, sorter, self.knowledge.version)
        if made.versioned:
            made.ask(self.catalog, self.knowledge)  # now, and not when the knowledge changes and events wait
        self._widen(made)
        self._queries.update(dict.fromkeys(made.names, made))
        self._steps.append(made)
        self._lane = None
        for name in made.names:
            self._parts.derive(name)
        self._expect(sorter)

    def _learn(self, catalog: Catalog | None) -> None:
        if catalog is not None:
            known = replace(catalog, streams={**self.catalog.streams, **catalog.streams})
            self.catalog = self._relations.catalog = self._relations.runtime.catalog = known

    def _optimized(self, plan: ChiPlan, catalog: Catalog) -> ChiPlan:
        return optimize(plan, catalog, self.knowledge, self.settings.rules)[0]

    def _operator(self, plans: Sequence[ChiPlan], optimized: Sequence[ChiPlan]) -> KernelOperator:
        versioned = any(map(asks_the_knowledge, plans))
        limits = self.settings.limits
        made = operator_of(optimized, self.catalog, self._relations, self.strings, limits, versioned)
        made.version = self.knowledge.version
        return made

    def keep(self, names: Collection[str]) -> None:
        """Removes all queries but these."""
        for name in [each for each in reversed(list(self._queries)) if each not in names]:
            self._dismiss(name)
            self._parts.drop(name)

    def _readers_of(self, names: Iterable[str]) -> list[str]:
        """The queries that read the output of some, also by way of others; these first."""
        found = dict.fromkeys(names)
        for each in self._steps:  # a query comes after those that it reads
            if found.keys() & each.sorter.places.keys():
                found |= dict.fromkeys(each.names)
        return list(found)

    def _dismiss(self, name: str) -> None:
        """Takes a query out; those that are found in one search with it go on without it."""
        gone = self._queries.pop(name)
        self._lane = None
        left = [index for index, each in enumerate(gone.names) if each != name]
        if left:
            plans = [gone.plans[index] for index in left]
            optimized = [gone.optimized[index] for index in left]
            operator = self._operator(plans, optimized)
            operator.restore(gone.operator.snapshot())
            operator.passed = gone.operator.passed
            made = ChiSearch(plans, optimized, operator, gone.sorter, gone.version)
            self._steps[self._steps.index(gone)] = made
            self._queries.update(dict.fromkeys(made.names, made))
            return
        self._steps.remove(gone)
        if all(query.sorter is not gone.sorter for query in self._queries.values()):
            self._sorters.remove(gone.sorter)

    def _expect(self, sorter: Sorter | ColumnSorter) -> None:
        """The parts that the sort stage waits for; what queries derive is not a part of any source."""
        for stream in sorter.streams:
            if not self.catalog.streams[stream].derived:
                for part in self.settings.parts.get(stream, (0,)):
                    self._parts.expect(stream, part)

    def _sorter(self, streams: tuple[str, ...]) -> Sorter:
        made = Sorter(streams, self._parts)
        self._sorters.append(made)
        return made

    def _column_sorter(self, streams: tuple[str, ...]) -> ColumnSorter:
        derived = [name for name in streams if self.catalog.streams[name].derived]
        made = ColumnSorter(streams, self._parts, {}, self.strings, derived)
        self._sorters.append(made)
        return made

    def _widen(self, query: ChiSearch) -> None:
        """Lets the sort stage of a query keep the attributes that its operator reads."""
        query.sorter.widen(attribute_types(query.operator, query.optimized, self.catalog))

    def _add_triples(self, program: Program) -> None:
        """All EP-SPARQL queries at once: what one of them constructs, all of them read."""
        if self._triples is not None:
            return
        plans = program.ep_plans
        read = (each for each in self.catalog.streams.values() if each.rdf or each.annotated)
        own = {each.name for each in plans}
        sorter = self._sorter(tuple(each.name for each in read if each.name not in own))
        self._triples = TripleQueries(plans, sorter, self.knowledge, self.settings)
        self._steps.append(self._triples)
        for each in plans:
            self._parts.derive(each.name)
        self._expect(sorter)
