"""A deployment on Spark: many queries in one job over the archive, and how soon all of them are live.

The events are in the archive when the queries come. What is measured is from there until every query has
gone through them and is live: with a million events that is throughput, with a handful it is the start.
"""

from __future__ import annotations

import time
from pathlib import Path

from kaicep.deployment.config import load_config
from kaicep.deployment.on_spark import SparkDeployment
from kaicep_bench.deployment import made_source, mixed, written_down
from kaicep_bench.spark_campus import tell
from kaicep_bench.table import Cell, Table

__all__ = ["measure_deployment"]

_ENGINE = '[engine]\nkind = "spark"\n'


def measure_deployment(folder: Path, quick: bool = False) -> Table:
    """Ten queries over many events, and twenty over few."""
    many, few = (20_000, 1_000) if quick else (4_000_000, 10_000)
    cases = ((1, many), (10, many), (20, few))
    return Table(
        "a deployment on Spark: from its start until all queries are live",
        [_case(folder / f"{queries}-{count}", queries, count) for queries, count in cases],
    )


def _case(folder: Path, queries: int, count: int) -> dict[str, Cell]:
    tell(f"a deployment, {queries} queries over {count:,} events in the archive")
    path = written_down(folder, 0, made_source(folder, "parquet", count))
    path.write_text(path.read_text() + _ENGINE)
    began = time.perf_counter()
    SparkDeployment(load_config(path)).run()
    ingested = time.perf_counter() - began
    for name, text in mixed(queries).items():
        (folder / "queries" / f"{name}.chi").write_text(text)
    deployment = SparkDeployment(load_config(path))
    began = time.perf_counter()
    deployment.open()
    seconds = time.perf_counter() - began
    status = deployment.status()["queries"]
    deployment.close()
    states = {each["state"] for each in status.values()}
    if len(status) != queries or states != {"live"}:
        raise AssertionError(f"of {queries} queries there are {len(status)}: {', '.join(sorted(states))}")
    return {
        "queries": queries,
        "events": count,
        "ingest s": round(ingested, 2),
        "live after s": round(seconds, 2),
        "events/s": round(count / seconds),
        "matches": sum(each["matches"] for each in status.values()),
    }
