"""How a running query gets another operator: after an edit, a restore, or a change of the knowledge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaicep.errors import Failure, Mistake, Unsupported
from kaicep.hosts.queries import ChiSearch, News, Settings, TripleQueries, attribute_types
from kaicep.hosts.registering import Registering
from kaicep.kernel.batches import ColumnSorter
from kaicep.kernel.columns import Strings
from kaicep.kernel.pattern_state import why_other_shape
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Lateness, Parts, Sorter
from kaicep.kernel.state import read_state, write_state
from kaicep.kernel.windowing import WindowMachine
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Absent, Place, SpanWindow
from kaicep.plan.expressions import Call, Const, Expr, variables_of
from kaicep.plan.nodes import Chain, ChiPlan, EpPlan, Pattern, QueryPlan, WindowAggregate
from kaicep.query import Query

# ----------------------------------------------------------------------------------------------------------
# An edited query: whether it may go on with the state of the old one, and what that keeps.
#
# The state has no whole events, only what the query needs of those that take part in something. So an
# edited query goes on where it asks more of the last event alone (a higher threshold, one condition more),
# has a narrower WINDOW, or selects something else of what is kept: all that waits was rightly taken in.
# Where it asks less, it would have needed events that were let go of; where it asks something else of an
# event that waits, nobody could tell which ones meet that. Then it begins anew.


def why_anew(old: ChiPlan, new: ChiPlan) -> str | None:
    """Why an edited query cannot go on with the state of the old one; None where it can.

    Both plans are optimised.
    """
    before, after = old.body, new.body
    if isinstance(before, Pattern) and isinstance(after, Pattern):
        return _pattern(before, after)
    if isinstance(before, WindowAggregate) and isinstance(after, WindowAggregate):
        return _window(before, after)
    return "it was a pattern and is a window now, or the other way round"


def _pattern(old: Pattern, new: Pattern) -> str | None:
    same = (
        (old.sequence == new.sequence, "its SEQ is another"),
        (old.streams == new.streams, "it reads other streams"),
        (old.match == new.match, "its MATCH is another"),
        ((old.skip, old.skip_variable) == (new.skip, new.skip_variable), "its AFTER MATCH is another"),
        (old.partition == new.partition, "its PARTITION BY is another"),
        (old.key == new.key, "its events have another key in common"),
        ((old.latest, old.ties) == (new.latest, new.ties), "its LATEST or its PATH is another"),
    )
    for holds, difference in same:
        if not holds:
            return difference
    if _asks_as_before(old, new):
        return None
    if new.match != "any":
        return f"under MATCH {new.match} events that are not kept have a say in the choice"
    if new.skip != "none":
        return "with AFTER MATCH the matches of before have a say in which are reported"
    if any(isinstance(each, Absent) for each in new.sequence):
        return "an absence may have been decided by events that are not kept"
    if not _imply(new.conditions, old.conditions):
        return "a condition that held is gone or asks for less"
    if not all(any(_inside(window, each) for window in new.windows) for each in old.windows):
        return "a WINDOW is gone or wider than before"
    if not set(old.semantics) <= set(new.semantics):
        return "its PATH is another"
    reason = _chains(old.chains, new.chains)
    if reason is None and _what_waits(old) != _what_waits(new):
        return "it asks something else of an event that is not the last"
    return reason


def _what_waits(pattern: Pattern) -> tuple[object, ...]:
    """What decides whether events may wait for the last one."""
    final = pattern.sequence[-1]
    last = final.variable if isinstance(final, Place) else None
    return (
        {each for each in pattern.conditions if last not in variables_of(each)},
        {each for each in pattern.windows if last not in each.variables},
        [each for each in pattern.chains if each.variable != last],
        pattern.semantics,
    )


def _inside(narrow: SpanWindow, wide: SpanWindow) -> bool:
    return set(narrow.variables) >= set(wide.variables) and narrow.width <= wide.width


def _asks_as_before(old: Pattern, new: Pattern) -> bool:
    """Whether two patterns differ in nothing that decides what is kept."""
    return (old.conditions, old.windows, old.semantics, old.chains) == (
        new.conditions,
        new.windows,
        new.semantics,
        new.chains,
    )


def _window(old: WindowAggregate, new: WindowAggregate) -> str | None:
    if (old.streams, old.partition, old.group_by) != (new.streams, new.partition, new.group_by):
        return "its streams, its PARTITION BY or its GROUP BY are others"
    if (old.semantics, old.ties, old.expected) != (new.semantics, new.ties, new.expected):
        return "its PATH is another"
    before, after = old.window, new.window
    if before.kind != after.kind or before.variable != after.variable:
        return "its WINDOW is of another kind"
    if before != after:
        if before.width is None or after.width is None:
            return "its WINDOW counts events, and counts others now"
        if after.width > before.width or before.kind == "batch":
            return "its WINDOW is wider than before, or ends at other times"
    reason = _chains(old.chains, new.chains)
    if reason is None and old.chain != new.chain:
        return "it asks something else of the events in its WINDOW"
    return reason


def _chains(old: Iterable[Chain], new: Iterable[Chain]) -> str | None:
    for before, after in zip(old, new, strict=True):
        if (before.variable, before.streams, before.within) != (after.variable, after.streams, after.within):
            return "a variable ranges over other streams, or its WITHIN is another"
        if not set(before.semantics) <= set(after.semantics):
            return "its PATH is another"
        if not _imply(after.conditions, before.conditions):
            return "a FILTER is gone or lets more events pass"
    return None


def _imply(new: Iterable[Expr], old: Iterable[Expr]) -> bool:
    """Whether whatever fulfils the new conditions fulfils the old ones."""
    stronger = tuple(new)
    return all(any(_implies(each, wanted) for each in stronger) for wanted in old)


def _implies(strong: Expr, weak: Expr) -> bool:
    """Whether one condition implies another; seen where they are the same but for a threshold."""
    if strong == weak:
        return True
    match strong, weak:
        case Call(op, (left, Const(high, kind))), Call(other, (same, Const(low, likewise))):
            if op != other or left != same or kind != likewise or not isinstance(high, int | float):
                return False
            if not isinstance(low, int | float):
                return False
            return (op in (">", ">=") and high >= low) or (op in ("<", "<=") and high <= low)
    return False


# ----------------------------------------------------------------------------------------------------------
# The state of an engine as bytes: how far the sources have come, what waits in order, what queries keep.


@dataclass(frozen=True)
class Saved:
    """The state of an engine: its parts, its sort stages with the queries that they feed, its operators'."""

    parts: Any
    sorters: Sequence[tuple[Sequence[str], Any]]
    queries: Mapping[str, bytes]


