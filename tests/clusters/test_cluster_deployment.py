"""A deployment on a cluster whose executors have no kaicep; an executor and the driver are killed on the way.

Its table of matches holds what a run in this process gives, byte for byte.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clusters.test_clusters import ROOT, cluster
from tests.spark.deployed import described, grown, laid_out, rows

import kaicep
from kaicep.archive.archive import Archive
from kaicep.archive.table import ArchiveTable
from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.processes import bound

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LINES, SHORT = 1_200, 700
NEW = "SELECT ?e.sensorID FROM (?e, airflowReport) FILTER (?e.hvc:airflow > 555)"


def lean_python(folder: Path) -> Path:
    """A Python with all that kaicep needs: .pth files in folders that a .pth file names are not read."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (own,) = (each for each in sys.path if each.endswith("site-packages"))
    (site / "others.pth").write_text(own + "\n")
    python = folder / "bin" / "python"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tried = subprocess.run(
        [python, "-c", "import numba, kaicep"], cwd=folder, env=plain, capture_output=True, check=False
    )
    assert b"No module named 'kaicep'" in tried.stderr
    return python


def changed(folder: Path) -> None:
    """Between the two halves: one query comes, one goes, and three rooms become meeting rooms."""
    (folder / "queries" / "added.chi").write_text(NEW)
    (folder / "queries" / "near.chi").unlink()
    with (folder / "knowledge" / "building.ttl").open("a") as file:
        file.write(
            "\nbd:RTH102 a bd:MeetingRoom . bd:EEB201 a bd:MeetingRoom . bd:OHE108 a bd:MeetingRoom .\n"
        )
    grown(folder, LINES // 2, LINES)


def until(holds: Callable[[], bool], fails: Callable[[], object]) -> None:
    while not holds():
        assert not fails(), fails()
        time.sleep(0.1)


def taken_in(folder: Path) -> int:
    try:
        cut = Archive(folder / "archive").snapshot().cut
    except Exception:  # the table is being made
        return 0
    return sum(cut.positions.get("airflowReport", {}).values())


def answered(folder: Path) -> int:
    """So many events are in what the last commit to the table of matches answers, with all queries."""
    if not ArchiveTable.exists(folder / "state" / "matches"):
        return 0
    progress = ArchiveTable(folder / "state" / "matches", "matches").state.progress or {}
    reported = {name for group in progress.get("groups", ()) for name in group["reported"]}
    if not {each["name"] for each in progress.get("queries", ())} <= reported:
        return 0
    return sum(progress.get("cut", {}).get("airflowReport", {}).values())


def delivered(folder: Path, query: str) -> int:
    """So many matches of a query the sink has: the one that is removed has to be done with the first half."""
    try:
        return sum(each["query"] == query for each in rows(folder / "sunk"))
    except Exception:  # there is no table yet
        return 0


def in_process(folder: Path) -> None:
    laid_out(folder, LINES // 2, follow=True, lateness="20s")
    deployment = Deployment(load_config(folder / "kaicep.toml"))
    running = threading.Thread(target=deployment.run)
    running.start()
    until(
        lambda: taken_in(folder) == LINES // 2 and delivered(folder, "near") == 2,
        lambda: not running.is_alive(),
    )
    deployment.stop()
    running.join()
    changed(folder)
    described(folder, follow=False, engine="", lateness="20s")
    Deployment(load_config(folder / "kaicep.toml")).run()


def executors(folder: Path) -> Iterator[int]:
    """The executors of the cluster whose folder this is."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if (
                folder in (each / "cwd").resolve().parents
                and b"ExecutorBackend" in (each / "cmdline").read_bytes()
            ):
                yield int(each.name)
        except OSError:
            continue


@contextmanager
def driver(folder: Path, python: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The deployment, run by a process of its own."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    source = Path(kaicep.__file__).parents[1]
    program = (
        f"import sys; sys.path[:0] = [{str(source)!r}, {str(ROOT)!r}]; from pathlib import Path; "
        f"from tests.spark import deployed; deployed.main(Path({str(folder / 'kaicep.toml')!r}))"
    )
    with log.open("ab") as output:
        running = subprocess.Popen(
            bound([sys.executable, "-c", program]),
            cwd=folder,
            env={**plain, "PYSPARK_PYTHON": str(python)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def on_cluster(url: str, folder: Path) -> str:
    """The engine of a deployment whose executors compile for themselves, in a cache below a folder."""
    conf = {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.executorEnv.KAICEP_CACHE_DIR": str(folder / "cache"),
    }
    settings = ", ".join(f'"{name}" = "{value}"' for name, value in conf.items())
    return f'[engine]\nkind = "spark"\nmaster = "{url}"\nbuckets = 2\nconf = {{{settings}}}'


def test_a_short_deployment_on_two_workers(tmp_path: Path) -> None:
    """All of it on workers, each a process of its own, that have no kaicep."""
    Deployment(load_config(laid_out(tmp_path / "here", SHORT, lateness="20s"))).run()
    python, log, folder = lean_python(tmp_path / "lean"), tmp_path / "driver.log", tmp_path / "there"
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster") as url:
        laid_out(folder, SHORT, engine=on_cluster(url, tmp_path), lateness="20s")
        with driver(folder, python, log) as running:
            assert running.wait() == 0, log.read_text()[-4000:]
    wanted = rows(tmp_path / "here" / "sunk")
    assert rows(folder / "state" / "matches") == wanted
    assert rows(folder / "sunk") == wanted
    assert len({each["query"] for each in wanted}) > 4


@pytest.mark.night
def test_a_cluster_gives_what_this_process_gives(tmp_path: Path) -> None:
    in_process(tmp_path / "here")
    wanted = rows(tmp_path / "here" / "sunk")
    python = lean_python(tmp_path / "lean")
    log, folder = tmp_path / "driver.log", tmp_path / "there"
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster") as url:
        engine = on_cluster(url, tmp_path)
        laid_out(folder, LINES // 2, follow=True, engine=engine, lateness="20s")
        with driver(folder, python, log) as running:
            ended = lambda: running.poll() is not None and log.read_text()[-4000:]  # noqa: E731
            until(lambda: taken_in(folder) > 0, ended)
            os.kill(next(executors(tmp_path / "cluster")), signal.SIGKILL)
            until(lambda: answered(folder) == LINES // 2, ended)
            running.kill()
        changed(folder)
        described(folder, follow=False, engine=engine, lateness="20s")
        with driver(folder, python, log) as running:
            assert running.wait() == 0, log.read_text()[-4000:]
    assert log.read_text().count("Spark's own pages: http://") == 2
    found = rows(folder / "state" / "matches")
    assert Counter(each["query"] for each in found) == Counter(each["query"] for each in wanted)
    assert found == wanted
    assert rows(folder / "sunk") == wanted
