"""chi-CEP expressions as Python functions: source is generated, compiled once, and then just runs.

A `Writer` collects the statements of one function. Every subexpression becomes a local variable; null is
None, and what cannot be null is not tested for it. Who uses the writer says, by a `Names`, what stands
for the event of a variable, for that of the round before, and for an aggregate.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, Protocol

from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous
from kaicep.plan.time import DURATION_UNITS, parse_time
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value
from kaicep.plan.zones import zone_offset

__all__ = ["value_function"]

_FIRST_INSTANT = parse_time("0001-01-01") or 0
_LAST_INSTANT = parse_time("9999-12-31T23:59:59.999999") or 0


class Names(Protocol):
    """What the variables of an expression are called in a generated function."""

    def event(self, variable: str) -> str:
        """The Python expression for the event of a variable."""
        ...

    def previous(self, variable: str) -> str:
        """The one for its event in the round before."""
        ...

    def aggregate(self, expr: Aggregate) -> str:
        """The one for the value of an aggregate."""
        ...


class OneEvent:
    """Names where every variable stands for one and the same event."""

    def event(self, variable: str) -> str:
        """The event."""
        return "event"

    def previous(self, variable: str) -> str:
        """There is no round before in an expression about one event."""
        raise TypeError("PREV belongs to a loop")

    def aggregate(self, expr: Aggregate) -> str:
        """Nor are there several events."""
        raise TypeError(f"{expr.op} belongs to a loop or a window")


class Writer:
    """The statements of one generated function, and the objects that they refer to.

    `streams` are those that events can be of; a field that is read the same way on all of them needs no
    look at the stream.
    """

    def __init__(self, streams: Collection[str] = ()) -> None:
        self.streams = frozenset(streams)
        self.lines: list[str] = []
        self.objects: dict[str, object] = {}
        self._known: dict[tuple[Expr, str], str] = {}
        self._count = 0

    def function(self, parameters: str) -> Callable[..., Any]:
        """The function of these parameters that runs the statements."""
        body = "\n    ".join(self.lines) or "pass"
        space = dict(self.objects)
        exec(_code(f"def made({parameters}):\n    {body}\n"), space)
        return space["made"]  # type: ignore[return-value]

    def refer(self, value: object) -> str:
        """A name for an object."""
        name = f"_o{len(self.objects)}"
        self.objects[name] = value
        return name

    def value(self, expr: Expr, names: Names) -> str:
        """The name, or the literal, that holds the value of the expression."""
        match expr:
            case Const(value):
                return f"({value!r})" if isinstance(value, int | float) else repr(value)
            case Field():
                return self._field(expr, names.event(expr.variable))
            case Previous(of):
                return self.value(of, _Before(names))
            case Aggregate():
                return self._local(names.aggregate(expr))
            case Call():
                return self._call(expr, names)
        raise TypeError(f"{type(expr).__name__} has no value in chi-CEP")

    def _local(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"v{self._count} = {text}")
        return f"v{self._count}"

    def _field(self, field: Field, event: str) -> str:
        key = field, event
        if key not in self._known:
            self._known[key] = self._read(field, event)
        return self._known[key]

    def _read(self, field: Field, event: str) -> str:
        """As a host reads an attribute: the first name that is not null, an int64 widened where needed."""
        ways = {names for _, names in field.sources}
        same = len(ways) == 1 and self.streams.issubset(stream for stream, _ in field.sources)
        names = next(iter(ways)) if same and self.streams else None
        if names is not None and len(names) == 1:
            if names[0] == "ts":
                return self._local(f"{event}.ts")
            made = self._local(f"{event}.values.get({names[0]!r})")
        else:
            made = self._local(f"{self.refer(_first)}({event}, {self.refer(dict(field.sources))})")
        if field.type is Type.FLOAT64:
            self.lines.append(f"if isinstance({made}, int): {made} = float({made})")
        return made

    def _call(self, call: Call, names: Names) -> str:
        args = [self.value(each, names) for each in call.args]
        if call.op in _WITH_NULLS:
            return self._local(f"{self.refer(_WITH_NULLS[call.op])}({', '.join(args)})")
        made = self._local(self._applied(call, args))
        limit = _limit(call)
        if limit is _any_range:
            self.lines.append(f"{made} = {self.refer(_any_range)}({made})")
        elif isinstance(limit, tuple):
            self.lines.append(
                f"if {made} is not None and not {limit[0]} <= {made} <= {limit[1]}: {made} = None"
            )
        return made

    def _applied(self, call: Call, args: list[str]) -> str:
        nulls = [f"{each} is None" for each in args if _may_be_null(each)]
        if call.op == "regex" and isinstance(call.args[1], Const):
            search = self.refer(re.compile(str(call.args[1].value)).search)
            text = f"{search}({args[0]}) is not None"
        elif call.op in _SIGNS:
            text = f"{args[0]} {_SIGNS[call.op]} {args[1]}"
        else:
            text = f"{self.refer(_FUNCTIONS[call.op])}({', '.join(args)})"
        return f"None if {' or '.join(nulls)} else {text}" if nulls else text


class _Before:
    """Names inside PREV: the events are those of the round before."""

    def __init__(self, names: Names) -> None:
        self.event = names.previous
        self.previous = names.previous
        self.aggregate = names.aggregate


@lru_cache(maxsize=4096)
def _code(source: str) -> CodeType:
    return compile(source, "<kaicep kernel>", "exec")


def _may_be_null(atom: str) -> bool:
    return atom.isidentifier() and atom not in ("True", "False")


def value_function(expr: Expr, streams: Collection[str]) -> Callable[[Event], Value]:
    """The expression as a function of the one event that it is about.

    >>> x = Field("e", "x", (("s", ("x",)),), Type.FLOAT64)
    >>> half = value_function(Call("/", (x, Const(2.0, Type.FLOAT64)), Type.FLOAT64), ["s"])
    >>> half(Event("s", 0, 0, 0, {"x": 5}))
    2.5
    """
    writer = Writer(streams)
    result = writer.value(expr, OneEvent())
    writer.lines.append(f"return {result}")
    return writer.function("event")


def _first(event: Event, sources: Mapping[str, tuple[str, ...]]) -> Value:
    for name in sources.get(event.stream, ()):
        value = event.value(name)
        if value is not None:
            return value
    return None


# --- what a type can hold --------------------------------------------------------------------------------

_LIMITS = {
    Type.FLOAT64: (repr(-sys.float_info.max), repr(sys.float_info.max)),  # a NaN is in no range
    Type.INT64: (repr(INT64_MIN), repr(INT64_MAX)),
    Type.TIMESTAMP: (repr(_FIRST_INSTANT), repr(_LAST_INSTANT)),
}


def _any_range(value: Any) -> Value:
    """The value, or null where its type cannot hold it; for expressions without a type."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return None
    return value  # type: ignore[no-any-return]


