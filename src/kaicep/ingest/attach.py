"""An existing table becomes the history of a stream, without a copy."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import PART, SEQ, TS, TableShape, moments
from kaicep.archive.table import AttachedFile, AttachedTable, TableState, attempts, typed
from kaicep.connectors.parts import history_part
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake, did_you_mean
from kaicep.plan.types import Type
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.places import options_of, place_of

if TYPE_CHECKING:
    import pyarrow


def attach(
    archive: Archive, form: Form, place: str, identity: Sequence[str] = (), files: Sequence[str] = ()
) -> AttachedTable:
    """Makes a table the history of a stream: what it has now; nothing where that was done before.

    `place` is the folder of a Delta table or of Parquet files, or any name where its `files` are given. Each
    file is a part, and its rows are counted, unless `identity` names the columns that have part and seq.
    """
    known = archive.stream(form.stream).attached if form.stream in archive.streams() else None
    if known is not None:
        if (known.place, known.identity) != (place, tuple(identity)):
            message = f"the history of stream {form.stream} is {known.place}, and not {place}"
            raise Mistake(message, hint="a stream has one table, always with the same identity")
        return known
    where = f"stream {form.stream}, table {place}"
    listed, version = _files_of(place_of(place, "the table"), where) if not files else (_named(files), None)
    schema = _schema_of(listed, where)
    attributes = _attributes(schema, form, identity, where)
    table = archive.made(form.stream, TableShape(attributes, form.time))
    table.widen(TableShape(attributes, form.time))
    begin = posixpath.commonprefix([each[: each.rindex("/") + 1] for each, *_ in listed]).rpartition("/")[0]
    made = [_measured(each, begin, form.time, identity) for each in listed]
    attached = AttachedTable(place, version, form.time, tuple(identity), tuple(each for each, _ in made))
    _check_names(attached, where)
    reached = _reached(ends for _, ends in made)

    def once() -> None:
        table.table.refresh()
        state = table.table.state
        _check_parts(state, reached, where)
        table.table.commit(
            replace(
                state,
                next={**state.next, **{part: after for part, (after, _) in reached.items()}},
                newest={**state.newest, **{part: ts for part, (_, ts) in reached.items()}},
                # What has positions of its own may go on: by the source that they are from.
                sources={**state.sources, **({} if identity else dict.fromkeys(reached, place))},
                attached=attached.write(table.table.folder),
            )
        )

    attempts(form.stream, once)
    return attached


Listed = tuple[str, int | None, Mapping[str, str | None]]
"""A file: where it is, its size if that is known, the values of the columns that divide the table."""


def _named(files: Iterable[str]) -> list[Listed]:
    return [(each, None, {}) for each in files]


def _files_of(place: Path, where: str) -> tuple[list[Listed], int | None]:
    """The files of a table with their sizes and the values of the columns that divide it; its version."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(place), options_of(place)):
        return _named(map(str, sorted(place.glob("*.parquet")))), None
    table = DeltaTable(str(place), storage_options=options_of(place))
    features = set(table.protocol().reader_features or ())
    for feature in ("deletionVectors", "columnMapping"):
        if feature in features:
            hint = "rewrite it without: what is deleted, or how a column is called, is not in its files"
            raise Mistake(f"{where}: it uses {feature}", hint=hint)
    divided = table.metadata().partition_columns
    rows = _rows_of(table.get_add_actions(flatten=True))
    told: list[Listed] = [
        (
            str(place / unquote(row["path"])),
            row["size_bytes"],
            {name: _text(row.get(f"partition.{name}")) for name in divided},
        )
        for row in rows
    ]
    return told, table.version()


def _rows_of(actions: Any) -> list[dict[str, Any]]:
    import pyarrow

    return sorted(pyarrow.table(actions).to_pylist(), key=lambda row: row["path"])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _schema_of(files: Sequence[Listed], where: str) -> pyarrow.Schema:
    import pyarrow

    if not files:
        raise Mistake(f"{where}: there are no Parquet files", hint="a folder, or a table by name")
    schema = parquet_dataset([place_of(files[-1][0], "the table")]).schema
    for name in files[-1][2]:
        if name not in schema.names:
            schema = schema.append(pyarrow.field(name, pyarrow.string()))
    return schema


