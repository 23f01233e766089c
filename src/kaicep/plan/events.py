"""Events, which go into a plan, matches, which come out of it, and the id of a match."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from html import escape
from typing import Any

from kaicep.plan.terms import Triple
from kaicep.plan.time import datetime_of, format_time, parse_time
from kaicep.plan.types import Value

# ----------------------------------------------------------------------------------------------------------
# What notebooks show of matches, queries and knowledge: small pieces of HTML, every text escaped.


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; null is an empty cell, numbers stand to the right.

    >>> html_table(["x"], [["<a>"], [None]])
    '<table><thead><tr><th>x</th></tr></thead><tbody><tr><td>&lt;a&gt;</td></tr><tr><td></td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_text(title: str, text: str) -> str:
    """A text as it is laid out, below a line that says what it is."""
    return f"<div>{escape(title)}</div><pre>{escape(text)}</pre>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align: right">{value}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


# ----------------------------------------------------------------------------------------------------------
# Events and matches: what goes into a plan and what comes out of it.


@dataclass(frozen=True, slots=True)
class Event:
    """A record on a stream, at a time, with its identity (semantics 1).

    An event that another query derived has that match's `id` for identity. A record of an RDF stream
    has `triples` and a `start`; its `ts` is its end.
    """

    stream: str
    part: int
    seq: int
    ts: int
    values: Mapping[str, Value] = field(default_factory=dict, compare=False)
    late: bool = field(default=False, compare=False)
    id: str | None = None
    start: int | None = field(default=None, compare=False)
    triples: tuple[Triple, ...] = field(default=(), compare=False)

    def value(self, attribute: str) -> Value:
        """The value of an attribute; None where it is missing."""
        return self.ts if attribute == "ts" else self.values.get(attribute)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity, as it is written in matches."""
        if self.id is not None:
            return {"stream": self.stream, "id": self.id}
        return {"stream": self.stream, "part": self.part, "seq": self.seq}

    def order_within(self) -> tuple[int, str, int, int]:
        """The place of the event in its own stream."""
        return (self.ts, self.id or "", self.part, self.seq)


