"""Queries as operators of a graph, and what can run once for several consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kaicep.live.graph import KINDS, Consumer, Graph, Node, Operator, Supplier
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import ChiPlan, Pattern, Program
from kaicep.plan.time import parse_time, time_from_number
from kaicep.query import Query as Compiled

if TYPE_CHECKING:
    from kaicep.hosts.inprocess import Engine

# ----------------------------------------------------------------------------------------------------------
# Queries as operators: a chi-CEP or EP-SPARQL query in an engine of its own, fed record by record.
#
# The records of an event are pushed in small batches, and between two batches whatever is more urgent goes
# first. The matches that a batch settles are the operator's events, one event for each batch that has any.

CLOCK = "clock"
"""An input of a query with this name gives it the time: its events are not records."""


@dataclass(frozen=True)
class LiveQuery:
    """A compiled query as the function of an operator; each service makes its own engine of it."""

    compiled: Compiled
    lateness: int = 0
    batch: int = 64
    key: str = field(default="")

    @classmethod
    def of(cls, compiled: Compiled, *, lateness: int = 0, batch: int = 64) -> LiveQuery:
        """The last query of a compiled program; the others feed it."""
        plan = compiled.program.queries[-1]
        texts = "\n".join(each.text for each in compiled.program.queries)
        key = repr((plan.language, texts, id(compiled.knowledge), lateness))
        return cls(compiled, lateness, batch, key)

    @property
    def name(self) -> str:
        """That of the last query."""
        return self.compiled.names[-1]

    @property
    def search(self) -> tuple[Pattern, int, int] | None:
        """What queries that can share one search have in common; None where nothing can be shared."""
        plan = self.compiled.program.queries[0]
        if len(self.compiled.names) != 1 or not isinstance(plan, ChiPlan):
            return None
        if not isinstance(plan.body, Pattern):
            return None
        return plan.body, id(self.compiled.knowledge), self.lateness

    @staticmethod
    def joined(queries: Sequence[LiveQuery]) -> LiveQuery:
        """Several queries in one engine, which finds that their search is the same."""
        plans = tuple(plan for each in queries for plan in each.compiled.program.queries)
        streams = {name: each for query in queries for name, each in query.compiled.catalog.streams.items()}
        first = queries[0].compiled
        catalog = replace(first.catalog, streams=streams)
        key = "+".join(each.key for each in queries)
        return replace(queries[0], compiled=Compiled(Program(plans), catalog, first.knowledge), key=key)

    @property
    def places(self) -> int:
        """How many events a match needs: losing one of them loses the match."""
        plan = self.compiled.program.queries[-1]
        return max(1, len(plan.variables))

    def engine(self) -> Engine:
        """A new engine of it."""
        from kaicep.hosts.inprocess import Engine

        return Engine(self.compiled, lateness=self.lateness)


class RunningQuery:
    """A query at work: streams in, matches out."""

    def __init__(self, query: LiveQuery, inputs: Sequence[str]) -> None:
        self.query = query
        self._engine = query.engine()
        self._inputs = tuple(inputs)
        self._seen = dict.fromkeys(self._inputs, 0)

    @property
    def late(self) -> int:
        """How many records came too late for it."""
        return len(self._engine.late)

    def steps(self, input: int, payload: Any, wall: int) -> Iterator[list[Match]]:
        """Takes an event of an input; gives the matches batch by batch."""
        stream = self._inputs[input]
        if stream == CLOCK:
            yield self._engine.advance(wall - self.query.lateness)
            return
        rows = list(rows_of(payload))
        for start in range(0, len(rows), self.query.batch):
            some = [self._event(stream, each, wall) for each in rows[start : start + self.query.batch]]
            yield self._engine.push(some)

    def _event(self, stream: str, row: Mapping[str, Any] | Match | Event, wall: int) -> Event:
        """A record as an event of its stream; what is an event already keeps its identity."""
        if isinstance(row, Event):
            return row
        seq = self._seen[stream]
        self._seen[stream] = seq + 1
        if isinstance(row, Match):
            return Event(stream, 0, seq, row.end_us, dict(row.select), id=row.id)
        known = self.query.compiled.catalog.streams.get(stream)
        key = known.time if known is not None else "ts"
        return Event(stream, 0, seq, _time(row.get(key), wall), row)


def rows_of(payload: Any) -> Iterator[Mapping[str, Any] | Match | Event]:
    """The records in a payload: a mapping, a match, an event, a sequence of these, or a table of Arrow.

    >>> list(rows_of([{"x": 1}, {"x": 2}]))
    [{'x': 1}, {'x': 2}]
    """
    if isinstance(payload, Mapping | Match | Event):
        yield payload
    elif hasattr(payload, "to_pylist"):
        yield from payload.to_pylist()
    else:
        for each in payload:
            yield from rows_of(each)


def _time(given: Any, wall: int) -> int:
    """The event time of a record: its own, or the time at which it came."""
    found = None
    if isinstance(given, str):
        found = parse_time(given)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        found = time_from_number(given)
    return wall if found is None else found


# ----------------------------------------------------------------------------------------------------------
# An operator that several consumers need is run once; to compare, it can be run once for each of them.
#
# Operators are equal if they are of one kind, read the same nodes and have the same settings. Two queries
# whose plans differ only in what they select are one search, whose matches are told apart behind it.


@dataclass(frozen=True)
class Shared:
    """A graph without equal operators, and which of its operators replace which of the given ones."""

    graph: Graph
    instead: Mapping[str, str] = field(default_factory=dict)

    def extended(self, nodes: Sequence[Node]) -> Shared:
        """With more nodes, in an order in which each comes after those that it reads.

        A new operator that remembers is not the same as an equal one that runs already; two new ones are.
        """
        instead = dict(self.instead)
        operators = self.graph.operators
        first = {_key(each): name for name, each in operators.items() if not KINDS[each.kind].stateful}
        new: dict[str, Operator] = {}
        for each in nodes:
            if not isinstance(each, Operator):
                continue
            moved = replace(each, inputs=tuple(instead.get(up, up) for up in each.inputs))
            if moved.name in operators:  # whose operator is gone, and which others still use
                moved = replace(moved, name=_free(moved.name, self.graph))
            name = first.setdefault(_key(moved), moved.name)
            if name == moved.name:
                new[name] = moved
            if name != each.name:
                instead[each.name] = name
        added: list[Node] = [each for each in nodes if isinstance(each, Supplier)]
        added += _join_queries(new).values()
        added += [
            replace(each, input=instead.get(each.input, each.input))
            for each in nodes
            if isinstance(each, Consumer)
        ]
        return Shared(self.graph.with_nodes(*added), instead)

    def without(self, consumer: str) -> Shared:
        """Without a consumer, and the operators that only it needed; the others go on as they are."""
        return Shared(self.graph.without(consumer), self.instead)


def shared(graph: Graph) -> Shared:
    """The graph with equal operators merged into the first of them.

    >>> twins = [Operator(name, "fft", ("s",)) for name in ("a", "b")]
    >>> found = shared(Graph.of(Supplier("s"), *twins, Consumer("c", "a"), Consumer("d", "b")))
    >>> list(found.graph.operators), dict(found.instead), found.graph.consumers["d"].input
    (['a'], {'b': 'a'}, 'a')
    """
    empty = replace(graph, suppliers={}, operators={}, consumers={})
    return Shared(empty).extended(in_order(graph))


def in_order(graph: Graph) -> list[Node]:
    """The nodes of a graph, each after those that it reads."""
    operators = (graph.operators[each] for each in graph.order())
    return [*graph.suppliers.values(), *operators, *graph.consumers.values()]


def separated(graph: Graph) -> Graph:
    """The graph with an operator of its own for every consumer, all the way up to the suppliers.

    >>> graph = Graph.of(Supplier("s"), Operator("a", "fft", ("s",)), Consumer("c", "a"), Consumer("d", "a"))
    >>> sorted(separated(graph).operators)
    ['a@c', 'a@d']
    """
    operators: dict[str, Operator] = {}
    consumers: dict[str, Consumer] = {}
    order = graph.order()

    def own(up: str, consumer: str) -> str:
        return f"{up}@{consumer}" if up in graph.operators else up

    for name, consumer in graph.consumers.items():
        needed = graph.upstream(name)
        for up in order:
            if up in needed:
                each = graph.operators[up]
                inputs = tuple(own(one, name) for one in each.inputs)
                operators[own(up, name)] = replace(each, name=own(up, name), inputs=inputs)
        consumers[name] = replace(consumer, input=own(consumer.input, name))
    return replace(graph, operators=operators, consumers=consumers)


def _free(name: str, graph: Graph) -> str:
    number = 2
    while f"{name}~{number}" in graph.operators:
        number += 1
    return f"{name}~{number}"


def _key(operator: Operator) -> str:
    """Equal for operators that give the same events."""
    function = operator.function
    who = function.key if isinstance(function, LiveQuery) else None if function is None else id(function)
    settings = json.dumps(dict(operator.settings), sort_keys=True, default=repr)
    how = (operator.queue, operator.parallel, operator.isolate)
    return repr((operator.kind, operator.inputs, settings, who, how))


def _join_queries(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Queries over the same nodes with the same search run in one engine."""
    groups: dict[tuple[Any, ...], list[Operator]] = {}
    for each in operators.values():
        if isinstance(each.function, LiveQuery) and each.function.search is not None:
            groups.setdefault((each.inputs, each.function.search), []).append(each)
    made = dict(operators)
    for group in groups.values():
        if len(group) > 1:
            both = "+".join(each.name for each in group)
            made[both] = replace(
                group[0], name=both, function=LiveQuery.joined([each.function for each in group])
            )
            for each in group:
                settings = {"query": each.function.name}
                made[each.name] = Operator(each.name, "pick", (both,), settings, place=each.place)
    return made
