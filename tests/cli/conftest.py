"""A small folder of data, and the command line run inside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kaicep.cli.main import app

FILES = {
    "rise.chi": """\
SELECT ?a.sensor, ?b.flow - ?a.flow AS rise, ?a.ts AS since
FROM (?a, air), (?b, air)
WHERE JOIN (?b.sensor = ?a.sensor) JOIN (?b.flow - ?a.flow > 50) SEQ (?a, ?b) WINDOW (?a, ?b, 5min)
""",
    "tall.chi": "SELECT ?e.sensor, ?e.flow FROM (?e, air) WHERE FILTER (?e.flow > 555)\n",
    "wrong.chi": "SELECT ?e.sensor FROM (?e, ari)\n",
    "parked.epsparql": "PREFIX : <urn:> SELECT ?truck { ?truck :at ?place } SEQ { ?truck :at ?place }\n",
    "air.jsonl": """\
{"ts": "2012-05-07T09:00:00Z", "sensor": "s1", "flow": 500}
{"ts": "2012-05-07T09:01:00Z", "sensor": "s2", "flow": 510.5}
oops
{"ts": "2012-05-07T09:02:00Z", "sensor": "s1", "flow": 560}
{"sensor": "s1", "flow": 600}
{"ts": "2012-05-07T09:01:30Z", "sensor": "s2", "flow": 570}
""",
    "trucks.jsonl": """\
{"triple": "<urn:t1> <urn:at> <urn:depot> .", "start": 10, "end": 20}
{"triple": "<urn:t1> <urn:at> <urn:depot> .", "start": 30}
""",
}

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the files, as the working directory."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """The command line, in this process."""

    def call(*args: str) -> Result:
        return CliRunner().invoke(app, list(args), prog_name="kaicep")

    return call


def kaicep(*args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a process of its own."""
    paths = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "PYTHONPATH": paths, **settings}
    command = [sys.executable, "-m", "kaicep", *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.fixture
def process(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line as a process of its own, in the folder."""
    return kaicep
