"""AFTER MATCH: which of the matches are reported."""

from __future__ import annotations

import pytest

QUERY = """
    SELECT ?a.ts AS at FROM (?a, s), (?b, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
    SEQ (?a, ?b+) WINDOW (?a, ?b, 1min) AFTER MATCH {skip}
"""
EVENTS = """
    event | ts | kind
    a1    | 0  | a
    a2    | 1  | a
    b1    | 2  | b
    b2    | 3  | b
"""
# All matches, in the order in which they are taken: last event, first event, longer first, left to right.
#   a1 b1 | a2 b1 | a1 b1 b2 | a1 b2 | a2 b1 b2 | a2 b2


@pytest.mark.parametrize(
    ("skip", "expect"),
    [
        ("NO SKIP", "a1|b1 ; a2|b1 ; a1|b1 b2 ; a1|b2 ; a2|b1 b2 ; a2|b2"),
        # each first event is used once
        ("SKIP TO NEXT", "a1|b1 ; a2|b1"),
        # a1 b1 ends at b1: everything that starts at or before b1 is ruled out
        ("SKIP PAST LAST", "a1|b1"),
        # a1 b1 rules out what starts before b1, its first ?b
        ("SKIP TO FIRST ?b", "a1|b1"),
        ("SKIP TO LAST ?b", "a1|b1"),
        # nothing starts before the first ?a of a1 b1; a2 b1 rules out what starts before a2
        ("SKIP TO FIRST ?a", "a1|b1 ; a2|b1 ; a2|b1 b2 ; a2|b2"),
    ],
)
def test_skip_modes(check, skip, expect):
    rows = "\n".join(row.strip() for row in expect.split(";"))
    check(QUERY.format(skip=skip), events=EVENTS, expect=f"?a | ?b\n{rows}")


def test_skipping_past_the_last_event_goes_on_after_it(check):
    check(
        QUERY.format(skip="SKIP PAST LAST"),
        events=EVENTS + "    a3 | 4 | a\n    b3 | 5 | b\n",
        expect="?a | ?b\n a1 | b1\n a3 | b3",
    )


def test_skipping_to_a_variable_that_was_left_out_rules_out_nothing(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, ?b?, ?c) WINDOW (?a, ?c, 1min) AFTER MATCH SKIP TO FIRST ?b
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            a2    | 1  | a
            c1    | 2  | c
        """,
        expect="?a | ?b | ?c\n a1 | | c1\n a2 | | c1",
    )


def test_skipping_is_per_partition(check):
    check(
        """
        SELECT ?a.k FROM (?a, s), (?b, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
        SEQ (?a, ?b) WINDOW (?a, ?b, 1min) PARTITION BY ?a.k AFTER MATCH SKIP PAST LAST
        """,
        events="""
            event | ts | kind | k
            a1    | 0  | a    | x
            a2    | 1  | a    | y
            b1    | 2  | b    | x
            b2    | 3  | b    | y
        """,
        expect="?a | ?b\n a1 | b1\n a2 | b2",
    )
