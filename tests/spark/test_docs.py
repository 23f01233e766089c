"""The first script of docs/spark.md, as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def test_the_script_prints_matches(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    script = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(ROOT)
    exec(compile(script, "docs/spark.md", "exec"), {})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [each.strip() for each in lines[0].strip("|").split("|")] == ["start", "end", "sensorID", "rise"]
    assert len(lines) > 1
    assert all(float(line.strip("|").split("|")[-1]) > 150 for line in lines[1:])
