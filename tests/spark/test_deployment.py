"""A deployment on Spark gives what it gives in this process, in the bytes of its table of matches."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from tests.deployment.test_attached import deployed, history, matches
from tests.spark.deployed import QUERIES, described, grown, laid_out, rows

from kaicep.deployment import on_spark, spark_step
from kaicep.deployment.config import load_config
from kaicep.deployment.on_spark import SparkDeployment
from kaicep.deployment.running import Deployment

pytestmark = pytest.mark.spark


def test_the_matches_are_those_of_this_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deployment(load_config(laid_out(tmp_path / "here"))).run()
    wanted = rows(tmp_path / "here" / "sunk")
    assert {each["query"] for each in wanted} == {Path(name).stem for name in QUERIES}
    for small in (0, 10**9):  # all on workers; all in the driver
        folder = tmp_path / f"spark-{small}"
        monkeypatch.setattr(spark_step, "SMALL", small)
        SparkDeployment(load_config(laid_out(folder, engine='[engine]\nkind = "spark"\nbuckets = 2'))).run()
        found = rows(folder / "state" / "matches")
        assert Counter(each["query"] for each in found) == Counter(each["query"] for each in wanted)
        assert found == wanted, small
        assert rows(folder / "sunk") == wanted
        said = spark.sparkContext.getLocalProperty("spark.job.description")
        *names, step = said.removeprefix("kaicep: ").split(", ")
        assert set(names) <= {Path(name).stem for name in QUERIES}
        assert names
        assert step.startswith("step ")


def test_what_is_taken_in_before_the_first_step_is_not_the_past(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late events are used by a query that goes back in time, not by one that was there before them."""
    Deployment(load_config(laid_out(tmp_path / "here", lateness="20s"))).run()
    monkeypatch.setattr(spark_step, "SMALL", 10**9)
    toml = laid_out(tmp_path / "spark", engine='[engine]\nkind = "spark"', lateness="20s")
    made = SparkDeployment(load_config(toml))
    made.open()
    try:
        for each in made.sources.values():
            made._take(each)
        while not made.is_over:
            made.tick()
    finally:
        made.close()
    assert rows(tmp_path / "spark" / "state" / "matches") == rows(tmp_path / "here" / "sunk")


def test_triples_and_attributes_of_any_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of triples, and one whose records have a `seq` and a `part` of their own."""
    monkeypatch.setattr(spark_step, "SMALL", 0)
    stocks = Path(__file__).parents[2] / "examples" / "stocks"
    found = []
    for engine in ("inprocess", "spark"):
        folder = tmp_path / engine
        (folder / "queries").mkdir(parents=True)
        for name in ("query1", "query5"):
            (folder / "queries" / f"{name}.epsparql").write_bytes(
                (stocks / "queries" / f"{name}.epsparql").read_bytes()
            )
        (folder / "queries" / "own.chi").write_text(
            "SELECT ?a.seq, ?b.part FROM (?a, meter), (?b, meter) WHERE JOIN (?a.seq = ?b.seq) "
            "SEQ (?a, ?b) WINDOW (?a, ?b, 3s)"
        )
        (folder / "meter.jsonl").write_text(
            "".join(json.dumps({"ts": at, "seq": at % 2, "part": f"p{at}"}) + "\n" for at in range(9))
        )
        (folder / "kaicep.toml").write_text(
            f"""state = "state"
engine = {{kind = "{engine}"}}
[streams.stocks]
source = {{kind = "files", path = "{stocks}/data/fall-and-rise.jsonl"}}
[streams.meter]
source = {{kind = "files", path = "meter.jsonl"}}
[sinks.table]
kind = "delta"
path = "sunk"
"""
        )
        kind = SparkDeployment if engine == "spark" else Deployment
        kind(load_config(folder / "kaicep.toml")).run()
        found.append(rows(folder / "sunk"))
    assert {"query1", "own"} <= {each["query"] for each in found[0]}
    assert found[1] == found[0]


def test_the_history_is_a_table_that_is_there(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its folder, or by its name in Spark's catalog; the live file goes on after it."""
    for first in (0, 10):
        write_deltalake(tmp_path / "lake", history(first, first + 10), mode="append")
    spark.sql(f"CREATE TABLE lake_of_meters USING parquet LOCATION '{tmp_path / 'lake'}'")
    try:
        Deployment(load_config(deployed(tmp_path / "here", 'table = "../lake"', range(20, 30)))).run()
        for number, (name, small) in enumerate({"../lake": 0, "default.lake_of_meters": 10**9}.items()):
            monkeypatch.setattr(spark_step, "SMALL", small)
            folder = tmp_path / f"spark-{number}"
            toml = deployed(folder, f'table = "{name}"', range(20, 30), 'engine = {kind = "spark"}')
            deployment = SparkDeployment(load_config(toml))
            deployment.run()
            assert matches(folder) == matches(tmp_path / "here")
            assert sum(each.rows for each in deployment.archive.stream("meter").table.files()) == 10
    finally:
        spark.sql("DROP TABLE lake_of_meters")


