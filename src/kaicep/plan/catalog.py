"""What a query is resolved against: the streams that are known, and the words that name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from kaicep.plan.sparql import MOST_DERIVED, Path
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Term
from kaicep.plan.types import USUAL, Notation, Type

EVENT = "http://cei.usc.edu/Event.owl#"

QUDT = "http://qudt.org/schema/qudt/"

WELL_KNOWN_PREFIXES: Mapping[str, str] = {"rdf": RDF, "rdfs": RDFS, "owl": OWL, "xsd": XSD}


@dataclass(frozen=True, slots=True)
class Entity:
    """How an attribute's value becomes a node of the knowledge base.

    By `template`, an IRI with `{value}` in it; or by `lookup`, properties or property paths whose values name
    the node: one, or one for each of several `attributes`, with the datatype that a value has there, if it
    is said. With `attributes`, what the annotation calls the entity is no attribute.
    """

    property: Iri
    template: str | None = None
    lookup: tuple[Iri | Path, ...] = ()
    datatypes: tuple[Iri | None, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream and what its annotation says of it.

    `attributes` are in the order of the source. `concepts` and `entities` are in the order of the
    annotation, which decides between several attributes that carry one concept. `rdf` marks a stream
    of triples with intervals. An `open` stream may have attributes besides these, of types that are not
    known yet: its data was not read, or it had none. A `derived` stream is the output of a query.
    `notation` is how its values are written, `units` the QUDT units of attributes, or
    the attribute that names the point whose unit it is.
    """

    name: str
    attributes: tuple[tuple[str, Type], ...] = ()
    time: str = "ts"
    event_class: Iri | None = None
    concepts: tuple[tuple[str, Iri], ...] = ()
    entities: tuple[tuple[str, Entity], ...] = ()
    rdf: bool = False
    open: bool = False
    derived: bool = False
    notation: Notation = USUAL
    units: tuple[tuple[str, Iri | str], ...] = ()

    def type_of(self, attribute: str) -> Type | None:
        """The type of an attribute, or None where there is no such attribute."""
        if attribute == "ts":
            return Type.TIMESTAMP
        return dict(self.attributes).get(attribute)

    def reads(self, *names: str) -> tuple[str, ...]:
        """The attributes that decide what these annotated names stand for: mostly themselves."""
        several = {name: entity.attributes for name, entity in self.entities if entity.attributes}
        if not several:
            return names
        return tuple(dict.fromkeys(read for each in names for read in several.get(each, (each,))))

    @property
    def graph_attributes(self) -> tuple[str, ...]:
        """The attributes of which the graph of an event is made."""
        return self.reads(*dict.fromkeys(name for name, _ in (*self.concepts, *self.entities)))

    def carried(self) -> tuple[Iri, ...]:
        """The properties that its attributes carry: concepts, and what leads to entities."""
        return (*(each for _, each in self.concepts), *(each.property for _, each in self.entities))

    @property
    def annotated(self) -> bool:
        """Whether its events have a graph worth speaking of."""
        return self.event_class is not None or bool(self.concepts or self.entities)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of QUDT: (value + offset) * multiplier is the value in the base unit of its kind."""

    multiplier: Fraction
    offset: Fraction = Fraction(0)
    dimension: Term | None = None


class Vocabulary:
    """What resolving asks of the knowledge base; this one knows nothing: every word stands for itself."""

    def properties_below(self, concept: Iri) -> frozenset[Iri]:
        """The property itself and all that are narrower than or the same as it."""
        return frozenset((concept,))

    def classes_below(self, concept: Iri) -> frozenset[Iri]:
        """The class itself and all that are narrower than or the same as it."""
        return frozenset((concept,))

    def properties(self) -> frozenset[Iri] | None:
        """All properties that are used or declared; None where nothing is known that could tell."""
        return None

    def classes(self) -> frozenset[Iri] | None:
        """All classes that are used or declared; None where nothing is known that could tell."""
        return None

    def unit(self, name: Iri) -> Unit | None:
        """What is known of a unit; None where that is too little to convert it."""
        return None


@dataclass(frozen=True)
class Catalog:
    """The streams of a run by name, the prefixes that its annotations declare, and its vocabulary.

    `zone` is the time zone of `hour(t)` and `dayOfWeek(t)` where a query names none; UTC, if it is None.
    Rules that derive more than `most_derived` triples at one instant have run away.
    """

    streams: Mapping[str, Stream] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    zone: str | None = None
    most_derived: int = MOST_DERIVED

    def derived(self, streams: Iterable[str]) -> frozenset[str]:
        """Those of these streams that are the output of queries."""
        return frozenset(name for name in streams if self.streams[name].derived)

    def known_attributes(self, streams: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
        """Those of these attributes that events of the streams may have; of an open stream, any."""
        known = [self.streams[name] for name in streams]
        declared = {name for each in known for name, _ in each.attributes}
        is_open = any(each.open for each in known)
        return tuple(name for name in names if name != "ts" and (is_open or name in declared))

    def known_prefixes(self, declared: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The prefixes that a query which declares these may use."""
        return tuple({**WELL_KNOWN_PREFIXES, **self.prefixes, **dict(declared)}.items())

    def with_streams(self, streams: Iterable[Stream]) -> Catalog:
        """This catalogue and these streams besides."""
        return replace(self, streams={**self.streams, **{each.name: each for each in streams}})
