"""Parquet files whose columns are of the right types already: they are taken as they are.

Everything that would need a closer look (a time that is a text, a number where a text is wanted, a null
time) is left to the readers of records, so that both ways give the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaicep.connectors.columnar import arrow_types
from kaicep.connectors.shape import Form, Schema
from kaicep.plan.convert import Notation
from kaicep.plan.types import Type

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

__all__ = ["as_typed", "is_direct"]


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
