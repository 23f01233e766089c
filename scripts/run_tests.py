"""All tests but the longest, in two halves, and what came of both: `make test`.

The tests with Spark run in one process, so that there is one Spark session; the others by several workers.
The second half runs whatever came of the first, unless somebody stops it. The exit status is 0 where both are
green, else that of the first half that is not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kaicep.processes import bound

_PYTEST = [sys.executable, "-m", "pytest"]


def halves(jobs: str) -> list[list[str]]:
    """What pytest is asked for in each half; the tests of a file share their broker, their demo, ..."""
    return [
        ["-n", jobs, "--dist", "loadfile", "-m", "not night and not spark"],
        ["-m", "spark and not night"],
    ]


@dataclass(frozen=True)
class Tally:
    """What came of a half, as `tests/tally.py` writes it down."""

    counts: dict[str, int]
    red: list[str]


class Runner:
    """Runs pytest several times, until somebody stops it."""

    def __init__(self) -> None:
        self._stopped: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, halves: Sequence[Sequence[str]]) -> int:
        """Runs every half, says what came of all of them, and returns the exit status."""
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._stop)
        began, statuses = time.monotonic(), []
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tally"
            path.touch()
            for half in halves:
                if self._stopped is None:
                    statuses.append(self._pytest(half, path))
            tallies = [Tally(**json.loads(line)) for line in path.read_text().splitlines()]
        print()
        for line in self._summary(tallies, statuses, time.monotonic() - began):
            print(line, flush=True)
        if self._stopped is not None:
            return 128 + self._stopped
        silent = int(len(tallies) < len(statuses))  # one that says nothing is not green, whatever its status
        status = next((each for each in statuses if each), silent)
        return status if status >= 0 else 128 - status

    def _pytest(self, half: Sequence[str], tally: Path) -> int:
        environment = {**os.environ, "KAICEP_TALLY": str(tally)}
        self._process = subprocess.Popen(bound([*_PYTEST, *half]), env=environment)
        return self._process.wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C reaches pytest by itself; it then says what it has. A kill is passed on."""
        self._stopped = number
        if number == signal.SIGTERM and self._process is not None:
            self._process.terminate()

    def _summary(self, tallies: Sequence[Tally], statuses: Sequence[int], seconds: float) -> Iterator[str]:
        counts: Counter[str] = Counter()
        for each in tallies:
            counts.update(each.counts)
            yield from (f"RED {name}" for name in each.red)
        if self._stopped is not None:
            yield f"stopped by {signal.Signals(self._stopped).name}: not all tests were run"
        elif len(tallies) < len(statuses):
            yield f"pytest ended with status {statuses} before it could say what came of its tests"
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no tests"
        minutes, rest = divmod(round(seconds), 60)
        yield f"=== {counted} in {minutes}:{rest:02} ==="


if __name__ == "__main__":
    raise SystemExit(Runner().run(halves(*sys.argv[1:])))
