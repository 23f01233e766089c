"""The dead letters of an archive: one table for all streams, each record in it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.archive.parquet import write_files
from kaicep.archive.state import fresh, moved
from kaicep.archive.table import Table, attempts
from kaicep.errors import Failure
from kaicep.storage.delta import parquet_dataset

if TYPE_CHECKING:
    import pyarrow

__all__ = ["DEAD_LETTERS", "DeadLetters"]

DEAD_LETTERS = "_dead_letters"
"""The name of the table."""
_NUMBERS = ("part", "seq", "line")
_TEXTS = ("stream", "file", "reason", "record")


class DeadLetters:
    """The table of the records that could not be read; it is made when the first one comes.

    Its positions are its own, by stream and part, so that a crash between it and the stream's table
    leaves neither of them with anything twice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(
        self, stream: str, letters: Sequence[Mapping[str, Any]], ranges: Mapping[int, tuple[int, int]]
    ) -> int:
        """Adds the letters of a batch that are not there yet; says how many."""
        import pyarrow

        if not letters and not Table.exists(self.folder):
            return 0
        schema = self._schema()
        table = Table.create(self.folder, DEAD_LETTERS, schema)
        covered = {f"{stream}/{part}": found for part, found in ranges.items()}

        def once() -> int:
            table.refresh()
            held = table.state.next
            # A part is first heard of here when its first letter comes.
            begun = {each: (min(first, held.get(each, 0)), after) for each, (first, after) in covered.items()}
            new = fresh(stream, table.state, begun)
            kept = [
                each
                for each in letters
                if each["seq"] >= new.get(f"{stream}/{each['part']}", (each["seq"] + 1, 0))[0]
            ]
            if not kept:
                return 0
            rows = pyarrow.Table.from_pylist(
                [{name: each[name] for name in schema.names} for each in kept], schema
            )
            try:
                files = write_files(self.folder, rows)
            except OSError as error:
                raise Failure(f"cannot write to {self.folder}: {error}") from None
            try:
                table.commit(moved(stream, table.state, new, {}, {}), files)
            except BaseException:
                table.drop(each.path for each in files)
                raise
            return len(kept)

        return attempts(DEAD_LETTERS, once)

    def read(self) -> list[dict[str, Any]]:
        """All of them, by stream, part and position."""
        if not Table.exists(self.folder):
            return []
        files = [self.folder / each.path for each in Table(self.folder, DEAD_LETTERS).files()]
        found = parquet_dataset(files, self._schema()).to_table()
        by = [(name, "ascending") for name in ("stream", "part", "seq")]
        rows: list[dict[str, Any]] = found.sort_by(by).to_pylist()
        return rows

    def _schema(self) -> pyarrow.Schema:
        import pyarrow

        numbers = [(name, pyarrow.int64()) for name in _NUMBERS]
        return pyarrow.schema(
            [("stream", pyarrow.string()), *numbers, *((n, pyarrow.string()) for n in _TEXTS[1:])]
        )
