"""A chi-CEP query, defined: the matches of its pattern, the answers of its windows, its PATHs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.expressions import Field, VariableRef, type_of
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, Semantic, WindowAggregate
from kaicep.plan.paths import has_path_values, path_references
from kaicep.plan.results import (
    Answer,
    Terms,
    absence,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)
from kaicep.plan.sparql import Group
from kaicep.plan.time import format_time
from kaicep.plan.types import Type
from kaicep.plan.typing import with_terms
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.pattern import (
    EnvironmentOf,
    Key,
    Partition,
    PathSemantics,
    Row,
    in_order,
    key_with_terms,
    may_take,
    parted,
    pattern_matches,
    sees,
    solution_terms,
)
from kaicep.reference.sparql import TimedGraph, bindings

# ----------------------------------------------------------------------------------------------------------
# PATHs, decided by the knowledge base and the graphs of the events (semantics 2).

Names = tuple[str, ...]
NOTHING: Terms = MappingProxyType({})


class KnowledgeSemantics:
    """Evaluates each PATH over the knowledge united with the graphs of the events that it is about.

    That union is what the reasoning closes. The knowledge is that of the event's time, and of the last
    one where there are several. Answers are kept, since a search asks for them again and again; so are
    the graphs, so that an entity nobody knows is counted once for each event.
    """

    def __init__(
        self, catalog: Catalog, knowledge: Knowledge | None = None, unknown: UnknownEntities | None = None
    ) -> None:
        self.catalog = catalog
        self.knowledge = Knowledge.empty() if knowledge is None else knowledge
        self.unknown = unknown
        self._graphs: dict[tuple[Event, int], EventGraph] = {}
        self._answers: dict[tuple[Semantic, Names, tuple[Event, ...]], frozenset[Row]] = {}

    def solutions(
        self,
        condition: Semantic,
        binding: Mapping[str, Event],
        env_of: EnvironmentOf | None = None,
        given: Terms = NOTHING,
    ) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution.

        Only those solutions count in which the variables that are `given` stand for these terms, and for
        which all expressions of the condition are true.
        """
        judged = tuple(name for each in condition.conditions for name in path_references(each))
        names = tuple(dict.fromkeys((*condition.selected, *judged, *given)))
        events = tuple(binding[name] for name in condition.variables)
        key = condition, names, events
        if key not in self._answers:
            self._answers[key] = self._solutions(condition, names, events)
        seen = env_of or (lambda _: Environment(dict(binding)))
        rows: set[Row] = set()
        for row in self._answers[key]:
            terms = dict(zip(names, row, strict=True))
            if any(terms[name] != term for name, term in given.items()):
                continue
            if all(evaluate(with_terms(each, terms), seen(each)) is True for each in condition.conditions):
                rows.add(tuple(terms[name] for name in condition.selected))
        return frozenset(rows)

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """What a condition about no event gives at some time."""
        then = KnowledgeSemantics(self.catalog, self.knowledge.at(ts))
        return then.solutions(condition, {})

    def inside(self, given: Terms) -> GivenSemantics:
        """The same inside a partition, whose variables stand for these terms."""
        return GivenSemantics(self, given)

    def _solutions(self, condition: Semantic, names: Names, events: tuple[Event, ...]) -> frozenset[Row]:
        epoch = self.knowledge.epoch(max((event.ts for event in events), default=0))
        knowledge = self.knowledge.in_epoch(epoch)
        graphs = {
            name: self._graph(event, epoch) for name, event in zip(condition.variables, events, strict=True)
        }
        triples = [triple for each in graphs.values() for triple in each.triples]
        entailed = [(each, None) for each in knowledge.entails_with(triples)]
        union = TimedGraph(knowledge, entailed, graphs=knowledge.graphs())
        nodes = {name: each.node for name, each in graphs.items()}
        return frozenset(
            row
            for group in condition.alternatives
            if self._is_known(group, graphs)
            for row in bindings(substitute(group, nodes), union, names)
        )

    def _is_known(self, group: Group, graphs: Mapping[str, EventGraph]) -> bool:
        """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
        return all(graph.answers(group, name, self.knowledge) for name, graph in graphs.items())

    def _graph(self, event: Event, epoch: int) -> EventGraph:
        if (event, epoch) not in self._graphs:
            stream = self.catalog.streams.get(event.stream, Stream(event.stream))
            knowledge = self.knowledge.in_epoch(epoch)
            self._graphs[event, epoch] = event_triples(event, stream, knowledge, self.unknown)
        return self._graphs[event, epoch]


@dataclass(frozen=True)
class GivenSemantics:
    """PATHs inside a partition: the variables that it goes by stand for the partition's values."""

    semantics: KnowledgeSemantics
    given: Terms

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: EnvironmentOf | None = None
    ) -> frozenset[Row]:
        """As without a partition, of the solutions that belong to it."""
        return self.semantics.solutions(condition, binding, env_of, _given(condition, self.given))

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """As without a partition: ABSENT has none."""
        return self.semantics.known(condition, ts)

    def inside(self, given: Terms) -> GivenSemantics:
        """The same, with more that is given."""
        return GivenSemantics(self.semantics, {**self.given, **given})


