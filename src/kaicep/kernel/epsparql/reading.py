"""Terms as text, and the knowledge and the stream read as such.

Inside the operators a term is its N-Triples text: equal terms are equal strings, which Python compares
and hashes at no cost, a solution is written down by joining them, and a state by listing them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from kaicep.plan.rdf_text import read_triples
from kaicep.plan.terms import RDF, RDFS, Blank, Iri, Literal, Term, Triple

Fact = tuple[str, str, str]
"""A statement of the knowledge, its terms as text."""

_Key = TypeVar("_Key")
_Found = TypeVar("_Found")

_MOST_CACHED = 100_000
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


@lru_cache(maxsize=_MOST_CACHED)
def term_of(text: str) -> Term:
    """The term that a text stands for.

    >>> term_of("<urn:a>"), term_of("_:b0"), term_of('"x"@en').language
    (Iri(value='urn:a'), Blank(label='b0'), 'en')
    """
    if text.startswith("<<"):
        ((_, _, found),) = read_triples(f"<urn:s> <urn:p> {text} .")
        return found
    if text[0] == "<":
        return Iri(text[1:-1])
    if text[0] == "_":
        return Blank(text[2:])
    last = text.rindex('"')
    lexical, rest = text[1:last], text[last + 1 :]
    if "\\" in lexical:
        lexical = _ESCAPED.sub(lambda found: _MEANT.get(found[1], found[1]), lexical)
    if rest.startswith("@"):
        return Literal(lexical, language=rest[1:])
    return Literal(lexical, rest[3:-1]) if rest else Literal(lexical)


def is_iri(text: str) -> bool:
    """Whether a text is that of an IRI."""
    return text[0] == "<" and text[1] != "<"


def is_subject(text: str) -> bool:
    """Whether a term, by its text, may have properties: no literal, and no triple, does.

    >>> [is_subject(each) for each in ("<urn:a>", '"x"', "<<( <urn:a> <urn:p> <urn:b> )>>")]
    [True, False, False]
    """
    return text[0] == "_" or is_iri(text)


class KnownStatements(Protocol):
    """What the operators ask of a knowledge base."""

    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """The triples with these terms; None stands for any."""
        ...


class _Nothing:
    def match(self, s: Term | None, p: Term | None, o: Term | None, /) -> Iterator[Triple]:
        """No triple."""
        return iter(())


NOTHING_KNOWN = _Nothing()
"""A graph without statements."""


class KnownFacts:
    """The knowledge base, asked for what is bound; answers are remembered."""

    def __init__(
        self, knowledge: KnownStatements, graphs: Mapping[Term, KnownStatements] | None = None
    ) -> None:
        self._knowledge = knowledge
        self.graphs = {str(name): KnownFacts(stated) for name, stated in (graphs or {}).items()}
        """What is stated in each named graph."""
        self._found: dict[tuple[str | None, str | None, str | None], Sequence[Fact]] = {}
        self._used: dict[str, bool] = {}

    def match(self, s: str | None, p: str | None, o: str | None) -> Sequence[Fact]:
        """The facts with these terms; None stands for any."""
        if p is not None and not self.uses(p):
            return ()
        asked = (s, p, o)
        found = self._found.get(asked)
        if found is None:
            found = [(str(a), str(b), str(c)) for a, b, c in self._ask(s, p, o)]
            self._found = with_room(self._found)
            self._found[asked] = found
        return found

    def has(self, s: str, p: str, o: str) -> bool:
        """Whether this is a fact."""
        return self.uses(p) and bool(self.match(s, p, o))

    def uses(self, predicate: str) -> bool:
        """Whether any fact has the predicate: most predicates of a stream have none."""
        known = self._used.get(predicate)
        if known is None:
            known = self._used[predicate] = next(iter(self._ask(None, predicate, None)), None) is not None
        return known

    def _ask(self, s: str | None, p: str | None, o: str | None) -> Iterator[Triple]:
        return self._knowledge.match(*(None if each is None else term_of(each) for each in (s, p, o)))


def with_room(cache: dict[_Key, _Found]) -> dict[_Key, _Found]:
    """A cache that takes one answer more; a full one starts anew."""
    return cache if len(cache) < _MOST_CACHED else {}


# ----------------------------------------------------------------------------------------------------------
# Stream triples read under the hierarchies of the knowledge base.
#
# Under RDFS, what a triple brings with it depends on its predicate alone, or on its class where it says
# what something is: classes and properties are looked up in the knowledge, the things themselves are not.
# So each such shape is reasoned about once, with nodes that nobody knows in the place of the things, and
# the answer is a template for all triples of the shape. What the knowledge says already is then left out.

TYPE, SUBCLASS = f"<{RDF}type>", f"<{RDFS}subClassOf>"

# A triple that has one of these changes what others mean.
_SCHEMA = frozenset(f"<{RDFS}{name}>" for name in ("subClassOf", "subPropertyOf", "domain", "range"))
_SUBJECT, _OBJECT = Blank("kaicep-any-subject"), Blank("kaicep-any-object")
_ANY_LITERAL = Literal("kaicep any literal")
_STANDS = {str(_SUBJECT): 0, str(_OBJECT): 1, str(_ANY_LITERAL): 1}

Slot = int | str
"""The subject (0) or the object (1) of the triple that is read, or a term."""
Template = tuple[tuple[Slot, str, Slot], ...]
"""What a shape of triples brings beside itself."""


class Reasoning(KnownStatements, Protocol):
    """What the operators ask of a knowledge base."""

    reasoning: str

    def entails_with(self, triples: Iterable[Triple], /) -> frozenset[Triple]:
        """The triples, and what follows from them and the knowledge but not without them."""
        ...

    def graphs(self) -> Mapping[Term, KnownStatements]:
        """What is stated in each named graph."""
        ...


class StreamReader:
    """Reads stream triples under the hierarchies of the knowledge base; answers are remembered."""

    def __init__(self, knowledge: Reasoning, facts: KnownFacts) -> None:
        self._knowledge = knowledge
        self._facts = facts
        self.by_shape = knowledge.reasoning in ("none", "rdfs")
        self._texts: dict[Literal, str] = {}
        self._templates: dict[tuple[str, str | bool], Template | None] = {}
        self._asked: dict[Fact, tuple[Fact, ...]] = {}

    def read(self, triple: Triple) -> Iterable[Fact]:
        """A triple of the input, and all that it entails."""
        s, p, o = triple
        return self.read_derived((str(s), str(p), self._text(o) if isinstance(o, Literal) else str(o)))

    def read_derived(self, fact: Fact) -> Iterable[Fact]:
        """The same of a triple whose terms are texts already."""
        template = self.template(fact)
        if template is None:
            return self._ask(fact)
        return (fact,) if not template else (fact, *self._filled(template, fact))

    def template(self, fact: Fact) -> Template | None:
        """What triples like this one bring beside themselves; None where each is to be asked about."""
        s, p, o = fact
        shape = (p, o) if p == TYPE else (p, not is_subject(o))
        if shape not in self._templates:
            self._templates = with_room(self._templates)
            self._templates[shape] = self._reasoned(*shape) if self.by_shape else None
        return self._templates[shape] if is_subject(s) else None

    def _reasoned(self, predicate: str, kind: str | bool) -> Template | None:
        about = term_of(kind) if isinstance(kind, str) else _ANY_LITERAL if kind else _OBJECT
        given: Triple = (_SUBJECT, term_of(predicate), about)
        found = self._knowledge.entails_with((given,))
        rows = [(str(s), str(p), str(o)) for s, p, o in found if (s, p, o) != given]
        # A thing that turns out to be a class, or a statement about classes, is looked up itself.
        if predicate in _SCHEMA or any(p in _SCHEMA or (p == TYPE and o in _STANDS) for _, p, o in rows):
            return None
        return tuple(sorted(((_STANDS.get(s, s), p, _STANDS.get(o, o)) for s, p, o in rows), key=str))

    def _filled(self, template: Template, fact: Fact) -> Iterator[Fact]:
        ends = (fact[0], fact[2])
        for s, p, o in template:
            made = (ends[s] if isinstance(s, int) else s, p, ends[o] if isinstance(o, int) else o)
            if made != fact and not self._facts.has(*made):
                yield made

    def _ask(self, fact: Fact) -> tuple[Fact, ...]:
        found = self._asked.get(fact)
        if found is None:
            s, p, o = (term_of(each) for each in fact)
            more = self._knowledge.entails_with(((s, p, o),))
            found = tuple([(str(a), str(b), str(c)) for a, b, c in more])
            self._asked = with_room(self._asked)
            self._asked[fact] = found
        return found

    def _text(self, literal: Literal) -> str:
        found = self._texts.get(literal)
        if found is None:
            self._texts = with_room(self._texts)
            found = self._texts[literal] = str(literal)
        return found
