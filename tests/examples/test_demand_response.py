"""Section 2 of the SCEPter paper: asked at ten, answered since nine, on until noon."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from kaicep.api import open_run
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = EXAMPLES / "demand-response"


def settle(running: Deployment) -> None:
    running._watched = 0.0  # look at the queries now
    while running.tick():
        pass


@pytest.mark.slow
def test_a_query_asked_at_ten_is_answered_as_if_it_had_been_there_at_nine(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "campus" / "data", tmp_path / "campus" / "data")
    here = tmp_path / "demand-response"
    shutil.copytree(HERE, here, ignore=shutil.ignore_patterns("run", "events"))
    events = here / "events" / "airflowReport.jsonl"
    events.parent.mkdir()
    morning: list[dict[str, Any]] = list(runpy.run_path(str(HERE / "morning.py"))["reports"]())
    lines = [json.dumps(each) + "\n" for each in morning]
    ten = sum(each["timestamp"] < "2012-05-07T10:00" for each in morning)
    running = Deployment(load_config(here / "kaicep.toml"))
    running.open()
    with events.open("a") as file:
        file.writelines(lines[:ten])
        file.flush()
        settle(running)
        shutil.copy(here / "lecture-halls.chi", here / "queries")
        settle(running)
        assert running.catalogue.status()["lecture-halls"]["state"] == "live"
        for first in range(ten, len(lines), 97):
            file.writelines(lines[first : first + 97])
            file.flush()
            settle(running)
    assert running.catalogue.status()["lecture-halls"]["state"] == "complete"
    assert running.catalogue.status()["offices"]["state"] == "live"
    running.drain()
    running.close()
    told = [json.loads(each) for each in (here / "run" / "matches.jsonl").read_text().splitlines()]
    halls = [each for each in told if each["query"] == "lecture-halls"]
    data = tmp_path / "campus" / "data"
    whole = open_run(
        [here / "lecture-halls.chi"],
        [("airflowReport", events)],
        [data / "knowledge" / "building.ttl", data / "knowledge" / "equipment.ttl"],
        [data / "annotations" / "airflowReport.json"],
        lateness=10_000_000,
    )
    assert halls == [json.loads(each.to_json()) for each in whole.matches("reference")]
    assert {each["select"]["sensorID"] for each in halls} == {"RTH101VOL", "EEB102VOL"}
    assert len({each["end"] for each in halls if each["end"] < "2012-05-07T10:00"}) > 50
    assert max(each["end"] for each in halls) < "2012-05-07T12:00"
