"""The run-time path of the SCEPter paper (its section 4.2): SPARQL for what cannot be looked up.

For every event: annotate it, put its graph beside the knowledge, evaluate. Two settings make that
bearable, and each can be measured alone. With a *cache*, events that have the same query root properties
(definitions 1 and 2) share one evaluation; it is bounded, and forgets what was not used for longest. With
a *buffer*, events are evaluated together, in one query for all of them.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, evaluates, event_triples, goes_back
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Exists, walk
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import Filter, Group, TriplePattern, Triples, Values, may_be_empty
from kaicep.plan.terms import Iri, Term, Triple, Variable

__all__ = ["Counters", "RuntimePath", "Settings"]

_NOTHING: frozenset[Row] = frozenset()


@dataclass(frozen=True)
class Settings:
    """How the run-time path works: `cache` entries for each condition (0: none), and whether to buffer."""

    cache: int = 100_000
    buffer: bool = True


@dataclass
class Counters:
    """What the run-time path did, and how long each of its modules took, in seconds."""

    evaluations: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timing(self, module: str) -> Iterator[None]:
        """Adds the time spent inside to a module's account."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[module] += time.perf_counter() - started


class _Asked:
    """What is remembered of one condition.

    `together` is whether many events may be asked for in one query, `evaluated` are the answers that a
    buffer has made ready, `looked_at` tells whether the condition evaluates a property of a variable. The
    cache has answers by query root properties; of these, the least recently used goes first.
    """

    def __init__(self, condition: Semantic, size: int, counters: Counters) -> None:
        self.condition = condition
        self.together = len(condition.variables) == 1 and all(
            _may_be_asked_together(group, condition.variables[0]) for group in condition.alternatives
        )
        self.size = size
        self.counters = counters
        self.evaluated: dict[tuple[Event, ...], frozenset[Row]] = {}
        self.looked_at: dict[tuple[str, Term], bool] = {}
        self._entries: OrderedDict[object, frozenset[Row]] = OrderedDict()

    def get(self, key: object) -> frozenset[Row] | None:
        if self.size == 0:
            return None
        found = self._entries.get(key)
        if found is None:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        self._entries.move_to_end(key)
        return found

    def put(self, key: object, rows: frozenset[Row]) -> None:
        if self.size == 0:
            return
        self._entries[key] = rows
        self._entries.move_to_end(key)
        if len(self._entries) > self.size:
            self._entries.popitem(last=False)
            self.counters.evictions += 1


