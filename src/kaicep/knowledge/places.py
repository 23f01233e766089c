"""Where everything stands in a JSON text, which the standard reader does not tell."""

from __future__ import annotations

import json
from typing import Any

from kaicep.errors import Diagnostic, Mistake, Source, Span

__all__ = ["Places", "read_json"]

Places = dict[tuple[str | int, ...], Span]
"""Where each value stands, by its path."""

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def read_json(source: Source) -> tuple[Any, Places]:
    """The value of a JSON text, and the place of each member (its key) and each item by their path.

    >>> value, places = read_json(Source("a.json", '{"a": [1, {"b": 2}]}'))
    >>> places["a",], places["a", 1, "b"]
    (Span(start=1, end=4), Span(start=11, end=14))
    """
    try:
        value = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise Mistake(
            Diagnostic(f"this is not JSON: {error.msg}", Span(error.pos, error.pos + 1), source)
        ) from None
    places: Places = {}
    _walk(source, _skip(source.text, 0), (), places)
    return value, places


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _walk(source: Source, at: int, path: tuple[str | int, ...], places: Places) -> int:
    """Goes over the value that begins at `at`, and says where it ends. The text is known to be right."""
    text = source.text
    if text[at] not in "{[":
        _, end = _DECODER.raw_decode(text, at)
        return end
    closing = "}" if text[at] == "{" else "]"
    at = _skip(text, at + 1)
    index = 0
    while text[at] != closing:
        inner: tuple[str | int, ...] = (*path, index)
        if closing == "}":
            start = at
            key, at = _DECODER.raw_decode(text, at)
            inner = (*path, key)
            if inner in places:
                raise Mistake(Diagnostic(f'"{key}" stands here twice', Span(start, at), source))
            places[inner] = Span(start, at)
            at = _skip(text, _skip(text, at) + 1)
        else:
            places[inner] = Span(at, at + 1)
        at = _skip(text, _walk(source, at, inner, places))
        index += 1
        if text[at] == ",":
            at = _skip(text, at + 1)
    return at + 1
