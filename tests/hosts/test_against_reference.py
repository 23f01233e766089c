"""The engine against the judge: random queries, arrivals, batches, parts, lateness, crashes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import Drawn, S, events, patterns, runs

from kaicep import testing
from kaicep.api import FiniteRun
from kaicep.hosts import routing
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.plan.events import Event, Match
from kaicep.reference import evaluate

pytestmark = pytest.mark.random


def judged(run: FiniteRun) -> list[str]:
    found = evaluate(run, run.batches)
    return [each.to_json() for each in found]


def interleaved(events: tuple[Event, ...], chance: random.Random) -> list[Event]:
    """The events in an order of arrival that keeps that of each part."""
    queues: dict[tuple[str, int], list[Event]] = {}
    for each in events:
        queues.setdefault((each.stream, each.part), []).append(each)
    order: list[Event] = []
    while queues:
        key = chance.choice(list(queues))
        order.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return order


def engine_for(run: FiniteRun, drawn: Drawn) -> Engine:
    parts: dict[str, list[int]] = {}
    for each in drawn.events:
        parts.setdefault(each.stream, [])
        if each.part not in parts[each.stream]:
            parts[each.stream].append(each.part)
    everything = Settings(parts={"s": (), "t": ()} | parts)
    return Engine(run, lateness=drawn.lateness, settings=everything)


def lived(run: FiniteRun, drawn: Drawn, chance: random.Random) -> list[str]:
    """The matches of an engine that is pushed to in batches, and crashes now and then."""
    engine = engine_for(run, drawn)
    found: list[Match] = []
    order = interleaved(drawn.events, chance)
    while order:
        size = chance.choice((1, 1, 2, 5, len(order)))
        found += engine.push(order[:size])
        del order[:size]
        if chance.random() < 0.3:
            saved = engine.snapshot()
            engine = engine_for(run, drawn)
            engine.restore(saved)
            assert engine.snapshot() == saved
    found += engine.finish()
    return [each.to_json() for each in sorted(found, key=lambda match: (match.end_us, match.id))]


@pytest.mark.parametrize("effort", [EXAMPLES])
@pytest.mark.parametrize("few", [0, 64])
def test_the_engine_gives_what_the_reference_gives(
    few: int, effort: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "FEW", few)

    @settings(max_examples=effort, deadline=None, suppress_health_check=list(HealthCheck))
    @given(runs(), st.integers(0, 2**32))
    def agree(drawn: Drawn, seed: int) -> None:
        run = drawn.run()
        assume(run is not None)
        assert run is not None
        wanted = judged(run)
        assert lived(run, drawn, random.Random(seed)) == wanted

    agree()


SHAPES = (
    "SELECT ?a.x, ?a.k FILTER (?a.x > {x})",
    "SELECT ?a.x FILTER (?a.k = '{k}') FILTER (?a.x <= {x})",
    "SELECT ?a.x, ?b.x FILTER (?a.x >= {x}) FILTER (?b.k IN ('{k}', 'r')) SEQ (?a, ?b) WINDOW (?a, ?b, {w}s)",
    "SELECT ?a.x, ?b.x FILTER (?a.x < {x}) FILTER (?b.x > {x}) SEQ (?a, ?b) WINDOW (?a, ?b, 9s) MATCH next",
    "SELECT ?a.x FILTER (?a.x > {x}) FILTER (?n.x < 9) SEQ (?a, !?n) WINDOW (?a, ?n, {w}s) PARTITION BY ?a.k",
    "SELECT ?a.x FILTER (?a.x > {x}) FILTER (?b.x > {x}) SEQ (?a, ?b) MATCH strict WINDOW (?a, ?b, {w}s)",
    "SELECT ?a.x, ?s.x AS before FROM (?a, s), LATEST (?s, s) FILTER (?a.x > {x}) FILTER (?s.k = '{k}')",
    "SELECT AVG(?e.x) > {x} AS mean WINDOW (?e, sliding, {w}s)",
    "SELECT AVG(?e.x) < {x} AS mean, COUNT(?e) AS n WINDOW (?e, sliding, {w}s) PARTITION BY ?e.k",
    "SELECT SUM(?e.x) AS total WINDOW (?e, batch, 3s) HAVING (SUM(?e.x) > {x})",
)


@pytest.mark.parametrize("seed", range(3))
def test_each_of_many_queries_that_differ_in_constants_finds_what_the_reference_finds(seed: int) -> None:
    chance = random.Random(seed)
    queries = {
        f"q{number}.chi": chance.choice(SHAPES).format(
            x=float(chance.randrange(30)), k=chance.choice("pqr"), w=chance.choice((2, 5))
        )
        for number in range(60)
    }
    rows = [(at / 4, float(chance.randrange(30)), chance.choice("pqr")) for at in range(160)]
    data = "ts | x | k\n" + "\n".join(f"{ts} | {x} | {k}" for ts, x, k in rows)
    run = testing.prepare(queries, data, lateness="0s")
    (events,) = run.batches
    engine = Engine(run, lateness=0)
    found = [*engine.push(events[:90]), *engine.push(events[90:]), *engine.finish()]
    found.sort(key=lambda match: (match.end_us, match.id))
    wanted = judged(run)
    assert [each.to_json() for each in found] == wanted
    assert len({each.query for each in found}) > 40


def one_by_one(run: FiniteRun, drawn: Drawn, chance: random.Random) -> list[str]:
    """The matches of an engine that is pushed records one by one, now and then an event, and crashes."""
    engine = Engine(run, lateness=0)
    found: list[Match] = []
    for each in drawn.events:
        record = {"ts": each.ts / S, **each.values}
        by_record = engine.push_record("s", record, each.seq) if chance.random() < 0.8 else None
        found += engine.push([each]) if by_record is None else by_record
        if chance.random() < 0.1:
            saved = engine.snapshot()
            engine = Engine(run, lateness=0)
            engine.restore(saved)
    found += engine.finish()
    return [each.to_json() for each in sorted(found, key=lambda match: (match.end_us, match.id))]


@pytest.mark.parametrize("effort", [EXAMPLES])
def test_records_one_by_one_give_what_the_reference_gives(effort: int) -> None:
    @settings(max_examples=effort, deadline=None, suppress_health_check=list(HealthCheck))
    @given(patterns(("s",)), events(), st.integers(0, 2**32))
    def agree(text: str, some: tuple[Event, ...], seed: int) -> None:
        ordered = sorted(some, key=lambda each: each.ts)
        came = tuple(replace(each, stream="s", part=0, seq=at) for at, each in enumerate(ordered))
        drawn = Drawn({"q": text}, came, 0)
        run = drawn.run()
        assume(run is not None)
        assert run is not None
        assert one_by_one(run, drawn, random.Random(seed)) == judged(run)

    agree()
