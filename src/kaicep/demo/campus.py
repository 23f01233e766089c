"""A campus from a scale: buildings, rooms, departments, sensors of three vendors, fans, meters, classes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase

__all__ = ["SCALES", "VENDORS", "Building", "Campus", "Class", "Department", "Room", "Scale", "Sensor"]


@dataclass(frozen=True)
class Scale:
    """How large a campus is, and how fast it goes.

    `periods` says from how many to how many minutes a sensor waits between two reports, `pace` how many
    times as fast as the clock it all happens when it is followed live.
    """

    name: str
    buildings: int
    floors: int
    departments: int
    periods: tuple[int, int]
    pace: int


SCALES: Mapping[str, Scale] = {
    each.name: each
    for each in (
        Scale("small", 3, 2, 3, (3, 5), 60),
        Scale("campus", 170, 6, 8, (5, 8), 30),
        Scale("city", 850, 6, 8, (5, 8), 6),
    )
}
"""The scales by name: 60, 10,200 and 51,000 airflow sensors."""

VENDORS: Mapping[str, str] = {"A": "flowrate", "B": "airvolume", "C": "flow_cfm"}
"""What each vendor calls the airflow, in cubic feet per minute."""

_DEPARTMENTS = {
    "EE": "Electrical Engineering",
    "CS": "Computer Science",
    "CE": "Civil Engineering",
    "ME": "Mechanical Engineering",
    "CH": "Chemistry",
    "PH": "Physics",
    "BI": "Biology",
    "MA": "Mathematics",
}
_BUILDINGS = {"RTH": "Tutor Hall", "EEB": "Electrical Engineering Building", "OHE": "Olin Hall"}

# The rooms of every floor: number, class, usual airflow, vendors of its sensors.
_FLOOR = (
    ("01", "LectureHall", 400, "AB"),
    ("05", "FacultyOffice", 300, "A"),
    ("06", "Office", 310, "B"),
    ("08", "StaffOffice", 320, "C"),
    ("10", "MeetingRoom", 330, "AB"),
    ("12", "ConferenceRoom", 340, "CA"),
    ("20", "ComputerLaboratory", 380, "A"),
)
_OPENS, _CLOSES = 7, 22
_CLOSES_EARLY = (9, 10)


@dataclass(frozen=True)
class Department:
    """A department, the meter of its account, and its green budget in kilowatts."""

    code: str
    label: str
    budget: int

    @property
    def name(self) -> str:
        """What it is called in the knowledge."""
        return f"{self.code}Department"

    @property
    def meter(self) -> str:
        """The meter of its account."""
        return f"{self.code}-ACCOUNT"


@dataclass(frozen=True)
class Building:
    """A building, and the hours at which it opens and closes."""

    code: str
    label: str
    opens: int
    closes: int


@dataclass(frozen=True)
class Room:
    """A room; `usual` is its airflow on a quiet morning."""

    building: Building
    number: str
    kind: str
    department: Department
    usual: int

    @property
    def name(self) -> str:
        """What it is called in the knowledge."""
        return self.building.code + self.number

    @property
    def sign(self) -> str:
        """What stands at its door."""
        return f"{self.building.code} {self.number}"

    @property
    def holds_meetings(self) -> bool:
        """Whether its class is bd:MeetingRoom or one below it."""
        return self.kind in ("MeetingRoom", "ConferenceRoom")

    @property
    def is_office(self) -> bool:
        """Whether its class is bd:Office or one below it."""
        return self.kind.endswith("Office")


@dataclass(frozen=True)
class Sensor:
    """An airflow sensor: it reports every `period` minutes, `phase` minutes after the first."""

    name: str
    vendor: str
    room: Room
    kind: str
    period: int
    phase: int


@dataclass(frozen=True)
class Class:
    """A class: who gives it, in which room, from which hour on, for an hour."""

    department: Department
    room: Room
    hour: int

    @property
    def name(self) -> str:
        """What it is called in the knowledge."""
        return f"{self.department.code}-{self.room.name}-{self.hour:02d}"


@dataclass(frozen=True)
class Campus:
    """A campus; `fans` are the fan units of its floors by name, with the building that each serves."""

    scale: Scale
    departments: tuple[Department, ...]
    buildings: tuple[Building, ...]
    rooms: tuple[Room, ...]
    sensors: tuple[Sensor, ...]
    fans: Mapping[str, Building]
    classes: tuple[Class, ...]

    @classmethod
    def make(cls, scale: Scale, seed: int = 7) -> Campus:
        """The campus of a scale and a seed.

        >>> made = Campus.make(SCALES["small"])
        >>> len(made.buildings), len(made.rooms), len(made.sensors), made.rooms[0].sign
        (3, 42, 60, 'RTH 101')
        """
        dice = random.Random(f"campus {scale.name} {seed}")
        departments = tuple(_departments(scale))
        buildings = tuple(_buildings(scale))
        rooms = tuple(_rooms(scale, departments, buildings))
        return cls(
            scale,
            departments,
            buildings,
            rooms,
            tuple(_sensors(scale, rooms, dice)),
            {f"{each.code}-FAN{floor + 1}": each for each in buildings for floor in range(scale.floors)},
            tuple(_classes(rooms, dice)),
        )

    @cached_property
    def by_room(self) -> dict[str, list[Sensor]]:
        """The sensors of every room, by its name."""
        found: dict[str, list[Sensor]] = {each.name: [] for each in self.rooms}
        for each in self.sensors:
            found[each.room.name].append(each)
        return found

    @property
    def meters(self) -> dict[str, Building]:
        """The meters of the buildings; the departments have theirs besides."""
        return {f"{each.code}-METER": each for each in self.buildings}


def _departments(scale: Scale) -> Iterator[Department]:
    for code in list(_DEPARTMENTS)[: scale.departments]:
        yield Department(code, _DEPARTMENTS[code], 50 * scale.buildings * scale.floors // scale.departments)


def _buildings(scale: Scale) -> Iterator[Building]:
    codes = [*_BUILDINGS]
    codes += [f"{a}{b}{c}" for a in "BCD" for b in ascii_uppercase for c in ascii_uppercase]
    for place, code in enumerate(codes[: scale.buildings]):
        # Every third one has classes in the morning alone, and closes after the last of them.
        closes = _CLOSES_EARLY[place // 3 % 2] if place % 3 == 2 else _CLOSES
        yield Building(code, _BUILDINGS.get(code, f"Hall {place + 1}"), _OPENS, closes)


def _rooms(
    scale: Scale, departments: tuple[Department, ...], buildings: tuple[Building, ...]
) -> Iterator[Room]:
    for place, building in enumerate(buildings):
        for floor in range(scale.floors):
            department = departments[(place * scale.floors + floor) % len(departments)]
            for number, kind, usual, _ in _FLOOR:
                yield Room(building, f"{floor + 1}{number}", kind, department, usual)


def _sensors(scale: Scale, rooms: tuple[Room, ...], dice: random.Random) -> Iterator[Sensor]:
    vendors = {number: letters for number, _, _, letters in _FLOOR}
    for room in rooms:
        for place, vendor in enumerate(vendors[room.number[1:]]):
            name, kind = (f"{room.name}VOL", "VavAirflowSensor")
            if place:
                name, kind = f"{room.name}VOL{place + 1}", "AirflowSensor"
            period = dice.randint(*scale.periods)
            yield Sensor(name, vendor, room, kind, period, dice.randrange(period))


def _classes(rooms: tuple[Room, ...], dice: random.Random) -> Iterator[Class]:
    for room in rooms:
        if room.kind == "LectureHall":
            last = min(room.building.closes, 13)
            hours = [hour for hour in range(8, last) if dice.random() < 0.7] or [last - 1]
            yield from (Class(room.department, room, hour) for hour in hours)
