"""Conditions and values over solutions.

What is said of the duration is compared as a number, at once; everything else is evaluated as SPARQL
says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kaicep.kernel.epsparql.reading import term_of
from kaicep.kernel.epsparql.state import InstantBatch, OccurrenceReader, Values, all_reads
from kaicep.plan.expressions import Call, Exists, Expr, VariableRef, walk
from kaicep.plan.functions import SolutionScope, evaluate_expression, holds
from kaicep.plan.program import duration_comparison
from kaicep.plan.values import ExpressionError

__all__ = [
    "BOUND_TO_PLACE",
    "SolutionTest",
    "Probe",
    "Value",
    "existences",
    "expression_variables",
]


class Probe(OccurrenceReader, Protocol):
    """Answers EXISTS."""

    def step(self, batch: InstantBatch) -> None:
        """Takes note of new occurrences."""

    def seen(self, given: Mapping[str, str], end: int | None) -> bool:
        """Whether the group has a solution for these terms that ends by then, or has no time."""
        ...


Probes = Mapping[Exists, Probe]
Given = Mapping[str, str]
_NONE: Given = {}
_Test = Callable[[Values, int | None, int | None], bool]

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


BOUND_TO_PLACE = frozenset(
    ("getduration", "getstarttime", "getendtime", "bnode", "solution", "rand", "uuid", "struuid", "now")
)
"""What these give depends on the interval, on the solution as a whole, or on chance."""

# What these give depends on all that a solution binds.
_WHOLE = ("bnode", "solution")


def existences(expr: Expr | None) -> list[Exists]:
    """Every EXISTS in an expression."""
    return [] if expr is None else [each for each in walk(expr) if isinstance(each, Exists)]


def expression_variables(expr: Expr) -> set[str]:
    """The variables that an expression names itself, not those inside of its EXISTS."""
    return {each.name for each in walk(expr) if isinstance(each, VariableRef)}


class _Scopes:
    """What an expression sees of a solution: the variables that it names, or all where that matters."""

    def __init__(self, expr: Expr, names: Sequence[str], probes: Probes, given: Given) -> None:
        whole = any(isinstance(e, Exists) or (isinstance(e, Call) and e.op in _WHOLE) for e in walk(expr))
        wanted = None if whole else expression_variables(expr)
        self._places = [(name, i) for i, name in enumerate(names) if wanted is None or name in wanted]
        self._probes = probes
        self._given = given
        self._terms = {name: term_of(text) for name, text in given.items()}

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
    """A condition on solutions with some names, beside terms that are given; none holds always."""

    def __init__(
        self, parts: Iterable[Expr], names: Sequence[str], probes: Probes, given: Given = _NONE
    ) -> None:
        self._probes = probes
        self._given = given
        self._tests = [self._test(each, names) for each in parts]

    def __bool__(self) -> bool:
        return bool(self._tests)

    def reads(self, *operators: OccurrenceReader) -> frozenset[str] | None:
        """The predicates that it and some operators look at; None is any."""
        return all_reads(*operators, *self._probes.values())

    def step(self, batch: InstantBatch) -> None:
        """Lets EXISTS take note of new occurrences."""
        for each in self._probes.values():
            each.step(batch)

    def holds(self, values: Values, start: int | None, end: int | None) -> bool:
        """Whether it is true for a solution."""
        return all(test(values, start, end) for test in self._tests)

    def _test(self, expr: Expr, names: Sequence[str]) -> _Test:
        found = duration_comparison(expr)
        if found is not None:
            compare, micros = _COMPARISONS[found[0]], found[1]
            return lambda _, start, end: (
                start is not None and end is not None and compare(end - start, micros)
            )
        scopes = _Scopes(expr, names, self._probes, self._given)
        return lambda values, start, end: holds(expr, scopes.of(values, start, end))


class Value:
    """The value of an expression on solutions with some names, beside terms that are given."""

    def __init__(self, expr: Expr, names: Sequence[str], probes: Probes, given: Given = _NONE) -> None:
        self._expr = expr
        self._probes = probes
        self._scopes = _Scopes(expr, names, probes, given)
        plain = isinstance(expr, VariableRef) and expr.name in names and expr.name not in given
        self._place = names.index(expr.name) if plain and isinstance(expr, VariableRef) else None

    def reads(self, *operators: OccurrenceReader) -> frozenset[str] | None:
        """The predicates that it and some operators look at; None is any."""
        return all_reads(*operators, *self._probes.values())

    def step(self, batch: InstantBatch) -> None:
        """Lets EXISTS take note of new occurrences."""
        for each in self._probes.values():
            each.step(batch)

    def of(self, values: Values, start: int | None, end: int | None) -> str | None:
        """The value for a solution; None where there is none."""
        if self._place is not None:
            return values[self._place]
        try:
            return str(evaluate_expression(self._expr, self._scopes.of(values, start, end)))
        except ExpressionError:
            return None
