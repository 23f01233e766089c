"""The table of one stream: batches come in, each source position once, and its upkeep (semantics 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.archive.parquet import (
    LATE,
    PART,
    ROWS,
    SEQ,
    TS,
    DataFile,
    TableShape,
    arrow_schema,
    check_names,
    discard,
    extended,
    in_time,
    measured,
    moments,
    rows_of,
    shape_of,
    write_files,
)
from kaicep.archive.table import ArchiveTable, AttachedTable, Ranges, attempts, fresh, moved
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Event
from kaicep.storage.delta import parquet_dataset

if TYPE_CHECKING:
    import pyarrow

# ----------------------------------------------------------------------------------------------------------
# The table of one stream: batches come in, each source position once (semantics 1).

_TIME = "kaicep.time"


@dataclass(frozen=True)
class Appended:
    """What an append did: the rows that it added, those of them that are late, the version after it."""

    rows: int
    late: int
    version: int


class Overtaken(Failure):
    """Another writer has appended some of what these files hold; nothing was changed."""


class StreamTable:
    """A stream's table. Two of them on one folder may append at the same time: each row gets in once."""

    def __init__(self, folder: Path, stream: str, version: int | None = None) -> None:
        self.stream = stream
        self.table = ArchiveTable(folder, stream, version)
        self._attached: tuple[str, AttachedTable] | None = None

    @classmethod
    def create(cls, folder: Path, stream: str, shape: TableShape) -> StreamTable:
        """Makes the table of a stream that was not archived so far."""
        schema = arrow_schema(check_names(stream, shape))
        ArchiveTable.create(folder, stream, schema, {_TIME: shape.time})
        return cls(folder, stream)

    @property
    def shape(self) -> TableShape:
        """What it holds."""
        return shape_of(self.table.schema, self.table.about.get(_TIME, TS))

    @property
    def positions(self) -> dict[int, int]:
        """The next position of each part."""
        return {int(part): at for part, at in self.table.state.next.items()}

    @property
    def newest(self) -> dict[int, int]:
        """The largest `ts` of each part so far, by which the next ones are judged to be late or not."""
        return {int(part): ts for part, ts in self.table.state.newest.items()}

    @property
    def attached(self) -> AttachedTable | None:
        """The table that is read beside this one, as history."""
        name = self.table.state.attached
        if name is None:
            return None
        if self._attached is None or self._attached[0] != name:
            self._attached = name, AttachedTable.read(self.table.folder / name)
        return self._attached[1]

    def files(self) -> list[DataFile]:
        """All files with its events, those of an attached table too."""
        attached = self.attached
        return self.table.files() + (attached.listed if attached is not None else [])

    # --- rows come in ---

    def append(
        self,
        rows: pyarrow.Table | Sequence[Event],
        ranges: Mapping[int, tuple[int, int]],
        shape: TableShape | None = None,
        lateness: int | None = None,
        sources: Mapping[int, str] | None = None,
    ) -> Appended:
        """Adds what is not there yet.

        `rows` are events, or rows with the columns of this table, in order of position within each part;
        `ranges` what they cover of each part, from its first position to the one after the last. `shape`
        is that of the rows, where they may have attributes that the table does not. `sources` names the
        source behind each part, which may not change. Rows further than `lateness` behind the newest of
        their part are marked late; marks that they have stay.
        """
        import pyarrow

        covered, named = _by_text(ranges), _by_text(sources or {})

        def once() -> Appended:
            self.table.refresh()
            state = self.table.state
            new = fresh(self.stream, state, covered)
            if not new:
                moved(self.stream, state, {}, {}, named)
                return Appended(0, 0, self.table.version)
            if shape is not None:
                self.widen(shape)
            made = (
                conforming(self.stream, rows, self.table.schema)
                if isinstance(rows, pyarrow.Table)
                else rows_of(rows, self.shape).select(self.table.schema.names)
            )
            kept, newest = marked(_within(made, new), state.newest, lateness)
            after = moved(self.stream, state, new, newest, named)
            files = self._written(kept)
            try:
                self.table.commit(after, files)
            except BaseException:
                self.table.drop(each.path for each in files)
                raise
            late = _count(kept.column(LATE)) if lateness is not None else 0
            return Appended(kept.num_rows, late, self.table.version)

        return attempts(self.stream, once)

    def commit_files(
        self,
        paths: Sequence[Path],
        ranges: Mapping[int, tuple[int, int]],
        sources: Mapping[int, str] | None = None,
    ) -> Appended:
        """Adds Parquet files that somebody else has written into the table's folder, late marks and all.

        They hold every event of the ranges and nothing else. Files cannot be cut: they must begin where
        the table ends. Where it holds all of them already, they are removed, and nothing is added. A
        file in order of `ts`, with `ts` as INT64 microseconds, is one that a time range can leave out.
        """
        covered, named = _by_text(ranges), _by_text(sources or {})
        folder = self.table.folder.resolve()
        names = [each.resolve().relative_to(folder).as_posix() for each in paths]

        def once() -> Appended:
            self.table.refresh()
            state = self.table.state
            new = fresh(self.stream, state, covered)
            if not new:
                discard(self.table.folder, names)
                return Appended(0, 0, self.table.version)
            for part, (held, _) in new.items():
                if covered[part][0] != held or new.keys() != covered.keys():
                    raise Overtaken(
                        f"{self.stream}: the archive holds part {part} up to position {held}; files that "
                        f"begin at {covered[part][0]} hold some of it again, and cannot be cut"
                    )
            files = [measured(self.table.folder, each) for each in names]
            self._check(names)
            newest, late = self._summary(names, covered)
            after = moved(self.stream, state, new, newest, named)
            self.table.commit(after, files)
            return Appended(sum(each.rows for each in files), late, self.table.version)

        return attempts(self.stream, once)

    def widen(self, shape: TableShape) -> None:
        """Adds the attributes that the table does not have."""
        held = self.shape
        wanted = extended(self.stream, held, shape)
        if wanted != held:
            known = {name for name, _ in held.attributes}
            new = [
                each for each in arrow_schema(wanted) if each.name not in (*self.table.schema.names, *known)
            ]
            self.table.add_columns(new)

    def _written(self, rows: pyarrow.Table) -> list[DataFile]:
        try:
            return write_files(self.table.folder, in_time(rows))
        except OSError as error:
            raise Failure(f"cannot write to {self.table.folder}: {error}; nothing was appended") from None

    def _check(self, names: Sequence[str]) -> None:
        """Refuses files whose columns are not those of the table."""
        schema = self.table.schema
        for name in names:
            found = parquet_dataset([self.table.folder / name]).schema
            for each in found:
                at = schema.get_field_index(each.name)
                if at < 0 or schema.field(at).type != each.type:
                    wanted = "no such column" if at < 0 else str(schema.field(at).type)
                    raise Mistake(
                        f"{self.stream}: {name} has {each.name} as {each.type}; the archive: {wanted}"
                    )

    def _summary(self, names: Sequence[str], covered: Ranges) -> tuple[dict[str, int], int]:
        """The largest time of each part in some files, and how many of their rows are late.

        Rows whose positions are not covered are refused.
        """
        import pyarrow

        if not names:
            return {}, 0
        rows = parquet_dataset([self.table.folder / each for each in names]).to_table([TS, PART, SEQ, LATE])
        found = rows.group_by(PART).aggregate([(TS, "max"), (SEQ, "min"), (SEQ, "max")])
        newest: dict[str, int] = {}
        columns = [found.column(name) for name in (PART, f"{TS}_max", f"{SEQ}_min", f"{SEQ}_max")]
        for part, ts, first, last in zip(
            *(each.cast(pyarrow.int64()).to_pylist() for each in columns), strict=True
        ):
            begin, after = covered.get(str(part), (0, 0))
            if not begin <= first <= last < after:
                raise Failure(
                    f"{self.stream}: the files hold positions {first} to {last} of part {part}, and shall "
                    f"cover {begin} to {after - 1}"
                )
            newest[str(part)] = ts
        return newest, _count(rows.column(LATE))


