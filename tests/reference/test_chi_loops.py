"""Loops: quantifiers, PREV, aggregates over the rounds, what a condition on a loop means."""

from __future__ import annotations

import pytest
from tests.reference.chi_letters import S, answers, found, pattern

THREE = "a1@0 b1@1 b2@2 b3@3 c1@4"


@pytest.mark.parametrize(
    ("quantifier", "rounds"),
    [
        ("+", {1: 3, 2: 3, 3: 1}),
        ("*", {0: 1, 1: 3, 2: 3, 3: 1}),
        ("?", {0: 1, 1: 3}),
        ("{2}", {2: 3}),
        ("{2,}", {2: 3, 3: 1}),
        ("{,1}", {0: 1, 1: 3}),
        ("{1,2}", {1: 3, 2: 3}),
        ("{4,5}", {}),
    ],
)
def test_quantifiers(quantifier, rounds):
    matches = found(pattern(f"?a, ?b{quantifier}, ?c"), THREE)
    assert {n: sum(len(each.split()) == n + 2 for each in matches) for n in rounds} == rounds
    assert len(matches) == sum(rounds.values())


def test_rounds_are_strictly_later_than_each_other():
    assert found(pattern("?a, ?b{2}"), "a1@0 b1@1 b2@1 b3@2") == ["a1 b1 b3", "a1 b2 b3"]


def test_a_bare_mention_holds_for_every_round():
    given = "a1@0:5 b1@1:6 b2@2:4 b3@3:7"
    assert found(pattern("?a, ?b+", "JOIN (?b.x > ?a.x)"), given) == ["a1 b1", "a1 b1 b3", "a1 b3"]


def test_a_bare_mention_beside_a_later_event_holds_for_every_round():
    given = "b1@0:1 b2@1:3 c1@2:2 c2@3:4"
    matches = found(pattern("?b+, ?c", "JOIN (?c.x > ?b.x)"), given)
    assert matches == ["b1 b2 c2", "b1 c1", "b1 c2", "b2 c2"]


def test_two_bare_loops_are_compared_pair_by_pair():
    given = "a1@0:1 a2@1:3 b1@2:2 b2@3:4"
    matches = found(pattern("?a+, ?b+", "JOIN (?b.x > ?a.x)"), given)
    assert matches == ["a1 a2 b2", "a1 b1", "a1 b1 b2", "a1 b2", "a2 b2"]


def test_prev_is_not_tested_on_the_first_round():
    given = "a1@0:1 a2@1:3 a3@2:2"
    assert found(pattern("?a+", "FILTER (?a.x > PREV(?a.x))"), given) == ["a1", "a1 a2", "a1 a3", "a2", "a3"]


def test_prev_with_a_null_is_not_true():
    given = "a1@0:1 a2@1 a3@2:2"
    assert found(pattern("?a{2}", "FILTER (?a.x > PREV(?a.x))"), given) == ["a1 a3"]


def test_prev_and_next_look_for_the_next_rise():
    given = "a1@0:1 b1@1:5 b2@2:4 b3@3:6 c1@4"
    query = pattern("?a, ?b+, ?c", "FILTER (?b.x > PREV(?b.x)) MATCH next")
    assert found(query, given) == ["a1 b1 b3 c1", "a1 b1 c1"]


def test_only_an_aggregate_is_tested_on_the_finished_loop():
    assert found(pattern("?a, ?b+, ?c", "FILTER (COUNT(?b) = 2)"), THREE) == [
        "a1 b1 b2 c1",
        "a1 b1 b3 c1",
        "a1 b2 b3 c1",
    ]


def test_an_aggregate_beside_a_bare_mention_covers_the_rounds_so_far():
    # the running sum stays below 6 in every round; x itself stands beside it, and is never null
    given = "b1@0:2 b2@1:3 b3@2:1"
    query = pattern("?b+", "FILTER (?b.x > 0 AND SUM(?b.x) < 6)")
    assert found(query, given) == ["b1", "b1 b2", "b1 b3", "b2", "b2 b3", "b3"]
    # above the mean of the rounds so far, the current one included: the first never is
    assert found(pattern("?b+", "FILTER (?b.x >= AVG(?b.x))"), given) == ["b1", "b1 b2", "b2", "b3"]