def _attributes(
    schema: pyarrow.Schema, form: Form, identity: Sequence[str], where: str
) -> tuple[tuple[str, Type], ...]:
    """The columns that are attributes of events; those of other types are left alone."""
    for name in (form.time, *identity):
        if name not in schema.names:
            hint = did_you_mean(name, schema.names) or f"its columns are {', '.join(schema.names)}"
            raise Mistake(f"{where}: there is no column {name}", hint=hint)
    found = {each.name: _type_of(each.type) for each in schema if each.name not in identity}
    types = {name: form.types.get(name, type) for name, type in found.items() if type is not None}
    types[form.time] = Type.TIMESTAMP
    if form.time != TS:
        types.pop(TS, None)
    return tuple(types.items())


def _type_of(type: pyarrow.DataType) -> Type | None:
    import pyarrow.types as pt

    if pt.is_dictionary(type):
        return _type_of(type.value_type)
    kinds = (
        (pt.is_boolean, Type.BOOL),
        (pt.is_integer, Type.INT64),
        (pt.is_floating, Type.FLOAT64),
        (pt.is_decimal, Type.FLOAT64),
        (pt.is_string, Type.STRING),
        (pt.is_large_string, Type.STRING),
        (pt.is_timestamp, Type.TIMESTAMP),
        (pt.is_date, Type.TIMESTAMP),
    )
    return next((made for holds, made in kinds if holds(type)), None)


Ends = dict[int, tuple[int, int]]
"""By part: the position after its last event, and its largest time."""


def _measured(listed: Listed, begin: str, time: str, identity: Sequence[str]) -> tuple[AttachedFile, Ends]:
    """A file with the bounds of its times, and how far its parts come: read by a few columns, once."""
    import pyarrow
    import pyarrow.compute as pc

    path, size, values = listed
    wanted = [time, *identity]
    dataset = parquet_dataset([place_of(path, "the table")])
    rows = dataset.to_table([name for name in wanted if name in dataset.schema.names])
    for name in wanted:
        if name not in rows.column_names:
            rows = rows.append_column(name, pyarrow.repeat(pyarrow.scalar(values[name]), len(rows)))
    times = typed(rows.column(time), moments(), time).cast(pyarrow.int64())
    bounds = pc.min_max(times).as_py()
    size = place_of(path, "the table").stat().st_size if size is None else size
    if not identity:
        part = history_part(path.removeprefix(begin).lstrip("/"))
        ends = {} if bounds["max"] is None else {part: (len(rows), bounds["max"])}
        return AttachedFile(path, len(rows), size, bounds["min"], bounds["max"], part, values), ends
    columns = {
        PART: typed(rows.column(identity[0]), pyarrow.int32(), identity[0]),
        SEQ: typed(rows.column(identity[1]), pyarrow.int64(), identity[1]),
        TS: times,
    }
    grouped = pyarrow.table(columns).group_by(PART).aggregate([(SEQ, "max"), (TS, "max"), (SEQ, "min")])
    ends = {}
    for row in grouped.to_pylist():
        if row[PART] is None or row[PART] < 0 or row[f"{SEQ}_min"] is None or row[f"{SEQ}_min"] < 0:
            raise Failure(f"{path}: a part or a position is null or negative")
        if row[f"{TS}_max"] is not None:
            ends[row[PART]] = (row[f"{SEQ}_max"] + 1, row[f"{TS}_max"])
    return AttachedFile(path, len(rows), size, bounds["min"], bounds["max"], None, values), ends


def _reached(ends: Iterable[Ends]) -> dict[str, tuple[int, int]]:
    """How far each part comes in all files together."""
    found: dict[str, tuple[int, int]] = {}
    for part, (after, ts) in (pair for each in ends for pair in each.items()):
        before = found.get(str(part), (0, ts))
        found[str(part)] = max(after, before[0]), max(ts, before[1])
    return found


def _check_names(table: AttachedTable, where: str) -> None:
    parts = [each.part for each in table.files if each.part is not None]
    if len(set(parts)) < len(parts):
        hint = "name the columns that have part and seq: identity"
        raise Mistake(f"{where}: two of its files get the same part by their names", hint=hint)


def _check_parts(state: TableState, reached: Mapping[str, object], where: str) -> None:
    both = sorted(int(part) for part in state.next.keys() & reached.keys() if state.next[part] > 0)
    if both:
        raise Mistake(
            f"{where}: the archive holds part {both[0]} already",
            hint="a table is attached before events of the same parts come in",
        )
