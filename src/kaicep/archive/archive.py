"""An archive: a folder with one table for each stream, and one for the records that could not be read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from kaicep.archive.parquet import TableShape
from kaicep.archive.snapshot import Cut, Snapshot
from kaicep.archive.stream import StreamTable
from kaicep.archive.table import DEAD_LETTERS, ArchiveTable, DeadLetters
from kaicep.errors import Diagnostic, Failure, Mistake, did_you_mean
from kaicep.storage.delta import damages, mend
from kaicep.storage.places import place_of

__all__ = ["Archive", "table_damages"]

_log = logging.getLogger("kaicep.run")


class Archive:
    """The archive in a folder; the folder is made when the first stream comes in."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = place_of(folder, "the archive")

    @classmethod
    def open(cls, folder: str | Path) -> Archive:
        """An archive that there is."""
        if not place_of(folder, "the archive").is_dir():
            raise Mistake(
                Diagnostic(
                    f"there is no archive in {folder}",
                    hint=f"make one: kaicep ingest --stream NAME=FILE --archive {folder}",
                )
            )
        return cls(folder)

    def streams(self) -> list[str]:
        """The names of the archived streams."""
        try:
            found = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        return [
            unquote(each.name.replace("~", "%"))
            for each in found
            if not each.name.startswith((".", "_")) and ArchiveTable.exists(each)
        ]

    def stream(self, name: str, version: int | None = None) -> StreamTable:
        """The table of a stream, at its newest version or at the one that is wanted."""
        folder = self._folder(name)
        if not ArchiveTable.exists(folder):
            raise Mistake(
                Diagnostic(
                    f"the archive {self.folder} has no stream {name}", hint=did_you_mean(name, self.streams())
                )
            )
        return StreamTable(folder, name, version)

    def made(self, name: str, shape: TableShape) -> StreamTable:
        """The table of a stream, to be written: it is made where there is none."""
        return self.writable(name) or StreamTable.create(self._folder(name), name, shape)

    def writable(self, name: str) -> StreamTable | None:
        """The table of a stream, as far as it is on the disk; None where there is none."""
        folder = self._folder(name)
        for each in mend(folder):
            _log.warning("%s: removed what a crash had left half-written: %s", name, each)
        if not ArchiveTable.exists(folder):
            return None
        found = StreamTable(folder, name)
        found.table.settle()
        return found

    def mend(self) -> list[str]:
        """Removes what a crash left half-written in any table; says what it was."""
        return [each for folder in self._tables() for each in mend(folder)]

    def damages(self) -> Iterator[tuple[str, str]]:
        """All that is not as it was written: the name of the stream, and what it is. Reads everything."""
        for folder in self._tables():
            name = unquote(folder.name.replace("~", "%"))
            yield from ((name, each) for each in table_damages(folder))

    def _tables(self) -> list[Path]:
        try:
            return sorted(each for each in self.folder.iterdir() if (each / "_delta_log").is_dir())
        except FileNotFoundError:
            return []

    @property
    def dead_letters(self) -> DeadLetters:
        """The records that could not be read."""
        return DeadLetters(self.folder / DEAD_LETTERS)

    def snapshot(self, versions: Mapping[str, int] | None = None, cut: Cut | None = None) -> Snapshot:
        """The archive as it is now, or at these versions of its tables; with a cut, up to there only."""
        tables = {name: self.stream(name, (versions or {}).get(name)) for name in self.streams()}
        held = Snapshot(tables)
        if cut is None:
            return held
        for stream, part, position in cut.beyond(held.cut):
            has = held.cut.next(stream, part)
            raise Failure(
                f"{stream}: the cut is at position {position} of part {part}, "
                f"and the archive holds up to {has}"
            )
        return Snapshot(tables, cut)

    def _folder(self, name: str) -> Path:
        return self.folder / _quoted(name)


def table_damages(folder: Path) -> Iterator[str]:
    """All that is not as it was written in the table of a folder."""
    try:
        files = [each.path for each in ArchiveTable(folder, folder.name).files()]
    except Failure as failure:
        found = [*damages(folder, (each.name for each in folder.glob("*.parquet")))]
        yield from found or [str(failure)]
    else:
        yield from damages(folder, files)


def _quoted(name: str) -> str:
    """A stream's name as that of a folder, in letters that no reader of tables takes for anything else.

    A leading underscore is for tables of the archive itself, a leading dot for nobody.

    >>> _quoted("air flow"), _quoted("_own")
    ('air~20flow', '~5Fown')
    """
    made = quote(name, safe="").replace("~", "%7E").replace("%", "~")
    return f"~{ord(made[0]):02X}{made[1:]}" if made.startswith((".", "_")) else made
