"""The pattern machine against the reference: every construct of a pattern, many streams, any cut of them."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hosts.random_runs import Drawn, events, patterns
from tests.hosts.test_against_reference import judged
from tests.hosts.test_compiled import PADDING, SHAPES

from kaicep.api import Run
from kaicep.hosts.columnar import attribute_types
from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings
from kaicep.kernel.operator import Limits
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Parts
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.events import Event, Match

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "500"))

MORE = {
    "three, next": (
        "SELECT ?a.x, ?c.k FROM (?a, s), (?b, s), (?c, t) JOIN (?b.x >= ?a.x) SEQ (?a, ?b, ?c)"
        " WINDOW (?a, ?c, 6s) MATCH next"
    ),
    "a choice with windows of its own": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) FILTER (?b.x > 1) JOIN (?c.y > ?a.y) SEQ (?a, (?b | ?c))"
        " WINDOW (?a, ?b, 4s) WINDOW (?a, ?c, 2s) MATCH next"
    ),
    "a conjunction": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) FILTER (?b.x > 1) JOIN (?c.k = ?b.k) SEQ (?a, (?b & ?c))"
        " WINDOW (?a, ?b, ?c, 6s)"
    ),
    "a loop in a conjunction": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) SEQ (?a, (?b+ & ?c)) WINDOW (?a, ?b, ?c, 4s)"
    ),
    "a condition on every round, tested later": (
        "SELECT ?a.x, COUNT(?b) AS n FROM (?a, s), (?b, s), (?c, s) JOIN (?b.x > PREV(?b.x))"
        " JOIN (?c.x > ?b.x) SEQ (?a, ?b+, ?c) WINDOW (?a, ?c, 6s) MATCH next"
    ),
    "aggregates of a loop": (
        "SELECT ?a.x, SUM(?b.y) AS n FROM (?a, s), (?b, s) JOIN (SUM(?b.y) > ?a.y) JOIN (MAX(?b.x) < 4)"
        " JOIN (?b.x >= FIRST(?b.x)) SEQ (?a, ?b+) WINDOW (?a, ?b, 4s)"
    ),
    "an absence that a later event decides": (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, t) JOIN (?n.y > ?b.y) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 6s)"
    ),
    "strings of two events": (
        "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?a.k < ?b.k || contains(?a.k, ?b.k)) SEQ (?a, ?b)"
        " WINDOW (?a, ?b, 6s)"
    ),
    "a PATH over two events": (
        "SELECT ?a.x, ?r FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 6s)"
        " PATH {?a :from ?p . ?p :in ?r . ?b :from ?q . ?q :in ?r}"
    ),
    "an optional event before a silence": (
        "SELECT ?a.k FROM (?a, s), (?b, s), (?n, t) JOIN (?n.x > ?b.x) SEQ (?a, ?b?, !?n)"
        " WINDOW (?a, ?b, ?n, 3s)"
    ),
}
ALL = {name: text for name, text in (SHAPES | MORE).items() if name not in ("sliding", "batch")}


def machine_of(run: Run, strings: Strings, limits: Limits | None = None) -> PatternMachine:
    plan = optimize(run.program.queries[0], run.catalog, run.knowledge)[0]
    return PatternMachine(plan, run.catalog, Relations(run.catalog, run.knowledge), strings, limits)


def found_by_machine(run: Run, some: tuple[Event, ...], seed: int) -> list[str]:
    """All matches, the events being given in pieces."""
    chance, strings = random.Random(seed), Strings()
    machine = machine_of(run, strings)
    types = attribute_types(machine, machine.plan, run.catalog)
    parts = Parts(None)
    sorter = ColumnSorter(machine.streams, parts, types, strings)
    for stream in machine.streams:
        own = [each for each in some if each.stream == stream]
        sorter.offer(batch_of_events(stream, own, types, strings))
    parts.finished = True
    table = sorter.release()
    matches: list[Match] = []
    at = 0
    while table is not None and at < len(table):
        to = min(len(table), at + chance.choice((1, 2, 5, 100)))
        for chunk in machine.feed(table.take(slice(at, to))):
            matches += chunk
        if to < len(table) and chance.random() < 0.5:
            for chunk in machine.advance(int(table.ts[to])):
                matches += chunk
        at = to
    for chunk in machine.advance(float("inf")):
        matches += chunk
    return [each.to_json() for each in sorted(matches, key=lambda match: (match.end, match.id))]


@pytest.mark.parametrize("name", ALL)
def test_the_machine_gives_what_the_reference_gives(name: str) -> None:
    @settings(max_examples=max(EXAMPLES // 20, 20), suppress_health_check=list(HealthCheck))
    @given(events(most=14), st.integers(0, 2**32))
    def agree(some: tuple[Event, ...], seed: int) -> None:
        every = (*some, *PADDING)
        run = Drawn({"q": ALL[name]}, every, None).run()
        assert run is not None
        assert found_by_machine(run, every, seed) == judged(run)

    agree()


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(patterns(), events(), st.integers(0, 2**32))
def test_random_patterns_give_what_the_reference_gives(text: str, some: tuple[Event, ...], seed: int) -> None:
    every = (*some, *PADDING)
    run = Drawn({"q": text}, every, None).run()
    if run is not None:
        assert found_by_machine(run, every, seed) == judged(run)
