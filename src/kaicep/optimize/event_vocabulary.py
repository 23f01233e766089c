"""What the graphs of a query's events can say, whatever their values: the bounds of compiling.

Knowledge can be asked in advance only as far as no event can change the answer. An event says its class
and its properties; under `rdfs` superclasses, superproperties and domains follow, and the range of a
property says something of its value. Under `owl-rl` much more may follow; where the properties and
classes of the events stand in no axiom of OWL, and nothing is the same as anything else, it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from kaicep.knowledge.event_graph import own_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Stream
from kaicep.plan.sparql import Alternative, Inverse, Predicate, Repeat, Sequence, TriplePattern, may_be_empty
from kaicep.plan.terms import OWL, RDF, RDFS, Blank, Iri, Term, Triple, Variable

__all__ = ["EventVocabulary", "event_vocabulary", "may_step", "read_as"]

_EVENT, _VALUE, _TYPE = Iri("urn:kaicep:event:any"), Blank("any value"), Iri(RDF + "type")
_HARMLESS = {Iri(RDFS + name) for name in ("subClassOf", "subPropertyOf", "domain", "range")}
_SAME = Iri(OWL + "sameAs")
_KINDS = {
    Iri(RDF + "Property"),
    Iri(RDFS + "Class"),
    *(Iri(OWL + name) for name in ("Class", "ObjectProperty", "DatatypeProperty", "NamedIndividual")),
}


@dataclass(frozen=True)
class EventVocabulary:
    """The triples that graphs of events may have, with stand-ins for the event and for its values.

    `plain` is whether these are all: whether nothing of what is known makes events say more.
    """

    triples: frozenset[Triple]
    plain: bool

    @property
    def classes_of_values(self) -> frozenset[Term]:
        """The classes that the ranges of the events' properties give to their values."""
        return frozenset(target for each, prop, target in self.triples if each == _VALUE and prop == _TYPE)

    def may_meet(self, pattern: TriplePattern) -> bool:
        """Whether some event's graph, rather than the knowledge, may meet a triple pattern."""
        if not isinstance(pattern.predicate, Iri):
            return self._may_step(pattern)
        return any(
            prop == pattern.predicate
            and (isinstance(pattern.subject, Variable) or subject == _VALUE)
            and (prop != _TYPE or isinstance(pattern.object, Variable) or pattern.object == target)
            for subject, prop, target in self.triples
        )

    def _may_step(self, pattern: TriplePattern) -> bool:
        """Whether a way may lead over what an event says, or from the event to itself."""
        if isinstance(pattern.predicate, Variable):
            return True
        ends = isinstance(pattern.subject, Variable) and isinstance(pattern.object, Variable)
        if ends and may_be_empty(pattern.predicate):
            return True
        return may_step(pattern.predicate, {prop for _, prop, _ in self.triples})


def may_step(predicate: Predicate, properties: Set[Term]) -> bool:
    """Whether a step of the way may be one of these properties, in either direction."""
    match predicate:
        case Iri():
            return predicate in properties
        case Inverse(of) | Repeat(of):
            return may_step(of, properties)
        case Sequence(parts) | Alternative(parts):
            return any(may_step(each, properties) for each in parts)
    return True


def read_as(property: Iri, streams: Iterable[Stream], knowledge: Knowledge) -> frozenset[Iri]:
    """The properties of events of these streams that are read as that one, under the reasoning there is."""
    known = tuple(streams)
    carried = {each for stream in known for each in stream.carried()}
    wanted = (_EVENT, property, _VALUE)
    said = {each: [(_EVENT, above, _VALUE) for above in knowledge.properties_above(each)] for each in carried}
    return frozenset(each for each in carried if wanted in knowledge.entails_with(said[each]))


def event_vocabulary(streams: Iterable[Stream], knowledge: Knowledge) -> EventVocabulary:
    """What events of these streams can say."""
    said = {each for stream in streams for each in own_triples(_EVENT, stream, _VALUE, knowledge)}
    triples = knowledge.entails_with(said)
    return EventVocabulary(triples, knowledge.reasoning != "owl-rl" or _is_plain(triples, knowledge))


def _is_plain(triples: frozenset[Triple], knowledge: Knowledge) -> bool:
    """Whether the words of the triples stand in no axiom but those of RDFS."""
    if next(knowledge.match(None, _SAME, None), None) is not None:
        return False
    words = {prop for _, prop, _ in triples} | {target for _, prop, target in triples if prop == _TYPE}
    words -= {_TYPE}
    for word in words:
        for _, prop, target in knowledge.match(word, None, None):
            if prop == _TYPE and target not in _KINDS:
                return False
            if isinstance(prop, Iri) and prop.value.startswith(OWL):
                return False
        for _, prop, _ in knowledge.match(None, None, word):
            if prop not in _HARMLESS and prop != _TYPE:
                return False
    return True
