"""LATEST in the plan: what decides about candidates, what is tested on the last one, what `check` says."""

from __future__ import annotations

import pytest

from kaicep.errors import SourceText
from kaicep.language.parse_chicep import parse_chi
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.explain import Explanation, explain_text
from kaicep.plan.nodes import ChiPlan, Latest, Pattern
from kaicep.plan.resolve import resolve_chi
from kaicep.plan.text import resolved_text
from kaicep.plan.types import Type

CATALOG = Catalog({name: Stream(name, (("k", Type.STRING), ("x", Type.INT64))) for name in ("r", "s")})


def plan(clauses: str) -> ChiPlan:
    text = f"SELECT ?a.x FROM (?a, r), (?b, r), LATEST (?s, s), LATEST (?t, s) {clauses}"
    return resolve_chi(parse_chi(SourceText("query.chi", text)), CATALOG, 0)


def pattern(clauses: str) -> Pattern:
    body = plan(clauses).body
    assert isinstance(body, Pattern)
    return body


def parts(latest: Latest) -> tuple[str, str, str]:
    keys = " ".join(f"{resolved_text(own)}={resolved_text(other)}" for own, other in latest.keys)
    filters = [resolved_text(each) for each in latest.chain.conditions]
    return keys, " ".join(filters), " ".join(map(resolved_text, latest.conditions))


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        ("SEQ (?a, ?b) JOIN (?s.k = ?a.k)", ("?s.k=?a.k", "", "")),
        ("SEQ (?a, ?b) JOIN (?a.x + ?b.x = ?s.x * 2)", ("?s.x * 2=?a.x + ?b.x", "", "")),
        (
            "SEQ (?a, ?b) JOIN (?s.x > 1 && ?s.k = ?a.k && ?s.x > ?b.x)",
            ("?s.k=?a.k", "?s.x > 1", "?s.x > ?b.x"),
        ),
        ("SEQ (?a, ?b) JOIN (?s.k != ?a.k)", ("", "", "?s.k != ?a.k")),
        ("SEQ (?a, ?b) JOIN (?s.x + ?a.x = ?b.x)", ("", "", "?s.x + ?a.x = ?b.x")),
        ("SEQ (?a, ?b) JOIN (?s.k = ?a.k || ?s.x = 1)", ("", "", "?s.k = ?a.k || ?s.x = 1")),
        ("SEQ (?a, ?b+) JOIN (?s.k = ?b.k)", ("", "", "?s.k = ?b.k")),  # a loop is several events
        ("SEQ (?a, ?b+) JOIN (?s.x = LAST(?b.x))", ("", "", "?s.x = LAST(?b.x)")),
    ],
)
def test_conditions_by_what_they_decide(clauses, expected):
    assert parts(pattern(clauses).latest[0]) == expected


def test_what_names_two_of_them_stands_with_the_last():
    found = pattern("SEQ (?a, ?b) JOIN (?s.k = ?t.k) WINDOW (?t, ?s, 1min) WINDOW (?s, ?a, 1min)")
    first, second = found.latest
    assert (first.conditions, first.keys, len(first.windows)) == ((), (), 1)
    assert (len(second.conditions), second.keys, len(second.windows)) == (1, (), 1)
    assert (found.conditions, found.windows) == ((), ())


def test_a_condition_on_an_absent_event_stays_with_the_absence():
    found = pattern("SEQ (?a, !?b) WINDOW (?a, ?b, 1min) JOIN (?b.k = ?s.k)")
    assert [resolved_text(each) for each in found.conditions] == ["?b.k = ?s.k"]
    assert parts(found.latest[0]) == ("", "", "")


@pytest.mark.parametrize(
    ("clauses", "warned"),
    [
        ("", ["?s", "?t"]),
        ("WINDOW (?s, ?a, 1h)", ["?t"]),
        ("WINDOW (?s, ?t, ?a, 1h)", []),
        ("WITHIN [, 2012-05-07)", []),
    ],
)
def test_check_warns_of_what_is_kept_for_ever(clauses, warned):
    found = [each.message for each in plan(f"SEQ (?a, ?b) WINDOW (?a, ?b, 1h) {clauses}").warnings]
    text = "no WINDOW names {}: on an endless stream it keeps one event for each key for ever"
    assert found == [text.format(each) for each in warned]


def test_explain_shows_what_is_looked_up():
    made = plan("SEQ (?a, ?b) JOIN (?s.k = ?a.k) JOIN (?s.x > ?a.x) WINDOW (?a, ?b, ?s, 1h)")
    shown = explain_text([Explanation(made, made)])
    assert "Latest ?s\n" in shown
    assert "key ?s.k = ?a.k\n" in shown
    assert "join ?s.x > ?a.x\n" in shown
    assert "window (?a, ?b, ?s) 1h\n" in shown
