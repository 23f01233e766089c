"""Random queries over random events on both Spark hosts, against the judge."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.hosts.random_runs import Drawn, runs
from tests.hosts.test_against_reference import interleaved, judged
from tests.spark.many import AT_ONCE, DRIVER, answers

from kaicep.api import FiniteRun
from kaicep.connectors.files import mark_late

pytestmark = [pytest.mark.random, pytest.mark.spark]

EXAMPLES = int(os.environ.get("KAICEP_SPARK_EXAMPLES", "48"))
"""How many runs each host is given, the driver's engine a quarter of that, one stream each; more at night."""


def cut(run: FiniteRun, drawn: Drawn, chance: random.Random) -> FiniteRun:
    """The run with its events in an order of arrival that keeps that of each part, in a few batches."""
    order = mark_late(interleaved(drawn.events, chance), drawn.lateness)
    at = sorted(chance.choices(range(len(order) + 1), k=2))
    return replace(run, batches=[order[: at[0]], order[at[0] : at[1]], order[at[1] :]])


@pytest.mark.parametrize("host", list(AT_ONCE))
def test_a_spark_host_gives_what_the_reference_gives(spark: Any, host: str) -> None:
    size = AT_ONCE[host]

    @settings(
        max_examples=EXAMPLES // 4 if host == DRIVER else -(-EXAMPLES // size),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to shrink is to run a job of Spark's a thousand times
    )
    @given(st.lists(runs(), min_size=size, max_size=size), st.integers(0, 2**32))
    def agree(drawn: list[Drawn], seed: int) -> None:
        chance = random.Random(seed)
        made = [(each.run(), each) for each in drawn]
        some = [cut(run, each, chance) for run, each in made if run is not None]
        wanted = [judged(run) for run in some]
        got = [[match.to_json() for match in found] for found in answers(some, host)]
        for run, expected, found in zip(some, wanted, got, strict=True):
            assert found == expected, (run.program, run.batches)

    agree()
