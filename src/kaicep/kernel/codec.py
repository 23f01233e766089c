"""State as bytes: a line that says what it is, and a JSON document.

Nothing in it depends on the machine or can run code.
"""

from __future__ import annotations

import json
from typing import Any

from kaicep.errors import Failure
from kaicep.plan.events import Event
from kaicep.plan.terms import Blank, Iri, Literal, Term

__all__ = [
    "decode",
    "decode_with",
    "encode",
    "encode_with",
    "read_event",
    "write_event",
]

FORMAT = 1


def encode(kind: str, document: object) -> bytes:
    """The document of some kind of state as bytes.

    >>> decode("sort", encode("sort", [1, 2.5, None]))
    [1, 2.5, None]
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"kaicep {kind} {FORMAT}\n{text}".encode()


def decode(kind: str, state: bytes) -> Any:
    """The document; a `Failure` where the state is of another kind or of a format unknown here."""
    head, _, text = state.partition(b"\n")
    words = head.decode("utf-8", "replace").split(" ")
    if len(words) != 3 or words[0] != "kaicep" or words[1] != kind:
        raise Failure(f"this is not a saved state of a {kind}: it begins with {head[:40]!r}")
    if words[2] != str(FORMAT):
        raise Failure(f"the saved state has format {words[2]}, and this version reads {FORMAT}")
    return json.loads(text)


def encode_with(kind: str, document: object, data: bytes) -> bytes:
    """The document of some kind of state, and bytes that belong to it.

    >>> decode_with("engine", encode_with("engine", {"a": 1}, b"two"))
    ({'a': 1}, b'two')
    """
    head, _, text = encode(kind, document).partition(b"\n")
    return head + f"+{len(data)}\n".encode() + text + data


def decode_with(kind: str, state: bytes) -> tuple[Any, bytes]:
    """What `encode_with` wrote."""
    head, _, rest = state.partition(b"\n")
    first, plus, length = head.rpartition(b"+")
    if not plus or not length.isdigit():
        return decode(kind, state), b""
    cut = len(rest) - int(length)
    return decode(kind, first + b"\n" + rest[:cut]), rest[cut:]


def write_event(event: Event) -> list[Any]:
    """An event as JSON holds it."""
    row: list[Any] = [event.stream, event.part, event.seq, event.ts, dict(event.values)]
    if event.id is not None or event.start is not None or event.triples:
        row += [event.id, event.start, [[_write_term(term) for term in each] for each in event.triples]]
    return row


def read_event(row: list[Any]) -> Event:
    """The event that `write_event` wrote."""
    stream, part, seq, ts, values, *rest = row
    if not rest:
        return Event(stream, part, seq, ts, values)
    triples: Any = tuple(tuple(_read_term(term) for term in each) for each in rest[2])
    return Event(stream, part, seq, ts, values, False, rest[0], rest[1], triples)


def _write_term(term: Term) -> list[str | None]:
    match term:
        case Iri(value):
            return ["i", value]
        case Blank(label):
            return ["b", label]
        case Literal(lexical, datatype, language):
            return ["l", lexical, datatype, language]


def _read_term(row: list[Any]) -> Term:
    match row:
        case ["i", value]:
            return Iri(value)
        case ["b", label]:
            return Blank(label)
        case ["l", lexical, datatype, language]:
            return Literal(lexical, datatype, language)
    raise Failure(f"no term of a saved state: {row}")
