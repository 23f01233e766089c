"""What the graphs of a query's events can contain, whatever their values: it limits what can be compiled.

Knowledge can be asked in advance only as far as no event can change the answer. So the rules of the
reasoning are applied to an event of which only the properties and the classes are known: stand-ins take the
places of the event, of the values of its attributes, and of whatever a value may lead to. What comes out is
everything that an event may add to the closure; whatever else is asked, the knowledge alone answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from kaicep.knowledge.event_graph import HAS_TIME, own_classes
from kaicep.knowledge.graph import LITERAL, Ids, TermTable
from kaicep.knowledge.reasoning import LISTED, SCHEMA, Rule
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Stream
from kaicep.plan.sparql import Alternative, Inverse, Predicate, Repeat, Steps, TriplePattern, may_be_empty
from kaicep.plan.terms import OWL, RDF, Blank, Iri, Term, Triple, Variable

_EVENT, _VALUE, _TYPE = Iri("urn:kaicep:event:any"), Blank("any value"), Iri(RDF + "type")
_ANYTHING = Blank("any")
_SAME = Iri(OWL + "sameAs")
# Who says something with these changes what follows from everything else.
_AXIOMS = (SCHEMA - {_SAME}) | LISTED | {Iri(RDF + "first"), Iri(RDF + "rest")}
_KINDS_OF_PROPERTY = frozenset(
    Iri(f"{OWL}{kind}Property") for kind in ("Transitive", "Symmetric", "Functional", "InverseFunctional")
)


@dataclass(frozen=True)
class EventVocabulary:
    """The triples that graphs of events may add, with stand-ins for the event and for its values.

    `plain` is whether these are all. They are not where an event may make two things the same, or say
    what classes and properties mean.
    """

    triples: frozenset[Triple]
    plain: bool

    @cached_property
    def elsewhere(self) -> frozenset[Triple]:
        """What events may say of other things: of their values, and of what these lead to."""
        return frozenset(each for each in self.triples if each[0] != _EVENT)

    @cached_property
    def classes_of_values(self) -> frozenset[Term]:
        """The classes that other things may get from an event, as by the range of a property."""
        return frozenset(target for _, prop, target in self.elsewhere if prop == _TYPE)

    @cached_property
    def links(self) -> frozenset[Term]:
        """The properties, besides the class, that other things may get from an event."""
        return frozenset(prop for _, prop, _ in self.elsewhere if prop != _TYPE)

    def may_be(self, target: Iri) -> bool:
        """Whether an event may be of that class."""
        return (_EVENT, _TYPE, target) in self.triples

    def only_reads(self, property: Iri, concepts: Set[Iri], streams: Iterable[Stream]) -> bool:
        """Whether events have a property by the attributes that carry these concepts, and in no other way.

        What events of other streams read beside these is nothing to events of these streams.
        """
        read: set[Term] = set()
        prefixes = []
        for stream in streams:
            read |= {value_of(stream, name) for name, concept in stream.concepts if concept in concepts}
            read |= {
                value_of(stream, name) for name, entity in stream.entities if entity.property in concepts
            }
            prefixes.append(value_of(stream, "").label)
        found = {o for s, p, o in self.triples if s == _EVENT and p == property} - read
        return all(
            isinstance(each, Blank) and each != _ANYTHING and not each.label.startswith(tuple(prefixes))
            for each in found
        )

    def may_meet(self, pattern: TriplePattern) -> bool:
        """Whether some event's graph, rather than the knowledge, may meet a triple pattern."""
        if not isinstance(pattern.predicate, Iri):
            return self._may_step(pattern)
        return any(
            prop == pattern.predicate
            and (isinstance(pattern.subject, Variable) or subject == pattern.subject or _is_open(subject))
            and (prop != _TYPE or isinstance(pattern.object, Variable) or pattern.object == target)
            for subject, prop, target in self.triples
        )

    def _may_step(self, pattern: TriplePattern) -> bool:
        """Whether a way may lead over what an event says, or from the event to itself."""
        if isinstance(pattern.predicate, Variable):
            return True
        ends = isinstance(pattern.subject, Variable) and isinstance(pattern.object, Variable)
        if ends and may_be_empty(pattern.predicate):
            return True
        return may_step(pattern.predicate, {prop for _, prop, _ in self.triples})


