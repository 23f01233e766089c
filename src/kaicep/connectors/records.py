"""Records, good and bad, from JSON Lines, CSV and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kaicep.errors import Mistake
from kaicep.plan.time import nearest_thousandth, parse_time
from kaicep.plan.types import USUAL, Dialect, Instant, Notation, Type, WallTime, guess_text

if TYPE_CHECKING:
    import pyarrow

# ----------------------------------------------------------------------------------------------------------
# Records as JSON Lines and CSV hold them: every line or row, the good and the bad.
#
# Nothing is converted here: a record's fields are what the file says. A bad one has a reason instead. A row
# of a wide table is one record here; its number leaves room for those of its cells (`row_width`).

_BOM = b"\xef\xbb\xbf"
_TICK = 1_000
_COMMAS = USUAL.csv


@dataclass(frozen=True, slots=True)
class Record:
    """A record as its reader found it: its fields, or the reason why there are none."""

    part: int
    seq: int
    line: int
    file: str
    fields: Mapping[str, object] | None
    text: str | None = None
    reason: str = ""


@dataclass(slots=True)
class TextPosition:
    """How far a text file was read: the byte, the number of the row and the line of the *next* record.

    A reader that gets one starts there and moves it along with every record it gives.
    """

    offset: int = 0
    seq: int = 0
    line: int = 1
    header: list[str] | None = None


Watcher = Callable[[Path, int], None]
"""Gets a file and how far reading has come."""
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, `watcher` hears from time to time how many bytes of a file are read."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(path: Path, position: int) -> None:
    """Reports how far the reading of a file has come."""
    if (watcher := _watcher.get()) is not None:
        watcher(path, position)


def row_width(notation: Notation, columns: Sequence[str]) -> int:
    """How many numbers a row uses up: one, or, in a wide table, as many as its header has columns.

    >>> from kaicep.plan.types import USUAL, Wide
    >>> row_width(USUAL, ["ts", "a", "b"]), row_width(Notation(wide=Wide()), ["ts", "a", "b"])
    (1, 3)
    """
    return 1 if notation.wide is None else max(1, len(columns))


def json_columns_of(notation: Notation) -> tuple[str, ...]:
    """What stands for the header of objects that have none: the columns of a wide table, as it names them."""
    if notation.wide is None:
        return ()
    if not notation.wide.columns:
        hint = 'CSV and Parquet have a header; else write "columns": ["AHU1 supply air", ...]'
        raise Mistake("a wide table of JSON objects needs its columns by name", hint=hint)
    return notation.wide.columns


def read_json_lines(
    part: int,
    path: Path,
    cursor: TextPosition | None = None,
    growing: bool = False,
    notation: Notation = USUAL,
) -> Iterator[Record]:
    """The lines of a file that are not blank; a blank one uses up its number all the same.

    Of a `growing` file, a last line without its end is left for later: it may be half of one.
    """
    cursor = cursor or TextPosition()
    width = row_width(notation, json_columns_of(notation))
    with path.open("rb") as file:
        file.seek(cursor.offset)
        for seq, raw in enumerate(file, cursor.seq):
            if growing and not raw.endswith(b"\n"):
                return
            cursor.offset += len(raw)
            cursor.seq = seq + 1
            if seq == 0:
                raw = raw.removeprefix(_BOM)
            if seq % _TICK == 0:
                tell(path, cursor.offset)
            if (record := json_record(part, seq, str(path), raw)) is not None:
                yield record if width == 1 else replace(record, seq=seq * width)


_decode = json.JSONDecoder(parse_constant=lambda _: None).decode


def json_object(raw: bytes) -> tuple[dict[str, object] | None, str]:
    """The object that a line of JSON holds, or the reason why it holds none.

    >>> json_object(b'{"a": 1}'), json_object(b"[1]")
    (({'a': 1}, ''), (None, 'not a JSON object but a list'))
    """
    try:
        value = _decode(raw.decode().rstrip("\r\n"))
        if b"\\u" in raw:
            # Half of a surrogate pair is not a character: nothing that holds one can be written down.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}"
    except UnicodeEncodeError:
        return None, "not Unicode: half of a surrogate pair"
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at column {error.colno}"
    except RecursionError:
        return None, "not JSON that can be read: nested too deeply"
    except ValueError:  # Python refuses integers of thousands of digits
        return None, "not JSON that can be read: a number with too many digits"
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a single value")
        return None, f"not a JSON object but {kind}"
    return value, ""


class _Lines:
    """The lines of a text file, remembering those that the current row is made of."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._encoding = file.encoding
        self._row: list[str] = []
        self.ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._file)
        except StopIteration:
            self.ended = True
            raise
        self._row.append(line)
        return line

    @property
    def whole(self) -> bool:
        """Whether the current row has its end: nothing that is still to be written could belong to it."""
        return not self.ended and self._row[-1].endswith("\n")

    def take(self) -> bytes:
        """The lines since the last call, as they are in the file."""
        row = "".join(self._row).encode(self._encoding, "surrogateescape")
        self._row.clear()
        return row


