"""chi-CEP expressions about one event as Spark columns.

A filter in Spark only thins out what the kernel then judges, so it may let through too much and never too
little: an expression that Spark does not evaluate exactly as the kernel does is not translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as sf

from kaicep.hosts.spark.wire import Layout
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.time import DURATION_UNITS
from kaicep.plan.types import Type

__all__ = ["NotNative", "field_column", "key_column", "native"]

_SPARK = {Type.BOOL: "boolean", Type.FLOAT64: "double", Type.STRING: "string"}
_DAY, _HOUR = DURATION_UNITS["d"], DURATION_UNITS["h"]


class NotNative(Exception):
    """An expression that Spark cannot evaluate, or not in the same way."""


def native(expr: Expr, stream: str, layout: Layout) -> Column:
    """The value of an expression for an event of a stream; raises `NotNative`."""
    match expr:
        case Const(value, wanted):
            return sf.lit(value).cast(_SPARK.get(wanted, "bigint") if wanted else "void")
        case Field():
            return field_column(expr, stream, layout)
        case Call(op, args):
            if op not in _OPS:
                raise NotNative(op)
            return _OPS[op]([native(each, stream, layout) for each in args], expr.type)
    raise NotNative(type(expr).__name__)


def field_column(field: Field, stream: str, layout: Layout) -> Column:
    """An attribute of an event: the first of its names that is not null, widened where that is needed."""
    columns = layout.of_stream(stream)
    found: list[Column] = []
    for name in dict(field.sources).get(stream, ()):
        if name == "ts":
            found.append(sf.col("_ts"))
        elif name in columns:
            found.append(sf.col(f"a{columns[name]}"))
    if field.type is None:
        raise NotNative(f"the type of {field.name} is not known")
    made = sf.coalesce(*found) if found else sf.lit(None)
    return made.cast(_SPARK.get(field.type, "bigint"))


def key_column(expr: Expr, stream: str, layout: Layout) -> Column:
    """A value to partition by: the two zeros are one."""
    made = native(expr, stream, layout)
    floating = isinstance(expr, Field | Call) and expr.type is Type.FLOAT64
    return sf.when(made == 0, sf.lit(0.0)).otherwise(made) if floating else made


_Op = Callable[[Sequence[Column], Type | None], Column]


def _finite(made: Column, type: Type | None) -> Column:
    """What its type cannot hold is null; Spark has infinities, and integers that do not overflow there."""
    if type is Type.FLOAT64:
        return sf.when(sf.abs(made) <= 1.7976931348623157e308, made)
    if type is Type.INT64:
        return made
    raise NotNative(f"arithmetic on {type}")


def _sign(apply: Callable[[Column, Column], Column]) -> _Op:
    return lambda args, wanted: _finite(apply(args[0], args[1]), wanted)


def _plain(apply: Callable[..., Column]) -> _Op:
    return lambda args, _: apply(*args)


def _in(value: Column, *choices: Column) -> Column:
    return reduce(lambda left, right: left | right, [value == each for each in choices], sf.lit(False))


def _negative(args: Sequence[Column], type: Type | None) -> Column:
    return -args[0] if type is Type.FLOAT64 else _finite(sf.try_subtract(sf.lit(0), args[0]), type)


def _absolute(args: Sequence[Column], type: Type | None) -> Column:
    if type is not Type.FLOAT64:
        raise NotNative("abs of an integer, which may overflow")
    return sf.abs(args[0])


def _of_utc(apply: Callable[[Column], Column]) -> _Op:
    def part(args: Sequence[Column], _: Type | None) -> Column:
        if len(args) > 1:
            raise NotNative("a time zone")
        return apply(args[0])

    return part


_OPS: Mapping[str, _Op] = {
    "=": _plain(lambda left, right: left == right),
    "!=": _plain(lambda left, right: left != right),
    "<": _plain(lambda left, right: left < right),
    "<=": _plain(lambda left, right: left <= right),
    ">": _plain(lambda left, right: left > right),
    ">=": _plain(lambda left, right: left >= right),
    "and": _plain(lambda *args: reduce(lambda left, right: left & right, args)),
    "or": _plain(lambda *args: reduce(lambda left, right: left | right, args)),
    "not": _plain(lambda arg: ~arg),
    "in": _plain(_in),
    "if": _plain(lambda test, then, otherwise: sf.when(test, then).otherwise(otherwise)),
    "coalesce": _plain(sf.coalesce),
    "float": _plain(lambda arg: arg.cast("double")),
    "+": _sign(sf.try_add),
    "-": _sign(sf.try_subtract),
    "*": _sign(sf.try_multiply),
    "/": _sign(lambda left, right: sf.try_divide(left.cast("double"), right.cast("double"))),
    "%": _sign(sf.try_mod),
    "neg": _negative,
    "abs": _absolute,
    "contains": _plain(sf.contains),
    "startsWith": _plain(sf.startswith),
    "hour": _of_utc(lambda ts: sf.floor(sf.pmod(ts, sf.lit(_DAY)) / sf.lit(_HOUR))),
    "dayOfWeek": _of_utc(
        lambda ts: sf.floor(sf.pmod(ts + sf.lit(3 * _DAY), sf.lit(7 * _DAY)) / sf.lit(_DAY)) + sf.lit(1)
    ),
}
