"""Between Arrow and the kernel's columns: no value passes through Python on the way.

Strings are the exception, and only the different ones: a column of strings is dictionary-coded by Arrow,
and each entry of the dictionary is looked up once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kaicep.errors import Mistake
from kaicep.kernel.batches import Batch
from kaicep.kernel.columns import NO_TIME, Array, Column, Lists, Matches, Refs, Strings, id_of_words
from kaicep.plan.events import Match
from kaicep.plan.nodes import ChiPlan, OutputColumn, QueryPlan, Solutions
from kaicep.plan.time import TIME_UNITS, nearest_thousandth, parse_time, time_from_number
from kaicep.plan.types import INT64_MAX, INT64_MIN, USUAL, Notation, Type, Unfit, convert, json_text

_FIRST, _LAST = parse_time("0001-01-01") or 0, parse_time("9999-12-31") or 0
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_ARROW = {
    Type.BOOL: pa.bool_(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.STRING: pa.string(),
    Type.TIMESTAMP: _MICROSECONDS,
}


def type_of_arrow(type: pa.DataType) -> Type | None:
    """The type of a column's values; None where a column can be no attribute.

    >>> type_of_arrow(pa.dictionary(pa.int32(), pa.string())), type_of_arrow(pa.list_(pa.int8()))
    (Type.STRING, None)
    """
    if pa.types.is_dictionary(type):
        return type_of_arrow(type.value_type)
    if pa.types.is_boolean(type):
        return Type.BOOL
    if pa.types.is_integer(type):
        return Type.INT64
    if pa.types.is_floating(type):
        return Type.FLOAT64
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return Type.STRING
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        return Type.TIMESTAMP
    return None


def batch_of_arrow(
    records: pa.RecordBatch,
    stream: str,
    types: Mapping[str, Type],
    strings: Strings,
    time: str = "ts",
    first: int = 0,
    notation: Notation = USUAL,
) -> Batch:
    """Records as a batch; `first` is the position of the first of them, where they have no `seq`.

    >>> records = pa.record_batch({"ts": pa.array([1, 2], pa.timestamp("us")), "x": ["a", "b"]})
    >>> batch_of_arrow(records, "s", {"x": Type.STRING}, Strings()).events[1].values
    {'x': 'b'}
    """
    names = records.schema.names
    if time not in names:
        raise Mistake(f"the records of {stream} have no column {time}, which holds their time")
    count = records.num_rows
    ts = _times(records.column(time), notation.time_unit)
    if (ts == NO_TIME).any():
        raise Mistake(f"a record of {stream} has no time")
    part = _integers(records.column("part")) if "part" in names else np.zeros(count, np.int64)
    seq = _integers(records.column("seq")) if "seq" in names else np.arange(first, first + count)

    def read(name: str) -> Column:
        return _column(records.column(name), types[name], strings, notation.time_unit)

    own = {name: type for name, type in types.items() if name in names}
    return Batch(stream, _writable(ts), _writable(part), _writable(seq), own, read, strings)


def _writable(column: Array) -> Array:
    """A column that may be written: Arrow's may not, and Numba would compile the kernel again for that."""
    return column if column.flags.writeable else column.copy()


