"""How PATHs are decided for events: by tables that are looked up, and by the run-time path for the rest."""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import product
from math import prod
from weakref import WeakKeyDictionary

from kaicep.knowledge.event_graph import (
    HAS_TIME,
    EventGraph,
    UnknownEntities,
    entity_in,
    evaluates,
    event_triples,
    goes_back,
    literal_in,
    own_triples,
)
from kaicep.knowledge.graph import (
    Layer,
    PlainPatterns,
    TermTable,
    TripleIndex,
    meeting,
    plain,
    solve,
    solve_numbers,
)
from kaicep.knowledge.queries import Row, closed_store, select
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, pattern_variables, substitute, triple_patterns
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.expressions import Exists, VariableRef, walk
from kaicep.plan.nodes import Relation, Root, Semantic
from kaicep.plan.operators import event_function
from kaicep.plan.paths import path_references
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
from kaicep.plan.types import Type, Value
from kaicep.plan.typing import with_terms

# ----------------------------------------------------------------------------------------------------------
# The run-time path of the SCEPter paper (its section 4.2): SPARQL for PATHs that cannot be looked up.
#
# For every event: annotate it, put its graph beside the knowledge, evaluate. Two settings make that
# bearable, and each can be measured alone. With a *cache*, events that have the same query root properties
# (definitions 1 and 2) share one evaluation; it is bounded, and forgets what was not used for longest. With
# a *buffer*, events are evaluated together, in one query for all of them.

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


# ----------------------------------------------------------------------------------------------------------
# Semantic relations at run time: tables that are looked up, and the run-time path for the rest.
#
# A PATH condition with a `Relation` is decided by its table: from root values to rows, made in one query
# over the closed knowledge. One without is decided by the run-time path (`RuntimePath`). Both judge
# an event by what held at its own time, a PATH about several events by what held at the last of them.
#
# When the knowledge changes, a table is asked again only for the root values that a changed triple leads
# to. What holds for a time is treated in the same way: a change to what holds always.

Roots = tuple[Term, ...]

# The rows for a text, where the text alone decides.
_NamedRows = Callable[[str], frozenset[Row] | None]

_YES: frozenset[Row] = frozenset(((),))
# A change of more triples than this is not followed one by one.
_MANY = 500
_ROWS_A_NAME = 4
"""To look at so many rows of a table takes as long as to look for one of them by its name."""
_MOST_TABLES = 64
# So many answers are kept by the bare value of an attribute.
_MOST_VALUES = 1_000_000


@dataclass(frozen=True)
class RelationTable:
    """The answer of a relation: rows of the selected variables by the values of the roots in `places`.

    Where the relation asks nothing but that the roots are there, `rows` is None.
    """

    rows: Mapping[Roots, frozenset[Row]] | None
    places: tuple[int, ...] = ()

    def lookup(self, roots: Roots) -> frozenset[Row]:
        """The rows of these root values."""
        if self.rows is None:
            return _YES
        return self.rows.get(tuple([roots[each] for each in self.places]), _NOTHING)


def make_table(relation: Relation, selected: tuple[str, ...], knowledge: Knowledge) -> RelationTable:
    """Asks the knowledge for the whole table at once."""
    if not relation.rest.elements and not set(selected):
        return RelationTable(None)
    # Of a root that the rest does not mention, nothing is asked but that it is there.
    mentioned = element_variables(relation.rest)
    places = tuple(index for index, root in enumerate(relation.roots) if root.name in mentioned)
    names = [relation.roots[each].name for each in places]
    asked = plain(relation.rest)
    with _without_collection():
        if asked is not None and asked.variables.issuperset(selected):
            return RelationTable(_joined(asked, names, selected, knowledge), places)
        return RelationTable(
            _by_roots(select(knowledge, relation.rest, [*names, *selected]), len(names)), places
        )


def _joined(
    asked: PlainPatterns, names: Sequence[str], selected: Sequence[str], knowledge: Knowledge
) -> dict[Roots, frozenset[Row]]:
    """The rows by root values. They are sorted by numbers, since to hash a term takes ten times as long."""
    found, terms = solve_numbers(asked, *knowledge.by_number(), [*names, *selected])
    width = len(names)
    by_number: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for each in found:
        by_number.setdefault(each[:width], []).append(each[width:])
    answers = list(map(tuple, by_number.values()))
    distinct = list({row: None for some in answers for row in some})
    spelt = dict(zip(distinct, _spelt(distinct, terms), strict=True))
    shared = {some: frozenset([spelt[row] for row in some]) for some in set(answers)}
    return dict(zip(_spelt(by_number, terms), map(shared.__getitem__, answers), strict=True))


