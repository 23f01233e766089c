"""What is registered with a deployment and survives a crash: the queries, since when, under which text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kaicep.api import parse_query
from kaicep.errors import Diagnostic, Failure, Mistake, Source
from kaicep.plan.chi import Bound, ChiQuery, Within
from kaicep.plan.sparql import Construct, EpQuery
from kaicep.storage.disk import read_sealed, replace_sealed

__all__ = ["SUFFIXES", "Registered", "Registry", "absolute", "readers_of", "upstream"]

SUFFIXES = {"chi-cep": ".chi", "ep-sparql": ".epsparql"}
"""The languages, and how the names of their files end."""

_ENDED = 100
_BEGINNING = -62_135_596_800_000_000
"""The year 1, before any event."""


@dataclass(frozen=True)
class Registered:
    """A query: its text, the event time that `now` is in it, and whether it came in from outside.

    `now` is None where nothing had come of its streams when it was registered. `generation` counts how often
    it began anew under another text: what was told of an older one is no mark for it.
    """

    name: str
    suffix: str
    text: str
    now: int | None
    generation: int = 0
    outside: bool = False

    def parse(self, prefixes: Mapping[str, str]) -> ChiQuery | EpQuery:
        """The query as written."""
        return _parsed(self.name, self.suffix, self.text, tuple(sorted(prefixes.items())))


@lru_cache(maxsize=10_000)
def _parsed(name: str, suffix: str, text: str, prefixes: tuple[tuple[str, str], ...]) -> ChiQuery | EpQuery:
    return parse_query(Source(f"{name}{suffix}", text), dict(prefixes))


class Registry:
    """The registered queries, in a file that is replaced whole by `save`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.queries: dict[str, Registered] = {}
        self.since: dict[str, Any] = {}
        self.ended: dict[str, str] = {}
        """Queries from outside that were ended, and why: they are registered no more."""
        self._saved: str | None = None
        try:
            read = json.loads(read_sealed(path))
            self.queries = {each["name"]: Registered(**each) for each in read["queries"]}
            self.since = read["since"]
            self.ended = read.get("ended", {})
        except FileNotFoundError:
            pass
        except (KeyError, TypeError, ValueError):
            raise Failure(f"{path} is damaged: it does not tell the registered queries") from None

    def put(self, query: Registered) -> None:
        """Adds a query, or replaces the one of its name."""
        self.queries[query.name] = query

    def drop(self, name: str) -> None:
        """Removes a query."""
        del self.queries[name]

    def end(self, name: str, reason: str) -> None:
        """Takes note that a query from outside is over; of a hundred such, the newest are known."""
        self.ended[name] = reason
        for each in list(self.ended)[:-_ENDED]:
            del self.ended[each]

    def save(self) -> None:
        """Writes it down where it has changed; it is on the disk when this returns."""
        rows = [asdict(each) for each in self.queries.values()]
        text = json.dumps({"queries": rows, "since": self.since, "ended": self.ended}, indent=1)
        if text != self._saved:
            replace_sealed(self._path, text.encode())
            self._saved = text


def absolute(query: ChiQuery | EpQuery, now: int | None, finite: bool) -> ChiQuery | EpQuery:
    """The query with the bounds that it has when it is registered now (semantics 2, WITHIN).

    Without WITHIN it begins now; over a finite input, at its beginning. `now` is an event time; None where no
    event has come yet, so that everything is still to come.

    >>> from kaicep.api import parse_query
    >>> query = parse_query(Source("q.chi", "SELECT ?e.x FROM (?e, s) WITHIN [now - 1h, )"), {})
    >>> absolute(query, 3_600_000_000, False).within.low.at, absolute(query, None, False).within.low
    (0, None)
    """
    if isinstance(query, EpQuery) or (query.within is None and finite):
        return query
    low, high = (
        (Bound(None, 0, True), None) if query.within is None else (query.within.low, query.within.high)
    )
    if low is not None and low.at is None:
        low = None if now is None else Bound(now + low.offset, 0, low.inclusive)
    if high is not None and high.at is None:
        high = Bound(_BEGINNING if now is None else now + high.offset, 0, high.inclusive)
    return replace(query, within=Within(low, high))


def _reads(
    query: ChiQuery | EpQuery, others: Mapping[str, ChiQuery | EpQuery], classed: Collection[str]
) -> Iterator[str]:
    """The queries whose output a query reads, or may read by way of a class of events."""
    if isinstance(query, EpQuery):
        yield from (name for name, each in others.items() if _constructs(each))
        return
    for clause in query.froms:
        for source in clause.sources:
            if not isinstance(source, str):
                yield from (each for each in classed if each in others)
            elif source in others:
                yield source


def _constructs(query: ChiQuery | EpQuery) -> bool:
    return isinstance(query, EpQuery) and isinstance(query.form, Construct)


def upstream(
    name: str, queries: Mapping[str, ChiQuery | EpQuery], classed: Collection[str] = ()
) -> list[str]:
    """A query and all whose output it needs, by way of others too; those that come first are last.

    What an EP-SPARQL query constructs, all of them read. `classed` are the queries
    whose output is annotated as a class of events, which those may read that read a class.
    """
    found: dict[str, None] = {}

    def visit(each: str) -> None:
        if each not in found:
            found[each] = None
            for other in _reads(queries[each], queries, classed):
                visit(other)

    visit(name)
    return list(found)


def readers_of(
    name: str, queries: Mapping[str, ChiQuery | EpQuery], classed: Collection[str] = ()
) -> list[str]:
    """The queries that need the output of a query."""
    return [each for each in queries if each != name and name in upstream(each, queries, classed)]


def check_name(name: str, streams: Iterable[str]) -> str:
    """The name of a query, if it can be one."""
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 64:
        hint = "letters, digits, - and _, at most 64 of them"
        raise Mistake(Diagnostic(f"{name[:80]!r} is not a valid name for a query", hint=hint))
    if name in streams:
        raise Mistake(Diagnostic(f"{name} is the name of a stream", hint="give the query another name"))
    return name
