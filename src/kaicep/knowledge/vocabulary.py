"""The classes and properties of a knowledge base, for people who write queries, and the ways between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.knowledge.annotation import Annotation
from kaicep.knowledge.event_graph import HAS_TIME
from kaicep.knowledge.graph import LITERAL, Ids, TermTable
from kaicep.knowledge.loading import KAI
from kaicep.knowledge.store import TYPE, Knowledge
from kaicep.plan.catalog import WELL_KNOWN_PREFIXES, Entity
from kaicep.plan.sparql import Node, TriplePattern
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Literal, Variable
from kaicep.plan.text import iri_text, triple_text

# ----------------------------------------------------------------------------------------------------------
# The classes and properties of a knowledge base, for people who write queries.
#
# `summary` lists classes and properties as the data uses them, `concepts` what the streams carry. How one
# thing leads to another comes below.

_NARROWER = Iri(RDFS + "subClassOf")
_RANGE = Iri(RDFS + "range")
# Words that speak about words; a label is about a thing.
_STANDARD = (RDF, RDFS, OWL, XSD, KAI)
_ABOUT_THINGS = frozenset((Iri(RDFS + "label"), Iri(RDFS + "comment"), Iri(RDFS + "seeAlso")))
_NO_CLASS = "(no class)"
_MOST_ENDS = 3


def is_standard(name: Iri) -> bool:
    """Whether a name belongs to RDF, OWL or kaicep itself, and not to what the knowledge is about.

    >>> is_standard(Iri(RDFS + "subClassOf")), is_standard(Iri(RDFS + "label")), is_standard(Iri("urn:x:in"))
    (True, False, False)
    """
    return name.value.startswith(_STANDARD) and name not in _ABOUT_THINGS


# --- names -----------------------------------------------------------------------------------------


class KnowledgeNames:
    """The names of a knowledge base and its annotations as somebody writes and reads them.

    An annotation's prefix wins over a knowledge file's. `declared` are those that a query may use
    without PREFIX.
    """

    def __init__(self, knowledge: Knowledge, annotations: Iterable[Annotation] = ()) -> None:
        given = tuple(annotations)
        own = {name: iri for each in given for name, iri in each.prefixes}
        self.declared: Mapping[str, str] = {**WELL_KNOWN_PREFIXES, **own}
        self.prefixes: Mapping[str, str] = {**knowledge.prefixes, **self.declared}
        self._knowledge = knowledge
        own_words = {name for each in given for name in (*_carried(each), each.event_class) if name}
        self._annotated = own_words | {HAS_TIME}

    def text(self, name: Iri) -> str:
        """A name as a query writes it."""
        return iri_text(name, self.prefixes)

    def template(self, text: str) -> str:
        """The IRI template of an entity, shortened like a name."""
        return self.text(Iri(text.replace("{value}", "VALUE"))).replace("VALUE", "{value}")

    def iri(self, text: str) -> Iri:
        """The name that a text stands for: `prefix:name`, `<iri>` or a whole IRI.

        >>> names = KnowledgeNames(Knowledge.parse("@prefix x: <urn:x:> . x:a x:in x:b ."))
        >>> names.iri("x:a") == names.iri("<urn:x:a>") == names.iri("urn:x:a")
        True
        """
        if text.startswith("<") and text.endswith(">"):
            return Iri(text[1:-1])
        prefix, colon, local = text.partition(":")
        if colon and prefix in self.prefixes:
            return Iri(self.prefixes[prefix] + local)
        if colon and (local.startswith("//") or prefix == "urn"):
            return Iri(text)
        if colon:
            known = [f"{each}:" for each in self.prefixes]
            raise Mistake(f"unknown prefix {prefix}: in {text}", hint=did_you_mean(f"{prefix}:", known))
        same = sorted(self.text(each) for each in self._all if each.local.lower() == text.lower())
        hint = f"did you mean {' or '.join(same[:3])}?" if same else "write prefix:name, or a whole IRI"
        raise Mistake(f"{text} is not a name of the knowledge", hint=hint)

    def known(self, text: str, others: Iterable[str] = ()) -> Iri:
        """The name that a text stands for, which must be there; `others` may have been meant as well."""
        choices = tuple(others)
        if ":" not in text and (near := did_you_mean(text, choices)) and near.startswith("did you mean"):
            raise Mistake(f"{text} is neither a stream nor a name of the knowledge", hint=near)
        name = self.iri(text)
        if name not in self._all:
            space = name.value[: len(name.value) - len(name.local)]
            near_by = [self.text(each) for each in self._all if each.value.startswith(space)]
            hint = did_you_mean(text, near_by)
            raise Mistake(f"the knowledge does not have {text}", hint=hint)
        return name

    @cached_property
    def _all(self) -> frozenset[Iri]:
        terms = self._knowledge.by_number()[1]
        numbers = {number for ids in self._knowledge.ever() for number in ids if number & 3 != LITERAL}
        found = (term for term in map(terms.term, numbers) if isinstance(term, Iri))
        return frozenset(found) | self._annotated


def _carried(annotation: Annotation) -> Iterator[Iri]:
    """The properties that the attributes of a stream carry."""
    yield from (concept for _, concept in annotation.concepts)
    yield from (entity.property for _, entity in annotation.entities)


# --- summary ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassUse:
    """A class, how many instances it has, and the classes directly above it."""

    name: Iri
    instances: int
    above: tuple[Iri, ...] = ()


@dataclass(frozen=True)
class PropertyUse:
    """A property, how often it is used, and what it leads from and to, the most frequent first."""

    name: Iri
    uses: int
    subjects: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What there is. `passing` triples are those of `closed` that hold for a time only."""

    reasoning: str
    statements: int
    closed: int
    passing: int
    seconds: float
    classes: tuple[ClassUse, ...]
    properties: tuple[PropertyUse, ...]
    warnings: tuple[Diagnostic, ...]


