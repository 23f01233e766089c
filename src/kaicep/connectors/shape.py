"""The attributes of a stream and their types, and how a record becomes an event.

Records enter as their readers found them; events leave, and a dead letter for every record that is none.
This is the one place where a record becomes typed values, and a row of a wide table the records of its
cells. The types are the declared ones; of what is not declared they are inferred from the first records
(semantics 1). They can be given back later, so that a source which goes on where it stopped reads the
rest as it read the beginning.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, Protocol

from kaicep.connectors.records import Record
from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.plan.rdf_text import read_triples
from kaicep.plan.terms import Blank, Term, Triple, TripleTerm, n_triples
from kaicep.plan.time import format_time
from kaicep.plan.types import (
    INT64_MAX,
    INT64_MIN,
    USUAL,
    Instant,
    Notation,
    RdfTimes,
    Type,
    Unfit,
    Value,
    Wide,
    convert,
    guess,
    guess_text,
    json_text,
    widen,
)

SAMPLE = 1_000
"""How many records are looked at to infer the types (semantics 1)."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be read: its place, the reason, and its text. `line` counts from 1."""

    stream: str
    part: int
    seq: int
    line: int
    file: str
    reason: str
    record_text: str

    def to_dict(self) -> dict[str, Any]:
        """The dead letter as the command line writes it down."""
        return {
            "stream": self.stream,
            "part": self.part,
            "seq": self.seq,
            "line": self.line,
            "file": self.file,
            "reason": self.reason,
            "record": self.record_text,
        }


def mostly_bad(stream: str, dead: Sequence[DeadLetter], good: int) -> str | None:
    """What to say where most records of a stream could not be read; None where that is not so.

    >>> letter = DeadLetter("air", 0, 0, 1, "air.csv", 'kW: "warm" is not a float64', "")
    >>> mostly_bad("air", [letter, letter], 1)
    'most records of air could not be read (2 of 3); mostly because of kW: "warm" is not a float64'
    """
    if len(dead) <= good:
        return None
    kinds = Counter(_QUOTED.sub("", each.reason) for each in dead)
    kind, _ = kinds.most_common(1)[0]
    first = next(each.reason for each in dead if _QUOTED.sub("", each.reason) == kind)
    if not good:
        return f"no record of {stream} could be read: {first}"
    most = f"most records of {stream} could not be read ({len(dead):,} of {len(dead) + good:,})"
    return f"{most}; mostly because of {first}"


_QUOTED = re.compile(r'".*"')


class Described(Protocol):
    """What is asked of an annotation."""

    @property
    def time(self) -> str:
        """The attribute that holds the time."""
        ...

    @property
    def types(self) -> tuple[tuple[str, Type], ...]:
        """The declared types."""
        ...

    @property
    def notation(self) -> Notation:
        """How values are written."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """A stream as it was described: its name, the attribute with the time, declared types.

    `notation` is how its values are written. With `explicit_time`, somebody said which attribute is the time,
    so that the stream is one of records even if they look like triples. An event after `latest` lies too far
    in the future to be true, and one that is more than `ahead` (microseconds) after the clock.
    """

    stream: str
    time: str = "ts"
    types: Mapping[str, Type] = field(default_factory=dict)
    explicit_time: bool = False
    latest: int | None = None
    notation: Notation = USUAL
    ahead: int | None = None

    @classmethod
    def of(cls, stream: str, said: Described | None, types: Mapping[str, Type] | None = None) -> Form:
        """A stream as its annotation describes it, if it has one; `types` are declared in addition."""
        if said is None:
            return cls(stream, types=types or {})
        records = said.notation.blank_nodes == "record" and said.notation.rdf is None
        return cls(stream, said.time, {**dict(said.types), **(types or {})}, records, notation=said.notation)


@dataclass(frozen=True, slots=True)
class Schema:
    """A stream as it was found: its attributes in order of first appearance. An RDF stream has none.

    >>> Schema.from_json(Schema((("ts", Type.TIMESTAMP), ("kW", Type.FLOAT64))).to_json())
    Schema(attributes=(('ts', Type.TIMESTAMP), ('kW', Type.FLOAT64)), rdf=False)
    """

    attributes: tuple[tuple[str, Type], ...] = ()
    rdf: bool = False

    def to_json(self) -> dict[str, Any]:
        """The schema as JSON holds it, to be kept beside a position."""
        return {"attributes": {name: str(type) for name, type in self.attributes}, "rdf": self.rdf}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The schema that `to_json` wrote down."""
        try:
            attributes = tuple((str(name), Type(type)) for name, type in data["attributes"].items())
            return cls(attributes, bool(data["rdf"]))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise Mistake(f"this is not a schema of a stream: {json_text(data)}") from None


