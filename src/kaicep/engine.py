"""Queries over events in this process: an engine, runs over given events, and matches as tables."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kaicep.connectors.contract import Source as Connector
from kaicep.connectors.files import read_stream
from kaicep.connectors.records import Record, json_columns_of, row_width
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper
from kaicep.errors import Mistake, a_kind_of, arrow_for
from kaicep.hosts.inprocess import Engine as Host
from kaicep.hosts.queries import Listed, Settings
from kaicep.plan.events import Event, Match, html_table
from kaicep.plan.terms import XSD, Literal
from kaicep.plan.time import format_time, parse_duration
from kaicep.plan.types import Notation, Type, Unfit, convert, json_text
from kaicep.plan.values import native
from kaicep.query import Query, require_query

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import pyarrow as pa

    from kaicep.kernel.columns import Matches

# ----------------------------------------------------------------------------------------------------------
# The engine as Python sees it: a query, whatever events there are, matches at once.

_log = logging.getLogger("kaicep")

_POSITION = ("part", "seq")
_CHUNK = 1_000
_PATIENCE = 0.01


class Engine:
    """Runs queries over events as they come, in this process.

    `push` takes one event or many (dicts, `Event`s, Arrow batches, data frames of pandas or polars), and
    returns the matches that are certain by then, each once. `lateness` is how far an event may be behind the
    newest of its source partition, such as "5min". With None everything is sorted first, and the matches
    come with `finish`. `on_match` is called for every match. `on_matches` gets them in chunks, those of
    chi-CEP as columns. `on_dead` gets records that are not events.

    >>> import kaicep as kai
    >>> query = kai.compile("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 2)", streams={"s": {"x": "float64"}})
    >>> engine = kai.Engine(query)
    >>> [match.select for match in engine.push({"ts": 1, "x": 3})], engine.push({"ts": 2, "x": 1})
    ([{'x': 3.0}], [])
    """

    def __init__(
        self,
        query: Query,
        *,
        lateness: str | int | timedelta | None = "0s",
        on_match: Callable[[Match], None] | None = None,
        on_matches: Callable[[Matches | Listed], None] | None = None,
        on_dead: Callable[[DeadLetter], None] | None = None,
        settings: Settings | None = None,
    ) -> None:
        require_query(query)
        self.query = query
        self._streams = query.streams
        self._host = Host(
            query,
            lateness=_microseconds(lateness),
            on_match=on_match,
            on_matches=on_matches,
            settings=settings,
        )
        self.dead_count = 0
        self._on_dead = on_dead
        self._shapers: dict[str, Shaper] = {}
        self._next: dict[str, int] = {}
        self._finished = False

    def __repr__(self) -> str:
        waiting = "; ".join(dict.fromkeys(self.waiting.values()))
        state = "finished" if self._finished else f"waiting for {waiting}" if waiting else "ready"
        return f"<Engine {', '.join(self.queries) or 'without queries'}: {state}>"

    # --- events ---

    def push(self, events: Any, stream: str | None = None) -> list[Match]:
        """Takes one event or many, in the order of arrival, and returns the matches that are certain by now.

        `stream` names their stream, if the query reads several. Records are numbered in the order
        in which they come, unless they have a `part` and a `seq` of their own (Arrow columns).
        """
        if self._finished:
            self._refuse()
        if events.__class__ is not dict and isinstance(events, Event):
            return self._host.push((events,))
        if events.__class__ is dict or isinstance(events, Mapping):
            name = self.stream(stream)
            seq = self._next.get(name, 0)
            at_once = self._host.push_record(name, events, seq)
            if at_once is None:
                return self._push_records((events,), name)
            self._next[name] = seq + 1
            return at_once
        found: list[Match] = []
        for each in self.chunks(events, stream):
            found += each
        return found

    def chunks(self, events: Any, stream: str | None = None) -> Iterator[list[Match]]:
        """As `push`, but lazily: the matches of one chunk of events after the other."""
        if self._finished:
            self._refuse()
        arrow = _arrow(events)
        if arrow is not None:
            for records in arrow:
                yield self._push_arrow(records, self.stream(stream))
            return
        waiting: list[Any] = []
        since = time.monotonic()
        if isinstance(events, str) or not isinstance(events, Iterable):
            raise _no_event(events)
        for each in events:
            if not isinstance(each, Event | Mapping):
                inner = _arrow(each)
                if inner is None:
                    raise _no_event(each)
                for records in inner:
                    yield self._push_arrow(records, self.stream(stream))
                continue
            waiting.append(each)
            # An iterator that is slow is waited for with nothing in hand; one that is fast fills a chunk.
            if len(waiting) >= _CHUNK or time.monotonic() - since > _PATIENCE:
                yield self._push_some(waiting, stream)
                waiting = []
                since = time.monotonic()
        if waiting:
            yield self._push_some(waiting, stream)

    def _refuse(self) -> NoReturn:
        hint = "make a new engine; `advance` lets time pass where more may come"
        raise Mistake("this engine has finished and takes no more events", hint=hint)

    def _push_some(self, events: Sequence[Any], stream: str | None) -> list[Match]:
        if all(isinstance(each, Event) for each in events):
            return self._host.push(events)
        return self._push_records(events, self.stream(stream))

    def _push_records(self, records: Sequence[Mapping[str, Any]], stream: str) -> list[Match]:
        first = self._next.get(stream, 0)
        self._next[stream] = first + len(records)
        notation = self.query.catalog.streams[stream].notation
        width = row_width(notation, json_columns_of(notation))
        return self._shape(
            stream,
            [Record(0, seq * width, seq + 1, stream, each) for seq, each in enumerate(records, start=first)],
        )

    def _shape(self, stream: str, records: Sequence[Record]) -> list[Match]:
        shaper = self._shapers.get(stream)
        if shaper is None:
            shaper = self._shapers[stream] = self._shaper(stream, records)
        events, dead = shaper.shape(records, widening=True)
        if dead and not self.dead_count:
            _log.warning("a record of %s is not an event: %s", stream, dead[0].reason)
        self.dead_count += len(dead)
        if self._on_dead is not None:
            for letter in dead:
                self._on_dead(letter)
        return self._host.push(events) if events else []

    def _shaper(self, stream: str, records: Sequence[Record]) -> Shaper:
        """What makes events of records: by the declared types, or those that the first records suggest."""
        known = self.query.catalog.streams[stream]
        form = Form(stream, known.time, dict(known.attributes), notation=known.notation)
        if not known.open:
            types = {**dict(known.attributes), known.time: Type.TIMESTAMP}
            return Shaper(form, Schema(tuple(types.items()), known.rdf))
        made = Shaper(form)
        for each in records:
            made.learn(each)
        made.settle()
        return made

    def _push_arrow(self, records: Any, stream: str) -> list[Match]:
        from kaicep.kernel.arrow import batch_of_arrow, type_of_arrow

        known = self.query.catalog.streams[stream]
        first = self._next.get(stream, 0)
        self._next[stream] = first + records.num_rows
        if not known.notation.usual_values:
            return self._shape(stream, _records_of_arrow(records, stream, known.notation, first))
        own = {each.name: type_of_arrow(each.type) for each in records.schema}
        types = {name: type for name, type in own.items() if type is not None and name not in _POSITION}
        types.update({name: type for name, type in known.attributes if name in own})
        batch = batch_of_arrow(records, stream, types, self._host.strings, known.time, first, known.notation)
        return self._host.push_batch(batch)

    def stream(self, given: str | None = None) -> str:
        """The given stream, or the only one there is."""
        streams = self._streams
        if given is None:
            if len(streams) == 1:
                return streams[0]
            hint = f"say which: one of {', '.join(streams)}"
            raise Mistake("the query reads several streams", hint=hint)
        if given not in self.query.catalog.streams:
            from kaicep.errors import did_you_mean

            known = tuple(self.query.catalog.streams)
            raise Mistake(f"no stream is called {given}", hint=did_you_mean(given, known))
        return given

    def advance(self, ts: Any) -> list[Match]:
        """Says that no event before this time will come, and returns the matches that are then certain.

        The time is what an event could have: a `datetime`, ISO 8601 text, epoch seconds.
        """
        if self._finished:
            self._refuse()
        return self._host.advance(_instant(ts))

    def idle(self, stream: str, part: int = 0) -> list[Match]:
        """Says not to wait for a silent source partition, and returns the matches that are then certain."""
        return self._host.idle(stream, part)

    def finish(self) -> list[Match]:
        """Ends the input and returns the remaining matches."""
        self._finished = True
        return self._host.finish()

    @property
    def waiting(self) -> dict[str, str]:
        """What each query waits for, by its name; a query that is up to date is left out.

        >>> import kaicep as kai
        >>> query = kai.compile("SELECT ?e.x FROM (?e, s)", streams={"s": {"x": "float64"}})
        >>> engine = kai.Engine(query, lateness="5s")
        >>> engine.waiting
        {'query': 'the first event of s'}
        >>> engine.push({"ts": 60, "x": 1}), engine.waiting
        ([], {'query': 'events of s after 1970-01-01 00:01:05, since they may be 5s late; 1 is buffered'})
        """
        return {} if self._finished else self._host.waiting

    @property
    def late(self) -> Sequence[Event]:
        """The newest late events."""
        return tuple(self._host.late)

    @property
    def late_count(self) -> int:
        """How many events were late."""
        return self._host.late_count

    # --- queries and state ---

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries that are running."""
        return self._host.queries

    @property
    def size(self) -> int:
        """How many events and partial matches are buffered."""
        return self._host.size

    def register(self, query: Query) -> None:
        """Adds queries, which see events that are pushed from now on. The others are not affected."""
        for plan in query.program.queries:
            self._host.register(plan, query.catalog)

    def edit(self, query: Query) -> dict[str, str]:
        """Replaces queries by others of the same names. All others are not affected.

        A query that asks for more than before (a higher threshold, a narrower window) keeps its state. For
        those that start over, returns the reason.
        """
        reasons = {plan.name: self._host.edit(plan, query.catalog) for plan in query.program.queries}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def unregister(self, name: str) -> None:
        """Removes a query and its state. The others are not affected."""
        self._host.unregister(name)

    def snapshot(self) -> bytes:
        """The state of all queries, as bytes. A new engine of the same queries can continue from them."""
        from kaicep.kernel.state import encode_with

        return encode_with("positions", self._next, self._host.snapshot())

    def restore(self, state: bytes) -> None:
        """Continues from a saved state."""
        from kaicep.kernel.state import decode_with

        self._next, inner = decode_with("positions", state)
        self._host.restore(inner)


