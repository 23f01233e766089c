"""The answers to a chi-CEP query over a finite input (semantics 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Field, type_of
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, WindowAggregate
from kaicep.plan.path_values import with_terms
from kaicep.plan.paths import has_path_values
from kaicep.plan.results import (
    Answer,
    Terms,
    absence,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)
from kaicep.plan.time import format_time
from kaicep.plan.types import Type
from kaicep.reference.chains import Partition, Semantics, in_order, parted, sees, solution_terms
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.pattern import pattern_matches
from kaicep.reference.semantics import KnowledgeSemantics
from kaicep.reference.windows import Windowed, absences, window_answers

__all__ = ["Answer", "answers", "run_chi"]


def run_chi(
    plan: ChiPlan,
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


def answers(plan: ChiPlan, events: Iterable[Event], semantics: Semantics) -> list[Answer]:
    """All answers to a query, with the PATHs decided by `semantics`."""
    source = plan.body
    given = list(events)
    seen = [event for event in given if any(sees(chain, event) for chain in source.chains)]
    by_variable = {chain.variable: chain for chain in source.chains}
    ties = [(by_variable[each.variables[0]], each) for each in source.ties]
    looked_up = [each.chain for each in source.latest] if isinstance(source, Pattern) else []
    known = in_order((e for e in given if any(sees(chain, e) for chain in looked_up)), source.streams)
    found: dict[str, Answer] = {}
    for part in parted(in_order(seen, source.streams), source.partition, ties, semantics):
        if isinstance(source, Pattern):
            made = _pattern_answers(plan, source, part, known)
        else:
            made = _window_answers(plan, source, part)
        # Solutions that differ in nothing that is selected are one match.
        found.update((each.match.id, each) for each in made)
    return sorted(found.values(), key=lambda each: (each.match.end_us, each.match.id))


# --- patterns ----------------------------------------------------------------------------------------------


def _pattern_answers(
    plan: ChiPlan,
    pattern: Pattern,
    part: Partition,
    known: Sequence[Event],
) -> Iterator[Answer]:
    loops = loops_of(pattern.sequence)
    for found in pattern_matches(pattern, part.events, part.semantics, known):
        rounds = found.rounds
        env = Environment({name: of[0] for name, of in rounds.items()}, rounds=rounds)
        for terms in _solutions(pattern, env, part.semantics):
            made = identified_by_events(plan, part.key, rounds)
            shown = events_shown(plan.variables, loops, rounds)
            span = found.start, found.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _solutions(pattern: Pattern, env: Environment, semantics: Semantics) -> Iterator[Terms]:
    """The selected values; where a LATEST event is bound, those of its PATH together with the others."""
    bound = [each for each in pattern.latest if each.variable in env.events]
    paths = [path for each in bound for path in each.semantics]
    covered = {name for path in paths for name in path.selected}
    paths += [path for path in pattern.semantics if covered.isdisjoint(path.selected)]
    nothing = {name: None for each in pattern.latest for path in each.semantics for name in path.selected}
    for terms in solution_terms(paths, env, semantics):
        yield {**nothing, **terms}


# --- windows -----------------------------------------------------------------------------------------------


def _window_answers(
    plan: ChiPlan,
    node: WindowAggregate,
    part: Partition,
) -> Iterator[Answer]:
    if node.expected is not None:
        for start, end, terms in absences(node, part.events, part.semantics):
            yield absence(plan, start, end, terms)
        return
    for window in window_answers(node, part.events, part.semantics):
        env = window.environment
        for terms in window.solutions:
            made = identified(plan, (*part.key, *window.group)).word(window.start).word(window.end)
            if window.trigger is not None:
                made.event(window.trigger)
            elif node.window.count is not None:
                made.event(window.first).event(window.last)
            shown = {window.variable: _window_shown(window)}
            span = window.start, window.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _window_shown(window: Windowed) -> dict[str, Any]:
    if window.trigger is not None:
        return window.trigger.identity
    return batch_shown(window.events[0], window.events[-1], len(window.events))


# --- both --------------------------------------------------------------------------------------------------


def _value(env: Environment, terms: Terms, column: OutputColumn) -> Any:
    """The value of a column; of a loop's attribute the list of values, one for each round."""
    if column.many:
        assert isinstance(column.expr, Field)
        name = column.expr.variable
        return [evaluate(column.expr, Environment({name: each})) for each in env.rounds.get(name, ())]
    if not has_path_values(column.expr):
        return evaluate(column.expr, env)
    expr = with_terms(column.expr, terms)
    value = evaluate(expr, env)
    if column.type is None and type_of(expr) is Type.TIMESTAMP and isinstance(value, int):
        return format_time(value)  # as a variable that is selected by itself
    return value