class RuntimePath:
    """Evaluates PATH conditions over the knowledge and the graphs of the events they are about."""

    def __init__(
        self, catalog: Catalog, knowledge: Knowledge, unknown: UnknownEntities | None, settings: Settings
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.unknown = unknown
        self.settings = settings
        self.counters = Counters()
        self._asked: dict[int, _Asked] = {}
        self._version = knowledge.version

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution."""
        asked = self._about(condition)
        events = tuple([binding[name] for name in condition.variables])
        ready = asked.evaluated.get(events)
        if ready is not None:
            return ready
        graphs = self._annotated(condition, events)
        key, found = self._remembered(asked, graphs, events)
        if found is None:
            with self.counters.timing("evaluate"):
                found = self._evaluate(condition, graphs, self._at(events))
            if not _names_events(found, graphs):
                asked.put(key, found)
        return found

    def buffer(self, condition: Semantic, events: Sequence[Event]) -> None:
        """Evaluates a condition about single events for all of them together; `solutions` then knows.

        What is remembered is forgotten at the next call: a buffer is as long as its interval.
        """
        asked = self._about(condition)
        asked.evaluated.clear()
        if not self.settings.buffer or not asked.together:
            return
        waiting: dict[object, list[tuple[Event, EventGraph]]] = {}
        for event in events:
            graphs = self._annotated(condition, (event,))
            key, found = self._remembered(asked, graphs, (event,))
            if found is not None:
                asked.evaluated[event,] = found
            else:
                waiting.setdefault(key, []).append((event, graphs[condition.variables[0]]))
        with self.counters.timing("evaluate"):
            self._evaluate_together(asked, waiting)

    # --- one event, or a few that belong together ---

    def _annotated(self, condition: Semantic, events: tuple[Event, ...]) -> dict[str, EventGraph]:
        with self.counters.timing("annotate"):
            knowledge = self._at(events)
            return {
                name: event_triples(event, self.catalog.streams[event.stream], knowledge, self.unknown)
                for name, event in zip(condition.variables, events, strict=True)
            }

    def _at(self, events: Iterable[Event]) -> Knowledge:
        return self.knowledge.at(max((event.ts for event in events), default=0))

    def _evaluate(
        self, condition: Semantic, graphs: Mapping[str, EventGraph], knowledge: Knowledge
    ) -> frozenset[Row]:
        self.counters.evaluations += 1
        triples = [triple for graph in graphs.values() for triple in graph.triples]
        nodes: dict[str, Term] = {name: graph.node for name, graph in graphs.items()}
        rows: set[Row] = set()
        with closed_store(knowledge).besides(knowledge.entails_with(triples)) as store:
            for group in condition.alternatives:
                if _is_known(group, graphs, knowledge):
                    rows.update(store.select(substitute(group, nodes), condition.selected))
        return frozenset(rows)

    def _remembered(
        self, asked: _Asked, graphs: Mapping[str, EventGraph], events: tuple[Event, ...]
    ) -> tuple[object, frozenset[Row] | None]:
        """What the answer depends on: the query root properties, and when; and the answer, if it is known."""
        with self.counters.timing("cache"):
            epoch = self.knowledge.epoch(max((event.ts for event in events), default=0))
            key = (
                epoch,
                *(
                    (
                        name,
                        frozenset(
                            [
                                (prop, value)
                                for _, prop, value in graph.triples
                                if self._evaluates(asked, name, prop)
                            ]
                        ),
                        graph.unknown,
                    )
                    for name, graph in graphs.items()
                ),
            )
            return key, asked.get(key)

    def _evaluates(self, asked: _Asked, name: str, property: Term) -> bool:
        """Whether a condition looks at that property of that event."""
        known = asked.looked_at.get((name, property))
        if known is None:
            known = asked.looked_at[name, property] = isinstance(property, Iri) and any(
                evaluates(group, name, property, self.knowledge) for group in asked.condition.alternatives
            )
        return known

    # --- many events at a time ---

    def _evaluate_together(
        self, asked: _Asked, waiting: Mapping[object, list[tuple[Event, EventGraph]]]
    ) -> None:
        """One query for one event of each kind; what an event says of other things keeps it out."""
        condition = asked.condition
        (variable,) = condition.variables
        together: dict[Term, object] = {}
        triples: set[Triple] = set()
        epochs = {self.knowledge.epoch(found[0][0].ts) for found in waiting.values()}
        for key, found in waiting.items():
            event, graph = found[0]
            added = self._at((event,)).entails_with(graph.triples)
            alone = graph.unknown or len(epochs) > 1 or any(each[0] != graph.node for each in added)
            if alone:
                rows = self._evaluate(condition, {variable: graph}, self._at((event,)))
                if not _names_events(rows, {variable: graph}):
                    _remember(asked, found, rows)
                    asked.put(key, rows)
            else:
                together[graph.node] = key
                triples |= added
        if not together:
            return
        self.counters.evaluations += 1
        answers: dict[Term, set[Row]] = {node: set() for node in together}
        nodes = Values((variable,), tuple((node,) for node in together))
        with closed_store(self.knowledge.in_epoch(epochs.pop())).besides(triples) as store:
            for group in condition.alternatives:
                all_of_them = Group((nodes, *group.elements))
                for row in store.select(all_of_them, (variable, *condition.selected)):
                    if row[0] is not None:
                        answers[row[0]].add(row[1:])
        for node, key in together.items():
            rows = frozenset(answers[node])
            if any(node in row for row in rows):
                continue  # it speaks of this very event: others of its kind ask for themselves
            _remember(asked, waiting[key], rows)
            asked.put(key, rows)

    def _about(self, condition: Semantic) -> _Asked:
        """What is remembered of the condition. It is found by identity: to hash a PATH takes long."""
        if self._version != self.knowledge.version:
            self._version = self.knowledge.version
            self._asked.clear()
        found = self._asked.get(id(condition))
        if found is None:
            found = self._asked[id(condition)] = _Asked(condition, self.settings.cache, self.counters)
        return found


def _may_be_asked_together(group: Group, event: str) -> bool:
    """Whether events that lie beside each other in the store cannot be mistaken for one another.

    The event must stand at the beginning of patterns only, where a variable will do for its name. No other
    pattern may be met by the graph of an event: its subject must be something that a pattern leads to,
    and nothing leads to an event but a way that is read backwards. Nested groups are not looked into.
    """
    patterns: list[TriplePattern] = []
    for element in group.elements:
        if isinstance(element, Triples):
            patterns += element.patterns
        elif (
            not isinstance(element, Filter | Values) or event in element_variables(element) or _nests(element)
        ):
            return False
    led_to = {
        each.object.name
        for each in patterns
        if isinstance(each.object, Variable) and not may_be_empty(each.predicate)
    }
    return event not in led_to and all(
        not goes_back(each.predicate)
        and (not isinstance(each.subject, Variable) or each.subject.name in {event, *led_to})
        for each in patterns
    )


def _nests(element: Filter | Values) -> bool:
    return isinstance(element, Filter) and any(isinstance(each, Exists) for each in walk(element.condition))


def _remember(asked: _Asked, found: Iterable[tuple[Event, EventGraph]], rows: frozenset[Row]) -> None:
    for event, _ in found:
        asked.evaluated[event,] = rows


def _names_events(rows: frozenset[Row], graphs: Mapping[str, EventGraph]) -> bool:
    """Whether an answer speaks of the very events it was asked for: then it is nobody else's."""
    nodes = {graph.node for graph in graphs.values()}
    return any(term in nodes for row in rows for term in row)


def _is_known(group: Group, graphs: Mapping[str, EventGraph], knowledge: Knowledge) -> bool:
    """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
    return not any(
        evaluates(group, name, each, knowledge) for name, graph in graphs.items() for each in graph.unknown
    )