def written(
    parts: Parts,
    sorters: Sequence[Sorter | ColumnSorter],
    steps: Sequence[ChiSearch | TripleQueries],
    only: Collection[str] | None = None,
) -> bytes:
    """The state of all queries, or `only` of some, and of the sort stages before them."""
    if only is not None:
        steps = [each.without(set(each.names) - set(only)) for each in steps if set(each.names) & set(only)]
        sorters = [each for each in sorters if any(query.sorter is each for query in steps)]
    waiting = [
        [[name for query in steps if query.sorter is sorter for name in query.names], sorter.document()]
        for sorter in sorters
    ]
    document = {
        "lateness": _plain(parts.lateness),
        "parts": parts.document(),
        "sorters": waiting,
        "queries": [[query.names[0], query.text] for query in steps],
    }
    states = {query.names[0]: np.frombuffer(query.operator.snapshot(), np.uint8) for query in steps}
    return write_state("engine", document, states)


def read_saved(state: bytes, texts: Mapping[str, str], lateness: Lateness) -> Saved:
    """The state of an engine that has queries of these texts."""
    document, states = read_state("engine", state)
    saved = dict(document["queries"])
    if saved.keys() != texts.keys() or document["lateness"] != _plain(lateness):
        raise Failure(
            f"the saved state is of the queries {', '.join(saved)} with lateness {document['lateness']}"
        )
    for name, text in saved.items():
        if text != texts[name]:
            raise Failure(f"the saved state is of another text of {name}")
    queries = {name: states[name].tobytes() for name in saved}
    return Saved(document["parts"], document["sorters"], queries)


def _plain(lateness: Lateness) -> Any:
    """The lateness as JSON holds it."""
    return dict(sorted(lateness.items())) if isinstance(lateness, Mapping) else lateness


# ----------------------------------------------------------------------------------------------------------
# A query gets another operator while it runs, and that goes on from the state of the old one.
#
# It was edited; the knowledge has changed; strings got new codes; a state was saved.

_FEW_STRINGS = 1 << 16


