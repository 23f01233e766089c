"""Generated kernels as plain Python: slow to run and quick to make, so that a test can try many shapes.

The source is the same; only Numba is replaced. Memory is that of the C library, seen by NumPy.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import kaicep.kernel.compiled.memory as real
from kaicep.kernel.compiled import block

_LIBRARY = ctypes.CDLL(None)
for _name, _result, _arguments in (
    ("malloc", ctypes.c_int64, [ctypes.c_int64]),
    ("realloc", ctypes.c_int64, [ctypes.c_int64] * 2),
    ("free", None, [ctypes.c_int64]),
    ("memmove", ctypes.c_int64, [ctypes.c_int64] * 3),
    ("malloc_usable_size", ctypes.c_int64, [ctypes.c_int64]),
    ("memset", ctypes.c_int64, [ctypes.c_int64, ctypes.c_int, ctypes.c_int64]),
):
    getattr(_LIBRARY, _name).restype = _result
    getattr(_LIBRARY, _name).argtypes = _arguments

_KINDS = {
    np.int64: ctypes.c_int64,
    np.uint64: ctypes.c_uint64,
    np.float64: ctypes.c_double,
    np.int32: ctypes.c_int32,
    np.int8: ctypes.c_int8,
}
_MANY = 1 << 32


def _array(dtype: Any, address: Any) -> Any:
    if address == 0:
        return np.zeros(0, dtype)
    return np.ctypeslib.as_array((_KINDS[dtype] * _MANY).from_address(int(address)))


def _njit(*given: Any, **_: Any) -> Any:
    return given[0] if given else lambda function: function


def _external(name: str, _: object) -> Any:
    function = _moved if name == "realloc" else getattr(_LIBRARY, name)
    return lambda *args: function(*(int(each) for each in args))


def _moved(address: int, size: int) -> int:
    """Memory that grows always moves, and what stood there before is spoilt: nobody may look at it again."""
    made: int = _LIBRARY.malloc(size)
    known = _LIBRARY.malloc_usable_size(address)
    _LIBRARY.memmove(made, address, min(known, size))
    _LIBRARY.memset(address, 0xA5, known)
    _LIBRARY.free(address)
    return made


def _type(*_: object) -> None:
    return None


def memory() -> ModuleType:
    """`kernel.compiled.memory` without Numba."""
    text = Path(real.__file__).read_text(encoding="utf-8")
    text = text.replace("max(2 * old, 1024, end)", "end")  # an arena has room for what is in it, and no more
    head, rest = text.split("from llvmlite import", 1)
    rest = rest.split("\n", 5)[5]
    made = ModuleType("plain_memory")
    types = SimpleNamespace(
        ExternalFunction=_external,
        Array=_type,
        **dict.fromkeys(("intp", "void", "int8", "int32", "int64", "uint64", "float64"), _type),
    )
    vars(made).update(njit=_njit, types=types, intrinsic=lambda function: function)
    exec(compile(head + rest, "plain_memory", "exec"), vars(made))
    for name, dtype in (
        ("i8", np.int64),
        ("u8", np.uint64),
        ("f8", np.float64),
        ("i4", np.int32),
        ("i1", np.int8),
    ):
        vars(made)[name] = partial(_array, dtype)
    vars(made)["prefetch"] = lambda address: None
    vars(made)["bits"] = lambda value: np.float64(value).view(np.int64)
    return made


def helpers(space: ModuleType) -> dict[str, Any]:
    """What stands in for `block.HELPERS`."""
    made = {each: value for each, value in vars(space).items() if not each.startswith("__")}
    made |= {"np": np, "math": math, "njit": _njit}
    exec(block.SOURCE.replace("from kaicep.kernel.compiled.memory import *", ""), made)
    return made


def compiler(helpers: dict[str, Any]) -> Any:
    """What stands in for `compile_source`."""

    def compiled(source: str) -> dict[str, Any]:
        made = dict(helpers)
        exec(source.removeprefix(block.HEADER), made)
        return made

    return compiled
