"""What the kernel needs of Numba: functions that are compiled once per installation, and prefetching.

Compiled code is kept in a folder that is named after the content of all compiled sources. Numba looks at the
file of a cached function alone, so that it would not see an edit in a module that the function calls.
"""

# mypy: ignore-errors
# Half of what is used here has no types in Numba.

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import caching
from numba.extending import intrinsic

from kaicep.storage.disk import cache_folder

_HERE = Path(__file__).parent


@cache
def _version() -> str:
    """A name for what compiled functions are made of: this module, those that use it, and the layout.

    Spark's workers may have the sources in a zip file.
    """
    made = blake2b(digest_size=8)
    here = files(__package__)
    for folder in (here, here / "epsparql"):
        sources = {each.name: each for each in folder.iterdir() if each.name.endswith(".py")}
        for name in sorted(sources):
            source = sources[name].read_bytes()
            if b"kaicep.kernel.jit" in source or name in ("jit.py", "tables.py"):
                made.update(source)
    return made.hexdigest()


def kernel_folder() -> Path:
    """Where the compiled functions of this version of the kernel are."""
    return cache_folder("kernels") / _version()


class _KernelLocator(caching._CacheLocator):
    """Where Numba keeps the kernel's compiled functions; for all others it looks where it always does."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _KernelLocator | None:
        """A locator for a function of the kernel, where the cache can be written to."""
        if _HERE not in Path(py_file).parents:
            return None
        made = cls(py_func.__qualname__)
        try:
            made.ensure_cache_path()
        except OSError:
            return None
        return made

    def get_cache_path(self) -> str:
        """The folder of this version of the kernel."""
        return str(kernel_folder())

    def get_source_stamp(self) -> str:
        """The folder already says which sources these are."""
        return _version()

    def get_disambiguator(self) -> str:
        """Functions of one name in one module do not occur, and modules of one name that compile neither."""
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


def kept(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function that makes arrays: it is compiled on first use and kept on disk, whoever calls it."""
    return numba.njit(cache=True, nogil=True, **options)


def direct(function: Any) -> Callable[..., Any]:
    """An entry whose arguments are always of the same types, called without a look at them.

    To see of which types some dozens of arrays are takes ten times as long as a call that finds little to do.
    """
    compiled: Any = None

    def call(*given: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            compiled = function.compile(tuple(map(function.typeof_pyval, given)))
        return compiled(*given)

    return call


_WORDS = 6
"""How many integers a function by address is given."""


def address(function: Callable[..., Any]) -> Callable[[], int]:
    """A function of integers that is called by its address, so that it is compiled once and never copied.

    What is returned gives the address. It is compiled, or loaded, when that is asked for first: a worker
    imports the kernel before it has the compiled code that was sent to it.
    """
    return _Address(function)


class _Address:
    """Where a function is; `compiled` is None until somebody has asked."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: Any = None

    def __call__(self) -> int:
        """The address."""
        if self.compiled is None:
            kind = types.void(*[types.int64] * _WORDS)
            options = {"nopython": True, "cache": True, "error_model": "numpy"}
            self.compiled = numba.cfunc(kind, **options)(self.function)
        return self.compiled.address


@intrinsic
def call(typingctx: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
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
