"""What the kernel needs of Numba: functions that are compiled once per installation, and prefetching.

Compiled code is kept in a folder that is named after the content of all kernel sources. Numba looks at the
file of a cached function alone, so that it would not see an edit in a module that the function calls.
"""

# mypy: ignore-errors
# Half of what is used here has no types in Numba.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import caching
from numba.extending import intrinsic

from kaicep.kernel.compile import cache_folder

__all__ = ["address", "call", "entry", "inner", "pointer", "prefetch"]

_HERE = Path(__file__).parent


@cache
def _version() -> str:
    """A name for what the sources of the kernel say."""
    made = blake2b(digest_size=8)
    for path in sorted(_HERE.glob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()


class _KernelLocator(caching._CacheLocator):
    """Where Numba keeps the kernel's compiled functions; for all others it looks where it always does."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _KernelLocator | None:
        """A locator for a function of the kernel, where the cache can be written to."""
        if Path(py_file).parent != _HERE:
            return None
        made = cls(py_func.__qualname__)
        try:
            made.ensure_cache_path()
        except OSError:
            return None
        return made

    def get_cache_path(self) -> str:
        """The folder of this version of the kernel."""
        return str(cache_folder() / _version())

    def get_source_stamp(self) -> str:
        """The folder already says which sources these are."""
        return _version()

    def get_disambiguator(self) -> str:
        """Functions of one name in one module do not occur."""
        return self._name


caching.CacheImpl._locator_classes.insert(0, _KernelLocator)

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function that other compiled functions call.

    It counts no references: on arrays that its caller keeps, counting costs more than matching.
    """
    return numba.njit(**_OPTIONS, _nrt=False, **options)


def entry(function: Callable[..., Any]) -> Any:
    """A function that Python calls; it is compiled on first use and kept on disk."""
    return numba.njit(cache=True, _nrt=False, **_OPTIONS)(function)


_WORDS = 9
"""How many integers a function by address is given."""


def address(function: Callable[..., Any]) -> Any:
    """A function of integers that is called by its address, so that it is compiled once and never copied."""
    kind = types.void(*[types.int64] * _WORDS)
    return numba.cfunc(kind, nopython=True, cache=True, error_model="numpy")(function)


@intrinsic
def call(
    typingctx: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any
) -> Any:
    """Calls the function at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * _WORDS)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (_WORDS + 1)), codegen


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer, for `carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Asks for a cache line that will be needed soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(function, [builder.inttoptr(args[0], pointer), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
