"""Events of one stream in the order of arrival, and the sort stage for columns (semantics 1).

A `Batch` is made from whatever the caller has: events, records, Arrow, the matches of another query. chi-CEP
reads its columns, EP-SPARQL its events; each form is made when somebody asks for it. `ColumnSorter` does for
batches what `kernel.sort.Sorter` does for events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kaicep.kernel.columns import (
    DTYPES,
    NULLS,
    Array,
    Column,
    Matches,
    Strings,
    Table,
    column_of,
    concatenated,
    id_of_words,
    words_of_id,
)
from kaicep.kernel.sort import Parts, Place, read_place, written_place
from kaicep.kernel.state import read_event, write_event
from kaicep.kernel.words import signed_words
from kaicep.plan.events import Event
from kaicep.plan.results import as_type
from kaicep.plan.types import Type


class Batch:
    """Events of one stream, in the order of arrival.

    Columns are made by `read`, each when it is first asked for. Events that other queries `derived` have the
    words of their ids for part and seq. `late` are those that somebody has marked so; None: nobody has.
    """

    def __init__(
        self,
        stream: str,
        ts: Array,
        part: Array,
        seq: Array,
        types: Mapping[str, Type | None],
        read: Callable[[str], Column],
        strings: Strings,
        derived: bool = False,
        late: Array | None = None,
    ) -> None:
        self.stream = stream
        self.derived = derived
        self.late = late
        self.ts = ts
        self.part = part
        self.seq = seq
        self.types = types
        self.strings = strings
        self._read = read
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.ts)

    def column(self, name: str) -> Column:
        """The values of an attribute."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._read(name)
        return found

    def take(self, rows: Array) -> Batch:
        """Some of the events."""
        made = Batch(
            self.stream,
            self.ts[rows],
            self.part[rows],
            self.seq[rows],
            self.types,
            lambda name: self.column(name).take(rows),
            self.strings,
            self.derived,
            None if self.late is None else self.late[rows],
        )
        if "events" in self.__dict__:  # which may hold more than columns do: triples
            made.__dict__["events"] = [self.events[each] for each in np.arange(len(self))[rows].tolist()]
        return made

    @cached_property
    def events(self) -> list[Event]:
        """The events one by one, with all their attributes."""
        columns = {name: self.column(name) for name in self.types}
        place = np.zeros(len(self), np.int16)
        derived = frozenset((self.stream,)) if self.derived else frozenset[str]()
        return _events((self.stream,), derived, self.ts, place, self.part, self.seq, columns, self.strings)


def _events(
    streams: Sequence[str],
    derived: Collection[str],
    ts: Array,
    place: Array,
    part: Array,
    seq: Array,
    columns: Mapping[str, Column],
    strings: Strings,
) -> list[Event]:
    """Rows of columns as events."""
    names = list(columns)
    values = [each.values(strings) for each in columns.values()]
    rows: Iterable[tuple[Any, ...]] = zip(*values, strict=True) if values else [()] * len(ts)
    made = []
    for at, number, first, second, row in zip(
        ts.tolist(), place.tolist(), part.tolist(), seq.tolist(), rows, strict=True
    ):
        stream, shown = streams[number], dict(zip(names, row, strict=True))
        if stream in derived:
            made.append(Event(stream, 0, 0, at, shown, id=id_of_words(first, second)))
        else:
            made.append(Event(stream, first, second, at, shown))
    return made


def batch_of_events(
    stream: str, events: Sequence[Event], types: Mapping[str, Type | None], strings: Strings
) -> Batch:
    """Events of one stream as a batch.

    >>> batch = batch_of_events("s", [Event("s", 0, 0, 7, {"x": "a"})], {"x": Type.STRING}, Strings())
    >>> batch.column("x").data.tolist(), batch.events[0].value("x")
    ([0], 'a')
    """

    def read(name: str) -> Column:
        return column_of(types[name], [each.value(name) for each in events], strings)

    places = [(each.part, each.seq) if each.id is None else words_of_id(each.id) for each in events]
    where: Array = np.array(places, np.int64).reshape(-1, 2)
    made = Batch(
        stream,
        np.array([each.ts for each in events], np.int64),
        np.ascontiguousarray(where[:, 0]),
        np.ascontiguousarray(where[:, 1]),
        types,
        read,
        strings,
        any(each.id is not None for each in events),
        np.array([each.late for each in events], np.bool_) if any(each.late for each in events) else None,
    )
    made.__dict__["events"] = list(events)
    return made


