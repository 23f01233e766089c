"""Saved states: a header and arrays as they are in memory, or a line and a JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.columns import Array
from kaicep.plan.events import Event
from kaicep.plan.terms import Blank, Iri, Literal, Term, TripleTerm

# ----------------------------------------------------------------------------------------------------------
# State as bytes: a line that says what it is, and a JSON document.
#
# Nothing in it depends on the machine or can run code.

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


def _write_term(term: Term) -> list[Any]:
    match term:
        case Iri(value):
            return ["i", value]
        case Blank(label):
            return ["b", label]
        case Literal(lexical, datatype, language):
            return ["l", lexical, datatype, language]
        case TripleTerm(triple):
            return ["t", *map(_write_term, triple)]


def _read_term(row: list[Any]) -> Term:
    match row:
        case ["i", value]:
            return Iri(value)
        case ["b", label]:
            return Blank(label)
        case ["l", lexical, datatype, language]:
            return Literal(lexical, datatype, language)
        case ["t", s, p, o]:
            return TripleTerm((_read_term(s), _read_term(p), _read_term(o)))
    raise Failure(f"no term of a saved state: {row}")


# ----------------------------------------------------------------------------------------------------------
# A saved state: a header, and arrays as they are in memory.
#
# The header is one line of JSON: what kind of state it is, the version of its format, a document of small
# things, and for each array its type and shape. The bytes of the arrays follow, little end first, so that a
# state means the same on every machine. Nothing is pickled.

_VERSION = 4


def write_state(kind: str, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A state as bytes.

    >>> state = write_state("pattern", {"now": 5}, {"ts": np.array([1, 2])})
    >>> document, arrays = read_state("pattern", state)
    >>> document, arrays["ts"].tolist()
    ({'now': 5}, [1, 2])
    """
    given = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
    shapes = [[name, each.dtype.newbyteorder("<").str, each.shape] for name, each in given.items()]
    head = {"kaicep": kind, "version": _VERSION, "arrays": shapes, "document": document}
    parts = [json.dumps(head, separators=(",", ":")).encode(), b"\n"]
    parts += [_little(each).tobytes() for each in given.values()]
    return b"".join(parts)


def read_state(kind: str, state: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The document and the arrays of a state; a `Failure` where it is of another kind or version."""
    line, _, rest = state.partition(b"\n")
    try:
        head = json.loads(line)
        found, version = head["kaicep"], head["version"]
    except (ValueError, KeyError, TypeError):
        raise Failure(f"this is not a saved state of {_one(kind)} that this release can read") from None
    if found != kind:
        other = _one(found) if isinstance(found, str) and found else "something else"
        raise Failure(f"this is the saved state of {other}, not of {_one(kind)}")
    if not isinstance(version, int) or version != _VERSION:
        raise Failure(
            f"this state was saved in format {version}, this release reads {_VERSION}: start without it"
        )
    try:
        return head["document"], _arrays(head["arrays"], rest, kind)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError):
        raise Failure(f"the saved state of {_one(kind)} is damaged: start without it") from None


def _arrays(rows: list[Any], rest: bytes, kind: str) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    at = 0
    for name, dtype, shape in rows:
        kind_of = np.dtype(dtype)
        length = prod(shape) * kind_of.itemsize
        if kind_of.hasobject or length < 0:
            raise ValueError("not numbers")
        if len(rest) < at + length:
            raise Failure(f"the saved state of {_one(kind)} is cut short")
        made = np.frombuffer(rest, kind_of, prod(shape), at).reshape(shape)
        arrays[name] = made.astype(kind_of.newbyteorder("="))
        at += length
    return arrays


def _one(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _little(array: Array) -> Array:
    return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("<"))
