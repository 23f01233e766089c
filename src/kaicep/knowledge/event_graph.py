"""The graph of an event: the triples that its annotation makes from its values (semantics 2, event graph)."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from kaicep.errors import Mistake
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import triple_patterns
from kaicep.plan.catalog import EVENT, Stream, Vocabulary
from kaicep.plan.events import Event
from kaicep.plan.sparql import Alternative, Group, Inverse, Negated, Predicate, Repeat, Steps, may_be_empty
from kaicep.plan.terms import RDF, Iri, Literal, Term, Triple, Variable
from kaicep.plan.text import predicate_text
from kaicep.plan.types import Type, Value
from kaicep.plan.values import literal_of

HAS_TIME = Iri(EVENT + "hasTime")
"""The property that has the time of an event (semantics 2.12)."""

_LOG = logging.getLogger("kaicep.knowledge")
_NOT_IN_IRI = re.compile(r'[\x00-\x20<>"{}|\\^`]')


@dataclass(frozen=True)
class EventGraph:
    """The triples of an event.

    `unknown` are the properties whose entity nobody knows, and those whose value names several, with what
    is to be said then to a PATH that asks for them.
    """

    node: Iri
    triples: tuple[Triple, ...]
    unknown: Mapping[Iri, Mistake | None] = field(default_factory=dict)

    def answers(self, group: Group, variable: str, vocabulary: Vocabulary) -> bool:
        """Whether a PATH that asks this of the event asks for no entity that nobody knows."""
        asked = [each for each in self.unknown if evaluates(group, variable, each, vocabulary)]
        for each in asked:
            if (mistake := self.unknown[each]) is not None:
                raise mistake
        return not asked


@dataclass
class UnknownEntities:
    """Counts the values that no entity is known for, by `stream.attribute` and value; logs each once."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, stream: str, attribute: str, value: str, count: int = 1) -> None:
        """So many more events with such a value."""
        key = f"{stream}.{attribute}", value
        is_new = key not in self.counts
        self.counts[key] += count
        if is_new:
            _LOG.warning("no entity is known for %s = %s", *key)


def event_node(event: Event) -> Iri:
    """The name of an event in its graph, made of its identity.

    >>> event_node(Event("air flow", 0, 7, 0))
    Iri(value='urn:kaicep:event:air%20flow/0/7')
    """
    place = f"{event.part}/{event.seq}" if event.id is None else quote(event.id, safe="")
    return Iri(f"urn:kaicep:event:{quote(event.stream, safe='')}/{place}")


def event_triples(
    event: Event, stream: Stream, knowledge: Knowledge, unknown: UnknownEntities | None = None
) -> EventGraph:
    """The graph of an event; values without an entity are counted in `unknown`.

    >>> stream = Stream("s", (("x", Type.INT64),), concepts=(("x", Iri("urn:c")),))
    >>> graph = event_triples(Event("s", 0, 0, 0, {"x": 5}), stream, Knowledge.empty())
    >>> [str(term) for _, _, term in graph.triples]
    ['"5"^^<http://www.w3.org/2001/XMLSchema#integer>', \
'"1970-01-01T00:00:00.000000Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>']
    """
    node = event_node(event)
    triples = dict.fromkeys(own_classes(node, stream, knowledge))
    missing: dict[Iri, Mistake | None] = {}
    for attribute, concept in stream.concepts:
        literal = literal_in(event, stream, attribute)
        if literal is not None:
            triples |= {(node, each, literal): None for each in knowledge.properties_above(concept)}
    for attribute, entity in stream.entities:
        values = naming(event, stream, attribute)
        if not values:
            continue
        try:
            found = entity_in(event, stream, attribute, knowledge)
        except Mistake as mistake:
            missing[entity.property] = mistake
            continue
        if found is not None:
            triples |= {(node, each, found): None for each in knowledge.properties_above(entity.property)}
            continue
        missing.setdefault(entity.property, None)
        if unknown is not None:
            unknown.add(stream.name, attribute, shown_values(values))
    triples[node, HAS_TIME, literal_of(event.ts, Type.TIMESTAMP)] = None
    return EventGraph(node, tuple(triples), missing)


def own_classes(node: Term, stream: Stream, knowledge: Knowledge) -> Iterator[Triple]:
    """What the annotation says of the class of an event: it is of all classes that are wider or the same."""
    if stream.event_class is not None:
        for each in sorted(knowledge.classes_above(stream.event_class), key=str):
            yield node, Iri(RDF + "type"), each


