"""The knowledge base: the statements of the files, and everything that follows from them."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from typing import Any

from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.knowledge.closure import Change, Closure, Journal, lookup
from kaicep.knowledge.graph import Ids, Known, Layer, NamedGraph, TermTable, TripleIndex, match
from kaicep.knowledge.kept import Kept, find, keep, key_of
from kaicep.knowledge.loading import (
    ALWAYS,
    DEFAULT,
    NEVER,
    VALID_FROM,
    VALID_TO,
    InGraphs,
    Said,
    Stated,
    TextReader,
    Validity,
    boundaries,
    everywhere,
    files_of,
    graph_validity,
    holds_at,
    intersection,
    minus,
    odd_validity,
    read_bytes,
    since,
    starts,
    stated,
    union,
)
from kaicep.knowledge.reasoning import GIVEN, LEVELS, Derivation, Rule, close, contradictions, entails
from kaicep.plan import sparql
from kaicep.plan.catalog import QUDT, Unit, Vocabulary
from kaicep.plan.events import html_table
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Literal, Term, Triple, Variable, n_triples
from kaicep.plan.types import Value
from kaicep.plan.values import NUMERIC_TYPES, native, normalise

# ----------------------------------------------------------------------------------------------------------
# The names of a knowledge base: which of them are classes, and which are properties.

TYPE = Iri(RDF + "type")
"""`rdf:type`."""

_ABOUT_PROPERTIES = (RDFS + "subPropertyOf", OWL + "equivalentProperty", OWL + "inverseOf")
_ABOUT_CLASSES = (RDFS + "subClassOf", OWL + "equivalentClass", OWL + "disjointWith")
_FROM_PROPERTY_TO_CLASS = (RDFS + "domain", RDFS + "range")
_CLASSES = (RDFS + "Class", OWL + "Class")
_PROPERTIES = (
    RDF + "Property",
    *(OWL + kind + "Property" for kind in ("Object", "Datatype", "Annotation", "Transitive", "Symmetric")),
    *(OWL + kind + "Property" for kind in ("Asymmetric", "Functional", "InverseFunctional")),
)


@dataclass(frozen=True)
class Words:
    """The properties and the classes that are used or declared."""

    properties: frozenset[Iri]
    classes: frozenset[Iri]


def words(triples: Iterable[Ids], terms: TermTable) -> Words:
    """The words of some triples.

    >>> terms = TermTable()
    >>> found = words([terms.ids((Iri("urn:r1"), TYPE, Iri("urn:Room")))], terms)
    >>> [each.local for each in found.properties], [each.local for each in found.classes]
    (['type'], ['Room'])
    """
    number = terms.known(TYPE)
    about_properties, about_classes = _numbers(_ABOUT_PROPERTIES, terms), _numbers(_ABOUT_CLASSES, terms)
    between = _numbers(_FROM_PROPERTY_TO_CLASS, terms)
    kinds_of_property, kinds_of_class = _numbers(_PROPERTIES, terms), _numbers(_CLASSES, terms)
    properties: set[int] = set()
    classes: set[int] = set()
    for s, p, o in triples:
        properties.add(p)
        if p == number:
            classes.add(o)
            if o in kinds_of_class:
                classes.add(s)
            elif o in kinds_of_property:
                properties.add(s)
        elif p in about_classes:
            classes.update((s, o))
        elif p in about_properties:
            properties.update((s, o))
        elif p in between:
            properties.add(s)
            classes.add(o)
    return Words(_names(properties, terms), _names(classes, terms))


def _numbers(names: Iterable[str], terms: TermTable) -> frozenset[int | None]:
    return frozenset(terms.known(Iri(each)) for each in names) - {None}


def _names(numbers: Iterable[int], terms: TermTable) -> frozenset[Iri]:
    return frozenset(term for term in map(terms.term, numbers) if isinstance(term, Iri))


# ----------------------------------------------------------------------------------------------------------
# The knowledge base: the statements of the files, and everything that follows from them.

_SAME = Iri(OWL + "sameAs")
_NARROWER_PROPERTY = Iri(RDFS + "subPropertyOf")
_NARROWER_CLASS = Iri(RDFS + "subClassOf")
_SAME_PROPERTY = Iri(OWL + "equivalentProperty")
_SAME_CLASS = Iri(OWL + "equivalentClass")
_VOCABULARY = (_SAME, _NARROWER_PROPERTY, _NARROWER_CLASS, _SAME_PROPERTY, _SAME_CLASS)
_LOG = logging.getLogger("kaicep.knowledge")
_MOST_VIEWS = 32
# Less than this (bytes, statements) is read and closed about as quickly as it is found in the cache.
_LARGE = 100_000
_MANY = 2_000
_MOST_CHANGES = 32


@dataclass(frozen=True)
class Reason:
    """Why a triple holds: the rule that gave it, and the triples that the rule gave it from.

    The rule is `asserted` where the triple was said as it is.
    """

    rule: str
    premises: tuple[Triple, ...]


class Knowledge(Vocabulary):
    """Triples with everything that follows from them, kept up to date after every update.

    >>> knowledge = Knowledge.parse('''
    ...     @prefix : <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    ...     :Office rdfs:subClassOf :Room . :r1 a :Office .''')
    >>> knowledge.asserted, len(knowledge)
    (2, 3)
    >>> [subject.local for subject, _, _ in knowledge.match(None, None, Iri("urn:x:Room"))]
    ['Office', 'r1']

    Its methods answer with what always holds. Use `at` to see the statements that hold only for a time
    (see `validity`), with everything that follows from them at that instant.

    `version` is 0 after loading and grows by one with every update that changes anything. `warnings`
    are about the files, `contradictions` about what follows from them; neither stops anything. `seconds` is
    the time that loading and reasoning took. An update holds `lock`: if you read for longer than a moment in
    another thread, hold it too.
    """

    def __init__(self, reader: TextReader, texts: Sequence[Said], reasoning: str, started: float) -> None:
        terms = reader.terms
        found = stated(texts, terms)
        closure = Closure(terms, dict(found.held), reasoning)
        self._begin(reader, closure, dict(found.placed), tuple(odd_validity(texts, terms)), started)

    def _begin(
        self,
        reader: TextReader,
        closure: Closure,
        placed: dict[Ids, InGraphs],
        odd: tuple[Diagnostic, ...],
        started: float,
    ) -> None:
        self.reasoning = closure.reasoning
        self.version = 0
        self.lock = RLock()
        self._reader = reader
        self._terms = reader.terms
        self._closure = closure
        self._placed = placed
        self._odd = odd
        self._near: dict[tuple[Iri, Iri, bool], frozenset[Iri]] = {}
        self._by_value: dict[Iri | sparql.Path, dict[tuple[str, Value], tuple[Term, ...]]] = {}
        self._views: dict[int, _View] = {}
        self._graphs: dict[Term, NamedGraph] | None = None
        self._changes: deque[Change] = deque(maxlen=_MOST_CHANGES)
        self.contradictions  # noqa: B018 - found now, as part of loading
        self.seconds = time.perf_counter() - started
        sizes = self.asserted, self.closed, self.reasoning, self.seconds
        _LOG.info("%d statements, %d with what follows under %s, in %.2f s", *sizes)

    @classmethod
    def load(cls, *paths: str | Path, reasoning: str = "rdfs") -> Knowledge:
        """The knowledge in these files. A folder stands for all files in it."""
        check_level(reasoning)
        started = time.perf_counter()
        texts = {path: read_bytes(path) for path in files_of(paths)}
        return cls.of_texts(texts, reasoning, started)[0]

    @classmethod
    def of_texts(
        cls, texts: Mapping[Path, bytes], reasoning: str, started: float
    ) -> tuple[Knowledge, Kept | tuple[Said, ...]]:
        """The knowledge of the contents of files, and what each says; or what an earlier run kept of them."""
        key = key_of([(str(path), data) for path, data in texts.items()], reasoning)
        kept = find(key) if sum(map(len, texts.values())) >= _LARGE else None
        if kept is not None:
            return cls._of_kept(kept, reasoning, started), kept
        reader = TextReader(TermTable())
        said = tuple(reader.content(path, data) for path, data in texts.items())
        made = cls(reader, said, reasoning, started)
        made._keep(key, said)
        return made, said

    @classmethod
    def _of_kept(cls, kept: Kept, reasoning: str, started: float) -> Knowledge:
        """What was loaded from the same texts in an earlier run."""
        made = cls.__new__(cls)
        reader = TextReader(TermTable(kept.terms), kept.prefixes, sum(map(len, kept.blanks)))
        made.__dict__["contradictions"] = kept.contradictions
        closure = Closure.of_kept(reader.terms, kept, reasoning)
        made._begin(reader, closure, dict(kept.placed), kept.odd, started)
        return made

    def _keep(self, key: str, said: Sequence[Said]) -> None:
        """Keep what was loaded for later runs."""
        closure, reader = self._closure, self._reader
        if isinstance(closure.graph, TripleIndex) and closure.count_always() >= _MANY:
            keep(
                key,
                closure.graph,
                self._terms,
                closure.always,
                closure.sometimes,
                self._placed,
                reader.prefixes,
                [each.blanks for each in said],
                self._odd,
                self.contradictions,
            )

    @classmethod
    def parse(cls, text: str, format: str = "ttl", reasoning: str = "rdfs") -> Knowledge:
        """The knowledge of a text; the format is named like a file's suffix."""
        check_level(reasoning)
        started = time.perf_counter()
        reader = TextReader(TermTable())
        said = reader.text(text.encode(), format, "<knowledge>", "knowledge")
        return cls(reader, (said,), reasoning, started)

    @classmethod
    def empty(cls) -> Knowledge:
        """No knowledge at all.

        >>> len(Knowledge.empty())
        0
        """
        return cls(TextReader(TermTable()), (), "none", time.perf_counter())

    def update(
        self,
        add: str | Iterable[Triple] = (),
        remove: str | Iterable[Triple] = (),
        valid_from: int | None = None,
    ) -> Change:
        """Removes and then adds statements (triples, or a text in Turtle), and reasons again.

        >>> knowledge = Knowledge.parse("<urn:in> <http://www.w3.org/2000/01/rdf-schema#range> <urn:Room> .")
        >>> change = knowledge.update(add="<urn:s1> <urn:in> <urn:r1> .")
        >>> change.version, sorted(term.local for _, _, term in change.added)
        (1, ['Room', 'r1'])

        Added statements go to the default graph; removed ones are removed from every graph.

        Without `valid_from`, added statements always hold, and removed ones never did. With it, added
        statements hold from that instant on, and removed ones until then, so the past stays as it was.

        Removing a statement that is not stated (at those instants) changes nothing, even if it is inferred;
        the result names it in `missing`. In a text, a blank node is a new one. To name an existing one, use
        its label in a triple, as `match` gives it.
        """
        if self.whole is not self:
            raise Mistake("what held at an instant cannot be changed", hint="update the whole")
        when = ALWAYS if valid_from is None else since(valid_from)
        with self.lock:
            edit = Edit(self)
            added, removed = self._numbered(add, "add"), self._numbered(remove, "remove")
            edit.state((), removed, when, None)
            edit.state(added, (), when)
            return edit.done()

    def touched_since(self, version: int) -> frozenset[Triple] | None:
        """What appeared or disappeared, always or for a time, after that version; None: too long ago.

        >>> knowledge = Knowledge.parse("<urn:s1> <urn:in> <urn:r1> .")
        >>> change = knowledge.update(add="<urn:s2> <urn:in> <urn:r1> .")
        >>> [subject.local for subject, _, _ in knowledge.touched_since(0)], knowledge.touched_since(1)
        (['s2'], frozenset())
        """
        later = [each for each in self._changes if each.version > version]
        if len(later) != self.version - version:
            return None
        return frozenset().union(*(each.added | each.removed for each in later))

    def at(self, ts: int) -> Knowledge:
        """What holds at that instant, closed; where all statements hold always, that is all there is.

        It is to be read only, and stands until the next update.

        >>> knowledge = Knowledge.parse("<urn:s1> <urn:in> <urn:r1> .")
        >>> knowledge.at(0) is knowledge
        True
        >>> move = knowledge.update("<urn:s1> <urn:in> <urn:r2> .", "<urn:s1> <urn:in> <urn:r1> .", 100)
        >>> [[room.local for _, _, room in knowledge.at(ts).match()] for ts in (99, 100)]
        [['r1'], ['r2']]
        """
        return self.in_epoch(self.epoch(ts))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The instants at which a statement begins or ends to hold; between two, nothing changes."""
        return self._edges if self._placed else self._closure.boundaries

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        """The same with those at which a statement comes to a graph, or leaves it."""
        validities = {when for places in self._placed.values() for when in places.values()}
        return tuple(
            sorted({*self._closure.boundaries, *(edge for each in validities for edge in boundaries(each))})
        )

    def graphs(self) -> dict[Term, NamedGraph]:
        """What is stated in each named graph, always or (in a view) at its instant."""
        if self._graphs is None:
            found: dict[Term, NamedGraph] = {}
            for ids, graph in self.in_graphs():
                found.setdefault(self._terms.term(graph), NamedGraph(self._terms)).own.add(*ids)
            self._graphs = found
        return self._graphs

    def in_graphs(self, passing: bool = False) -> Iterator[tuple[Ids, int]]:
        """What is stated in named graphs, each with its graph; or only what holds there `passing`."""
        for ids, places in self._placed.items():
            for graph, when in places.items():
                if graph != DEFAULT and self._is_now(when) and not (passing and when == ALWAYS):
                    yield ids, graph

    def _is_now(self, when: Validity) -> bool:
        return when == ALWAYS

    def epoch(self, ts: int) -> int:
        """The number of the epoch of an instant: how many boundaries are not after it."""
        return bisect_right(self.epochs, ts)

    def in_epoch(self, epoch: int) -> Knowledge:
        """What holds in the epoch of that number, see `at`."""
        edges = self.epochs
        if not edges:
            return self
        found = self._views.pop(epoch, None)
        if found is None:
            found = _View(self, edges[epoch - 1] if epoch else edges[0] - 1)
            if len(self._views) >= _MOST_VIEWS:
                del self._views[next(iter(self._views))]
        self._views[epoch] = found  # the one that was asked for last stands last
        return found

    @property
    def whole(self) -> Knowledge:
        """The knowledge that this is a view of, see `at`; itself where it is none."""
        return self

    def passing(self) -> Iterator[Triple]:
        """What holds here but does not hold always: what a view has and the whole has not."""
        return iter(())

    def passes(self, property: Iri) -> bool:
        """Whether anything that holds for a time only is said with this property.

        >>> knowledge = Knowledge.parse("<urn:s1> <urn:in> <urn:r1> .")
        >>> change = knowledge.update("<urn:s1> <urn:is> <urn:broken> .", valid_from=100)
        >>> knowledge.passes(Iri("urn:is")), knowledge.passes(Iri("urn:in"))
        (True, False)
        """
        number = self._terms.known(property)
        return number is not None and self._closure.passes(number)

    def __len__(self) -> int:
        return len(self._facts)

    def __repr__(self) -> str:
        found = f"{self.asserted:,} statements, {self.closed:,} with what follows ({self.reasoning})"
        return f"<Knowledge: {found}{f', version {self.version}' if self.version else ''}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("statements", self.asserted),
            ("with what follows", self.closed),
            ("reasoning", self.reasoning),
            ("version", self.version),
            ("classes", len(self.classes() or ())),
            ("properties", len(self.properties() or ())),
        ]
        rows += [(f"prefix {name}:", iri) for name, iri in sorted(self.prefixes.items())]
        return html_table(["knowledge", ""], rows)

    @property
    def _facts(self) -> Known:
        return self._closure.graph

    @property
    def asserted(self) -> int:
        """How many triples are stated (to hold always, or, in a view, at its instant)."""
        return self._closure.count_always()

    @property
    def statements(self) -> int:
        """How many triples are stated, to hold always or for a time."""
        return self._closure.count_always() + len(self._closure.sometimes)

    @property
    def closed(self) -> int:
        """How many triples there are, including those that follow."""
        return len(self._facts)

    def _stated(self) -> Collection[Ids]:
        return self._closure.always

    def stated(self) -> Stated:
        """What is stated now, when and in which graphs; it stands until the next update."""
        return Stated(dict.fromkeys(self._closure.always, ALWAYS) | self._closure.sometimes, self._placed)

    def places(self, ids: Ids) -> InGraphs:
        """The graphs in which a triple is stated, and when it holds in each."""
        found, held = self._placed.get(ids), self._closure.stated(ids)
        return found if found is not None else {DEFAULT: held} if held else {}

    @property
    def placed(self) -> Mapping[Ids, InGraphs]:
        """The statements that stand in a named graph, and in which others."""
        return self._placed

    def by_number(self) -> tuple[Known, TermTable]:
        """All triples by numbers, and the numbers of their terms; for looking only."""
        return self._facts, self._terms

    @property
    def reader(self) -> TextReader:
        """What has read its files: it numbers terms, and knows the names of blank nodes."""
        return self._reader

    def at_any_time(self) -> tuple[Known, TermTable]:
        """All triples that hold at any time, and the numbers of their terms; for looking only."""
        return self._closure.at_any_time, self._terms

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What the reasoning goes by, with what the lists of the ontology come to."""
        return self._closure.every_rule

    def same_as(self, term: Term) -> tuple[Term, ...]:
        """The term itself, and what is known to be the same thing."""
        if self.reasoning != "owl-rl":
            return (term,)
        others = (row[2] for row in self.match(term, _SAME, None))
        return (term, *sorted((each for each in others if each != term), key=str))

    def under(self, reasoning: str) -> Knowledge:
        """The same statements under another level of reasoning, as they are now."""
        held = dict.fromkeys(self._closure.always, ALWAYS) | self._closure.sometimes
        made = Knowledge.__new__(Knowledge)
        closure = Closure(self._terms, held, reasoning)
        made._begin(self._reader, closure, dict(self._placed), self._odd, time.perf_counter())
        return made

    def match(
        self, subject: Term | None = None, predicate: Term | None = None, object: Term | None = None
    ) -> Iterator[Triple]:
        """The triples with these terms; None stands for any term."""
        return match(self._facts, self._terms, subject, predicate, object)

    def holds(self, triple: Triple) -> bool:
        """Whether the triple is stated or follows."""
        return next(self.match(*triple), None) is not None

    def knows(self, term: Term) -> bool:
        """Whether the term is the subject or the object of any triple."""
        number = self._terms.known(term)
        return number is not None and self._facts.mentions(number)

    def properties_below(self, concept: Iri) -> frozenset[Iri]:
        """The property itself and all that are narrower than or the same as it, at any reasoning."""
        return self._reached(concept, _NARROWER_PROPERTY, _SAME_PROPERTY, below=True)

    def properties_above(self, concept: Iri) -> frozenset[Iri]:
        """The property itself and all that are wider than or the same as it, at any reasoning."""
        return self._reached(concept, _NARROWER_PROPERTY, _SAME_PROPERTY, below=False)

    def classes_below(self, concept: Iri) -> frozenset[Iri]:
        """The class itself and all that are narrower than or the same as it, at any reasoning."""
        return self._reached(concept, _NARROWER_CLASS, _SAME_CLASS, below=True)

    def classes_above(self, concept: Iri) -> frozenset[Iri]:
        """The class itself and all that are wider than or the same as it, at any reasoning."""
        return self._reached(concept, _NARROWER_CLASS, _SAME_CLASS, below=False)

    def properties(self) -> frozenset[Iri] | None:
        """All properties that are used or declared at any time; None where nothing is known at all."""
        return self._words.properties or None

    def classes(self) -> frozenset[Iri] | None:
        """All classes that are used or declared at any time; None where nothing is known at all."""
        return self._words.classes if self._words.properties else None

    def unit(self, name: Iri) -> Unit | None:
        """What QUDT says of a unit; None where that is too little to convert it.

        >>> qudt = "@prefix qudt: <http://qudt.org/schema/qudt/> . <urn:K> qudt:conversionMultiplier 1.0 ."
        >>> Knowledge.parse(qudt).unit(Iri("urn:K")).multiplier
        Fraction(1, 1)
        """

        def of(word: str) -> list[Term]:
            return sorted((row[2] for row in self.match(name, Iri(QUDT + word), None)), key=str)

        def number(word: str) -> Fraction | None:
            for each in of(word):
                with suppress(ValueError):
                    if isinstance(each, Literal):
                        return Fraction(each.lexical)
            return None

        multiplier = number("conversionMultiplier")
        dimension = next(iter(of("hasDimensionVector")), None)
        return Unit(multiplier, number("conversionOffset") or Fraction(0), dimension) if multiplier else None

    @cached_property
    def _words(self) -> Words:
        return words(self.ever(), self._terms)

    @property
    def prefixes(self) -> dict[str, str]:
        """The prefixes that the files declare."""
        return dict(self.whole._reader.prefixes)

    def ever(self) -> Iterator[Ids]:
        """All triples that hold at any time, by numbers, see `by_number`."""
        return self._closure.ever()

    def _reached(self, concept: Iri, narrower: Iri, equivalent: Iri, *, below: bool) -> frozenset[Iri]:
        """What is narrower (or wider) than a concept or the same, over any number of steps."""
        key = concept, narrower, below
        if key not in self._near:
            down = (equivalent, _SAME, *((narrower,) if below else ()))
            up = (equivalent, _SAME, *(() if below else (narrower,)))
            found: dict[Term, None] = {concept: None}
            left: list[Term] = [concept]
            while left:
                each = left.pop()
                near = [row[0] for link in down for row in self.match(None, link, each)]
                near += [row[2] for link in up for row in self.match(each, link, None)]
                left += [one for one in near if one not in found]
                found.update(dict.fromkeys(near))
            self._near[key] = frozenset(one for one in found if isinstance(one, Iri))
        return self._near[key]

    def entities_by(self, property: Iri | sparql.Path, value: Term) -> tuple[Term, ...]:
        """The subjects whose property, or property path, has that value, by name.

        Literals are compared by value, whatever their numeric type or their language is.

        >>> knowledge = Knowledge.parse('<urn:s1> <urn:tag> 7 . <urn:s2> <urn:tag> "7"@en .')
        >>> knowledge.entities_by(Iri("urn:tag"), Literal("7.0", XSD + "double"))
        (Iri(value='urn:s1'),)
        """
        if property not in self._by_value:
            found: dict[tuple[str, Value], dict[Term, None]] = {}
            for subject, each in self.pairs(property):
                found.setdefault(_value_key(each), {})[subject] = None
            self._by_value[property] = {key: tuple(sorted(some, key=str)) for key, some in found.items()}
        return self._by_value[property].get(_value_key(value), ())

    def pairs(self, property: Iri | sparql.Path) -> Iterable[tuple[Term, Term]]:
        """The subjects and objects of a property or a property path."""
        if isinstance(property, Iri):
            return ((subject, each) for subject, _, each in self.match(None, property, None))
        from kaicep.knowledge.queries import select

        pattern = sparql.TriplePattern(Variable("entity"), property, Variable("value"))
        group = sparql.Group((sparql.TripleBlock((pattern,)),))
        return ((row[0], row[1]) for row in select(self, group, ("entity", "value")) if row[0] and row[1])

    def entails_with(self, triples: Iterable[Triple]) -> frozenset[Triple]:
        """The given triples, and all that follows from them and the knowledge but not without them.

        >>> knowledge = Knowledge.parse('''
        ...     @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
        ...     <urn:hasSource> rdfs:range <urn:Sensor> .''')
        >>> more = knowledge.entails_with([(Iri("urn:e1"), Iri("urn:hasSource"), Iri("urn:s1"))])
        >>> sorted(term.local for _, _, term in more)
        ['Sensor', 's1']
        """
        given = tuple(triples)
        if not self._closure.rules:
            return frozenset(given)
        terms = TermTable(self._terms)
        more = entails(self._facts, map(terms.ids, given), self._closure.program)
        return frozenset((*given, *map(terms.triple, more)))

    def why(self, triple: Triple, given: Iterable[Triple] = ()) -> Reason | None:
        """The reason for a triple of the closure of the knowledge and the given triples, if it is one.

        Following the premises of premises always ends at what was asserted.
        """
        terms = TermTable(self._terms)
        found = self._reasons
        extra = tuple(map(terms.ids, given))
        if extra:
            found = dict(found)
            close(Layer(self._facts), extra, self._closure.recording, found)
        derivation = found.get(terms.ids(triple))
        if derivation is None:
            return None
        return Reason(derivation[0], tuple(map(terms.triple, derivation[1])))

    @cached_property
    def _reasons(self) -> dict[Ids, Derivation]:
        """How each triple came about: the closure once more, with a record."""
        record: dict[Ids, Derivation] = {}
        close(TripleIndex(), self._stated(), self._closure.recording, record)
        # What was said is said, even where a rule came to it before its turn.
        record.update(dict.fromkeys(self._stated(), (GIVEN, ())))
        return record

    @cached_property
    def contradictions(self) -> tuple[Diagnostic, ...]:
        """The contradictions that the reasoning found."""
        if self.reasoning != "owl-rl":
            return ()
        return contradictions(self.match, lookup(self._stated(), self._terms))

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """Warnings about the files."""
        return (*self._odd, *self._missing_imports())

    def _missing_imports(self) -> Iterator[Diagnostic]:
        """Ontologies are never fetched: whoever wants an import gives its file too."""
        here = {row[0] for row in self.match(None, Iri(RDF + "type"), Iri(OWL + "Ontology"))}
        here |= {row[2] for row in self.match(None, Iri(OWL + "versionIRI"), None)}
        for importer, _, wanted in self.match(None, Iri(OWL + "imports"), None):
            if wanted not in here:
                yield Diagnostic(
                    f"{importer} imports {wanted}, which is not loaded",
                    hint="imports are not fetched; add its file to the knowledge",
                    severity="warning",
                )

    def _numbered(self, what: str | Iterable[Triple], verb: str) -> list[Ids]:
        if not isinstance(what, str):
            return [self._terms.ids(_checked(triple)) for triple in what]
        said = self._reader.text(what.encode(), "ttl", f"<{verb}>", "knowledge")
        if said.blanks and verb == "remove":
            message = "a text to remove has a blank node, which is none of those that are there"
            raise Mistake(message, hint="give triples, with the labels that `match` tells")
        return said.triples

    def _forget(self, changed: Iterable[Triple]) -> None:
        """Drop what was remembered and may no longer be so."""
        predicates = {each[1] for each in changed}
        for link in predicates:
            if isinstance(link, Iri):
                self._by_value.pop(link, None)
        for way in [each for each in self._by_value if isinstance(each, sparql.Path)]:
            del self._by_value[way]
        if not predicates.isdisjoint(_VOCABULARY):
            self._near.clear()
        self._views.clear()
        self._graphs = None
        self.__dict__.pop("_edges", None)
        self.__dict__.pop("_reasons", None)
        self.__dict__.pop("_words", None)
        self.__dict__.pop("contradictions", None)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is quickly made again."""
        made = ("_reasons", "_words", "lock")
        kept = {name: value for name, value in self.__dict__.items() if name not in made}
        return kept | {"_near": {}, "_by_value": {}, "_views": {}, "_graphs": None}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self.lock = RLock()


class _View(Knowledge):
    """What held at an instant: what holds always, and a layer with the rest."""

    def __init__(self, whole: Knowledge, ts: int) -> None:
        self.reasoning = whole.reasoning
        self.version = whole.version
        self.seconds = whole.seconds
        self._whole = whole
        self._ts = ts
        self._terms = whole._terms
        self._closure = whole._closure
        self._placed = whole._placed
        self._odd = whole._odd
        self._layer = whole._closure.at(ts)
        self._near = {}
        self._by_value = {}
        self._views = {}
        self._graphs = None
        self._changes = deque()

    @property
    def epochs(self) -> tuple[int, ...]:
        """None: it is one epoch."""
        return ()

    @property
    def whole(self) -> Knowledge:
        """The knowledge that this is a view of."""
        return self._whole

    def passing(self) -> Iterator[Triple]:
        """What holds at this instant but does not hold always."""
        return map(self._terms.triple, self._layer.own)

    def _is_now(self, when: Validity) -> bool:
        return holds_at(when, self._ts)

    @property
    def asserted(self) -> int:
        """How many triples are stated to hold at this instant."""
        return len(self._stated())

    @property
    def _facts(self) -> Layer:
        return self._layer

    def _stated(self) -> Collection[Ids]:
        return (*self._closure.always, *self._closure.stated_at(self._ts))

    def entities_by(self, property: Iri | sparql.Path, value: Term) -> tuple[Term, ...]:
        """The subjects whose property, or property path, has that value, by name."""
        return (
            super().entities_by(property, value)
            if isinstance(property, sparql.Path) or self._says(property)
            else self._whole.entities_by(property, value)
        )

    def _reached(self, concept: Iri, narrower: Iri, equivalent: Iri, *, below: bool) -> frozenset[Iri]:
        if any(map(self._says, (narrower, equivalent, _SAME))):
            return super()._reached(concept, narrower, equivalent, below=below)
        return self._whole._reached(concept, narrower, equivalent, below=below)

    def _says(self, property: Iri) -> bool:
        """Whether more holds with this property than always does."""
        number = self._terms.known(property)
        return number is not None and self._layer.own.uses(number)

    @cached_property
    def _reasons(self) -> dict[Ids, Derivation]:
        record = dict(self._whole._reasons)
        stated = tuple(self._closure.stated_at(self._ts))
        close(Layer(self._closure.graph), stated, self._closure.recording, record)
        record.update(dict.fromkeys(stated, (GIVEN, ())))
        return record


class Edit:
    """Changes of a knowledge base that are told as one."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self._before: Journal = {}
        self._was: dict[Ids, InGraphs] = {}
        self._missing: dict[Ids, None] = {}

    def state(
        self,
        add: Iterable[Ids],
        remove: Iterable[Ids],
        when: Validity = ALWAYS,
        graph: int | None = DEFAULT,
    ) -> None:
        """Remove statements from a graph (None: from all) and then add some to it, at these instants."""
        add, remove = tuple(add), tuple(remove)
        dated = self._dated((*add, *remove)) if graph in (DEFAULT, None) else {}
        wanted: dict[Ids, InGraphs] = {}
        for ids in remove:
            before = self.knowledge.places(ids)
            places = [graph] if graph is not None else list(before)
            left = {each: minus(before.get(each, NEVER), when) for each in places}
            wanted[ids] = {each: held for each, held in (before | left).items() if held}
            if not any(intersection(before.get(each, NEVER), when) for each in places):
                self._missing[ids] = None
        if graph is not None:
            more = when if graph == DEFAULT else intersection(when, self._validity(graph))
            for ids in add:
                before = wanted[ids] if ids in wanted else self.knowledge.places(ids)
                held = union(before.get(graph, NEVER), more)
                wanted[ids] = before | ({graph: held} if held else {})
        self.restate(wanted)
        for each, old in dated.items():
            self._date(each, old, self._validity(each))

    def restate(self, wanted: Mapping[Ids, InGraphs]) -> None:
        """State these triples in these graphs and in no others."""
        whole = self.knowledge
        before = {ids: whole.places(ids) for ids in wanted}
        changed = {ids: places for ids, places in wanted.items() if places != before[ids]}
        for ids, held in whole._closure.restate(
            {ids: everywhere(each) for ids, each in changed.items()}
        ).items():
            self._before.setdefault(ids, held)
        for ids, places in changed.items():
            self._was.setdefault(ids, before[ids])
            whole._placed.pop(ids, None)
            if not places.keys() <= {DEFAULT}:
                whole._placed[ids] = places

    def undo(self) -> None:
        """State all as it was before."""
        self.restate(dict(self._was))

    def _validity(self, graph: int) -> Validity:
        """When the statements of a graph hold, by what the default graph says now."""
        whole = self.knowledge
        links: dict[Iri, list[int]] = {}
        for link in (VALID_FROM, VALID_TO):
            said = whole.match(whole._terms.term(graph), link, None)
            numbered = [whole._terms.ids(each) for each in said]
            links[link] = [ids[2] for ids in numbered if DEFAULT in whole.places(ids)]
        return graph_validity(graph, links, whole._terms)

    def _dated(self, changed: Iterable[Ids]) -> dict[int, Validity]:
        """The graphs whose validity these statements are about, and what it is."""
        links = {self.knowledge._terms.known(each) for each in (VALID_FROM, VALID_TO)} - {None}
        return {s: self._validity(s) for s in dict.fromkeys(s for s, p, _ in changed if p in links)}

    def _date(self, graph: int, old: Validity, new: Validity) -> None:
        """Give the statements of a graph another validity."""
        wanted: dict[Ids, InGraphs] = {}
        for ids, places in self.knowledge.placed.items():
            if graph in places and old != new:
                held = union(minus(places[graph], minus(old, new)), minus(new, old))
                wanted[ids] = {each: at for each, at in (places | {graph: held}).items() if at}
        self.restate(wanted)

    def done(self) -> Change:
        """Everything that has changed."""
        whole, triple = self.knowledge, self.knowledge._terms.triple
        added: list[Triple] = []
        removed: list[Triple] = []
        first: list[int | None] = []
        for ids, before in self._before.items():
            now = whole._closure.when(ids)
            for some, more in ((added, minus(now, before)), (removed, minus(before, now))):
                if more:
                    some.append(triple(ids))
                    first.append(starts(more))
        told = {*added, *removed}
        for ids, was in self._was.items():
            graphs = {**was, DEFAULT: NEVER}, {**whole.places(ids), DEFAULT: NEVER}
            if graphs[0] != graphs[1] and triple(ids) not in told:
                added.append(triple(ids))
                removed.append(triple(ids))
                first.append(None)
        changed = any(whole.places(ids) != was for ids, was in self._was.items())
        if changed:
            whole.version += 1
            whole._forget((*added, *removed))
        known = [each for each in first if each is not None]
        change = Change(
            whole.version,
            frozenset(added),
            frozenset(removed),
            frozenset(map(triple, self._missing)),
            min(known) if first and len(known) == len(first) else None,
        )
        if changed:
            whole._changes.append(change)
        return change


