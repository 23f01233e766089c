"""Why, asked of a deployment: while it runs, after it stopped, after its knowledge changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.processes import kaicep, matches, running, stopped, wait_for, write
from typer.testing import CliRunner, Result

from kaicep.cli.main import app
from kaicep.deployment.config import load_config
from kaicep.server.service import Client

pytestmark = pytest.mark.slow

CAMPUS = Path(__file__).parents[2] / "examples" / "campus" / "data"
PAPER = CAMPUS.parent / "queries" / "query7.chi"
FROM = "FROM (?e1, airflowReport), (?e2, airflowReport) WITHIN [2012-05-07T08:00, )\nFILTER"
TOML = f"""
name = "campus"
tick = "20ms"
[knowledge]
files = ["knowledge/*.ttl"]
[streams.airflowReport]
annotation = "{CAMPUS / "annotations" / "airflowReport.json"}"
lateness = "5min"
source = {{kind = "files", path = "airflow.jsonl", follow = true}}
[sinks.out]
kind = "files"
path = "out.jsonl"
queries = ["query7"]
[sinks.table]
kind = "delta"
path = "table"
queries = ["above"]
"""
ABOVE = (
    "SELECT ?e.sensorID, ?e.hvc:airflow FROM (?e, airflowReport) WITHIN [2012-05-07T08:00, ) "
    "FILTER (?e.hvc:airflow > {})"
)
AT_NINE_THIRTY = "2012-05-07T09:30"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deployment")
    lines = (CAMPUS / "airflowReport.jsonl").read_text().splitlines()
    at = next(place for place, each in enumerate(lines) if "T09:31" in each)
    late = {**json.loads(lines[0]), "timestamp": "2012-05-07T08:30:30Z", "sensorID": "RTH110VOL"}
    late["flowrate"] = 2_000.0
    bad = {**late, "timestamp": "2012-05-07T09:30:30Z", "airvolume": "a lot"}
    lines[at:at] = [json.dumps(late), json.dumps(bad)]
    write(
        made,
        {
            "kaicep.toml": TOML,
            "airflow.jsonl": "\n".join(lines) + "\n",
            "queries/query7.chi": PAPER.read_text().replace("FILTER", FROM, 1),
            "queries/above.chi": ABOVE.format(600),
            "queries/nowhere.chi": ABOVE.format(590),
            **{f"knowledge/{each.name}": each.read_text() for each in (CAMPUS / "knowledge").glob("*.ttl")},
        },
    )
    return made


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[Path]:
    """It runs, and has told what the file holds."""
    with running(folder) as process:
        wait_for(lambda: _told(folder), folder, process)
        yield folder
        assert stopped(process) == 0


def _told(folder: Path) -> bool:
    counts = Client(load_config(folder / "kaicep.toml")).status()["queries"].values()
    found = bool(counts) and all(each.get("matches") for each in counts)
    return found and len(matches(folder / "out.jsonl")) > 3


def asked(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["why", *words, "--deployment", str(folder / "kaicep.toml")])


def why(folder: Path, *words: str) -> str:
    done = asked(folder, *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(folder: Path, *words: str) -> str:
    done = asked(folder, *words)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def recent(folder: Path, query: str) -> dict[str, Any]:
    """A match that the running deployment remembers."""
    found: dict[str, Any] = json.loads(
        next(Client(load_config(folder / "kaicep.toml")).matches(query, 1_000))
    )
    return found


def test_a_match_in_a_file_sink_is_told_down_to_the_subclass_statement(deployment: Path) -> None:
    match = matches(deployment / "out.jsonl")[0]
    told = why(deployment, match["id"][:8])
    for each in match["events"].values():
        assert f"airflowReport (part 0, seq {each['seq']})" in told
    assert "?src1 is ee:RTH110VOL" in told
    assert "?loc1 is bd:RTH110" in told
    assert "ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor  (from the knowledge)" in told


@pytest.mark.parametrize("query", ["above", "nowhere"])
def test_a_match_in_a_table_or_in_no_sink_at_all(query: str, deployment: Path) -> None:
    match = recent(deployment, query)
    told = json.loads(why(deployment, match["id"], "--json"))
    assert told["match"] == match
    assert told["conditions"]


def test_the_running_deployment_finds_a_match_by_the_beginning_of_its_id(deployment: Path) -> None:
    match = recent(deployment, "nowhere")
    client = Client(load_config(deployment / "kaicep.toml"))
    assert client.remembered(match["id"][:12]) == [match]
    assert client.remembered("nothing") == []


def test_what_came_too_late_or_could_not_be_read_would_have_matched(deployment: Path) -> None:
    late = json.loads(why(deployment, "--not", "above", "--near", "2012-05-07T08:30", "--json"))
    assert [each["select"]["airflow"] for each in late["with_late"]] == [2_000.0]
    bad = json.loads(why(deployment, "--not", "above", "--near", AT_NINE_THIRTY, "--json"))
    assert [each["mended"] for each in bad["dead"]] == [True]
    assert [each["select"]["sensorID"] for each in bad["with_dead"]] == ["RTH110VOL"]


def test_why_not_names_the_condition_and_its_number(deployment: Path) -> None:
    told = why(deployment, "--not", "query7", "--near", AT_NINE_THIRTY, "--key", "OHE112VOL2")
    assert "it needs ?e2.flowrate - ?e1.flowrate > 50.0" in told
    assert "(short by " in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ffffffff"], "no match of campus has the id ffffffff"),
        (["ffffffff", "query7.chi"], "query7.chi does not go with --deployment"),
        (["ffffffff", "--knowledge", "knowledge"], "--knowledge does not go with --deployment"),
        (["--not", "query8", "--near", AT_NINE_THIRTY], "campus has no query query8"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(words: list[str], message: str, deployment: Path) -> None:
    assert message in refused(deployment, *words)


def test_knowledge_that_changed_meanwhile_is_told_with_the_versions(folder: Path, deployment: Path) -> None:
    match = matches(folder / "out.jsonl")[0]
    before = {each: each.read_text() for each in (folder / "knowledge").glob("*.ttl")}
    for path, text in before.items():
        path.write_text(text.replace("MeetingRoom", "StoreRoom"))
    client = Client(load_config(folder / "kaicep.toml"))
    wait_for(lambda: client.status()["knowledge"]["version"], folder)
    told = refused(folder, match["id"])
    for path, text in before.items():
        path.write_text(text)
    assert "no longer holds for its events: the match used version 0 of the knowledge" in told
    assert "and the deployment has version" in told


def test_after_it_stopped_in_its_sink_and_without_it(folder: Path, tmp_path: Path) -> None:
    for name in ("queries", "knowledge"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "airflow.jsonl", tmp_path)
    (tmp_path / "kaicep.toml").write_text(TOML.replace("follow = true", "follow = false"))
    done = kaicep(tmp_path, "run")
    assert done.returncode == 0, done.stderr
    match = matches(tmp_path / "out.jsonl")[0]
    told = why(tmp_path, match["id"])
    assert "ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor" in told
    (tmp_path / "out.jsonl").rename(tmp_path / "elsewhere.jsonl")
    assert why(tmp_path, match["id"]) == told


def test_one_that_never_ran(tmp_path: Path) -> None:
    write(
        tmp_path, {"kaicep.toml": '[streams.s]\nsource = {kind = "files", path = "s.jsonl"}\n', "s.jsonl": ""}
    )
    (tmp_path / "queries").mkdir()
    assert "has not run yet" in refused(tmp_path, "ffff")
