"""One call from events to matches, in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.connectors.contract import Source as Connector
from kaicep.connectors.files import read_stream
from kaicep.engine import Engine
from kaicep.errors import Diagnostic, Mistake, arrow_for
from kaicep.hosts.queries import Listed
from kaicep.hosts.settings import Settings
from kaicep.plan.events import Match
from kaicep.query import Query

if TYPE_CHECKING:
    import pyarrow as pa

    from kaicep.kernel.columns import Matches

__all__ = ["run", "run_arrow", "run_async"]

_POLL = 0.5
_IDLE = 30.0
"""Seconds of silence after which a source holds the others back no longer (semantics 1)."""


def run(
    query: Query,
    events: Any,
    *,
    lateness: str | int | timedelta | None = None,
    settings: Settings | None = None,
) -> Iterator[Match]:
    """The matches of a query over events, each as soon as it is certain, in the order of their end.

    `events` are dicts, `Event`s, Arrow batches, a table or a data frame (pandas, polars), a file, or an
    opened connector; by stream, as a mapping, where the query reads several. Without `lateness` all of
    them are sorted first, so that nothing is late and matches come at the end; where a connector has no
    end, it is "0s". For an iterator without an end, say `lateness="0s"`.

    >>> import kaicep as kai
    >>> query = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
    >>> [match.select for match in kai.run(query, [{"ts": 1, "x": 3}, {"ts": 2, "x": 1}])]
    [{'x': 3.0}]
    """
    engine = Engine(query, lateness=_lateness(lateness, events), settings=settings)
    for chunk in _chunks(engine, events):
        yield from chunk
    yield from engine.finish()


def run_arrow(
    query: Query,
    events: Any,
    *,
    lateness: str | int | timedelta | None = None,
    settings: Settings | None = None,
) -> Iterator[pa.RecordBatch]:
    """As `run`, with the matches as Arrow batches: query, id, start, end, select and events."""
    from kaicep.kernel.arrow import arrow_of, arrow_of_rows

    plans = {each.name: each for each in query.program.queries}
    found: list[pa.RecordBatch] = []

    def take(matches: Matches | Listed) -> None:
        if isinstance(matches, Listed):
            found.append(arrow_of_rows(matches.query, matches.rows, plans[matches.query]))
        else:
            found.append(arrow_of(matches))

    engine = Engine(query, lateness=_lateness(lateness, events), on_matches=take, settings=settings)
    for _ in _chunks(engine, events):
        yield from found
        found.clear()
    engine.finish()
    yield from found


async def run_async(
    query: Query, events: Any, *, lateness: str | int | timedelta | None = "0s", stream: str | None = None
) -> AsyncIterator[Match]:
    """The matches of a query over an asynchronous iterator of dicts, `Event`s or Arrow batches.

    >>> import asyncio, kaicep as kai
    >>> query = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
    >>> async def readings():
    ...     for ts in range(3):
    ...         yield {"ts": ts, "x": ts + 1}
    >>> async def collect():
    ...     return [match.select async for match in kai.run_async(query, readings())]
    >>> asyncio.run(collect())
    [{'x': 3.0}]
    """
    engine = Engine(query, lateness=lateness)
    async for each in events:
        for match in engine.push(each, stream):
            yield match
    for match in engine.finish():
        yield match


def _lateness(given: str | int | timedelta | None, events: Any) -> str | int | timedelta | None:
    """What is said, or, of sources without an end, none: there is no end at which to sort everything."""
    sources = events.values() if isinstance(events, Mapping) else (events,)
    endless = any(isinstance(each, Connector) and not each.finite for each in sources)
    return 0 if given is None and endless else given


def _chunks(engine: Engine, events: Any) -> Iterator[list[Match]]:
    """Pushes everything; streams take turns, chunk by chunk."""
    sources = events if isinstance(events, Mapping) else {None: events}
    missing = [each for each in engine.query.streams if each not in sources] if None not in sources else []
    if missing:
        named = [each for each in sources if each in engine.query.catalog.streams]
        hint = "events by stream are a mapping with the name " + " and the name ".join(missing)
        if not named and not all(map(_is_many, events.values())):
            hint = "one event alone is a list with one dict: [event]"
        raise Mistake(Diagnostic(f"no events are given for {', '.join(missing)}", hint=hint))
    turns = [_source(engine, each, stream) for stream, each in sources.items()]
    while turns:
        for turn in list(turns):
            try:
                yield next(turn)
            except StopIteration:
                turns.remove(turn)


def _is_many(events: Any) -> bool:
    return isinstance(events, Iterable | Connector | Path) and not isinstance(events, str)


def _source(engine: Engine, events: Any, stream: str | None) -> Iterator[list[Match]]:
    if isinstance(events, Connector):
        return _connector(engine, events)
    if isinstance(events, str | Path):
        return engine.chunks(_file(engine, Path(events), stream), stream)
    return engine.chunks(events, stream)


def _connector(engine: Engine, source: Connector) -> Iterator[list[Match]]:
    idle_since = time.monotonic()
    while True:
        batch = source.next_batch(_POLL)
        if batch.events:
            idle_since = time.monotonic()
            yield engine.push(batch.events)
        elif time.monotonic() - idle_since > _IDLE:
            yield engine.idle(source.form.stream)
        if batch.ended:
            return


def _file(engine: Engine, path: Path, stream: str | None) -> Any:
    """Parquet as Arrow, row group by row group; other files as their reader gives them."""
    name = engine.stream(stream)
    known = engine.query.catalog.streams[name]
    if path.suffix == ".parquet" and known.notation.usual_values:
        arrow_for("a Parquet file")
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(path).iter_batches()
    types = dict(known.attributes)
    return read_stream(
        name, path, known.time, types, explicit_time=not known.rdf, notation=known.notation
    ).events
