"""`kaicep.compile`: the text of queries in, a `Query` out that any host can run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.api import parse_query, read_queries
from kaicep.errors import Mistake, SourceText, did_you_mean
from kaicep.knowledge.annotation import (
    Annotation,
    build_catalog,
    load_annotations,
    parse_annotations,
    prefixes_of,
)
from kaicep.plan.catalog import Stream
from kaicep.plan.chi import ChiQuery
from kaicep.plan.sparql import EpQuery
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type
from kaicep.query import EXAMPLE_TYPES, Query, resolve_queries

if TYPE_CHECKING:
    from kaicep.knowledge.store import Knowledge

_OF_PYTHON: Mapping[Any, Type] = {
    bool: Type.BOOL,
    int: Type.INT64,
    float: Type.FLOAT64,
    str: Type.STRING,
    datetime: Type.TIMESTAMP,
}
_LANGUAGES = {"chi-CEP": ".chi", "EP-SPARQL": ".epsparql"}
_COMMENT = re.compile(r"#[^\n]*(?=\n|$)|<[^<>\s]*>|\"[^\"\n]*\"|'[^'\n]*'")
_OF_CHI = re.compile(r"[^{]*(?:\bPATH\s*\{|\?\w+\s*\{[\s\d,]*\})", re.IGNORECASE)


def compile(
    query: str | Path | Sequence[Path] | Mapping[str, str],
    *,
    knowledge: Knowledge | None = None,
    streams: Mapping[str, Any] | None = None,
    annotations: Iterable[str | Path | Mapping[str, Any]] = (),
    name: str = "query",
    language: str | None = None,
    now: str | int | None = None,
    derived: int | None = None,
) -> Query:
    """Compiles a query, so that it is ready to run.

    `query` is a text, a file, several files, or texts by name. `streams` has the attributes of each stream
    with their types (or `bool`, `int`, `float`, `str` and `datetime` of Python), or an Arrow schema.
    `annotations` are files, or dicts with the same content. kaicep recognises the language of a text; with
    `language` ("chi-CEP" or "EP-SPARQL") you can name it. Rules of EP-SPARQL that derive more than `derived`
    triples at one instant (by default 10,000) are stopped.

    >>> made = compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
    >>> made.names, made.streams
    (('query',), ('s',))
    """
    known = tuple(_annotation(each) for each in annotations)
    every = tuple(each for some in known for each in some)
    parsed = _parsed(query, name, language, prefixes_of(every))
    if knowledge is None:
        from kaicep.knowledge.store import Knowledge

        knowledge = Knowledge.empty()
    catalog = build_catalog(_streams(streams or {}), every, knowledge)
    catalog = replace(catalog, most_derived=derived or catalog.most_derived)
    return resolve_queries(parsed, catalog, knowledge, _instant(now))


def streams_in(text: str) -> list[str]:
    """The streams that a query of chi-CEP names.

    >>> streams_in("SELECT ?a.x FROM (?a, left), (?b, right)")
    ['left', 'right']
    """
    (parsed,) = _parsed(text, "query", None, {})
    clauses = parsed.froms if isinstance(parsed, ChiQuery) else ()
    every = (source for clause in clauses for source in clause.sources if isinstance(source, str))
    return list(dict.fromkeys(every))


def _parsed(
    query: str | Path | Sequence[Path] | Mapping[str, str],
    name: str,
    language: str | None,
    prefixes: Mapping[str, str],
) -> list[ChiQuery | EpQuery]:
    if isinstance(query, Path):
        query = (query,)
    if isinstance(query, str):
        query = {name: query}
    if not isinstance(query, Mapping):
        return read_queries(query, prefixes)
    return [
        parse_query(SourceText(each + _ending(each, text, language), text), prefixes)
        for each, text in query.items()
    ]


def _ending(name: str, text: str, language: str | None) -> str:
    if Path(name).suffix in _LANGUAGES.values():
        return ""
    if language is None:
        language = _language_of(text)
    if language not in _LANGUAGES:
        raise Mistake(f"no language is called {language}", hint=did_you_mean(language, tuple(_LANGUAGES)))
    return _LANGUAGES[language]


def _language_of(text: str) -> str:
    """chi-CEP has braces after PATH and in loops only; EP-SPARQL has them around every group.

    >>> _language_of("SELECT ?x { ?x a :C }"), _language_of("SELECT ?e.x PATH { ?e a :C }")
    ('EP-SPARQL', 'chi-CEP')
    >>> _language_of("SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b{1,2})")
    'chi-CEP'
    """
    bare = _COMMENT.sub(" ", text)
    return "EP-SPARQL" if "{" in bare and not _OF_CHI.match(bare) else "chi-CEP"


def _annotation(given: str | Path | Mapping[str, Any]) -> tuple[Annotation, ...]:
    return parse_annotations(given) if isinstance(given, Mapping) else load_annotations(given)


def _streams(given: Mapping[str, Any]) -> Iterator[Stream]:
    for name, schema in given.items():
        rdf = schema == "rdf"
        yield Stream(name, () if rdf else tuple(_types(name, schema).items()), rdf=rdf)


def _types(stream: str, schema: Any) -> dict[str, Type]:
    """The attributes of a stream, from a mapping of names to types or from an Arrow schema."""
    if hasattr(schema, "names") and hasattr(schema, "field"):
        from kaicep.kernel.arrow import type_of_arrow

        found = {each.name: type_of_arrow(each.type) for each in schema}
        return {name: type for name, type in found.items() if type is not None}
    if not isinstance(schema, Mapping):
        said = f"{stream}: its attributes and their types are not a mapping"
        raise Mistake(said, hint=f'write streams={{"{stream}": {EXAMPLE_TYPES}}}')
    types: dict[str, Type] = {}
    for name, type in schema.items():
        try:
            types[name] = _OF_PYTHON.get(type) or Type(str(type))
        except ValueError:
            choices = tuple(each.value for each in Type)
            raise Mistake(
                f"{stream}.{name}: no type is called {type}", hint=did_you_mean(str(type), choices)
            ) from None
    return types


def _instant(now: str | int | None) -> int | None:
    if not isinstance(now, str):
        return now
    found = parse_time(now)
    if found is None:
        raise Mistake(f"now: {now} is not a time", hint="such as 2012-05-07T09:00")
    return found
