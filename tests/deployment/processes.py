"""Deployments as real processes: started, killed, asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kaicep.processes import bound

SECONDS = 300.0


def environment() -> dict[str, str]:
    """What finds the package as this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def spawn(folder: Path, *args: str, module: str = "kaicep") -> subprocess.Popen[bytes]:
    """`kaicep` as a process of its own, in a folder; what it says goes to log.txt."""
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            bound([sys.executable, "-m", module, *args]),
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def running(
    folder: Path, *args: str, state: str = "state", module: str = "kaicep"
) -> Iterator[subprocess.Popen[bytes]]:
    """A deployment that answers; it is killed at the end if it still runs."""
    address = folder / state / "address.json"
    address.unlink(missing_ok=True)
    process = spawn(folder, "run", *args, module=module)
    try:
        wait_for(address.exists, folder, process)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], Any], folder: Path, process: subprocess.Popen[bytes] | None = None) -> Any:
    """What a question is answered, once that is something; the log where it never is."""
    deadline = time.monotonic() + SECONDS
    while not (found := what()):
        over = process is not None and process.poll() is not None
        if over or time.monotonic() > deadline:
            raise AssertionError((folder / "log.txt").read_text()[-3000:])
        time.sleep(0.02)
    return found


def stopped(process: subprocess.Popen[bytes]) -> int:
    """Stops a deployment as Ctrl-C does; its exit status."""
    process.send_signal(signal.SIGINT)
    return process.wait(SECONDS)


def kaicep(folder: Path, *args: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "kaicep", *args],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def matches(path: Path) -> list[dict[str, Any]]:
    """The matches that a file of JSON Lines holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, files: dict[str, str]) -> None:
    """Files by name and text; folders are made."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
