"""Many small runs on Spark at once: a job takes as long for twenty of them as for one.

Over a handful of rows nearly all of the time goes into making the plan: these runs go without code that
is generated for each stage, and without planning again after each stage. Other tests keep both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from kaicep.api import FiniteRun
from kaicep.hosts.spark.session import own_session
from kaicep.plan.events import Match

DRIVER = "spark-stream, engine in the driver"
AT_ONCE = {"spark-batch": 24, "spark-stream": 16, DRIVER: 1}


PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def answers(runs: Sequence[FiniteRun], host: str) -> list[list[Match]]:
    """The matches of each run."""
    left = iter(runs)
    found: list[list[Match]] = []
    with _plain():
        while some := list(islice(left, AT_ONCE[host])):
            found += _hosts()[host](some)
    return found


@contextmanager
def _plain() -> Iterator[None]:
    session = own_session()
    before = {name: session.conf.get(name, None) for name in PLAIN}
    for name, value in PLAIN.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def _hosts() -> Mapping[str, Callable[[Sequence[FiniteRun]], list[list[Match]]]]:
    from kaicep.hosts.spark.batch import run_batches
    from kaicep.hosts.spark.deliver import run_stream, run_streams

    def one_by_one(runs: Sequence[FiniteRun]) -> list[list[Match]]:
        return [run_stream(each) for each in runs]

    return {"spark-batch": run_batches, "spark-stream": run_streams, DRIVER: one_by_one}
