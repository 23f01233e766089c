"""The campus of the demo: the same from the same seed, as large as it says, and known as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kaicep.demo.campus import OPENING, SCALES, VENDORS, Campus, Folder, Morning, SensorReport, knowledge
from kaicep.errors import Mistake
from kaicep.knowledge.store import Knowledge
from kaicep.plan.time import parse_time


def reports(scale: str = "small", seed: int = 7, start: int = 0, end: int = 30) -> list[SensorReport]:
    made = Morning(Campus.make(SCALES[scale], seed), seed)
    return [each for some in made.minutes(start, end) for each in some]


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_the_same_seed_gives_the_same_campus(scale: str) -> None:
    one, other = (Campus.make(SCALES[scale], 7) for _ in range(2))
    assert one == other
    assert one != Campus.make(SCALES[scale], 8)


def test_the_same_seed_gives_the_same_morning() -> None:
    assert reports() == reports()
    assert reports(seed=8) != reports()


def test_a_morning_may_be_made_in_pieces() -> None:
    assert reports(end=17) + reports(start=17, end=30) == reports()
    assert reports(start=25) == [each for each in reports() if each.ts >= OPENING + 25 * 60_000_000]


@pytest.mark.parametrize(
    ("scale", "buildings", "rooms", "sensors", "departments"),
    [("small", 3, 42, 60, 3), ("campus", 170, 7_140, 10_200, 8), ("city", 850, 35_700, 51_000, 8)],
)
def test_how_large_it_is(scale: str, buildings: int, rooms: int, sensors: int, departments: int) -> None:
    made = Campus.make(SCALES[scale])
    assert (len(made.buildings), len(made.rooms), len(made.sensors)) == (buildings, rooms, sensors)
    assert len(made.departments) == departments
    for things in ([each.code for each in made.buildings], [each.name for each in made.sensors]):
        assert len(set(things)) == len(things)


def test_every_vendor_has_a_name_of_its_own_for_the_airflow() -> None:
    vendors = {each.name: each.vendor for each in Campus.make(SCALES["small"]).sensors}
    said = [each.record for each in reports() if each.stream == "airflowReport"]
    for record in said:
        assert set(record) == {"sensorID", "timestamp", VENDORS[vendors[record["sensorID"]]]}
    assert {vendors[each["sensorID"]] for each in said} == set("ABC")


def test_no_sensor_is_silent_for_ten_minutes_by_chance() -> None:
    low, high = SCALES["campus"].periods
    assert (high + 1) * 60 < 600  # the longest period, and all of the minute that a report may come in
    assert low > 0


def test_streams_are_in_order_and_times_are_those_of_the_records() -> None:
    made = reports()
    assert [each.ts for each in made] == sorted(each.ts for each in made)
    assert all(parse_time(each.record["timestamp"]) == each.ts for each in made)
    assert {each.stream for each in made} == {
        "airflowReport",
        "roomOccupancy",
        "fanStatus",
        "buildingStatus",
        "meterReading",
        "weather",
    }


def test_the_ontologies_load_without_a_warning(tmp_path: Path) -> None:
    campus = Campus.make(SCALES["small"])
    for name, text in knowledge(campus).items():
        (tmp_path / name).write_text(text, "utf-8")
    assert {each.stem for each in tmp_path.iterdir()} == {
        "buildings",
        "equipment",
        "hvac",
        "organization",
        "events",
    }
    known = Knowledge.load(tmp_path)
    assert (list(known.warnings), list(known.contradictions)) == ([], [])
    assert known.asserted > 400


def test_events_are_those_that_the_files_will_hold(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "campus", Campus.make(SCALES["small"]))
    first, second = reports(end=3), reports(start=3, end=5)
    folder.write(first)
    events = folder.events(second)
    folder.write(second)
    for event in events:
        line = folder.data(event.stream).read_text("utf-8").splitlines()[event.seq]
        record = json.loads(line)
        assert parse_time(record["timestamp"]) == event.ts
        name = next(iter(record))
        assert event.values[name] == record[name]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Mistake, match="is not empty"):
        Folder(tmp_path, Campus.make(SCALES["small"]))
