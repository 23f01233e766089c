"""The aggregates of SPARQL over the values of a group, in an order that is given.

No result depends on the order of arrival: floating sums are exact sums rounded once, SAMPLE takes the
smallest value, GROUP_CONCAT gets its values in the order of their solutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import reduce

from kaicep.plan.terms import Blank, Iri, Literal, Term
from kaicep.plan.values import (
    ExpressionError,
    Number,
    add_exactly,
    as_double,
    calculate,
    number,
    numeral,
    order_key,
)

__all__ = ["aggregate"]


def aggregate(op: str, values: Sequence[Term | None], separator: str = " ") -> Term:
    """The aggregate of some values, of which None is an error; `ExpressionError` where there is none.

    >>> from kaicep.plan.terms import XSD
    >>> aggregate("SUM", [Literal("1", XSD + "integer"), Literal("2.5", XSD + "decimal")]).lexical
    '3.5'
    """
    found = [each for each in values if each is not None]
    if op == "COUNT":
        return numeral(Number(0, len(found)))
    if op == "SAMPLE":
        return min(_some(found), key=order_key)
    if len(found) < len(values):
        raise ExpressionError(f"{op} over an error")
    if op == "SUM":
        return numeral(_sum([number(each) for each in found]))
    if op == "AVG":
        return numeral(_average([number(each) for each in found]))
    if op == "MIN":
        return min(_some(found), key=order_key)
    if op == "MAX":
        return max(_some(found), key=order_key)
    return Literal(separator.join(_text(each) for each in found))


def _some(values: Sequence[Term]) -> Sequence[Term]:
    if not values:
        raise ExpressionError("an aggregate of nothing")
    return values


def _sum(numbers: Sequence[Number]) -> Number:
    kind = max((each.kind for each in numbers), default=0)
    if kind < 2:
        start = Decimal(0) if kind else 0
        return Number(kind, reduce(add_exactly, (each.value for each in numbers), start))
    values = [as_double(each.value) for each in numbers]
    special = [each for each in values if not math.isfinite(each)]
    return Number(kind, sum(special) if special else as_double(sum(map(Fraction, values))))


def _average(numbers: Sequence[Number]) -> Number:
    if not numbers:
        return Number(0, 0)
    return calculate("/", _sum(numbers), Number(0, len(numbers)))


def _text(term: Term) -> str:
    if isinstance(term, Literal):
        return term.lexical
    if isinstance(term, Iri):
        return term.value
    raise ExpressionError(f"{term} has no text" if isinstance(term, Blank) else "no text")
