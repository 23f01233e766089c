"""The chain of a variable: which events it may take."""

from __future__ import annotations

from kaicep.plan.expressions import Expr
from kaicep.plan.nodes import Annotate, Filter, Node, Scan, Semantic, SemanticFilter

__all__ = ["chain_parts"]


def chain_parts(node: Node) -> tuple[Scan, tuple[Expr, ...], tuple[Semantic, ...]]:
    """What stands in the chain below a pattern or a window: its scan, its FILTERs, its PATHs."""
    conditions: tuple[Expr, ...] = ()
    semantics: tuple[Semantic, ...] = ()
    while not isinstance(node, Scan):
        if isinstance(node, Filter):
            conditions = (*node.conditions, *conditions)
        elif isinstance(node, SemanticFilter):
            semantics = (*node.conditions, *semantics)
        elif not isinstance(node, Annotate):
            raise TypeError(f"{type(node).__name__} does not belong into the chain of a variable")
        node = node.input
    return node, conditions, semantics
