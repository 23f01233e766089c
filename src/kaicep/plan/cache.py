"""The user's cache folder, which keeps results between two runs."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


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
