"""The campus as a deployment, small: its files, and what its table of matches holds after a run.

`python -m tests.spark.deployed FILE` runs it on Spark, all of it on workers, until its sources end.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from kaicep.storage.places import options_of

CAMPUS = Path(__file__).parents[2] / "examples" / "campus"

QUERIES = {
    # By key, with an aggregate over a window, a pattern with absence, rows, no key but a WINDOW.
    "mean.chi": "SELECT ?e.sensorID, AVG(?e.hvc:airflow) AS mean FROM (?e, airflowReport) "
    "WHERE WINDOW (?e, batch, 10min) GROUP BY ?e.sensorID PARTITION BY ?e.sensorID",
    "silent.chi": "SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) WHERE "
    "FILTER (?a.hvc:airflow > 540) JOIN (?b.sensorID = ?a.sensorID) SEQ (?a, !?b) WINDOW (?a, ?b, 30s)",
    "high.chi": "SELECT ?e.sensorID, ?e.hvc:airflow FROM (?e, airflowReport) FILTER (?e.hvc:airflow > 560)",
    "twice.chi": "SELECT ?a.sensorID, ?b.sensorID AS other FROM (?a, high), (?b, high) "
    "WHERE SEQ (?a, ?b) WINDOW (?a, ?b, 10min)",
    "near.chi": "SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) WHERE "
    "FILTER (?a.hvc:airflow > 540) FILTER (?b.hvc:airflow < 300) SEQ (?a, ?b) WINDOW (?a, ?b, 1min)",
    "room.chi": "SELECT ?e.sensorID, ?room FROM (?e, airflowReport) WHERE FILTER (?e.hvc:airflow > 530) "
    "PATH {?e evt:hasSource ?s . ?s bd:hasLocation ?room . ?room rdf:type bd:MeetingRoom}",
    "graph.epsparql": "SELECT ?s WHERE { ?e evt:hasSource ?s . ?e hvc:airflow ?x } FILTER (?x > 560)",
}


def laid_out(
    folder: Path, lines: int = 1_200, follow: bool = False, engine: str = "", lateness: str = "1h"
) -> Path:
    """The files of the deployment; the path of what describes it."""
    (folder / "queries").mkdir(parents=True)
    shutil.copytree(CAMPUS / "data" / "knowledge", folder / "knowledge")
    shutil.copytree(CAMPUS / "data" / "annotations", folder / "annotations")
    for name, text in QUERIES.items():
        (folder / "queries" / name).write_text(text)
    (folder / "air").mkdir()
    grown(folder, 0, lines)
    described(folder, follow, engine, lateness)
    return folder / "kaicep.toml"


def grown(folder: Path, first: int, after: int) -> None:
    """More of the campus comes to the two files of its stream."""
    read = (CAMPUS / "data" / "airflowReport.jsonl").read_text().splitlines(keepends=True)
    for part in (0, 1):
        with (folder / "air" / f"{part}.jsonl").open("a") as file:
            file.writelines(read[first + part : after : 2])


def described(folder: Path, follow: bool, engine: str, lateness: str) -> None:
    """Writes the file of the deployment."""
    toml = f"""
name = "small"
state = "state"
[archive]
folder = "archive"
{engine}
[knowledge]
files = ["knowledge/*.ttl"]
[queries]
folder = "queries"
[streams.airflowReport]
annotation = "annotations/airflowReport.json"
lateness = "{lateness}"
idle = "1h"
source = {{kind = "files", path = "air", follow = {str(follow).lower()}}}
[sinks.table]
kind = "delta"
path = "sunk"
"""
    (folder / "kaicep.toml").write_text(toml)


def rows(table: Path) -> list[dict[str, Any]]:
    """The matches of a table, in the order of their end and id; not of which version of the knowledge."""
    found = DeltaTable(str(table), storage_options=options_of(table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda each: (each["end"], each["query"], each["id"]))


def main(toml: Path) -> None:
    from kaicep.deployment import spark_step
    from kaicep.deployment.config import load_config
    from kaicep.deployment.on_spark import SparkDeployment

    logging.basicConfig(level=logging.INFO)
    spark_step.SMALL = 0
    SparkDeployment(load_config(toml)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
