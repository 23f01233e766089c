"""Matches written from their columns: the same bytes as from the matches one by one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from tests.hosts.random_runs import Drawn, events
from tests.hosts.test_against_reference import judged
from tests.hosts.test_shapes import PADDING, SHAPES

from kaicep.api import FiniteRun
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Listed, Settings
from kaicep.kernel.columns import Matches
from kaicep.kernel.lines import lines_of
from kaicep.plan.events import Event


def written(run: FiniteRun, drawn: Drawn) -> list[str]:
    lines: list[str] = []

    def take(found: Matches | Listed) -> None:
        assert not isinstance(found, Listed)
        lines.extend(lines_of(found))

    parts = {name: sorted({each.part for each in drawn.events if each.stream == name}) for name in ("s", "t")}
    chosen = Settings(parts=parts)
    engine = Engine(run, lateness=drawn.lateness, settings=chosen, on_matches=take)
    engine.push(drawn.events)
    engine.finish()
    return lines


@pytest.mark.parametrize("shape", SHAPES)
def test_lines_are_those_of_the_reference(shape: str) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(events(most=14))
    def agree(some: tuple[Event, ...]) -> None:
        drawn = Drawn({"q": SHAPES[shape]}, (*some, *PADDING), None)
        run = drawn.run()
        assert run is not None
        assert sorted(written(run, drawn)) == sorted(judged(run))

    agree()


def test_names_and_texts_may_have_any_character() -> None:
    text = "SELECT ?a.k AS share, ?a.x AS x, ?a.y > 1 AS isLarge, ?a.ts AS at FROM (?a, s) FILTER (?a.x < 9)"
    values = ['100%s "of" it', "Zürich\\\n", "", None]
    some = tuple(Event("s", 0, at, at, {"x": 3, "y": 0.1 * at, "k": each}) for at, each in enumerate(values))
    drawn = Drawn({"50%d": text}, (*some, *PADDING), None)
    run = drawn.run()
    assert run is not None
    lines = written(run, drawn)
    assert sorted(lines) == sorted(judged(run))
    assert len(lines) == 4
