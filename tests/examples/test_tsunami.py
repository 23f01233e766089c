"""The buoy: averages, predictions and differences computed once more, in plain Python."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from math import fsum, prod
from pathlib import Path
from typing import Any

import pytest
from tests.examples.deployed import as_its_readme_says, copied, deployed, read, script

from kaicep.api import open_run
from kaicep.plan.time import parse_time

TSUNAMI = Path(__file__).parents[2] / "examples" / "tsunami"
WEIGHTS = (1.16818457031250, -0.28197558593750, 0.14689746093750, -0.03310644531250)
SECOND = 1_000_000
HOUR = 3_600 * SECOND
WAVE = 30_240  # the place of the reading at which the tsunami begins


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All readings, as the script writes them."""
    folder = tmp_path_factory.mktemp("buoy")
    script(TSUNAMI, "generate.py", str(folder))
    return (folder / "reading.jsonl").read_text().splitlines(keepends=True)


def differences(lines: list[str]) -> dict[int, float]:
    """How far each reading is from its prediction, by its time, where there is one."""
    records = [json.loads(line) for line in lines]
    readings = [(parse_time(each["ts"]), each["height"]) for each in records]
    averages = {
        readings[last][0]: fsum(height for _, height in readings[last - 40 : last + 1]) / 41
        for last in range(40, len(readings))
    }
    found = {}
    for (before, _), (now, height) in pairwise(readings):
        hours = [averages.get(before - number * HOUR) for number in range(4)]
        if None not in hours and now - before <= 15 * SECOND:
            found[now] = height - sum(w * each for w, each in zip(WEIGHTS, hours, strict=True))
    return found


def answers(folder: Path, lines: list[str]) -> dict[str, list[Any]]:
    """The matches of each query."""
    stream = folder / "reading.jsonl"
    stream.write_text("".join(lines))
    queries = ("average", "prediction", "difference", "tsunami")
    run = open_run(
        queries=[TSUNAMI / "queries" / f"{name}.chi" for name in queries],
        streams=[("reading", stream)],
        knowledge=[TSUNAMI / "data" / "places.ttl"],
        annotations=[TSUNAMI / "data" / "reading.json"],
    )
    assert (run.dead, run.diagnostics) == ([], ())
    found: dict[str, list[Any]] = {name: [] for name in queries}
    for each in run.matches():
        found[each.query].append(each)
    return found


def check(folder: Path, lines: list[str]) -> dict[str, list[Any]]:
    """Compares differences and tsunamis with our own."""
    expected = differences(lines)
    found = answers(folder, lines)
    assert {each.end_us: each.select["difference"] for each in found["difference"]} == pytest.approx(
        expected, abs=1e-9
    )
    high = {moment for moment, each in expected.items() if abs(each) > 0.030}
    near = "http://example.org/tsunami#"
    assert {(each.end_us, each.select["place"].removeprefix(near)) for each in found["tsunami"]} == {
        (moment, place) for moment in high for place in ("Unalaska", "Nikolski")
    }
    assert len(found["tsunami"]) == 2 * len(high)
    return found


def test_the_weights_are_newtons_for_five_and_a_quarter_minutes_of_an_hour() -> None:
    ahead = Fraction(21, 4) / 60
    for place, weight in enumerate(WEIGHTS):
        others = [each for each in range(4) if each != place]
        assert float(prod((ahead + each) / Fraction(each - place) for each in others)) == pytest.approx(
            weight
        )
    text = (TSUNAMI / "queries" / "prediction.chi").read_text()
    assert all(f"{abs(weight):.14f}" in text for weight in WEIGHTS)


def test_the_wave_is_found_when_it_comes_and_not_before(lines: list[str], tmp_path: Path) -> None:
    """Nearly four hours before the tsunami, and two hours of it."""
    found = check(tmp_path, lines[WAVE - 900 : WAVE + 480])
    began = parse_time(json.loads(lines[WAVE])["ts"])
    assert began is not None
    first, *_, last = (each.end_us for each in found["tsunami"])
    assert began < first <= began + 120 * SECOND
    assert last < began + 3 * HOUR


def test_a_missing_reading_leaves_out_what_needs_it(lines: list[str], tmp_path: Path) -> None:
    given = lines[WAVE - 900 : WAVE + 120]
    whole = differences(given)
    del given[90:100]
    left = differences(given)
    assert 0 < len(whole) - len(left) < 80
    check(tmp_path, given)


def test_a_quiet_day_has_no_tsunami(lines: list[str], tmp_path: Path) -> None:
    found = check(tmp_path, lines[:1_500])
    assert len(found["difference"]) == 1_500 - 41 - 720
    assert found["tsunami"] == []


@pytest.mark.night
def test_all_readings_as_the_readme_says(lines: list[str], tmp_path: Path) -> None:
    folder, said = as_its_readme_says("tsunami", tmp_path)
    assert (folder / "made" / "reading.jsonl").read_text() == "".join(lines)
    assert len(lines) == 44_310
    expected = differences(lines)
    found = [each for each in read(folder / "made" / "matches.jsonl") if each["query"] == "difference"]
    assert {parse_time(each["end"]): each["select"]["difference"] for each in found} == pytest.approx(
        expected, abs=1e-9
    )
    warned = {each["end"] for each in read(folder / "made" / "matches.jsonl") if each["query"] == "tsunami"}
    assert {parse_time(each) for each in warned} == {at for at, by in expected.items() if abs(by) > 0.030}
    assert {each[:10] for each in warned} == {"2010-03-23"}
    # Four warnings, then the histogram, which is also shown in the README.
    assert "\n".join(said[4:]) in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_deployment_answers_the_same(lines: list[str], tmp_path: Path) -> None:
    folder = copied("tsunami", tmp_path)
    (folder / "made").mkdir()
    given = lines[WAVE - 900 : WAVE + 120]
    expected = answers(folder / "made", given)["tsunami"]
    assert expected
    assert {each["id"] for each in deployed(folder, "made/matches.jsonl")} == {each.id for each in expected}


def test_the_histogram_counts_every_difference() -> None:
    rows = [("difference", each) for each in (0.0, 0.0049, -0.001, 0.031, -0.030)] + [("average", 0.5)]
    given = [json.dumps({"query": name, "select": {"difference": each}}) for name, each in rows]
    done = subprocess.run(
        [sys.executable, str(TSUNAMI / "histogram.py")],
        input="\n".join(given), capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    shown = [line.split() for line in done.stdout.splitlines()]
    counts = {int(row[0]): int(row[4]) for row in shown if row[4] != "0"}
    assert counts == {-30: 1, -5: 1, 0: 2, 30: 1}
    assert [int(row[0]) for row in shown if "!" in row] == [30]
