"""Property paths over a graph in time: which nodes a path joins, and during which interval.

Every step may be met by the stream or by knowledge; the interval spans the stream triples on the way
(semantics 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Repeat, Sequence, may_be_empty
from kaicep.plan.terms import Iri, Term
from kaicep.reference.graph import Graph, Interval

__all__ = ["Way", "span_of", "ways"]


class Way(NamedTuple):
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


def ways(graph: Graph, start: Term | None, path: Iri | Path, end: Term | None) -> Iterator[Way]:
    """The ways of a path between two nodes; None stands for any node."""
    match path:
        case Iri():
            for (s, _, o), interval in graph.match(start, path, end):
                yield Way(s, o, interval)
        case Inverse(of):
            for way in ways(graph, end, of, start):
                yield way._replace(start=way.end, end=way.start)
        case Sequence(parts):
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
    graph: Graph, start: Term | None, parts: tuple[Iri | Path, ...], end: Term | None
) -> Iterator[Way]:
    if len(parts) == 1:
        yield from ways(graph, start, parts[0], end)
    elif start is None and end is not None:
        for last in ways(graph, None, parts[-1], end):
            for first in _sequence(graph, None, parts[:-1], last.start):
                yield _after(first, last)
    elif start is None and may_be_empty(parts[0]) and not may_be_empty(Sequence(parts)):
        # Begun in the middle, at a part that has a step: an empty part of a longer path has no time.
        middle = next(i for i, each in enumerate(parts) if not may_be_empty(each))
        for rest in _sequence(graph, None, parts[middle:], None):
            for first in _sequence(graph, None, parts[:middle], rest.start):
                yield _after(first, rest)
    else:
        for first in ways(graph, start, parts[0], None):
            for last in _sequence(graph, first.end, parts[1:], end):
                yield _after(first, last)


def _after(first: Way, last: Way) -> Way:
    via = (*first.via, first.end, *last.via)
    return Way(first.start, last.end, span_of(first.interval, last.interval), via)


def _negated(graph: Graph, start: Term | None, path: Negated, end: Term | None) -> Iterator[Way]:
    """`!(p|^q)`: without an inverse part only forwards, with nothing but inverse parts only backwards."""
    if path.forward or not path.inverse:
        for (s, p, o), interval in graph.match(start, None, end):
            if p not in path.forward:
                yield Way(s, o, interval, (p,))
    if path.inverse:
        for (s, p, o), interval in graph.match(end, None, start):
            if p not in path.inverse:
                yield Way(o, s, interval, (p, "^"))


def _repeat(graph: Graph, start: Term | None, path: Repeat, end: Term | None) -> Iterator[Way]:
    """`p* p+ p?`: each pair of nodes once for each interval, whatever the way."""
    if start is None and end is not None:
        backwards = Repeat(Inverse(path.of), path.least, path.unbounded)
        for way in _repeat(graph, end, backwards, None):
            yield Way(way.end, way.start, way.interval)
        return
    found: set[Way] = set()
    if path.least == 0:
        # A node that is given joins itself at any time; any other one when it occurs.
        alone = [(start, None)] if start is not None else list(graph.nodes())
        found |= {Way(node, node, interval) for node, interval in alone}
    steps = {Way(way.start, way.end, way.interval) for way in ways(graph, start, path.of, None)}
    found |= _closure(graph, path.of, steps) if path.unbounded else steps
    yield from (way for way in found if end is None or way.end == end)


def _closure(graph: Graph, step: Iri | Path, begun: set[Way]) -> set[Way]:
    """What one step or several lead to."""
    found, open_ways = set(begun), list(begun)
    while open_ways:
        way = open_ways.pop()
        for more in ways(graph, way.end, step, None):
            longer = Way(way.start, more.end, span_of(way.interval, more.interval))
            if longer not in found:
                found.add(longer)
                open_ways.append(longer)
    return found
