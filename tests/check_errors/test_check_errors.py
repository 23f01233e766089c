"""Wrong queries, and what is said about each: a reader must be able to mend it from the message alone.

A case is a query file, or a folder of queries that are wrong together; its message is the `.txt` of
the same name. `KAICEP_WRITE_GOLDEN=1 pytest tests/check_errors` writes the messages anew: read them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaicep.cli.main import app

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "examples" / "campus" / "data"
STREAMS = ("airflowReport", "roomOccupancy")
CASES = sorted(each.name for each in HERE.iterdir() if each.name[0].isdigit() and each.suffix != ".txt")


@pytest.mark.parametrize("case", CASES)
def test_message(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    queries = sorted(Path(case).glob("*")) if Path(case).is_dir() else [Path(case)]
    golden = HERE / f"{Path(case).stem}.txt"
    options = [f"--stream={name}={DATA}/{name}.jsonl" for name in STREAMS]
    options += [f"--annotation={DATA}/annotations/{name}.json" for name in STREAMS]
    options += [f"--knowledge={path}" for path in sorted((DATA / "knowledge").glob("*.ttl"))]
    result = CliRunner().invoke(app, ["check", *map(str, queries), *options])
    said = result.stderr
    # What is odd and stops nothing is told as a warning.
    warned = said.startswith("warning: ")
    assert (result.exit_code, result.stdout == "") == ((0, False) if warned else (2, True))
    if os.environ.get("KAICEP_WRITE_GOLDEN"):
        golden.write_text(said)
    assert said == golden.read_text()


def test_every_message_has_its_query() -> None:
    assert {each.stem for each in HERE.glob("*.txt")} == {Path(case).stem for case in CASES}


def test_there_are_enough() -> None:
    assert len(CASES) >= 50
