"""LATEST: the last known event of something else."""

from __future__ import annotations

import pytest

READINGS = """
    event | ts | room | x
    e1    | 5  | a    | 1
    e2    | 10 | a    | 2
    e3    | 10 | b    | 3
    e4    | 20 | a    | 4
"""
SETPOINTS = """
    event | ts | room | v
    s1    | 0  | a    | 1
    s2    | 7  | a    | 3
    s3    | 10 | b    | 5
    s4    | 10 | a    | 2
    s5    | 15 | b    | 9
    s6    | 21 | a    | 9
"""
BOTH = {"reading": READINGS, "setpoint": SETPOINTS}
FROM = "FROM (?e, reading), LATEST (?s, setpoint)"


def test_it_is_the_last_event_no_later_than_the_match(check):
    # At one instant too, though its stream comes later in FROM: s4 and s3 are of the time of e2 and e3.
    check(
        f"SELECT ?e.x, ?s.v {FROM} JOIN (?s.room = ?e.room)",
        events=BOTH,
        expect="""
            ?e | ?s | x | v
            e1 | s1 | 1 | 1
            e2 | s4 | 2 | 2
            e3 | s3 | 3 | 5
            e4 | s4 | 4 | 2
        """,
    )


def test_without_a_key_it_is_the_last_of_all(check):
    # s3 and s4 are of one time; the order among them is that of their stream.
    check(
        f"SELECT ?s.v {FROM}",
        events=BOTH,
        expect="?e | ?s\n e1 | s1\n e2 | s4\n e3 | s4\n e4 | s5",
    )


def test_of_one_time_the_streams_count_in_the_order_of_from(check):
    check(
        "SELECT ?e.x FROM (?e, reading), LATEST (?s, second, first)",
        events={
            "first": "event | ts\n f1 | 3",
            "second": "event | ts\n g1 | 3",
            "reading": "event | ts | x\n e1 | 3 | 1",
        },
        expect="?e | ?s\n e1 | f1",
    )


def test_its_filters_decide_about_candidates(check):
    check(
        f"SELECT ?s.v {FROM} FILTER (?s.v != 2) JOIN (?s.room = ?e.room)",
        events=BOTH,
        expect="?e | ?s\n e1 | s1\n e2 | s2\n e3 | s3\n e4 | s2",
    )


@pytest.mark.parametrize(
    ("condition", "expect"),
    [
        # An equality of ?s alone and of single events is a key: s1 is found behind s2 and s4.
        ("?s.room = ?e.room && ?s.v + 1 = ?e.x", "e2 | s1\n e4 | s2"),
        ("?s.room = ?e.room && ?e.x = ?s.v + 1", "e2 | s1\n e4 | s2"),
        # Anything else is tested on the last one: e2 is left with s4.
        ("?s.room = ?e.room && ?s.v < ?e.x", "e4 | s4"),
        ("?s.room = ?e.room && ?s.v - ?e.x = 0", "e1 | s1\n e2 | s4"),
        ("?s.room = ?e.room && (?s.v = ?e.x || ?s.v > 4)", "e1 | s1\n e2 | s4\n e3 | s3"),
        # A part that is about ?s alone is its FILTER.
        ("?s.room = ?e.room && ?s.v != 2 && ?s.v > ?e.x", "e2 | s2\n e3 | s3"),
    ],
)
def test_equalities_are_keys_and_the_rest_is_tested_on_the_last_one(check, condition, expect):
    check(f"SELECT ?s.v {FROM} JOIN ({condition})", events=BOTH, expect=f"?e | ?s\n {expect}")


def test_a_window_is_tested_on_it(check):
    check(
        f"SELECT ?s.v {FROM} JOIN (?s.room = ?e.room) WINDOW (?e, ?s, 5s)",
        events=BOTH,
        expect="?e | ?s\n e1 | s1\n e2 | s4\n e3 | s3",
    )


def test_without_a_candidate_there_is_no_match(check):
    check(f"SELECT ?s.v {FROM} JOIN (?s.room = 'c')", events=BOTH, expect="?e | ?s")


def test_it_may_be_left_out(check):
    # e3 has no setpoint of 3 by then; what is said of ?s does not apply, and its value is null.
    check(
        """
        SELECT ?e.x, ?s.v FROM (?e, reading), LATEST (?s?, setpoint)
        JOIN (?s.v = ?e.x) JOIN (?s.room = ?e.room) WINDOW (?e, ?s, 1h)
        """,
        events=BOTH,
        expect="?e | ?s | v\n e1 | s1 | 1\n e2 | s4 | 2\n e3 | |\n e4 | |",
    )


