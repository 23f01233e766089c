"""Disjunction and conjunction at one place of the sequence."""

from __future__ import annotations

from tests.reference.chi_letters import S, answers, found, pattern


def test_a_disjunction_takes_one_of_its_places():
    assert found(pattern("?a, (?b | ?c), ?d"), "a1@0 b1@1 c1@2 d1@3") == ["a1 b1 d1", "a1 c1 d1"]


def test_a_condition_on_the_branch_not_taken_does_not_apply():
    query = pattern("?a, (?b | ?c)", "JOIN (?b.x > ?a.x) JOIN (?c.x > ?a.x)")
    assert found(query, "a1@0:1 b1@1:2 c1@2:0 c2@3:5") == ["a1 b1", "a1 c2"]


def test_a_condition_on_both_branches_never_applies():
    assert found(pattern("?a, (?b | ?c)", "JOIN (?b.x > ?c.x)"), "a1@0 b1@1 c1@2") == ["a1 b1", "a1 c1"]


def test_what_was_left_out_is_null_and_has_no_event():
    query = pattern("?a, (?b | ?c)").replace("SELECT", "SELECT ?b.x AS bx, ?c.x AS cx, ?b.x + 1 AS more,")
    (answer,) = answers(query, "a1@0 c1@1:7")
    assert answer.match.select == {"bx": None, "cx": 7, "more": None, "first": "a1"}
    assert set(answer.match.events) == {"a", "c"}


def test_a_conjunction_takes_both_in_any_order():
    assert found(pattern("?a, (?b & ?c), ?d"), "a1@0 c1@1 b1@2 d1@3 c2@4") == ["a1 b1 c1 d1"]


def test_inside_a_conjunction_times_may_be_equal_and_around_it_not():
    query = pattern("?a, (?b & ?c), ?d")
    assert found(query, "a1@0 b1@1 c1@1 d1@2") == ["a1 b1 c1 d1"]
    assert found(query, "a1@0 c1@1 b1@1 d1@2") == ["a1 b1 c1 d1"]
    assert found(query, "a1@0 b1@0 c1@1 d1@2") == []
    assert found(query, "a1@0 b1@1 c1@2 d1@2") == []


def test_different_variables_take_different_events():
    query = "SELECT ?p.label FROM (?p, s), (?q, s)"
    assert found(query, "e1@0 e2@0") == ["e1 e2", "e2 e1"]


def test_a_loop_inside_a_conjunction():
    query = pattern("(?b+ & ?c)")
    assert found(query, "b1@0 c1@1 b2@2") == ["b1 b2 c1", "b1 c1", "b2 c1"]
    # rounds of the loop follow each other strictly, c may share their time
    assert found(query, "b1@0 b2@0 c1@0") == ["b1 c1", "b2 c1"]
    assert found(pattern("(?b+ & ?c)", "MATCH next"), "b1@0 c1@1 b2@2 c2@3") == [
        "b1 b2 c1",
        "b1 c1",
        "b2 c1",
        "b2 c2",
    ]


def test_loops_inside_a_disjunction():
    query = pattern("?a, (?b+ | ?c), ?d", "MATCH strict")
    assert found(query, "a1@0 b1@1 b2@2 d1@3 a2@4 c1@5 d2@6 a3@7 d3@8") == ["a1 b1 b2 d1", "a2 c1 d2"]
    query = pattern("?a, (?b* | ?c), ?d", "MATCH strict")
    assert found(query, "a1@0 b1@1 b2@2 d1@3 a2@4 c1@5 d2@6 a3@7 d3@8") == [
        "a1 b1 b2 d1",
        "a2 c1 d2",
        "a3 d3",
    ]


def test_groups_inside_groups():
    query = pattern("?a, ((?b & ?c) | ?d)")
    assert found(query, "a1@0 c1@1 d1@2 b1@3") == ["a1 b1 c1", "a1 d1"]
    query = pattern("?a, ((?b | ?c) & ?d)")
    assert found(query, "a1@0 d1@1 b1@2 c1@3") == ["a1 b1 d1", "a1 c1 d1"]


def test_a_conjunction_spans_from_its_first_to_its_last_event():
    (answer,) = answers(pattern("(?b & ?c)"), "c1@1 b1@3")
    assert (answer.match.start_us, answer.match.end_us) == (S, 3 * S)
