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

pytest_plugins = ["tests.order", "tests.servers", "tests.tally"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell that starts us in the background has Ctrl-C ignored, also by what the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A JVM that lives for minutes spends more on optimising its code than the optimised code saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

settings.register_profile("kaicep", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kaicep")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of all tests; whoever asks for it is marked `spark`."""
    pytest.importorskip("pyspark", reason="the Spark hosts need PySpark: pip install 'kaicep[spark]'")
    if shutil.which("java") is None:
        pytest.skip("the Spark hosts need Java 17 or later")
    from kaicep.hosts.spark.session import own_session

    # Workers are processes of their own, and find the package as this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    session = own_session()
    yield session
    session.stop()
