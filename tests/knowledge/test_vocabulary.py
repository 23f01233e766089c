"""What a knowledge base speaks of, what the streams carry, and how one thing leads to another."""

from __future__ import annotations

import random

import pytest

from kaicep import testing
from kaicep.errors import Mistake
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.vocabulary import (
    KnowledgeNames,
    concepts,
    path_text,
    summary,
    undeclared_prefixes,
    ways,
)

CAMPUS = """
    @prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    @prefix owl: <http://www.w3.org/2002/07/owl#> . @prefix kai: <https://kaicep.org/ns#> .
    @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :Office rdfs:subClassOf :Room . :FacultyOffice rdfs:subClassOf :Office . :Lab rdfs:subClassOf :Room .
    :Report rdfs:subClassOf :Event . :Alarm rdfs:subClassOf :Event .
    :flow rdfs:subPropertyOf :measure . :pressure a owl:DatatypeProperty . :from rdfs:range :Sensor .
    :r1 a :FacultyOffice ; :of :EE ; :number "101" . :r2 a :Lab ; :of :EE, :CS ; :number "102", 103 .
    :s1 a :Sensor ; :inside :r1 ; :madeBy :acme . :s2 a :Sensor ; :inside :r2 ; :madeBy :acme .
    :s3 a :Sensor ; :inside :r2 ; :madeBy :mill . :inside rdfs:subPropertyOf :in .
    :monday { :s4 a :Sensor ; :inside :old } :monday kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
"""
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow", "y": ":flow"},
    "entities": {
        "sensorID": {"property": ":from", "iri": ":{value}"},
        "room": {"property": ":where", "lookup": ":number"},
    },
}


def opened(text=CAMPUS, reasoning="rdfs", annotation=ANNOTATION):
    knowledge = Knowledge.parse(text, "trig", reasoning)
    annotations = parse_annotations(annotation) if annotation else ()
    return knowledge, annotations, KnowledgeNames(knowledge, annotations)


def found(start, end, text=CAMPUS, reasoning="rdfs", annotation=ANNOTATION):
    knowledge, annotations, names = opened(text, reasoning, annotation)
    return [path_text(each, names) for each in ways(start, end, knowledge, annotations, names)]


# --- summary ---------------------------------------------------------------------------------------


def test_classes_have_their_instances_and_stand_below_the_next_class():
    knowledge, _, names = opened()
    shown = {
        names.text(each.name): (each.instances, [names.text(up) for up in each.above])
        for each in summary(knowledge, names).classes
    }
    assert shown == {
        ":Alarm": (0, [":Event"]),
        ":Event": (0, []),
        ":FacultyOffice": (1, [":Office"]),
        ":Lab": (1, [":Room"]),
        ":Office": (1, [":Room"]),
        ":Report": (0, [":Event"]),
        ":Room": (2, []),
        ":Sensor": (4, []),  # one of them on Monday only
    }


def test_properties_say_between_what_they_are_used():
    knowledge, _, names = opened()
    shown = {
        names.text(each.name): (each.uses, each.subjects, each.objects)
        for each in summary(knowledge, names).properties
    }
    assert shown == {
        ":flow": (0, (), ()),
        ":from": (0, (), ()),
        ":in": (4, (":Sensor",), (":Room", "(no class)")),
        ":inside": (4, (":Sensor",), (":Room", "(no class)")),
        ":madeBy": (3, (":Sensor",), ("(no class)",)),
        ":measure": (0, (), ()),
        ":number": (3, (":Room",), ("xsd:string", "xsd:integer")),
        ":of": (3, (":Room",), ("(no class)",)),
        ":pressure": (0, (), ()),
    }


def test_sizes():
    knowledge, _, names = opened()
    made = summary(knowledge, names)
    assert (made.statements, made.passing, made.reasoning) == (29, 3, "rdfs")
    assert made.closed == knowledge.closed + made.passing


