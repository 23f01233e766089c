"""A driver with Spark's own Kafka connector: `python connector_driver.py JARS SERVERS TOPIC FOLDER`.

It prints as JSON whether the connector was there, the identities between two offsets, and whether the
archives are the one that ingest in process makes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.test_ingest import FORM, LATENESS, contents

from kaicep.archive.archive import Archive
from kaicep.connectors.kafka import KafkaSourceOptions
from kaicep.connectors.kafka_spark import connector_for, kafka_frame, kafka_stream
from kaicep.errors import Failure
from kaicep.hosts.spark.session import LOCAL, SESSION
from kaicep.ingest import files, on_spark
from kaicep.ingest.on_spark import follow


def main(jars: Path, servers: str, topic: str, folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**SESSION, **LOCAL}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.jars", ",".join(map(str, jars.glob("*.jar")))).getOrCreate()
    options = KafkaSourceOptions(servers, topic)
    found = kafka_frame(spark, options, {0: 10, 1: 5}, {0: 20, 1: 7}).orderBy("part", "seq").collect()
    done = on_spark.ingest(spark, Archive(folder / "S"), FORM, options, LATENESS)
    wanted = files.ingest(Archive(folder / "P"), FORM, options, LATENESS)
    stream, trigger = kafka_stream(spark, options, most=20), {"availableNow": True}
    job = follow(stream, Archive(folder / "F"), FORM, options, folder / "checkpoint", LATENESS, trigger)
    job.awaitTermination()
    try:
        kafka_frame(spark, options, {0: 0, 1: 0}, {0: 20, 1: 7})
        expired = ""
    except Failure as failure:
        expired = str(failure)
    told = {
        "connector": connector_for(spark, options),
        "identities": [[row["part"], row["seq"]] for row in found],
        "ingested": done == wanted and contents(folder / "S") == contents(folder / "P"),
        "followed": contents(folder / "F") == contents(folder / "P"),
        "expired": expired,
    }
    print(json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
