"""Conditions taken down to where all that they speak of is bound: pairs that cannot pass are never made.

They stay where they were as well, so that a state from before they were taken down is still judged right.
"""

from __future__ import annotations

from dataclasses import replace

from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, expression_variables
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.durations import conjuncts
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.nodes import Bgp, Extend, FilterSolutions, Join, Node, Solutions, Temporal, Triples

__all__ = ["pushed"]


def pushed(node: Node) -> Node:
    """The plan with its conditions on the sides of joins too."""
    match node:
        case Solutions(below) | Triples(below):
            return replace(node, input=pushed(below))
        case FilterSolutions(below, condition):
            movable = [each for each in conjuncts(condition) if _is_movable(each)]
            return replace(node, input=_with(pushed(below), movable))
        case Extend(below):
            return replace(node, input=pushed(below))
        case Join(left, right):
            return replace(node, left=pushed(left), right=pushed(right))
        case Temporal(left=left, right=right) if _is_plain(node):
            return replace(node, left=pushed(left), right=pushed(right))
    return node


def _with(node: Node, parts: list[Expr]) -> Node:
    """A plan with conditions on those of its sides that bind all their variables."""
    if isinstance(node, FilterSolutions):
        return replace(node, input=_with(node.input, parts))
    if not isinstance(node, Join) and not _is_plain(node):
        return node
    assert isinstance(node, Join | Temporal)
    return replace(node, left=_side(node.left, parts), right=_side(node.right, parts))


def _side(node: Node, parts: list[Expr]) -> Node:
    bound = _bound(node)
    fitting = [each for each in parts if expression_variables(each) <= bound]
    if not fitting:
        return node
    condition = fitting[0] if len(fitting) == 1 else Call("and", tuple(fitting))
    return FilterSolutions(_with(node, fitting), condition)


def _bound(node: Node) -> set[str]:
    """The variables that every solution binds."""
    match node:
        case Bgp(patterns):
            return {name for each in patterns for name in pattern_variables(each)}
        case FilterSolutions(below):
            return _bound(below)
        case Join(left, right):
            return _bound(left) | _bound(right)
        case Temporal(left=left, right=right) if _is_plain(node):
            return _bound(left) | _bound(right)
    return set()


def _is_plain(node: Node) -> bool:
    return (
        isinstance(node, Temporal)
        and node.op not in ("OPTIONALSEQ", "EQUALSOPTIONAL", "NOT")
        and node.consumption == "unrestricted"
    )


def _is_movable(expr: Expr) -> bool:
    if not expression_variables(expr):
        return False
    return not any(
        isinstance(each, Exists) or (isinstance(each, Call) and each.op in BOUND_TO_PLACE)
        for each in walk(expr)
    )
