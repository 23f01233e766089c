"""Which plans can be run over columns: found out without loading what runs them."""

from __future__ import annotations

from kaicep.kernel.epsparql.expressions import existences
from kaicep.plan.nodes import Bgp, Extend, FilterSolutions, Join, Node, Solutions, Temporal
from kaicep.plan.sparql import Path

__all__ = ["OVER_COLUMNS", "fits_columns"]

OVER_COLUMNS = ("SEQ", "DURING", "EQUALS", "FINISHES", "MEETS", "STARTS", "PAR")
"""The temporal operators that there are over columns."""


def fits_columns(root: Node) -> bool:
    """Whether all parts of a plan are of a kind that can be run over columns.

    >>> fits_columns(Solutions(Bgp(()), ("x",)))
    False
    """
    return isinstance(root, Solutions) and all(map(_fits, root.input.walk()))


def _fits(node: Node) -> bool:
    match node:
        case Bgp(patterns):
            return bool(patterns) and not any(isinstance(each.predicate, Path) for each in patterns)
        case FilterSolutions(condition=condition):
            return not existences(condition)
        case Extend(expr=expr):
            return not existences(expr)
        case Temporal():
            plain = node.condition is None and node.consumption == "unrestricted"
            return plain and node.op in OVER_COLUMNS
    return isinstance(node, Join)
