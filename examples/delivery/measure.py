"""What 1 and 10 agents cost who visit 5 to 20 locations: figure 3 of the EP-SPARQL paper, beside its numbers.

    python examples/delivery/measure.py [--seed 1] [--quick]

Time is what this process spends on the queries, from the first event to the last; memory is what it holds at
most meanwhile, measured in a second run, because watching it takes time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

from generate import write

from kaicep.api import FiniteRun, open_run

HERE = Path(__file__).resolve().parent
# Agents and locations: milliseconds and kilobytes in the paper, on a machine of 2009.
PAPER = {
    (1, 5): (3, 35),
    (1, 10): (94, 86),
    (1, 15): (109, 119),
    (1, 20): (130, 165),
    (10, 5): (31, 204),
    (10, 10): (889, 810),
    (10, 15): (1_076, 1_039),
    (10, 20): (1_295, 1_503),
}


def opened(folder: Path) -> FiniteRun:
    return open_run(
        queries=sorted((HERE / "queries").glob("*.epsparql")),
        streams=[("city", folder / "city.jsonl")],
        knowledge=[folder / "city.ttl"],
    )


def milliseconds(folder: Path) -> float:
    run = opened(folder)
    started = time.process_time()
    run.matches()
    return (time.process_time() - started) * 1_000


def kilobytes(folder: Path) -> float:
    run = opened(folder)
    tracemalloc.start()
    run.matches()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 1_000


def main(seed: int, quick: bool) -> None:
    print("agents  locations      ms   paper      kB   paper")
    for (agents, locations), (paper_ms, paper_kb) in PAPER.items():
        if quick and locations > 10:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, seed, agents, locations)
            spent, held = milliseconds(folder), kilobytes(folder)
        print(
            f"{agents:>6}  {locations:>9}  {spent:>6.0f}  {paper_ms:>6}  {held:>6.0f}  {paper_kb:>6}",
            flush=True,
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Figure 3 of the EP-SPARQL paper.")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--quick", action="store_true", help="no more than 10 locations")
    chosen = arguments.parse_args()
    main(chosen.seed, chosen.quick)
