"""Many small runs on Spark at once: a job takes as long for twenty of them as for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from kaicep.api import FiniteRun
from kaicep.plan.events import Match

DRIVER = "spark-stream, engine in the driver"
AT_ONCE = {"spark-batch": 24, "spark-stream": 16, DRIVER: 1}


def answers(runs: Sequence[FiniteRun], host: str) -> list[list[Match]]:
    """The matches of each run."""
    left = iter(runs)
    found: list[list[Match]] = []
    while some := list(islice(left, AT_ONCE[host])):
        found += _hosts()[host](some)
    return found


def _hosts() -> Mapping[str, Callable[[Sequence[FiniteRun]], list[list[Match]]]]:
    from kaicep.hosts.spark.batch import run_batches
    from kaicep.hosts.spark.deliver import run_stream, run_streams

    def one_by_one(runs: Sequence[FiniteRun]) -> list[list[Match]]:
        return [run_stream(each) for each in runs]

    return {"spark-batch": run_batches, "spark-stream": run_streams, DRIVER: one_by_one}
