"""Records as Parquet holds them: the rows of a file, and the types of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.connectors.records import Record, row_width, tell
from kaicep.errors import Diagnostic, Mistake
from kaicep.plan.convert import USUAL, Instant, Notation, WallTime
from kaicep.plan.time import nearest_thousandth
from kaicep.plan.types import Type

if TYPE_CHECKING:
    import pyarrow

__all__ = ["arrow_values", "open_parquet", "parquet_columns", "read_parquet"]


@contextmanager
def open_parquet(name: str, path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """An open Parquet file; whatever is wrong with it is a mistake that names it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Mistake(
            Diagnostic(f"stream {name}: reading {path} needs pyarrow", hint="pip install 'kaicep[parquet]'")
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
            for row in zip(*(arrow_values(each) for each in batch[first:].columns), strict=True):
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
