"""Conditions on columns: numbers and codes are compared by a kernel, the rest is evaluated as SPARQL says.

Integers and decimals of SPARQL are exact, and doubles are rounded in their own way. The kernel calculates
with doubles and with how far they may be off; where that leaves a comparison open, the row is evaluated
again, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.dictionary import Array, Dictionary
from kaicep.kernel.epsparql.expressions import Outside, SolutionTest, existences
from kaicep.plan.expressions import Call, Expr, TermConst, VariableRef
from kaicep.plan.program import duration_comparison

_SIGNS = {"<": 0, "<=": 1, ">": 2, ">=": 3, "=": 4, "!=": 5}
_ARITHMETIC = {"+": 2, "-": 3, "*": 4, "/": 5}
_VARIABLE, _CONSTANT, _COMPARED, _AND, _OR, _NOT, _BOUND, _LENGTH = 0, 1, 10, 20, 21, 22, 23, 30
_MOST_STEPS = 60

Step = tuple[int, int]


EVERY: Array = slice(None)
"""The places of all rows."""


class Check:
    """Conditions that must all hold, on rows of some variables; not `timed` where no row has a time."""

    def __init__(
        self,
        parts: Sequence[Expr],
        names: Sequence[str],
        dictionary: Dictionary,
        outside: Outside,
        timed: bool = True,
    ) -> None:
        self._parts, self._names, self._dictionary = list(parts), names, dictionary
        self._outside, self._has_time = outside, timed
        steps: list[list[Step]] = []
        rest: list[Expr] = []
        for each in parts:
            made = None if existences(each) else self._program(each)
            if made is not None and sum(map(len, steps)) + len(made) < _MOST_STEPS:
                steps.append(made)
            else:
                rest.append(each)
        program = [step for each in steps for step in each]
        if len(steps) > 1:
            program.append((_AND, len(steps)))
        self.program = np.array(program, np.int64).reshape(-1, 2)
        # What is said of the duration, and of what is bound, is never left open by the kernel.
        self._may_be_unsure = any(op < _AND for op, _ in program)
        self._all = SolutionTest(parts, names, outside)
        self._rest = SolutionTest(rest, names, outside) if rest else None
        self._seen = [i for i, name in enumerate(names) if name in self._all.named]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def and_also(self, parts: Sequence[Expr]) -> Check:
        """With further conditions."""
        return Check([*self._parts, *parts], self._names, self._dictionary, self._outside, self._has_time)

    @property
    def is_more(self) -> bool:
        """Whether the program is not all that it says."""
        return self._rest is not None

    def numbers(self) -> tuple[Array, Array, Array]:
        """What the kernel has to know of the terms."""
        return self._dictionary.numbers() if len(self.program) else _NOTHING

    def tested(self, values: Array, start: Array, end: Array) -> Array:
        """The places of the rows for which it is true."""
        if not len(self.program):
            return self.settled(values, start, end, np.zeros(len(start), np.int8))
        found = kernels.test(self.program, values, start, end, *self.numbers())
        places = np.flatnonzero(found)
        left = self.settled(values[places], start[places], end[places], found[places] == 2)
        return places[left]

    def settled(self, values: Array, start: Array, end: Array, unsure: Array) -> Array:
        """Of rows that the kernel let pass, the places of those that hold; it may be unsure, or not asked."""
        if self._rest is None and not (self._may_be_unsure and unsure.any()):
            return EVERY
        keep = np.ones(len(start), np.bool_)
        asked = np.arange(len(start)) if self._rest is not None else np.flatnonzero(unsure)
        of, timed, pure = self._dictionary.of, self._all.timed, not self._all.whole
        known: dict[tuple[Any, ...], bool] = {}
        for at, row in zip(asked.tolist(), values[asked].tolist(), strict=True):
            condition = self._all if unsure[at] or self._rest is None else self._rest
            times = (int(start[at]), int(end[at]))
            asks = (condition is self._all, *(times if timed else ()), *(row[i] for i in self._seen))
            if asks not in known or not pure:
                when = times if self._has_time else (None, None)
                known[asks] = condition.holds(tuple(map(of, row)), *when)
            keep[at] = known[asks]
        return np.flatnonzero(keep)

    def holds(self, row: Sequence[int], start: int, end: int) -> bool:
        """Whether it is true for one solution."""
        return not self._parts or self._all.holds(tuple(map(self._dictionary.of, row)), start, end)

    def timeless(self, values: Array) -> Array:
        """The places of the rows for which it is true although they have no time."""
        rows = [tuple(map(self._dictionary.of, row)) for row in values.tolist()]
        return np.array([i for i, row in enumerate(rows) if self._all.holds(row, None, None)], np.int64)

    # --- from expressions to programs ----------------------------------------------------------------

    def _program(self, expr: Expr) -> list[Step] | None:
        """A condition in postfix form; None where the kernel cannot do it."""
        length = duration_comparison(expr)
        if length is not None:
            if not self._has_time:
                return None
            return [(_LENGTH + _SIGNS[length[0]], length[1])]
        if not isinstance(expr, Call):
            return None
        if expr.op in ("and", "or", "not"):
            parts = [self._program(each) for each in expr.args]
            if any(each is None for each in parts):
                return None
            steps = [step for each in parts for step in each or ()]
            end = (_NOT, 1) if expr.op == "not" else (_AND if expr.op == "and" else _OR, len(parts))
            return [*steps, end]
        if expr.op == "bound" and isinstance(expr.args[0], VariableRef):
            return self._bound(expr.args[0].name)
        if expr.op in _SIGNS:
            return self._both(expr, (_COMPARED + _SIGNS[expr.op], 0))
        return None

    def _bound(self, name: str) -> list[Step]:
        if name in self._outside.given:
            return [(_AND, 0)]
        if name not in self._names:
            return [(_AND + 1, 0)]
        return [(_BOUND, self._names.index(name))]

    def _both(self, call: Call, step: Step) -> list[Step] | None:
        parts = [self._value(each) for each in call.args]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        return [*parts[0], *parts[1], step]

    def _value(self, expr: Expr) -> list[Step] | None:
        if isinstance(expr, VariableRef) and expr.name in self._outside.given:
            return [(_CONSTANT, self._dictionary.code(self._outside.given[expr.name]))]
        if isinstance(expr, VariableRef):
            return [(_VARIABLE, self._names.index(expr.name))] if expr.name in self._names else None
        if isinstance(expr, TermConst):
            return [(_CONSTANT, self._dictionary.code(str(expr.term)))]
        if isinstance(expr, Call) and expr.op in _ARITHMETIC:
            return self._both(expr, (_ARITHMETIC[expr.op], 0))
        return None


_NOTHING: tuple[Any, Any, Any] = (np.empty(0), np.empty(0), np.empty(0, np.int8))
