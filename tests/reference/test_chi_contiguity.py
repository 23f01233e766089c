"""MATCH any, next, strict: which events a match may skip."""

from __future__ import annotations

import pytest
from tests.reference.chi_letters import found, pattern


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("any", ["a1 b1", "a1 b2", "a2 b2"]),
        ("next", ["a1 b1", "a2 b2"]),
        ("strict", ["a1 b1"]),
    ],
)
def test_two_places(match, expected):
    assert found(pattern("?a, ?b", f"MATCH {match}"), "a1@0 b1@1 a2@2 z1@3 b2@4") == expected


def test_any_is_the_default():
    assert found(pattern("?a, ?b"), "a1@0 b1@1 b2@2") == ["a1 b1", "a1 b2"]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("any", ["a1 b1 b2 c1", "a1 b1 c1", "a1 b2 c1"]),
        ("next", ["a1 b1 b2 c1", "a1 b1 c1"]),
        ("strict", ["a1 b1 b2 c1"]),
    ],
)
def test_the_rounds_of_a_loop_are_places_like_any_other(match, expected):
    assert found(pattern("?a, ?b+, ?c", f"MATCH {match}"), "a1@0 b1@1 b2@2 c1@3") == expected


def test_the_first_place_may_be_any_event_that_fits():
    assert found(pattern("?a, ?b", "MATCH next"), "a1@0 a2@1 b1@2 b2@3") == ["a1 b1", "a2 b1"]


def test_a_join_decides_whether_an_event_fits():
    given = "a1@0:5 b1@1:3 b2@2:7 b3@3:9"
    assert found(pattern("?a, ?b", "JOIN (?b.x > ?a.x) MATCH next"), given) == ["a1 b2"]


def test_a_join_with_a_later_place_decides_nothing_yet():
    # ?b is taken before ?c is known: b1 is the earliest, and no c goes with it
    given = "a1@0 b1@1:1 b2@2:2 c1@3:2"
    assert found(pattern("?a, ?b, ?c", "JOIN (?c.x = ?b.x) MATCH next"), given) == []
    assert found(pattern("?a, ?b, ?c", "JOIN (?c.x = ?b.x) MATCH any"), given) == ["a1 b2 c1"]


def test_a_window_judges_the_finished_match():
    # b1 is the earliest that fits, too late for the WINDOW; next does not look for another
    query = pattern("?a, ?b, ?c", "WINDOW (?b, ?c, 2s) MATCH next")
    assert found(query, "a1@0 b1@1 b2@5 c1@6") == []
    assert found(query.replace("next", "any"), "a1@0 b1@1 b2@5 c1@6") == ["a1 b2 c1"]


def test_an_absence_judges_the_finished_match():
    query = pattern("?a, !?n, ?b", "MATCH next")
    assert found(query, "a1@0 n1@1 b1@2 a2@3 b2@4") == ["a2 b2"]


def test_next_at_a_disjunction_takes_the_earliest_for_any_branch():
    query = pattern("?a, (?b | ?c), ?d", "MATCH next")
    assert found(query, "a1@0 c1@1 b1@2 d1@3") == ["a1 c1 d1"]
    assert found(query, "a1@0 b1@1 c1@2 d1@3") == ["a1 b1 d1"]


def test_next_at_a_disjunction_gives_every_branch_that_the_event_fits():
    query = """SELECT ?a.label FROM (?a, s), (?b, s), (?c, s) FILTER (?a.kind = 'a')
               FILTER (?b.x > 1) FILTER (?c.x > 2) SEQ (?a, (?b | ?c)) MATCH next"""
    assert found(query, "a1@0 p@1:2 q@2:3") == ["a1 p"]
    assert found(query, "a1@0 p@1:3 q@2:3") == ["a1 p", "a1 p"]


def test_next_at_a_conjunction_takes_what_is_still_open():
    query = pattern("?a, (?b & ?c)", "MATCH next")
    assert found(query, "a1@0 c1@1 c2@2 b1@3 b2@4") == ["a1 b1 c1"]


def test_next_with_an_optional_place_goes_both_ways():
    query = pattern("?a, ?b?, ?c", "MATCH next")
    assert found(query, "a1@0 b1@1 c1@2 c2@3") == ["a1 b1 c1", "a1 c1"]
    # with ?b, c must come after it; without, c1 is the earliest
    assert found(query, "a1@0 c1@1 b1@2 c2@3") == ["a1 b1 c2", "a1 c1"]


def test_strict_may_leave_an_optional_place_out():
    query = pattern("?a, ?b?, ?c", "MATCH strict")
    assert found(query, "a1@0 c1@1 a2@2 b1@3 c2@4 a3@5 z1@6 c3@7") == ["a1 c1", "a2 b1 c2"]


def test_strict_over_a_conjunction_takes_neighbours_in_any_order():
    query = pattern("?a, (?b & ?c)", "MATCH strict")
    assert found(query, "a1@0 c1@1 b1@2 a2@3 b2@4 z1@5 c2@6") == ["a1 b1 c1"]


def test_a_conjunction_without_seq_knows_match_too():
    query = "SELECT ?a.label FROM (?a, s), (?b, s) FILTER (?a.kind = 'a') FILTER (?b.kind = 'b') MATCH {}"
    given = "b1@0 a1@0 b2@1 z1@2 a2@3"
    assert found(query.format("any"), given) == ["a1 b1", "a1 b2", "a2 b1", "a2 b2"]
    assert found(query.format("next"), given) == ["a1 b1", "a1 b2", "a2 b2"]
    assert found(query.format("strict"), given) == ["a1 b1", "a1 b2"]