def conforming(stream: str, rows: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The rows with exactly the columns of a table."""
    import pyarrow

    unknown = [each for each in rows.column_names if each not in schema.names]
    if unknown:
        raise Mistake(f"{stream}: the archive has no column {unknown[0]}")
    columns = [
        rows.column(each.name).cast(each.type)
        if each.name in rows.column_names
        else pyarrow.repeat(pyarrow.scalar(False if each.name == LATE else None, each.type), rows.num_rows)
        for each in schema
    ]
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _count(marks: pyarrow.ChunkedArray) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(marks, min_count=0).as_py())


def _by_text(given: Mapping[int, Any]) -> dict[str, Any]:
    return {str(part): value for part, value in given.items()}


def _within(rows: pyarrow.Table, new: Ranges) -> pyarrow.Table:
    """The rows whose positions are new."""
    import pyarrow.compute as pc

    mask = None
    for part, (first, after) in new.items():
        seq = rows.column(SEQ)
        here = pc.and_(
            pc.equal(rows.column(PART), int(part)),
            pc.and_(pc.greater_equal(seq, first), pc.less(seq, after)),
        )
        mask = here if mask is None else pc.or_(mask, here)
    return rows.filter(mask)


def marked(
    rows: pyarrow.Table, newest: Mapping[str, int], lateness: int | None
) -> tuple[pyarrow.Table, dict[str, int]]:
    """The rows with their late marks, and the largest time of each part.

    `newest` has the largest time of each part before them; a part that it does not mention begins here.
    """
    import numpy
    import pyarrow

    parts = rows.column(PART).to_numpy()
    times = rows.column(TS).cast(pyarrow.int64()).to_numpy()
    late = rows.column(LATE).to_numpy(zero_copy_only=False).astype(bool).copy()
    largest: dict[str, int] = {}
    for part in numpy.unique(parts):
        at = numpy.flatnonzero(parts == part)
        at = at[numpy.argsort(rows.column(SEQ).to_numpy()[at], kind="stable")]
        own = times[at]
        before = newest.get(str(part), int(own[0]))
        running = numpy.maximum.accumulate(numpy.concatenate(([before], own)))
        if lateness is not None:
            late[at] |= own < running[:-1] - lateness
        largest[str(part)] = int(running[-1])
    place = rows.schema.get_field_index(LATE)
    return rows.set_column(place, LATE, pyarrow.array(late)), largest


# ----------------------------------------------------------------------------------------------------------
# The upkeep of a table: files put together in order of time, old events removed, space given back.


@dataclass(frozen=True)
class UpkeepReport:
    """What upkeep did: how many files, rows and bytes there were before and after."""

    before: Sequence[DataFile]
    after: Sequence[DataFile]

    @property
    def removed(self) -> int:
        """How many rows are gone."""
        return sum(each.rows for each in self.before) - sum(each.rows for each in self.after)


def compact(stream: StreamTable, most: int = ROWS) -> UpkeepReport:
    """Puts small files together, and files whose times overlap in order; rows and positions stay."""

    def once() -> UpkeepReport:
        table = stream.table
        table.refresh()
        before = table.files()
        groups = list(_groups(before, most))
        removed = [each for group in groups for each in group]
        if not removed:
            return UpkeepReport(before, before)
        added = _rewritten(table, groups, most)
        _commit(table, added, removed)
        return UpkeepReport(before, table.files())

    return attempts(stream.stream, once)


def at_most(share: float, files: Sequence[DataFile], before: int) -> int:
    """The time before which about a share of the rows lies, or an earlier one that is wanted.

    Inside a file, times are taken to be spread evenly.

    >>> at_most(0.5, [DataFile("a", 10, 0, 0, 99), DataFile("b", 10, 0, 100, 199)], 150)
    100
    >>> at_most(0.25, [DataFile("a", 10, 0, 0, 99), DataFile("b", 10, 0, 100, 199)], 150)
    50
    """
    left = share * sum(each.rows for each in files)
    for each in sorted(files, key=lambda file: file.low or 0):
        if each.low is None or each.high is None or each.low >= before:
            continue
        span = each.high + 1 - each.low
        inside = each.rows * min(1.0, (before - each.low) / span)
        if inside > left:
            return each.low + int(span * left / each.rows)
        left -= inside
    return before


def expire(stream: StreamTable, before: int) -> UpkeepReport:
    """Removes the events before a time. Files that lie wholly before it are not even read."""

    def once() -> UpkeepReport:
        table = stream.table
        table.refresh()
        files = table.files()
        gone = [each for each in files if each.reach < before]
        split = [each for each in files if each not in gone and (each.low is None or each.low < before)]
        added: list[DataFile] = []
        try:
            for each in split:
                added += _write(table, in_time(_later(_read(table, [each]), before)), ROWS)
            expired = max(before, table.state.expired if table.state.expired is not None else before)
            table.commit(replace(table.state, expired=expired), added, [*gone, *split])
        except BaseException:
            table.drop(each.path for each in added)
            raise
        return UpkeepReport(files, table.files())

    return attempts(stream.stream, once)


def _groups(files: Sequence[DataFile], most: int) -> Iterator[list[DataFile]]:
    """Files that are worth being written again together: they overlap in time, or are small neighbours."""
    group: list[DataFile] = []
    for each in sorted(files, key=lambda file: (file.low or 0, file.path)):
        if group:
            reached = max(file.high if file.high is not None else math.inf for file in group)
            overlaps = each.low is None or each.low < reached
            small = sum(file.rows for file in group) + each.rows <= most
            if not overlaps and not small:
                if len(group) > 1:
                    yield group
                group = []
        group.append(each)
    if len(group) > 1:
        yield group


def _rewritten(table: ArchiveTable, groups: Sequence[Sequence[DataFile]], most: int) -> list[DataFile]:
    """New files with the rows of each group, one stretch of time after the other."""
    added: list[DataFile] = []
    try:
        for group in groups:
            for low, high in _stretches(table, group, most):
                added += _write(table, in_time(_between(table, group, low, high)), most)
    except BaseException:
        table.drop(each.path for each in added)
        raise
    return added


def _stretches(table: ArchiveTable, group: Sequence[DataFile], most: int) -> Iterator[tuple[int, int | None]]:
    """Times at which the rows of a group are cut into stretches of about as many rows as a file has."""
    import numpy
    import pyarrow

    times = _read(table, group, [TS]).column(TS).cast(pyarrow.int64()).to_numpy()
    count = max(1, -(-len(times) // most))
    ordered = numpy.sort(times)
    starts = sorted({int(ordered[at * len(times) // count]) for at in range(count)})
    yield from zip(starts, [*starts[1:], None], strict=True)


def _between(table: ArchiveTable, group: Sequence[DataFile], low: int, high: int | None) -> pyarrow.Table:
    import pyarrow
    import pyarrow.compute as pc

    inside = pc.field(TS) >= pyarrow.scalar(low, moments())
    if high is not None:
        inside &= pc.field(TS) < pyarrow.scalar(high, moments())
    return _read(table, group, None, inside)


def _later(rows: pyarrow.Table, before: int) -> pyarrow.Table:
    import pyarrow
    import pyarrow.compute as pc

    return rows.filter(pc.greater_equal(rows.column(TS), pyarrow.scalar(before, moments())))


def _read(
    table: ArchiveTable,
    files: Sequence[DataFile],
    columns: list[str] | None = None,
    inside: pyarrow.dataset.Expression | None = None,
) -> pyarrow.Table:
    import pyarrow

    try:
        found = parquet_dataset([table.folder / each.path for each in files], table.schema)
        return found.to_table(columns, filter=inside)
    except (OSError, pyarrow.ArrowException) as error:
        raise Failure(f"cannot read {table.folder}: {error}") from None


def _write(table: ArchiveTable, rows: pyarrow.Table, most: int) -> list[DataFile]:
    try:
        return write_files(table.folder, rows, most)
    except OSError as error:
        raise Failure(f"cannot write to {table.folder}: {error}; nothing was changed") from None


def _commit(table: ArchiveTable, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
    try:
        table.commit(table.state, added, removed, data_change=False)
    except BaseException:
        table.drop(each.path for each in added)
        raise
