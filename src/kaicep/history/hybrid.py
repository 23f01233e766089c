"""The strategy `hybrid`: columns say which archived events can matter, the engine does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from kaicep.archive.parquet import LATE, PART, SEQ, START, TRIPLES, TS, moments
from kaicep.errors import Unsupported
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.nodes import Chain, EpPlan, Interval, Pattern, QueryPlan, Semantic
from kaicep.plan.operators import SQL_TYPES, name_sql
from kaicep.plan.program import conjuncts
from kaicep.plan.types import Type
from kaicep.query import Query
from kaicep.storage.delta import parquet_dataset
from kaicep.storage.places import StorePath

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    from kaicep.archive.archive import Snapshot
    from kaicep.archive.table import ArchiveTable, AttachedTable
    from kaicep.hosts.spark.layout import Layout


# ----------------------------------------------------------------------------------------------------------
# Which archived events can matter, decided by columns: filters and semantic relations, a batch at a time.
#
# An event that no variable can take is left out before it becomes an event at all, wherever such events
# have no say: under `strict` only those that no PATH holds for. What is let through is judged again by the
# kernel, so a condition that cannot be said in Arrow is simply not asked here.

_MOST_EPOCHS = 32

ColumnOf = Callable[[str], Any]
"""A column by its name: as an expression that a scan evaluates, or as the values of a batch."""


def spans(plans: Iterable[QueryPlan], catalog: Catalog) -> dict[str, Interval]:
    """For each stream that is read, bounds that hold all events which the queries may use."""
    found: dict[str, Interval] = {}
    for plan in plans:
        if isinstance(plan, EpPlan):
            everything = (each.name for each in catalog.streams.values() if each.rdf or each.annotated)
            found |= dict.fromkeys(everything, Interval())
            continue
        for chain in plan.body.all_chains:
            for name in chain.streams:
                found[name] = _hull(found[name], chain.within) if name in found else chain.within
    return {name: within for name, within in found.items() if not catalog.streams[name].derived}


def both(one: Interval, other: Interval) -> Interval:
    """What lies inside both bounds.

    >>> both(Interval(low=1), Interval(low=3, low_inclusive=False, high=9))
    Interval(low=3, low_inclusive=False, high=9, high_inclusive=False)
    """
    lows = [(each.low, not each.low_inclusive) for each in (one, other) if each.low is not None]
    highs = [(each.high, each.high_inclusive) for each in (one, other) if each.high is not None]
    low, excluded = max(lows, default=(None, False))
    high, included = min(highs, default=(None, False))
    return Interval(low, not excluded, high, included)


def _hull(one: Interval, other: Interval) -> Interval:
    low = None if one.low is None or other.low is None else min(one.low, other.low)
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    return Interval(low, True, high, True)


@dataclass(frozen=True)
class _Alternative:
    """What must hold of an event for one variable to take it."""

    conditions: tuple[Expr, ...]
    semantics: tuple[tuple[Semantic, str], ...]
    """PATHs that hang on one attribute, with it."""


class Prefilter:
    """Leaves out the events of a stream that no query can use."""

    def __init__(
        self,
        stream: str,
        plans: Sequence[QueryPlan],
        catalog: Catalog,
        knowledge: Knowledge,
        unknown: UnknownEntities | None = None,
    ) -> None:
        self.stream = stream
        self._types = dict(catalog.streams[stream].attributes)
        self._relations = Relations(catalog, knowledge, unknown)
        self._moments = _one_of_each_epoch(knowledge)
        self._verdicts: dict[tuple[int, Any], bool] = {}
        self._alternatives: list[_Alternative] | None = []
        for plan in plans:
            self._add(plan)

    def _add(self, plan: QueryPlan) -> None:
        if isinstance(plan, EpPlan) or plan.is_absent:
            self._alternatives = None
            return
        strict = isinstance(plan.body, Pattern) and plan.body.match == "strict"
        for chain in plan.body.all_chains:
            if self.stream in chain.streams and self._alternatives is not None:
                made = _Alternative(() if strict else tuple(self._sayable(chain)), tuple(self._asked(chain)))
                useful = made.conditions or made.semantics
                self._alternatives = [*self._alternatives, made] if useful else None

    def _sayable(self, chain: Chain) -> Iterator[Expr]:
        """The conditions of a variable that can be said in Arrow, each as much of it as can."""
        for each in chain.conditions:
            for part in conjuncts(each):
                try:
                    self._said(part, _field)
                except Unsupported:
                    continue
                yield part

    def _asked(self, chain: Chain) -> Iterator[tuple[Semantic, str]]:
        """The PATHs of a variable that a table decides by one attribute of text."""
        for each in chain.semantics if self._moments else ():
            if each.relation is None or len(each.relation.roots) != 1:
                continue
            (root,) = each.relation.roots
            read = *dict(root.literals).get(self.stream, ()), *dict(root.entities).get(self.stream, ())
            if len(read) == 1 and self._types.get(read[0]) is Type.STRING and self._whole(read):
                yield each, read[0]

    def _whole(self, read: tuple[str, ...]) -> bool:
        """Whether no other attributes have a say in what these name."""
        return self._relations.catalog.streams[self.stream].reads(*read) == read

    # --- what a scan and a batch are asked ---

    @property
    def where(self) -> Any:
        """The condition for a scan of the table; None where every row may matter."""
        if self._alternatives is None or not all(each.conditions for each in self._alternatives):
            return None
        return self._any(_field)

    def kept(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The rows that may matter, of those that the scan let through."""
        if self._alternatives is None or not any(each.semantics for each in self._alternatives):
            return rows
        import pyarrow.compute as pc

        mask = None
        for each in self._alternatives:
            tests = [self._said(part, rows.column) for part in each.conditions]
            tests += [self._known(semantic, rows.column(attribute)) for semantic, attribute in each.semantics]
            own = reduce(pc.and_kleene, tests)
            mask = own if mask is None else pc.or_kleene(mask, own)
        return rows.filter(mask)

    def _any(self, column: ColumnOf) -> Any:
        import pyarrow.compute as pc

        assert self._alternatives is not None
        made = [
            reduce(pc.and_kleene, [self._said(part, column) for part in each.conditions])
            for each in self._alternatives
        ]
        return reduce(pc.or_kleene, made)

    def _known(self, semantic: Semantic, column: pyarrow.Array) -> pyarrow.Array:
        """Whether the PATH can hold for each value; every different value is asked for once."""
        import numpy
        import pyarrow

        coded = column.dictionary_encode()
        verdicts = numpy.array([self._holds(semantic, each) for each in coded.dictionary.to_pylist()], bool)
        places = coded.indices.fill_null(len(verdicts)).to_numpy(zero_copy_only=False)
        return pyarrow.array(numpy.append(verdicts, False)[places])

    def _holds(self, semantic: Semantic, value: str) -> bool:
        key = id(semantic), value
        if key not in self._verdicts:
            (variable,) = semantic.variables
            assert semantic.relation is not None
            (root,) = semantic.relation.roots
            read = {*dict(root.literals).get(self.stream, ()), *dict(root.entities).get(self.stream, ())}
            events = [Event(self.stream, 0, 0, ts, dict.fromkeys(read, value)) for ts in self._moments]
            self._verdicts[key] = any(
                self._relations.solutions(semantic, {variable: each}) for each in events
            )
        return self._verdicts[key]

    # --- conditions in Arrow ---

    def _said(self, expr: Expr, column: ColumnOf) -> Any:
        """A condition over columns that holds wherever the condition does; the kernel asks again."""
        match expr:
            case Field():
                return self._field_value(expr, column)
            case Const(value, type) if value is not None and type is not None:
                return _constant(value, type)
            case Call(op, args) if op in _ARROW:
                return _ARROW[op](*(self._said(each, column) for each in args))
        raise Unsupported(f"Arrow cannot express {expr}")

    def _field_value(self, field: Field, column: ColumnOf) -> Any:
        import pyarrow.compute as pc

        read = dict(field.sources).get(self.stream, ())
        if not read or field.type is None:
            raise Unsupported(f"the type of {field.name} is not known in Arrow")
        values = [
            _widened(column(name))
            if field.type is Type.FLOAT64 and self._types.get(name) is Type.INT64
            else column(name)
            for name in read
        ]
        return values[0] if len(values) == 1 else pc.coalesce(*values)


