"""DataFrames of events or triples as rows of a layout, and the late ones among them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kaicep.errors import Mistake, did_you_mean
from kaicep.hosts.spark.clock import EVENT_ROW, NEVER
from kaicep.hosts.spark.layout import EVENT, Layout, rows_of
from kaicep.hosts.spark.output import TYPES
from kaicep.plan.catalog import Stream
from kaicep.plan.events import Event
from kaicep.plan.time import EXCEL_EPOCH, TIME_UNITS, format_time, in_zone
from kaicep.plan.types import Notation, Type, Unfit, Value, convert

# ----------------------------------------------------------------------------------------------------------
# DataFrames as they come, as rows of a layout: the identity, the time and the types of events.
#
# An event's identity is its place in the source (semantics 1), and Spark does not keep the order of rows.
# So the columns `part` and `seq` must be there (`part` may be left out where there is one). `identified`
# makes them of what a source knows of its rows; `numbered` makes them for small data without any.

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_NUMBERS = (*_WHOLE, FloatType, DoubleType, DecimalType)
_ZONED = r"([Zz]|[+-]\d\d:?\d\d)\s*$"


def rows_of_frame(frame: DataFrame, stream: Stream, layout: Layout, asked: bool = True) -> DataFrame:
    """The events of a stream as the rows of a layout; where Spark is not `asked`, of the types declared."""
    if stream.notation.wide is not None:
        message = f"{stream.name}: a wide table is read from files, not from a DataFrame"
        raise Mistake(message, hint="unpivot it: a row for each reading")
    schema = frame.schema if asked else _declared(stream)
    timed = time_of(schema, stream)
    own = {number: (name, layout.columns[number]) for name, number in layout.of_stream(stream.name).items()}
    cells: list[Column] = []
    for number, type in enumerate(layout.columns):
        if number in own:
            cell = _value(schema, stream, own[number][0], type)
        else:
            cell = sf.lit(None).cast(SPARK_TYPES[type])
        cells.append(cell.alias(f"a{number}"))
    if layout.rdf:
        cells.append(sf.lit(None).cast("string").alias("_rdf"))
    return frame.select(
        sf.lit(layout.place(stream.name)).alias("_stream"),
        part_of(schema, stream).alias("_part"),
        seq_of(schema, stream).alias("_seq"),
        timed.alias("_ts"),
        *cells,
        sf.lit(EVENT_ROW).alias("_kind"),
    )


def _declared(stream: Stream) -> StructType:
    """The columns that a stream has where nobody may look."""
    made = StructType().add("part", LongType()).add("seq", LongType())
    for name, type in {**dict(stream.attributes), stream.time: Type.TIMESTAMP}.items():
        made.add(name, TYPES[type])
    return made


def part_of(schema: StructType, stream: Stream) -> Column:
    """The part of an event: a whole number, or the job stops."""
    return _position(schema, stream, "part") if "part" in schema.names else sf.lit(0).cast("bigint")


def seq_of(schema: StructType, stream: Stream) -> Column:
    """The position of an event in its part: a whole number, or the job stops."""
    return _position(schema, stream, "seq")


def _position(schema: StructType, stream: Stream, name: str) -> Column:
    if name not in schema.names:
        raise _missing(schema, stream, name)
    column, found = sf.col(f"`{name}`"), schema[name].dataType
    if not isinstance(found, _NUMBERS):
        raise Mistake(
            f"{stream.name}.{name} is {found.simpleString()}, and a position is a whole number",
            hint="kaicep.spark.events makes part and seq of what the source knows of its rows",
        )
    wrong = column.isNull() | (column < 0)
    if not isinstance(found, _WHOLE):
        wrong = wrong | column.isNaN() if isinstance(found, (FloatType, DoubleType)) else wrong
        wrong = wrong | (column != sf.floor(column)) | (column >= 2**53)
    text = sf.concat(
        sf.lit(f"an event of {stream.name} has {name} "),
        sf.coalesce(column.cast("string"), sf.lit("null")),
        sf.lit(": a position is a whole number, 0 or more"),
    )
    return sf.when(wrong, sf.raise_error(text)).otherwise(column.cast("bigint"))


def time_of(schema: StructType, stream: Stream) -> Column:
    """The time of an event in microseconds; one without a time stops the job.

    The time of triples is when they cease to hold, or when they begin to, where no end is said.
    """
    if stream.rdf:
        ends = [_value(schema, stream, "end", Type.TIMESTAMP)] if "end" in schema.names else []
        return sf.coalesce(*ends, start_of(schema, stream))
    return _time(schema, stream, stream.time)


def start_of(schema: StructType, stream: Stream) -> Column:
    """When triples begin to hold, in microseconds."""
    return _time(schema, stream, "start")


def _time(schema: StructType, stream: Stream, name: str) -> Column:
    if name not in schema.names:
        raise _missing(schema, stream, name)
    ts = _value(schema, stream, name, Type.TIMESTAMP)
    message = f"an event of {stream.name} has no {name}: leave it out"
    return sf.coalesce(ts, sf.raise_error(sf.lit(message)))


SPARK_TYPES = {
    Type.BOOL: "boolean",
    Type.INT64: "bigint",
    Type.FLOAT64: "double",
    Type.STRING: "string",
    Type.TIMESTAMP: "bigint",
}
"""The columns of attributes on the way, as Spark calls them."""


def _missing(schema: StructType, stream: Stream, name: str) -> Mistake:
    if name == "seq":
        return Mistake(
            f"the events of {stream.name} have no column seq, their position in the source",
            hint="an archive has it, Kafka calls it offset; `numbered` makes it for small data",
        )
    known = did_you_mean(name, schema.names)
    return Mistake(f"the events of {stream.name} have no column {name}", hint=known)


def _value(schema: StructType, stream: Stream, name: str, type: Type) -> Column:
    """A column as an attribute of a type; times are microseconds, NaN and infinity are null."""
    if name not in schema.names:
        raise _missing(schema, stream, name)
    found, column = schema[name].dataType, sf.col(f"`{name}`")
    if stream.notation.nulls and isinstance(found, StringType):
        column = sf.when(~column.isin(*stream.notation.nulls), column)
    if type is Type.TIMESTAMP:
        made = _micros(column, found, stream.notation)
    elif type is Type.FLOAT64 and isinstance(found, _NUMBERS):
        wide = column.cast("double")
        made = sf.when(sf.abs(wide) <= 1.7976931348623157e308, wide)
    elif (type is Type.INT64 and isinstance(found, _WHOLE)) or (
        type is Type.STRING and isinstance(found, (StringType, *_WHOLE))
    ):
        made = column.cast(SPARK_TYPES[type])
    elif type is Type.BOOL and isinstance(found, BooleanType):
        made = column
    else:
        made = None
    if made is None:
        raise Mistake(
            f"{stream.name}.{name} is {found.simpleString()}, and the query takes it for {type}",
            hint="cast the column, or declare another type",
        )
    return made


def _micros(column: Column, found: DataType, notation: Notation) -> Column | None:
    """A time in microseconds, whatever the time zone of the session is."""
    unit, zone = notation.time_unit, notation.time_zone
    if isinstance(found, TimestampType):
        return sf.unix_micros(column)
    if isinstance(found, TimestampNTZType | DateType):
        begin = sf.lit("1970-01-01").cast("timestamp_ntz")
        shown = sf.timestamp_diff("MICROSECOND", begin, column.cast("timestamp_ntz"))
        return (
            shown if zone is None else sf.udf(partial(_in_zone, zone=zone), "bigint", useArrow=False)(shown)
        )
    if (isinstance(found, StringType) and not notation.usual_times) or (unit == "excel" and zone):
        return sf.udf(partial(_time_in, notation=notation), "bigint", useArrow=False)(column)
    if isinstance(found, _WHOLE) and unit in ("s", "ms", "us"):
        return column.cast("bigint") * sf.lit(int(TIME_UNITS[unit]))
    if isinstance(found, _NUMBERS):
        count = column.cast("decimal(38,9)") - sf.lit(EXCEL_EPOCH if unit == "excel" else 0)
        return sf.bround(count * sf.lit(TIME_UNITS[unit])).cast("bigint")
    if isinstance(found, StringType):
        zoned = sf.when(sf.rlike(column, sf.lit(_ZONED)), column).otherwise(sf.concat(column, sf.lit("Z")))
        return sf.unix_micros(zoned.try_cast("timestamp"))
    return None


def _in_zone(micros: int | None, zone: str) -> int | None:
    """A time without an offset as one of a zone."""
    return None if micros is None else in_zone(micros, zone)


def _time_in(value: object, notation: Notation) -> Value:
    """A time as its annotation has it written; None where it is none."""
    try:
        return convert(value, Type.TIMESTAMP, notation)
    except Unfit:
        return None


def without_late(rows: DataFrame, lateness: int) -> DataFrame:
    """The rows without those that came too late in their part (semantics 1)."""
    newest = rows.withColumn("_newest", newest_before("_seq", "_stream", "_part"))
    return newest.where(sf.col("_newest").isNull() | (sf.col("_ts") >= sf.col("_newest") - sf.lit(lateness)))


def newest_before(seq: str, *part: str) -> Column:
    """The latest time before an event in its part; null for the first."""
    before = Window.partitionBy(*part).orderBy(seq).rowsBetween(Window.unboundedPreceding, -1)
    return sf.max("_ts").over(before)


MANY = 100_000
"""More rows than that should not be numbered by `numbered`."""


def numbered(frame: DataFrame, time: str = "ts") -> DataFrame:
    """The rows with `part` 0 and `seq`, in the order of their time and then of all their columns.

    That is the same each time, whatever the order of the rows is. All of them go through one task, so it
    is for small data.
    """
    if not frame.isStreaming and frame.limit(MANY + 1).count() > MANY:
        message = (
            f"kaicep.spark.numbered sorts all rows in one task, and there are more than {MANY:,}: "
            "kaicep.spark.events takes their positions from Kafka, from files or from columns"
        )
        warnings.warn(message, stacklevel=3)
    columns = [sf.col(f"`{time}`"), *(sf.col(f"`{name}`").cast("string") for name in sorted(frame.columns))]
    place = sf.row_number().over(Window.orderBy(*columns)) - sf.lit(1)
    return frame.withColumns({"part": sf.lit(0), "seq": place})


IDENTITIES = ("kafka", "files", "delta")
"""Sources whose rows say where they stand, besides columns that somebody names."""


def identified(frame: DataFrame, identity: str | Sequence[str]) -> DataFrame:
    """The rows with `part` and `seq`, made of what the source knows of each row."""
    if identity == "kafka":
        return _placed(frame, "partition", "offset")
    if identity == "files":
        return _in_files(frame)
    if identity == "delta":
        return _by_row_ids(frame)
    if isinstance(identity, str):
        hint = did_you_mean(identity, IDENTITIES) or "kafka, files, delta, or columns: (part, seq), or (seq,)"
        raise Mistake(f"there is no identity {identity}", hint=hint)
    if not 0 < len(identity) < 3:
        raise Mistake("identity has one or two columns", hint="(part, seq), or (seq,)")
    return _placed(frame, *(identity if len(identity) == 2 else (None, identity[0])))


def _placed(frame: DataFrame, part: str | None, seq: str) -> DataFrame:
    """The rows with these columns for `part` and `seq`."""
    for each in (part, seq):
        if each is not None and each not in frame.columns:
            hint = did_you_mean(each, frame.columns)
            raise Mistake(f"the events have no column {each}", hint=hint)
    place = sf.lit(0) if part is None else sf.col(f"`{part}`")
    return frame.withColumns({"part": place, "seq": sf.col(f"`{seq}`")})


def _in_files(frame: DataFrame) -> DataFrame:
    """The rows with the place of their file among all, by name, and their place in it, as `kaicep` counts.

    Parquet files count their rows. Those of text are numbered here: the rows of a piece of a file are
    in order in one task, and pieces know where they begin.
    """
    if frame.isStreaming:
        raise Mistake(
            "a stream of files has no identity: which file is which is known when all of them are there",
            hint="a deployment takes in files as they come; or columns of their own: identity=(...)",
        )
    # Spark writes local files with one slash here, and with three there.
    files = [re.sub("^file:/+", "file:/", each) for each in sorted(frame.inputFiles(), key=unquote)]
    if not files:
        raise Mistake("the events are not read from files", hint="identity=(part, seq)")
    places = frame.sparkSession.createDataFrame(list(enumerate(files)), "part int, _file string")
    file = sf.regexp_replace("_metadata.file_path", "^file:/+", "file:/").alias("_file")
    told = frame.select("*", file, *_rows_of_files(frame))
    if "_block" in told.columns:
        within = Window.partitionBy("_file").orderBy("_block", "_row")
        told = told.withColumn("_row", sf.row_number().over(within) - sf.lit(1))
    known = told.drop("part", "seq", "_block").withColumnRenamed("_row", "seq")
    return known.join(sf.broadcast(places), "_file").drop("_file")


def _by_row_ids(frame: DataFrame) -> DataFrame:
    """The rows with the ids that Delta keeps for them, whatever files they move to."""
    from pyspark.errors import AnalysisException

    try:
        made = frame.withColumns({"part": sf.lit(0), "seq": sf.col("_metadata.row_id")})
        made.schema  # noqa: B018  # Connect has not looked at it before
    except AnalysisException:
        raise Mistake(
            "the events have no row ids: _metadata.row_id",
            hint="a Delta table with delta.enableRowTracking has them, read by delta-spark; else: files",
        ) from None
    return made


def _rows_of_files(frame: DataFrame) -> list[Column]:
    """What says where a row stands in its file."""
    from pyspark.errors import AnalysisException

    row = sf.col("_metadata.row_index").alias("_row")
    try:
        frame.select(row).schema  # noqa: B018
    except AnalysisException:
        begin = sf.col("_metadata.file_block_start").alias("_block")
        return [begin, sf.monotonically_increasing_id().alias("_row")]
    return [row]


def counted_once(rows: DataFrame, layout: Layout) -> DataFrame:
    """The rows of a layout, each identity once; the job stops where two of one identity differ.

    (No column is dropped: a server of Connect would look what there is, which is an error in a pipeline.)
    """
    content = sf.xxhash64("_ts", *layout.names()[len(EVENT) :])
    same = Window.partitionBy("_stream", "_part", "_seq").orderBy("_ts")
    before = rows.withColumns({"_content": content}).withColumn("_before", sf.lag("_content").over(same))
    name = sf.element_at(sf.lit(list(layout.streams)), sf.col("_stream") + sf.lit(1 - layout.first))
    text = sf.format_string(
        "position %d of part %d of %s comes several times, with different content", "_seq", "_part", name
    )
    differs = sf.when(sf.col("_before") != sf.col("_content"), sf.raise_error(text)).otherwise(
        sf.col("_before").isNull()
    )
    return before.where(differs)


# ----------------------------------------------------------------------------------------------------------
# DataFrames of triples with intervals, as rows of a layout: they travel as whole events, in text.

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
                raise Mistake(message, hint="a triple is a line of N-Triples")
    if all(name in frame.columns for name in _TERMS):
        # A triple with a gap is null.
        gap = sf.lit(" ")
        found.append(sf.array(sf.concat("subject", gap, "predicate", gap, "object", sf.lit(" ."))))
    if not found:
        raise Mistake(
            f"the events of {stream.name} have no triples: there is no column triple",
            hint="a line of N-Triples in triple, several in triples, or its terms in " + ", ".join(_TERMS),
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


# ----------------------------------------------------------------------------------------------------------
# The late output: events that come so far behind the newest of their part that no match uses them.
#
# Whether one is late depends on its part alone (semantics 1), so parts are looked at side by side. Of a
# stream, the newest time of each part is kept in Spark's state store.


def late_rows(frame: DataFrame, stream: Stream, lateness: int) -> DataFrame:
    """The late rows of a frame of events, with the columns that they have."""
    timed = frame.withColumns({"_ts": time_of(frame.schema, stream), "_part": part_of(frame.schema, stream)})
    if not frame.isStreaming:
        newest = timed.withColumn("_newest", newest_before("seq", "_part"))
        return newest.where(sf.col("_ts") < sf.col("_newest") - sf.lit(lateness)).select(*frame.columns)
    told = timed.groupBy("_part").applyInPandasWithState(
        _told(lateness), frame.schema, "newest bigint", "append", "NoTimeout"
    )
    return told.select(*frame.columns)


def _told(lateness: int) -> Callable[..., Iterator[Any]]:
    def work(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas

        rows = pandas.concat(list(frames)).sort_values("seq")
        newest = state.get[0] if state.exists else NEVER
        ts = rows["_ts"].to_numpy(np.int64)
        reached = np.maximum.accumulate(np.concatenate([[newest], ts]))
        late = (reached[:-1] != NEVER) & (ts < reached[:-1] - lateness)
        state.update((int(reached[-1]),))
        if late.any():
            yield rows.loc[late].drop(columns=["_ts", "_part"])

    return work
