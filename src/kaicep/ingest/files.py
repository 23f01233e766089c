"""Files, topics and existing tables into the archive, in independent ranges, each record once."""

from __future__ import annotations

import posixpath
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kaicep.archive.archive import Archive
from kaicep.archive.parquet import PART, SEQ, TS, TableShape, moments, rows_of
from kaicep.archive.stream_table import StreamTable
from kaicep.archive.table import AttachedFile, AttachedTable, TableState, attempts, typed
from kaicep.connectors.columnar import EventColumns, value_columns
from kaicep.connectors.files import growing_names, is_whole, parts_of
from kaicep.connectors.kafka import KafkaSource, KafkaSourceOptions, kafka_record
from kaicep.connectors.kafka_offsets import Offsets, Records, offsets_of, read_offsets, topic_ends
from kaicep.connectors.parts import (
    FileRange,
    history_part,
    is_history,
    note_of,
    read_events,
    read_stretch,
    remember,
    stretches,
)
from kaicep.connectors.records import Record
from kaicep.connectors.shape import DeadLetter, Form, Schema, Shaper, refuse_wide
from kaicep.connectors.sources.files import FileSource, FileSourceOptions
from kaicep.errors import Failure, Mistake, did_you_mean
from kaicep.plan.types import Type
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.places import options_of, place_of

if TYPE_CHECKING:
    import pyarrow

    from kaicep.ingest.materialise import Knowing, Materialise

# ----------------------------------------------------------------------------------------------------------
# What is to be taken into the archive: files or a topic, in pieces that anybody can read by themselves.

Origin = Path | KafkaSourceOptions
"""Where a stream comes from: a file or a folder, or a topic."""

Piece = FileRange | Offsets
"""A stretch of one part."""

Waiting = Callable[[str], None]

_BEGINNING = 64


@dataclass(frozen=True)
class Plan:
    """What is to be read of a stream, and where it goes."""

    form: Form
    schema: Schema
    origin: Origin
    table: StreamTable
    held: Mapping[int, int]
    sources: Mapping[int, str]
    pieces: Iterator[Piece]
    ends: Mapping[int, int] | None = None
    """The position after the last of each part, where that is known before it is read: of a topic."""
    knowing: Knowing | None = None
    """What is written beside the events."""

    def behind(self, positions: Mapping[int, int]) -> int | None:
        """How many records lie beyond the positions, where the source can tell."""
        if self.ends is None:
            return None
        return sum(max(0, end - positions.get(part, 0)) for part, end in self.ends.items())

    @property
    def shape(self) -> TableShape:
        """The rows as the archive has them."""
        return shape_with(self.form, self.schema, self.knowing)


def planned(
    archive: Archive,
    form: Form,
    origin: Origin,
    waiting: Waiting = lambda trouble: None,
    growing: bool = False,
    materialise: Materialise | None = None,
    history: bool = False,
) -> Plan | None:
    """Looks at the source and at the archive, whose table is made where there is none.

    `waiting` hears what is waited for. With `growing`, lines and files may still come: half a line waits for
    the rest, and files keep their parts by a note in their folder. `materialise` says which columns to add.
    With `history`, the files are that of a stream whose live source is something else.
    None where there is nothing yet from which to tell what the stream is.
    """
    table = archive.stream(form.stream) if form.stream in archive.streams() else None
    if isinstance(origin, KafkaSourceOptions):
        return _planned_topic(archive, form, origin, table, waiting, materialise)
    held = table.positions if table is not None else {}
    files = _growing(origin) if growing and origin.is_dir() else parts_of(form.stream, origin)
    sources = {part: file.name for part, file in files.items()}
    if history:
        files = _as_history(form.stream, files)
        sources = {part: f"history {_seen_as(file)}" for part, file in files.items()}
    schema = _schema(form, origin, files, table, growing) if files else None
    if schema is None:
        return None
    knowing = materialise.of(form.stream, schema) if materialise is not None else None
    table = archive.made(form.stream, shape_with(form, schema, knowing))
    table.append([], {}, sources=sources)  # refuses files that are others than they were
    live = {} if history else {part: seq for part, seq in held.items() if not is_history(part)}
    for part, seq in live.items():
        if seq and part > max(files):  # one in between may have been removed after it was read
            raise Failure(
                f"stream {form.stream}: the archive holds {seq} records of part {part}, but {origin} has no "
                f"such file ({len(files)} in all): some are gone, or this is another stream"
            )

    def pieces() -> Iterator[Piece]:
        for part, path in files.items():
            yield from stretches(form, schema, part, path, held.get(part, 0), growing)

    return Plan(form, schema, origin, table, held, sources, pieces(), knowing=knowing)


def _as_history(stream: str, files: Mapping[int, Path]) -> dict[int, Path]:
    """The files by the parts that they have beside a live source, in the order of their names."""
    found: dict[int, Path] = {}
    for path in files.values():
        other = found.setdefault(history_part(path.name), path)
        if other != path:  # one in 2 ** 30
            raise Mistake(
                f"stream {stream}: {other.name} and {path.name} have names that lead to one part",
                hint="rename one of them",
            )
    return dict(sorted(found.items(), key=lambda each: each[1].name))