def batch_of_matches(matches: Matches, types: Mapping[str, Type]) -> Batch:
    """The matches of a query as a batch of its output, whose attributes have these types."""

    def read(name: str) -> Column:
        column = matches.select.get(name)
        if isinstance(column, Column) and column.type is types[name]:
            return column
        if isinstance(column, Column):
            values = column.values(matches.strings)
        else:
            values = list(matches.terms.get(name, [None] * len(matches)))
        return column_of(types[name], [as_type(each, types[name]) for each in values], matches.strings)

    part, seq = map(signed_words, matches.ids)
    return Batch(matches.query, matches.end, part, seq, types, read, matches.strings, derived=True)


def late_in(batch: Batch, parts: Parts) -> Array | None:
    """Takes note of the events of a batch; tells those that are late, or None where none is.

    >>> batch = batch_of_events("s", [Event("s", 0, i, t) for i, t in enumerate((20, 10, 9))], {}, Strings())
    >>> late_in(batch, Parts(lateness=10)).tolist()
    [False, False, True]
    """
    late = None if batch.late is None else batch.late.copy()
    numbers = np.unique(batch.part) if len(batch) and (batch.part != batch.part[0]).any() else batch.part[:1]
    for number in numbers.tolist():
        part = parts.part(batch.stream, number)
        rows = None if len(numbers) == 1 else np.flatnonzero(batch.part == number)
        ts, seq = (batch.ts, batch.seq) if rows is None else (batch.ts[rows], batch.seq[rows])
        in_order = ts[0] >= part.max_ts and (ts[1:] >= ts[:-1]).all()
        reached = ts if in_order else np.maximum.accumulate(ts)
        allowed = parts.allowed(batch.stream)
        if allowed is not None and not in_order:
            before = np.empty(len(ts))
            before[0], before[1:] = part.max_ts, np.maximum(reached[:-1], part.max_ts)
            behind = ts < before - allowed
            if behind.any():
                late = np.zeros(len(batch), np.bool_) if late is None else late
                late[slice(None) if rows is None else rows] |= behind
        part.idle = False
        part.max_ts = max(part.max_ts, int(reached[-1]))
        part.next_seq = max(part.next_seq, int(seq.max()) + 1)
    return late


