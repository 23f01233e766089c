"""What a function for micro-batches raises when its stream is stopped, or when something goes wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.errors import PySparkException

from kaicep.errors import Failure
from kaicep.hosts.spark.session import each_batch

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