class Lost(Exception):
    """The driver is gone."""


def test_a_driver_that_is_lost_goes_on_with_the_knowledge_of_the_first_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was begun is done again by the version it was begun with, whatever files say by now."""
    folder = tmp_path / "small"
    engine = '[engine]\nkind = "spark"\nbuckets = 2'
    config = load_config(laid_out(folder, 300, follow=True, engine=engine, lateness="0s"))
    knowledge = sorted((folder / "knowledge").glob("*.ttl"))
    building = folder / "knowledge" / "building.ttl"
    first = building.read_text()

    def work(deployment: SparkDeployment) -> None:
        while sum(deployment.archive.snapshot().cut.positions.get("airflowReport", {}).values()) < grown_to:
            for each in deployment.sources.values():
                deployment._take(each)
        while deployment.tick():
            pass

    grown_to = 300
    deployment = SparkDeployment(config)
    deployment.open()
    work(deployment)
    assert deployment.knowledge.knowledge.version == 0
    rooms = set(re.findall(r"bd:hasLocation (bd:\w+)", "".join(each.read_text() for each in knowledge)))
    building.write_text(first + "".join(f"{room} a bd:MeetingRoom .\n" for room in rooms))
    deployment.tick()
    assert deployment.knowledge.knowledge.version == 1
    before = deployment.told["room"]

    def lost(*given: Any) -> None:
        raise Lost

    grown_to = 900
    grown(folder, 300, 900)
    monkeypatch.setattr(on_spark, "match_step", lost)
    with pytest.raises(Lost):
        work(deployment)
    monkeypatch.undo()
    deployment.close()
    building.write_text(first)

    again = SparkDeployment(config)
    again.open()
    assert again.knowledge.knowledge.version == 1
    work(again)
    again.close()
    assert again.knowledge.knowledge.version == 2
    found = [each for each in rows(folder / "state" / "matches") if each["query"] == "room"]
    told = Counter(each["knowledge"] for each in found)
    assert told[1] > 0, told
    assert len(found) == again.told["room"] > before
    meeting = {name.removeprefix("bd:") for name in re.findall(r"(bd:\w+) a bd:MeetingRoom", first)}
    seen = {json.loads(each["select"])["room"] for each in found if each["knowledge"] == 1}
    assert {re.split("[#/]", room)[-1] for room in seen} - meeting, seen
    third = SparkDeployment(config)
    third.open()
    third.close()
    assert third.knowledge.knowledge.version == 2


def test_a_query_from_outside_ends_nobody_else(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs with the others; where its engine fails, it is ended, and the others have found the same."""
    engine = '[engine]\nkind = "spark"\nbuckets = 2'
    Deployment(load_config(laid_out(tmp_path / "here", 700, lateness="20s"))).run()
    folder = tmp_path / "there"
    deployment = SparkDeployment(load_config(laid_out(folder, 0, follow=True, engine=engine, lateness="20s")))
    over: list[tuple[str, str]] = []
    deployment.endings.append(lambda name, reason: over.append((name, reason)))
    deployment.open()
    grown(folder, 0, 60)
    for each in deployment.sources.values():
        deployment._take(each)
    deployment.tick()
    groups = {each.id for each in deployment.groups}
    deployment.register("guest", "ep-sparql", "SELECT ?s WHERE { ?e evt:hasSource ?s }")
    deployment.register("good", "chi-cep", QUERIES["high.chi"])
    assert groups < {each.id for each in deployment.groups}  # nobody has begun again

    plain = on_spark.match_step

    def failing(spark: Any, step: spark_step.MatchStep, *rest: Any) -> Any:
        if any("guest" in each.reported for each in step.groups):
            raise MemoryError("the engine of guest needs too much")
        return plain(spark, step, *rest)

    monkeypatch.setattr(on_spark, "match_step", failing)
    grown(folder, 60, 700)
    for each in deployment.sources.values():
        deployment._take(each)
    deployment.tick()
    ((name, reason),) = over
    assert name == "guest"
    assert "needs too much" in reason
    status = deployment.status()["queries"]
    assert (status["guest"]["state"], status["good"]["state"]) == ("failed", "live")
    deployment.close()
    described(folder, follow=False, engine=engine, lateness="20s")
    again = SparkDeployment(load_config(folder / "kaicep.toml"))
    again.run()
    assert again.status()["queries"].keys() == {Path(each).stem for each in QUERIES} | {"good"}
    outside = ("guest", "good")
    own = [each for each in rows(folder / "state" / "matches") if each["query"] not in outside]
    assert own == rows(tmp_path / "here" / "sunk")


