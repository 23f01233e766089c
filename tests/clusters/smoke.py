"""A few things on whatever PySpark is on the path: a table, a stream, `deliver` on both engines, ingest.

`python smoke.py FOLDER` prints as JSON what was found. Nothing of pytest is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import kaicep as kai

RISE = """SELECT ?a.k, ?b.x - ?a.x AS rise FROM (?a, s), (?b, s)
    WHERE JOIN (?b.k = ?a.k) JOIN (?b.x > ?a.x) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"""
COLUMNS = "seq bigint, ts bigint, k string, x double"


def records() -> list[dict[str, Any]]:
    some = [{"seq": seq, "ts": seq, "k": f"k{seq % 3}", "x": float(seq * 37 % 11)} for seq in range(60)]
    return [*some, {"seq": 60, "ts": 10_000, "k": "k0", "x": 0.0}]  # the last lets all others be settled


def query() -> kai.Query:
    return kai.compile(RISE, streams={"s": {"k": "string", "x": "float64"}})


def wanted() -> list[str]:
    """The same in this process."""
    events = [{name: value for name, value in each.items() if name != "seq"} for each in records()]
    return sorted(match.to_json() for match in kai.run(query(), events))


def main(folder: Path) -> None:
    from pyspark import __version__

    from kaicep.archive.archive import Archive
    from kaicep.connectors.shape import Form
    from kaicep.hosts.spark.session import own_session
    from kaicep.ingest.on_spark import ingest

    spark = own_session()
    rows = spark.createDataFrame([tuple(each.values()) for each in records()], COLUMNS)
    found: dict[str, Any] = {"version": __version__}
    found["table"] = sorted(row["match"] for row in kai.spark.match(rows, query()).collect())
    rows.coalesce(1).write.parquet(str(folder / "events"))
    source = spark.readStream.schema(rows.schema).parquet(str(folder / "events"))
    stream = kai.spark.match(source, query(), lateness="1s", buckets=2)
    out = stream.writeStream.format("parquet").option("path", str(folder / "out"))
    out = out.option("checkpointLocation", str(folder / "ck")).trigger(availableNow=True)
    out.start().awaitTermination()
    written = spark.read.schema(stream.schema).parquet(str(folder / "out"))
    found["stream"] = sorted(row["match"] for row in written.collect())
    for engine in ("driver", "workers"):
        lines: list[str] = []
        taken = kai.spark.deliver(
            source,
            query(),
            lambda number, some, lines=lines: lines.extend(each.to_json() for each in some),  # type: ignore[misc]
            lateness="1s",
            checkpoint=folder / engine,
            engine=engine,
            availableNow=True,
        )
        taken.awaitTermination()
        found[engine] = sorted(lines)
    text = "".join(json.dumps(each) + "\n" for each in records())
    (folder / "landing").mkdir()
    (folder / "landing" / "a.jsonl").write_text(text)
    ingest(spark, Archive(folder / "archive"), Form("s"), folder / "landing")
    found["ingested"] = Archive(folder / "archive").snapshot().cut.positions["s"]
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
