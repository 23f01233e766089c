"""What SPARQL and EP-SPARQL mean over triples with intervals, written to be read beside the papers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from kaicep.errors import Failure
from kaicep.knowledge.graph import NamedGraph
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import only_grows, pattern_variables, translate
from kaicep.plan.events import Match, by_end, match_id
from kaicep.plan.expressions import Aggregate, Exists, Expr
from kaicep.plan.functions import Interval, SolutionScope, evaluate_expression, holds, solution_text
from kaicep.plan.nodes import (
    Bgp,
    EpPlan,
    Evaluations,
    Extend,
    FilterSolutions,
    Grouping,
    InsideGraph,
    InsideWindow,
    Join,
    LeftJoin,
    Minus,
    Node,
    Ordered,
    Solutions,
    Temporal,
    Triples,
    Union,
    ValuesTable,
)
from kaicep.plan.sparql import (
    MOST_DERIVED,
    Alternative,
    Group,
    Inverse,
    Negated,
    Path,
    Repeat,
    Steps,
    TriplePattern,
    WindowClause,
    may_be_empty,
)
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Blank, Iri, Term, Triple, Variable, n_triples, sparql_json
from kaicep.plan.time import format_time
from kaicep.plan.values import ExpressionError, aggregate, sort_key

# ----------------------------------------------------------------------------------------------------------
# The graph that a pattern is matched against: knowledge without time, and occurrences of triples.

Occurrence = tuple[Triple, Interval | None]
"""A triple with its interval."""

Streams = Mapping[str, Sequence[tuple[int, frozenset[Triple]]]]
"""By name, what each triple of a stream means (itself and what it entails), and its end, in order."""

_Shape = tuple[bool, bool, bool]
_Key = tuple[Term | None, Term | None, Term | None]


class TimedGraph:
    """Knowledge and a set of occurrences; an occurrence without an interval is like knowledge.

    >>> from kaicep.plan.terms import Iri
    >>> a, p, b = Iri("urn:a"), Iri("urn:p"), Iri("urn:b")
    >>> [interval for _, interval in TimedGraph(None, [((a, p, b), (1, 2))]).match(a, None, None)]
    [(1, 2)]
    """

    def __init__(
        self,
        knowledge: Knowledge | NamedGraph | None = None,
        occurrences: Iterable[Occurrence] = (),
        streams: Streams | None = None,
        graphs: Mapping[Term, NamedGraph] | None = None,
    ) -> None:
        self.knowledge = knowledge
        self.streams = streams or {}
        self.graphs = graphs or {}
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


# ----------------------------------------------------------------------------------------------------------
# The operators of a plan.

Bindings = Mapping[str, Term]


@dataclass(frozen=True, slots=True)
class Solution:
    """What the variables stand for, and when; nobody changes the bindings of a solution."""

    bindings: Bindings = field(default_factory=dict)
    interval: Interval | None = None

    def __hash__(self) -> int:
        return hash((frozenset(self.bindings.items()), self.interval))

    def order(self) -> tuple[int, int, str]:
        """Its place among others: by end, then start, then text; what has no time comes first."""
        start, end = self.interval or (_NEVER, _NEVER)
        return end, start, solution_text(self.bindings, None)


_NEVER = -(2**63)


def exists(group: Group, graph: TimedGraph, given: Bindings | None = None) -> bool:
    """Whether a group has a solution in which the variables that are given stand for these terms."""
    return bool(evaluate(translate(group), graph, given or {}))


def bindings(
    group: Group, graph: TimedGraph, names: Iterable[str], given: Bindings | None = None
) -> set[tuple[Term | None, ...]]:
    """The distinct values of some variables in the solutions of a group; None is unbound."""
    wanted = tuple(names)
    known = given or {}
    found = (each.bindings for each in evaluate(translate(group), graph, known))
    return {tuple(each.get(name, known.get(name)) for name in wanted) for each in found}


def evaluate(node: Node, graph: TimedGraph, given: Bindings | None = None) -> list[Solution]:
    """The solutions of an operator. Variables that are `given` already stand for their terms."""
    known = given or {}
    match node:
        case Bgp(patterns):
            return _basic(patterns, graph, known)
        case Join(left, right):
            partners = _partners(right, graph, known)
            return [_joined(a, b) for a in evaluate(left, graph, known) for b in partners(a)]
        case LeftJoin():
            return _left_join(node, graph, known)
        case Union(left, right):
            return evaluate(left, graph, known) + evaluate(right, graph, known)
        case Minus():
            return _minus(node, graph, known)
        case FilterSolutions(below, condition):
            return [each for each in evaluate(below, graph, known) if _holds(condition, each, graph, known)]
        case Extend(below):
            return list(_extend(node, evaluate(below, graph, known), graph, known))
        case ValuesTable(names, rows):
            return list(_table(names, rows, known))
        case Temporal():
            return _temporal(node, graph, known)
        case Grouping():
            return list(_grouping(node, graph, known))
        case Ordered():
            return _ordered(node, graph, known)
        case Evaluations():
            return list(evaluations(node, graph, known))
        case InsideWindow(below, window):
            return evaluate(below, graph.windows[window], known)
        case InsideGraph():
            return list(_in_graphs(node, graph, known))
        case Solutions(below, names):
            # Inside, only the variables that it projects are those of the outside.
            inside = {name: term for name, term in known.items() if name in names}
            return _project(node, evaluate(below, graph, inside), inside)
        case _:
            raise Failure(f"no operator of SPARQL: {type(node).__name__}")


# --- compatible solutions --------------------------------------------------------------------------


def _compatible(left: Bindings, right: Bindings) -> bool:
    """Whether every variable that both map is mapped to the same term."""
    return all(name not in right or right[name] == term for name, term in left.items())


def _joined(left: Solution, right: Solution) -> Solution:
    return Solution({**left.bindings, **right.bindings}, span_of(left.interval, right.interval))


def _partners(node: Node, graph: TimedGraph, given: Bindings) -> Callable[[Solution], list[Solution]]:
    """For any solution, those of an operator that are compatible with it.

    A basic graph pattern is looked up with what is bound: that gives the same and spares the rest of
    the knowledge base. (Not so a path that may be empty, which joins what it is given with itself.)
    """
    if isinstance(node, Bgp) and not any(may_be_empty(each.predicate) for each in node.patterns):
        return lambda one: evaluate(node, graph, {**given, **one.bindings})
    found = evaluate(node, graph, given)
    return lambda one: [each for each in found if _compatible(one.bindings, each.bindings)]


def _no_later(part: Solution, whole: Solution) -> bool:
    """Whether a part is known by the time of a solution: t' <= t, or the part has no time."""
    if part.interval is None:
        return True
    return whole.interval is not None and part.interval[1] <= whole.interval[1]


