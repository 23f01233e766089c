"""The state of a pattern operator, saved and loaded.

Saved are the partial matches (each points to the one it extends), at which frontiers they wait, the events
that must be absent, the complete matches that await a deadline or are held back by skipping. What
conditions make of the events is computed anew when the state is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from kaicep.errors import Failure
from kaicep.kernel.automaton import read_rest, write_rest
from kaicep.kernel.codec import EventTable, decode, decode_rows, encode, encode_rows, read_event
from kaicep.kernel.conditions import Round
from kaicep.kernel.pattern import Absences, Complete, Part, Partial, PatternOperator, place_in_order
from kaicep.kernel.skip import Candidate, Group, Start
from kaicep.plan.events import Event

__all__ = ["load_pattern", "save_pattern"]


def save_pattern(operator: PatternOperator) -> bytes:
    """The state as bytes; the same events give the same bytes, however they came in batches."""
    events = EventTable()
    states: dict[Any, int] = {}
    parts = [_save_part(operator, each, events, states) for each in _in_order(operator)]
    pattern = operator.pattern
    return encode(
        "pattern",
        {
            "sequence": write_rest(pattern.sequence),
            "variables": list(operator.compiled.variables),
            "now": str(operator.now) if math.isinf(operator.now) else operator.now,
            "position": operator.position,
            "events": events.document(),
            "states": [[write_rest(rest), sorted(bound)] for rest, bound in states],
            "parts": [each for each in parts if each is not None],
        },
    )


def _in_order(operator: PatternOperator) -> Iterable[Part]:
    return sorted(operator.parts.values(), key=lambda each: repr(each.key))


def _save_part(
    operator: PatternOperator, part: Part, events: EventTable, states: dict[Any, int]
) -> dict[str, Any] | None:
    waiting = _waiting(operator, part)
    candidates = operator.candidates(part)
    partials: dict[Partial, int] = {}
    for each in (*waiting, *(candidate.match.partial for candidate in candidates)):
        for one in each.path():
            partials.setdefault(one, len(partials))
    if not partials:
        return None
    starts = {each.start: None for each in partials}
    order = {start: index for index, start in enumerate(sorted(starts, key=lambda each: each.position))}
    needed = min(start.position for start in order)
    rows = []
    for one in partials:
        state = states.setdefault((one.state.rest, one.state.bound), len(states))
        rows.append(
            [
                -1 if one.parent is None else partials[one.parent],
                order[one.start],
                one.place,
                events.place(one.event),
                one.position,
                state,
                sorted(waiting.get(one, ())),
                encode_rows(one.rows),
                [list(each) for each in one.owed],
            ]
        )
    return {
        "key": list(part.key),
        "starts": [[each.position, each.ts, each.used] for each in order],
        "partials": rows,
        "absent": [
            [name, held]
            for name, kept in sorted(part.absences.items())
            if (held := [[at, events.place(event)] for at, event in _absent(kept) if at >= needed])
        ],
        "skipping": _save_skipping(part, partials),
        "awaited": [] if part.skipping else [_save_complete(each.match, partials) for each in candidates],
    }


def _waiting(operator: PatternOperator, part: Part) -> dict[Partial, list[int]]:
    """The partial matches that wait, in the order of their events, with the numbers of their frontiers."""
    found: dict[Partial, set[int]] = {}
    for item in operator.items(part):
        found.setdefault(item.partial, set()).add(item.frontier.number)
    by_path = sorted(found, key=place_in_order)
    return {each: sorted(found[each]) for each in by_path}


def _absent(kept: Absences) -> list[tuple[int, Event]]:
    return sorted((each for found in kept.by_key.values() for each in found), key=lambda each: each[0])


def _save_complete(match: Complete, partials: dict[Partial, int]) -> list[Any]:
    return [partials[match.partial], list(match.absent), match.deadline, match.version]


def _save_skipping(part: Part, partials: dict[Partial, int]) -> list[Any] | None:
    if part.skipping is None:
        return None
    groups = [
        [
            group.taken,
            [[*_save_complete(each.match, partials), each.valid, each.emitted] for each in group.members],
        ]
        for group in part.skipping.groups
    ]
    return [part.skipping.resume, part.skipping.settled, groups]


# --- loading ---------------------------------------------------------------------------------------------


def load_pattern(operator: PatternOperator, state: bytes) -> None:
    """Puts a saved state into an operator of the same pattern."""
    document = decode("pattern", state)
    if read_rest(document["sequence"]) != operator.pattern.sequence or document["variables"] != list(
        operator.compiled.variables
    ):
        raise Failure(f"the saved state belongs to another pattern than that of {operator.name}")
    operator.reset()
    operator.now = float(document["now"]) if isinstance(document["now"], str) else document["now"]
    operator.position = document["position"]
    events = [read_event(each) for each in document["events"]]
    states = [(read_rest(rest), frozenset(bound)) for rest, bound in document["states"]]
    for each in document["parts"]:
        _load_part(operator, each, events, states)


def _load_part(
    operator: PatternOperator, saved: dict[str, Any], events: list[Event], states: list[Any]
) -> None:
    part = Part(tuple(saved["key"]), operator.pattern.skip)
    operator.parts[part.key] = part
    starts = []
    for position, ts, used in saved["starts"]:
        starts.append(Start(position, ts))
        starts[-1].used = used
    partials: list[Partial] = []
    for row in saved["partials"]:
        partials.append(_load_partial(operator, row, partials, starts, events, states))
        for number in row[6]:
            operator.wait(part, partials[-1], partials[-1].state.frontiers[number])
    for name, kept in saved["absent"]:
        for position, event in kept:
            operator.keep_absent(part, name, position, events[event])
    for row in saved["awaited"]:
        operator.await_deadline(part, operator.candidate(_complete(row, partials)))
    if saved["skipping"] is not None:
        _load_skipping(operator, part, saved["skipping"], partials)
    part.starts.extend(each for each in starts if each.live)


def _load_partial(
    operator: PatternOperator,
    row: list[Any],
    partials: list[Partial],
    starts: list[Start],
    events: list[Event],
    states: list[Any],
) -> Partial:
    parent_number, start, place, event_number, position, state, _, rows, owed = row
    parent = partials[parent_number] if parent_number >= 0 else None
    event = events[event_number]
    variable = operator.compiled.variables[place]
    round: Round | None = None
    if variable in operator.compiled.loops:
        before = None if parent is None else parent.heads[place]
        round = operator.compiled.conditions.round(variable, event, before)
    made = operator.bound(
        parent, place, event, position, operator.compiled.state(*states[state]), starts[start], round
    )
    if made is None:
        raise Failure(f"the saved state of {operator.name} does not fit its WINDOWs")
    made.rows = decode_rows(rows)
    made.owed = tuple((name, left, right) for name, left, right in owed)
    return made


def _complete(row: list[Any], partials: list[Partial]) -> Complete:
    partial, absent, deadline, version = row
    return Complete(partials[partial], tuple(absent), deadline, version)


def _load_skipping(operator: PatternOperator, part: Part, saved: list[Any], partials: list[Partial]) -> None:
    assert part.skipping is not None
    part.skipping.resume, part.skipping.settled, groups = saved
    for taken, members in groups:
        loaded: list[Candidate] = []
        for *row, valid, emitted in members:
            candidate = operator.candidate(_complete(row, partials))
            candidate.valid, candidate.emitted = valid, emitted
            loaded.append(candidate)
            if valid is None:
                operator.await_deadline(part, candidate)
        group = Group(loaded)
        group.taken = taken
        part.skipping.groups.append(group)
