"""Our closure against that of `reasonable`, an OWL 2 RL reasoner in Rust.

Ours must have everything that it infers, but for differences that are meant:

- It types and relates the vocabulary itself (`owl:Thing`, `owl:Nothing`, `rdfs:Class`, annotation
  properties, ...), and makes every class and property a subclass, subproperty or equivalent of itself;
  we leave axiomatic triples out.
- It says x owl:sameAs x of everything; we never do.
- It writes down that classes below each other are equivalent (scm-eqc2, scm-eqp2), and passes domains
  and ranges on to wider classes and narrower properties (scm-dom1, scm-rng1, ...). Nothing follows from
  that for individuals, so we leave it out.
- It has generalised triples: literals as subjects, blank nodes as properties. Those are no RDF, and the
  generated ontologies have no literals.
- Version 0.4.4 concludes x owl:sameAs y from x q y, y q x and an inverse functional q, which does not
  follow: both have one subject each. The generated ontologies have no such property; the cases do.

So the triples compared are those about individuals, and subclass and subproperty triples between two
different names of ours.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge.test_reasoning import LISTS, OWL_CASES, OWL_ROWS, loaded
from tests.knowledge.words import PREFIXES, SPACE, iri, known

from kaicep.plan.terms import Iri, Literal, Term, Triple, n_triples

INVERSE_FUNCTIONAL = iri("owl:InverseFunctionalProperty")

reasonable = pytest.importorskip("reasonable")
rdflib = pytest.importorskip("rdflib")


def theirs(text: str) -> set[Triple]:
    graph = rdflib.Graph()
    graph.parse(data=text, format="turtle")
    reasoner = reasonable.PyReasoner()
    reasoner.from_graph(graph)
    found: set[Triple] = set()
    for row in reasoner.reason():
        if isinstance(row[0], rdflib.URIRef) and isinstance(row[1], rdflib.URIRef):
            if isinstance(row[2], rdflib.BNode):
                continue
            s, p, o = map(_term, row)
            found.add((s, p, o))
    return found


def _term(term: object) -> Term:
    if isinstance(term, rdflib.URIRef):
        return Iri(str(term))
    datatype = getattr(term, "datatype", None)
    return Literal(str(term), str(datatype)) if datatype else Literal(str(term))


def comparable(row: Triple) -> bool:
    s, p, o = row
    ours = isinstance(s, Iri) and s.value.startswith(SPACE)
    if not ours or not isinstance(p, Iri):
        return False
    hierarchy = p in (iri("rdfs:subClassOf"), iri("rdfs:subPropertyOf"))
    if hierarchy or p in (iri("rdf:type"), iri("owl:sameAs")):
        return isinstance(o, Iri) and o.value.startswith(SPACE) and s != o
    return p.value.startswith(SPACE)


@pytest.mark.parametrize("text", [text for text, _ in OWL_CASES])
def test_cases(text: str) -> None:
    ours = set(known(text, "owl-rl").match())
    assert {row for row in theirs(PREFIXES + text) if comparable(row)} <= ours


@settings(max_examples=100, deadline=None)
@given(st.sets(OWL_ROWS, max_size=10))
def test_generated(triples: set[Triple]) -> None:
    triples = {row for row in triples if not isinstance(row[2], Literal) and row[2] != INVERSE_FUNCTIONAL}
    text = "\n".join(sorted(map(n_triples, triples | LISTS)))
    ours = set(loaded(triples | LISTS, "owl-rl").match())
    assert {row for row in theirs(text) if comparable(row)} <= ours
