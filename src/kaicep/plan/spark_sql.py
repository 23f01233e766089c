"""chi-CEP expressions as Spark SQL, where that gives the same value to the last bit; else they are refused.

Three-valued logic is the same in both. Times are microseconds, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from kaicep.errors import Unsupported
from kaicep.plan.expressions import Call, Const, Expr, Field, Previous
from kaicep.plan.operators import express
from kaicep.plan.types import Type, Value

__all__ = ["SQL_TYPES", "constant_sql", "expression_sql", "name_sql"]

FieldText = Callable[[Field, bool], str]
"""The text of a field's value; the second argument says that the field stands in PREV."""

SQL_TYPES = {
    Type.BOOL: "BOOLEAN",
    Type.INT64: "BIGINT",
    Type.FLOAT64: "DOUBLE",
    Type.STRING: "STRING",
    Type.TIMESTAMP: "BIGINT",
}
"""What Spark SQL calls the types; a time is a number of microseconds."""


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
            case Call():
                return express("sql", each, [say(arg, previous) for arg in each.args], query)
        raise Unsupported(f"{query}: {type(each).__name__} is not known in Spark SQL")

    return say(expr)
