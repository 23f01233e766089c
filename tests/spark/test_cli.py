"""`kaicep match` and `kaicep query` on Spark, as typed: all examples, the bytes of the reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.examples.deployed import script
from typer.testing import CliRunner

from kaicep.cli.main import app
from kaicep.history import strategies

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
CAMPUS, STOCKS = EXAMPLES / "campus", EXAMPLES / "stocks"
KNOWN = ["--knowledge", str(CAMPUS / "data" / "knowledge")]


class Typed(NamedTuple):
    """What is typed after `kaicep match`, and the host that judges the answer.

    Ways through a city and four averages out of hundreds are too much for the reference: there it is the host
    in process, which tests/examples compares with a search of their own and with the reference.
    """

    arguments: tuple[str, ...]
    judge: str = "reference"


def typed(command: str, arguments: Sequence[str], output: Path) -> bytes:
    """What the command writes."""
    done = CliRunner().invoke(app, [command, *arguments, "--output", str(output)])
    assert done.exit_code == 0, done.output
    return output.read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the examples, as little of it as has matches."""
    folder = tmp_path_factory.mktemp("small")
    for name, (low, high) in {"early": ("08:2", "08:5"), "hot": ("09:2", "09:3")}.items():
        for stream in ("airflowReport", "roomOccupancy"):
            lines = (CAMPUS / "data" / f"{stream}.jsonl").read_text().splitlines(keepends=True)
            kept = [line for line in lines if low <= line.split("2012-05-07T")[1][:4] <= high]
            (folder / f"{stream}-{name}.jsonl").write_text("".join(kept))
    script(EXAMPLES / "delivery", "generate.py", str(folder / "city"), "--agents", "3", "--locations", "3")
    script(
        EXAMPLES / "taxonomy", "generate.py", str(folder / "plants"), "--classes", "300", "--sightings", "60"
    )
    script(EXAMPLES / "tsunami", "generate.py", str(folder / "buoy"))
    readings = (folder / "buoy" / "reading.jsonl").read_text().splitlines(keepends=True)
    (folder / "buoy" / "reading.jsonl").write_text("".join(readings[29_400:30_300]))
    return folder


def campus(small: Path, names: Sequence[str], when: str, *streams: str) -> tuple[str, ...]:
    said = [("--annotation", str(CAMPUS / "data" / "annotations" / f"{name}.json")) for name in streams]
    given = [("--stream", f"{name}={small / f'{name}-{when}.jsonl'}") for name in streams]
    paths = [str(CAMPUS / "queries" / f"{name}.chi") for name in names]
    return (*paths, *(word for pair in (*said, *given) for word in pair), *KNOWN)


def stocks(names: Sequence[str], data: str) -> tuple[str, ...]:
    paths = [str(STOCKS / "queries" / f"{name}.epsparql") for name in names]
    stream = f"stocks={STOCKS / 'data' / f'{data}.jsonl'}"
    return (*paths, "--stream", stream, "--knowledge", str(STOCKS / "data" / "names.ttl"))


EARLY = ["disagree", "query1", "query1-semantic", "query3", "query4", "query5", "query7", "rising", "silent"]


def commands(small: Path) -> dict[str, Typed]:
    """All examples."""
    queries = {
        name: sorted(map(str, (EXAMPLES / name / "queries").iterdir()))
        for name in ("delivery", "taxonomy", "tsunami")
    }
    city, plants, buoy = small / "city", small / "plants", small / "buoy"
    return {
        "campus": Typed(campus(small, EARLY, "early", "airflowReport")),
        "campus, hot": Typed(campus(small, ["query2", "query6"], "hot", "airflowReport")),
        "campus, both": Typed(campus(small, ["empty-but-cooled"], "early", "airflowReport", "roomOccupancy")),
        "stocks 1": Typed(stocks(["query1"], "fall-and-rise")),
        "stocks 2, 4": Typed(stocks(["query2", "query4"], "ratings")),
        "stocks 3": Typed(stocks(["query3", "query3-larger"], "acquisitions")),
        "stocks 5, 6": Typed(stocks(["query5", "query6", "query6-bound"], "average")),
        "delivery": Typed(
            (
                *queries["delivery"],
                "--stream",
                f"city={city / 'city.jsonl'}",
                "--knowledge",
                str(city / "city.ttl"),
            ),
            "inprocess",
        ),
        "taxonomy": Typed(
            (
                *queries["taxonomy"],
                *("--stream", f"sightings={plants / 'sightings.jsonl'}"),
                *("--knowledge", str(plants / "plants.ttl")),
            )
        ),
        "tsunami": Typed(
            (
                *queries["tsunami"],
                *("--stream", f"reading={buoy / 'reading.jsonl'}"),
                *("--annotation", str(EXAMPLES / "tsunami" / "data" / "reading.json")),
                *("--knowledge", str(EXAMPLES / "tsunami" / "data" / "places.ttl")),
            ),
            "inprocess",
        ),
    }


@pytest.mark.parametrize("name", list(commands(Path())))
def test_every_example_on_both_hosts(name: str, spark: Any, small: Path, tmp_path: Path) -> None:
    command = commands(small)[name]
    wanted = typed("match", (*command.arguments, "--host", command.judge), tmp_path / "wanted")
    for host in ("spark-batch", "spark-stream"):
        assert typed("match", (*command.arguments, "--host", host), tmp_path / host) == wanted, host
    answered = {json.loads(line)["query"] for line in wanted.splitlines()}
    asked = {Path(each).stem for each in command.arguments if each.endswith((".chi", ".epsparql"))}
    assert answered == asked, "a query without a match says nothing"


def test_every_strategy_gives_the_same_lines(
    spark: Any, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = str(CAMPUS / "data" / "annotations" / "airflowReport.json")
    data = small / "airflowReport-early.jsonl"
    archive = str(tmp_path / "archive")
    taken = CliRunner().invoke(
        app, ["ingest", "--stream", f"airflowReport={data}", "--annotation", said, "--archive", archive]
    )
    assert taken.exit_code == 0, taken.output
    names = [each for each in EARLY if each not in ("rising", "silent")]
    queries = [str(CAMPUS / "queries" / f"{name}.chi") for name in names]
    now = ("--now", "2012-05-07T00:00:00Z")
    asked = (*queries, "--archive", archive, "--annotation", said, *KNOWN, *now)
    wanted = typed("query", (*asked, "--strategy", "replay"), tmp_path / "replay")
    for small_up_to, spark_from in ((10**6, 10**6), (0, 0)):  # all in this process, and all on Spark
        monkeypatch.setattr(strategies, "SMALL", small_up_to)
        monkeypatch.setattr(strategies, "SPARK_FROM", spark_from)
        for strategy in ("rewrite", "hybrid"):
            found = typed("query", (*asked, "--strategy", strategy), tmp_path / strategy)
            assert found == wanted, (strategy, small_up_to)
    assert wanted