def refuse_wide(form: Form, kind: str) -> None:
    """A mistake where a stream is a wide table and comes from where positions leave no room for its cells."""
    if form.notation.wide is not None:
        message = f"stream {form.stream}: a wide table is read from files, not from {kind}"
        raise Mistake(message, hint="send a record for each reading")


class Shaper:
    """Makes events of records: first it learns what their attributes are, then, settled, it converts.

    >>> shaper = Shaper(Form("meter"))
    >>> records = [Record(0, 0, 1, "m.jsonl", {"ts": 1, "kW": 2}), Record(0, 1, 2, "m.jsonl", {"kW": 2})]
    >>> [shaper.learn(each) for each in records]
    [1, 2]
    >>> shaper.settle()
    >>> events, dead = shaper.shape(records)
    >>> events[0].values, dead[0].reason
    ({'ts': 1000000, 'kW': 2}, 'no time: it has no attribute ts, and no annotation names another')
    """

    def __init__(self, form: Form, schema: Schema | None = None) -> None:
        self.form = form
        self.schema = schema
        self._seen: dict[str, Type | None] = {}
        self._records = self._timed = self._triples = 0
        self._documents = False
        self._build: _Build | None = None
        if schema is not None:
            self._build = _builder(form, schema)

    def columns(self, columns: Iterable[tuple[str, Type | None]]) -> None:
        """Takes note of the columns that a file declares, whatever is in them."""
        if self.schema is None:
            for name, suggested in columns:
                self._saw(name, suggested)

    def header(self, names: list[str]) -> None:
        """Takes note of columns that a file names without saying what is in them."""
        self.columns((each, None) for each in names)

    def _saw(self, name: str, suggested: Type | None) -> None:
        wide = self.form.notation.wide
        if wide is not None and is_point(name, wide, self.form.time):
            name = wide.value
            # Each column may be of another kind: a whole number in one says little of the others.
            suggested = Type.FLOAT64 if suggested is Type.INT64 else suggested
            self._seen[wide.point] = Type.STRING
        elif wide is not None and name not in (self.form.time, *wide.keep):
            return
        self._seen[name] = widen(self._seen.get(name), suggested)

    def learn(self, record: Record) -> int:
        """Takes note of a record; says how many good ones there were so far."""
        if record.fields is None:
            return self._records
        notation = self.form.notation
        csv = record.file.lower().endswith(".csv")
        suggest: Callable[[Any, Notation], Type | None] = guess_text if csv else guess
        for name, value in record.fields.items():
            known = self._seen.get(name)
            if known is not Type.STRING or name not in self._seen:
                self._saw(name, suggest(value, notation))
        if record.fields.get(self.form.time) is not None:
            self._timed += 1
        elif "triple" in record.fields or "triples" in record.fields or record.fields.keys() >= set(_TERMS):
            self._triples += 1
            self._documents |= isinstance(record.fields.get("triples"), tuple)
        self._records += 1
        return self._records

    def settle(self) -> None:
        """From here on the types are fixed."""
        if self.schema is None:
            rdf = not self.form.explicit_time and self._triples > self._timed
            rdf = rdf or self._documents or self.form.notation.rdf is not None
            self.schema = Schema(() if rdf else self._attributes(), rdf)
            self._build = _builder(self.form, self.schema)

    def _attributes(self) -> tuple[tuple[str, Type], ...]:
        """The attributes with their types: those that appear in the data, then those only declared.

        An attribute `ts` beside another that holds the time is out of reach, since `?e.ts` is always the
        event time.
        """
        time, declared = self.form.time, self.form.types
        names = list(dict.fromkeys((*self._seen, *declared)))
        if time not in names:
            names.insert(0, time)
        types = {each: declared.get(each) or self._seen.get(each) or Type.STRING for each in names}
        types[time] = Type.TIMESTAMP
        if time != "ts":
            types.pop("ts", None)
        return tuple(types.items())

    @property
    def latest(self) -> int | None:
        """The time after which no event can be by now; None: there is no such bound."""
        latest = self.form.latest
        if self.form.ahead is not None:
            bound = time.time_ns() // 1_000 + self.form.ahead
            latest = bound if latest is None else min(latest, bound)
        return latest

    def shape(
        self, records: Iterable[Record], widening: bool = False
    ) -> tuple[list[Event], list[DeadLetter]]:
        """The events of the records, and the dead letters of those that are none.

        With `widening`, an int64 that was inferred is a float64 from the first to the last record where a
        fraction comes later; for that nobody may have looked at the types before.
        """
        events: list[Event] = []
        dead: list[DeadLetter] = []
        widened: set[str] = set()
        latest, wide = self.latest, self.form.notation.wide
        for record in self._unpivoted(records):
            try:
                if record.fields is None:
                    raise Unfit(record.reason)
                assert self._build is not None, "settle comes before the first good record"
                try:
                    made = self._build(record, record.fields)
                except Unfit:
                    found = self._widen(record.fields) if widening else set()
                    if not found:
                        raise
                    widened |= found
                    made = self._build(record, record.fields)
                if wide is None or made.values.get(wide.value) is not None:
                    events.append(_in_time(made, latest))
            except Unfit as unfit:
                text = _text_of(record)
                place = (self.form.stream, record.part, record.seq, record.line, record.file)
                dead.append(DeadLetter(*place, str(unfit), text))
        return [_as_floats(each, widened) for each in events] if widened else events, dead

    def _unpivoted(self, records: Iterable[Record]) -> Iterable[Record]:
        """The records of the cells of a wide table; other records are what they are."""
        wide = self.form.notation.wide
        if wide is None:
            return records
        types = dict(self.schema.attributes) if self.schema is not None else {}
        return (cell for row in records for cell in _cells(row, wide, self.form, types))

    def _widen(self, fields: Mapping[str, object]) -> set[str]:
        """The attributes that this record shows to be float64, and not the int64 that was inferred."""
        assert self.schema is not None
        found = {
            name
            for name, type in self.schema.attributes
            if type is Type.INT64
            and name not in self.form.types
            and _has_fraction(fields.get(name), self.form.notation)
        }
        if found:
            types = ((name, Type.FLOAT64 if name in found else type) for name, type in self.schema.attributes)
            self.schema = Schema(tuple(types), self.schema.rdf)
            self._build = _builder(self.form, self.schema)
        return found


