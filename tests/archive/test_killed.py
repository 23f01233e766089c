"""An ingest that is killed at any moment and run again: every record is there once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kaicep.archive.archive import Archive
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent.parent
ROWS = 700
INGEST = """
import sys
from pathlib import Path
from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.connectors import stretches
from kaicep.endtoend import ingest
stretches.BYTES = stretches._LONGEST = 400
ingest.BATCH = 20
ingest.ingest(Archive(Path(sys.argv[2])), Form("meter"), Path(sys.argv[1]), lateness=3_000_000)
"""


def started(source: Path, archive: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(bound([sys.executable, "-c", INGEST, str(source), str(archive)]), env=env)


def commits(archive: Path) -> int:
    return len(list(archive.glob("*/_delta_log/*.json")))


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    """Lines are bad now and then, and some events are late: both are told once, and as without the kills."""
    draw = random.Random(7)
    source = tmp_path / "meter.jsonl"
    lines = [json.dumps({"ts": at - draw.choice((0, 0, 0, 5)), "x": at}) for at in range(ROWS)]
    source.write_text("\n".join("oops" if at % 97 == 5 else line for at, line in enumerate(lines)))
    killed = 0
    while True:
        process = started(source, tmp_path / "A")
        target = commits(tmp_path / "A") + draw.randint(8, 30)
        while process.poll() is None and commits(tmp_path / "A") < target:
            time.sleep(0.001)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    assert process.returncode == 0
    assert killed >= 2
    assert started(source, tmp_path / "whole").wait() == 0
    archives = [Archive(tmp_path / name) for name in ("A", "whole")]
    events, wanted = ([*each.snapshot().events("meter")] for each in archives)
    assert events == wanted
    assert [each.late for each in events] == [each.late for each in wanted]
    assert any(each.late for each in events)
    letters, told = (each.dead_letters.read() for each in archives)
    assert letters == told
    assert len(events) + len(letters) == ROWS
