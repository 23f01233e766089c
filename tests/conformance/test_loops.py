"""Loops: how many rounds, what each round may say, what the finished loop may say."""

from __future__ import annotations

import pytest

QUANTIFIED = """
    SELECT COUNT(?b) AS n FROM (?a, s), (?b, s), (?c, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
    SEQ (?a, ?b{quantifier}, ?c) WINDOW (?a, ?b, ?c, 1min)
"""
THREE = """
    event | ts | kind
    a     | 0  | a
    b1    | 1  | b
    b2    | 2  | b
    b3    | 3  | b
    c     | 4  | c
"""
ONE, TWO, ALL = ("b1", "b2", "b3"), ("b1 b2", "b1 b3", "b2 b3"), ("b1 b2 b3",)


@pytest.mark.parametrize(
    ("quantifier", "loops"),
    [
        ("+", ONE + TWO + ALL),
        ("*", ("", *ONE, *TWO, *ALL)),
        ("?", ("", *ONE)),
        ("{2}", TWO),
        ("{2,}", TWO + ALL),
        ("{,1}", ("", *ONE)),
        ("{1,2}", ONE + TWO),
    ],
)
def test_quantifiers(check, quantifier, loops):
    rows = "\n".join(f"{loop} | {len(loop.split())}" for loop in loops)
    check(QUANTIFIED.format(quantifier=quantifier), events=THREE, expect=f"?b | n\n{rows}")


def test_the_rounds_of_a_loop_have_strictly_increasing_times(check):
    check(
        QUANTIFIED.format(quantifier="{2}"),
        events="""
            event | ts | kind
            a     | 0  | a
            b1    | 1  | b
            b2    | 1  | b
            b3    | 2  | b
            c     | 4  | c
        """,
        expect="?b\n b1 b3\n b2 b3",
    )


RISING = """
    SELECT FIRST(?b.x) AS low, LAST(?b.x) AS high, ?b.x AS xs FROM (?b, s)
    SEQ (?b{3}) WINDOW (?b, 1min) {conditions}
"""
READINGS = """
    event | ts | x
    r1    | 0  | 1
    r2    | 1  | 5
    r3    | 2  | 3
    r4    | 3  | 9
"""


def rising(conditions):
    return RISING.replace("{conditions}", conditions)


def test_prev_is_the_round_before_and_is_not_tested_on_the_first(check):
    check(
        rising("FILTER (?b.x > PREV(?b.x))"),
        events=READINGS,
        expect="?b | low | high | xs\n r1 r2 r4 | 1 | 9 | 1.0 5.0 9.0\n r1 r3 r4 | 1 | 9 | 1.0 3.0 9.0",
    )


def test_an_aggregate_alone_judges_the_finished_loop(check):
    check(rising("FILTER (SUM(?b.x) >= 15)"), events=READINGS, expect="?b\n r1 r2 r4\n r2 r3 r4")


def test_an_aggregate_beside_the_current_event_covers_the_rounds_so_far(check):
    # every round: x is at least the average of the rounds up to and including it
    check(
        rising("FILTER (?b.x >= AVG(?b.x))"),
        events=READINGS,
        # r1 r2 r3: 1>=1, 5>=3, 3>=3 holds. r1 r2 r4: 9>=5. r1 r3 r4: 3>=2, 9>=4.33. r2 r3 r4: 3>=4 fails.
        expect="?b\n r1 r2 r3\n r1 r2 r4\n r1 r3 r4",
    )


def test_a_join_with_a_later_event_holds_for_every_round(check):
    check(
        """
        SELECT ?c.x FROM (?b, s), (?c, s) FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?b+, ?c) JOIN (?b.x < ?c.x) WINDOW (?b, ?c, 1min)
        """,
        events="""
            event | ts | kind | x
            b1    | 0  | b    | 1
            b2    | 1  | b    | 7
            c1    | 2  | c    | 5
        """,
        expect="?b | ?c\n b1 | c1",
    )


def test_a_condition_on_a_loop_that_was_left_out_does_not_apply(check):
    check(
        """
        SELECT ?c.x FROM (?a, s), (?b, s), (?c, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
        SEQ (?a, ?b*, ?c) JOIN (?b.x > ?c.x) WINDOW (?a, ?b, ?c, 1min)
        """,
        events="""
            event | ts | kind | x
            a1    | 0  | a    |
            b1    | 1  | b    | 1
            c1    | 2  | c    | 5
        """,
        expect="?a | ?b | ?c\n a1 | | c1",
    )


def test_an_aggregate_over_a_loop_that_was_left_out_is_over_nothing(check):
    check(
        """
        SELECT COUNT(?b) AS n, SUM(?b.x) AS total FROM (?a, s), (?b, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
        SEQ (?a, ?b*) FILTER (COUNT(?b) = 0) WINDOW (?a, ?b, 1min)
        """,
        events="""
            event | ts | kind | x
            a1    | 0  | a    | 2
            b1    | 1  | b    | 1
        """,
        expect="?a | ?b | n | total\n a1 | | 0 |",
    )
