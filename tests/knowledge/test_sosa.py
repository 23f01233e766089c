"""Observations in SOSA/SSN terms: the event is a sosa:Observation, its annotation says so."""

from __future__ import annotations

import pytest
from tests.optimize.compiled import compiled

from kaicep import testing

GREENHOUSE = """
    @prefix sosa: <http://www.w3.org/ns/sosa/> .
    @prefix ssn: <http://www.w3.org/ns/ssn/> .
    @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix g: <urn:greenhouse:> .

    g:Hygrometer rdfs:subClassOf sosa:Sensor . g:Thermometer rdfs:subClassOf sosa:Sensor .
    g:SoilMoisture rdfs:subPropertyOf g:moisture .
    sosa:madeBySensor rdfs:range sosa:Sensor .

    g:h1 a g:Hygrometer ; sosa:observes g:humidity ; sosa:isHostedBy g:north .
    g:h2 a g:Hygrometer ; sosa:observes g:humidity ; sosa:isHostedBy g:south .
    g:t1 a g:Thermometer ; sosa:observes g:temperature ; sosa:isHostedBy g:north .
    g:x1 sosa:observes g:temperature .
    g:north a sosa:Platform ; ssn:inDeployment g:spring .
    g:south a sosa:Platform .

    g:bed1 a g:Bed ; sosa:isSampleOf g:field ; g:grows g:tomato ; g:driest 40 .
    g:bed2 a g:Bed ; sosa:isSampleOf g:field ; g:grows g:cactus ; g:driest 5.5 .
    g:humidity a sosa:ObservableProperty ; rdfs:label "humidity"@en .
    g:temperature a sosa:ObservableProperty .
"""
ANNOTATION = {
    "stream": "s",
    "prefixes": {
        "sosa": "http://www.w3.org/ns/sosa/",
        "ssn": "http://www.w3.org/ns/ssn/",
        "g": "urn:greenhouse:",
    },
    "class": "sosa:Observation",
    "attributes": {"result": "sosa:hasSimpleResult"},
    "entities": {
        "sensor": {"property": "sosa:madeBySensor", "iri": "g:{value}"},
        "bed": {"property": "sosa:hasFeatureOfInterest", "iri": "g:{value}"},
        "what": {"property": "sosa:observedProperty", "iri": "g:{value}"},
    },
}
OBSERVATIONS = """
    event | ts | sensor | bed  | what        | result
    wet   | 0  | h1     | bed1 | humidity    | 62.0
    dry   | 1  | h1     | bed1 | humidity    | 38.0
    sand  | 2  | h2     | bed2 | humidity    | 38.0
    warm  | 3  | t1     | bed1 | temperature | 31.5
    odd   | 4  | x1     |      | temperature | 12.0
    lost  | 5  | h9     | bed2 | humidity    | 1.0
"""


def judged(query, expect, reasoning="rdfs"):
    """The judge's matches are the expected ones, in any order of arrival, and the compiled plan's too."""
    given = {"knowledge": GREENHOUSE, "annotations": [ANNOTATION], "reasoning": reasoning}
    testing.check(query, OBSERVATIONS, expect, **given)
    case = testing.prepare(query, OBSERVATIONS, **given)
    assert case.warnings == ()
    assert [each.to_json() for each in compiled(case)] == [each.to_json() for each in case.matches()]


@pytest.mark.parametrize(
    ("path", "events"),
    [
        ("?e a sosa:Observation", "wet dry sand warm odd lost"),
        ("?e sosa:madeBySensor ?s . ?s a g:Hygrometer", "wet dry sand"),
        ("?e sosa:madeBySensor ?s . ?s a sosa:Sensor", "wet dry sand warm odd"),  # x1 by the range alone
        ("?e sosa:observedProperty g:humidity", "wet dry sand lost"),
        ("?e sosa:madeBySensor/sosa:observes ?p . ?e sosa:observedProperty ?p", "wet dry sand warm odd"),
        ("?e sosa:hasFeatureOfInterest/g:grows g:tomato", "wet dry warm"),
        ("?e sosa:madeBySensor/sosa:isHostedBy/ssn:inDeployment g:spring", "wet dry warm"),
        ("?e sosa:hasSimpleResult ?r . FILTER (?r > 35)", "wet dry sand"),
        ("FILTER NOT EXISTS {?e sosa:hasFeatureOfInterest ?bed}", "odd"),
        ('?e sosa:observedProperty/rdfs:label "humidity"@en', "wet dry sand lost"),
    ],
)
def test_an_observation_is_judged_by_what_it_is_about(path, events):
    judged(f"SELECT ?e.sensor PATH {{{path}}}", "?e\n" + "\n".join(events.split()))


def test_a_result_is_compared_with_what_its_feature_of_interest_bears():
    """An integer and a decimal of the knowledge, a double of the stream."""
    judged(
        """
        SELECT ?bed, ?e.sosa:hasSimpleResult AS humidity
        PATH {?e sosa:observedProperty g:humidity ; sosa:hasSimpleResult ?r ; sosa:hasFeatureOfInterest ?bed .
              ?bed g:driest ?least . FILTER (?r < ?least)}
        """,
        "?e | bed | humidity\n dry | urn:greenhouse:bed1 | 38\n lost | urn:greenhouse:bed2 | 1",
    )


def test_two_observations_of_one_feature():
    """It grows dry in a bed, and then warm in the same one."""
    judged(
        """
        SELECT ?bed FROM (?dry, s), (?warm, s) FILTER (?dry.result < 40) FILTER (?warm.result > 30)
        SEQ (?dry, ?warm) WINDOW (?dry, ?warm, 1min)
        PATH {?dry sosa:observedProperty g:humidity ; sosa:hasFeatureOfInterest ?bed .
              ?warm sosa:observedProperty g:temperature ; sosa:hasFeatureOfInterest ?bed}
        """,
        "?dry | ?warm | bed\n dry | warm | urn:greenhouse:bed1",
    )
