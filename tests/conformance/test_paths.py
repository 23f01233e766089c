"""PATH: what the knowledge base says about an event."""

from __future__ import annotations

import pytest

KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
    :Office rdfs:subClassOf :Room . :FacultyOffice rdfs:subClassOf :Office . :Lab rdfs:subClassOf :Room .
    :r1 a :FacultyOffice ; :of :EE . :r2 a :Lab ; :of :EE, :CS . :r3 a :Office ; :of :CS .
    :s1 :in :r1 . :s2 :in :r2 . :s3 :in :r3 . :s4 :in :r1 .
    :limit :value 500 . :flow rdfs:subPropertyOf :measure .
"""
ANNOTATION = {
    "stream": "s",
    "class": ":Report",
    "prefixes": {"": "urn:kaicep:"},
    "attributes": {"x": ":flow"},
    "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
}
EVENTS = """
    event | ts | sensor | x
    e1    | 0  | s1     | 510.0
    e2    | 1  | s2     | 490.0
    e3    | 2  | s3     | 700.0
    e9    | 3  | s9     | 900.0
"""


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("?e :from ?s . ?s :in ?r . ?r a :Office", "e1 e3"),  # through a subclass
        ("?e :from/:in ?r . ?r a :Room ; :of :CS", "e2 e3"),
        ("?e :from ?s . ?s :in/:of ?d . FILTER (?d = :EE)", "e1 e2"),
        ("?e :from ?s . ?s :in ?r . OPTIONAL {?r a :Lab . ?r :of ?d} FILTER (!BOUND(?d))", "e1 e3"),
        ("?e :from ?s . ?s :in ?r . {?r a :Lab} UNION {?r a :FacultyOffice}", "e1 e2"),
        ("?e :from ?s . ?s :in ?r . MINUS {?r :of :CS}", "e1"),
        ("?e :from ?s . ?s :in ?r . FILTER NOT EXISTS {?r :of :CS}", "e1"),
        ("?e :from ?s . VALUES ?s {:s1 :s2}", "e1 e2"),
        ("?e :flow ?x . :limit :value ?v . FILTER (?x > ?v) ?e :from ?s . ?s :in ?r", "e1 e3"),
        ("?e :measure ?x . FILTER (?x > 600)", "e3 e9"),  # through a subproperty
        ("?e a :Report", "e1 e2 e3 e9"),
        ("?e a :Room", ""),
        ("?e :from ?s", "e1 e2 e3"),  # s9 is unknown: nothing about it is true
        ("FILTER NOT EXISTS {?e :from ?s}", ""),  # not even that it has no source
        (
            (
                "?e <http://cei.usc.edu/Event.owl#hasTime> ?t ."
                " FILTER (?t > '1970-01-01T00:00:01Z'^^xsd:dateTime)"
            ),
            "e3 e9",
        ),
    ],
)
def test_a_path_judges_an_event(check, path, rows):
    check(
        f"SELECT ?e.sensor PATH {{ {path} }}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="?e\n" + "\n".join(rows.split()),
    )


def test_a_selected_variable_gives_one_match_for_each_solution(check):
    check(
        "SELECT ?e.sensor, ?d PATH {?e :from ?s . ?s :in ?r . ?r :of ?d}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="""
            ?e | d
            e1 | urn:kaicep:EE
            e2 | urn:kaicep:EE
            e2 | urn:kaicep:CS
            e3 | urn:kaicep:CS
        """,
    )


def test_blocks_join_on_their_variables_and_or_is_weaker_than_and(check):
    query = """
        SELECT ?e.sensor
        PATH {?e :from ?s . ?s :in ?r} AND PATH {?r a :Lab}
        OR PATH {?e :from :s3}
    """
    check(query, events=EVENTS, knowledge=KNOWLEDGE, annotations=[ANNOTATION], expect="?e\n e2\n e3")


def test_a_path_may_tie_two_events(check):
    check(
        """
        SELECT ?r FROM (?a, s), (?b, s) SEQ (?a, ?b) JOIN (?a.sensor != ?b.sensor) WINDOW (?a, ?b, 1min)
        PATH {?a :from ?s . ?s :in ?r . ?b :from ?q . ?q :in ?r}
        """,
        events=EVENTS + "    e4 | 5 | s4 | 1.0\n",
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="?a | ?b | r\n e1 | e4 | urn:kaicep:r1",
    )


def test_a_path_holds_for_every_round_of_a_loop(check):
    check(
        """
        SELECT COUNT(?b) AS n FROM (?b, s) SEQ (?b{2}) WINDOW (?b, 1min)
        PATH {?b :from ?s . ?s :in ?r . ?r :of :CS}
        """,
        events=EVENTS,
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="?b | n\n e2 e3 | 2",
    )


def test_an_absence_may_have_a_path(check):
    check(
        """
        SELECT ?a.sensor FROM (?a, s), (?n, s), (?b, s)
        FILTER (?a.sensor = 's1') FILTER (?b.sensor = 's3') SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 1min)
        PATH {?n :from ?s . ?s :in ?r . ?r a :Lab}
        """,
        events="event | ts | sensor | x\n a1 | 0 | s1 | 1.0\n n1 | 1 | s2 | 1.0\n b1 | 2 | s3 | 1.0\n"
        " a2 | 10 | s1 | 1.0\n n2 | 11 | s4 | 1.0\n b2 | 12 | s3 | 1.0",
        knowledge=KNOWLEDGE,
        annotations=[ANNOTATION],
        expect="?a | ?b\n a2 | b2",
    )


def test_without_reasoning_only_what_is_stated_holds(check):
    check(
        "SELECT ?e.sensor PATH {?e :from ?s . ?s :in ?r . ?r a :Office}",
        events=EVENTS,
        knowledge=KNOWLEDGE,
        reasoning="none",
        annotations=[ANNOTATION],
        expect="?e\n e3",
    )


def test_an_entity_may_be_looked_up(check):
    check(
        "SELECT ?e.tag, ?r PATH {?e :from ?s . ?s :in ?r}",
        events="event | ts | tag\n e1 | 0 | T-17\n e2 | 1 | T-99",
        knowledge=KNOWLEDGE + ':s1 :tag "T-17" .',
        annotations=[
            {
                "stream": "s",
                "prefixes": {"": "urn:kaicep:"},
                "entities": {"tag": {"property": ":from", "lookup": ":tag"}},
            }
        ],
        expect="?e | r\n e1 | urn:kaicep:r1",
    )


LOOKED_UP = """
    @prefix : <urn:kaicep:> .
    :s1 :in :r1 ; :ref [ :id "T-17" ] ; :device 12 ; :object "AI,7" .
    :s2 :in :r2 ; :ref [ :id "T-18" ] ; :device 12 ; :object "AI,8" .
    :s3 :in :r3 ; :device 13 ; :object "AI,7" .
