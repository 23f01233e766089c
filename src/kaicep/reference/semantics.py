"""PATHs, decided by the knowledge base and the graphs of the events (semantics 2)."""

from __future__ import annotations

from collections.abc import Mapping

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, evaluates, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import substitute
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import Group
from kaicep.reference.chains import Row
from kaicep.reference.graph import Graph
from kaicep.reference.sparql import bindings

__all__ = ["KnowledgeSemantics"]


class KnowledgeSemantics:
    """Evaluates each PATH over the knowledge united with the graphs of the events that it is about.

    That union is what the reasoning closes. The knowledge is that of the event's time, and of the last
    one where there are several. Answers are kept, since a search asks for them again and again; so are
    the graphs, so that an entity nobody knows is counted once for each event.
    """

    def __init__(
        self, catalog: Catalog, knowledge: Knowledge | None = None, unknown: UnknownEntities | None = None
    ) -> None:
        self.catalog = catalog
        self.knowledge = Knowledge.empty() if knowledge is None else knowledge
        self.unknown = unknown
        self._graphs: dict[tuple[Event, int], EventGraph] = {}
        self._answers: dict[tuple[Semantic, tuple[Event, ...]], frozenset[Row]] = {}

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution."""
        events = tuple(binding[name] for name in condition.variables)
        key = condition, events
        if key not in self._answers:
            self._answers[key] = self._solutions(condition, events)
        return self._answers[key]

    def _solutions(self, condition: Semantic, events: tuple[Event, ...]) -> frozenset[Row]:
        epoch = self.knowledge.epoch(max((event.ts for event in events), default=0))
        knowledge = self.knowledge.in_epoch(epoch)
        graphs = {
            name: self._graph(event, epoch) for name, event in zip(condition.variables, events, strict=True)
        }
        triples = [triple for each in graphs.values() for triple in each.triples]
        union = Graph(knowledge, [(each, None) for each in knowledge.entails_with(triples)])
        nodes = {name: each.node for name, each in graphs.items()}
        return frozenset(
            row
            for group in condition.alternatives
            if self._is_known(group, graphs)
            for row in bindings(substitute(group, nodes), union, condition.selected)
        )

    def _is_known(self, group: Group, graphs: Mapping[str, EventGraph]) -> bool:
        """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
        return not any(
            evaluates(group, name, each, self.knowledge)
            for name, graph in graphs.items()
            for each in graph.unknown
        )

    def _graph(self, event: Event, epoch: int) -> EventGraph:
        if (event, epoch) not in self._graphs:
            stream = self.catalog.streams.get(event.stream, Stream(event.stream))
            knowledge = self.knowledge.in_epoch(epoch)
            self._graphs[event, epoch] = event_triples(event, stream, knowledge, self.unknown)
        return self._graphs[event, epoch]
