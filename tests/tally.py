"""What came of a run, for whoever runs several: a line of JSON in the file that KAICEP_TALLY names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

KINDS = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Only the process that people look at writes; a worker (which has a reporter too) leaves it to that."""
    if (path := os.environ.get("KAICEP_TALLY")) is None or hasattr(config, "workerinput"):
        return
    found = {kind: terminalreporter.getreports(kind) for kind in KINDS}
    red = [each.nodeid for kind in ("failed", "error") for each in found[kind]]
    tally = {"counts": {kind: len(some) for kind, some in found.items() if some}, "red": red}
    with Path(path).open("a") as file:
        file.write(json.dumps(tally) + "\n")
