"""Wrong queries and their messages: a reader must be able to correct the query from the message alone.

A case is a query file, or a folder of queries that are wrong together; its message is the `.txt` of
the same name. `KAICEP_WRITE_GOLDEN=1 pytest tests/check_errors` rewrites the messages: read them.
"""

from __future__ import annotations

import os
import re
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
    # If the query runs all the same, the message is a warning.
    warned = said.startswith("warning: ")
    assert (result.exit_code, result.stdout == "") == ((0, False) if warned else (2, True))
    if os.environ.get("KAICEP_WRITE_GOLDEN"):
        golden.write_text(said)
    assert said == golden.read_text()


def test_every_message_has_its_query() -> None:
    assert {each.stem for each in HERE.glob("*.txt")} == {Path(case).stem for case in CASES}


@pytest.mark.parametrize("golden", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_every_message_has_a_reason_a_place_and_a_remedy(golden: Path) -> None:
    said = golden.read_text().split("\n\n")[0]
    reason, place, *rest = said.splitlines()
    assert reason.startswith(("error: ", "warning: "))
    assert re.fullmatch(r" +--> \S+:\d+:\d+", place)
    assert any("^" in line for line in rest)
    assert any(line.startswith("  = help: ") for line in rest)


def test_there_are_enough() -> None:
    assert len(CASES) >= 50
