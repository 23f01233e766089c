"""A building described in Brick: annotations are all that it takes to query its points."""

from __future__ import annotations

import pytest
from tests.optimize.compiled import compiled

from kaicep import testing

BUILDING = """
    @prefix brick: <https://brickschema.org/schema/Brick#> .
    @prefix ref: <https://brickschema.org/schema/Brick/ref#> .
    @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    @prefix b: <urn:building:> .

    brick:Air_Flow_Sensor rdfs:subClassOf brick:Flow_Sensor .
    brick:Supply_Air_Flow_Sensor rdfs:subClassOf brick:Air_Flow_Sensor .
    brick:Flow_Sensor rdfs:subClassOf brick:Sensor .
    brick:Zone_Air_Temperature_Sensor rdfs:subClassOf brick:Sensor .
    brick:Sensor rdfs:subClassOf brick:Point .
    brick:isPointOf owl:inverseOf brick:hasPoint .

    # An air handler feeds two boxes and, through a third, a box behind it. The pump feeds no air.
    b:ahu a brick:AHU ; brick:feeds b:vav1, b:vav2, b:duct .
    b:duct a brick:VAV ; brick:feeds b:vav3 .
    b:vav1 a brick:VAV ; brick:feeds b:lobby .
    b:vav2 a brick:VAV ; brick:feeds b:lab .
    b:vav3 a brick:VAV ; brick:feeds b:attic .
    b:pump a brick:Pump ; brick:hasLocation b:cellar ; brick:hasPoint b:p1 .
    b:lobby a brick:HVAC_Zone . b:lab a brick:HVAC_Zone . b:attic a brick:HVAC_Zone .
    b:cellar a brick:Room ; brick:isPartOf b:floor0 .

    b:f0 a brick:Supply_Air_Flow_Sensor ; brick:isPointOf b:ahu .
    b:f1 a brick:Supply_Air_Flow_Sensor ; brick:isPointOf b:vav1 .
    b:f2 a brick:Air_Flow_Sensor ; brick:isPointOf b:vav2 .
    b:f3 a brick:Air_Flow_Sensor ; brick:isPointOf b:vav3 .
    b:t1 a brick:Zone_Air_Temperature_Sensor ; brick:isPointOf b:vav1 ; brick:hasLocation b:cellar .
    b:p1 a brick:Flow_Sensor ; brick:hasLocation b:cellar .

    b:f1 ref:hasExternalReference [ ref:hasTimeseriesId "17" ] .
    b:f2 ref:hasExternalReference [ ref:hasTimeseriesId "18" ] .
"""
PREFIXES = {
    "brick": "https://brickschema.org/schema/Brick#",
    "ref": "https://brickschema.org/schema/Brick/ref#",
    "b": "urn:building:",
    "evt": "http://cei.usc.edu/Event.owl#",
}
ANNOTATION = {
    "stream": "s",
    "prefixes": PREFIXES,
    "class": "evt:Reading",
    "attributes": {"value": "brick:value"},
    "entities": {"point": {"property": "evt:hasSource", "iri": "b:{value}"}},
}
READINGS = """
    event | ts | point | value
    f0    | 0  | f0    | 900.0
    f1    | 1  | f1    | 510.0
    f2    | 2  | f2    | 490.0
    f3    | 3  | f3    | 20.0
    t1    | 4  | t1    | 21.5
    p1    | 5  | p1    | 3.0
    x9    | 6  | x9    | 1.0
"""


def judged(query, expect, events=READINGS, annotations=(ANNOTATION,), reasoning="rdfs", warns=None):
    """The matches of the reference are the expected ones, in any order of arrival; the compiled plan's too.

    `warns` is the hint of the one warning that there is, if there is one.
    """
    given = {"knowledge": BUILDING, "annotations": annotations, "reasoning": reasoning}
    testing.check(query, events, expect, **given)
    case = testing.prepare(query, events, **given)
    assert [each.partition("help: ")[2] for each in case.warnings] == ([] if warns is None else [warns])
    assert [each.to_json() for each in compiled(case)] == [each.to_json() for each in case.matches()]