def summary(knowledge: Knowledge, names: KnowledgeNames) -> Summary:
    """The classes and properties of everything that holds at any time, by name.

    >>> knowledge = Knowledge.parse("@prefix : <urn:x:> . :s1 a :Sensor ; :in :r1 . :r1 a :Room .")
    >>> [str(each.name.local) for each in summary(knowledge, KnowledgeNames(knowledge)).classes]
    ['Room', 'Sensor']
    """
    data = _Data(knowledge.ever(), knowledge.by_number()[1])
    closed = len(data.triples)
    return Summary(
        knowledge.reasoning,
        knowledge.statements,
        closed,
        closed - knowledge.closed,
        knowledge.seconds,
        tuple(sorted(data.class_uses(knowledge.classes() or ()), key=lambda each: names.text(each.name))),
        tuple(
            sorted(
                data.property_uses(knowledge.properties() or (), names),
                key=lambda each: names.text(each.name),
            )
        ),
        (*knowledge.warnings, *knowledge.contradictions),
    )


class _Data:
    """The triples, and the classes of every node."""

    def __init__(self, triples: Iterable[Ids], terms: TermTable) -> None:
        self.triples = list(triples)
        self.terms = terms
        self.classes: dict[int, list[int]] = {}
        self.above: dict[int, set[int]] = {}
        type_, narrower = terms.known(TYPE), terms.known(_NARROWER)
        for s, p, o in self.triples:
            if p == type_ and self.is_own(o):
                self.classes.setdefault(s, []).append(o)
            elif p == narrower and s != o and self.is_own(o):
                self.above.setdefault(s, set()).add(o)
        self.sizes = Counter(each for some in self.classes.values() for each in some)

    def number(self, name: Iri) -> int:
        """The number of a name, or one that no term has."""
        found = self.terms.known(name)
        return -1 if found is None else found

    def all_above(self, number: int) -> set[int]:
        """The class and all above it, also where the reasoning has not closed them."""
        found, left = {number}, [number]
        while left:
            more = self.above.get(left.pop(), set()) - found
            found |= more
            left += more
        return found

    def is_own(self, number: int) -> bool:
        term = self.terms.term(number)
        return isinstance(term, Iri) and not is_standard(term)

    def class_uses(self, known: Iterable[Iri]) -> Iterator[ClassUse]:
        for name in known:
            number = self.number(name)
            if not is_standard(name):
                yield ClassUse(name, self.sizes[number], tuple(self._directly_above(number)))

    def _directly_above(self, number: int) -> list[Iri]:
        """The closure has all classes above; those that lie above another of them are left out."""
        higher = {each for each in self.above.get(number, ()) if number not in self.above.get(each, ())}
        direct = [
            each
            for each in higher
            if not any(
                each in self.above.get(between, ()) and between not in self.above.get(each, ())
                for between in higher
            )
        ]
        return sorted((name for name in map(self.terms.term, direct) if isinstance(name, Iri)), key=str)

    def property_uses(self, known: Iterable[Iri], names: KnowledgeNames) -> Iterator[PropertyUse]:
        ends: dict[int, list[tuple[int, int]]] = {}
        for s, p, o in self.triples:
            ends.setdefault(p, []).append((s, o))
        for name in known:
            if is_standard(name):
                continue
            pairs = ends.get(self.number(name), [])
            subjects, objects = ({pair[side] for pair in pairs} for side in (0, 1))
            yield PropertyUse(name, len(pairs), self._cover(subjects, names), self._cover(objects, names))

    def _cover(self, nodes: set[int], names: KnowledgeNames) -> tuple[str, ...]:
        """The fewest kinds that cover the nodes: each time the one with most of them, then the narrowest."""
        kinds: dict[str, set[int]] = {}
        sizes: dict[str, int] = {}
        for node in nodes:
            for kind, size in self._kinds(node, names):
                kinds.setdefault(kind, set()).add(node)
                sizes[kind] = size
        found: list[str] = []
        left = set(nodes)
        while left and len(found) < _MOST_ENDS:
            best = min(kinds, key=lambda kind: (-len(kinds[kind] & left), sizes[kind], kind))
            found.append(best)
            left -= kinds[best]
        return (*found, "...") if left else tuple(found)

    def _kinds(self, node: int, names: KnowledgeNames) -> list[tuple[str, int]]:
        if node & 3 == LITERAL:
            term = self.terms.term(node)
            assert isinstance(term, Literal)
            return [(names.text(Iri(RDF + "langString" if term.language else term.datatype)), 0)]
        classes = [(each, self.terms.term(each)) for each in self.classes.get(node, ())]
        own = [(names.text(name), self.sizes[each]) for each, name in classes if isinstance(name, Iri)]
        return own or [(_NO_CLASS, 0)]


