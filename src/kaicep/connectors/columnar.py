"""Records as typed columns, decoded from JSON Lines, CSV and Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from kaicep.connectors.records import Record
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper
from kaicep.plan.events import Event
from kaicep.plan.time import nearest_thousandth
from kaicep.plan.types import Dialect, Notation, Type

if TYPE_CHECKING:
    import numpy
    import pyarrow
    import pyarrow.parquet


# ----------------------------------------------------------------------------------------------------------
# Records of JSON Lines and CSV as typed columns: the plain ones by columns, all others one by one.
#
# A record is *plain* where its text alone leaves no doubt what `Shaper` would make of it: a flat object, or
# a row, whose values are written as their types write them. Those are read by Arrow. Everything else
# (escapes, numbers in quotes, times in odd forms, a missing time, text that is no record at all) goes
# through the same functions as ever, so that events, dead letters and reasons are theirs to the last byte.


@cache
def has_arrow() -> bool:
    """Whether Arrow is installed; without it records are read one by one."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


Exact = Callable[[int], Record | None]
"""The record in a row, as the readers of records give it; None for a blank line, which is no record."""


@dataclass(frozen=True)
class EventColumns:
    """Events by columns: their positions, their attributes by name; and what could not be read."""

    seq: pyarrow.Array
    values: Mapping[str, pyarrow.Array]
    dead: Sequence[DeadLetter] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seq)

    def split(self, count: int) -> tuple[EventColumns, EventColumns, int]:
        """The first events, so many, with the dead letters up to there; the rest; the position between."""
        after = self.seq[count - 1].as_py() + 1
        rest = replace(self.slice(count, len(self) - count), dead=[e for e in self.dead if e.seq >= after])
        some = replace(self.slice(0, count), dead=[each for each in self.dead if each.seq < after])
        return some, rest, after

    def slice(self, first: int, count: int) -> EventColumns:
        """Some of the events."""
        values = {name: each.slice(first, count) for name, each in self.values.items()}
        return EventColumns(self.seq.slice(first, count), values)


@dataclass(frozen=True)
class EventRows:
    """The same one by one."""

    events: Sequence[Event]
    dead: Sequence[DeadLetter]

    def __len__(self) -> int:
        return len(self.events)

    def split(self, count: int) -> tuple[EventRows, EventRows, int]:
        """As that of columns."""
        after = self.events[count - 1].seq + 1
        rest = EventRows(self.events[count:], [each for each in self.dead if each.seq >= after])
        return EventRows(self.events[:count], [e for e in self.dead if e.seq < after]), rest, after


class ColumnEvents(Sequence[Event]):
    """Events as columns, part by part; they stand one by one for whoever looks at one."""

    def __init__(self, form: Form, pieces: Sequence[tuple[int, EventColumns]]) -> None:
        self.form = form
        self.pieces = pieces

    def __len__(self) -> int:
        return sum(len(each.seq) for _, each in self.pieces)

    def __getitem__(self, index: Any) -> Any:
        return self._events[index]

    def earliest(self) -> list[Event]:
        """The first event in order of each piece."""
        import pyarrow
        import pyarrow.compute as pc

        found: list[Event] = []
        for part, columns in self.pieces:
            if len(columns.seq):
                times = columns.values[self.form.time].cast(pyarrow.int64())
                at = pc.index(times, pc.min(times)).as_py()
                found += _events_of(self.form, part, columns.slice(at, 1))
        return found

    @cached_property
    def _events(self) -> list[Event]:
        return [event for part, columns in self.pieces for event in _events_of(self.form, part, columns)]


def _events_of(form: Form, part: int, columns: EventColumns) -> Iterator[Event]:
    import pyarrow

    values = {
        name: (each.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(each.type) else each).to_pylist()
        for name, each in columns.values.items()
    }
    for at, seq in enumerate(columns.seq.to_pylist()):
        row = {name: column[at] for name, column in values.items()}
        yield Event(form.stream, part, seq, row[form.time], row)