def _arrow(function: str) -> Callable[..., Any]:
    """A function of Arrow over its arguments, two at a time."""

    def apply(*args: Any) -> Any:
        import pyarrow.compute as pc

        return reduce(getattr(pc, function), args)

    return apply


def _among(value: Any, *choices: Any) -> Any:
    import pyarrow
    import pyarrow.compute as pc

    constants = [each for each in choices if isinstance(each, pyarrow.Scalar)]
    tests = [pc.equal(value, each) for each in choices if not isinstance(each, pyarrow.Scalar)]
    if constants:
        known = pyarrow.array([each.as_py() for each in constants], constants[0].type)
        # What is null is among nothing, and no null is among the constants.
        tests.append(pc.is_in(value, value_set=known))
    return reduce(pc.or_kleene, tests)


_ARROW: Mapping[str, Callable[..., Any]] = {
    "and": _arrow("and_kleene"),
    "or": _arrow("or_kleene"),
    "in": _among,
    "=": _arrow("equal"),
    "!=": _arrow("not_equal"),
    "<": _arrow("less"),
    "<=": _arrow("less_equal"),
    ">": _arrow("greater"),
    ">=": _arrow("greater_equal"),
    "+": _arrow("add"),
    "-": _arrow("subtract"),
    "*": _arrow("multiply"),
    "/": lambda left, right: _arrow("divide")(_widened(left), _widened(right)),
    "float": lambda value: _widened(value),
}
"""The operators that Arrow works out; a condition with any other is left to the kernel."""