def _scope(solution: Solution, graph: TimedGraph, given: Bindings) -> SolutionScope:
    known = {**given, **solution.bindings}

    def found(expr: Exists) -> bool:
        assert isinstance(expr.group, Node)
        seen = any(_no_later(each, solution) for each in evaluate(expr.group, graph, known))
        return seen is not expr.negated

    return SolutionScope(known, solution.interval, found)


def _holds(condition: Expr | None, solution: Solution, graph: TimedGraph, given: Bindings) -> bool:
    return condition is None or holds(condition, _scope(solution, graph, given))


def _value(expr: Expr, solution: Solution, graph: TimedGraph, given: Bindings) -> Term | None:
    try:
        return evaluate_expression(expr, _scope(solution, graph, given))
    except ExpressionError:
        return None


# --- basic graph patterns --------------------------------------------------------------------------

_Partial = tuple[Solution, tuple[object, ...]]


def _basic(patterns: tuple[TriplePattern, ...], graph: TimedGraph, given: Bindings) -> list[Solution]:
    """All ways to meet all patterns; the interval runs from the least start to the greatest end."""
    names = {name for each in patterns for name in pattern_variables(each)}
    begun = Solution({name: term for name, term in given.items() if name in names})
    return _met([(begun, ())], patterns, set(begun.bindings), graph)


