"""The same tests many times over, and one summary: `scripts/repeat_tests.py --times 20 -m servers`.

All other arguments go to pytest as they are. With `--shuffle=any` each run has an order of its own, and its
seed stands beside its counts. A red run does not stop the others. Ctrl-C or a kill ends the run that is under
way with all that it started, and the summary is of what was run. The exit status is 0 where every run was
green, else that of the first that was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from kaicep.processes import bound

_PYTEST = [sys.executable, "-m", "pytest"]
_ANY = "--shuffle=any"


@dataclass(frozen=True)
class Run:
    """One run of pytest: how it ended, and what came of its tests, as `tests/tally.py` writes it down."""

    name: str
    status: int
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    red: list[str] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether it ended without a word; that is no success, whatever its status."""
        return not self.counts and self.status != _NO_TESTS

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {kind}" for kind, count in self.counts.items()) or "no tests"
        if self.silent:
            counted = f"ended with status {self.status} before it could say what came of its tests"
        return f"{self.name}: {counted} in {_minutes(self.seconds)}"


_NO_TESTS = 5


class Repeat:
    """Runs pytest several times, until somebody stops it."""

    def __init__(self) -> None:
        self._stopped: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, times: int, words: Sequence[str]) -> int:
        """Runs the tests so many times, says what came of all of them, and returns the exit status."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._stop)
        runs: list[Run] = []
        with tempfile.TemporaryDirectory() as folder:
            while len(runs) < times and self._stopped is None:
                runs.append(self._pytest(len(runs) + 1, words, Path(folder) / str(len(runs))))
        print("\n")  # pytest may have died in the middle of a line
        for line in self._summary(runs, times):
            print(line, flush=True)
        if self._stopped is not None:
            return 128 + self._stopped
        status = next((each.status or 1 for each in runs if each.status or each.silent), 0)
        return status if status >= 0 else 128 - status

    def _pytest(self, number: int, words: Sequence[str], tally: Path) -> Run:
        seeded = [f"--shuffle={random.randrange(1_000_000)}" if each == _ANY else each for each in words]
        name = " ".join([f"run {number}", *(each for each in seeded if each not in words)])
        began = time.monotonic()
        environment = {**os.environ, "KAICEP_TALLY": str(tally)}
        self._process = subprocess.Popen(bound([*_PYTEST, *seeded]), env=environment)
        status = self._process.wait()
        told = json.loads(tally.read_text()) if tally.exists() else {}
        return Run(name, status, time.monotonic() - began, **told)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C reaches pytest by itself; it then says what it has. A kill is passed on."""
        self._stopped = number
        if number == signal.SIGTERM and self._process is not None:
            self._process.terminate()

    def _summary(self, runs: Sequence[Run], times: int) -> Iterator[str]:
        red: defaultdict[str, list[str]] = defaultdict(list)
        counts: Counter[str] = Counter()
        for each in runs:
            yield str(each)
            counts.update(each.counts)
            for name in each.red:
                red[name].append(each.name)
        for name, where in red.items():
            yield f"RED {name} ({', '.join(where)})"
        if self._stopped is not None:
            yield f"stopped by {signal.Signals(self._stopped).name} in run {len(runs)} of {times}"
        green = sum(not (each.status or each.silent) for each in runs)
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no tests"
        whole = sum(each.seconds for each in runs)
        yield f"=== {green} of {len(runs)} runs green: {counted} in {_minutes(whole)} ==="


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--times", type=int, required=True, metavar="N", help="how many runs")
    given, words = parser.parse_known_args()
    return Repeat().run(given.times, words)


if __name__ == "__main__":
    raise SystemExit(main())