# A number in another form (`+1`, `1.`, `0x1`) may well be one; it is looked at by itself.
_INT = r"-?(?:0|[1-9]\d{0,17})"
_FLOAT = r"(?:0|-?[1-9]\d{0,16}|-?\d{1,17}\.\d{1,17}|-?\d{1,17}(?:\.\d{1,17})?[eE][+-]?\d{1,2})"
_JSON_FLOAT = (
    r"(?:0|-?[1-9]\d{0,16}|-?(?:0|[1-9]\d{0,16})\.\d{1,17}"
    r"|-?(?:0|[1-9]\d{0,16})(?:\.\d{1,17})?[eE][+-]?\d{1,2})"
)
# Below 2.2e9 seconds, six decimals and their nearest float64 are the same microsecond.
_SECONDS = r"(?:0|[1-9]\d{0,8}|1\d{9}|2[01]\d{8})(?:\.\d{1,6})?"
_ISO = (
    r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
    r"(?:\.\d{1,6})?(?:Z|\+00:00)?"
)
_WHOLE = r"(?:0|[1-9]\d{0,%d})"
_NUMBERS = {"s": _SECONDS, "ms": _WHOLE % 12, "us": _WHOLE % 15, "ns": _WHOLE % 17, "excel": r"[^\s\S]"}
"""How a time is written that is a number, by its unit, where columns are sure to read it right."""
_TEXT = r'"[^"\\\x00-\x1f]*"'
_BLANK = r"[ \t\r]*"
_FEW = 100


# --- JSON Lines ---------------------------------------------------------------------------------------


def json_columns(
    shaper: Shaper, lines: pyarrow.BinaryArray, seq: numpy.ndarray[Any, Any], exact: Exact
) -> EventColumns:
    """The events of lines of JSON, each with its end of line; a null is a line that is not plain."""
    import pyarrow
    import pyarrow.compute as pc

    assert shaper.schema is not None
    textual = _textual_times(shaper, lines)
    pattern = _plain_object(shaper.schema.attributes, textual, shaper.form.time, shaper.form.notation)
    plain = pc.and_(pc.fill_null(pc.match_substring_regex(lines, pattern), False), _are_unicode(lines))
    try:
        read = _read_json(shaper, lines.filter(plain), textual)
    except pyarrow.ArrowInvalid:  # an attribute twice, no such day: which line it is, nobody says
        plain, read = pyarrow.array([False] * len(lines), pyarrow.bool_()), {}
    return _together(shaper, plain, read, seq, exact)


def _are_unicode(lines: pyarrow.BinaryArray) -> pyarrow.Array | pyarrow.Scalar:
    """Whether each line is UTF-8, which Arrow's reader of JSON takes for granted."""
    import pyarrow

    try:
        lines.cast(pyarrow.string())
        return pyarrow.scalar(True)
    except pyarrow.ArrowInvalid:
        return pyarrow.array([_is_unicode(each or b"") for each in lines.to_pylist()])


