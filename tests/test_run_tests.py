"""`make test`: two runs of pytest, one summary, one exit status; it ends when it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.test_processes import wait_for_end

from kaicep.processes import bound

ROOT = Path(__file__).parent.parent
SECONDS = 300.0
GREEN = "def test_a(): pass\ndef test_b(): pass\n"
RED = "def test_a(): pass\ndef test_c(): assert 1 == 2\n"
ODD = "import pytest\n@pytest.fixture\ndef f(): raise OSError\ndef test_d(f): pass\n"
BROKEN = "import no_such_module\n"
ENDLESS = """
import os, pathlib, time

def test_a(): pass

def test_e():
    pathlib.Path("new").write_text(str(os.getpid()))
    pathlib.Path("new").rename("pid")
    time.sleep(3600)
"""


def start(folder: Path, *files: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Both halves, a file each."""
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    halves = [["-p", "tests.tally", *options, f"test_{number}.py"] for number in range(len(files))]
    program = f"import run_tests; raise SystemExit(run_tests.Runner().run({halves!r}))"
    paths = os.pathsep.join([str(ROOT / "scripts"), *(each for each in sys.path if each)])
    return subprocess.Popen(
        bound([sys.executable, "-c", program]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ending(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The exit status, and what is said after the halves."""
    text, _ = process.communicate(timeout=SECONDS)
    assert text.count("test session starts") >= 1
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if not line)
    lines[-1] = lines[-1].rpartition(" in ")[0]
    return process.returncode, lines[last + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        ((GREEN, GREEN), 0, ["=== 4 passed"]),
        ((RED, GREEN), 1, ["RED test_0.py::test_c", "=== 1 failed, 3 passed"]),
        ((GREEN, RED), 1, ["RED test_1.py::test_c", "=== 3 passed, 1 failed"]),
        ((ODD, GREEN), 1, ["RED test_0.py::test_d", "=== 1 error, 2 passed"]),
        ((BROKEN, GREEN), 2, ["RED test_0.py", "=== 1 error, 2 passed"]),
    ],
)
def test_both_halves_run_and_are_counted(
    files: Sequence[str], status: int, said: list[str], tmp_path: Path
) -> None:
    assert ending(start(tmp_path, *files)) == (status, said)


@pytest.mark.slow
def test_tests_of_several_workers_are_counted_once(tmp_path: Path) -> None:
    assert ending(start(tmp_path, RED, GREEN, options=("-n", "2"))) == (
        1,
        ["RED test_0.py::test_c", "=== 1 failed, 3 passed"],
    )


def test_a_half_that_dies_is_no_success(tmp_path: Path) -> None:
    status, said = ending(start(tmp_path, "import os\ndef test_a(): os._exit(0)\n", GREEN))
    assert status == 1
    assert "before it could say" in said[0]
    assert said[1] == "=== 2 passed"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_when_it_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    """Also in its first half; Ctrl-C in a terminal is for all processes, a kill for this one."""
    process = start(tmp_path, ENDLESS, GREEN)
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    wait_for_end(int((tmp_path / "pid").read_text()))
    if number == signal.SIGKILL:
        assert process.wait(SECONDS) == -number
        process.communicate()
        return
    status, said = ending(process)
    assert status == 128 + number
    assert f"stopped by {number.name}: not all tests were run" in said
