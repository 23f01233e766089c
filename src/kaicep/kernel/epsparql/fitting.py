"""Which plans can be run over columns: found out without loading what runs them."""

from __future__ import annotations

from kaicep.kernel.epsparql.expressions import existences
from kaicep.plan.durations import conjuncts
from kaicep.plan.expressions import Exists, Expr
from kaicep.plan.nodes import (
    Bgp,
    Extend,
    FilterSolutions,
    Grouping,
    Join,
    LeftJoin,
    Minus,
    Node,
    Solutions,
    Table,
    Temporal,
    Triples,
    Union,
)
from kaicep.plan.sparql import Alternative, Inverse, Predicate, Repeat, Sequence
from kaicep.plan.terms import Variable

__all__ = ["fits_columns"]


def fits_columns(root: Node) -> bool:
    """Whether all parts of a plan are of a kind that can be run over columns.

    >>> fits_columns(Solutions(Bgp(()), ("x",)))
    False
    """
    return isinstance(root, Solutions | Triples) and all(map(_fits, root.input.walk()))


def _fits(node: Node) -> bool:
    match node:
        case Bgp(patterns):
            return bool(patterns) and all(_is_walked(each.predicate) for each in patterns)
        case FilterSolutions(condition=condition):
            return all(map(_is_judged, conjuncts(condition)))
        case Extend(expr=expr):
            return not existences(expr)
        case Temporal():
            return not existences(node.condition) and (node.consumption == "unrestricted" or node.op == "NOT")
        case Grouping(_, keys, aggregates):
            exprs = [expr for _, expr in keys] + [each.of for _, each in aggregates]
            return not any(map(existences, exprs))
        case LeftJoin(condition=condition):
            return not existences(condition)
    return isinstance(node, Join | Minus | Solutions | Table | Union)


def _is_walked(path: Predicate | Variable) -> bool:
    """Whether a path is as many steps long wherever it leads."""
    match path:
        case Inverse(of):
            return _is_walked(of)
        case Sequence(parts) | Alternative(parts):
            return all(map(_is_walked, parts))
    return not isinstance(path, Repeat)


def _is_judged(part: Expr) -> bool:
    """Whether a condition has no EXISTS, or is one whose group is fit as well."""
    if not isinstance(part, Exists):
        return not existences(part)
    return isinstance(part.group, Node) and all(map(_fits, part.group.walk()))