# --- concepts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Concepts:
    """What the streams carry.

    `carriers` says for every property which attributes `?e.property` reads, by stream; `missing` are the
    properties that the knowledge declares and neither uses nor gets from a stream, `silent` the classes of
    events that no stream has; `entities` how many entities each (stream, attribute) may name.
    """

    annotations: tuple[Annotation, ...]
    carriers: Mapping[Iri, Mapping[str, tuple[str, ...]]]
    entities: Mapping[tuple[str, str], int]
    missing: tuple[Iri, ...]
    silent: tuple[Iri, ...]


def concepts(knowledge: Knowledge, annotations: Sequence[Annotation]) -> Concepts:
    """Which attributes carry which concepts, and which concepts nobody carries."""
    data = _Data(knowledge.ever(), knowledge.by_number()[1])
    used = {data.terms.term(p) for _, p, _ in data.triples}
    carried = {each for one in annotations for each in _carried(one)}
    carriers: dict[Iri, Mapping[str, tuple[str, ...]]] = {}
    for name in (knowledge.properties() or frozenset()) | carried:
        below = knowledge.properties_below(name)
        found = {each.stream: _carriers(each, below) for each in annotations}
        if any(found.values()) and not is_standard(name):
            carriers[name] = {stream: some for stream, some in found.items() if some}
    missing = [
        each
        for each in knowledge.properties() or ()
        if each not in used and each not in carriers and each != HAS_TIME and not is_standard(each)
    ]
    return Concepts(
        tuple(annotations),
        dict(sorted(carriers.items(), key=lambda item: item[0].value)),
        {
            (each.stream, attribute): len(entities_of(entity, knowledge))
            for each in annotations
            for attribute, entity in each.entities
        },
        tuple(sorted(missing, key=str)),
        tuple(sorted(_silent(knowledge, annotations, data), key=str)),
    )


def _carriers(annotation: Annotation, below: frozenset[Iri]) -> tuple[str, ...]:
    pairs = [*annotation.concepts, *((name, entity.property) for name, entity in annotation.entities)]
    return tuple(attribute for attribute, carried in pairs if carried in below)