def _is_unicode(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _textual_times(shaper: Shaper, lines: pyarrow.BinaryArray) -> frozenset[str]:
    """The attributes of times that are texts in the first lines; elsewhere they are numbers."""
    assert shaper.schema is not None
    some = b"".join(each or b"" for each in lines[:20].to_pylist())
    times = [name for name, type in shaper.schema.attributes if type is Type.TIMESTAMP]
    return frozenset(each for each in times if re.search(_key(each).encode() + rb'[ \t]*:[ \t]*"', some))


@lru_cache(maxsize=64)
def _plain_object(
    attributes: tuple[tuple[str, Type], ...], textual: frozenset[str], time: str, notation: Notation
) -> str:
    """What a flat object looks like whose every value is written as its type writes it."""
    kinds: dict[str, list[str]] = {}
    for name, type in attributes:
        if type is Type.TIMESTAMP:
            text = f'"{_ISO}"' if notation.usual_times else _TEXT
            value = text if name in textual else _NUMBERS[notation.time_unit]
        else:
            value = {
                Type.STRING: _TEXT,
                Type.INT64: _INT,
                Type.FLOAT64: _JSON_FLOAT,
                Type.BOOL: "true|false",
            }[type]
        kinds.setdefault(value, []).append(_key(name))
    if time != "ts":  # out of reach, so that it may be anything
        kinds.setdefault(f"{_TEXT}|{_JSON_FLOAT}|true|false", []).append('"ts"')
    pairs = "|".join(
        f"(?:{'|'.join(names)}){_BLANK}:{_BLANK}(?:{value}|null)" for value, names in kinds.items()
    )
    return rf"\A{_BLANK}\{{{_BLANK}(?:{pairs})(?:{_BLANK},{_BLANK}(?:{pairs}))*{_BLANK}\}}[ \t\r\n]*\z"


def _key(name: str) -> str:
    """A name as a key of an object; one that needs escapes is never met."""
    return f'"{re.escape(name)}"'


def _read_json(
    shaper: Shaper, lines: pyarrow.BinaryArray, textual: frozenset[str]
) -> dict[str, pyarrow.Array]:
    import numpy
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.json

    assert shaper.schema is not None
    if not len(lines):
        return {}
    kinds, notation = arrow_types(), shaper.form.notation
    unit = notation.time_unit
    number = pyarrow.float64() if unit == "s" else pyarrow.int64()
    times = {
        name: pyarrow.string() if name in textual else number
        for name, type in shaper.schema.attributes
        if type is Type.TIMESTAMP
    }
    fields = [(name, times.get(name) or kinds[type]) for name, type in shaper.schema.attributes]
    _, ends, text = lines.buffers()
    offsets = numpy.frombuffer(ends, numpy.int32)[lines.offset :][: len(lines) + 1]
    data = text.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    read = pyarrow.json.read_json(
        pyarrow.BufferReader(data),
        pyarrow.json.ReadOptions(use_threads=False, block_size=data.size + 1),
        pyarrow.json.ParseOptions(explicit_schema=pyarrow.schema(fields), unexpected_field_behavior="ignore"),
    ).combine_chunks()
    if read.num_rows != len(lines):
        raise pyarrow.ArrowInvalid("some lines are no records")
    made: dict[str, pyarrow.Array] = {}
    for name, _ in fields:
        column = _array(read.column(name))
        if notation.nulls and pyarrow.types.is_string(column.type):
            column = pc.if_else(pc.is_in(column, pyarrow.array(notation.nulls)), None, column)
        if name in textual and notation.usual_times:
            column = _iso(column)  # as `_plain_object` has it
        elif name in textual:
            column, fits = _times(column, notation)
            if not pc.all(fits, min_count=0).as_py():
                raise pyarrow.ArrowInvalid("some texts are no times")
        made[name] = _instants(column, unit) if name in times and name not in textual else column
    return made


def value_events(
    shaper: Shaper,
    parts: Mapping[int, tuple[Sequence[int], Sequence[bytes | None]]],
    exact: Callable[[int, int], Record],
) -> tuple[Sequence[Event], Sequence[DeadLetter]]:
    """The events of JSON values, by part with their positions; those that are not plain are None.

    Few are read one by one: to begin with columns costs as much as some dozens of events. `exact` is the
    record of a part in a row.
    """
    count = sum(len(values) for _, values in parts.values())
    if count < _FEW or shaper.schema is None or shaper.schema.rdf or not has_arrow():
        return shaper.shape(exact(part, at) for part, (seq, _) in parts.items() for at in range(len(seq)))
    pieces = [(part, value_columns(shaper, *own, partial(exact, part))) for part, own in parts.items()]
    return ColumnEvents(shaper.form, pieces), [each for _, columns in pieces for each in columns.dead]


def value_columns(
    shaper: Shaper, seq: Sequence[int], values: Sequence[bytes | None], exact: Callable[[int], Record]
) -> EventColumns:
    """The events of JSON values by columns, with their positions."""
    import numpy
    import pyarrow

    lines = pyarrow.array([None if each is None else each + b"\n" for each in values], pyarrow.binary())
    return json_columns(shaper, lines, numpy.array(seq, numpy.int64), exact)


# --- CSV ----------------------------------------------------------------------------------------------


def csv_columns(
    shaper: Shaper, header: Sequence[str], block: bytes, seq: numpy.ndarray[Any, Any], exact: Exact
) -> EventColumns:
    """The events of rows of CSV, one a line: quotes, where there are any, open and close within it."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.csv

    assert shaper.schema is not None
    odd: list[int] = []

    def put_aside(row: pyarrow.csv.InvalidRow) -> str:
        odd.append(row.number - 1)
        return "skip"

    types = {name: type for name, type in shaper.schema.attributes if name in header}
    notation = shaper.form.notation
    if notation.csv.encoding != "utf-8":
        block = block.decode(notation.csv.encoding, "surrogateescape").encode(errors="surrogateescape")
    if not _is_unicode(block):
        return _together(shaper, pyarrow.array(numpy.zeros(len(seq), bool)), {}, seq, exact)
    try:
        read = pyarrow.csv.read_csv(
            io.BytesIO(block),
            pyarrow.csv.ReadOptions(column_names=list(header), use_threads=False, block_size=len(block) + 1),
            pyarrow.csv.ParseOptions(
                delimiter=notation.csv.delimiter, ignore_empty_lines=False, invalid_row_handler=put_aside
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pyarrow.string()),
                null_values=["", *notation.nulls],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                include_columns=list(types),
            ),
        ).combine_chunks()
        made = {name: _cells(_array(read.column(name)), type, notation) for name, type in types.items()}
    except pyarrow.ArrowInvalid:  # no such day: which row it is, nobody says
        return _together(shaper, pyarrow.array(numpy.zeros(len(seq), bool)), {}, seq, exact)
    rows = numpy.delete(numpy.arange(len(seq)), odd)
    if len(rows) != read.num_rows:
        return _together(shaper, pyarrow.array(numpy.zeros(len(seq), bool)), {}, seq, exact)
    sure = pyarrow.array(numpy.ones(len(rows), bool))
    for _, fits in made.values():
        if fits is not None:
            sure = pc.and_(sure, fits)
    plain = numpy.zeros(len(seq), bool)
    plain[rows] = sure.to_numpy(zero_copy_only=False)
    read_cells = {name: column.filter(sure) for name, (column, _) in made.items()}
    return _together(shaper, pyarrow.array(plain), read_cells, seq, exact)


def _cells(
    cells: pyarrow.Array, type: Type, notation: Notation
) -> tuple[pyarrow.Array, pyarrow.Array | None]:
    """Cells as values of a type, null where that is not sure; and where it is (None: everywhere)."""
    import pyarrow
    import pyarrow.compute as pc

    unit = notation.time_unit
    if type is Type.STRING:
        return cells, None
    if type is Type.TIMESTAMP:
        first = next((each for each in cells[:20].to_pylist() if each is not None), "")
        if re.fullmatch(_NUMBERS[unit], first) is None:
            return _times(cells, notation)
        pattern = _NUMBERS[unit]
    else:
        pattern = {Type.INT64: _INT, Type.FLOAT64: _FLOAT, Type.BOOL: "(?i:true|false)|0|1"}[type]
        if type is not Type.BOOL and not notation.csv.plain_numbers:
            cells = _plain_decimals(cells, notation.csv)
    fits = pc.fill_null(pc.match_substring_regex(cells, rf"\A(?:{pattern})\z"), True)
    known = cells if pc.all(fits, min_count=0).as_py() else pc.if_else(fits, cells, None)
    if type is Type.TIMESTAMP:
        number = pyarrow.float64() if unit == "s" else pyarrow.int64()
        return _instants(known.cast(number), unit), fits
    if type is Type.BOOL:
        known = pc.utf8_lower(known)
    return known.cast(arrow_types()[type]), fits


def _plain_decimals(cells: pyarrow.Array, dialect: Dialect) -> pyarrow.Array:
    """Numbers with a point; with another mark, such as between thousands, they are looked at one by one."""
    import pyarrow.compute as pc

    if dialect.decimal == ".":
        return cells
    odd = pc.match_substring(cells, ".")
    return pc.if_else(odd, "", pc.replace_substring(cells, dialect.decimal, "."))


def _times(texts: pyarrow.Array, notation: Notation) -> tuple[pyarrow.Array, pyarrow.Array]:
    """Times that are texts, null where that is not sure; and where it is.

    In a format or a zone of its own, every different text is read once.
    """
    import pyarrow
    import pyarrow.compute as pc

    if notation.usual_times:
        fits = pc.fill_null(pc.match_substring_regex(texts, rf"\A(?:{_ISO})\z"), True)
        return _iso(texts if pc.all(fits, min_count=0).as_py() else pc.if_else(fits, texts, None)), fits
    coded = texts.dictionary_encode()
    found = [notation.time_of(each) for each in coded.dictionary.to_pylist()]
    made = pyarrow.array(found, pyarrow.int64()).take(coded.indices).cast(arrow_types()[Type.TIMESTAMP])
    return made, pc.or_(pc.is_valid(made), pc.is_null(texts))


# --- both ---------------------------------------------------------------------------------------------


def _together(
    shaper: Shaper,
    plain: pyarrow.Array,
    read: Mapping[str, pyarrow.Array],
    seq: numpy.ndarray[Any, Any],
    exact: Exact,
) -> EventColumns:
    """What was read by columns, without what has no time, and what is looked at one by one."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc

    assert shaper.schema is not None
    mask = plain.to_numpy(zero_copy_only=False).copy()
    time = read.get(shaper.form.time)
    timed = pc.is_valid(time) if time is not None else pyarrow.array(numpy.zeros(mask.sum(), bool))
    if time is not None and shaper.latest is not None:
        timed = pc.and_(timed, pc.less_equal(pc.fill_null(time.cast(pyarrow.int64()), 0), shaper.latest))
    if not pc.all(timed, min_count=0).as_py():
        read = {name: column.filter(timed) for name, column in read.items()}
        mask[numpy.flatnonzero(mask)] = timed.to_numpy(zero_copy_only=False)
    records = [found for at in numpy.flatnonzero(~mask) if (found := exact(int(at))) is not None]
    events, dead = shaper.shape(records)
    sure = EventColumns(pyarrow.array(seq[mask], pyarrow.int64()), read, dead)
    return _joined(shaper, sure, event_columns(shaper, events)) if events else _complete(shaper, sure)


def event_columns(shaper: Shaper, events: Sequence[Event]) -> EventColumns:
    """Events by columns."""
    import pyarrow

    assert shaper.schema is not None
    kinds = arrow_types()
    values = {
        name: pyarrow.array([each.values.get(name) for each in events], kinds[type])
        for name, type in shaper.schema.attributes
    }
    return EventColumns(pyarrow.array([each.seq for each in events], pyarrow.int64()), values)


def _complete(shaper: Shaper, columns: EventColumns) -> EventColumns:
    """With a column of nulls for every attribute that the text does not have."""
    import pyarrow

    assert shaper.schema is not None
    kinds, count = arrow_types(), len(columns.seq)
    values = {
        name: columns.values[name] if name in columns.values else pyarrow.nulls(count, kinds[type])
        for name, type in shaper.schema.attributes
    }
    return EventColumns(columns.seq, values, columns.dead)


def _joined(shaper: Shaper, sure: EventColumns, others: EventColumns) -> EventColumns:
    """Both, in the order of their positions."""
    import pyarrow
    import pyarrow.compute as pc

    first = _complete(shaper, sure)
    seq = pyarrow.concat_arrays([first.seq, others.seq])
    order = pc.array_sort_indices(seq)
    values = {
        name: pyarrow.concat_arrays([each, others.values[name]]).take(order)
        for name, each in first.values.items()
    }
    return EventColumns(seq.take(order), values, sure.dead)


def arrow_types() -> Mapping[Type, pyarrow.DataType]:
    """The Arrow type of each type."""
    import pyarrow

    return {
        Type.BOOL: pyarrow.bool_(),
        Type.INT64: pyarrow.int64(),
        Type.FLOAT64: pyarrow.float64(),
        Type.STRING: pyarrow.string(),
        Type.TIMESTAMP: pyarrow.timestamp("us", tz="UTC"),
    }


def _array(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    import pyarrow

    return column.chunk(0) if column.num_chunks else pyarrow.array([], column.type)


def _iso(texts: pyarrow.Array) -> pyarrow.Array:
    """The instants of texts in the form `_ISO`."""
    import pyarrow
    import pyarrow.compute as pc

    instant, far = arrow_types()[Type.TIMESTAMP], pc.ends_with(texts, "+00:00")
    if pc.all(pc.or_(far, pc.ends_with(texts, "Z")), min_count=0).as_py():
        return texts.cast(instant)
    if pc.any(far).as_py():
        texts = pc.replace_substring_regex(texts, r"\+00:00$", "")
    return pc.utf8_rtrim(texts, "Z").cast(pyarrow.timestamp("us")).cast(instant)


def _instants(numbers: pyarrow.Array, unit: str) -> pyarrow.Array:
    """Times that are numbers of a unit (`_NUMBERS`)."""
    import pyarrow
    import pyarrow.compute as pc

    if unit == "s":
        micros = pc.round(pc.multiply(numbers, 1e6))
    elif unit == "ns":
        known = numbers.is_valid().to_numpy(zero_copy_only=False)
        counts = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
        micros = pyarrow.array(nearest_thousandth(counts), mask=~known)
    else:
        micros = pc.multiply(numbers, 1_000 if unit == "ms" else 1)
    return micros.cast(pyarrow.int64()).cast(arrow_types()[Type.TIMESTAMP])


# ----------------------------------------------------------------------------------------------------------
# Parquet files whose columns are of the right types already: they are taken as they are.
#
# Everything that would need a closer look (a time that is a text, a number where a text is wanted, a null
# time) is left to the readers of records, so that both ways give the same events.


def is_direct(file: pyarrow.parquet.ParquetFile, form: Form, schema: Schema) -> bool:
    """Whether all columns of a file can be taken as they are."""
    types, time = dict(schema.attributes), form.time
    if form.notation.wide is not None:
        return False
    columns = {each.name: each.type for each in file.schema_arrow}
    if time not in columns or len(columns) != len(file.schema_arrow):
        return False
    fitting = all(_fits(kind, types[name], form.notation) for name, kind in columns.items() if name in types)
    return fitting and _has_times(file, time)


def _fits(kind: pyarrow.DataType, type: Type, notation: Notation) -> bool:
    """Whether a column becomes one of that type without a look at its values."""
    import pyarrow
    from pyarrow import types

    match type:
        case Type.BOOL:
            return bool(types.is_boolean(kind))
        case Type.INT64:
            small = (pyarrow.uint8(), pyarrow.uint16(), pyarrow.uint32())
            return bool(types.is_signed_integer(kind) or kind in small)
        case Type.FLOAT64:
            return bool(types.is_float32(kind) or types.is_float64(kind) or types.is_signed_integer(kind))
        case Type.STRING:
            return not notation.nulls and bool(types.is_string(kind) or types.is_large_string(kind))
        case Type.TIMESTAMP:
            zoned = bool(types.is_timestamp(kind)) and (kind.tz is not None or notation.time_zone is None)
            return zoned and kind.unit != "ns"


def _has_times(file: pyarrow.parquet.ParquetFile, time: str) -> bool:
    """Whether the file itself says that no time in it is null."""
    found = file.metadata
    at = file.schema_arrow.get_field_index(time)
    if found.num_columns != len(file.schema_arrow):
        return False
    groups = (found.row_group(each).column(at).statistics for each in range(found.num_row_groups))
    return all(each is not None and each.has_null_count and each.null_count == 0 for each in groups)


def as_typed(column: pyarrow.Array, type: Type) -> pyarrow.Array:
    """A column that fits as one of a type; of floats, those that are not finite are null (semantics 1)."""
    import pyarrow
    import pyarrow.compute as pc

    wanted = arrow_types()[type]
    if type is Type.TIMESTAMP:
        return column.cast(pyarrow.timestamp("us", column.type.tz)).cast(wanted)
    if type is Type.FLOAT64:
        wide = column.cast(wanted, safe=False)
        return pc.if_else(pc.is_finite(wide), wide, pyarrow.scalar(None, wanted))
    return column.cast(wanted)
