"""Aggregates that do not drift: computed exactly, rounded once (semantics 1).

The answer depends on the values alone, not on their order, except for FIRST and LAST.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from kaicep.plan.types import INT64_MAX, INT64_MIN, Value

__all__ = ["aggregate"]

Number = int | float


def aggregate(op: str, values: Sequence[Value], distinct: bool = False) -> Value:
    """An aggregate over the values of some events, in the order of the events.

    >>> aggregate("SUM", [0.1] * 10), aggregate("AVG", [1, None, 2]), aggregate("MAX", [])
    (1.0, 1.5, None)
    >>> aggregate("COUNT", ["a", None, "a"]), aggregate("COUNT", ["a", None, "a"], distinct=True)
    (2, 1)
    """
    if op in ("FIRST", "LAST"):
        return values[0 if op == "FIRST" else -1] if values else None
    present = [each for each in values if each is not None]
    if op == "COUNT":
        return len(set(present)) if distinct else len(present)
    if not present:
        return None
    if op in ("MIN", "MAX"):
        return _extreme(op, present)
    numbers = [each for each in present if isinstance(each, int | float)]
    if op == "SUM":
        return _sum(numbers)
    if op == "AVG":
        return _average(numbers)
    if op == "STDDEV":
        return _standard_deviation(numbers)
    raise ValueError(f"unknown aggregate {op}")


def _extreme(op: str, values: list[Any]) -> Value:
    found: Value = min(values) if op == "MIN" else max(values)
    # The two zeros are equal, so which of them came first must not show.
    return found + 0.0 if isinstance(found, float) else found


def _sum(numbers: list[Number]) -> Number | None:
    if all(isinstance(each, int) for each in numbers):
        whole = sum(numbers)
        return whole if INT64_MIN <= whole <= INT64_MAX else None
    return _rounded_sum(numbers)


def _rounded_sum(numbers: list[Number]) -> float | None:
    try:
        return math.fsum(numbers)
    except OverflowError:  # of a partial sum, perhaps; whether of the whole must not depend on the order
        return _rounded(sum(Fraction(each) for each in numbers))


def _average(numbers: list[Number]) -> float | None:
    if all(isinstance(each, int) for each in numbers):
        return sum(numbers) / len(numbers)  # of integers, `/` is exact and rounds once
    whole = _rounded_sum(numbers)
    return None if whole is None else whole / len(numbers)


def _standard_deviation(numbers: list[Number]) -> float | None:
    n = len(numbers)
    if n < 2:
        return None
    # Every double is an integer over a power of two; over the largest of these all are integers.
    ratios = [each.as_integer_ratio() for each in numbers]
    scale = max(below for _, below in ratios)
    whole = [above * (scale // below) for above, below in ratios]
    spread = n * sum(each * each for each in whole) - sum(whole) ** 2
    variance = _rounded(Fraction(spread, n * (n - 1) * scale * scale))
    return None if variance is None else math.sqrt(variance)


def _rounded(exact: Fraction | int) -> float | None:
    try:
        return float(exact)
    except OverflowError:
        return None