def _arrow(events: Any) -> Iterable[Any] | None:
    """Arrow batches of whatever can be read as such; None for everything else."""
    if hasattr(events, "__arrow_c_stream__"):
        return arrow_for("a data frame").RecordBatchReader.from_stream(events)  # type: ignore[no-any-return]
    if hasattr(events, "__arrow_c_array__"):
        pa = arrow_for("an Arrow batch")
        return (events if isinstance(events, pa.RecordBatch) else pa.record_batch(events),)
    return None


def _records_of_arrow(records: Any, stream: str, notation: Notation, first: int) -> list[Record]:
    """Rows of Arrow as records, where values mean something else than they say; the columns are a header."""
    from kaicep.connectors.records import arrow_values

    names = records.schema.names
    width = row_width(notation, [each for each in names if each not in _POSITION])
    columns = {name: arrow_values(column) for name, column in zip(names, records.columns, strict=True)}
    parts = columns.pop("part", [0] * records.num_rows)
    seqs = columns.pop("seq", [width * each for each in range(first, first + records.num_rows)])
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [
        Record(int(str(part)), int(str(seq)), int(str(seq)) + 1, f"{stream}.parquet", row)
        for part, seq, row in zip(parts, seqs, rows, strict=True)
    ]


def _no_event(given: object) -> Mistake:
    hint = 'such as {"ts": datetime.now(), "flow": 1.5}; a data frame is taken as it is'
    return Mistake(f"an event is a dict, not {a_kind_of(given)}", hint=hint)