@pytest.mark.parametrize(
    ("path", "events"),
    [
        ("?p a brick:Air_Flow_Sensor", "f0 f1 f2 f3"),  # and what is narrower
        ("?p a brick:Supply_Air_Flow_Sensor", "f0 f1"),
        ("?p a brick:Point", "f0 f1 f2 f3 t1 p1"),
        ("?p brick:isPointOf ?x . ?x a brick:VAV", "f1 f2 f3 t1"),
        ("?p brick:hasLocation/brick:isPartOf b:floor0", "t1 p1"),
        ("?p brick:isPointOf ?x . ?x brick:feeds b:lab", "f2"),
        ("?p brick:isPointOf/brick:feeds+ b:attic", "f0 f3"),  # through two boxes
        ("?p brick:isPointOf ?x . b:ahu brick:feeds+ ?x", "f1 f2 f3 t1"),
        ("?p brick:isPointOf/^brick:feeds b:duct", "f3"),
        ("?p brick:isPointOf/brick:feeds* b:ahu", "f0"),
        ("?p a brick:Flow_Sensor . FILTER NOT EXISTS {?p brick:isPointOf ?x}", "p1"),
        ("?p brick:isPointOf|brick:hasLocation ?x . FILTER (?x IN (b:cellar, b:ahu))", "f0 t1 p1"),
    ],
)
def test_a_point_is_judged_by_its_place_in_the_building(path, events):
    judged(f"SELECT ?e.point PATH {{?e evt:hasSource ?p . {path}}}", "?e\n" + "\n".join(events.split()))


def test_a_concept_of_brick_is_read_from_the_attribute_that_carries_it():
    judged("SELECT ?e.brick:value FILTER (?e.brick:value > 500)", "?e | value\n f0 | 900\n f1 | 510")


def test_the_zones_that_a_sensor_speaks_for():
    judged(
        """
        SELECT ?zone
        PATH {?e evt:hasSource/brick:isPointOf ?x . ?x brick:feeds+ ?zone . ?zone a brick:HVAC_Zone}
        """,
        """
        ?e | zone
        f0 | urn:building:lobby
        f0 | urn:building:lab
        f0 | urn:building:attic
        f1 | urn:building:lobby
        f2 | urn:building:lab
        f3 | urn:building:attic
        t1 | urn:building:lobby
        """,
    )


def test_two_events_are_tied_by_the_way_of_the_air():
    """A sensor downstream falls below half of what the air handler it hangs on gives."""
    judged(
        """
        SELECT ?down.point FROM (?up, s), (?down, s)
        JOIN (?down.value < ?up.value / 2) SEQ (?up, ?down) WINDOW (?up, ?down, 1min)
        PATH {?up evt:hasSource/brick:isPointOf ?a . ?down evt:hasSource ?d . ?d a brick:Air_Flow_Sensor .
              ?d brick:isPointOf ?b . ?a brick:feeds+ ?b}
        """,
        "?up | ?down | point\n f0 | f3 | f3",
    )


def test_with_owl_a_point_may_be_said_from_the_other_side():
    query = "SELECT ?e.point PATH {?e evt:hasSource/brick:isPointOf b:pump}"
    judged(query, "?e", warns="it follows under OWL 2 RL: ask with --reasoning owl-rl")
    judged(query, "?e\n p1", reasoning="owl-rl")


def test_a_reading_may_name_its_point_by_a_timeseries_id():
    """The entity that is looked up is a node without a name."""
    judged(
        """
        SELECT ?p
        PATH {?e ref:hasReference ?r . ?p ref:hasExternalReference ?r . ?p a brick:Air_Flow_Sensor}
        """,
        "?e | p\n a | urn:building:f1\n b | urn:building:f2",
        events="event | ts | id\n a | 0 | 17\n b | 1 | 18\n c | 2 | 19",
        annotations=[
            {
                "stream": "s",
                "prefixes": PREFIXES,
                "types": {"id": "string"},
                "entities": {"id": {"property": "ref:hasReference", "lookup": "ref:hasTimeseriesId"}},
            }
        ],
    )
