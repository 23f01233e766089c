"""An ingest that is killed at any moment and run again: every record is there once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kaicep.archive.archive import Archive
from kaicep.processes import bound

ROOT = Path(__file__).parent.parent.parent
ROWS = 700
INGEST = """
import signal
import sys
import time
from pathlib import Path
from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.connectors import parts
from kaicep.ingest import files
parts.BYTES = parts._LONGEST = 400
files.BATCH = 20
signal.setitimer(signal.ITIMER_PROF, float(sys.argv[3]))
began = time.process_time()
files.ingest(Archive(Path(sys.argv[2])), Form("meter"), Path(sys.argv[1]), lateness=3_000_000)
print(time.process_time() - began)
"""


def run(source: Path, archive: Path, seconds: float = 0) -> tuple[int, str]:
    """The exit status and what was printed; after so many seconds of processor time it dies on the spot."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = bound([sys.executable, "-c", INGEST, str(source), str(archive), str(seconds)])
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    """Lines are bad now and then, and some events are late: both are told once, and as without the kills."""
    draw = random.Random(7)
    source = tmp_path / "meter.jsonl"
    lines = [json.dumps({"ts": at - draw.choice((0, 0, 0, 5)), "x": at}) for at in range(ROWS)]
    source.write_text("\n".join("oops" if at % 97 == 5 else line for at, line in enumerate(lines)))
    status, printed = run(source, tmp_path / "whole")
    assert status == 0
    # Each run gets a little longer than the one before, so that one that only opens the archive ends too.
    runs = 0
    while runs == 0 or status == -signal.SIGPROF:
        status, _ = run(source, tmp_path / "A", float(printed) * draw.uniform(0.1, 0.3) * (1 + runs / 3))
        runs += 1
    assert status == 0
    assert runs > 2
    archives = [Archive(tmp_path / name) for name in ("A", "whole")]
    events, wanted = ([*each.snapshot().events("meter")] for each in archives)
    assert events == wanted
    assert [each.late for each in events] == [each.late for each in wanted]
    assert any(each.late for each in events)
    letters, told = (each.dead_letters.read() for each in archives)
    assert letters == told
    assert len(events) + len(letters) == ROWS