def _microseconds(lateness: str | int | timedelta | None) -> int | None:
    if isinstance(lateness, timedelta):
        return lateness // timedelta(microseconds=1)
    if not isinstance(lateness, str):
        return lateness
    found = parse_duration(lateness)
    if found is None:
        raise Mistake(f"lateness: {lateness} is not a duration", hint="such as 5min or 500ms")
    return found


def _instant(ts: object) -> int:
    try:
        found = convert(ts, Type.TIMESTAMP)
    except Unfit:
        found = None
    if not isinstance(found, int):
        raise Mistake(f"{ts} is not a time", hint="such as 2012-05-07T09:00, or a datetime")
    return found


# ----------------------------------------------------------------------------------------------------------
# One call from events to matches, in this process.

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
    opened connector. If the query reads several streams, pass a mapping from stream names to these. Without
    `lateness` all events are sorted first, so that nothing is late and matches come at the end; for a
    connector without an end, it is "0s". For an iterator without an end, pass `lateness="0s"`.

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
        raise Mistake(f"there are no events for {', '.join(missing)}", hint=hint)
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


# ----------------------------------------------------------------------------------------------------------
# Matches as tables: Arrow, pandas, polars, and what a notebook shows of them.
#
# A row has the columns query, id, start and end, then what the queries selected. A selected column that is
# called like one of the first four, or `triples`, is `select.NAME`, as on the command line.

