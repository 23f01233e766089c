"""On which cluster a session is, and what a function for micro-batches raises when its stream is stopped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.servers import free_port

from kaicep.errors import Failure, Mistake
from kaicep.hosts.spark.session import Cluster, configured, each_batch

# What Spark looks for in the text of an error when a stream is stopped.
INTERRUPTED = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling"
    r"((.|\r\n|\r|\n)*)(java\.lang\.InterruptedException)"
)


def raised(error: Exception) -> BaseException:
    def work(rows: Any, number: int) -> None:
        raise error

    with pytest.raises(type(error) if not isinstance(error, PySparkException) else Exception) as found:
        each_batch(work)(None, 7)  # type: ignore[arg-type]
    return found.value


@pytest.mark.parametrize("cause", ["Caused by: java.lang.InterruptedException", "Job 3 cancelled part of"])
def test_an_interruption_is_told_in_few_words(cause: str) -> None:
    found = raised(PySparkException("\n".join(["at java.base/java.util.Any"] * 5_000 + [cause])))
    assert INTERRUPTED.search(f"Traceback (most recent call last):\n{found}")
    assert len(str(found)) < 200
    assert found.__suppress_context__


def test_everything_else_stays_as_it_is() -> None:
    for error in (PySparkException("a column is missing"), Failure("the sink was interrupted: cancelled")):
        assert raised(error) is error


DEFAULTS = "# ours\nspark.master  spark://defaults:7077\nspark.executor.memory=2g\n"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that says nothing of a cluster."""
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize(
    ("cluster", "outside", "wanted"),
    [
        (Cluster(), {}, "local[*]"),
        (Cluster(), {"MASTER": "spark://env:7077"}, "spark://env:7077"),
        (Cluster(), {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell", "MASTER": "local[3]"}, "yarn"),
        (Cluster(), {"PYSPARK_SUBMIT_ARGS": "--conf spark.master=k8s://x pyspark-shell"}, "k8s://x"),
        (Cluster(), {"PYSPARK_SUBMIT_ARGS": "--master=local[7] pyspark-shell"}, "local[7]"),
        (Cluster(), {"PYSPARK_GATEWAY_PORT": "1", "MASTER": "yarn"}, "spark-submit"),
        (Cluster(), {"SPARK_REMOTE": "sc://env:15002", "MASTER": "yarn"}, "sc://env:15002"),
        (Cluster(remote="sc://given"), {"MASTER": "yarn", "SPARK_REMOTE": "sc://env"}, "sc://given"),
        (Cluster(master="local[2]"), {"MASTER": "yarn"}, "local[2]"),
        (Cluster(conf={"spark.master": "local[5]"}), {}, "local[5]"),
    ],
)
def test_the_cluster_is_the_configured_one(
    cluster: Cluster, outside: Mapping[str, str], wanted: str, plain: pytest.MonkeyPatch
) -> None:
    for name, value in outside.items():
        plain.setenv(name, value)
    assert configured(cluster)[0] == wanted


def test_spark_defaults_count(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(DEFAULTS)
    assert configured(Cluster()) == ("spark://defaults:7077", str(tmp_path / "spark-defaults.conf"))
    plain.setenv("MASTER", "local[3]")  # Spark takes it last
    assert configured(Cluster())[0] == "spark://defaults:7077"


@pytest.mark.parametrize(
    ("cluster", "outside"),
    [(Cluster("local", "sc://x"), {}), (Cluster("local"), {"SPARK_REMOTE": "sc://x"})],
)
def test_two_clusters_are_a_mistake(
    cluster: Cluster, outside: Mapping[str, str], plain: pytest.MonkeyPatch
) -> None:
    for name, value in outside.items():
        plain.setenv(name, value)
    with pytest.raises(Mistake, match="sc://x"):
        configured(cluster)


def command(folder: Path, *words: str, **outside: str) -> subprocess.CompletedProcess[str]:
    """`kaicep match` over one event in a process of its own."""
    (folder / "big.chi").write_text("SELECT ?e.x FROM (?e, s) WHERE FILTER (?e.x > 1)")
    (folder / "s.jsonl").write_text('{"ts": 1, "x": 2}\n')
    (folder / "conf").mkdir(exist_ok=True)
    said = {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_TESTING": "1", **outside}
    typed = [sys.executable, "-m", "kaicep", "match", "big.chi", "--stream", "s=s.jsonl", *words]
    return subprocess.run(
        typed, cwd=folder, env={**os.environ, **said}, capture_output=True, text=True, check=False
    )


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    url = f"sc://127.0.0.1:{free_port()}"
    done = command(tmp_path, "--host", "spark-batch", SPARK_REMOTE=url)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: no Spark Connect server answers at {url} (SPARK_REMOTE)")
    assert "Traceback" not in done.stderr


def test_options_for_spark_are_for_spark(tmp_path: Path) -> None:
    done = command(tmp_path, "--master", "local[1]")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: --master is for what runs on Spark")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "outside"),
    [
        (("--conf", "spark.sql.shuffle.partitions=3"), {"MASTER": "local[3]"}),
        (("--host", "spark-stream"), {"SPARK_REMOTE": "local[2]"}),
    ],
)
def test_a_command_runs_where_the_environment_says(
    words: tuple[str, ...], outside: dict[str, str], tmp_path: Path
) -> None:
    logged = tmp_path / "events"
    logged.mkdir()
    conf = f"spark.eventLog.enabled true\nspark.eventLog.dir {logged.as_uri()}\n"
    conf += "spark.eventLog.rolling.enabled false\nspark.eventLog.compress false\n"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(conf)
    done = command(tmp_path, "--host", "spark-batch", *words, **outside)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["select"] == {"x": 2}
    (log,) = logged.iterdir()
    found = next(json.loads(line) for line in log.open() if "SparkListenerEnvironmentUpdate" in line)
    assert found["Spark Properties"]["spark.master"] == next(iter(outside.values()))