def test_one_that_is_there_and_fails_is_not_left_out(check):
    check(
        """
        SELECT ?e.x FROM (?e, reading), LATEST (?s?, setpoint)
        JOIN (?s.room = ?e.room) JOIN (?s.v > ?e.x) FILTER (?s.ts > '1970-01-01T00:00:08Z')
        """,
        events=BOTH,
        expect="?e | ?s\n e1 |\n e3 | s3",
    )


def test_it_changes_neither_start_nor_end_and_takes_no_place_in_the_sequence(check):
    check(
        """
        SELECT ?s.v FROM (?a, reading), (?b, reading), LATEST (?s, setpoint)
        FILTER (?a.room = 'a') FILTER (?b.room = 'a') JOIN (?s.room = ?b.room)
        SEQ (?a, ?b) MATCH strict PARTITION BY ?a.room
        """,
        events=BOTH,
        expect="?a | ?b | ?s | start | end\n e1 | e2 | s4 | 5 | 10\n e2 | e4 | s4 | 10 | 20",
    )


def test_it_is_of_any_partition(check):
    check(
        f"SELECT ?s.v {FROM} FILTER (?s.room = 'b') PARTITION BY ?e.room",
        events=BOTH,
        expect="?e | ?s\n e2 | s3\n e3 | s3\n e4 | s5",
    )


def test_an_event_of_the_match_is_no_candidate(check):
    check(
        "SELECT ?a.x FROM (?a, reading), LATEST (?s, reading) JOIN (?s.room = ?a.room)",
        events={"reading": READINGS},
        expect="?a | ?s\n e2 | e1\n e4 | e2",
    )


def test_two_of_them_are_found_one_by_one(check):
    # A JOIN of the two is no key of either: it is tested when both are found.
    query = """
        SELECT ?e.x FROM (?e, reading), LATEST (?s, setpoint), LATEST (?t, setpoint)
        FILTER (?t.room = 'b') JOIN (?s.room = ?e.room) JOIN (?s.v {} ?t.v)
    """
    check(query.format("="), events=BOTH, expect="?e | ?s | ?t\n e3 | s3 | s3")
    check(query.format("<"), events=BOTH, expect="?e | ?s | ?t\n e2 | s4 | s3\n e4 | s4 | s5")


def test_skipping_takes_the_matches_that_have_one(check):
    # e1 and e2 would rule out e2 and e4, but there is no setpoint for them.
    check(
        """
        SELECT ?s.v FROM (?a, reading), (?b, reading), LATEST (?s, setpoint)
        FILTER (?a.room = 'a') FILTER (?b.room = 'a') JOIN (?s.ts = ?b.ts - 5s)
        SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST
        """,
        events=BOTH,
        expect="?a | ?b | ?s\n e1 | e4 | s5",
    )


def test_an_absence_may_refer_to_it(check):
    # Between the two there is e2; it is no absence for s2, whose value is 3, and one for a value of 2.
    query = """
        SELECT ?s.v FROM (?a, reading), (?n, reading), (?b, reading), LATEST (?s?, setpoint)
        FILTER (?a.x = 1) FILTER (?b.x = 4) FILTER (?s.v = {}) JOIN (?n.x = ?s.v && ?n.room = ?a.room)
        SEQ (?a, !?n, ?b)
    """
    check(query.format(3), events=BOTH, expect="?a | ?b | ?s\n e1 | e4 | s2")
    check(query.format(2), events=BOTH, expect="?a | ?b | ?s")
    # Where it is left out, the condition does not apply: any ?n of the room will do.
    check(query.format(77), events=BOTH, expect="?a | ?b | ?s")


def test_a_trailing_absence_looks_it_up_at_the_last_event(check):
    # Not at the deadline, at 15, when s5 would be the last.
    check(
        """
        SELECT ?s.v FROM (?a, reading), (?n, reading), LATEST (?s, setpoint)
        FILTER (?a.x = 3) FILTER (?n.x = 9) SEQ (?a, !?n) WINDOW (?a, ?n, 5s)
        """,
        events=BOTH,
        expect="?a | ?s | end\n e3 | s4 | 15",
    )


def test_a_loop_beside_it(check):
    # An equality with a loop is no key: it holds for every round, and is tested on the last setpoint.
    query = """
        SELECT ?s.v FROM (?b, reading), LATEST (?s, setpoint)
        FILTER (?b.room = 'a') SEQ (?b{{2}}) MATCH next JOIN ({})
    """
    check(query.format("?s.room = ?b.room"), events=BOTH, expect="?b | ?s\n e1 e2 | s4")
    check(query.format("SUM(?b.x) > ?s.v"), events=BOTH, expect="?b | ?s\n e1 e2 | s4")


def test_within_bounds_it_too(check):
    check(
        f"SELECT ?s.v {FROM} WITHIN [1970-01-01T00:00:08, ) JOIN (?s.room = ?e.room)",
        events=BOTH,
        expect="?e | ?s\n e2 | s4\n e3 | s3\n e4 | s4",
    )


