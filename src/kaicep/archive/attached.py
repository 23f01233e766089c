"""Existing tables as the history of a stream: they stay where they are, and kaicep only reads them.

The archive keeps a list of their files, with the times and the rows of each, beside its own table. A commit
names the list, so that it counts from then on, together with the positions of its events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from kaicep.archive.parquet import LATE, PART, SEQ, TS, DataFile, moments
from kaicep.errors import Failure
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.disk import read_sealed, replace_sealed
from kaicep.storage.places import place_of

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class AttachedFile:
    """A file of such a table: where it is, its events; the part that it is, unless a column says so.

    `values` are those of columns that stand in its path, as in a table that is divided by them.
    """

    path: str
    rows: int
    size: int
    low: int | None
    high: int | None
    part: int | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class AttachedTable:
    """A table as it was when it was attached; `identity` are the columns of part and seq, if it has them."""

    place: str
    version: int | None
    time: str
    identity: tuple[str, ...]
    files: tuple[AttachedFile, ...]

    def write(self, folder: Path) -> str:
        """Writes it down beside a table; the name under which a commit may speak of it."""
        name = f"_attached-{uuid4().hex}.json"
        replace_sealed(folder / name, json.dumps(asdict(self)).encode())
        return name

    @classmethod
    def read(cls, path: Path) -> AttachedTable:
        """What was written down."""
        try:
            found = json.loads(read_sealed(path))
        except OSError as error:
            raise Failure(f"the list of the files of an attached table is gone: {error}") from None
        files = tuple(AttachedFile(**each) for each in found.pop("files"))
        return cls(**{**found, "identity": tuple(found["identity"]), "files": files})

    @cached_property
    def listed(self) -> list[DataFile]:
        """Its files as a table of the archive lists its own."""
        return [DataFile(each.path, each.rows, each.size, each.low, each.high) for each in self.files]

    def batches(self, path: str, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """The events of a file with the columns of the archive; rows without a time are none."""
        import pyarrow.compute as pc

        file = self._by_path[path]
        first = 0
        for batch in parquet_dataset([place_of(path, "the table")]).to_batches(batch_readahead=1):
            rows = self._events(file, first, batch, schema)
            first += batch.num_rows
            kept = rows.filter(pc.and_(pc.is_valid(rows.column(TS)), pc.is_valid(rows.column(SEQ))))
            yield from kept.to_batches()

    @cached_property
    def _by_path(self) -> dict[str, AttachedFile]:
        return {each.path: each for each in self.files}

    def _events(
        self, file: AttachedFile, first: int, batch: pyarrow.RecordBatch, schema: pyarrow.Schema
    ) -> pyarrow.Table:
        import numpy
        import pyarrow

        count = batch.num_rows
        said = {name: pyarrow.repeat(pyarrow.scalar(value), count) for name, value in file.values.items()}
        told = {**said, **{name: batch.column(name) for name in batch.schema.names}}
        if self.identity:
            part, seq = (told.get(name) for name in self.identity)
        else:
            part = pyarrow.repeat(pyarrow.scalar(file.part), count)
            seq = pyarrow.array(numpy.arange(first, first + count))
        own = {PART: part, SEQ: seq, LATE: pyarrow.repeat(pyarrow.scalar(False), count)}
        own[TS] = told.get(self.time)
        columns = []
        for each in schema:
            found = own.get(each.name, told.get(each.name))
            if found is None:
                found = pyarrow.nulls(count, each.type)
            columns.append(typed(found, each.type, each.name))
        return pyarrow.Table.from_arrays(columns, schema=schema)


def typed(values: pyarrow.Array, wanted: pyarrow.DataType, name: str) -> pyarrow.Array:
    """A column as the archive has it: times are UTC microseconds, NaN and infinities are null."""
    import pyarrow
    import pyarrow.compute as pc

    try:
        if wanted == moments() and not pyarrow.types.is_timestamp(values.type):
            values = values.cast(pyarrow.timestamp("us"))
        if pyarrow.types.is_timestamp(values.type):
            values = values.cast(pyarrow.timestamp("us", values.type.tz), safe=False)
        made = values.cast(wanted)
    except pyarrow.ArrowException:
        raise Failure(f"the column {name} of the table is {values.type}, and not {wanted}") from None
    if pyarrow.types.is_floating(wanted):
        made = pc.if_else(pc.is_finite(made), made, pyarrow.scalar(None, wanted))
    return made
