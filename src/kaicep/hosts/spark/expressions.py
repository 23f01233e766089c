"""chi-CEP expressions about one event as Spark columns: the same Spark SQL by which an archive is asked.

A filter in Spark only thins out what the kernel then judges, so it may let through too much and never too
little: an expression that Spark does not evaluate exactly as the kernel does is `Unsupported`.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

from kaicep.errors import Unsupported
from kaicep.hosts.spark.wire import Layout
from kaicep.plan.expressions import Expr, Field, type_of
from kaicep.plan.spark_sql import SQL_TYPES, expression_sql
from kaicep.plan.types import Type

__all__ = ["key_column", "native"]


def native(expr: Expr, stream: str, layout: Layout) -> Column:
    """The value of an expression for an event of a stream; raises `Unsupported`."""
    return sf.expr(expression_sql(expr, lambda field, _: _field_sql(field, stream, layout), "a filter"))


def _field_sql(field: Field, stream: str, layout: Layout) -> str:
    """An attribute of an event: the first of its names that is not null, widened where that is needed."""
    columns = layout.of_stream(stream)
    if field.type is None:
        raise Unsupported(f"the type of {field.name} is not known")
    names = [each for each in dict(field.sources).get(stream, ()) if each == "ts" or each in columns]
    found = ", ".join("_ts" if name == "ts" else f"a{columns[name]}" for name in names)
    return f"CAST({f'coalesce({found})' if found else 'NULL'} AS {SQL_TYPES[field.type]})"


def key_column(expr: Expr, stream: str, layout: Layout) -> Column:
    """A value to partition by: the two zeros are one."""
    made = native(expr, stream, layout)
    return sf.when(made == 0, sf.lit(0.0)).otherwise(made) if type_of(expr) is Type.FLOAT64 else made
