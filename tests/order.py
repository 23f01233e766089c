"""Tests in an order of chance, to find those that only pass after others: `pytest --shuffle=any`.

The seed stands at the head of the run, and gives the same order again in the place of `any`. Files are
shuffled, and the tests in each of them.
"""

from __future__ import annotations

import os
import random

import pytest

_SEED = "KAICEP_SHUFFLE"  # workers need the seed that was drawn before there were any


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
    """Shuffles files, and tests in them."""
    if not config.option.shuffle:
        return
    chance = random.Random(config.option.shuffle)
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    shuffled = list(files.values())
    chance.shuffle(shuffled)
    for some in shuffled:
        chance.shuffle(some)
    items[:] = [item for some in shuffled for item in some]
