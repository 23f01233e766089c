"""The upkeep of a table: files put together in order of time, old events removed, space given back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kaicep.archive.columns import TS, moments
from kaicep.archive.parquet import ROWS, DataFile, in_time, write_files
from kaicep.archive.stream import StreamTable
from kaicep.archive.table import Table, attempts
from kaicep.errors import Failure
from kaicep.storage.delta import parquet_dataset

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Kept", "at_most", "compact", "expire"]


@dataclass(frozen=True)
class Kept:
    """What upkeep did: how many files, rows and bytes there were before and after."""

    before: Sequence[DataFile]
    after: Sequence[DataFile]

    @property
    def removed(self) -> int:
        """How many rows are gone."""
        return sum(each.rows for each in self.before) - sum(each.rows for each in self.after)


def compact(stream: StreamTable, most: int = ROWS) -> Kept:
    """Puts small files together, and files whose times overlap in order; rows and positions stay."""

    def once() -> Kept:
        table = stream.table
        table.refresh()
        before = table.files()
        groups = list(_groups(before, most))
        removed = [each for group in groups for each in group]
        if not removed:
            return Kept(before, before)
        added = _rewritten(table, groups, most)
        _commit(table, added, removed)
        return Kept(before, table.files())

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


def expire(stream: StreamTable, before: int) -> Kept:
    """Removes the events before a time. Files that lie wholly before it are not even read."""

    def once() -> Kept:
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
        return Kept(files, table.files())

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


def _rewritten(table: Table, groups: Sequence[Sequence[DataFile]], most: int) -> list[DataFile]:
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


def _stretches(table: Table, group: Sequence[DataFile], most: int) -> Iterator[tuple[int, int | None]]:
    """Times at which the rows of a group are cut into stretches of about as many rows as a file has."""
    import numpy
    import pyarrow

    times = _read(table, group, [TS]).column(TS).cast(pyarrow.int64()).to_numpy()
    count = max(1, -(-len(times) // most))
    ordered = numpy.sort(times)
    starts = sorted({int(ordered[at * len(times) // count]) for at in range(count)})
    yield from zip(starts, [*starts[1:], None], strict=True)


def _between(table: Table, group: Sequence[DataFile], low: int, high: int | None) -> pyarrow.Table:
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
    table: Table,
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


def _write(table: Table, rows: pyarrow.Table, most: int) -> list[DataFile]:
    try:
        return write_files(table.folder, rows, most)
    except OSError as error:
        raise Failure(f"cannot write to {table.folder}: {error}; nothing was changed") from None


def _commit(table: Table, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
    try:
        table.commit(table.state, added, removed, data_change=False)
    except BaseException:
        table.drop(each.path for each in added)
        raise
