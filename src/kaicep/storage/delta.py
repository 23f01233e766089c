"""Files of a Delta table that survive a crash, and whose damage is found.

delta-rs writes entries of the log, and waits for no disk. So whoever commits calls `settle` before anything
relies on the commit: then the entry is on the disk, and its checksum is noted in `_checksums` beside it. The
names of data files carry theirs. `mend` removes what a crash left half-written at the end of a log, and
`check_entries`, `parquet_dataset` and `damages` find what is not as it was written.
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.errors import Failure
from kaicep.storage.disk import replace_file, sync_file, sync_folder

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset
    from deltalake import DeltaTable

__all__ = [
    "FILES",
    "check_entries",
    "check_file",
    "checkpoint",
    "damages",
    "mend",
    "parquet_dataset",
    "quietly",
    "settle",
    "write_parquet",
]

FILES = "kaicep.files"
"""What a commit says of itself: how many files it adds and removes; a torn entry is known by that.

Such a commit has an application transaction too."""

_LOG = "_delta_log"
_CHECKSUMS = "_checksums"
_LAST = "_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_NAMED = re.compile(r"-crc([0-9a-f]{8})\.parquet")
_TAIL = 1 << 17
_EVERY = 100
_GROUP = 131_072

# Data files never change: one that was found whole, and looks as it did then, is not read again for that.
_whole_files: dict[Path, tuple[int, int]] = {}


# --- data files ---


def write_parquet(folder: Path, rows: pyarrow.Table, stem: str | None = None) -> str:
    """Writes rows into a new file, which is on the disk on return (its name when the folder is); its name."""
    import pyarrow
    import pyarrow.parquet

    # Numbers hardly repeat; a dictionary of them would be made for nothing.
    words = [each.name for each in rows.schema if pyarrow.types.is_string(each.type)]
    made = io.BytesIO()
    pyarrow.parquet.write_table(
        rows,
        made,
        compression="zstd",
        row_group_size=_GROUP,
        use_dictionary=words,
        write_page_checksum=True,
    )
    data = made.getbuffer()
    name = f"{stem or uuid4().hex}-crc{zlib.crc32(data):08x}.parquet"
    try:
        with (folder / name).open("wb") as file:
            file.write(data)
            file.flush()
            # A commit must not outlive the rows that it speaks of.
            os.fsync(file.fileno())
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    return name


def check_file(path: Path) -> None:
    """A failure where a data file is not what its name says; files of other tools say nothing."""
    named = _NAMED.search(path.name)
    if named is None:
        return
    try:
        stat = path.stat()
        looks = (stat.st_size, stat.st_mtime_ns)
        if _whole_files.get(path) == looks:
            return
        found = _checksum(path)
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from None
    if found != int(named[1], 16):
        raise Failure(f"{path} is damaged: its checksum is not that of its content")
    _whole_files[path] = looks


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found = zlib.crc32(chunk, found)
    return found


def parquet_dataset(paths: Sequence[Path], schema: pyarrow.Schema | None = None) -> pyarrow.dataset.Dataset:
    """Files as one dataset; damaged ones are found here, or where a page of them is read."""
    import pyarrow.dataset

    for each in paths:
        check_file(each)
    scan = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    checked = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=scan)
    return pyarrow.dataset.dataset([str(each) for each in paths], schema, format=checked)


# --- the log ---


def quietly() -> Any:
    """How to commit without a checkpoint: `settle` makes one when the time has come, and waits for it."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def settle(folder: Path, after: int, upto: int) -> None:
    """Returns when the entries behind a version, up to another, are on the disk; notes their checksums."""
    log = folder / _LOG
    for version in range(after + 1, upto + 1):
        path = log / f"{version:020d}.json"
        try:
            sync_file(path)
            _note(log, path.name, path.read_bytes())
        except FileNotFoundError:
            continue  # an old one, which a checkpoint stands for by now
    sync_folder(log)


def checkpoint(table: DeltaTable, folder: Path, before: int) -> None:
    """Makes a checkpoint where one is due since a version; entries go only when it is on the disk."""
    version = table.version()
    if max(before, 0) // _EVERY == version // _EVERY:
        return
    log = folder / _LOG
    table.create_checkpoint()
    for name in (f"{version:020d}.checkpoint.parquet", _LAST):
        sync_file(log / name)
        _note(log, name, (log / name).read_bytes())
    sync_file(log / _CHECKSUMS)
    sync_folder(log)
    table.cleanup_metadata()
    _prune(log)


def _note(log: Path, name: str, data: bytes) -> None:
    """Adds a line. It need not be on the disk: what has no line there is looked at when it is opened."""
    line = b"%s %d %08x" % (name.encode(), len(data), zlib.crc32(data))
    file = os.open(log / _CHECKSUMS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, b"%s %08x\n" % (line, zlib.crc32(line)))
    finally:
        os.close(file)


def _noted(log: Path, most: int | None = None) -> tuple[dict[str, tuple[int, int]], int]:
    """Sizes and checksums by name, and how many lines are damaged; with `most`, of the last bytes only."""
    try:
        with (log / _CHECKSUMS).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = 0 if most is None else max(0, size - most)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return {}, 0
    if start:
        data = data[data.find(b"\n") + 1 :]
    *lines, torn = data.split(b"\n")
    found: dict[str, tuple[int, int]] = {}
    wrong = int(bool(torn))
    for each in lines:
        line, _, own = each.rpartition(b" ")
        if own != b"%08x" % zlib.crc32(line):
            wrong += 1
            continue
        name, size_text, checksum = line.split(b" ")
        found[name.decode()] = int(size_text), int(checksum, 16)
    return found, wrong


