"""Whatever moment the power fails at, the next start gives what the run that did not crash gave.

`KAICEP_CRASHES` says how many crashes are tried, `KAICEP_CRASH_SEED` the first seed: a failure names its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.deployment.crashing import Disk, Operation, faulted, record
from tests.deployment.processes import matches, write
from tests.deployment.test_deployment import HIGH, PAIR, SINCE, event

from kaicep.connectors.sinks.delta import match_of_row
from kaicep.deployment.check import verify
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.storage import delta

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace sees what a process does to a disk"),
    pytest.mark.random,
]

CRASHES = int(os.environ.get("KAICEP_CRASHES", "20"))
FAULTS = int(os.environ.get("KAICEP_FAULTS", "1"))
SEED = int(os.environ.get("KAICEP_CRASH_SEED", "0"))

TOML = """tick = "1ms"
[streams.s]
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


def laid_out(folder: Path) -> Path:
    """A deployment with every kind of thing that is written: two sinks, a saved state, dead letters."""
    chosen = random.Random(7)
    files = {
        "kaicep.toml": TOML,
        "queries/high.chi": HIGH,
        "queries/pair.chi": PAIR,
        "queries/ever.chi": EVER,
    }
    lines = [
        event(n + chosen.choice([0, 0, -1, -3]), chosen.randrange(10), chosen.choice("pqr"))
        for n in range(40)
    ]
    lines[11] = "no json\n"
    write(folder, {**files, "s.jsonl": "".join(lines)})
    return folder


def _answers(folder: Path) -> dict[str, list[str]]:
    """The matches of both sinks, in no order: which query is first at a moment depends on the moment."""
    from deltalake import DeltaTable

    rows = DeltaTable(folder / "T").to_pyarrow_table().to_pylist()
    return {
        "out": sorted(json.dumps(each) for each in matches(folder / "out.jsonl")),
        "table": sorted(match_of_row(each).to_json() for each in rows),
    }


@dataclass(frozen=True)
class Recorded:
    """A folder as it was, where the deployment ran, what it did there, and the answers."""

    before: Path
    folder: Path
    operations: list[Operation]
    answers: dict[str, list[str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    before = laid_out(tmp_path_factory.mktemp("before") / "d")
    folder = tmp_path_factory.mktemp("run") / "d"
    shutil.copytree(before, folder)
    operations = record(folder)
    answers = _answers(folder)
    assert len(answers["out"]) > 50
    assert answers["out"] == answers["table"]
    assert Counter(each.kind for each in operations)["sync"] > 100
    return Recorded(before, folder, operations, answers)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaicep.deployment.sinks._QUIET", 0.01)
    monkeypatch.setattr("kaicep.deployment.sessions._SAVE_EVERY", 0.0)
    monkeypatch.setattr(delta, "_EVERY", 4)


def _finish(folder: Path, wanted: dict[str, list[str]], what: str) -> None:
    """Starts a deployment on what is there: the answers are those without a crash, and all is whole."""
    try:
        Deployment(load_config(folder / "kaicep.toml")).run()
    except Exception as error:
        raise AssertionError(f"{what}: it does not start: {error}") from error
    assert _answers(folder) == wanted, what
    assert list(verify(load_config(folder / "kaicep.toml"))) == [], what


def _crash(recorded: Recorded, seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    at = chosen.randrange(len(recorded.operations) + 1)
    disk = Disk(recorded.folder, recorded.before)
    for each in recorded.operations[:at]:
        disk.do(each)
    place = tmp_path / str(seed)
    disk.after_crash(chosen, place)
    _finish(place, recorded.answers, f"KAICEP_CRASH_SEED={seed}, a crash after operation {at}")
    shutil.rmtree(place)


def test_a_disk_to_which_everything_was_done_is_the_disk(recorded: Recorded, tmp_path: Path) -> None:
    """The recorder sees all, and the simulated disk does the same as the real one."""
    disk = Disk(recorded.folder, recorded.before)
    for each in recorded.operations:
        disk.do(each)
    disk.write(tmp_path / "d")
    for each in (path for path in recorded.folder.rglob("*") if path.is_file()):
        assert (tmp_path / "d" / each.relative_to(recorded.folder)).read_bytes() == each.read_bytes(), each


def test_a_crash_at_any_moment_loses_nothing_and_doubles_nothing(recorded: Recorded, tmp_path: Path) -> None:
    for seed in range(SEED, SEED + CRASHES):
        _crash(recorded, seed, tmp_path)
    moments = len(recorded.operations) + 1
    print(
        f"{CRASHES} crashes at {moments} moments, seeds {SEED} to {SEED + CRASHES - 1}: nothing lost or twice"
    )


@pytest.mark.parametrize(
    ("calls", "error"),
    [("fsync", "EIO"), ("pwrite64", "ENOSPC"), ("rename", "EIO"), ("linkat", "ENOSPC"), ("mkdir", "ENOSPC")],
)
def test_an_error_of_the_disk_at_any_call_loses_nothing(
    recorded: Recorded, tmp_path: Path, calls: str, error: str
) -> None:
    chosen = random.Random(SEED)
    most, came = 40, 0
    while came < FAULTS and most:
        when = chosen.randrange(1, most + 1)
        place = tmp_path / f"{when}-{came}" / "d"
        shutil.copytree(recorded.before, place)
        if faulted(place, calls, error, when):
            came += 1
        else:
            most = when - 1  # no thread makes so many
        _finish(place, recorded.answers, f"{error} at {calls} number {when}")
        shutil.rmtree(place)
    assert came
    print(f"{came} errors {error} at {calls}, seed {SEED}: nothing lost or twice")
