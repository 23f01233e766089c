"""Which worker runs what, and in which order.

The tests of a file share a broker, a demo or a built wheel, so they stay with one worker. All tests that use
the one Spark session stay together too. Workers begin with what takes long, so that none is left with it at
the end.

`pytest --shuffle=any` runs everything in random order instead, to find tests that only pass after others. The
seed stands at the head of the run, and gives the same order again in the place of `any`. Files are shuffled,
and the tests in each of them.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

_SEED = "KAICEP_SHUFFLE"  # workers need the seed that was drawn before there were any

SPARK = "tests/spark"
"""The folder of the tests that share the one Spark session; elsewhere they have `spark` for a parameter."""

_SECONDS = {"spark": 2.0, "servers": 1.0, "slow": 2.0, "random": 1.0}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle`."""
    parser.addoption("--shuffle", metavar="SEED", help="tests in the order of a seed, or of any")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed."""
    if config.option.shuffle == "any":
        config.option.shuffle = os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(1_000_000)))


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says how to get this order again."""
    return [f"order: --shuffle={config.option.shuffle}"] if config.option.shuffle else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the items in their order."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit_of(item.nodeid), []).append(item)
    ordered = list(units.values())
    if config.option.shuffle:
        chance = random.Random(config.option.shuffle)
        chance.shuffle(ordered)
        for some in ordered:
            chance.shuffle(some)
    elif hasattr(config, "workerinput"):
        ordered.sort(key=_length, reverse=True)
    items[:] = [item for some in ordered for item in some]


def unit_of(nodeid: str) -> str:
    """What stays together: the tests with the Spark session, else those of a file."""
    file, _, test = nodeid.partition("::")
    return SPARK if file.startswith(f"{SPARK}/") or "[spark" in test else file


def _length(some: list[pytest.Item]) -> float:
    """How long some tests take, as far as their marks say."""
    return sum(_SECONDS.get(mark.name, 0.0) for item in some for mark in item.iter_markers())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than there are cores, since they wait for brokers, JVMs and other processes."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker a unit, and the next one when it is through with it."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, whatever they take
    return ByUnit(config, log)
