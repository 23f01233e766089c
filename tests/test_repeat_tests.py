"""The same tests many times over: one summary, one exit status; it ends when it is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
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
DEAD = "import os\ndef test_a(): os._exit(0)\n"
SECOND = """
import pathlib

def test_a(): pass

def test_once():
    assert not pathlib.Path("there").exists()
    pathlib.Path("there").touch()
"""
ENDLESS = """
import os, pathlib, time

def test_a(): pass

def test_e():
    pathlib.Path("new").write_text(str(os.getpid()))
    pathlib.Path("new").rename("pid")
    time.sleep(3600)
"""


def start(folder: Path, text: str, *words: str) -> subprocess.Popen[str]:
    """Two runs of a file."""
    (folder / "test_0.py").write_text(text)
    script = [str(ROOT / "scripts" / "repeat_tests.py"), "--times", "2"]
    paths = os.pathsep.join(each for each in sys.path if each)
    return subprocess.Popen(
        bound([sys.executable, *script, "-p", "tests.tally", "-p", "tests.order", *words, "test_0.py"]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": "-p no:cacheprovider"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ending(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """The exit status, and what is said after the runs, without times."""
    text, _ = process.communicate(timeout=SECONDS)
    assert text.count("test session starts") >= 1
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if not line)
    return process.returncode, [re.sub(r" in \d+:\d\d( ===)?$", "", line) for line in lines[last + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (GREEN, 0, ["run 1: 2 passed", "run 2: 2 passed", "=== 2 of 2 runs green: 4 passed"]),
        (
            SECOND,
            1,
            [
                "run 1: 2 passed",
                "run 2: 1 failed, 1 passed",
                "RED test_0.py::test_once (run 2)",
                "=== 1 of 2 runs green: 3 passed, 1 failed",
            ],
        ),
        (
            ODD,
            1,
            [
                *("run 1: 1 error", "run 2: 1 error", "RED test_0.py::test_d (run 1, run 2)"),
                "=== 0 of 2 runs green: 2 error",
            ],
        ),
        (
            BROKEN,
            2,
            [
                *("run 1: 1 error", "run 2: 1 error", "RED test_0.py (run 1, run 2)"),
                "=== 0 of 2 runs green: 2 error",
            ],
        ),
    ],
)
def test_every_run_is_counted(text: str, status: int, said: list[str], tmp_path: Path) -> None:
    assert ending(start(tmp_path, text)) == (status, said)


@pytest.mark.slow
def test_tests_of_several_workers_are_counted_once(tmp_path: Path) -> None:
    status, said = ending(start(tmp_path, RED, "-n", "2"))
    assert (status, said[0]) == (1, "run 1: 1 failed, 1 passed")


@pytest.mark.slow
def test_a_seed_that_is_drawn_is_named_and_gives_the_order(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_a(n): assert n == -1\n"
    _, said = ending(start(tmp_path, text, "--shuffle=any"))
    (seed,) = re.findall(r"^run 1 --shuffle=(\d+):", said[0])
    red = [line.partition(" (")[0] for line in said if line.startswith("RED")]
    (tmp_path / "again").mkdir()
    _, again = ending(start(tmp_path / "again", text, f"--shuffle={seed}"))
    assert [line.partition(" (")[0] for line in again if line.startswith("RED")] == red
    assert red != sorted(red, key=lambda line: int(line.rpartition("[")[2][:-1]))


def test_a_run_that_dies_is_no_success(tmp_path: Path) -> None:
    status, said = ending(start(tmp_path, DEAD))
    assert status == 1
    assert "before it could say" in said[0]
    assert said[-1] == "=== 0 of 2 runs green: no tests"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_when_it_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    """Also in its first run; Ctrl-C in a terminal is for all processes, a kill for this one."""
    process = start(tmp_path, ENDLESS)
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
    assert f"stopped by {number.name} in run 1 of 2" in said
