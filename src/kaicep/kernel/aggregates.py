"""Aggregates over a list of values, exact and rounded once (semantics 1).

A sum of doubles is kept as an integer over a power of two, so that nothing is ever lost: the order in which
values are added makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaicep.plan.types import INT64_MAX, INT64_MIN, Value


class Moments(NamedTuple):
    """How many numbers, their sum and the sum of their squares.

    The sums are `first / 2**shift` and `second / 4**shift`; `floats` of the numbers are float64.
    """

    numbers: int = 0
    floats: int = 0
    shift: int = 0
    first: int = 0
    second: int = 0


NO_MOMENTS = Moments()
"""The sums of nothing."""


def _moved(held: Moments, value: float, sign: int) -> Moments:
    count, floats, shift, first, second = held
    if isinstance(value, int):
        whole = value << shift
    else:
        floats += sign
        whole, below = value.as_integer_ratio()
        own = below.bit_length() - 1
        if own > shift:
            first <<= own - shift
            second <<= 2 * (own - shift)
            shift = own
        else:
            whole <<= shift - own
    return Moments(count + sign, floats, shift, first + sign * whole, second + sign * whole * whole)


def add(held: Moments, value: Value) -> Moments:
    """With one number more; null is none.

    >>> total_of(add(add(add(NO_MOMENTS, 1e100), 1.0), -1e100))
    1.0
    """
    return held if value is None else _moved(held, value, 1)  # type: ignore[arg-type]


def _quotient(above: int, below: int) -> float | None:
    """Of integers `/` is exact and rounds once; None where no double is large enough."""
    try:
        return above / below
    except OverflowError:
        return None


def total_of(held: Moments) -> Value:
    """SUM."""
    if held.numbers == 0:
        return None
    if held.floats == 0:
        whole = held.first >> held.shift
        return whole if INT64_MIN <= whole <= INT64_MAX else None
    return _quotient(held.first, 1 << held.shift)


def _average_of(held: Moments) -> Value:
    if held.numbers == 0:
        return None
    if held.floats == 0:
        return (held.first >> held.shift) / held.numbers
    total = _quotient(held.first, 1 << held.shift)
    return None if total is None else total / held.numbers


def _deviation_of(held: Moments) -> Value:
    n = held.numbers
    if n < 2:
        return None
    spread = n * held.second - held.first * held.first
    variance = _quotient(spread, (n * (n - 1)) << (2 * held.shift))
    return None if variance is None else math.sqrt(variance)


# --- over values that only come --------------------------------------------------------------------------


@dataclass(frozen=True)
class Fold:
    """An aggregate as a fold: from `empty`, value by value; nothing that was made ever changes."""

    empty: Any
    add: Callable[[Any, Value], Any]
    result: Callable[[Any], Value]

    def of(self, values: Iterable[Value]) -> Value:
        """The aggregate of some values.

        >>> FOLDS["AVG"].of([1, None, 2]), FOLDS["MAX"].of([])
        (1.5, None)
        """
        held = self.empty
        for value in values:
            held = self.add(held, value)
        return self.result(held)


def _itself(held: Any) -> Value:
    return held  # type: ignore[no-any-return]


def _smaller(held: Any, value: Any) -> Any:
    return held if value is None or (held is not None and held <= value) else value


def _larger(held: Any, value: Any) -> Any:
    return held if value is None or (held is not None and held >= value) else value


def _extreme(held: Any) -> Value:
    # The two zeros are equal, so which of them came first must not show.
    return held + 0.0 if isinstance(held, float) else held


FOLDS: dict[str, Fold] = {
    "EVENTS": Fold(0, lambda held, _: held + 1, _itself),
    "COUNT": Fold(0, lambda held, value: held if value is None else held + 1, _itself),
    "DISTINCT": Fold(frozenset(), lambda held, value: held if value is None else held | {value}, len),
    "SUM": Fold(NO_MOMENTS, add, total_of),
    "AVG": Fold(NO_MOMENTS, add, _average_of),
    "STDDEV": Fold(NO_MOMENTS, add, _deviation_of),
    "MIN": Fold(None, _smaller, _extreme),
    "MAX": Fold(None, _larger, _extreme),
    "FIRST": Fold((), lambda held, value: held or (value,), lambda held: held[0] if held else None),
    "LAST": Fold(None, lambda _, value: value, _itself),
}
"""By name; `EVENTS` is COUNT of events, `DISTINCT` is COUNT of different values."""
