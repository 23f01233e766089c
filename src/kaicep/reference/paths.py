"""Property paths, defined, over knowledge without time and occurrences of triples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from kaicep.plan.functions import Interval
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Repeat, Steps, WindowClause, may_be_empty
from kaicep.plan.terms import Iri, Term, Triple

__all__ = [
    "TimedGraph",
    "Interval",
    "Occurrence",
    "TriplesByPattern",
    "Streams",
    "PathPair",
    "span_of",
    "ways",
]

# ----------------------------------------------------------------------------------------------------------
# The graph that a pattern is matched against: knowledge without time, and occurrences of triples.

Occurrence = tuple[Triple, Interval | None]
"""A triple with its interval."""

Streams = Mapping[str, Sequence[tuple[int, frozenset[Triple]]]]
"""By name, what each triple of a stream means (itself and what it entails), and its end, in order."""

_Shape = tuple[bool, bool, bool]
_Key = tuple[Term | None, Term | None, Term | None]


class TriplesByPattern(Protocol):
    """What a graph asks of a knowledge base: its triples by what is known of them."""

    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        ...


class TimedGraph:
    """Knowledge and a set of occurrences; an occurrence without an interval is like knowledge.

    >>> from kaicep.plan.terms import Iri
    >>> a, p, b = Iri("urn:a"), Iri("urn:p"), Iri("urn:b")
    >>> [interval for _, interval in TimedGraph(None, [((a, p, b), (1, 2))]).match(a, None, None)]
    [(1, 2)]
    """

    def __init__(
        self,
        knowledge: TriplesByPattern | None = None,
        occurrences: Iterable[Occurrence] = (),
        streams: Streams | None = None,
    ) -> None:
        self.knowledge = knowledge
        self.streams = streams or {}
        self.windows: Mapping[WindowClause, TimedGraph] = {}
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


# ----------------------------------------------------------------------------------------------------------
# Property paths over a graph in time: which nodes a path joins, and during which interval.
#
# Every step may be met by the stream or by knowledge; the interval spans the stream triples on the way
# (semantics 3).


class PathPair(NamedTuple):
    """Two nodes that a path joins. Ways that differ in `via` are counted apart, as SPARQL does."""

    start: Term
    end: Term
    interval: Interval | None
    via: tuple[object, ...] = ()


def span_of(first: Interval | None, second: Interval | None) -> Interval | None:
    """The smallest interval around two; one that is not there adds nothing.

    >>> span_of((1, 3), (2, 5)), span_of((1, 3), None)
    ((1, 5), (1, 3))
    """
    if first is None or second is None:
        return second if first is None else first
    return min(first[0], second[0]), max(first[1], second[1])


def ways(graph: TimedGraph, start: Term | None, path: Iri | Path, end: Term | None) -> Iterator[PathPair]:
    """The ways of a path between two nodes; None stands for any node."""
    match path:
        case Iri():
            for (s, _, o), interval in graph.match(start, path, end):
                yield PathPair(s, o, interval)
        case Inverse(of):
            for way in ways(graph, end, of, start):
                yield way._replace(start=way.end, end=way.start)
        case Steps(parts):
            yield from _sequence(graph, start, parts, end)
        case Alternative(parts):
            for index, part in enumerate(parts):
                for way in ways(graph, start, part, end):
                    yield way._replace(via=(index, *way.via))
        case Negated():
            yield from _negated(graph, start, path, end)
        case Repeat():
            yield from _repeat(graph, start, path, end)


def _sequence(
    graph: TimedGraph, start: Term | None, parts: tuple[Iri | Path, ...], end: Term | None
) -> Iterator[PathPair]:
    if len(parts) == 1:
        yield from ways(graph, start, parts[0], end)
    elif start is None and end is not None:
        for last in ways(graph, None, parts[-1], end):
            for first in _sequence(graph, None, parts[:-1], last.start):
                yield _after(first, last)
    elif start is None and may_be_empty(parts[0]) and not may_be_empty(Steps(parts)):
        # Begun in the middle, at a part that has a step: an empty part of a longer path has no time.
        middle = next(i for i, each in enumerate(parts) if not may_be_empty(each))
        for rest in _sequence(graph, None, parts[middle:], None):
            for first in _sequence(graph, None, parts[:middle], rest.start):
                yield _after(first, rest)
    else:
        for first in ways(graph, start, parts[0], None):
            for last in _sequence(graph, first.end, parts[1:], end):
                yield _after(first, last)


def _after(first: PathPair, last: PathPair) -> PathPair:
    via = (*first.via, first.end, *last.via)
    return PathPair(first.start, last.end, span_of(first.interval, last.interval), via)


def _negated(graph: TimedGraph, start: Term | None, path: Negated, end: Term | None) -> Iterator[PathPair]:
    """`!(p|^q)`: without an inverse part only forwards, with nothing but inverse parts only backwards."""
    if path.forward or not path.inverse:
        for (s, p, o), interval in graph.match(start, None, end):
            if p not in path.forward:
                yield PathPair(s, o, interval, (p,))
    if path.inverse:
        for (s, p, o), interval in graph.match(end, None, start):
            if p not in path.inverse:
                yield PathPair(o, s, interval, (p, "^"))


def _repeat(graph: TimedGraph, start: Term | None, path: Repeat, end: Term | None) -> Iterator[PathPair]:
    """`p* p+ p?`: each pair of nodes once for each interval, whatever the way."""
    if start is None and end is not None:
        backwards = Repeat(Inverse(path.of), path.least, path.unbounded)
        for way in _repeat(graph, end, backwards, None):
            yield PathPair(way.end, way.start, way.interval)
        return
    found: set[PathPair] = set()
    if path.least == 0:
        # A node that is given joins itself at any time; any other one when it occurs.
        alone = [(start, None)] if start is not None else list(graph.nodes())
        found |= {PathPair(node, node, interval) for node, interval in alone}
    steps = {PathPair(way.start, way.end, way.interval) for way in ways(graph, start, path.of, None)}
    found |= _closure(graph, path.of, steps) if path.unbounded else steps
    yield from (way for way in found if end is None or way.end == end)


def _closure(graph: TimedGraph, step: Iri | Path, begun: set[PathPair]) -> set[PathPair]:
    """What one step or several lead to."""
    found, open_ways = set(begun), list(begun)
    while open_ways:
        way = open_ways.pop()
        for more in ways(graph, way.end, step, None):
            longer = PathPair(way.start, more.end, span_of(way.interval, more.interval))
            if longer not in found:
                found.add(longer)
                open_ways.append(longer)
    return found
