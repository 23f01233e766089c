"""Files into the archive: what is not there yet, each record once, and what cannot be read beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.archive.archive import Archive
from kaicep.archive.columns import PART, SEQ, TS, Shape, rows_of
from kaicep.archive.stream import StreamTable
from kaicep.connectors.columnar import Columns
from kaicep.connectors.files import parts_of
from kaicep.connectors.shape import DeadLetter, Form, Schema
from kaicep.connectors.sources.files import FileOptions, FileSource
from kaicep.connectors.stretches import Stretch, covered_by, gathered, read_events, read_stretch, stretches
from kaicep.errors import Failure

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "Ingested",
    "Plan",
    "ingest",
    "planned",
    "rows_of_columns",
    "rows_of_stretch",
    "shape_of_schema",
]


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


def ingest(archive: Archive, form: Form, path: Path, lateness: int | None = None) -> Ingested:
    """Appends the records of a file, or of a folder of files, that the archive does not hold yet.

    Types that the archive has are kept: a value that does not fit is a bad record, as anywhere else. A new
    attribute is taken in where it is declared, or appears at the beginning of a file that is new.
    """
    plan = planned(archive, form, path)
    done = Ingested(form.stream, positions=plan.held)
    for group in gathered(plan.stretches(), BATCH):
        rows, dead = _read(plan, group)
        covered = covered_by(group)
        archive.dead_letters.append(form.stream, [each.to_dict() for each in dead], covered)
        added = plan.table.append(rows, covered, plan.shape, lateness, plan.sources)
        done = replace(
            done, rows=done.rows + added.rows, late=done.late + added.late, dead=(*done.dead, *dead)
        )
    return replace(done, positions=plan.table.positions)


def _read(plan: Plan, group: Sequence[Stretch]) -> tuple[pyarrow.Table, list[DeadLetter]]:
    import pyarrow

    read = [rows_of_stretch(each, plan.form, plan.schema) for each in group]
    return pyarrow.concat_tables([rows for rows, _ in read]), [each for _, dead in read for each in dead]


@dataclass(frozen=True)
class Plan:
    """What is to be read, and where it goes."""

    form: Form
    schema: Schema
    parts: Mapping[int, Path]
    table: StreamTable
    held: Mapping[int, int]

    @property
    def shape(self) -> Shape:
        """The rows as the archive has them."""
        return shape_of_schema(self.form, self.schema)

    @property
    def sources(self) -> dict[int, str]:
        """The file behind each part."""
        return {part: file.name for part, file in self.parts.items()}

    def stretches(self, growing: bool = False) -> Iterator[Stretch]:
        """What the archive does not hold yet, in order."""
        for part, path in sorted(self.parts.items()):
            yield from stretches(self.form, self.schema, part, path, self.held.get(part, 0), growing)


def planned(archive: Archive, form: Form, path: Path) -> Plan:
    """Looks at the files and at the archive, whose table is made where there is none."""
    parts = parts_of(form.stream, path)
    table = archive.stream(form.stream) if form.stream in archive.streams() else None
    held = table.positions if table is not None else {}
    schema = _schema(form, path, parts, table)
    plan = Plan(form, schema, parts, archive.made(form.stream, shape_of_schema(form, schema)), held)
    plan.table.append([], {}, sources=plan.sources)
    for part, seq in held.items():
        if seq and part not in parts:
            raise Failure(
                f"stream {form.stream}: the archive holds {seq} records of part {part}, but {path} has no "
                f"such file ({len(parts)} in all): some are gone, or it is another stream"
            )
    return plan


def shape_of_schema(form: Form, schema: Schema) -> Shape:
    """A stream as a table of the archive."""
    return Shape(schema.attributes, TS if schema.rdf else form.time, schema.rdf)


def rows_of_stretch(
    stretch: Stretch, form: Form, schema: Schema
) -> tuple[pyarrow.Table, Sequence[DeadLetter]]:
    """The events of a stretch as rows of the archive, and what could not be read."""
    if schema.rdf:
        events, dead = read_events(stretch, form, schema)
        return rows_of(events, shape_of_schema(form, schema)), dead
    columns = read_stretch(stretch, form, schema)
    return rows_of_columns(columns, stretch.part, form), columns.dead


def rows_of_columns(columns: Columns, part: int, form: Form) -> pyarrow.Table:
    """Events by columns as rows of the archive."""
    import numpy
    import pyarrow

    made = dict(columns.values)
    made[TS] = made[form.time]
    made[PART] = pyarrow.array(numpy.full(len(columns.seq), part, numpy.int32))
    made[SEQ] = columns.seq
    return pyarrow.table(made)


def _schema(form: Form, path: Path, parts: Mapping[int, Path], table: StreamTable | None) -> Schema:
    """The attributes: those of the archive, the declared ones, those of files that are new."""
    if table is None:
        return _inferred(form, path)
    shape = table.shape
    if shape.rdf:
        return Schema(rdf=True)
    known = dict(shape.attributes)
    fixed = replace(form, types={**known, **form.types})
    seen = {**known, **form.types}
    for part, file in parts.items():
        if part not in table.positions:
            seen = {**dict(_inferred(fixed, file).attributes), **seen}
    return Schema(tuple({**known, **seen}.items()))


def _inferred(form: Form, path: Path) -> Schema:
    with FileSource(form, FileOptions(path)) as source:
        source.open()
        assert source.schema is not None
        return source.schema
