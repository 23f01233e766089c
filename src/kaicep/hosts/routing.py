"""What of a batch each of many queries has to look at.

Most events fail the FILTERs of most queries. A query whose every variable has a FILTER with a constant, such
as `?e.flowrate > 600` or `?e.room = "R1"`, is given only the events that fulfil one of these. What fulfils
one is found once for all queries: equal conditions are tested once, and of the same comparison with several
levels, each is tested on what fulfils the next lower one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import reduce
from operator import or_

import numpy as np

from kaicep.kernel.columns import Array, Table
from kaicep.kernel.operator import KernelOperator
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.together import Level, level_of
from kaicep.kernel.vectors import count_of, sees, vectors_of
from kaicep.plan.expressions import Call, Const, Expr
from kaicep.plan.types import Type

Gate = Mapping[Expr, Level | None]
"""Conditions of which an event must fulfil one to matter, each with the level it compares with, if any."""

FEW = 64
"""So few events are given to all queries."""


def gate_of(operator: KernelOperator) -> Gate | None:
    """What events must fulfil to matter to an operator; None where all may."""
    if not isinstance(operator, PatternMachine) or operator.pattern.match == "strict":
        return None  # every event counts for strict contiguity
    if operator.pattern.latest:
        return None  # any event may be the last known one
    found: dict[Expr, Level | None] = {}
    for chain in operator.pattern.chains:
        own, _ = operator.passed.in_order(chain.conditions)
        levels = {each: level_of(each) for each in own}
        chosen = next((each for each in own if levels[each] is not None), None)
        chosen = chosen or next(filter(_is_equality, own), None)
        if chosen is None:
            return None
        found[chosen] = levels[chosen]
    return found


def _is_equality(condition: Expr) -> bool:
    """Whether few values fulfil a condition."""
    return (
        isinstance(condition, Call)
        and condition.op in ("=", "in")
        and all(isinstance(each, Const) for each in condition.args[1:])
    )


class Routing:
    """Events that were released together, and which of them matter to whom."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._rows: dict[Expr, Array] = {}
        self._levels: dict[tuple[Expr, str], list[tuple[float, Array]]] = {}
        self._parts: dict[frozenset[Expr], Table] = {}

    def part(self, gate: Gate | None, operator: KernelOperator) -> Table:
        """The events that an operator has to look at; of the others, it is noted that they came."""
        if gate is None or len(self.table) < FEW:
            return self.table
        key = frozenset(gate)
        part = self._parts.get(key)
        if part is None:
            rows = reduce(np.union1d, [self._fulfilling(*each) for each in gate.items()])
            part = self._parts[key] = self.table if 2 * len(rows) > len(self.table) else self.table.take(rows)
        if part is not self.table:
            assert isinstance(operator, PatternMachine)
            operator.passed.came += _seen(operator, self.table) - _seen(operator, part)
        return part

    def _fulfilling(self, condition: Expr, level: Level | None) -> Array:
        found = self._rows.get(condition)
        if found is None:
            found = None if level is None else self._reaching(level)
            if found is None:
                holds = vectors_of(self.table).holds(condition)
                found = np.arange(len(self.table)) if holds is True else np.flatnonzero(holds)
            self._rows[condition] = found
        return found

    def _reaching(self, level: Level) -> Array | None:
        """The rows that reach a level; None where the values are not to be compared as they are."""
        column = vectors_of(self.table).value(level.expr)
        if column.type is not Type.FLOAT64:
            return None
        sign = 1.0 if level.op[0] == ">" else -1.0
        known = self._levels.setdefault((level.expr, level.op), [])
        at = bisect_right(known, sign * level.value, key=lambda each: each[0])
        if at:
            below = known[at - 1][1]
            found = below[level.reached(column.data[below])]
        else:
            found = np.flatnonzero(level.reached(column.data))
        known.insert(at, (sign * level.value, found))
        return found


def _seen(operator: PatternMachine, table: Table) -> int:
    """How many events are of its streams and inside its WITHIN."""
    return count_of(reduce(or_, [sees(each, table) for each in operator.pattern.chains]), table)
