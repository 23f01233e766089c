"""How one thing leads to another: chains of properties, found in the data, to copy into a PATH.

A search goes breadth first from a set of things. A chain is kept with the things that it reaches, so that
every chain found is true of some thing, and not only possible by the classes of its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kaicep.errors import Diagnostic, Mistake
from kaicep.knowledge.annotation import Annotation
from kaicep.knowledge.event_graph import HAS_TIME
from kaicep.knowledge.graph import LITERAL, Graph, Layer, Terms
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.vocabulary import Names, entities_of, is_standard
from kaicep.knowledge.words import TYPE
from kaicep.plan.sparql import Node, TriplePattern
from kaicep.plan.terms import Iri, Variable
from kaicep.plan.text import triple_text

__all__ = ["MOST_STEPS", "Way", "path_text", "ways"]

MOST_STEPS = 6
_MOST_WAYS = 3
_MOST_CHAINS = 200  # that are followed at one depth: what is longer than that is no answer anyway

Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Way:
    """Triple patterns that lead from one end to the other.

    They hold for `holds` of the `of` things that the way may start from.
    """

    patterns: tuple[TriplePattern, ...]
    holds: int
    of: int


@dataclass(frozen=True)
class _Step:
    property: int
    forward: bool


@dataclass(frozen=True)
class _Chain:
    """Steps from the things of an origin (by its place in a list), and the new things they reach."""

    origin: int
    steps: tuple[_Step, ...]
    reached: frozenset[int]

    @property
    def backward(self) -> int:
        return sum(not each.forward for each in self.steps)


@dataclass(frozen=True)
class _Origin:
    """Where a search begins: the patterns so far, the node to go on from, and the things it may be."""

    patterns: tuple[TriplePattern, ...]
    node: Node
    things: frozenset[int]
    length: int = 0


@dataclass(frozen=True)
class _Goal:
    """What is looked for: things, a name for the one that is found, and a last pattern about it."""

    things: frozenset[int]
    node: Node
    last: TriplePattern | None = None


def ways(
    start: str, end: str, knowledge: Knowledge, annotations: Sequence[Annotation], names: Names
) -> list[Way]:
    """The shortest ways from a thing, a class or a stream to a thing, a class or a property.

    Where statements hold for a time only, all of a way holds at one instant, the latest that has any.

    >>> knowledge = Knowledge.parse('''
    ...     @prefix : <urn:x:> . :s1 a :Sensor ; :in :r1 . :r1 :of :EE .''')
    >>> names = Names(knowledge)
    >>> [path_text(each, names) for each in ways(":Sensor", ":EE", knowledge, (), names)]
    ['PATH {?sensor rdf:type :Sensor . ?sensor :in ?of . ?of :of :EE}']
    """
    stream = next((each for each in annotations if each.stream == start), None)
    source = None if stream else _known(start, names, knowledge, [each.stream for each in annotations])
    target = _known(end, names, knowledge, [name.value for name in _words_of(stream, names)])
    if source == target:
        raise Mistake(Diagnostic(f"{start} and {end} are the same"))
    for epoch in range(len(knowledge.epochs), -1, -1):
        search = _Search(knowledge.in_epoch(epoch), names)
        found = search.from_stream(stream, target) if stream else search.from_name(source, target)
        if found:
            return found
    return []
