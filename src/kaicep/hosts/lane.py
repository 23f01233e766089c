"""The short way for single events: a record becomes one row of columns that are written in place.

It is open where all queries run compiled over one stream whose events come in order and from one part, so
that each is final at once. A record that is not as declared, or comes out of order, takes the long way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kaicep.kernel.columns import DTYPES, NULLS, Column, Table
from kaicep.kernel.words import identity_of
from kaicep.plan.time import parse_time, time_from_number
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type

if TYPE_CHECKING:
    from kaicep.kernel.batches import ColumnSorter
    from kaicep.kernel.columns import Strings

__all__ = ["Lane"]


class Lane:
    """One row of a stream's columns, to be written again for every event."""

    def __init__(
        self, sorter: ColumnSorter, types: Mapping[str, Type], time: str, part: int, strings: Strings
    ) -> None:
        (self.stream,) = sorter.streams
        self.time = time
        self.part = part
        self.sorter = sorter
        self._ts = np.zeros(1, np.int64)
        self._seq = np.zeros(1, np.int64)
        self._low, self._high = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
        self._identify = identity_of(self.stream, part, self._low, self._high)
        columns = {
            name: Column(
                type,
                np.full(1, NULLS[type], DTYPES[type]),
                np.zeros(1, np.bool_) if type is Type.INT64 else None,
            )
            for name, type in sorter.attributes.items()
        }
        self.table = Table(
            sorter.streams,
            self._ts,
            np.zeros(1, np.int8),
            np.full(1, part, np.int64),
            self._seq,
            self._low,
            self._high,
            columns,
            strings,
        )
        self._columns = list(columns.values())
        self._setters: dict[str, Callable[[Any], bool]] = {
            name: _setter(type, columns.get(name), strings) for name, type in types.items() if name != time
        }
        self._times = columns.get(time)

    def instant(self, record: Mapping[str, Any]) -> int | None:
        """The time of a record, where it is plain to see."""
        raw = record.get(self.time)
        kind = type(raw)
        if kind is int:
            return raw * 1_000_000  # type: ignore[operator]
        if kind is float:
            return time_from_number(raw) if math.isfinite(raw) else None  # type: ignore[arg-type]
        return parse_time(raw) if kind is str else None  # type: ignore[arg-type]

    def write(self, record: Mapping[str, Any], ts: int, seq: int) -> bool:
        """Makes the row of a record; False where one of its values is not as declared."""
        for column in self._columns:
            column.data[0] = NULLS[column.type]
            if column.valid is not None:
                column.valid[0] = False
        setters = self._setters
        for name, value in record.items():
            if value is not None:
                setter = setters.get(name)
                if setter is not None and not setter(value):
                    return False
        if self._times is not None:
            self._times.data[0] = ts
        self._ts[0] = ts
        self._seq[0] = seq
        self._identify(seq)
        return True


def _setter(type: Type, column: Column | None, strings: Strings) -> Callable[[Any], bool]:
    """Writes a value of a type into a column; says whether it is one."""
    data = None if column is None else column.data
    if type is Type.FLOAT64:

        def set_float(value: Any) -> bool:
            if value.__class__ is not float and value.__class__ is not int:
                return False
            if data is not None:
                number = float(value)
                data[0] = number if math.isfinite(number) else math.nan
            return True

        return set_float
    if type is Type.STRING:
        code = strings.code

        def set_string(value: Any) -> bool:
            if value.__class__ is not str:
                return False
            if data is not None:
                data[0] = code(value)
            return True

        return set_string
    if type is Type.BOOL:

        def set_bool(value: Any) -> bool:
            if value.__class__ is not bool:
                return False
            if data is not None:
                data[0] = value
            return True

        return set_bool
    if type is Type.INT64:
        valid = None if column is None else column.valid

        def set_int(value: Any) -> bool:
            if value.__class__ is not int or not INT64_MIN <= value <= INT64_MAX:
                return False
            if data is not None and valid is not None:
                data[0] = value
                valid[0] = True
            return True

        return set_int
    return lambda value: False  # a time in words may be written in many ways
