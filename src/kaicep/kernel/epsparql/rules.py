"""A standing query of EP-SPARQL: its conditions pushed down, its rules, its answers as matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import overload

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.epsparql.build import build
from kaicep.kernel.epsparql.dictionary import Array
from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, expression_variables
from kaicep.kernel.epsparql.reading import Fact, KnownFacts, StreamReader, term_of, with_room
from kaicep.kernel.epsparql.state import InstantBatch, Occurrence, OperatorContext, Row
from kaicep.plan.algebra import only_grows, pattern_variables
from kaicep.plan.events import Match, MatchId, by_end, match_id
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.nodes import (
    Bgp,
    EpPlan,
    Extend,
    FilterSolutions,
    Join,
    Node,
    Solutions,
    Temporal,
    Triples,
)
from kaicep.plan.program import conjuncts
from kaicep.plan.sparql import Node as Place
from kaicep.plan.sparql import TriplePattern
from kaicep.plan.terms import Blank, Variable, sparql_json
from kaicep.plan.time import format_time

__all__ = ["pushed", "StandingQuery", "Rules", "json_of", "runaway", "LazyMatches", "Block"]


# ----------------------------------------------------------------------------------------------------------
# Conditions taken down to where all that they speak of is bound: pairs that cannot pass are never made.
#
# They stay where they were as well, so that a state from before they were taken down is still judged right.


def pushed(node: Node) -> Node:
    """The plan with its conditions on the sides of joins too."""
    match node:
        case Solutions(below) | Triples(below):
            return replace(node, input=pushed(below))
        case FilterSolutions(below, condition):
            movable = [each for each in conjuncts(condition) if _is_movable(each)]
            return replace(node, input=_with(pushed(below), movable))
        case Extend(below):
            return replace(node, input=pushed(below))
        case Join(left, right):
            return replace(node, left=pushed(left), right=pushed(right))
        case Temporal(left=left, right=right) if _is_plain(node):
            return replace(node, left=pushed(left), right=pushed(right))
    return node


def _with(node: Node, parts: list[Expr]) -> Node:
    """A plan with conditions on those of its sides that bind all their variables."""
    if isinstance(node, FilterSolutions):
        return replace(node, input=_with(node.input, parts))
    if not isinstance(node, Join) and not _is_plain(node):
        return node
    assert isinstance(node, Join | Temporal)
    return replace(node, left=_side(node.left, parts), right=_side(node.right, parts))


def _side(node: Node, parts: list[Expr]) -> Node:
    bound = _bound(node)
    fitting = [each for each in parts if expression_variables(each) <= bound]
    if not fitting:
        return node
    condition = fitting[0] if len(fitting) == 1 else Call("and", tuple(fitting))
    return FilterSolutions(_with(node, fitting), condition)


def _bound(node: Node) -> set[str]:
    """The variables that every solution binds."""
    match node:
        case Bgp(patterns):
            return {name for each in patterns for name in pattern_variables(each)}
        case FilterSolutions(below):
            return _bound(below)
        case Join(left, right):
            return _bound(left) | _bound(right)
        case Temporal(left=left, right=right) if _is_plain(node):
            return _bound(left) | _bound(right)
    return set()


def _is_plain(node: Node) -> bool:
    return (
        isinstance(node, Temporal)
        and node.op not in ("OPTIONALSEQ", "EQUALSOPTIONAL", "NOT")
        and node.consumption == "unrestricted"
    )


def _is_movable(expr: Expr) -> bool:
    if not expression_variables(expr):
        return False
    return not any(
        isinstance(each, Exists) or (isinstance(each, Call) and each.op in BOUND_TO_PLACE)
        for each in walk(expr)
    )


# ----------------------------------------------------------------------------------------------------------
# What a query gives at one instant, and the closure under the CONSTRUCT rules (section 4.2 of the paper).


class StandingQuery:
    """A standing query: its operators, and its answers as matches and as triples."""

    def __init__(self, plan: EpPlan, facts: KnownFacts, cap: int, replays: bool = False) -> None:
        self.name = plan.name
        self.context = OperatorContext(facts, plan.name, cap, replays)
        root = plan.root
        self._template = root.template if isinstance(root, Triples) else None
        body = root.input if isinstance(root, Triples) else root
        self.grows = only_grows(body)
        self._operator = build(pushed(body), self.context)
        self._reads = self._operator.reads()
        names = self._operator.names
        self._visible = sorted((name, i) for i, name in enumerate(names) if not name.startswith("_:"))
        self._places = {name: i for i, name in enumerate(names)}
        self._selected = root.names if isinstance(root, Solutions) else ()
        self._id = MatchId(plan.name, plan.text)
        made = (place for each in self._template or () for place in _places(each))
        self._blanks = {each.label for each in made if isinstance(each, Blank)}
        self._made: dict[str, list[Fact]] = {}
        self._told: dict[str, Row] = {}

    def fresh(self, batch: InstantBatch) -> dict[str, Row]:
        """The answers that the instant did not give before: a query that only grows may ask several times."""
        found = {text: row for text, row in self.step(batch).items() if text not in self._told}
        self._told.update(found)
        return found

    def commit(self, end: int) -> None:
        """The instant is over."""
        self._told.clear()
        self.context.commit(end)

    def step(self, batch: InstantBatch) -> dict[str, Row]:
        """The distinct answers that the batch gives, by their text."""
        if self._reads is not None and batch.by_predicate.keys().isdisjoint(self._reads):
            return {}
        return {self._text(each): each for each in self._operator.step(batch)}

    def _text(self, row: Row) -> str:
        """The one way a solution is written down: its interval, then its variables by name."""
        start, end, values = row
        shown = [f"?{name}={text}" for name, i in self._visible if (text := values[i]) is not None]
        return " ".join([f"[{start},{end}]", *shown])

    def matches(self, answers: Mapping[str, Row]) -> list[Match]:
        """Answers as matches; a CONSTRUCT that makes no triple gives none."""
        found: list[Match] = []
        for text, row in answers.items():
            start, end, values = row
            if self._template is None:
                chosen = ((name, values[self._places[name]]) for name in self._selected)
                select = {name: json_of(each) for name, each in chosen if each is not None}
                found.append(Match(self.name, self._id.copy().text(text).hex(), start, end, select))
                continue
            lines = {f"{s} {p} {o} ." for s, p, o in self.construct(text, row)}
            if lines:
                made = self._id.copy().text(text).hex()
                found.append(Match(self.name, made, start, end, triples=tuple(sorted(lines))))
        return found

    def construct(self, text: str, row: Row) -> list[Fact]:
        """The triples of the template for an answer; none where it leaves a variable of it unbound.

        A blank node of the template is one node for each rule and solution. What is no triple (a
        literal that has properties, say) is left out.
        """
        found = self._made.get(text)
        if found is None:
            self._made = with_room(self._made)
            found = self._made[text] = self._filled(text, row)
        return found

    def _filled(self, text: str, row: Row) -> list[Fact]:
        nodes = {each: "_:n" + match_id(self.name, each, [text]) for each in self._blanks}
        found: list[Fact] = []
        for pattern in self._template or ():
            s, p, o = (self._fill(each, nodes, row) for each in _places(pattern))
            if s is None or p is None or o is None:
                return []
            if s[0] != '"' and p[0] == "<":
                found.append((s, p, o))
        return found

    def _fill(self, place: Place, nodes: Mapping[str, str], row: Row) -> str | None:
        if isinstance(place, Variable):
            seen = place.name in self._places and not place.name.startswith("_:")
            return row[2][self._places[place.name]] if seen else None
        if isinstance(place, Blank):
            return nodes[place.label]
        return str(place)


@lru_cache(maxsize=100_000)
def _items(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(sparql_json(term_of(text)).items())


def json_of(text: str) -> dict[str, str]:
    """A term as the SPARQL 1.1 JSON results format writes it."""
    return dict(_items(text))


def _places(pattern: TriplePattern) -> Sequence[Place]:
    return pattern.subject, pattern.predicate, pattern.object  # type: ignore[return-value]


_Instant = dict[Occurrence, None]
_Derived = set[tuple[Fact, int]]
"""What rules derive at an instant: triples and when they start."""


class Rules:
    """The CONSTRUCT rules of a run, closed at each instant."""

    def __init__(
        self, plans: Iterable[EpPlan], facts: KnownFacts, reader: StreamReader, cap: int, limit: int
    ) -> None:
        rules = list(plans)
        self.grow = all(only_grows(each.root.input) for each in rules)
        self._known: _Derived = set()
        self._counts: Counter[str] = Counter()
        self.queries = [StandingQuery(each, facts, cap, replays=not self.grow) for each in rules]
        self._reader = reader
        self._limit = limit

    def settle(self, end: int, occurrences: _Instant) -> tuple[_Instant, list[Match]]:
        """All occurrences of an instant with what the rules derive, and the rules' matches."""
        closed, answers = self._settled(end, occurrences)
        return closed, [match for query in self.queries for match in query.matches(answers[query.name])]

    def extend(self, end: int, new: Iterable[Occurrence], before: _Instant) -> tuple[_Instant, list[Match]]:
        """What is new at an instant, with what the rules derive from it, and their matches.

        Rules that never take anything back derive from what is new, until nothing is; `before` is what the
        instant had already.
        """
        added, found = dict.fromkeys(new), list[Match]()
        coming = list(added) if self.queries else []
        while coming:
            batch, derived = InstantBatch(end, coming), set[tuple[Fact, int]]()
            for rule in self.queries:
                fresh = rule.fresh(batch)
                found += rule.matches(fresh)
                made = _derived(rule, fresh) - self._known
                self._known |= made
                derived |= made
                self._counts[rule.name] += len(made)
            self._refuse_runaway(self._counts, end)
            read = self._read(derived, end)
            coming = [each for each in read if each not in added and each not in before]
            added.update(dict.fromkeys(coming))
        return added, found

    def commit(self, end: int) -> None:
        """The instant is over."""
        self._known.clear()
        self._counts.clear()
        for each in self.queries:
            each.commit(end)

    def _settled(self, end: int, occurrences: _Instant) -> tuple[_Instant, dict[str, dict[str, Row]]]:
        """Each round derives everything anew from the instant and what the round before derived."""
        derived: dict[str, _Derived] = {each.name: set() for each in self.queries}
        tried: set[frozenset[tuple[str, tuple[Fact, int]]]] = set()
        while True:
            everything = dict(occurrences)
            everything.update(dict.fromkeys(self._read(set().union(*derived.values()), end)))
            for each in self.queries:
                for keeper in each.context.keepers:
                    keeper.undo()
            batch = InstantBatch(end, list(everything))
            answers = {rule.name: rule.step(batch) for rule in self.queries}
            again = {rule.name: _derived(rule, answers[rule.name]) for rule in self.queries}
            if again == derived:
                return everything, answers
            self._refuse_runaway({name: len(found) for name, found in again.items()}, end)
            state = frozenset((name, each) for name, found in again.items() for each in found)
            if state in tried or len(tried) > self._limit:
                changing = sorted(name for name in again if again[name] != derived[name])
                raise Failure(
                    f"the CONSTRUCT rule {changing[0]} never settles: it takes back what it derives; "
                    f"rules that change each other's conditions at one instant have no answer"
                )
            tried.add(state)
            derived = again

    def _read(self, derived: _Derived, end: int) -> dict[Occurrence, None]:
        read = self._reader.read_derived
        return {(*each, start, end): None for fact, start in derived for each in read(fact)}

    def _refuse_runaway(self, counts: Mapping[str, int], end: int) -> None:
        if sum(counts.values()) > self._limit:
            rule = max(sorted(counts), key=lambda name: counts[name])
            raise runaway(rule, self._limit, end)


