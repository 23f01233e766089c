"""Queries of a deployment that run in Spark: told what any host tells, once, however often all is lost."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.endtoend.processes import matches, write
from tests.endtoend.test_deployment import HIGH, PAIR, SINCE, deployed, event

from kaicep.endtoend.config import load_config
from kaicep.endtoend.deployment import Deployment

pytestmark = pytest.mark.spark

QUERIES = {
    "pair": PAIR,
    "silent": f"SELECT ?a.x FROM (?a, s), (?b, s) {SINCE} "
    "FILTER (?b.x > 7) SEQ (?a, !?b) WINDOW (?a, ?b, 3s)",
}


def toml(follow: bool = True) -> str:
    hosts = "".join(f'[queries.{name}]\nhost = "spark-stream"\n' for name in QUERIES)
    return f"""
[streams.s]
lateness = "2s"
idle = "1h"
source = {{kind = "files", path = "s", follow = {str(follow).lower()}}}
[sinks.out]
kind = "files"
path = "out.jsonl"
{hosts}"""


def settled(made: Deployment) -> None:
    """Ticks until Spark has answered everything, and the sinks have it."""
    while made.tick() or any(each.waiting for each in made.sessions.values()):
        time.sleep(0.01)
    for outlet in made.outlets.values():
        assert outlet.wait(made._moment, 20)


def in_order(found: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(each) for each in sorted(found, key=lambda each: (each["end"], each["id"]))]


def test_whatever_is_lost_spark_tells_every_match_once(spark: Any, tmp_path: Path) -> None:
    chance = random.Random(11)
    write(tmp_path, {"kaicep.toml": toml(), "s/a.jsonl": event(0, 1), "s/b.jsonl": event(0, 2)})
    write(tmp_path, {f"queries/{name}.chi": text for name, text in QUERIES.items()})
    write(tmp_path, {"queries/high.chi": HIGH})
    second = 0.0
    for lost in (True, False):
        with deployed(tmp_path, lose=lost) as made:
            settled(made)
            for _ in range(4):
                for file in ("a", "b"):
                    with (tmp_path / "s" / f"{file}.jsonl").open("a") as lines:
                        for _ in range(chance.randrange(1, 6)):
                            second += chance.random()
                            late = chance.choice((0, 0, 0, 1, 5))
                            lines.write(event(int(second) - late, chance.randrange(10), chance.choice("pq")))
                made.tick()
            if lost:
                assert any(each.waiting for each in made.sessions.values())
            else:
                settled(made)
                shown = made.catalogue.status()
                assert {name: each["plan"] for name, each in shown.items()} == {
                    "high": "hand-off",
                    **dict.fromkeys(QUERIES, "hand-off to Spark"),
                }
    write(tmp_path, {"kaicep.toml": toml(follow=False)})
    Deployment(load_config(tmp_path / "kaicep.toml")).run()
    for name in (*QUERIES, "high"):
        found = [each for each in matches(tmp_path / "out.jsonl") if each["query"] == name]
        assert [each["end"] for each in found] == sorted(each["end"] for each in found), name
        assert in_order(found) == in_order(wanted_of(tmp_path, name)), name
        assert found, name


def wanted_of(folder: Path, query: str) -> list[dict[str, Any]]:
    from kaicep.api import open_run

    run = open_run([folder / "queries" / f"{query}.chi"], [("s", folder / "s")], lateness=2_000_000)
    return [json.loads(each.to_json()) for each in run.matches()]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"SELECT ?e.x FROM (?e, high) {SINCE}", "that read no other's output"),
        (f"SELECT ?e.part FROM (?e, s) {SINCE}", "which has an attribute part"),
    ],
)
def test_what_spark_cannot_run_is_told(tmp_path: Path, text: str, reason: str) -> None:
    line = '{"ts": 1336381200, "x": 7, "k": "p", "part": 3}\n'
    write(tmp_path, {"kaicep.toml": toml(), "s/a.jsonl": line})
    write(tmp_path, {"queries/high.chi": HIGH, "queries/pair.chi": text})
    with deployed(tmp_path) as made:
        while made.tick():
            pass
        shown = made.catalogue.status()
    assert reason in shown["pair"]["problem"]
    assert shown["high"]["state"] == "live"
