"""A PATH that holds for nothing: the pattern that fails first, and the closest thing that exists."""

from __future__ import annotations

import pytest

from kaicep import testing
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import path_warnings

KNOWLEDGE = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> .
    :Office rdfs:subClassOf :Room . :Lab rdfs:subClassOf :Room . :Meter rdfs:subClassOf :Device .
    :Sensor rdfs:subClassOf :Device . :CO2Sensor rdfs:subClassOf :Sensor .
    :s1 a :Sensor ; :in :r1 . :s2 a :Sensor ; :in :r2 . :m1 a :Meter .
    :r1 a :Lab ; :of :EE . :r2 a :Room ; :of :CE . :r1 :feeds :r2 .
    :near a owl:ObjectProperty . :hosts owl:inverseOf :in . :Busy owl:equivalentClass [ owl:unionOf (:Lab) ] .
"""
ANNOTATION = {
    "stream": "s",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow"},
    "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
    "types": {"x": "float64", "sensor": "string"},
}


def warnings(path: str, reasoning: str = "rdfs", knowledge: str = KNOWLEDGE):
    query = f"SELECT ?e.x FROM (?e, s) {path}"
    run = testing.prepare(
        query,
        "ts | sensor | x\n 0 | s1 | 1.0",
        knowledge=knowledge,
        reasoning=reasoning,
        annotations=[ANNOTATION],
    )
    if run.said():
        assert not run.matches("reference")
    return [
        (
            each.message.removeprefix("the PATH holds for nothing: "),
            query[each.span.start : each.span.end],
            each.hint,
        )
        for each in run.said()
        if each.span is not None
    ]


def test_a_path_that_holds_is_no_reason_for_a_warning():
    assert not warnings("PATH {?e :from ?s . ?s :in ?r . ?r a :Room . ?e :flow ?v . FILTER (?v > 100)}")


@pytest.mark.parametrize(
    ("pattern", "said", "hint"),
    [
        ("?s a :CO2Sensor", "has no answer", "of the wider class :Sensor there are 2"),
        ("?s :in ?r . ?r :of :EEE", "has no answer", "did you mean :EE (1 triple)?"),
        ("?s :near ?r", "has no answer", None),
        ("?r :hosts ?s", "has no answer", "it follows under OWL 2 RL: ask with --reasoning owl-rl"),
        (
            "?s :in ?r . ?r a :Office",
            "has no answer",
            "of the wider class :Room there are 2",
        ),
        (
            "?s a :Meter",
            "has no answer",
            "",
        ),
    ],
)
def test_the_pattern_that_fails_first(pattern, said, hint):
    found = warnings(f"PATH {{?e :from ?s . {pattern}}}")
    if hint == "":
        assert not found  # m1 is one, and an event may name it
        return
    ((message, place, closest),) = found
    last = pattern.rpartition(" . ")[2]
    assert message == f"{last.replace(' a ', ' rdf:type ')} {said}"
    assert place == last
    assert closest == hint


def test_patterns_that_hold_only_apart():
    ((message, place, hint),) = warnings("PATH {?e :from ?s . ?s :in ?r . ?r a :Lab . ?r :of :CE}")
    assert message == "?r :of :CE has answers, but none together with ?s :in ?r . ?r rdf:type :Lab"
    assert place == "?r :of :CE"
    ((_, _, hint),) = warnings("PATH {?e :from ?s . ?s :in ?r . ?r a :Sensor}")
    assert hint == "?r may be: 1 :Lab, 1 :Room"
    ((_, _, hint),) = warnings("PATH {?e :from ?s . ?s :in ?r . ?r :of :CE . ?r :feeds ?q}")
    assert hint == "it has answers the other way round: ^:feeds"


def test_a_pair_of_events():
    ((message, _, _),) = warnings(
        ", (?f, s) SEQ (?e, ?f) WINDOW (?e, ?f, 1min)"
        "PATH {?e :from ?s . ?s :in ?r . ?f :from ?t . ?t :in ?r . ?t a :Meter}"
    )
    assert message.startswith("?t rdf:type :Meter has answers, but none together with")


def test_what_holds_for_a_time_is_there():
    timed = (
        KNOWLEDGE
        + """
        :then { :s1 :near :r1 . }
        @prefix kai: <https://kaicep.org/ns#> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
        :then kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
    """
    )
    case = testing.prepare(
        "SELECT ?e.x FROM (?e, s) PATH {?e :from ?s . ?s :near ?r}",
        "ts | sensor | x\n 0 | s1 | 1.0",
        annotations=[ANNOTATION],
    )
    knowledge = Knowledge.parse(timed, format="trig")
    assert not path_warnings(case.program.chi_plans[0], case.catalog, knowledge)