@dataclass(slots=True, repr=False)
class Match:
    """A match: its query, its time, the selected values, and the events that made it.

    `start` and `end` are datetimes in UTC; `start_us` and `end_us` are the same in microseconds since 1970.
    Values are as in JSON: a time is a text. `events` maps a variable to an identity, or to a list of them
    for a loop; an EP-SPARQL match has none. `triples` are those of a CONSTRUCT. `version` is the version of
    the knowledge that the match used; it is written once the knowledge has changed.

    There may be millions of matches at once. Making one takes a fifth of the time if it is not frozen, and
    less again if it is `unread`: it then computes its attributes when somebody asks for them.
    """

    query: str
    id: str
    start_us: int
    end_us: int
    select: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[str, Any] | None = None
    triples: tuple[str, ...] | None = None
    version: int | None = field(default=None, compare=False)
    _read: tuple[Callable[[str, Any], Any], Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def unread(cls, start: int, end: int, read: Callable[[str, Any], Any], row: Any) -> Match:
        """A match whose other attributes `read` has, by name and row, when they are asked for.

        >>> Match.unread(4, 5, lambda name, row: row[name], {"query": "q"}).query
        'q'
        """
        made = cls.__new__(cls)
        made.start_us, made.end_us, made._read = start, end, (read, row)
        return made

    @classmethod
    def from_json(cls, line: str) -> Match:
        """The match that `to_json` wrote.

        >>> match = Match("rise", "f3", 0, 60_000_000, {"sensor": "s1"})
        >>> Match.from_json(match.to_json()) == match
        True
        """
        row = json.loads(line)
        triples = row.get("triples")
        return cls(
            row["query"],
            row["id"],
            parse_time(row["start"]) or 0,
            parse_time(row["end"]) or 0,
            row.get("select", {}),
            row.get("events"),
            None if triples is None else tuple(triples),
            row.get("knowledge"),
        )

    def __getattr__(self, name: str) -> Any:
        """What nobody has asked for before."""
        if name not in _ATTRIBUTES or self._read is None:
            raise AttributeError(f"a match has no attribute {name}")
        read, row = self._read
        value = read(name, row)
        setattr(self, name, value)
        return value

    @property
    def start(self) -> datetime:
        """When it starts."""
        return datetime_of(self.start_us)

    @property
    def end(self) -> datetime:
        """When it ends."""
        return datetime_of(self.end_us)

    def __repr__(self) -> str:
        """On one line: the query, when, and what was selected.

        >>> Match("rise", "f3", 0, 60_000_000, {"sensor": "s1", "rise": 60.5})
        <Match rise 1970-01-01 00:00:00 to 00:01:00, sensor='s1', rise=60.5>
        """
        start, end = (f"{each.replace(tzinfo=None)}" for each in (self.start, self.end))
        span = start if start == end else f"{start} to {end.removeprefix(start[:11])}"
        values = list(self.triples) if self.triples is not None else _shown(self.select)
        text = f"<Match {', '.join([f'{self.query} {span}', *values])}"
        return (text if len(text) < 160 else text[:157] + "...") + ">"

    def _repr_html_(self) -> str:
        """What a notebook shows: what there is to read, one thing below the other."""
        rows: list[tuple[str, object]] = [
            ("start", format_time(self.start_us)),
            ("end", format_time(self.end_us)),
        ]
        if self.triples is not None:
            rows += [("triple", each) for each in self.triples]
        rows += _plain(self.select)
        rows += [(f"?{name}", _shown_events(each)) for name, each in (self.events or {}).items()]
        return html_table([self.query, ""], rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return Match, tuple(getattr(self, each) for each in _ATTRIBUTES)

    def to_dict(self) -> dict[str, Any]:
        """The match as the command line prints it."""
        row: dict[str, Any] = {
            "query": self.query,
            "id": self.id,
            "start": format_time(self.start_us),
            "end": format_time(self.end_us),
        }
        if self.triples is not None:
            row["triples"] = list(self.triples)
        else:
            row["select"] = dict(self.select)
        if self.events is not None:
            row["events"] = dict(self.events)
        if self.version:
            row["knowledge"] = self.version
        return row

    def to_json(self) -> str:
        """The match as one line of JSON: the same match, the same bytes."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _shown(select: Mapping[str, Any]) -> list[str]:
    """Selected values as `repr` shows them; a term of EP-SPARQL is its text."""
    return [f"{name}={value!r}" for name, value in _plain(select)]


def _plain(select: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(k, v["value"] if isinstance(v, Mapping) and "value" in v else v) for k, v in select.items()]


def _shown_events(events: Any) -> str | None:
    """The events of a variable: stream, source partition and position, or the id of a match."""
    if isinstance(events, list):
        return ", ".join(str(_shown_events(each)) for each in events)
    if events is None or "first" in events:
        return events and f"{events['count']:,} from {_shown_events(events['first'])} on"
    return "/".join(str(each) for each in events.values())


_ATTRIBUTES = ("query", "id", "start_us", "end_us", "select", "events", "triples", "version")


def by_end(match: Match) -> tuple[int, str]:
    """Where a match stands among others: by its end, then by its id (semantics 2)."""
    return match.end_us, match.id


# ----------------------------------------------------------------------------------------------------------
# The stable id of a match: a function of the query, the partition and the events, and of nothing else.
#
# It is 128 bits, made from a seed (a cryptographic hash of the query's name and text) into which words of
# 64 bits are mixed one after the other. An event enters as the two words of its own identity, which are the
# same in every match that it is part of, so that they are computed once. Strings enter by a hash of their
# own, numbers as they are. Nothing here depends on host, batch or order of arrival, and a compiled kernel
# does the same arithmetic on integers (`kernel.words`).

_MASK = 2**64 - 1

Words = tuple[int, int]


def _mix(word: int) -> int:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class MatchId:
    """A match's id in the making.

    >>> MatchId("q", "SELECT *").text("a").hex() == match_id("q", "SELECT *", ["a"])
    True
    """

    def __init__(self, name: str, text: str) -> None:
        self.low, self.high = _seed(f"{name}\0{text}")

    @classmethod
    def of(cls, low: int, high: int) -> MatchId:
        """One that goes on from these words."""
        made = cls.__new__(cls)
        made.low, made.high = low, high
        return made

    def copy(self) -> MatchId:
        """Another one that goes on from here: name and text need be hashed only once."""
        return MatchId.of(self.low, self.high)

    def pair(self, low: int, high: int) -> MatchId:
        """Mixes in two integers of 64 bits, one into each half."""
        self.low = _mix(self.low ^ low)
        self.high = _mix((self.high + high + 0x9E3779B97F4A7C15) & _MASK) ^ (self.low >> 1)
        return self

    def word(self, value: int) -> MatchId:
        """Mixes in an integer of 64 bits."""
        value &= _MASK
        return self.pair(value, value)

    def text(self, value: str) -> MatchId:
        """Mixes in a string."""
        return self.word(text_word(value))

    def value(self, value: Value) -> MatchId:
        """Mixes in a value that events have in common."""
        kind, word = value_words(value)
        return self.pair(kind, word)

    def event(self, event: Event) -> MatchId:
        """Mixes in an event's identity."""
        return self.pair(*event_words(event))

    def hex(self) -> str:
        """The id as 32 hexadecimal digits."""
        return f"{self.low:016x}{self.high:016x}"


@lru_cache(maxsize=1024)
def _seed(text: str) -> Words:
    seed = blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")


def text_word(value: str) -> int:
    """The word of a string."""
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little")


def value_words(value: Value) -> Words:
    """The kind of a value and its word: numbers that are equal have the same, whatever their type.

    >>> value_words(2) == value_words(2.0), value_words(True) == value_words(1)
    (True, False)
    """
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, str):
        return 2, text_word(value)
    if isinstance(value, float):
        if not value.is_integer() or not -(2.0**63) <= value < 2.0**63:
            return 4, int(struct.unpack("<Q", struct.pack("<d", value))[0])
        value = int(value)
    return 3, value & _MASK


@lru_cache(maxsize=1024)
def stream_words(stream: str) -> Words:
    """The words that the identities of a stream's events start from."""
    return _seed(f"stream\0{stream}")


def event_words(event: Event) -> Words:
    """The two words of an event's identity."""
    made = MatchId.of(*stream_words(event.stream))
    if event.id is not None:
        made.pair(*id_words(event.id))
    else:
        made.word(event.part).word(event.seq)
    return made.low, made.high


def id_words(id: str) -> Words:
    """The two words of a match's id; of any other text, that of the text twice."""
    try:
        return int(id[:16], 16), int(id[16:], 16)
    except ValueError:
        return text_word(id), text_word(id)


def match_id(name: str, text: str, parts: Iterable[str]) -> str:
    """The id of a match that is known by a list of strings."""
    made = MatchId(name, text)
    for each in parts:
        made.text(each)
    return made.hex()
