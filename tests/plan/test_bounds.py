"""Whether the WINDOWs bound a pattern: `check` warns where they do not; recovery goes back as far."""

from __future__ import annotations

import math

import pytest

from kaicep.errors import SourceText
from kaicep.join.handoff import reach_of
from kaicep.language.parse_chicep import parse_chi
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.nodes import Program
from kaicep.plan.resolve import resolve_chi
from kaicep.plan.types import Type

CATALOG = Catalog({"s": Stream("s", (("k", Type.STRING), ("x", Type.INT64)))})
ENDLESS = math.inf


@pytest.mark.parametrize(
    ("clauses", "seconds"),
    [
        ("SEQ (?a, ?b, ?c) WINDOW (?a, ?b, ?c, 5s)", 5),
        ("SEQ (?a, ?b, ?c) WINDOW (?a, ?c, 5s)", 5),  # ?b lies between them
        ("SEQ (?a, ?b+, ?c) WINDOW (?c, ?a, 5s)", 5),
        ("SEQ (?a, (?b | ?c)) WINDOW (?a, ?b, 5s)", ENDLESS),
        ("SEQ (?a, ?b, ?c) WINDOW (?a, ?b, 5s)", ENDLESS),
        ("SEQ (?a, ?b, ?c) WINDOW (?a, ?b, 5s) WINDOW (?b, ?c, 4s)", 9),
        (
            "SEQ (?a, ?b?, ?c) WINDOW (?a, ?b, 5s) WINDOW (?b, ?c, 4s)",
            ENDLESS,
        ),  # without a ?b neither applies
        ("SEQ (?a, ?b, ?c+) WINDOW (?a, ?b, 5s)", ENDLESS),
        ("SEQ (?a, ?b, !?c) WINDOW (?a, ?b, 5s)", 5),
        ("WINDOW (?a, ?c, 5s)", ENDLESS),  # in any order, ?b may be anywhere
    ],
)
def test_a_window_bounds_what_the_sequence_has_between_its_events(clauses: str, seconds: float) -> None:
    text = f"SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) {clauses}"
    plan = resolve_chi(parse_chi(SourceText("query.chi", text)), CATALOG, 0)
    assert reach_of(Program((plan,))) == seconds * 1_000_000
    warned = [each.message for each in plan.warnings if "no WINDOW ties" in each.message]
    assert bool(warned) == (seconds == ENDLESS), warned