@pytest.mark.parametrize("reasoning", ["none", "rdfs", "owl-rl"])
def test_cyclic_classes_are_below_what_is_above_all_of_them(reasoning):
    knowledge, _, names = opened(
        "@prefix : <urn:kaicep:> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> ."
        ":A rdfs:subClassOf :B . :B rdfs:subClassOf :A , :Top .",
        reasoning,
    )
    above = {each.name.local: [up.local for up in each.above] for each in summary(knowledge, names).classes}
    assert above == {"A": [] if reasoning == "none" else ["Top"], "B": ["Top"], "Top": []}


# --- concepts --------------------------------------------------------------------------------------


def test_concepts_are_carried_by_attributes_of_the_same_or_a_narrower_one():
    knowledge, annotations, names = opened()
    made = concepts(knowledge, annotations)
    assert {names.text(each): by for each, by in made.carriers.items()} == {
        ":flow": {"s": ("x", "y")},
        ":from": {"s": ("sensorID",)},
        ":measure": {"s": ("x", "y")},
        ":where": {"s": ("room",)},
    }
    assert made.entities == {("s", "sensorID"): 3, ("s", "room"): 2}
    assert [names.text(each) for each in made.missing] == [":pressure"]
    assert [names.text(each) for each in made.silent] == [":Alarm"]


# --- ways ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("s", ":Sensor", "?e :from ?sensor . ?sensor rdf:type :Sensor"),
        ("s", ":CS", "?e :where ?room . ?room :of :CS"),  # the room itself is nearer than the sensor's
        ("s", ":acme", "?e :from ?sensor . ?sensor :madeBy :acme"),
        ("s", ":s1", "?e :from :s1"),
        ("s", ":number", "?e :where ?room . ?room :number ?number"),
        ("s", ":Report", "?e rdf:type :Report"),
        ("s", ":Event", "?e rdf:type :Event"),
        ("s", ":measure", "?e :measure ?measure"),
        ("s", "<http://cei.usc.edu/Event.owl#hasTime>", "?e <http://cei.usc.edu/Event.owl#hasTime> ?time"),
        (":Sensor", ":mill", "?sensor rdf:type :Sensor . ?sensor :madeBy :mill"),
        (":Sensor", ":s3", ":s3 rdf:type :Sensor"),
        (":s2", ":s3", ":s2 :in ?lab . :s3 :in ?lab"),
        (":CS", ":mill", "?lab :of :CS . ?sensor :in ?lab . ?sensor :madeBy :mill"),
        ("urn:kaicep:s1", ":Room", ":s1 :in ?room . ?room rdf:type :Room"),
    ],
)
def test_the_best_way(start, end, expected):
    assert found(start, end)[0] == f"PATH {{{expected}}}"


def test_alternatives_are_longer_by_one_step_at_most_and_none_goes_back_and_forth():
    assert found("s", ":Office") == [
        "PATH {?e :where ?room . ?room rdf:type :Office}",
        "PATH {?e :from ?sensor . ?sensor :in ?office . ?office rdf:type :Office}",
    ]


def test_there_are_three_ways_at_most_forward_before_backward_and_the_commoner_first():
    text = """
        @prefix : <urn:kaicep:> .
        :a a :A ; :p :c ; :q :c . :b a :A ; :q :c . :c :r :a .
        :a :u :c . :b :u :c . :c :v :b .
    """
    assert found(":A", ":c", text, annotation=None) == [
        "PATH {?a rdf:type :A . ?a :q :c}",
        "PATH {?a rdf:type :A . ?a :p :c}",
        "PATH {?a rdf:type :A . :c :v ?a}",
    ]  # here :u says what :q says, and :r from behind what :p says


def test_a_way_through_what_everything_belongs_to_comes_last():
    units = "".join(
        f":z{n} a :Temperature ; :atSite :campus ; :pointOf :vav{n} ."
        f":d{n} a :Damper ; :atSite :campus ; :pointOf :vav{n} ."
        f":vav{n} :partOf :ahu{n // 4} ; :atSite :campus ."
        f":m{n // 4} a :Meter ; :atSite :campus ; :measures :ahu{n // 4} ."
        for n in range(12)
    )
    pair, hub = found(":Temperature", ":Damper", "@prefix : <urn:kaicep:> ." + units)[:2]
    assert ":pointOf ?vav" in pair or ":pointOf ?pointOf" in pair
    assert ":atSite" in hub
    best = found(":Temperature", ":Meter", "@prefix : <urn:kaicep:> ." + units)[0]
    assert ":partOf" in best
    assert ":atSite" not in best


