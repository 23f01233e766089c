"""A driver that is killed at random moments and started again: every event and every match is there once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.clusters.killed_driver import LATENESS, SCHEMA, query
from tests.spark.test_ingest import contents, lines

import kaicep as kai
from kaicep.archive.archive import Archive
from kaicep.connectors.shape import Form
from kaicep.ingest import files as inprocess
from kaicep.processes import bound

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent


STEPS = {
    "ingest": "A/*/_delta_log/*.json",
    **dict.fromkeys(("driver", "workers"), "matches/*.jsonl"),
}
"""What a driver leaves behind with every step."""


def steps(what: str, folder: Path) -> int:
    return len(list(folder.glob(STEPS[what])))


def run(what: str, folder: Path, draw: random.Random | None = None) -> bool:
    """Runs the driver; with a draw, kills it and all that it has started some steps on. Whether it ended."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    target = steps(what, folder) + draw.randint(0, 3) if draw else None
    process = subprocess.Popen(
        bound([sys.executable, str(Path(__file__).with_name("killed_driver.py")), what, str(folder)]),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() != b"ready\n":
            assert process.poll() is None
        if draw is not None and target is not None:
            while steps(what, folder) < target and process.poll() is None:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.3))
            if process.poll() is None:
                return False
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()[-3_000:]
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def killed(what: str, folder: Path, kills: int) -> None:
    """Kills so many times, at random moments, then lets it come to its end."""
    draw = random.Random(kills)
    for _ in range(kills):
        assert not run(what, folder, draw), "it was done before it could be killed"
    assert run(what, folder)


def check_ingest(folder: Path, kills: int, rows: int) -> None:
    (folder / "meter.jsonl").write_text("\n".join(lines(rows)) + "\n")
    killed("ingest", folder, kills)
    inprocess.ingest(Archive(folder / "P"), Form("meter"), folder / "meter.jsonl", LATENESS)
    assert contents(folder / "A") == contents(folder / "P")


def check_deliver(folder: Path, kills: int, files: int, engine: str = "driver") -> None:
    draw = random.Random(5)
    rows = [(at, at // 2 - draw.choice((0, 0, 1)), at, f"k{at % 3}") for at in range(files * 10)]
    (folder / "matches").mkdir()
    (folder / "events").mkdir()
    for number in range(files):
        write(rows[number * 10 : number * 10 + 10], folder / "events" / f"{number:04}.parquet", number)
    write([(files * 10, 10**6, 0, "end")], folder / "events" / f"{files:04}.parquet", files)
    killed(engine, folder, kills)
    told = [
        line
        for file in sorted((folder / "matches").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    events = [{"ts": ts, "x": x, "k": k} for _, ts, x, k in rows]
    wanted = [match.to_json() for match in kai.run(query(), events, lateness="2s")]
    assert sorted(told) == sorted(wanted)
    assert len(wanted) > files


def write(rows: Sequence[tuple[int, int, int, str]], file: Path, age: int) -> None:
    """A file that Spark takes in its turn, by its age."""
    import pyarrow
    import pyarrow.parquet

    names = [word.split()[0] for word in SCHEMA.split(",")]
    columns = zip(*rows, strict=True)
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), file)
    os.utime(file, (age, age))


@pytest.mark.slow
def test_ingest_killed(tmp_path: Path) -> None:
    check_ingest(tmp_path, 1, 2_000)


@pytest.mark.slow
def test_a_stream_of_matches_killed(tmp_path: Path) -> None:
    check_deliver(tmp_path, 1, 15)


@pytest.mark.night
def test_ingest_killed_fifty_times(tmp_path: Path) -> None:
    check_ingest(tmp_path, 50, 20_000)


@pytest.mark.night
def test_a_stream_of_matches_killed_fifty_times(tmp_path: Path) -> None:
    check_deliver(tmp_path, 50, 250)


@pytest.mark.night
def test_a_stream_with_engines_on_workers_killed_thirty_times(tmp_path: Path) -> None:
    check_deliver(tmp_path, 30, 150, "workers")
