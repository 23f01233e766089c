"""`kaicep live`: the fusion example is checked, explained and run; mistakes are told with their place."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kaicep.cli.main import app
from kaicep.processes import bound

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(each) for each in ("numba", "scipy", "cryptography")),
        reason="needs kaicep[live]",
    ),
]

FUSION = Path(__file__).parents[2] / "examples" / "fusion" / "graph.toml"

TICK = """
[[supplier]]
name = "clock"
type = "any"
period = "10ms"
source = {kind = "clock"}
[[consumer]]
name = "watch"
input = "clock"
"""


@pytest.fixture(autouse=True)
def _runtime_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def kaicep(*words: str) -> Result:
    return CliRunner().invoke(app, ["live", *words], prog_name="kaicep")


def test_the_example_is_right():
    result = kaicep("check", str(FUSION))
    assert (result.exit_code, result.stdout) == (0, "fusion: ok (4 suppliers, 7 operators, 4 consumers)\n")


def test_a_missing_key_is_told_with_its_place(tmp_path):
    text = FUSION.read_text("utf-8").replace("demo.key", "no.key")
    for name in ("slipping.chi", "brakes.json"):
        (tmp_path / name).write_bytes((FUSION.parent / name).read_bytes())
    (tmp_path / "graph.toml").write_text(text, "utf-8")
    result = kaicep("check", str(tmp_path / "graph.toml"))
    assert result.exit_code == 2
    assert "sealed: cannot read the file" in result.stderr
    line = text[: text.index("key_file")].count("\n") + 1
    assert f"graph.toml:{line}:1" in result.stderr


def test_it_is_explained_and_drawn(tmp_path):
    result = kaicep("explain", str(FUSION))
    assert result.exit_code == 0
    assert "level 1 (high)" in result.stdout
    drawn = kaicep("explain", str(FUSION), "--draw", str(tmp_path / "graph.dot"))
    assert drawn.exit_code == 0
    assert (tmp_path / "graph.dot").read_text("utf-8").startswith('digraph "fusion"')


def test_it_runs_for_a_while_and_every_consumer_gets_something(tmp_path):
    metrics = tmp_path / "metrics.prom"
    result = kaicep(
        "run", str(FUSION), "--seconds", "1.5", "--json", "--no-real-time", "--metrics", str(metrics)
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert set(found["consumers"]) == {"airbag", "stability", "cruise_control", "black_box"}
    assert found["levels"]["3"]["delivered"] > 0
    assert found["failed"] == 0
    assert "kaicep_live_delivered_total" in metrics.read_text("utf-8")
    assert list(tmp_path.glob("kaicep-live-*/*.json")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "0.0.0.0 can be reached by others, and there is no token"),
        (["--listen", "0.0.0.0:0", "--token-env", "KAICEP_NO_SUCH"], "KAICEP_NO_SUCH has no token"),
        (["--listen", "7070"], "not a host and a port"),
    ],
)
def test_where_others_can_reach_it_a_token_is_wanted(tmp_path, options, message):
    graph = tmp_path / "tick.toml"
    graph.write_text(TICK, "utf-8")
    result = kaicep("run", str(graph), "--seconds", "0", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_fusion_example_with_suppliers_and_consumers_in_other_processes():
    result = kaicep("run", "examples/fusion/graph.toml", "--seconds", "2", "--apart", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert len(found["connected"]) == 4  # the consumers; the suppliers have left
    for name, each in found["consumers"].items():
        assert each["delivered"] + each["shed"]["unacknowledged"] > 0, name
    assert found["levels"]["3"]["latency_us"]["p50"] >= found["levels"]["3"]["inside_us"]["p50"]


def test_top_shows_a_service_that_runs(tmp_path):
    assert kaicep("top", "--once").exit_code == 1
    graph = tmp_path / "tick.toml"
    graph.write_text(TICK, "utf-8")
    command = [
        sys.executable,
        "-m",
        "kaicep",
        "live",
        "run",
        str(graph),
        "--no-real-time",
        "--listen",
        "127.0.0.1:0",
    ]
    running = subprocess.Popen(bound(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert any(line.startswith("listening on 127.0.0.1:") for line in running.stderr)
        result = kaicep("top", "--once")
    finally:
        running.terminate()
        running.wait()
        running.stderr.close()
    assert result.stdout.startswith("tick: ")


def test_records_come_from_a_file_and_results_go_to_one(tmp_path):
    rows = [{"ts": number, "sensor": "a", "x": number % 3} for number in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
    (tmp_path / "tall.chi").write_text("SELECT ?e.x FROM (?e, rows) FILTER (?e.x > 1)\n", "utf-8")
    out = tmp_path / "out.jsonl"
    (tmp_path / "g.toml").write_text(
        f"""
        [[supplier]]
        name = "rows"
        type = "records"
        source = {{kind = "files", path = "rows.jsonl"}}
        [[operator]]
        name = "tall"
        kind = "query"
        query = "tall.chi"
        inputs = ["rows"]
        [[consumer]]
        name = "c"
        input = "tall"
        output = "{out}"
        """,
        "utf-8",
    )
    result = kaicep("run", str(tmp_path / "g.toml"), "--no-real-time", "--json")
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(each) for each in out.read_text("utf-8").splitlines()]
    assert len(lines) == json.loads(result.stdout)["consumers"]["c"]["delivered"]
    assert [match["events"]["e"]["seq"] for each in lines for match in each["payload"]] == [2, 5]


def test_a_query_that_is_wrong_is_told_with_its_place(tmp_path):
    (tmp_path / "q.chi").write_text("SELECT ?e.x FROM (?e, rows) FILTER (?e.x >)\n", "utf-8")
    (tmp_path / "g.toml").write_text(
        '[[supplier]]\nname = "rows"\ntype = "records"\n'
        '[[operator]]\nname = "q"\nkind = "query"\nquery = "q.chi"\ninputs = ["rows"]\n',
        "utf-8",
    )
    result = kaicep("check", str(tmp_path / "g.toml"))
    assert result.exit_code == 2
    assert "q.chi:1:" in result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('{kind = "nois"}', "did you mean noise?"),
        ('{kind = "noise"}', "a noise needs a period"),
        ('{kind = "kafka", topic = "t"}', "kafka gives records"),
    ],
)
def test_a_source_that_is_wrong(tmp_path, source, message):
    (tmp_path / "g.toml").write_text(f'[[supplier]]\nname = "s"\nsource = {source}\n', "utf-8")
    result = kaicep("check", str(tmp_path / "g.toml"))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "g.toml:3:1" in result.stderr
