"""Conditions and values over solutions.

What is said of the duration is compared as a number, at once; everything else is evaluated as SPARQL
says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from kaicep.kernel.epsparql.dictionary import NOT_WHOLE, Array, Dictionary
from kaicep.kernel.epsparql.reading import term_of
from kaicep.plan.expressions import Call, Exists, Expr, TermConst, VariableRef, walk
from kaicep.plan.functions import SolutionScope, evaluate_expression, holds
from kaicep.plan.program import duration_comparison
from kaicep.plan.values import ExpressionError

Values = tuple[str | None, ...]
"""What the variables of an operator stand for, in the order of its names; None is unbound."""


class Asked(Protocol):
    """Answers EXISTS."""

    def seen(self, given: Mapping[str, str], end: int | None) -> bool:
        """Whether the group has a solution for these terms that ends by then, or has no time."""
        ...


class Outside(Protocol):
    """What an expression sees beside its solution: terms that are given, and who answers EXISTS."""

    @property
    def given(self) -> Mapping[str, str]:
        """Terms by variable."""
        ...

    def probe(self, expr: Exists, names: Sequence[str]) -> Asked:
        """Who answers an EXISTS on solutions with these names."""
        ...


_Test = Callable[[Values, int | None, int | None], bool]

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}

_EXACT: dict[str, Callable[[Array, Array], Array]] = {"+": np.add, "-": np.subtract, "*": np.multiply}
_MOST_TERM, _MOST_FACTOR = 2**61, 2**31

_OF_TIME = frozenset(("getduration", "getstarttime", "getendtime"))
WHOLE = frozenset(("bnode", "solution"))
"""What these give depends on all that a solution binds."""
BOUND_TO_PLACE = _OF_TIME | WHOLE | {"rand", "uuid", "struuid", "now"}
"""What these give depends on the interval, on the solution as a whole, or on chance."""


def existences(expr: Expr | None) -> list[Exists]:
    """Every EXISTS in an expression."""
    return [] if expr is None else [each for each in walk(expr) if isinstance(each, Exists)]


def expression_variables(expr: Expr) -> set[str]:
    """The variables that an expression names itself, not those inside of its EXISTS."""
    return {each.name for each in walk(expr) if isinstance(each, VariableRef)}


def is_end(expr: Expr | None) -> bool:
    """Whether it is the time at which a solution ends."""
    return isinstance(expr, Call) and expr.op == "getendtime"


class _Scopes:
    """What an expression sees of a solution: the variables that it names, or all where that matters."""

    def __init__(self, expr: Expr, names: Sequence[str], outside: Outside) -> None:
        calls = {each.op for each in walk(expr) if isinstance(each, Call)}
        probed = existences(expr)
        self.timed = bool(calls & _OF_TIME)
        self.whole = bool(probed or calls & (BOUND_TO_PLACE - _OF_TIME))
        self.named = expression_variables(expr)
        wanted = None if probed or calls & WHOLE else self.named
        self._places = [(name, i) for i, name in enumerate(names) if wanted is None or name in wanted]
        self._probes = {each: outside.probe(each, names) for each in probed}
        self._given = outside.given
        self._terms = {name: term_of(text) for name, text in outside.given.items()}

    def of(self, values: Values, start: int | None, end: int | None) -> SolutionScope:
        bindings = {n: term_of(text) for n, i in self._places if (text := values[i]) is not None}
        if self._terms:
            bindings = {**self._terms, **bindings}
        interval = None if start is None or end is None else (start, end)
        if not self._probes:
            return SolutionScope(bindings, interval)

        def exists(expr: Exists) -> bool:
            known = {n: text for n, i in self._places if (text := values[i]) is not None}
            return self._probes[expr].seen({**self._given, **known}, end) is not expr.negated

        return SolutionScope(bindings, interval, exists)


class SolutionTest:
    """A condition on solutions with some names; none holds always.

    `timed` and `whole`: what it says depends on the interval, or on more than the variables `named`.
    """

    def __init__(self, parts: Iterable[Expr], names: Sequence[str], outside: Outside) -> None:
        self._tests: list[_Test] = []
        self.named: set[str] = set()
        self.timed = self.whole = False
        for each in parts:
            self._tests.append(self._test(each, names, outside))

    def __bool__(self) -> bool:
        return bool(self._tests)

    def holds(self, values: Values, start: int | None, end: int | None) -> bool:
        """Whether it is true for a solution."""
        return all(test(values, start, end) for test in self._tests)

    def _test(self, expr: Expr, names: Sequence[str], outside: Outside) -> _Test:
        found = duration_comparison(expr)
        if found is not None:
            self.timed = True
            compare, micros = _COMPARISONS[found[0]], found[1]
            return lambda _, start, end: (
                start is not None and end is not None and compare(end - start, micros)
            )
        scopes = _Scopes(expr, names, outside)
        self.named |= scopes.named
        self.timed, self.whole = self.timed or scopes.timed, self.whole or scopes.whole
        return lambda values, start, end: holds(expr, scopes.of(values, start, end))


class Value:
    """The value of an expression on solutions with some names.

    That of a variable alone is at its `place`, and one that `is_end` hangs on the time alone.
    """

    def __init__(self, expr: Expr, names: Sequence[str], outside: Outside) -> None:
        self._expr = expr
        self._scopes = _Scopes(expr, names, outside)
        self.named, self.timed, self.whole = self._scopes.named, self._scopes.timed, self._scopes.whole
        self._names, calls = names, [each for each in walk(expr) if isinstance(each, Call)]
        self.is_arithmetic = bool(calls) and not outside.given and all(each.op in _EXACT for each in calls)
        """Whether it is made of integers alone wherever what it names are integers."""
        self.is_end = is_end(expr)
        self.place: int | None = None
        if isinstance(expr, VariableRef) and expr.name in names and expr.name not in outside.given:
            self.place = names.index(expr.name)

    def integers(self, values: Array, dictionary: Dictionary) -> Array:
        """The value for each solution where it is an integer of not too many digits; else `NOT_WHOLE`."""
        return self._integers(self._expr, values, dictionary)

    def _integers(self, expr: Expr, values: Array, dictionary: Dictionary) -> Array:
        if isinstance(expr, Call):
            left, right = (self._integers(each, values, dictionary) for each in expr.args)
            most = _MOST_FACTOR if expr.op == "*" else _MOST_TERM
            fits = (left > -most) & (left < most) & (right > -most) & (right < most)
            found = _EXACT[expr.op](np.where(fits, left, 0), np.where(fits, right, 0))
            return np.where(fits, found, NOT_WHOLE)
        if isinstance(expr, VariableRef) and expr.name in self._names:
            codes = values[:, self._names.index(expr.name)]
        else:
            code = dictionary.code(str(expr.term)) if isinstance(expr, TermConst) else -1
            codes = np.full(len(values), code, np.int32)
        return np.where(codes < 0, NOT_WHOLE, dictionary.wholes()[codes])

    def of(self, values: Values, start: int | None, end: int | None) -> str | None:
        """The value for a solution; None where there is none."""
        if self.place is not None:
            return values[self.place]
        try:
            return str(evaluate_expression(self._expr, self._scopes.of(values, start, end)))
        except ExpressionError:
            return None