"""


def looked_up(check, entity, events, expect):
    said = {"stream": "s", "prefixes": {"": "urn:kaicep:"}, "entities": {"point": entity}}
    query = "SELECT ?r PATH {?e :from ?s . ?s :in ?r}"
    check(query, events=events, knowledge=LOOKED_UP, annotations=[said], expect=expect)


def test_a_lookup_may_be_a_property_path(check):
    looked_up(
        check,
        {"property": ":from", "lookup": ":ref/:id"},
        "event | ts | point\n e1 | 0 | T-18\n e2 | 1 | T-99\n e3 | 2 |\n e4 | 3 | T-17",
        "?e | r\n e1 | urn:kaicep:r2\n e4 | urn:kaicep:r1",
    )


def test_a_lookup_may_be_by_a_typed_literal(check):
    looked_up(
        check,
        {"property": ":from", "lookup": ":device", "datatype": "xsd:integer"},
        "event | ts | point\n e1 | 0 | 0013\n e2 | 1 | x",
        "?e | r\n e1 | urn:kaicep:r3",
    )


def test_a_lookup_may_be_by_several_attributes(check):
    looked_up(
        check,
        {
            "property": ":from",
            "attributes": ["device", "object"],
            "lookup": [":device", ":object"],
            "datatype": ["xsd:integer", None],
        },
        """
        event | ts | device | object
        e1    | 0  | 12     | AI,7
        e2    | 1  | 13     | AI,7
        e3    | 2  | 13     | AI,8
        e4    | 3  | 12     |
        e5    | 4  | 12     | AI,8
        """,
        "?e | r\n e1 | urn:kaicep:r1\n e2 | urn:kaicep:r3\n e5 | urn:kaicep:r2",
    )


def test_several_attributes_tie_two_events(check):
    check(
        "SELECT ?r JOIN (?b.object != ?a.object) SEQ (?a, ?b) PATH {?a :from/:in ?r . ?b :from/:in ?r}",
        events="event | ts | device | object\n e1 | 0 | 12 | x\n e2 | 1 | 13 | x\n e3 | 2 | 12 | y",
        knowledge="""@prefix : <urn:kaicep:> . :s1 :in :r1 ; :device 12 ; :object "x" .
            :s2 :in :r1 ; :device 12 ; :object "y" . :s3 :in :r2 ; :device 13 ; :object "x" .""",
        annotations=[
            {
                "stream": "s",
                "prefixes": {"": "urn:kaicep:"},
                "entities": {
                    "point": {
                        "property": ":from",
                        "attributes": ["device", "object"],
                        "lookup": [":device", ":object"],
                    }
                },
            }
        ],
        expect="?a | ?b | r\n e1 | e3 | urn:kaicep:r1",
    )


def test_an_entity_may_be_named_by_its_whole_iri(check):
    looked_up(
        check,
        {"property": ":from", "iri": "{value}"},
        "event | ts | point\n e1 | 0 | urn:kaicep:s2\n e2 | 1 | urn:kaicep:s9\n e3 | 2 | s1",
        "?e | r\n e1 | urn:kaicep:r2",
    )


def test_a_concept_reads_whichever_attribute_carries_it(check):
    check(
        "SELECT ?e.:measure AS m FROM (?e, :Report) FILTER (?e.:measure > 1)",
        events={
            "p": "event | ts | flowrate | backup\n p1 | 0 | 5.0 | 9.0\n p2 | 1 | | 7.0\n p3 | 2 | |",
            "q": "event | ts | vol\n q1 | 3 | 6\n q2 | 4 | 1",
        },
        knowledge=KNOWLEDGE + ":PReport <http://www.w3.org/2000/01/rdf-schema#subClassOf> :Report .",
        annotations=[
            {
                "stream": "p",
                "class": ":PReport",
                "prefixes": {"": "urn:kaicep:"},
                "attributes": {"flowrate": ":flow", "backup": ":flow"},
            },
            {
                "stream": "q",
                "class": ":Report",
                "attributes": {"vol": ":measure"},
                "prefixes": {"": "urn:kaicep:"},
            },
        ],
        expect="?e | m\n p1 | 5\n p2 | 7\n q1 | 6",
    )


MOVED = """
    @prefix : <urn:kaicep:> . @prefix kai: <https://kaicep.org/ns#> .
    @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    :old a :Office . :new a :Lab . :s2 :in :new .
    :monday { :s1 :in :old } :tuesday { :s1 :in :new }
    :monday kai:validTo "2012-05-08T00:00:00Z"^^xsd:dateTime .
    :tuesday kai:validFrom "2012-05-08T00:00:00Z"^^xsd:dateTime .
