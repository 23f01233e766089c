"""The engine against the judge: random queries, arrivals, batches, parts, lateness, crashes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import Drawn, S, events, patterns, runs

from kaicep.api import FiniteRun
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
def test_the_engine_gives_what_the_reference_gives(effort: int) -> None:
    @settings(max_examples=effort, deadline=None, suppress_health_check=list(HealthCheck))
    @given(runs(), st.integers(0, 2**32))
    def agree(drawn: Drawn, seed: int) -> None:
        run = drawn.run()
        assume(run is not None)
        assert run is not None
        wanted = judged(run)
        assert lived(run, drawn, random.Random(seed)) == wanted

    agree()


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
