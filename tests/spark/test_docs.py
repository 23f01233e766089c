"""The scripts of README.md, docs/spark.md and docs/start-spark.md, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["README.md", "docs/spark.md", "docs/start-spark.md"])
def test_the_script_prints_matches(
    name: str, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / name).read_text("utf-8")
    script = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(ROOT)
    exec(compile(script, name, "exec"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [each.strip() for each in lines[0].strip("|").split("|")] == ["start", "end", "sensorID", "rise"]
    assert len(lines) > 1
    assert all(float(line.strip("|").split("|")[-1]) > 150 for line in lines[1:])


def test_the_script_about_triples(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    scripts = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (script,) = [each for each in scripts if '"rdf"' in each]
    monkeypatch.chdir(ROOT)
    exec(compile(script, "docs/spark.md", "exec"), {"kai": kai, "spark": spark})
    companies = re.findall(r"urn:kaicep:(\w+)", capsys.readouterr().out)
    assert sorted(companies) == ["ACME", "EPSILON", "GAMMA"]