def _given(condition: Semantic, terms: Terms) -> Terms:
    names = frozenset[str]().union(*map(element_variables, condition.alternatives))
    return {name: term for name, term in terms.items() if name in names}


# ----------------------------------------------------------------------------------------------------------
# Aggregates over windows: which events each answer is about (semantics 2).


@dataclass(frozen=True)
class Windowed:
    """The events that one answer aggregates: those of one group inside one window.

    `trigger` is the event that a sliding window answers to. `first` and `last` are those of the whole
    window, all groups together; `start` and `end` are its span. `terms` are those that the group goes by,
    `solutions` those that are wanted besides, each combination by itself.
    """

    variable: str
    group: Key
    events: tuple[Event, ...]
    trigger: Event | None
    first: Event
    last: Event
    start: int
    end: int
    terms: Terms = field(default_factory=dict)
    solutions: tuple[Terms, ...] = ()

    @property
    def environment(self) -> Environment:
        """What the window's expressions speak of.

        Outside aggregates that is the event that triggers. A batch has none, and its expressions name
        only what its events have in common.
        """
        event = self.trigger or self.events[0]
        return Environment({self.variable: event}, rounds={self.variable: self.events})


def window_answers(
    node: WindowAggregate, events: Sequence[Event], semantics: PathSemantics
) -> Iterator[Windowed]:
    """The windows over the events of one partition, given in order, for which HAVING holds."""
    inside = [
        each
        for each in events
        if may_take(node.chain, each, semantics)
        and all(semantics.solutions(path, dict.fromkeys(path.variables, each)) for path in node.semantics)
    ]
    grouped = [(each, _groups_of(node, each, semantics)) for each in inside]
    windows = _sliding(node, grouped) if node.window.kind == "sliding" else _batches(node, grouped)
    for window in windows:
        solutions = tuple(
            terms
            for terms in _window_solutions(node, window, semantics)
            if all(evaluate(with_terms(each, terms), window.environment) is True for each in node.having)
        )
        if solutions:
            yield replace(window, solutions=solutions)


