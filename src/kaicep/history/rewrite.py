"""The strategy `rewrite`: one query of a database, SPARQL for small archives, Spark SQL for any."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from kaicep.archive.archive import Snapshot
from kaicep.archive.as_sparql import NEXT, Rewritten, own_properties, rewrite_to_sparql, variable_name
from kaicep.archive.as_sql import MEMBERS, OWN, PathTable, RewrittenSql, rewrite_to_sql
from kaicep.errors import Unsupported
from kaicep.history.hybrid import archived_frame, spans
from kaicep.hosts.spark.sent import Sent, sent
from kaicep.knowledge.event_graph import UnknownEntities, evaluates, event_node, event_triples
from kaicep.knowledge.queries import from_oxigraph, quad_of, quads_of
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.operators import LARGEST, SQL_TYPES, name_sql
from kaicep.plan.results import (
    Rounds,
    Terms,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)
from kaicep.plan.terms import Iri, Term, Triple
from kaicep.plan.types import Type
from kaicep.query import Query
from kaicep.reference.chicep import Windowed, in_order, key_of, partitions
from kaicep.reference.expressions import Environment, evaluate

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


# ----------------------------------------------------------------------------------------------------------
# The strategy `rewrite`: one SPARQL query over the archive's RDF view, on a store made for it.
#
# The view is made of the events of the range and of the closed knowledge, so this is for archives that fit
# into memory. SPARQL finds which events belong together; how a match is written down, and the exact value
# of an aggregate, is the same code as everywhere.


def rewritten_matches(query: Query, snapshot: Snapshot, as_seen: bool = False) -> list[Match]:
    """All matches of all queries, each found by one SPARQL query."""
    own, catalog, knowledge = set(query.names), query.catalog, query.knowledge
    found: list[Match] = []
    for plan in query.program.queries:
        _refuse_derived(plan, own)
        rewritten = rewrite_to_sparql(plan, catalog)
        _refuse_changing(plan, knowledge)
        bounds = spans((plan,), catalog)
        events = [
            event
            for stream, within in bounds.items()
            for event in snapshot.events(stream, within, as_seen=as_seen)
        ]
        found += _answers(rewritten, in_order(events, rewritten.plan.body.streams), catalog, knowledge)
    return sorted(found, key=by_end)


def _refuse_derived(plan: QueryPlan, own: Collection[str]) -> None:
    if not set(own).isdisjoint(plan.reads):
        raise Unsupported(f"{plan.name}: it reads the output of a query, which is not in the archive")


def _refuse_changing(plan: QueryPlan, knowledge: Knowledge) -> None:
    if knowledge.epochs and asks_paths(plan):
        raise Unsupported(
            f"{plan.name}: the knowledge changes with time, and one query sees one state of it; "
            "the strategies replay and hybrid use the knowledge of each event's own time"
        )


def _answers(
    rewritten: Rewritten, events: Sequence[Event], catalog: Catalog, knowledge: Knowledge
) -> Iterator[Match]:
    if not events:
        return
    rows: Any = _view(rewritten.plan, events, catalog, knowledge).query(rewritten.text)
    version = knowledge.version if asks_paths(rewritten.plan) else None
    if rewritten.asked is not None:
        by_node = {event_node(each).value: each for each in events}
        for row in rows:
            rounds: dict[str, list[Event]] = {}
            for slot in rewritten.slots:
                rounds.setdefault(slot.variable, []).append(by_node[row[slot.name].value])
            chosen = {name: _term(row, name) for name in rewritten.selected}
            yield pattern_match(rewritten.plan, rewritten.asked.pattern, rounds, chosen, version)
        return
    for window, terms in _windows(rewritten, rows, events):
        yield from window_match(rewritten.plan, window, terms, version)


# --- the view --------------------------------------------------------------------------------------------


def _view(plan: ChiPlan, events: Sequence[Event], catalog: Catalog, knowledge: Knowledge) -> Any:
    """A store with the closed knowledge and all events, each with its place in the order."""
    import pyoxigraph

    store = pyoxigraph.Store()
    semantics = plan.body.all_semantics
    if semantics:
        store.bulk_extend(quads_of(knowledge))
    store.bulk_extend(
        quad_of(triple)
        for order, event in enumerate(events)
        for triple in _told(event, order, plan, semantics, catalog, knowledge)
    )
    store.bulk_extend(quad_of(each) for each in _neighbours(plan, events))
    return store


def _neighbours(plan: ChiPlan, events: Sequence[Event]) -> Iterator[Triple]:
    """Which event comes right after which, in its partition."""
    for some in partitions(events, plan.body.partition).values():
        for one, other in pairwise(some):
            yield event_node(one), NEXT, event_node(other)


def _told(
    event: Event,
    order: int,
    plan: ChiPlan,
    semantics: Sequence[Semantic],
    catalog: Catalog,
    knowledge: Knowledge,
) -> Iterator[Triple]:
    """What the view says of an event: its graph, closed together with the knowledge, and its attributes."""
    stream = catalog.streams[event.stream]
    node = event_node(event)
    key = key_of(plan.body.partition, event)
    if any(isinstance(each, float) and abs(each) > LARGEST for each in event.values.values()):
        raise Unsupported(f"{plan.name}: an event of {event.stream} has a number that SPARQL cannot add up")
    yield from ((node, name, value) for name, value in own_properties(event, stream, order, key))
    graph = event_triples(event, stream, knowledge)
    hidden = {
        name
        for name in graph.unknown
        for each in semantics
        for group in each.alternatives
        for variable in each.variables
        if evaluates(group, variable, name, knowledge)
    }
    for triple in knowledge.entails_with(graph.triples) if semantics else graph.triples:
        if triple[0] != node:
            if not knowledge.holds(triple):
                raise Unsupported(
                    f"{plan.name}: from an event of {event.stream} something follows about {triple[0]}, "
                    "which other events would see in one query; replay and hybrid keep them apart"
                )
        elif not (hidden and isinstance(triple[1], Iri) and knowledge.properties_below(triple[1]) & hidden):
            yield triple


def asks_paths(plan: QueryPlan) -> bool:
    """Whether a query has a PATH, so that its matches show a version of the knowledge."""
    return isinstance(plan, ChiPlan) and bool(plan.body.all_semantics)


# --- from rows to matches --------------------------------------------------------------------------------


def pattern_match(
    plan: ChiPlan, pattern: Pattern, rounds: Rounds, terms: Terms, version: int | None
) -> Match:
    """The match of a pattern that has these events."""
    bound = [event for some in rounds.values() for event in some]
    start, end = min(each.ts for each in bound), max(each.ts for each in bound)
    if pattern.deadline is not None:
        end = start + pattern.deadline
    made = identified_by_events(plan, key_of(pattern.partition, bound[0]), rounds)
    shown = events_shown(plan.variables, loops_of(pattern.sequence), rounds)
    first = {name: some[0] for name, some in rounds.items()}
    env = Environment(first, rounds={name: tuple(some) for name, some in rounds.items()})
    columns, value_of = plan.columns, partial(_value, env)
    return answer(plan, columns, made, (start, end), terms, shown, value_of, version).match


def _term(row: Any, name: str) -> Term | None:
    found = row[variable_name(name)]
    return None if found is None else from_oxigraph(found)


def _windows(rewritten: Rewritten, rows: Any, events: Sequence[Event]) -> Iterator[tuple[Windowed, Terms]]:
    """A row is a window: its events by their places in the order, and the one that triggers, if any."""
    (slot,) = rewritten.slots
    node = rewritten.plan.body
    sliding = isinstance(node, WindowAggregate) and node.window.kind == "sliding"
    by_node = {event_node(each).value: each for each in events}
    for row in rows:
        inside = tuple(events[at] for at in sorted(map(int, row["members"].value.split())))
        trigger = by_node[row[slot.name].value] if sliding else inside[-1]
        yield windowed(rewritten.plan, inside, trigger), {n: _term(row, n) for n in rewritten.selected}


def windowed(plan: ChiPlan, inside: Sequence[Event], trigger: Event) -> Windowed:
    """The window with these events in order, which an event has triggered if it is a sliding one."""
    node, first = plan.body, inside[0]
    assert isinstance(node, WindowAggregate)
    width, variable = node.window.width, node.window.variable
    assert width is not None
    if node.window.kind == "sliding":
        group = key_of(node.group_by, trigger)
        members = tuple(each for each in inside if key_of(node.group_by, each) == group)
        return Windowed(variable, group, members, trigger, first, trigger, first.ts, trigger.ts)
    start = first.ts // width * width
    group = key_of(node.group_by, first)
    return Windowed(variable, group, tuple(inside), None, first, inside[-1], start, start + width)


def window_match(plan: ChiPlan, window: Windowed, terms: Terms, version: int | None) -> Iterator[Match]:
    """The match of a window, if HAVING holds."""
    node = plan.body
    assert isinstance(node, WindowAggregate)
    if not all(evaluate(each, window.environment) is True for each in node.having):
        return
    partition = key_of(node.partition, window.events[0])
    made = identified(plan, (*partition, *window.group)).word(window.start).word(window.end)
    if window.trigger is not None:
        made.event(window.trigger)
    whole = window.trigger.identity if window.trigger is not None else _batch(window)
    span, shown = (window.start, window.end), {window.variable: whole}
    value_of = partial(_value, window.environment)
    yield answer(plan, plan.columns, made, span, terms, shown, value_of, version).match


def _batch(window: Windowed) -> dict[str, Any]:
    return batch_shown(window.events[0], window.events[-1], len(window.events))


def _value(env: Environment, column: OutputColumn) -> Any:
    """The value of a column; of a loop's attribute the list of values, one for each round."""
    if not column.many:
        return evaluate(column.expr, env)
    assert isinstance(column.expr, Field)
    name = column.expr.variable
    return [evaluate(column.expr, Environment({name: each})) for each in env.rounds.get(name, ())]


