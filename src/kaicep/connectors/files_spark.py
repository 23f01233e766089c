"""Files that have grown, as a stream of Spark's: which ones have something new, and not what it is.

An offset is the size of every file. A row is a file that is larger than it was, or new, and `size`; `behind`
is how many bytes of all files lie beyond the offset. Who reads the files goes by the positions that the
archive has, so that it does not matter how often a row comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from kaicep.connectors.files import growing_names, is_whole
from kaicep.connectors.spark_limits import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from kaicep.errors import Diagnostic, Failure, Mistake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FORMAT", "MOST", "GrownFiles", "grown_files"]

FORMAT = "kaicep-files"
"""The name of the data source."""

MOST = 1_000_000_000
"""Files of so many new bytes, about, are in one micro-batch; a file is never in two at once."""


def grown_files(spark: SparkSession, path: Path, most: int = MOST) -> DataFrame:
    """The files of a folder, or one file, as a stream: `file`, `size`, `behind`."""
    if not path.exists():
        raise Mistake(Diagnostic(f"cannot read {path}: there is no such file or folder"))
    spark.dataSource.register(GrownFiles)
    options = {"path": str(path.resolve()), "most": str(most)}
    return spark.readStream.format(FORMAT).options(**options).load()


class GrownFiles(DataSource):
    """The files that have something new. Options: `path`, `most` (bytes in a micro-batch)."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `spark.readStream.format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns."""
        return "file string, size bigint, behind bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """For a stream."""
        return _Reader(Path(self.options["path"]), int(self.options["most"]))


@dataclass
class _Grown(InputPartition):
    files: list[tuple[str, int]]
    behind: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets carry the folder: a checkpoint of another one is refused."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._goal: dict[str, int] | None = None
        self._reached: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset({})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._goal = sizes_of(self._path)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        start = start or self._reached  # PySpark below 4.2 says nothing
        now = sizes_of(self._path) if self._goal is None else self._goal
        limit = limit or self.getDefaultReadLimit()
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) and start else None
        self._reached = self._offset(advanced(self._sizes(start) if start else {}, now, room))
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._reached = end
        before, after = self._sizes(start), self._sizes(end)
        grown = [(name, size) for name, size in after.items() if before.get(name) != size]
        now = sizes_of(self._path)
        behind = sum(max(0, size - after.get(name, 0)) for name, size in now.items())
        return [_Grown(grown, behind)] if grown else []

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int]]:
        assert isinstance(partition, _Grown)
        for name, size in partition.files:
            yield name, size, partition.behind

    def _offset(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        return {"path": str(self._path), "sizes": dict(sorted(sizes.items()))}

    def _sizes(self, offset: Mapping[str, Any]) -> dict[str, int]:
        if offset.get("path") != str(self._path):
            raise Failure(
                f"the checkpoint is of {offset.get('path')}, and the stream reads {self._path}: give each "
                "stream a checkpoint of its own"
            )
        return dict(offset["sizes"])


def sizes_of(path: Path) -> dict[str, int]:
    """The files that can be read by now, and their sizes."""
    files = [path / name for name in growing_names(path)] if path.is_dir() else [path]
    found = {}
    for each in files:
        with suppress(FileNotFoundError):  # it was there a moment ago
            if is_whole(each):
                found[each.name] = each.stat().st_size
    return found


def advanced(before: Mapping[str, int], now: Mapping[str, int], room: int | None) -> dict[str, int]:
    """The sizes after one more step: files that have changed, by name, until there are bytes enough.

    >>> advanced({"a": 5, "gone": 9}, {"a": 7, "b": 40, "c": 9}, 30)
    {'a': 7, 'b': 40}
    >>> advanced({"a": 5, "gone": 9}, {"a": 5}, None)
    {'a': 5, 'gone': 9}
    """
    changed = [name for name in sorted(now) if now[name] != before.get(name)]
    if not changed:
        return dict(before)
    after = {name: size for name, size in before.items() if name in now}
    taken = 0
    for name in changed:
        taken += abs(now[name] - after.get(name, 0))
        after[name] = now[name]
        if room is not None and taken >= room:
            break
    return after
