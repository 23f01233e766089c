"""Events and matches as columns: what compiled operators read and write.

A value travels as a number. float64 is itself, with NaN for null; int64 has a mask beside it; a timestamp
is an int64 with `NO_TIME` for null; a bool is an int8 with -1 for null; a string is its code in `Strings`,
with -1 for null. A column whose type nobody knows (an attribute of an open stream) has Python's values. An
event is known by its stream, part and seq. The ids of matches are made from that when somebody reads them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kaicep.plan.events import Event, Match, id_words, text_word
from kaicep.plan.time import format_time
from kaicep.plan.types import INT64_MIN, Type, Value

Array = NDArray[Any]
"""An array of any type."""
Mask = Array | bool
"""Which rows are meant: one bool for all of them, or for the only one."""
Words = tuple[Array, Array]
"""The lower and the upper words of ids."""

NO_TIME = INT64_MIN
"""The timestamp that is null; no instant is so early."""

DTYPES: Mapping[Type, type] = {
    Type.BOOL: np.int8,
    Type.INT64: np.int64,
    Type.FLOAT64: np.float64,
    Type.STRING: np.int32,
    Type.TIMESTAMP: np.int64,
}
"""The types of attributes as those of arrays."""
NULLS: Mapping[Type, Any] = {
    Type.BOOL: -1,
    Type.INT64: 0,
    Type.FLOAT64: np.nan,
    Type.STRING: -1,
    Type.TIMESTAMP: NO_TIME,
}
"""What stands for null in a column, by type."""


def id_of_words(part: int, seq: int) -> str:
    """The id of a derived event, which stands in columns as two signed words.

    >>> id_of_words(*words_of_id("00000000000000010000000000000002"))
    '00000000000000010000000000000002'
    """
    return f"{part + 2**63:016x}{seq + 2**63:016x}"


def words_of_id(id: str) -> tuple[int, int]:
    """The signed words of an id; they sort as ids do."""
    low, high = id_words(id)
    return low - 2**63, high - 2**63


def cell(array: Array) -> Any:
    """The memory of an array, whose single values are read and written twice as fast that way."""
    return memoryview(array)  # type: ignore[arg-type]


_DICTIONARIES = 8


class Strings:
    """A dictionary of strings: every different one has a code, and the word that stands for it in ids.

    >>> strings = Strings()
    >>> strings.code("a"), strings.code("b"), strings.code("a"), strings.texts[1]
    (0, 1, 0, 'b')
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._words: Array = np.zeros(0, np.uint64)
        self.events: dict[Hashable, dict[int, Event]] = {}
        """Events that stand for all that have a code on a stream, in an epoch (`kernel.roots`)."""
        self.dictionaries: deque[tuple[Any, Array]] = deque(maxlen=_DICTIONARIES)
        """Dictionaries of Arrow columns whose codes were looked up last, and these codes."""
        self.answers: OrderedDict[Hashable, Any] = OrderedDict()
        """What was worked out by code (`kernel.vectors`), by what it is."""

    def __len__(self) -> int:
        return len(self.texts)

    def code(self, text: str) -> int:
        """The code of a string."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found

    def codes(self, texts: Iterable[str | None]) -> Array:
        """The codes of many strings."""
        every = list(texts)
        if not self.texts:  # a dictionary at the beginning: all of it is new
            fresh = {text: code for code, text in enumerate(every) if text is not None}
            if len(fresh) == len(every):
                self.texts.extend(fresh)
                self._codes = fresh
                return np.arange(len(every), dtype=np.int32)
        found: list[int | None] = [self._codes.get(each) for each in every]  # type: ignore[arg-type]
        if None in found:
            found = [-1 if each is None else self.code(each) for each in every]
        return np.array(found, np.int32)

    @property
    def words(self) -> Array:
        """By code, the word of the string in ids."""
        known = len(self._words)
        if known < len(self.texts):
            more = np.array([text_word(each) for each in self.texts[known:]], np.uint64)
            self._words = np.concatenate([self._words, more])
        return self._words


def chosen(values: Array, rows: Array | slice) -> Array:
    """The values of some rows; given their numbers, `take` is half as fast again as an index is."""
    return values.take(rows) if isinstance(rows, np.ndarray) and rows.dtype == np.int64 else values[rows]


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one attribute; `valid` is there for int64 alone, and only if some are null.

    Without a type, `data` has Python's values themselves.
    """

    type: Type | None
    data: Array
    valid: Array | None = None

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Array | slice) -> Column:
        """The values of some rows."""
        return Column(self.type, chosen(self.data, rows), None if self.valid is None else self.valid[rows])

    def values(self, strings: Strings) -> list[Value]:
        """The values as Python has them."""
        data = self.data.tolist()
        match self.type:
            case Type.STRING:
                texts = strings.texts
                return [None if each < 0 else texts[each] for each in data]
            case Type.FLOAT64:
                return [None if each != each else each for each in data]
            case Type.BOOL:
                return [None if each < 0 else bool(each) for each in data]
            case Type.TIMESTAMP:
                return [None if each == NO_TIME else each for each in data]
        if self.valid is None:  # int64 without nulls, or no type at all
            return data  # type: ignore[no-any-return]
        return [each if valid else None for each, valid in zip(data, self.valid.tolist(), strict=True)]


def column_of(type: Type | None, values: Sequence[Value], strings: Strings) -> Column:
    """Python's values as a column.

    >>> column_of(Type.INT64, [1, None], Strings()).values(Strings())
    [1, None]
    """
    if type is None:
        made = np.empty(len(values), object)
        made[:] = values
        return Column(type, made)
    if type is Type.STRING:
        return Column(type, strings.codes(values))  # type: ignore[arg-type]
    null = NULLS[type]
    data: Array = np.array([null if each is None else each for each in values], DTYPES[type])
    valid = None
    if type is Type.INT64 and None in values:
        valid = np.array([each is not None for each in values], np.bool_)
    return Column(type, data, valid)


