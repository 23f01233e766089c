"""What clashes in a closed knowledge base: told as warnings, and everything goes on.

From a contradiction everything would follow; the rules of `reasoning` never go there, so what was
concluded stands, and whoever keeps the ontology learns which classes or individuals clash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from kaicep.errors import Diagnostic
from kaicep.knowledge.rules import Pattern, TermLookup, patterns, rdf_list
from kaicep.plan.terms import OWL, RDF, Iri, Literal, Term, Variable

__all__ = ["contradictions", "solutions"]

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