def _met(
    begun: Iterable[_Partial], patterns: Iterable[TriplePattern], bound: set[str], graph: TimedGraph
) -> list[Solution]:
    """The solutions that partial ones, with some variables bound, become through more patterns."""
    found = dict.fromkeys(begun)
    for pattern in _in_order(patterns, bound):
        found = dict.fromkeys(
            (after, via + way) for one, via in found for after, way in _meet(pattern, one, graph)
        )
    return [solution for solution, _ in found]


def _in_order(patterns: Iterable[TriplePattern], bound: set[str]) -> Iterator[TriplePattern]:
    """What is best known first; paths that may be empty last, when their ends are known."""
    rest = list(patterns)
    while rest:
        best = max(rest, key=lambda each: (not may_be_empty(each.predicate), _known(each, bound)))
        rest.remove(best)
        bound |= set(pattern_variables(best))
        yield best


def _known(pattern: TriplePattern, bound: set[str]) -> int:
    """How many ends of a pattern are known; the predicate counts least."""
    ends = (pattern.subject, pattern.object)
    known = sum(not isinstance(each, Variable) or each.name in bound for each in ends)
    return 2 * known + (not isinstance(pattern.predicate, Variable) or pattern.predicate.name in bound)


def _meet(
    pattern: TriplePattern, one: Solution, graph: TimedGraph
) -> Iterator[tuple[Solution, tuple[object, ...]]]:
    """The ways to go on from a partial solution through one pattern."""
    s, o = _resolve(pattern.subject, one), _resolve(pattern.object, one)
    predicate = pattern.predicate
    if isinstance(predicate, Path):
        free = isinstance(pattern.subject, Variable) and isinstance(pattern.object, Variable)
        for way in ways(graph, s, predicate, o):
            places = ((pattern.subject, way.start), (pattern.object, way.end))
            after = _bound(one, places, way.interval)
            if after is not None and not (free and _is_stray(way, one, graph)):
                yield after, way.via
        return
    p = _resolve(predicate, one)
    for triple, interval in graph.match(s, p, o):
        places3 = zip((pattern.subject, predicate, pattern.object), triple, strict=True)
        if (after := _bound(one, places3, interval)) is not None:
            yield after, ()


def _is_stray(way: PathPair, one: Solution, graph: TimedGraph) -> bool:
    """Whether an empty path between two variables joins what is no node of the graph by then."""
    if way.start != way.end or way.interval is not None:
        return False
    met = [*graph.match(way.start, None, None), *graph.match(None, None, way.start)]
    return not any(_no_later(Solution({}, interval), one) for _, interval in met)


def _resolve(place: Place, one: Solution) -> Term | None:
    return one.bindings.get(place.name) if isinstance(place, Variable) else place


def _bound(one: Solution, places: Iterable[tuple[Place, Term]], interval: Interval | None) -> Solution | None:
    """The solution with the variables of a pattern bound; None where one of them stands for two terms."""
    values = dict(one.bindings)
    for place, term in places:
        if isinstance(place, Variable) and values.setdefault(place.name, term) != term:
            return None
    return Solution(values, span_of(one.interval, interval))


# --- the operators of SPARQL -----------------------------------------------------------------------


def _in_graphs(node: InsideGraph, graph: TimedGraph, given: Bindings) -> Iterator[Solution]:
    """GRAPH: the solutions over each named graph that may be meant, with its name."""
    name = node.name
    wanted = given.get(name.name) if isinstance(name, Variable) else name
    for term, triples in graph.graphs.items():
        if wanted in (None, term):
            for each in evaluate(node.input, TimedGraph(triples), given):
                found = _bound(each, [(name, term)], None)
                if found is not None:
                    yield found


def _left_join(node: LeftJoin, graph: TimedGraph, given: Bindings) -> list[Solution]:
    """OPTIONAL: every pair with t' <= t that meets the condition, and what has no such partner."""
    partners = _partners(node.right, graph, given)
    found: list[Solution] = []
    for left in evaluate(node.left, graph, given):
        pairs = [_joined(left, right) for right in partners(left) if _no_later(right, left)]
        found += [each for each in pairs if _holds(node.condition, each, graph, given)] or [left]
    return found


