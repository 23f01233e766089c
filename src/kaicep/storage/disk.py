"""Files that survive a crash: written whole, with a checksum; and the user's cache folder."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kaicep.errors import Failure
from kaicep.storage.places import StorePath

# ----------------------------------------------------------------------------------------------------------
# Writes files so that a crash at any moment leaves either the old content or the new one.
#
# A store does that by itself: what is put there is there as a whole, and for good.
#
# What we alone read carries a checksum, so that a damaged disk is found before anybody goes on from it.

_SEAL = len(b"\ncrc32 00000000\n")


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of the data at a byte of a file, however many steps that takes."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def sync_file(path: Path) -> None:
    """Waits until the content of a file is on the disk."""
    if isinstance(path, StorePath):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    sync_file(folder)


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it; returns when their names are on the disk."""
    if isinstance(folder, StorePath):
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Writes a new file; returns when its content is on the disk, and its name when the folder is."""
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Puts a file in the place of another in one step; returns when that is on the disk."""
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    beside = path.with_name(path.name + ".tmp")
    write_file(beside, data)
    beside.replace(path)
    sync_folder(path.parent)


def last_rows(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, the last one first, of so many bytes at its end."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the first may be the end of one, the last may not be finished
        if isinstance(row, dict):
            yield row


def seal(data: bytes) -> bytes:
    """The data and a last line with its checksum.

    >>> seal(b"{}")
    b'{}\\ncrc32 a3a6bf43\\n'
    """
    return data + b"\ncrc32 %08x\n" % zlib.crc32(data)


def unseal(data: bytes, where: Path) -> bytes:
    """The data without its checksum; a failure that names the file where the two do not fit."""
    content = data[:-_SEAL]
    if seal(content) != data:
        raise Failure(f"{where} is damaged: its checksum is not that of its content")
    return content


def replace_sealed(path: Path, data: bytes) -> None:
    """`replace_file`, with a checksum that `read_sealed` tests."""
    replace_file(path, seal(data))


def read_sealed(path: Path) -> bytes:
    """What `replace_sealed` wrote."""
    return unseal(path.read_bytes(), path)


# ----------------------------------------------------------------------------------------------------------
# The user's cache folder, which keeps results between two runs.


def cache_folder(kind: str) -> Path:
    """Where results of a kind are kept; KAICEP_CACHE_DIR says where, else the user's cache."""
    chosen = os.environ.get("KAICEP_CACHE_DIR")
    if chosen:
        return Path(chosen) / kind
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kaicep" / kind


def is_private(folder: Path) -> bool:
    """Whether nobody else can put anything into a folder, or another one in its place.

    Everybody may write into the folders above it only where those are sticky, as /tmp is.
    """
    if not hasattr(os, "geteuid"):
        return True  # the permissions of such a system are not told by these bits
    try:
        own = folder.lstat()
        above = [each.stat() for each in folder.resolve().parents]
    except OSError:
        return False
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid() or own.st_mode & 0o022:
        return False
    return all(
        each.st_uid in (0, os.geteuid()) and (not each.st_mode & 0o022 or each.st_mode & stat.S_ISVTX)
        for each in above
    )


def private_folder(kind: str) -> Path | None:
    """The folder of a kind, made where it is missing; None where others may write, or nobody can."""
    folder = cache_folder(kind)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if is_private(folder) else None


def write_whole(path: Path, data: bytes) -> bool:
    """Writes a file so that whoever reads it finds all of it or nothing; whether that was possible."""
    name = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            name = file.name
            file.write(data)
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        return False
    return True