def _silent(knowledge: Knowledge, annotations: Iterable[Annotation], data: _Data) -> Iterator[Iri]:
    """Classes beside those of the streams that have neither a stream nor an instance."""
    carried: set[int] = set()
    for each in annotations:
        if each.event_class is not None:
            carried |= data.all_above(data.number(each.event_class))
    for name in knowledge.classes() or ():
        number = data.number(name)
        if number not in carried and not data.sizes[number] and data.all_above(number) & carried:
            yield name


def entities_of(entity: Entity, knowledge: Knowledge) -> set[int]:
    """The numbers of the things that an attribute may name, as far as the knowledge tells.

    Of those whose IRI fits the template, these are the ones in the range of its property; else those that
    have a class; else all.
    """
    facts, terms = knowledge.by_number()
    if entity.lookup:
        named = ([subject for subject, _ in knowledge.pairs(each)] for each in entity.lookup)
        things = map(terms.known, frozenset.intersection(*map(frozenset, named)))
        return {each for each in things if each is not None}
    assert entity.template is not None
    before, _, after = entity.template.partition("{value}")
    words = (knowledge.classes() or frozenset()) | (knowledge.properties() or frozenset())
    fitting: set[int] = set()
    for number in {number for s, _, o in facts for number in (s, o) if number & 3 != LITERAL}:
        term = terms.term(number)
        if isinstance(term, Iri) and term not in words and _fits(term.value, before, after):
            fitting.add(number)
    type_ = terms.known(TYPE)
    if type_ is None:
        return fitting
    ranges = [kind for _, _, kind in knowledge.match(entity.property, _RANGE, None)]
    numbers = [known for kind in ranges if (known := terms.known(kind)) is not None]
    inside = {each for each in fitting if any(facts.has(each, type_, number) for number in numbers)}
    return inside or {each for each in fitting if facts.objects(each, type_)} or fitting


def _fits(value: str, before: str, after: str) -> bool:
    return value.startswith(before) and value.endswith(after) and len(value) > len(before) + len(after)


# ----------------------------------------------------------------------------------------------------------
# Chains of properties from one thing to another, found in the data, to copy into a PATH.
#
# The most specific chain comes first: one through a hub, such as the site that everything belongs to,
# connects everything with everything, and says little. A search goes breadth first from a set of things. A
# chain is kept with the things that it reaches, so that every chain found is true of some thing, and not
# only possible by the classes of its ends.

MOST_STEPS = 6
"""How long a chain may be."""
_MOST_WAYS = 3
_MOST_CHAINS = 200  # that are followed at one depth; with more than that, the names say too little
_MANY_TO_ONE = 4
_EVENT = Variable("e")


@dataclass(frozen=True)
class Way:
    """Triple patterns that lead from one end to the other.

    They hold for `holds` of the `of` things that `start` may be; where there is no start, for every event.
    """

    patterns: tuple[TriplePattern, ...]
    start: Node | None = None
    holds: int = 0
    of: int = 0


def path_text(way: Way, names: KnowledgeNames) -> str:
    """A way as it is written in a query."""
    rows = (triple_text(each, names.prefixes).removesuffix(" .") for each in way.patterns)
    return f"PATH {{{' . '.join(rows)}}}"


def undeclared_prefixes(found: Iterable[Way], names: KnowledgeNames) -> dict[str, str]:
    """The prefixes of ways that a query has to declare, since only the knowledge files do."""
    iris = {
        term
        for way in found
        for each in way.patterns
        for term in (each.subject, each.predicate, each.object)
        if isinstance(term, Iri)
    }
    used = {names.text(each).partition(":")[0] for each in iris} - names.declared.keys()
    return {prefix: names.prefixes[prefix] for prefix in sorted(used) if not prefix.startswith("<")}


