"""A Spark session for whoever has none, and errors of Spark as ours."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kaicep.errors import Diagnostic, Failure, Mistake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SETTINGS", "each_batch", "own_session", "told"]

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""How a session on this machine is set up; those of the state store matter to every stream."""

_OURS = re.compile(
    r"kaicep\.errors\.(?:Failure|Mistake|Unsupported): (.*?)(?:\n\s*\n|\n SQLSTATE|\Z)", re.DOTALL
)


def own_session() -> SparkSession:
    """The session of this process, or a new one on this machine."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        raise Mistake(
            Diagnostic("the Spark hosts need PySpark", hint="pip install 'kaicep[spark]'")
        ) from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").appName("kaicep")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise Mistake(
            Diagnostic(
                f"Spark does not start: {str(error).splitlines()[0]}",
                hint="it needs Java 17 or later; `kaicep doctor` says what is missing",
            )
        ) from None


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
