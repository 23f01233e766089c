"""Why there is a match, and why there is none, on the campus of the examples."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app

CAMPUS = Path(__file__).parents[2] / "examples" / "campus"
OPTIONS = [
    "--stream",
    f"airflowReport={CAMPUS / 'data' / 'airflowReport.jsonl'}",
    *(
        each
        for path in sorted((CAMPUS / "data" / "knowledge").iterdir())
        for each in ("--knowledge", str(path))
    ),
    *(
        each
        for path in sorted((CAMPUS / "data" / "annotations").iterdir())
        for each in ("--annotation", str(path))
    ),
]


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def query(name: str) -> str:
    return str(CAMPUS / "queries" / f"{name}.chi")


def first_match(name: str) -> dict[str, object]:
    lines = call("match", query(name), *OPTIONS).splitlines()
    found: dict[str, object] = json.loads(lines[0])
    return found


def test_a_match_of_query_7_is_told_down_to_the_statement_about_its_class() -> None:
    match = first_match("query7")
    told = call("why", str(match["id"])[:8], query("query7"), *OPTIONS)
    for each in match["events"].values():  # type: ignore[attr-defined]
        assert f"seq {each['seq']})" in told
    assert "?e1.flowrate > 500.0\n      510.0 > 500.0" in told
    assert "575.0 - 510.0 = 65.0 > 50.0" in told
    assert "?e1, ?e2 lie within 5min\n      they lie within 4min" in told
    assert "?loc1 is bd:RTH110" in told
    assert "ee:RTH110VOL rdf:type ee:AirflowSensor  (by the rule cax-sco, since)" in told
    assert "ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor  (said by the knowledge)" in told


def test_machines_can_read_it_too() -> None:
    match = first_match("query7")
    told = json.loads(call("why", str(match["id"]), query("query7"), *OPTIONS, "--json"))
    assert told["match"] == match
    assert [each["variable"] for each in told["events"]] == ["e1", "e2"]
    rules = {each["rule"] for path in told["paths"] for each in path["statements"]}
    assert {"event", "asserted", "cax-sco"} <= rules


def test_a_window_shows_the_events_inside_and_what_it_compared() -> None:
    match = first_match("query2")
    told = call("why", str(match["id"]), query("query2"), *OPTIONS)
    value = match["select"]["avgrate"]  # type: ignore[index]
    assert f"{value} > 500" in told


def test_a_loop_shows_every_round() -> None:
    match = first_match("rising")
    told = call("why", str(match["id"]), query("rising"), *OPTIONS)
    rounds = [
        e for shown in match["events"].values() for e in (shown if isinstance(shown, list) else [shown])
    ]  # type: ignore[attr-defined]
    assert len(re.findall(r"airflowReport \(part", told)) == len(rounds) >= 3


def test_where_there_is_none_the_condition_that_stopped_the_nearest_is_named_with_its_number() -> None:
    told = call("why", "--not", query("query7"), "--near", "2012-05-07T09:30", *OPTIONS)
    assert "16 of 55 events: ?e1.flowrate > 500.0" in told
    assert "it needs ?e2.flowrate - ?e1.flowrate > 50.0" in told
    assert "549.2 - 546.2 = 3.0 > 50.0 (short by 94%)" in told


def test_one_sensor_alone() -> None:
    told = json.loads(
        call(
            "why",
            "--not",
            query("query7"),
            "--near",
            "2012-05-07T09:30",
            "--key",
            "OHE112VOL2",
            "--json",
            *OPTIONS,
        )
    )
    assert told["steps"][0]["came"] < 10
    assert told["misses"]


def test_what_came_too_late_is_told(tmp_path: Path) -> None:
    rows = [{"ts": 100, "x": 1}, {"ts": 0, "x": 9}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "q.chi").write_text("SELECT ?e.x FROM (?e, s) FILTER (?e.x > 5)")
    stream = f"s={tmp_path / 's.jsonl'}"
    told = call(
        "why",
        "--not",
        str(tmp_path / "q.chi"),
        "--near",
        "1970-01-01",
        "--lateness",
        "10s",
        "--stream",
        stream,
    )
    assert "1 events came too late" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ffffffff", query("query7")], "no match has the id ffffffff"),
        (["", query("query7")], "matches have an id that begins with"),
        (["abc"], "no query is given"),
        (["--not", query("query7")], "--not needs to know when"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["why", *words, *OPTIONS])
    assert done.exit_code == 2
    assert message in done.stderr
