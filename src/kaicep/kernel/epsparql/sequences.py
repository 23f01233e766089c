"""SEQ of three groups and more: its joins are put in order by what is observed, again and again.

`A SEQ B SEQ C` means the same as `A SEQ (B SEQ C)`, but the order of the joins decides how many solutions of
parts are made and kept. So how often each group has a solution is counted, and how often neighbours agree is
tried on a sample; the order with the least work is calculated from that, as for a product of matrices. Where
another order has much less to do than the one that runs, it takes over: each solution of the first group goes
to one of the two only, so that what began before ends in the old one.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.answers import bound_variables, is_movable
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, Joiner
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import Dictionary
from kaicep.kernel.epsparql.expressions import expression_variables
from kaicep.kernel.epsparql.state import Keeper
from kaicep.kernel.epsparql.tables import Rows, SolutionTable
from kaicep.plan.expressions import Expr
from kaicep.plan.nodes import FilterSolutions, Node, Temporal
from kaicep.plan.program import conjuncts

Shape = Any
"""How sides are joined: the number of one, or the shapes of the left and of the right."""

_SAMPLE = 64  # solutions of each side that are tried with those of its neighbour
_OFTEN = 8_192  # solutions of the sides between two decisions
_GAIN = 2.0  # so many times less work are worth another order


def sequence(node: Node) -> tuple[list[Node], list[Expr]]:
    """The sides of a SEQ of SEQ, and the conditions between them; anything else is one side."""
    if isinstance(node, Temporal) and (node.op, node.consumption) == ("SEQ", "unrestricted"):
        (left, some), (right, others) = sequence(node.left), sequence(node.right)
        return left + right, some + others
    if isinstance(node, FilterSolutions):
        sides, parts = sequence(node.input)
        conditions, known = conjuncts(node.condition), bound_variables(node.input)
        if len(sides) > 1 and all(is_movable(e) and expression_variables(e) <= known for e in conditions):
            return sides, [*parts, *conditions]
    return [node], []


class _Fed(ColumnOperator):
    """A side that is stepped once for several orders."""

    def __init__(self, side: ColumnOperator) -> None:
        self.names, self.certain, self.still = side.names, side.certain, side.still
        self.rows = Rows.none(len(side.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self.rows


@dataclass
class _Joins:
    """The joins in one order; another one has taken over where they are of use `until` a time only."""

    shape: Shape
    sides: list[_Fed]
    root: ColumnOperator
    tables: list[SolutionTable]
    until: float = math.inf


class SequenceColumns(ColumnOperator, Keeper):
    """Solutions that follow each other within a bound, under conditions, which may still be added."""

    label, bound = "SEQ", 0

    def __init__(
        self,
        sides: Sequence[ColumnOperator],
        bound: int,
        conditions: Sequence[Expr],
        dictionary: Dictionary,
        check: Callable[[Sequence[Expr], Sequence[str]], Check],
    ) -> None:
        self.names = tuple(dict.fromkeys(name for each in sides for name in each.names))
        self.certain = frozenset[str]().union(*(each.certain for each in sides))
        self.still, self.about = Rows.none(len(self.names)), self.names
        self.conditions = list(conditions)
        self._sides, self.bound, self._dictionary, self._check = sides, bound, dictionary, check
        self._orders: list[_Joins] = []  # the last one is that which takes all that comes
        self._now = kernels.FIRST
        self._begin(kernels.FIRST)

    def _begin(self, now: int) -> None:
        """Counts from now on."""
        self._since, self._counts, self._seen = now, [0] * len(self._sides), 0
        self._samples = [deque[Rows](maxlen=_SAMPLE) for _ in self._sides]

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        parts = [each.step(chunk) for each in self._sides]
        if not any(map(len, parts)):
            return Rows.none(len(self.names))
        if not self._orders:
            self._orders = [self._joins(functools.reduce(_pair, range(len(parts))))]
        now = max(int(each.end[-1]) for each in parts if len(each))
        self._observe(parts, now)
        self._now = now
        if len(self._orders) == 1:
            return self._stepped(self._orders[0], parts, chunk)
        found = [self._stepped(each, parts, chunk) for each in self._orders]
        self._orders = [each for each in self._orders if each.until >= now]
        return Rows.merged(found)

    def _stepped(self, joins: _Joins, parts: Sequence[Rows], chunk: Chunk) -> Rows:
        for side, rows in zip(joins.sides, parts, strict=True):
            side.rows = rows
        if joins is not self._orders[-1]:
            joins.sides[0].rows = Rows.none(len(joins.sides[0].names))
        return joins.root.step(chunk)

    # --- an order ------------------------------------------------------------------------------------

    def _joins(self, shape: Shape) -> _Joins:
        sides, tables = [_Fed(each) for each in self._sides], list[SolutionTable]()
        rest = list(self.conditions)

        def made(part: Shape) -> ColumnOperator:
            if isinstance(part, int):
                return sides[part]
            both = made(part[0]), made(part[1])
            joiner = Joiner(kernels.SEQ, both, self.bound, (self.bound, -1), self._dictionary, self._check)
            last = part is shape
            here = [each for each in rest if last or self._is_known(each, joiner.certain)]
            joiner.check = joiner.check.and_also(here)
            rest[:] = [each for each in rest if each not in here]
            tables.extend(joiner.kept)
            return joiner

        return _Joins(shape, sides, made(shape), tables)

    def _is_known(self, condition: Expr, names: frozenset[str]) -> bool:
        return is_movable(condition) and expression_variables(condition) <= names

    # --- which one -----------------------------------------------------------------------------------

    def _observe(self, parts: Sequence[Rows], now: int) -> None:
        if self._since == kernels.FIRST:
            self._since = min(int(each.end[0]) for each in parts if len(each))
        for i, rows in enumerate(parts):
            if len(rows):
                if self._counts[i] < _SAMPLE or len(rows) > 1 or self._counts[i] % 16 == 0:
                    self._samples[i].append(rows.take(slice(-_SAMPLE, None)))
                self._counts[i] += len(rows)
                self._seen += len(rows)
        if self._seen < _OFTEN or now <= self._since:
            return
        if len(self._orders) == 1 and all(self._counts):
            [running] = self._orders
            often = [each * self.bound / (now - self._since) for each in self._counts]
            work = _JoinWork(often, [self._agreement(i) for i in range(len(parts) - 1)])
            shape = self._cheapest(work)
            if work.all(running.shape) > _GAIN * work.all(shape):
                running.until = self._now + self.bound
                self._orders.append(self._joins(shape))
        self._begin(now)

    def _cheapest(self, work: _JoinWork) -> Shape:
        """The order with the least work: the best one of each part, from the shortest parts on."""
        many = len(self._sides)
        best: dict[tuple[int, int], tuple[float, Shape]] = {(i, i): (0.0, i) for i in range(many)}
        for length in range(1, many):
            for first in range(many - length):
                last = first + length
                choices = []
                for middle in range(first, last):
                    (one, left), (other, right) = best[first, middle], best[middle + 1, last]
                    choices.append((one + other + work.of(first, middle, last), (left, right)))
                best[first, last] = min(choices, key=lambda each: each[0])
        return best[0, many - 1][1]

    def _agreement(self, i: int) -> tuple[float, float]:
        """How often a solution of a side agrees with one of the next side, and how often that is enough."""
        left, right = (Rows.merged(list(self._samples[at])) for at in (i, i + 1))
        left, right = (each.take(slice(-_SAMPLE, None)) for each in (left, right))
        one, other = (np.arange(len(each)) for each in (left, right))
        pairs = np.repeat(one, len(right)), np.tile(other, len(left))
        names, others = (self._sides[at].names for at in (i, i + 1))
        same = np.ones(len(pairs[0]), np.bool_)
        for name in set(names) & set(others):
            x, y = left.values[pairs[0], names.index(name)], right.values[pairs[1], others.index(name)]
            same &= (x == y) | (x < 0) | (y < 0)
        some = pairs[0][same], pairs[1][same]
        extra = [at for at, name in enumerate(others) if name not in names]
        values = np.column_stack((left.values[some[0]], right.values[some[1]][:, extra])).astype(np.int32)
        both = (*names, *(others[at] for at in extra))
        parts = [each for each in self.conditions if self._is_known(each, frozenset(both))]
        fitting = len(some[0])
        if parts:
            times = left.start[some[0]], right.end[some[1]]
            fitting = len(self._check(parts, both).tested(values, *times))
        # Half of a pair more: what did not happen yet may happen.
        return (len(some[0]) + 0.5) / (len(same) + 1), (fitting + 0.5) / (len(same) + 1)

    # --- state ---------------------------------------------------------------------------------------

    @property
    def _tables(self) -> list[SolutionTable]:
        return [table for each in self._orders for table in each.tables]

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return sum(map(len, self._tables))

    def forget(self, now: int) -> None:
        """See `Keeper`."""
        self._orders = [each for each in self._orders if each.until >= now]
        for table in self._tables:
            table.forget(now)

    def dump(self, before: float = math.inf) -> Any:
        """The last end, and the orders with what is kept in each."""
        orders = [
            [
                each.shape,
                None if each.until == math.inf else each.until,
                [t.dump(before) for t in each.tables],
            ]
            for each in self._orders
        ]
        return [self._now, orders]

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        self._now, orders = state
        self._orders = []
        for shape, until, tables in orders:
            joins = self._joins(_shape(shape))
            joins.until = math.inf if until is None else until
            for table, rows in zip(joins.tables, tables, strict=True):
                table.load(rows)
            self._orders.append(joins)


def _pair(left: Shape, right: Shape) -> Shape:
    return left, right


def _shape(read: Any) -> Shape:
    return read if isinstance(read, int) else tuple(map(_shape, read))


class _JoinWork:
    """What a join costs, by how often sides have solutions within the bound, and neighbours agree."""

    def __init__(self, often: Sequence[float], agreement: Sequence[tuple[float, float]]) -> None:
        self._often, self._agreement = often, agreement

    def _many(self, first: int, last: int) -> float:
        """How many solutions some sides have together: of those that agree, some stand in the right order."""
        agree = (all_of_it for _, all_of_it in self._agreement[first:last])
        return math.prod(self._often[first : last + 1]) * math.prod(agree) / math.factorial(last - first + 1)

    def of(self, first: int, middle: int, last: int) -> float:
        """The pairs that a join looks at, and those that it makes."""
        pairs = self._many(first, middle) * self._many(middle + 1, last) * self._agreement[middle][0]
        return pairs + self._many(first, last)

    def all(self, shape: Shape) -> float:
        """What all joins of an order cost."""
        return self._summed(shape)[2]

    def _summed(self, shape: Shape) -> tuple[int, int, float]:
        if isinstance(shape, int):
            return shape, shape, 0.0
        (first, middle, one), (_, last, other) = map(self._summed, shape)
        return first, last, one + other + self.of(first, middle, last)
