"""A saved state: a header, and arrays as they are in memory.

The header is one line of JSON: what kind of state it is, the version of its format, a document of small
things, and for each array its type and shape. The bytes of the arrays follow, little end first, so that a
state means the same on every machine. Nothing is pickled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.columns import Array

__all__ = ["read_state", "write_state"]

_VERSION = 3
_READ = (2, 3)
"""Format 3 differs in the columns of partial matches."""


def write_state(kind: str, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A state as bytes.

    >>> state = write_state("pattern", {"now": 5}, {"ts": np.array([1, 2])})
    >>> document, arrays = read_state("pattern", state)
    >>> document, arrays["ts"].tolist()
    ({'now': 5}, [1, 2])
    """
    given = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
    shapes = [[name, each.dtype.newbyteorder("<").str, each.shape] for name, each in given.items()]
    head = {"kaicep": kind, "version": _VERSION, "arrays": shapes, "document": document}
    parts = [json.dumps(head, separators=(",", ":")).encode(), b"\n"]
    parts += [_little(each).tobytes() for each in given.values()]
    return b"".join(parts)


def read_state(kind: str, state: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The document and the arrays of a state; a `Failure` where it is of another kind or version."""
    line, _, rest = state.partition(b"\n")
    try:
        head = json.loads(line)
        found, version = head["kaicep"], head["version"]
    except (ValueError, KeyError, TypeError):
        raise Failure(f"this is not a saved state of {_one(kind)} that this release can read") from None
    if found != kind:
        other = _one(found) if isinstance(found, str) and found else "something else"
        raise Failure(f"this is the saved state of {other}, not of {_one(kind)}")
    if not isinstance(version, int) or version not in _READ:
        raise Failure(
            f"this state was saved in format {version}, this release reads {_VERSION}: start without it"
        )
    try:
        return head["document"], _arrays(head["arrays"], rest, kind)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError):
        raise Failure(f"the saved state of {_one(kind)} is damaged: start without it") from None


def _arrays(rows: list[Any], rest: bytes, kind: str) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    at = 0
    for name, dtype, shape in rows:
        kind_of = np.dtype(dtype)
        length = prod(shape) * kind_of.itemsize
        if kind_of.hasobject or length < 0:
            raise ValueError("not numbers")
        if len(rest) < at + length:
            raise Failure(f"the saved state of {_one(kind)} is cut short")
        made = np.frombuffer(rest, kind_of, prod(shape), at).reshape(shape)
        arrays[name] = made.astype(kind_of.newbyteorder("="))
        at += length
    return arrays


def _one(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _little(array: Array) -> Array:
    return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("<"))
