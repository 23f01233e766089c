"""Matches in SQL: a table function in Python, for one table of events and one query of chi-CEP.

Spark asks it for the columns of its result before it runs: the query is compiled for the columns of the table
then, and travels to the workers with that answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.udtf import AnalyzeResult

from kaicep.compiling import compile, streams_in
from kaicep.engine import run
from kaicep.errors import Failure, Mistake
from kaicep.hosts.spark.output import columns_of
from kaicep.hosts.spark.sent import Sent, sent
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.time import parse_time
from kaicep.query import Query

NAME = "kaicep_match"

_TYPES: Sequence[tuple[tuple[type[DataType], ...], str]] = (
    ((BooleanType,), "bool"),
    ((IntegralType,), "int64"),
    ((FloatType, DoubleType, DecimalType), "float64"),
    ((StringType,), "string"),
    ((TimestampType, DateType), "timestamp"),
)


@dataclass
class Analyzed(AnalyzeResult):
    """What Spark asks for, and the query for the table that it asked about."""

    job: Sent[Query] | None = None


def table_function(knowledge: Knowledge, annotations: Sequence[Mapping[str, Any]]) -> type:
    """The class that Spark runs for each partition of a table."""

    class Matching:
        """SELECT * FROM kaicep_match(TABLE(events) PARTITION BY key, query => '...')"""

        @staticmethod
        def analyze(events: Any, query: Any) -> AnalyzeResult:
            return analyzed(events, query, knowledge, annotations)

        def __init__(self, result: Any) -> None:
            self.query = result.job.opened()
            self.events: list[Event] = []

        def eval(self, events: Row, query: str) -> None:
            self.events.append(event_of(events, self.query))

        def terminate(self) -> Iterator[tuple[Any, ...]]:
            (plan,) = self.query.program.queries
            types = dict(columns_of(plan))
            for match in run(self.query, self.events):
                yield row_of(match, types)

    return Matching


def analyzed(
    events: Any, query: Any, knowledge: Knowledge, annotations: Sequence[Mapping[str, Any]]
) -> Analyzed:
    """The columns of the matches of a query over a table."""
    if not events.isTable:
        raise Mistake(f"{NAME} takes a table", hint="TABLE(events) PARTITION BY ...")
    if not isinstance(query.value, str):
        raise Mistake(f"{NAME} takes the text of a query", hint="query => 'SELECT ...'")
    if "seq" not in events.dataType.names:
        hint = "kaicep.spark.events makes it of what a source knows; or SELECT n AS seq, ..."
        raise Mistake("the table has no column seq, the position of an event", hint=hint)
    types: dict[str, str] = {}
    for each in events.dataType.fields:
        if each.name not in ("part", "seq"):
            types.update((each.name, name) for kinds, name in _TYPES if isinstance(each.dataType, kinds))
    names = streams_in(query.value)
    if len(names) != 1:
        raise Mistake(f"{NAME} takes a query of one stream", hint="FROM (?a, s), (?b, s)")
    made = compile(query.value, knowledge=knowledge, annotations=annotations, streams={names[0]: types})
    (plan,) = made.program.queries
    columns = StructType([StructField(name, type) for name, type in columns_of(plan)])
    schema = StructType(
        [
            StructField("id", StringType()),
            StructField("start", TimestampType()),
            StructField("end", TimestampType()),
            *([StructField("select", columns)] if columns.fields else []),
            StructField("match", StringType()),
        ]
    )
    return Analyzed(schema, job=sent(made))


def event_of(row: Row, query: Query) -> Event:
    """A row of the table as an event."""
    (name,) = query.streams
    cells = row.asDict()
    part, seq = cells.pop("part", 0), cells.pop("seq")
    for word, position in (("part", part), ("seq", seq)):
        if not isinstance(position, int) or position < 0:
            raise Failure(
                f"an event of {name} has {word} {position}: a position is a whole number, 0 or more"
            )
    values = {key: _value(value) for key, value in cells.items()}
    ts = values.pop(query.catalog.streams[name].time, None)
    if not isinstance(ts, int):
        raise Failure(f"an event of {name} has no time: leave it out, or make a timestamp of it")
    return Event(name, part, seq, ts, values)


def _value(value: Any) -> Any:
    """A cell as the kernel has it: times are microseconds."""
    if isinstance(value, datetime):
        return TimestampType().toInternal(value)
    if isinstance(value, date):
        return DateType().toInternal(value) * 86_400_000_000
    return float(value) if isinstance(value, Decimal) else value


def row_of(match: Match, types: Mapping[str, DataType]) -> tuple[Any, ...]:
    """A match as a row of the result."""
    select = {name: _cell(value, types[name]) for name, value in match.select.items()}
    cells = [match.id, _moment(match.start_us), _moment(match.end_us)]
    return (*cells, *([select] if types else []), match.to_json())


def _cell(value: Any, type: DataType) -> Any:
    if isinstance(type, ArrayType):
        return None if value is None else [_cell(each, type.elementType) for each in value]
    return _moment(parse_time(value)) if isinstance(type, TimestampType) and value else value


def _moment(micros: int | None) -> Any:
    return None if micros is None else TimestampType().fromInternal(micros)
