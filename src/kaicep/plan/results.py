"""How a match is written down: its id, its events, its columns; the same on every host (semantics 2).

A host finds events and values; what they are called, how they are shown and which id they make is said
here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Choice, Element, Loop, Together
from kaicep.plan.events import Event, Match, MatchId
from kaicep.plan.expressions import VariableRef
from kaicep.plan.nodes import ChiPlan, OutputColumn, QueryPlan
from kaicep.plan.paths import path_references
from kaicep.plan.terms import Term
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Unfit, Value, convert
from kaicep.plan.values import native

Terms = Mapping[str, Term | None]
"""The selected variables of the PATHs and their values in one solution."""

Rounds = Mapping[str, Sequence[Event]]
"""The events of each variable that has any, in order."""


@dataclass(frozen=True)
class Answer:
    """A match, and its columns as an event of the query's output carries them (lists are left out)."""

    match: Match
    values: Mapping[str, Value]


def term_answer(match: Match) -> Answer:
    """A match of EP-SPARQL; its columns are the texts of its terms."""
    return Answer(match, {name: term["value"] for name, term in match.select.items()})


def derived_event(answer: Answer, catalog: Catalog) -> Event:
    """A match as an event of the query's output stream, at the match's end."""
    match = answer.match
    types = dict(catalog.streams[match.query].attributes)
    values = {name: as_type(value, types[name]) for name, value in answer.values.items() if name in types}
    return Event(match.query, 0, 0, match.end_us, values, id=match.id)


def as_type(value: Value, wanted: Type) -> Value:
    """A value as the type of its attribute; None where it cannot be: a term may be anything."""
    try:
        return value if wanted is Type.TIMESTAMP and isinstance(value, int) else convert(value, wanted)
    except Unfit:
        return None


# --- ids ---------------------------------------------------------------------------------------------------


def identified(plan: QueryPlan, values: Iterable[Value]) -> MatchId:
    """The beginning of an id: the query and the values that its events have in common."""
    made = MatchId(plan.name, plan.text)
    for value in values:
        made.value(value)
    return made


def identified_by_events(plan: QueryPlan, partition: Iterable[Value], rounds: Rounds) -> MatchId:
    """The beginning of the id of a pattern's match: its partition and its events by variable."""
    made = identified(plan, partition)
    for variable in plan.variables:
        found = rounds.get(variable, ())
        made.word(len(found))
        for event in found:
            made.event(event)
    return made


# --- events ------------------------------------------------------------------------------------------------


def loops_of(sequence: Iterable[Element]) -> dict[str, bool]:
    """The loops of a pattern, each with whether it counts as left out where it has no round.

    >>> loops_of((Loop("b", 0, None), Loop("c", 0, 1)))
    {'b': False, 'c': True}
    """
    return dict(found for element in sequence for found in _loops(element, False))


def _loops(element: Element, left_out: bool) -> Iterator[tuple[str, bool]]:
    # `?b*` goes round any number of times, so that no round is an empty list.
    if isinstance(element, Loop):
        yield element.variable, left_out or element.most == 1
    elif isinstance(element, Choice | Together):
        for member in element.members:
            yield from _loops(member, left_out or isinstance(element, Choice))


def events_shown(variables: Iterable[str], loops: Mapping[str, bool], rounds: Rounds) -> dict[str, Any]:
    """The events by variable: a list for a loop, nothing for what a disjunction or `?` left out."""
    shown: dict[str, Any] = {}
    for variable in variables:
        identities = [event.identity for event in rounds.get(variable, ())]
        if variable in loops and (identities or not loops[variable]):
            shown[variable] = identities
        elif identities:
            shown[variable] = identities[0]
    return shown


def batch_shown(first: Event, last: Event, count: int) -> dict[str, Any]:
    """What a batch shows of its events."""
    return {"first": first.identity, "last": last.identity, "count": count}


# --- columns -----------------------------------------------------------------------------------------------


def answer(
    plan: QueryPlan,
    columns: Iterable[OutputColumn],
    made: MatchId,
    span: tuple[int, int],
    terms: Terms,
    events: Mapping[str, Any],
    value_of: Callable[[OutputColumn], Any],
    version: int | None = None,
) -> Answer:
    """The match with its columns.

    `value_of` gives the value of a column that is no variable of a PATH by itself, or the list of a loop's
    values. The values of all variables of the PATHs that are selected, alone or in an expression, are part
    of the id.
    `version` is that of the knowledge which judged the events, where there is one to speak of.
    """
    select: dict[str, Any] = {}
    values: dict[str, Value] = {}
    named: dict[str, None] = {}
    for column in columns:
        named.update(dict.fromkeys(path_references(column.expr)))
        if isinstance(column.expr, VariableRef):
            term = terms[column.expr.name]
            values[column.name] = None if term is None else native(term)
            select[column.name] = _shown(values[column.name], column.type)
        elif column.many:
            select[column.name] = [_shown(each, column.type) for each in value_of(column)]
        else:
            values[column.name] = value_of(column)
            select[column.name] = _shown(values[column.name], column.type)
    for name in named:
        made.text(str(terms[name] or ""))
    return Answer(Match(plan.name, made.hex(), *span, select, events, version=version), values)


def absence(plan: ChiPlan, start: int, end: int, terms: Terms) -> Answer:
    """The match that says that something had no event in a window; it has no events to show."""
    made = identified(plan, ()).word(start).word(end)
    return answer(plan, plan.columns, made, (start, end), terms, {}, _no_value)


def _no_value(column: OutputColumn) -> Any:
    raise AssertionError("ABSENT can select only variables of the PATH")


def _shown(value: Value, type: Type | None) -> Any:
    """A value as JSON writes it."""
    return format_time(value) if type is Type.TIMESTAMP and isinstance(value, int) else value
