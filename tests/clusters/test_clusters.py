"""Where driver and workers are processes of their own: a standalone cluster, and Spark Connect.

The workers of the cluster do not have the package on their path: it is sent to them. On Connect, what is sent
reaches jobs but not streams (Spark 4.3), so there it is installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import script

import kaicep as kai
from kaicep.processes import bound

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def driven(url: str, folder: Path, installed: bool = False) -> dict[str, Any]:
    """What the script found; `installed` is whether the workers have the package."""
    # Only the driver has this path: Spark gives its workers PYTHONPATH, and nothing of what is set in Python.
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(ROOT)!r}]; "
        "from tests.clusters import script; "
        f"from pathlib import Path; script.main({url!r}, Path({str(folder)!r}))"
    )
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if installed:
        plain["PYTHONPATH"] = str(ROOT / "src")
    plain["SPARK_TESTING"] = "1"  # a Connect server on a port that is free
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("{"))
    )
    return found


@contextmanager
def process(folder: Path, name: str, *words: str, ready: str) -> Iterator[str]:
    """A process of Spark's, until the end; what it said when it was ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("w") as output:
        running = subprocess.Popen(
            bound([str(home / "bin" / "spark-class"), *words]),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**plain, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)},
        )
    try:
        with log.open() as said:
            text = ""
            while not (found := re.search(ready, text)):
                assert running.poll() is None, text
                text += said.readline()
        yield found[0]
    finally:
        running.terminate()
        running.wait()


def kernels_of(cache: Path) -> dict[str, bytes]:
    """What is compiled in a cache, by file."""
    return {each.name: each.read_bytes() for each in cache.rglob("*.nb[ic]")}


def shipped(folder: Path) -> dict[str, bytes]:
    """The same in what was sent."""
    (packed,) = folder.glob("kaicep-kernels-*.zip")
    with zipfile.ZipFile(packed) as archive:
        return {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers, whose executors run in folders below this one; where the master is."""
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
    worker += ["--memory", "1g", "--work-dir", str(folder), "--webui-port", "0"]
    ready = "Successfully registered with master"
    with (
        process(folder, "master", *master, "--webui-port", "0", ready=r"spark://127\.0\.0\.1:\d+") as url,
        process(folder, "worker1", *worker, url, ready=ready),
        process(folder, "worker2", *worker, url, ready=ready),
    ):
        yield url


@pytest.mark.night
def test_a_standalone_cluster(tmp_path: Path) -> None:
    """By day a deployment runs on such a cluster, and Connect has workers with a cache of their own."""
    with cluster(tmp_path) as url:
        found = driven(url, tmp_path)
    assert (found["batch"], found["stream"]) == (script.wanted(), script.wanted())
    # What was compiled in the driver came along: the workers, with a cache of their own, only loaded it.
    assert found["loaded"] > 0
    assert found["compiled"] == 0
    assert kernels_of(tmp_path / "executors") == shipped(tmp_path)


def test_spark_connect(tmp_path: Path) -> None:
    found = driven("connect", tmp_path, installed=True)
    assert (found["batch"], found["stream"]) == (script.wanted(), script.wanted())
    # What the stream observed came to the client.
    assert found["seen"] == Counter(json.loads(line)["query"] for line in script.wanted())
    # The job unpacked what came along, and the workers of the stream, which are others, added nothing to it.
    assert kernels_of(tmp_path / "executors") == shipped(tmp_path)


PIPELINE = """
import kaicep as kai
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.getActiveSession()
query = kai.compile({query!r}, streams={types!r})


@dp.materialized_view
def air():
    return spark.read.parquet({data!r})


@dp.materialized_view
def rises():
    return kai.spark.match(spark.read.table("air"), query, streaming=False).select("end", "id", "match")


@dp.table
def live_rises():
    columns = "part bigint, seq bigint, ts timestamp, sensor string, flow double"
    events = spark.readStream.schema(columns).parquet({data!r})
    return kai.spark.match(events, query, lateness="1min", streaming=True).select("end", "id", "match")
"""


def test_declarative_pipelines(tmp_path: Path) -> None:
    """In the functions of a pipeline, whatever would ask Spark what a table is is an error."""
    import pyarrow
    import pyarrow.parquet
    import pyspark
    from tests.spark.test_match import EVENTS, RISE, TYPES, at, in_process

    home = Path(pyspark.__file__).parent
    (tmp_path / "steps").mkdir()
    (tmp_path / "data").mkdir()
    some = sorted(EVENTS)
    columns = {
        "part": [0] * len(some),
        "seq": [each[0] for each in some],
        "ts": pyarrow.array([at(each[1]) for each in some], pyarrow.timestamp("us", "UTC")),
        "sensor": [each[2] for each in some],
        "flow": [each[3] for each in some],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data" / "a.parquet")
    text = PIPELINE.format(query=RISE, types=TYPES, data=str(tmp_path / "data"))
    (tmp_path / "steps" / "rises.py").write_text(text)
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: rises\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: steps/**\n"
    )
    words = ["spark.ui.enabled=false", "spark.sql.shuffle.partitions=2", "spark.driver.host=127.0.0.1"]
    confs = [word for each in words for word in ("--conf", each)]
    outside = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    outside["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        [str(home / "bin" / "spark-pipelines"), "run", *confs],
        cwd=tmp_path,
        env={**os.environ, **outside},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    wanted = in_process(kai.compile(RISE, streams=TYPES))
    found = pyarrow.parquet.read_table(tmp_path / "spark-warehouse" / "rises").to_pylist()
    assert [each["match"] for each in sorted(found, key=lambda row: (row["end"], row["id"]))] == wanted
    live = pyarrow.parquet.read_table(tmp_path / "spark-warehouse" / "live_rises").to_pylist()
    assert {each["match"] for each in live} <= set(wanted)
    assert live
