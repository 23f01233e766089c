"""Random tests are the same in every run of CI; elsewhere each run tries others. None has to be quick."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.objects", "tests.order", "tests.servers", "tests.tally"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell that starts us in the background has Ctrl-C ignored, also by what the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start hundreds of processes. Without bytecode each of them would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A JVM that lives for minutes spends more on optimising its code than the optimised code saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Over a handful of rows nearly all of the time goes into making the plan: the one session of the tests goes
without code that is generated for each stage, and without planning again after each stage. Tests that start
Spark in a process of its own (`clusters/`, the documentation, the wheel) keep both."""

settings.register_profile("kaicep", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kaicep")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of all tests; whoever asks for it is marked `spark`."""
    pytest.importorskip("pyspark", reason="the Spark hosts need PySpark: pip install 'kaicep[spark]'")
    if shutil.which("java") is None:
        pytest.skip("the Spark hosts need Java 17 or later")
    from kaicep.hosts.spark.session import Cluster, own_session, use_cluster

    # Workers are processes of their own, and find the package as this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    use_cluster(Cluster(conf={**PLAIN, **quick_files()}))
    session = own_session()
    use_cluster(Cluster())
    yield session
    session.stop()


def quick_files() -> dict[str, str]:
    """Settings by which Spark writes local files without a process for each.

    Hadoop starts `chmod` for every file that it makes, and a micro-batch of a stream makes dozens of them.
    Where Maven cannot bring the class that does without, streams take a little longer.
    """
    from tests.servers import POM, Missing, jars_of

    try:
        jars = jars_of(POM.with_name("local-files-pom.xml"), "a quicker file system")
    except Missing:
        return {}
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    return {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": manager,
    }
