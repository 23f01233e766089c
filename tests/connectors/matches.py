"""Matches to write, and processes that are killed while they write them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from kaicep.plan.events import Match
from kaicep.processes import bound

WRITER = """
    # Like a host: goes on from the mark, finds some matches, commits them with the position after them.
    import sys
    from kaicep.connectors.registry import make_sink
    from tests.connectors.matches import matches

    sink = make_sink("out", {"kind": sys.argv[1], "path": sys.argv[2]})
    mark = sink.open() or {"s": {"0": 0}}
    print("open", flush=True)
    while True:
        start = mark["s"]["0"]
        for each in range(start, start + 5):
            sink.write(matches(each))
        mark = {"s": {"0": start + 5}}
        sink.commit(mark)
        print(start + 5, flush=True)
"""


def matches(*numbers: int) -> list[Match]:
    """Matches with these numbers for ids."""
    return [Match("hot", f"{each:05}", each, each, {"x": each}) for each in numbers]


def write_and_kill(kind: str, path: Path, turns: int, commits: int, seed: int = 0) -> int:
    """Lets a process write to a sink, kills it at a random moment, again and again.

    Gives the number of matches that were certainly committed.
    """
    chance = random.Random(seed)
    committed = 0
    for _ in range(turns):
        process = subprocess.Popen(
            bound([sys.executable, "-c", textwrap.dedent(WRITER), kind, str(path)]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(chance.randrange(commits)):
            committed = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        committed = int(rest[-1]) if rest else committed
    return committed
