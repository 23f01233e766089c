"""One event at a time: the pattern machine over a row of columns that is written in place.

A batch of one event costs as many arrays as one of a thousand. Where the values of an event alone decide
which places it may take, those arrays are made once, and an event only changes the numbers in them. What is
not so plain (a machine that stops to ask or for more room, matches that are completed later) goes as with
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import value_of
from kaicep.kernel.columns import Column, Matches, Table, cell
from kaicep.kernel.jit import direct
from kaicep.kernel.output import Finished, Output, words_of
from kaicep.kernel.shape import PARTITION, POSITION, TIME, Roots
from kaicep.kernel.vectors import vectors_of
from kaicep.plan.events import Match, by_end
from kaicep.plan.expressions import Expr, Field
from kaicep.plan.nodes import Chain
from kaicep.plan.operators import event_function
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Value

if TYPE_CHECKING:
    from kaicep.kernel.patterns import PatternMachine

_NULL = int(t.NULL)
_ONLY = np.zeros(1, np.int64)
_NO_EVENTS = np.zeros((0, t.E_FIXED), np.int64)
"""All that is shown of matches without loops has been read: who keeps one keeps no rows of the machine."""
_advance = direct(machine.advance)


class OnlyRow(Protocol):
    """The only row of a table, as an event."""

    stream: str

    def value(self, name: str) -> Value:
        """The value of an attribute."""
        ...


def is_plain(operator: PatternMachine) -> bool:
    """Whether the values of an event alone say which places it may take, and by which keys it is found."""
    pattern, shape = operator.pattern, operator.shape
    if pattern.latest or operator.absent or operator.is_joined:
        return False
    asks = any(chain.semantics or shape.of_one[chain.variable] for chain in pattern.chains)
    return not asks and not any(isinstance(each, Roots) for each in shape.columns)


class SingleEvents:
    """A pattern machine that is given one event after the other, each in the only row of a table."""

    def __init__(self, operator: PatternMachine, table: Table, row: OnlyRow) -> None:
        self._operator, self._table, self._row = operator, table, row
        shape = operator.shape
        self._batch = t.MachineBatch(
            table.ts,
            np.zeros(1, np.int64),
            np.zeros((len(shape.keys), 1), np.int32),
            np.zeros((len(shape.columns), 1), np.int64),
            table.place.astype(np.int64),
            table.part,
            table.seq,
        )
        self._fits = cell(self._batch.fits)
        self._words, self._ids = (cell(each.ravel()) for each in (self._batch.values, self._batch.keys))
        self._keys = [_Key(operator, exprs, table, row) for _, exprs in shape.keys]
        self._partition = _Key(operator, operator.pattern.partition, table, row)
        self._columns = [(number, self._reader(of)) for of, number in shape.columns.items()]
        self._places = [self._place(bit, chain) for bit, chain in enumerate(operator.pattern.chains)]
        self._counts = 1 << len(self._places) if operator.pattern.match == "strict" else 0
        operator.note_origins(table.place, table.part)
        self._begin()

    def _begin(self) -> None:
        """Takes the memory of the operator, which may have begun anew."""
        self._numbers, self._meta = self._operator.keys, cell(self._operator.memory.meta)
        for each in (*self._keys, self._partition):
            each.known.clear()

    # --- how the row is read ---

    def _place(self, bit: int, chain: Chain) -> tuple[Any, ...]:
        """A place: its bit, its times, its conditions (FILTERs, those of PATHs, those that others imply)."""
        own, from_paths = self._operator.passed.in_order(chain.conditions)
        bounds = self._operator.bounds.get(chain.variable, ())
        within = chain.within if (chain.within.low, chain.within.high) != (None, None) else None
        tests = [[event_function(each) for each in some] for some in (own, from_paths, bounds)]
        return 1 << bit, chain.variable, within, *tests

    def _reader(self, of: object) -> Callable[[], int]:
        """Reads a word of the row."""
        if of is TIME:
            return partial(self._table.ts.item, 0)
        if of is POSITION:
            return lambda: self._meta[t.POSITION]
        if of is PARTITION:
            return self._partition.number
        assert isinstance(of, Expr)
        names = dict(of.sources).get(self._table.streams[0], ()) if isinstance(of, Field) else ()
        column = self._table.columns.get(names[0]) if len(names) == 1 else None
        if column is None or column.type is not of.type:  # type: ignore[attr-defined]
            return lambda: words_of(vectors_of(self._table).value(of)).item()
        return _word_reader(column)

    def _fit(self, ts: int) -> int:
        """By bit, the places that the event may take."""
        row, passed, fit = self._row, self._operator.passed, 0
        came = filtered = met = False
        for bit, variable, within, own, from_paths, bounds in self._places:
            if within is not None and ts not in within:
                continue
            came = True
            if not _holds(own, row):
                continue
            filtered = True
            if not _holds(from_paths, row):
                continue
            met = True
            if _holds(bounds, row):
                fit |= bit
                passed.fits[variable] += 1
        passed.came += came
        passed.filters += filtered
        passed.paths += met
        return fit | self._counts if came else fit

    # --- what is found ---

    def __call__(self, ts: int) -> Sequence[Match]:
        """What is found by the row as it is, and by the time that it tells."""
        operator = self._operator
        fit = self._fit(ts)
        if operator.is_filter:
            return _every(operator.singles(self._table, _ONLY)) if fit else ()
        operator.forget_keys_if_many()
        if operator.keys is not self._numbers:
            self._begin()
        meta = self._meta
        if fit:
            found = self._search(fit)
        elif meta[t.HEAP] or meta[t.QUEUE] < meta[t.QUEUED]:
            found = _every(operator.advance(ts))
        else:
            found = ()
        if meta[t.NOW] < ts:
            meta[t.NOW] = ts
        return found

    def _search(self, fit: int) -> Sequence[Match]:
        operator, batch, words, meta = self._operator, self._batch, self._words, self._meta
        for number, read in self._columns:
            words[number] = read()
        for number, key in enumerate(self._keys):
            self._ids[number] = key.number()
        self._fits[0] = fit
        meta[t.VERSION] = operator.version or 0
        at, why = _advance(operator.shape.tables, operator.memory, batch, 0)
        if why != t.DONE or operator.plain_output is None:
            return _every(operator.search(batch, self._table, at, why))
        meta[t.POSITION] += 1
        count = meta[t.MATCHES]
        if not count:
            return ()
        meta[t.MATCHES] = 0
        return _Unread(operator.plain_output, operator.memory, count, operator.shown_version).matches()


class _Key:
    """The numbers of a key, by the values that events have for it."""

    def __init__(self, operator: PatternMachine, exprs: Sequence[Expr], table: Table, row: Any) -> None:
        self._operator, self._exprs, self._table, self._row = operator, exprs, table, row
        self._functions = [event_function(each) for each in exprs]
        self._only = self._functions[0] if len(exprs) == 1 else None
        self.known: dict[object, int] = {}

    def number(self) -> int:
        """That of the row."""
        row = self._row
        value = tuple(each(row) for each in self._functions) if self._only is None else self._only(row)
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = int(self._operator.key_ids(self._exprs, self._table)[0])
            self._operator.make_cells()
        return found


class _Unread:
    """Matches of one event, with one event for a place at most; what is in them is made when it is read."""

    def __init__(self, output: Output, memory: t.Memory, count: int, version: int | None) -> None:
        self._output, self._version = output, version
        self._end, self._found, self._words = output.emitted(memory, count)

    def matches(self) -> list[Match]:
        """The matches, in the order of their end, then of their id."""
        starts, ends = self._words[self._output.start].tolist(), self._end.tolist()
        found = [Match.unread(starts[m], ends[m], self._read, m) for m in range(len(starts))]
        if len(found) == 1:
            return found
        low, high = self._output.ids_of(self._output.events_of(self._rows, self._words), self._words)
        return [found[m] for m in np.lexsort((high, low, self._end)).tolist()]

    @property
    def _rows(self) -> Finished:
        return Finished(_NO_EVENTS, self._found, {}, self._found[-1], self._end, self._end)

    @cached_property
    def _whole(self) -> Matches:
        return self._output.made_of(self._rows, self._words).matches

    def _read(self, name: str, m: int) -> Any:
        if name == "select":
            return {name: self._value(type, at, m) for name, type, at in self._output.plain_columns}
        if name in ("id", "events"):
            return self._whole.read(name, m)
        return {"query": self._output.plan.name, "version": self._version}.get(name)

    def _value(self, type: Type | None, at: int, row: int) -> Value:
        if type is Type.FLOAT64:
            number: float = self._words.view(np.float64).item(at, row)
            return number if number == number else None
        value = value_of(self._words.item(at, row), type, self._output.strings.texts.__getitem__)
        return format_time(value) if type is Type.TIMESTAMP and isinstance(value, int) else value


def _holds(tests: Sequence[Callable[[Any], Value]], row: OnlyRow) -> bool:
    for test in tests:  # noqa: SIM110 - a generator takes longer than most tests
        if test(row) is not True:
            return False
    return True


def _every(pieces: Iterable[Matches]) -> list[Match]:
    return sorted((match for some in pieces for match in some), key=by_end)


def _word_reader(column: Column) -> Callable[[], int]:
    """Reads the only value of a column as a word of the machine."""
    data = cell(column.data)
    if column.type is Type.FLOAT64:
        return partial(column.data.view(np.int64).item, 0)
    if column.type is Type.TIMESTAMP:
        return lambda: data[0]
    if column.type is Type.INT64:
        if column.valid is None:
            return lambda: data[0]
        valid = cell(column.valid)
        return lambda: data[0] if valid[0] else _NULL
    return lambda: data[0] if data[0] >= 0 else _NULL