def _seen_as(path: Path) -> str:
    """What a file of history is known by: its name, and what it begins with."""
    with path.open("rb") as file:
        return f"{path.name} {zlib.crc32(file.read(_BEGINNING)):08x}"


def _growing(folder: Path) -> dict[int, Path]:
    """The files of a folder that can be read by now."""
    names = growing_names(folder)
    found = remember(note_of(folder), names).values()
    paths = {each.part: folder / each.now for each in found if each.now in names}
    return {part: path for part, path in sorted(paths.items()) if is_whole(path)}


def _planned_topic(
    archive: Archive,
    form: Form,
    origin: KafkaSourceOptions,
    table: StreamTable | None,
    waiting: Waiting,
    materialise: Materialise | None,
) -> Plan | None:
    refuse_wide(form, "a topic")
    where = f"stream {form.stream}"
    ends = topic_ends(origin, where, waiting)
    if table is None:
        if not form.types and all(low == high for low, high in ends.values()):
            return None
        schema = _learned(form, origin)
    else:
        known = {**dict(table.shape.attributes), **form.types}
        schema = Schema(rdf=True) if table.shape.rdf else Schema(tuple(known.items()))
    knowing = materialise.of(form.stream, schema) if materialise is not None else None
    table = table or archive.made(form.stream, shape_with(form, schema, knowing))
    sources = {part: f"{origin.topic}/{part}" for part in ends}
    table.append([], {}, sources=sources)
    held = table.positions
    pieces = offsets_of(origin, where, ends, held)
    highest = {part: high for part, (_, high) in ends.items()}
    return Plan(form, schema, origin, table, held, sources, pieces, highest, knowing)


def _learned(form: Form, options: KafkaSourceOptions) -> Schema:
    """The attributes as the oldest records of a topic have them."""
    with KafkaSource(form, replace(options, follow=False)) as source:
        source.open()
        while source.schema is None:
            source.next_batch(1.0)
        return source.schema


def _schema(
    form: Form, path: Path, parts: Mapping[int, Path], table: StreamTable | None, growing: bool
) -> Schema | None:
    """The attributes: those of the archive, the declared ones, those of files that are new."""
    if table is None:
        return _inferred(form, path, growing)
    shape = table.shape
    if shape.rdf:
        return Schema(rdf=True)
    known = dict(shape.attributes)
    fixed = replace(form, types={**known, **form.types})
    seen = {**known, **form.types}
    begun = table.newest  # records of the others, if there are any, were all bad, and told nothing
    for part, file in parts.items():
        if part not in begun and (found := _inferred(fixed, file, growing)) is not None:
            seen = {**dict(found.attributes), **seen}
    return Schema(tuple({**known, **seen}.items()))


def _inferred(form: Form, path: Path, growing: bool) -> Schema | None:
    """The attributes as the first records have them; None while there is no whole record."""
    with FileSource(form, FileSourceOptions(path, follow=growing)) as source:
        source.open()
        if source.schema is None:
            source.next_batch(0)
        return source.schema


def shape_with(form: Form, schema: Schema, knowing: Knowing | None = None) -> TableShape:
    """What a table holds of a stream, and of what is known of its events."""
    known = knowing.names if knowing is not None else ()
    return TableShape(schema.attributes, TS if schema.rdf else form.time, schema.rdf, known)


# --- pieces -------------------------------------------------------------------------------------------


