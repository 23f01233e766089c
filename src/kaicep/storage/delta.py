"""Delta tables that survive a crash, and checksums that find damage.

delta-rs writes entries of the log, and waits for no disk. So whoever commits calls `settle` before anything
relies on the commit: then the entry is on the disk, and its checksum is noted in `_checksums` beside it. The
names of data files carry theirs. `mend` removes what a crash left half-written at the end of a log, and
`check_entries`, `parquet_dataset` and `damages` find what is not as it was written.

On a store an entry is there as a whole or not at all, and the store knows its checksum: nothing is noted
there, and nothing is ever mended.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kaicep.errors import Failure
from kaicep.storage.disk import replace_file, sync_file, sync_folder, write_all, write_file
from kaicep.storage.places import StorePath, filesystem_of

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset
    from deltalake import DeltaTable

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
        write_file(folder / name, data)  # a commit must not outlive the rows that it speaks of
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    return name


def check_file(path: Path) -> None:
    """A failure where a data file is not what its name says; files of other tools say nothing."""
    named = _NAMED.search(path.name)
    if named is None or isinstance(path, StorePath):
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
    store = filesystem_of(paths[0]) if paths else None
    names = [str(getattr(each, "inside", each)) for each in paths]
    scan = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    checked = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=scan)
    return pyarrow.dataset.dataset(names, schema, format=checked, filesystem=store)


# --- the log ---


def quietly() -> Any:
    """How to commit without a checkpoint: `settle` makes one when the time has come, and waits for it."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def settle(folder: Path, after: int, upto: int) -> None:
    """Returns when the entries behind a version, up to another, are on the disk; notes their checksums."""
    if isinstance(folder, StorePath):
        return
    log = folder / _LOG
    names = [f"{version:020d}.json" for version in range(after + 1, upto + 1)]
    there = [each for each in names if (log / each).exists()]  # a checkpoint may stand for old ones by now
    for each in there:
        sync_file(log / each)
    sync_folder(log)
    # Last, so that what has a note is there.
    for each in there:
        _note(log, each, (log / each).read_bytes())


def checkpoint(table: DeltaTable, folder: Path, before: int) -> None:
    """Makes a checkpoint where one is due since a version; entries go only when it is on the disk."""
    version = table.version()
    if max(before, 0) // _EVERY == version // _EVERY:
        return
    log = folder / _LOG
    table.create_checkpoint()
    if isinstance(folder, StorePath):
        table.cleanup_metadata()
        return
    made = (f"{version:020d}.checkpoint.parquet", _LAST)
    for name in made:
        sync_file(log / name)
    sync_folder(log)
    for name in made:
        _note(log, name, (log / name).read_bytes())
    table.cleanup_metadata()


def _note(log: Path, name: str, data: bytes) -> None:
    """Adds a line, which is on the disk on return: only the last one may ever be half-written."""
    line = b"%s %d %08x" % (name.encode(), *_size_and_checksum(data))
    with _notes(log, os.O_CREAT) as file:
        write_all(file, b"%s %08x\n" % (line, zlib.crc32(line)), _cut_torn(file))
        os.fsync(file)


