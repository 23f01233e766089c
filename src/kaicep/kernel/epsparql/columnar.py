"""Operators over columns: triple patterns, joins over time and conditions, many instants at a step.

They answer what the operators of `patterns`, `operators` and `temporal` answer, for plans that only
grow: there a pair is found when its later part comes, and may be found together with those of later
instants. Their state is written down as that of the others, so that either goes on where the other was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import Array, Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.state import OperatorContext
from kaicep.kernel.epsparql.tables import Rows, SolutionTable, first_of
from kaicep.plan.sparql import TriplePattern
from kaicep.plan.terms import Iri, Variable

__all__ = [
    "Chunk",
    "ColumnOperator",
    "FilterColumns",
    "JoinedPatterns",
    "Joiner",
    "PatternColumns",
    "shared_places",
]

_PLACES = ("s", "p", "o")


class Chunk:
    """Occurrences of some instants, by their predicate too."""

    def __init__(self, columns: OccurrenceColumns) -> None:
        self.columns = columns
        self._places: dict[int, Array] = {}

    def of(self, predicate: int) -> Array:
        """Where the occurrences with a predicate stand."""
        if predicate not in self._places:
            self._places[predicate] = np.flatnonzero(self.columns.p == predicate)
        return self._places[predicate]


class ColumnOperator:
    """What they share: their variables, which of them every solution binds, what knowledge alone gives."""

    names: tuple[str, ...]
    certain: frozenset[str]
    still: Rows

    def step(self, chunk: Chunk) -> Rows:
        """The solutions that end with the chunk and come through it."""
        raise NotImplementedError

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""


class PatternColumns(ColumnOperator):
    """One triple pattern; its predicate may be any but those that are `refused`."""

    def __init__(
        self, pattern: TriplePattern, dictionary: Dictionary, refused: Sequence[Iri] | None = None
    ) -> None:
        self._refused = np.array([dictionary.code(str(each)) for each in refused or ()], np.int32)
        self.places = (pattern.subject, pattern.predicate, pattern.object)
        self.names = tuple(dict.fromkeys(e.name for e in self.places if isinstance(e, Variable)))
        self.certain = frozenset(self.names)
        self._constants = [
            (place, dictionary.code(str(each)))
            for place, each in zip(_PLACES, self.places, strict=True)
            if not isinstance(each, Variable)
        ]
        self._columns: dict[str, list[str]] = {name: [] for name in self.names}
        for place, each in zip(_PLACES, self.places, strict=True):
            if isinstance(each, Variable):
                self._columns[each.name].append(place)
        self.still = Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        given = dict(self._constants)
        columns = chunk.columns
        if "p" in given:
            columns = columns.take(chunk.of(given.pop("p")))
        for place, code in given.items():
            columns = columns.take(np.flatnonzero(getattr(columns, place) == code))
        if len(self._refused):
            columns = columns.take(np.flatnonzero(~np.isin(columns.p, self._refused)))
        for first, *others in self._columns.values():
            for other in others:
                columns = columns.take(np.flatnonzero(getattr(columns, first) == getattr(columns, other)))
        values = np.empty((len(columns), len(self.names)), np.int32)
        for i, places in enumerate(self._columns.values()):
            values[:, i] = getattr(columns, places[0])
        return Rows(values, columns.start, columns.end)

    def asked(self) -> tuple[str | None, str | None, str | None]:
        """Its terms, for a lookup; None where it has a variable."""
        s, p, o = (None if isinstance(each, Variable) else str(each) for each in self.places)
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

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        self.below.forget(now)


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
    ) -> None:
        left, right = self.sides = sides
        self._op, self._bound = op, -1 if bound is None else bound
        extra = [i for i, name in enumerate(right.names) if name not in left.names]
        self.names = left.names + tuple(right.names[i] for i in extra)
        self.certain = left.certain | right.certain
        self._keys, self._loose = shared_places(left, right)
        self._extra = np.array(extra, np.int64)
        self.tables = tuple(
            SolutionTable(len(side.names), self._keys[i], None if reach[i] == -1 else reach[i])
            for i, side in enumerate(sides)
        )
        self._keep = np.array([each != -1 for each in reach], np.int64)
        self._mixed = False
        self.check = Check((), self.names, dictionary)
        self._known = self._knowledge() if op == kernels.JOIN else None
        self.still = self._always() if op == kernels.JOIN else Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self.joined(self.sides[0].step(chunk), self.sides[1].step(chunk))

    def joined(self, left: Rows, right: Rows) -> Rows:
        """The pairs that new solutions of both sides make, with each other and with what is kept."""
        if not len(left) and not len(right):
            return Rows.none(len(self.names))
        for table, rows in zip(self.tables, (left, right), strict=True):
            table.expect(rows)
        now = max(int(rows.end[-1]) for rows in (left, right) if len(rows))
        found, lengths = self._run(left, right, self.tables, self._keep, self._bound)
        for table, length in zip(self.tables, lengths, strict=True):
            table.mixed = self._mixed
            table.grown(length, now)
        if self._mixed and len(found) > 1:
            found = found.take(np.argsort(found.end, kind="stable"))
        if self._known is None:
            return found
        nothing = np.zeros(2, np.int64)
        none_left, none_right = (Rows.none(len(side.names)) for side in self.sides)
        with_left, _ = self._run(none_left, right, (self._known[0], self.tables[1]), nothing, -1)
        with_right, _ = self._run(left, none_right, (self.tables[0], self._known[1]), nothing, -1)
        return Rows.merged((found, with_left, with_right))

    def _run(
        self, left: Rows, right: Rows, tables: Sequence[SolutionTable], keep: Array, bound: int
    ) -> tuple[Rows, tuple[int, int]]:
        if not len(left) and not len(tables[0]) and not keep.any():
            return Rows.none(len(self.names)), (0, 0)
        rows = (left.values, left.start, left.end, right.values, right.start, right.end)
        stores = tables[0].arrays(), tables[1].arrays()
        how = self._keys, self._loose, self._extra, self.check.program, self.check.numbers()
        vague = np.array([*(each.vague for each in tables), self._mixed], np.int64)
        *made, n, first, second = kernels.join(self._op, bound, *rows, *stores, keep, vague, *how)
        values, start, end, unsure = (each[:n] for each in made)
        found = Rows(values, start, end)
        if self.check and n:
            found = found.take(self.check.settled(values, start, end, unsure))
        return found, (first, second)

    def mix(self) -> None:
        """From now on what comes may end before what came already, until `settle` is called."""
        self._mixed = True
        for table, kept in zip(self.tables, self._keep.tolist(), strict=True):
            table.bound = table.bound if kept else 0
        self._keep[:] = 1

    def settle(self) -> None:
        """What comes from now on ends no earlier than all that came."""
        for table in self.tables:
            table.settle()

    def _knowledge(self) -> tuple[SolutionTable, SolutionTable] | None:
        """What knowledge alone gives for either side, as tables."""
        if not any(len(side.still) for side in self.sides):
            return None
        left, right = (SolutionTable(len(e.names), self._keys[i], None) for i, e in enumerate(self.sides))
        left.add(self.sides[0].still)
        right.add(self.sides[1].still)
        return left, right

    def _always(self) -> Rows:
        if self._known is None:
            return Rows.none(len(self.names))
        nothing = Rows.none(len(self.sides[0].names))
        return self._run(nothing, self.sides[1].still, self._known, np.zeros(2, np.int64), -1)[0]

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        for side, table in zip(self.sides, self.tables, strict=True):
            side.forget(now)
            table.forget(now)

    @property
    def size(self) -> int:
        """How many solutions are kept."""
        return sum(len(each) for each in self.tables)


class JoinedPatterns(ColumnOperator):
    """Several triple patterns, joined one after the other, in all the ways that their paths can be read.

    Its state is the occurrences that meet a pattern. With `counts`, what is the same is found once.
    """

    def __init__(
        self,
        ways: Sequence[Sequence[PatternColumns]],
        names: Sequence[str],
        bound: int | None,
        dictionary: Dictionary,
        context: OperatorContext,
        counts: bool,
    ) -> None:
        self._context, self._dictionary, self._counts = context, dictionary, counts
        self.joiners: list[Joiner] = []
        self._made = [self._joined(each, bound) for each in ways]
        self.names, self.certain = tuple(names), frozenset(names)
        self.still = Rows.merged([self._ordered(each.still, each.names) for each in self._made])
        context.keep(self)

    def _joined(self, patterns: Sequence[PatternColumns], bound: int | None) -> ColumnOperator:
        first, *rest = patterns
        made: ColumnOperator = first
        while rest:
            # What shares a variable with what is joined already comes first.
            best = max(rest, key=lambda one: (bool(set(one.names) & set(made.names)), -rest.index(one)))
            rest.remove(best)
            made = Joiner(kernels.JOIN, (made, best), bound, (bound, bound), self._dictionary)
            self.joiners.append(made)
        return made

    def _ordered(self, rows: Rows, names: Sequence[str]) -> Rows:
        if self._counts and len(rows) > 1:
            rows = rows.take(first_of(np.column_stack((rows.end, rows.start, rows.values))))
        order = [names.index(name) for name in self.names]
        return Rows(np.ascontiguousarray(rows.values[:, order]), rows.start, rows.end)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        found = Rows.merged([self._ordered(each.step(chunk), each.names) for each in self._made])
        if self.size > self._context.cap:
            bounded = self.joiners[0].tables[0].bound is not None
            raise self._context.refuse_more("a group of several triples", bounded)
        return found

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        for each in self._made:
            each.forget(now)

    # --- state, written as the occurrences that it is made of -----------------------------------------

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return sum(each.size for each in self.joiners)

    def undo(self) -> None:
        """Nothing is tried twice here."""

    def commit(self) -> None:
        """Nothing waits for the end of an instant."""

    def due(self) -> int | None:
        """It forgets when it is told to."""
        return None

    def sweep(self, now: int) -> None:
        """See `Keeper`."""
        self.forget(now)

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        found: set[tuple[int, int, str, str, str]] = set()
        for joiner in self.joiners:
            for side, table in zip(joiner.sides, joiner.tables, strict=True):
                if isinstance(side, PatternColumns):
                    rows = table.live().before(before)
                    found |= {(*times, *terms) for times, terms in self._occurrences(side, rows)}
        return [[s, p, o, start, end] for end, start, s, p, o in sorted(found)]

    def _occurrences(self, pattern: PatternColumns, rows: Rows) -> Any:
        texts = self._dictionary.texts
        for values, start, end in zip(
            rows.values.tolist(), rows.start.tolist(), rows.end.tolist(), strict=True
        ):
            bound = dict(zip(pattern.names, values, strict=True))
            yield (
                (end, start),
                [texts[bound[e.name]] if isinstance(e, Variable) else str(e) for e in pattern.places],
            )

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        code = self._dictionary.code
        rows = sorted((end, start, code(s), code(p), code(o)) for s, p, o, start, end in state)
        if rows:
            chunk = Chunk(OccurrenceColumns.of([(s, p, o, start, end) for end, start, s, p, o in rows]))
            for each in self._made:
                each.step(chunk)