def read_csv(
    part: int,
    path: Path,
    time: str,
    columns: Callable[[list[str]], None] = lambda header: None,
    cursor: TextPosition | None = None,
    growing: bool = False,
    notation: Notation = USUAL,
) -> Iterator[Record]:
    """The rows of a file below its header, which `columns` gets to see; an empty cell is None.

    Of a `growing` file, a last row without its end is left for later: it may be half of one.
    """
    cursor = cursor or TextPosition()
    if cursor.header is None:
        begun = begin_csv(path, time, growing, notation.csv)
        if begun.header is None:
            return
        columns(begun.header)
        cursor.header, cursor.offset, cursor.line = begun.header, begun.offset, begun.line
    width, encoding = row_width(notation, cursor.header), notation.csv.encoding
    with path.open("rb") as file:
        file.seek(cursor.offset)
        lines = _Lines(TextIOWrapper(file, encoding, "surrogateescape", newline=""))
        rows = csv.reader(lines, strict=True, delimiter=notation.csv.delimiter)
        before = cursor.line - rows.line_num
        while True:
            seq, line = cursor.seq, cursor.line
            if seq % _TICK == 0:
                tell(path, file.tell())
            fields: dict[str, object] | None = None
            reason = ""
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                reason = f"not CSV: {error}"
            else:
                fields, reason = _csv_fields(cursor.header, cells, encoding)
            if growing and not lines.whole:
                return
            raw = lines.take()
            cursor.offset += len(raw)
            cursor.seq, cursor.line = seq + 1, before + rows.line_num
            if fields or reason:
                text = raw.decode(encoding, "replace").rstrip("\r\n")
                yield Record(part, seq * width, line, str(path), fields, text, reason)


def begin_csv(path: Path, time: str, growing: bool = False, dialect: Dialect = _COMMAS) -> TextPosition:
    """The cursor below the header; of a `growing` file whose header has no end yet, one without a header."""
    with path.open("rb") as file:
        bom = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(bom)
        lines = _Lines(TextIOWrapper(file, dialect.encoding, "surrogateescape", newline=""))
        rows = csv.reader(lines, strict=True, delimiter=dialect.delimiter)
        try:
            names = next((row for row in rows if row), [])
        except csv.Error as error:
            raise Mistake(f"{path}: the first row is not CSV: {error}") from None
        if growing and not lines.whole:
            return TextPosition()
        return TextPosition(
            bom + len(lines.take()), 0, rows.line_num + 1, _csv_header(path, names, time, dialect)
        )


def csv_record(
    part: int, seq: int, line: int, file: str, header: list[str], raw: bytes, dialect: Dialect = _COMMAS
) -> Record | None:
    """The record of a row that is one line of a file; None where it is blank.

    >>> csv_record(0, 7, 9, "m.csv", ["ts", "kW"], b"12,\\n").fields
    {'ts': '12', 'kW': None}
    """
    fields: dict[str, object] | None = None
    try:
        text = raw.decode(dialect.encoding, "surrogateescape")
        cells = next(csv.reader([text], strict=True, delimiter=dialect.delimiter))
    except csv.Error as error:
        reason = f"not CSV: {error}"
    else:
        fields, reason = _csv_fields(header, cells, dialect.encoding)
    if not (fields or reason):
        return None
    shown = raw.decode(dialect.encoding, "replace").rstrip("\r\n")
    return Record(part, seq, line, file, fields, shown, reason)


def json_record(part: int, seq: int, file: str, raw: bytes) -> Record | None:
    """The record of a line of JSON; None where it is blank.

    >>> json_record(0, 7, "m.jsonl", b"[1]\\n").reason
    'not a JSON object but a list'
    """
    if raw.isspace() or not raw:
        return None
    fields, reason = json_object(raw)
    text = raw.decode(errors="replace").rstrip("\r\n")
    return Record(part, seq, seq + 1, file, fields, text, reason)


def _csv_header(path: Path, names: list[str], time: str, dialect: Dialect) -> list[str]:
    """The names in the first row; a mistake where they cannot name columns."""
    header = [each.strip() for each in names]
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            said = f'say so in the annotation: "csv": {{"delimiter": {json.dumps(mark)}}}'
            said += ', with "decimal": "," if its numbers are written so'
            raise Mistake(f"{path}: its columns are separated by {called}", hint=said)
    for place, each in enumerate(header):
        problem = hint = None
        if not each:
            problem = f"column {place + 1} has no name"
        elif any("\udc80" <= char <= "\udcff" for char in each):
            problem = f"the name of column {place + 1} is not {_called(dialect.encoding)}"
            hint = 'say how it is written: "csv": {"encoding": "latin-1"} in the annotation'
        elif each in header[:place]:
            problem = f"two columns are named {each}"
        elif time not in header and (guess_text(each) is not Type.STRING or parse_time(each) is not None):
            problem = f"there is no header: the first row has the value {each}"
        if problem:
            hint = hint or "the first row must name every column, each differently"
            raise Mistake(f"{path}: {problem}", hint=hint)
    return header


