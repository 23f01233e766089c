"""The chain of a variable: which events it may take, as one compiled test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kaicep.kernel.expressions import OneEvent, Writer
from kaicep.kernel.operator import Semantics
from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr
from kaicep.plan.nodes import Annotate, Filter, Interval, Node, Scan, Semantic, SemanticFilter

__all__ = ["Chain", "chain_of", "chain_parts"]


@dataclass(frozen=True)
class Chain:
    """The events that a variable may take: of its streams, inside the bounds, past its conditions."""

    variable: str
    streams: tuple[str, ...]
    within: Interval
    semantics: tuple[Semantic, ...]
    passes: Callable[[Event], bool] | None
    """Whether the FILTERs hold; None where there are none."""

    def means(self, event: Event, semantics: Semantics) -> bool:
        """Whether the PATH of the variable holds for the event."""
        return all(semantics.solutions(each, {self.variable: event}) for each in self.semantics)


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


def chain_of(node: Node) -> Chain:
    """The chain of operators below a pattern or a window."""
    scan, conditions, semantics = chain_parts(node)
    passes = _test(conditions, scan.streams) if conditions else None
    return Chain(scan.variable, scan.streams, scan.within, semantics, passes)


def _test(conditions: Iterable[Expr], streams: tuple[str, ...]) -> Callable[[Event], bool]:
    writer = Writer(streams)
    for each in conditions:
        writer.require(each, OneEvent())
    writer.lines.append("return True")
    return writer.function("event")
