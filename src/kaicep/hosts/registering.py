"""The queries of an engine: they are registered, get their operators and sort stages, and leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kaicep.errors import Diagnostic, Mistake, Unsupported
from kaicep.hosts.columnar import (
    CompiledOperator,
    CompiledQuery,
    asks_the_knowledge,
    attribute_types,
    compiled_operator,
    together,
    why_interpreted,
)
from kaicep.hosts.interpreted import Query, TripleQueries, operator_of
from kaicep.hosts.settings import MANY, Settings
from kaicep.kernel.operator import Operator
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Lateness, Parts, Sorter
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize, subplan
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.gaps import refuse_gaps
from kaicep.plan.nodes import Pattern, Program, Project, QueryPlan, WindowAggregate

if TYPE_CHECKING:
    from kaicep.hosts.lane import Lane
    from kaicep.kernel.batches import Batch, ColumnSorter
    from kaicep.kernel.columns import Strings

__all__ = ["Registering"]


class Registering:
    """What an engine knows of its queries: `_steps`, in the order of their work, and who sorts for whom.

    A step is a query, or several that work as one. The first layer of an `Engine`, below `replacing`.
    """

    def __init__(
        self,
        program: Program,
        catalog: Catalog,
        knowledge: Knowledge,
        lateness: Lateness,
        settings: Settings | None,
        unknown: UnknownEntities | None,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.settings = settings or Settings()
        self._strings: Strings | None = None
        self._lane: Lane | None = None  # the short way for single events; it holds for these operators
        self._parts = Parts(lateness)
        self._relations = Relations(catalog, knowledge, unknown, self.settings.paths)
        self._queries: dict[str, Query | CompiledQuery] = {}
        self._triples: TripleQueries | None = None
        self._steps: list[Query | CompiledQuery | TripleQueries] = []
        self._sorters: list[Sorter | ColumnSorter] = []
        self._begin_all(program)

    def _begin_all(self, program: Program) -> None:
        shared: dict[tuple[str, ...], Sorter] = {}
        columns: dict[tuple[str, ...], ColumnSorter] = {}
        compiled: list[tuple[QueryPlan, QueryPlan]] = []
        for plan in program.queries:
            if plan.language == "EP-SPARQL":
                self._add_triples(program)
                continue
            optimized = self._optimized(plan, self.catalog)
            if self._is_to_compile(optimized, self.catalog):
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

    # --- what is there ---

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

    @property
    def strings(self) -> Strings:
        """The dictionary of all strings that compiled queries have to do with."""
        if self._strings is None:
            from kaicep.kernel.columns import Strings

            self._strings = Strings()
        return self._strings

    def batch(self, stream: str, events: Sequence[Event]) -> Batch:
        """Events of one stream as a batch for this engine."""
        from kaicep.kernel.batches import batch_of_events

        return batch_of_events(stream, events, dict(self.catalog.streams[stream].attributes), self.strings)

    # --- how they get a place, and lose it ---

    def _begin(self, plan: QueryPlan, optimized: QueryPlan) -> None:
        if self._is_to_compile(optimized, self.catalog):
            self._add_compiled([(plan, optimized)], {})
        else:
            self._add(self._interpreted(plan, optimized, {}))

    def _learn(self, catalog: Catalog | None) -> None:
        if catalog is not None:
            self.catalog = self._relations.catalog = self._relations.runtime.catalog = catalog

    def _optimized(self, plan: QueryPlan, catalog: Catalog) -> QueryPlan:
        refuse_gaps(plan)
        return optimize(plan, catalog, self.knowledge, self.settings.rules)[0]

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

    def _add(self, made: Query | CompiledQuery) -> None:
        self._queries.update(dict.fromkeys(made.names, made))
        self._steps.append(made)
        self._lane = None
        for name in made.names:
            self._parts.derive(name)
        self._expect(made.sorter)

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

    def _interpreted(
        self, plan: QueryPlan, optimized: QueryPlan, shared: dict[tuple[str, ...], Sorter]
    ) -> Query:
        streams = _streams(plan)
        if streams not in shared:
            shared[streams] = self._sorter(streams)
        query = Query(plan, shared[streams])
        query.version = query.since = self.knowledge.version
        query.optimized = optimized
        query.operator = self._twin(query) or self._operator(query.optimized)
        query.operator.version = query.version
        query.projection = Projection(query.optimized, query.versioned)
        return query

    def _twin(self, query: Query) -> Operator | None:
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

    def _add_triples(self, program: Program) -> None:
        """All EP-SPARQL queries at once: what one of them constructs, all of them read."""
        if self._triples is not None:
            return
        plans = tuple(each for each in program.queries if each.language == "EP-SPARQL")
        read = (each for each in self.catalog.streams.values() if each.rdf or each.annotated)
        own = {each.name for each in plans}
        sorter = self._sorter(tuple(each.name for each in read if each.name not in own))
        self._triples = TripleQueries(plans, sorter, self.knowledge, self.settings)
        self._steps.append(self._triples)
        for each in plans:
            self._parts.derive(each.name)
        self._expect(sorter)


def _streams(plan: QueryPlan) -> tuple[str, ...]:
    """The streams of a query, in the order of their places."""
    source = plan.root.input if isinstance(plan.root, Project) else None
    if isinstance(source, Pattern | WindowAggregate):
        return source.streams
    raise Unsupported(f"{plan.name}: EP-SPARQL queries are given when an engine is made")
