"""Triples as small integers: under three dictionaries, and joined by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from kaicep.plan.sparql import Group, TripleBlock, TriplePattern, Values
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple, TripleTerm, Variable

if TYPE_CHECKING:
    from kaicep.knowledge.kept import KeptGraph, KeptTerms

# ----------------------------------------------------------------------------------------------------------
# Triples of small integers under three plain dictionaries, and a thin layer over them.
#
# Terms are numbered once (`TermTable`), because hashing an int is many times cheaper than hashing a term,
# and because dictionaries of ints iterate in the order of insertion: everything here is deterministic. The
# two low bits of a number tell what kind of term it is.

Ids = tuple[int, int, int]
"""A triple of numbers."""

IRI, LITERAL, BLANK = 0, 1, 2
# A triple term stands where a literal may: it is no subject.
_KINDS: dict[type, int] = {Iri: IRI, Literal: LITERAL, Blank: BLANK, TripleTerm: LITERAL}
_NOTHING: dict[int, None] = {}
_NO_PAIRS: dict[int, dict[int, None]] = {}


class TermTable:
    """The numbers of terms. With a `base`, new terms get numbers of their own and the base stays as it is.

    >>> terms = TermTable()
    >>> terms.term(terms.number(Iri("urn:a")))
    Iri(value='urn:a')
    """

    def __init__(self, base: TermTable | KeptTerms | None = None) -> None:
        self._base = base
        self._first = len(base) if base is not None else 0
        self._numbers: dict[Term, int] = {}
        self._terms: list[Term] = []

    def __getstate__(self) -> tuple[TermTable | KeptTerms | None, list[Term]]:
        return self._base, self._terms

    def __setstate__(self, state: tuple[TermTable | KeptTerms | None, list[Term]]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        for term in state[1]:
            self.number(term)

    def __len__(self) -> int:
        return self._first + len(self._terms)

    def __iter__(self) -> Iterator[Term]:
        """The terms without those of the base."""
        return iter(self._terms)

    def number(self, term: Term) -> int:
        """The number of a term, which it gets now if it has none."""
        known = self.known(term)
        if known is None:
            known = len(self) << 2 | _KINDS[type(term)]
            self._numbers[term] = known
            self._terms.append(term)
        return known

    def known(self, term: Term) -> int | None:
        """The number of a term, or None where it has none."""
        found = self._base.known(term) if self._base is not None else None
        return found if found is not None else self._numbers.get(term)

    def term(self, number: int) -> Term:
        """The term of a number."""
        place = (number >> 2) - self._first
        if place < 0 and self._base is not None:
            return self._base.term(number)
        return self._terms[place]

    def terms(self, numbers: Iterable[int]) -> list[Term]:
        """The terms of many numbers."""
        if self._base is None:
            own = self._terms
            return [own[number >> 2] for number in numbers]
        return [self.term(number) for number in numbers]

    def ids(self, triple: Triple) -> Ids:
        """A triple as numbers."""
        return self.number(triple[0]), self.number(triple[1]), self.number(triple[2])

    def triple(self, ids: Ids) -> Triple:
        """A triple of numbers as terms."""
        return self.term(ids[0]), self.term(ids[1]), self.term(ids[2])


class TripleIndex:
    """A set of triples, indexed for every combination of what is known of a triple."""

    def __init__(self) -> None:
        self._spo: dict[int, dict[int, dict[int, None]]] = {}
        self._pos: dict[int, dict[int, dict[int, None]]] = {}
        self._op: dict[int, dict[int, None]] = {}
        self._steps: dict[int, dict[int, dict[int, None]]] = {}
        self._transitive: dict[int, None] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Ids]:
        for s, inner in self._spo.items():
            for p, objects in inner.items():
                for o in objects:
                    yield s, p, o

    def has(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is there."""
        return o in self._spo.get(s, _NO_PAIRS).get(p, _NOTHING)

    def mentions(self, term: int) -> bool:
        """Whether the term is the subject or the object of a triple."""
        return term in self._spo or term in self._op

    def uses(self, p: int) -> bool:
        """Whether the term is the predicate of a triple."""
        return p in self._pos

    def objects(self, s: int, p: int) -> dict[int, None]:
        """All `o` with (s, p, o)."""
        return self._spo.get(s, _NO_PAIRS).get(p, _NOTHING)

    def subjects(self, p: int, o: int) -> dict[int, None]:
        """All `s` with (s, p, o)."""
        return self._pos.get(p, _NO_PAIRS).get(o, _NOTHING)

    def pairs(self, p: int) -> Iterator[tuple[int, int]]:
        """All (s, o) with (s, p, o)."""
        for o, subjects in self._pos.get(p, _NO_PAIRS).items():
            for s in subjects:
                yield s, o

    def about(self, s: int) -> Iterator[tuple[int, int]]:
        """All (p, o) with (s, p, o)."""
        for p, objects in self._spo.get(s, _NO_PAIRS).items():
            for o in objects:
                yield p, o

    def towards(self, o: int) -> Iterator[tuple[int, int]]:
        """All (s, p) with (s, p, o)."""
        for p in self._op.get(o, _NOTHING):
            for s in self._pos[p][o]:
                yield s, p

    def between(self, s: int, o: int) -> Iterator[int]:
        """All `p` with (s, p, o): a subject has few properties, so they are simply tried."""
        for p, objects in self._spo.get(s, _NO_PAIRS).items():
            if o in objects:
                yield p

    def steps_to(self, p: int, o: int) -> dict[int, None]:
        """All `s` with a step (s, p, o), see `add_step`."""
        return self._steps.get(p, _NO_PAIRS).get(o, _NOTHING)

    def is_step(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is a step of a transitive property."""
        return s in self.steps_to(p, o)

    def steps(self, p: int) -> Iterator[Ids]:
        """All steps of a property."""
        for o, subjects in self._steps.get(p, _NO_PAIRS).items():
            for s in subjects:
                yield s, p, o

    def is_transitive(self, p: int) -> bool:
        """Whether the property is transitive."""
        return p in self._transitive

    @property
    def transitive(self) -> Collection[int]:
        """The properties that are transitive."""
        return self._transitive.keys()

    def add(self, s: int, p: int, o: int) -> bool:
        """Put the triple in; False where it was there."""
        inner = self._spo.get(s)
        if inner is None:
            inner = self._spo[s] = {}
        objects = inner.get(p)
        if objects is None:
            inner[p] = {o: None}
        elif o in objects:
            return False
        else:
            objects[o] = None
        outer = self._pos.get(p)
        if outer is None:
            outer = self._pos[p] = {}
        subjects = outer.get(o)
        if subjects is None:
            outer[o] = {s: None}
            self._op.setdefault(o, {})[p] = None
        else:
            subjects[s] = None
        self._size += 1
        return True

    def remove(self, s: int, p: int, o: int) -> None:
        """Take the triple out, and what was noted of it; it must be there."""
        _discard(self._spo, s, p, o)
        _discard(self._pos, p, o, s)
        if o not in self._pos.get(p, _NO_PAIRS):
            predicates = self._op[o]
            del predicates[p]
            if not predicates:
                del self._op[o]
        if self.is_step(s, p, o):
            _discard(self._steps, p, o, s)
        self._size -= 1

    def add_step(self, s: int, p: int, o: int) -> None:
        """Note that the triple of a transitive property is there by itself, not by transitivity."""
        self._steps.setdefault(p, {}).setdefault(o, {})[s] = None

    def add_transitive(self, p: int) -> None:
        """Say that the property is transitive."""
        self._transitive[p] = None

    def drop_transitive(self, p: int) -> None:
        """Take back that the property is transitive."""
        self._transitive.pop(p, None)
        self._steps.pop(p, None)


class Layer:
    """A few triples over a graph that stays as it is: what is seen is both together.

    No triple may be in both, which `add` sees to.
    """

    def __init__(self, base: Known, own: TripleIndex | None = None) -> None:
        self._base = base
        self.own = TripleIndex() if own is None else own

    def __len__(self) -> int:
        return len(self._base) + len(self.own)

    def __iter__(self) -> Iterator[Ids]:
        yield from self._base
        yield from self.own

    def has(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is there."""
        return self._base.has(s, p, o) or self.own.has(s, p, o)

    def mentions(self, term: int) -> bool:
        """Whether the term is the subject or the object of a triple."""
        return self._base.mentions(term) or self.own.mentions(term)

    def uses(self, p: int) -> bool:
        """Whether the term is the predicate of a triple."""
        return self._base.uses(p) or self.own.uses(p)

    def objects(self, s: int, p: int) -> Collection[int]:
        """All `o` with (s, p, o)."""
        return _both(self._base.objects(s, p), self.own.objects(s, p))

    def subjects(self, p: int, o: int) -> Collection[int]:
        """All `s` with (s, p, o)."""
        return _both(self._base.subjects(p, o), self.own.subjects(p, o))

    def pairs(self, p: int) -> Iterator[tuple[int, int]]:
        """All (s, o) with (s, p, o)."""
        yield from self._base.pairs(p)
        yield from self.own.pairs(p)

    def about(self, s: int) -> Iterator[tuple[int, int]]:
        """All (p, o) with (s, p, o)."""
        yield from self._base.about(s)
        yield from self.own.about(s)

    def towards(self, o: int) -> Iterator[tuple[int, int]]:
        """All (s, p) with (s, p, o)."""
        yield from self._base.towards(o)
        yield from self.own.towards(o)

    def between(self, s: int, o: int) -> Iterator[int]:
        """All `p` with (s, p, o)."""
        yield from self._base.between(s, o)
        yield from self.own.between(s, o)

    def steps_to(self, p: int, o: int) -> Collection[int]:
        """All `s` with a step (s, p, o)."""
        return _both(self._base.steps_to(p, o), self.own.steps_to(p, o))

    def is_step(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is a step of a transitive property."""
        return self._base.is_step(s, p, o) or self.own.is_step(s, p, o)

    def is_transitive(self, p: int) -> bool:
        """Whether the property is transitive."""
        return self._base.is_transitive(p) or self.own.is_transitive(p)

    def add(self, s: int, p: int, o: int) -> bool:
        """Put the triple in; False where it was there, above or below."""
        return not self._base.has(s, p, o) and self.own.add(s, p, o)

    def add_step(self, s: int, p: int, o: int) -> None:
        """Note a step of a transitive property."""
        self.own.add_step(s, p, o)

    def add_transitive(self, p: int) -> None:
        """Say that the property is transitive."""
        self.own.add_transitive(p)


RuleFacts = TripleIndex | Layer
"""Triples that rules add to."""
Known: TypeAlias = "TripleIndex | Layer | KeptGraph"
"""Triples that can be asked."""


class NamedGraph:
    """What is stated in a named graph."""

    def __init__(self, terms: TermTable) -> None:
        self.own = TripleIndex()
        self._terms = terms

    def match(self, s: Term | None, p: Term | None, o: Term | None) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        return match(self.own, self._terms, s, p, o)


def match(
    graph: Known, terms: TermTable, subject: Term | None, predicate: Term | None, object: Term | None
) -> Iterator[Triple]:
    """The triples with these terms at these places, None standing for any."""
    numbers: list[int | None] = []
    for each in (subject, predicate, object):
        number = None if each is None else terms.known(each)
        if number is None and each is not None:
            return
        numbers.append(number)
    for ids in _like(graph, *numbers):
        yield terms.triple(ids)


def _like(graph: Known, s: int | None, p: int | None, o: int | None) -> Iterable[Ids]:
    if s is not None and p is not None:
        if o is not None:
            return [(s, p, o)] if graph.has(s, p, o) else []
        return ((s, p, each) for each in graph.objects(s, p))
    if p is not None:
        if o is not None:
            return ((each, p, o) for each in graph.subjects(p, o))
        return ((one, p, other) for one, other in graph.pairs(p))
    if s is not None:
        if o is not None:
            return ((s, each, o) for each in graph.between(s, o))
        return ((s, one, other) for one, other in graph.about(s))
    if o is not None:
        return ((one, other, o) for one, other in graph.towards(o))
    return graph


def _both(below: Collection[int], above: dict[int, None]) -> Collection[int]:
    if not above:
        return below
    return (*below, *above) if below else above


def _discard(index: dict[int, dict[int, dict[int, None]]], first: int, second: int, third: int) -> None:
    inner = index[first]
    last = inner[second]
    del last[third]
    if not last:
        del inner[second]
        if not inner:
            del index[first]


# ----------------------------------------------------------------------------------------------------------
# Plain triple patterns, answered from the closure itself: one join after the other, all rows at a time.
#
# Most of what is left of a PATH is no more than that, and the closure has every index that it takes. So the
# usual relation needs no second copy of the knowledge (`queries` has one for the rest of SPARQL).

Row = tuple[int, ...]

# How many rows one row is expected to become; only the order of the joins depends on it.
_FORWARD, _BACKWARD, _ANYWHERE = 2, 20, 1 << 60


@dataclass(frozen=True)
class PlainPatterns:
    """Patterns whose properties are given, and tables of values: what can be joined here."""

    patterns: tuple[TriplePattern, ...]
    tables: tuple[Values, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """All variables; each of them has a value in every solution."""
        places = (place for each in self.patterns for place in (each.subject, each.object))
        named = {place.name for place in places if isinstance(place, Variable)}
        return frozenset(named.union(*(each.variables for each in self.tables)))


def plain(group: Group) -> PlainPatterns | None:
    """The group as something that can be joined here, or None where it has more in it."""
    patterns: list[TriplePattern] = []
    tables: list[Values] = []
    for element in group.elements:
        if isinstance(element, TripleBlock) and all(
            isinstance(each.predicate, Iri) for each in element.patterns
        ):
            patterns += element.patterns
        elif isinstance(element, Values) and all(None not in row for row in element.rows):
            tables.append(element)
        else:
            return None
    return PlainPatterns(tuple(patterns), tuple(tables))


def meeting(pattern: TriplePattern, triple: Triple) -> Values | None:
    """The values that the pattern's variables have where it is met by that triple; None where it is not.

    >>> meeting(TriplePattern(Variable("s"), Iri("urn:in"), Iri("urn:r")),
    ...         (Iri("urn:s1"), Iri("urn:in"), Iri("urn:r"))).rows
    ((Iri(value='urn:s1'),),)
    """
    bound: dict[str, Term] = {}
    for place, term in zip((pattern.subject, pattern.predicate, pattern.object), triple, strict=True):
        if isinstance(place, Variable):
            if bound.setdefault(place.name, term) != term:
                return None
        elif place != term:
            return None
    return Values(tuple(bound), (tuple(bound.values()),))


def solve(
    asked: PlainPatterns, facts: Known, known: TermTable, names: Sequence[str]
) -> list[tuple[Term, ...]]:
    """The distinct values of these variables, each of which must be one of `asked.variables`."""
    rows, terms = solve_numbers(asked, facts, known, names)
    if not rows or not names:
        return [()] * bool(rows)
    return list(zip(*(terms.terms(column) for column in zip(*rows, strict=True)), strict=True))


def solve_numbers(
    asked: PlainPatterns, facts: Known, known: TermTable, names: Sequence[str]
) -> tuple[Collection[Row], TermTable]:
    """The same by numbers, and the terms that these stand for."""
    # A table of values may have terms that nobody knows.
    terms = TermTable(known) if asked.tables else known
    if not all(_is_known(each, terms) for each in asked.patterns):
        return [], terms
    steps = [_step(each, terms) for each in asked.patterns]
    columns = list(dict.fromkeys(place for step in steps for place in step.places if isinstance(place, int)))
    rows: Collection[Row] = [tuple(columns)]
    at: dict[int | str, int] = {constant: index for index, constant in enumerate(columns)}
    for table in asked.tables:
        rows = list(_with_table(rows, at, table, terms))
    while steps and rows:
        step = min(steps, key=lambda each: _growth(each, at, facts))
        steps.remove(step)
        rows = _joined(rows, at, step, facts)
        needed = {place for each in steps for place in each.places} | set(names)
        if steps and not needed.issuperset(at):
            kept = [each for each in at if each in needed]
            rows, at = _only(rows, at, kept), {each: index for index, each in enumerate(kept)}
    return (_only(rows, at, names) if rows else []), terms


@dataclass(frozen=True)
class _PatternStep:
    """A pattern by numbers; a variable is its name."""

    subject: int | str
    predicate: int
    object: int | str

    @property
    def places(self) -> tuple[int | str, int | str]:
        return self.subject, self.object


def _is_known(pattern: TriplePattern, terms: TermTable) -> bool:
    """Whether all that the pattern names occurs anywhere."""
    places = (pattern.subject, pattern.predicate, pattern.object)
    return all(isinstance(each, Variable) or terms.known(each) is not None for each in places)  # type: ignore[arg-type]


def _step(pattern: TriplePattern, terms: TermTable) -> _PatternStep:
    def place(of: Term | Variable) -> int | str:
        return of.name if isinstance(of, Variable) else terms.number(of)

    assert isinstance(pattern.predicate, Iri)
    return _PatternStep(place(pattern.subject), terms.number(pattern.predicate), place(pattern.object))


def _growth(step: _PatternStep, at: dict[int | str, int], facts: Known) -> int:
    if step.subject in at:
        return 0 if step.object in at else _FORWARD
    if isinstance(step.object, int):
        return len(facts.subjects(step.predicate, step.object))
    return _BACKWARD if step.object in at else _ANYWHERE


def _joined(rows: Iterable[Row], at: dict[int | str, int], step: _PatternStep, facts: Known) -> list[Row]:
    """The rows with what the pattern adds to them; new variables get their places."""
    p, s, o = step.predicate, at.get(step.subject), at.get(step.object)
    if s is not None and o is not None:
        return [row for row in rows if facts.has(row[s], p, row[o])]
    if s is not None:
        at[step.object] = len(at)
        return [(*row, each) for row in rows for each in facts.objects(row[s], p)]
    at[step.subject] = len(at)
    if o is not None:
        return [(*row, each) for row in rows for each in facts.subjects(p, row[o])]
    if step.subject == step.object:
        same = [one for one, other in facts.pairs(p) if one == other]
        return [(*row, each) for row in rows for each in same]
    at[step.object] = len(at)
    pairs = list(facts.pairs(p))
    return pairs if rows == [()] else [(*row, *pair) for row in rows for pair in pairs]  # type: ignore[return-value]


def _with_table(
    rows: Iterable[Row], at: dict[int | str, int], table: Values, terms: TermTable
) -> Iterator[Row]:
    old = [(index, at[name]) for index, name in enumerate(table.variables) if name in at]
    new = [index for index, name in enumerate(table.variables) if name not in at]
    at.update({table.variables[index]: len(at) + place for place, index in enumerate(new)})
    values = dict.fromkeys(
        tuple(terms.number(term) for term in row if term is not None) for row in table.rows
    )
    for row in rows:
        for each in values:
            if all(each[index] == row[place] for index, place in old):
                yield (*row, *(each[index] for index in new))


def _only(rows: Iterable[Row], at: Mapping[int | str, int], wanted: Sequence[int | str]) -> Collection[Row]:
    """These columns of the rows, and every such row once."""
    places = [at[each] for each in wanted]
    if places == list(range(len(at))):
        return list(rows)  # all of them in their order: joins make no row twice
    if len(places) > 1:
        return dict.fromkeys(map(itemgetter(*places), rows))
    return dict.fromkeys(tuple([row[each] for each in places]) for row in rows)
