"""The conditions of a query taken down to where they can be judged, and its answers as matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar, overload

from kaicep.kernel.epsparql.dictionary import Array
from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, expression_variables
from kaicep.kernel.epsparql.reading import term_of
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.events import Match, by_end
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.nodes import (
    Bgp,
    Extend,
    FilterSolutions,
    Grouping,
    Join,
    LeftJoin,
    Minus,
    Node,
    Solutions,
    Temporal,
    Triples,
    Union,
)
from kaicep.plan.program import conjuncts
from kaicep.plan.terms import sparql_json

# ----------------------------------------------------------------------------------------------------------
# Conditions taken down to where all that they speak of is bound: pairs that cannot pass are never made.
#
# They stay where they were as well, so that a state from before they were taken down is still judged right.


_N = TypeVar("_N", bound=Node)


def pushed(node: _N) -> _N:
    """The plan with its conditions on the sides of joins too."""
    match node:
        case Solutions(below) | Triples(below):
            return replace(node, input=pushed(below))
        case FilterSolutions(below, condition):
            movable = [each for each in conjuncts(condition) if is_movable(each)]
            return replace(node, input=_with(pushed(below), movable))
        case Extend(below) | Grouping(below):
            return replace(node, input=pushed(below))
        case Join(left, right) | LeftJoin(left, right) | Minus(left, right) | Union(left, right):
            return replace(node, left=pushed(left), right=pushed(right))
        case Temporal(left=left, right=right) if is_plain(node):
            return replace(node, left=pushed(left), right=pushed(right))
    return node


def _with(node: Node, parts: list[Expr]) -> Node:
    """A plan with conditions on those of its sides that bind all their variables."""
    if isinstance(node, FilterSolutions):
        return replace(node, input=_with(node.input, parts))
    if not isinstance(node, Join) and not is_plain(node):
        return node
    assert isinstance(node, Join | Temporal)
    return replace(node, left=_side(node.left, parts), right=_side(node.right, parts))


def _side(node: Node, parts: list[Expr]) -> Node:
    bound = bound_variables(node)
    fitting = [each for each in parts if expression_variables(each) <= bound]
    if not fitting:
        return node
    condition = fitting[0] if len(fitting) == 1 else Call("and", tuple(fitting))
    return FilterSolutions(_with(node, fitting), condition)


def bound_variables(node: Node) -> set[str]:
    """The variables that every solution of a plan binds."""
    match node:
        case Bgp(patterns):
            return {name for each in patterns for name in pattern_variables(each)}
        case FilterSolutions(below):
            return bound_variables(below)
        case Join(left, right):
            return bound_variables(left) | bound_variables(right)
        case Temporal(left=left, right=right) if is_plain(node):
            return bound_variables(left) | bound_variables(right)
    return set()


def is_plain(node: Node) -> bool:
    """Whether it is a temporal operator whose solutions are all pairs that stand in its relation."""
    return (
        isinstance(node, Temporal)
        and node.op not in ("OPTIONALSEQ", "EQUALSOPTIONAL", "NOT")
        and node.consumption == "unrestricted"
    )


def is_movable(expr: Expr) -> bool:
    """Whether a condition is true of a pair if it is of the side that binds its variables."""
    if not expression_variables(expr):
        return False
    return not any(
        isinstance(each, Exists) or (isinstance(each, Call) and each.op in BOUND_TO_PLACE)
        for each in walk(expr)
    )


# ----------------------------------------------------------------------------------------------------------
# Answers as columns, and as matches for whoever asks for them one by one.


@lru_cache(maxsize=100_000)
def _items(text: str) -> tuple[tuple[str, str], ...]:
    """A term as the SPARQL 1.1 JSON results format writes it."""
    return tuple(sparql_json(term_of(text)).items())


@dataclass(slots=True, eq=False)
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
        codes = set(self.values.ravel().tolist())
        shown = {code: dict(_items(self.texts[code])) for code in codes if code >= 0}
        columns = [each.tolist() for each in (self.values, self.start, self.end, self.low, self.high)]
        for row, start, end, low, high in zip(*columns, strict=True):
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
