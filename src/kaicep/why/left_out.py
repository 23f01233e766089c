"""Why there is no match near a time, with what was left out before: late events, records nobody could read.

Whether these would have matched is found out by letting them: late events as if they had come in time,
records without the values that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kaicep.api import Run
from kaicep.connectors.files import DeadLetter
from kaicep.connectors.records import json_object
from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.plan.catalog import Stream
from kaicep.plan.convert import Unfit, convert
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import QueryPlan
from kaicep.plan.types import Value
from kaicep.why.match import derived
from kaicep.why.misses import Mended, WhyNot, around, has_value, why_not
from kaicep.why.sources import Source, events_of, stretch_of, unmarked, upstream_of

__all__ = ["mended", "why_not_between", "why_not_near"]


def why_not_near(source: Source, name: str, near: int, key: str | None = None) -> WhyNot:
    """Why there is no match of a query near a time, and whether what was left out would have been one."""
    return why_not_between(source, name, *around(_plan(source, name), near), key)


def why_not_between(source: Source, name: str, low: int, high: int, key: str | None = None) -> WhyNot:
    """Why there is no match of a query in a range of time, and whether what was left out would be one."""
    plan = _plan(source, name)
    program = upstream_of(source.program, name)
    run = source.part(program, stretch_of(program, name, low, high))
    seen = run.matches()
    made = [derived(each, source.catalog) for each in seen if each.query != name]
    reason = why_not(plan, source.catalog, source.knowledge, [*events_of(run), *made], low, high, key)
    late = [each for each in events_of(run) if each.late and has_value(each, key)]
    dead = list(_near(run, source, low, high, key))
    whole = [each.event for each in dead if each.event is not None]
    near_by = [each for each in seen if each.query == name and low <= each.end_us <= high]
    return replace(
        reason,
        complete=sum(key is None or _takes_part(each, run, key) for each in near_by),
        with_late=_gained(unmarked(run, late), seen, name) if late else (),
        dead=tuple(dead),
        with_dead=_gained(replace(run, batches=(*run.batches, whole)), seen, name) if whole else (),
    )


def _plan(source: Source, name: str) -> QueryPlan:
    plans = {each.name: each for each in source.program.queries}
    if name not in plans:
        raise Mistake(Diagnostic(f"no query is called {name}", hint=did_you_mean(name, plans)))
    return plans[name]


def _takes_part(match: Match, run: Run, key: str) -> bool:
    """Whether a match has an event with a value."""
    shown = [
        one for each in (match.events or {}).values() for one in (each if isinstance(each, list) else [each])
    ]
    return any(each.identity in shown and has_value(each, key) for each in events_of(run))


def _gained(run: Run, seen: Sequence[Match], name: str) -> tuple[Match, ...]:
    """The matches of a query that were not there before."""
    before = {each.id for each in seen}
    return tuple(each for each in run.matches() if each.query == name and each.id not in before)


def _near(run: Run, source: Source, low: int, high: int, key: str | None) -> Iterator[Mended]:
    """The records that could not be read and belong there: by their time, or else by their position."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for each in events_of(run):
        place = each.stream, each.part
        first, last = spans.get(place, (each.seq, each.seq))
        spans[place] = min(first, each.seq), max(last, each.seq)
    streams = {each for plan in run.program.queries for each in plan.reads}
    for letter in source.dead():
        if letter.stream not in streams:
            continue
        found = mended(letter, source.catalog.streams[letter.stream])
        if found.event is not None:
            if low <= found.event.ts <= high and has_value(found.event, key):
                yield found
        elif key is None or key in letter.record_text:
            # One beside the first or the last record may belong there as well.
            first, last = spans.get((letter.stream, letter.part), (letter.seq, letter.seq))
            if first - 1 <= letter.seq <= last + 1:
                yield found


def mended(letter: DeadLetter, stream: Stream) -> Mended:
    """The event of a record without the values that do not fit; none where even its time is unknown.

    >>> from kaicep.plan.types import Type
    >>> meter = Stream("meter", (("ts", Type.TIMESTAMP), ("kW", Type.FLOAT64), ("id", Type.STRING)))
    >>> text = '{"ts": 1, "kW": "lots", "id": "m1"}'
    >>> mended(DeadLetter("meter", 0, 3, 4, "meter.jsonl", "kW: no number", text), meter).event.values
    {'ts': 1000000, 'kW': None, 'id': 'm1'}
    """
    fields, _ = json_object(letter.record_text.encode())
    if fields is None or stream.rdf:
        return Mended(letter)
    values: dict[str, Value] = {}
    for name, type in stream.attributes:
        try:
            values[name] = convert(fields.get(name), type, stream.notation)
        except Unfit:
            values[name] = None
    ts = values.get(stream.time)
    if not isinstance(ts, int):
        return Mended(letter)
    return Mended(letter, Event(letter.stream, letter.part, letter.seq, ts, values))
