"""Matches as rows. The kernel gives `MATCHES`; the JVM makes the user's columns from them on demand.

`select` is a struct of the selected columns, typed; a term of EP-SPARQL is a struct as in the JSON results
format of SPARQL. With several queries it has the columns of all of them, and one that two queries give
different types is text. `match` is the line that `kaicep match` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kaicep.hosts.queries import Listed
from kaicep.kernel.columns import Matches
from kaicep.kernel.lines import ids_of, lines_of
from kaicep.plan.events import Match
from kaicep.plan.nodes import ChiPlan, Program, QueryPlan, Solutions, Triples
from kaicep.plan.types import Type

_ARROW = pa.schema(
    [
        ("query", pa.string()),
        ("id", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("match", pa.string()),
    ]
)
MATCHES = from_arrow_schema(_ARROW)
"""What the kernel gives of each match; times are microseconds. (Text that has to be read asks the server.)"""

FOUND_ARROW = pa.schema([*_ARROW, ("owner", pa.int32()), ("bucket", pa.int32()), ("watermark", pa.int64())])
"""What a stream gives of each match: also whose it is, which bucket found it, how far that had come."""
FOUND = from_arrow_schema(FOUND_ARROW)
"""The same, as Spark has it."""

TYPES: Mapping[Type | None, DataType] = {
    Type.BOOL: BooleanType(),
    Type.INT64: LongType(),
    Type.FLOAT64: DoubleType(),
    Type.STRING: StringType(),
    Type.TIMESTAMP: TimestampType(),
    None: StringType(),
}
"""Types of attributes and columns, as Spark has them."""
_TERM = StructType([StructField(name, StringType()) for name in ("type", "value", "datatype", "xml:lang")])


def known(frame: DataFrame, columns: pa.Schema) -> DataFrame:
    """The frame with these columns, which a client of Connect then does not ask its server for.

    Python functions take the names of all columns, and in Declarative Pipelines nobody may ask.
    """
    found: Any = frame.select(*columns.names)
    if hasattr(found, "_cached_schema"):
        found._cached_schema = from_arrow_schema(columns)
    made: DataFrame = found
    return made


def presented(rows: DataFrame, program: Program, *more: str) -> DataFrame:
    """The rows as a user sees them; `more` are columns that stay as they are."""
    return rows.select(
        "query",
        "id",
        sf.timestamp_micros("start").alias("start"),
        sf.timestamp_micros("end").alias("end"),
        *_selected(program),
        sf.get_json_object("match", "$.events").alias("events"),
        "match",
        *more,
    )


def _selected(program: Program) -> Iterator[Column]:
    columns: dict[str, DataType] = {}
    for query in program.queries:
        for name, type in columns_of(query):
            columns[name] = type if columns.get(name, type) == type else StringType()
    if columns:
        struct = StructType([StructField(name, type) for name, type in columns.items()])
        yield sf.from_json("match", StructType([StructField("select", struct)]))["select"].alias("select")
    if any(isinstance(query.root, Triples) for query in program.ep_plans):
        listed = StructType([StructField("triples", ArrayType(StringType()))])
        yield sf.from_json("match", listed)["triples"].alias("triples")


def columns_of(plan: QueryPlan) -> list[tuple[str, DataType]]:
    """The selected columns of a query and their types."""
    if isinstance(plan, ChiPlan):
        return [
            (each.name, ArrayType(TYPES[each.type]) if each.many else TYPES[each.type])
            for each in plan.columns
        ]
    return [(name, _TERM) for name in plan.root.names] if isinstance(plan.root, Solutions) else []


class FoundRows:
    """Gathers what an engine finds as rows of `MATCHES`, as columns where it comes as columns."""

    def __init__(self) -> None:
        self._rows: list[pa.RecordBatch] = []

    def __call__(self, matches: Matches | Listed) -> None:
        """Takes what an engine gives to `on_matches`."""
        if isinstance(matches, Listed):
            self._rows.append(listed(matches))
        else:
            self._rows.append(_columns_of(matches))

    def taken(self) -> list[pa.RecordBatch]:
        """What has been gathered since it was taken last."""
        taken, self._rows = self._rows, []
        return taken


def _columns_of(matches: Matches) -> pa.RecordBatch:
    columns = [
        pa.array([matches.query] * len(matches), pa.string()),
        pa.array(ids_of(matches), pa.string()),
        pa.array(matches.start.copy(), pa.int64()),
        pa.array(matches.end.copy(), pa.int64()),
        pa.array(lines_of(matches), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def listed(matches: Iterable[Match]) -> pa.RecordBatch:
    """Matches as rows of `MATCHES`."""
    return pa.RecordBatch.from_pylist([_row_of(each) for each in matches], _ARROW)


def _row_of(match: Match) -> dict[str, Any]:
    return {
        "query": match.query,
        "id": match.id,
        "start": match.start_us,
        "end": match.end_us,
        "match": match.to_json(),
    }


def found_row(match: Match | None, owner: int, bucket: int, watermark: int) -> dict[str, Any]:
    """A row of `FOUND`; without a match, it tells only how far a bucket has come."""
    row = (
        {"query": None, "id": None, "start": 0, "end": 0, "match": None} if match is None else _row_of(match)
    )
    return {**row, "owner": owner, "bucket": bucket, "watermark": watermark}
