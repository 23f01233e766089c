"""A driver that is killed: `python killed_driver.py ingest|driver|workers FOLDER`; `ready`: it begins.

`ingest` takes FOLDER/meter.jsonl into FOLDER/A in many small rounds; `driver` and `workers`, where the
engines are, read FOLDER/events, a file for each micro-batch, and write each micro-batch's matches to
FOLDER/matches under its number.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import kaicep as kai
from kaicep.connectors.shape import Form
from kaicep.hosts.spark.session import own_session

PAIR = """SELECT ?a.x AS x, ?b.x AS y FROM (?a, s), (?b, s)
    WHERE JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 20s)"""
SCHEMA = "seq bigint, ts bigint, x bigint, k string"
LATENESS = 3_000_000


def query() -> kai.Query:
    return kai.compile(PAIR, streams={"s": {"x": "int64", "k": "string"}})


def ingest(spark: Any, folder: Path) -> None:
    from kaicep.archive.archive import Archive
    from kaicep.connectors import parts
    from kaicep.ingest import on_spark

    parts.BYTES = parts._LONGEST = 2_000
    on_spark.ROUND, on_spark.TASK = 100, 50
    on_spark.ingest(spark, Archive(folder / "A"), Form("meter"), folder / "meter.jsonl", LATENESS)


def deliver(engine: str, spark: Any, folder: Path) -> None:
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "events"))

    def sink(number: int, matches: list[kai.Match]) -> None:
        text = "".join(f"{match.to_json()}\n" for match in matches)
        file = folder / "matches" / f"{number:06}.jsonl"
        if file.exists():
            assert file.read_text() == text, "a micro-batch that comes again gives the same matches"
            return
        beside = file.with_suffix(".tmp")
        beside.write_text(text)
        beside.replace(file)

    checkpoint = folder / "checkpoint"
    running = kai.spark.deliver(
        events, query(), sink, lateness="2s", checkpoint=checkpoint, engine=engine, availableNow=True
    )
    running.awaitTermination()


if __name__ == "__main__":
    session = own_session()
    session.range(1).count()
    print("ready", flush=True)
    work = ingest if sys.argv[1] == "ingest" else partial(deliver, sys.argv[1])
    work(session, Path(sys.argv[2]))
    print("done", flush=True)
