"""Queries that are found in one search find what each finds alone."""

from __future__ import annotations

import random

import pytest
from tests.hosts.random_runs import ATTRIBUTES

from kaicep.api import build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import SourceText
from kaicep.hosts.inprocess import Engine
from kaicep.kernel.together import groups
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.events import Event
from kaicep.plan.nodes import ChiPlan

RISE = """SELECT ?b.y - ?a.y AS rise FROM (?a, s), (?b, s, t) FILTER (?a.y {level})
    JOIN (?a.k = ?b.k) JOIN (?b.x - ?a.x > {steps}) SEQ (?a, ?b) WINDOW (?a, ?b, {width}s)"""
FALL = """SELECT ?a.k AS k FROM (?a, s), (?b, s) JOIN (?b.y - ?a.y {level}) SEQ (?a, ?b)
    WINDOW (?a, ?b, 3s) PARTITION BY ?a.k"""
LEVELS = (0.5, 2.5, 0.1, 0.5, 0.9, 7.0, 3.3, 1.0, 4.0)


def engine_of(*texts: str) -> Engine:
    parsed = [parse_query(SourceText(f"q{number}.chi", text), {}) for number, text in enumerate(texts)]
    data = [StreamData(name, ATTRIBUTES, [Event(name, 0, 0, 0)], []) for name in "st"]
    run = build_run(parsed, data, (), Knowledge.empty(), None, 0)
    return Engine(run, lateness=0)


def optimized(*texts: str) -> list[ChiPlan]:
    engine = engine_of(*texts)
    found = {name: plan for step in engine._steps for name, plan in zip(step.names, step.plans, strict=True)}
    return [optimize(found[name], engine.catalog, engine.knowledge)[0] for name in sorted(found)]


def grouped(*texts: str) -> list[list[str]]:
    return [[each.name for each in group] for group in groups(optimized(*texts))]


def events(count: int) -> list[Event]:
    chance = random.Random(5)
    return [
        Event("s", 0, at, at * 400_000, {"x": at, "y": chance.random() * 9, "k": chance.choice("pq")})
        for at in range(count)
    ]


def test_many_that_differ_in_one_level_alone_are_a_group() -> None:
    same = [RISE.format(level=f"> {level}", steps=0, width=8) for level in LEVELS[:8]]
    others = [
        RISE.format(level="> 0.5", steps=1, width=8),
        RISE.format(level="> 0.5", steps=0, width=9),
        RISE.format(level=">= 0.5", steps=0, width=8),
    ]
    alike, *alone = grouped(*same, *others)
    assert sorted(alike) == sorted(f"q{number}" for number in range(8))
    assert sorted(alone) == [["q10"], ["q8"], ["q9"]]


def test_few_that_differ_in_a_level_are_none_and_equal_patterns_are_one() -> None:
    one, other = (RISE.format(level=f"> {level}", steps=0, width=8) for level in (0.5, 0.1))
    assert grouped(one, other) == [["q0"], ["q1"]]
    assert grouped(one, one.replace("AS rise", "AS more")) == [["q0", "q1"]]
    total = "SELECT SUM(?e.x) > {level} AS n FROM (?e, s) WINDOW (?e, sliding, {width}s)"
    low, high, wide = (total.format(level=level, width=width) for level, width in ((1, 5), (2, 5), (2, 6)))
    assert grouped(low, high, wide) == [["q0", "q1"], ["q2"]]
    assert grouped(low, low.replace("SUM", "AVG")) == [["q0"], ["q1"]]
    skipping = [f"{one} AFTER MATCH SKIP TO NEXT"] * 2
    assert grouped(*skipping) == [["q0"], ["q1"]]


@pytest.mark.slow
@pytest.mark.parametrize("op", [">", ">=", "<", "<="])
@pytest.mark.parametrize("shape", [RISE, FALL])
def test_together_they_find_what_each_finds_alone(shape: str, op: str) -> None:
    texts = [shape.format(level=f"{op} {level}", steps=0, width=8) for level in LEVELS]
    together = engine_of(*texts)
    assert len(together._steps) == 1
    some = events(120)
    found = [each.to_json() for each in together.push(some[:60])]
    again = engine_of(*texts)
    again.restore(together.snapshot())
    found += [each.to_json() for each in (*again.push(some[60:]), *again.finish())]
    alone: list[str] = []
    for number, text in enumerate(texts):
        engine = engine_of(*["SELECT ?e.x FROM (?e, s) FILTER (?e.x < 0)"] * number, text)
        alone += [each.to_json() for each in (*engine.push(some), *engine.finish())]
    assert len(alone) > 20
    assert sorted(found) == sorted(alone)
