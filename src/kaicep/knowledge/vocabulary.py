"""The classes and properties of a knowledge base, for people who write queries.

`summary` lists classes and properties as the data uses them, `concepts` what the streams carry. How one
thing leads to another is told by `knowledge.ways`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.knowledge.annotation import Annotation
from kaicep.knowledge.event_graph import HAS_TIME
from kaicep.knowledge.graph import LITERAL, Ids, TermTable
from kaicep.knowledge.loading import KAI
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.words import TYPE
from kaicep.plan.catalog import WELL_KNOWN_PREFIXES, Entity
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Literal
from kaicep.plan.text import iri_text

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