def _checked(triple: Triple) -> Triple:
    """A triple that somebody gave, with its value in its normal spelling."""
    subject, predicate, value = triple
    if isinstance(subject, Literal) or not isinstance(predicate, Iri):
        raise Mistake(f"no triple: {n_triples(triple)}")
    return subject, predicate, normalise(value) if isinstance(value, Literal) else value


def check_level(reasoning: str) -> None:
    """Refuse a level of reasoning that there is not."""
    if reasoning not in LEVELS:
        raise Mistake(f"unknown reasoning {reasoning}", hint=did_you_mean(reasoning, LEVELS))


def _value_key(term: Term) -> tuple[str, Value]:
    """What two terms share that name the same value to someone who looks it up."""
    if not isinstance(term, Literal):
        return "node", str(term)
    if term.language or term.datatype == XSD + "string":
        return "text", term.lexical
    return "number" if term.datatype in NUMERIC_TYPES else term.datatype, native(term)


# ----------------------------------------------------------------------------------------------------------
# Whether two knowledge bases come from the same statements, and how one catches up with the other.
#
# The statements say what a knowledge base is; what follows from them, and the numbers of terms, do not.


def fingerprint(knowledge: Knowledge) -> str:
    """The same for all knowledge bases with these statements at these times and this reasoning.

    >>> one, two = (Knowledge.parse("<urn:a> <urn:p> <urn:b> . <urn:c> <urn:p> <urn:d> .") for _ in "12")
    >>> fingerprint(one) == fingerprint(two)
    True
    >>> change = two.update(remove="<urn:a> <urn:p> <urn:b> .")
    >>> fingerprint(one) == fingerprint(two)
    False
    """
    terms, stated = knowledge.by_number()[1], knowledge.stated()
    lines = sorted(
        f"{n_triples(terms.triple(ids))} {when}{_graphs(stated.placed.get(ids), terms)}"
        for ids, when in stated.held.items()
    )
    text = "\n".join((knowledge.reasoning, *lines))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def catch_up(knowledge: Knowledge, newer: Knowledge) -> None:
    """Lets a knowledge base state what a newer version of it states, and have its version.

    >>> old, new = (Knowledge.parse("<urn:a> <urn:p> <urn:b> .") for _ in "12")
    >>> change = new.update(add="<urn:c> <urn:p> <urn:d> .", remove="<urn:a> <urn:p> <urn:b> .")
    >>> catch_up(old, new)
    >>> [subject.local for subject, _, _ in old.match()], old.version
    (['c'], 1)
    """
    old, new, said = knowledge.by_number()[1], newer.by_number()[1], newer.stated()
    with knowledge.lock:
        held = {old.ids(new.triple(ids)): when for ids, when in said.held.items()}
        placed = {
            old.ids(new.triple(ids)): {
                each if each == DEFAULT else old.number(new.term(each)): when for each, when in places.items()
            }
            for ids, places in said.placed.items()
        }
        edit = Edit(knowledge)
        edit.restate(knowledge.stated().otherwise(Stated(held, placed)))
        edit.done()
        knowledge.version = newer.version


def _graphs(places: InGraphs | None, terms: TermTable) -> str:
    """The graphs of a statement, where it stands in others than the default graph."""
    if places is None:
        return ""
    return str(sorted(("" if each == DEFAULT else str(terms.term(each)), at) for each, at in places.items()))