def absences(
    node: WindowAggregate, events: Sequence[Event], semantics: PathSemantics
) -> Iterator[tuple[int, int, Terms]]:
    """ABSENT: by window, from that of the first event to that of the last, what is expected and has no event.

    `events` are all of the streams inside WITHIN, in order.
    """
    assert node.expected is not None
    assert node.window.width is not None
    width, names = node.window.width, node.expected.selected
    for number in range(events[0].ts // width, events[-1].ts // width + 1):
        start, end = number * width, (number + 1) * width
        inside = [each for each in events if start <= each.ts < end and may_take(node.chain, each, semantics)]
        groups = (_groups_of(node, each, semantics).values() for each in inside)
        came = {tuple(terms[name] for name in names) for some in groups for terms in some}
        for row in semantics.known(node.expected, end - 1) - came:
            yield start, end, dict(zip(names, row, strict=True))


Groups = dict[Key, Terms]
"""The groups of an event: one, or one for each value of the PATH's variables that it is grouped by."""

Grouped = Sequence[tuple[Event, Groups]]


def _groups_of(node: WindowAggregate, event: Event, semantics: PathSemantics) -> Groups:
    names = [each.name for each in node.group_by if isinstance(each, VariableRef)]
    env = Environment({node.window.variable: event})
    found: Groups = {}
    for terms in solution_terms(node.semantics, env, semantics) if names else ({},):
        own = {name: terms[name] for name in names}
        found[key_with_terms(node.group_by, event, own)] = own
    return found


def _window_solutions(node: WindowAggregate, window: Windowed, semantics: PathSemantics) -> list[Terms]:
    """What the PATH says of the event that triggers, inside the group.

    Of a batch, it is what all of its events have in common: what it is grouped or partitioned by.
    """
    event = window.trigger or window.events[0]
    found = solution_terms(node.semantics, Environment({window.variable: event}), semantics)
    inside = [each for each in found if all(each[name] == term for name, term in window.terms.items())]
    if window.trigger is not None:
        return inside
    common = {each.name for each in (*node.group_by, *node.partition) if isinstance(each, VariableRef)}
    return [{name: term for name, term in each.items() if name in common} for each in inside]


def _sliding(node: WindowAggregate, events: Grouped) -> Iterator[Windowed]:
    """On every event, the window that ends with it, of which the event's own groups answer."""
    window = node.window
    for index, (trigger, groups) in enumerate(events):
        held = events[: index + 1]
        if window.width is not None:
            held = [(each, keys) for each, keys in held if each.ts > trigger.ts - window.width]
        elif window.count is not None:
            held = held[-window.count :]
        first = held[0][0]
        for group, terms in groups.items():
            members = tuple(each for each, keys in held if group in keys)
            span = first, trigger, first.ts, trigger.ts
            yield Windowed(window.variable, group, members, trigger, *span, terms)


def _batches(node: WindowAggregate, events: Grouped) -> Iterator[Windowed]:
    """One window after the other, of which every group answers."""
    window = node.window
    if window.width is not None:
        width = window.width
        for number, inside in groupby(events, key=lambda each: each[0].ts // width):
            yield from _answer_by_group(node, list(inside), number * width, (number + 1) * width)
    elif window.count is not None:
        for start in range(0, len(events) - window.count + 1, window.count):
            batch = events[start : start + window.count]
            yield from _answer_by_group(node, batch, batch[0][0].ts, batch[-1][0].ts)


def _answer_by_group(node: WindowAggregate, batch: Grouped, start: int, end: int) -> Iterator[Windowed]:
    members: dict[Key, list[Event]] = {}
    terms: Groups = {}
    for each, groups in batch:
        terms.update(groups)
        for group in groups:
            members.setdefault(group, []).append(each)
    first, last = batch[0][0], batch[-1][0]
    for group, events in members.items():
        span = first, last, start, end
        yield Windowed(node.window.variable, group, tuple(events), None, *span, terms[group])


# ----------------------------------------------------------------------------------------------------------
# The answers to a chi-CEP query over a finite input (semantics 2).


def run_chi(
    plan: ChiPlan,
    events: Sequence[Event],
    catalog: Catalog,
    knowledge: Knowledge | None = None,
    unknown: UnknownEntities | None = None,
) -> list[Answer]:
    """All answers to a query, in the order of their end, then of their id.

    `events` are those of the streams that the query reads, in any order, late ones left out. Values
    that no entity of the knowledge base is known for are counted in `unknown`.
    """
    return answers(plan, events, KnowledgeSemantics(catalog, knowledge, unknown))


def answers(plan: ChiPlan, events: Iterable[Event], semantics: PathSemantics) -> list[Answer]:
    """All answers to a query, with the PATHs decided by `semantics`."""
    source = plan.body
    given = list(events)
    seen = [event for event in given if any(sees(chain, event) for chain in source.chains)]
    by_variable = {chain.variable: chain for chain in source.chains}
    ties = [(by_variable[each.variables[0]], each) for each in source.ties]
    looked_up = [each.chain for each in source.latest] if isinstance(source, Pattern) else []
    known = in_order((e for e in given if any(sees(chain, e) for chain in looked_up)), source.streams)
    found: dict[str, Answer] = {}
    for part in parted(in_order(seen, source.streams), source.partition, ties, semantics):
        if isinstance(source, Pattern):
            made = _pattern_answers(plan, source, part, known)
        else:
            made = _window_answers(plan, source, part)
        # Solutions that differ in nothing that is selected are one match.
        found.update((each.match.id, each) for each in made)
    return sorted(found.values(), key=lambda each: (each.match.end_us, each.match.id))


# --- patterns ----------------------------------------------------------------------------------------------


def _pattern_answers(
    plan: ChiPlan,
    pattern: Pattern,
    part: Partition,
    known: Sequence[Event],
) -> Iterator[Answer]:
    loops = loops_of(pattern.sequence)
    for found in pattern_matches(pattern, part.events, part.semantics, known):
        rounds = found.rounds
        env = Environment({name: of[0] for name, of in rounds.items()}, rounds=rounds)
        for terms in _solutions(pattern, env, part.semantics):
            made = identified_by_events(plan, part.key, rounds)
            shown = events_shown(plan.variables, loops, rounds)
            span = found.start, found.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _solutions(pattern: Pattern, env: Environment, semantics: PathSemantics) -> Iterator[Terms]:
    """The selected values; where a LATEST event is bound, those of its PATH together with the others."""
    bound = [each for each in pattern.latest if each.variable in env.events]
    paths = [path for each in bound for path in each.semantics]
    covered = {name for path in paths for name in path.selected}
    paths += [path for path in pattern.semantics if covered.isdisjoint(path.selected)]
    nothing = {name: None for each in pattern.latest for path in each.semantics for name in path.selected}
    for terms in solution_terms(paths, env, semantics):
        yield {**nothing, **terms}


# --- windows -----------------------------------------------------------------------------------------------


def _window_answers(
    plan: ChiPlan,
    node: WindowAggregate,
    part: Partition,
) -> Iterator[Answer]:
    if node.expected is not None:
        for start, end, terms in absences(node, part.events, part.semantics):
            yield absence(plan, start, end, terms)
        return
    for window in window_answers(node, part.events, part.semantics):
        env = window.environment
        for terms in window.solutions:
            made = identified(plan, (*part.key, *window.group)).word(window.start).word(window.end)
            if window.trigger is not None:
                made.event(window.trigger)
            elif node.window.count is not None:
                made.event(window.first).event(window.last)
            shown = {window.variable: _window_shown(window)}
            span = window.start, window.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _window_shown(window: Windowed) -> dict[str, Any]:
    if window.trigger is not None:
        return window.trigger.identity
    return batch_shown(window.events[0], window.events[-1], len(window.events))


# --- both --------------------------------------------------------------------------------------------------


def _value(env: Environment, terms: Terms, column: OutputColumn) -> Any:
    """The value of a column; of a loop's attribute the list of values, one for each round."""
    if column.many:
        assert isinstance(column.expr, Field)
        name = column.expr.variable
        return [evaluate(column.expr, Environment({name: each})) for each in env.rounds.get(name, ())]
    if not has_path_values(column.expr):
        return evaluate(column.expr, env)
    expr = with_terms(column.expr, terms)
    value = evaluate(expr, env)
    if column.type is None and type_of(expr) is Type.TIMESTAMP and isinstance(value, int):
        return format_time(value)  # as a variable that is selected by itself
    return value
