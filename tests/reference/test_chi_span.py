"""WINDOW between events: the latest and the earliest of the named variables lie no further apart."""

from __future__ import annotations

from tests.reference.chi_letters import found, pattern


def test_the_bound_is_inclusive():
    query = pattern("?a, ?b", "WINDOW (?a, ?b, 5s)")
    assert found(query, "a1@0 b1@5 b2@5.000001") == ["a1 b1"]


def test_only_the_named_variables_count():
    query = pattern("?a, ?b, ?c", "WINDOW (?a, ?b, 2s)")
    assert found(query, "a1@0 b1@2 b2@3 c1@99") == ["a1 b1 c1"]


def test_a_window_over_the_ends_bounds_what_is_between():
    query = pattern("?a, ?b, ?c", "WINDOW (?a, ?c, 5s)")
    assert found(query, "a1@0 b1@3 c1@5 b2@6 c2@7 a2@8") == ["a1 b1 c1"]


def test_all_rounds_of_a_loop_count():
    query = pattern("?a, ?b+", "WINDOW (?b, 2s)")
    assert found(query, "a1@0 b1@5 b2@7 b3@8") == ["a1 b1", "a1 b1 b2", "a1 b2", "a1 b2 b3", "a1 b3"]


def test_several_windows_hold_together():
    query = pattern("?a, ?b, ?c", "WINDOW (?a, ?b, 2s) WINDOW (?b, ?c, 3s)")
    assert found(query, "a1@0 b1@2 c1@5 c2@6") == ["a1 b1 c1"]


def test_what_was_left_out_is_in_no_window():
    query = pattern("?a, ?b?, ?c", "WINDOW (?a, ?b, 1s) WINDOW (?b, ?c, 1s)")
    assert found(query, "a1@0 b1@1 c1@2 c2@9") == ["a1 b1 c1", "a1 c1", "a1 c2"]


def test_a_conjunction_in_any_order():
    query = pattern("(?a & ?b)", "WINDOW (?a, ?b, 2s)")
    assert found(query, "b1@0 a1@2 b2@4 b3@5") == ["a1 b1", "a1 b2"]