def _limit(call: Call) -> object:
    if call.op in _COMPARISONS or call.op in _NEVER_TOO_LARGE or call.type in (Type.BOOL, Type.STRING):
        return None
    return _any_range if call.type is None else _LIMITS[call.type]


# --- logic: nulls have a say of their own ----------------------------------------------------------------


def _and(*args: Value) -> Value:
    if any(each is False for each in args):
        return False
    return None if None in args else True


def _or(*args: Value) -> Value:
    if any(each is True for each in args):
        return True
    return None if None in args else False


def _in(value: Value, *choices: Value) -> Value:
    if value is None:
        return None if choices else False
    if any(each is not None and each == value for each in choices):
        return True
    return None if None in choices else False


def _if(condition: Value, then: Value, otherwise: Value) -> Value:
    return then if condition is True else otherwise


def _coalesce(*args: Value) -> Value:
    return next((each for each in args if each is not None), None)


_WITH_NULLS: dict[str, Callable[..., Value]] = {
    "and": _and,
    "or": _or,
    "in": _in,
    "if": _if,
    "coalesce": _coalesce,
}


# --- everything else: a null makes null ------------------------------------------------------------------


def _divide(left: float, right: float) -> Value:
    return None if right == 0 else float(left) / float(right)


def _remainder(left: float, right: float) -> Value:
    """With the sign of the left side."""
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


def _floor(value: float) -> Value:
    return value if isinstance(value, int) else float(math.floor(value))


def _ceil(value: float) -> Value:
    return value if isinstance(value, int) else float(math.ceil(value))


def _round(value: float) -> Value:
    """Half away from zero."""
    if isinstance(value, int):
        return value
    size = abs(value)
    whole = math.floor(size)
    # The difference is exact; adding a half to the size would not be.
    rounded = whole + 1 if size - whole >= 0.5 else whole
    return float(-rounded if value < 0 else rounded)


_COMPARISONS = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_SIGNS = {**_COMPARISONS, "+": "+", "-": "-", "*": "*"}
_NEVER_TOO_LARGE = ("not", "float", "lower", "upper", "contains", "startsWith", "regex", "hour", "dayOfWeek")

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "/": _divide,
    "%": _remainder,
    "neg": lambda value: -value,
    "not": lambda value: not value,
    "float": float,
    "abs": abs,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "lower": str.lower,
    "upper": str.upper,
    "contains": lambda text, part: part in text,
    "startsWith": str.startswith,
    "regex": lambda text, pattern: re.search(pattern, text) is not None,
    "hour": lambda ts, zone="UTC": (ts + zone_offset(ts, zone)) // DURATION_UNITS["h"] % 24,
    # 1970 began on a Thursday.
    "dayOfWeek": lambda ts, zone="UTC": ((ts + zone_offset(ts, zone)) // DURATION_UNITS["d"] + 3) % 7 + 1,
}
