"""Static semantics: what an annotation says of an attribute holds in FILTER, SELECT and PATH alike."""

from __future__ import annotations

import pytest

LEVELS = pytest.mark.parametrize("reasoning", ["none", "rdfs", "owl-rl"])
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    :flowA rdfs:subPropertyOf :branch . :branch rdfs:subPropertyOf :flow .
    :flowB owl:equivalentProperty :flow .
    :flow owl:sameAs :flowC .
    :on rdfs:subPropertyOf :about .
    :ReportA rdfs:subClassOf :Report . :ReportB owl:equivalentClass :Report .
    :AHU owl:equivalentClass :AirHandler . :u1 a :AirHandler . :u2 a :AHU . :u3 a :Fan . :u4 a :Fan .
"""


def annotation(stream: str, concept: str, kind: str) -> dict[str, object]:
    return {
        "stream": stream,
        "class": kind,
        "prefixes": {"": "urn:kaicep:"},
        "attributes": {"x": concept},
        "entities": {"unit": {"property": ":on", "iri": ":{value}"}},
    }


ANNOTATIONS = [
    annotation("a", ":flowA", ":ReportA"),
    annotation("b", ":flowB", ":ReportB"),
    annotation("c", ":flowC", ":Report"),
    annotation("d", ":other", ":Other"),
]
EVENTS = """
    event | stream | ts | unit | x
    a1    | a      | 0  | u1   | 7.0
    b1    | b      | 1  | u2   | 8.0
    c1    | c      | 2  | u3   | 9.0
    d1    | d      | 3  | u4   | 10.0
    a2    | a      | 4  | u1   | 1.0
"""


@LEVELS
@pytest.mark.parametrize(
    "condition",
    [
        "FILTER (?e.:flow > 5)",
        "PATH {?e :flow ?v . FILTER (?v > 5)}",
        "PATH {?e :flow ?v . ?e :about ?u . FILTER (?v > 5)}",
        "PATH {?e :about ?u . ?u a ?any} FILTER (?e.:flow > 5)",
    ],
)
def test_a_path_finds_every_attribute_that_a_filter_finds(check, condition, reasoning):
    check(
        f"SELECT ?e.x FROM (?e, a, b, c, d) {condition}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        reasoning=reasoning,
        expect="""
            ?e
            a1
            b1
            c1
        """,
    )


@LEVELS
def test_the_value_is_selected_under_each_of_its_properties(check, reasoning):
    check(
        "SELECT ?e.x, ?v FROM (?e, a, b, c, d) PATH {?e :flow ?v}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        reasoning=reasoning,
        expect="""
            ?e | v
            a1 | 7.0
            b1 | 8.0
            c1 | 9.0
            a2 | 1.0
        """,
    )


@LEVELS
def test_an_event_is_of_every_class_that_is_wider_than_its_own_or_the_same(check, reasoning):
    check(
        "SELECT ?e.x FROM (?e, a, b, c, d) PATH {?e a :Report}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        reasoning=reasoning,
        expect="""
            ?e
            a1
            b1
            c1
            a2
        """,
    )


@LEVELS
@pytest.mark.parametrize("name", ["AHU", "AirHandler"])
def test_a_class_counts_with_its_equivalent_classes(check, name, reasoning):
    check(
        f"SELECT ?e.unit FROM (?e, a, b, c, d) PATH {{?e :on ?u . ?u a :{name}}}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        reasoning=reasoning,
        expect="""
            ?e
            a1
            b1
            a2
        """,
    )
