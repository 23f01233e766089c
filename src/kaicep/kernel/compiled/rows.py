"""Matches of a compiled pattern one by one, for those who push single events.

A few matches as columns cost more than the search for them did: a dozen arrays to be sliced and turned over.
Here the kernel's outputs are gathered into rows first, in one call, each value a word of eight bytes; Python
takes them as tuples, and what is asked of a match is worked out of its tuple when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import numpy as np

from kaicep.kernel.columns import NO_TIME, Array, Strings, cell
from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled.layout import Output
from kaicep.plan.events import Match
from kaicep.plan.nodes import OutputColumn
from kaicep.plan.time import format_time
from kaicep.plan.types import Type

__all__ = ["MOST", "RowReader"]

MOST = 256
"""So many matches are read as rows; more are better read as columns."""

_LEADING = ("end",), ("low",), ("high",), ("start",)
_CODES = {"f8": "d", "u8": "Q"}
_PART = 2**48 - 1

_SOURCE = f"""
import numpy as np
from numba import njit

from kaicep.kernel.compiled.block import HELPERS

globals().update(HELPERS)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def gather(S, D):
    rows = i8(D[0])
    width = D[1]
    count = S[{b.OUT}]
    for each in range(width):
        at = S[S[{b.OUTPUTS}] + D[2 + 2 * each]]
        kind = D[3 + 2 * each]
        if kind == 8:
            wide = i8(at)
            for row in range(count):
                rows[row * width + each] = wide[row]
        elif kind == 4:
            half = i4(at)
            for row in range(count):
                rows[row * width + each] = half[row]
        else:
            narrow = i1(at)
            for row in range(count):
                rows[row * width + each] = narrow[row]
"""


class RowReader:
    """Reads matches that have no loop: `matches` has those that the block holds, in their order."""

    def __init__(
        self,
        query: str,
        block: Array,
        outputs: Sequence[Output],
        columns: Sequence[OutputColumn],
        streams: Sequence[str],
        strings: Strings,
        version: int | None,
    ) -> None:
        self.version = version
        every = [each.of for each in outputs]
        order = [every.index(each) for each in _LEADING]
        order += [index for index in range(len(outputs)) if index not in order]
        places = {every[index]: place for place, index in enumerate(order)}
        self.block = block
        self._rows = np.zeros(MOST * len(order), np.int64)
        self._bytes = cell(self._rows).cast("B")
        codes = "".join(_CODES.get(outputs[index].view, "q") for index in order)
        self._row = Struct(f"={codes}")
        described = [each for index in order for each in (index, outputs[index].width)]
        self._described = np.array([self._rows.ctypes.data, len(order), *described], np.int64)
        self._gather = compile_source(_SOURCE)["gather"]
        self._read = _reader(query, places, columns, streams, strings, version)

    def matches(self, count: int) -> list[Match]:
        """The matches that were written, at most `MOST`, by end and id."""
        self._gather(self.block, self._described)
        row = self._row
        rows = list(row.iter_unpack(self._bytes[: count * row.size]))
        if count > 1:
            rows.sort()
        read, unread = self._read, Match.unread
        return [unread(each[3], each[0], read, each) for each in rows]


def _reader(
    query: str,
    places: dict[tuple[object, ...], int],
    columns: Sequence[OutputColumn],
    streams: Sequence[str],
    strings: Strings,
    version: int | None,
) -> Callable[[str, Any], Any]:
    """What the attributes of a match are, by its row."""
    selected = [(each.name, _value(each, places, index, strings.texts)) for index, each in enumerate(columns)]
    bound = [(str(of[1]), place, places["where", of[1]]) for of, place in places.items() if of[0] == "seq"]
    judged = places.get(("version",))

    def read(name: str, row: Any) -> Any:
        if name == "select":
            return {each: value(row) for each, value in selected}
        if name == "id":
            return f"{row[1]:016x}{row[2]:016x}"
        if name == "events":
            return {
                variable: {"stream": streams[row[where] >> 48], "part": row[where] & _PART, "seq": row[seq]}
                for variable, seq, where in bound
                if row[where] >= 0
            }
        if name == "query":
            return query
        if name != "version" or version is None:
            return None
        return version if judged is None else row[judged]

    return read


def _value(
    column: OutputColumn, places: dict[tuple[object, ...], int], index: int, texts: Sequence[str]
) -> Callable[[Any], Any]:
    """How a selected value is read from a row."""
    at = places["select", index]
    match column.type:
        case Type.STRING:
            return lambda row: texts[row[at]] if row[at] >= 0 else None
        case Type.FLOAT64:
            return lambda row: row[at] if row[at] == row[at] else None
        case Type.BOOL:
            return lambda row: bool(row[at]) if row[at] >= 0 else None
        case Type.TIMESTAMP:
            return lambda row: format_time(row[at]) if row[at] != NO_TIME else None
    valid = places["valid", index]
    return lambda row: row[at] if row[valid] else None