def _prune(log: Path) -> None:
    """Lets go of the lines of entries that are no more."""
    noted, wrong = _noted(log)
    if wrong:
        return  # `damages` shall still find that
    kept = [b"%s %d %08x" % (name.encode(), *each) for name, each in noted.items() if (log / name).exists()]
    replace_file(log / _CHECKSUMS, b"".join(b"%s %08x\n" % (each, zlib.crc32(each)) for each in kept))


def check_entries(folder: Path, after: int | None = None) -> None:
    """A failure that names an entry of the log which is damaged, or which a crash has torn.

    Looked at are those behind a version; None: all that there are from the newest checkpoint on.
    """
    log = folder / _LOG
    entries, checkpoints = _listed(log)
    noted, _ = _noted(log, _TAIL)
    begin = max(checkpoints, default=0) if after is None else after + 1
    names = [f"{each:020d}.json" for each in entries if each >= begin]  # the state is in the entries
    if after is None and checkpoints:
        names += [f"{begin:020d}.checkpoint.parquet", _LAST]
    for name in names:
        problem = _problem(log, name, noted)
        if problem is not None:
            raise Failure(problem)


def _problem(log: Path, name: str, noted: Mapping[str, tuple[int, int]]) -> str | None:
    """What is wrong with a file of the log, in words."""
    try:
        data = (log / name).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {log / name}: {error.strerror}"
    if name in noted:
        if noted[name] != (len(data), zlib.crc32(data)):
            return f"{log / name} is damaged: its checksum is not that of its content"
    elif _ENTRY.fullmatch(name) and not _is_whole(data):
        return (
            f"{log / name} is torn: a crash came before it was on the disk, and nobody relies on it; "
            "the next start of what writes this table removes it, as does kaicep archive repair"
        )
    return None


def _is_whole(data: bytes) -> bool:
    """Whether an entry without a note is all there; it says itself of how many files it speaks."""
    try:
        actions = [json.loads(line) for line in data.splitlines()]
        promised = [each["commitInfo"].get(FILES) for each in actions if "commitInfo" in each]
    except (AttributeError, TypeError, UnicodeDecodeError, ValueError):
        return False
    files = sum("add" in each or "remove" in each for each in actions)
    signed = any("txn" in each for each in actions)
    return bool(actions) and all(each is None or (signed and int(each) == files) for each in promised)


def _listed(log: Path) -> tuple[list[int], list[int]]:
    """The versions that have an entry, and those that have a checkpoint."""
    try:
        names = [each.name for each in log.iterdir()]
    except FileNotFoundError:
        return [], []
    found = [[m[1] for each in names if (m := kind.fullmatch(each))] for kind in (_ENTRY, _CHECKPOINT)]
    entries, checkpoints = (sorted(map(int, each)) for each in found)
    return entries, checkpoints


def mend(folder: Path) -> list[str]:
    """Removes what a crash left half-written at the end of a log, where nobody can rely on it.

    Says what it was. Entries that are whole, and were not noted, are on the disk when this returns.
    """
    log = folder / _LOG
    entries, checkpoints = _listed(log)
    noted, _ = _noted(log, _TAIL)
    done: list[str] = []
    for version in [each for each in checkpoints if f"{each:020d}.checkpoint.parquet" not in noted]:
        # Nobody waited for it. The entries say the same, where they go back to the one before.
        base = max((each for each in checkpoints if each < version), default=-1)
        if set(range(base + 1, version + 1)) <= set(entries):
            (log / _LAST).unlink(missing_ok=True)
            (log / f"{version:020d}.checkpoint.parquet").unlink(missing_ok=True)
            done.append(f"{log}: a checkpoint that was not on the disk yet, at version {version}")
    known = max((each for each in entries if f"{each:020d}.json" in noted), default=-1)
    rest = [log / f"{each:020d}.json" for each in entries if each > known]
    whole = next((at for at, each in enumerate(rest) if not _is_whole(each.read_bytes())), len(rest))
    for path in rest[:whole:-1] + rest[whole : whole + 1]:  # the newest first, so that no gap is ever there
        path.replace(path.with_suffix(".json.torn"))
        done.append(f"{path}: a commit that was not on the disk yet")
    if rest:
        settle(folder, known, max(entries))
    return done


def damages(folder: Path, files: Iterable[str]) -> Iterator[str]:
    """All that is wrong with a table: its log, its checksums, and its data files. Reads everything."""
    log = folder / _LOG
    entries, checkpoints = _listed(log)
    noted, wrong = _noted(log)
    if wrong:
        yield f"{log / _CHECKSUMS} is damaged: {wrong} of its lines are not as they were written"
    names = [f"{each:020d}.json" for each in entries]
    names += [f"{each:020d}.checkpoint.parquet" for each in checkpoints]
    for name in (*names, _LAST):
        problem = _problem(log, name, noted)
        if problem is not None:
            yield problem
    for version in sorted(set(range(min(entries, default=0), max(entries, default=-1) + 1)) - set(entries)):
        yield f"{log / f'{version:020d}.json'} is missing"
    for each in files:
        try:
            check_file(folder / each)
            if _NAMED.search(each) is None:  # of another tool: its pages may have checksums
                parquet_dataset([folder / each]).to_table()
        except Failure as failure:
            yield str(failure)
        except (OSError, ValueError) as error:
            yield f"cannot read {folder / each}: {error}"
