"""A driver of its own, for the tests of clusters and of Spark Connect: matches a table and a stream.

`python script.py URL FOLDER`: URL is a master, or `connect` for a Connect server inside this process. The
first line that begins with `{` has what was found.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kaicep as kai
from kaicep.hosts.spark.session import LOCAL, SESSION

RISE = """SELECT ?a.k, ?b.x - ?a.x AS rise FROM (?a, s), (?b, s)
    WHERE JOIN (?b.k = ?a.k) JOIN (?b.x > ?a.x) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"""
MEAN = "SELECT AVG(?e.x) AS mean FROM (?e, s) WHERE WINDOW (?e, sliding, 5s)"
COUNT = 200


def rows() -> list[tuple[int, int, str, float]]:
    return [(seq, seq, f"k{seq % 7}", float(seq * 37 % 11)) for seq in range(COUNT)]


def wanted() -> list[str]:
    """The same in this process."""
    events = [{"ts": ts, "k": k, "x": x} for _, ts, k, x in rows()]
    return sorted(match.to_json() for match in kai.run(query(), events))


def query() -> kai.Query:
    return kai.compile({"rise": RISE, "mean": MEAN}, streams={"s": {"k": "string", "x": "float64"}})


def compilations(spark: Any) -> tuple[int, int]:
    """How many functions the workers have loaded from their cache, and how many they have compiled."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:  # inside, so that it travels with all it needs
        import sys

        import pyarrow as pa

        for _ in batches:
            pass
        found = [0, 0]
        for name, module in list(sys.modules.items()):
            for each in vars(module).values() if name.startswith("kaicep.kernel.") else ():
                if hasattr(each, "py_func") and each.py_func.__module__ == name:
                    found[0] += sum(each.stats.cache_hits.values())
                    found[1] += sum(each.stats.cache_misses.values())
        yield pa.RecordBatch.from_pydict({"loaded": [found[0]], "compiled": [found[1]]})

    counted = spark.range(0, 100, 1, 8).mapInArrow(count, "loaded bigint, compiled bigint").collect()
    return sum(row["loaded"] for row in counted), sum(row["compiled"] for row in counted)


def main(url: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.remote("local[2]") if url == "connect" else SparkSession.builder.master(url)
    )
    for name, value in {**SESSION, **LOCAL}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.cores.max", "2").config("spark.executor.memory", "512m")
    # The workers have a cache of their own: a cluster sets it for them, a Connect server hands on its own.
    cache = str(folder / "executors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAICEP_CACHE_DIR", cache)
        spark = builder.config("spark.executorEnv.KAICEP_CACHE_DIR", cache).getOrCreate()
    kai.spark.ship(spark, folder)
    events = spark.createDataFrame(rows(), "seq bigint, ts bigint, k string, x double")
    batch = [row["match"] for row in kai.spark.match(events, query()).select("match").collect()]
    late = (COUNT, 10_000, "k0", 0.0)  # lets everything before it be settled
    both = events.union(spark.createDataFrame([late], events.schema))
    both.coalesce(1).write.parquet(str(folder / "events"))
    source = spark.readStream.schema(events.schema).parquet(str(folder / "events"))
    found = kai.spark.match(source, query(), lateness="1s", buckets=3)
    watch = kai.spark.watch(spark)
    sink = found.writeStream.option("checkpointLocation", str(folder / "checkpoint")).format("parquet")
    running = sink.option("path", str(folder / "matches")).trigger(availableNow=True).start()
    running.awaitTermination()
    while [each["state"] for each in watch.status().values()] != ["stopped"]:
        time.sleep(0.05)
    (status,) = watch.status().values()
    spark.streams.removeListener(watch)
    lines = spark.read.schema(found.schema).parquet(str(folder / "matches")).select("match").collect()
    loaded, compiled = compilations(spark)
    seen = {name: each["matches"] for name, each in status["queries"].items()}
    answers = {"seen": seen, "batch": sorted(batch), "stream": sorted(row["match"] for row in lines)}
    print(json.dumps({**answers, "loaded": loaded, "compiled": compiled}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
