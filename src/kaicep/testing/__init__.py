"""A kit to test queries: a table of events in, a table of expected matches out.

`check` runs the query over the events in the given order, and then in other orders of arrival and in
random batches. If the matches differ, it shows which are missing and which were not expected:

>>> from kaicep.testing import check
>>> matches = check(
...     "SELECT ?b.x - ?a.x AS rise SEQ (?a, ?b) WINDOW (?a, ?b, 5min) JOIN (?b.x > ?a.x)",
...     events='''
...         event | ts  | x
...         low   | 0   | 1
...         high  | 60  | 3
...         later | 900 | 9
...     ''',
...     expect='''
...         ?a  | ?b   | rise
...         low | high | 2
...     ''',
... )

The table of events may have the columns `event` (a label of your own), `stream` (if there are several),
`part`, `ts` (seconds, or ISO 8601) and the attributes. An RDF stream has `triple`, `start` and `end`.
In the table of matches every column is optional: `query`, `start`, `end`, a selected column by its
name, and `?a` for the label of the event bound to a variable (for a loop, several with blanks between
them). Only the columns that are there are compared. The order of the rows does not matter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kaicep.api import FiniteRun, build_run, parse_query
from kaicep.connectors.files import StreamData, mark_late
from kaicep.errors import Mistake, SourceText
from kaicep.knowledge.annotation import Annotation, parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.rdf_text import parsing, triple_of
from kaicep.plan.time import format_time, parse_duration, parse_time
from kaicep.plan.types import Type, Value, convert, guess_text, widen

# ----------------------------------------------------------------------------------------------------------
# Small text tables: how a test writes down events and expected matches.
#
#     event | ts | sensor | x
#     a1    | 0  | s1     | 510.0
#     a2    | 60 | s1     |
#
# Cells are read as a CSV cell would be; an empty one is null. A row of dashes is passed over.


def parse_table(text: str) -> list[dict[str, str]]:
    """The rows of a table by column.

    >>> parse_table('''
    ...   a | b
    ...   1 |
    ... ''')
    [{'a': '1', 'b': ''}]
    """
    lines = [line for line in text.splitlines() if line.strip() and set(line.strip()) - set("-+| ")]
    if not lines:
        return []
    header = [cell.strip() for cell in lines[0].split("|")]
    rows: list[dict[str, str]] = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} cells under {len(header)} columns: {line.strip()}")
        rows.append(dict(zip(header, cells, strict=True)))
    return rows


def format_table(columns: list[str], rows: list[tuple[str, ...]]) -> str:
    """The rows as a table that a person reads.

    >>> print(format_table(["a", "b"], [("1", "22")]))
    a | b
    1 | 22
    """
    widths = [max(len(name), *(len(row[i]) for row in rows), 0) for i, name in enumerate(columns)]
    lines = (
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [tuple(columns), *rows]
    )
    return "\n".join(line.rstrip() for line in lines)


# ----------------------------------------------------------------------------------------------------------
# Arrival orders: every one of them must give the same answer (semantics 1).


def arrivals(events: Sequence[Event], lateness: int | None, count: int, seed: int) -> Iterator[list[int]]:
    """Orders in which the events might have arrived without any being late, as indices into them.

    The first is the given one. Where some event is late there is no other, since the mark depends on
    the order. Events of one part with the same time keep their order: it decides between them.
    """
    given = list(range(len(events)))
    yield given
    if any(event.late for event in mark_late(events, lateness)):
        return
    for turn in range(count):
        yield _shuffled(events, lateness, random.Random(f"{seed}/{turn}"))


def _shuffled(events: Sequence[Event], lateness: int | None, chance: random.Random) -> list[int]:
    waiting = list(range(len(events)))
    order: list[int] = []
    while waiting:
        oldest: dict[tuple[str, int], int] = {}
        first: dict[tuple[str, int, int], int] = {}
        for index in waiting:
            event = events[index]
            part = (event.stream, event.part)
            oldest[part] = min(event.ts, oldest.get(part, event.ts))
            first.setdefault((*part, event.ts), index)
        ready = [
            index
            for (stream, part, ts), index in first.items()
            if lateness is None or ts <= oldest[stream, part] + lateness
        ]
        taken = chance.choice(ready)
        waiting.remove(taken)
        order.append(taken)
    return order


def renumbered(events: Sequence[Event], order: Sequence[int]) -> list[Event]:
    """The events in that order, each with the position that it then has in its part."""
    positions: dict[tuple[str, int], int] = {}
    moved: list[Event] = []
    for index in order:
        event = events[index]
        part = (event.stream, event.part)
        moved.append(replace(event, seq=positions.get(part, 0)))
        positions[part] = positions.get(part, 0) + 1
    return moved


def in_batches(events: Sequence[Event], chance: random.Random) -> list[list[Event]]:
    """The events cut into batches at random, some of them empty."""
    cuts = sorted(chance.choices(range(len(events) + 1), k=chance.randint(0, 4)))
    return [list(events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


# ----------------------------------------------------------------------------------------------------------
# Queries over tables of events, checked in several orders of arrival.

__all__ = ["check", "prepare", "run"]

_RESERVED = ("event", "stream", "part", "triple", "start", "end")
_ORDERS = 4


def check(
    query: str | Mapping[str, str],
    events: str | Mapping[str, str],
    expect: str,
    *,
    knowledge: str = "",
    reasoning: str = "rdfs",
    annotations: Sequence[Mapping[str, Any]] = (),
    lateness: str | None = None,
    now: str | None = None,
    end: str = "closed",
    host: str = "reference",
    seed: int = 0,
) -> list[Match]:
    """Checks that the query finds the expected matches in the events, in any order of arrival.

    `query` is a text in chi-CEP, or several by name; a name that ends in `.epsparql` marks EP-SPARQL, as
    a file name does. `events` is a table, or one for each stream by name. `knowledge` is Turtle,
    or TriG for statements that hold for a time.
    Returns the matches of the first run. Raises `AssertionError` with the difference.
    """
    case = _case(query, events, knowledge, reasoning, annotations, lateness, now, end)
    wanted = parse_table(expect)
    columns = list(wanted[0]) if wanted else _header(expect)
    expected = Counter(_canonical_row(row, columns) for row in wanted)
    first: list[Match] | None = None
    for turn, order in enumerate(arrivals(case.events, case.lateness, _ORDERS, seed)):
        matches, labels = case.matches(order, host, random.Random(f"{seed}/batches/{turn}") if turn else None)
        got = Counter(_shown_row(match, columns, labels) for match in matches)
        if got != expected:
            raise AssertionError(_difference(columns, expected, got, order if turn else None, case))
        first = first if first is not None else matches
    assert first is not None
    return first


def run(
    query: str | Mapping[str, str],
    events: str | Mapping[str, str],
    *,
    knowledge: str = "",
    reasoning: str = "rdfs",
    annotations: Sequence[Mapping[str, Any]] = (),
    lateness: str | None = None,
    now: str | None = None,
    end: str = "closed",
    host: str = "reference",
) -> list[Match]:
    """The matches of a query over a table of events, in the given order."""
    case = _case(query, events, knowledge, reasoning, annotations, lateness, now, end)
    return case.run(case.events).matches(host)


def prepare(
    query: str | Mapping[str, str],
    events: str | Mapping[str, str],
    *,
    knowledge: str = "",
    reasoning: str = "rdfs",
    annotations: Sequence[Mapping[str, Any]] = (),
    lateness: str | None = None,
    now: str | None = None,
    end: str = "closed",
) -> FiniteRun:
    """A query over a table of events, resolved and ready to run on any host."""
    case = _case(query, events, knowledge, reasoning, annotations, lateness, now, end)
    return case.run(case.events)


@dataclass(frozen=True)
class _Case:
    """A query and its input, ready to be run in any order of arrival."""

    queries: Mapping[str, str]
    events: list[Event]
    labels: list[str]
    streams: Mapping[str, StreamData]
    annotations: tuple[Annotation, ...]
    knowledge: Knowledge
    lateness: int | None
    now: int | None
    end: str

    def matches(
        self, order: Sequence[int], host: str, chance: random.Random | None
    ) -> tuple[list[Match], dict[tuple[str, int, int], str]]:
        arrived = renumbered(self.events, order)
        labels = {
            (event.stream, event.part, event.seq): self.labels[index]
            for event, index in zip(arrived, order, strict=True)
        }
        made = self.run(arrived)
        if chance is not None:
            made = replace(made, batches=in_batches(mark_late(arrived, self.lateness), chance))
        return made.matches(host), labels

    def run(self, arrived: Sequence[Event]) -> FiniteRun:
        data = [
            replace(stream, events=[event for event in arrived if event.stream == stream.name])
            for stream in self.streams.values()
        ]
        prefixes = {name: iri for each in self.annotations for name, iri in each.prefixes}
        parsed = [parse_query(SourceText(name, text), prefixes) for name, text in self.queries.items()]
        return build_run(parsed, data, self.annotations, self.knowledge, self.lateness, self.now, self.end)


def _case(
    query: str | Mapping[str, str],
    events: str | Mapping[str, str],
    knowledge: str,
    reasoning: str,
    annotations: Sequence[Mapping[str, Any]],
    lateness: str | None,
    now: str | None,
    end: str,
) -> _Case:
    known = tuple(found for each in annotations for found in parse_annotations(each))
    tables = {"s": events} if isinstance(events, str) else events
    rows = [{"stream": name, **row} for name, table in tables.items() for row in parse_table(table)]
    names = list(dict.fromkeys([row["stream"] for row in rows] or tables))
    streams = {name: _stream(name, [r for r in rows if r["stream"] == name], known) for name in names}
    made = [(event, label) for each in streams.values() for event, label in each[1]]
    return _Case(
        {"query.chi": query} if isinstance(query, str) else query,
        [event for event, _ in made],
        [label for _, label in made],
        {name: each[0] for name, each in streams.items()},
        known,
        Knowledge.parse(knowledge, format="trig", reasoning=reasoning),
        _duration(lateness),
        None if now is None else _instant(now),
        end,
    )


def _stream(
    name: str, rows: list[dict[str, str]], annotations: Sequence[Annotation]
) -> tuple[StreamData, list[tuple[Event, str]]]:
    annotation = next((each for each in annotations if each.stream == name), None)
    time = annotation.time if annotation else "ts"
    types = _types(rows, time, dict(annotation.types) if annotation else {})
    rdf = bool(rows) and "triple" in rows[0]
    events: list[tuple[Event, str]] = []
    positions: dict[int, int] = {}
    for index, row in enumerate(rows):
        part = int(row.get("part") or 0)
        seq = positions.get(part, 0)
        positions[part] = seq + 1
        event = _triple_event(name, part, seq, row) if rdf else _event(name, part, seq, row, time, types)
        events.append((event, row.get("event") or f"{name}{index}"))
    return StreamData(name, tuple(types.items()), [event for event, _ in events], [], rdf), events


def _types(rows: list[dict[str, str]], time: str, declared: dict[str, Type]) -> dict[str, Type]:
    types: dict[str, Type] = {}
    for column in [key for key in (rows[0] if rows else {}) if key not in _RESERVED]:
        if column == time:
            types[column] = Type.TIMESTAMP
        elif column in declared:
            types[column] = declared[column]
        else:
            found: Type | None = None
            for row in rows:
                found = widen(found, guess_text(row[column]))
            types[column] = found or Type.STRING
    return types


def _event(name: str, part: int, seq: int, row: dict[str, str], time: str, types: dict[str, Type]) -> Event:
    values: dict[str, Value] = {
        column: None if row[column] == "" else convert(row[column], type) for column, type in types.items()
    }
    values[time] = ts = _instant(row[time])
    return Event(name, part, seq, ts, values)


def _triple_event(name: str, part: int, seq: int, row: dict[str, str]) -> Event:
    start = _instant(row["start"])
    end = _instant(row["end"]) if row.get("end") else start
    prefix = "@prefix : <urn:kaicep:> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .\n"
    with parsing(f"{prefix}{row['triple']} .".encode(), "ttl", name) as quads:
        triples = tuple(map(triple_of, quads))
    return Event(name, part, seq, end, start=start, triples=triples)


def _instant(text: str) -> int:
    found = convert(text, Type.TIMESTAMP)
    assert isinstance(found, int)
    return found


def _duration(text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_duration(text)
    if found is None:
        raise Mistake(f"{text!r} is not a duration: write 5min")
    return found


# --- comparing -------------------------------------------------------------------------------------


def _header(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return [cell.strip() for cell in lines[0].split("|")] if lines else ["query"]


def _canonical_row(row: Mapping[str, str], columns: list[str]) -> tuple[str, ...]:
    return tuple(
        format_time(_instant(row[name])) if name in ("start", "end") else _canonical_cell(row[name])
        for name in columns
    )


def _canonical_cell(cell: str) -> str:
    """Numbers and times in one spelling, so that 2 and 2.0, 60 and its ISO text are the same."""
    if guess_text(cell) in (Type.INT64, Type.FLOAT64):
        return repr(float(cell))
    moment = parse_time(cell)
    return format_time(moment) if moment is not None else cell


def _shown_row(
    match: Match, columns: list[str], labels: Mapping[tuple[str, int, int], str]
) -> tuple[str, ...]:
    row = match.to_dict()
    cells: list[str] = []
    for name in columns:
        if name in ("query", "start", "end"):
            cells.append(row[name])
        elif name.startswith("?") and match.events is not None and name[1:] in match.events:
            cells.append(_shown_events(match.events[name[1:]], labels))
        elif name.startswith("?"):
            cells.append(_canonical_cell(_shown_value(match.select.get(name[1:]))))
        else:
            cells.append(_canonical_cell(_shown_value(match.select.get(name))))
    return tuple(cells)


def _shown_events(found: Any, labels: Mapping[tuple[str, int, int], str]) -> str:
    if found is None:
        return ""
    if isinstance(found, list):
        return " ".join(_shown_events(each, labels) for each in found)
    if "count" in found:
        ends = (_shown_events(found["first"], labels), _shown_events(found["last"], labels))
        return f"{ends[0]}..{ends[1]}"
    if "id" in found:
        return str(found["stream"])
    return labels[found["stream"], found["part"], found["seq"]]


def _shown_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return " ".join(_canonical_cell(_shown_value(each)) for each in value)
        case {"type": "uri", "value": iri}:
            return f":{iri.removeprefix('urn:kaicep:')}" if iri.startswith("urn:kaicep:") else f"<{iri}>"
        case {"value": text}:
            return str(text)
    return str(value)


def _difference(
    columns: list[str],
    expected: Counter[tuple[str, ...]],
    got: Counter[tuple[str, ...]],
    order: Sequence[int] | None,
    case: _Case,
) -> str:
    parts = []
    for title, rows in (("missing", expected - got), ("not expected", got - expected)):
        if rows:
            parts.append(f"{title}:\n{format_table(columns, sorted(rows.elements()))}")
    if order is not None:
        parts.append("when the events arrive as: " + " ".join(case.labels[index] for index in order))
    return "\n\n".join(parts)
