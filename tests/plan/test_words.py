"""Words of a PATH that neither the knowledge nor an annotation knows: a warning with the way out."""

from __future__ import annotations

import pytest

from kaicep import testing

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    @prefix kai: <https://kaicep.org/ns#> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :Office rdfs:subClassOf :Room . :s1 :hasLocation :r1 . :r1 a :Office . :partOf rdfs:range :Building .
    :flow owl:equivalentProperty :throughput . :hasSource owl:sameAs :comesFrom .
    :monday { :s1 :movedTo :r2 . :r2 a :Store } :monday kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
"""
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow"},
    "entities": {"sensor": {"property": ":hasSource", "iri": ":{value}"}},
}
OTHER = {**ANNOTATION, "stream": "t", "class": ":Alarm", "attributes": {"level": ":severity"}}
EVENTS = {"s": "ts | sensor | x\n 0 | s1 | 5.0", "t": "ts | sensor | level\n 0 | s1 | 5.0"}


def said(path, knowledge=KNOWLEDGE, annotations=(ANNOTATION, OTHER)):
    query = f"PREFIX : <urn:kaicep:> SELECT ?e.sensor FROM (?e, s) PATH {{{path}}}"
    run = testing.prepare(query, EVENTS, knowledge=knowledge, annotations=annotations)
    found = [each for each in run.diagnostics if each.severity == "warning"]
    marked = [each.source.text[each.span.start : each.span.end] for each in found]
    return [(each.message, mark, each.hint) for each, mark in zip(found, marked, strict=True)]


@pytest.mark.parametrize(
    ("path", "kind", "word", "hint"),
    [
        ("?e :hasSuorce ?s", "property", ":hasSuorce", "did you mean :hasSource?"),
        ("?e :flow ?f ; :hasSorce ?s", "property", ":hasSorce", "did you mean :hasSource?"),
        ("?e :hasSource/:hasLocaton ?r", "property", ":hasLocaton", "did you mean :hasLocation?"),
        ("?r ^:hasLocaton+ ?s", "property", ":hasLocaton", "did you mean :hasLocation?"),
        ("FILTER NOT EXISTS {?e :flw ?f}", "property", ":flw", "did you mean :flow?"),
        ("OPTIONAL {?e <urn:kaicep:flw> ?f}", "property", "<urn:kaicep:flw>", "did you mean :flow?"),
        ("?e rdf:tpye :Report", "property", "rdf:tpye", "did you mean rdf:type?"),
        ("?e :severity ?x", "property", ":severity", "known: "),  # a property of the other stream's events
        ("?e :hasSource ?s . ?s a :Ofice", "class", ":Ofice", "did you mean :Office?"),
        ("?e rdf:type :Reprt", "class", ":Reprt", "did you mean :Report?"),
    ],
)
def test_a_word_that_nobody_knows(path, kind, word, hint):
    [(message, marked, help)] = said(path)
    shown = ":flw" if word.startswith("<") else word
    assert message == f"neither the knowledge nor an annotation has the {kind} {shown}"
    assert marked == word
    assert help.startswith(hint)


@pytest.mark.parametrize(
    "path",
    [
        "?e :hasSource ?s . ?s :hasLocation ?r . ?r a :Office",
        "?e :flow ?f ; a :Report ; <http://cei.usc.edu/Event.owl#hasTime> ?t",
        "?r :partOf ?b . ?b a :Building",  # declared, though nobody uses it yet
        "?s :movedTo ?r . ?r a :Store",  # held for a time
        "?r a :Room . ?r rdfs:label ?l . ?x a :Alarm",
        "?s !:unheardOf ?r",
        "?e :throughput ?f ; :comesFrom ?s",  # the same as what an annotation says
        "?s ?p ?o . ?s a ?c",
    ],
)
def test_a_word_that_somebody_knows(path):
    assert [each for each in said(path) if each[0].startswith("neither")] == []


def test_each_word_is_told_once():
    assert len(said("?e :flw ?f . ?e :flw ?g . OPTIONAL {?e :flw 3}")) == 1


def test_without_knowledge_the_words_of_the_annotations_are_judged():
    [first, second] = said("?e :hasSuorce ?s . ?s <http://x.org/in> ?r", knowledge="")
    assert first == ("no annotation has the property :hasSuorce", ":hasSuorce", "did you mean :hasSource?")
    assert second[0] == "no annotation has the property <http://x.org/in>"
    assert second[2] == "no knowledge is given: name its files with --knowledge"


def test_where_nothing_is_known_nothing_is_judged():
    assert said("?e :hasSuorce ?s . ?s a :Ofice", knowledge="", annotations=()) == []


def test_a_warning_stops_nothing():
    query = "SELECT ?e.sensor FROM (?e, s) PATH {?e :hasSource ?s . MINUS {?s :hasLocaton ?r}}"
    assert len(testing.run(query, EVENTS, knowledge=KNOWLEDGE, annotations=[ANNOTATION])) == 1


def test_an_update_may_bring_the_word():
    run = testing.prepare(
        "SELECT ?e.sensor FROM (?e, s) PATH {?e :hasSource/:servedBy ?x}",
        EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
    )
    assert run.matches() == []
    run.knowledge.update(add="<urn:kaicep:s1> <urn:kaicep:servedBy> <urn:kaicep:x> .")
    assert "urn:kaicep:servedBy" in {each.value for each in run.knowledge.properties() or ()}
    assert len(run.matches()) == 1
