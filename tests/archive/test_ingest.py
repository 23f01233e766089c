"""`kaicep ingest` with a topic, with another host, and going on with what comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kaicep.archive.archive import Archive
from kaicep.archive.stream import Appended, StreamTable
from kaicep.cli.main import app
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent.parent


def kaicep(*words: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in words])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--stream", "m=kafka://broker:9092"), "m=kafka://broker:9092: servers and a topic are needed"),
        (("--stream", "m=kafka:///t"), "m=kafka:///t: servers and a topic are needed"),
        (("--stream", "m=m.jsonl", "--host", "sprak"), "did you mean spark?"),
    ],
)
def test_what_cannot_be_meant_is_told(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = kaicep("ingest", *words, "--archive", tmp_path / "A")
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.slow
def test_it_goes_on_with_what_comes(tmp_path: Path) -> None:
    """Half a line waits for the rest; a new file keeps the others where they are."""
    folder = tmp_path / "meter"
    folder.mkdir()
    (folder / "b.jsonl").write_text('{"ts": 1, "x": 1}\n{"ts": 2')
    words = ["ingest", "--stream", f"meter={folder}", "--archive", str(tmp_path / "A"), "--follow"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(
        bound([sys.executable, "-m", "kaicep", *words]), env=env, stderr=subprocess.PIPE
    )
    try:
        reach(tmp_path / "A", {0: 1})
        (folder / "a.jsonl").write_text('{"ts": 5, "x": 7}\n')
        with (folder / "b.jsonl").open("a") as file:
            file.write(', "x": 2}\n')
        reach(tmp_path / "A", {0: 2, 1: 1})
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"meter: 3 new" in errors


def test_an_interrupt_in_the_middle_of_a_commit_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the archive has is also what is reported."""
    append = StreamTable.append

    def interrupted(self: StreamTable, rows: Any, *rest: Any, **named: Any) -> Appended:
        if not len(rows):
            return append(self, rows, *rest, **named)
        signal.raise_signal(signal.SIGINT)
        added = append(self, rows, *rest, **named)
        assert added.rows == 2
        return added

    monkeypatch.setattr(StreamTable, "append", interrupted)
    (tmp_path / "m.jsonl").write_text('{"ts": 1, "x": 1}\n{"ts": 2, "x": 2}\n')
    words = ("--stream", f"m={tmp_path / 'm.jsonl'}", "--archive", tmp_path / "A")
    done = kaicep("ingest", *words, "--follow")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, "m: 2 new")


def reach(folder: Path, positions: dict[int, int]) -> None:
    deadline = time.monotonic() + 300
    while True:
        if (
            "meter" in (archive := Archive(folder)).streams()
            and archive.stream("meter").positions == positions
        ):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)
