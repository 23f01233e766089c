"""What survives a crash of a deployment's queries: their texts, and which of them were running."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from kaicep.api import parse_query
from kaicep.errors import Failure, Mistake, SourceText
from kaicep.plan.chi import Bound, ChiQuery, Within
from kaicep.plan.sparql import Construct, EpQuery
from kaicep.storage.disk import read_sealed, replace_sealed

# ----------------------------------------------------------------------------------------------------------
# What is registered with a deployment and survives a crash: the queries, since when, under which text.

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
    return parse_query(SourceText(f"{name}{suffix}", text), dict(prefixes))


class Registry:
    """The registered queries, in a file that is replaced whole by `save`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.queries: dict[str, Registered] = {}
        self.since: dict[str, Any] = {}
        self.ended: dict[str, str] = {}
        """Queries from outside that were ended, and why: they are registered no more."""
        self._saved: str | None = None
        self._outside: frozenset[str] | None = None
        try:
            read = json.loads(read_sealed(path))
            self.queries = {each["name"]: Registered(**each) for each in read["queries"]}
            self.since = read["since"]
            self.ended = read.get("ended", {})
        except FileNotFoundError:
            pass
        except (KeyError, TypeError, ValueError):
            raise Failure(f"{path} is damaged: it does not tell the registered queries") from None

    @property
    def outside(self) -> frozenset[str]:
        """The names of those that came in from outside."""
        if self._outside is None:
            self._outside = frozenset(name for name, each in self.queries.items() if each.outside)
        return self._outside

    def put(self, query: Registered) -> None:
        """Adds a query, or replaces the one of its name."""
        self.queries[query.name] = query
        self._outside = None

    def drop(self, name: str) -> None:
        """Removes a query."""
        del self.queries[name]
        self._outside = None

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
    >>> query = parse_query(SourceText("q.chi", "SELECT ?e.x FROM (?e, s) WITHIN [now - 1h, )"), {})
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
        raise Mistake(f"{name[:80]!r} is not a valid name for a query", hint=hint)
    if name in streams:
        raise Mistake(f"{name} is the name of a stream", hint="give the query another name")
    return name


# ----------------------------------------------------------------------------------------------------------
# Queries that were at work when the process died: after the second time they are set aside.
#
# While a query works, its name stands in a small file that is mapped into memory: that costs a copy of some
# bytes, and outlives the process. A death counts against a query if the process died of a fault (which
# Python writes down as it happens), or in the middle of a step that had taken seconds, as one that eats all
# memory does. Whoever kills the process at some other moment, or switches the machine off, says nothing
# about queries.

_log = logging.getLogger("kaicep.run")

_SIZE = 1 << 16
_EVERY = 0.25
_SLOW = 3.0
"""A step that has taken so many seconds of processor time may be what the process died of."""
_DEATHS = 2
_IDLE, _WORKING, _LONG = b"-", b"w", b"l"


class Suspects:
    """What is known of the deaths of earlier processes, and what this one is doing."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "suspects.json"
        self._trace = folder / "fault.txt"
        self._fault: TextIO | None = None
        self.deaths: dict[str, int] = {}
        """How often the process died while a query worked."""
        self._texts: dict[str, str] = {}
        self._load()
        self._path = path = folder / "working"
        self._learn(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(file, _SIZE)
        self._map = mmap.mmap(file, _SIZE)
        os.close(file)
        self._map[0:1] = _IDLE
        self._begun: float | None = None
        self._closed = threading.Event()

    def _load(self) -> None:
        try:
            read = json.loads(read_sealed(self._notes))
            self.deaths, self._texts = read["deaths"], read["texts"]
        except FileNotFoundError:
            return
        except (KeyError, TypeError, ValueError):
            raise Failure(f"{self._notes} is damaged; without it, no query is suspected: remove it") from None

    def _learn(self, path: Path) -> None:
        """What the last process was doing when it died, if it did."""
        try:
            said = path.read_bytes()
            fault = self._trace.read_text("utf-8", "replace").splitlines() if self._trace.exists() else []
        except FileNotFoundError:
            return
        how = said[:1]
        if how not in (_WORKING, _LONG) or (how == _WORKING and not fault):
            return
        why = fault[0] if fault else "it was killed in the middle of a long step"
        names = said[1:].partition(b"\n")[0].decode("utf-8", "replace").split("\t")
        for name in names:
            self.deaths[name] = self.deaths.get(name, 0) + 1
        _log.error("the last process died while %s worked: %s", ", ".join(names), why)
        self._save()

    def _save(self) -> None:
        replace_sealed(self._notes, json.dumps({"deaths": self.deaths, "texts": self._texts}).encode())

    # --- who is suspected ---

    def look(self, texts: Mapping[str, str]) -> None:
        """The queries as they are now: whoever has another text, or is gone, is suspected no more."""
        now = {name: hashlib.sha256(texts[name].encode()).hexdigest() for name in texts}
        cleared = [name for name in self.deaths if self._texts.get(name, now.get(name)) != now.get(name)]
        for name in cleared:
            del self.deaths[name]
        known = {name: now[name] for name in self.deaths if name in now}
        if cleared or known != self._texts:
            self._texts = known
            self._save()

    def aside(self, name: str) -> str | None:
        """Why a query is not to run, if that is so."""
        count = self.deaths.get(name, 0)
        if count < _DEATHS:
            return None
        return (
            f"set aside: the process died {count} times while it worked; change it, or take its file away "
            "and put it back, to try it again"
        )

    def clear(self, names: Iterable[str]) -> None:
        """Queries have gone on for long enough: what they were suspected of was something else."""
        gone = [each for each in names if self.deaths.get(each, _DEATHS) < _DEATHS]
        for each in gone:
            del self.deaths[each]
        if gone:
            self._save()

    # --- what is being done ---

    def start(self) -> None:
        """Begins to watch."""
        if not faulthandler.is_enabled():
            self._fault = self._trace.open("w")
            faulthandler.enable(self._fault, all_threads=False)
        threading.Thread(target=self._watch, name="kaicep-suspects", daemon=True).start()

    def begin(self, names: Collection[str]) -> None:
        """Queries begin to work."""
        said = "\t".join(names).encode()[: _SIZE - 2]
        self._map[1 : len(said) + 2] = said + b"\n"
        self._map[0:1] = _WORKING
        self._begun = time.process_time()

    def end(self) -> None:
        """Nobody works any more."""
        self._begun = None
        self._map[0:1] = _IDLE

    def _watch(self) -> None:
        while not self._closed.wait(_EVERY):
            begun = self._begun
            if begun is not None and time.process_time() - begun > _SLOW:
                self._map[0:1] = _LONG
                if self._begun is None:  # it has come to an end meanwhile
                    self._map[0:1] = _IDLE

    def close(self) -> None:
        """The process ends as it should."""
        self._closed.set()
        self.end()
        self._path.unlink(missing_ok=True)
        if self._fault is not None:
            faulthandler.disable()
            self._fault.close()
            self._trace.unlink(missing_ok=True)
