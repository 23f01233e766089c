"""Made-up events: the same for the same seed, wherever one begins, and at their pace."""

from __future__ import annotations

import time

import pytest

from kaicep.connectors.contract import Source
from kaicep.connectors.registry import make_source
from kaicep.connectors.shape import Form
from kaicep.plan.events import Event


def source_of(**options: object) -> Source:
    return make_source(Form("s"), {"kind": "generator", **options})


def everything(source: Source, start: int = 0) -> list[Event]:
    source.open({0: start})
    events: list[Event] = []
    while True:
        batch = source.next_batch(0)
        events += batch.events
        if batch.ended:
            return events


def content(events: list[Event]) -> list[tuple[int, int, dict[str, object]]]:
    return [(each.seq, each.ts, dict(each.values)) for each in events]


def test_the_same_seed_gives_the_same_events_whatever_the_batches() -> None:
    one, other = source_of(count=2_500, batch=7), source_of(count=2_500)
    assert content(everything(one)) == content(everything(other))
    assert content(everything(one)) != content(everything(source_of(count=2_500, seed=1)))


@pytest.mark.parametrize("start", [0, 1, 999, 1_000, 1_001, 2_500])
def test_opened_at_a_position_it_gives_the_event_there_first(start: int) -> None:
    whole = content(everything(source_of(count=2_500)))
    assert content(everything(source_of(count=2_500), start)) == whole[start:]


def test_the_rate_is_that_of_event_time() -> None:
    events = everything(source_of(count=5, rate=2, start="1970-01-01T00:00"))
    assert [each.ts for each in events] == [0, 500_000, 1_000_000, 1_500_000, 2_000_000]


def test_the_schema_is_that_of_the_events() -> None:
    source = source_of(count=1)
    [event] = everything(source)
    assert source.schema is not None
    assert [name for name, _ in source.schema.attributes] == list(event.values)


def test_at_its_pace_it_never_runs_ahead_of_the_clock() -> None:
    source = source_of(rate=1_000, pace=True)
    began = time.monotonic()
    source.open()
    given = 0
    while given < 50:
        given += len(source.next_batch(1).events)
        assert given <= (time.monotonic() - began) * 1_000
    assert not source.finite
