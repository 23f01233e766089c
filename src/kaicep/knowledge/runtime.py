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

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, evaluates, event_triples
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import substitute
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import Group, Values
from kaicep.plan.terms import Iri, Term, Triple

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


class _Cache:
    """Answers of one condition by query root properties; the least recently used goes first."""

    def __init__(self, size: int, counters: Counters) -> None:
        self.size = size
        self.counters = counters
        self._entries: OrderedDict[object, frozenset[Row]] = OrderedDict()

    def get(self, key: object) -> frozenset[Row] | None:
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
        self._caches: dict[Semantic, _Cache] = {}
        self._evaluated: dict[tuple[Semantic, tuple[Event, ...]], frozenset[Row]] = {}
        self._version = knowledge.version

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution."""
        self._renew()
        events = tuple(binding[name] for name in condition.variables)
        ready = self._evaluated.get((condition, events))
        if ready is not None:
            return ready
        graphs = self._annotated(condition, events)
        key = self._root_properties(condition, graphs)
        cache = self._cache(condition)
        found = cache.get(key) if self.settings.cache else None
        if found is None:
            with self.counters.timing("evaluate"):
                found = self._evaluate(condition, graphs, self._at(events))
            cache.put(key, found)
        return found

    def buffer(self, condition: Semantic, events: Sequence[Event]) -> None:
        """Evaluates a condition about single events for all of them together; `solutions` then knows.

        What is remembered is forgotten at the next call: a buffer is as long as its interval.
        """
        self._renew()
        self._evaluated.clear()
        if not self.settings.buffer or len(condition.variables) != 1:
            return
        waiting: dict[object, list[tuple[Event, EventGraph]]] = {}
        cache = self._cache(condition)
        for event in events:
            graphs = self._annotated(condition, (event,))
            key = self._root_properties(condition, graphs)
            found = cache.get(key) if self.settings.cache else None
            if found is not None:
                self._evaluated[condition, (event,)] = found
            else:
                waiting.setdefault(key, []).append((event, graphs[condition.variables[0]]))
        with self.counters.timing("evaluate"):
            self._evaluate_together(condition, waiting, cache)

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

    def _root_properties(self, condition: Semantic, graphs: Mapping[str, EventGraph]) -> object:
        """What the answer depends on: the event root properties that the condition evaluates."""
        with self.counters.timing("cache"):
            return tuple(
                (
                    name,
                    frozenset(
                        (prop, value)
                        for _, prop, value in graph.triples
                        if any(
                            isinstance(prop, Iri) and evaluates(group, name, prop, self.knowledge)
                            for group in condition.alternatives
                        )
                    ),
                    graph.unknown,
                )
                for name, graph in graphs.items()
            )

    # --- many events at a time ---

    def _evaluate_together(
        self,
        condition: Semantic,
        waiting: Mapping[object, list[tuple[Event, EventGraph]]],
        cache: _Cache,
    ) -> None:
        """One query for one event of each kind; what an event says of other things keeps it out."""
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
                self._remember(condition, found, rows)
                cache.put(key, rows)
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
                asked = Group((nodes, *group.elements))
                for row in store.select(asked, (variable, *condition.selected)):
                    if row[0] is not None:
                        answers[row[0]].add(row[1:])
        for node, key in together.items():
            rows = frozenset(answers[node])
            self._remember(condition, waiting[key], rows)
            cache.put(key, rows)

    def _remember(
        self, condition: Semantic, found: Iterable[tuple[Event, EventGraph]], rows: frozenset[Row]
    ) -> None:
        for event, _ in found:
            self._evaluated[condition, (event,)] = rows

    def _cache(self, condition: Semantic) -> _Cache:
        if condition not in self._caches:
            self._caches[condition] = _Cache(self.settings.cache, self.counters)
        return self._caches[condition]

    def _renew(self) -> None:
        if self._version != self.knowledge.version:
            self._version = self.knowledge.version
            self._caches.clear()
            self._evaluated.clear()


def _is_known(group: Group, graphs: Mapping[str, EventGraph], knowledge: Knowledge) -> bool:
    """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
    return not any(
        evaluates(group, name, each, knowledge) for name, graph in graphs.items() for each in graph.unknown
    )
