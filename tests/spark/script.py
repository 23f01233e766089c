"""A driver of its own, for the tests of clusters and of Spark Connect: matches a table and a stream.

`python script.py URL FOLDER`: URL is a master, or `connect` for a Connect server inside this process. The
first line that begins with `{` has what was found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import kaicep as kai
from kaicep.hosts.spark.session import SETTINGS

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


def main(url: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.remote("local[2]") if url == "connect" else SparkSession.builder.master(url)
    )
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.cores.max", "2").config("spark.executor.memory", "512m").getOrCreate()
    kai.spark.ship(spark, folder)
    events = spark.createDataFrame(rows(), "seq bigint, ts bigint, k string, x double")
    batch = [row["match"] for row in kai.spark.match(events, query()).select("match").collect()]
    late = (COUNT, 10_000, "k0", 0.0)  # lets everything before it be settled
    both = events.union(spark.createDataFrame([late], events.schema))
    both.coalesce(1).write.parquet(str(folder / "events"))
    source = spark.readStream.schema(events.schema).parquet(str(folder / "events"))
    found = kai.spark.match(source, query(), lateness="1s", buckets=3)
    sink = found.writeStream.option("checkpointLocation", str(folder / "checkpoint")).format("parquet")
    running = sink.option("path", str(folder / "matches")).trigger(availableNow=True).start()
    running.awaitTermination()
    lines = spark.read.schema(found.schema).parquet(str(folder / "matches")).select("match").collect()
    print(json.dumps({"batch": sorted(batch), "stream": sorted(row["match"] for row in lines)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