def _integers(values: pa.Array) -> Array:
    return values.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _times(values: pa.Array, unit: str) -> Array:
    """Instants in microseconds; a number counts the units since 1970."""
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    if not is_number:
        values = values if pa.types.is_timestamp(values.type) else values.cast(pa.timestamp("us"))
        unit = values.type.unit
    elif unit == "s" and pa.types.is_floating(values.type):
        seconds = values.to_numpy(zero_copy_only=False)
        return np.where(np.isfinite(seconds), np.rint(seconds * 1e6), NO_TIME).astype(np.int64)
    elif unit == "excel" or pa.types.is_floating(values.type):
        counts = (None if each is None else time_from_number(each, unit) for each in values.to_pylist())
        return np.array([NO_TIME if each is None else each for each in counts], np.int64)
    whole = values.cast(pa.int64())
    counts = (pc.fill_null(whole, 0) if whole.null_count else whole).to_numpy(zero_copy_only=False)
    factor = int(TIME_UNITS[unit])
    least, most = (_FIRST // factor, _LAST // factor) if factor else (INT64_MIN, INT64_MAX)
    if counts.min(initial=0) < least or counts.max(initial=0) > most:
        first = np.flatnonzero((counts < least) | (counts > most))[0]
        try:
            convert(int(counts[first]), Type.TIMESTAMP, Notation(unit))
        except Unfit as unfit:
            raise Mistake(str(unfit)) from None
    if factor != 1:
        counts = counts * factor if factor else nearest_thousandth(counts)
    if not whole.null_count:
        return counts  # type: ignore[no-any-return]
    return np.where(whole.is_valid().to_numpy(zero_copy_only=False), counts, NO_TIME)


def _column(values: pa.Array, type: Type, strings: Strings, unit: str) -> Column:
    if type is Type.STRING:
        return Column(type, _codes(values, strings))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    match type:
        case Type.TIMESTAMP:
            return Column(type, _times(values, unit))
        case Type.BOOL:
            return Column(type, pc.fill_null(values.cast(pa.int8()), -1).to_numpy(zero_copy_only=False))
        case Type.FLOAT64:
            data = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
            if not np.isfinite(data).all():
                data = np.where(np.isfinite(data), data, np.nan)  # an infinity is null too
            return Column(type, data)
    whole = values.cast(pa.int64())
    if not whole.null_count:
        return Column(Type.INT64, whole.to_numpy(zero_copy_only=False))
    valid = whole.is_valid().to_numpy(zero_copy_only=False)
    return Column(Type.INT64, pc.fill_null(whole, 0).to_numpy(zero_copy_only=False), valid)


def _codes(values: pa.Array, strings: Strings) -> Array:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.string()).dictionary_encode()
    own = _dictionary(values.dictionary, strings)
    places = values.indices
    if not places.null_count:
        return own.take(places.to_numpy(zero_copy_only=False))  # type: ignore[no-any-return]
    known = places.is_valid().to_numpy(zero_copy_only=False)
    found = np.full(len(known), -1, np.int32)
    found[known] = own[pc.drop_null(places).to_numpy(zero_copy_only=False)]
    return found


