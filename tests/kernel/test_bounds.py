"""Which bounds of single events follow from conditions between events."""

from __future__ import annotations

import pytest

import kaicep as kai
from kaicep.kernel.automaton import bounds_of
from kaicep.optimize import optimize
from kaicep.plan.events import Event
from kaicep.plan.nodes import Pattern
from kaicep.plan.text import resolved_text
from kaicep.reference import evaluate

STREAMS = {"s": {"x": "float64", "n": "int64", "k": "string"}}


def bounds(conditions: str, sequence: str = "SEQ (?a, ?b)", names: str = "ab") -> dict[str, list[str]]:
    """The bounds of a pattern over one stream, as texts with their numbers rounded."""
    scans = ", ".join(f"(?{each}, s)" for each in names)
    query = kai.compile(f"SELECT ?a.x FROM {scans} {conditions} {sequence}", streams=STREAMS)
    plan, _ = optimize(query.program.chi_plans[0], query.catalog, query.knowledge)
    assert isinstance(plan.body, Pattern)
    return {name: list(map(resolved_text, some)) for name, some in bounds_of(plan.body).items()}


@pytest.mark.parametrize("condition", ["?b.x - ?a.x > 50", "?b.x > ?a.x + 50", "50 < ?b.x - ?a.x"])
def test_what_is_larger_than_a_large_one_is_large(condition: str) -> None:
    found = bounds(f"FILTER (?a.x > 500) JOIN ({condition})")
    assert list(found) == ["b"]
    (bound,) = found["b"]
    assert bound.startswith("?b.x >= 549.99999")


def test_bounds_go_on_from_event_to_event_and_down_as_well_as_up() -> None:
    conditions = "FILTER (?c.n <= 10) JOIN (?b.n < ?c.n) JOIN (?a.n + 5 <= ?b.n)"
    assert bounds(conditions, "SEQ (?a, ?b, ?c)", "abc") == {
        "b": ["?b.n <= 10.00000000001"],
        "a": ["?a.n <= 5.000000000024999"],
    }


@pytest.mark.parametrize(
    ("conditions", "sequence"),
    [
        ("JOIN (?b.x > ?a.x)", "SEQ (?a, ?b)"),  # nothing is known of ?a
        ("FILTER (?a.x < 500) JOIN (?b.x > ?a.x)", "SEQ (?a, ?b)"),
        ("FILTER (?a.x > 500) JOIN (?b.x * 2 > ?a.x)", "SEQ (?a, ?b)"),
        ("FILTER (?a.x > 500) JOIN (?b.x + 1e300 > ?a.x + 1)", "SEQ (?a, ?b)"),
        ("FILTER (?a.x > 500) JOIN (?b.x > ?a.x || ?b.n > 3)", "SEQ (?a, ?b)"),
        ("FILTER (?a.x > 500) JOIN (?b.x > ?a.x)", "SEQ (?a?, ?b)"),  # it may be left out
        ("FILTER (?a.x > 500) JOIN (?b.x > ?a.x)", "SEQ (?a+, ?b)"),
    ],
)
def test_where_nothing_follows(conditions: str, sequence: str) -> None:
    assert bounds(conditions, sequence) == {}


@pytest.mark.parametrize("match", ["any", "next", "strict"])
def test_numbers_at_the_bound_are_judged_by_the_condition(match: str) -> None:
    text = f"""SELECT ?a.x AS a, ?b.x AS b FILTER (?a.x > 0.1) JOIN (?b.x - ?a.x >= 0.2)
        SEQ (?a, ?b) MATCH {match} WINDOW (?a, ?b, 3s)"""
    query = kai.compile(text, streams=STREAMS)
    values = [0.1, 0.10000000000000002, 0.3, 0.30000000000000004, 0.30000000000000010, None, 0.2, 0.4]
    rows = [Event("s", 0, at, at * 1_000_000, {"x": each}) for at, each in enumerate(values)]
    engine = kai.Engine(query, lateness="0s")
    pushed = [engine.push({"ts": each.ts // 1_000_000, **each.values}) for each in rows]
    found = [match.id for some in (*pushed, engine.finish()) for match in some]
    truth = [match.id for match in evaluate(query, [rows])]
    assert sorted(found) == sorted(truth)
    assert truth