def test_a_way_holds_at_one_instant_the_latest_that_has_one():
    text = """
        @prefix : <urn:kaicep:> . @prefix kai: <https://kaicep.org/ns#> .
        @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
        :before { :s1 :in :r1 . :r2 :of :CS . :old :of :EE . :s1 :near :old }
        :after { :s1 :in :r2 . :r1 :of :CS }
        :before kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
        :after kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime .
    """
    assert found(":s1", ":r1", text, annotation=None) == ["PATH {:s1 :in :r1}"]
    assert found(":s1", ":EE", text, annotation=None) == ["PATH {:s1 :near ?near . ?near :of :EE}"]
    assert found(":s1", ":CS", text, annotation=None) == []  # never in a room of CS at the time


def test_reasoning_decides_what_leads_where():
    assert found("s", ":Event", reasoning="none") == ["PATH {?e rdf:type :Event}"]  # static semantics
    assert found(":s1", ":Room", reasoning="none") == []
    assert found(":s1", ":FacultyOffice", reasoning="none") == [
        "PATH {:s1 :inside ?facultyOffice . ?facultyOffice rdf:type :FacultyOffice}"
    ]


def test_a_prefix_that_only_the_files_have_must_be_declared():
    knowledge, _, names = opened(annotation=None)
    assert undeclared_prefixes(ways(":s1", ":Room", knowledge, (), names), names) == {"": "urn:kaicep:"}
    knowledge, annotations, names = opened()
    assert undeclared_prefixes(ways(":s1", ":Room", knowledge, annotations, names), names) == {}


@pytest.mark.parametrize("seed", range(60))
def test_a_way_is_true_of_as_many_things_as_it_says(seed):
    """Small random graphs: the printed PATH parses, and holds for the events it should."""
    chance = random.Random(seed)
    things = [f":n{number}" for number in range(9)]
    rows = {
        f"{chance.choice(things)} {chance.choice([':p', ':q', ':r'])} {chance.choice(things)} ."
        for _ in range(chance.randrange(4, 14))
    }
    rows |= {f"{each} a :{chance.choice('AAB')} ." for each in things}
    text = "@prefix : <urn:kaicep:> .\n" + "\n".join(sorted(rows))
    annotation = {
        "stream": "s",
        "prefixes": {"": "urn:kaicep:"},
        "entities": {"node": {"property": ":at", "iri": ":{value}"}},
    }
    knowledge, annotations, names = opened(text, annotation=annotation)
    events = "ts | node\n" + "\n".join(f"{at} | {each[1:]}" for at, each in enumerate(things))
    for start, end in ((one, other) for one in ("s", ":A", ":n0") for other in (":n3", ":B", ":n5")):
        for way in ways(start, end, knowledge, annotations, names):
            query = f"SELECT ?e.node FROM (?e, s) {path_text(way, names)}"
            matches = testing.run(query, events, knowledge=text, annotations=[annotation])
            assert way.holds
            # A PATH that does not speak of the event holds for all of them or for none.
            assert len(matches) == (way.holds if start == "s" else len(things)), query


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "message", "hint"),
    [
        ("s", ":Ofice", "the knowledge does not have :Ofice", "did you mean :Office"),
        ("s", "x:Office", "unknown prefix x: in x:Office", "did you mean xsd: or :?"),
        ("s", "office", "office is not a name of the knowledge", "did you mean :Office?"),
        ("s", "zzz", "zzz is not a name of the knowledge", "write prefix:name, or a whole IRI"),
        ("ss", ":Office", "ss is neither a stream nor a name of the knowledge", "did you mean s?"),
        (":s1", ":s1", ":s1 and <urn:kaicep:s1> are the same", ""),
        (":of", ":Room", ":of is a property", "a way begins with a thing, a class or a stream"),
    ],
)
def test_a_wrong_name_is_told(start, end, message, hint):
    with pytest.raises(Mistake) as caught:
        found(start, "<urn:kaicep:s1>" if end == ":s1" else end)
    assert message in str(caught.value)
    assert hint in str(caught.value)
