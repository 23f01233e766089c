"""How much time the answers of an EP-SPARQL query can take, as its conditions on the duration bound it."""

from __future__ import annotations

from collections.abc import Callable

from kaicep.plan.expressions import Call, Expr, TermConst
from kaicep.plan.literals import parse_xsd_duration
from kaicep.plan.nodes import (
    Evaluations,
    Extend,
    FilterSolutions,
    Join,
    Node,
    Solutions,
    Table,
    Temporal,
    Triples,
    Union,
)
from kaicep.plan.terms import XSD, Literal, Term

__all__ = ["conjuncts", "duration_bound", "duration_comparison", "duration_of", "longest", "tighter"]

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def conjuncts(condition: Expr | None) -> tuple[Expr, ...]:
    """The conditions that must all be true; an error in one is like a falsehood."""
    if condition is None:
        return ()
    if isinstance(condition, Call) and condition.op == "and":
        return tuple(part for each in condition.args for part in conjuncts(each))
    return (condition,)


def duration_of(term: Term) -> int | None:
    """The microseconds of a literal that is a duration of days and time; None of any other term."""
    if not isinstance(term, Literal) or term.datatype not in (XSD + "duration", XSD + "dayTimeDuration"):
        return None
    return parse_xsd_duration(term.lexical)


def duration_comparison(expr: Expr) -> tuple[str, int] | None:
    """`getDURATION()` compared with a constant: the sign and the microseconds."""
    if not isinstance(expr, Call) or expr.op not in _MIRRORED:
        return None
    left, right = expr.args
    sign = expr.op
    if isinstance(left, TermConst):
        left, right, sign = right, left, _MIRRORED[sign]
    if not (isinstance(left, Call) and left.op == "getduration" and isinstance(right, TermConst)):
        return None
    micros = duration_of(right.term)
    return None if micros is None else (sign, micros)


def duration_bound(condition: Expr | None) -> int | None:
    """The longest duration in microseconds that a condition lets pass; None is any."""
    bounds: list[int] = []
    for each in conjuncts(condition):
        found = duration_comparison(each)
        if found is not None and found[0] in ("<", "<=", "="):
            bounds.append(found[1] - (found[0] == "<"))
    return min(bounds, default=None)


def tighter(first: int | None, second: int | None) -> int | None:
    """The smaller of two bounds; None is no bound."""
    return min((each for each in (first, second) if each is not None), default=None)


def longest(node: Node) -> int | None:
    """The longest that a solution of an operator can last, in microseconds; None where nothing bounds it.

    What has no time lasts for none of it.
    """
    match node:
        case FilterSolutions(below, condition):
            return tighter(longest(below), duration_bound(condition))
        case Extend(below) | Solutions(below) | Triples(below):
            return longest(below)
        case Table():
            return 0
        case Evaluations(_, windows, "RSTREAM"):
            widths = [each.width for each in windows]
            return None if None in widths else max(each for each in widths if each is not None)
        case Union(left, right):
            return _both(max, left, right)
        case Join(left, right) if isinstance(left, Table) or isinstance(right, Table):
            return _both(max, left, right)
        case Temporal("EQUALS", left, right):
            return tighter(longest(left), longest(right))
        case Temporal("NOT", whole, _) | Temporal("DURING" | "STARTS" | "FINISHES", _, whole):
            return longest(whole)
        case Temporal("MEETS" | "PAR", left, right):
            return _both(lambda one, other: one + other, left, right)
    return None


def _both(together: Callable[[int, int], int], left: Node, right: Node) -> int | None:
    one, other = longest(left), longest(right)
    return None if one is None or other is None else together(one, other)
