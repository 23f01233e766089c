"""Queries that differ in a level are found together as each is found alone."""

from __future__ import annotations

import pytest
from tests.hosts.random_runs import ATTRIBUTES
from tests.kernel.test_compiled_pattern import Case, many, plain, table_of

from kaicep.api import build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import Source
from kaicep.kernel.columns import Strings
from kaicep.kernel.compiled.group import CompiledGroup, groups
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.catalog import Catalog
from kaicep.plan.nodes import QueryPlan

__all__ = ["plain"]  # the fixture

RISE = """SELECT ?b.y - ?a.y AS rise FROM (?a, s), (?b, s, t) FILTER (?a.y {level})
    JOIN (?a.k = ?b.k) JOIN (?b.x - ?a.x > {steps}) SEQ (?a, ?b) WINDOW (?a, ?b, {width}s)"""
FALL = """SELECT ?a.k AS k FROM (?a, s), (?b, s) JOIN (?b.y - ?a.y {level}) SEQ (?a, ?b)
    WINDOW (?a, ?b, 3s) PARTITION BY ?a.k"""


def planned(*texts: str) -> tuple[list[QueryPlan], Catalog, Relations]:
    parsed = [parse_query(Source(f"q{number}.chi", text), {}) for number, text in enumerate(texts)]
    data = [StreamData(name, ATTRIBUTES, [], []) for name in "st"]
    run = build_run(parsed, data, (), Knowledge.parse(""), None, 0)
    plans = [optimize(each, run.catalog, run.knowledge)[0] for each in run.program.queries]
    return plans, run.catalog, Relations(run.catalog, run.knowledge)


def test_a_group_is_what_differs_in_one_level_alone() -> None:
    same = [RISE.format(level=f"> {level}", steps=0, width=8) for level in (0.5, 0.1, 0.9)]
    others = [
        RISE.format(level="> 0.5", steps=1, width=8),
        RISE.format(level="> 0.5", steps=0, width=9),
        RISE.format(level=">= 0.5", steps=0, width=8),
    ]
    plans, _, _ = planned(*same, *others)
    found = [[each.name for each in group] for group in groups(plans)]
    assert found == [["q0", "q1", "q2"], ["q3"], ["q4"], ["q5"]]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("op", [">", ">=", "<", "<="])
@pytest.mark.parametrize("shape", [RISE, FALL])
def test_together_they_find_what_each_finds_alone(shape: str, op: str) -> None:
    levels = (0.5, 2.5, 0.1, 0.5, 0.9)
    texts = [shape.format(level=f"{op} {level}", steps=0, width=8) for level in levels]
    plans, catalog, relations = planned(*texts)
    (group,) = groups(plans)
    rows = Case(texts[0], many(120, 5)).rows
    strings = Strings()
    operator = CompiledGroup(group, catalog, relations, strings)
    streams = ("s", "t") if shape is RISE else ("s",)
    saved = b""
    found: list[str] = []
    for at in range(0, len(rows), 40):
        if saved:
            operator = CompiledGroup(group, catalog, relations, strings)
            operator.restore(saved)
        for some in operator.feed(table_of(rows[at : at + 40], streams, strings)):
            found += [match.to_json() for each in some.split() for match in each]
        saved = operator.snapshot()
    alone: list[str] = []
    for plan, text in zip(plans, texts, strict=True):
        case = Case(text, rows)
        case.plan = plan
        alone += case.interpreted()
    assert len(alone) > 20
    assert sorted(found) == sorted(alone)
