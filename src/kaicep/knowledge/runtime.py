"""The run-time path of the SCEPter paper (its section 4.2): SPARQL for PATHs that cannot be looked up.

For every event: annotate it, put its graph beside the knowledge, evaluate. Two settings make that
bearable, and each can be measured alone. With a *cache*, events that have the same query root properties
(definitions 1 and 2) share one evaluation; it is bounded, and forgets what was not used for longest. With
a *buffer*, events are evaluated together, in one query for all of them.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass

from kaicep.knowledge.event_graph import (
    HAS_TIME,
    EventGraph,
    UnknownEntities,
    evaluates,
    event_triples,
    goes_back,
    own_triples,
)
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, pattern_variables, substitute, triple_patterns
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.expressions import Exists, VariableRef, walk
from kaicep.plan.nodes import Semantic
from kaicep.plan.sparql import (
    Element,
    Filter,
    Group,
    GroupOperation,
    InGraph,
    MinusGroup,
    Optional,
    SubSelect,
    TripleBlock,
    Values,
    may_be_empty,
)
from kaicep.plan.terms import OWL, RDF, Blank, Iri, Term, Triple, Variable

_NOTHING: frozenset[Row] = frozenset()


@dataclass(frozen=True)
class RuntimeSettings:
    """How the run-time path works: `cache` entries for each condition (0: none), and whether to buffer."""

    cache: int = 100_000
    buffer: bool = True


@dataclass
class RuntimeCounters:
    """What the run-time path did, and how long each of its modules took, in seconds."""

    evaluations: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timing(self, module: str) -> Iterator[None]:
        """Adds the time spent inside to a module's account."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[module] += time.perf_counter() - started


class _Remembered:
    """What is remembered of one condition.

    `together` is whether many events may be asked for in one query, `evaluated` are the answers that a
    buffer has made ready, `attributes` those that the answer depends on, by variable and stream, `named`
    whether it depends on which event it is. The cache has answers by query root properties; of these, the
    least recently used goes first.
    """

    def __init__(self, condition: Semantic, size: int, counters: RuntimeCounters) -> None:
        self.condition = condition
        self.together = len(condition.variables) == 1 and all(
            _may_be_asked_together(group, condition.variables[0]) for group in condition.alternatives
        )
        self.size = size
        self.counters = counters
        self.evaluated: dict[tuple[Event, ...], frozenset[Row]] = {}
        self.attributes: dict[tuple[str, str], tuple[str, ...]] = {}
        self.named: dict[tuple[str, str], bool] = {}
        self._entries: OrderedDict[object, frozenset[Row]] = OrderedDict()

    def get(self, key: object) -> frozenset[Row] | None:
        if self.size == 0:
            return None
        found = self._entries.get(key)
        if found is None:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        self._entries.move_to_end(key)
        return found

    def put(self, key: object, rows: frozenset[Row]) -> None:
        if self.size == 0:
            return
        self._entries[key] = rows
        self._entries.move_to_end(key)
        if len(self._entries) > self.size:
            self._entries.popitem(last=False)
            self.counters.evictions += 1

    def remember(self, key: object, events: Iterable[Event], rows: frozenset[Row]) -> None:
        """Keeps the answer for these events, and for others of their kind where that has a key."""
        for event in events:
            self.evaluated[event,] = rows
        if key is not None:
            self.put(key, rows)


