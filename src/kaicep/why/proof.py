"""The statements that make a PATH true for some events, down to what was asserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kaicep.knowledge.event_graph import HAS_TIME, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.words import TYPE
from kaicep.plan.algebra import substitute, translate, triple_patterns
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Predicate, Repeat, Sequence, TriplePattern
from kaicep.plan.terms import Iri, Term, Triple, Variable
from kaicep.reference.graph import Graph
from kaicep.reference.sparql import Bindings, evaluate

__all__ = ["Proof", "Statement", "prove"]

_DEEPEST = 12


@dataclass(frozen=True)
class Statement:
    """A triple and where it comes from: `event`, `asserted`, or the rule that inferred it from others."""

    triple: Triple
    rule: str
    premises: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Proof:
    """One solution of a PATH: the values of its variables, and the statements that make it true."""

    bindings: Bindings
    statements: tuple[Statement, ...]


def prove(
    condition: Semantic,
    binding: Mapping[str, Event],
    catalog: Catalog,
    knowledge: Knowledge,
    wanted: Mapping[str, Term] | None = None,
) -> Proof | None:
    """A proof that the PATH holds for the events; `wanted` are the values of its selected variables."""
    then = knowledge.at(max((each.ts for each in binding.values()), default=0))
    graphs = {name: event_triples(each, catalog.streams[each.stream], then) for name, each in binding.items()}
    given = tuple(triple for each in graphs.values() for triple in each.triples)
    stated = tuple(
        triple
        for name, event in binding.items()
        for triple in graphs[name].triples
        if _is_stated(triple, catalog.streams[event.stream])
    )
    union = Graph(then, [(each, None) for each in then.entails_with(given)])
    nodes = {name: each.node for name, each in graphs.items()}
    for group in condition.alternatives:
        about = substitute(group, nodes)
        solutions = [each.bindings for each in evaluate(translate(about), union)]
        fitting = [
            each for each in solutions if all(each.get(n) == term for n, term in (wanted or {}).items())
        ]
        if fitting:
            chosen = min(fitting, key=lambda each: sorted((name, str(term)) for name, term in each.items()))
            used = dict.fromkeys(_used(triple_patterns(about), chosen, union))
            origins = _Origins(then, stated, given)
            return Proof(chosen, tuple(origins.statement(each) for each in used))
    return None


def _is_stated(triple: Triple, stream: Stream) -> bool:
    """Whether the annotation names the very property, or the very class."""
    _, predicate, target = triple
    return target == stream.event_class if predicate == TYPE else predicate in (HAS_TIME, *stream.carried())


class _Origins:
    """Where triples come from.

    `stated` is what the annotations say of the events in so many words. `given` is all that they say;
    where no rule of the reasoning gives the rest, it is the event's as well.
    """

    def __init__(self, knowledge: Knowledge, stated: tuple[Triple, ...], given: tuple[Triple, ...]) -> None:
        self.knowledge = knowledge
        self.stated = stated
        self.given = given

    def statement(self, triple: Triple, depth: int = 0) -> Statement:
        if triple in self.stated:
            return Statement(triple, "event")
        reason = self.knowledge.why(triple, self.stated)
        if reason is None and triple in self.given:
            return Statement(triple, "event")
        if reason is None:
            reason = self.knowledge.why(triple, self.given)
        if reason is None or depth >= _DEEPEST:
            return Statement(triple, "asserted")
        return Statement(
            triple, reason.rule, tuple(self.statement(each, depth + 1) for each in reason.premises)
        )


# --- the triples of a solution -----------------------------------------------------------------------------


def _used(patterns: Iterable[TriplePattern], bindings: Bindings, graph: Graph) -> Iterator[Triple]:
    """The triples that meet the patterns; a pattern with something unbound is one that was not needed."""
    for pattern in patterns:
        subject, object = (_filled(each, bindings) for each in (pattern.subject, pattern.object))
        predicate: Predicate = pattern.predicate
        if isinstance(predicate, Variable):
            found = bindings.get(predicate.name)
            if not isinstance(found, Iri):
                continue
            predicate = found
        if subject is not None and object is not None:
            yield from next(_chains(graph, subject, predicate, object), ())


def _filled(place: object, bindings: Bindings) -> Term | None:
    if isinstance(place, Variable):
        return bindings.get(place.name)
    return place  # type: ignore[return-value]


def _chains(graph: Graph, start: Term, path: Iri | Path, end: Term) -> Iterator[tuple[Triple, ...]]:
    """The ways from one term to another along a path, as the triples that they go over."""
    return (triples for reached, triples in _walk(graph, start, path) if reached == end)


def _walk(graph: Graph, start: Term, path: Iri | Path) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    match path:
        case Iri():
            for triple, _ in graph.match(start, path, None):
                yield triple[2], (triple,)
        case Inverse(of):
            if isinstance(of, Iri):
                for triple, _ in graph.match(None, of, start):
                    yield triple[0], (triple,)
            else:
                nodes = {node for node, _ in graph.nodes()}
                for node in nodes:
                    for triples in _chains(graph, node, of, start):
                        yield node, triples
        case Sequence(parts):
            yield from _along(graph, start, parts)
        case Alternative(parts):
            for part in parts:
                yield from _walk(graph, start, part)
        case Repeat():
            yield from _repeated(graph, start, path)
        case Negated(forward, inverse):
            if forward or not inverse:
                for triple, _ in graph.match(start, None, None):
                    if triple[1] not in forward:
                        yield triple[2], (triple,)
            if inverse:
                for triple, _ in graph.match(None, None, start):
                    if triple[1] not in inverse:
                        yield triple[0], (triple,)


def _along(
    graph: Graph, start: Term, parts: tuple[Iri | Path, ...]
) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    if not parts:
        yield start, ()
        return
    for middle, first in _walk(graph, start, parts[0]):
        for end, rest in _along(graph, middle, parts[1:]):
            yield end, first + rest


def _repeated(graph: Graph, start: Term, path: Repeat) -> Iterator[tuple[Term, tuple[Triple, ...]]]:
    """The shortest way to every term that can be reached."""
    if path.least == 0:
        yield start, ()
    reached: dict[Term, tuple[Triple, ...]] = {start: ()}
    front = [start]
    while front:
        further: list[Term] = []
        for node in front:
            for end, triples in _walk(graph, node, path.of):
                if end not in reached:
                    reached[end] = reached[node] + triples
                    further.append(end)
                    yield end, reached[end]
                elif end == start and path.least > 0 and reached[end] == ():
                    yield end, reached[node] + triples
        front = further if path.unbounded else []
