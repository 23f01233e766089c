"""The rules of `examples/building` find the faults that were planted, where and when, and nothing else."""

from __future__ import annotations

import csv
import runpy
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from kaicep.api import FiniteRun, open_run
from kaicep.archive.archive import Archive
from kaicep.cli.main import app
from kaicep.connectors.shape import Form
from kaicep.examples.building.generate import write
from kaicep.history.strategies import open_history, past_matches
from kaicep.ingest.files import ingest
from kaicep.knowledge.annotation import load_annotations

pytestmark = pytest.mark.slow

BUILDING = Path(__file__).parents[2] / "examples" / "building"
PLANTED = {
    "supply-air-off-setpoint": ("AHU-1", ["10:00", "10:15", "10:30", "10:45", "11:00"]),
    "heating-and-cooling": ("AHU-2", ["13:00", "13:15", "13:30"]),
    "leaking-reheat-valve": ("VAV-1-2", ["09:00", "09:15", "09:30", "09:45"]),
    "leaking-cooling-valve": ("AHU-2", ["08:00", "08:15", "08:30", "08:45"]),
    "stuck-damper": ("VAV-2-1", ["11:00", "11:15", "11:30", "11:45", "12:00"]),
    "flat-sensor": ("VAV-1-1 ZN-T", ["16:00"]),
    "out-of-range": ("VAV-2-2 ZN-T", ["15:00", "15:15"]),
    "hunting": ("VAV-1-2 RHT", ["14:30", "15:30"]),
    "economizer-not-used": ("AHU-1", ["15:00", "15:15", "15:30", "15:45"]),
    "schedule-override": ("AHU-2 SF", ["21:00"]),
    "missing-data": ("VAV-2-2 DA-T", ["11:45"]),
    "silent-points": ("VAV-2-2.DA-T", ["11:00"]),
    "room-too-warm": ("VAV-2-1 ZN-T", ["17:00"]),
    "low-airflow": ("VAV-1-1", ["16:00", "16:15", "16:30"]),
    "reheat-while-warm": ("VAV-1-1", ["11:00", "11:15", "11:30"]),
    "sensors-disagree": ("AHU-2 OA-T", ["05:00", "05:15", "05:30"]),
}
WHERE = ("ahu", "unit", "point")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and the export, as `generate.py` makes them."""
    made = tmp_path_factory.mktemp("building")
    write(made)
    return made


def rules(folder: Path, *names: str) -> FiniteRun:
    return open_run(
        [BUILDING / "queries" / f"{name}.chi" for name in names],
        [("trend", folder / "data" / "trend.csv")],
        [folder / "knowledge.ttl"],
        [BUILDING / "annotations" / "trend.json"],
    )


def where(select: dict[str, Any]) -> str:
    (value,) = (select[each] for each in WHERE if each in select)
    return str(value).removeprefix("urn:building:")


def test_every_rule_finds_its_fault_and_nothing_else(folder: Path) -> None:
    run = rules(folder, *PLANTED)
    assert (run.dead, run.diagnostics) == ([], ())
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in PLANTED}
    matches = run.matches()
    for match in matches:
        local = match.end.astimezone(ZoneInfo("America/Los_Angeles"))
        found[match.query].add((where(match.select), f"{local:%H:%M}"))
    assert found == {name: {(place, at) for at in times} for name, (place, times) in PLANTED.items()}
    assert len(matches) == sum(len(times) for _, times in PLANTED.values())
    lines = (BUILDING / "expected.jsonl").read_text("utf-8").splitlines()
    assert [match.to_json() for match in matches] == lines
    assert {path.stem for path in (BUILDING / "queries").glob("*.chi")} == set(PLANTED)


def part_of(folder: Path, rule: str, into: Path) -> Path:
    """The export around a fault, small enough for the reference: of one point, or one piece of equipment."""
    place, times = PLANTED[rule]
    equipment = place.split()[0]
    supply = f"AHU-{equipment[4]} SA-T"
    with (folder / "data" / "trend.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    single = " " in place and rule != "sensors-disagree"
    kept = [
        at
        for at, name in enumerate(header)
        if at == 0
        or name == place
        or (not single and (name.startswith((equipment, supply)) or "OA-T" in name))
    ]
    first = next(at for at, row in enumerate(rows) if clock(row[0]) == times[0])
    rows = rows if single else rows[first - 1 : first + 2]
    (into / "data").mkdir()
    with (into / "data" / "trend.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([row[at] for at in kept] for row in [header, *rows])
    shutil.copy(folder / "knowledge.ttl", into)
    return into


def clock(text: str) -> str:
    return f"{datetime.strptime(text, '%m/%d/%Y %I:%M %p'):%H:%M}"


@pytest.mark.parametrize("rule", PLANTED)
def test_the_reference_finds_the_same(folder: Path, rule: str, tmp_path: Path) -> None:
    run = rules(part_of(folder, rule, tmp_path), rule)
    found = [match.to_json() for match in run.matches()]
    assert found
    assert [match.to_json() for match in run.matches("reference")] == found


def test_back_in_time_they_find_the_same(folder: Path, tmp_path: Path) -> None:
    """The last known values, aggregates and loops too: out of the archive."""
    said = [BUILDING / "annotations" / "trend.json"]
    (annotation,) = load_annotations(said[0])
    archive = Archive(tmp_path / "archive")
    ingest(archive, Form.of("trend", annotation), folder / "data" / "trend.csv")
    queries = [BUILDING / "queries" / f"{name}.chi" for name in PLANTED]
    history = open_history(queries, archive, [folder / "knowledge.ttl"], said)
    found = [match.to_json() for match in past_matches(history, "hybrid")]
    assert found == (BUILDING / "expected.jsonl").read_text("utf-8").splitlines()


def test_init_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["init", "mine", "--template", "building"])
    assert made.exit_code == 0
    monkeypatch.chdir(tmp_path / "mine")
    commands = [
        shlex.split(line)[1:] for line in made.stdout.splitlines() if line.startswith("  kaicep match")
    ]
    done = CliRunner().invoke(app, [*commands[0][:-2], "--out", "jsonl"])
    assert (done.exit_code, done.stdout) == (0, (BUILDING / "expected.jsonl").read_text("utf-8"))
    runpy.run_path("test_rules.py")["test_the_rules_find_what_is_expected"]()


def test_every_filled_cell_is_a_reading(folder: Path) -> None:
    (data,) = rules(folder, "stuck-damper").data
    rows = (folder / "data" / "trend.csv").read_text("utf-8").splitlines()
    cells = [cell for row in rows[1:] for cell in row.replace('"1,', "1").replace('"', "").split(",")[1:]]
    assert len(data.events) == sum(cell != "No Data" for cell in cells)
    assert min(each.ts for each in data.events) == datetime(2026, 3, 2, 8, tzinfo=UTC).timestamp() * 1e6
