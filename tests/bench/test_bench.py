"""Every benchmark runs, with little input, and says what it should; how fast is not asked here."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app
from kaicep.errors import Failure
from kaicep.knowledge.store import Knowledge
from kaicep_bench import BENCHMARKS, jvm, run, semantic
from kaicep_bench.campus import prepared, reports, turtle
from kaicep_bench.table import Report, Table, as_json, as_text


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_without_a_name_they_are_listed():
    result = invoke()
    assert result.exit_code == 0
    assert all(name in result.stdout for name in BENCHMARKS)


def test_a_wrong_name_is_told_with_the_right_ones():
    result = invoke("semantics")
    assert result.exit_code == 2
    assert ", ".join(BENCHMARKS) in result.stderr
    assert "did you mean semantic" in result.stderr


# Those that start other processes, work by the clock or measure many things take long even in little.
LONG = (
    *(
        "constructs",
        "deployment",
        "epsparql",
        "figures",
        "latency",
        "live",
        "pattern",
        "peers",
        "queries",
        "recovery",
    ),
    *("scaling", "spark", "startup"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.night] * (each in LONG)) for each in BENCHMARKS]
)
def test_json_has_the_machine_and_the_rows(name, request, tmp_path, monkeypatch):
    if name == "peers" and (reason := jvm.missing()):
        pytest.skip(reason)
    if name == "spark":
        request.getfixturevalue("spark")
        monkeypatch.setenv("KAICEP_BENCH_KAFKA", request.getfixturevalue("kafka"))
    where = ["--output", str(tmp_path)] if name == "figures" else []
    result = invoke(name, "--quick", "--json", *where)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["benchmark"] == name
    assert {"date", "cpu", "cores", "python", "kaicep"} <= found["machine"].keys()
    assert all(table["rows"] for table in found["tables"])


@pytest.mark.slow
def test_the_ways_of_figure_8():
    size = semantic.Size(sensors=60, events=2_000, bare=200, compared=50, turns=1, slow_turns=1)
    report = semantic.compare(size)
    rows = {(row["host"], row["strategy"]): row for row in report.tables[0].rows}
    bare, cached = rows["reference", "query 5, bare"], rows["reference", "query 5, cache 25%"]
    buffered, compiled = rows["reference", "query 5, buffer 5 s"], rows["reference", "query 5, compiled"]
    assert bare["evaluations"] == bare["events"] == 200
    assert cached["hits"] + cached["misses"] == cached["events"] == 2_000
    assert cached["evaluations"] == cached["misses"]
    assert cached["evictions"] > 0
    assert buffered["evaluations"] == 1
    assert compiled["evaluations"] == 0
    assert (
        buffered["matches"] == compiled["matches"] == rows["in process", "query 5, compiled"]["matches"] > 0
    )
    assert rows["reference", "query 1"]["of query 1"] == 1


def test_a_strategy_with_other_matches_is_found_out():
    knowledge, events = Knowledge.parse(turtle(60)), reports(60, 2_000, 600)
    compiled = semantic._run(semantic.Strategy("in process", "compiled"), knowledge, events)
    assert compiled.matches
    wrong = replace(compiled, matches=compiled.matches[:-1])
    with pytest.raises(Failure, match="other matches"):
        semantic._check([compiled, wrong], knowledge, events[:10])


def test_the_campus_is_the_same_every_time():
    assert turtle(20) == turtle(20)
    assert [each.values for each in reports(20, 50, 10)] == [each.values for each in reports(20, 50, 10)]
    assert prepared(semantic.QUERY5, Knowledge.parse(turtle(20)), reports(20, 50, 10)).warnings == ()


def test_a_report_for_a_person_is_aligned():
    rows = [{"way": "a", "ms": 1234.5, "goal": None}, {"way": "longer", "ms": 0.123, "goal": 20}]
    report = Report("r", [Table("t", rows)], ["a note"], {"cores": 2})
    assert as_text(report).splitlines() == [
        "r: cores 2",
        "",
        "t",
        "way        ms  goal",
        "a       1,234",
        "longer   0.12    20",
        "",
        "- a note",
    ]
    assert as_json(report)["tables"][0]["rows"] == rows


@pytest.mark.slow
def test_a_sensor_that_moves():
    steps = {row["step"]: row for row in run("relation", quick=True).tables[0].rows}
    assert steps["move in all"]["times"] == 20
    assert steps["table of query 5"]["goal ms"] == 100