"""


def test_an_event_is_judged_by_what_held_at_its_own_time(check):
    check(
        "SELECT ?r PATH {?e :from ?s . ?s :in ?r}",
        events="""
            event | ts                  | sensor
            e1    | 2012-05-07T23:59:59 | s1
            e2    | 2012-05-08T00:00:00 | s1
            e3    | 2012-05-08T00:00:01 | s2
        """,
        annotations=[ANNOTATION],
        knowledge=MOVED,
        expect="""
            ?e | r
            e1 | urn:kaicep:old
            e2 | urn:kaicep:new
            e3 | urn:kaicep:new
        """,
    )


def test_a_constant_may_be_another_one_at_another_time(check):
    check(
        "SELECT ?e.x PATH {?e :flow ?x . :limit :value ?v . FILTER (?x > ?v)}",
        events="""
            event | ts                  | sensor | x
            e1    | 2012-05-07T23:00:00 | s1     | 7.0
            e2    | 2012-05-07T23:59:59 | s1     | 4.0
            e3    | 2012-05-08T00:00:00 | s1     | 7.0
            e4    | 2012-05-08T00:00:01 | s1     | 12.0
        """,
        annotations=[ANNOTATION],
        knowledge=MOVED.replace(":s1 :in :old", ":limit :value 5").replace(":s1 :in :new", ":limit :value 10")
        + ":s1 :in :new .",
        expect="?e | x\n e1 | 7.0\n e4 | 12.0",
    )


def test_a_path_about_several_events_is_judged_by_what_held_at_the_last_of_them(check):
    check(
        """
        SELECT ?r FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 1d)
        PATH {?a :from ?s . ?s :in ?r . ?b :from ?q . ?q :in ?r}
        """,
        events="""
            event | ts                  | sensor
            e1    | 2012-05-07T23:00:00 | s1
            e2    | 2012-05-07T23:30:00 | s2
            e3    | 2012-05-08T00:30:00 | s2
        """,
        annotations=[ANNOTATION],
        knowledge=MOVED,
        expect="""
            ?a | ?b | r
            e1 | e3 | urn:kaicep:new
            e2 | e3 | urn:kaicep:new
        """,
    )
