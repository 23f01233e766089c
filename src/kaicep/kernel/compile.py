"""Generated source, compiled once per machine: Numba's disk cache, for code that has no file of its own.

Numba keeps compiled code beside a module's file, so generated source is written to one: its name is the
hash of its content, in a folder of the user's cache. Whoever asks for the same source again, in this
process or another, gets what was compiled before.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["cache_folder", "compile_source", "is_compiled", "loaded_sources"]

_LOADED: dict[str, ModuleType] = {}
_PREAMBLE = "import math\n\nimport numpy as np\nfrom numba import njit\n\n"


def cache_folder() -> Path:
    """Where compiled kernels are kept; KAICEP_CACHE_DIR says where, else the user's cache."""
    chosen = os.environ.get("KAICEP_CACHE_DIR")
    if chosen:
        return Path(chosen) / "kernels"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kaicep" / "kernels"


def _name(source: str) -> str:
    return "kaicep_kernel_" + blake2b((_PREAMBLE + source).encode(), digest_size=12).hexdigest()


def is_compiled(source: str) -> bool:
    """Whether the source was compiled before, on this machine, so that it only has to be loaded."""
    name = _name(source)
    if name in _LOADED:
        return True
    kept = cache_folder() / "__pycache__"
    return kept.is_dir() and any(kept.glob(f"{name}*.nbi"))


def compile_source(source: str) -> Mapping[str, Any]:
    """The names that the source defines.

    It may use `np`, `math` and `njit`; functions are decorated by itself, `@njit(nogil=True, cache=True)`.

    >>> compile_source("def twice(x):\\n    return 2 * x\\n")["twice"](3)
    6
    """
    name = _name(source)
    module = _LOADED.get(name)
    if module is None:
        module = _LOADED[name] = _load(name, _PREAMBLE + source)
    return vars(module)


def loaded_sources() -> tuple[ModuleType, ...]:
    """The modules of all sources that this process has compiled or loaded."""
    return tuple(_LOADED.values())


def _load(name: str, text: str) -> ModuleType:
    path = _written(name, text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Numba's cache looks a function's module up by its name
    spec.loader.exec_module(module)
    return module


def _written(name: str, text: str) -> Path:
    """The file of the source; where the user's cache cannot be written to, one that lives for a while."""
    folder = cache_folder()
    try:
        return _write(folder, name, text)
    except OSError:
        return _write(Path(tempfile.mkdtemp(prefix="kaicep-kernels-")), name, text)


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Processes that start together may write the same file: each writes its own, and the last one stays.
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=name, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    return path
