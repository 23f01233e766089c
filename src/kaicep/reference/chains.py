"""What reaches a pattern or a window: the events that each variable may take, in order, in partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr, variables_of
from kaicep.plan.nodes import Annotate, Filter, Interval, Node, Scan, Semantic, SemanticFilter
from kaicep.plan.terms import Term
from kaicep.plan.types import Value
from kaicep.reference.expressions import Environment, evaluate

__all__ = ["Chain", "Key", "Row", "Semantics", "chain_of", "in_order", "key_of", "partitions"]

Row = tuple[Term | None, ...]
"""The values of the selected variables of a PATH, in one of its solutions."""

Key = tuple[Value, ...]
"""The values that events of one partition, or of one group, have in common."""


class Semantics(Protocol):
    """What decides the PATHs; patterns and windows ask no more of it than this."""

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing."""
        ...


@dataclass(frozen=True)
class Chain:
    """The events that a variable may take: of its streams, inside the bounds, past its conditions."""

    variable: str
    streams: tuple[str, ...]
    within: Interval
    semantics: tuple[Semantic, ...] = ()
    conditions: tuple[Expr, ...] = ()

    def sees(self, event: Event) -> bool:
        """Whether the event is of the variable's streams and inside WITHIN."""
        return event.stream in self.streams and event.ts in self.within

    def means(self, event: Event, semantics: Semantics) -> bool:
        """Whether the PATH of the variable holds for the event."""
        return all(semantics.solutions(each, {self.variable: event}) for each in self.semantics)

    def passes(self, event: Event) -> bool:
        """Whether the FILTERs of the variable hold for the event."""
        env = Environment({self.variable: event})
        return all(evaluate(each, env) is True for each in self.conditions)


def chain_of(node: Node) -> Chain:
    """The chain of operators below a pattern or a window, read from the source upwards."""
    match node:
        case Scan():
            return Chain(node.variable, node.streams, node.within)
        case Annotate():
            return chain_of(node.input)
        case SemanticFilter():
            below = chain_of(node.input)
            return replace(below, semantics=below.semantics + node.conditions)
        case Filter():
            below = chain_of(node.input)
            return replace(below, conditions=below.conditions + node.conditions)
    raise TypeError(f"{type(node).__name__} does not belong into the chain of a variable")


def in_order(events: Iterable[Event], streams: Sequence[str]) -> list[Event]:
    """The events in the order of time; at one instant, by stream and then by identity (semantics 1)."""
    place = {name: index for index, name in enumerate(streams)}
    return sorted(events, key=lambda each: (each.ts, place[each.stream], each.id or "", each.part, each.seq))


def key_of(exprs: tuple[Expr, ...], event: Event) -> Key:
    """The values of the event by which it is partitioned or grouped, whichever variable is named."""
    values = []
    for expr in exprs:
        value = evaluate(expr, Environment(dict.fromkeys(variables_of(expr), event)))
        # The two zeros are one value, and the key shows in the match's id.
        values.append(value + 0.0 if isinstance(value, float) else value)
    return tuple(values)


def partitions(events: Iterable[Event], exprs: tuple[Expr, ...]) -> dict[Key, list[Event]]:
    """The events by partition, in their order; null is a value, and no key is one partition."""
    found: dict[Key, list[Event]] = {}
    for event in events:
        found.setdefault(key_of(exprs, event), []).append(event)
    return found
