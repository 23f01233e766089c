"""Parquet files whose columns are of the right types already: they go into the archive as they are.

Everything that would need a closer look (a time that is a text, a number where a text is wanted, a null
time) is left to the readers of records, so that both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.archive.columns import PART, SEQ, TS, moments
from kaicep.connectors.records import tell
from kaicep.connectors.shape import Form, Schema
from kaicep.plan.types import Type

if TYPE_CHECKING:
    import pyarrow

__all__ = ["are_direct", "arrow_tables"]

_ROWS = 1_000_000


def are_direct(parts: Mapping[int, Path], form: Form, schema: Schema) -> bool:
    """Whether all files are Parquet files that can be taken as they are."""
    if any(file.suffix.lower() != ".parquet" for file in parts.values()):
        return False
    import pyarrow.parquet

    types = dict(schema.attributes)
    for file in parts.values():
        with pyarrow.parquet.ParquetFile(file) as opened:
            columns = {each.name: each.type for each in opened.schema_arrow}
            if form.time not in columns or not all(
                _fits(kind, types[name]) for name, kind in columns.items() if name in types
            ):
                return False
            if not _has_times(opened, form.time):
                return False
    return True


def _fits(kind: pyarrow.DataType, type: Type) -> bool:
    """Whether a column becomes one of that type without a look at its values."""
    from pyarrow import types

    match type:
        case Type.BOOL:
            return bool(types.is_boolean(kind))
        case Type.INT64:
            return bool(types.is_signed_integer(kind) or kind in _small_unsigned())
        case Type.FLOAT64:
            return bool(types.is_float32(kind) or types.is_float64(kind) or types.is_signed_integer(kind))
        case Type.STRING:
            return bool(types.is_string(kind) or types.is_large_string(kind))
        case Type.TIMESTAMP:
            return bool(types.is_timestamp(kind)) and kind.unit != "ns"


def _small_unsigned() -> tuple[pyarrow.DataType, ...]:
    import pyarrow

    return pyarrow.uint8(), pyarrow.uint16(), pyarrow.uint32()


def _has_times(file: pyarrow.parquet.ParquetFile, time: str) -> bool:
    """Whether the file itself says that no time in it is null."""
    found = file.metadata
    at = file.schema_arrow.get_field_index(time)
    if found.num_columns != len(file.schema_arrow):
        return False
    groups = (found.row_group(each).column(at).statistics for each in range(found.num_row_groups))
    return all(each is not None and each.has_null_count and each.null_count == 0 for each in groups)


def arrow_tables(
    parts: Mapping[int, Path], form: Form, schema: Schema, held: Mapping[int, int]
) -> Iterator[tuple[int, pyarrow.Table, int]]:
    """The rows of each part beyond what is held, as the archive has them, with the position of the first."""
    import pyarrow
    import pyarrow.parquet

    for part, path in sorted(parts.items()):
        first, size = held.get(part, 0), path.stat().st_size
        with pyarrow.parquet.ParquetFile(path) as file:
            seq = 0
            for batch in file.iter_batches(_ROWS):
                rows = pyarrow.Table.from_batches([batch])
                seq += rows.num_rows
                tell(path, size * seq // max(1, file.metadata.num_rows))
                if seq > first:
                    new = rows.slice(max(0, first - (seq - rows.num_rows)))
                    yield part, _converted(new, part, seq - new.num_rows, form, schema), seq - new.num_rows


def _converted(rows: pyarrow.Table, part: int, first: int, form: Form, schema: Schema) -> pyarrow.Table:
    import numpy
    import pyarrow

    count = rows.num_rows
    made = {
        name: _column(rows.column(name), type)
        for name, type in schema.attributes
        if name in rows.column_names
    }
    made[TS] = _column(rows.column(form.time), Type.TIMESTAMP)
    made[PART] = pyarrow.array(numpy.full(count, part, numpy.int32))
    made[SEQ] = pyarrow.array(numpy.arange(first, first + count, dtype=numpy.int64))
    return pyarrow.table(made)


def _column(column: pyarrow.ChunkedArray, type: Type) -> pyarrow.ChunkedArray:
    """A column of a type; of floats, those that are not finite are null (semantics 1)."""
    import pyarrow
    import pyarrow.compute as pc

    if type is Type.TIMESTAMP:
        return column.cast(pyarrow.timestamp("us", column.type.tz)).cast(moments())
    if type is Type.FLOAT64:
        wide = column.cast(pyarrow.float64(), safe=False)
        return pc.if_else(pc.is_finite(wide), wide, pyarrow.scalar(None, pyarrow.float64()))
    return column
