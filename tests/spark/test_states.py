"""What the engines of a deployment on Spark keep: written as it changes, and whole only now and then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.deployed import described, grown, laid_out, rows

from kaicep.deployment import spark_step
from kaicep.deployment.config import load_config
from kaicep.deployment.on_spark import SparkDeployment
from kaicep.deployment.running import Deployment
from kaicep.hosts.spark.job import prepare

pytestmark = pytest.mark.spark

STEPS, LINES = 12, 600
ENGINE = '[engine]\nkind = "spark"\nbuckets = 2'


def stepped(folder: Path, lost: tuple[int, ...], again: tuple[int, ...]) -> list[dict[str, Any]]:
    """Lets the events come step by step, and says how large the states are, and what each step wrote.

    In some steps no engine is at hand any more (`lost`), or the driver begins again.
    """
    deployment = SparkDeployment(load_config(folder / "kaicep.toml"))
    deployment.open()
    found = []
    for number in range(STEPS):
        grown(folder, LINES * number // STEPS, LINES * (number + 1) // STEPS)
        if number in again:
            deployment.close()
            deployment = SparkDeployment(load_config(folder / "kaicep.toml"))
            deployment.open()
        if number in (*lost, *again):
            spark_step._LIVE.clear()
        for each in deployment.sources.values():
            deployment._take(each)
        deployment.tick()
        states = [state for group in deployment.groups for state in group.states.values()]
        sizes = {"whole": sum(each.size for each in states), "since": sum(map(len, map(since, states)))}
        found.append({**sizes, "written": deployment._step.get("written", 0)})
        kept = {name for group in deployment.groups for name in group.files}
        assert {each.name for each in deployment._states.iterdir() if each.suffix in SUFFIXES} == kept
    deployment.close()
    return found


SUFFIXES = (".state", ".rows")


def since(state: spark_step.SavedState) -> tuple[str, ...]:
    return state.since


def test_what_is_kept_is_the_same_wherever_engines_are(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is not at hand takes the rows since its last whole state once more, and says nothing."""
    monkeypatch.setattr(spark_step, "_SMALL_STATE", 1 << 14)
    monkeypatch.setattr(spark_step, "_TOGETHER", 3)
    laid_out(tmp_path / "here", LINES, lateness="20s")
    Deployment(load_config(tmp_path / "here" / "kaicep.toml")).run()
    wanted = rows(tmp_path / "here" / "sunk")
    folder = tmp_path / "there"
    laid_out(folder, 0, follow=True, engine=ENGINE, lateness="20s")
    steps = stepped(folder, lost=(3, 4, 7, 9), again=(5, 8))
    assert any(each["since"] > 1 for each in steps)
    # Once a state has grown, a step mostly writes less than that.
    assert sum(each["written"] < each["whole"] / 2 for each in steps[STEPS // 2 :]) >= 3, steps
    monkeypatch.setattr(spark_step, "SMALL", 0)
    monkeypatch.setattr(spark_step, "_MOST_HERE", 0)
    described(folder, follow=False, engine=ENGINE, lateness="20s")
    SparkDeployment(load_config(folder / "kaicep.toml")).run()
    assert rows(folder / "state" / "matches") == wanted
    assert rows(folder / "sunk") == wanted


def test_new_knowledge_does_not_judge_old_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before other knowledge counts, states are written whole: their rows were judged by the old one."""
    found = []
    for lost in (False, True):
        folder = tmp_path / str(lost)
        laid_out(folder, 0, follow=True, engine=ENGINE, lateness="20s")
        (folder / "queries" / "later.chi").write_text(
            "SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) WHERE "
            "JOIN (?b.sensorID = ?a.sensorID) SEQ (?a, ?b) WINDOW (?a, ?b, 10min) "
            "PATH {?a evt:hasSource ?s . ?s bd:hasLocation ?room . ?room rdf:type bd:MeetingRoom}"
        )
        deployment = SparkDeployment(load_config(folder / "kaicep.toml"))
        deployment.open()
        building = folder / "knowledge" / "building.ttl"
        for number in range(6):
            if number == 4:
                building.write_text(building.read_text().replace(" a bd:MeetingRoom", " a bd:Room"))
            if lost:
                spark_step._LIVE.clear()
            grown(folder, 50 * number, 50 * (number + 1))
            for each in deployment.sources.values():
                deployment._take(each)
            deployment.tick()
        assert deployment.knowledge.knowledge.version == 1
        deployment.close()
        found.append([each for each in rows(folder / "state" / "matches") if each["query"] == "later"])
    assert found[0] == found[1]
    assert {each["knowledge"] for each in found[0]} >= {1}


def test_a_worker_keeps_what_it_has_loaded_from_the_garbage_collector(spark: Any) -> None:
    """PySpark collects after every task; this process has other garbage than ours, and is left alone."""

    def prepared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            prepare()
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    frozen = spark.range(0, 1, 1, 1).mapInArrow(prepared, "frozen bigint").collect()[0]["frozen"]
    assert frozen > 10_000
    before = gc.get_freeze_count()
    prepare()
    assert gc.get_freeze_count() == before
