"""A query gets another operator while it runs, and that goes on from what the old one holds.

It was edited; the knowledge has changed; it was compiled meanwhile; strings got new codes; a state was saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaicep.errors import Diagnostic, Failure, Mistake
from kaicep.hosts.columnar import CompiledQuery, asks_the_knowledge, attribute_types, why_interpreted
from kaicep.hosts.editing import asks_as_before, why_anew, why_anew_compiled
from kaicep.hosts.held import held_events, why_not_enough
from kaicep.hosts.interpreted import Query, TripleQueries
from kaicep.hosts.registering import Registering
from kaicep.hosts.saving import read_saved, written
from kaicep.hosts.settings import Settings
from kaicep.kernel.operator import Operator
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Lateness, Parts, Sorter
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import subplan
from kaicep.plan.catalog import Catalog
from kaicep.plan.nodes import Node, Program, Project, QueryPlan

if TYPE_CHECKING:
    from kaicep.hosts.growing import Growth
    from kaicep.kernel.batches import ColumnSorter

__all__ = ["Replacing"]

_FEW_STRINGS = 1 << 16


class Replacing(Registering):
    """The second layer of an `Engine`: queries are replaced one for one, between two batches of events."""

    def __init__(
        self,
        program: Program,
        catalog: Catalog,
        knowledge: Knowledge,
        lateness: Lateness,
        settings: Settings | None,
        unknown: UnknownEntities | None,
    ) -> None:
        super().__init__(program, catalog, knowledge, lateness, settings, unknown)
        self._growth: Growth | None = None
        self._most_strings = _FEW_STRINGS

    # --- edited ---

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
        self, old: Query | CompiledQuery, plan: QueryPlan, optimized: QueryPlan, catalog: Catalog
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

    def _edited(self, old: Query, plan: QueryPlan, optimized: QueryPlan) -> Query:
        """The new query, with what the old one holds; what is found in that was found before."""
        made = Query(plan, old.sorter)
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

    # --- the knowledge has changed ---

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

    # --- compiled meanwhile ---

    def _grow(self) -> None:
        """Has the queries compiled that can be (`hosts.growing`), and lets those take over that are ready."""
        small = [each for each in self._steps if isinstance(each, Query)]
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

    def _move(self, query: Query, moved: dict[int, ColumnSorter]) -> None:
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

    # --- strings get new codes ---

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

    # --- a saved state ---

    def snapshot(self) -> bytes:
        """The state of all queries, and of the sort stages before them."""
        return written(self._parts, self._sorters, self._steps)

    def restore(self, state: bytes) -> None:
        """Goes on from the state of an engine with the same queries."""
        steps = {query.names[0]: query for query in self._steps}
        texts = {name: query.text for name, query in steps.items()}
        saved = read_saved(state, texts, self._parts.lateness)
        for name, each in saved.queries.items():
            step = steps[name]
            if each.compiled and isinstance(step, Query) and self.settings.kernel == "auto":
                self._move(step, {})  # it was compiled when so many events had come
                steps[name] = self._queries[name]
            if each.compiled != isinstance(steps[name], CompiledQuery):
                how = "compiled" if each.compiled else "interpreted"
                raise Failure(f"in the saved state {name} is {how}: an engine with that kernel can go on")
        self._parts.load(saved.parts)
        self._lane = None
        self._sorters = []
        for names, waiting in saved.sorters:
            sorter = self._like(steps[names[0]])
            sorter.load(waiting)
            for name in names:
                if name in steps:
                    steps[name].sorter = sorter
        for name, each in saved.queries.items():
            steps[name].operator.restore(each.state)

    def _like(self, query: Query | CompiledQuery | TripleQueries) -> Sorter | ColumnSorter:
        """A new sort stage like that of a query."""
        if not isinstance(query, CompiledQuery):
            return self._sorter(query.sorter.streams)
        made = query.sorter.anew(self.strings)
        self._sorters.append(made)
        return made
