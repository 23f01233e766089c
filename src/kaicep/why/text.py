"""Explanations as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kaicep.plan.events import Event, Match
from kaicep.plan.terms import Iri, Literal, Term, Triple, n_triples
from kaicep.plan.text import group_text, iri_text
from kaicep.plan.time import format_duration, format_time
from kaicep.plan.types import Value
from kaicep.why.match import Shown, Statement, Why
from kaicep.why.misses import WhyNot

_MOST_EVENTS = 20
_MOST_TEXT = 160


def why_text(reason: Why, prefixes: Mapping[str, str]) -> str:
    """Everything that made a match, as text."""
    return "\n".join(_lines(reason, prefixes))


def _lines(reason: Why, prefixes: Mapping[str, str]) -> Iterator[str]:
    match = reason.match
    yield f"{match.query} matched from {format_time(match.start_us)} to {format_time(match.end_us)}"
    yield f"  id {match.id}"
    for name, value in match.select.items():
        yield f"  {name} = {value['value'] if isinstance(value, dict) else value}"
    if reason.events:
        yield ""
        yield "because of these events"
    for each in reason.events[-_MOST_EVENTS:]:
        name = f"?{each.variable}  " if each.variable else ""
        yield f"  {name}{format_time(each.event.ts)}  {_place(each.event)}"
        yield f"      {_values(each.event)}"
    if len(reason.events) > _MOST_EVENTS:
        yield f"  and {len(reason.events) - _MOST_EVENTS} before them"
    if reason.conditions or reason.windows or reason.absences:
        yield ""
        yield "these conditions hold"
    for checked in reason.conditions:
        yield f"  {checked.text}" + (f", round {checked.round}" if checked.round else "")
        yield f"      {checked.filled}"
    for window in reason.windows:
        names = ", ".join(f"?{name}" for name in window.variables)
        yield f"  {names} lie within {format_duration(window.width)}"
        yield f"      they lie within {format_duration(window.spans)}"
    for wait in reason.absences:
        end = (
            f"before {format_time(wait.before.ts)}"
            if wait.before
            else f"until {format_time(wait.until or 0)}"
        )
        yield f"  there is no ?{wait.variable} after {format_time(wait.after.ts)} and {end}"
    told: set[Triple] = set()
    for shown in reason.paths:
        yield ""
        yield from _path_lines(shown, prefixes, told)


def _path_lines(shown: Shown, prefixes: Mapping[str, str], told: set[Triple]) -> Iterator[str]:
    yield "this is known about them"
    for line in group_text(shown.condition.alternatives[0], 0, prefixes).splitlines():
        yield f"  {line}"
    for name, term in sorted(shown.proof.bindings.items()):
        if not name.startswith("_:"):
            yield f"      ?{name} is {_term(term, prefixes)}"
    for statement in shown.proof.statements:
        yield from _statement_lines(statement, prefixes, 1, told)


_ORIGINS = {"event": "from the event", "asserted": "from the knowledge"}


def _statement_lines(
    statement: Statement, prefixes: Mapping[str, str], depth: int, told: set[Triple]
) -> Iterator[str]:
    """A statement and what it follows from, which is said once."""
    origin = _ORIGINS.get(statement.rule, f"by the rule {statement.rule}, because")
    again = bool(statement.premises) and statement.triple in told
    told.add(statement.triple)
    known = "as shown above" if again else origin
    yield f"{'    ' * depth}- {_triple(statement.triple, prefixes)}  ({known})"
    for each in () if again else statement.premises:
        yield from _statement_lines(each, prefixes, depth + 1, told)


def _place(event: Event) -> str:
    where = f"{event.id}" if event.id is not None else f"part {event.part}, seq {event.seq}"
    return f"{event.stream} ({where})" + (", late" if event.late else "")


def _values(event: Event) -> str:
    if event.triples:
        return " ".join(map(n_triples, event.triples))
    # The line before has the time, as text.
    return ", ".join(f"{name} = {value}" for name, value in _known(event).items() if value != event.ts)


def _known(event: Event) -> dict[str, Value]:
    """The values that are not null: an archive has a null where a file has nothing."""
    return {name: value for name, value in event.values.items() if value is not None}


def _triple(triple: Triple, prefixes: Mapping[str, str]) -> str:
    return " ".join(_term(each, prefixes) for each in triple)


def _term(term: Term, prefixes: Mapping[str, str]) -> str:
    if isinstance(term, Iri):
        return iri_text(term, prefixes)
    return term.lexical if isinstance(term, Literal) else str(term)


def why_not_text(reason: WhyNot) -> str:
    """How far events came near a time, as text."""
    return "\n".join(_miss_lines(reason))


def _miss_lines(reason: WhyNot) -> Iterator[str]:
    yield f"{reason.query} between {format_time(reason.low)} and {format_time(reason.high)}"
    before = None
    for step in reason.steps:
        if step.variable != before:
            yield f"  ?{step.variable}"
            before = step.variable
        yield f"      {step.passed:,} of {step.came:,} events: {step.text}"
    if reason.complete:
        yield f"  there are {reason.complete:,} matches here"
    if reason.misses:
        yield ""
        yield "the nearest misses"
    for miss in reason.misses:
        short = "" if miss.short is None else f" (short by {miss.short:.0%})"
        yield f"  it needs {miss.condition}"
        there = "" if miss.condition.startswith("PATH") else "there is "
        yield f"      and {there}{miss.filled}{short}"
        for name, event in miss.events.items():
            yield f"      ?{name}  {format_time(event.ts)}  {_place(event)}  {_values(event)}"
    if reason.late or reason.with_late:
        yield ""
        yield f"{len(reason.late)} events were late, and would have counted:"
        for event in reason.late[:_MOST_EVENTS]:
            yield f"  {format_time(event.ts)}  {_place(event)}  {_values(event)}"
        yield from _gained_lines("on time, they would have made", reason.with_late)
    if reason.dead:
        yield ""
        yield f"{len(reason.dead)} records from that time could not be read:"
        for each in reason.dead[:_MOST_EVENTS]:
            letter = each.letter
            yield f"  {letter.stream} (part {letter.part}, seq {letter.seq}): {letter.reason}"
            yield f"      {letter.record_text[:_MOST_TEXT]}"
        unknown = sum(each.event is None for each in reason.dead)
        if unknown:
            yield f"  nothing in {unknown} of them can be read"
        if unknown < len(reason.dead):
            yield from _gained_lines(
                "without the values that do not fit, they would have made", reason.with_dead
            )


def _gained_lines(what: str, matches: Sequence[Match]) -> Iterator[str]:
    yield f"  {what} {len(matches) or 'no'} match{'' if len(matches) == 1 else 'es'}"
    for each in matches[:_MOST_EVENTS]:
        yield f"      {each.id}  {format_time(each.start_us)} to {format_time(each.end_us)}"


# --- for programs ------------------------------------------------------------------------------------------


def why_json(reason: Why) -> dict[str, Any]:
    """Everything that made a match, as JSON."""
    return {
        "match": reason.match.to_dict(),
        "events": [
            {
                **({"variable": each.variable} if each.variable else {}),
                **each.event.identity,
                "ts": format_time(each.event.ts),
                "values": _known(each.event),
                **({"triples": [n_triples(one) for one in each.event.triples]} if each.event.triples else {}),
                **({"late": True} if each.event.late else {}),
            }
            for each in reason.events
        ],
        "conditions": [
            {
                "text": each.text,
                "filled": each.filled,
                **({"round": each.round} if each.round is not None else {}),
            }
            for each in reason.conditions
        ],
        "windows": [
            {"variables": list(each.variables), "width_us": each.width, "spans_us": each.spans}
            for each in reason.windows
        ],
        "absences": [
            {
                "variable": each.variable,
                "after": each.after.identity,
                **({"before": each.before.identity} if each.before else {}),
                **({"until": format_time(each.until)} if each.until is not None else {}),
            }
            for each in reason.absences
        ],
        "paths": [
            {
                "variables": list(each.condition.variables),
                "bindings": {name: str(term) for name, term in sorted(each.proof.bindings.items())},
                "statements": [_statement_json(one) for one in each.proof.statements],
            }
            for each in reason.paths
        ],
    }


def _statement_json(statement: Statement) -> dict[str, Any]:
    return {
        "triple": n_triples(statement.triple),
        "rule": statement.rule,
        "premises": [_statement_json(each) for each in statement.premises],
    }


def why_not_json(reason: WhyNot) -> dict[str, Any]:
    """How far events came near a time, as JSON."""
    return {
        "query": reason.query,
        "from": format_time(reason.low),
        "to": format_time(reason.high),
        "steps": [
            {"variable": each.variable, "test": each.text, "came": each.came, "passed": each.passed}
            for each in reason.steps
        ],
        "misses": [
            {
                "condition": each.condition,
                "filled": each.filled,
                "short": each.short,
                "events": {name: event.identity for name, event in each.events.items()},
            }
            for each in reason.misses
        ],
        "late": [each.identity for each in reason.late],
        "with_late": [each.to_dict() for each in reason.with_late],
        "dead": [{**each.letter.to_dict(), "mended": each.event is not None} for each in reason.dead],
        "with_dead": [each.to_dict() for each in reason.with_dead],
        "matches": reason.complete,
    }