# ----------------------------------------------------------------------------------------------------------
# The strategy `rewrite` for archives of any size: one Spark SQL query over the archive's tables.
#
# SQL finds which events belong together. The values for which a PATH holds are tables, filled by asking the
# knowledge about every different value that the archive has. How a match is written down, its id and the
# exact value of an aggregate are the same code as everywhere, run on the rows of the answer where these
# are.

_MOST_PAIRS = 1_000_000

Solution = tuple[Term | None, ...]


def sql_of(plan: QueryPlan, catalog: Catalog, knowledge: Knowledge, as_seen: bool = False) -> RewrittenSql:
    """A query as one Spark SQL query; `Unsupported` with the reason where it cannot be."""
    optimised, _ = optimize(plan, catalog, knowledge)
    return rewrite_to_sql(optimised, catalog, as_seen)


def sql_matches(
    query: Query,
    snapshot: Snapshot,
    as_seen: bool = False,
    unknown: UnknownEntities | None = None,
) -> list[Match]:
    """All matches of all queries, each found by one Spark SQL query."""
    from kaicep.hosts.spark.output import MATCHES
    from kaicep.hosts.spark.session import own_session, told

    own, catalog, knowledge = set(query.names), query.catalog, query.knowledge
    answers: list[DataFrame] = []
    spark = own_session()
    for plan in query.program.queries:
        _refuse_derived(plan, own)
        _refuse_changing(plan, knowledge)
        rewritten = sql_of(plan, catalog, knowledge, as_seen)
        with told():
            _views(spark, plan, catalog, snapshot)
            solutions = tuple(_paths(spark, rewritten, catalog, knowledge, unknown))
            version = knowledge.version if asks_paths(plan) else None
            answer = spark.sql(rewritten.text)
            writer = _MatchWriter(rewritten.plan, rewritten, solutions, version, tuple(answer.columns))
            # Attributes may be called anything, also what Spark does not take for one column.
            plain = answer.toDF(*(f"c{number}" for number in range(len(writer.columns))))
            rows = plain.mapInArrow(_written(sent(writer)), MATCHES)
            answers.append(rows.select("match"))
    with told():
        lines = reduce(lambda left, right: left.union(right), answers).toArrow()["match"].to_pylist()
    return sorted(map(Match.from_json, lines), key=by_end)


