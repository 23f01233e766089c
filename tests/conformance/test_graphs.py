"""GRAPH in a PATH: what is stated in a named graph of the knowledge, as it is stated."""

from __future__ import annotations

import pytest

from kaicep.errors import SourceText
from kaicep.knowledge.queries import select
from kaicep.knowledge.watching import KnowledgeFiles
from kaicep.language.parse_chicep import parse_chi
from kaicep.plan.terms import Iri

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix kai: <https://kaicep.org/ns#> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :in rdfs:subPropertyOf :near . :s1 :in :r1 . :r1 :on :ground .
    :plan { :s1 :in :r2 . :s2 :in :r2 . :r2 :on :top . }
    :survey { :s2 :in :r3 . :s3 :in :r3 . }
    :then { :s3 :in :r4 . :s1 :in :r1 . } :then kai:validTo "1970-01-01T00:00:05Z"^^xsd:dateTime .
"""
ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:kaicep:"},
    "class": ":Reading",
    "entities": {"id": {"property": ":from", "iri": ":{value}"}},
}
EVENTS = "event | ts | id\n a | 0 | s1\n b | 1 | s2\n c | 2 | s3\n d | 9 | s1\n e | 10 | s3"


def found(check, query, expect):
    check(query, events=EVENTS, expect=expect, knowledge=KNOWLEDGE, annotations=(ANNOTATION,))


def test_one_graph_by_its_name(check):
    found(
        check,
        "SELECT ?e.id, ?r FROM (?e, s) PATH {?e :from ?s . GRAPH :plan {?s :in ?r}}",
        "?e | id | r\n a | s1 | urn:kaicep:r2\n b | s2 | urn:kaicep:r2\n d | s1 | urn:kaicep:r2",
    )


def test_the_graph_of_a_statement(check):
    # Those of :then hold until the fifth second, also where the default graph says the same for ever.
    found(
        check,
        "SELECT ?e.id, ?g FROM (?e, s) PATH {?e :from ?s . GRAPH ?g {?s :in ?r}}",
        """
        ?e | id | g
        a  | s1 | urn:kaicep:plan
        a  | s1 | urn:kaicep:then
        b  | s2 | urn:kaicep:plan
        b  | s2 | urn:kaicep:survey
        c  | s3 | urn:kaicep:survey
        c  | s3 | urn:kaicep:then
        d  | s1 | urn:kaicep:plan
        e  | s3 | urn:kaicep:survey
        """,
    )


def test_what_follows_is_outside_of_the_graph(check):
    found(check, "SELECT ?e.id FROM (?e, s) PATH {?e :from ?s . GRAPH :plan {?s :near ?r}}", "?e")
    found(
        check,
        "SELECT ?e.id FROM (?e, s) PATH {?e :from ?s . ?s :near ?r . GRAPH :plan {?s :in ?r . ?r :on :top}}",
        "?e | id\n a | s1\n b | s2\n d | s1",
    )


def test_an_event_is_in_no_graph(check):
    found(check, "SELECT ?e.id FROM (?e, s) PATH {GRAPH ?g {?e :from ?s}}", "?e")


def test_inside_not_exists_and_union(check):
    found(
        check,
        """SELECT ?e.id FROM (?e, s) PATH {?e :from ?s . FILTER NOT EXISTS {GRAPH :survey {?s :in ?r}}
           {GRAPH :plan {?s :in ?q}} UNION {GRAPH :nowhere {?s :in ?q}}}""",
        "?e | id\n a | s1\n d | s1",
    )


def test_two_events_in_one_graph(check):
    found(
        check,
        """SELECT ?a.id, ?b.id AS other FROM (?a, s), (?b, s) WINDOW (?a, ?b, 1s) SEQ (?a, ?b)
           PATH {?a :from ?p . ?b :from ?q . GRAPH ?g {?p :in ?r . ?q :in ?r}}""",
        "?a | ?b\n a | b\n b | c",
    )


@pytest.mark.parametrize("form", ["rdfp", "ru"])
def test_a_statement_that_moves_to_another_graph(tmp_path, form):
    (tmp_path / "k.trig").write_text(KNOWLEDGE)
    files = KnowledgeFiles([tmp_path])
    query = parse_chi(
        SourceText("q.chi", "SELECT * FROM (?e, s) PATH {GRAPH <urn:kaicep:survey> {?s ?p ?o}}")
    )
    group = query.paths[0][0].group

    def seen():
        return {row[0] for row in select(files.knowledge, group, ["s"])}

    assert seen() == {Iri("urn:kaicep:s2"), Iri("urn:kaicep:s3")}
    old, new = (
        "<urn:kaicep:s2> <urn:kaicep:in> <urn:kaicep:r3>",
        "<urn:kaicep:s1> <urn:kaicep:in> <urn:kaicep:r1>",
    )
    graph = "<urn:kaicep:survey>"
    if form == "ru":
        text = f"DELETE DATA {{ GRAPH {graph} {{ {old} }} }} ; INSERT DATA {{ GRAPH {graph} {{ {new} }} }}"
    else:
        text = f"D {old} {graph} .\nA {new} {graph} .\n"
    (tmp_path / f"change.{form}").write_text(text)
    files.poll()
    assert seen() == {Iri("urn:kaicep:s1"), Iri("urn:kaicep:s3")}