def gathered(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """Pieces in groups of so many positions, about: small files are not worth a commit each.

    >>> [len(each) for each in gathered([Offsets(part, 0, 4) for part in range(5)], 8)]
    [2, 2, 1]
    """
    group: list[Piece] = []
    for each in pieces:
        group.append(each)
        if sum(some.after - some.first for some in group) >= most:
            yield group
            group = []
    if group:
        yield group


def covered_by(group: Iterable[Piece], held: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """What a group covers of each part; what lies between the held position and the first was nothing.

    >>> covered_by([Offsets(0, 5, 7), Offsets(0, 7, 9), Offsets(1, 3, 4)], {0: 5})
    {0: (5, 9), 1: (0, 4)}

    A group that begins before what is held covers that once more: whoever appends it must cut it.

    >>> covered_by([Offsets(0, 5, 9)], {0: 7})
    {0: (5, 9)}
    """
    found: dict[int, tuple[int, int]] = {}
    for each in group:
        first, after = found.get(each.part, (held.get(each.part, 0), 0))
        found[each.part] = min(first, each.first), max(after, each.after)
    return found


def rows_of_piece(
    piece: Piece, form: Form, schema: Schema, origin: Origin
) -> tuple[pyarrow.Table, Sequence[DeadLetter]]:
    """The events of a piece as rows of the archive, and what could not be read."""
    import pyarrow

    if isinstance(piece, FileRange):
        if schema.rdf:
            events, dead = read_events(piece, form, schema)
            return rows_of(events, shape_with(form, schema)), dead
        columns = read_stretch(piece, form, schema)
        return rows_of_columns(columns, piece.part, form), columns.dead
    assert isinstance(origin, KafkaSourceOptions)
    where = f"stream {form.stream}"
    some = [rows_of_records(each, form, schema, origin.topic) for each in read_offsets(origin, where, piece)]
    if not some:
        return rows_of([], shape_with(form, schema)), []
    return pyarrow.concat_tables([rows for rows, _ in some]), [each for _, dead in some for each in dead]


def rows_of_records(
    records: Records, form: Form, schema: Schema, topic: str
) -> tuple[pyarrow.Table, Sequence[DeadLetter]]:
    """The events of records of a topic as rows of the archive, and what could not be read."""
    shaper = Shaper(form, schema)

    def exact(at: int) -> Record:
        return kafka_record(topic, records.part, records.seq[at], records.values[at], form.notation)

    if schema.rdf:
        events, dead = shaper.shape(map(exact, range(len(records.seq))))
        return rows_of(events, shape_with(form, schema)), dead
    columns = value_columns(shaper, records.seq, records.values, exact)
    return rows_of_columns(columns, records.part, form), columns.dead


def rows_of_columns(columns: EventColumns, part: int, form: Form) -> pyarrow.Table:
    """Events by columns as rows of the archive."""
    import numpy
    import pyarrow

    made = dict(columns.values)
    made[TS] = made[form.time]
    made[PART] = pyarrow.array(numpy.full(len(columns.seq), part, numpy.int32))
    made[SEQ] = columns.seq
    return pyarrow.table(made)


# ----------------------------------------------------------------------------------------------------------
# Ctrl-C and what must not be torn apart: a commit, and what is remembered of it.


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Inside, Ctrl-C waits until the end; a second one does not.

    Then it does what it would have done: it raises `KeyboardInterrupt`, or what Spark's session or
    somebody else makes of it. Where signals arrive elsewhere (in another thread), nothing changes. An error
    inside comes before the interrupt.

    >>> done = []
    >>> try:
    ...     with interrupted_later():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("to its end")
    ... except KeyboardInterrupt:
    ...     done.append("interrupted")
    >>> done
    ['to its end', 'interrupted']
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            handler(number, frame)
        asked = True

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if asked:
        handler(signal.SIGINT, None)


# ----------------------------------------------------------------------------------------------------------
# Files and topics into the archive: what is not there yet, each record once, and what cannot be read.

BATCH = 250_000
"""So many records are appended at a time, about."""


@dataclass(frozen=True)
class Ingested:
    """What was added to a stream's table: rows, those of them that are late, and what could not be read."""

    stream: str
    rows: int = 0
    late: int = 0
    dead: tuple[DeadLetter, ...] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    behind: int | None = None
    """How many records are still to come, where the source can tell."""

    def plus(self, rows: int, late: int, dead: Sequence[DeadLetter]) -> Ingested:
        """With one more batch."""
        return replace(self, rows=self.rows + rows, late=self.late + late, dead=(*self.dead, *dead))


def ingest(
    archive: Archive,
    form: Form,
    origin: Origin,
    lateness: int | None = None,
    tell: Callable[[Ingested], None] = lambda done: None,
    waiting: Callable[[str], None] = lambda trouble: None,
    growing: bool = False,
    materialise: Materialise | None = None,
    history: bool = False,
) -> Ingested:
    """Appends the records of files, or of a topic up to its end, that the archive does not hold yet.

    Types that the archive has are kept: a value that does not fit is a bad record, as anywhere else. A new
    attribute is taken in where it is declared, or appears at the beginning of a file that is new. `tell`
    hears of every batch, `waiting` of a broker that is down. With `growing`, half a line waits for the rest.
    `materialise` says what else to write beside the events. With `history`, the files are that of a stream
    whose live source is something else: each has a part of its own, whatever other files there are.
    """
    plan = planned(archive, form, origin, waiting, growing, materialise=materialise, history=history)
    if plan is None:
        return Ingested(form.stream)
    done = Ingested(form.stream, positions=plan.held)
    for group in gathered(plan.pieces, BATCH):
        rows, dead = _read(plan, group)
        covered = covered_by(group, done.positions)
        with interrupted_later():  # what is committed is told too
            archive.dead_letters.append(form.stream, [each.to_dict() for each in dead], covered)
            added = plan.table.append(rows, covered, plan.shape, lateness, plan.sources)
            positions = plan.table.positions
            done = replace(
                done.plus(added.rows, added.late, dead), positions=positions, behind=plan.behind(positions)
            )
            tell(done)
    return done


def _read(plan: Plan, group: Sequence[Piece]) -> tuple[pyarrow.Table, list[DeadLetter]]:
    import pyarrow

    read = [rows_of_piece(each, plan.form, plan.schema, plan.origin) for each in group]
    rows = pyarrow.concat_tables([rows for rows, _ in read])
    rows = plan.knowing.beside(rows) if plan.knowing is not None else rows
    return rows, [each for _, dead in read for each in dead]


# ----------------------------------------------------------------------------------------------------------
# An existing table becomes the history of a stream, without a copy.


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