def _in_time(event: Event, latest: int | None) -> Event:
    if latest is not None and event.ts > latest:
        raise Unfit(f"its time, {format_time(event.ts)}, is too far ahead: after {format_time(latest)}")
    return event


# --- wide tables ------------------------------------------------------------------------------------


def is_point(column: str, wide: Wide, time: str) -> bool:
    """Whether the cells of a column of a wide table are events."""
    return column in wide.columns if wide.columns else column != time and column not in wide.keep


def _cells(row: Record, wide: Wide, form: Form, types: Mapping[str, Type]) -> Iterator[Record]:
    """The records of a row's filled cells, with its time and what is kept; a bad one for each bad cell.

    The number of a cell is that of the row, plus the place of its column in the header (`row_width`).
    """
    fields, notation = row.fields, form.notation
    if fields is None or fields.get(form.time) is None:
        kept = {form.time: None} if fields and form.time in fields else {}
        yield row if fields is None else replace(row, fields=kept)
        return
    header = fields if row.file.lower().endswith((".csv", ".parquet")) else wide.columns
    places = {name: row.seq + at for at, name in enumerate(header)}

    def bad(name: str, reason: object) -> Record:
        text = f"{name}: {reason}"
        return Record(row.part, places.get(name, row.seq), row.line, row.file, None, row.text, text)

    try:
        ts = convert(fields[form.time], Type.TIMESTAMP, notation)
    except Unfit as unfit:
        yield bad(form.time, unfit)
        return
    shared: dict[str, object] = {form.time: Instant(ts) if isinstance(ts, int) else None}
    for name in wide.keep:
        try:
            shared[name] = convert(fields.get(name), types.get(name, Type.STRING), notation)
        except Unfit as unfit:
            shared[name] = None
            yield bad(name, unfit)
    for name, cell in fields.items():
        if cell is not None and is_point(name, wide, form.time) and name in places:
            made = {**shared, wide.point: name, wide.value: cell}
            yield Record(row.part, places[name], row.line, row.file, made)


