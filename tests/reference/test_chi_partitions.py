"""PARTITION BY: patterns, contiguity, skipping and windows per value."""

from __future__ import annotations

from tests.reference.chi_letters import S, answers, events, found, pattern, plan_of

from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.types import Type
from kaicep.reference.chicep import run_chi

KEYED = pattern("?a, ?b", "PARTITION BY ?a.k {}")


def test_events_of_different_values_never_meet():
    assert found(KEYED.format(""), "a1@0::x a2@1::y b1@2::x b2@3::y") == ["a1 b1", "a2 b2"]


def test_null_is_a_value():
    assert found(KEYED.format(""), "a1@0 a2@1::x b1@2 b2@3::y") == ["a1 b1"]


def test_contiguity_is_per_partition():
    assert found(KEYED.format("MATCH strict"), "a1@0::x z1@1::y b1@2::x") == ["a1 b1"]
    assert found(KEYED.format("MATCH strict"), "a1@0::x z1@1::x b1@2::x") == []


def test_absence_is_per_partition():
    query = pattern("?a, !?n, ?b", "PARTITION BY ?a.k")
    assert found(query, "a1@0::x n1@1::y b1@2::x") == ["a1 b1"]
    assert found(query, "a1@0::x n1@1::x b1@2::x") == []


def test_whichever_variable_is_named_every_event_is_read():
    given = events("a1@0::x a2@0::y", "s") + events("b1@1::x b2@2::y", "t")
    query = "SELECT ?a.label FROM (?a, s), (?b, t) SEQ (?a, ?b) PARTITION BY ?{}.k"
    assert found(query.format("a"), given) == ["a1 b1", "a2 b2"]
    assert found(query.format("b"), given) == ["a1 b1", "a2 b2"]


def test_several_attributes():
    query = pattern("?a, ?b", "PARTITION BY ?a.k, ?a.x")
    assert found(query, "a1@0:1:x b1@1:2:x b2@2:1:x b3@3:1:y") == ["a1 b2"]


def test_int_and_float_values_that_are_equal_are_one_partition():
    known = Catalog({"s": Stream("s", (("x", Type.INT64),)), "t": Stream("t", (("x", Type.FLOAT64),))})
    given = [
        Event("s", 0, 0, 0, {"x": 5}),
        Event("s", 0, 1, 0, {"x": 0}),
        Event("t", 0, 0, S, {"x": 5.0}),
        Event("t", 0, 1, S, {"x": -0.0}),
    ]
    plan = plan_of("SELECT ?a.x, ?b.x FROM (?a, s), (?b, t) SEQ (?a, ?b) PARTITION BY ?a.x", known)
    selected = [each.match.select for each in run_chi(plan, given, known)]
    assert sorted((each["a.x"], each["b.x"]) for each in selected) == [(0, -0.0), (5, 5.0)]


def test_the_windows_of_aggregates_are_per_partition():
    query = """SELECT ?e.label, COUNT(?e) AS n, SUM(?e.x) AS total FROM (?e, s)
               PARTITION BY ?e.k WINDOW (?e, sliding, 2)"""
    rows = [each.match.select for each in answers(query, "e1@0:1:x e2@1:2:y e3@2:4:x e4@3:8:x e5@4:16")]
    assert [(each["label"], each["n"], each["total"]) for each in rows] == [
        ("e1", 1, 1),
        ("e2", 1, 2),
        ("e3", 2, 5),
        ("e4", 2, 12),
        ("e5", 1, 16),
    ]


def test_full_batches_are_counted_per_partition():
    query = "SELECT SUM(?e.x) AS total FROM (?e, s) PARTITION BY ?e.k WINDOW (?e, batch, 2)"
    rows = [each.match.select["total"] for each in answers(query, "e1@0:1:x e2@1:2:y e3@2:4:x e4@3:8:x")]
    assert rows == [5]


def test_the_partition_is_part_of_the_id():
    query = "SELECT COUNT(?e) AS n FROM (?e, s) PARTITION BY ?e.k WINDOW (?e, batch, 10s)"
    first, second = (each.match for each in answers(query, "e1@0::x e2@1::y"))
    assert (first.start_us, first.end_us, first.select) == (second.start_us, second.end_us, second.select)
    assert first.id != second.id