def _minus(node: Minus, graph: TimedGraph, given: Bindings) -> list[Solution]:
    """What no solution of the right side, known by then, agrees with on a variable that both bind."""
    partners = _partners(node.right, graph, given)
    return [
        left
        for left in evaluate(node.left, graph, given)
        if not any(
            _no_later(right, left) and not left.bindings.keys().isdisjoint(right.bindings)
            for right in partners(left)
        )
    ]


def _extend(node: Extend, below: list[Solution], graph: TimedGraph, given: Bindings) -> Iterator[Solution]:
    """BIND: an expression without a value binds nothing."""
    for each in below:
        value = _value(node.expr, each, graph, given)
        if value is None:
            yield each
        elif given.get(node.name, value) == value:
            yield Solution({**each.bindings, node.name: value}, each.interval)


def _table(
    names: tuple[str, ...], rows: tuple[tuple[Term | None, ...], ...], given: Bindings
) -> Iterator[Solution]:
    for row in rows:
        values = {name: term for name, term in zip(names, row, strict=True) if term is not None}
        if _compatible(values, given):
            yield Solution(values)


def _ordered(node: Ordered, graph: TimedGraph, given: Bindings) -> list[Solution]:
    """ORDER BY and LIMIT: what is first of one evaluation; solutions alike in all keys go by their text."""

    def text(one: Solution) -> str:
        return solution_text({n: t for n, t in one.bindings.items() if not n.startswith("_:")}, None)

    found = sorted(evaluate(node.input, graph, given), key=text)
    for expr, downwards in reversed(node.keys):
        values = {id(each): _value(expr, each, graph, given) for each in found}
        found.sort(key=lambda each: sort_key(values[id(each)]), reverse=downwards)
    shown = _project(Solutions(node.input, node.names, node.distinct), found, given)
    return shown[node.offset :][: node.limit]


def _project(node: Solutions, below: list[Solution], given: Bindings) -> list[Solution]:
    """SELECT: what it does not name cannot be seen."""
    found = [
        Solution({name: each.bindings[name] for name in node.names if name in each.bindings}, each.interval)
        for each in below
    ]
    found = [each for each in found if _compatible(each.bindings, given)]
    return list(dict.fromkeys(found)) if node.distinct else found


def _grouping(node: Grouping, graph: TimedGraph, given: Bindings) -> Iterator[Solution]:
    """GROUP BY, as running aggregates: one result for each end, over all that is known by then."""
    groups: dict[tuple[Term | None, ...], list[Solution]] = {}
    for each in evaluate(node.input, graph, given):
        key = tuple(
            each.bindings.get(name) if expr is None else _value(expr, each, graph, given)
            for name, expr in node.keys
        )
        groups.setdefault(key, []).append(each)
    if not groups and not node.keys and not graph.timed:
        groups[()] = []  # where nothing has a time, the one group of SPARQL may be empty
    for key, members in groups.items():
        keys = {name: term for (name, _), term in zip(node.keys, key, strict=True) if term is not None}
        timeless = [each for each in members if each.interval is None]
        if timeless or not members:
            yield Solution({**keys, **_aggregates(node, timeless, graph, given)})
        for end in sorted({each.interval[1] for each in members if each.interval is not None}):
            known = [each for each in members if each.interval is None or each.interval[1] <= end]
            start = min(each.interval[0] for each in known if each.interval is not None)
            yield Solution({**keys, **_aggregates(node, known, graph, given)}, (start, end))


def _aggregates(
    node: Grouping, members: list[Solution], graph: TimedGraph, given: Bindings
) -> dict[str, Term]:
    """The aggregates over some solutions, by name; one without a value is left out."""
    found: dict[str, Term] = {}
    ordered = sorted(members, key=Solution.order)
    for name, each in node.aggregates:
        try:
            found[name] = _aggregate(each, ordered, graph, given)
        except ExpressionError:
            continue
    return found


def _aggregate(of: Aggregate, members: list[Solution], graph: TimedGraph, given: Bindings) -> Term:
    if of.of is None:  # COUNT(*); any term will do to be counted
        rows = [solution_text(each.bindings, None) for each in members]
        return aggregate(of.op, [Iri(each) for each in (dict.fromkeys(rows) if of.distinct else rows)])
    values = [_value(of.of, each, graph, given) for each in members]
    return aggregate(of.op, list(dict.fromkeys(values)) if of.distinct else values, of.separator)


