"""What reaches a pattern or a window: the events that each variable may take, in order, in partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr, VariableRef, variables_of
from kaicep.plan.nodes import Chain, Semantic
from kaicep.plan.paths import restricted
from kaicep.plan.results import Terms
from kaicep.plan.terms import Term
from kaicep.plan.types import Value
from kaicep.reference.expressions import Environment, evaluate

__all__ = [
    "Chain",
    "EnvironmentOf",
    "Key",
    "Partition",
    "Row",
    "PathSemantics",
    "in_order",
    "key_of",
    "key_with_terms",
    "may_take",
    "means",
    "parted",
    "partitions",
    "solution_terms",
]

Row = tuple[Term | None, ...]
"""The values of the selected variables of a PATH, in one of its solutions."""

Key = tuple[Value, ...]
"""The values that events of one partition, or of one group, have in common."""


EnvironmentOf = Callable[[Expr], Environment]
"""What an expression speaks of, by expression."""


class PathSemantics(Protocol):
    """What decides the PATHs; patterns and windows ask no more of it than this."""

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: EnvironmentOf | None = None
    ) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing.

        `env_of` says what each of its expressions speaks of, where that is more than the events bound.
        """
        ...

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """The same of a condition about no event: what the knowledge says at some time."""
        ...

    def inside(self, given: Terms) -> PathSemantics:
        """The same inside a partition: the variables that it goes by stand for these terms."""
        ...


def sees(chain: Chain, event: Event) -> bool:
    """Whether the event is of the variable's streams and inside WITHIN."""
    return event.stream in chain.streams and event.ts in chain.within


def means(chain: Chain, event: Event, semantics: PathSemantics) -> bool:
    """Whether the PATH of the variable holds for the event."""
    return all(semantics.solutions(each, {chain.variable: event}) for each in chain.semantics)


def passes(chain: Chain, event: Event) -> bool:
    """Whether the FILTERs of the variable hold for the event."""
    env = Environment({chain.variable: event})
    return all(evaluate(each, env) is True for each in chain.conditions)


def may_take(chain: Chain, event: Event, semantics: PathSemantics) -> bool:
    """Whether the variable may take the event."""
    return sees(chain, event) and passes(chain, event) and means(chain, event, semantics)


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


@dataclass(frozen=True)
class Partition:
    """Events that are evaluated by themselves, and what decides their PATHs there."""

    key: Key
    events: list[Event]
    semantics: PathSemantics


def parted(
    events: Iterable[Event],
    exprs: tuple[Expr, ...],
    ties: Sequence[tuple[Chain, Semantic]],
    given: PathSemantics,
) -> list[Partition]:
    """The partitions of events that are given in order; a variable of the PATH may be in their key.

    An event is in the partition of every value that the part of the PATH which ties one of its variables
    finds for it. The text of a term is what the partition is known by.
    """
    names = tuple(each.name for each in exprs if isinstance(each, VariableRef))
    if not names:
        return [Partition(key, some, given) for key, some in partitions(events, exprs).items()]
    found: dict[tuple[Key, Row], list[Event]] = {}
    for event in events:
        rows = [given.solutions(tie, {chain.variable: event}) for chain, tie in ties if sees(chain, event)]
        for row in frozenset[Row]().union(*rows):
            key = key_with_terms(exprs, event, dict(zip(names, row, strict=True)))
            found.setdefault((key, row), []).append(event)
    return [
        Partition(key, some, given.inside(dict(zip(names, row, strict=True))))
        for (key, row), some in found.items()
    ]


def key_with_terms(exprs: tuple[Expr, ...], event: Event, terms: Terms) -> Key:
    """The values by which an event is partitioned or grouped, those of the PATH's variables by their text."""
    values: list[Value] = []
    for expr in exprs:
        if isinstance(expr, VariableRef):
            term = terms[expr.name]
            values.append(None if term is None else str(term))
        else:
            values += key_of((expr,), event)
    return tuple(values)


def solution_terms(paths: Iterable[Semantic], env: Environment, semantics: PathSemantics) -> Iterator[Terms]:
    """Every combination of the selected values; null where an event that they hang on was left out."""
    rows: list[list[Terms]] = []
    bound = {name: event for name, event in env.events.items() if event is not None}
    for path in paths:
        if not path.selected:
            continue
        nothing: Terms = dict.fromkeys(path.selected)
        part = restricted(path, bound)
        if part is None:
            rows.append([nothing])
            continue
        binding = {name: bound[name] for name in part.variables}
        if part.conditions:
            found = semantics.solutions(part, binding, lambda _: env)
        else:
            found = semantics.solutions(part, binding)
        rows.append([{**nothing, **dict(zip(part.selected, row, strict=True))} for row in found])
    for combination in product(*rows):
        yield {name: term for each in combination for name, term in each.items()}
