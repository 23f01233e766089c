"""The rules of reasoning, as data: what follows from what, and what is a contradiction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kaicep.errors import Diagnostic
from kaicep.plan.terms import OWL, RDF, RDFS, Blank, Iri, Literal, Term, Variable

# ----------------------------------------------------------------------------------------------------------
# The rules of reasoning, as data: from these triples follow those.
#
# Each rule has the name it has in the tables of the OWL 2 RL profile. RDFS reasoning is the part that
# speaks of classes, properties, domains and ranges; axiomatic triples and the typing of everything as a
# resource are left out, as nobody asks for them. Constructs that are written with RDF lists have no fixed
# number of premises: `unrolled` turns each one of an ontology into plain rules of its own.

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


# ----------------------------------------------------------------------------------------------------------
# What clashes in a closed knowledge base: told as warnings, and everything goes on.
#
# From a contradiction everything would follow; the rules of `reasoning` never go there, so what was
# concluded stands, and whoever keeps the ontology learns which classes or individuals clash.

_MOST = 100
_NEGATIVE = "?n owl:sourceIndividual ?x . ?n owl:assertionProperty ?p . ?x ?p ?y"

# What must not be there together, and what to say of it; the names are those of OWL 2 RL.
_CLASHES = tuple(
    (name, patterns(text), message)
    for name, text, message in (
        (
            "cls-nothing2",
            "?x rdf:type owl:Nothing",
            "{x} is of class owl:Nothing, which has no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?x rdf:type ?c . ?x rdf:type ?d",
            "{x} is of the classes {c} and {d}, which are disjoint",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?x rdfs:subClassOf ?c . ?x rdfs:subClassOf ?d",
            "the class {x} is below {c} and {d}, which are disjoint: it can have no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?c rdfs:subClassOf ?d",
            "the class {c} is below {d}, and they are disjoint: it can have no members",
        ),
        (
            "cax-dw",
            "?c owl:disjointWith ?d . ?d rdfs:subClassOf ?c",
            "the class {d} is below {c}, and they are disjoint: it can have no members",
        ),
        (
            "cls-com",
            "?c owl:complementOf ?d . ?x rdf:type ?c . ?x rdf:type ?d",
            "{x} is of the class {c} and of {d}, its complement",
        ),
        (
            "eq-diff1",
            "?x owl:differentFrom ?y . ?x owl:sameAs ?y",
            "{x} and {y} are said to be the same and to be different",
        ),
        (
            "prp-irp",
            "?p rdf:type owl:IrreflexiveProperty . ?x ?p ?x",
            "{x} has itself for {p}, which is irreflexive",
        ),
        (
            "prp-asyp",
            "?p rdf:type owl:AsymmetricProperty . ?x ?p ?y . ?y ?p ?x",
            "{x} and {y} have each other for {p}, which is asymmetric",
        ),
        (
            "prp-pdw",
            "?p owl:propertyDisjointWith ?q . ?x ?p ?y . ?x ?q ?y",
            "{x} has {y} for {p} and for {q}, which are disjoint",
        ),
        (
            "prp-npa1",
            "?n owl:targetIndividual ?y . " + _NEGATIVE,
            "{x} has {y} for {p}, which is said not to be so",
        ),
        (
            "prp-npa2",
            "?n owl:targetValue ?y . " + _NEGATIVE,
            "{x} has {y} for {p}, which is said not to be so",
        ),
    )
)


def contradictions(match: TermLookup, said: TermLookup) -> tuple[Diagnostic, ...]:
    """The contradictions of a closed graph, each once; of very many, the first hundred.

    RDF lists are read as they were `said`: in the closed graph a list with a member that is the same
    as something else has two members in one place.
    """
    found = dict.fromkeys(islice(_all(match, said), _MOST + 1))
    told = [Diagnostic(f"contradiction: {text}", severity="warning") for text in list(found)[:_MOST]]
    if len(found) > _MOST:
        told.append(Diagnostic("there are more contradictions than these", severity="warning"))
    return tuple(told)


def solutions(
    match: TermLookup, premises: tuple[Pattern, ...], bound: dict[Variable, Term]
) -> Iterator[dict[Variable, Term]]:
    """All ways to meet the premises, from left to right."""
    if not premises:
        yield bound
        return
    first = premises[0]
    wanted = [bound.get(each) if isinstance(each, Variable) else each for each in first]
    for triple in match(wanted[0], wanted[1], wanted[2]):
        more = dict(bound)
        for each, term in zip(first, triple, strict=True):
            if isinstance(each, Variable) and more.setdefault(each, term) != term:
                break
        else:
            yield from solutions(match, premises[1:], more)


def _all(match: TermLookup, said: TermLookup) -> Iterator[str]:
    clashing: set[frozenset[Term]] = set()
    for name, premises, message in _CLASHES:
        for solution in solutions(match, premises, {}):
            # Told from either side, it is the same clash.
            key = frozenset((Iri(message), *solution.values()))
            if key not in clashing:
                clashing.add(key)
                yield _told(message, solution, name)
    yield from _all_disjoint(match, said)
    yield from _all_different(match, said)
    yield from _two_values(match)


def _told(message: str, solution: dict[Variable, Term], name: str) -> str:
    return message.format(**{each.name: str(term) for each, term in solution.items()}) + f" ({name})"


def _listed(said: TermLookup, kind: str, *links: str) -> Iterator[tuple[Term, ...]]:
    for axiom, _, _ in said(None, Iri(RDF + "type"), Iri(OWL + kind)):
        for link in links:
            for _, _, head in said(axiom, Iri(OWL + link), None):
                yield rdf_list(said, head) or ()


def _all_disjoint(match: TermLookup, said: TermLookup) -> Iterator[str]:
    """Members of two of the classes (or pairs in two of the properties) that are disjoint in a list."""
    for classes in _listed(said, "AllDisjointClasses", "members"):
        yield from _in_two(
            "the classes",
            "cax-adc",
            ((c, row[0]) for c in classes for row in match(None, Iri(RDF + "type"), c)),
        )
    for properties in _listed(said, "AllDisjointProperties", "members"):
        uses = ((p, f"{row[0]} {row[2]}") for p in properties for row in match(None, p, None))
        yield from _in_two("the properties", "prp-adp", uses)


def _in_two(what: str, name: str, members: Iterable[tuple[Term, object]]) -> Iterator[str]:
    home: dict[object, Term] = {}
    for group, member in members:
        other = home.setdefault(member, group)
        if other != group:
            yield f"{member} is of {what} {other} and {group}, which are disjoint ({name})"


def _all_different(match: TermLookup, said: TermLookup) -> Iterator[str]:
    for individuals in _listed(said, "AllDifferent", "members", "distinctMembers"):
        place = {each: at for at, each in enumerate(individuals)}
        for each, at in place.items():
            for _, _, other in match(each, Iri(OWL + "sameAs"), None):
                if place.get(other, -1) > at:
                    yield f"{each} and {other} are said to be the same and to be different (eq-diff2)"


def _two_values(match: TermLookup) -> Iterator[str]:
    """A functional property with two literals: individuals would be the same, values cannot be."""
    for p, _, _ in match(None, Iri(RDF + "type"), Iri(OWL + "FunctionalProperty")):
        values: dict[tuple[Term, str], Literal] = {}
        for subject, _, value in match(None, p, None):
            if isinstance(value, Literal) and value.language is None:
                # Of two datatypes the values may be equal all the same; that is not decided here.
                first = values.setdefault((subject, value.datatype), value)
                if first != value:
                    yield f"{subject} has {first} and {value} for {p}, which is functional (prp-fp)"
