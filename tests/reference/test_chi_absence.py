"""Absence: between two events, after the last one, beside what was left out."""

from __future__ import annotations

from tests.reference.chi_letters import S, answers, events, found, pattern

BETWEEN = pattern("?a, !?n, ?b")
TRAILING = pattern("?a, ?b, !?n", "WINDOW (?a, ?b, ?n, 10s)")


def spans(query, given):
    return [(each.match.start_us / S, each.match.end_us / S) for each in answers(query, given)]


def test_none_strictly_between_the_neighbours():
    assert found(BETWEEN, "n0@0 a1@1 b1@2 n1@3 b2@4") == ["a1 b1"]


def test_between_is_by_order_so_that_ties_count():
    # n1 stands after a1, at its instant; n2 stands after b2, at its instant
    assert found(BETWEEN, "a1@0 n1@0 b1@1 a2@5 b2@6 n2@6") == ["a2 b2"]


def test_filters_and_joins_say_which_event_must_be_absent():
    given = "a1@0:1 n1@1:2 b1@2:1 n2@3:1 b2@4:2"
    assert found(pattern("?a, !?n, ?b", "JOIN (?n.x = ?a.x)"), given) == ["a1 b1"]
    assert found(pattern("?a, !?n, ?b", "JOIN (?n.x = ?b.x)"), given) == ["a1 b1"]
    assert found(pattern("?a, !?n, ?b", "FILTER (?n.x > 2)"), given) == ["a1 b1", "a1 b2"]


def test_every_join_must_hold_for_the_event_to_count():
    given = "a1@0:1 n1@1:1 b1@2:2"
    assert found(pattern("?a, !?n, ?b", "JOIN (?n.x = ?a.x) JOIN (?n.x = ?b.x)"), given) == ["a1 b1"]


def test_a_null_makes_no_event_that_counts():
    assert found(pattern("?a, !?n, ?b", "JOIN (?n.x = ?a.x)"), "a1@0:1 n1@1 b1@2") == ["a1 b1"]


def test_beside_a_loop_the_join_holds_for_every_round():
    query = pattern("?a+, !?n, ?b", "JOIN (?n.x > ?a.x) MATCH strict")
    # n1 stands between, but strict is broken by it; it must be of no interest to any variable to be skipped
    assert found(query, "a1@0:1 a2@1:5 n1@2:3 b1@3") == []
    query = query.replace("MATCH strict", "")
    # n1 is above a1 but not above a2: only where all rounds are below it does it count
    assert found(query, "a1@0:1 a2@1:5 n1@2:3 b1@3") == ["a1 a2 b1", "a2 b1"]


def test_beside_a_left_out_variable_the_join_does_not_apply():
    query = pattern("?a, ?c?, !?n, ?b", "JOIN (?n.x = ?c.x)")
    given = "a1@0 c1@1:1 n1@2:2 b1@3"
    # with c1, n1 has another x; without, the JOIN asks for nothing, and n1 counts
    assert found(query, given) == ["a1 b1 c1"]


def test_trailing_fires_at_the_deadline():
    assert spans(TRAILING, "a1@0 b1@4") == [(0, 10)]


def test_trailing_looks_until_the_deadline_included():
    assert found(TRAILING, "a1@0 b1@4 n1@10") == []
    assert found(TRAILING, "a1@0 b1@4 n1@10.000001") == ["a1 b1"]


def test_trailing_looks_after_the_last_event_only():
    assert found(TRAILING, "a1@0 n1@2 b1@4") == ["a1 b1"]


def test_trailing_by_order_counts_an_event_at_the_same_instant():
    assert found(TRAILING, "a1@0 n1@4 b1@4") == ["a1 b1"]
    assert found(TRAILING, "a1@0 b1@4 n1@4") == []


def test_trailing_takes_the_window_that_names_it():
    query = pattern("?a, ?b, !?n", "WINDOW (?a, ?b, 10s) WINDOW (?b, ?n, 5s)")
    assert found(query, "a1@0 b1@4 n1@6") == ["a1 b1"]
    assert spans(query, "a1@0 b1@4 n1@6") == [(0, 5)]


def test_the_deadline_may_lie_before_the_last_event():
    # WINDOW (?a, ?n) speaks of ?a alone: nothing is awaited any more, and the end is the deadline
    query = pattern("?a, ?b, !?n", "WINDOW (?a, ?n, 5s)")
    assert spans(query, "a1@0 b1@7 n1@8") == [(0, 5)]


def test_an_absence_before_an_optional_end():
    query = pattern("?a, !?n, ?b?", "WINDOW (?a, ?b, ?n, 10s)")
    # with b1 as neighbour: nothing between; without: n1 comes before the deadline
    assert spans(query, "a1@0 b1@3 n1@5") == [(0, 3)]
    # nothing at all: both, one at its event and one at the deadline
    assert spans(query, "a1@0 b1@3") == [(0, 3), (0, 10)]


def test_two_absences_at_one_place():
    query = pattern("?a, !?m, !?n, ?b")
    assert found(query, "a1@0 b1@1 m1@2 b2@3 a2@5 n1@6 b3@7") == ["a1 b1"]


def test_the_absent_event_of_another_stream():
    given = events("a1@0 a2@1", "s") + events("b1@20", "t")
    query = """SELECT ?a.label FROM (?a, s), (?n, t) JOIN (?n.ts - ?a.ts >= 20s)
               SEQ (?a, !?n) WINDOW (?a, ?n, 30s)"""
    assert found(query, given) == ["a2"]


def test_the_absence_and_skipping():
    # matches of the partition are those that were judged: a1 b1 is none, so a2 is not ruled out by it
    query = pattern("?a, !?n, ?b", "AFTER MATCH SKIP PAST LAST")
    assert found(query, "a1@0 a2@1 b1@2") == ["a1 b1"]
    assert found(query, "a1@0 n1@0.5 a2@1 b1@2") == ["a2 b1"]
