"""Texts of RDF: their formats, the parser behind its bounds, and the terms that it gives.

Whatever is parsed here may come from anybody. A text that would bring the parser down, and the process
with it, is refused before: entities that grow in RDF/XML, and whatever is nested too deeply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.errors import Diagnostic, Mistake, SourceText, Span, did_you_mean
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple, TripleTerm

if TYPE_CHECKING:
    import pyoxigraph

# Suffix to the name that pyoxigraph's RdfFormat has for the format.
FORMATS = {
    "ttl": "TURTLE",
    "turtle": "TURTLE",
    "nt": "N_TRIPLES",
    "nq": "N_QUADS",
    "trig": "TRIG",
    "rdf": "RDF_XML",
    "owl": "RDF_XML",
    "xml": "RDF_XML",
    "jsonld": "JSON_LD",
}
"""The formats of RDF, by suffix."""


@contextmanager
def parsing(data: bytes, format: str, name: str, base: str = "") -> Iterator[pyoxigraph.QuadParser]:
    """The quads of a text, to be taken inside; a text that is none is a mistake with its place.

    `name` is for messages. Relative IRIs are read as if the text lay at `base`, an IRI or the name of a file.

    >>> with parsing(b"<a> <urn:p> 5 .", "ttl", "a.ttl", "a.ttl") as quads:
    ...     [str(each.subject) for each in quads]
    ['<file:///a>']
    >>> with parsing(b"<urn:a> 5", "ttl", "a.ttl") as quads:
    ...     list(quads)
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: 5 is not a valid predicate
     --> a.ttl:1:9
      |
    1 | <urn:a> 5
      |         ^
    """
    import pyoxigraph

    if format not in FORMATS:
        raise Mistake(f"unknown format {format}", hint=did_you_mean(format, FORMATS))
    problem = _too_much(data, FORMATS[format])
    if problem is not None:
        raise Mistake(f"{name}: {problem}", hint="such a text would crash the process that parses it")
    kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
    # Only the file's name, not its folder: the same files give the same IRIs on every machine.
    where = base if "://" in base else Path("/", base).as_uri()
    try:
        yield pyoxigraph.parse(data, format=kind, base_iri=where)
    except SyntaxError as error:
        raise Mistake(_syntax_diagnostic(error, data, name)) from None


def term_of(node: Any, label: Callable[[str], str] = str) -> Term:
    """A term of pyoxigraph's as one of ours, as it was written; `label` names blank nodes."""
    kind = type(node).__name__  # to import the classes each time would cost as much as the rest
    if kind == "NamedNode":
        return _iri(node.value)
    if kind == "Literal":
        language = node.language
        if language is None:
            return Literal(node.value, node.datatype.value)
        direction = node.direction
        return Literal(node.value, language=f"{language}--{direction}" if direction is not None else language)
    return Blank(label(node.value)) if kind == "BlankNode" else TripleTerm(triple_of(node, label))


_iri = lru_cache(maxsize=100_000)(Iri)  # most come again and again, and to make one takes longer


def triple_of(node: Any, label: Callable[[str], str] = str) -> Triple:
    """The same of a triple, or of a quad without its graph."""
    return term_of(node.subject, label), term_of(node.predicate, label), term_of(node.object, label)


def read_triples(text: str, label: Callable[[str], str] = str) -> list[Triple]:
    """The triples of a text of N-Triples; a ValueError says why it is none.

    >>> [str(o) for _, _, o in read_triples('<urn:a> <urn:p> <<( <urn:b> <urn:q> "c"@en )>> .')]
    ['<<( <urn:b> <urn:q> "c"@en )>>']
    """
    import pyoxigraph

    if "<<(" in text and (problem := _too_much(text.encode(), "N_TRIPLES")) is not None:
        raise ValueError(problem)
    try:
        quads = pyoxigraph.parse(text, format=pyoxigraph.RdfFormat.N_TRIPLES)
        return [triple_of(each, label) for each in quads]
    except SyntaxError as error:
        raise ValueError(error.msg) from None


# --- what no parser is given ------------------------------------------------------------------------

_DEEP = 500
_DEEP_TERM = 50
_LONG = 4_096
# A text that has no end ends the scan, as it ends the parser: else each quote in it would begin another.
_JSON = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*+"|".*|[\[{]|[\]}]', re.DOTALL)
# What an opening of a triple term may stand in without being one: an escape, a text, an IRI, a comment.
_TRIPLE_TERM = re.compile(
    rb"""<<\(|\)>>|\\.|"{3}(?:[^"\\]|\\.|"(?!""))*+"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*+'{3}|"{3}.*|'{3}.*"""
    rb"""|"(?:[^"\\\n\r]|\\.)*+"|'(?:[^'\\\n\r]|\\.)*+'|<[^\x00-\x20<>]*>|\#[^\n\r]*""",
    re.DOTALL,
)


def _too_much(data: bytes, format: str) -> str | None:
    """Why a text cannot be given to a parser that gives up, and the process with it, in words.

    In RDF/XML an entity stands for a text, as tools write them for namespaces, and for no other entity.
    """
    if format == "RDF_XML":
        return _too_much_xml(data)
    if format == "JSON_LD":
        return _too_deep(data, _JSON, (b"[", b"{"), (b"]", b"}"), _DEEP)
    if data.count(b"<<(") > _DEEP_TERM:
        return _too_deep(data, _TRIPLE_TERM, (b"<<(",), (b")>>",), _DEEP_TERM)
    return None


def _too_deep(
    data: bytes, tokens: re.Pattern[bytes], opening: tuple[bytes, ...], closing: tuple[bytes, ...], most: int
) -> str | None:
    depth = 0
    for found in tokens.finditer(data):
        depth += (found[0] in opening) - (found[0] in closing)
        if depth > most:
            return f"it is nested more than {most} deep"
    return None


def _too_much_xml(data: bytes) -> str | None:
    import pyexpat

    depth, problem = 0, None

    def begin(name: str, attributes: object) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEP:
            stop(f"it is nested more than {_DEEP} deep")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    def entity(name: str, parameter: bool, value: str | None, *rest: object) -> None:
        if parameter or value is None or "&" in value or len(value) > _LONG:
            stop(f"the entity {name} is more than a short text")

    def stop(why: str) -> None:
        nonlocal problem
        problem = why
        raise ValueError

    parser = pyexpat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = begin, end, entity
    try:
        parser.Parse(data, True)
    except (ValueError, pyexpat.ExpatError):
        return problem  # what is no XML is said by the parser that reads it
    return None


# --- what the parser complains about ----------------------------------------------------------------


def _syntax_diagnostic(error: SyntaxError, data: bytes, name: str) -> Diagnostic:
    """The parser's complaint with the place underlined; it counts lines and columns from 1."""
    source = SourceText(name, data.decode("utf-8", "replace"))
    message = error.msg or "invalid syntax"
    if message.startswith("Parser error") and ": " in message:
        message = message.split(": ", 1)[1]  # the place is told by the diagnostic
    if error.lineno is None:
        return Diagnostic(message, source=source)
    start = _offset(source.text, error.lineno, error.offset or 1)
    end = _offset(source.text, error.end_lineno or error.lineno, error.end_offset or 0)
    return Diagnostic(message, Span(start, max(end, start + 1)), source)


def _offset(text: str, line: int, column: int) -> int:
    at = 0
    for _ in range(line - 1):
        following = text.find("\n", at)
        if following < 0:
            break
        at = following + 1
    return min(at + column - 1, len(text))
