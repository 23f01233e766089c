"""Compiled kernels on their way to the workers: packed in the driver, unpacked where they are first needed.

Numba knows what it compiled by the content of the source, its own version and the processor. So the files of
the driver's cache are good on every worker that is like it; another one compiles for itself.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kaicep.kernel.jit import kernel_folder
from kaicep.plan.cache import cache_folder

__all__ = ["pack", "unpack"]

_NAME = "kaicep-kernels-"
_MODULES = ("kaicep.kernel.epsparql.identities", "kaicep.kernel.epsparql.kernels")
"""Modules whose functions Numba keeps where it likes; all others are in a folder of their own."""


def pack(folder: Path) -> Path:
    """Writes the compiled functions of this machine into a zip file, named by its content."""
    entries = {
        f"{kernel_folder().name}/{file.name}": file.read_bytes() for file in _compiled(kernel_folder())
    }
    for module in _MODULES:
        for kernel in _functions(import_module(module)):
            for file in _compiled(Path(kernel.stats.cache_path), kernel._cache._impl.filename_base):
                entries[f"{module}/{file.name}"] = file.read_bytes()
    digest = blake2b(digest_size=12)
    for name in sorted(entries):
        digest.update(name.encode() + b"\0" + entries[name])
    target = folder / f"{_NAME}{digest.hexdigest()}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries):
            archive.writestr(zipfile.ZipInfo(name), entries[name], zipfile.ZIP_DEFLATED)
    return target


def _compiled(folder: Path, begin: str = "") -> list[Path]:
    """The files of a folder in which Numba keeps compiled functions."""
    return sorted(folder.glob(f"{begin}*.nb[ic]"))


def _functions(module: ModuleType) -> Iterator[Any]:
    """The functions of a module that Numba compiles, without those that it has from others."""
    from numba.core.dispatcher import Dispatcher

    for each in vars(module).values():
        if isinstance(each, Dispatcher) and each.py_func.__module__ == module.__name__:
            yield each


def unpack() -> None:
    """Puts the kernels that were sent to this process where Numba looks for them; what is there, stays."""
    for each in sys.path:
        path = Path(each)
        if path.name.startswith(_NAME) and path.suffix == ".zip":
            _unpack(path)


@cache
def _unpack(packed: Path) -> None:
    # A cache that cannot be written to is none: then this worker compiles.
    with suppress(OSError), zipfile.ZipFile(packed) as archive:
        places = {name: _place(name) for name in archive.namelist()}
        # Files of code belong to the index beside them and to no other: a function comes whole or not.
        missing = [name for name, path in places.items() if not _index(path).exists()]
        # The index comes after the code ("nbc" < "nbi"): who sees it, finds all of it.
        for name in sorted(missing, key=lambda name: name.rpartition(".")[2]):
            _put(places[name], archive.read(name))


def _index(path: Path) -> Path:
    """The file that says what is there of a function."""
    return path.with_name(re.sub(r"\.\d+\.nbc$", ".nbi", path.name))


def _place(name: str) -> Path:
    """Where a file of the archive belongs here."""
    folder, _, file = name.rpartition("/")
    if folder not in _MODULES:
        return cache_folder("kernels") / folder / file
    return Path(next(_functions(import_module(folder))).stats.cache_path) / file


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Workers that start together may write the same file: each writes its own, and the last one stays.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)
