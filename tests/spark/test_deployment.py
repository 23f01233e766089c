"""A deployment on Spark gives what it gives in this process, in the bytes of its table of matches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.deployed import QUERIES, laid_out, rows

from kaicep.endtoend import spark_matching
from kaicep.endtoend.config import load_config
from kaicep.endtoend.deployment import Deployment
from kaicep.endtoend.spark_deployment import SparkDeployment

pytestmark = pytest.mark.spark


def test_the_matches_are_those_of_this_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deployment(load_config(laid_out(tmp_path / "here"))).run()
    wanted = rows(tmp_path / "here" / "sunk")
    assert {each["query"] for each in wanted} == {Path(name).stem for name in QUERIES}
    for small in (0, 10**9):  # all on workers; all in the driver
        folder = tmp_path / f"spark-{small}"
        monkeypatch.setattr(spark_matching, "SMALL", small)
        SparkDeployment(load_config(laid_out(folder, engine='[engine]\nkind = "spark"\nbuckets = 2'))).run()
        found = rows(folder / "state" / "matches")
        assert Counter(each["query"] for each in found) == Counter(each["query"] for each in wanted)
        assert found == wanted, small
        assert rows(folder / "sunk") == wanted
