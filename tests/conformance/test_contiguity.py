"""MATCH any, next, strict: which events a match may skip."""

from __future__ import annotations

import pytest

LOOP = """
    SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
    SEQ (?a, ?b+, ?c) WINDOW (?a, ?b, ?c, 1min) MATCH {strategy}
"""
A_B_B_C = """
    event | ts | kind
    a     | 0  | a
    b1    | 1  | b
    b2    | 2  | b
    c     | 3  | c
"""


@pytest.mark.parametrize(
    ("strategy", "expect"),
    [
        ("any", "?a | ?b | ?c\n a | b1 | c\n a | b2 | c\n a | b1 b2 | c"),
        ("next", "?a | ?b | ?c\n a | b1 | c\n a | b1 b2 | c"),
        ("strict", "?a | ?b | ?c\n a | b1 b2 | c"),
    ],
)
def test_the_three_strategies_on_one_loop(check, strategy, expect):
    check(LOOP.format(strategy=strategy), events=A_B_B_C, expect=expect)


NEXT = """
    SELECT ?b.x FROM (?a, s), (?b, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') JOIN (?b.x > ?a.x)
    SEQ (?a, ?b) WINDOW (?a, ?b, 1min) MATCH {strategy}
"""
NOISE = """
    event | ts | kind | x
    a1    | 0  | a    | 5
    n1    | 1  | n    | 9
    b1    | 2  | b    | 3
    b2    | 3  | b    | 7
    b3    | 4  | b    | 8
"""


def test_next_takes_the_earliest_event_that_fits_joins_included(check):
    check(NEXT.format(strategy="next"), events=NOISE, expect="?a | ?b\n a1 | b2")


def test_any_takes_every_event_that_fits(check):
    check(NEXT.format(strategy="any"), events=NOISE, expect="?a | ?b\n a1 | b2\n a1 | b3")


def test_strict_allows_nothing_in_between_not_even_what_no_variable_wants(check):
    check(NEXT.format(strategy="strict"), events=NOISE, expect="?a | ?b")


def test_next_is_not_saved_by_the_window(check):
    # the earliest b that fits lies outside the window: the match fails, it does not look further
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, ?b, ?c) WINDOW (?a, ?b, 5s) WINDOW (?a, ?c, 1min) MATCH next
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            b1    | 6  | b
            c1    | 7  | c
            a2    | 20 | a
            b2    | 25 | b
            c2    | 26 | c
        """,
        expect="?a | ?b | ?c\n a2 | b2 | c2",
    )


def test_an_event_at_the_same_time_is_passed_over_by_next_and_breaks_strict(check):
    events = """
        event | ts | kind | x
        a1    | 0  | a    | 1
        b1    | 0  | b    | 2
        b2    | 1  | b    | 3
    """
    check(NEXT.format(strategy="next"), events=events, expect="?a | ?b\n a1 | b2")
    check(NEXT.format(strategy="strict"), events=events, expect="?a | ?b")


def test_strict_is_per_partition(check):
    check(
        """
        SELECT ?a.k FROM (?a, s), (?b, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
        SEQ (?a, ?b) PARTITION BY ?a.k MATCH strict WINDOW (?a, ?b, 1min)
        """,
        events="""
            event | ts | kind | k
            a1    | 0  | a    | x
            z1    | 1  | z    | y
            b1    | 2  | b    | x
        """,
        expect="?a | ?b\n a1 | b1",
    )


def test_only_events_whose_path_holds_count_for_strict(check):
    # n1 is of an office, and both variables ask for meeting rooms: n1 is not an event of this query
    check(
        """
        SELECT ?a.room FROM (?a, s), (?b, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
        SEQ (?a, ?b) MATCH strict WINDOW (?a, ?b, 1min)
        PATH {?a :in ?r . ?r a :MeetingRoom . ?b :in ?q . ?q a :MeetingRoom}
        """,
        events="""
            event | ts | kind | room
            a1    | 0  | a    | m1
            n1    | 1  | n    | o1
            b1    | 2  | b    | m2
            a2    | 10 | a    | m1
            n2    | 11 | n    | m2
            b2    | 12 | b    | m2
        """,
        annotations=[
            {
                "stream": "s",
                "prefixes": {"": "urn:kaicep:"},
                "entities": {"room": {"property": ":in", "iri": ":{value}"}},
            }
        ],
        knowledge="@prefix : <urn:kaicep:> . :m1 a :MeetingRoom . :m2 a :MeetingRoom . :o1 a :Office .",
        expect="?a | ?b\n a1 | b1",
    )


def test_next_at_a_disjunction_takes_the_earliest_event_that_fits_any_branch(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, (?b | ?c)) WINDOW (?a, ?b, ?c, 1min) MATCH next
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            c1    | 1  | c
            b1    | 2  | b
        """,
        expect="?a | ?b | ?c\n a1 | | c1",
    )


def test_next_at_a_conjunction_takes_what_comes_first_and_then_what_is_still_open(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, (?b & ?c)) WINDOW (?a, ?b, ?c, 1min) MATCH next
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            c1    | 1  | c
            c2    | 2  | c
            b1    | 3  | b
            b2    | 4  | b
        """,
        expect="?a | ?b | ?c\n a1 | b1 | c1",
    )
