"""Several who are told, each with a mark of its own: after any crash each gets what it lacks, once."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.deployment.test_joint import EFFORT, LATENESS, PARTS, QUERIES, World, drawn, history, wanted

from kaicep.deployment.sessions import FoundMatch as Newly
from kaicep.deployment.sessions import recovery
from kaicep.join.handoff import HandOff, reach_of
from kaicep.plan.events import Match

pytestmark = [pytest.mark.random, pytest.mark.slow]

SINKS = ("one", "two", "three")


class Told:
    """A sink that commits matches and mark in one step."""

    def __init__(self) -> None:
        self.matches: list[Match] = []
        self.entry: dict[str, Any] | None = None

    def commit(self, matches: list[Match], made: HandOff) -> None:
        self.matches += matches
        mark = json.loads(json.dumps(made.mark.to_json()))
        self.entry = {
            "mark": mark,
            "told": {"q": len(self.matches)},
            "last": {},
            "complete": False,
        }


def lived(world: World, name: str, chance: random.Random) -> dict[str, Told]:
    """The sinks of a query whose process is lost now and then, between one sink's commit and another's."""
    sinks = {each: Told() for each in SINKS}
    live = 0.0
    while True:
        start = recovery({each: sink.entry for each, sink in sinks.items()})
        asked = history(world, name)
        made = HandOff(asked, world.archive.snapshot(), LATENESS, PARTS, start.mark, None, start.later)
        found = [(made.leg, match) for some in made.past() for match in some]
        news = {
            sink: [match for leg, match in found if start.is_news(sink, Newly(match, leg))] for sink in SINKS
        }
        lost = _committed(sinks, made, chance, news)
        while not lost and live < 1.0 and chance.random() < 0.7:
            after = min(1.0, live + chance.choice((0.1, 0.3)))
            world.archive_to(after)
            new = made.live_all(world.stretches(live, after))
            live = after
            lost = _committed(sinks, made, chance, dict.fromkeys(SINKS, new))
        if not lost and live >= 1.0:
            rest = made.finish()
            for sink in sinks.values():
                sink.commit(rest, made)
            return sinks


def _committed(
    sinks: dict[str, Told], made: HandOff, chance: random.Random, news: dict[str, list[Match]]
) -> bool:
    """Tells the sinks one after the other; whether the process was lost before it came to all of them."""
    for name in chance.sample(SINKS, len(SINKS)):
        if chance.random() < 0.15:
            return True
        sinks[name].commit(news[name], made)
    return False


@pytest.mark.parametrize("name", QUERIES)
def test_each_is_told_everything_once(name: str) -> None:
    @settings(max_examples=max(1, EFFORT // 3), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def agree(seed: int) -> None:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), drawn(chance, 40))
            answer = wanted(world, name)
            for sink in lived(world, name, chance).values():
                told = sorted(sink.matches, key=lambda match: (match.end_us, match.id))
                assert [each.to_json() for each in told] == answer

    agree()


def test_a_query_over_the_output_of_another_reaches_as_far_as_both() -> None:
    from kaicep.api import parse_query
    from kaicep.errors import SourceText
    from kaicep.history.strategies import history_of
    from kaicep.knowledge.store import Knowledge

    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), {})
        texts = {
            "pair": QUERIES["pair"],
            "many": "SELECT COUNT(?p) AS n FROM (?p, pair) WINDOW (?p, sliding, 4s)",
        }
        parsed = [parse_query(SourceText(f"{each}.chi", text), {}) for each, text in texts.items()]
        program = history_of(parsed, world.archive, Knowledge.empty(), (), 0).program
        assert reach_of(program) == 10_000_000
