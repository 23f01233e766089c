"""Bounds that conditions between events imply for single events.

Where every ?a.x is above 500 and ?b.x - ?a.x must be above 50, an event whose x is below 550 is no ?b of any
match. Such an event need not meet the partial matches that wait. A bound only leaves out what the condition
itself would refuse, so nothing else changes: not which events count under `strict`, nor what `next` uses up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kaicep.kernel.automaton import certain
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.nodes import Pattern
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

__all__ = ["bounds_of"]

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS = (Type.INT64, Type.FLOAT64)
_MARGIN = 1e-12  # more than rounding can make of a bound


class _Side(NamedTuple):
    """One side of a comparison: a field less a field, either of which may be missing, and a number."""

    plus: Field | None
    minus: Field | None
    number: float


_Limits = dict[Field, float]


def bounds_of(pattern: Pattern) -> dict[str, list[Expr]]:
    """By variable, conditions that all its events in matches fulfil, besides those of its own."""
    low: _Limits = {}
    high: _Limits = {}
    once = certain(pattern.sequence) - loops_of(pattern.sequence).keys()
    for chain in pattern.chains:
        for each in chain.conditions if chain.variable in once else ():
            _note_own(each, low, high)
    own_low, own_high = dict(low), dict(high)
    differences = [found for each in pattern.conditions for found in _differences(each)]
    differences = [each for each in differences if each[0].variable in once and each[1].variable in once]
    for _ in differences:  # a bound may lead to others
        for above, below, least in differences:
            if below in low:
                _raise(low, above, _rounded(low[below], least, -1))
            if above in high:
                _lower(high, below, _rounded(high[above], -least, 1))
    made: dict[str, list[Expr]] = {}
    for op, limits, own in ((">=", low, own_low), ("<=", high, own_high)):
        for of, number in limits.items():
            if number != own.get(of):
                bound = Call(op, (of, Const(number, Type.FLOAT64)), Type.BOOL)
                made.setdefault(of.variable, []).append(bound)
    return made


def _rounded(bound: float, more: float, sign: int) -> float:
    return bound + more + sign * _MARGIN * (abs(bound) + abs(more))


def _raise(limits: _Limits, of: Field, number: float) -> None:
    limits[of] = max(number, limits.get(of, number))


def _lower(limits: _Limits, of: Field, number: float) -> None:
    limits[of] = min(number, limits.get(of, number))


def _note_own(condition: Expr, low: _Limits, high: _Limits) -> None:
    """What a condition on one event says of a number of it."""
    for of, number, op in _compared(condition):
        if of.plus is not None and of.minus is None and number.plus is number.minus is None:
            note, limits = (_raise, low) if op in (">", ">=") else (_lower, high)
            note(limits, of.plus, number.number - of.number)


def _differences(condition: Expr) -> Iterator[tuple[Field, Field, float]]:
    """A number of one event, that of another, and by how much it is larger at least."""
    for left, right, op in _compared(condition):
        fields = [left.plus, left.minus, right.plus, right.minus]
        if op not in (">", ">=") or sum(each is not None for each in fields) != 2:
            continue
        above, below = left.plus or right.minus, left.minus or right.plus
        if above is not None and below is not None and above.variable != below.variable:
            yield above, below, right.number - left.number


def _compared(condition: Expr) -> Iterable[tuple[_Side, _Side, str]]:
    """A comparison of numbers, read from both ends."""
    if not isinstance(condition, Call) or condition.op not in _TURNED:
        return ()
    left, right = map(_side, condition.args)
    if left is None or right is None or (left.number and right.number):
        return ()
    return (left, right, condition.op), (right, left, _TURNED[condition.op])


def _side(expr: Expr) -> _Side | None:
    if isinstance(expr, Const) and expr.type in _NUMBERS and isinstance(expr.value, int | float):
        return _Side(None, None, float(expr.value))
    if isinstance(expr, Field) and expr.type in _NUMBERS:
        return _Side(expr, None, 0.0)
    if not isinstance(expr, Call) or expr.op not in ("+", "-") or len(expr.args) != 2:
        return None
    left, right = map(_side, expr.args)
    if left is None or right is None or (left.minus or right.minus) is not None:
        return None
    if left.number and right.number:
        return None  # their sum may lose what they have
    if expr.op == "-":
        return _Side(left.plus, right.plus, left.number - right.number)
    if left.plus is not None and right.plus is not None:
        return None
    return _Side(left.plus or right.plus, None, left.number + right.number)