def ways(
    start: str, end: str, knowledge: Knowledge, annotations: Sequence[Annotation], names: KnowledgeNames
) -> list[Way]:
    """The shortest ways from a thing, a class or a stream to a thing, a class or a property.

    Where statements hold for a time only, all of a way holds at one instant, the latest that has any.

    >>> knowledge = Knowledge.parse('''
    ...     @prefix : <urn:x:> . :s1 a :Sensor ; :in :r1 . :r1 a :Room ; :of :EE .''')
    >>> names = KnowledgeNames(knowledge)
    >>> [path_text(each, names) for each in ways(":Sensor", ":EE", knowledge, (), names)]
    ['PATH {?sensor rdf:type :Sensor . ?sensor :in ?room . ?room :of :EE}']
    """
    stream = next((each for each in annotations if each.stream == start), None)
    source = None if stream else names.known(start, [each.stream for each in annotations])
    target = names.known(end)
    if source == target:
        raise Mistake(f"{start} and {end} are the same")
    if source is not None and source in (knowledge.properties() or ()):
        raise Mistake(f"{start} is a property", hint="a way begins with a thing, a class or a stream")
    if stream is not None and (own := _own_triple(stream, target, knowledge)):
        return [Way((own,))]
    for epoch in range(len(knowledge.epochs), -1, -1):
        search = _WaySearch(knowledge.in_epoch(epoch))
        origins = search.stream(stream) if stream else search.named(source) if source else []
        if found := search.ways(origins, search.goal(target), names):
            return found
    return []


def _own_triple(stream: Annotation, target: Iri, knowledge: Knowledge) -> TriplePattern | None:
    """The event's own triple that leads to the target: its class, or a property that it carries."""
    if stream.event_class is not None and target in knowledge.classes_above(stream.event_class):
        return TriplePattern(_EVENT, TYPE, target)
    carried = [each for _, each in stream.concepts] + [each.property for _, each in stream.entities]
    if target == HAS_TIME or any(target in knowledge.properties_above(each) for each in carried):
        return TriplePattern(_EVENT, target, Variable(_Namer(["e"]).fresh(_from_property(target.local))))
    return None


# --- the search ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Origin:
    """Where a search begins: the patterns so far, the node to go on from, and the things it may be."""

    patterns: tuple[TriplePattern, ...]
    node: Node
    things: frozenset[int]


@dataclass(frozen=True)
class _Goal:
    """What is looked for: things; the name of the only one, or a pattern about the one that is found."""

    things: frozenset[int]
    name: Iri | None = None
    last: tuple[Iri, Node] | None = None
    called: str | None = None


@dataclass(frozen=True)
class _WayStep:
    property: int
    forward: bool


@dataclass(frozen=True)
class _Chain:
    """Steps from an origin, and the things that they reach and nothing much shorter does."""

    origin: _Origin
    steps: tuple[_WayStep, ...]
    reached: frozenset[int]
    hub: bool = False  # whether it leads through something that connects all with all

    @property
    def backward(self) -> int:
        """How many steps go against the direction of their property."""
        return sum(not each.forward for each in self.steps)


