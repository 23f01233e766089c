"""Expressions and aggregates, defined: three-valued logic, and sums that are rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous
from kaicep.plan.regex import matcher
from kaicep.plan.time import DURATION_UNITS, parse_time, zone_offset
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value

# ----------------------------------------------------------------------------------------------------------
# Aggregates that do not drift: computed exactly, rounded once (semantics 1).
#
# The answer depends on the values alone, not on their order, except for FIRST and LAST.

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


# ----------------------------------------------------------------------------------------------------------
# The value of a chi-CEP expression (semantics 1): three-valued logic, nothing that overflows in silence.

_FIRST_INSTANT = parse_time("0001-01-01") or 0
_LAST_INSTANT = parse_time("9999-12-31T23:59:59.999999") or 0


@dataclass(frozen=True)
class Environment:
    """What the variables of an expression stand for.

    `events`: the event of a variable, None where it was left out. `previous`: that of the round
    before. `rounds`: the events that an aggregate over the variable covers, in order.
    """

    events: Mapping[str, Event | None] = field(default_factory=dict)
    previous: Mapping[str, Event] = field(default_factory=dict)
    rounds: Mapping[str, Sequence[Event]] = field(default_factory=dict)


def evaluate(expr: Expr, env: Environment) -> Value:
    """The value of a resolved expression; None is null.

    >>> evaluate(Call("+", (Const(2**63 - 1, Type.INT64), Const(1, Type.INT64))), Environment()) is None
    True
    """
    match expr:
        case Const():
            return expr.value
        case Field():
            event = env.events.get(expr.variable)
            return None if event is None else read(expr, event)
        case Previous():
            return evaluate(expr.of, replace(env, events={**env.events, **env.previous}))
        case Aggregate():
            return _aggregate(expr, env)
        case Call():
            return _call(expr, env)
    raise TypeError(f"{type(expr).__name__} has no value in chi-CEP")


def read(field: Field, event: Event) -> Value:
    """The value of an attribute or a concept: of those that carry it there, the first that is not null."""
    names = next((found for stream, found in field.sources if stream == event.stream), ())
    for name in names:
        value = event.value(name)
        if value is not None:
            # On a stream where the attribute is int64, a float64 beside it on another widens it.
            return float(value) if field.type is Type.FLOAT64 and isinstance(value, int) else value
    return None


def _aggregate(expr: Aggregate, env: Environment) -> Value:
    assert expr.variable is not None
    events = env.rounds.get(expr.variable, ())
    if expr.of is None:
        return len(events)
    values = [evaluate(expr.of, Environment({expr.variable: each})) for each in events]
    return aggregate(expr.op, values, expr.distinct)


def _call(expr: Call, env: Environment) -> Value:
    args = [evaluate(each, env) for each in expr.args]
    if expr.op in _WITH_NULLS:
        return _WITH_NULLS[expr.op](*args)
    if any(each is None for each in args):
        return None
    return _in_range(_WITHOUT_NULLS[expr.op](*args), expr.type)


def _in_range(value: Value, type: Type | None) -> Value:
    """The value, or null where its type cannot hold it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return None
    if isinstance(value, int) and type is Type.TIMESTAMP and not _FIRST_INSTANT <= value <= _LAST_INSTANT:
        return None  # no calendar could write it down
    return value


# --- logic: nulls have a say of their own --------------------------------------------------------------


def _and(*args: Value) -> Value:
    if any(each is False for each in args):
        return False
    return None if any(each is None for each in args) else True


def _or(*args: Value) -> Value:
    if any(each is True for each in args):
        return True
    return None if any(each is None for each in args) else False


def _in(value: Value, *choices: Value) -> Value:
    return _or(*(None if value is None or each is None else value == each for each in choices))


def _if(condition: Value, then: Value, otherwise: Value) -> Value:
    return then if condition is True else otherwise


def _coalesce(*args: Value) -> Value:
    return next((each for each in args if each is not None), None)


_WITH_NULLS: dict[str, Callable[..., Value]] = {
    "and": _and,
    "or": _or,
    "in": _in,
    "if": _if,
    "coalesce": _coalesce,
}


# --- everything else: a null makes null ------------------------------------------------------------------


def _divide(left: float, right: float) -> Value:
    return None if right == 0 else float(left) / float(right)


def _remainder(left: float, right: float) -> Value:
    """With the sign of the left side."""
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) % abs(right) * (-1 if left < 0 else 1)
    return math.fmod(left, right)


def _whole(to_integer: Callable[[float], int]) -> Callable[[float], Value]:
    """A rounding that keeps the type of its argument."""

    def rounding(value: float) -> Value:
        return value if isinstance(value, int) else float(to_integer(value))

    return rounding


def _half_away_from_zero(value: float) -> int:
    size = abs(value)
    whole = math.floor(size)
    # The difference is exact; adding a half to the size would not be.
    rounded = whole + 1 if size - whole >= 0.5 else whole
    return -rounded if value < 0 else rounded


def _hour(ts: int, zone: str = "UTC") -> Value:
    return (ts + zone_offset(ts, zone)) // DURATION_UNITS["h"] % 24


def _day_of_week(ts: int, zone: str = "UTC") -> Value:
    days = (ts + zone_offset(ts, zone)) // DURATION_UNITS["d"]
    return (days + 3) % 7 + 1  # 1970 began on a Thursday, the fourth


def _regex(text: str, pattern: str) -> Value:
    return matcher(pattern)(text)


_WITHOUT_NULLS: dict[str, Callable[..., Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": _remainder,
    "neg": lambda value: -value,
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "not": lambda value: not value,
    "float": float,
    "abs": abs,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(_half_away_from_zero),
    "lower": str.lower,
    "upper": str.upper,
    "contains": lambda text, part: part in text,
    "startsWith": str.startswith,
    "regex": _regex,
    "hour": _hour,
    "dayOfWeek": _day_of_week,
}