def _dictionary(texts: pa.Array, strings: Strings) -> Array:
    """The codes of a dictionary's entries; batches of one source often share theirs."""
    for known, codes in strings.dictionaries:
        if _same(known, texts):
            return codes
    made = strings.codes(texts.to_pylist())
    strings.dictionaries.appendleft((texts, made))
    return made


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays lie at one place; the one that is kept keeps the place from being used again."""
    if len(one) != len(other) or one.offset != other.offset or one.type != other.type:
        return False
    places = ([each and each.address for each in some.buffers()] for some in (one, other))
    return next(places) == next(places)


# --- matches ---------------------------------------------------------------------------------------------


def arrow_of(matches: Matches) -> pa.RecordBatch:
    """Matches as Arrow: query, id (16 bytes), start, end, the selected columns, the events by variable.

    It holds copies: the arrays of `matches` are soon overwritten, and Arrow shares memory where it can.
    """
    count = len(matches)
    ids = np.empty((count, 2), ">u8")
    ids[:, 0], ids[:, 1] = matches.ids
    columns: dict[str, Any] = {
        "query": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [matches.query]),
        "id": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(ids.tobytes())]),
        "start": pa.array(matches.start.copy(), pa.int64()).cast(_MICROSECONDS),
        "end": pa.array(matches.end.copy(), pa.int64()).cast(_MICROSECONDS),
    }
    selected = {name: _selected(matches, name) for name in matches.names}
    columns["select"] = _struct(selected, count)
    columns["events"] = _struct(_events(matches), count)
    return pa.record_batch(columns)


def arrow_of_rows(query: str, rows: Sequence[Match], plan: QueryPlan) -> pa.RecordBatch:
    """Matches of an interpreted query in the form of `arrow_of`; a term of EP-SPARQL is its text."""
    count = len(rows)
    columns: dict[str, Any] = {
        "query": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [query]),
        "id": pa.array([bytes.fromhex(each.id) for each in rows], pa.binary(16)),
        "start": pa.array([each.start_us for each in rows], pa.int64()).cast(_MICROSECONDS),
        "end": pa.array([each.end_us for each in rows], pa.int64()).cast(_MICROSECONDS),
    }
    if isinstance(plan, ChiPlan):
        columns["select"] = _struct(
            {each.name: _plain([row.select[each.name] for row in rows], each) for each in plan.columns}, count
        )
    elif isinstance(plan.root, Solutions):
        terms = ([row.select.get(name, {}).get("value") for row in rows] for name in plan.root.names)
        columns["select"] = _struct(
            {name: pa.array(each, pa.string()) for name, each in zip(plan.root.names, terms, strict=True)},
            count,
        )
    else:
        columns["triples"] = pa.array([list(each.triples or ()) for each in rows], pa.list_(pa.string()))
    if count and rows[0].events is not None:
        columns["events"] = pa.array([json_text(each.events) for each in rows], pa.string())
    return pa.record_batch(columns)


def _plain(values: list[Any], column: OutputColumn) -> pa.Array:
    type = pa.string() if column.type is None else _ARROW[column.type]
    if column.type is Type.TIMESTAMP:
        flat = [
            [parse_time(item) for item in each] if column.many else each and parse_time(each)
            for each in values
        ]
        return pa.array(flat, pa.list_(pa.int64()) if column.many else pa.int64()).cast(
            pa.list_(type) if column.many else type
        )
    if column.type is None:
        values = [None if each is None else str(each) for each in values]
    return pa.array(values, pa.list_(type) if column.many else type)


def _struct(columns: Mapping[str, pa.Array], count: int) -> pa.StructArray:
    if not columns:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _selected(matches: Matches, name: str) -> pa.Array:
    if name in matches.terms:
        return pa.array([None if each is None else str(each) for each in matches.terms[name]], pa.string())
    column = matches.select[name]
    if isinstance(column, Lists):
        return pa.ListArray.from_arrays(
            column.offsets.astype(np.int32), _values(column.flat, matches.strings)
        )
    return _values(column, matches.strings)


def _values(column: Column, strings: Strings) -> pa.Array:
    data = column.data.copy()
    match column.type:
        case Type.FLOAT64:
            return pa.array(data, from_pandas=True)
        case Type.STRING:
            return _texts(data, strings)
        case Type.BOOL:
            return pa.array(data == 1, mask=data < 0)
        case Type.TIMESTAMP:
            return pa.array(data, pa.int64(), mask=data == NO_TIME).cast(_MICROSECONDS)
    return pa.array(data, pa.int64(), mask=None if column.valid is None else ~column.valid)


def _texts(codes: Array, strings: Strings) -> pa.Array:
    """Codes as a dictionary of no more than the strings that occur."""
    occurs = np.zeros(len(strings) + 1, np.bool_)  # the last one stands for null, whose code is -1
    occurs[codes] = True
    occurs[-1] = False
    places = (np.cumsum(occurs) - 1).astype(np.int32)[codes]
    texts = pa.array([strings.texts[each] for each in np.flatnonzero(occurs)], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(places, mask=codes < 0), texts)


def _events(matches: Matches) -> dict[str, pa.Array]:
    found = {name: _identities(refs, matches) for name, refs in matches.events.items()}
    for name, (first, last, count) in matches.batch.items():
        ends = [_identities(each, matches) for each in (first, last)]
        found[name] = pa.StructArray.from_arrays(
            [*ends, pa.array(count.copy(), pa.int64())], names=["first", "last", "count"]
        )
    return found


def _identities(refs: Refs, matches: Matches) -> pa.Array:
    """Events by stream, part and seq; where streams are derived, by id as well."""
    missing = refs.place < 0
    stream = pa.DictionaryArray.from_arrays(
        pa.array(np.where(missing, 0, refs.place).astype(np.int32)), pa.array(matches.streams)
    )
    derived = np.isin(refs.place, [matches.streams.index(each) for each in matches.derived])
    own = {
        "stream": stream,
        "part": pa.array(refs.part.copy(), pa.int64(), mask=derived),
        "seq": pa.array(refs.seq.copy(), pa.int64(), mask=derived),
    }
    if matches.derived:
        words = zip(refs.part.tolist(), refs.seq.tolist(), derived.tolist(), strict=True)
        ids = [id_of_words(part, seq) if made else None for part, seq, made in words]
        own["id"] = pa.array(ids, pa.string())
    flat = pa.StructArray.from_arrays(list(own.values()), names=list(own), mask=pa.array(missing))
    if refs.offsets is None:
        return flat
    return pa.ListArray.from_arrays(refs.offsets.astype(np.int32), flat)