# --- from records to events -------------------------------------------------------------------------


_Build = Callable[[Record, Mapping[str, object]], Event]


def _builder(form: Form, schema: Schema) -> _Build:
    return _triple_event(form) if schema.rdf else _record_event(form, schema)


def _likely_time(fields: Mapping[str, object], notation: Notation) -> str:
    """What to do where an attribute that looks like a time is not known to be one."""
    for name, raw in fields.items():
        if _OF_TIME.search(name) and not isinstance(raw, bool):
            try:
                convert(raw, Type.TIMESTAMP, notation)
            except Unfit:
                continue
            return f'; if {name} is it: "time": {json_text(name)} in the annotation'
    return ""


_OF_TIME = re.compile(r"time|date|\bts\b|(?<=[a-z])At$|_at$", re.IGNORECASE)


def _record_event(form: Form, schema: Schema) -> _Build:
    """How a record becomes an event of a stream with attributes."""
    stream, time = form.stream, form.time
    converters = {name: _converter(name, type, form.notation) for name, type in schema.attributes}
    missing = f"no time: it has no attribute {time}"
    if not form.explicit_time:
        missing += ", and no annotation names another"

    def build(record: Record, fields: Mapping[str, object]) -> Event:
        if time not in fields:
            raise Unfit(missing if form.explicit_time else missing + _likely_time(fields, form.notation))
        values: dict[str, Value] = {}
        for name, raw in fields.items():
            if (convert := converters.get(name)) is not None:
                values[name] = convert(raw)
        ts = values[time]
        if ts is None:
            raise Unfit(f"no time: {time} is null")
        assert isinstance(ts, int)
        return Event(stream, record.part, record.seq, ts, values)

    return build


def _converter(name: str, type: Type, notation: Notation) -> Callable[[Any], Value]:
    """What `convert` does for an attribute; values that are what they should be take a short way."""

    def slowly(raw: object) -> Value:
        return _convert(name, raw, type, notation)

    if type is Type.STRING and not notation.nulls:
        return lambda raw: raw if raw.__class__ is str else slowly(raw)
    if type is Type.FLOAT64:
        return lambda raw: raw if raw.__class__ is float and isfinite(raw) else slowly(raw)
    if type is Type.INT64:
        return lambda raw: raw if raw.__class__ is int and INT64_MIN <= raw <= INT64_MAX else slowly(raw)
    if type is Type.TIMESTAMP and notation.time_unit == "s":
        # Whole seconds of the years 1970 to 2286 need no exact arithmetic.
        return lambda raw: raw * 1_000_000 if raw.__class__ is int and 0 <= raw < 10**10 else slowly(raw)
    return slowly


