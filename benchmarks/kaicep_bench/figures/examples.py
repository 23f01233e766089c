"""What two of the examples give: the delivery of goods, and the buoy that watches for tsunamis."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from kaicep.api import open_run
from kaicep.errors import Failure
from kaicep.plan.events import Match
from kaicep.plan.time import parse_time
from kaicep.processes import bound
from kaicep_bench.table import Cell, Report, Table

__all__ = ["EXAMPLES", "delivery", "tsunami"]

FOLDER = Path(__file__).parents[3] / "examples"
_PATIENCE = 1_200
_BIN, _THRESHOLD = 5, 30
_DAY = "2010-03-23T00:00"
_HOUR = 3_600_000_000


def delivery(quick: bool = False) -> Report:
    """Time and memory for 1 and 10 agents; the script brings the paper's numbers along."""
    printed = _script("delivery/measure.py", *["--quick"] * quick)
    columns = ("agents", "locations", "ms", "paper ms", "kB", "paper kB")
    rows: list[dict[str, Cell]] = [
        dict(zip(columns, map(int, line.split()), strict=True)) for line in printed.splitlines()[1:]
    ]
    return Report("delivery", [Table("agents in a city (figure 3)", rows)])


def tsunami(quick: bool = False) -> Report:
    """How far the readings of the buoy were from what was expected.

    Little input is the days up to the tsunami's, in sight of which the queries are as good as with all.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _script("tsunami/generate.py", str(folder), *["--readings", "32000"] * quick)
        run = open_run(
            queries=sorted((FOLDER / "tsunami" / "queries").glob("*.chi")),
            streams=[("reading", folder / "reading.jsonl")],
            annotations=[FOLDER / "tsunami" / "data" / "reading.json"],
            knowledge=[FOLDER / "tsunami" / "data" / "places.ttl"],
        )
        matches = [each for each in run.matches() if each.query == "difference"]
        readings = sum(1 for _ in (folder / "reading.jsonl").open(encoding="utf-8"))
    return _differences(matches, readings)


def _differences(matches: list[Match], readings: int) -> Report:
    day = parse_time(_DAY) or 0
    found = [((each.end_us - day) / _HOUR, _millimetres(each)) for each in matches]
    counted = Counter(int(mm // _BIN) * _BIN for _, mm in found)
    beyond = [hours for hours, mm in found if abs(mm) > _THRESHOLD]
    bins = range(min(counted), max(counted) + _BIN, _BIN)
    facts: dict[str, Cell] = {
        "readings": readings,
        "beyond": len(beyond),
        "hours": round(max(beyond) - min(beyond), 2) if beyond else None,
    }
    return Report(
        "tsunami",
        [
            Table("histogram (figure 4)", [{"from mm": low, "readings": counted[low]} for low in bins]),
            Table("the day", [{"hours": round(h, 4), "mm": round(mm, 1)} for h, mm in found if 5 <= h <= 9]),
            Table("in all", [facts]),
        ],
    )


def _millimetres(match: Match) -> float:
    return float(match.to_dict()["select"]["difference"]) * 1_000


def _script(path: str, *arguments: str) -> str:
    """What a script of the examples prints."""
    command = [sys.executable, str(FOLDER / path), *arguments]
    done = subprocess.run(bound(command), capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode:
        raise Failure(f"examples/{path} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


EXAMPLES: Mapping[str, Callable[[bool], Report]] = {"delivery": delivery, "tsunami": tsunami}
"""What is measured by an example, by its name."""