def value_of(stream: Stream, attribute: str) -> Blank:
    """What stands for the values of an attribute, and for what is the same as one of them."""
    return Blank(f"any {stream.name}.{attribute}")


def _is_open(term: Term) -> bool:
    return isinstance(term, Blank) and term.label.startswith("any")


def may_step(predicate: Predicate, properties: Set[Term]) -> bool:
    """Whether a step of the way may be one of these properties, in either direction."""
    match predicate:
        case Iri():
            return predicate in properties
        case Inverse(of) | Repeat(of):
            return may_step(of, properties)
        case Steps(parts) | Alternative(parts):
            return any(may_step(each, properties) for each in parts)
    return True


def read_as(property: Iri, streams: Iterable[Stream], knowledge: Knowledge) -> frozenset[Iri]:
    """The properties of events of these streams that are read as that one, under the reasoning there is."""
    known = tuple(streams)
    carried = {each for stream in known for each in stream.carried()}
    wanted = (_EVENT, property, _VALUE)
    said = {each: [(_EVENT, above, _VALUE) for above in knowledge.properties_above(each)] for each in carried}
    return frozenset(each for each in carried if wanted in knowledge.entails_with(said[each]))


def event_vocabulary(streams: Iterable[Stream], knowledge: Knowledge) -> EventVocabulary:
    """What events of these streams can add to the knowledge.

    >>> knowledge = Knowledge.parse('''
    ...     @prefix owl: <http://www.w3.org/2002/07/owl#> .
    ...     <urn:by> owl:inverseOf <urn:reports> . <urn:a> <urn:next> <urn:b> .''', reasoning="owl-rl")
    >>> stream = Stream("s", (), concepts=(("x", Iri("urn:by")),))
    >>> sorted(prop.local for _, prop, _ in event_vocabulary([stream], knowledge).triples)
    ['by', 'hasTime']
    """
    known = tuple(dict.fromkeys(streams))
    version, answers = _VOCABULARIES.get(knowledge, (-1, {}))
    if version != knowledge.version:
        answers = {}
        _VOCABULARIES[knowledge] = knowledge.version, answers
    if known not in answers:
        possible = _Possible(knowledge)
        plain = possible.close(known)
        answers[known] = EventVocabulary(possible.triples(), plain)
    return answers[known]