def _spelt(rows: Collection[tuple[int, ...]], terms: TermTable) -> Iterable[tuple[Term, ...]]:
    """The rows with the terms that their numbers stand for."""
    columns = [terms.terms(column) for column in zip(*rows, strict=True)]
    return zip(*columns, strict=True) if columns else [()] * len(rows)


def _by_roots(found: Collection[Row], width: int) -> dict[Roots, frozenset[Row]]:
    rows: dict[Roots, list[Row]] = {}
    for each in found:
        roots = each[:width]
        if None not in roots:
            rows.setdefault(roots, []).append(each[width:])  # type: ignore[arg-type]
    return {roots: frozenset(some) for roots, some in rows.items()}


@contextmanager
def _without_collection() -> Iterator[None]:
    """A table makes many objects and no garbage; to look for some would mean to walk all the knowledge."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def refreshed(
    table: RelationTable,
    relation: Relation,
    selected: tuple[str, ...],
    touched: Collection[Triple],
    knowledge: Knowledge,
) -> RelationTable:
    """The table as it is after these triples have come or gone; what they do not lead to is kept."""
    if table.rows is None:
        return table
    asked = plain(relation.rest)
    names = [relation.roots[each].name for each in table.places]
    if asked is None or len(touched) > _MANY or not asked.variables.issuperset(selected):
        return make_table(relation, selected, knowledge)
    affected = _affected(asked, names, touched, knowledge)
    if not affected:
        return table
    again = PlainPatterns(asked.patterns, (*asked.tables, Values(tuple(names), tuple(affected))))
    rows = dict(table.rows)
    for roots in affected:
        rows.pop(roots, None)
    rows |= _joined(again, names, selected, knowledge)
    return replace(table, rows=rows)


def _affected(
    asked: PlainPatterns, names: list[str], touched: Collection[Triple], knowledge: Knowledge
) -> dict[Roots, None]:
    """The root values of all solutions, old or new, in which a pattern is met by one of these triples.

    With what has gone put back, everything is there that was there before or is there now; and patterns
    that are met stay met where there is more.
    """
    facts, terms = knowledge.by_number()
    gone = TripleIndex()
    for triple in touched:
        if not knowledge.holds(triple):
            gone.add(*terms.ids(triple))
    both = Layer(facts, gone)
    found: dict[Roots, None] = {}
    for triple in touched:
        for pattern in asked.patterns:
            values = meeting(pattern, triple)
            if values is not None:
                narrowed = PlainPatterns(asked.patterns, (*asked.tables, values))
                found.update(dict.fromkeys(solve(narrowed, both, terms, names)))
    return found


@dataclass(frozen=True)
class Components:
    """The component of each root value, by the place of its root.

    `complete` says that all values of one component are related: no others need be asked about.
    """

    of: Mapping[int, Mapping[Term, int]]
    complete: bool


def _components(tables: Sequence[RelationTable], knowledge: Knowledge) -> Components | None:
    """Root values in one row, or in rows that share one, are of one component; so are names of one thing."""
    if any(each.rows is None for each in tables):
        return None
    places: dict[int, dict[Term, int]] = {each: {} for each in tables[0].places}
    above: list[int] = []

    def top(one: int) -> int:
        while above[one] != one:
            above[one] = one = above[above[one]]
        return one

    for roots in (roots for each in tables for roots in each.rows or ()):
        first = -1
        for known, term in zip(places.values(), roots, strict=True):
            number = known.setdefault(term, len(above))
            if number == len(above):
                above.append(number)
            number = top(number)
            if first < 0:
                first = number
            above[number] = first
    if knowledge.reasoning == "owl-rl":
        for known in places.values():
            for term, number in known.items():
                for other in knowledge.same_as(term):
                    if other in known:
                        above[top(known[other])] = top(number)
    of = {place: {term: top(each) for term, each in known.items()} for place, known in places.items()}
    sizes = [Counter(each.values()) for each in of.values()]
    pairs = sum(prod(each[number] for each in sizes) for number in (sizes[0] if sizes else ()))
    steady = len(tables) == 1 and knowledge.reasoning != "owl-rl"
    return Components(of, steady and pairs == len(tables[0].rows or ()))


class KeptTable:
    """The table of a relation, of what holds always, and of the epochs that were asked for.

    It follows the versions of its knowledge.
    """

    def __init__(self, relation: Relation, selected: tuple[str, ...], knowledge: Knowledge) -> None:
        self.relation = relation
        self.selected = selected
        self._version = knowledge.version
        self._always = make_table(relation, selected, knowledge)
        self._passing: dict[int, RelationTable] = {}
        self._components: tuple[tuple[int, int], list[RelationTable], Components | None] | None = None

    def always(self, knowledge: Knowledge) -> RelationTable:
        """The table of what holds always, as new as the knowledge."""
        if self._version != knowledge.version:
            touched = knowledge.touched_since(self._version)
            self._version = knowledge.version
            self._passing.clear()
            if touched is None:
                self._always = make_table(self.relation, self.selected, knowledge)
            else:
                self._always = refreshed(self._always, self.relation, self.selected, touched, knowledge)
        return self._always

    def components(self, knowledge: Knowledge) -> Components | None:
        """What hangs together in the rows of any time; None where nothing is asked of the roots.

        Its numbers stay the same where the rows do: whoever is not concerned by a change keeps them.
        """
        key = knowledge.version, len(knowledge.epochs)
        if self._components is None or self._components[0] != key:
            tables = [self.table(knowledge, epoch) for epoch in range(len(knowledge.epochs) + 1)]
            same = self._components is not None and self._components[1] == tables
            numbered = self._components[2] if same else _components(tables, knowledge)  # type: ignore[index]
            self._components = key, tables, numbered
        return self._components[2]

    def table(self, knowledge: Knowledge, epoch: int) -> RelationTable:
        """The table as of an epoch."""
        always = self.always(knowledge)
        if not knowledge.epochs:
            return always
        found = self._passing.get(epoch)
        if found is None:
            then = knowledge.in_epoch(epoch)
            found = refreshed(always, self.relation, self.selected, tuple(then.passing()), then)
            self._passing[epoch] = found
        return found


_TABLES: WeakKeyDictionary[Knowledge, dict[tuple[Relation, tuple[str, ...]], KeptTable]] = WeakKeyDictionary()


def kept_table(relation: Relation, selected: tuple[str, ...], knowledge: Knowledge) -> KeptTable:
    """The table of a relation over this knowledge, the same for whoever asks.

    The optimiser makes it, an engine looks things up in it. Those that were asked for last are kept.
    """
    tables = _TABLES.setdefault(knowledge, {})
    key = relation, tuple(each for each in selected if each not in {root.name for root in relation.roots})
    found = tables.pop(key, None) or KeptTable(*key, knowledge)
    if len(tables) >= _MOST_TABLES:
        del tables[next(iter(tables))]
    tables[key] = found
    return found


def _by_text(rows: Mapping[Roots, frozenset[Row]], before: str, after: str) -> dict[str, frozenset[Row]]:
    """The rows of a table with one root by what stands between the two in its name."""
    begin, least = len(before), len(before) + len(after)
    return {
        name.value[begin : len(name.value) - len(after)]: found
        for (name,), found in rows.items()
        if isinstance(name, Iri)
        and len(name.value) >= least
        and name.value.startswith(before)
        and name.value.endswith(after)
    }


class _Lookup:
    """How one condition is decided.

    Where one attribute of one event decides, `attributes` names it by stream, and the answers are kept by
    its bare value and the epoch: then an event costs no more than that.
    """

    def __init__(self, condition: Semantic, relation: Relation, kept: KeptTable, catalog: Catalog) -> None:
        self.condition = condition
        self.relation = relation
        self.kept = kept
        self.variable = relation.roots[0].variable if len(relation.roots) == 1 else ""
        self.attributes = _single_attributes(relation.roots[0], catalog) if self.variable else {}
        self.templates = (
            dict(_templates(relation.roots[0], self.attributes, catalog)) if self.variable else {}
        )
        self.answers: dict[tuple[str, int], dict[Value, frozenset[Row]]] = {}
        self.own = {root.name: index for index, root in enumerate(relation.roots)}
        self.selects_roots = any(each in self.own for each in condition.selected)
        self.behind = [each for each in condition.selected if each not in self.own]

    def rows(self, table: RelationTable, roots: Roots) -> frozenset[Row]:
        """The rows with the selected variables in their order; a root may be selected itself."""
        found = table.lookup(roots)
        if not self.selects_roots:
            return found
        return frozenset(
            tuple(
                roots[self.own[each]] if each in self.own else row[self.behind.index(each)]
                for each in self.condition.selected
            )
            for row in found
        )


def _templates(
    root: Root, attributes: Mapping[str, str], catalog: Catalog
) -> Iterator[tuple[str, tuple[str, str]]]:
    """The streams on which a template names the root, and what stands around the text in it."""
    for name, attribute in attributes.items():
        stream = catalog.streams[name]
        entity = dict(stream.entities).get(attribute)
        named = dict(root.entities).get(name) == (attribute,) and not dict(root.literals).get(name)
        if named and entity is not None and entity.template is not None:
            parts = entity.template.split("{value}")
            if len(parts) == 2 and stream.type_of(attribute) is Type.STRING:
                yield name, (parts[0], parts[1])


def _single_attributes(root: Root, catalog: Catalog) -> dict[str, str]:
    literals, entities = dict(root.literals), dict(root.entities)
    found = {
        stream: catalog.streams[stream].reads(*literals.get(stream, ()), *entities.get(stream, ()))
        for stream in literals | entities
    }
    return {stream: each[0] for stream, each in found.items() if len(each) == 1}


class Relations:
    """Decides PATHs for events: by table where the plan has one, else as the run-time path does."""

    def __init__(
        self,
        catalog: Catalog,
        knowledge: Knowledge,
        unknown: UnknownEntities | None = None,
        settings: RuntimeSettings | None = None,
    ) -> None:
        self.catalog = catalog
        self.knowledge = knowledge
        self.unknown = unknown
        self.runtime = RuntimePath(catalog, knowledge, unknown, settings or RuntimeSettings())
        self._lookups: dict[int, _Lookup] = {}
        self._kept: dict[tuple[Relation, tuple[str, ...]], KeptTable] = {}
        self._entities: dict[tuple[str, str, tuple[Value, ...], int], Term | None] = {}
        self._counted: set[tuple[Event, str]] = set()
        self._named: dict[tuple[int, str], tuple[Root, list[tuple[str, tuple[str, ...]]]]] = {}
        self._version = knowledge.version
        self._epochs = knowledge.epochs

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing."""
        if condition.relation is None:
            return self.runtime.solutions(condition, binding) if condition.alternatives else _NOTHING
        lookup = self._lookup(condition, condition.relation)
        if not lookup.variable:
            return self._looked_up(lookup, binding)
        event = binding[lookup.variable]
        attribute = lookup.attributes.get(event.stream)
        value = event.values.get(attribute) if attribute is not None else None
        if type(value) is not str:
            # Numbers that compare equal may be different terms.
            return self._looked_up(lookup, binding)
        epoch = bisect_right(self._epochs, event.ts) if self._epochs else 0
        answers = lookup.answers.get((event.stream, epoch))
        if answers is None:
            answers = lookup.answers[event.stream, epoch] = {}
        found = answers.get(value)
        if found is None:
            found = self._looked_up(lookup, binding)
            # An unknown entity is counted for every event that has it.
            if self._entities.get((event.stream, attribute or "", (value,), epoch), _NOTHING) is not None:
                if len(answers) >= _MOST_VALUES:
                    answers.clear()
                answers[value] = found
        return found

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """The same of a condition about no event: what the knowledge says at some time."""
        judged = (name for each in condition.conditions for name in path_references(each))
        names = tuple(dict.fromkeys((*condition.selected, *judged)))
        found: set[Row] = set()
        for row in select(self.knowledge.at(ts), condition.alternatives[0], names):
            terms = dict(zip(names, row, strict=True))
            nothing = Event("", 0, 0, ts, {})
            if all(event_function(with_terms(e, terms))(nothing) is True for e in condition.conditions):
                found.add(tuple(terms[name] for name in condition.selected))
        return frozenset(found)

    def solutions_of_each(
        self, condition: Semantic, variable: str, events: Sequence[Event]
    ) -> list[frozenset[Row]]:
        """The solutions of a condition about one event, for each of these; they are asked for together."""
        if condition.relation is None and condition.alternatives:
            self.runtime.buffer(condition, events)
        if condition.relation is None or len(condition.relation.roots) != 1:
            return [self.solutions(condition, {variable: each}) for each in events]
        lookup = self._lookup(condition, condition.relation)
        named: dict[tuple[str, int], _NamedRows | None] = {}
        made: list[frozenset[Row]] = []
        for event in events:
            key = event.stream, bisect_right(self._epochs, event.ts)
            if key not in named:
                named[key] = self._by_template(lookup, *key, len(events))
            by_name, rows = named[key], None
            if by_name is not None:
                value = event.values.get(lookup.attributes[event.stream])
                rows = by_name(value) if type(value) is str else None
            made.append(self.solutions(condition, {variable: event}) if rows is None else rows)
        return made

    def hold_for(
        self, condition: Semantic, stream: str, ts: int, texts: Sequence[str]
    ) -> Sequence[bool | None]:
        """Whether a condition about one event holds where one attribute, its root, is this text.

        None: that has to be asked with the event.
        """
        relation, by_name = condition.relation, None
        if relation is not None and len(relation.roots) == 1:
            lookup = self._lookup(condition, relation)  # first: it follows the epochs of the knowledge
            by_name = self._by_template(lookup, stream, bisect_right(self._epochs, ts), len(texts))
        if by_name is None:
            return [None] * len(texts)
        return [None if rows is None else bool(rows) for rows in map(by_name, texts)]

    def _by_template(self, lookup: _Lookup, stream: str, epoch: int, many: int) -> _NamedRows | None:
        """The rows by the text of which a template makes the name of the one root.

        Only those that the table has, under the very name; None for others. Where it is asked for many,
        the texts are taken out of the names: to make a name of a text, and to hash it, takes much longer.
        """
        named = lookup.templates.get(stream)
        table = lookup.kept.table(self.knowledge, epoch)
        every = table.rows
        if named is None or lookup.selects_roots or not table.places or every is None:
            return None
        if self.knowledge.reasoning == "owl-rl":
            return None
        before, after = named
        knowledge, counted = self.knowledge.in_epoch(epoch), self.unknown is not None
        by_text = _by_text(every, before, after) if _ROWS_A_NAME * many >= len(every) else None

        def rows(text: str) -> frozenset[Row] | None:
            found = every.get((Iri(before + text + after),)) if by_text is None else by_text.get(text)
            if found is not None:
                return found
            # Other texts may be escaped in the name; and who counts what nobody knows must be told.
            plain = not counted and text.isascii() and text.isalnum()
            return _NOTHING if plain or knowledge.knows(Iri(before + text + after)) else None

        return rows

    def _lookup(self, condition: Semantic, relation: Relation) -> _Lookup:
        if self._version != self.knowledge.version:
            self.renew()
        lookup = self._lookups.get(id(condition))
        if lookup is None:
            kept = self._kept_table(relation, condition.selected)
            lookup = self._lookups[id(condition)] = _Lookup(condition, relation, kept, self.catalog)
        return lookup

    def components(self, condition: Semantic, variable: str, events: Sequence[Event]) -> list[int | None]:
        """What hangs together in the relation of a PATH about several events: where each event belongs."""
        relation = condition.relation
        assert relation is not None
        if self._version != self.knowledge.version:
            self.renew()  # what nobody knew may have a name by now
        found = self._kept_table(relation, condition.selected).components(self.knowledge)
        place = next(at for at, each in enumerate(relation.roots) if each.variable == variable)
        root = relation.roots[place]
        if found is None or place not in found.of:
            return [0] * len(events)
        known = found.of[place]
        made: list[int | None] = []
        sure = self.unknown is None and self.knowledge.reasoning != "owl-rl"  # nobody counts; one name each
        attributes = _single_attributes(root, self.catalog) if sure else {}
        templates = dict(_templates(root, attributes, self.catalog))
        for event in events:
            named = templates.get(event.stream)
            value = event.values.get(attributes[event.stream]) if named is not None else None
            if named is not None and type(value) is str and value.isascii() and value.isalnum():
                made.append(known.get(Iri(named[0] + value + named[1])))
                continue
            values = self._candidates(root, {variable: event}, self.knowledge.epoch(event.ts))
            made.append(next((known[each] for each in values if each and each in known), None))
        return made

    def is_complete(self, condition: Semantic) -> bool:
        """Whether a PATH about several events holds for all that are of one component."""
        relation = condition.relation
        if relation is None:
            return False
        kept = self._kept_table(relation, condition.selected)
        found = kept.components(self.knowledge)
        return found is not None and found.complete and len(found.of) == len(relation.roots)

    def identity_seen(self, condition: Semantic, variable: str) -> tuple[str, ...]:
        """What of the identity of an event the answer depends on: nothing, `ts`, or `ts` and `seq`."""
        if condition.relation is not None or not condition.alternatives:
            return ()
        streams = self.catalog.streams.values()
        if any(names_events(condition, variable, each, self.knowledge) for each in streams):
            return ("ts", "seq")
        return ("ts",) if depends_on(condition, variable, HAS_TIME, self.knowledge) else ()

    def table(self, relation: Relation, selected: tuple[str, ...], epoch: int) -> RelationTable:
        """The table of a relation as of an epoch of the knowledge."""
        return self._kept_table(relation, selected).table(self.knowledge, epoch)

    def renew(self) -> None:
        """Follows the changes of the knowledge since it was last looked at; tables, when they are asked."""
        self._version = self.knowledge.version
        self._epochs = self.knowledge.epochs
        for lookup in self._lookups.values():
            lookup.answers.clear()
        self._entities.clear()

    def _kept_table(self, relation: Relation, selected: tuple[str, ...]) -> KeptTable:
        found = self._kept.get((relation, selected))
        if found is None:
            found = self._kept[relation, selected] = kept_table(relation, selected, self.knowledge)
        return found

    def _looked_up(self, lookup: _Lookup, binding: Mapping[str, Event]) -> frozenset[Row]:
        epoch = bisect_right(self._epochs, max((each.ts for each in binding.values()), default=0))
        table = lookup.kept.table(self.knowledge, epoch)
        found: set[Row] = set()
        choices = [tuple(self._candidates(root, binding, epoch)) for root in lookup.relation.roots]
        for roots in product(*choices):
            if None in roots:
                return _NOTHING
            found |= lookup.rows(table, roots)  # type: ignore[arg-type]
        return frozenset(found)

    def _candidates(self, root: Root, binding: Mapping[str, Event], epoch: int) -> Iterator[Term | None]:
        """The values of a root property of an event; None for an entity that nobody knows."""
        event = binding[root.variable]
        stream = self.catalog.streams[event.stream]
        for name, literals in root.literals:
            for attribute in literals if name == event.stream else ():
                literal = literal_in(event, stream, attribute)
                if literal is not None:
                    yield literal
        for attribute, reads in self._entities_of(root, stream):
            values = tuple(map(event.value, reads))
            if None not in values:
                found = self._entity(event, stream, attribute, values, epoch)
                # The event has it under every name that it is known by.
                yield from (None,) if found is None else self.knowledge.in_epoch(epoch).same_as(found)

    def _entities_of(self, root: Root, stream: Stream) -> list[tuple[str, tuple[str, ...]]]:
        """The attributes that name the value of a root on a stream, each with those that decide it."""
        known = self._named.get((id(root), stream.name))
        if known is None:
            found = [(each, stream.reads(each)) for each in dict(root.entities).get(stream.name, ())]
            known = self._named[id(root), stream.name] = root, found
        return known[1]

    def _entity(
        self, event: Event, stream: Stream, attribute: str, values: tuple[Value, ...], epoch: int
    ) -> Term | None:
        key = event.stream, attribute, values, epoch
        if key not in self._entities:
            if len(self._entities) >= _MOST_VALUES:
                self._entities.clear()
            self._entities[key] = entity_in(event, stream, attribute, self.knowledge.in_epoch(epoch))
        found = self._entities[key]
        if found is None and self.unknown is not None and (event, attribute) not in self._counted:
            if len(self._counted) >= _MOST_VALUES:
                self._counted.clear()  # an event that old is asked about no more
            self._counted.add((event, attribute))
            self.unknown.add(event.stream, attribute, " ".join(map(str, values)))
        return found