# --- the temporal operators ------------------------------------------------------------------------

_RELATIONS: dict[str, Callable[[Interval, Interval], bool]] = {
    "SEQ": lambda a, b: a[1] < b[0],
    "OPTIONALSEQ": lambda a, b: a[1] < b[0],
    "EQUALS": lambda a, b: a == b,
    "EQUALSOPTIONAL": lambda a, b: a == b,
    "DURING": lambda a, b: b[0] < a[0] and a[1] < b[1],
    "MEETS": lambda a, b: a[1] == b[0],
    "STARTS": lambda a, b: a[0] == b[0] and a[1] <= b[1],
    "FINISHES": lambda a, b: a[1] == b[1] and a[0] >= b[0],
    "PAR": lambda a, b: a[0] <= b[1] and b[0] <= a[1],
    # `P NOT Q` keeps what has no partner: a Q inside of P, bounds included.
    "NOT": lambda a, b: a[0] <= b[0] and b[1] <= a[1],
}


def _temporal(node: Temporal, graph: TimedGraph, given: Bindings) -> list[Solution]:
    """The compatible pairs in a temporal relation, which nothing without a time is in."""
    left, right = evaluate(node.left, graph, given), evaluate(node.right, graph, given)
    if node.op == "NOT":
        timed = [each for each in left if each.interval is not None]
        return [a for a in timed if not any(_related(node, a, b, graph, given) for b in right)]
    pairs = [
        (i, j) for i, a in enumerate(left) for j, b in enumerate(right) if _related(node, a, b, graph, given)
    ]
    if node.consumption != "unrestricted":
        pairs = _consumed(node.consumption, pairs, left, right)
    found = [_joined(left[i], right[j]) for i, j in pairs]
    if node.op == "OPTIONALSEQ":
        found += [b for j, b in enumerate(right) if j not in {pair[1] for pair in pairs}]
    if node.op == "EQUALSOPTIONAL":
        found += [a for i, a in enumerate(left) if i not in {pair[0] for pair in pairs}]
    return found


def _related(node: Temporal, a: Solution, b: Solution, graph: TimedGraph, given: Bindings) -> bool:
    return (
        a.interval is not None
        and b.interval is not None
        and _RELATIONS[node.op](a.interval, b.interval)
        and _compatible(a.bindings, b.bindings)
        and _holds(node.condition, _joined(a, b), graph, given)
    )


def _consumed(
    policy: str, pairs: list[tuple[int, int]], left: list[Solution], right: list[Solution]
) -> list[tuple[int, int]]:
    """One partner for each right side: the most recent, or the earliest that is not used up.

    A partner counts that has ended by the end of the right side (only PAR knows others), so that
    nothing that comes later takes an answer back.
    """
    chosen: list[tuple[int, int]] = []
    used: set[int] = set()
    for j in sorted({pair[1] for pair in pairs}, key=lambda j: right[j].order()):
        choices = [i for i, other in pairs if other == j and i not in used and _no_later(left[i], right[j])]
        choices.sort(key=lambda i: left[i].order()[2])
        if not choices:
            continue
        if policy == "recent":
            i = max(choices, key=lambda i: left[i].order()[:2])  # of equals, max takes the first
        else:
            i = min(choices, key=lambda i: left[i].order()[:2])
            used.add(i)
        chosen.append((i, j))
    return chosen


# --- windows ---------------------------------------------------------------------------------------


def evaluations(node: Evaluations, graph: TimedGraph, given: Bindings) -> Iterator[Solution]:
    """What is found whenever the windows are evaluated; of ISTREAM and DSTREAM, what has changed since."""
    before: list[Solution] = []
    for interval, inside in moments(node.windows, graph):
        now: list[Solution] = []
        if any(triples for triples in inside.values()):
            view = TimedGraph(graph.knowledge, graphs=graph.graphs)
            view.windows = {
                window: TimedGraph(graph.knowledge, [(each, None) for each in triples], graphs=graph.graphs)
                for window, triples in inside.items()
            }
            now = [Solution(each.bindings) for each in evaluate(node.input, view, given)]
        shown = {
            "RSTREAM": now,
            "ISTREAM": [each for each in now if each not in before],
            "DSTREAM": [each for each in before if each not in now],
        }
        yield from (Solution(each.bindings, interval) for each in shown[node.report])
        before = now