def _has_fraction(raw: object, notation: Notation) -> bool:
    """Whether a value is a number that int64 cannot hold and float64 can."""
    try:
        convert(raw, Type.INT64, notation)
    except Unfit:
        try:
            return convert(raw, Type.FLOAT64, notation) is not None
        except Unfit:
            return False
    return False


def _as_floats(event: Event, names: set[str]) -> Event:
    values = {
        name: float(value) if name in names and isinstance(value, int) else value
        for name, value in event.values.items()
    }
    return replace(event, values=values)


def _convert(name: str, raw: object, type: Type, notation: Notation) -> Value:
    try:
        return convert(raw, type, notation)
    except Unfit as unfit:
        raise Unfit(f"{name}: {unfit}") from None


def _triple_event(form: Form) -> _Build:
    """How a record becomes an event of an RDF stream: triples that hold from start to end."""
    stream, notation = form.stream, form.notation
    times = notation.rdf or RdfTimes()
    from_, to = times.start, times.end

    def build(record: Record, fields: Mapping[str, object]) -> Event:
        start = _convert(from_, fields.get(from_), Type.TIMESTAMP, notation)
        if not isinstance(start, int):
            raise Unfit(f"no time: it has no {from_}")
        end = _convert(to, fields.get(to), Type.TIMESTAMP, notation)
        end = end if isinstance(end, int) else start
        if end < start:
            raise Unfit(f"it ends at {format_time(end)}, before it starts at {format_time(start)}")
        scope = stream if notation.blank_nodes == "stream" else f"{stream} {record.part} {record.seq}"
        label = partial(_blank_label, scope)
        triples = tuple(_said_triples(fields, label))
        if not triples:
            raise Unfit("it has no triple")
        return Event(stream, record.part, record.seq, end, start=start, triples=triples)

    return build


_TERMS = ("subject", "predicate", "object")


def _text_of(record: Record) -> str:
    """A record as it was written, or as near to that as is known."""
    if record.text is not None or record.fields is None:
        return record.text or ""
    triples = record.fields.get("triples")
    return "\n".join(map(n_triples, triples)) if isinstance(triples, tuple) else json_text(record.fields)


def _said_triples(fields: Mapping[str, object], label: Callable[[str], str]) -> Iterator[Triple]:
    """The triples of a record: texts of N-Triples, the columns of one, or those of a document."""
    for name in ("triple", "triples"):
        value = fields.get(name)
        for said in value if isinstance(value, list | tuple) else () if value is None else (value,):
            if isinstance(said, tuple):
                yield _scoped(said, label)
            else:
                yield from _read(name, said, label)
    terms = [fields.get(name) for name in _TERMS]
    if None not in terms:
        yield from _read("triple", f"{' '.join(map(str, terms))} .", label)


def _read(name: str, text: object, label: Callable[[str], str]) -> list[Triple]:
    if not isinstance(text, str):
        raise Unfit(f"{name}: {json_text(text)} is not text")
    try:
        return read_triples(text, label)
    except ValueError as error:
        raise Unfit(f"triple: {error}") from None


def _scoped(triple: Triple, label: Callable[[str], str]) -> Triple:
    s, p, o = triple
    if not isinstance(s, Blank) and not isinstance(o, Blank | TripleTerm):
        return triple
    return _scoped_term(s, label), p, _scoped_term(o, label)


def _scoped_term(term: Term, label: Callable[[str], str]) -> Term:
    if isinstance(term, Blank):
        return Blank(label(term.label))
    return TripleTerm(_scoped(term.triple, label)) if isinstance(term, TripleTerm) else term


def _blank_label(scope: str, label: str) -> str:
    """A blank node is one node within its record, or its stream; that name keeps it apart from all others.

    >>> _blank_label("trucks 1", "b0")
    'trucks_20_1.b0'
    """
    safe = re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", scope)
    return f"{safe}.{label}"
