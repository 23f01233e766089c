"""Property paths over occurrences and facts: which nodes a path joins, and during which interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

from kaicep.kernel.epsparql.state import Graph, Occurrence
from kaicep.kernel.epsparql.terms import Facts
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Predicate, Repeat, Sequence, may_be_empty
from kaicep.plan.terms import Iri

__all__ = ["View", "Way", "has_empty", "new_ways", "predicates", "ways"]

Time = int | None
Timed = tuple[str, str, str, Time, Time]


class Way(NamedTuple):
    """Two nodes that a path joins, and when; ways that differ in `via` are counted apart."""

    first: str
    last: str
    start: Time = None
    end: Time = None
    via: tuple[object, ...] = ()


class View:
    """What a path walks over: facts, which have no time, and the occurrences of a graph, if any."""

    def __init__(self, facts: Facts, graph: Graph | None) -> None:
        self.facts = facts
        self.graph = graph

    def match(self, s: str | None, p: str | None, o: str | None) -> Iterator[Timed]:
        """The triples with these terms, with their times."""
        for a, b, c in self.facts.match(s, p, o):
            yield a, b, c, None, None
        if self.graph is not None:
            yield from self.graph.timed(s, p, o)


def span(first: Way, start: Time, end: Time) -> tuple[Time, Time]:
    """The smallest interval around a way and another; one that is not there adds nothing."""
    if first.start is None or first.end is None:
        return start, end
    if start is None or end is None:
        return first.start, first.end
    return min(first.start, start), max(first.end, end)


def predicates(path: Predicate) -> frozenset[str] | None:
    """The predicates of the triples that a path may walk over; None is any."""
    match path:
        case Iri():
            return frozenset((str(path),))
        case Inverse(of) | Repeat(of):
            return predicates(of)
        case Sequence(parts) | Alternative(parts):
            found = [predicates(each) for each in parts]
            return None if None in found else frozenset().union(*(each for each in found if each))
        case _:
            return None


def has_empty(path: Predicate) -> bool:
    """Whether some part of a path may be empty."""
    match path:
        case Inverse(of):
            return has_empty(of)
        case Repeat(of, least, _):
            return least == 0 or has_empty(of)
        case Sequence(parts) | Alternative(parts):
            return any(has_empty(each) for each in parts)
        case _:
            return False


def ways(view: View, first: str | None, path: Iri | Path, last: str | None) -> Iterator[Way]:
    """The ways of a path between two nodes; None stands for any node."""
    match path:
        case Iri():
            for s, _, o, start, end in view.match(first, str(path), last):
                yield Way(s, o, start, end)
        case Inverse(of):
            for way in ways(view, last, of, first):
                yield way._replace(first=way.last, last=way.first)
        case Sequence(parts):
            yield from _sequence(view, first, parts, last)
        case Alternative(parts):
            for index, part in enumerate(parts):
                for way in ways(view, first, part, last):
                    yield way._replace(via=(index, *way.via))
        case Negated():
            yield from _negated(view, first, path, last)
        case Repeat():
            yield from _repeat(view, first, path, last)


def _sequence(
    view: View, first: str | None, parts: tuple[Iri | Path, ...], last: str | None
) -> Iterator[Way]:
    if len(parts) == 1:
        yield from ways(view, first, parts[0], last)
    elif first is None and last is not None:
        for after in ways(view, None, parts[-1], last):
            for before in _sequence(view, None, parts[:-1], after.first):
                yield _joined(before, after)
    elif first is None and may_be_empty(parts[0]) and not may_be_empty(Sequence(parts)):
        # Begun in the middle, at a part that has a step: an empty part of a longer path has no time.
        middle = next(i for i, each in enumerate(parts) if not may_be_empty(each))
        for rest in _sequence(view, None, parts[middle:], None):
            for before in _sequence(view, None, parts[:middle], rest.first):
                yield _joined(before, rest)
    else:
        for before in ways(view, first, parts[0], None):
            for after in _sequence(view, before.last, parts[1:], last):
                yield _joined(before, after)


def _joined(before: Way, after: Way) -> Way:
    via = (*before.via, before.last, *after.via)
    return Way(before.first, after.last, *span(before, after.start, after.end), via)


def _negated(view: View, first: str | None, path: Negated, last: str | None) -> Iterator[Way]:
    """Without an inverse part only forwards, with nothing but inverse parts only backwards."""
    if path.forward or not path.inverse:
        refused = {str(each) for each in path.forward}
        for s, p, o, start, end in view.match(first, None, last):
            if p not in refused:
                yield Way(s, o, start, end, (p,))
    if path.inverse:
        refused = {str(each) for each in path.inverse}
        for s, p, o, start, end in view.match(last, None, first):
            if p not in refused:
                yield Way(o, s, start, end, (p, "^"))


def _repeat(view: View, first: str | None, path: Repeat, last: str | None) -> Iterator[Way]:
    """Each pair of nodes once for each interval, whatever the way."""
    if first is None and last is not None:
        backwards = Repeat(Inverse(path.of), path.least, path.unbounded)
        for way in _repeat(view, last, backwards, None):
            yield way._replace(first=way.last, last=way.first)
        return
    found: set[Way] = set()
    if path.least == 0:
        # A node that is given joins itself at any time; any other one when it occurs.
        found |= {Way(first, first)} if first is not None else set(_nodes(view))
    steps = {way._replace(via=()) for way in ways(view, first, path.of, None)}
    found |= _closure(view, path.of, steps) if path.unbounded else steps
    yield from (way for way in found if last is None or way.last == last)


def _nodes(view: View) -> Iterator[Way]:
    for s, _, o, start, end in view.match(None, None, None):
        yield Way(s, s, start, end)
        yield Way(o, o, start, end)


def _closure(view: View, step: Iri | Path, begun: set[Way]) -> set[Way]:
    """What one step or several lead to."""
    found, open_ways = set(begun), list(begun)
    while open_ways:
        way = open_ways.pop()
        for more in ways(view, way.last, step, None):
            longer = Way(way.first, more.last, *span(way, more.start, more.end))
            if longer not in found:
                found.add(longer)
                open_ways.append(longer)
    return found


# --- what is new -------------------------------------------------------------------------------------


def new_ways(view: View, path: Iri | Path, new: Many[Occurrence]) -> Iterator[Way]:
    """The ways that use one of the new occurrences of the view; of a path no part of which may be empty."""
    match path:
        case Iri():
            for s, p, o, start, end in new:
                if p == str(path):
                    yield Way(s, o, start, end)
        case Inverse(of):
            for way in new_ways(view, of, new):
                yield way._replace(first=way.last, last=way.first)
        case Sequence(parts):
            for index, part in enumerate(parts):
                for way in new_ways(view, part, new):
                    yield from _around(view, parts[:index], way, parts[index + 1 :])
        case Alternative(parts):
            for index, part in enumerate(parts):
                for way in new_ways(view, part, new):
                    yield way._replace(via=(index, *way.via))
        case Negated():
            yield from _new_negated(path, new)
        case Repeat():
            steps = {way._replace(via=()) for way in new_ways(view, path.of, new)}
            yield from _lengthened(view, path, steps) if path.unbounded else steps


def _around(
    view: View, before: tuple[Iri | Path, ...], way: Way, after: tuple[Iri | Path, ...]
) -> Iterator[Way]:
    """A way through one part of a sequence, with all that leads to it and on from it."""
    firsts: Iterable[Way] = [way]
    if before:
        firsts = [_joined(each, way) for each in _sequence(view, None, before, way.first)]
    for first in firsts:
        if not after:
            yield first
        else:
            yield from (_joined(first, each) for each in _sequence(view, first.last, after, None))


def _new_negated(path: Negated, new: Many[Occurrence]) -> Iterator[Way]:
    refused = [{str(each) for each in side} for side in (path.forward, path.inverse)]
    for s, p, o, start, end in new:
        if (path.forward or not path.inverse) and p not in refused[0]:
            yield Way(s, o, start, end, (p,))
        if path.inverse and p not in refused[1]:
            yield Way(o, s, start, end, (p, "^"))


def _lengthened(view: View, path: Repeat, steps: set[Way]) -> set[Way]:
    """New steps with any number of steps before and after them."""
    begun = set(steps)
    for step in steps:
        for before in _repeat(view, None, path, step.first):
            begun.add(Way(before.first, step.last, *span(before, step.start, step.end)))
    return _closure(view, path.of, begun)
