"""What a graph is made of: suppliers, operators of several kinds, and consumers.

They come from a file or from decorated functions. `KINDS` says what the operators of a kind read and give,
and their settings; how they work is in `operators`.
Times are microseconds, as everywhere in plans; the service counts in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kaicep.errors import Diagnostic, Mistake, Source, Span, did_you_mean
from kaicep.plan.time import parse_duration

__all__ = [
    "KINDS",
    "PRIORITIES",
    "TYPES",
    "Consumer",
    "Kind",
    "Node",
    "Operator",
    "Place",
    "Setting",
    "Supplier",
    "consumer",
    "operator",
    "supplier",
]

PRIORITIES: Mapping[str, int] = {"high": 3, "middle": 2, "low": 1}
"""Words for priorities; any whole number will do, and the larger one goes first."""


@dataclass(frozen=True)
class Place:
    """The place of a node in a file: the node itself, and its keys."""

    source: Source
    span: Span
    keys: Mapping[str, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Supplier:
    """Where events enter. They are valid for `validity` from their creation on (None: for ever).

    `period` is the time between two events, where they come regularly; `ring` how many of them are kept,
    where that shall not follow from the two. `type` is what its events carry. `source` says where `kaicep
    live run` gets them from.
    """

    name: str
    validity: int | None = None
    period: int | None = None
    ring: int | None = None
    type: str = "samples"
    source: Mapping[str, Any] = field(default_factory=dict)
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Operator:
    """A step: its kind, the nodes that it reads, its settings.

    `function` is what it does, where that is the caller's: something to call, or a compiled `Query`. `queue`
    bounds what waits for it on each input. A `parallel` one may work on several events at once: it must not
    remember anything. Its events come out in order all the same. An `isolate`d one runs in a process of its
    own.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    function: Any = None
    accepts: str = "any"
    gives: str = "any"
    queue: int = 4096
    parallel: bool = False
    isolate: bool = False
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Consumer:
    """Who gets the events of a node, how urgently, and by which callback.

    `queue` bounds what waits for a consumer that is slow. `output` is a file for `kaicep live run`.
    """

    name: str
    input: str
    priority: int = 1
    callback: Callable[..., Any] | None = None
    queue: int = 64
    output: str | None = None
    place: Place | None = field(default=None, compare=False, repr=False)


Node = Supplier | Operator | Consumer
"""Any node of a graph."""


def supplier(
    name: str,
    *,
    validity: str | None = None,
    period: str | None = None,
    ring: int | None = None,
    type: str = "samples",
) -> Supplier:
    """A supplier, with durations as texts.

    >>> supplier("radar", validity="10ms", period="5ms").validity
    10000
    """
    return Supplier(name, _micros("validity", validity), _micros("period", period), ring, type)


def operator(
    *inputs: Node | str,
    name: str | None = None,
    accepts: str = "any",
    gives: str = "any",
    queue: int = 4096,
    parallel: bool = False,
    isolate: bool = False,
) -> Callable[[Callable[..., Any]], Operator]:
    """Makes a function an operator of the nodes that it reads: one argument for each of them.

    It gives the new event's payload, or None for no event. A Numba kernel will do as well. A `parallel` one
    remembers nothing, and may be called for several events at once. An `isolate`d one runs in a process of
    its own, so that it keeps the interpreter from nobody: it must be a function of a module.

    >>> radar = supplier("radar")
    >>> @operator(radar)
    ... def louder(samples):
    ...     return samples * 2
    >>> louder.name, louder.inputs
    ('louder', ('radar',))
    """
    read = tuple(each if isinstance(each, str) else each.name for each in inputs)

    def made(function: Callable[..., Any]) -> Operator:
        called = name or function.__name__
        return Operator(called, "python", read, {}, function, accepts, gives, queue, parallel, isolate)

    return made


def consumer(
    input: Node | str, *, priority: int | str = "low", name: str | None = None, queue: int = 64
) -> Callable[[Callable[..., Any]], Consumer]:
    """Makes a function a consumer of a node: it is called with every `Delivery`.

    >>> @consumer("louder", priority="high")
    ... def airbag(delivery):
    ...     print(delivery.payload)
    >>> airbag.priority
    3
    """
    read = input if isinstance(input, str) else input.name

    def made(function: Callable[..., Any]) -> Consumer:
        return Consumer(name or function.__name__, read, priority_of(priority), function, queue)

    return made


def priority_of(given: int | str) -> int:
    """A priority as a number: a word of `PRIORITIES`, or the number itself.

    >>> priority_of("middle"), priority_of(7)
    (2, 7)
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if given not in PRIORITIES:
        raise Mistake(
            Diagnostic(
                f"{given!r} is not a priority: a whole number or one of {', '.join(PRIORITIES)}",
                hint=did_you_mean(str(given), PRIORITIES),
            )
        )
    return PRIORITIES[str(given)]


def _micros(what: str, text: str | None) -> int | None:
    if text is None:
        return None
    micros = parse_duration(text)
    if micros is None:
        raise Mistake(Diagnostic(f"{what} {text}: not a duration", hint="a number and a unit, such as 10ms"))
    return micros


# --- the kinds of operators -------------------------------------------------------------------------------

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
