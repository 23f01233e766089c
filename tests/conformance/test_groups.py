"""Disjunction and conjunction at one place, and patterns without SEQ."""

from __future__ import annotations

import pytest

HEAD = """
    SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?c, s)
    FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?c.kind = 'c')
"""
EVENTS = """
    event | ts | kind | x
    c0    | 0  | c    | 1
    a1    | 1  | a    | 2
    b1    | 2  | b    | 3
    c1    | 2  | c    | 4
"""


def test_a_disjunction_binds_one_of_its_members(check):
    check(
        HEAD + "SEQ (?a, (?b | ?c)) WINDOW (?a, ?b, ?c, 1min)",
        events=EVENTS,
        expect="?a | ?b | ?c\n a1 | b1 |\n a1 | | c1",
    )


def test_a_condition_on_the_branch_not_taken_does_not_apply(check):
    check(
        HEAD + "SEQ (?a, (?b | ?c)) JOIN (?b.x > 100 + ?a.x) WINDOW (?a, ?b, ?c, 1min)",
        events=EVENTS,
        expect="?a | ?b | ?c\n a1 | | c1",
    )


def test_a_conjunction_is_in_any_order_and_allows_equal_times(check):
    check(
        HEAD + "SEQ (?a, (?b & ?c)) WINDOW (?a, ?b, ?c, 1min)",
        events=EVENTS,
        expect="?a | ?b | ?c\n a1 | b1 | c1",
    )


def test_without_seq_the_variables_are_one_conjunction(check):
    check(
        HEAD + "WINDOW (?a, ?b, ?c, 1s)",
        events=EVENTS,
        expect="?a | ?b | ?c | start | end\n a1 | b1 | c1 | 1 | 2",
    )


def test_different_variables_bind_different_events(check):
    check(
        "SELECT ?p.x AS px, ?q.x AS qx FROM (?p, s), (?q, s) JOIN (?p.x = ?q.x) WINDOW (?p, ?q, 1min)",
        events="""
            event | ts | x
            e1    | 0  | 1
            e2    | 1  | 1
            e3    | 2  | 2
        """,
        expect="?p | ?q\n e1 | e2\n e2 | e1",
    )


def test_everything_in_a_conjunction_comes_before_what_follows(check):
    check(
        HEAD + "SEQ ((?a & ?b), ?c) WINDOW (?a, ?b, ?c, 1min)",
        events="""
            event | ts | kind
            b1    | 0  | b
            c1    | 1  | c
            a1    | 2  | a
            c2    | 2  | c
            c3    | 3  | c
        """,
        expect="?a | ?b | ?c\n a1 | b1 | c3",
    )


def test_a_variable_may_range_over_several_streams(check):
    check(
        "SELECT ?e.x, ?e.y FROM (?e, p, q) FILTER (?e.x > 1)",
        events={"p": "event | ts | x | y\n p1 | 0 | 5 | 7", "q": "event | ts | x\n q1 | 1 | 6\n q2 | 2 | 0"},
        expect="?e | x | y\n p1 | 5 | 7\n q1 | 6 |",
    )


NESTED = """
    SELECT ?z.ts AS at FROM (?z, s), (?a, s), (?c, s), (?d, s)
    FILTER (?z.kind = 'z') FILTER (?a.kind = 'a') FILTER (?c.kind = 'c') FILTER (?d.kind = 'd')
    MATCH next WINDOW (?z, ?a, ?c, ?d, 1min)
"""


@pytest.mark.parametrize("group", ["(?d & ?c & ?a?)", "(?d & (?c & ?a?))", "((?a? & ?c) & ?d)"])
def test_a_conjunction_inside_a_conjunction_means_nothing_of_its_own(check, group):
    # With ?a in the match, a1 is the earliest that fits; no match with a2 passes over it.
    check(
        NESTED + f"SEQ (?z, {group})",
        events="""
            event | ts | kind
            z1    | 0  | z
            a1    | 1  | a
            d1    | 2  | d
            c1    | 3  | c
            a2    | 4  | a
        """,
        expect="?z | ?a | ?c | ?d\n z1 | a1 | c1 | d1\n z1 | | c1 | d1",
    )


def test_what_stays_open_in_a_choice_inside_a_conjunction(check):
    check(
        NESTED.replace("(?d, s)", "(?d, s), (?e, s)")
        + "FILTER (?e.kind = 'e') SEQ (?z, (((?c & ?a?) | ?e) & ?d))",
        events="""
            event | ts | kind
            z1    | 0  | z
            a1    | 1  | a
            d1    | 2  | d
            c1    | 3  | c
            a2    | 4  | a
        """,
        expect="?z | ?a | ?c | ?d | ?e\n z1 | a1 | c1 | d1 |\n z1 | | c1 | d1 |",
    )


@pytest.mark.parametrize("group", ["(?d & ?c & ?a*)", "(?d & (?c & ?a*))"])
def test_a_loop_of_a_conjunction_is_finished_when_it_has_its_rounds_and_another_place_is_taken(check, group):
    # Without any ?a, ?d decides the condition: d1 does not fit, and is passed over.
    check(
        NESTED + f"JOIN (COUNT(?a) < ?d.x) SEQ (?z, {group})",
        events="""
            event | ts | kind | x
            z1    | 0  | z    |
            d1    | 1  | d    | 0
            d2    | 2  | d    | 1
            c1    | 3  | c    |
        """,
        expect="?z | ?a | ?c | ?d\n z1 | | c1 | d2",
    )
