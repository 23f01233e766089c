"""The short path for single events: a record becomes one row of columns that are written in place.

It is open where all queries are chi-CEP over one stream whose events come in order and from one part, so
that each is final at once. A record that is not as declared, or comes out of order, takes the long way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.kernel.columns import DTYPES, NULLS, Column, Table, cell
from kaicep.kernel.operator import KernelOperator
from kaicep.kernel.patterns import PatternMachine
from kaicep.plan.events import Match, by_end
from kaicep.plan.time import parse_time, time_from_number
from kaicep.plan.types import INT64_MAX, INT64_MIN, Notation, Type, Value, plain

if TYPE_CHECKING:
    from kaicep.kernel.batches import ColumnSorter
    from kaicep.kernel.columns import Strings

_MOST = sys.float_info.max
_LEAST = -_MOST


class Lane:
    """One row of a stream's columns, to be written again for every event, and who is to look at it."""

    def __init__(
        self,
        sorter: ColumnSorter,
        operators: Sequence[KernelOperator],
        types: Mapping[str, Type],
        time: str,
        number: int,
        strings: Strings,
        notation: Notation,
    ) -> None:
        (self.stream,) = sorter.streams
        self._sorter = sorter
        self._time = time
        self._unit = notation.time_unit
        self._number = number
        self._part = sorter.parts.part(self.stream, number)
        self._ts = np.zeros(1, np.int64)
        self._seq = np.zeros(1, np.int64)
        columns = {
            name: Column(
                type,
                np.full(1, NULLS[type], DTYPES[type]),
                np.zeros(1, np.bool_) if type is Type.INT64 else None,
            )
            for name, type in sorter.attributes.items()
            if type is not None  # where there is such an attribute, the path is closed
        }
        table = Table(
            sorter.streams,
            self._ts,
            np.zeros(1, np.int8),
            np.full(1, number, np.int64),
            self._seq,
            columns,
            strings,
        )
        self._memo = table.memo
        self._setters = [
            (name, _setter(type, columns.get(name), strings)) for name, type in types.items() if name != time
        ]
        times = [columns[time].data] if time in columns else []
        self._instants = [cell(each) for each in (self._ts, *times)]
        self._position = cell(self._seq)
        self._row = _Row(self.stream, {"ts": _getter(Column(Type.TIMESTAMP, self._ts), strings)})
        self._row.values |= {name: _getter(each, strings) for name, each in columns.items()}
        self._looks = [_single(each, table, self._row) for each in operators]

    def push(self, record: Mapping[str, Any], seq: int) -> list[Sequence[Match]] | None:
        """What each operator finds by a record; None, and nothing is done, where it must go the long way."""
        get = record.get
        ts = _instant(get(self._time), self._unit)
        part, sorter = self._part, self._sorter
        if ts is None or ts < part.max_ts or seq < part.next_seq or part.idle or sorter.waiting:
            return None
        for name, write in self._setters:
            if not write(get(name)):
                return None
        for each in self._instants:
            each[0] = ts
        self._position[0] = seq
        part.max_ts, part.next_seq = ts, seq + 1
        sorter.pass_to((ts, 0, "", self._number, seq + 1))
        self._memo.clear()  # what was worked out of the row that stood there before
        self._memo["row"] = self._row
        return [look(ts) for look in self._looks]


class _Row:
    """The row as an event, whose values are read where they are written."""

    def __init__(self, stream: str, values: dict[str, Callable[[], Value]]) -> None:
        self.stream, self.values = stream, values

    def value(self, name: str) -> Value:
        """The value of an attribute."""
        get = self.values.get(name)
        return None if get is None else get()


def _getter(column: Column, strings: Strings) -> Callable[[], Value]:
    """Reads the value of a column's only row."""
    data = cell(column.data)
    if column.type is Type.FLOAT64:

        def get_float() -> Value:
            value: float = data[0]
            return value if value == value else None

        return get_float
    if column.type is Type.STRING:
        return lambda: strings.texts[data[0]] if data[0] >= 0 else None
    return lambda: column.values(strings)[0]


def _instant(raw: Any, unit: str) -> int | None:
    """The time of a record, where it is plain to see."""
    kind = raw.__class__
    if kind is float or kind is int:
        return time_from_number(raw, unit)
    if kind is str:
        return parse_time(raw)
    return plain(raw) if kind is datetime else None  # type: ignore[return-value]


def _single(operator: KernelOperator, table: Table, row: _Row) -> Callable[[int], Sequence[Match]]:
    """How an operator looks at the row, and at the time that it tells."""
    short = operator.single(table, row) if isinstance(operator, PatternMachine) else None
    if short is not None:
        return short

    def single(watermark: int) -> Sequence[Match]:
        found = [match for some in operator.feed(table) for match in some]
        found += [match for some in operator.advance(watermark) for match in some]
        if len(found) > 1:
            found.sort(key=by_end)
        return found

    return single


def _setter(type: Type, column: Column | None, strings: Strings) -> Callable[[Any], bool]:
    """Writes a value of a type into a column, or that there is none; says whether it is one."""
    data = cell(np.zeros(1, DTYPES[type]) if column is None else column.data)
    null = NULLS[type]
    if type is Type.FLOAT64:

        def set_float(value: Any) -> bool:
            if value.__class__ is float:
                data[0] = value if _LEAST <= value <= _MOST else null
            elif value is None:
                data[0] = null
            elif value.__class__ is int and INT64_MIN <= value <= INT64_MAX:
                data[0] = float(value)
            else:
                return False
            return True

        return set_float
    if type is Type.STRING:
        codes = None if column is None else strings.code

        def set_string(value: Any) -> bool:
            if value.__class__ is str:
                if codes is not None:
                    data[0] = codes(value)
            elif value is None:
                data[0] = null
            else:
                return False
            return True

        return set_string
    if type is Type.BOOL:

        def set_bool(value: Any) -> bool:
            data[0] = null if value is None else value is True
            return value is None or value.__class__ is bool

        return set_bool
    if type is Type.INT64:
        valid = cell(np.zeros(1, np.bool_) if column is None or column.valid is None else column.valid)

        def set_int(value: Any) -> bool:
            if value is not None and (value.__class__ is not int or not INT64_MIN <= value <= INT64_MAX):
                return False
            valid[0] = value is not None
            data[0] = null if value is None else value
            return True

        return set_int
    return lambda value: value is None  # a time in words may be written in many ways
