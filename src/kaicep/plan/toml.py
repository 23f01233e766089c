"""TOML files whose mistakes are shown at their place: what a text says, and where each key stands in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.time import parse_duration

Keys = tuple[str | int, ...]
"""The way to a value: names of tables and keys, and numbers in arrays of tables."""

_HEADER = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_INNER = re.compile(rf"[{{,]\s*({_NAME})\s*=")
_LONG = re.compile(r'"""|\'\'\'')


def read_source(path: Path, what: str) -> SourceText:
    """The text of a file; a mistake where it cannot be read. `what` is what it should be, for the message."""
    try:
        return SourceText(str(path), path.read_text("utf-8"))
    except OSError as error:
        raise Mistake(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Mistake(f"the {what} {path} is not UTF-8 text: {error.reason}") from None


def read_toml(source: SourceText) -> dict[str, Any]:
    """What a TOML text says; a mistake at its place where it is none.

    >>> read_toml(SourceText("a.toml", 'tick = "1s"'))
    {'tick': '1s'}
    >>> read_toml(SourceText("a.toml", "tick = ?"))
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: this is not TOML: Invalid value
     --> a.toml:1:8
      |
    1 | tick = ?
      |        ^
    """
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise Mistake(_no_toml(error, source)) from None


def _no_toml(error: tomllib.TOMLDecodeError, source: SourceText) -> Diagnostic:
    """The reader tells the place in its message only."""
    text = str(error)
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", text)
    message = f"this is not TOML: {text[: found.start()] if found else text}"
    if found is None or found[1] is None:
        end = len(source.text.rstrip())
        return Diagnostic(message, Span(max(end - 1, 0), end), source)
    lines = source.text.split("\n")[: int(found[1]) - 1]
    start = sum(len(each) + 1 for each in lines) + int(found[2]) - 1
    return Diagnostic(message, Span(start, start + 1), source)


def key_spans(text: str) -> Mapping[Keys, Span]:
    """Where each table and each key of a TOML text stands.

    >>> spans = key_spans('[streams.air]\\nsource = {kind = "kafka"}\\n[[node]]\\n')
    >>> list(spans)
    [('streams', 'air'), ('streams', 'air', 'source'), ('streams', 'air', 'source', 'kind'), ('node', 0)]
    >>> spans["streams", "air", "source"]
    Span(start=14, end=20)
    """
    spans: dict[Keys, Span] = {}
    table: Keys = ()
    counts: dict[Keys, int] = {}
    for start, line in _plain_lines(text):
        if header := _HEADER.match(line):
            table = _names(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            spans[table] = Span(start + header.start(1), start + len(line.split("#")[0].rstrip()))
        elif key := _KEY.match(line):
            way = (*table, *_names(key[1]))
            spans.setdefault(way, Span(start + key.start(1), start + key.end(1)))
            for inner in _INNER.finditer(line, key.end()):
                place = Span(start + inner.start(1), start + inner.end(1))
                spans.setdefault((*way, *_names(inner[1])), place)
    return spans


class TomlReader:
    """Takes values out of what a TOML text says, and collects what is wrong with them, each at its place."""

    example = "5min"
    """A duration, to show what one looks like."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to do instead of using a key that nobody knows."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.spans = key_spans(source.text)
        self.wrong: list[Diagnostic] = []

    def say(self, way: Keys, message: str, hint: str | None = None) -> None:
        """Notes a mistake at the key it is about, or at the nearest table around it."""
        span = next((self.spans[way[:at]] for at in range(len(way), 0, -1) if way[:at] in self.spans), None)
        self.wrong.append(Diagnostic(message, span, self.source, hint))

    def known(self, way: Keys, read: Mapping[str, Any], keys: tuple[str, ...], what: str) -> None:
        """Notes the keys that a table may not have."""
        for key in read:
            if key not in keys:
                self.say((*way, key), f"{what} has no {key}", self.hints.get(key) or did_you_mean(key, keys))

    def text(self, way: Keys, read: Mapping[str, Any], key: str, default: str) -> str:
        """A value that is a text."""
        value = read.get(key, default)
        if not isinstance(value, str):
            self.say((*way, key), f"{key} is a text")
            return default
        return value

    def duration(self, way: Keys, read: Mapping[str, Any], key: str, default: int | None) -> int | None:
        """A value that is a duration, in microseconds."""
        if key not in read:
            return default
        micros = parse_duration(read[key]) if isinstance(read[key], str) else None
        if micros is None:
            hint = f'a number and a unit in quotes, such as "{self.example}"'
            self.say((*way, key), f"{key} is not a duration", hint)
        return micros


def _names(dotted: str) -> Keys:
    return tuple(each.strip("\"'") for each in re.findall(_NAME, dotted))


def _plain_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their offsets, without those inside of long strings."""
    start, inside = 0, False
    for line in text.split("\n"):
        if not inside:
            yield start, line
        if len(_LONG.findall(line)) % 2:
            inside = not inside
        start += len(line) + 1