def _called(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8" else encoding


def _csv_fields(header: list[str], cells: list[str], encoding: str) -> tuple[dict[str, object] | None, str]:
    """The cells by name; an empty or a missing one is null."""
    if len(cells) > len(header):
        return None, f"{len(cells)} cells, but the header names {len(header)} columns"
    for name, cell in zip(header, cells, strict=False):
        if not cell.isascii() and any("\udc80" <= char <= "\udcff" for char in cell):
            return None, f"not {_called(encoding)}: {name}"
    fields: dict[str, object] = {name: cell or None for name, cell in zip(header, cells, strict=False)}
    return fields, ""


# ----------------------------------------------------------------------------------------------------------
# Records as Parquet holds them: the rows of a file, and the types of its columns.


@contextmanager
def open_parquet(name: str, path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """An open Parquet file; whatever is wrong with it is a mistake that names it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Mistake(
            f"stream {name}: reading {path} needs pyarrow", hint="pip install 'kaicep[parquet]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise Mistake(f"stream {name}: cannot read {path}: {error}") from None


def parquet_columns(name: str, path: Path) -> list[tuple[str, Type | None]]:
    """The columns of a file with the types of their values."""
    with open_parquet(name, path) as file:
        schema = file.schema_arrow
    for each in schema.names:
        if schema.names.count(each) > 1:
            raise Mistake(f"{path}: two columns are named {each}")
    return [(each.name, _parquet_type(each.type)) for each in schema]


def _parquet_type(type: pyarrow.DataType) -> Type | None:
    """The type of a column's values; None for a column of nulls only."""
    from pyarrow import types

    if types.is_dictionary(type):
        return _parquet_type(type.value_type)
    if types.is_null(type):
        return None
    if types.is_boolean(type):
        return Type.BOOL
    if types.is_integer(type) or types.is_duration(type) or (types.is_decimal(type) and type.scale == 0):
        return Type.INT64
    if types.is_floating(type) or types.is_decimal(type):
        return Type.FLOAT64
    if types.is_timestamp(type) or types.is_date(type):
        return Type.TIMESTAMP
    return Type.STRING


_AT_ONCE = 1_024
"""So many rows become plain objects at a time."""


def read_parquet(
    name: str, part: int, path: Path, start: int = 0, notation: Notation = USUAL
) -> Iterator[Record]:
    """The rows of a file, from row `start` on. Row groups before it are not touched."""
    columns = [each for each, _ in parquet_columns(name, path)]
    width = row_width(notation, columns)
    size = path.stat().st_size
    with open_parquet(name, path) as file:
        seq, groups = 0, list(range(file.num_row_groups))
        while groups and seq + file.metadata.row_group(groups[0]).num_rows <= start:
            seq += file.metadata.row_group(groups.pop(0)).num_rows
        for batch in file.iter_batches(row_groups=groups):
            tell(path, size * seq // max(1, file.metadata.num_rows))
            first = min(max(0, start - seq), batch.num_rows)
            seq += first
            for at in range(first, batch.num_rows, _AT_ONCE):
                for row in zip(*map(arrow_values, batch.slice(at, _AT_ONCE).columns), strict=True):
                    yield Record(part, seq * width, seq + 1, str(path), dict(zip(columns, row, strict=True)))
                    seq += 1


def arrow_values(column: pyarrow.Array) -> list[object]:
    """A column's values as plain objects; times as `Instant` or `WallTime`, durations as microseconds."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return arrow_values(column.dictionary_decode())
    if types.is_date(kind):
        return arrow_values(column.cast(pyarrow.timestamp("s" if types.is_date32(kind) else "ms")))
    if types.is_timestamp(kind) or types.is_duration(kind):
        make = int if types.is_duration(kind) else Instant if kind.tz else WallTime
        counts = column.cast(pyarrow.int64()).to_pylist()
        return [None if each is None else make(_microseconds(each, kind.unit)) for each in counts]
    if types.is_decimal(kind) and kind.scale == 0:
        return [None if each is None else int(each) for each in column.to_pylist()]
    if types.is_time(kind):
        return [None if each is None else each.isoformat() for each in column.to_pylist()]
    values: list[object] = column.to_pylist()
    return values


def _microseconds(count: int, unit: str) -> int:
    """A count of s, ms, us or ns in microseconds; half a microsecond goes to the even neighbour.

    >>> _microseconds(2, "ms"), _microseconds(1500, "ns"), _microseconds(2500, "ns")
    (2000, 2, 2)
    """
    if unit == "ns":
        return int(nearest_thousandth(count))
    return count * {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
