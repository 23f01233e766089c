"""The PySpark versions that we say we run on, each out of a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clusters import smoke

from kaicep.processes import bound

pytestmark = [pytest.mark.spark, pytest.mark.night]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_a_version_of_pyspark_gives_the_same_matches(version: str, tmp_path: Path) -> None:
    home = tmp_path / "pyspark"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(home),
        f"pyspark=={version}",
    ]
    subprocess.run(bound(install), check=True)
    paths = os.pathsep.join((str(home), str(ROOT / "src"), str(ROOT)))
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        bound([sys.executable, str(ROOT / "tests" / "clusters" / "smoke.py"), str(tmp_path)]),
        env={**plain, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("version") == version
    assert found.pop("ingested") == {"0": len(smoke.records())}
    assert found == dict.fromkeys(("table", "stream", "driver", "workers"), smoke.wanted())