def _one_of_each_epoch(knowledge: Knowledge) -> tuple[int, ...]:
    """A moment of each stretch of time in which the same holds; none where there are too many."""
    epochs = knowledge.epochs
    if len(epochs) > _MOST_EPOCHS:
        return ()
    return (epochs[0] - 1, *epochs) if epochs else (0,)


def _field(name: str) -> Any:
    import pyarrow.compute as pc

    return pc.field(name)


def _constant(value: Any, type: Type) -> Any:
    import pyarrow

    return pyarrow.scalar(value, moments()) if type is Type.TIMESTAMP else pyarrow.scalar(value)


def _widened(value: Any) -> Any:
    """A number as float64: the nearest, as everywhere."""
    import pyarrow

    return value.cast(pyarrow.float64(), safe=False)


# ----------------------------------------------------------------------------------------------------------
# The strategy `hybrid` on Spark: the files of a snapshot, through the host over finite data.


def takes(plans: Sequence[QueryPlan], catalog: Catalog) -> bool:
    """Whether Spark is there, and can take the queries: they read records, by names that are free."""
    if find_spec("pyspark") is None or which("java") is None:
        return False
    streams = [catalog.streams[name] for name in spans(plans, catalog)]
    return not any(each.rdf or {"part", "seq"} & dict(each.attributes).keys() for each in streams)


def spark_history(query: Query, snapshot: Snapshot, as_seen: bool = False) -> list[Match]:
    """All matches, in the order of their end, then of their id."""
    from kaicep.hosts.spark.batch import match_batch
    from kaicep.hosts.spark.session import own_session, told

    frames = archived_rows(own_session(), query, snapshot, as_seen)
    with told():
        found = match_batch(frames, query).select("match").toArrow()
    matches = [Match.from_json(line) for line in found["match"].to_pylist()]
    return sorted(matches, key=by_end)


def archived_rows(
    spark: SparkSession, query: Query, snapshot: Snapshot, as_seen: bool = False
) -> Callable[[Layout], dict[str, DataFrame]]:
    """The events of a snapshot that queries may read, as the rows of a layout."""
    from kaicep.hosts.spark.source import rows_of_frame

    bounds = spans(query.program.queries, query.catalog)

    def frames(layout: Layout) -> dict[str, DataFrame]:
        made: dict[str, DataFrame] = {}
        for stream in layout.streams:
            rows = archived_frame(spark, snapshot, stream, bounds[stream])
            seen = rows.where(f"NOT {LATE}") if as_seen else rows
            named = seen.withColumnsRenamed({PART: "part", SEQ: "seq"})
            made[stream] = rows_of_frame(named, query.catalog.streams[stream], layout)
        return made

    return frames


def archived_frame(spark: SparkSession, snapshot: Snapshot, stream: str, within: Interval) -> DataFrame:
    """The rows of the files of a snapshot that may hold events inside the bounds."""
    whole, shape = snapshot.tables[stream], snapshot.shape(stream)
    table, attached = whole.table, whole.attached
    theirs = {each.path for each in attached.listed} if attached is not None else set()
    found = [each.path for each in snapshot.files(stream, within)]
    files = [table.folder / each for each in found if each not in theirs]
    columns = {PART: "INT", SEQ: "BIGINT", LATE: "BOOLEAN", TS: "TIMESTAMP"}
    if shape.rdf:
        columns |= {START: "TIMESTAMP", TRIPLES: "ARRAY<STRING>"}
    for name, type in shape.attributes:
        columns.setdefault(name, "TIMESTAMP" if type is Type.TIMESTAMP else SQL_TYPES[type])
    schema = ", ".join(f"{name_sql(name)} {type}" for name, type in columns.items())
    others = [each for each in found if each in theirs]
    if others:
        assert attached is not None
        fields = [table.schema.field(name) for name in columns]
        work = _task_of_files(others, fields, attached)
        rows = spark.range(0, len(others), 1, len(others)).mapInArrow(work, schema)
        if not files:
            return rows
        return rows.unionByName(_frame_of_files(spark, table, files, list(columns), schema))
    if not files:
        return spark.createDataFrame([], schema)
    return _frame_of_files(spark, table, files, list(columns), schema)


def _frame_of_files(
    spark: SparkSession, table: ArchiveTable, files: Sequence[Path], columns: Sequence[str], schema: str
) -> DataFrame:
    if isinstance(table.folder, StorePath):
        # Spark's own way to a store hangs on jars and on settings of its own; ours has written the files.
        work = _task_of_files(files, [table.schema.field(name) for name in columns])
        return spark.range(0, len(files), 1, len(files)).mapInArrow(work, schema)
    return spark.read.schema(schema).parquet(*map(str, files))


def _task_of_files(
    files: Sequence[Path] | Sequence[str],
    fields: Sequence[pyarrow.Field],
    attached: AttachedTable | None = None,
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The rows of files of a store, or of a table that is only read as the archive would have them."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        schema = pyarrow.schema(fields)
        for file in (files[each] for batch in batches for each in batch.column(0).to_pylist()):
            if attached is not None:
                yield from attached.batches(file, schema)
            else:
                yield from parquet_dataset([file], schema).to_batches(schema.names)

    return work