def own_triples(node: Term, stream: Stream, value: Term, knowledge: Knowledge) -> Iterator[Triple]:
    """The triples that events of a stream may have, with a stand-in for the event and one for its values."""
    yield node, HAS_TIME, value
    yield from own_classes(node, stream, knowledge)
    for each in stream.carried():
        yield from ((node, above, value) for above in knowledge.properties_above(each))


def literal_in(event: Event, stream: Stream, attribute: str) -> Literal | None:
    """The value of an attribute as RDF writes it; None where it is null."""
    value = event.value(attribute)
    if value is None:
        return None
    return literal_of(value, stream.type_of(attribute) or _type_of(value))


def _type_of(value: Value) -> Type:
    """The type that a value shows, where its stream declares none."""
    shown = {bool: Type.BOOL, int: Type.INT64, float: Type.FLOAT64}
    return shown.get(type(value), Type.STRING)


def naming(event: Event, stream: Stream, name: str) -> tuple[Literal, ...]:
    """The values by which an event names an entity; nothing where one of them is null."""
    found = tuple(literal_in(event, stream, each) for each in stream.reads(name))
    return () if None in found else tuple(each for each in found if each is not None)


def shown_values(values: Iterable[Literal]) -> str:
    """The values by which an event names an entity, as they are counted and logged.

    >>> shown_values([Literal("12"), Literal("7")])
    '12 7'
    """
    return " ".join(each.lexical for each in values)


def entity_in(event: Event, stream: Stream, attribute: str, knowledge: Knowledge) -> Term | None:
    """The entity that an attribute names, or None where the knowledge base does not have it."""
    entity, values = dict(stream.entities)[attribute], naming(event, stream, attribute)
    if not values:
        return None
    if entity.template is not None:
        value = _NOT_IN_IRI.sub(lambda found: quote(found[0]), values[0].lexical)
        made = Iri(entity.template.replace("{value}", value))
        return made if knowledge.knows(made) else None
    typed = (
        each if datatype is None else Literal(each.lexical, datatype.value)
        for each, datatype in zip(values, entity.datatypes or (None,) * len(values), strict=True)
    )
    each_by = [knowledge.entities_by(way, each) for way, each in zip(entity.lookup, typed, strict=True)]
    found = [each for each in each_by[0] if all(each in others for others in each_by[1:])]
    if len(found) > 1 and not set(found).issubset(knowledge.same_as(found[0])):
        names = ", ".join(map(str, found))
        by = ", ".join(predicate_text(each) for each in entity.lookup)
        raise Mistake(
            f"{by} = {shown_values(values)} names several entities: {names}",
            hint="a lookup needs a property that has each value once",
        )
    return found[0] if found else None


def evaluates(group: Group, variable: str, property: Iri, vocabulary: Vocabulary) -> bool:
    """Whether a PATH looks at that property of that event variable, anywhere in it.

    A variable in the place of the property looks at all of them, a path at those that it may begin
    with (or, read backwards, end with).
    """
    event = Variable(variable)
    return any(
        (each.subject == event and _covers(each.predicate, property, vocabulary))
        or (each.object == event and goes_back(each.predicate))
        for each in triple_patterns(group)
    )


def _covers(predicate: Predicate, property: Iri, vocabulary: Vocabulary) -> bool:
    """Whether the first step of the way from the event may be that property."""
    match predicate:
        case Iri():
            return property in vocabulary.properties_below(predicate)
        case Steps(parts):
            first = next((i for i, each in enumerate(parts) if not may_be_empty(each)), len(parts))
            return any(_covers(each, property, vocabulary) for each in parts[: first + 1])
        case Alternative(parts):
            return any(_covers(each, property, vocabulary) for each in parts)
        case Repeat(of, least):
            # Of no step at all, the end is the event under another name.
            return least == 0 or _covers(of, property, vocabulary)
        case Inverse():
            return False  # nothing leads to an event
    return True


def goes_back(predicate: Predicate) -> bool:
    """Whether a path has a step that is read backwards."""
    match predicate:
        case Inverse():
            return True
        case Negated(_, inverse):
            return bool(inverse)
        case Repeat(of):
            return goes_back(of)
        case Steps(parts) | Alternative(parts):
            return any(goes_back(each) for each in parts)
    return False
