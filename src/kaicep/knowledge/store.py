"""The knowledge base: what the files say, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, Mistake, did_you_mean
from kaicep.knowledge.contradictions import contradictions
from kaicep.knowledge.graph import Graph, Ids, Layer, Terms, match
from kaicep.knowledge.loading import Reader, files_of
from kaicep.knowledge.reasoning import GIVEN, Derivation, Program, close, entails, program
from kaicep.knowledge.rules import LEVELS, RULES, Rule, TermLookup, unrolled
from kaicep.plan.literals import NUMERIC_TYPES, native
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Iri, Literal, Term, Triple
from kaicep.plan.types import Value

__all__ = ["Knowledge", "Reason"]

_SAME = Iri(OWL + "sameAs")
_NARROWER_PROPERTY = Iri(RDFS + "subPropertyOf")
_NARROWER_CLASS = Iri(RDFS + "subClassOf")


@dataclass(frozen=True)
class Reason:
    """Why a triple holds: the rule that gave it, and the triples that the rule gave it from.

    The rule is `asserted` where the triple was said as it is.
    """

    rule: str
    premises: tuple[Triple, ...]


class Knowledge:
    """Triples closed under reasoning, once, when they are loaded. It never changes afterwards.

    >>> knowledge = Knowledge.parse('''
    ...     @prefix : <urn:x:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    ...     :Office rdfs:subClassOf :Room . :r1 a :Office .''')
    >>> knowledge.asserted, len(knowledge)
    (2, 3)
    >>> [subject.local for subject, _, _ in knowledge.match(None, None, Iri("urn:x:Room"))]
    ['Office', 'r1']

    `warnings` are what was odd about the files, `contradictions` what the reasoning found to clash;
    neither stops anything. `seconds` is the time that loading and closing took.
    """

    def __init__(self, terms: Terms, triples: Iterable[Ids], reasoning: str, started: float) -> None:
        self.reasoning = reasoning
        self._terms = terms
        self._asserted: dict[Ids, None] = dict.fromkeys(triples)
        self._graph = Graph()
        self._rules: tuple[Rule, ...] = RULES[reasoning]
        self.contradictions: tuple[Diagnostic, ...] = ()
        if reasoning == "owl-rl":
            said = _lookup(self._asserted, terms)
            self._rules += tuple(unrolled(said))
        close(self._graph, self._asserted, self._program)
        if reasoning == "owl-rl":
            self.contradictions = contradictions(self.match, said)
        self._below: dict[tuple[Iri, Iri, Iri], frozenset[Iri]] = {}
        self._by_value: dict[Iri, dict[tuple[str, Value], tuple[Term, ...]]] = {}
        self.warnings = tuple(self._missing_imports())
        self.seconds = time.perf_counter() - started

    @classmethod
    def load(cls, *paths: str | Path, reasoning: str = "rdfs") -> Knowledge:
        """The knowledge of these files; a folder stands for the files in it, by name."""
        _check_level(reasoning)
        started = time.perf_counter()
        terms = Terms()
        reader = Reader(terms)
        triples = [triple for path in files_of(paths) for triple in reader.file(path)]
        return cls(terms, triples, reasoning, started)

    @classmethod
    def parse(cls, text: str, format: str = "ttl", reasoning: str = "rdfs") -> Knowledge:
        """The knowledge of a text; the format is named like a file's suffix."""
        _check_level(reasoning)
        started = time.perf_counter()
        terms = Terms()
        triples = Reader(terms).text(text.encode(), format, "<knowledge>", "knowledge")
        return cls(terms, triples, reasoning, started)

    @classmethod
    def empty(cls) -> Knowledge:
        """No knowledge at all.

        >>> len(Knowledge.empty())
        0
        """
        return cls(Terms(), (), "none", time.perf_counter())

    def __len__(self) -> int:
        return len(self._graph)

    @property
    def asserted(self) -> int:
        """How many triples the files say."""
        return len(self._asserted)

    @property
    def closed(self) -> int:
        """How many triples there are with those that follow."""
        return len(self._graph)

    def match(
        self, subject: Term | None = None, predicate: Term | None = None, object: Term | None = None
    ) -> Iterator[Triple]:
        """The triples with these terms at these places, None standing for any."""
        return match(self._graph, self._terms, subject, predicate, object)

    def holds(self, triple: Triple) -> bool:
        """Whether the triple is said or follows."""
        return next(self.match(*triple), None) is not None

    def knows(self, term: Term) -> bool:
        """Whether the term is the subject or the object of any triple."""
        number = self._terms.known(term)
        return number is not None and self._graph.mentions(number)

    def properties_below(self, concept: Iri) -> frozenset[Iri]:
        """The property itself and all that are narrower than or the same as it, at any reasoning."""
        return self._closed_below(concept, _NARROWER_PROPERTY, Iri(OWL + "equivalentProperty"))

    def classes_below(self, concept: Iri) -> frozenset[Iri]:
        """The class itself and all that are narrower than or the same as it, at any reasoning."""
        return self._closed_below(concept, _NARROWER_CLASS, Iri(OWL + "equivalentClass"))

    def _closed_below(self, concept: Iri, narrower: Iri, equivalent: Iri) -> frozenset[Iri]:
        key = concept, narrower, equivalent
        if key not in self._below:
            found: dict[Term, None] = {concept: None}
            left: list[Term] = [concept]
            while left:
                each = left.pop()
                near = [
                    row[0] for link in (narrower, equivalent, _SAME) for row in self.match(None, link, each)
                ]
                near += [row[2] for link in (equivalent, _SAME) for row in self.match(each, link, None)]
                left += [one for one in near if one not in found]
                found.update(dict.fromkeys(near))
            self._below[key] = frozenset(one for one in found if isinstance(one, Iri))
        return self._below[key]

    def entities_by(self, property: Iri, value: Term) -> tuple[Term, ...]:
        """The subjects whose property has that value, by name.

        Literals are compared by value, whatever their numeric type or their language is.

        >>> knowledge = Knowledge.parse('<urn:s1> <urn:tag> 7 . <urn:s2> <urn:tag> "7"@en .')
        >>> knowledge.entities_by(Iri("urn:tag"), Literal("7.0", XSD + "double"))
        (Iri(value='urn:s1'),)
        """
        if property not in self._by_value:
            found: dict[tuple[str, Value], dict[Term, None]] = {}
            for subject, _, each in self.match(None, property, None):
                found.setdefault(_value_key(each), {})[subject] = None
            self._by_value[property] = {key: tuple(sorted(some, key=str)) for key, some in found.items()}
        return self._by_value[property].get(_value_key(value), ())

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
        if not self._rules:
            return frozenset(given)
        terms = Terms(self._terms)
        more = entails(self._graph, map(terms.ids, given), self._program)
        return frozenset((*given, *map(terms.triple, more)))

    def why(self, triple: Triple, given: Iterable[Triple] = ()) -> Reason | None:
        """The reason for a triple of the closure of the knowledge and the given triples, if it is one.

        Following the premises of premises always ends at what was asserted.
        """
        terms = Terms(self._terms)
        found = self._reasons
        extra = tuple(map(terms.ids, given))
        if extra:
            found = dict(found)
            rules = program(self._rules, self.reasoning, terms, record=True)
            close(Layer(self._graph), extra, rules, found)
        derivation = found.get(terms.ids(triple))
        if derivation is None:
            return None
        return Reason(derivation[0], tuple(map(terms.triple, derivation[1])))

    @cached_property
    def _program(self) -> Program:
        return program(self._rules, self.reasoning, self._terms)

    @cached_property
    def _reasons(self) -> dict[Ids, Derivation]:
        """How each triple came about: the closure once more, with a record."""
        record: dict[Ids, Derivation] = {}
        rules = program(self._rules, self.reasoning, self._terms, record=True)
        close(Graph(), self._asserted, rules, record)
        # What was said is said, even where a rule came to it before its turn.
        record.update(dict.fromkeys(self._asserted, (GIVEN, ())))
        return record

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

    def __getstate__(self) -> dict[str, Any]:
        """Without what is quickly made again; generated functions cannot be pickled."""
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_program", "_reasons")}
        return kept | {"_below": {}, "_by_value": {}}


def _lookup(triples: Iterable[Ids], terms: Terms) -> TermLookup:
    graph = Graph()
    for each in triples:
        graph.add(*each)
    return lambda *wanted: match(graph, terms, *wanted)


def _check_level(reasoning: str) -> None:
    if reasoning not in LEVELS:
        raise Mistake(Diagnostic(f"unknown reasoning {reasoning}", hint=did_you_mean(reasoning, LEVELS)))


def _value_key(term: Term) -> tuple[str, Value]:
    """What two terms share that name the same value to someone who looks it up."""
    if not isinstance(term, Literal):
        return "node", str(term)
    if term.language or term.datatype == XSD + "string":
        return "text", term.lexical
    return "number" if term.datatype in NUMERIC_TYPES else term.datatype, native(term)