class _WaySearch:
    """The ways through what holds at one instant."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.facts, self.terms = knowledge.by_number()
        self.type = self.terms.known(TYPE)
        words = (*(knowledge.classes() or ()), *(knowledge.properties() or ()))
        self.words = {self.terms.known(each) for each in words}
        self._standard: dict[int, bool] = {}

    # Ends.

    def stream(self, annotation: Annotation) -> list[_Origin]:
        """The entities of its attributes."""
        found: list[_Origin] = []
        for attribute, entity in annotation.entities:
            bare = re.sub(r"(?<=.)(_?ID|Id|_id)$", "", attribute)
            node = Variable(_Namer(["e"]).fresh(bare))
            pattern = TriplePattern(_EVENT, entity.property, node)
            found.append(_Origin((pattern,), node, frozenset(entities_of(entity, self.knowledge))))
        return found

    def named(self, name: Iri) -> list[_Origin]:
        """The instances of a class, or a single thing."""
        instances = self._instances(name)
        if not instances:
            return [_Origin((), name, self._itself(name))]
        node = Variable(_Namer().fresh(_from_class(name.local)))
        return [_Origin((TriplePattern(node, TYPE, name),), node, instances)]

    def goal(self, name: Iri) -> _Goal:
        """The instances of a class, what has a property, or a single thing."""
        if name in (self.knowledge.properties() or ()):
            number = self.terms.known(name)
            subjects = (
                frozenset(s for s, _ in self.facts.pairs(number)) if number is not None else frozenset()
            )
            return _Goal(subjects, last=(name, Variable(_from_property(name.local))))
        instances = self._instances(name)
        if instances:
            return _Goal(instances, last=(TYPE, name), called=_from_class(name.local))
        return _Goal(self._itself(name), name)

    def _instances(self, name: Iri) -> frozenset[int]:
        number = self.terms.known(name)
        if number is None or self.type is None:
            return frozenset()
        return frozenset(self.facts.subjects(self.type, number))

    def _itself(self, name: Iri) -> frozenset[int]:
        number = self.terms.known(name)
        return frozenset() if number is None else frozenset((number,))

    # Chains.

    def ways(self, origins: Sequence[_Origin], goal: _Goal, names: KnowledgeNames) -> list[Way]:
        """The ways from the origins to the goal, the best first."""
        found = [
            (chain, self._way(chain, goal))
            for chain in self._chains([each for each in origins if each.things], goal.things)
        ]
        ranked = sorted(
            found,
            key=lambda each: (
                each[0].hub,
                len(each[0].steps),
                each[0].backward,
                -each[1].holds,
                path_text(each[1], names),
            ),
        )
        return [way for _, way in ranked[:_MOST_WAYS]]

    def _chains(self, origins: Iterable[_Origin], goal: frozenset[int]) -> list[_Chain]:
        """The shortest chains, and where these are few those that are longer by one; hubs do not count."""
        level = [_Chain(each, (), each.things) for each in origins]
        depths = {thing: 0 for each in level for thing in each.reached}
        found: list[_Chain] = []
        for depth in range(MOST_STEPS + 1):
            found += [each for each in level if each.reached & goal]
            specific = [each for each in found if not each.hub]
            if len(specific) >= _MOST_WAYS or (specific and depth > len(specific[0].steps)):
                break
            open_ends = [each for each in level if not each.reached & goal]
            level = [new for each in open_ends for new in self._longer(each, depths, goal)]
            for each in level:
                for thing in () if each.hub else each.reached:
                    depths.setdefault(thing, depth + 1)
            level = sorted(level, key=lambda each: (each.hub, each.backward))[:_MOST_CHAINS]
        return found

    def _longer(self, chain: _Chain, depths: dict[int, int], goal: frozenset[int]) -> Iterator[_Chain]:
        """The chain with one more step, each way once where two properties say the same."""
        pairs: dict[_WayStep, set[tuple[int, int]]] = {}
        for thing in chain.reached:
            for step, other in self._steps(thing):
                if other not in self.words or other in goal:
                    pairs.setdefault(step, set()).add((thing, other))
        same: dict[frozenset[tuple[int, int]], _WayStep] = {}
        for step in sorted(pairs, key=self._preference):
            same.setdefault(frozenset(pairs[step]), step)
        depth = len(chain.steps) + 1
        for links, step in same.items():
            # A thing that a chain shorter by two reached is not worth a detour.
            reached = frozenset(other for _, other in links if depths.get(other, depth) >= depth - 1)
            if reached:
                hub = chain.hub or _is_hub(chain, links)
                yield _Chain(chain.origin, (*chain.steps, step), reached, hub)

    def _preference(self, step: _WayStep) -> tuple[bool, int, str]:
        """Forward, then the narrower property, then by name."""
        return (
            not step.forward,
            sum(1 for _ in self.facts.pairs(step.property)),
            str(self.terms.term(step.property)),
        )

    def _steps(self, thing: int) -> Iterator[tuple[_WayStep, int]]:
        for p, o in self.facts.about(thing):
            if o & 3 != LITERAL and not self._is_standard(p):
                yield _WayStep(p, True), o
        for s, p in self.facts.towards(thing):
            if not self._is_standard(p):
                yield _WayStep(p, False), s

    def _is_standard(self, p: int) -> bool:
        if p not in self._standard:
            term = self.terms.term(p)
            self._standard[p] = isinstance(term, Iri) and is_standard(term)
        return self._standard[p]

    # Ways.

    def _way(self, chain: _Chain, goal: _Goal) -> Way:
        origin = chain.origin
        stages = self._stages(chain, goal.things)
        namer = _Namer([each.name for each in _variables(origin.patterns)])
        patterns = list(origin.patterns)
        node = origin.node
        for at, step in enumerate(chain.steps, 1):
            following: Node
            if at == len(chain.steps) and goal.name is not None:
                following = goal.name
            else:
                called = goal.called if at == len(chain.steps) else None
                following = Variable(namer.fresh(called or self._called(step, stages[at])))
            ends = (node, following) if step.forward else (following, node)
            property = self.terms.term(step.property)
            assert isinstance(property, Iri)
            patterns.append(TriplePattern(ends[0], property, ends[1]))
            node = following
        if not chain.steps and goal.name is not None:
            # One of the things to begin with is the goal itself.
            patterns = [_renamed(each, origin.node, goal.name) for each in patterns]
        if goal.last is not None:
            property, value = goal.last
            value = Variable(namer.fresh(value.name)) if isinstance(value, Variable) else value
            patterns.append(TriplePattern(node, property, value))
        return Way(tuple(patterns), origin.node, len(stages[0]), len(origin.things))

    def _stages(self, chain: _Chain, goal: frozenset[int]) -> list[set[int]]:
        """The things at each place of the chain that are on a whole way."""
        stages = [set(chain.origin.things)]
        links: list[set[tuple[int, int]]] = []
        for step in chain.steps:
            links.append({(one, other) for one in stages[-1] for other in self._beyond(one, step)})
            stages.append({other for _, other in links[-1]})
        stages[-1] &= goal
        for at in range(len(links) - 1, -1, -1):
            stages[at] = {one for one, other in links[at] if other in stages[at + 1]}
        return stages

    def _beyond(self, thing: int, step: _WayStep) -> Iterable[int]:
        if step.forward:
            return self.facts.objects(thing, step.property)
        return self.facts.subjects(step.property, thing)

    def _called(self, step: _WayStep, things: set[int]) -> str:
        """A name for a variable: what the property speaks of (hasLocation), or the class of the things."""
        property = self.terms.term(step.property)
        assert isinstance(property, Iri)
        if step.forward and re.match("has[A-Z]", property.local):
            return _from_property(property.local)
        return self._class_of(things) or _from_property(property.local)

    def _class_of(self, things: set[int]) -> str | None:
        """The narrowest class that all of them have."""
        if self.type is None:
            return None
        number = self.type
        counts = Counter(each for thing in things for each in self.facts.objects(thing, number))
        shared = [each for each, count in counts.items() if count == len(things)]
        named = [(len(self.facts.subjects(number, each)), self.terms.term(each)) for each in shared]
        best = min(((size, name.local) for size, name in named if isinstance(name, Iri)), default=None)
        return _from_class(best[1]) if best else None


def _is_hub(chain: _Chain, links: Collection[tuple[int, int]]) -> bool:
    """Whether many things come together in few, from which a step leads on to very many."""
    ends = len({other for _, other in links})
    few = len(chain.reached) * _MANY_TO_ONE <= len(chain.origin.things)
    return few and len(links) * _MANY_TO_ONE > ends * len(chain.reached) and ends >= _MANY_TO_ONE


def _variables(patterns: Iterable[TriplePattern]) -> Iterator[Variable]:
    for each in patterns:
        yield from (end for end in (each.subject, each.object) if isinstance(end, Variable))


def _renamed(pattern: TriplePattern, node: Node, name: Iri) -> TriplePattern:
    return replace(
        pattern,
        subject=name if pattern.subject == node else pattern.subject,
        object=name if pattern.object == node else pattern.object,
    )


class _Namer:
    """Names for variables, each once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """The wanted name, as a variable may be called, with a number where it is taken."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        plain = plain if re.match("[A-Za-z]", plain) else f"x{plain}"
        name, number = plain, 2
        while name in self._taken:
            name, number = f"{plain}{number}", number + 1
        self._taken.add(name)
        return name


def _from_property(local: str) -> str:
    """A variable for what a property leads to.

    >>> _from_property("hasLocation"), _from_property("feeds")
    ('location', 'feeds')
    """
    return _from_class(re.sub("^has(?=[A-Z])", "", local))


def _from_class(local: str) -> str:
    """A variable for an instance of a class.

    >>> _from_class("MeetingRoom"), _from_class("Air_Flow_Sensor"), _from_class("VAV")
    ('meetingRoom', 'air_flow_sensor', 'vav')
    """
    return local.lower() if "_" in local or local.isupper() else local[:1].lower() + local[1:]
