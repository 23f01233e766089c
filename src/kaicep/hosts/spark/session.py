"""The session of this process, on whatever cluster is configured, and errors of Spark as ours."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.errors import Failure, Mistake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSION: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""What a session of ours has on every cluster, unless the cluster's own configuration says otherwise."""

LOCAL: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""What it has besides where all of Spark is inside this process."""

_LOG = logging.getLogger("kaicep")


@dataclass(frozen=True)
class Cluster:
    """Where Spark runs, as far as a caller says; what is left out is as Spark itself is configured."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


_wanted = Cluster()


def use_cluster(cluster: Cluster) -> None:
    """Says where the session of this process is to be, before there is one: a process has one Spark."""
    global _wanted
    _wanted = cluster


_OURS = re.compile(
    r"kaicep\.errors\.(?:Failure|Mistake|Unsupported): (.*?)(?:\n\s*\n|\n SQLSTATE|\Z)", re.DOTALL
)


def own_session() -> SparkSession:
    """The session that is active, or a new one on the cluster that is configured."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Mistake("the Spark hosts need PySpark", hint="pip install 'kaicep[spark]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    cluster = _wanted
    url, said_by = configured(cluster)
    if url.startswith("sc://"):
        _reach(url, said_by)
    builder = SparkSession.builder.appName("kaicep")
    for name, value in {**(_local() if url.startswith("local") else {}), **cluster.conf}.items():
        builder = builder.config(name, value)
    if cluster.remote is not None:
        builder = builder.remote(cluster.remote)
    elif cluster.master is not None:
        builder = builder.master(cluster.master)
    try:
        with warnings.catch_warnings():
            # A Connect session warns of each setting that its server has from the start.
            warnings.simplefilter("ignore", UserWarning)
            session = builder.getOrCreate()
    except Exception as error:  # PySpark's own, py4j's, gRPC's: each says no more than this line
        hint = "it needs Java 17 or later; `kaicep doctor` says what is missing, and which cluster it is"
        raise Mistake(f"Spark does not start on {url}: {_line_of(error)}", hint=hint) from None
    for name, value in SESSION.items():
        if session.conf.get(name, None) is None:
            session.conf.set(name, value)
    _LOG.info("Spark %s on %s (%s)", session.version, url, said_by)
    return session


def share_python(session: SparkSession) -> None:
    """Lets the workers of a session on this machine run this Python, where nobody has chosen another.

    PySpark's own choice is whatever `python3` is on the path: outside an activated environment, one
    without kaicep. A cluster elsewhere knows its Pythons itself.
    """
    if (
        is_connect(session)
        or "PYSPARK_PYTHON" in os.environ
        or session.conf.get("spark.pyspark.python", None)
    ):
        return
    context = session.sparkContext
    if (context.master or "").startswith("local"):
        os.environ["PYSPARK_PYTHON"] = context.pythonExec = sys.executable


def is_connect(session: SparkSession) -> bool:
    """Whether a session talks to a Spark Connect server: functions for micro-batches run over there."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def describe(session: SparkSession, what: str) -> None:
    """Says in Spark's UI what the next jobs of this thread are for; Connect has no way to say it."""
    if not is_connect(session):
        session.sparkContext.setJobDescription(f"kaicep: {what}")


def configured(cluster: Cluster | None = None) -> tuple[str, str]:
    """The cluster that a new session would be on, and what says so, in the order in which Spark looks.

    >>> configured(Cluster(master="spark://head:7077"))
    ('spark://head:7077', 'master')
    """
    given = _wanted if cluster is None else cluster
    master = given.master or given.conf.get("spark.master")
    remote = given.remote or given.conf.get("spark.remote")
    if master and remote:
        raise Mistake(f"there is a master, {master}, and a remote, {remote}", hint="leave one out")
    outside = os.environ.get("SPARK_REMOTE")
    if master and outside:
        hint = f"unset SPARK_REMOTE, or leave the master {master} out"
        raise Mistake(f"SPARK_REMOTE is set to another cluster: {outside}", hint=hint)
    for url, said_by in (
        (remote, "remote"),
        (master, "master"),
        (outside, "SPARK_REMOTE"),
        ("spark-submit" if "PYSPARK_GATEWAY_PORT" in os.environ else None, "the process that started this"),
        *_submitted(os.environ.get("PYSPARK_SUBMIT_ARGS", "")),
        (os.environ.get("MASTER"), "MASTER"),
    ):
        if url:
            return url, said_by
    return "local[*]", "nothing else is configured"


def _submitted(arguments: str) -> Iterator[tuple[str | None, str]]:
    """The master in the arguments for `spark-submit`, and the one in the file of properties that it reads."""
    words = [
        part for word in shlex.split(arguments) for part in word.split("=", 1 if word[:2] == "--" else 0)
    ]
    pairs = list(pairwise(words))
    confs = dict(value.split("=", 1) for name, value in pairs if name in ("--conf", "-c") and "=" in value)
    named = dict(pairs)
    yield named.get("--master") or confs.get("spark.master"), "PYSPARK_SUBMIT_ARGS"
    from pyspark.find_spark_home import _find_spark_home

    home = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    file = Path(named.get("--properties-file") or Path(home, "spark-defaults.conf"))
    if file.is_file():
        lines = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in file.read_text().splitlines())
        yield (
            next((line[1] for line in lines if line[0] == "spark.master" and len(line) > 1), None),
            str(file),
        )


def _local() -> Mapping[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return LOCAL


def _reach(url: str, said_by: str) -> None:
    """Refuses a Connect server that is not there at once: its client would try for ten minutes."""
    host, _, port = url.removeprefix("sc://").partition("/")[0].partition(":")
    try:
        socket.create_connection((host, int(port or 15002)), 10).close()
    except (OSError, ValueError) as error:
        why = f"no Spark Connect server answers at {url} ({said_by}): {error}"
        raise Mistake(why, hint="start one with sbin/start-connect-server.sh, or name another") from None


def _line_of(error: Exception) -> str:
    """The line of an error of Spark's that says what is wrong."""
    lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1]
    return lines[0] if lines else type(error).__name__


@contextmanager
def told() -> Iterator[None]:
    """Raises what a worker raised of ours as it was, without Spark's long story around it."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _OURS.search(str(error))
        if found is None:
            raise
        raise Failure(found[1].strip()) from None


_STOPPED = re.compile(r"InterruptedException|cancelled|SparkContext was shut ?down")


def each_batch(work: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that may be stopped in the middle of its work.

    Spark then looks for an interruption in the text of what the function raises, with a pattern that recurses
    for every character of it: a stack trace of the usual length overflows the stack of its thread.
    """
    from pyspark.errors import PySparkException

    def taken(rows: DataFrame, number: int) -> None:
        try:
            work(rows, number)
        except Exception as error:
            # What PySpark knows no class for comes as py4j has it; Connect has no py4j.
            own = isinstance(error, PySparkException) or type(error).__module__ == "py4j.protocol"
            if not own or not _STOPPED.search(str(error)):
                raise
            raise InterruptedError(
                f"py4j.protocol.Py4JJavaError: An error occurred while calling micro-batch {number}: "
                "java.lang.InterruptedException"
            ) from None

    return taken
