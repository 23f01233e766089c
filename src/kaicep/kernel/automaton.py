"""The steps of a pattern, and the bounds that its conditions imply for single events (semantics 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, Together
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.nodes import Pattern
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

# ----------------------------------------------------------------------------------------------------------
# The steps of a pattern: what may come next after some of its events are found (semantics 2).
#
# What is left of a pattern is a pattern again, so a state is what is left and which variables have events.
# From a state lead *frontiers*. Where the pattern leaves a choice that is not the events' to make (one more
# round of a loop, or none), each way is a frontier of its own. Where the event decides (which branch of a
# disjunction, which member of a conjunction), all these places are in one frontier: `MATCH next` takes, for
# each frontier, the earliest event that fits any of its places. States are made as they are reached.

Residual = tuple[Element, ...]
"""What is left of a pattern."""

Steps = tuple[tuple[str, Residual], ...]
"""Places that stand open side by side: the variable to bind, and what is left after that."""


def may_end(rest: Residual) -> bool:
    """Whether a match may be complete although this is left of the pattern."""
    return all(_optional(each) for each in rest)


def _optional(element: Element) -> bool:
    match element:
        case Loop():
            return element.least == 0
        case Absent():
            return True
        case Choice():
            return any(map(_optional, element.members))
        case Together():
            return all(map(_optional, element.members))
    return False


@lru_cache(maxsize=4096)
def steps(rest: Residual) -> tuple[Steps, ...]:
    """The frontiers of what is left; each belongs to one element of the pattern.

    >>> [[variable for variable, _ in each] for each in steps((Loop("b", 0, None), Place("c")))]
    [['b'], ['c']]
    >>> [[variable for variable, _ in each] for each in steps((Choice((Place("b"), Place("c"))),))]
    [['b', 'c']]
    """
    found: list[Steps] = []
    for index, element in enumerate(rest):
        later = rest[index + 1 :]
        found += [tuple((name, left + later) for name, left in each) for each in _inside(element)]
        if not _optional(element):
            break
    return tuple(found)


def _inside(element: Element) -> list[Steps]:
    """The frontiers of one element; what is left is what is left of that element."""
    return [frontier for frontier, _ in _ways(element)]


def _ways(element: Element) -> list[tuple[Steps, Element]]:
    """The frontiers of one element, each with what the element is once this frontier is chosen.

    What a frontier leaves out of a conjunction is left out for good, inside groups too.
    """
    match element:
        case Place():
            return [(((element.variable, ()),), element)]
        case Loop():
            if element.most == 0:
                return []
            most = None if element.most is None else element.most - 1
            rest = Loop(element.variable, max(element.least - 1, 0), most)
            return [(((element.variable, (rest,)),), element)]
        case Choice():
            members = [found for found in map(_ways, element.members) if found]
            return [_side_by_side(way) for way in product(*members)] if members else []
        case Together():
            return _members(element.members)
    return []  # an absence takes no event


def _side_by_side(way: tuple[tuple[Steps, Element], ...]) -> tuple[Steps, Element]:
    frontier: Steps = sum((steps for steps, _ in way), ())
    return frontier, Choice(tuple(member for _, member in way))


def _members(members: tuple[Element, ...]) -> list[tuple[Steps, Element]]:
    """Every member goes on in one of its ways, or is done for good where it may be."""
    found: list[tuple[Steps, Element]] = []
    for way in product(*(_ways(each) + ([((), each)] if _optional(each) else []) for each in members)):
        going = [(member, frontier) for frontier, member in way if frontier]
        taken: list[tuple[str, Residual]] = []
        for index, (_, frontier) in enumerate(going):
            before = tuple(member for member, _ in going[:index])
            after = tuple(member for member, _ in going[index + 1 :])
            taken += [(name, (Together(before + left + after),)) for name, left in frontier]
        if taken:
            found.append((tuple(taken), Together(tuple(member for member, _ in going))))
    return found


def variables_in(element: Element) -> Iterator[str]:
    """The variables that an element may bind."""
    match element:
        case Place():
            yield element.variable
        case Loop():
            if element.most != 0:
                yield element.variable
        case Choice() | Together():
            for each in element.members:
                yield from variables_in(each)


@lru_cache(maxsize=4096)
def open_variables(rest: Residual) -> frozenset[str]:
    """The variables that may still be bound."""
    return frozenset(name for each in rest for name in variables_in(each))


@lru_cache(maxsize=4096)
def certain(rest: Residual) -> frozenset[str]:
    """The variables that will be bound in every match that goes on from here."""
    names: set[str] = set()
    for each in rest:
        if isinstance(each, Together):
            names |= certain(each.members)
        elif isinstance(each, Place) or (isinstance(each, Loop) and each.least > 0):
            names.add(each.variable)
    return frozenset(names)


# ----------------------------------------------------------------------------------------------------------
# Bounds that conditions between events imply for single events.
#
# Where every ?a.x is above 500 and ?b.x - ?a.x must be above 50, an event whose x is below 550 is no ?b of
# any match. Such an event need not meet the partial matches that wait. A bound only leaves out what the
# condition itself would refuse, so nothing else changes: not which events count under `strict`, nor what
# `next` uses up.

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
