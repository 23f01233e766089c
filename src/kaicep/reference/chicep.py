"""The answers to a chi-CEP query over a finite input (semantics 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.results import (
    Answer,
    Terms,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)
from kaicep.reference.chains import Key, Semantics, chain_of, in_order, partitions
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.pattern import pattern_matches
from kaicep.reference.semantics import KnowledgeSemantics
from kaicep.reference.windows import Windowed, window_answers

__all__ = ["Answer", "answers", "run_chi"]


def run_chi(
    plan: QueryPlan,
    events: Sequence[Event],
    catalog: Catalog,
    knowledge: Knowledge | None = None,
    unknown: UnknownEntities | None = None,
) -> list[Answer]:
    """All answers to a query, in the order of their end, then of their id.

    `events` are those of the streams that the query reads, in any order, late ones left out. Values
    that no entity of the knowledge base is known for are counted in `unknown`.
    """
    return answers(plan, events, KnowledgeSemantics(catalog, knowledge, unknown))


def answers(plan: QueryPlan, events: Iterable[Event], semantics: Semantics) -> list[Answer]:
    """All answers to a query, with the PATHs decided by `semantics`."""
    assert isinstance(plan.root, Project)
    source, columns = plan.root.input, plan.root.columns
    found: list[Answer] = []
    if isinstance(source, Pattern):
        chains = [chain_of(each) for each in source.chains]
        seen = [event for event in events if any(chain.sees(event) for chain in chains)]
        for key, part in partitions(in_order(seen, source.streams), source.partition).items():
            found += _pattern_answers(plan, source, columns, key, part, semantics)
    else:
        assert isinstance(source, WindowAggregate)
        chain = chain_of(source.input)
        seen = [event for event in events if chain.sees(event)]
        for key, part in partitions(in_order(seen, source.streams), source.partition).items():
            found += _window_answers(plan, source, columns, key, part, semantics)
    return sorted(found, key=lambda each: (each.match.end, each.match.id))


# --- patterns ----------------------------------------------------------------------------------------------


def _pattern_answers(
    plan: QueryPlan,
    pattern: Pattern,
    columns: tuple[OutputColumn, ...],
    partition: Key,
    events: Sequence[Event],
    semantics: Semantics,
) -> Iterator[Answer]:
    loops = loops_of(pattern.sequence)
    for found in pattern_matches(pattern, events, semantics):
        rounds = found.rounds
        env = Environment({name: of[0] for name, of in rounds.items()}, rounds=rounds)
        for terms in _solutions(pattern.semantics, env, semantics):
            made = identified_by_events(plan, partition, rounds)
            shown = events_shown(plan.variables, loops, rounds)
            span = found.start, found.end
            yield answer(plan, columns, made, span, terms, shown, partial(_value, env))


# --- windows -----------------------------------------------------------------------------------------------


def _window_answers(
    plan: QueryPlan,
    node: WindowAggregate,
    columns: tuple[OutputColumn, ...],
    partition: Key,
    events: Sequence[Event],
    semantics: Semantics,
) -> Iterator[Answer]:
    for window in window_answers(node, events, semantics):
        env = window.environment
        for terms in _solutions(node.semantics, env, semantics):
            made = identified(plan, (*partition, *window.group)).word(window.start).word(window.end)
            if window.trigger is not None:
                made.event(window.trigger)
            elif node.window.count is not None:
                made.event(window.first).event(window.last)
            shown = {window.variable: _window_shown(window)}
            span = window.start, window.end
            yield answer(plan, columns, made, span, terms, shown, partial(_value, env))


def _window_shown(window: Windowed) -> dict[str, Any]:
    if window.trigger is not None:
        return window.trigger.identity
    return batch_shown(window.events[0], window.events[-1], len(window.events))


# --- both --------------------------------------------------------------------------------------------------


def _solutions(paths: tuple[Semantic, ...], env: Environment, semantics: Semantics) -> Iterator[Terms]:
    """Every combination of the selected values; null where an event that they hang on was left out."""
    selecting = [path for path in paths if path.selected]
    rows = []
    for path in selecting:
        binding = {name: event for name in path.variables if (event := env.events.get(name)) is not None}
        left_out = len(binding) < len(path.variables)
        rows.append([(None,) * len(path.selected)] if left_out else semantics.solutions(path, binding))
    names = [name for path in selecting for name in path.selected]
    for combination in product(*rows):
        yield dict(zip(names, (term for row in combination for term in row), strict=True))


def _value(env: Environment, column: OutputColumn) -> Any:
    """The value of a column; of a loop's attribute the list of values, one for each round."""
    if not column.many:
        return evaluate(column.expr, env)
    assert isinstance(column.expr, Field)
    variable = column.expr.variable
    return [evaluate(column.expr, Environment({variable: each})) for each in env.rounds.get(variable, ())]
