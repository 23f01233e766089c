"""The names of a knowledge base: which of them are classes, and which are properties."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kaicep.knowledge.graph import Ids, TermTable
from kaicep.plan.terms import OWL, RDF, RDFS, Iri

TYPE = Iri(RDF + "type")
"""`rdf:type`."""

_ABOUT_PROPERTIES = (RDFS + "subPropertyOf", OWL + "equivalentProperty", OWL + "inverseOf")
_ABOUT_CLASSES = (RDFS + "subClassOf", OWL + "equivalentClass", OWL + "disjointWith")
_FROM_PROPERTY_TO_CLASS = (RDFS + "domain", RDFS + "range")
_CLASSES = (RDFS + "Class", OWL + "Class")
_PROPERTIES = (
    RDF + "Property",
    *(OWL + kind + "Property" for kind in ("Object", "Datatype", "Annotation", "Transitive", "Symmetric")),
    *(OWL + kind + "Property" for kind in ("Asymmetric", "Functional", "InverseFunctional")),
)


@dataclass(frozen=True)
class Words:
    """The properties and the classes that are used or declared."""

    properties: frozenset[Iri]
    classes: frozenset[Iri]


def words(triples: Iterable[Ids], terms: TermTable) -> Words:
    """The words of some triples.

    >>> terms = TermTable()
    >>> found = words([terms.ids((Iri("urn:r1"), TYPE, Iri("urn:Room")))], terms)
    >>> [each.local for each in found.properties], [each.local for each in found.classes]
    (['type'], ['Room'])
    """
    number = terms.known(TYPE)
    about_properties, about_classes = _numbers(_ABOUT_PROPERTIES, terms), _numbers(_ABOUT_CLASSES, terms)
    between = _numbers(_FROM_PROPERTY_TO_CLASS, terms)
    kinds_of_property, kinds_of_class = _numbers(_PROPERTIES, terms), _numbers(_CLASSES, terms)
    properties: set[int] = set()
    classes: set[int] = set()
    for s, p, o in triples:
        properties.add(p)
        if p == number:
            classes.add(o)
            if o in kinds_of_class:
                classes.add(s)
            elif o in kinds_of_property:
                properties.add(s)
        elif p in about_classes:
            classes.update((s, o))
        elif p in about_properties:
            properties.update((s, o))
        elif p in between:
            properties.add(s)
            classes.add(o)
    return Words(_names(properties, terms), _names(classes, terms))


def _numbers(names: Iterable[str], terms: TermTable) -> frozenset[int | None]:
    return frozenset(terms.known(Iri(each)) for each in names) - {None}


def _names(numbers: Iterable[int], terms: TermTable) -> frozenset[Iri]:
    return frozenset(term for term in map(terms.term, numbers) if isinstance(term, Iri))
