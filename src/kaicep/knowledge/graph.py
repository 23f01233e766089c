"""Triples of small integers under three plain dictionaries, and a thin layer over them.

Terms are numbered once (`Terms`), because hashing an int is many times cheaper than hashing a term,
and because dictionaries of ints iterate in the order of insertion: everything here is deterministic.
The two low bits of a number tell what kind of term it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple

__all__ = ["BLANK", "IRI", "LITERAL", "Facts", "Graph", "Ids", "Known", "Layer", "Terms", "match"]

Ids = tuple[int, int, int]
"""A triple of numbers."""

IRI, LITERAL, BLANK = 0, 1, 2
_KINDS: dict[type, int] = {Iri: IRI, Literal: LITERAL, Blank: BLANK}
_NOTHING: dict[int, None] = {}
_NO_PAIRS: dict[int, dict[int, None]] = {}


class TermNumbers(Protocol):
    """Terms that have numbers, and get no new ones."""

    def __len__(self) -> int: ...

    def known(self, term: Term) -> int | None:
        """The number of a term, or None where it has none."""
        ...

    def term(self, number: int) -> Term:
        """The term of a number."""
        ...


class Terms:
    """The numbers of terms. With a `base`, new terms get numbers of their own and the base stays as it is.

    >>> terms = Terms()
    >>> terms.term(terms.number(Iri("urn:a")))
    Iri(value='urn:a')
    """

    def __init__(self, base: TermNumbers | None = None) -> None:
        self._base = base
        self._first = len(base) if base is not None else 0
        self._numbers: dict[Term, int] = {}
        self._terms: list[Term] = []

    def __getstate__(self) -> tuple[TermNumbers | None, list[Term]]:
        return self._base, self._terms

    def __setstate__(self, state: tuple[TermNumbers | None, list[Term]]) -> None:
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


class Known(Protocol):
    """What one may ask of a set of triples."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Ids]: ...

    def has(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is there."""
        ...

    def mentions(self, term: int) -> bool:
        """Whether the term is the subject or the object of a triple."""
        ...

    def uses(self, p: int) -> bool:
        """Whether the term is the predicate of a triple."""
        ...

    def objects(self, s: int, p: int) -> Collection[int]:
        """All `o` with (s, p, o)."""
        ...

    def subjects(self, p: int, o: int) -> Collection[int]:
        """All `s` with (s, p, o)."""
        ...

    def pairs(self, p: int) -> Iterator[tuple[int, int]]:
        """All (s, o) with (s, p, o)."""
        ...

    def about(self, s: int) -> Iterator[tuple[int, int]]:
        """All (p, o) with (s, p, o)."""
        ...

    def towards(self, o: int) -> Iterator[tuple[int, int]]:
        """All (s, p) with (s, p, o)."""
        ...

    def between(self, s: int, o: int) -> Iterator[int]:
        """All `p` with (s, p, o)."""
        ...

    def steps_to(self, p: int, o: int) -> Collection[int]:
        """All `s` with a step (s, p, o), see `add_step`."""
        ...

    def is_step(self, s: int, p: int, o: int) -> bool:
        """Whether `add_step` was said of the triple."""
        ...

    def is_transitive(self, p: int) -> bool:
        """Whether `add_transitive` was said of the property."""
        ...


class Facts(Known, Protocol):
    """What the rules do with a set of triples."""

    def add(self, s: int, p: int, o: int) -> bool:
        """Put the triple in; False where it was there."""
        ...

    def add_step(self, s: int, p: int, o: int) -> None:
        """Note that the triple of a transitive property is there by itself, not by transitivity."""
        ...

    def add_transitive(self, p: int) -> None:
        """Say that the property is transitive."""
        ...


class Graph:
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
        """All `s` with a step (s, p, o)."""
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
        """Note a step of a transitive property."""
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

    def __init__(self, base: Known, own: Graph | None = None) -> None:
        self._base = base
        self.own = Graph() if own is None else own

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


def match(
    graph: Known, terms: Terms, subject: Term | None, predicate: Term | None, object: Term | None
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
