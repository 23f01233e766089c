"""DataFrames of triples with intervals, as rows of a layout: they travel as whole events, in text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, StringType

from kaicep.errors import Diagnostic, Mistake
from kaicep.hosts.spark.clock import EVENT_ROW
from kaicep.hosts.spark.source import SPARK_TYPES, part_of, seq_of, start_of, time_of
from kaicep.hosts.spark.wire import Layout, rows_of
from kaicep.plan.catalog import Stream
from kaicep.plan.events import Event
from kaicep.plan.time import format_time

__all__ = ["Read", "rows_of_triples"]

Read = Callable[[int, int, Mapping[str, object]], Event]
"""Makes an event of its part, its position, and a record: `start`, `end` and `triples`."""

_TERMS = ("subject", "predicate", "object")


def rows_of_triples(frame: DataFrame, stream: Stream, layout: Layout, read: Read) -> DataFrame:
    """The events of an RDF stream as the rows of a layout."""
    plain = frame.select(
        part_of(frame.schema, stream).alias("_part"),
        seq_of(frame.schema, stream).alias("_seq"),
        start_of(frame.schema, stream).alias("_start"),
        time_of(frame.schema, stream).alias("_ts"),
        _texts(frame, stream).alias("_triples"),
    )
    cells = [f"a{number} {SPARK_TYPES[type]}" for number, type in enumerate(layout.columns)]
    base = ["_stream int", "_part bigint", "_seq bigint", "_ts bigint"]
    made = plain.mapInArrow(_reading(layout, read), ", ".join([*base, *cells, "_rdf string"]))
    return made.withColumn("_kind", sf.lit(EVENT_ROW))


def _texts(frame: DataFrame, stream: Stream) -> Column:
    """The triples of an event as texts, whichever columns hold them."""
    found: list[Column] = []
    for name in ("triple", "triples"):
        if name in frame.columns:
            type = frame.schema[name].dataType
            if isinstance(type, StringType):
                found.append(sf.array(name))
            elif isinstance(type, ArrayType) and isinstance(type.elementType, StringType):
                found.append(sf.coalesce(name, sf.array().cast("array<string>")))
            else:
                message = f"{stream.name}.{name} is {type.simpleString()}, and not text"
                raise Mistake(Diagnostic(message, hint="a triple is a line of N-Triples"))
    if all(name in frame.columns for name in _TERMS):
        # A triple with a gap is null.
        gap = sf.lit(" ")
        found.append(sf.array(sf.concat("subject", gap, "predicate", gap, "object", sf.lit(" ."))))
    if not found:
        raise Mistake(
            Diagnostic(
                f"the events of {stream.name} have no triples: there is no column triple",
                hint="a line of N-Triples in triple, several in triples, or its terms in "
                + ", ".join(_TERMS),
            )
        )
    return sf.array_compact(sf.concat(*found))


def _reading(layout: Layout, read: Read) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield rows_of([_event(row, read) for row in batch.to_pylist()], layout)

    return work


def _event(row: dict[str, object], read: Read) -> Event:
    part, seq, start, end = (row[name] for name in ("_part", "_seq", "_start", "_ts"))
    assert isinstance(part, int)
    assert isinstance(seq, int)
    assert isinstance(start, int)
    assert isinstance(end, int)
    return read(part, seq, {"start": format_time(start), "end": format_time(end), "triples": row["_triples"]})
