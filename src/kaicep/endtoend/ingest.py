"""Files into the archive: what is not there yet, each record once, and what cannot be read beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kaicep.archive.archive import Archive
from kaicep.archive.columns import TS, Shape
from kaicep.archive.stream import StreamTable
from kaicep.connectors.files import parts_of
from kaicep.connectors.options import Count
from kaicep.connectors.shape import DeadLetter, Form, Schema
from kaicep.connectors.sources.files import FileOptions, FileSource
from kaicep.endtoend.arrow_files import are_direct, arrow_tables
from kaicep.plan.events import Event

__all__ = ["Ingested", "ingest"]

BATCH = 250_000
"""So many records are appended at a time."""


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
    parts = parts_of(form.stream, path)
    sources = {part: file.name for part, file in parts.items()}
    table = archive.stream(form.stream) if form.stream in archive.streams() else None
    held = table.positions if table is not None else {}
    schema = _schema(form, path, parts, table)
    shape = Shape(schema.attributes, TS if schema.rdf else form.time, schema.rdf)
    table = archive.made(form.stream, shape)
    table.append([], {}, sources=sources)
    done = Ingested(form.stream, positions=held)
    if not schema.rdf and are_direct(parts, form, schema):
        for part, rows, first in arrow_tables(parts, form, schema, held):
            covered = {part: (first, first + rows.num_rows)}
            added = table.append(rows, covered, shape, lateness, sources)
            done = replace(done, rows=done.rows + added.rows, late=done.late + added.late)
    else:
        for events, dead, covered in _batches(form, path, held, schema):
            archive.dead_letters.append(form.stream, [each.to_dict() for each in dead], covered)
            added = table.append(events, covered, shape, lateness, sources)
            rows, late = done.rows + added.rows, done.late + added.late
            done = replace(done, rows=rows, late=late, dead=(*done.dead, *dead))
    return replace(done, positions=table.positions)


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


def _batches(
    form: Form, path: Path, held: Mapping[int, int], schema: Schema
) -> Iterator[tuple[list[Event], list[DeadLetter], dict[int, tuple[int, int]]]]:
    """Events, dead letters and what they cover of each part, a batch at a time."""
    with FileSource(form, FileOptions(path, batch=Count(BATCH))) as source:
        source.open(held, schema)
        before, ended = dict(held), False
        while not ended:
            batch = source.next_batch(0)
            after = dict(batch.position)
            covered = {
                part: (before.get(part, 0), at) for part, at in after.items() if at > before.get(part, 0)
            }
            before, ended = after, batch.ended
            if covered:
                yield list(batch.events), list(batch.dead), covered