class RuntimePath:
    """Evaluates PATH conditions over the knowledge and the graphs of the events they are about."""

    def __init__(
        self,
        catalog: Catalog,
        knowledge: Knowledge,
        unknown: UnknownEntities | None,
        settings: RuntimeSettings,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.unknown = unknown
        self.settings = settings
        self.counters = RuntimeCounters()
        self._asked: dict[int, _Remembered] = {}
        self._version = knowledge.version

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution."""
        asked = self._about(condition)
        events = tuple([binding[name] for name in condition.variables])
        ready = asked.evaluated.get(events)
        if ready is not None:
            return ready
        key, found = self._remembered(asked, events)
        if found is None:
            graphs = self._annotated(condition, events)
            with self.counters.timing("evaluate"):
                found = self._evaluate(condition, graphs, self._at(events))
            if _is_anybodys(found, graphs):
                asked.put(key, found)
        return found

    def buffer(self, condition: Semantic, events: Sequence[Event]) -> None:
        """Evaluates a condition about single events for all of them together; `solutions` then knows.

        What is remembered is forgotten at the next call: a buffer is as long as its interval.
        """
        asked = self._about(condition)
        asked.evaluated.clear()
        if not self.settings.buffer or not asked.together:
            return
        waiting: dict[object, list[Event]] = {}
        for event in events:
            key, found = self._remembered(asked, (event,))
            if found is not None:
                asked.evaluated[event,] = found
            else:
                waiting.setdefault(key, []).append(event)
        graphs = [self._annotated(condition, found[:1])[condition.variables[0]] for found in waiting.values()]
        with self.counters.timing("evaluate"):
            self._evaluate_together(asked, waiting, graphs)

    # --- one event, or a few that belong together ---

    def _annotated(self, condition: Semantic, events: Sequence[Event]) -> dict[str, EventGraph]:
        with self.counters.timing("annotate"):
            knowledge = self._at(events)
            return {
                name: event_triples(event, self.catalog.streams[event.stream], knowledge, self.unknown)
                for name, event in zip(condition.variables, events, strict=True)
            }

    def _at(self, events: Iterable[Event]) -> Knowledge:
        return self.knowledge.at(max((event.ts for event in events), default=0))

    def _evaluate(
        self, condition: Semantic, graphs: Mapping[str, EventGraph], knowledge: Knowledge
    ) -> frozenset[Row]:
        groups = [each for each in condition.alternatives if _is_known(each, graphs, knowledge)]
        if not groups:
            return _NOTHING
        self.counters.evaluations += 1
        triples = [triple for graph in graphs.values() for triple in graph.triples]
        nodes: dict[str, Term] = {name: graph.node for name, graph in graphs.items()}
        with closed_store(knowledge).besides(knowledge.entails_with(triples)) as store:
            return frozenset(
                row for group in groups for row in store.select(substitute(group, nodes), condition.selected)
            )

    def _remembered(
        self, asked: _Remembered, events: Sequence[Event]
    ) -> tuple[object, frozenset[Row] | None]:
        """What the answer depends on, and the answer, if it is known.

        That is the time, and the query root properties: the attributes from which they are made tell them
        before the event is annotated.
        """
        started = time.perf_counter()
        key: list[object] = [self.knowledge.epoch(max((event.ts for event in events), default=0))]
        for name, event in zip(asked.condition.variables, events, strict=True):
            key.append(event.stream)
            for attribute in self._attributes(asked, name, event.stream):
                value = event.value(attribute)
                # Values that compare equal may be different literals.
                key.append(value if type(value) is str else (type(value), repr(value)))
            if self._is_named(asked, name, event.stream):
                key.append(event)
        made = tuple(key)
        found = asked.get(made)
        self.counters.seconds["cache"] += time.perf_counter() - started
        return made, found

    def _attributes(self, asked: _Remembered, name: str, stream: str) -> tuple[str, ...]:
        """The attributes from which the query root properties of such an event are made."""
        known = asked.attributes.get((name, stream))
        if known is None:
            of = self.catalog.streams[stream]
            made = [(attribute, concept) for attribute, concept in of.concepts]
            made += [(attribute, entity.property) for attribute, entity in of.entities]
            known = asked.attributes[name, stream] = of.reads(
                *(
                    attribute
                    for attribute, each in (*made, ("ts", HAS_TIME))
                    if depends_on(asked.condition, name, each, self.knowledge)
                )
            )
        return known

    def _is_named(self, asked: _Remembered, name: str, stream: str) -> bool:
        """Whether the answer depends on which event it is."""
        known = asked.named.get((name, stream))
        if known is None:
            of = self.catalog.streams[stream]
            known = asked.named[name, stream] = names_events(asked.condition, name, of, self.knowledge)
        return known

    # --- many events at a time ---

    def _evaluate_together(
        self, asked: _Remembered, waiting: Mapping[object, list[Event]], graphs: Sequence[EventGraph]
    ) -> None:
        """One query for one event of each kind; what an event says of other things keeps it out."""
        condition = asked.condition
        (variable,) = condition.variables
        together: dict[Term, object] = {}
        triples: set[Triple] = set()
        epochs = {self.knowledge.epoch(found[0].ts) for found in waiting.values()}
        for (key, found), graph in zip(waiting.items(), graphs, strict=True):
            knowledge = self._at(found[:1])
            added = knowledge.entails_with(graph.triples)
            if graph.unknown or len(epochs) > 1 or any(each[0] != graph.node for each in added):
                rows = self._evaluate(condition, {variable: graph}, knowledge)
                shared = _is_anybodys(rows, {variable: graph})
                asked.remember(key if shared else None, found if shared else found[:1], rows)
            else:
                together[graph.node] = key
                triples |= added
        if not together:
            return
        self.counters.evaluations += 1
        answers: dict[Term, set[Row]] = {node: set() for node in together}
        nodes = Values((variable,), tuple((node,) for node in together))
        with closed_store(self.knowledge.in_epoch(epochs.pop())).besides(triples) as store:
            for group in condition.alternatives:
                all_of_them = Group((nodes, *group.elements))
                for row in store.select(all_of_them, (variable, *condition.selected)):
                    if row[0] is not None:
                        answers[row[0]].add(row[1:])
        for node, key in together.items():
            shared = not any(node in row for row in answers[node])
            found = waiting[key] if shared else waiting[key][:1]
            asked.remember(key if shared else None, found, frozenset(answers[node]))

    def _about(self, condition: Semantic) -> _Remembered:
        """What is remembered of the condition. It is found by identity: to hash a PATH takes long."""
        if self._version != self.knowledge.version:
            self._version = self.knowledge.version
            self._asked.clear()
        found = self._asked.get(id(condition))
        if found is None:
            found = self._asked[id(condition)] = _Remembered(condition, self.settings.cache, self.counters)
        return found


def depends_on(condition: Semantic, name: str, property: Iri, knowledge: Knowledge) -> bool:
    """Whether an answer depends on a property of an event: on itself, or on what follows from it."""
    if knowledge.reasoning == "owl-rl" and (property != HAS_TIME or _is_spoken_of(knowledge)):
        return True  # what several properties give together cannot be told from each of them
    event = Iri("urn:kaicep:event:any")
    said = [(event, each, Blank("any value")) for each in knowledge.properties_above(property)]
    follows = knowledge.entails_with(said)
    return any(
        subject != event
        or any(
            isinstance(each, Iri) and evaluates(group, variable, each, knowledge)
            for group in condition.alternatives
            for variable in (name, *_other_names(group))
        )
        for subject, each, _ in follows
    )


def names_events(condition: Semantic, name: str, stream: Stream, knowledge: Knowledge) -> bool:
    """Whether an answer may depend on which event it is, of several with the same properties.

    So it is where an expression, a subquery or a selected variable has the name of the event, or another
    that may stand for it.
    """
    event, value = Iri("urn:kaicep:event:any"), Blank("any value")
    follows = knowledge.entails_with(own_triples(event, stream, value, knowledge))
    properties = [each for subject, each, _ in follows if subject == event and isinstance(each, Iri)]
    is_led_to = any(subject != event for subject, _, _ in follows)
    for group in condition.alternatives:
        others = set(_other_names(group)) - {name}
        if is_led_to:
            others |= {each for pattern in triple_patterns(group) for each in pattern_variables(pattern)}
        disguised = {
            each for each in others if is_led_to or _may_stand_for(group, each, properties, knowledge)
        }
        if not ({name} | disguised).isdisjoint({*condition.selected, *_spoken_names(group)}):
            return True
    return False


def _may_stand_for(group: Group, name: str, properties: Sequence[Iri], knowledge: Knowledge) -> bool:
    """Whether a variable may stand for an event of these properties: it has all that is asked of it."""
    top = [
        each for element in group.elements if isinstance(element, TripleBlock) for each in element.patterns
    ]
    asked = [Group((TripleBlock((each,)),)) for each in top if each.subject == Variable(name)]
    return all(any(evaluates(each, name, own, knowledge) for own in properties) for each in asked)


def _spoken_names(part: object) -> Iterator[str]:
    """The variables that expressions and subqueries mention."""
    if isinstance(part, VariableRef):
        yield part.name
    elif isinstance(part, SubSelect):
        for pattern in triple_patterns(part):
            yield from pattern_variables(pattern)
    elif isinstance(part, Values):
        yield from part.variables
    below = [getattr(part, each.name) for each in fields(part)] if is_dataclass(part) else ()
    for each in part if isinstance(part, tuple) else below:
        yield from _spoken_names(each)


def _may_be_asked_together(group: Group, event: str) -> bool:
    """Whether events that lie beside each other in the store cannot be mistaken for one another.

    The event must stand at the beginning of patterns only, where a variable will do for its name, and no
    other variable may stand for an event. Nested groups are not looked into.
    """
    for element in group.elements:
        if isinstance(element, TripleBlock):
            if any(goes_back(each.predicate) or each.object == Variable(event) for each in element.patterns):
                return False
        elif (
            not isinstance(element, Filter | Values) or event in element_variables(element) or _nests(element)
        ):
            return False
    return not _other_names(group) - {event}


def _other_names(group: Group) -> frozenset[str]:
    """The variables of the group that may stand for an event: subjects that no pattern leads to.

    For nothing leads to an event but a way of no steps, or one that is read backwards. What a pattern
    inside a subquery leads to is nothing to the patterns outside, nor the other way round.
    """
    everywhere = tuple(triple_patterns(group))
    top = [
        each for element in group.elements if isinstance(element, TripleBlock) for each in element.patterns
    ]
    led_to = {
        each.object
        for each in (() if _has_subquery(group) else top)
        if isinstance(each.object, Variable)
        and not may_be_empty(each.predicate)
        and not goes_back(each.predicate)
    }
    ends = {each.object for each in everywhere if goes_back(each.predicate)}
    names = {each.subject for each in everywhere} | ends
    return frozenset(each.name for each in names - led_to if isinstance(each, Variable))


def _has_subquery(element: Element) -> bool:
    match element:
        case Group(elements):
            return any(map(_has_subquery, elements))
        case Optional(group) | MinusGroup(group) | InGraph(_, group):
            return _has_subquery(group)
        case GroupOperation(_, left, right):
            return _has_subquery(left) or _has_subquery(right)
        case Filter(condition):
            return any(
                isinstance(each, Exists) and isinstance(each.group, Group) and _has_subquery(each.group)
                for each in walk(condition)
            )
    return isinstance(element, SubSelect)


def _nests(element: Filter | Values) -> bool:
    return isinstance(element, Filter) and any(isinstance(each, Exists) for each in walk(element.condition))


def _is_anybodys(rows: frozenset[Row], graphs: Mapping[str, EventGraph]) -> bool:
    """Whether an answer holds for all events of a kind.

    One that speaks of the very events it was asked for does not. An entity that nobody knows is counted
    for every event that has it, so that each must be looked at.
    """
    nodes = {graph.node for graph in graphs.values()}
    named = any(term in nodes for row in rows for term in row)
    return not named and not any(graph.unknown for graph in graphs.values())


def _is_spoken_of(knowledge: Knowledge) -> bool:
    """Whether the knowledge says something of the time of events from which more could follow."""
    return knowledge.holds((HAS_TIME, Iri(RDF + "type"), Iri(OWL + "InverseFunctionalProperty"))) or any(
        subject != HAS_TIME for subject, _, _ in knowledge.match(None, None, HAS_TIME)
    )


def _is_known(group: Group, graphs: Mapping[str, EventGraph], knowledge: Knowledge) -> bool:
    """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
    return all(graph.answers(group, name, knowledge) for name, graph in graphs.items())
