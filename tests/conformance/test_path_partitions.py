"""PARTITION BY a variable of the PATH."""

from __future__ import annotations

# s1 is in two rooms; d2 is the door of r2; s9 is nowhere.
KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :s1 :in :r1, :r2 . :s2 :in :r2 . :s3 :in :r1 . :s9 :kind :Mobile .
    :d1 :opens :r1 . :d2 :opens :r2 . :r1 :floor :f . :r2 :floor :f .
"""
ANNOTATIONS = [
    {
        "stream": name,
        "prefixes": {"": "urn:kaicep:"},
        "entities": {"id": {"property": ":from", "iri": ":{value}"}},
    }
    for name in ("s", "door")
]
EVENTS = """
    event | ts | id | x
    e1    | 0  | s1 | 1
    e2    | 1  | s3 | 2
    e3    | 2  | s9 | 3
    e4    | 3  | s2 | 4
    e5    | 4  | s1 | 5
"""
PAIR = "FROM (?a, s), (?b, s) SEQ (?a, ?b)"
ROOM = "PATH {?a :from ?p . ?p :in ?room . ?b :from ?q . ?q :in ?room}"


def found(check, query, expect, events=EVENTS):
    check(query, events=events, expect=expect, knowledge=KNOWLEDGE, annotations=ANNOTATIONS)


def test_contiguity_is_inside_the_partition(check):
    # In r1 there are e1, e2, e5; in r2 e1, e4, e5; e3 is nowhere.
    found(
        check,
        f"SELECT ?room {PAIR} {ROOM} MATCH strict PARTITION BY ?room",
        """
        ?a | ?b | room
        e1 | e2 | urn:kaicep:r1
        e2 | e5 | urn:kaicep:r1
        e1 | e4 | urn:kaicep:r2
        e4 | e5 | urn:kaicep:r2
        """,
    )


def test_the_same_events_in_two_partitions_are_two_matches(check):
    found(
        check,
        f"SELECT ?a.x {PAIR} {ROOM} FILTER (?a.id = 's1') FILTER (?b.id = 's1') PARTITION BY ?room",
        "?a | ?b\n e1 | e5\n e1 | e5",
    )


def test_a_filter_that_speaks_of_both_events_ties_nothing(check):
    path = ROOM.replace("?q :in ?room}", "?q :in ?room . FILTER (?p != ?q)}")
    found(
        check,
        f"SELECT ?room {PAIR} {path} MATCH strict PARTITION BY ?room",
        """
        ?a | ?b | room
        e1 | e2 | urn:kaicep:r1
        e2 | e5 | urn:kaicep:r1
        e1 | e4 | urn:kaicep:r2
        e4 | e5 | urn:kaicep:r2
        """,
    )


def test_skipping_is_inside_the_partition(check):
    found(
        check,
        f"SELECT ?room {PAIR} {ROOM} PARTITION BY ?room AFTER MATCH SKIP PAST LAST",
        "?a | ?b | room\n e1 | e2 | urn:kaicep:r1\n e1 | e4 | urn:kaicep:r2",
    )


def test_absence_is_inside_the_partition(check):
    query = """
        SELECT ?a.x FROM (?a, s), (?n, s), (?b, s) FILTER (?n.x = {}) SEQ (?a, !?n, ?b)
        FILTER (?a.x = 1) FILTER (?b.x = 5)
        PATH {{?a :from/:in ?room}} PATH {{?b :from/:in ?room}} PATH {{?n :from/:in ?room}} PARTITION BY ?room
    """
    found(check, query.format(2), "?a | ?b\n e1 | e5")
    found(check, query.format(3), "?a | ?b\n e1 | e5\n e1 | e5")


def test_the_part_of_each_variable_may_be_another_one(check):
    found(
        check,
        """SELECT ?room FROM (?a, s), (?d, door) SEQ (?a, ?d) MATCH strict
           PATH {?a :from/:in ?room . ?d :from/:opens ?room} PARTITION BY ?room""",
        "?a | ?d | room\n e2 | o1 | urn:kaicep:r1\n e4 | o2 | urn:kaicep:r2",
        {"s": EVENTS, "door": "event | ts | id\n o1 | 1.5 | d1\n o2 | 3.5 | d2"},
    )


def test_a_way_may_lead_on_from_another_key(check):
    path = ROOM.replace("}", " . ?room :floor ?floor}")
    found(
        check,
        f"SELECT ?floor {PAIR} {path} MATCH strict PARTITION BY ?floor",
        """
        ?a | ?b | floor
        e1 | e2 | urn:kaicep:f
        e4 | e5 | urn:kaicep:f
        """,
    )


def test_an_attribute_may_stand_beside_it(check):
    found(
        check,
        f"SELECT ?room {PAIR} {ROOM} MATCH strict PARTITION BY ?room, ?a.id",
        "?a | ?b | room\n e1 | e5 | urn:kaicep:r1\n e1 | e5 | urn:kaicep:r2",
    )


def test_a_latest_event_is_of_any_partition_and_its_path_speaks_of_this_one(check):
    found(
        check,
        """SELECT ?room FROM (?a, s), LATEST (?d, door)
           PATH {?a :from/:in ?room} PATH {?d :from/:opens ?room} PARTITION BY ?room""",
        """
        ?a | ?d | room
        e4 | o2 | urn:kaicep:r2
        e5 | o1 | urn:kaicep:r1
        e5 | o2 | urn:kaicep:r2
        """,
        {"s": EVENTS, "door": "event | ts | id\n o1 | 3.5 | d1\n o2 | 2.5 | d2"},
    )
