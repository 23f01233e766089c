"""Which events can matter, decided in the JVM: filters as expressions, relations as broadcast joins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from kaicep.errors import Unsupported
from kaicep.hosts.spark.layout import Layout
from kaicep.hosts.spark.physical import Part
from kaicep.knowledge.relations import kept_table
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog, Entity
from kaicep.plan.expressions import Expr, Field, type_of
from kaicep.plan.nodes import Chain, EpPlan, Interval, Pattern, QueryPlan, Semantic
from kaicep.plan.operators import SQL_TYPES, expression_sql
from kaicep.plan.terms import Iri
from kaicep.plan.types import Type

# ----------------------------------------------------------------------------------------------------------
# chi-CEP expressions about one event as Spark columns: the same Spark SQL by which an archive is asked.
#
# A filter in Spark only thins out what the kernel then judges, so it may let through too much and never too
# little: an expression that Spark does not evaluate exactly as the kernel does is `Unsupported`.


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


# ----------------------------------------------------------------------------------------------------------
# Which events can matter, decided in the JVM: filters as expressions, semantic relations as broadcast
# joins.
#
# An event that no variable can take is dropped before it crosses to Python, wherever such events have no
# say. Under `strict` they have: there only the bounds of WITHIN are applied. What Spark lets through is
# judged again by the kernel, so what cannot be said in Spark is simply left out here.

_MOST_EPOCHS = 32
_NOT_IN_IRI = r'[\x00-\x20<>"{}|\\^`]'
"""What an IRI template escapes; values with such a character are left to the kernel."""


@dataclass(frozen=True)
class _Known:
    """Values of a column for which a relation has an answer."""

    column: int
    values: frozenset[str]


def candidates(
    rows: DataFrame,
    stream: str,
    part: Part,
    layout: Layout,
    catalog: Catalog,
    knowledge: Knowledge,
    tag: str = "",
) -> tuple[DataFrame, Column]:
    """The rows of a stream, with what is needed to tell, and whether a query of the part may use them.

    `tag` keeps apart what several parts need to tell.
    """
    tests = _Tests(stream, layout, catalog, knowledge, f"_k{tag}_")
    wanted = tests.part(part)
    for number, known in enumerate(tests.known):
        rows = _joined(rows, f"{tests.tag}{number}", known)
    return rows, wanted


def filtered(stream: str, part: Part, layout: Layout, catalog: Catalog) -> Column:
    """Whether a query of the part may use a row of a stream, as far as filters tell without any join.

    It is yes or no: a filter on what is not known of an event is neither, and does not let it pass.
    """
    return sf.coalesce(_Tests(stream, layout, catalog).part(part), sf.lit(False))


def _joined(rows: DataFrame, name: str, known: _Known) -> DataFrame:
    """Marks the rows whose value a relation knows, by a broadcast join."""
    values = pa.table({name: sorted(known.values)}, pa.schema([(name, pa.string())]))
    small = rows.sparkSession.createDataFrame(values)
    text = sf.col(f"a{known.column}").cast("string")
    return rows.join(sf.broadcast(small), text == sf.col(name), "left")


def _any(tests: Iterable[Column]) -> Column:
    return reduce(lambda left, right: left | right, tests, sf.lit(False))


class _Tests:
    """Collects what to ask of the events of one stream."""

    def __init__(
        self,
        stream: str,
        layout: Layout,
        catalog: Catalog,
        knowledge: Knowledge | None = None,
        tag: str = "",
    ) -> None:
        self.stream = stream
        self.tag = tag
        self.layout = layout
        self.catalog = catalog
        self.knowledge = knowledge
        self.known: list[_Known] = []

    def part(self, part: Part) -> Column:
        """Whether a query of a part may use an event."""
        wanted = [self.query(query) for query in part.optimised]
        needed = [each for each in wanted if each is not None]
        return _any(needed) if len(needed) == len(wanted) else sf.lit(True)

    def query(self, plan: QueryPlan) -> Column | None:
        """Whether a query may use an event; None where it may use any."""
        if isinstance(plan, EpPlan) or plan.is_absent:
            return None
        strict = isinstance(plan.body, Pattern) and plan.body.match == "strict"
        chains = (each for each in plan.body.all_chains if self.stream in each.streams)
        return _any([self.chain(each, strict) for each in chains])

    def chain(self, chain: Chain, strict: bool) -> Column:
        """Whether a variable may take an event; under `strict`, whether it is there at all."""
        tests = list(_within(chain.within))
        if not strict:
            tests += [test for each in chain.semantics for test in self.semantic(each)]
            for each in chain.conditions:
                try:
                    tests.append(native(each, self.stream, self.layout))
                except Unsupported:
                    continue
        return reduce(lambda left, right: left & right, tests, sf.lit(True))

    def semantic(self, condition: Semantic) -> Iterator[Column]:
        """Whether a relation may know an event, where that hangs on one thing that the event names."""
        relation, knowledge = condition.relation, self.knowledge
        if relation is None or knowledge is None or len(knowledge.epochs) > _MOST_EPOCHS:
            return
        kept = kept_table(relation, condition.selected, knowledge)
        tables = [kept.table(knowledge, epoch) for epoch in range(len(knowledge.epochs) + 1)]
        places = tables[0].places
        if any(each.rows is None for each in tables) or len(places) != 1:
            return
        root = relation.roots[places[0]]
        entities = dict(root.entities).get(self.stream, ())
        if len(entities) != 1 or dict(root.literals).get(self.stream):
            return
        attribute = entities[0]
        stream = self.catalog.streams[self.stream]
        if stream.type_of(attribute) not in (Type.STRING, Type.INT64):
            return
        found = {
            name
            for epoch, table in enumerate(tables)
            for each in table.rows or ()
            for name in knowledge.in_epoch(epoch).same_as(each[0])
        }
        column = self.layout.of_stream(self.stream)[attribute]
        known = _inverted(dict(stream.entities)[attribute], found, column)
        if known is None:
            return
        if known not in self.known:
            self.known.append(known)
        value = sf.col(f"a{known.column}").cast("string")
        test = sf.col(f"{self.tag}{self.known.index(known)}").isNotNull()
        # A value with a character that an IRI cannot have is escaped in its name.
        yield test | value.rlike(_NOT_IN_IRI) if any("%" in each for each in known.values) else test


def _inverted(entity: Entity, found: Iterable[object], column: int) -> _Known | None:
    """The values that name one of these things, where a template makes the names."""
    if entity.template is None or entity.template.count("{value}") != 1:
        return None
    prefix, suffix = entity.template.split("{value}")
    values = {
        each.value[len(prefix) : len(each.value) - len(suffix)]
        for each in found
        if isinstance(each, Iri)
        and each.value.startswith(prefix)
        and each.value.endswith(suffix)
        and len(each.value) >= len(prefix) + len(suffix)
    }
    return _Known(column, frozenset(values))


def _within(bounds: Interval) -> Iterator[Column]:
    ts = sf.col("_ts")
    if bounds.low is not None:
        yield ts >= sf.lit(bounds.low) if bounds.low_inclusive else ts > sf.lit(bounds.low)
    if bounds.high is not None:
        yield ts <= sf.lit(bounds.high) if bounds.high_inclusive else ts < sf.lit(bounds.high)