# --- tables ----------------------------------------------------------------------------------------------


def _views(spark: SparkSession, plan: QueryPlan, catalog: Catalog, snapshot: Snapshot) -> None:
    """The streams that a query reads, as views of the files of the snapshot."""
    if snapshot.until is not None or snapshot.since is not None:
        raise Unsupported("one SQL query reads the archive as a whole, not a range of its positions")
    for stream, within in spans((plan,), catalog).items():
        archived_frame(spark, snapshot, stream, within).createOrReplaceTempView(name_sql(stream))


def _paths(
    spark: SparkSession,
    rewritten: RewrittenSql,
    catalog: Catalog,
    knowledge: Knowledge,
    unknown: UnknownEntities | None,
) -> Iterator[tuple[Solution, ...]]:
    """Fills the tables of the PATHs; for each, what the numbers of its solutions stand for."""
    relations = Relations(catalog, knowledge, unknown)
    for table in rewritten.paths:
        numbers: dict[Solution, int] = {}
        rows = list(_path_rows(spark, rewritten, table, catalog, relations, numbers))
        fields = [
            f"{name_sql(f'{variable}.{name}')} {_type_of(name, table.streams[variable], catalog)}"
            for variable in table.semantic.variables
            for name in ("_place", *table.attributes[variable])
        ]
        made = spark.createDataFrame(rows, ", ".join([*fields, "solution INT"]))
        made.createOrReplaceTempView(table.name)
        yield tuple(numbers)