def runaway(rule: str, limit: int, end: int) -> Failure:
    """The error of a rule that derives too much."""
    return Failure(
        f"the CONSTRUCT rule {rule} runs away: more than {limit:,} triples are derived "
        f"at {format_time(end)}; bound it with a FILTER, or let it read earlier triples only (SEQ); "
        "if it is meant to derive so many, allow more (--derived N, `derived` in kaicep.toml)"
    )


def _derived(rule: StandingQuery, answers: Mapping[str, Row]) -> _Derived:
    return {(fact, row[0]) for text, row in answers.items() for fact in rule.construct(text, row)}


# ----------------------------------------------------------------------------------------------------------
# Answers as columns, and as matches for whoever asks for them one by one.


@dataclass(frozen=True)
class Block:
    """Answers of one query, in the order of end and id: places in `texts` (-1 is unbound), times, ids.

    Those of a rule have `triples`: for each of its template the terms, and for which answers there is one.
    """

    query: str
    names: tuple[str, ...]
    texts: Sequence[str]
    values: Array
    start: Array
    end: Array
    low: Array
    high: Array
    triples: tuple[tuple[Array, Array, Array, Array], ...] | None = None

    def __len__(self) -> int:
        return len(self.end)

    def take(self, places: Array) -> Block:
        """Some of them."""
        made = self.triples
        return Block(
            self.query,
            self.names,
            self.texts,
            self.values[places],
            self.start[places],
            self.end[places],
            self.low[places],
            self.high[places],
            None
            if made is None
            else tuple((a[places], b[places], c[places], d[places]) for a, b, c, d in made),
        )

    def matches(self) -> Iterator[Match]:
        """The answers as matches."""
        if self.triples is not None:
            yield from self._constructed()
            return
        names, query = self.names, self.query
        shown = {code: json_of(self.texts[code]) for code in np.unique(self.values).tolist() if code >= 0}
        times = zip(self.start.tolist(), self.end.tolist(), strict=True)
        ids = zip(self.low.tolist(), self.high.tolist(), strict=True)
        for row, (start, end), (low, high) in zip(self.values.tolist(), times, ids, strict=True):
            pairs = zip(names, row, strict=True)
            select = {name: shown[code].copy() for name, code in pairs if code >= 0}
            yield Match(query, f"{low:016x}{high:016x}", start, end, select)

    def _constructed(self) -> Iterator[Match]:
        texts, lines = self.texts, [set[str]() for _ in range(len(self))]
        for columns in self.triples or ():
            for into, (s, p, o, is_one) in zip(lines, zip(*map(_listed, columns), strict=True), strict=True):
                if is_one:
                    into.add(f"{texts[s]} {texts[p]} {texts[o]} .")
        columns = self.start, self.end, self.low, self.high
        answers = zip(*map(_listed, columns), strict=True)
        for made, (start, end, low, high) in zip(lines, answers, strict=True):
            id = f"{low:016x}{high:016x}"
            yield Match(self.query, id, start, end, triples=tuple(sorted(made)))


def _listed(column: Array) -> list[int]:
    return column.tolist()  # type: ignore[no-any-return]


class LazyMatches(Sequence[Match]):
    """Matches that are made when somebody looks at them; their columns are there at once."""

    def __init__(self, blocks: Iterable[Block], others: Iterable[Match] = ()) -> None:
        self.blocks = [each for each in blocks if len(each)]
        self._others = list(others)
        self._made: list[Match] | None = None

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self.blocks))

    def __iter__(self) -> Iterator[Match]:
        return iter(self._matches())

    @overload
    def __getitem__(self, place: int) -> Match: ...

    @overload
    def __getitem__(self, place: slice) -> list[Match]: ...

    def __getitem__(self, place: int | slice) -> Match | list[Match]:
        return self._matches()[place]

    def _matches(self) -> list[Match]:
        if self._made is None:
            made = [*self._others, *(match for block in self.blocks for match in block.matches())]
            if len(self.blocks) + bool(self._others) > 1:
                made.sort(key=by_end)
            self._made = made
        return self._made
