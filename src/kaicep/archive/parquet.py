"""The rows of a table: events as columns, triples as lines, and the Parquet files that hold them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from uuid import uuid4

from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.plan.nodes import Interval
from kaicep.plan.rdf_text import read_triples
from kaicep.plan.terms import Triple, n_triples
from kaicep.plan.time import format_time
from kaicep.plan.types import Type
from kaicep.storage.delta import write_parquet
from kaicep.storage.disk import sync_folder

if TYPE_CHECKING:
    import pyarrow


# ----------------------------------------------------------------------------------------------------------
# Triples as the archive keeps them: a line of N-Triples each.


@lru_cache(maxsize=100_000)
def read_triple(text: str) -> Triple:
    """The triple that a line of N-Triples says.

    >>> read_triple('<urn:s> <urn:p> "5"^^<http://www.w3.org/2001/XMLSchema#integer> .')[2].lexical
    '5'
    """
    try:
        (triple,) = read_triples(text)
    except ValueError:
        raise Failure(f"the archive has a record that is not a triple: {text[:80]}") from None
    return triple


# ----------------------------------------------------------------------------------------------------------
# The columns of a stream's table, and events as rows of it.
#
# Beside the attributes, by their own names, a table has `ts` and the columns of the archive, which begin
# with an underscore. An RDF stream has the start of each record and its triples as N-Triples instead. A
# column of lists is none of these: it has what was known of the events when they came in, for other
# readers.

TS, PART, SEQ, LATE, START, TRIPLES = "ts", "_part", "_seq", "_late", "_start", "_triples"
_OWN = (PART, SEQ, LATE, START, TRIPLES)


@dataclass(frozen=True)
class TableShape:
    """What a table holds: the attributes in order, the one that has the time; or triples (`rdf`).

    `known` are the columns of what the knowledge says of the events.
    """

    attributes: tuple[tuple[str, Type], ...] = ()
    time: str = TS
    rdf: bool = False
    known: tuple[str, ...] = ()


def arrow_schema(shape: TableShape) -> pyarrow.Schema:
    """The columns of a table in their order."""
    try:
        import pyarrow
    except ImportError:
        raise Mistake("an archive needs the package pyarrow", hint="pip install 'kaicep[delta]'") from None

    fields = [(PART, pyarrow.int32()), (SEQ, pyarrow.int64()), (LATE, pyarrow.bool_())]
    if shape.rdf:
        fields += [(TS, moments()), (START, moments()), (TRIPLES, pyarrow.list_(pyarrow.string()))]
        return pyarrow.schema(fields)
    if TS not in dict(shape.attributes):
        fields.append((TS, moments()))
    kinds = _arrow_types()
    fields += [(name, kinds[type]) for name, type in shape.attributes]
    return pyarrow.schema([*fields, *((name, known_column()) for name in shape.known)])


def shape_of(schema: pyarrow.Schema, time: str) -> TableShape:
    """What a table with these columns holds."""
    import pyarrow

    if TRIPLES in schema.names:
        return TableShape(rdf=True)
    types = {kind: type for type, kind in _arrow_types().items()}
    own = _OWN if time == TS else (*_OWN, TS)
    others = [each for each in schema if each.name not in own]
    known = tuple(each.name for each in others if pyarrow.types.is_list(each.type))
    attributes = tuple((each.name, types[each.type]) for each in others if each.name not in known)
    return TableShape(attributes, time, known=known)


def known_column() -> pyarrow.DataType:
    """The type of a column of what is known: texts. No attribute has it."""
    import pyarrow

    return pyarrow.list_(pyarrow.string())


def moments() -> pyarrow.DataType:
    """The type of every time in the archive: microseconds, UTC."""
    import pyarrow

    return pyarrow.timestamp("us", tz="UTC")


def _arrow_types() -> Mapping[Type, pyarrow.DataType]:
    import pyarrow

    return {
        Type.BOOL: pyarrow.bool_(),
        Type.INT64: pyarrow.int64(),
        Type.FLOAT64: pyarrow.float64(),
        Type.STRING: pyarrow.string(),
        Type.TIMESTAMP: moments(),
    }


def extended(stream: str, held: TableShape, wanted: TableShape) -> TableShape:
    """What a table holds after more comes in: new attributes are added, none changes its type.

    >>> extended("s", TableShape((("x", Type.INT64),)), TableShape((("y", Type.STRING),))).attributes
    (('x', Type.INT64), ('y', Type.STRING))
    """
    if held.rdf != wanted.rdf:
        first, then = ("triples", "records") if held.rdf else ("records", "triples")
        raise Mistake(f"stream {stream}: the archive holds {first}, and these are {then}")
    if not held.rdf and held.time != wanted.time:
        raise Mistake(
            f"stream {stream}: its time is {held.time} in the archive, and {wanted.time} here",
            hint="give the annotation with which the archive was made",
        )
    known = dict(held.attributes)
    for name, type in wanted.attributes:
        if known.setdefault(name, type) is not type:
            raise Mistake(
                f"stream {stream}: {name} is {known[name]} in the archive, and {type} here",
                hint=f'an archived attribute keeps its type: "types": {{"{name}": "{known[name]}"}} '
                "in the annotation, or a new archive",
            )
    told = tuple(dict.fromkeys((*held.known, *wanted.known)))
    return check_names(stream, replace(held, attributes=tuple(known.items()), known=told))


def check_names(stream: str, shape: TableShape) -> TableShape:
    """The shape, if its attributes can be told apart as columns: Delta does not look at their case."""
    seen: dict[str, str] = {each: each for each in (PART, SEQ, LATE, *(() if shape.time == TS else (TS,)))}
    for name, _ in shape.attributes:
        other = seen.setdefault(name.lower(), name)
        if other != name or name in _OWN:
            what = "a column of the archive itself" if other in (*_OWN, TS) else f"the attribute {other}"
            raise Mistake(
                f"stream {stream}: the attribute {name} cannot be told from {what}",
                hint="rename it at the source; names that differ in case only are one name in a table",
            )
    for name in shape.known:
        if seen.setdefault(name.lower(), f"the column {name}") != f"the column {name}" or name in _OWN:
            raise Mistake(
                f"stream {stream}: the column {name} of what is known cannot be told from another",
                hint="an attribute and the columns of --materialise need names of their own",
            )
    return shape


def rows_of(events: Sequence[Event], shape: TableShape) -> pyarrow.Table:
    """Events as rows; an attribute that an event does not have is null."""
    import pyarrow

    schema = arrow_schema(shape)
    columns: dict[str, list[Any]] = {
        TS: [each.ts for each in events],
        PART: [each.part for each in events],
        SEQ: [each.seq for each in events],
        LATE: [each.late for each in events],
    }
    if shape.rdf:
        columns[START] = [each.ts if each.start is None else each.start for each in events]
        columns[TRIPLES] = [[n_triples(triple) for triple in each.triples] for each in events]
    for name, _ in shape.attributes:
        if name != TS:
            columns[name] = [each.values.get(name) for each in events]
    for name in shape.known:
        columns[name] = [None] * len(events)
    return pyarrow.Table.from_arrays(
        [pyarrow.array(columns[each.name], each.type) for each in schema], schema=schema
    )


def events_of(stream: str, rows: pyarrow.RecordBatch | pyarrow.Table, shape: TableShape) -> Iterator[Event]:
    """Rows as events."""
    columns = {name: _plain(rows.column(name)) for name in rows.column_names}
    own = (columns[PART], columns[SEQ], columns[TS], columns[LATE])
    if shape.rdf:
        for part, seq, ts, late, start, texts in zip(*own, columns[START], columns[TRIPLES], strict=True):
            triples = tuple(read_triple(each) for each in texts)
            yield Event(stream, part, seq, ts, {}, late, start=start, triples=triples)
        return
    names = [name for name, _ in shape.attributes if name in columns]
    values = zip(*(columns[name] for name in names), strict=True) if names else ((),) * rows.num_rows
    for part, seq, ts, late, row in zip(*own, values, strict=True):
        yield Event(stream, part, seq, ts, dict(zip(names, row, strict=True)), late)


def _plain(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any]:
    """A column's values as plan.types has them: a time is a number of microseconds."""
    import pyarrow

    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.int64())
    found: list[Any] = column.to_pylist()
    return found


