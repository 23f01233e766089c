"""The engine as Python sees it: a query, whatever events there are, matches at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from kaicep.connectors.records import Record, json_columns_of, row_width
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper
from kaicep.errors import Diagnostic, Mistake, a_kind_of, arrow_for
from kaicep.hosts.inprocess import Engine as Host
from kaicep.hosts.queries import Listed
from kaicep.hosts.settings import Settings
from kaicep.plan.convert import Notation, Unfit, convert
from kaicep.plan.events import Event, Match
from kaicep.plan.time import parse_duration
from kaicep.plan.types import Type
from kaicep.query import Query, require_query

if TYPE_CHECKING:
    from kaicep.kernel.columns import Matches

__all__ = ["Engine"]

_log = logging.getLogger("kaicep")

_POSITION = ("part", "seq")
_CHUNK = 1_000
_PATIENCE = 0.01


class Engine:
    """Runs queries over events as they come, in this process.

    `push` takes an event or many: dicts, `Event`s, Arrow batches, data frames of pandas or polars; and
    returns the matches that are certain by then, each once. `lateness` is how far behind the newest of its
    source partition an event may come, such as "5min"; with None everything is sorted first, and the matches
    come with `finish`. `on_match` is called for every match; with `on_matches` they come in chunks, those of
    chi-CEP as columns. Records that are no events go to `on_dead`.

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
        """Takes an event or many, in the order of arrival; returns what is certain by now.

        `stream` is the one they are of, where the query reads several. Records are numbered in the order
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
        raise Mistake(Diagnostic("this engine is finished: it takes no more events", hint=hint))

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
        """The stream that is meant: the one that is given, or the only one there is."""
        streams = self._streams
        if given is None:
            if len(streams) == 1:
                return streams[0]
            hint = f"say which: one of {', '.join(streams)}"
            raise Mistake(Diagnostic("the query reads several streams", hint=hint))
        if given not in self.query.catalog.streams:
            from kaicep.errors import did_you_mean

            known = tuple(self.query.catalog.streams)
            raise Mistake(Diagnostic(f"no stream is called {given}", hint=did_you_mean(given, known)))
        return given

    def advance(self, ts: Any) -> list[Match]:
        """No event below this time will come; returns what that settles.

        The time is what an event could have: a `datetime`, ISO 8601 text, epoch seconds.
        """
        if self._finished:
            self._refuse()
        return self._host.advance(_instant(ts))

    def idle(self, stream: str, part: int = 0) -> list[Match]:
        """A part has been silent for so long that it holds nobody back; returns what that settles."""
        return self._host.idle(stream, part)

    def finish(self) -> list[Match]:
        """Ends the input; returns the rest of the matches."""
        self._finished = True
        return self._host.finish()

    @property
    def waiting(self) -> dict[str, str]:
        """What each query waits for before it can go on, by its name; nothing of one that is up to date.

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
        """The newest of the events that came too late."""
        return tuple(self._host.late)

    @property
    def late_count(self) -> int:
        """How many events came too late."""
        return self._host.late_count

    # --- queries and state ---

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries that are running."""
        return self._host.queries

    @property
    def size(self) -> int:
        """How many events and partial matches are held."""
        return self._host.size

    def register(self, query: Query) -> None:
        """Adds queries; they see what is pushed from now on, and the others go on untouched."""
        for plan in query.program.queries:
            self._host.register(plan, query.catalog)

    def edit(self, query: Query) -> dict[str, str]:
        """Replaces queries by others of the same names; the others go on untouched.

        A query that asks for more than before (a higher threshold, a narrower window) goes on with what it
        holds. Returns, for those that begin anew, the reason.
        """
        reasons = {plan.name: self._host.edit(plan, query.catalog) for plan in query.program.queries}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def unregister(self, name: str) -> None:
        """Removes a query and what it holds; the others go on untouched."""
        self._host.unregister(name)

    def snapshot(self) -> bytes:
        """The state of all queries, as bytes that a new engine of the same queries goes on from."""
        from kaicep.kernel.codec import encode_with

        return encode_with("positions", self._next, self._host.snapshot())

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        from kaicep.kernel.codec import decode_with

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
    from kaicep.connectors.parquet import arrow_values

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
    return Mistake(Diagnostic(f"an event is a dict, not {a_kind_of(given)}", hint=hint))


def _microseconds(lateness: str | int | timedelta | None) -> int | None:
    if isinstance(lateness, timedelta):
        return lateness // timedelta(microseconds=1)
    if not isinstance(lateness, str):
        return lateness
    found = parse_duration(lateness)
    if found is None:
        raise Mistake(Diagnostic(f"lateness: {lateness} is not a duration", hint="such as 5min or 500ms"))
    return found


def _instant(ts: object) -> int:
    try:
        found = convert(ts, Type.TIMESTAMP)
    except Unfit:
        found = None
    if not isinstance(found, int):
        raise Mistake(Diagnostic(f"{ts} is not a time", hint="such as 2012-05-07T09:00, or a datetime"))
    return found
