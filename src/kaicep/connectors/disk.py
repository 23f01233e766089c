"""Writing so that a crash at any moment leaves either what was there before or what shall be there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace_file", "sync_folder", "write_all"]


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """Writes all of the data at a byte of a file, however many steps that takes."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Puts a file in the place of another in one step; returns when that is on the disk."""
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)