PAST = {
    "past.chi": "SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) "
    "WITHIN [2012-05-07T08:00, ) WHERE FILTER (?a.hvc:airflow > 560) FILTER (?b.hvc:airflow < 280) "
    "SEQ (?a, ?b) WINDOW (?a, ?b, 1min)",
}
MORE = {"more.chi": PAST["past.chi"]}
SLICED = {
    "close.chi": QUERIES["near.chi"],
    "gone.chi": "SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) WHERE "
    "FILTER (?a.hvc:airflow > 540) FILTER (?b.hvc:airflow > 560) SEQ (?a, !?b) WINDOW (?a, ?b, 20s)",
    "average.chi": "SELECT AVG(?e.hvc:airflow) AS mean, COUNT(?e) AS n FROM (?e, airflowReport) "
    "WHERE WINDOW (?e, sliding, 30s)",
    "pairs.epsparql": "SELECT ?s ?t WHERE { { ?e evt:hasSource ?s . ?e hvc:airflow ?x } SEQ "
    "{ ?f evt:hasSource ?t . ?f hvc:airflow ?y } } "
    'FILTER (?x > 550 && ?y < 300 && getDuration() < "PT20S"^^xsd:duration)',
}


def test_what_has_no_key_is_cut_into_slices_of_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much comes at once: in the past of a query, and after events that its engine has seen."""
    here, there = tmp_path / "here", tmp_path / "there"
    engine = '[engine]\nkind = "spark"\nbuckets = 4'
    toml = laid_out(there, 300, follow=True, engine=engine, lateness="5min")
    with_queries(there, SLICED)
    known = laid_out(here, 2_700, lateness="5min")
    with_queries(here, SLICED)
    with_queries(here, PAST | MORE)
    Deployment(load_config(known)).run()
    monkeypatch.setattr(spark_step, "SMALL", 0)
    cuts: dict[str, list[int]] = {}
    plain = spark_step.MatchStep.sliced

    def sliced(step: spark_step.MatchStep, group: spark_step.UnitGroup) -> spark_step.TimeSlices:
        found = plain(step, group)
        for name in group.reported:
            cuts.setdefault(name, []).append(found.count)
        return found

    monkeypatch.setattr(spark_step.MatchStep, "sliced", sliced)
    deployment = SparkDeployment(load_config(toml))
    deployment.open()
    for first, after in ((300, 1_800), (1_800, 1_860)):
        for each in deployment.sources.values():
            deployment._take(each)
        deployment.tick()
        grown(there, first, after)
    with_queries(there, PAST)
    for each in deployment.sources.values():
        deployment._take(each)
    deployment.tick()
    assert cuts == {Path(name).stem: [4, 4, 1] for name in SLICED} | {"past": [4, 1]}
    grown(there, 1_860, 2_700)
    for each in deployment.sources.values():
        deployment._take(each)
    deployment.close()
    cuts.clear()
    with_queries(there, MORE)
    described(there, follow=False, engine=engine, lateness="5min")
    SparkDeployment(load_config(toml)).run()
    names = {Path(each).stem for each in SLICED | PAST | MORE}
    assert {name: found[0] for name, found in cuts.items()} == dict.fromkeys(names, 4)
    wanted = rows(here / "sunk")
    assert {each["query"] for each in wanted} == names
    assert rows(there / "state" / "matches") == wanted


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_query_that_comes_while_nothing_runs_takes_no_events_from_others(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """The archive is ahead of the last commit; its log may be too short to say what was new since."""
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setattr(spark_step, "SMALL", 10**9)
    queries = {"above.chi": QUERIES["high.chi"]}
    known = laid_out(here, 900, lateness="5min")
    with_queries(here, queries | PAST)
    Deployment(load_config(known)).run()
    toml = laid_out(there, 300, follow=True, engine='[engine]\nkind = "spark"', lateness="5min")
    with_queries(there, queries)
    deployment = SparkDeployment(load_config(toml))
    deployment.open()
    for after in (300, 900):
        grown(there, 300, after)
        for each in deployment.sources.values():
            deployment._take(each)
        if after == 300:
            deployment.tick()
    deployment.close()
    with_queries(there, PAST)
    described(there, follow=False, engine='[engine]\nkind = "spark"', lateness="5min")
    again = SparkDeployment(load_config(toml))
    if forgotten:
        again._committed = {}
    again.run()
    assert rows(there / "state" / "matches") == rows(here / "sunk")


def with_queries(folder: Path, queries: dict[str, str]) -> None:
    """Writes queries, the first time in place of those that are there."""
    for name in QUERIES:
        (folder / "queries" / name).unlink(missing_ok=True)
    for name, text in queries.items():
        (folder / "queries" / name).write_text(text)