def _type_of(name: str, streams: Sequence[str], catalog: Catalog) -> str:
    if name == "_place":
        return "INT"
    types = {dict(catalog.streams[each].attributes).get(name) for each in streams} - {None}
    if len(types) > 1:
        raise Unsupported(
            f"one SQL query cannot look up {name}, which has several types; replay and hybrid can"
        )
    return SQL_TYPES[types.pop() or Type.STRING]


def _path_rows(
    spark: SparkSession,
    rewritten: RewrittenSql,
    table: PathTable,
    catalog: Catalog,
    relations: Relations,
    numbers: dict[Solution, int],
) -> Iterator[tuple[Any, ...]]:
    """A row for each combination of values for which the PATH holds, and for each of its solutions."""
    variables = table.semantic.variables
    values = [_values(spark, rewritten, table, each, catalog) for each in variables]
    if math.prod(map(len, values)) > _MOST_PAIRS:
        many = " times ".join(f"{len(each):,}" for each in values)
        raise Unsupported(
            f"{rewritten.plan.name}: a PATH hangs on {many} different values, too many to ask about each; "
            "the strategies replay and hybrid can"
        )
    for combination in product(*values):
        events = {
            variable: Event(rewritten.streams[row[0]], 0, 0, 0, dict(zip(names, row[1:], strict=True)))
            for variable, row in zip(variables, combination, strict=True)
            for names in (table.attributes[variable],)
        }
        for solution in sorted(relations.solutions(table.semantic, events), key=str):
            number = numbers.setdefault(solution, len(numbers))
            yield (*(cell for row in combination for cell in row), number)


def _values(
    spark: SparkSession, rewritten: RewrittenSql, table: PathTable, variable: str, catalog: Catalog
) -> list[tuple[Any, ...]]:
    """The different values that the archive has of what a PATH reads of a variable."""
    found: list[tuple[Any, ...]] = []
    for stream in table.streams[variable]:
        known = dict(catalog.streams[stream].attributes)
        cells = [
            "NULL"
            if name not in known
            else f"unix_micros({name_sql(name)})"
            if known[name] is Type.TIMESTAMP
            else name_sql(name)
            for name in table.attributes[variable]
        ]
        place = rewritten.streams.index(stream)
        rows = spark.sql(f"SELECT DISTINCT {', '.join([str(place), *cells])} FROM {name_sql(stream)}")
        found += [tuple(row) for row in rows.collect()]
    return found


# --- from rows to matches --------------------------------------------------------------------------------


def _written(
    packed: Sent[_MatchWriter],
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function that writes matches down, for the workers."""

    def work(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from kaicep.hosts.spark.output import listed

        writer = packed.opened()
        for rows in batches:
            yield listed(writer.matches(rows))

    return work


@dataclass(frozen=True)
class _MatchWriter:
    """Writes down the rows of an answer as matches."""

    plan: ChiPlan
    rewritten: RewrittenSql
    solutions: tuple[tuple[Solution, ...], ...]
    version: int | None
    columns: tuple[str, ...]

    def matches(self, batch: pyarrow.RecordBatch) -> Iterator[Match]:
        rows: list[dict[str, Any]] = batch.rename_columns(list(self.columns)).to_pylist()
        for row in rows:
            if self.rewritten.asked is not None:
                yield self._matched(row)
            else:
                every = sorted(row[MEMBERS], key=lambda each: each["_row"])
                inside = [self._event(each) for each in every]
                window = windowed(self.plan, inside, inside[-1])
                yield from window_match(self.plan, window, self._chosen(row), self.version)

    def _event(self, row: dict[str, Any], prefix: str = "") -> Event:
        place, part, seq, ts = (row[f"{prefix}{each}"] for each in OWN)
        values = {name: row[f"{prefix}{name}"] for name in self.rewritten.attributes}
        return Event(self.rewritten.streams[place], part, seq, ts, values)

    def _chosen(self, row: dict[str, Any]) -> dict[str, Term | None]:
        """What the PATHs selected, in the solution that the row has."""
        paths = zip(self.rewritten.paths, self.solutions, strict=True)
        return {
            name: term
            for each, known in paths
            if each.semantic.selected
            for name, term in zip(each.semantic.selected, known[row[each.name]], strict=True)
        }

    def _matched(self, row: dict[str, Any]) -> Match:
        pattern = self.plan.body
        assert isinstance(pattern, Pattern)
        rounds: dict[str, list[Event]] = {}
        for slot in self.rewritten.slots:
            rounds.setdefault(slot.variable, []).append(self._event(row, f"{slot.name}."))
        return pattern_match(self.plan, pattern, rounds, self._chosen(row), self.version)
