"""Triple patterns and property paths over occurrences and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Sequence as Many
from typing import NamedTuple

from kaicep.kernel.epsparql.operators import Restricted, SolutionOperator
from kaicep.kernel.epsparql.reading import KnownFacts
from kaicep.kernel.epsparql.state import (
    InstantBatch,
    Occurrence,
    OccurrenceGraph,
    OperatorContext,
    Row,
    Values,
)
from kaicep.plan.sparql import (
    Alternative,
    Inverse,
    Negated,
    Path,
    Predicate,
    Repeat,
    Steps,
    TriplePattern,
    may_be_empty,
)
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Iri, Variable

__all__ = ["PathView", "PathLink", "has_empty", "new_ways", "predicates", "ways", "Basic", "Single", "basic"]

# ----------------------------------------------------------------------------------------------------------
# Property paths over occurrences and facts: which nodes a path joins, and during which interval.

Time = int | None
Timed = tuple[str, str, str, Time, Time]


class PathLink(NamedTuple):
    """Two nodes that a path joins, and when; ways that differ in `via` are counted apart."""

    first: str
    last: str
    start: Time = None
    end: Time = None
    via: tuple[object, ...] = ()


class PathView:
    """What a path walks over: facts, which have no time, and the occurrences of a graph, if any."""

    def __init__(self, facts: KnownFacts, graph: OccurrenceGraph | None) -> None:
        self.facts = facts
        self.graph = graph

    def match(self, s: str | None, p: str | None, o: str | None) -> Iterator[Timed]:
        """The triples with these terms, with their times."""
        for a, b, c in self.facts.match(s, p, o):
            yield a, b, c, None, None
        if self.graph is not None:
            yield from self.graph.timed(s, p, o)


def span(first: PathLink, start: Time, end: Time) -> tuple[Time, Time]:
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
        case Steps(parts) | Alternative(parts):
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
        case Steps(parts) | Alternative(parts):
            return any(has_empty(each) for each in parts)
        case _:
            return False


def ways(view: PathView, first: str | None, path: Iri | Path, last: str | None) -> Iterator[PathLink]:
    """The ways of a path between two nodes; None stands for any node."""
    match path:
        case Iri():
            for s, _, o, start, end in view.match(first, str(path), last):
                yield PathLink(s, o, start, end)
        case Inverse(of):
            for way in ways(view, last, of, first):
                yield way._replace(first=way.last, last=way.first)
        case Steps(parts):
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
    view: PathView, first: str | None, parts: tuple[Iri | Path, ...], last: str | None
) -> Iterator[PathLink]:
    if len(parts) == 1:
        yield from ways(view, first, parts[0], last)
    elif first is None and last is not None:
        for after in ways(view, None, parts[-1], last):
            for before in _sequence(view, None, parts[:-1], after.first):
                yield _joined(before, after)
    elif first is None and may_be_empty(parts[0]) and not may_be_empty(Steps(parts)):
        # Begun in the middle, at a part that has a step: an empty part of a longer path has no time.
        middle = next(i for i, each in enumerate(parts) if not may_be_empty(each))
        for rest in _sequence(view, None, parts[middle:], None):
            for before in _sequence(view, None, parts[:middle], rest.first):
                yield _joined(before, rest)
    else:
        for before in ways(view, first, parts[0], None):
            for after in _sequence(view, before.last, parts[1:], last):
                yield _joined(before, after)


def _joined(before: PathLink, after: PathLink) -> PathLink:
    via = (*before.via, before.last, *after.via)
    return PathLink(before.first, after.last, *span(before, after.start, after.end), via)


def _negated(view: PathView, first: str | None, path: Negated, last: str | None) -> Iterator[PathLink]:
    """Without an inverse part only forwards, with nothing but inverse parts only backwards."""
    if path.forward or not path.inverse:
        refused = {str(each) for each in path.forward}
        for s, p, o, start, end in view.match(first, None, last):
            if p not in refused:
                yield PathLink(s, o, start, end, (p,))
    if path.inverse:
        refused = {str(each) for each in path.inverse}
        for s, p, o, start, end in view.match(last, None, first):
            if p not in refused:
                yield PathLink(o, s, start, end, (p, "^"))


def _repeat(view: PathView, first: str | None, path: Repeat, last: str | None) -> Iterator[PathLink]:
    """Each pair of nodes once for each interval, whatever the way."""
    if first is None and last is not None:
        backwards = Repeat(Inverse(path.of), path.least, path.unbounded)
        for way in _repeat(view, last, backwards, None):
            yield way._replace(first=way.last, last=way.first)
        return
    found: set[PathLink] = set()
    if path.least == 0:
        # A node that is given joins itself at any time; any other one when it occurs.
        found |= {PathLink(first, first)} if first is not None else set(_nodes(view))
    steps = {way._replace(via=()) for way in ways(view, first, path.of, None)}
    found |= _closure(view, path.of, steps) if path.unbounded else steps
    yield from (way for way in found if last is None or way.last == last)


def _nodes(view: PathView) -> Iterator[PathLink]:
    for s, _, o, start, end in view.match(None, None, None):
        yield PathLink(s, s, start, end)
        yield PathLink(o, o, start, end)


def _closure(view: PathView, step: Iri | Path, begun: set[PathLink]) -> set[PathLink]:
    """What one step or several lead to."""
    found, open_ways = set(begun), list(begun)
    while open_ways:
        way = open_ways.pop()
        for more in ways(view, way.last, step, None):
            longer = PathLink(way.first, more.last, *span(way, more.start, more.end))
            if longer not in found:
                found.add(longer)
                open_ways.append(longer)
    return found


# --- what is new -------------------------------------------------------------------------------------


def new_ways(view: PathView, path: Iri | Path, new: Many[Occurrence]) -> Iterator[PathLink]:
    """The ways that use one of the new occurrences of the view; of a path no part of which may be empty."""
    match path:
        case Iri():
            for s, p, o, start, end in new:
                if p == str(path):
                    yield PathLink(s, o, start, end)
        case Inverse(of):
            for way in new_ways(view, of, new):
                yield way._replace(first=way.last, last=way.first)
        case Steps(parts):
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
    view: PathView, before: tuple[Iri | Path, ...], way: PathLink, after: tuple[Iri | Path, ...]
) -> Iterator[PathLink]:
    """A way through one part of a sequence, with all that leads to it and on from it."""
    firsts: Iterable[PathLink] = [way]
    if before:
        firsts = [_joined(each, way) for each in _sequence(view, None, before, way.first)]
    for first in firsts:
        if not after:
            yield first
        else:
            yield from (_joined(first, each) for each in _sequence(view, first.last, after, None))


def _new_negated(path: Negated, new: Many[Occurrence]) -> Iterator[PathLink]:
    refused = [{str(each) for each in side} for side in (path.forward, path.inverse)]
    for s, p, o, start, end in new:
        if (path.forward or not path.inverse) and p not in refused[0]:
            yield PathLink(s, o, start, end, (p,))
        if path.inverse and p not in refused[1]:
            yield PathLink(o, s, start, end, (p, "^"))


def _lengthened(view: PathView, path: Repeat, steps: set[PathLink]) -> set[PathLink]:
    """New steps with any number of steps before and after them."""
    begun = set(steps)
    for step in steps:
        for before in _repeat(view, None, path, step.first):
            begun.add(PathLink(before.first, step.last, *span(before, step.start, step.end)))
    return _closure(view, path.of, begun)


# ----------------------------------------------------------------------------------------------------------
# Basic graph patterns.
#
# Each new occurrence meets the patterns it fits, and is joined with what the other patterns find among the
# occurrences kept and, by lookup, among the facts.


def basic(
    patterns: tuple[TriplePattern, ...], context: OperatorContext, bound: int | None, given: Mapping[str, str]
) -> SolutionOperator:
    """The operator of a basic graph pattern, of which some variables may stand for given terms."""
    if len(patterns) != 1 or isinstance(patterns[0].predicate, Path):
        return Basic(patterns, context, bound, given)
    single = Single(patterns[0], context)
    return Restricted(single, given) if given else single


class _Partial(NamedTuple):
    """A solution in the making: values, interval, and the ways through the paths so far."""

    values: Values
    start: int | None = None
    end: int | None = None
    via: tuple[tuple[int, tuple[object, ...]], ...] = ()


class _Pattern:
    """A triple pattern over the variables of its group: at each place a text or the place of a variable."""

    def __init__(self, pattern: TriplePattern, index: int, names: Sequence[str]) -> None:
        self.index = index
        ends: tuple[Place, ...] = (pattern.subject, pattern.object)
        self.path = pattern.predicate if isinstance(pattern.predicate, Path) else None
        middle = () if isinstance(pattern.predicate, Path) else (pattern.predicate,)
        places = (ends[0], *middle, ends[1])
        self.constants = [None if isinstance(each, Variable) else str(each) for each in places]
        self.slots = [names.index(each.name) if isinstance(each, Variable) else -1 for each in places]
        self.variables = frozenset(each.name for each in places if isinstance(each, Variable))
        self.free = all(isinstance(each, Variable) for each in ends)
        self.empty = self.path is not None and may_be_empty(self.path)
        self.greedy = self.path is not None and self.free and has_empty(self.path)
        self._ends = ends
        self._middle = pattern.predicate

    def walks(self) -> frozenset[str] | None:
        """The predicates of the triples that it looks at; None is any."""
        if self.path is not None:
            return None if self.greedy else predicates(self.path)
        return None if self.constants[1] is None else frozenset((self.constants[1],))

    def known(self, bound: frozenset[str] | set[str]) -> int:
        """How many of its ends are known; the predicate counts least."""
        ends = sum(not isinstance(each, Variable) or each.name in bound for each in self._ends)
        middle = not isinstance(self._middle, Variable) or self._middle.name in bound
        return 2 * ends + middle

    def resolved(self, values: Values) -> list[str | None]:
        """What is known of its places."""
        pairs = zip(self.constants, self.slots, strict=True)
        return [values[slot] if slot >= 0 else constant for constant, slot in pairs]

    def bind(self, values: Values, terms: Sequence[str]) -> Values | None:
        """The values with its variables bound; None where one would stand for two terms."""
        bound = list(values)
        for slot, constant, term in zip(self.slots, self.constants, terms, strict=True):
            if slot < 0:
                if constant != term:
                    return None
            elif bound[slot] is None:
                bound[slot] = term
            elif bound[slot] != term:
                return None
        return tuple(bound)


def _names(patterns: Iterable[TriplePattern]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for each in patterns:
        for place in (each.subject, each.predicate, each.object):
            if isinstance(place, Variable):
                found[place.name] = None
    return tuple(found)


class Single(SolutionOperator):
    """One triple pattern: every occurrence that fits is a solution, and nothing is kept."""

    def __init__(self, pattern: TriplePattern, context: OperatorContext) -> None:
        names = _names((pattern,))
        super().__init__(names, frozenset(names))
        self._facts = context.facts
        self._pattern = _Pattern(pattern, 0, names)
        self._nothing: Values = (None,) * len(names)
        slots, constants = self._pattern.slots, self._pattern.constants
        self._predicate = constants[1]
        self._checks = [(i, text) for i, text in enumerate(constants) if text is not None and i != 1]
        # Where no variable stands twice, the values are the terms at certain places.
        plain = sorted(slot for slot in slots if slot >= 0) == list(range(len(names)))
        self._picks = [slots.index(slot) for slot in range(len(names))] if plain else None

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._pattern.walks()

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        predicate = self._predicate
        new = batch.all if predicate is None else batch.by_predicate.get(predicate, ())
        found: list[Row] = []
        for each in new:
            if self._checks and any(each[i] != text for i, text in self._checks):
                continue
            if self._picks is not None:
                terms = each[:3]
                found.append((each[3], each[4], tuple([terms[i] for i in self._picks])))
            elif (values := self._pattern.bind(self._nothing, each[:3])) is not None:
                found.append((each[3], each[4], values))
        return found

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        values = tuple(given.get(name) for name in self.names)
        s, p, o = self._pattern.resolved(values)
        bound = (self._pattern.bind(values, each) for each in self._facts.match(s, p, o))
        return [each for each in bound if each is not None]


class Basic(SolutionOperator):
    """Several triple patterns, or paths. Its solutions are a set, as in the paper (section 4.2)."""

    def __init__(
        self,
        patterns: tuple[TriplePattern, ...],
        context: OperatorContext,
        bound: int | None,
        given: Mapping[str, str],
    ) -> None:
        names = _names(patterns)
        super().__init__(names, frozenset(names))
        self._patterns = [_Pattern(each, index, names) for index, each in enumerate(patterns)]
        self._vague = [each for each in self._patterns if each.path is not None and has_empty(each.path)]
        self._context = context
        # Whether a node has occurred at all is asked of empty paths; then nothing may be forgotten.
        greedy = any(each.greedy for each in self._patterns)
        self._bound = None if greedy else bound
        self._graph = OccurrenceGraph(context, "a group of several triples", self._bound)
        self._facts = PathView(context.facts, None)
        self._view = PathView(context.facts, self._graph)
        self._nothing = _Partial(tuple(given.get(name) for name in names))
        self._orders: dict[tuple[int, frozenset[str]], list[_Pattern]] = {}
        self._now: int | None = None
        self._emitted: set[tuple[object, ...]] = set()

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        found = [each.walks() for each in self._patterns]
        return None if None in found else frozenset().union(*(each for each in found if each))

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        new = self._relevant(batch)
        if self._now != batch.end or self._context.replays:
            self._now = batch.end
            self._emitted.clear()
        for each in new:
            self._graph.add(each)
        found: list[Row] = []
        for one in self._complete(new) if new else ():
            if one.end == batch.end and one.start is not None:
                made = (one.values, one.start, tuple(sorted(one.via, key=lambda way: way[0])))
                if made not in self._emitted:
                    self._emitted.add(made)
                    found.append((one.start, one.end, one.values))
        return found

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        # An empty path joins a node that is given with itself, so there nothing must be given.
        free = any(each.empty and each.free for each in self._patterns)
        pairs = zip(self._nothing.values, self.names, strict=True)
        values = tuple(text or (None if free else given.get(name)) for text, name in pairs)
        begun = self._extended([_Partial(values)], self._order(-1, values), self._facts)
        made = dict.fromkeys((each.values, tuple(sorted(each.via, key=lambda one: one[0]))) for each in begun)
        return [values for values, _ in made if self.fits(values, given)]

    def _relevant(self, batch: InstantBatch) -> list[Occurrence]:
        """The occurrences that a pattern may look at."""
        walked = self.reads()
        if walked is not None:
            batches = (batch.by_predicate.get(each, ()) for each in walked)
            candidates = [each for found in batches for each in found]
        else:
            candidates = batch.all
        return [each for each in candidates if any(_may_meet(one, each) for one in self._patterns)]

    def _complete(self, new: list[Occurrence]) -> Iterator[_Partial]:
        """The solutions that come through new occurrences.

        A path part of which may be empty has no new step to begin with: then all solutions are found.
        """
        if any(_may_meet(path, each) for path in self._vague for each in new):
            yield from self._extended([self._nothing], self._order(-1, self._nothing.values), self._view)
            return
        for pattern in self._patterns:
            begun = list(self._begun(pattern, new))
            if begun:
                order = self._order(pattern.index, begun[0].values)
                yield from self._extended(begun, order, self._view)

    def _begun(self, pattern: _Pattern, new: list[Occurrence]) -> Iterator[_Partial]:
        """What the new occurrences are for one pattern."""
        nothing = self._nothing.values
        if pattern.path is None:
            for s, p, o, start, end in new:
                if (values := pattern.bind(nothing, (s, p, o))) is not None:
                    yield _Partial(values, start, end)
        elif pattern not in self._vague:
            for way in new_ways(self._view, pattern.path, new):
                if (values := pattern.bind(nothing, (way.first, way.last))) is not None:
                    yield _Partial(values, way.start, way.end, ((pattern.index, way.via),))

    def _order(self, done: int, values: Values) -> list[_Pattern]:
        """The patterns but one: what is best known first, paths that may be empty last."""
        bound = {name for name, text in zip(self.names, values, strict=True) if text is not None}
        key = (done, frozenset(bound))
        if key not in self._orders:
            rest = [each for each in self._patterns if each.index != done]
            order: list[_Pattern] = []
            while rest:
                best = max(rest, key=lambda each: (not each.empty, each.known(bound)))
                rest.remove(best)
                bound |= best.variables
                order.append(best)
            self._orders[key] = order
        return self._orders[key]

    def _extended(self, begun: list[_Partial], order: list[_Pattern], view: PathView) -> list[_Partial]:
        found = begun
        for pattern in order:
            found = list(dict.fromkeys(after for one in found for after in self._through(pattern, one, view)))
        return found

    def _through(self, pattern: _Pattern, one: _Partial, view: PathView) -> Iterator[_Partial]:
        """The ways to go on from a partial solution through one pattern."""
        if pattern.path is not None:
            yield from self._along(pattern, pattern.path, one, view)
            return
        s, p, o = pattern.resolved(one.values)
        for fact in view.facts.match(s, p, o):
            if (values := pattern.bind(one.values, fact)) is not None:
                yield one._replace(values=values)
        if view.graph is None:
            return
        oldest = None if self._bound is None or self._now is None else self._now - self._bound
        for a, b, c, start, end in view.graph.timed(s, p, o):
            if oldest is not None and start < oldest:
                continue
            if (values := pattern.bind(one.values, (a, b, c))) is not None:
                yield _with(one, values, start, end, one.via)

    def _along(
        self, pattern: _Pattern, path: Iri | Path, one: _Partial, view: PathView
    ) -> Iterator[_Partial]:
        s, o = pattern.resolved(one.values)
        for way in ways(view, s, path, o):
            values = pattern.bind(one.values, (way.first, way.last))
            if values is None or (pattern.free and _is_stray(way.first, way.last, way.start, one, view)):
                continue
            yield _with(one, values, way.start, way.end, (*one.via, (pattern.index, way.via)))


def _with(
    one: _Partial,
    values: Values,
    start: int | None,
    end: int | None,
    via: tuple[tuple[int, tuple[object, ...]], ...],
) -> _Partial:
    if one.start is None or one.end is None:
        return _Partial(values, start, end, via)
    if start is None or end is None:
        return _Partial(values, one.start, one.end, via)
    return _Partial(values, min(one.start, start), max(one.end, end), via)


def _is_stray(first: str, last: str, start: int | None, one: _Partial, view: PathView) -> bool:
    """Whether an empty path between two variables joins what is no node of the graph by then."""
    if first != last or start is not None:
        return False
    met = [*view.match(first, None, None), *view.match(None, None, first)]
    return not any(each[4] is None or (one.end is not None and each[4] <= one.end) for each in met)


def _may_meet(pattern: _Pattern, occurrence: Occurrence) -> bool:
    if pattern.path is not None:
        walked = pattern.walks()
        return walked is None or occurrence[1] in walked
    return all(text is None or text == occurrence[i] for i, text in enumerate(pattern.constants))
