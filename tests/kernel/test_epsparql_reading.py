"""Stream triples under the knowledge's hierarchies: a template for each shape gives what reasoning gives."""

from __future__ import annotations

import itertools

import pytest
from tests.kernel.epsparql_support import both, sorted_matches
from tests.reference.epsparql_support import BASE, SECOND, plan

from kaicep.kernel.epsparql import EpOperator
from kaicep.kernel.epsparql.reading import KnownFacts, StreamReader
from kaicep.knowledge.store import Knowledge
from kaicep.plan.terms import OWL, RDF, RDFS, XSD, Blank, Iri, Literal, Triple
from kaicep.reference.sparql import run_epsparql

PREFIXES = f"@prefix : <{BASE}> . @prefix rdf: <{RDF}> . @prefix rdfs: <{RDFS}> . @prefix owl: <{OWL}> .\n"
HIERARCHIES = """
:Oak rdfs:subClassOf :Tree . :Tree rdfs:subClassOf :Plant . :x a :Tree .
:feeds rdfs:subPropertyOf :serves . :serves rdfs:domain :Unit ; rdfs:range :Oak . :x :serves :y .
"""
# A property that says what something is, one that says what is below what, and one about classes.
ODD = """
:is rdfs:subPropertyOf rdf:type . :Oak rdfs:subClassOf :Tree . :below rdfs:subPropertyOf rdfs:subClassOf .
:i a :Oak . :feeds rdfs:domain :Oak . :is rdfs:range :Kind . rdf:type rdfs:domain :Typed .
"""
MORE = """
:feeds a owl:SymmetricProperty . :x owl:sameAs :z . :serves owl:inverseOf :feeds . :x :serves :y .
"""
NODES = [Iri(BASE + each) for each in ("x", "y", "new", "Oak", "Tree")] + [Blank("b0")]
PREDICATES = [Iri(BASE + each) for each in ("feeds", "serves", "is", "below", "other")]
PREDICATES += [Iri(RDF + "type"), Iri(RDFS + "subClassOf")]


def triples() -> list[Triple]:
    objects = [*NODES, Literal("7", XSD + "integer")]
    return list(itertools.product(NODES, PREDICATES, objects))


@pytest.mark.parametrize(
    ("text", "reasoning"), [(HIERARCHIES, "rdfs"), (ODD, "rdfs"), (MORE, "owl-rl"), (ODD, "none")]
)
def test_a_triple_brings_what_follows_from_it(text: str, reasoning: str) -> None:
    knowledge = Knowledge.parse(PREFIXES + text, reasoning=reasoning)
    reader = StreamReader(knowledge, KnownFacts(knowledge))
    for each in triples():
        expected = {(str(s), str(p), str(o)) for s, p, o in knowledge.entails_with([each])}
        found = list(reader.read(each))
        assert set(found) == expected, each
        assert len(found) == len(expected)


@pytest.mark.parametrize(("text", "reasoning"), [(HIERARCHIES, "rdfs"), (ODD, "rdfs"), (MORE, "owl-rl")])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * WHERE { ?x a :Tree }",
        "SELECT * WHERE { ?x a ?c }",
        "SELECT * WHERE { ?x :serves ?y }",
        "SELECT * WHERE { ?x ?p :x }",
        "SELECT * WHERE { ?x a :Oak . ?x :serves ?y }",
    ],
)
def test_columns_see_what_the_patterns_ask_for(text: str, reasoning: str, query: str) -> None:
    knowledge = Knowledge.parse(PREFIXES + text, reasoning=reasoning)
    rows = [(each, i * SECOND, i * SECOND) for i, each in enumerate(triples())]
    running = EpOperator([plan(query)], knowledge)
    found = sorted_matches([*running.feed(rows), *running.finish()])
    assert found
    assert found == run_epsparql([plan(query)], rows, knowledge)["q"]


def test_a_class_is_met_by_all_below_it_but_not_by_what_is_known_anyway() -> None:
    stream = "1 x a Oak\n2 new a Oak\n3 new a Plant\n4 new a Stone"
    expected, found = both(stream, "SELECT ?x WHERE { ?x a :Plant }", knowledge=HIERARCHIES)
    assert [each.start_us // SECOND for each in found["q0"]] == [2, 3]
    assert found == expected