def moments(
    windows: tuple[WindowClause, ...], graph: TimedGraph
) -> Iterator[tuple[Interval, dict[WindowClause, set[Triple]]]]:
    """When windows are evaluated together: the interval, and what is in each of them."""
    streams = {each: graph.streams.get(each.stream, ()) for each in windows}
    (first, *_), width = windows, max((each.width or 0 for each in windows), default=0)
    if first.rows is not None:
        rows = streams[first]
        for last in range(first.step or 1, len(rows) + 1, first.step or 1):
            some = rows[max(0, last - first.rows) : last]
            yield (some[0][0], some[-1][0]), {first: set().union(*(triples for _, triples in some))}
        return
    ends = sorted({end for rows in streams.values() for end, _ in rows})
    if not ends:
        return
    steps = [each.step for each in windows if each.step is not None]
    step = math.lcm(*steps)
    last = ends[-1] + width + step  # what leaves the windows is reported until they are empty
    instants = range(-(-ends[0] // step) * step, last + 1, step) if steps else ends
    for t in instants:
        yield (
            (t - width, t),
            {
                each: set().union(*(triples for end, triples in rows if t - (each.width or 0) < end <= t))
                for each, rows in streams.items()
            },
        )


# --- what is new -------------------------------------------------------------------------------------


def new_solutions(node: Node, graph: TimedGraph, new: TimedGraph) -> list[Solution]:
    """Of an operator that only grows, the solutions that use one of the `new` occurrences of the graph.

    Older ones may be among them. A path has no single triple to look at, so it is asked for all.
    """
    match node:
        case Bgp(patterns) if not any(isinstance(each.predicate, Path) for each in patterns):
            found: list[Solution] = []
            for i, pattern in enumerate(patterns):
                rest = patterns[:i] + patterns[i + 1 :]
                begun = _meet(pattern, Solution(), new)
                found += _met(begun, rest, set(pattern_variables(pattern)), graph)
            return found
        case Join(left, right):
            after, before = _partners(right, graph, {}), _partners(left, graph, {})
            return [_joined(a, b) for a in new_solutions(left, graph, new) for b in after(a)] + [
                _joined(a, b) for b in new_solutions(right, graph, new) for a in before(b)
            ]
        case Temporal(_, left, right):
            sides = [
                (new_solutions(left, graph, new), evaluate(right, graph)),
                (evaluate(left, graph), new_solutions(right, graph, new)),
            ]
            pairs = [(a, b) for firsts, seconds in sides for a in firsts for b in seconds]
            return [_joined(a, b) for a, b in pairs if _related(node, a, b, graph, {})]
        case Union(left, right):
            return new_solutions(left, graph, new) + new_solutions(right, graph, new)
        case FilterSolutions(below, condition):
            return [each for each in new_solutions(below, graph, new) if _holds(condition, each, graph, {})]
        case Extend(below):
            return list(_extend(node, new_solutions(below, graph, new), graph, {}))
        case Solutions(below):
            return _project(node, new_solutions(below, graph, new), {})
        case ValuesTable():
            return []
        case _:
            return evaluate(node, graph)


# ----------------------------------------------------------------------------------------------------------
# EP-SPARQL over a finite stream: the Q-closure of section 4.2 of the paper, and the answers over it.
#
# A stream triple is read under the class and property hierarchies of the knowledge base, and what it
# entails there happens when it happens (semantics 3). What the CONSTRUCT rules derive joins the stream,
# until nothing new comes.

_Occurrences = set[tuple[Triple, Interval]]


def run_epsparql(
    plans: Sequence[EpPlan],
    occurrences: Iterable[tuple[Triple, int, int] | tuple[Triple, int, int, str]],
    knowledge: Knowledge,
    limit: int | None = None,
) -> dict[str, list[Match]]:
    """The matches of each query, by its name, in the order of their end and id.

    An occurrence may name its stream, which windows go by: those of one stream come in its order then.
    `limit` is how many triples the rules may derive with one end before that counts as runaway.
    """
    limit = limit or max((each.most_derived for each in plans), default=MOST_DERIVED)
    rows = list(occurrences)
    stream = {(triple, (start, end)) for triple, start, end, *_ in rows}
    reader = _TripleReader(knowledge)
    streams: dict[str, list[tuple[int, frozenset[Triple]]]] = {}
    for triple, _, end, *name in rows:
        if name:
            streams.setdefault(name[0], []).append((end, reader.entailed(triple)))
    for each in streams.values():
        each.sort(key=itemgetter(0))
    rules = [plan for plan in plans if isinstance(plan.root, Triples)]
    graph = _with_derived(rules, stream, streams, reader, limit)
    return {plan.name: _matches(plan, graph) for plan in plans}


# --- the stream under the hierarchies ----------------------------------------------------------------


class _TripleReader:
    """Reads single triples under a knowledge base, each of them once."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self._entailed: dict[Triple, frozenset[Triple]] = {}

    def read(self, stream: _Occurrences) -> Iterator[Occurrence]:
        """The occurrences with all that each triple entails, which happens when it happens."""
        for triple, interval in stream:
            for each in self.entailed(triple):
                yield each, interval

    def graph(self, occurrences: Iterable[Occurrence], streams: Streams) -> TimedGraph:
        """These occurrences, windows on streams, and the knowledge with its named graphs."""
        return TimedGraph(self.knowledge, occurrences, streams, self.knowledge.graphs())

    def entailed(self, triple: Triple) -> frozenset[Triple]:
        if triple not in self._entailed:
            self._entailed[triple] = self.knowledge.entails_with([triple])
        return self._entailed[triple]


# --- the closure under the rules ---------------------------------------------------------------------


def _with_derived(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The least graph that has the stream and all that the rules derive from it."""
    if all(only_grows(_body(rule)) for rule in rules):
        return _grown(rules, stream, streams, reader, limit)
    return _settled(rules, stream, streams, reader, limit)


def _settled(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The closure, instant by instant: answers never look into their future.

    At each instant every round derives everything that ends there anew, from the past and from what the
    round before derived, until nothing changes; rounds that come back to an earlier one turn in a circle.
    """
    past: _Occurrences = set()
    instants = {interval[1] for _, interval in stream}
    for node in (each for rule in rules for each in rule.root.walk() if isinstance(each, Evaluations)):
        instants |= {interval[1] for interval, _ in moments(node.windows, TimedGraph(streams=streams))}
    for end in sorted(instants):
        now = {each for each in stream if each[1][1] == end}
        derived: dict[str, _Occurrences] = {rule.name: set() for rule in rules}
        seen: list[dict[str, _Occurrences]] = []
        while True:
            occurrences = reader.read((past | now).union(*derived.values()))
            graph = reader.graph(occurrences, streams)
            again = {rule.name: _derived(rule, evaluate(_body(rule), graph)) for rule in rules}
            again = {name: {each for each in found if each[1][1] == end} for name, found in again.items()}
            if again == derived:
                break
            counts = {name: _ends(found) for name, found in again.items()}
            _refuse_runaway(counts, {end}, limit)
            if again in seen:
                changing = sorted(name for name in again if again[name] != derived[name])
                raise Failure(
                    f"the CONSTRUCT rule {changing[0]} never settles: it takes back what it derives; "
                    f"rules that change each other's conditions at one instant have no answer"
                )
            seen.append(again)
            derived = again
        past = (past | now).union(*derived.values())
    return reader.graph(reader.read(past), streams)


def _grown(
    rules: Sequence[EpPlan], stream: _Occurrences, streams: Streams, reader: _TripleReader, limit: int
) -> TimedGraph:
    """The same for rules that never take anything back, each round deriving only from what is new.

    Thus a runaway rule is noticed within seconds: in rounds of one triple, the other way takes the
    square of their number.
    """
    graph = reader.graph((), streams)
    counts = {rule.name: Counter[int]() for rule in rules}
    known: _Occurrences = set()
    coming = stream
    while coming:
        new = TimedGraph(None, graph.add(reader.read(coming)))
        coming = set()
        for rule in rules:
            found = _derived(rule, new_solutions(_body(rule), graph, new)) - known
            known |= found
            coming |= found
            counts[rule.name].update(_ends(found))
        _refuse_runaway(counts, {interval[1] for _, interval in coming}, limit)
    return graph


def _body(rule: EpPlan) -> Node:
    """What a CONSTRUCT asks for."""
    return rule.root.input


def _derived(rule: EpPlan, solutions: Iterable[Solution]) -> _Occurrences:
    assert isinstance(rule.root, Triples)
    return {
        (triple, solution.interval)
        for solution in _answers(solutions)
        if solution.interval is not None
        for triple in construct(rule.name, rule.root.template, solution)
    }


def _ends(occurrences: _Occurrences) -> Counter[int]:
    return Counter(interval[1] for _, interval in occurrences)


def _refuse_runaway(counts: Mapping[str, Counter[int]], ends: Iterable[int], limit: int) -> None:
    """Stops where too much is derived with one end; names the rule that derives most of it."""
    for end in sorted(ends):
        if sum(each[end] for each in counts.values()) > limit:
            rule = max(sorted(counts), key=lambda name: counts[name][end])
            raise Failure(
                f"the CONSTRUCT rule {rule} runs away: more than {limit:,} triples are derived "
                f"at {format_time(end)}; bound it with a FILTER, or let it read earlier triples only (SEQ); "
                "if it is meant to derive so many, allow more (--derived N, `derived` in kaicep.toml)"
            )


def construct(rule: str, template: Iterable[TriplePattern], solution: Solution) -> list[Triple]:
    """The triples of a template for a solution; none where it leaves a variable of the template unbound.

    A blank node of the template is one node for each rule and solution. What is no triple (a literal
    that has properties, say) is left out.
    """
    found: list[Triple] = []
    for pattern in template:
        places: tuple[Any, ...] = (pattern.subject, pattern.predicate, pattern.object)
        s, p, o = (_filled_in(each, rule, solution) for each in places)
        if s is None or p is None or o is None:
            return []
        if isinstance(s, Iri | Blank) and isinstance(p, Iri):
            found.append((s, p, o))
    return found


def _filled_in(place: Place, rule: str, solution: Solution) -> Term | None:
    if isinstance(place, Variable):
        return solution.bindings.get(place.name)
    if isinstance(place, Blank):
        return Blank("n" + match_id(rule, place.label, [solution_text(solution.bindings, solution.interval)]))
    return place


# --- answers -----------------------------------------------------------------------------------------


def _answers(solutions: Iterable[Solution]) -> dict[Solution, None]:
    """The distinct answers among solutions: what can be seen of those that have a time."""
    return dict.fromkeys(
        Solution({n: t for n, t in each.bindings.items() if not n.startswith("_:")}, each.interval)
        for each in solutions
        if each.interval is not None
    )


def _matches(plan: EpPlan, graph: TimedGraph) -> list[Match]:
    found: list[Match] = []
    root = plan.root
    for solution in _answers(evaluate(root if isinstance(root, Solutions) else _body(plan), graph)):
        assert solution.interval is not None
        start, end = solution.interval
        made = match_id(plan.name, plan.text, [solution_text(solution.bindings, solution.interval)])
        if isinstance(root, Triples):
            lines = {n_triples(each) for each in construct(plan.name, root.template, solution)}
            if lines:
                found.append(Match(plan.name, made, start, end, triples=tuple(sorted(lines))))
        else:
            assert isinstance(root, Solutions)
            found.append(Match(plan.name, made, start, end, _selected(root.names, solution.bindings)))
    return sorted(found, key=by_end)


def _selected(names: Iterable[str], bindings: Bindings) -> Mapping[str, Any]:
    return {name: sparql_json(bindings[name]) for name in names if name in bindings}