def test_also_where_a_later_event_brings_the_decision():
    # with c1, round one is 5 + 5 and round two 1 + 6, each below 11; over the whole loop 5 + 6 would not be
    query = pattern("?b+, ?c", "JOIN (?b.x + SUM(?b.x) < ?c.x)")
    assert found(query, "b1@0:5 b2@1:1 c1@2:11") == ["b1 b2 c1", "b1 c1", "b2 c1"]


def test_a_condition_without_variables():
    assert found(pattern("?a, ?b", "FILTER (1 = 2)"), "a1@0 b1@1") == []
    assert found(pattern("?a, ?b", "FILTER (1 < 2)"), "a1@0 b1@1") == ["a1 b1"]


def test_first_last_and_count_in_conditions():
    given = "b1@0:2 b2@1:3 b3@2:1"
    assert found(pattern("?b{2,}", "FILTER (LAST(?b.x) < FIRST(?b.x))"), given) == [
        "b1 b2 b3",
        "b1 b3",
        "b2 b3",
    ]


def test_an_aggregate_and_a_later_event():
    given = "b1@0:1 b2@1:2 c1@2:3 c2@3:2"
    assert found(pattern("?b+, ?c", "JOIN (SUM(?b.x) = ?c.x)"), given) == ["b1 b2 c1", "b2 c2"]
    assert found(pattern("?b+, ?c", "JOIN (SUM(?b.x) = ?c.x) MATCH next"), given) == ["b1 b2 c1", "b2 c2"]


def test_a_condition_on_what_was_left_out_does_not_apply():
    given = "a1@0:1 b1@1:0 c1@2"
    assert found(pattern("?a, ?b*, ?c", "JOIN (?b.x > ?a.x)"), given) == ["a1 c1"]
    # in an aggregate it does apply: of no value COUNT is 0 and SUM null
    assert found(pattern("?a, ?b*, ?c", "FILTER (COUNT(?b) >= 1)"), given) == ["a1 b1 c1"]
    assert found(pattern("?a, ?b*, ?c", "FILTER (SUM(?b.x) >= 0)"), given) == ["a1 b1 c1"]


def test_a_loop_at_the_end_is_free_to_stop():
    assert found(pattern("?a, ?b+", "MATCH strict"), "a1@0 b1@1 b2@2 z1@3 b3@4") == ["a1 b1", "a1 b1 b2"]


def test_a_long_loop():
    given = " ".join(f"b{n}@{n}:{n}" for n in range(1500))
    matches = answers(pattern("?a, ?b{1500}", "MATCH strict"), "a1@-1 " + given)
    (match,) = [each.match for each in matches]
    assert (match.start_us, match.end_us) == (-S, 1499 * S)
    assert len(match.events["b"]) == 1500


def test_what_a_loop_selects():
    query = """SELECT ?a.label, ?b.x, ?b.ts AS times, COUNT(?b) AS n, SUM(?b.x) AS total, AVG(?b.x) AS mean
               FROM (?a, s), (?b, s) FILTER (?a.kind = 'a') FILTER (?b.kind = 'b')
               SEQ (?a, ?b*) MATCH strict"""
    none, one, two = answers(query, "a1@0 b1@1:4 b2@2")
    assert none.match.select == {"label": "a1", "x": [], "times": [], "n": 0, "total": None, "mean": None}
    assert one.match.select["x"] == [4]
    assert two.match.select == {
        "label": "a1",
        "x": [4, None],
        "times": ["1970-01-01T00:00:01.000000Z", "1970-01-01T00:00:02.000000Z"],
        "n": 2,
        "total": 4,
        "mean": 4.0,
    }
    # an event of the output carries the columns that have one value
    assert two.values == {"label": "a1", "n": 2, "total": 4, "mean": 4.0}


def test_the_events_of_a_loop_are_a_list():
    def shown(query, given):
        return [each.match.events for each in answers(query, given)]

    a, b = {"stream": "s", "part": 0, "seq": 0}, {"stream": "s", "part": 0, "seq": 1}
    assert shown(pattern("?a, ?b+", "MATCH strict"), "a1@0 b1@1") == [{"a": a, "b": [b]}]
    assert shown(pattern("?a, ?b*", "MATCH strict"), "a1@0") == [{"a": a, "b": []}]
    assert shown(pattern("?a, ?b?", "MATCH strict"), "a1@0") == [{"a": a}]
    assert shown(pattern("?a, (?b* | ?c)", "MATCH strict"), "a1@0 c1@1") == [{"a": a}, {"a": a, "c": b}]
