"""The strategy `rewrite`: one SPARQL query over the archive's RDF view, on a store made for it.

The view is made of the events of the range and of the closed knowledge, so this is for archives that fit
into memory. SPARQL finds which events belong together; how a match is written down, and the exact value
of an aggregate, is the same code as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from kaicep.archive.rewrite.sparql import Rewritten, rewrite_to_sparql
from kaicep.archive.rewrite.view import NEXT, own_properties
from kaicep.archive.rewrite.words import variable_name
from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.prefilter import spans
from kaicep.errors import Unsupported
from kaicep.knowledge.event_graph import evaluates, event_node, event_triples
from kaicep.knowledge.queries import from_oxigraph, to_oxigraph
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, QueryPlan, Semantic, WindowAggregate
from kaicep.plan.operators import LARGEST
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
from kaicep.query import Query
from kaicep.reference.chains import in_order, key_of, partitions
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.windows import Windowed

__all__ = ["asks_paths", "pattern_match", "rewritten_matches", "window_match"]


def rewritten_matches(query: Query, snapshot: Snapshot, as_seen: bool = False) -> list[Match]:
    """All matches of all queries, each found by one SPARQL query."""
    own, catalog, knowledge = set(query.names), query.catalog, query.knowledge
    found: list[Match] = []
    for plan in query.program.queries:
        if own.intersection(plan.reads):
            raise Unsupported(f"{plan.name}: it reads the output of a query, which is not in the archive")
        rewritten = rewrite_to_sparql(plan, catalog)
        if knowledge.epochs and asks_paths(plan):
            raise Unsupported(
                f"{plan.name}: the knowledge changes with time, and one query sees one state of it; "
                "the strategies replay and hybrid use the knowledge of each event's own time"
            )
        bounds = spans((plan,), catalog)
        events = [
            event
            for stream, within in bounds.items()
            for event in snapshot.events(stream, within, as_seen=as_seen)
        ]
        found += _answers(rewritten, in_order(events, rewritten.plan.body.streams), catalog, knowledge)
    return sorted(found, key=by_end)


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
        store.bulk_extend(_quad(each) for each in knowledge.match(None, None, None))
    store.bulk_extend(
        _quad(triple)
        for order, event in enumerate(events)
        for triple in _told(event, order, plan, semantics, catalog, knowledge)
    )
    store.bulk_extend(_quad(each) for each in _neighbours(plan, events))
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


def _quad(triple: Triple) -> Any:
    import pyoxigraph

    return pyoxigraph.Quad(*(to_oxigraph(term) for term in triple))


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
    node = rewritten.plan.body
    assert isinstance(node, WindowAggregate)
    assert node.window.width is not None
    (slot,) = rewritten.slots
    by_node = {event_node(each).value: each for each in events}
    for row in rows:
        inside = tuple(events[at] for at in sorted(map(int, row["members"].value.split())))
        if node.window.kind == "sliding":
            trigger = by_node[row[slot.name].value]
            start, end = inside[0].ts, trigger.ts
            group = key_of(node.group_by, trigger)
            members = tuple(each for each in inside if key_of(node.group_by, each) == group)
            made = Windowed(slot.variable, group, members, trigger, inside[0], trigger, start, end)
        else:
            group, start = (
                key_of(node.group_by, inside[0]),
                inside[0].ts // node.window.width * node.window.width,
            )
            end = start + node.window.width
            made = Windowed(slot.variable, group, inside, None, inside[0], inside[-1], start, end)
        yield made, {name: _term(row, name) for name in rewritten.selected}


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