_FIXED = ("query", "id", "start", "end")
_RESERVED = (*_FIXED, "events", "triples")
_MOST_ROWS = 60


class MatchList(list[Match]):
    """Matches that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        names = _selected(self)
        rows = [
            (each.query, format_time(each.start_us), format_time(each.end_us), *_values(each, names))
            for each in self[:_MOST_ROWS]
        ]
        triples = ["triples"] if any(each.triples is not None for each in self) else []
        if triples:
            rows = [(*row, " ".join(m.triples or ())) for row, m in zip(rows, self, strict=False)]
        count = f"<div>{len(self):,} match{'' if len(self) == 1 else 'es'}"
        more = f", the first {_MOST_ROWS} of them here" if len(self) > _MOST_ROWS else ""
        return f"{count}{more}</div>" + html_table(["query", "start", "end", *names, *triples], rows)


def to_arrow(matches: Iterable[Match]) -> pyarrow.Table:
    """Matches as an Arrow table: query, id, start, end, and a column for each selected value.

    Values are those of the matches, so that a selected time is its text; of EP-SPARQL's terms, numbers and
    truth values are such, the others are text. `run_arrow` is faster for many, and has their events too.

    >>> found = [Match("rise", "f3", 0, 1, {"x": 2.5}), Match("rise", "f4", 1, 2, {"x": None})]
    >>> to_arrow(found)["x"].to_pylist()
    [2.5, None]
    """
    pyarrow = arrow_for("a table of matches")
    rows = list(matches)
    names = _selected(rows)
    instants = pyarrow.timestamp("us", tz="UTC")
    columns: dict[str, Any] = {
        "query": pyarrow.array([each.query for each in rows], pyarrow.string()),
        "id": pyarrow.array([each.id for each in rows], pyarrow.string()),
        "start": pyarrow.array([each.start_us for each in rows], pyarrow.int64()).cast(instants),
        "end": pyarrow.array([each.end_us for each in rows], pyarrow.int64()).cast(instants),
    }
    values = [_values(each, names) for each in rows]
    for place, name in enumerate(names):
        columns[f"select.{name}" if name in _RESERVED else name] = _array([row[place] for row in values])
    if any(each.triples is not None for each in rows):
        columns["triples"] = pyarrow.array([list(each.triples or ()) for each in rows])
    return pyarrow.table(columns)


def to_pandas(matches: Iterable[Match]) -> pandas.DataFrame:
    """Matches as a data frame of pandas; the columns are those of `to_arrow`."""
    return to_arrow(matches).to_pandas()


def to_polars(matches: Iterable[Match]) -> polars.DataFrame:
    """Matches as a data frame of polars; the columns are those of `to_arrow`."""
    import polars

    return polars.DataFrame(to_arrow(matches))


def _selected(matches: Sequence[Match]) -> list[str]:
    return list(dict.fromkeys(name for each in matches for name in each.select))


def _values(match: Match, names: Sequence[str]) -> list[Any]:
    return [_value(match.select.get(name)) for name in names]


def _value(value: Any) -> Any:
    """A selected value; a term of EP-SPARQL as a plain one."""
    if not isinstance(value, Mapping):
        return value
    text = str(value["value"])
    if value["type"] != "literal":
        return ("_:" if value["type"] == "bnode" else "") + text
    return native(Literal(text, value.get("datatype", XSD + "string"), value.get("xml:lang")))


def _array(values: list[Any]) -> pyarrow.Array:
    """Values as a column; those of no common type as texts."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        texts = [each if each is None or isinstance(each, str) else json_text(each) for each in values]
        return pyarrow.array(texts, pyarrow.string())
