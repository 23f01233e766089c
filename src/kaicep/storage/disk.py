"""Writes files so that a crash at any moment leaves either the old content or the new one.

A store does that by itself: what is put there is there as a whole, and for good.

What we alone read carries a checksum, so that a damaged disk is found before anybody goes on from it.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from kaicep.errors import Failure
from kaicep.storage.places import StorePath

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
