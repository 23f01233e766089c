"""The kinds of operators: what each reads and gives, and its settings. How they work is in `operators`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KINDS", "TYPES", "Kind", "Setting"]

TYPES = ("samples", "spectrum", "bytes", "records", "any")
"""What events carry: an array of numbers, one of complex numbers, bytes, rows with names, or whatever."""

_ARRAYS = ("samples", "spectrum", "bytes")


@dataclass(frozen=True)
class Setting:
    """A setting of a kind: its type, what it is where nothing is said, what it must fulfil."""

    type: type
    default: Any = None
    needed: bool = False
    holds: Callable[[Any], bool] = lambda value: True
    must: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of operator.

    `each` is for operators that take the events of their inputs one by one as they come; the others take
    one of every input together. A `stateful` one remembers, so that a new one is not the same as one that
    runs already. `gives` is what it gives; None: the type that it reads.
    """

    accepts: tuple[str, ...]
    gives: str | None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    most: int | None = None
    each: bool = False
    stateful: bool = False


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _share(value: Any) -> bool:
    return bool(0 < value < 1)


KINDS: Mapping[str, Kind] = {
    "ekf": Kind(
        ("samples",),
        "samples",
        {
            "frequency": Setting(float, 0.05, holds=_share, must="lie between 0 and 1, in turns per sample"),
            "process": Setting(float, 1e-4, holds=_positive, must="be above 0"),
            "measurement": Setting(float, 1.0, holds=_positive, must="be above 0"),
        },
        stateful=True,
    ),
    "fft": Kind(("samples",), "spectrum", most=1),
    "cat": Kind(_ARRAYS, None),
    "aes": Kind((*_ARRAYS, "records"), "bytes", {"key_env": Setting(str), "key_file": Setting(str)}, most=1),
    "filter": Kind(
        ("samples",),
        "samples",
        {
            "low": Setting(float, holds=_share, must="lie between 0 and 1, of half the sampling rate"),
            "high": Setting(float, holds=_share, must="lie between 0 and 1, of half the sampling rate"),
            "order": Setting(int, 4, holds=_positive, must="be above 0"),
        },
        most=1,
        stateful=True,
    ),
    "window": Kind(
        ("samples", "spectrum", "records"),
        None,
        {
            "size": Setting(int, needed=True, holds=_positive, must="be above 0"),
            "step": Setting(int, 1, holds=_positive, must="be above 0"),
        },
        most=1,
        stateful=True,
    ),
    "resample": Kind(
        ("samples",),
        "samples",
        {
            "up": Setting(int, 1, holds=_positive, must="be above 0"),
            "down": Setting(int, 1, holds=_positive, must="be above 0"),
        },
        most=1,
    ),
    "query": Kind(
        ("records", "any"),
        "records",
        {
            "query": Setting(str, needed=True),
            "annotation": Setting(list, ()),
            "knowledge": Setting(list, ()),
            "reasoning": Setting(str, "rdfs"),
            "lateness": Setting(str, "0s"),
            "batch": Setting(int, 64, holds=_positive, must="be above 0"),
        },
        each=True,
        stateful=True,
    ),
    "pick": Kind(("records", "any"), "records", {"query": Setting(str, needed=True)}, most=1),
    "python": Kind(TYPES, "any", {"function": Setting(str)}, stateful=True),
}
"""All kinds by name."""