# ----------------------------------------------------------------------------------------------------------
# The Parquet files of a table: written in order of time, and known by the range of time they cover.

ROWS = 1_000_000
"""So many rows a file has at most."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table: its path from the table's folder, its rows and bytes, its first and last `ts`."""

    path: str
    rows: int
    size: int
    low: int | None = None
    high: int | None = None

    @property
    def reach(self) -> float:
        """The latest `ts` that it may hold: other tools cut the statistics of a time to milliseconds."""
        if self.high is None:
            return math.inf
        return self.high + (999 if self.high % 1_000 == 0 else 0)

    def touches(self, within: Interval) -> bool:
        """Whether it may hold an event inside the bounds; where nothing is known of it, it may."""
        if self.low is None or self.high is None:
            return True
        if within.low is not None and (self.reach, within.low_inclusive) < (within.low, True):
            return False
        return within.high is None or (self.low, True) <= (within.high, within.high_inclusive)


def in_time(rows: pyarrow.Table) -> pyarrow.Table:
    """The rows in the order of their stream."""
    by = [(name, "ascending") for name in (TS, PART, SEQ) if name in rows.column_names]
    return rows.sort_by(by)


def write_files(folder: Path, rows: pyarrow.Table, most: int = ROWS) -> list[DataFile]:
    """Writes rows that are in order into as many files as it takes; on an error, none is left behind."""
    written: list[DataFile] = []
    try:
        for start in range(0, rows.num_rows, most):
            stem = f"{uuid4().hex}-{len(written):04d}"
            written.append(measured(folder, write_parquet(folder, rows.slice(start, most), stem)))
        sync_folder(folder)
    except BaseException:
        discard(folder, (each.path for each in written))
        raise
    return written


