"""Knowledge in EP-SPARQL: it has no time, joins, and gives stream triples their meaning."""

from __future__ import annotations

import pytest
from tests.reference.epsparql_support import answers, plan, run

import kaicep as kai
from kaicep.errors import Mistake
from kaicep.plan.terms import XSD, Iri, Literal

OAKS = ":Oak rdfs:subClassOf :Plant . :touches rdfs:subPropertyOf :near . :near rdfs:range :Thing ."


def test_knowledge_joins_and_adds_nothing_to_the_interval() -> None:
    query = "SELECT ?s ?room { ?s reads ?v . ?s in ?room }"
    assert answers("2-3 s1 reads 5\n4 s2 reads 6", query, knowledge=":s1 :in :r1 .") == ["s=s1 room=r1 [2-3]"]


def test_a_group_met_by_knowledge_alone_is_no_answer() -> None:
    assert answers("1 a p b", "SELECT ?x { ?x in ?y }", knowledge=":s1 :in :r1 .") == []


@pytest.mark.parametrize("op", ["SEQ", "EQUALS", "DURING", "MEETS", "STARTS", "FINISHES", "PAR"])
def test_knowledge_satisfies_no_temporal_operator(op: str) -> None:
    known = ":s1 :in :r1 . :s1 :reads :v ."
    assert (
        answers("1 s1 reads v", f"SELECT ?x {{ {{ ?x reads ?v }} {op} {{ ?x in ?y }} }}", knowledge=known)
        == []
    )
    assert (
        answers("1 s1 reads v", f"SELECT ?x {{ {{ ?x in ?y }} {op} {{ ?x reads ?v }} }}", knowledge=known)
        == []
    )


def test_the_optional_operators_keep_the_mandatory_side() -> None:
    known = ":s1 :in :r1 ."
    sequence = "SELECT ?x ?y { { ?x in ?y } OPTIONALSEQ { ?x reads ?v } }"
    assert answers("1 s1 reads v", sequence, knowledge=known) == ["x=s1 [1]"]
    equal = "SELECT ?x ?y { { ?x reads ?v } EQUALSOPTIONAL { ?x in ?y } }"
    assert answers("1 s1 reads v", equal, knowledge=known) == ["x=s1 [1]"]


def test_not_takes_no_notice_of_knowledge() -> None:
    query = "SELECT ?x { { ?x reads ?v } NOT { ?x in ?y } }"
    assert answers("1 s1 reads v", query, knowledge=":s1 :in :r1 .") == ["x=s1 [1]"]


def test_a_pattern_met_by_stream_and_by_knowledge_gives_both() -> None:
    query = "SELECT ?x { ?x p ?y . ?x q ?z }"
    assert answers("1 a p b\n5 a q c", query, knowledge=":a :p :b .") == ["x=a [1-5]", "x=a [5]"]


def test_optional_and_minus_and_exists_see_knowledge_at_any_time() -> None:
    known = ":a :in :r1 ."
    table = "1 a p b\n2 c p d"
    assert answers(table, "SELECT ?x ?r { ?x p ?y OPTIONAL { ?x in ?r } }", knowledge=known) == [
        "x=a r=r1 [1]",
        "x=c [2]",
    ]
    assert answers(table, "SELECT ?x { ?x p ?y MINUS { ?x in ?r } }", knowledge=known) == ["x=c [2]"]
    assert answers(table, "SELECT ?x { ?x p ?y FILTER EXISTS { ?x in ?r } }", knowledge=known) == ["x=a [1]"]


def test_a_mandatory_side_without_time_takes_no_optional_side_with_time() -> None:
    # Joining would let what comes later change what was known before.
    query = "SELECT ?x ?y ?z { { ?x in ?y OPTIONAL { ?x p ?z } } ?x q ?w }"
    assert answers("1 a p b\n2 a q c", query, knowledge=":a :in :r1 .") == ["x=a y=r1 [2]"]


def test_stream_triples_are_read_under_the_class_hierarchy() -> None:
    assert answers("3 o1 a Oak", "SELECT ?x ?c { ?x a ?c }", knowledge=OAKS) == [
        "x=o1 c=Oak [3]",
        "x=o1 c=Plant [3]",
    ]


def test_and_under_the_property_hierarchy() -> None:
    # A subproperty, and the range of the property above it.
    assert answers("3 a touches b", "SELECT ?p { a ?p b }", knowledge=OAKS) == ["p=near [3]", "p=touches [3]"]
    assert answers("3 a touches b", "SELECT ?x { ?x a Thing }", knowledge=OAKS) == ["x=b [3]"]


def test_inferred_knowledge_has_no_time() -> None:
    known = OAKS + " :o1 a :Oak ."
    assert answers("3 o1 p x", "SELECT ?x { ?x p ?y . ?x a Plant }", knowledge=known) == ["x=o1 [3]"]


def test_what_is_derived_is_read_under_the_hierarchies_too() -> None:
    rule = "CONSTRUCT { ?x a Oak } WHERE { ?x sprouts ?y }"
    assert answers("3 o1 sprouts y", rule, "SELECT ?x { ?x a Plant }", knowledge=OAKS) == ["x=o1 [3]"]


def test_a_join_compares_terms_and_a_filter_values() -> None:
    rows = "1 a v 007\n2 b v 7"
    assert answers(rows, "SELECT ?x ?y { { ?x v ?n } SEQ { ?y v ?n } }") == []
    assert answers(rows, "SELECT ?x ?n { { ?x v ?n } SEQ { ?y v ?m } FILTER (?n = ?m) }") == [
        "x=a n=007 [1-2]"
    ]
    assert answers("1 a v 07", "SELECT ?x { ?x v 7 }", knowledge=":k :v 7 .") == []


def test_a_term_comes_out_as_it_came_in() -> None:
    row = ((Iri("urn:a"), Iri("urn:v"), Literal("2026-01-01T01:00:00+02:00", XSD + "dateTime")), 1, 1)
    [match] = run([row], "SELECT ?t (HOURS(?t) AS ?h) (TZ(?t) AS ?z) { ?x ?p ?t }")["q0"]
    assert [each["value"] for each in match.select.values()] == ["2026-01-01T01:00:00+02:00", "1", "+02:00"]


def test_nothing_has_a_time_inside_of_a_named_graph() -> None:
    for inside in ("{ ?x in ?y } SEQ { ?y in ?z }", "?x in ?y MINUS { { ?x v ?y } NOT { ?y v ?z } }"):
        with pytest.raises(Mistake, match="what is stated in a named graph has no time"):
            plan(f"SELECT * WHERE {{ ?x v ?n GRAPH :plan {{ {inside} }} }}")


def test_a_named_graph_keeps_no_state_and_binds_its_name() -> None:
    query = "SELECT ?x ?g WHERE { ?x :v ?n GRAPH ?g { ?x :in ?r . ?r :on ?z OPTIONAL { ?r :in ?b } } }"
    [found] = kai.compile(query, language="EP-SPARQL").program.queries
    assert found.warnings == ()
