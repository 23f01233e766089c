"""PATHs, decided by the knowledge base and the graphs of the events (semantics 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.paths import path_references
from kaicep.plan.results import Terms
from kaicep.plan.sparql import Group
from kaicep.plan.typing import with_terms
from kaicep.reference.chains import EnvironmentOf, Row
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.paths import TimedGraph
from kaicep.reference.sparql import bindings

__all__ = ["GivenSemantics", "KnowledgeSemantics"]

Names = tuple[str, ...]
NOTHING: Terms = MappingProxyType({})


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
        self._answers: dict[tuple[Semantic, Names, tuple[Event, ...]], frozenset[Row]] = {}

    def solutions(
        self,
        condition: Semantic,
        binding: Mapping[str, Event],
        env_of: EnvironmentOf | None = None,
        given: Terms = NOTHING,
    ) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution.

        Only those solutions count in which the variables that are `given` stand for these terms, and for
        which all expressions of the condition are true.
        """
        judged = tuple(name for each in condition.conditions for name in path_references(each))
        names = tuple(dict.fromkeys((*condition.selected, *judged, *given)))
        events = tuple(binding[name] for name in condition.variables)
        key = condition, names, events
        if key not in self._answers:
            self._answers[key] = self._solutions(condition, names, events)
        seen = env_of or (lambda _: Environment(dict(binding)))
        rows: set[Row] = set()
        for row in self._answers[key]:
            terms = dict(zip(names, row, strict=True))
            if any(terms[name] != term for name, term in given.items()):
                continue
            if all(evaluate(with_terms(each, terms), seen(each)) is True for each in condition.conditions):
                rows.add(tuple(terms[name] for name in condition.selected))
        return frozenset(rows)

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """What a condition about no event gives at some time."""
        then = KnowledgeSemantics(self.catalog, self.knowledge.at(ts))
        return then.solutions(condition, {})

    def inside(self, given: Terms) -> GivenSemantics:
        """The same inside a partition, whose variables stand for these terms."""
        return GivenSemantics(self, given)

    def _solutions(self, condition: Semantic, names: Names, events: tuple[Event, ...]) -> frozenset[Row]:
        epoch = self.knowledge.epoch(max((event.ts for event in events), default=0))
        knowledge = self.knowledge.in_epoch(epoch)
        graphs = {
            name: self._graph(event, epoch) for name, event in zip(condition.variables, events, strict=True)
        }
        triples = [triple for each in graphs.values() for triple in each.triples]
        union = TimedGraph(knowledge, [(each, None) for each in knowledge.entails_with(triples)])
        nodes = {name: each.node for name, each in graphs.items()}
        return frozenset(
            row
            for group in condition.alternatives
            if self._is_known(group, graphs)
            for row in bindings(substitute(group, nodes), union, names)
        )

    def _is_known(self, group: Group, graphs: Mapping[str, EventGraph]) -> bool:
        """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
        return all(graph.answers(group, name, self.knowledge) for name, graph in graphs.items())

    def _graph(self, event: Event, epoch: int) -> EventGraph:
        if (event, epoch) not in self._graphs:
            stream = self.catalog.streams.get(event.stream, Stream(event.stream))
            knowledge = self.knowledge.in_epoch(epoch)
            self._graphs[event, epoch] = event_triples(event, stream, knowledge, self.unknown)
        return self._graphs[event, epoch]


@dataclass(frozen=True)
class GivenSemantics:
    """PATHs inside a partition: the variables that it goes by stand for the partition's values."""

    semantics: KnowledgeSemantics
    given: Terms

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: EnvironmentOf | None = None
    ) -> frozenset[Row]:
        """As without a partition, of the solutions that belong to it."""
        return self.semantics.solutions(condition, binding, env_of, _given(condition, self.given))

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """As without a partition: ABSENT has none."""
        return self.semantics.known(condition, ts)

    def inside(self, given: Terms) -> GivenSemantics:
        """The same, with more that is given."""
        return GivenSemantics(self.semantics, {**self.given, **given})


def _given(condition: Semantic, terms: Terms) -> Terms:
    names = frozenset[str]().union(*map(element_variables, condition.alternatives))
    return {name: term for name, term in terms.items() if name in names}