def discard(folder: Path, paths: Iterable[str]) -> None:
    """Removes files that no commit speaks of."""
    for each in paths:
        (folder / each).unlink(missing_ok=True)


def measured(folder: Path, path: str) -> DataFile:
    """What a file's own statistics say of it."""
    import pyarrow
    import pyarrow.parquet

    try:
        with (folder / path).open("rb") as opened, pyarrow.parquet.ParquetFile(opened) as file:
            found = file.metadata
    except (OSError, pyarrow.ArrowException) as error:
        raise Failure(f"cannot read {folder / path}: {error}") from None
    ranges = dict(_ranges(found))
    low, high = ranges.get(TS, (None, None))
    return DataFile(path, found.num_rows, (folder / path).stat().st_size, low, high)


def _ranges(metadata: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """The smallest and the largest `ts` of a file, where all its row groups tell."""
    columns = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if TS not in columns:
        return
    groups = [metadata.row_group(at).column(columns.index(TS)) for at in range(metadata.num_row_groups)]
    found = [each.statistics for each in groups if each.num_values]
    if found and all(each is not None and each.has_min_max for each in found):
        yield TS, (min(_micros(each.min) for each in found), max(_micros(each.max) for each in found))


def _micros(moment: Any) -> int:
    from datetime import UTC, datetime, timedelta

    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


def add_action(file: DataFile, data_change: bool = True) -> Any:
    """What a commit says of a new file, with the statistics by which readers leave it out."""
    from deltalake.transaction import AddAction

    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.low is not None and file.high is not None:
        stats["minValues"] = {TS: format_time(file.low)}
        stats["maxValues"] = {TS: format_time(file.high)}
        stats["nullCount"] = {TS: 0}
    moment = int(time.time() * 1_000)
    return AddAction(quote(file.path), file.size, {}, moment, data_change, json.dumps(stats))


def listed(actions: pyarrow.Table) -> list[DataFile]:
    """The files of a version, from what its log says of them."""
    import pyarrow

    found: list[DataFile] = []
    columns = actions.column_names
    bounds = []
    for name in (f"min.{TS}", f"max.{TS}"):
        known = name in columns
        bounds.append(
            actions.column(name).cast(pyarrow.int64()).to_pylist() if known else [None] * actions.num_rows
        )
    own = [actions.column(name).to_pylist() for name in ("path", "num_records", "size_bytes")]
    for path, rows, size, low, high in zip(*own, *bounds, strict=True):
        found.append(DataFile(unquote(path), rows or 0, size, low, high))
    return sorted(found, key=lambda each: (each.low is None, each.low or 0, each.path))
