"""The Parquet files of a table: written in order of time, and known by the range of time they cover."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from uuid import uuid4

from kaicep.archive.columns import PART, SEQ, TS
from kaicep.errors import Failure
from kaicep.plan.nodes import Interval
from kaicep.plan.time import format_time
from kaicep.storage.delta import write_parquet
from kaicep.storage.disk import sync_folder

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ROWS", "DataFile", "add_action", "discard", "in_time", "measured", "write_files"]

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
