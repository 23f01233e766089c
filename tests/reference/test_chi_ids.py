"""The id of a match: a function of query, partition, events and selected values, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

from tests.reference.chi_letters import answers, catalog, events, pattern, plan_of

from kaicep.plan.events import MatchId
from kaicep.plan.types import Type


def ids(query, given):
    return [each.match.id for each in answers(query, given)]


def test_an_id_is_made_of_the_events_by_variable():
    query = pattern("?a, ?b*, ?c")
    made = MatchId("query", query)
    a, c = events("a1@0 c1@1")
    made.word(1).event(a).word(0).word(1).event(c)
    assert ids(query, "a1@0 c1@1") == [made.hex()]


def test_an_id_begins_with_the_partition():
    query = pattern("?a, ?b", "PARTITION BY ?a.k, ?a.x")
    a, b = events("a1@0::x b1@1::x")
    made = MatchId("query", query).value("x").value(None).word(1).event(a).word(1).event(b)
    assert ids(query, [a, b]) == [made.hex()]


def test_the_two_zeros_are_one_partition_with_one_id():
    query = pattern("?a, ?b", "PARTITION BY ?a.x")
    (one,) = answers(query, "a1@0:0 b1@1:0", x=Type.FLOAT64)
    (other,) = answers(query, "a1@0:-0.0 b1@1:0", x=Type.FLOAT64)
    assert one.match.id == other.match.id


def test_values_times_and_other_events_play_no_part():
    query = pattern("?a, ?b")
    (one,) = ids(query, "a1@0:1 b1@1:2")
    assert ids(query, "a1@5:7 b1@9:8 z1@10") == [one]
    a, b = events("a1@0 b1@1")
    assert ids(query, [replace(a, part=1), b]) != [one]
    assert ids(query, [replace(a, seq=7), b]) != [one]


def test_name_and_text_of_the_query_play_a_part():
    given = "a1@0 b1@1"
    assert ids(pattern("?a, ?b"), given) != ids(pattern("?a, ?b") + " ", given)
    assert plan_of(pattern("?a, ?b"), catalog("s")).name == "query"


def test_the_same_events_in_other_places_are_another_match():
    both = ids("SELECT ?p.label FROM (?p, s), (?q, s)", "e1@0 e2@0")
    assert len(set(both)) == 2


def test_rounds_of_neighbouring_loops_are_told_apart():
    query = "SELECT COUNT(?p) AS n FROM (?p, s), (?q, s) SEQ (?p+, ?q+) MATCH strict"
    found = ids(query, "e1@0 e2@1 e3@2")
    assert len(set(found)) == len(found) == 4