# Of a version of the knowledge, by the streams: several rules ask for it, and so does every query.
_VOCABULARIES: WeakKeyDictionary[Knowledge, tuple[int, dict[tuple[Stream, ...], EventVocabulary]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True)
class _Rules:
    """Rules by numbers, and the premises that a triple may meet, by its predicate (None: by any)."""

    rules: tuple[tuple[tuple[_Pattern, ...], tuple[_Pattern, ...]], ...]
    premises: dict[int | None, list[tuple[int, int]]]


# A variable is a negative number.
_Pattern = tuple[int, int, int]
_INDEXED: WeakKeyDictionary[Knowledge, tuple[tuple[Rule, ...], _Rules]] = WeakKeyDictionary()


def _indexed(knowledge: Knowledge, terms: TermTable) -> _Rules:
    """The rules of a knowledge base, which change seldom, made ready."""
    rules = knowledge.whole.rules
    found = _INDEXED.get(knowledge.whole)
    if found is None or found[0] is not rules:
        found = _INDEXED[knowledge.whole] = rules, _by_predicate(rules, terms)
    return found[1]


def _by_predicate(rules: Iterable[Rule], terms: TermTable) -> _Rules:
    made: list[tuple[tuple[_Pattern, ...], tuple[_Pattern, ...]]] = []
    premises: dict[int | None, list[tuple[int, int]]] = {}
    for rule in rules:
        names: dict[Variable, int] = {}

        def number(term: Term | Variable, names: dict[Variable, int] = names) -> int:
            if isinstance(term, Variable):
                return names.setdefault(term, -1 - len(names))
            return terms.number(term)

        sides = [tuple((number(s), number(p), number(o)) for s, p, o in side) for side in rule.sides]
        for at, (_, p, _) in enumerate(sides[0]):
            premises.setdefault(p if p >= 0 else None, []).append((len(made), at))
        made.append((sides[0], sides[1]))
    return _Rules(tuple(made), premises)


class _Possible:
    """The rules applied to stand-ins: what may follow, for some values or other.

    A stand-in for a value meets whatever the knowledge says of anything; what a value leads to has one
    stand-in for all of it. Names of the ontology (classes, properties) stay what they are.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._facts, base = knowledge.whole.at_any_time()
        self._rules = _indexed(knowledge, base)
        self._terms = TermTable(base)
        number = self._terms.number
        self._event, self._anything = number(_EVENT), number(_ANYTHING)
        self._type, self._same = number(_TYPE), number(_SAME)
        self._axioms = frozenset(map(number, _AXIOMS))
        self._kinds = frozenset(map(number, _KINDS_OF_PROPERTY))
        self._values: set[int] = set()
        self._literals: set[int] = set()
        self._found: dict[Ids, None] = {}
        self._by_predicate: dict[int, list[Ids]] = {}

    def triples(self) -> frozenset[Triple]:
        """What may be added, with what is said of the events' literals left out, which RDF cannot say."""
        return frozenset(map(self._terms.triple, self._found))

    def close(self, streams: Sequence[Stream]) -> bool:
        """Finds everything that may follow; False where that might be anything."""
        pending = [self._terms.ids(each) for stream in streams for each in self._said(stream)]
        while pending:
            triple = pending.pop()
            if triple in self._found:
                continue
            if self._reaches_all(triple):
                return False
            self._found[triple] = None
            self._by_predicate.setdefault(triple[1], []).append(triple)
            for place in (triple[1], None):
                for rule, at in self._rules.premises.get(place, ()):
                    pending += self._fired(rule, at, triple)
        return True

    def _said(self, stream: Stream) -> Iterator[Triple]:
        """What the annotation says of an event; its literals are not things."""
        time = Blank("any time")
        self._literals.add(self._terms.number(time))
        yield _EVENT, HAS_TIME, time
        yield from own_classes(_EVENT, stream, self._knowledge)
        carried = [(name, concept, self._literals) for name, concept in stream.concepts]
        carried += [(name, entity.property, self._values) for name, entity in stream.entities]
        for name, concept, kind in carried:
            value = value_of(stream, name)
            kind.add(self._terms.number(value))
            yield from ((_EVENT, above, value) for above in self._knowledge.properties_above(concept))

    def _reaches_all(self, triple: Ids) -> bool:
        s, p, o = triple
        if p == self._type:
            return self._is_open(o) or o in self._kinds or s in self._axioms
        return p == self._same or p in self._axioms

    def _is_open(self, number: int) -> bool:
        return number in self._values or number in self._literals or number == self._anything

    def _meets(self, one: int, other: int) -> bool:
        """Whether two terms, or what they stand for, may be the same."""
        if one == other:
            return True
        if self._is_open(other):
            one, other = other, one
        if not self._is_open(one) or other == self._event:
            return False
        if self._anything in (one, other):
            return True
        is_literal = other in self._literals or (not self._is_open(other) and other & 3 == LITERAL)
        return is_literal == (one in self._literals)

    def _fired(self, rule: int, at: int, triple: Ids) -> Iterator[Ids]:
        premises, conclusions = self._rules.rules[rule]
        bound = self._bound(premises[at], triple, {})
        if bound is None:
            return
        left = tuple(each for number, each in enumerate(premises) if number != at)
        for solution in self._solutions(left, bound):
            for pattern in conclusions:
                s, p, o = (solution[each] if each < 0 else each for each in pattern)
                if self._is_news(s, p, o, solution):
                    yield s, p, o

    def _is_news(self, s: int, p: int, o: int, solution: dict[int, int]) -> bool:
        if s in self._literals or s & 3 == LITERAL:
            return False
        if p == self._same and s == o and s != self._anything:
            # One event has one value of an attribute; two events may be different ones.
            return s == self._event or (s in self._values and self._event not in solution.values())
        return not self._facts.has(s, p, o)

    def _bound(self, pattern: _Pattern, triple: Ids, bound: dict[int, int]) -> dict[int, int] | None:
        made = dict(bound)
        for place, term in zip(pattern, triple, strict=True):
            known = made.get(place) if place < 0 else place
            if known is None:
                made[place] = term
            elif not self._meets(known, term):
                return None
        return made

    def _solutions(self, premises: tuple[_Pattern, ...], bound: dict[int, int]) -> Iterator[dict[int, int]]:
        if not premises:
            yield bound
            return
        best = max(range(len(premises)), key=lambda each: self._ease(premises[each], bound))
        pattern = premises[best]
        left = premises[:best] + premises[best + 1 :]
        p = bound.get(pattern[1]) if pattern[1] < 0 else pattern[1]
        own = self._found if p is None else self._by_predicate.get(p, ())
        for triple in (*own, *self._known(pattern, p, bound)):
            more = self._bound(pattern, triple, bound)
            if more is not None:
                yield from self._solutions(left, more)

    def _ease(self, pattern: _Pattern, bound: dict[int, int]) -> tuple[bool, int, int]:
        """What is known first: the ontology, and most places."""
        known = [bound.get(each) if each < 0 else each for each in pattern]
        fixed = [each is not None and not self._is_open(each) for each in known]
        schema = pattern[1] in self._axioms and (fixed[0] or fixed[2])
        return schema, sum(fixed), sum(each is not None for each in known)

    def _known(self, pattern: _Pattern, p: int | None, bound: dict[int, int]) -> Iterable[Ids]:
        """What the knowledge has like a premise; of what is no name of the ontology, that there is any."""
        s, o = (bound.get(each) if each < 0 else each for each in (pattern[0], pattern[2]))
        if p is None:
            return [(self._anything, each, self._anything) for each in self._facts_predicates()]
        if self._event in (s, o):
            return ()
        facts, listed = self._facts, p in self._axioms or p == self._type
        s_open, o_open = s is None or self._is_open(s), o is None or self._is_open(o)
        if p == self._same and (s is None or o is None) and s_open and o_open:
            # A value stands for what is the same as it, too.
            one = s if s is not None else o if o is not None else self._anything
            return [(one, p, one)] if _any(facts.pairs(p)) else ()
        if not s_open and not o_open:
            assert s is not None
            assert o is not None
            return [(s, p, o)] if facts.has(s, p, o) else ()
        if not s_open:
            assert s is not None
            return self._ends(s, p, facts.objects(s, p), o, listed)
        if not o_open:
            assert o is not None
            subjects = facts.subjects(p, o)
            if listed and s is None and p != self._type:
                return [(each, p, o) for each in subjects]
            return [(self._anything if s is None else s, p, o)] if _any(subjects) else ()
        if listed and o is None:
            of = s if s is not None else self._anything
            return [(of, p, each) for each in dict.fromkeys(each for _, each in facts.pairs(p))]
        return [(self._or_anything(s), p, self._or_anything(o))] if _any(facts.pairs(p)) else ()

    def _ends(self, s: int, p: int, objects: Iterable[int], o: int | None, listed: bool) -> Iterable[Ids]:
        if o is None and listed:
            return [(s, p, each) for each in objects]
        if o is None:
            return [(s, p, self._anything)] if _any(objects) else ()
        return [(s, p, o)] if any(self._meets(each, o) for each in objects) else ()

    def _or_anything(self, number: int | None) -> int:
        return self._anything if number is None else number

    def _facts_predicates(self) -> Iterable[int]:
        return dict.fromkeys(p for _, p, _ in self._facts)


def _any(some: Iterable[object]) -> bool:
    return next(iter(some), None) is not None
