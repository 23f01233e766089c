"""The answers to a chi-CEP query over a finite input (semantics 2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Choice, Element, Loop, Together
from kaicep.plan.events import Event, Match
from kaicep.plan.expressions import Field, VariableRef
from kaicep.plan.identity import MatchId
from kaicep.plan.literals import native
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.terms import Term
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Value
from kaicep.reference.chains import Key, Semantics, chain_of, in_order, partitions
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.pattern import Rounds, pattern_matches
from kaicep.reference.semantics import KnowledgeSemantics
from kaicep.reference.windows import Windowed, window_answers

__all__ = ["Answer", "answers", "run_chi"]

Terms = Mapping[str, Term | None]
"""The selected variables of the PATHs and their values in one solution."""


@dataclass(frozen=True)
class Answer:
    """A match, and its columns as an event of the query's output carries them (lists are left out)."""

    match: Match
    values: Mapping[str, Value]


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
    for found in pattern_matches(pattern, events, semantics):
        rounds = found.rounds
        env = Environment({name: of[0] for name, of in rounds.items()}, rounds=rounds)
        for terms in _solutions(pattern.semantics, env, semantics):
            made = _identified(plan, partition)
            for variable in plan.variables:
                made.word(len(rounds.get(variable, ())))
                for event in rounds.get(variable, ()):
                    made.event(event)
            shown = _events_shown(plan.variables, pattern.sequence, rounds)
            yield _answer(plan, columns, made, found.start, found.end, env, terms, shown)


def _events_shown(
    variables: tuple[str, ...], sequence: tuple[Element, ...], rounds: Rounds
) -> dict[str, Any]:
    """The events by variable: a list for a loop, nothing for what a disjunction or `?` left out."""
    loops = dict(found for element in sequence for found in _loops(element, False))
    shown: dict[str, Any] = {}
    for variable in variables:
        identities = [event.identity for event in rounds.get(variable, ())]
        if variable in loops and (identities or not loops[variable]):
            shown[variable] = identities
        elif identities:
            shown[variable] = identities[0]
    return shown


def _loops(element: Element, left_out: bool) -> Iterator[tuple[str, bool]]:
    """The loops of an element, each with whether it counts as left out where it has no round.

    `?b*` goes round any number of times, so that no round is an empty list.
    """
    if isinstance(element, Loop):
        yield element.variable, left_out or element.most == 1
    elif isinstance(element, Choice | Together):
        for member in element.members:
            yield from _loops(member, left_out or isinstance(element, Choice))


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
        for terms in _solutions(node.semantics, window.environment, semantics):
            made = _identified(plan, (*partition, *window.group)).word(window.start).word(window.end)
            if window.trigger is not None:
                made.event(window.trigger)
            elif node.window.count is not None:
                made.event(window.first).event(window.last)
            shown = {window.variable: _window_shown(window)}
            yield _answer(plan, columns, made, window.start, window.end, window.environment, terms, shown)


def _window_shown(window: Windowed) -> dict[str, Any]:
    if window.trigger is not None:
        return window.trigger.identity
    first, last = window.events[0], window.events[-1]
    return {"first": first.identity, "last": last.identity, "count": len(window.events)}


# --- both --------------------------------------------------------------------------------------------------


def _identified(plan: QueryPlan, values: Key) -> MatchId:
    """The beginning of an id: the query and the values that its events have in common."""
    made = MatchId(plan.name, plan.text)
    for value in values:
        made.text(json.dumps(value, ensure_ascii=False))
    return made


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


def _answer(
    plan: QueryPlan,
    columns: tuple[OutputColumn, ...],
    made: MatchId,
    start: int,
    end: int,
    env: Environment,
    terms: Terms,
    events: Mapping[str, Any],
) -> Answer:
    for name in dict.fromkeys(each.expr.name for each in columns if isinstance(each.expr, VariableRef)):
        made.text(str(terms[name] or ""))
    select: dict[str, Any] = {}
    values: dict[str, Value] = {}
    for column in columns:
        if column.many:
            select[column.name] = [_shown(each, column.type) for each in _list(column, env)]
        else:
            values[column.name] = _value(column, env, terms)
            select[column.name] = _shown(values[column.name], column.type)
    return Answer(Match(plan.name, made.hex(), start, end, select, events), values)


def _value(column: OutputColumn, env: Environment, terms: Terms) -> Value:
    if isinstance(column.expr, VariableRef):
        term = terms[column.expr.name]
        return None if term is None else native(term)
    return evaluate(column.expr, env)


def _list(column: OutputColumn, env: Environment) -> list[Value]:
    """The values of a loop's attribute, one for each round."""
    assert isinstance(column.expr, Field)
    variable = column.expr.variable
    return [evaluate(column.expr, Environment({variable: each})) for each in env.rounds.get(variable, ())]


def _shown(value: Value, type: Type | None) -> Any:
    """A value as JSON writes it."""
    return format_time(value) if type is Type.TIMESTAMP and isinstance(value, int) else value
