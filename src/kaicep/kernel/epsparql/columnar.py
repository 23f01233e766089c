"""Operators over columns: triple patterns, joins over time and conditions, many instants at a step.

An operator is stepped with occurrences in the order of their end. Answers are timewise monotone (section
4.2 of the paper): what ends later changes nothing. So a step may take many instants. An operator that only
grows may also be stepped several times for one instant, with what is new each time; the others (optional
sides, NOT, MINUS, EXISTS, groups, windows) are stepped with whole instants.

What knowledge alone gives has no time; it is known from the start (`still`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.conditions import EVERY, Check
from kaicep.kernel.epsparql.dictionary import Array, Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.tables import Rows, SolutionTable
from kaicep.plan.expressions import Expr
from kaicep.plan.sparql import TriplePattern, WindowClause
from kaicep.plan.terms import Iri, Variable

_PLACES = ("s", "p", "o")
_FIRST, _NOWHERE = np.zeros(1, np.int64), np.empty(0, np.int64)


class Chunk:
    """Occurrences of some instants, by their predicate too.

    Of what waits for the end of an instant, all up to `until` have come; `windows` are what is in each.
    """

    def __init__(
        self,
        columns: OccurrenceColumns,
        until: float = -math.inf,
        windows: Mapping[WindowClause, Chunk] | None = None,
    ) -> None:
        self.columns, self.until, self.windows = columns, until, windows or {}
        self._places: dict[int, Array] = {}

    def of(self, predicate: int) -> Array:
        """Where the occurrences with a predicate stand."""
        found = self._places.get(predicate)
        if found is None:
            p = self.columns.p
            if len(p) == 1:
                found = _FIRST if p[0] == predicate else _NOWHERE
            else:
                found = np.flatnonzero(p == predicate)
            self._places[predicate] = found
        return found


class ColumnOperator:
    """What they share: their variables, which of them every solution binds, what knowledge alone gives."""

    names: tuple[str, ...]
    certain: frozenset[str]
    still: Rows

    def step(self, chunk: Chunk) -> Rows:
        """The solutions that end with the chunk and come through it."""
        raise NotImplementedError


class PatternColumns(ColumnOperator):
    """One triple pattern; its predicate may be any but the `refused` ones, and variables may be `given`."""

    def __init__(
        self,
        pattern: TriplePattern,
        dictionary: Dictionary,
        refused: Sequence[Iri] | None = None,
        given: Mapping[str, str] | None = None,
    ) -> None:
        self._given = given or {}
        self._refused = np.array([dictionary.code(str(each)) for each in refused or ()], np.int32)
        self.places = (pattern.subject, pattern.predicate, pattern.object)
        self.names = tuple(dict.fromkeys(e.name for e in self.places if isinstance(e, Variable)))
        self.certain = frozenset(self.names)
        self._constants = {
            place: dictionary.code(text)
            for place, text in zip(_PLACES, self.asked(), strict=True)
            if text is not None
        }
        self._predicate = self._constants.pop("p", None)
        variables = [e.name if isinstance(e, Variable) else None for e in self.places]
        self._columns = [_PLACES[variables.index(name)] for name in self.names]
        self._same = [
            (first, place)
            for place, name in zip(_PLACES, variables, strict=True)
            if name is not None and (first := _PLACES[variables.index(name)]) != place
        ]
        self.still = Rows.none(len(self.names))

    def meeting(self, chunk: Chunk) -> Array:
        """Where the occurrences stand that meet it."""
        columns, predicate = chunk.columns, self._predicate
        places = np.arange(len(columns)) if predicate is None else chunk.of(predicate)
        if not places.size:
            return places
        for place, code in self._constants.items():
            places = places[getattr(columns, place)[places] == code]
        if len(self._refused):
            places = places[~np.isin(columns.p[places], self._refused)]
        for first, other in self._same:
            places = places[getattr(columns, first)[places] == getattr(columns, other)[places]]
        return places

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        columns, places = chunk.columns, self.meeting(chunk)
        if not places.size:
            return Rows.none(len(self.names))
        if places.size < len(columns):
            columns = columns.take(places)
        values = np.empty((places.size, len(self.names)), np.int32)
        for i, place in enumerate(self._columns):
            values[:, i] = getattr(columns, place)
        return Rows(values, columns.start, columns.end)

    def asked(self) -> tuple[str | None, str | None, str | None]:
        """Its terms, for a lookup; None where it has a variable that may be any."""
        given = self._given
        s, p, o = (given.get(e.name) if isinstance(e, Variable) else str(e) for e in self.places)
        return s, p, o

    def know(self, facts: Sequence[tuple[str, str, str]], dictionary: Dictionary) -> None:
        """Takes over the facts that meet it; they have no time."""
        code = dictionary.code
        rows = [(code(s), code(p), code(o), kernels.LAST, kernels.FIRST) for s, p, o in facts]
        if rows:
            self.still = self.step(Chunk(OccurrenceColumns.of(rows)))


class FilterColumns(ColumnOperator):
    """The solutions for which a condition is true."""

    def __init__(self, below: ColumnOperator, check: Check) -> None:
        self.below, self.check = below, check
        self.names, self.certain = below.names, below.certain
        self.still = Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        rows = self.below.step(chunk)
        if not len(rows):
            return rows
        return rows.take(self.check.tested(rows.values, rows.start, rows.end))


def shared_places(left: ColumnOperator, right: ColumnOperator) -> tuple[tuple[Array, Array], Array]:
    """Where the variables stand that two sides share: those that are a key, and pairs of all others.

    Two codes make a key. Where one of these may be unbound, rows are gone through: all are compared then.
    """
    shared = [name for name in left.names if name in right.names]
    shared.sort(key=lambda name: name not in left.certain & right.certain)
    pairs = [(left.names.index(each), right.names.index(each)) for each in shared]
    exact = 2 if all(name in left.certain & right.certain for name in shared[:2]) else 0
    first, second = (np.array([pair[i] for pair in pairs[:2]], np.int64) for i in (0, 1))
    return (first, second), np.array(pairs[exact:], np.int64).reshape(-1, 2)


class Joiner(ColumnOperator):
    """Pairs of solutions that agree, stand in a relation, and meet a condition.

    `reach` is for how long each side is kept after its end, None for ever, -1 not at all.
    """

    def __init__(
        self,
        op: int,
        sides: tuple[ColumnOperator, ColumnOperator],
        bound: int | None,
        reach: tuple[int | None, int | None],
        dictionary: Dictionary,
        check: Callable[[Sequence[Expr], Sequence[str]], Check],
    ) -> None:
        left, right = self.sides = sides
        self._op, self._bound = op, -1 if bound is None else bound
        extra = [i for i, name in enumerate(right.names) if name not in left.names]
        self.names = left.names + tuple(right.names[i] for i in extra)
        self.certain = left.certain | right.certain
        self._keys, self._loose = shared_places(left, right)
        self._extra = np.array(extra, np.int64)
        self._dictionary = dictionary
        self.tables = tuple(
            SolutionTable(len(side.names), self._keys[i], None if reach[i] == -1 else reach[i], dictionary)
            for i, side in enumerate(sides)
        )
        for table, side in zip(self.tables, sides, strict=True):
            table.about = side.names
        self._keep = np.array([each != -1 for each in reach], np.int64)
        self._vague = np.zeros(3, np.int64)
        self._mixed = False
        self.check = check((), self.names)
        self._known = self._knowledge() if op == kernels.JOIN else None
        self.still = self._always() if op == kernels.JOIN else Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self.joined(self.sides[0].step(chunk), self.sides[1].step(chunk))

    def joined(self, left: Rows, right: Rows) -> Rows:
        """The pairs that new solutions of both sides make, with each other and with what is kept."""
        if not len(left) and not len(right):
            return Rows.none(len(self.names))
        (first, second), now = self.tables, kernels.FIRST
        for table, rows in ((first, left), (second, right)):
            if len(rows):
                table.expect(rows)
                now = max(now, int(rows.end[-1]))
        found, lengths = self._run(left, right, self.tables, self._keep, self._bound)
        first.mixed = second.mixed = self._mixed
        first.grown(lengths[0], now)
        second.grown(lengths[1], now)
        if self._mixed and len(found) > 1:
            found = found.take(np.argsort(found.end, kind="stable"))
        if self._known is None:
            return found
        nothing, parts = np.zeros(2, np.int64), [found]
        none_left, none_right = (Rows.none(len(side.names)) for side in self.sides)
        if len(right) and len(self._known[0]):
            parts.append(self._run(none_left, right, (self._known[0], second), nothing, -1)[0])
        if len(left) and len(self._known[1]):
            parts.append(self._run(left, none_right, (first, self._known[1]), nothing, -1)[0])
        return Rows.merged(parts)

    def _run(
        self, left: Rows, right: Rows, tables: Sequence[SolutionTable], keep: Array, bound: int
    ) -> tuple[Rows, tuple[int, int]]:
        one, two = tables
        self._vague[:] = one.vague, two.vague, self._mixed
        values, start, end, unsure, n, first, second = kernels.join(
            self._op,
            bound,
            left.values,
            left.start,
            left.end,
            right.values,
            right.start,
            right.end,
            one.arrays(),
            two.arrays(),
            keep,
            self._vague,
            self._keys,
            self._loose,
            self._extra,
            self.check.program,
            self.check.numbers(),
        )
        if not n:
            return Rows.none(len(self.names)), (first, second)
        values, start, end, unsure = values[:n], start[:n], end[:n], unsure[:n]
        found = Rows(values, start, end)
        left = self.check.settled(values, start, end, unsure) if self.check else EVERY
        return found if left is EVERY else found.take(left), (first, second)

    def mix(self) -> None:
        """From now on what comes may end before what came already, until `settle` is called."""
        self._mixed = True
        for table, kept in zip(self.tables, self._keep.tolist(), strict=True):
            table.bound = table.bound if kept else 0
        self._keep[:] = 1

    @property
    def kept(self) -> list[SolutionTable]:
        """The tables of those sides that are kept at all."""
        return [table for table, keep in zip(self.tables, self._keep.tolist(), strict=True) if keep]

    def settle(self) -> None:
        """What comes from now on ends no earlier than all that came."""
        for table in self.tables:
            table.settle()

    def _knowledge(self) -> tuple[SolutionTable, SolutionTable] | None:
        """What knowledge alone gives for either side, as tables."""
        if not any(len(side.still) for side in self.sides):
            return None
        left, right = (
            SolutionTable(len(each.names), self._keys[i], None, self._dictionary)
            for i, each in enumerate(self.sides)
        )
        left.add(self.sides[0].still)
        right.add(self.sides[1].still)
        return left, right

    def _always(self) -> Rows:
        if self._known is None:
            return Rows.none(len(self.names))
        nothing = Rows.none(len(self.sides[0].names))
        return self._run(nothing, self.sides[1].still, self._known, np.zeros(2, np.int64), -1)[0]


class Ways(ColumnOperator):
    """A group in all the ways that its paths can be read; with `once`, each finds what is the same once."""

    def __init__(self, made: Sequence[ColumnOperator], names: Sequence[str], once: bool) -> None:
        self._made, self._once = made, once
        self.names, self.certain = tuple(names), frozenset(names)
        self.still = Rows.merged([self._ordered(each.still, each.names) for each in made])

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return Rows.merged([self._ordered(each.step(chunk), each.names) for each in self._made])

    def _ordered(self, rows: Rows, names: Sequence[str]) -> Rows:
        if self._once:
            rows = rows.once()
        order = [names.index(name) for name in self.names]
        return Rows(np.ascontiguousarray(rows.values[:, order]), rows.start, rows.end)
