"""The graph that a pattern is matched against: knowledge without time, and occurrences of triples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from kaicep.plan.functions import Interval
from kaicep.plan.sparql import WindowClause
from kaicep.plan.terms import Term, Triple

__all__ = ["Graph", "Interval", "Occurrence", "Statements", "Streams"]

Occurrence = tuple[Triple, Interval | None]
"""A triple with its interval."""

Streams = Mapping[str, Sequence[tuple[int, frozenset[Triple]]]]
"""By name, what each triple of a stream means (itself and what it entails), and its end, in order."""

_Shape = tuple[bool, bool, bool]
_Key = tuple[Term | None, Term | None, Term | None]


class Statements(Protocol):
    """What a graph asks of a knowledge base: its triples by what is known of them."""

    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        ...


class Graph:
    """Knowledge and a set of occurrences; an occurrence without an interval is like knowledge.

    >>> from kaicep.plan.terms import Iri
    >>> a, p, b = Iri("urn:a"), Iri("urn:p"), Iri("urn:b")
    >>> [interval for _, interval in Graph(None, [((a, p, b), (1, 2))]).match(a, None, None)]
    [(1, 2)]
    """

    def __init__(
        self,
        knowledge: Statements | None = None,
        occurrences: Iterable[Occurrence] = (),
        streams: Streams | None = None,
    ) -> None:
        self.knowledge = knowledge
        self.streams = streams or {}
        self.windows: Mapping[WindowClause, Graph] = {}
        self.timed = False
        self._occurrences: dict[Occurrence, None] = {}
        self._indexes: dict[_Shape, dict[_Key, list[Occurrence]]] = {}
        self.add(occurrences)

    def add(self, occurrences: Iterable[Occurrence]) -> list[Occurrence]:
        """Adds occurrences; returns those that were not there before."""
        new = [each for each in dict.fromkeys(occurrences) if each not in self._occurrences]
        self._occurrences.update(dict.fromkeys(new))
        self.timed = self.timed or any(interval is not None for _, interval in new)
        for shape, index in self._indexes.items():
            _fill(index, shape, new)
        return new

    def match(self, s: Term | None, p: Term | None, o: Term | None) -> Iterator[Occurrence]:
        """The occurrences with these terms; None stands for any."""
        if self.knowledge is not None:
            for triple in self.knowledge.match(s, p, o):
                yield triple, None
        if self._occurrences:
            shape = (s is not None, p is not None, o is not None)
            yield from self._index(shape).get((s, p, o), ())

    def nodes(self) -> Iterator[tuple[Term, Interval | None]]:
        """The subjects and objects, each with the times of the triples it stands in."""
        for (s, _, o), interval in self.match(None, None, None):
            yield s, interval
            yield o, interval

    def _index(self, shape: _Shape) -> dict[_Key, list[Occurrence]]:
        """The occurrences by the terms at the places that are known; made when first asked for."""
        if shape not in self._indexes:
            self._indexes[shape] = {}
            _fill(self._indexes[shape], shape, self._occurrences)
        return self._indexes[shape]


def _fill(index: dict[_Key, list[Occurrence]], shape: _Shape, occurrences: Iterable[Occurrence]) -> None:
    for occurrence in occurrences:
        (s, p, o), _ = occurrence
        key = (s if shape[0] else None, p if shape[1] else None, o if shape[2] else None)
        index.setdefault(key, []).append(occurrence)
