"""chi-CEP expressions as Spark SQL, where that gives the same value to the last bit; else they are refused.

Three-valued logic is the same in both. Times are microseconds, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kaicep.errors import Unsupported
from kaicep.plan.expressions import Call, Const, Expr, Field, Previous
from kaicep.plan.time import DURATION_UNITS
from kaicep.plan.types import Type, Value

__all__ = ["constant_sql", "expression_sql", "name_sql"]

FieldText = Callable[[Field, bool], str]
"""The text of a field's value; the second argument says that the field stands in PREV."""

SQL_TYPES = {
    Type.BOOL: "BOOLEAN",
    Type.INT64: "BIGINT",
    Type.FLOAT64: "DOUBLE",
    Type.STRING: "STRING",
    Type.TIMESTAMP: "BIGINT",
}
_DAY, _HOUR = DURATION_UNITS["d"], DURATION_UNITS["h"]
_LARGEST = "1.7976931348623157E308D"


def name_sql(name: str) -> str:
    """A name as Spark SQL quotes it.

    >>> name_sql("flow`rate")
    '`flow``rate`'
    """
    return "`" + name.replace("`", "``") + "`"


def constant_sql(value: Value, type: Type | None) -> str:
    """A constant as Spark SQL writes it.

    >>> constant_sql("it's", Type.STRING), constant_sql(500.0, Type.FLOAT64), constant_sql(None, None)
    ("'it\\\\'s'", '500.0D', 'NULL')
    """
    if value is None:
        return "NULL"
    if type is Type.STRING:
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if type is Type.BOOL:
        return "TRUE" if value else "FALSE"
    if type is Type.FLOAT64:
        return f"{float(value)!r}D"
    return f"{value}L"


def expression_sql(expr: Expr, field: FieldText, query: str) -> str:
    """An expression as Spark SQL; `Unsupported` for what Spark would answer differently."""

    def say(each: Expr, previous: bool = False) -> str:
        match each:
            case Const(value, kind):
                return constant_sql(value, kind)
            case Field():
                return field(each, previous)
            case Previous(of):
                return say(of, True)
            case Call(op, args) if op in _OPS:
                return _OPS[op]([say(arg, previous) for arg in args], each)
        what = each.op if isinstance(each, Call) else type(each).__name__
        raise Unsupported(
            f"{query}: one SQL query cannot say {what} as it is meant; the strategies replay and hybrid can"
        )

    return say(expr)


_Op = Callable[[Sequence[str], Call], str]


def _sign(sign: str) -> _Op:
    return lambda args, _: f"({f' {sign} '.join(args)})"


def _arithmetic(function: str) -> _Op:
    return lambda args, call: _finite(f"{function}({', '.join(args)})", call)


def _finite(text: str, call: Call) -> str:
    """What float64 cannot hold is null; integers that overflow are null by `try_`."""
    if call.type is Type.FLOAT64:
        return f"IF(abs({text}) <= {_LARGEST}, {text}, NULL)"
    if call.type is Type.INT64:
        return text
    raise Unsupported(f"one SQL query cannot say arithmetic on {call.type}; replay and hybrid can")


def _divided(args: Sequence[str], call: Call) -> str:
    left, right = (f"CAST({each} AS DOUBLE)" for each in args)
    return _finite(f"try_divide({left}, {right})", call)


def _negative(args: Sequence[str], call: Call) -> str:
    return f"(-{args[0]})" if call.type is Type.FLOAT64 else f"try_subtract(0L, {args[0]})"


def _absolute(args: Sequence[str], call: Call) -> str:
    if call.type is not Type.FLOAT64:
        raise Unsupported("one SQL query cannot say abs of an integer; replay and hybrid can")
    return f"abs({args[0]})"


def _of_utc(apply: Callable[[str], str]) -> _Op:
    def part(args: Sequence[str], call: Call) -> str:
        if len(args) > 1:
            raise Unsupported(f"one SQL query cannot say {call.op} of a zone; replay and hybrid can")
        return apply(args[0])

    return part


_OPS: Mapping[str, _Op] = {
    "=": _sign("="),
    "!=": _sign("<>"),
    "<": _sign("<"),
    "<=": _sign("<="),
    ">": _sign(">"),
    ">=": _sign(">="),
    "and": _sign("AND"),
    "or": _sign("OR"),
    "not": lambda args, _: f"(NOT {args[0]})",
    "in": lambda args, _: f"({args[0]} IN ({', '.join(args[1:])}))",
    "if": lambda args, _: f"IF({', '.join(args)})",
    "coalesce": lambda args, _: f"coalesce({', '.join(args)})",
    "float": lambda args, _: f"CAST({args[0]} AS DOUBLE)",
    "+": _arithmetic("try_add"),
    "-": _arithmetic("try_subtract"),
    "*": _arithmetic("try_multiply"),
    "%": _arithmetic("try_mod"),
    "/": _divided,
    "neg": _negative,
    "abs": _absolute,
    "contains": lambda args, _: f"contains({args[0]}, {args[1]})",
    "startsWith": lambda args, _: f"startswith({args[0]}, {args[1]})",
    "hour": _of_utc(lambda ts: f"(pmod({ts}, {_DAY}L) DIV {_HOUR}L)"),
    "dayOfWeek": _of_utc(lambda ts: f"(pmod({ts} + {3 * _DAY}L, {7 * _DAY}L) DIV {_DAY}L + 1L)"),
}
