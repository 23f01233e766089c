"""The rules of reasoning, as data: from these triples follow those.

Each rule has the name it has in the tables of the OWL 2 RL profile. RDFS reasoning is the part that
speaks of classes, properties, domains and ranges; axiomatic triples and the typing of everything as
a resource are left out, as nobody asks for them. Constructs that are written with RDF lists have no
fixed number of premises: `unrolled` turns each one of an ontology into plain rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kaicep.plan.terms import OWL, RDF, RDFS, Blank, Iri, Term, Variable

__all__ = [
    "LEVELS",
    "LISTED",
    "RULES",
    "TRANSITIVE",
    "Pattern",
    "Rule",
    "TermLookup",
    "patterns",
    "rdf_list",
    "transitivity",
    "unrolled",
]

LEVELS = ("none", "rdfs", "owl-rl")
"""The levels of reasoning."""

Pattern = tuple[Term | Variable, Term | Variable, Term | Variable]
"""A triple whose names are variables or terms."""

_PREFIXES = {"rdf": RDF, "rdfs": RDFS, "owl": OWL}


@dataclass(frozen=True)
class Rule:
    """Where all premises hold, the conclusions hold. Without variables it is an axiom.

    >>> print(RULES["rdfs"][1])
    cax-sco: ?c rdfs:subClassOf ?d . ?x rdf:type ?c => ?x rdf:type ?d
    """

    name: str
    premises: tuple[Pattern, ...]
    conclusions: tuple[Pattern, ...]

    @property
    def sides(self) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        """Premises and conclusions."""
        return self.premises, self.conclusions

    def __str__(self) -> str:
        return f"{self.name}: {_written(self.premises)} => {_written(self.conclusions)}"


def _written(patterns: tuple[Pattern, ...]) -> str:
    return " . ".join(" ".join(map(_word, pattern)) for pattern in patterns) or "nothing"


def _word(term: Term | Variable) -> str:
    for prefix, space in _PREFIXES.items():
        if isinstance(term, Iri) and term.value.startswith(space):
            return f"{prefix}:{term.value[len(space) :]}"
    return str(term)


def patterns(text: str) -> tuple[Pattern, ...]:
    """Patterns of a text such as `?x rdf:type ?c . ?c rdfs:subClassOf ?d`."""
    words = [_term(word) for word in text.replace(" . ", " ").split()]
    return tuple((words[at], words[at + 1], words[at + 2]) for at in range(0, len(words), 3))


def _term(word: str) -> Iri | Variable:
    prefix, _, local = word.partition(":")
    return Variable(word[1:]) if word.startswith("?") else Iri(_PREFIXES[prefix] + local)


def _rules(text: str) -> tuple[Rule, ...]:
    rows = (line.split(":", 1) for line in text.strip().splitlines())
    return tuple(
        Rule(name.strip(), *(patterns(side.strip()) for side in body.split("=>"))) for name, body in rows
    )


# A class that a query names counts with its equivalent classes at every level (semantics 2, event graph).
_SAME_CLASS = _rules("""
cax-eqc1: ?c owl:equivalentClass ?d . ?x rdf:type ?c => ?x rdf:type ?d
cax-eqc2: ?c owl:equivalentClass ?d . ?x rdf:type ?d => ?x rdf:type ?c
""")

_RDFS = _rules("""
scm-eqc1: ?c owl:equivalentClass ?d => ?c rdfs:subClassOf ?d . ?d rdfs:subClassOf ?c
cax-sco: ?c rdfs:subClassOf ?d . ?x rdf:type ?c => ?x rdf:type ?d
prp-spo1: ?p rdfs:subPropertyOf ?q . ?x ?p ?y => ?x ?q ?y
prp-dom: ?p rdfs:domain ?c . ?x ?p ?y => ?x rdf:type ?c
prp-rng: ?p rdfs:range ?c . ?x ?p ?y => ?y rdf:type ?c
""")

# Equivalent properties come down to being below each other, both ways.
_OWL = _rules("""
scm-eqp1: ?p owl:equivalentProperty ?q => ?p rdfs:subPropertyOf ?q . ?q rdfs:subPropertyOf ?p
eq-sym: ?x owl:sameAs ?y => ?y owl:sameAs ?x
eq-rep-s: ?x owl:sameAs ?y . ?x ?p ?o => ?y ?p ?o
eq-rep-p: ?p owl:sameAs ?q . ?x ?p ?y => ?x ?q ?y
eq-rep-o: ?x owl:sameAs ?y . ?s ?p ?x => ?s ?p ?y
prp-inv1: ?p owl:inverseOf ?q . ?x ?p ?y => ?y ?q ?x
prp-inv2: ?p owl:inverseOf ?q . ?x ?q ?y => ?y ?p ?x
prp-symp: ?p rdf:type owl:SymmetricProperty . ?x ?p ?y => ?y ?p ?x
prp-fp: ?p rdf:type owl:FunctionalProperty . ?x ?p ?y . ?x ?p ?z => ?y owl:sameAs ?z
prp-ifp: ?p rdf:type owl:InverseFunctionalProperty . ?y ?p ?x . ?z ?p ?x => ?y owl:sameAs ?z
cls-svf1: ?r owl:onProperty ?p . ?r owl:someValuesFrom ?c . ?x ?p ?y . ?y rdf:type ?c => ?x rdf:type ?r
cls-svf2: ?r owl:onProperty ?p . ?r owl:someValuesFrom owl:Thing . ?x ?p ?y => ?x rdf:type ?r
cls-avf: ?r owl:onProperty ?p . ?r owl:allValuesFrom ?c . ?x rdf:type ?r . ?x ?p ?y => ?y rdf:type ?c
cls-hv1: ?r owl:onProperty ?p . ?r owl:hasValue ?v . ?x rdf:type ?r => ?x ?p ?v
cls-hv2: ?r owl:onProperty ?p . ?r owl:hasValue ?v . ?x ?p ?v => ?x rdf:type ?r
""")

RULES: dict[str, tuple[Rule, ...]] = {"none": _SAME_CLASS, "rdfs": _RDFS, "owl-rl": _RDFS + _OWL}
"""The rules of each level."""

# Properties that every level above `none` takes for transitive, and the rule's name for each. Others
# are those of class owl:TransitiveProperty (prp-trp). `reasoning` treats them apart, see there.
TRANSITIVE: dict[str, dict[Iri, str]] = {
    "none": {},
    "rdfs": {Iri(RDFS + "subClassOf"): "scm-sco", Iri(RDFS + "subPropertyOf"): "scm-spo"},
    "owl-rl": {
        Iri(RDFS + "subClassOf"): "scm-sco",
        Iri(RDFS + "subPropertyOf"): "scm-spo",
        Iri(OWL + "sameAs"): "eq-trans",
    },
}
"""Properties that are transitive by definition, by level."""


def transitivity(level: str) -> Iterator[Rule]:
    """What the level knows of transitive properties, as plain rules."""
    for each, name in TRANSITIVE[level].items():
        x, y, z = Variable("x"), Variable("y"), Variable("z")
        yield Rule(name, ((x, each, y), (y, each, z)), ((x, each, z),))
    if level == "owl-rl":
        yield from _rules("prp-trp: ?p rdf:type owl:TransitiveProperty . ?x ?p ?y . ?y ?p ?z => ?x ?p ?z")


# What a construct with a list is said by; `unrolled` reads these and the lists.
LISTED = frozenset(
    Iri(OWL + name) for name in ("intersectionOf", "unionOf", "oneOf", "propertyChainAxiom", "hasKey")
)
"""What speaks of lists."""

TermLookup = Callable[[Term | None, Term | None, Term | None], Iterable[tuple[Term, Term, Term]]]
"""The triples that fit a pattern, where None stands for anything."""

_TYPE = Iri(RDF + "type")


def rdf_list(match: TermLookup, head: Term) -> tuple[Term, ...] | None:
    """The members of an RDF list; None where it is broken (no end, a cycle, two ways to go on)."""
    members: list[Term] = []
    seen: set[Term] = set()
    while head != Iri(RDF + "nil"):
        first = [row[2] for row in match(head, Iri(RDF + "first"), None)]
        rest = [row[2] for row in match(head, Iri(RDF + "rest"), None)]
        if head in seen or len(first) != 1 or len(rest) != 1:
            return None
        seen.add(head)
        members.append(first[0])
        head = rest[0]
    return tuple(members)


def _lists(match: TermLookup, name: str) -> Iterator[tuple[tuple[Term, Term, Term], tuple[Term, ...]]]:
    for triple in match(None, Iri(OWL + name), None):
        members = rdf_list(match, triple[2])
        if members:
            yield triple, members


def unrolled(match: TermLookup) -> Iterator[Rule]:
    """The rules that the list constructs of an ontology stand for."""
    x, y = Variable("x"), Variable("y")
    below = Iri(RDFS + "subClassOf")
    for said, parts in _lists(match, "intersectionOf"):
        yield Rule("cls-int1", tuple((x, _TYPE, each) for each in parts), ((x, _TYPE, said[0]),))
        yield Rule("scm-int", (said,), tuple((said[0], below, each) for each in parts))
    for said, parts in _lists(match, "unionOf"):
        yield Rule("scm-uni", (said,), tuple((each, below, said[0]) for each in parts))
    for said, parts in _lists(match, "oneOf"):
        yield Rule("cls-oo", (said,), tuple((each, _TYPE, said[0]) for each in parts))
    for said, parts in _lists(match, "propertyChainAxiom"):
        steps = tuple(_step(match, each, at) for at, each in enumerate(parts))
        yield Rule("prp-spo2", steps, ((Variable("v0"), said[0], Variable(f"v{len(parts)}")),))
    for said, parts in _lists(match, "hasKey"):
        keys = [(each, Variable(f"k{at}")) for at, each in enumerate(parts)]
        same = tuple((who, each, value) for each, value in keys for who in (x, y))
        both = ((x, _TYPE, said[0]), (y, _TYPE, said[0]))
        yield Rule("prp-key", both + same, ((x, Iri(OWL + "sameAs"), y),))


def _step(match: TermLookup, part: Term, at: int) -> Pattern:
    """A step of a property chain, which may be the inverse of a property: `[ owl:inverseOf p ]`."""
    here, there = Variable(f"v{at}"), Variable(f"v{at + 1}")
    if isinstance(part, Blank):
        for _, _, inverse in match(part, Iri(OWL + "inverseOf"), None):
            return there, inverse, here
    return here, part, there