class Replacing(Registering):
    """The second layer of an `Engine`: queries are replaced one for one, between two batches of events."""

    def __init__(self, query: Query, lateness: Lateness, settings: Settings | None) -> None:
        super().__init__(query, lateness, settings)
        self._most_strings = _FEW_STRINGS

    # --- edited ---

    def edit(self, plan: QueryPlan, catalog: Catalog | None = None) -> str | None:
        """Replaces a query by another of its name, from the next event on; the others go on untouched.

        It goes on with the state of the old one where that gives the same matches as if it had been there
        before. Returns None then, and else why it begins anew.
        """
        if isinstance(plan, EpPlan):
            raise Unsupported(f"{plan.name}: EP-SPARQL queries of an engine stay as they are")
        optimized = self._optimized(plan, catalog or self.catalog)
        reason = self._go_on_as(plan, optimized, catalog)
        if reason is not None:
            self._dismiss(plan.name)
            self._learn(catalog)
            self._begin([plan], [optimized], {})
        return reason

    def go_on_as(self, plan: QueryPlan, catalog: Catalog | None = None) -> str | None:
        """Edits a query only where it can go on with its state; else says why not, and does nothing."""
        if isinstance(plan, EpPlan):
            return "it is EP-SPARQL"
        return self._go_on_as(plan, self._optimized(plan, catalog or self.catalog), catalog)

    def _go_on_as(self, plan: ChiPlan, optimized: ChiPlan, catalog: Catalog | None) -> str | None:
        self._renew()  # so that both plans are of the knowledge of now
        old = self._queries.get(plan.name)
        if old is None:
            raise Mistake(f"no query named {plan.name} is registered")
        if len(old.names) > 1:
            old = self._set_apart(plan.name)
        reason = why_anew(old.optimized[0], optimized)
        if reason is None:
            self._learn(catalog)
            operator = self._operator([plan], [optimized])
            made = ChiSearch([plan], [optimized], operator, old.sorter, old.version)
            reason = self._why_not_restored(old, made)
        if reason is None:
            operator.restore(old.operator.snapshot())
            operator.passed = old.operator.passed
            self._widen(made)
            self._steps[self._steps.index(old)] = self._queries[plan.name] = made
            self._lane = None
        return reason

    def _set_apart(self, name: str) -> ChiSearch:
        """Takes a query out of the search that it shares with others, with its part of what that holds."""
        shared = self._queries[name]
        others = [each for each in shared.names if each != name]
        self._dismiss(name)
        made = self._moved(shared.without(others), shared.sorter)
        self._queries[name] = made
        self._steps.append(made)
        return made

    def _why_not_restored(self, old: ChiSearch, new: ChiSearch) -> str | None:
        """Why the operator of an edited query cannot read the state of the old one."""
        if isinstance(old.operator, PatternMachine) and isinstance(new.operator, PatternMachine):
            reason = why_other_shape(old.operator.shape, new.operator.shape)
        elif isinstance(old.operator, WindowMachine) and isinstance(new.operator, WindowMachine):
            reason = new.operator.why_other(old.operator)
        else:
            reason = None
        read = attribute_types(new.operator, new.optimized, self.catalog)
        if old.sorter.waiting and not read.keys() <= old.sorter.attributes.keys():
            reason = "it needs other values of events that wait for their turn"
        return reason

    # --- the knowledge has changed ---

    def _renew(self) -> None:
        """Lets a new version of the knowledge judge from here on; queries that it does not concern go on."""
        version = self.knowledge.version
        if self._triples is not None:
            self._triples.renew(self.knowledge)
        news: dict[int, News] = {}
        for query in list(self._steps):
            if isinstance(query, TripleQueries) or query.version == version:
                continue
            before, query.version, query.operator.version = query.version, version, version
            if not query.versioned:
                continue
            if before not in news:
                news[before] = News(self.knowledge, before, self._epochs)
            asks = query.asks
            if asks is None or news[before].concerns(asks):
                self._renew_query(query)
                query.ask(self.catalog, self.knowledge)
            elif news[before].moved or news[before].names_for(asks):
                query.operator.renew()
        self._epochs = self.knowledge.epochs

    def _renew_query(self, query: ChiSearch) -> None:
        """Plans a query for what is known now; its state goes over to the new plan's operator."""
        optimized = tuple(self._optimized(each, self.catalog) for each in query.plans)
        if optimized == query.optimized:
            query.operator.renew()
            return
        state, passed = query.operator.snapshot(), query.operator.passed
        query.become(optimized, self._operator(query.plans, optimized))
        query.operator.restore(state)
        query.operator.passed = passed
        self._widen(query)
        self._lane = None

    # --- strings get new codes ---

    def _forget_strings(self) -> None:
        """Gives the strings that are still of use new codes, and forgets the others.

        What is saved has strings by their text, so everything is saved and goes on from there.
        """
        waiting = {id(each): each.document() for each in self._sorters}
        queries = [each for each in self._steps if isinstance(each, ChiSearch)]
        states = [query.operator.snapshot() for query in queries]
        self.strings, self._lane = Strings(), None
        made: dict[int, ColumnSorter] = {}
        for query, state in zip(queries, states, strict=True):
            old = query.sorter
            if id(old) not in made:
                made[id(old)] = old.anew(self.strings)
                made[id(old)].load(waiting[id(old)])
            query.sorter = made[id(old)]
            passed = query.operator.passed
            query.operator = self._operator(query.plans, query.optimized)
            query.operator.restore(state)
            query.operator.passed = passed
        self._sorters = [made.get(id(each), each) for each in self._sorters]
        self._most_strings = max(_FEW_STRINGS, 2 * len(self.strings))

    # --- two engines become one ---

    def take_over(self, other: Replacing) -> str | None:
        """Goes on with the queries of an engine that stands where this one does, from their states.

        Queries of chi-CEP that are here too are the same ones, and go on once. Returns why not where that is
        not possible, or not yet; then nothing has happened.
        """
        reason = self._why_apart(other)
        if reason is not None:
            return reason
        self._learn(other.catalog)
        self._lane = None
        for sorter in other._sorters:
            self._parts.adopt(other._parts, sorter.streams)
        taken: dict[int, ColumnSorter] = {}
        made: list[ChiSearch] = []
        for query in other._steps:
            here = set(query.names) & set(self.queries)
            if here != set(query.names) and isinstance(query, ChiSearch):
                own = query.without(here)
                if id(own.sorter) not in taken:
                    taken[id(own.sorter)] = self._sorter_like(own.sorter)
                made.append(self._moved(own, taken[id(own.sorter)]))
        for each in made:
            self._queries.update(dict.fromkeys(each.names, each))
            self._steps.append(each)
        return None

    def _why_apart(self, other: Replacing) -> str | None:
        self._renew()
        other._renew()
        if self._triples is not None or other._triples is not None:
            return "one of them has queries of EP-SPARQL"
        mine, its = self._plans, other._plans
        different = [name for name in mine.keys() & its.keys() if mine[name] != its[name]]
        if different:
            return f"{different[0]} is another query here"
        for sorter in other._sorters:
            reason = self._parts.why_elsewhere(other._parts, sorter.streams)
            counterpart = self._counterpart(sorter.streams)
            if reason is None and counterpart is not None:
                assert isinstance(sorter, ColumnSorter)
                if not counterpart.has_same(sorter):
                    reason = f"other events of {', '.join(sorter.streams)} wait here"
            if reason is not None:
                return reason
        return None

    @property
    def _plans(self) -> dict[str, ChiPlan]:
        """The plans of its queries, as resolved, by name."""
        return {plan.name: plan for query in self._queries.values() for plan in query.plans}

    def _counterpart(self, streams: tuple[str, ...]) -> ColumnSorter | None:
        """The sort stage of some streams."""
        found = (each for each in self._sorters if each.streams == streams)
        return next((each for each in found if isinstance(each, ColumnSorter)), None)

    def _sorter_like(self, other: ColumnSorter) -> ColumnSorter:
        """The sort stage of the same streams, which has what the other one has."""
        found = self._counterpart(other.streams)
        if found is None:
            found = ColumnSorter(other.streams, self._parts, other.attributes, self.strings, other.derived)
            found.load(other.document())
            self._sorters.append(found)
        else:
            found.widen(other.attributes, other)
            found.pass_to(max(found.reached, other.reached))
        return found

    def _moved(self, query: ChiSearch, sorter: ColumnSorter) -> ChiSearch:
        """A query with its state, for another sort stage."""
        operator = self._operator(query.plans, query.optimized)
        operator.restore(query.operator.snapshot())
        operator.passed = query.operator.passed
        return ChiSearch(query.plans, query.optimized, operator, sorter, query.version)

    # --- a saved state ---

    def snapshot(self, only: Collection[str] | None = None) -> bytes:
        """The state of all queries, or `only` of some, and of the sort stages before them."""
        return written(self._parts, self._sorters, self._steps, only)

    def restore(self, state: bytes) -> None:
        """Goes on from the state of an engine with the same queries."""
        steps = {query.names[0]: query for query in self._steps}
        texts = {name: query.text for name, query in steps.items()}
        saved = read_saved(state, texts, self._parts.lateness)
        self._parts.load(saved.parts)
        self._lane = None
        self._sorters = []
        for names, waiting in saved.sorters:
            own = [steps[name] for name in names if name in steps]
            sorter = self._like(own[0])
            for query in own:
                query.sorter = sorter
                if isinstance(query, ChiSearch):
                    self._widen(query)
            sorter.load(waiting)
        for name, each in saved.queries.items():
            steps[name].operator.restore(each)

    def _like(self, query: ChiSearch | TripleQueries) -> Sorter | ColumnSorter:
        """A new sort stage like that of a query."""
        if isinstance(query, TripleQueries):
            return self._sorter(query.sorter.streams)
        made = query.sorter.anew(self.strings)
        self._sorters.append(made)
        return made
