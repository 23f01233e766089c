"""A registered query while it runs: its settings, its operator, its sort stage, what it waits for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kaicep.hosts.routing import Gate, Routing, gate_of
from kaicep.kernel.absent import AbsentMachine
from kaicep.kernel.batches import ColumnSorter
from kaicep.kernel.columns import Matches, Strings
from kaicep.kernel.epsparql import EpOperator, Sent, pushed
from kaicep.kernel.operator import KernelOperator, Limits, Semantics
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Parts, Sorter
from kaicep.kernel.together import TogetherMachine, WindowsTogether
from kaicep.kernel.windowing import WindowMachine
from kaicep.knowledge.graph import plain
from kaicep.knowledge.relations import RuntimeSettings as PathSettings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import RULES, Rule
from kaicep.optimize.event_vocabulary import event_vocabulary
from kaicep.plan import sparql
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Match
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import ChiPlan, EpPlan, Pattern, QueryPlan, WindowAggregate, walk_objects
from kaicep.plan.sparql import Alternative, Inverse, Negated, Path, Predicate, Repeat, TriplePattern
from kaicep.plan.terms import OWL, RDF, RDFS, Iri, Term, Triple, Variable
from kaicep.plan.time import datetime_of, format_duration
from kaicep.plan.types import Type

# ----------------------------------------------------------------------------------------------------------
# How an engine works.


@dataclass(frozen=True)
class Settings:
    """How an engine works: what its operators may keep, how PATHs are decided at run time.

    `parts` are the parts of sources to wait for, by stream; part 0 of each where nothing is said. `rules` are
    those of the optimiser.
    """

    limits: Limits = Limits()
    paths: PathSettings = field(default_factory=PathSettings)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rules: Sequence[Rule] = RULES


# ----------------------------------------------------------------------------------------------------------
# What a registered query is while it runs: its plan, its operator, the sort stage that feeds it.

Meeting = tuple[Term | None, Term | None, Term | None]
"""The triples with these terms at these places, None standing for any."""

_ANY: Meeting = (None, None, None)
_MOST_NEWS = 10_000
_SAYS_NOTHING = frozenset(Iri(RDFS + each) for each in ("label", "comment", "seeAlso", "isDefinedBy"))
_EVERYTHING = frozenset((Iri(RDFS + "Resource"), Iri(OWL + "Thing")))
_SAME = frozenset(Iri(OWL + each) for each in ("sameAs", "equivalentClass", "equivalentProperty"))
_NOTHING_KNOWN = Knowledge.empty()


class News:
    """What came into the knowledge and what left it since a version, as far as queries are concerned."""

    def __init__(self, knowledge: Knowledge, version: int, epochs: tuple[int, ...]) -> None:
        touched = knowledge.touched_since(version)
        self.moved = knowledge.epochs != epochs
        """Whether there are other instants at which statements begin or end to hold."""
        self._timed = bool(epochs or knowledge.epochs)
        self._knowledge = knowledge
        self._owl = knowledge.reasoning == "owl-rl"
        self._schema = self._owl or touched is None or any(map(_is_schema, touched))
        """Whether other triples may follow from what events say."""
        self._all = touched is None or len(touched) > _MOST_NEWS or (self._schema and self._timed)
        self._meets: set[Meeting] = set()
        self._names: tuple[str, ...] = ()
        if touched is not None and not self._all:
            # Whatever is said of one name is then said of another, also by events.
            self._all = any(p in _SAME for _, p, _ in touched)
            self._meets = {each for s, p, o in touched for each in _meeting(s, p, o)}
            self._names = tuple(_come_or_gone(knowledge, touched))

    def concerns(self, asks: Asks) -> bool:
        """Whether queries may judge events otherwise than before."""
        if self._all or asks.any or (self._timed and asks.several):
            return True
        if not self._meets.isdisjoint(asks.properties if self.moved else asks.patterns):
            return True
        if not self._schema:
            return False
        said = _said_by_events(asks.streams, asks.patterns, self._knowledge)
        if said is None or said != asks.said:
            return True
        # OWL makes statements also from an event and a statement about something else.
        plainly = _said_by_events(asks.streams, asks.patterns, _NOTHING_KNOWN) if self._owl else said
        return plainly is None or not said <= plainly

    def names_for(self, asks: Asks) -> bool:
        """Whether queries may meet a name of which nothing was known before, or is any more."""
        return bool(asks.templates) and any(each.startswith(asks.templates) for each in self._names)


def _meeting(s: Term, p: Term, o: Term) -> Iterator[Meeting]:
    for subject in (s, None):
        for value in (o, None):
            yield subject, p, value
            yield subject, None, value


def _is_schema(triple: Triple) -> bool:
    """Whether a triple says something of classes or properties, from which other triples follow."""
    _, property, value = triple
    if not isinstance(property, Iri) or property in _SAYS_NOTHING:
        return False
    if property.value == RDF + "type":
        return isinstance(value, Iri) and value not in _EVERYTHING and _of_language(value)
    return _of_language(property)


def _of_language(name: Iri) -> bool:
    return name.value.startswith((RDF, RDFS, OWL))


def _come_or_gone(knowledge: Knowledge, touched: Collection[Triple]) -> Iterator[str]:
    """The things that nothing was said of before, or nothing is said of any more."""
    for term in {each for s, _, o in touched for each in (s, o) if isinstance(each, Iri)}:
        own = (*knowledge.match(term, None, None), *knowledge.match(None, None, term))
        if all(each in touched for each in own):
            yield term.value


@dataclass(frozen=True)
class Asks:
    """What of the knowledge queries depend on.

    `patterns` are met by the triples that may matter, `properties` are the same ones whatever else stands in
    them. `any` is whether every triple may. Of events whose entities have names that begin with one of the
    `templates`, it matters whether anything is known of them. `several` is whether a PATH ties events. `said`
    is what events of the `streams` may say that meets a pattern, with what follows under what is known (None:
    they may say what anything means).
    """

    patterns: frozenset[Meeting]
    properties: frozenset[Meeting]
    any: bool
    templates: tuple[str, ...]
    several: bool
    streams: tuple[Stream, ...]
    said: frozenset[Triple] | None


def _said_by_events(
    streams: tuple[Stream, ...], patterns: frozenset[Meeting], knowledge: Knowledge
) -> frozenset[Triple] | None:
    """The triples, with stand-ins for events and values, that events may add and that meet a pattern."""
    found = event_vocabulary(streams, knowledge)
    if not found.plain:
        return None
    properties, values = {p for _, p, _ in patterns}, {(p, o) for _, p, o in patterns}

    def meets(property: Term, value: Term) -> bool:
        if not isinstance(value, Iri):  # it stands for any
            return property in properties or None in properties
        return any((p, o) in values for p in (property, None) for o in (value, None))

    return frozenset(each for each in found.triples if meets(each[1], each[2]))


def _asks(
    plans: Sequence[ChiPlan], optimized: Sequence[ChiPlan], catalog: Catalog, knowledge: Knowledge
) -> Asks:
    found: set[Meeting] = set()
    templates: set[str] = set()
    for plan in plans:
        for each in walk_objects((plan.body, plan.columns)):
            if isinstance(each, TriplePattern):
                found.update(_met_by(each))
        for stream in (catalog.streams[name] for name in plan.body.streams):
            for _, entity in stream.entities:
                found.update((None, p, None) for way in entity.lookup for p in _properties(way))
                if entity.template is not None:
                    templates.add(entity.template.partition("{value}")[0])
    semantics = [each for plan in optimized for each in (*plan.body.all_semantics, *plan.body.ties)]
    for each in semantics if templates else ():
        rest = plain(each.relation.rest) if each.relation is not None else None
        roots = {root.name for root in each.relation.roots} if each.relation is not None else set()
        if rest is None or not roots <= rest.variables:
            break
    else:
        templates.clear()  # each has to meet a statement: a name of which nothing is said meets none
    properties = frozenset((None, p, None) for _, p, _ in found)
    several = any(len(each.variables) > 1 for plan in plans for each in plan.body.all_semantics)
    several = several or any(plan.body.ties for plan in plans)
    streams = tuple({name: catalog.streams[name] for plan in plans for name in plan.body.streams}.values())
    patterns = frozenset(found)
    said = _said_by_events(streams, patterns, knowledge)
    return Asks(patterns, properties, _ANY in properties, tuple(templates), several, streams, said)


def _met_by(pattern: TriplePattern) -> Iterator[Meeting]:
    """The triples that have a say in whether a pattern is met."""
    subject, value = _constant(pattern.subject), _constant(pattern.object)
    way = pattern.predicate
    if isinstance(way, Path):
        if subject is None and value is None and _may_be_empty(way):
            yield _ANY
        yield from ((None, each, None) for each in _properties(way))
    else:
        yield subject, way if isinstance(way, Iri) else None, value


def _constant(place: object) -> Term | None:
    """A name; numbers and texts may be written in several ways."""
    return place if isinstance(place, Iri) else None


def _properties(way: Predicate) -> Iterator[Iri | None]:
    """The properties of a property path; None for any."""
    for each in walk_objects(way):
        if isinstance(each, Negated | Variable):
            yield None
            return
        if isinstance(each, Iri):
            yield each


def _may_be_empty(way: Path | Iri) -> bool:
    """Whether a path leads from anything to itself."""
    if isinstance(way, Iri | Negated):
        return False
    if isinstance(way, Repeat):
        return way.least == 0 or _may_be_empty(way.of)
    if isinstance(way, Inverse):
        return _may_be_empty(way.of)
    if isinstance(way, Alternative):
        return any(map(_may_be_empty, way.parts))
    return isinstance(way, sparql.Steps) and all(map(_may_be_empty, way.parts))


class ChiSearch:
    """A registered query of chi-CEP, or several that are found in one search.

    Their plans, as resolved and as optimised, their operator, its sort stage. `version` is that of the
    knowledge which decides the PATHs of events to come.
    """

    def __init__(
        self,
        plans: Sequence[ChiPlan],
        optimized: Sequence[ChiPlan],
        operator: KernelOperator,
        sorter: ColumnSorter,
        version: int,
    ) -> None:
        self.plans = tuple(plans)
        self.optimized = tuple(optimized)
        self.operator = operator
        self.sorter = sorter
        self.version = version
        self.versioned = any(map(asks_the_knowledge, plans))
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.asks: Asks | None = None
        """What of the knowledge its plans depend on; None where nobody has asked yet."""
        self._gated: KernelOperator | None = None
        self._gate: Gate | None = None
        """What events must fulfil to matter to the operator `_gated`."""
        self.over: set[str] = set()
        """The queries that have ended; others may still read them."""
        if self.versioned and operator.passed.own is None:
            operator.passed.own = frozenset(
                condition
                for each in plans
                for chain in each.body.all_chains
                for condition in chain.conditions
            )

    def ask(self, catalog: Catalog, knowledge: Knowledge) -> None:
        """Finds out what of the knowledge its plans depend on, as it is now."""
        self.asks = _asks(self.plans, self.optimized, catalog, knowledge)

    def become(self, optimized: Sequence[ChiPlan], operator: KernelOperator) -> None:
        """Goes on by plans for what is known now, with the operator of these."""
        self.optimized, self.operator = tuple(optimized), operator

    def without(self, names: Collection[str]) -> ChiSearch:
        """The others of its queries, with its operator."""
        left = [index for index, each in enumerate(self.names) if each not in names]
        if len(left) == len(self.names):
            return self
        plans, optimized = ([some[index] for index in left] for some in (self.plans, self.optimized))
        return ChiSearch(plans, optimized, self.operator, self.sorter, self.version)

    def answers(self, released: Routing | None) -> Iterator[Matches]:
        """The matches that these events and the watermark settle, chunk by chunk."""
        if released is not None:
            if self._gated is not self.operator:
                self._gated, self._gate = self.operator, gate_of(self.operator)
            table = released.part(self._gate, self.operator)
            if len(table):
                yield from self.operator.feed(table)
        yield from self.operator.advance(self.sorter.watermark)


class TripleQueries:
    """The EP-SPARQL queries of an engine: one operator, and the sort stage that feeds it."""

    def __init__(
        self, plans: tuple[EpPlan, ...], sorter: Sorter, knowledge: Knowledge, settings: Settings
    ) -> None:
        self.plans = plans
        self.sorter = sorter
        self.settings = settings
        self.names = tuple(each.name for each in plans)
        self.text = "\n".join(each.text for each in plans)
        self.version = knowledge.version
        self.operator = self._made(knowledge)

    def without(self, names: Collection[str]) -> TripleQueries:
        """Itself: these queries stay together."""
        return self

    def _made(self, knowledge: Knowledge) -> EpOperator:
        return EpOperator(self.plans, knowledge, held=self.settings.limits.held)

    def answers(self, occurrences: Iterable[Sent]) -> list[Match]:
        """The matches that these occurrences and the watermark settle."""
        return [*self.operator.feed(occurrences), *self.operator.advance(self.sorter.watermark)]

    def renew(self, knowledge: Knowledge) -> None:
        """Lets a new version of the knowledge be read from here on; what was derived stays."""
        if self.version != knowledge.version:
            self.version = knowledge.version
            state = self.operator.snapshot()
            self.operator = self._made(knowledge)
            self.operator.restore(state)


def explained_triples(plan: EpPlan, knowledge: Knowledge) -> tuple[EpPlan, tuple[tuple[str, str], ...]]:
    """An EP-SPARQL query as it is run, and what its operators keep for how long."""
    return replace(plan, root=pushed(plan.root)), tuple(EpOperator([plan], knowledge).kept())


@dataclass(frozen=True)
class Listed:
    """Matches one by one, for whoever takes them in chunks (as `kernel.columns.Matches`)."""

    query: str
    rows: Sequence[Match]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)


def operator_of(
    plans: Sequence[ChiPlan],
    catalog: Catalog,
    semantics: Semantics,
    strings: Strings,
    limits: Limits,
    versioned: bool,
) -> KernelOperator:
    """The operator of an optimised plan, or of several that are found in one search (`kernel.together`).

    `versioned` is whether the knowledge decides anything of them, be it that the optimiser asked it already.
    """
    plan = plans[0]
    if len(plans) > 1:
        shared = TogetherMachine if isinstance(plan.body, Pattern) else WindowsTogether
        return shared(plans, catalog, semantics, strings, limits, versioned)
    windows = AbsentMachine if plan.is_absent else WindowMachine
    kind = PatternMachine if isinstance(plan.body, Pattern) else windows
    return kind(plan, catalog, semantics, strings, limits, versioned)


def asks_the_knowledge(plan: QueryPlan) -> bool:
    """Whether a query has a PATH that the knowledge decides."""
    return isinstance(plan, ChiPlan) and bool(plan.body.all_semantics or plan.body.ties)


def attribute_types(
    operator: KernelOperator, plans: Sequence[ChiPlan], catalog: Catalog
) -> dict[str, Type | None]:
    """The types of the columns that an operator reads.

    None is that of any value: of an attribute that no stream declares, or that streams have as different
    types. Where all that reads it takes it for a float64, an int64 is one too.
    """
    streams = [catalog.streams[name] for name in plans[0].body.streams]
    declared: dict[str, set[Type]] = {name: set() for name in operator.attributes}
    as_float = set[str]()
    if operator.versioned or any(map(asks_the_knowledge, plans)):
        # The plan for other knowledge may read whatever an annotation speaks of.
        for stream in streams:
            declared.update({name: set() for name in stream.graph_attributes})
    else:
        as_float = _read_as_float(plans)
    for stream in streams:
        for name, type in stream.attributes:
            if name in declared:
                declared[name].add(type)
    types: dict[str, Type | None] = {}
    for name, found in declared.items():
        numbers = name in as_float and found <= {Type.INT64, Type.FLOAT64}
        types[name] = next(iter(found)) if len(found) == 1 else Type.FLOAT64 if numbers and found else None
    return types


def _read_as_float(plans: Sequence[ChiPlan]) -> set[str]:
    """The attributes that all expressions of queries read as float64."""
    floats: set[str] = set()
    others: set[str] = set()
    for plan in plans:
        for each in walk_objects((plan.body, plan.columns)):
            if isinstance(each, Field):
                names = {name for _, some in each.sources for name in some}
                (floats if each.type is Type.FLOAT64 else others).update(names)
    return floats - others


# ----------------------------------------------------------------------------------------------------------
# What a query of an engine waits for, in words, for whoever misses its matches.


def awaited(query: ChiSearch | TripleQueries, sources: tuple[str, ...], parts: Parts) -> str | None:
    """What a query waits for; None where it has looked at all that came, and nothing is due.

    `sources` are the streams that it needs, also through the queries that it reads.
    """
    buffered = len(query.sorter)
    kept = f"; {_counted(buffered)} buffered" if buffered else ""
    silent = parts.unheard(sources)
    if silent:
        return f"the first event of {' and of '.join(silent)}{kept}"
    endless = [each for each in sources if parts.allowed(each) is None]
    if endless:
        named = ", ".join(endless)
        return f"the end of {named} (`finish`), since without a lateness any event may be late{kept}"
    slowest = parts.slowest(sources)
    if slowest is not None and buffered:
        stream, part, ts = slowest
        which = f", source partition {part}" if len(parts.numbers(stream)) > 1 else ""
        return f"events of {stream}{which} after {_when(ts)}, which holds the others back{kept}"
    for stream in sources if buffered else ():
        late = parts.allowed(stream) or 0
        ts = max(parts.part(stream, each).max_ts for each in parts.numbers(stream))
        reason = f"since they may be {format_duration(late)} late"
        return f"events of {stream} after {_when(ts + late)}, {reason}{kept}"
    return next(_due(query), None) if isinstance(query, ChiSearch) else None


def _due(query: ChiSearch) -> Iterator[str]:
    """What time alone decides: absences that are not certain yet, windows that are still open."""
    watermark = query.sorter.watermark
    if not query.operator.size or math.isinf(watermark):
        return
    for plan in query.plans:
        body = plan.body
        if isinstance(body, WindowAggregate):
            width = body.window.width if body.window.kind == "batch" else None
            due, what = width and (watermark // width + 1) * width, "the window is complete"
        else:
            due, what = body.deadline and watermark + body.deadline, "every absence so far is decided"
        if due:
            yield f"time to pass {_when(due)}, when {what}: a later event shows it, or `advance`"


def _counted(events: int) -> str:
    return "1 is" if events == 1 else f"{events:,} are"


def _when(ts: float) -> str:
    return str(datetime_of(int(ts)).replace(tzinfo=None))
