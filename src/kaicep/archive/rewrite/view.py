"""The RDF view of archived events: what there is to ask, and what it is called.

Each event is a node with its graph (semantics 2), its time, its stream, its place in the order of the
query's streams, the event after it in its partition, and its attributes as they are, each by a property
of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from kaicep.plan.catalog import EVENT, Stream, Vocabulary
from kaicep.plan.events import Event
from kaicep.plan.expressions import Field
from kaicep.plan.literals import literal_of
from kaicep.plan.terms import Iri, Literal, Term
from kaicep.plan.types import Type, Value

__all__ = [
    "ARCHIVE",
    "HAS_TIME",
    "MICROS",
    "NEXT",
    "ORDER",
    "PARTITION",
    "STREAM",
    "attribute_iri",
    "attribute_namespace",
    "own_properties",
    "property_of",
    "stream_iri",
]

ARCHIVE = "urn:kaicep:archive:"
"""The namespace of the archive's own properties."""
STREAM, ORDER, MICROS = Iri(ARCHIVE + "stream"), Iri(ARCHIVE + "order"), Iri(ARCHIVE + "micros")
PARTITION, NEXT = Iri(ARCHIVE + "partition"), Iri(ARCHIVE + "next")
HAS_TIME = Iri(EVENT + "hasTime")
"""The property that has the time of an event."""


def stream_iri(stream: str) -> Iri:
    """The name of a stream in the view."""
    return Iri(f"urn:kaicep:stream:{quote(stream, safe='')}")


def attribute_namespace(stream: str) -> str:
    """What the properties for a stream's attributes begin with."""
    return f"urn:kaicep:attribute:{quote(stream, safe='')}/"


def attribute_iri(stream: str, attribute: str) -> Iri:
    """The property for an attribute as it is.

    >>> attribute_iri("air flow", "rate").value
    'urn:kaicep:attribute:air%20flow/rate'
    """
    return Iri(attribute_namespace(stream) + quote(attribute, safe=""))


def own_properties(
    event: Event, stream: Stream, order: int, partition: Sequence[Value] = ()
) -> Iterator[tuple[Iri, Term]]:
    """What the view says of an event besides its graph; `partition` is its key in the query."""
    yield STREAM, stream_iri(event.stream)
    yield ORDER, literal_of(order, Type.INT64)
    yield MICROS, literal_of(event.ts, Type.INT64)
    if partition:
        yield PARTITION, Literal(json.dumps(partition, ensure_ascii=False))
    yield HAS_TIME, literal_of(event.ts, Type.TIMESTAMP)
    for name, type in stream.attributes:
        value = event.value(name)
        if value is not None and name != "ts":
            yield attribute_iri(event.stream, name), literal_of(value, type)


def property_of(field: Field, streams: dict[str, Stream], vocabulary: Vocabulary) -> Iri | None:
    """The one property that gives a field's value on all streams of its variable; None where none does.

    A concept of the ontology will do where a stream has it from one attribute only, the concepts below
    it included; else the attribute's own property does.
    """
    found: set[Iri] = set()
    for name, read in field.sources:
        if len(read) != 1:
            return None
        if read[0] == "ts":
            found.add(HAS_TIME)
            continue
        stream = streams[name]
        concept = dict(stream.concepts).get(read[0])
        below = vocabulary.properties_below(concept) if concept is not None else frozenset()
        carried = [each for each in stream.carried() if each in below]
        found.add(concept if concept is not None and carried == [concept] else attribute_iri(name, read[0]))
    return found.pop() if len(found) == 1 else None
