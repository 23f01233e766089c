"""SPARQL 1.0 and 1.1 as the W3C tests them, on the reference and in process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.servers import Missing, without
from tests.w3c.score import DIFFERENT, HOSTS, SCORE, folders, outcomes, score
from tests.w3c.suite import cases

pytestmark = pytest.mark.servers
KNOWN = json.loads(SCORE.read_text())


@pytest.fixture(scope="module")
def suite() -> dict[str, Path]:
    try:
        return folders()
    except Missing as missing:
        without(missing)
        raise


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("folder", KNOWN)
def test_what_is_in_scope_is_exact(suite: dict[str, Path], folder: str, host: str) -> None:
    found = outcomes(suite[folder], host)
    assert {name: text for name, text in found.items() if text.startswith("WRONG")} == {}
    assert score(found) == KNOWN[folder], "renew: .venv/bin/python -m tests.w3c.score"


def test_every_folder_is_known_and_every_exception_is_needed(suite: dict[str, Path]) -> None:
    assert list(suite) == list(KNOWN)
    assert DIFFERENT.keys() <= {each.name for folder in suite.values() for each in cases(folder)}
