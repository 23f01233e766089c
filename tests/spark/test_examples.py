"""The examples on both Spark hosts: the lines of the other hosts, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.many import answers

from kaicep.api import FiniteRun, open_run
from kaicep.examples.building.generate import write as write_building

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
CAMPUS, STOCKS = EXAMPLES / "campus", EXAMPLES / "stocks"
STOCK_DATA = {
    ("query1",): "fall-and-rise",
    ("query2",): "downrated",
    ("query3", "query3-larger"): "acquisitions",
    ("query2", "query4"): "ratings",
    ("query5", "query6"): "average",
}


def campus(query: Path) -> FiniteRun:
    both = "roomOccupancy" in query.read_text("utf-8")
    streams = ("airflowReport", "roomOccupancy") if both else ("airflowReport",)
    return open_run(
        [query],
        [(name, CAMPUS / "data" / f"{name}.jsonl") for name in streams],
        [CAMPUS / "data" / "knowledge"],
        [CAMPUS / "data" / "annotations" / f"{name}.json" for name in streams],
    )


def stocks(names: tuple[str, ...], data: str) -> FiniteRun:
    queries = [STOCKS / "queries" / f"{name}.epsparql" for name in names]
    return open_run(queries, [("stocks", STOCKS / "data" / f"{data}.jsonl")], [STOCKS / "data" / "names.ttl"])


def building(folder: Path) -> FiniteRun:
    write_building(folder)
    return open_run(
        sorted((EXAMPLES / "building" / "queries").glob("*.chi")),
        [("trend", folder / "data" / "trend.csv")],
        [folder / "knowledge.ttl"],
        [EXAMPLES / "building" / "annotations" / "trend.json"],
    )


@pytest.mark.parametrize("host", ["spark-batch", "spark-stream"])
def test_the_lines_of_every_host(spark: Any, host: str, tmp_path: Path) -> None:
    runs = {f"campus {each.stem}": campus(each) for each in sorted((CAMPUS / "queries").glob("*.chi"))}
    runs |= {" ".join(names): stocks(names, data) for names, data in STOCK_DATA.items()}
    runs |= {"building": building(tmp_path)}
    found = answers(list(runs.values()), host)
    shown = {name: [each.to_json() for each in some] for name, some in zip(runs, found, strict=True)}
    assert shown == {name: [each.to_json() for each in run.matches()] for name, run in runs.items()}
    assert all(shown.values())