KNOWLEDGE = """
    @prefix : <urn:kaicep:> .
    :e1 :in :north . :e2 :in :south . :e3 :in :north, :south .
    :p1 :for :north . :p2 :for :south . :p3 :for :south . :p4 :for :north ; :kind :Draft .
"""
ANNOTATIONS = [
    {
        "stream": "reading",
        "prefixes": {"": "urn:kaicep:"},
        "entities": {"sensor": {"property": ":from", "iri": ":{value}"}},
    },
    {
        "stream": "setpoint",
        "prefixes": {"": "urn:kaicep:"},
        "entities": {"plan": {"property": ":plan", "iri": ":{value}"}},
    },
]
PLACES = {
    "reading": """
        event | ts | sensor
        a1    | 10 | e1
        a2    | 10 | e2
        a3    | 10 | e3
    """,
    "setpoint": """
        event | ts | plan
        p1    | 1  | p1
        p2    | 2  | p2
        p3    | 3  | p3
        p4    | 4  | p4
    """,
}
ZONES = "?e :from/:in ?zone . ?s :plan/:for ?zone"


@pytest.mark.parametrize(
    ("select", "clauses", "expect"),
    [
        ("?e.sensor", f"PATH {{{ZONES}}}", "?e | ?s\n a1 | p4\n a2 | p3\n a3 | p4"),
        ("?e.sensor", f"PATH {{{ZONES}}} FILTER (?s.plan != 'p4')", "?e | ?s\n a1 | p1\n a2 | p3\n a3 | p3"),
        # Its own PATH, and one block for each of the two.
        (
            "?zone",
            """PATH {?e :from/:in ?zone} PATH {?s :plan ?p . ?p :for ?zone}
               PATH {?s :plan ?q . FILTER NOT EXISTS {?q :kind :Draft}}""",
            """
            ?e | ?s | zone
            a1 | p1 | urn:kaicep:north
            a2 | p3 | urn:kaicep:south
            a3 | p3 | urn:kaicep:south
            """,
        ),
        # A condition on a variable of the PATH belongs to it, and so decides about candidates.
        ("?e.sensor", f"PATH {{{ZONES}}} JOIN (?zone != 'urn:kaicep:north')", "?e | ?s\n a2 | p3\n a3 | p3"),
    ],
)
def test_a_path_decides_about_candidates(check, select, clauses, expect):
    check(
        f"SELECT {select} {FROM} {clauses}",
        events=PLACES,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        expect=expect,
    )


def test_what_a_path_says_of_the_others_holds_also_where_it_is_left_out(check):
    # The block about ?e alone applies, the one with ?s does not; ?zone is selected from what applies.
    check(
        """
        SELECT ?zone, ?p FROM (?e, reading), LATEST (?s?, setpoint) FILTER (?s.plan = 'p1')
        PATH {?e :from/:in ?zone} PATH {?s :plan ?p . ?p :for ?zone}
        """,
        events=PLACES,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        expect="""
            ?e | ?s | zone             | p
            a1 | p1 | urn:kaicep:north | urn:kaicep:p1
            a2 |    | urn:kaicep:south |
            a3 | p1 | urn:kaicep:north | urn:kaicep:p1
        """,
    )


def test_two_of_them_may_each_be_tied_to_the_match(check):
    check(
        """
        SELECT ?e.sensor FROM (?e, reading), LATEST (?s, setpoint), LATEST (?t, setpoint)
        PATH {?e :from/:in ?x . ?s :plan/:for ?x} PATH {?e :from/:in ?y . ?t :plan ?p . ?p :for ?y}
        FILTER (?t.plan != 'p4')
        """,
        events=PLACES,
        knowledge=KNOWLEDGE,
        annotations=ANNOTATIONS,
        expect="?e | ?s | ?t\n a1 | p4 | p1\n a2 | p3 | p3\n a3 | p4 | p3",
    )


def test_a_match_that_awaits_its_deadline_keeps_the_latest_event_of_its_own_time(check):
    # Only setpoints come while the deadline passes; those of 2 and 9 are too late for the match at 1.
    check(
        "SELECT ?s.v FROM (?e, reading), (?n, reading), LATEST (?s, setpoint)"
        " FILTER (?e.x = 1) FILTER (?n.x = 2) SEQ (?e, !?n) WINDOW (?e, ?n, 5s)",
        events={
            "reading": "event | ts | x\n e1 | 1 | 1",
            "setpoint": "event | ts | v\n s1 | 0 | 1\n s2 | 2 | 2\n s3 | 9 | 3",
        },
        expect="?e | ?s\n e1 | s1",
    )
