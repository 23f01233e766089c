"""The scripts of README.md, docs/spark.md and docs/start-spark.md, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai
from kaicep.processes import bound

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


def test_the_script_of_the_readme_needs_no_activated_environment() -> None:
    """The first `python3` on the path has no kaicep, and no variable says which one to take."""
    page = (ROOT / "README.md").read_text("utf-8")
    script = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    }
    environment["PATH"] = os.pathsep.join(
        each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != Path(sys.executable).parent
    )
    done = subprocess.run(
        bound([sys.executable, "-c", script]),
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("VOL") > 1


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
