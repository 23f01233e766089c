"""AFTER MATCH: which of the matches of a partition stand."""

from __future__ import annotations

import pytest
from tests.reference.chi_letters import found, pattern

GIVEN = "a1@0 b1@1 b2@2 a2@3 b3@4"
ALL = ["a1 b1", "a1 b2", "a1 b3", "a2 b3"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", ALL),
        ("AFTER MATCH NO SKIP", ALL),
        # taken in the order a1 b1, a1 b2, a1 b3, a2 b3
        ("AFTER MATCH SKIP TO NEXT", ["a1 b1", "a2 b3"]),
        ("AFTER MATCH SKIP PAST LAST", ["a1 b1", "a2 b3"]),
        # a1 b1 rules out what begins before b1, which is a1
        ("AFTER MATCH SKIP TO FIRST ?b", ["a1 b1", "a2 b3"]),
        # what begins before a1: nothing
        ("AFTER MATCH SKIP TO FIRST ?a", ALL),
    ],
)
def test_modes(mode, expected):
    assert found(pattern("?a, ?b", mode), GIVEN) == expected


def test_past_last_rules_out_what_begins_at_the_last_event():
    # every event may be either: e1 e2, then e3 e4
    query = "SELECT ?p.label FROM (?p, s), (?q, s) SEQ (?p, ?q) MATCH next AFTER MATCH {}"
    assert found(query.format("SKIP PAST LAST"), "e1@0 e2@1 e3@2 e4@3") == ["e1 e2", "e3 e4"]
    assert found(query.format("SKIP TO LAST ?q"), "e1@0 e2@1 e3@2 e4@3") == ["e1 e2", "e2 e3", "e3 e4"]


def test_of_one_end_the_earlier_start_comes_first_and_then_the_longer():
    query = pattern("?a, ?b+", "AFTER MATCH SKIP PAST LAST")
    # end b1: a1 b1 before a2 b1, which it rules out
    assert found(query, "a1@0 a2@1 b1@2") == ["a1 b1"]
    # the first to end is a1 b1; nothing may begin at or before b1
    assert found(query, "a1@0 b1@1 b2@2 a2@3 b3@4") == ["a1 b1", "a2 b3"]
    # where all must end at c1, the longest comes first, and the same first event rules out the others
    query = pattern("?a, ?b+, ?c", "AFTER MATCH SKIP TO NEXT")
    assert found(query, "a1@0 b1@1 b2@2 c1@3") == ["a1 b1 b2 c1"]


def test_what_ends_first_is_taken_first_wherever_it_began():
    # a2 b1 ends before a1 b2 does, and rules out all that begins at or before b1
    query = pattern("?a, ?b", "JOIN (?a.k = ?b.k) AFTER MATCH SKIP PAST LAST")
    assert found(query, "a1@0::x a2@1::y b1@2::y b2@3::x") == ["a2 b1"]


def test_then_events_from_left_to_right():
    query = pattern("?a, ?b, ?c", "AFTER MATCH SKIP TO NEXT")
    assert found(query, "a1@0 b1@1 b2@2 c1@3") == ["a1 b1 c1"]


def test_to_first_and_to_last_of_a_loop():
    given = "a1@0 b1@1 a2@2 b2@3 a3@4 c1@5"
    query = pattern("?a, ?b+, ?c", "AFTER MATCH {}")
    # taken first: a1 b1 b2 c1 (longest of those from a1). TO FIRST ?b: not before b1, so a2 may begin
    assert found(query.format("SKIP TO FIRST ?b"), given) == ["a1 b1 b2 c1", "a2 b2 c1"]
    # TO LAST ?b: not before b2
    assert found(query.format("SKIP TO LAST ?b"), given) == ["a1 b1 b2 c1"]


def test_a_variable_that_was_left_out_rules_out_nothing():
    query = pattern("?a, ?b?, ?c", "AFTER MATCH SKIP TO FIRST ?b")
    assert found(query, "a1@0 a2@1 c1@2") == ["a1 c1", "a2 c1"]
    # a1 b1 c1 (longer) is taken before a1 c1 and rules out what begins before b1
    assert found(query, "a1@0 a2@1 b1@2 c1@3") == ["a1 b1 c1"]


def test_matches_of_the_same_events_stand_or_fall_together():
    query = "SELECT ?p.label FROM (?p, s), (?q, s) AFTER MATCH SKIP PAST LAST"
    # e1 e2 and e2 e1 are of the same events: both stand, and rule out all that begins at e2
    assert found(query, "e1@0 e2@1 e3@2 e4@3") == ["e1 e2", "e2 e1", "e3 e4", "e4 e3"]


def test_each_of_the_matches_of_the_same_events_rules_out_what_it_rules_out():
    query = "SELECT ?p.label FROM (?p, s), (?q, s) AFTER MATCH SKIP TO FIRST ?{}"
    # of e1 e2 and e2 e1, one has its ?q at e2: nothing more may begin at e1
    expected = ["e1 e2", "e2 e1", "e2 e3", "e3 e2"]
    assert found(query.format("q"), "e1@0 e2@1 e3@2") == expected
    assert found(query.format("p"), "e1@0 e2@1 e3@2") == expected


def test_skipping_is_per_partition():
    query = pattern("?a, ?b", "PARTITION BY ?a.k AFTER MATCH SKIP PAST LAST")
    given = "a1@0::x a2@1::y b1@2::x b2@3::y a3@1.5::x"
    assert found(query, given) == ["a1 b1", "a2 b2"]


def test_only_a_match_that_is_taken_rules_others_out():
    # in order: e1 e2 (taken), e2 e3 (ruled out), e3 e4 (not ruled out by e2 e3)
    query = "SELECT ?p.label FROM (?p, s), (?q, s) SEQ (?p, ?q) MATCH strict AFTER MATCH SKIP PAST LAST"
    assert found(query, "e1@0 e2@1 e3@2 e4@3 e5@4") == ["e1 e2", "e3 e4"]