@contextmanager
def _notes(log: Path, flags: int = 0) -> Iterator[int]:
    """The file of the checksums, which this process has alone meanwhile."""
    file = os.open(log / _CHECKSUMS, os.O_RDWR | flags, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _cut_torn(file: int) -> int:
    """Cuts off half a line at the end, which a crash or an error left there; where the next line begins."""
    size = os.fstat(file).st_size
    tail = os.pread(file, _TAIL, max(0, size - _TAIL))
    end = size - len(tail) + tail.rfind(b"\n") + 1
    if end < size:
        os.ftruncate(file, end)
        os.fsync(file)
    return end


def _size_and_checksum(data: bytes) -> tuple[int, int]:
    return len(data), zlib.crc32(data)


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


def prune(folder: Path) -> None:
    """Lets go of the checksums of entries that are no more."""
    if isinstance(folder, StorePath):
        return
    log = folder / _LOG
    there = {each.name for each in log.iterdir()}
    noted, wrong = _noted(log)
    if wrong:
        return  # `damages` shall still find that
    kept = [b"%s %d %08x" % (name.encode(), *each) for name, each in noted.items() if name in there]
    replace_file(log / _CHECKSUMS, b"".join(b"%s %08x\n" % (each, zlib.crc32(each)) for each in kept))


def check_entries(folder: Path, versions: range | None = None) -> None:
    """A failure that names an entry of the log which is damaged, or which a crash has torn.

    Looked at are these versions; None: all that there are from the newest checkpoint on.
    """
    if isinstance(folder, StorePath):
        return
    log = folder / _LOG
    noted, _ = _noted(log, _TAIL)
    if versions is None:
        entries, checkpoints = _listed(log)
        begin = max(checkpoints, default=0)
        names = [f"{each:020d}.json" for each in entries if each >= begin]  # the state is in the entries
        if checkpoints:
            names += [f"{begin:020d}.checkpoint.parquet", _LAST]
    else:
        names = [f"{each:020d}.json" for each in versions]
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
        if noted[name] != _size_and_checksum(data):
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
    if isinstance(folder, StorePath):
        return []
    log = folder / _LOG
    _mend_notes(log)
    entries, checkpoints = _listed(log)
    noted, _ = _noted(log, _TAIL)
    done: list[str] = []
    hint = log / _LAST
    if hint.exists() and noted.get(_LAST) != _size_and_checksum(hint.read_bytes()):
        hint.unlink()  # it may name a checkpoint that is not there; without it, the newest one is looked for
    for version in [each for each in checkpoints if f"{each:020d}.checkpoint.parquet" not in noted]:
        # Nobody waited for it. The entries say the same, where they go back to the one before.
        base = max((each for each in checkpoints if each < version), default=-1)
        if set(range(base + 1, version + 1)) <= set(entries):
            hint.unlink(missing_ok=True)
            (log / f"{version:020d}.checkpoint.parquet").unlink(missing_ok=True)
            done.append(f"{log}: a checkpoint that was not on the disk yet, at version {version}")
    known = max((int(found[1]) for each in noted if (found := _ENTRY.fullmatch(each))), default=-1)
    rest = [log / f"{each:020d}.json" for each in entries if each > known]
    whole = next((at for at, each in enumerate(rest) if not _is_whole(each.read_bytes())), len(rest))
    for path in rest[:whole:-1] + rest[whole : whole + 1]:  # the newest first, so that no gap is ever there
        path.replace(path.with_suffix(".json.torn"))
        done.append(f"{path}: a commit that was not on the disk yet")
    if known > max(entries, default=-1):
        prune(folder)
    if rest:
        settle(folder, known, max(entries))
    return done


def _mend_notes(log: Path) -> None:
    """Cuts off half a line at the end: its entry is looked at as one without a line."""
    with suppress(FileNotFoundError), _notes(log) as file:
        _cut_torn(file)


def damages(folder: Path, files: Iterable[str]) -> Iterator[str]:
    """All that is wrong with a table: its log, its checksums, and its data files. Reads everything."""
    if not isinstance(folder, StorePath):
        yield from _log_damages(folder)
    for each in files:
        try:
            check_file(folder / each)
            if _NAMED.search(each) is None or isinstance(folder, StorePath):  # the pages have checksums
                parquet_dataset([folder / each]).to_table()
        except Failure as failure:
            yield str(failure)
        except (OSError, ValueError) as error:
            yield f"cannot read {folder / each}: {error}"


def _log_damages(folder: Path) -> Iterator[str]:
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
    written = {int(found[1]) for each in noted if (found := _ENTRY.fullmatch(each))}
    written |= set(range(min(entries, default=0), max(entries, default=-1) + 1))
    for version in sorted(each for each in written - set(entries) if each > min(entries, default=-1)):
        yield f"{log / f'{version:020d}.json'} is missing"
