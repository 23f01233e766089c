"""How long the command line takes to start, as a multiple of a bare Python.

Absolute times say more about the machine than about kaicep, so each command is timed in turns with
`python -c pass` on the same machine, and the ratio of the medians is what counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

EVENTS = 100
QUERY = "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 2s) FILTER (?a.x > 50)\n"


def measure(quick: bool = False) -> Report:
    """Starts each command some times."""
    turns = 2 if quick else 15
    kaicep = [sys.executable, "-m", "kaicep"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "q.chi").write_text(QUERY, "utf-8")
        rows = (json.dumps({"ts": second, "x": second}) + "\n" for second in range(EVENTS))
        (folder / "s.jsonl").write_text("".join(rows), "utf-8")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "kaicep --help": [*kaicep, "--help"],
            "kaicep check": [*kaicep, "check", "q.chi"],
            f"kaicep match, {EVENTS} events": [*kaicep, "match", "q.chi", "--stream", "s=s.jsonl"],
        }
        found = _medians(commands, folder, turns)
    bare = next(iter(found.values()))
    made: list[dict[str, Cell]] = [
        {"command": command, "ms": round(taken * 1000, 1), "of bare": round(taken / bare, 2)}
        for command, taken in found.items()
    ]
    return Report("startup", [Table(f"medians of {turns} turns", made)])


def _medians(commands: Mapping[str, Sequence[str]], folder: Path, turns: int) -> dict[str, float]:
    """The median time of each command; they take turns, so that a busy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(turns + 1):
        for name, command in commands.items():
            taken = _seconds(command, folder)
            if turn:  # the first one fills the caches
                times[name].append(taken)
    return {name: statistics.median(each) for name, each in times.items()}


def _seconds(command: Sequence[str], folder: Path) -> float:
    """How long a command takes; it must end well."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - began
