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
from kaicep.kernel.epsparql.expressions import Condition
from kaicep.plan.durations import duration_comparison
from kaicep.plan.expressions import Call, Expr, TermConst, VariableRef

__all__ = ["Check"]

_SIGNS = {"<": 0, "<=": 1, ">": 2, ">=": 3, "=": 4, "!=": 5}
_ARITHMETIC = {"+": 2, "-": 3, "*": 4, "/": 5}
_VARIABLE, _CONSTANT, _COMPARED, _AND, _OR, _NOT, _LENGTH = 0, 1, 10, 20, 21, 22, 30
_MOST_STEPS = 60

Step = tuple[int, int]


class Check:
    """Conditions that must all hold, on rows of some variables, of which some are `sure` to be bound."""

    def __init__(
        self,
        parts: Sequence[Expr],
        names: Sequence[str],
        dictionary: Dictionary,
        sure: Sequence[str] | None = None,
    ) -> None:
        self._parts, self._names, self._dictionary = list(parts), names, dictionary
        self._sure = names if sure is None else sure
        steps: list[list[Step]] = []
        rest: list[Expr] = []
        for each in parts:
            made = self._program(each)
            if made is not None and sum(map(len, steps)) + len(made) < _MOST_STEPS:
                steps.append(made)
            else:
                rest.append(each)
        program = [step for each in steps for step in each]
        if len(steps) > 1:
            program.append((_AND, len(steps)))
        self.program = np.array(program, np.int64).reshape(-1, 2)
        self._all = Condition(parts, names, {})
        self._rest = Condition(rest, names, {}) if rest else None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def and_also(self, parts: Sequence[Expr]) -> Check:
        """With further conditions."""
        return Check([*self._parts, *parts], self._names, self._dictionary, self._sure)

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
        if self._rest is None and not unsure.any():
            return np.arange(len(start))
        keep = np.ones(len(start), np.bool_)
        asked = np.arange(len(start)) if self._rest is not None else np.flatnonzero(unsure)
        texts = self._dictionary.texts
        for at in asked.tolist():
            row = tuple([texts[code] if code >= 0 else None for code in values[at].tolist()])
            condition = self._all if unsure[at] or self._rest is None else self._rest
            keep[at] = condition.holds(row, int(start[at]), int(end[at]))
        return np.flatnonzero(keep)

    def timeless(self, values: Array) -> Array:
        """The places of the rows for which it is true although they have no time."""
        texts = self._dictionary.texts
        rows = [tuple([texts[code] for code in row]) for row in values.tolist()]
        return np.array([i for i, row in enumerate(rows) if self._all.holds(row, None, None)], np.int64)

    # --- from expressions to programs ----------------------------------------------------------------

    def _program(self, expr: Expr) -> list[Step] | None:
        """A condition in postfix form; None where the kernel cannot do it."""
        length = duration_comparison(expr)
        if length is not None:
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
        if expr.op in _SIGNS:
            return self._both(expr, (_COMPARED + _SIGNS[expr.op], 0))
        return None

    def _both(self, call: Call, step: Step) -> list[Step] | None:
        parts = [self._value(each) for each in call.args]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return None
        return [*parts[0], *parts[1], step]

    def _value(self, expr: Expr) -> list[Step] | None:
        if isinstance(expr, VariableRef):
            return [(_VARIABLE, self._names.index(expr.name))] if expr.name in self._sure else None
        if isinstance(expr, TermConst):
            return [(_CONSTANT, self._dictionary.code(str(expr.term)))]
        if isinstance(expr, Call) and expr.op in _ARITHMETIC:
            return self._both(expr, (_ARITHMETIC[expr.op], 0))
        return None


_NOTHING: tuple[Any, Any, Any] = (np.empty(0), np.empty(0), np.empty(0, np.int8))