class ColumnSorter:
    """The events of some streams as tables, in an order that depends on the place of each stream.

    `attributes` are what the tables need to have; of the streams, some may be `derived` by other queries.
    """

    def __init__(
        self,
        streams: Sequence[str],
        parts: Parts,
        attributes: Mapping[str, Type | None],
        strings: Strings,
        derived: Iterable[str] = (),
    ) -> None:
        self.streams = tuple(streams)
        self.derived = frozenset(derived)
        self.places = {name: index for index, name in enumerate(self.streams)}
        self.parts = parts
        self.attributes = dict(attributes)
        self.strings = strings
        self._passed: Place = (-math.inf, 0, "", 0, 0)
        self._held: list[Table] = []

    def anew(self, strings: Strings) -> ColumnSorter:
        """Another one like this, which holds nothing, for another dictionary of strings."""
        return ColumnSorter(self.streams, self.parts, self.attributes, strings, self.derived)

    def __len__(self) -> int:
        return sum(map(len, self._held))

    @property
    def waiting(self) -> bool:
        """Whether any event waits for its turn."""
        return bool(self._held)

    @property
    def watermark(self) -> float:
        """No event that is released later is earlier than this."""
        return self._passed[0]

    def has_passed(self, event: Event) -> bool:
        """Whether events were released, or time moved on, as if this one would not come."""
        place = event.ts, self.places[event.stream], event.id or "", event.part, event.seq
        return event.ts <= self._passed[0] and place < self._passed

    def passed(self, batch: Batch) -> Array | None:
        """The events that come after they could be released, because their part was idle; None: no such."""
        if not len(batch) or batch.ts.min() > self._passed[0]:
            return None
        place = np.full(len(batch), self.places[batch.stream], np.int16)
        found = _before(batch.ts, place, batch.part, batch.seq, self._passed)
        return found if found.any() else None

    @property
    def reached(self) -> Place:
        """The place in the order before which everything has been released."""
        return self._passed

    def pass_to(self, place: Place) -> None:
        """Moves on as if everything before this place in the order had been released."""
        self._passed = place

    def offer(self, batch: Batch) -> None:
        """Takes events in the order of arrival; they are of its streams, and none is late."""
        if len(batch):
            self._held.append(self._table(batch))

    def release(self) -> Table | None:
        """The events that nothing to come can stand before, in order; moves the watermark."""
        bound = self._passed = max(self._passed, self.parts.bound(self.places))
        if not self._held:
            return None
        held = self._held[0] if len(self._held) == 1 else _joined(self._held)
        held = _in_order(held)
        last = (int(held.ts[-1]), int(held.place[-1]), "", int(held.part[-1]), int(held.seq[-1]))
        if last < bound:
            cut = len(held)
        else:
            early = _before(held.ts, held.place, held.part, held.seq, bound)
            cut = int(np.count_nonzero(early))  # they are in order: those before the bound come first
        self._held = [held.take(slice(cut, None))] if cut < len(held) else []
        return held.take(slice(0, cut)) if cut < len(held) else held

    def _table(self, batch: Batch) -> Table:
        count = len(batch)
        columns = {
            name: _as(batch.column(name), type, batch.strings) if name in batch.types else _nulls(type, count)
            for name, type in self.attributes.items()
        }
        place = np.full(count, self.places[batch.stream], np.int16)
        return Table(self.streams, batch.ts, place, batch.part, batch.seq, columns, batch.strings)

    def has_same(self, other: ColumnSorter) -> bool:
        """Whether the same events wait here and there."""
        if len(self) != len(other):
            return False
        self._settle()
        other._settle()
        return all(
            all(np.array_equal(getattr(own, each), getattr(its, each)) for each in ("place", "part", "seq"))
            for own, its in zip(self._held, other._held, strict=True)
        )

    def widen(self, attributes: Mapping[str, Type | None], other: ColumnSorter | None = None) -> None:
        """Keeps more attributes; those of events that wait are where the same ones wait (`has_same`)."""
        for name, type in attributes.items():
            before = self.attributes.get(name, type)
            self.attributes[name] = type if before is type else None
        if other is None or not self._held:
            return
        (held,), (its,), columns = self._held, other._held, {}
        for name, wanted in self.attributes.items():
            known, strings = (held, self.strings) if name in held.columns else (its, other.strings)
            column = known.columns[name]
            if known is its or column.type is not wanted:
                column = column_of(wanted, column.values(strings), self.strings)
            columns[name] = column
        self._held = [replace(held, columns=columns)]

    def _settle(self) -> None:
        """Puts what waits together, in order."""
        if self._held:
            self._held = [_in_order(_joined(self._held) if len(self._held) > 1 else self._held[0])]

    def document(self) -> list[Any]:
        """The state, for a snapshot: as that of a `Sorter` that keeps these attributes only."""
        return [written_place(self._passed), [write_event(each) for each in self._waiting()]]

    def _waiting(self) -> list[Event]:
        if not self._held:
            return []
        self._settle()
        (held,) = self._held
        return _events(
            self.streams,
            self.derived,
            held.ts,
            held.place,
            held.part,
            held.seq,
            held.columns,
            self.strings,
        )

    def load(self, document: list[Any]) -> None:
        """Goes on from a state."""
        self._passed = read_place(document[0])
        self._held = []
        events = [read_event(each) for each in document[1]]
        for stream in self.streams:
            own = [each for each in events if each.stream == stream]
            self.offer(batch_of_events(stream, own, self.attributes, self.strings))


def _as(column: Column, type: Type | None, strings: Strings) -> Column:
    """The column as a type that has room for its values: an int64 may be widened."""
    if column.type is type:
        return column
    if type is None:
        return column_of(None, column.values(strings), strings)
    data = column.data.astype(np.float64)
    if column.valid is not None:
        data[~column.valid] = np.nan
    return Column(type, data)


def _nulls(type: Type | None, count: int) -> Column:
    if type is None:
        return Column(None, np.full(count, None, object))
    valid = np.zeros(count, np.bool_) if type is Type.INT64 else None
    return Column(type, np.full(count, NULLS[type], DTYPES[type]), valid)


def _before(ts: Array, place: Array, part: Array, seq: Array, bound: Place) -> Array:
    """Which events stand before a place in the order."""
    limit, at, _, number, position = bound
    if math.isinf(limit):
        return np.full(len(ts), limit > 0)
    same = ts == limit
    early = ts < limit
    if same.any():
        inside = (part < number) | ((part == number) & (seq < position))
        early |= same & ((place < at) | ((place == at) & inside))
    return early


def _joined(tables: Sequence[Table]) -> Table:
    def column(name: str) -> Array:
        return np.concatenate([getattr(each, name) for each in tables])

    first = tables[0]
    return Table(
        first.streams,
        column("ts"),
        column("place"),
        column("part"),
        column("seq"),
        {name: concatenated([each.columns[name] for each in tables]) for name in first.columns},
        first.strings,
    )


def _in_order(table: Table) -> Table:
    ts = table.ts
    if len(ts) < 2 or (ts[1:] > ts[:-1]).all():
        return table
    order = np.lexsort((table.seq, table.part, table.place, ts))
    if (order[1:] > order[:-1]).all():
        return table
    return table.take(order)
