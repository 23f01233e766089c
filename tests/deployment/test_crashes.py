"""Whatever moment the power fails at, the next start gives what the run that did not crash gave.

Runs of a deployment are recorded: from the beginning, and starts on what a crash left of the run before, in
turns. Each crash cuts one of them off. Crashes that leave the same disk are tried once.

`KAICEP_CRASHES` says how many crashes are tried, `KAICEP_FAULTS` how many runs on a disk that fails,
`KAICEP_CRASH_RUNS` of how many recorded runs, `KAICEP_CRASH_SEED` the first seed. A failure names its own,
and leaves its disk where it is.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.deployment.crashing import Disk, Left, Operation, record
from tests.deployment.processes import write
from tests.deployment.restarts import KINDS, Fault, Restarts, Start, answers
from tests.deployment.test_deployment import HIGH, PAIR, SINCE, event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace sees what a process does to a disk"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a disk that fails is a library, which cc makes"),
    pytest.mark.random,
]

CRASHES = int(os.environ.get("KAICEP_CRASHES", "40"))
FAULTS = int(os.environ.get("KAICEP_FAULTS", "12"))
RUNS = int(os.environ.get("KAICEP_CRASH_RUNS", "1"))
SEED = int(os.environ.get("KAICEP_CRASH_SEED", "0"))
ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS]

TOML = """tick = "1ms"
[streams.s]
annotation = "s.json"
lateness = "2s"
types = {x = "int64"}
source = {kind = "files", path = "s.jsonl", batch = 6}
[sinks.out]
kind = "files"
path = "out.jsonl"
[sinks.table]
kind = "delta"
path = "T"
"""
EVER = f"""SELECT ?a.x, ?b.x FROM (?a, s), (?b, s) {SINCE}
JOIN (?a.k = ?b.k) SEQ (?a, ?b) AFTER MATCH SKIP PAST LAST"""
ANNOTATION = """{"stream": "s", "prefixes": {"v": "urn:v:"}, "attributes": {"k": "v:k", "x": "v:x"}}"""
SAME = """PREFIX v: <urn:v:> PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
SELECT ?k ?n WHERE { ?a v:k ?k . ?a v:x ?n } SEQ { ?b v:k ?k . ?b v:x ?n }
FILTER (getDURATION() < "PT9S"^^xsd:duration)"""
FEW = f"SELECT COUNT(?h) AS n FROM (?h, high) {SINCE} WINDOW (?h, batch, 5s)"


def laid_out(folder: Path, seed: int) -> Path:
    """What writes every kind of thing: both languages, a derived stream, two sinks, a state, dead letters."""
    chosen = random.Random(seed)
    files = {
        "kaicep.toml": TOML,
        "queries/high.chi": HIGH,
        "queries/pair.chi": PAIR,
        "queries/ever.chi": EVER,
        "queries/few.chi": FEW,
        "queries/same.epsparql": SAME,
        "s.json": ANNOTATION,
    }
    lines = [
        event(n + chosen.choice([0, 0, -1, -3]), chosen.randrange(10), chosen.choice("pqr"))
        for n in range(40)
    ]
    lines[11] = "no json\n"
    write(folder, {**files, "s.jsonl": "".join(lines)})
    return folder


@dataclass(frozen=True)
class Recorded:
    """A folder as it was, where the deployment ran, what it did there, and the answers, also as a file."""

    before: Path
    folder: Path
    operations: list[Operation]
    answers: dict[str, list[str]]
    wanted: Path

    def crash(self, at: int, chosen: random.Random) -> Left:
        """What a crash after some operations leaves."""
        disk = Disk(self.folder, self.before)
        for each in self.operations[:at]:
            disk.do(each)
        return disk.after_crash(chosen)


def _recorded(before: Path, place: Path) -> Recorded:
    folder = place / "d"
    place.mkdir()
    shutil.copytree(before, folder)
    operations = record(folder)
    found = answers(folder)
    assert len(found["out"]) > 50
    assert found["out"] == found["table"]
    wanted = place / "wanted.json"
    wanted.write_text(json.dumps(found))
    return Recorded(before, folder, operations, found, wanted)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    """Runs from the beginning, and starts on what a crash left of the run before, in turns."""
    top = tmp_path_factory.mktemp("recorded")
    found: list[Recorded] = []
    for number in range(RUNS):
        before = top / f"before-{number}"
        if number % 2:
            chosen = random.Random(number)
            last = found[-1]
            last.crash(chosen.randrange(len(last.operations) // 4, len(last.operations)), chosen).write(
                before
            )
        else:
            laid_out(before, 7 + number)
        found.append(_recorded(before, top / str(number)))
        assert number % 2 == 0 or found[-1].answers == found[-2].answers
    assert Counter(each.kind for each in found[0].operations)["sync"] > 100
    return found


@pytest.fixture(scope="module")
def restarts() -> Iterator[Restarts]:
    with Restarts() as workers:
        yield workers


def _starts(runs: list[Recorded], seen: set[bytes], place: Path) -> Iterator[Callable[[], Start]]:
    """A start for each disk that the crashes leave, the crashes of a run in the order of their moments."""
    moments = [
        (number, chosen.randrange(len(runs[number].operations) + 1), seed, chosen)
        for seed in range(SEED, SEED + CRASHES)
        for number, chosen in [(seed % len(runs), random.Random(seed))]
    ]
    moments.sort(key=lambda each: each[:3])
    disks = [Disk(run.folder, run.before) for run in runs]
    done = [0 for _ in runs]
    for number, at, seed, chosen in moments:
        for each in runs[number].operations[done[number] : at]:
            disks[number].do(each)
        done[number] = at
        left = disks[number].after_crash(chosen)
        if (digest := left.digest()) not in seen:
            seen.add(digest)
            yield partial(_start, runs[number], left, place / f"seed-{seed}-after-{at}-of-run-{number}")


def _start(run: Recorded, left: Left, folder: Path) -> Start:
    left.write(folder)
    return Start(str(folder), str(run.wanted))


def test_a_disk_to_which_everything_was_done_is_the_disk(runs: list[Recorded], tmp_path: Path) -> None:
    """The recorder sees all, and the simulated disk does the same as the real one."""
    run = runs[0]
    disk = Disk(run.folder, run.before)
    for each in run.operations:
        disk.do(each)
    disk.now().write(tmp_path / "d")
    for each in (path for path in run.folder.rglob("*") if path.is_file()):
        assert (tmp_path / "d" / each.relative_to(run.folder)).read_bytes() == each.read_bytes(), each


def test_a_crash_at_any_moment_loses_nothing_and_doubles_nothing(
    runs: list[Recorded], restarts: Restarts, tmp_path: Path
) -> None:
    seen: set[bytes] = set()
    for start, outcome in restarts.run(_starts(runs, seen, tmp_path)):
        assert not outcome.trouble, f"KAICEP_CRASH_SEED, {start.folder}: {outcome.trouble}"
    moments = sum(len(each.operations) + 1 for each in runs)
    print(
        f"{CRASHES} crashes, seeds {SEED} to {SEED + CRASHES - 1}, at {moments} moments of {len(runs)} runs, "
        f"left {len(seen)} different disks: nothing lost, nothing twice"
    )


def test_errors_of_the_disk_lose_nothing(runs: list[Recorded], restarts: Restarts, tmp_path: Path) -> None:
    """One call fails, or each n-th, or all from some moment on; then the disk is whole again."""

    def failing(seed: int) -> Start:
        chosen = random.Random(seed)
        kind = list(KINDS)[seed % len(KINDS)]
        calls = {"sync": 100, "write": 120, "rename": 30, "link": 40, "mkdir": 12, "create": 100}[kind]
        # How many calls there are depends on the speed of the machine; there is always a first one.
        first = 1 if seed < SEED + len(KINDS) else chosen.randint(1, calls)
        every = chosen.choice([0, 0, 1, 2, 3, 7])
        fault = Fault(kind, chosen.choice(ERRORS), first, every, patient=every > 0)
        run = runs[seed % len(runs)]
        folder = tmp_path / f"seed-{seed}-{kind}"
        shutil.copytree(run.before, folder)
        return Start(str(folder), str(run.wanted), fault)

    kinds: Counter[str] = Counter()
    starts = (partial(failing, seed) for seed in range(SEED, SEED + FAULTS))
    for start, outcome in restarts.run(starts):
        assert not outcome.trouble, f"{start.fault} in {start.folder}: {outcome.trouble}"
        assert start.fault is not None
        kinds[start.fault.kind] += outcome.errors
    assert len(+kinds) == len(KINDS)
    print(f"{kinds.total()} errors in {FAULTS} runs, seeds from {SEED}, {dict(kinds)}: nothing lost or twice")
