"""Where nothing may happen: between two events, and after the last."""

from __future__ import annotations

BETWEEN = """
    SELECT ?a.k FROM (?a, s), (?n, s), (?b, s)
    FILTER (?a.kind = 'a') FILTER (?n.kind = 'n') FILTER (?b.kind = 'b')
    SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 10min)
"""


def test_an_absence_between_two_events_looks_strictly_between_them(check):
    check(
        BETWEEN,
        events="""
            event | ts | kind | k
            n0    | 0  | n    | x
            a1    | 1  | a    | x
            b1    | 2  | b    | x
            n1    | 3  | n    | x
            b2    | 4  | b    | x
        """,
        expect="""
            ?a | ?b
            a1 | b1
        """,
    )


def test_between_is_by_order_so_a_tie_after_the_first_event_counts(check):
    # n1 has the time of a1 but comes after it by position, so it lies between a1 and b1;
    # n0 comes before a1 by position and does not.
    check(
        BETWEEN,
        events="""
            event | ts | kind | k
            n0    | 1  | n    | x
            a0    | 1  | a    | x
            b0    | 2  | b    | x
            a1    | 9  | a    | x
            n1    | 9  | n    | x
            b1    | 10 | b    | x
        """,
        expect="""
            ?a | ?b
            a0 | b0
        """,
    )


def test_a_join_decides_which_absence_matters(check):
    check(
        BETWEEN + " JOIN (?a.k = ?b.k) JOIN (?n.k = ?a.k)",
        events="""
            event | ts | kind | k
            a1    | 1  | a    | x
            n1    | 2  | n    | y
            b1    | 3  | b    | x
            a2    | 11 | a    | z
            n2    | 12 | n    | z
            b2    | 13 | b    | z
        """,
        expect="""
            ?a | ?b
            a1 | b1
        """,
    )


TRAILING = """
    SELECT ?a.k FROM (?a, s), (?n, s)
    FILTER (?a.kind = 'a') FILTER (?n.kind = 'n') JOIN (?n.k = ?a.k)
    SEQ (?a, !?n) WINDOW (?a, ?n, 10s)
"""


def test_a_trailing_absence_fires_at_its_deadline(check):
    check(
        TRAILING,
        events="""
            event | ts | kind | k
            a1    | 0  | a    | x
            a2    | 5  | a    | y
            n2    | 9  | n    | y
        """,
        expect="""
            ?a | start | end | k
            a1 | 0     | 10  | x
        """,
    )


def test_the_deadline_itself_is_inside_and_what_comes_after_it_is_not(check):
    check(
        TRAILING,
        events="""
            event | ts | kind | k
            a1    | 0  | a    | x
            n1    | 10 | n    | x
            a2    | 20 | a    | x
            n2    | 30.000001 | n | x
        """,
        expect="""
            ?a | end
            a2 | 30
        """,
    )


def test_the_deadline_counts_from_the_first_event(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?b, s), (?n, s)
        FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') FILTER (?n.kind = 'n')
        SEQ (?a, ?b, !?n) WINDOW (?a, ?b, ?n, 10s)
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            b1    | 4  | b
            n1    | 11 | n
            a2    | 20 | a
            b2    | 25 | b
            n2    | 29 | n
        """,
        expect="""
            ?a | ?b | start | end
            a1 | b1 | 0     | 10
        """,
    )


def test_an_absence_whose_neighbour_was_left_out_looks_to_the_next_one(check):
    check(
        """
        SELECT ?a.ts AS at FROM (?a, s), (?n, s), (?c, s), (?d, s)
        FILTER (?a.kind = 'a') FILTER (?n.kind = 'n') FILTER (?c.kind = 'c') FILTER (?d.kind = 'd')
        SEQ (?a, !?n, ?c?, ?d) WINDOW (?a, ?d, 1min)
        """,
        events="""
            event | ts | kind
            a1    | 0  | a
            c1    | 1  | c
            n1    | 2  | n
            d1    | 3  | d
        """,
        # without c1, n1 lies between a1 and d1; with it, nothing lies between a1 and c1
        expect="""
            ?a | ?c | ?d
            a1 | c1 | d1
        """,
    )


def test_the_absent_event_may_come_from_another_stream(check):
    check(
        """
        SELECT ?a.k FROM (?a, doors), (?n, badges)
        JOIN (?n.k = ?a.k) SEQ (?a, !?n) WINDOW (?a, ?n, 30s)
        """,
        events={
            "doors": """
                event | ts | k
                d1    | 0  | x
                d2    | 1  | y
            """,
            "badges": """
                event | ts | k
                p1    | 20 | y
            """,
        },
        expect="""
            ?a | end
            d1 | 30
        """,
    )