def concatenated(columns: Sequence[Column]) -> Column:
    """Columns of one type, one after the other."""
    if len(columns) == 1:
        return columns[0]
    valid = None
    if any(each.valid is not None for each in columns):
        valid = np.concatenate(
            [np.ones(len(each), np.bool_) if each.valid is None else each.valid for each in columns]
        )
    return Column(columns[0].type, np.concatenate([each.data for each in columns]), valid)


@dataclass(frozen=True, eq=False)
class Table:
    """Final events in the order of a query, as an operator is fed with them.

    `place` is the place of an event's stream among `streams`. `columns` has at least the attributes that
    the operator asked for; where a stream has no such attribute, it is null for its events.
    """

    streams: tuple[str, ...]
    ts: Array
    place: Array
    part: Array
    seq: Array
    columns: Mapping[str, Column]
    strings: Strings
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, rows: Array | slice) -> Table:
        """Some of the rows."""
        return Table(
            self.streams,
            chosen(self.ts, rows),
            chosen(self.place, rows),
            chosen(self.part, rows),
            chosen(self.seq, rows),
            {name: each.take(rows) for name, each in self.columns.items()},
            self.strings,
        )


@dataclass(frozen=True, eq=False)
class Refs:
    """The events that matches have for a variable, by identity; `place` is -1 where there is none.

    Of an event that is the match of another query, `part` and `seq` are the words of its id, signed
    (`kernel.words`). With `offsets` (one more than there are matches) a match has several: those from its
    offset to the next.
    """

    place: Array
    part: Array
    seq: Array
    offsets: Array | None = None


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists: the values of a loop's rounds, from each match's offset to the next."""

    offsets: Array
    flat: Column


@dataclass(frozen=True, eq=False)
class Matches:
    """The matches of one query, as columns, in the order of their end.

    `select` has a column for each selected value, `terms` those
    that are terms of the knowledge base (already as JSON writes them). `batch` is there for the matches of
    a batch window, which show the first and the last of their events and how many there are.
    """

    query: str
    streams: tuple[str, ...]
    strings: Strings
    identify: Callable[[], Words]
    """Makes the two words of each id."""
    start: Array
    end: Array
    names: tuple[str, ...]
    """The selected columns in order, those of `select` and of `terms` together."""
    select: Mapping[str, Column | Lists]
    events: Mapping[str, Refs]
    terms: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    batch: Mapping[str, tuple[Refs, Refs, Array]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    """The loops that count as left out where they have no round."""
    derived: frozenset[str] = frozenset()
    """The streams that are the output of queries: their events are known by an id."""
    version: int | None = None

    def __len__(self) -> int:
        return len(self.end)

    @cached_property
    def ids(self) -> Words:
        """The two words of each id."""
        return self.identify()

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)

    def split(self) -> Iterator[Matches]:
        """The matches of each query: there is one."""
        yield self

    @cached_property
    def rows(self) -> list[Match]:
        """The matches one by one."""
        shown = [self._shown(name) for name in self.names]
        select = [dict(zip(self.names, row, strict=True)) for row in zip(*shown, strict=True)]
        select = select or [{} for _ in range(len(self))]
        rows = []
        for row, each in enumerate(zip(self.start.tolist(), self.end.tolist(), select, strict=True)):
            start, end, chosen = each
            made = Match.unread(start, end, self.read, row)
            made.query, made.select, made.triples, made.version = self.query, chosen, None, self.version
            rows.append(made)
        return rows

    def read(self, name: str, row: int) -> Any:
        """The id or the events of a match; those of all are made when the first is read."""
        if name == "events":
            return self._shown_events[row]
        low, high = self.ids
        return f"{int(low[row]):016x}{int(high[row]):016x}"

    def _shown(self, name: str) -> Sequence[Any]:
        if name in self.terms:
            return self.terms[name]
        column = self.select[name]
        if isinstance(column, Lists):
            flat = self._plain(column.flat)
            bounds = column.offsets.tolist()
            return [flat[low:high] for low, high in pairwise(bounds)]
        return self._plain(column)

    def _plain(self, column: Column) -> list[Any]:
        values = column.values(self.strings)
        if column.type is Type.TIMESTAMP:
            return [None if each is None else format_time(each) for each in values]  # type: ignore[arg-type]
        return values

    @cached_property
    def _shown_events(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for variable, refs in self.events.items():
            identities = self._identities(refs)
            if refs.offsets is None:
                for row, each in zip(shown, identities, strict=True):
                    if each is not None:
                        row[variable] = each
                continue
            bounds = refs.offsets.tolist()
            for row, (low, high) in zip(shown, pairwise(bounds), strict=True):
                if high > low or variable not in self.optional:
                    row[variable] = identities[low:high]
        for variable, (first, last, count) in self.batch.items():
            ends = zip(self._identities(first), self._identities(last), count.tolist(), strict=True)
            for row, (one, other, many) in zip(shown, ends, strict=True):
                row[variable] = {"first": one, "last": other, "count": many}
        return shown

    def _identities(self, refs: Refs) -> list[dict[str, Any] | None]:
        streams, derived = self.streams, self.derived

        def identity(place: int, part: int, seq: int) -> dict[str, Any]:
            if streams[place] in derived:
                return {"stream": streams[place], "id": id_of_words(part, seq)}
            return {"stream": streams[place], "part": part, "seq": seq}

        return [
            None if place < 0 else identity(place, part, seq)
            for place, part, seq in zip(
                refs.place.tolist(), refs.part.tolist(), refs.seq.tolist(), strict=True
            )
        ]
