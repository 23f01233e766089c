"""A deployment on Spark gives what it gives in this process, in the bytes of its table of matches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.deployed import QUERIES, laid_out, rows

from kaicep.deployment import on_spark
from kaicep.deployment.config import load_config
from kaicep.deployment.on_spark import SparkDeployment
from kaicep.deployment.running import Deployment

pytestmark = pytest.mark.spark


def test_the_matches_are_those_of_this_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deployment(load_config(laid_out(tmp_path / "here"))).run()
    wanted = rows(tmp_path / "here" / "sunk")
    assert {each["query"] for each in wanted} == {Path(name).stem for name in QUERIES}
    for small in (0, 10**9):  # all on workers; all in the driver
        folder = tmp_path / f"spark-{small}"
        monkeypatch.setattr(on_spark, "SMALL", small)
        SparkDeployment(load_config(laid_out(folder, engine='[engine]\nkind = "spark"\nbuckets = 2'))).run()
        found = rows(folder / "state" / "matches")
        assert Counter(each["query"] for each in found) == Counter(each["query"] for each in wanted)
        assert found == wanted, small
        assert rows(folder / "sunk") == wanted
        said = spark.sparkContext.getLocalProperty("spark.job.description")
        *names, step = said.removeprefix("kaicep: ").split(", ")
        assert set(names) <= {Path(name).stem for name in QUERIES}
        assert names
        assert step.startswith("step ")


def test_triples_and_attributes_of_any_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of triples, and one whose records have a `seq` and a `part` of their own."""
    monkeypatch.setattr(on_spark, "SMALL", 0)
    stocks = Path(__file__).parents[2] / "examples" / "stocks"
    found = []
    for engine in ("inprocess", "spark"):
        folder = tmp_path / engine
        (folder / "queries").mkdir(parents=True)
        for name in ("query1", "query5"):
            (folder / "queries" / f"{name}.epsparql").write_bytes(
                (stocks / "queries" / f"{name}.epsparql").read_bytes()
            )
        (folder / "queries" / "own.chi").write_text(
            "SELECT ?a.seq, ?b.part FROM (?a, meter), (?b, meter) WHERE JOIN (?a.seq = ?b.seq) "
            "SEQ (?a, ?b) WINDOW (?a, ?b, 3s)"
        )
        (folder / "meter.jsonl").write_text(
            "".join(json.dumps({"ts": at, "seq": at % 2, "part": f"p{at}"}) + "\n" for at in range(9))
        )
        (folder / "kaicep.toml").write_text(
            f"""state = "state"
engine = {{kind = "{engine}"}}
[streams.stocks]
source = {{kind = "files", path = "{stocks}/data/fall-and-rise.jsonl"}}
[streams.meter]
source = {{kind = "files", path = "meter.jsonl"}}
[sinks.table]
kind = "delta"
path = "sunk"
"""
        )
        kind = SparkDeployment if engine == "spark" else Deployment
        kind(load_config(folder / "kaicep.toml")).run()
        found.append(rows(folder / "sunk"))
    assert {"query1", "own"} <= {each["query"] for each in found[0]}
    assert found[1] == found[0]
