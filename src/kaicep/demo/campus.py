"""A campus from a scale: what is on it, what happens there minute by minute, and its files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeVar

from kaicep.connectors.records import Record
from kaicep.connectors.shape import Form, Schema, Shaper
from kaicep.errors import Mistake
from kaicep.knowledge.annotation import Annotation, parse_annotations
from kaicep.plan.events import Event
from kaicep.plan.time import format_time
from kaicep.plan.types import Type

# ----------------------------------------------------------------------------------------------------------
# A campus from a scale: buildings, rooms, departments, sensors of three vendors, fans, meters, classes.


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


# ----------------------------------------------------------------------------------------------------------
# What happens on a campus, minute by minute: noise around what is usual, and what was put there on purpose.
#
# The events of a minute are a function of campus, seed and minute alone, so that a morning can be made in any
# pieces. In every block of twenty minutes some rooms, sensors and departments have an incident each: that is
# what the queries find.

OPENING = 1_336_377_600_000_000
"""2012-05-07T08:00:00Z, a Monday, in microseconds: minute 0."""

_MINUTE = 60_000_000
_BLOCK = 20
_SHARE = 0.005
_MOST = 8
_HIGH = 740.0

T = TypeVar("T")


class SensorReport(NamedTuple):
    """A record on a stream, and its time in microseconds."""

    ts: int
    stream: str
    record: dict[str, Any]


@dataclass
class Incidents:
    """What was put into a block: readings and counts by minute, and who is silent from when until when."""

    readings: dict[int, list[tuple[Sensor, float]]] = field(default_factory=dict)
    counts: dict[int, list[tuple[Room, int]]] = field(default_factory=dict)
    silent: dict[str, tuple[int, int]] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()

    def say(self, minute: int, sensor: Sensor, value: float) -> None:
        """Has a sensor report at some minute."""
        self.readings.setdefault(minute, []).append((sensor, value))

    def hush(self, name: str, start: int, end: int) -> None:
        """Keeps a sensor or a room from reporting of its own accord, from one minute to before another."""
        self.silent[name] = (start, end)

    def is_silent(self, name: str, minute: int) -> bool:
        """Whether it does not report then."""
        start, end = self.silent.get(name, (0, 0))
        return start <= minute < end


class Morning:
    """The events of a campus by minute.

    >>> from kaicep.demo.campus import SCALES
    >>> morning = Morning(Campus.make(SCALES["small"]))
    >>> morning.minute(0) == Morning(Campus.make(SCALES["small"])).minute(0)
    True
    """

    def __init__(self, campus: Campus, seed: int = 7) -> None:
        self.campus = campus
        self.seed = seed
        self._due: dict[tuple[int, int], list[Sensor]] = {}
        for each in campus.sensors:
            self._due.setdefault((each.period, each.phase), []).append(each)
        self._lectures = {(each.room.name, each.hour) for each in campus.classes}
        self._meetings = [each for each in campus.rooms if each.holds_meetings]
        self._counted = [each for each in campus.rooms if each.holds_meetings or each.kind == "LectureHall"]
        self._doubled = [each for each in self._counted if len(campus.by_room[each.name]) > 1]
        self._offices = [
            each for each in campus.sensors if each.room.is_office and each.room.department.code == "EE"
        ]
        self._block = lru_cache(4)(self._make_block)

    def minutes(self, start: int, end: int) -> Iterator[list[SensorReport]]:
        """The events from one minute to before another, a list for each, in the order of their time."""
        return (self.minute(each) for each in range(start, end))

    def minute(self, minute: int) -> list[SensorReport]:
        """The events of one minute, in the order of their time."""
        dice = random.Random(f"{self.seed} minute {minute}")
        incidents = self._block(minute // _BLOCK)
        found: list[SensorReport] = []
        for stream, records in (
            ("airflowReport", self._airflow(minute, incidents, dice)),
            ("roomOccupancy", self._occupancy(minute, incidents, dice)),
            ("fanStatus", self._fans(minute, incidents)),
            ("buildingStatus", self._buildings(minute)),
            ("meterReading", self._meters(minute, incidents, dice)),
            ("weather", self._weather(minute, dice)),
        ):
            for record in records:
                ts = OPENING + minute * _MINUTE + dice.randrange(60) * 1_000_000
                found.append(SensorReport(ts, stream, {**record, "timestamp": format_time(ts)[:19] + "Z"}))
        return sorted(found, key=lambda each: each.ts)

    # --- the streams ---

    def _airflow(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        low, high = self.campus.scale.periods
        for period in range(low, high + 1):
            for sensor in self._due.get((period, minute % period), ()):
                if not incidents.is_silent(sensor.name, minute):
                    yield _reading(sensor, self._level(sensor, minute) + dice.uniform(-10, 10))
        for sensor, value in incidents.readings.get(minute, ()):
            yield _reading(sensor, value)

    def _level(self, sensor: Sensor, minute: int) -> float:
        """About how much a sensor reads; now and then many are high together."""
        block, into = divmod(minute, _BLOCK)
        if block % 3 == 0:
            if block and sensor.vendor == "A" and 2 <= into < 6 and not sensor.room.holds_meetings:
                return _HIGH  # boxes of vendor A are flushed
            if sensor.room.is_office and sensor.room.department.code == "EE" and 8 <= into < 15:
                return 540.0
        return sensor.room.usual

    def _occupancy(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        for place, room in enumerate(self._counted):
            if (minute + place) % 10 == 0 and not incidents.is_silent(room.name, minute):
                yield {"room": room.sign, "people": self._people(room, minute, dice)}
        for room, people in incidents.counts.get(minute, ()):
            yield {"room": room.sign, "people": people}

    def _people(self, room: Room, minute: int, dice: random.Random) -> int:
        if room.kind == "LectureHall":
            return dice.randrange(20, 120) if (room.name, 8 + minute // 60) in self._lectures else 0
        taken = random.Random(f"{self.seed} {room.name} {minute // 30}").random() < 0.6
        return dice.randrange(2, 12) if taken else 0

    def _fans(self, minute: int, incidents: Incidents) -> Iterator[dict[str, Any]]:
        for place, (fan, building) in enumerate(self.campus.fans.items()):
            if (minute + place) % 10 == 0:
                running = _is_open(building, minute) or fan in incidents.running
                yield {"fan": fan, "building": building.code, "running": running}

    def _buildings(self, minute: int) -> Iterator[dict[str, Any]]:
        for place, building in enumerate(self.campus.buildings):
            if (minute + place) % 5 == 0:
                yield {"building": building.code, "open": _is_open(building, minute)}

    def _meters(self, minute: int, incidents: Incidents, dice: random.Random) -> Iterator[dict[str, Any]]:
        if minute % 5:
            return
        for each in self.campus.departments:
            share = 1.1 if each.code in incidents.over and minute % _BLOCK in (5, 10) else 0.8
            drawn = round(each.budget * (share + dice.uniform(-0.05, 0.05)), 1)
            yield {"meter": each.meter, "kind": "account", "kw": drawn}
        for meter in self.campus.meters:
            yield {"meter": meter, "kind": "building", "kw": round(dice.uniform(80, 120), 1)}

    def _weather(self, minute: int, dice: random.Random) -> Iterator[dict[str, Any]]:
        if minute % 5 == 0:
            celsius = 17 + minute / 40 + dice.uniform(-0.2, 0.2)
            yield {"celsius": round(celsius, 1), "sun": round(300 + minute + dice.uniform(-20, 20), 1)}

    # --- what is put there on purpose ---

    def _make_block(self, block: int) -> Incidents:
        dice = random.Random(f"{self.seed} block {block}")
        made = Incidents(
            running=frozenset(_some(dice, [each for each, at in self.campus.fans.items() if at.closes < 12])),
            over=frozenset(each.code for each in dice.sample(self.campus.departments, 1)),
        )
        first = block * _BLOCK
        taken: set[str] = set()
        for room in _free(_some(dice, self._meetings), taken):
            self._surge(made, first, room, dice)
        for room in _free(_some(dice, self._meetings), taken):
            self._empty(made, first, room, dice)
        for room in _free(_some(dice, self._doubled), taken):
            self._disagree(made, first, room, dice)
        for sensor in _free_sensors(_some(dice, self._offices), taken):
            made.hush(sensor.name, first + 2, first + 5)
            made.say(first + 3, sensor, dice.uniform(520, 560))
        for sensor in _free_sensors(_some(dice, self.campus.sensors), taken):
            made.hush(sensor.name, first + 1, first + 17)
        for sensor in _free_sensors(_some(dice, self.campus.sensors), taken):
            made.hush(sensor.name, first, first + 10)
            for step in range(3):
                made.say(first + 1 + 3 * step, sensor, sensor.room.usual + step * dice.uniform(30, 40))
        return made

    def _surge(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """Above 500, and a few minutes later more than 50 above that."""
        sensor = self._of_vendor_a(room)
        begin = dice.uniform(505, 530)
        made.hush(sensor.name, first, first + 8)
        made.say(first + 2, sensor, begin)
        made.say(first + 5, sensor, begin + dice.uniform(55, 90))

    def _empty(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """Nobody is there, and the air is on."""
        sensor = self._of_vendor_a(room)
        made.hush(room.name, first, first + 8)
        made.hush(sensor.name, first, first + 8)
        made.counts.setdefault(first + 1, []).append((room, 0))
        made.say(first + 4, sensor, dice.uniform(460, 490))

    def _disagree(self, made: Incidents, first: int, room: Room, dice: random.Random) -> None:
        """One sensor of a room is high, the other one low."""
        high, low = self.campus.by_room[room.name][:2]
        for sensor in (high, low):
            made.hush(sensor.name, first, first + 8)
        made.say(first + 3, high, dice.uniform(550, 580))
        made.say(first + 4, low, dice.uniform(180, 210))

    def _of_vendor_a(self, room: Room) -> Sensor:
        return next(each for each in self.campus.by_room[room.name] if each.vendor == "A")


def _is_open(building: Building, minute: int) -> bool:
    return building.opens <= 8 + minute // 60 < building.closes


def _reading(sensor: Sensor, value: float) -> dict[str, Any]:
    shown = round(value) if sensor.vendor == "B" else round(value, 1)
    return {"sensorID": sensor.name, VENDORS[sensor.vendor]: shown}


def _some(dice: random.Random, every: Sequence[T]) -> list[T]:
    """A few of many, but one at least."""
    return dice.sample(every, max(1, min(_MOST, int(len(every) * _SHARE))))


def _free(rooms: Iterable[Room], taken: set[str]) -> Iterator[Room]:
    """The rooms where nothing else happens in this block."""
    for room in rooms:
        if room.name not in taken:
            taken.add(room.name)
            yield room


def _free_sensors(sensors: Iterable[Sensor], taken: set[str]) -> Iterator[Sensor]:
    for sensor in sensors:
        if sensor.room.name not in taken:
            taken.add(sensor.room.name)
            yield sensor


# ----------------------------------------------------------------------------------------------------------
# What is known of a campus: one Turtle file for each domain, and the annotations of its streams.

NAMESPACES = {
    "bd": "http://cei.usc.edu/Building.owl#",
    "ee": "http://cei.usc.edu/Equipment.owl#",
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
}
_GENERAL = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "owl": "http://www.w3.org/2002/07/owl#",
}

_BUILDING = """\
bd:Building a owl:Class .
bd:Room a owl:Class .
bd:Office rdfs:subClassOf bd:Room .
bd:FacultyOffice rdfs:subClassOf bd:Office .
bd:StaffOffice rdfs:subClassOf bd:Office .
bd:MeetingRoom rdfs:subClassOf bd:Room .
bd:ConferenceRoom rdfs:subClassOf bd:MeetingRoom .
bd:LectureHall rdfs:subClassOf bd:Room .
bd:Laboratory rdfs:subClassOf bd:Room .
bd:ComputerLaboratory rdfs:subClassOf bd:Laboratory .

bd:hasLocation a owl:ObjectProperty .
bd:belongsTo a owl:ObjectProperty .
bd:partOf a owl:ObjectProperty .
bd:roomNumber a owl:DatatypeProperty .
bd:opensAt a owl:DatatypeProperty ; rdfs:label "hour of the day, UTC" .
bd:closesAt a owl:DatatypeProperty ; rdfs:label "hour of the day, UTC" ."""

_EQUIPMENT = """\
ee:Equipment a owl:Class .
ee:Sensor rdfs:subClassOf ee:Equipment .
ee:AirflowSensor rdfs:subClassOf ee:Sensor .
ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor ; rdfs:label "sensor of a variable air volume box" .
ee:Meter rdfs:subClassOf ee:Equipment .
ee:BuildingMeter rdfs:subClassOf ee:Meter .
ee:AccountMeter rdfs:subClassOf ee:Meter .

ee:madeBy a owl:ObjectProperty .
ee:paidBy a owl:ObjectProperty .
ee:power a owl:DatatypeProperty ; rdfs:label "kilowatts" ."""

_HVAC = """\
hvc:Fan rdfs:subClassOf ee:Equipment .
hvc:serves a owl:ObjectProperty .
hvc:airflow a owl:DatatypeProperty ; rdfs:label "volume of air, cubic feet per minute" .
hvc:supplyAirflow rdfs:subPropertyOf hvc:airflow .
hvc:flowrate owl:equivalentProperty hvc:airflow .

hvc:GreenOfficeAirflow rdfs:label "upper bound of a sustainable office" ; hvc:hasValue 500 ."""

_ORGANIZATION = """\
org:Department a owl:Class .
org:Class a owl:Class .
org:greenBudget a owl:DatatypeProperty ; rdfs:label "kilowatts" .
org:heldIn a owl:ObjectProperty .
org:givenBy a owl:ObjectProperty .
org:begins a owl:DatatypeProperty ; rdfs:label "hour of the day, UTC; it lasts for one" ."""

_EVENT = """\
evt:Event a owl:Class .
evt:AirflowReport rdfs:subClassOf evt:Event .
evt:RoomOccupancy rdfs:subClassOf evt:Event .
evt:FanStatus rdfs:subClassOf evt:Event .
evt:BuildingStatus rdfs:subClassOf evt:Event .
evt:MeterReading rdfs:subClassOf evt:Event .
evt:Weather rdfs:subClassOf evt:Event .

evt:hasSource a owl:ObjectProperty .
evt:hasRoom a owl:ObjectProperty .
evt:hasBuilding a owl:ObjectProperty .
evt:hasTime a owl:DatatypeProperty ."""


def knowledge(campus: Campus) -> dict[str, str]:
    """The ontologies of a campus, by the name of the file."""
    return {
        "buildings.ttl": _turtle(("bd", "org"), _BUILDING, _building_things(campus)),
        "equipment.ttl": _turtle(("bd", "ee", "org"), _EQUIPMENT, _equipment_things(campus)),
        "hvac.ttl": _turtle(("bd", "ee", "hvc"), _HVAC, _hvac_things(campus)),
        "organization.ttl": _turtle(("bd", "org"), _ORGANIZATION, _organization_things(campus)),
        "events.ttl": _turtle(("evt",), _EVENT, ()),
    }


def _turtle(prefixes: Iterable[str], words: str, things: Iterable[str]) -> str:
    names = {**_GENERAL, **{each: NAMESPACES[each] for each in prefixes}}
    head = [f"@prefix {name}: <{iri}> ." for name, iri in names.items()]
    return "\n".join([*head, "", words, "", *things]) + "\n"


def _building_things(campus: Campus) -> Iterable[str]:
    for each in campus.buildings:
        hours = f"bd:opensAt {each.opens} ; bd:closesAt {each.closes}"
        yield f'bd:{each.code} a bd:Building ; rdfs:label "{each.label}" ; {hours} .'
    for room in campus.rooms:
        place = f'bd:partOf bd:{room.building.code} ; bd:roomNumber "{room.sign}"'
        yield f"bd:{room.name} a bd:{room.kind} ; {place} ; bd:belongsTo org:{room.department.name} ."


def _equipment_things(campus: Campus) -> Iterable[str]:
    for sensor in campus.sensors:
        place = f"bd:hasLocation bd:{sensor.room.name}"
        yield f"ee:{sensor.name} a ee:{sensor.kind} ; {place} ; ee:madeBy ee:Vendor{sensor.vendor} ."
    for meter, building in campus.meters.items():
        yield f"ee:{meter} a ee:BuildingMeter ; bd:hasLocation bd:{building.code} ."
    for each in campus.departments:
        yield f"ee:{each.meter} a ee:AccountMeter ; ee:paidBy org:{each.name} ."


def _hvac_things(campus: Campus) -> Iterable[str]:
    for fan, building in campus.fans.items():
        yield f"ee:{fan} a hvc:Fan ; hvc:serves bd:{building.code} ."


def _organization_things(campus: Campus) -> Iterable[str]:
    for each in campus.departments:
        about = f'rdfs:label "{each.label}" ; org:greenBudget {each.budget}'
        yield f"org:{each.name} a org:Department ; {about} ."
    for one in campus.classes:
        where = f"org:heldIn bd:{one.room.name} ; org:givenBy org:{one.department.name}"
        yield f"org:{one.name} a org:Class ; {where} ; org:begins {one.hour} ."


_SOURCE = {"property": "evt:hasSource", "iri": "ee:{value}"}

_STREAMS: dict[str, dict[str, Any]] = {
    "airflowReport": {
        "class": "evt:AirflowReport",
        "types": {"sensorID": "string", **dict.fromkeys(VENDORS.values(), "float64")},
        # Vendor C measures the supply air, which is one kind of airflow.
        "attributes": {
            "flowrate": "hvc:airflow",
            "airvolume": "hvc:airflow",
            "flow_cfm": "hvc:supplyAirflow",
        },
        "entities": {"sensorID": _SOURCE},
    },
    "roomOccupancy": {
        "class": "evt:RoomOccupancy",
        "types": {"room": "string", "people": "int64"},
        "entities": {"room": {"property": "evt:hasRoom", "lookup": "bd:roomNumber"}},
    },
    "fanStatus": {
        "class": "evt:FanStatus",
        "types": {"fan": "string", "building": "string", "running": "bool"},
        "entities": {"fan": _SOURCE},
    },
    "buildingStatus": {
        "class": "evt:BuildingStatus",
        "types": {"building": "string", "open": "bool"},
        "entities": {"building": {"property": "evt:hasBuilding", "iri": "bd:{value}"}},
    },
    "meterReading": {
        "class": "evt:MeterReading",
        "types": {"meter": "string", "kind": "string", "kw": "float64"},
        "attributes": {"kw": "ee:power"},
        "entities": {"meter": _SOURCE},
    },
    "weather": {"class": "evt:Weather", "types": {"celsius": "float64", "sun": "float64"}},
}


def stream_annotations() -> dict[str, dict[str, Any]]:
    """What the streams mean, by the name of the stream.

    >>> list(stream_annotations())
    ['airflowReport', 'roomOccupancy', 'fanStatus', 'buildingStatus', 'meterReading', 'weather']
    """
    return {
        name: {"prefixes": NAMESPACES, "stream": name, "time": "timestamp", **about}
        for name, about in _STREAMS.items()
    }


# ----------------------------------------------------------------------------------------------------------
# The demo's folder: knowledge, annotations, queries and a deployment file, and the data as it grows.

QUERIES = (
    *(f"query{number}" for number in range(1, 8)),
    "empty-but-cooled",
    "disagree",
    "fan-after-closing",
    "silent",
    "rising",
    "over-budget",
)
"""The queries of the demo: those of the SCEPter paper (its section 3.2), and six of our own."""

_DEPLOYMENT = """\
# The campus as a deployment: `kaicep run` in this folder, `kaicep status` in another window.
name = "campus"
state = "run"

[archive]
folder = "archive"

[knowledge]
files = ["knowledge/*.ttl"]

[queries]
folder = "queries"
"""
_STREAM = """
[streams.{name}]
annotation = "annotations/{name}.json"
lateness = "0s"
source = {{kind = "files", path = "data/{name}.jsonl", follow = true}}
"""
_SINK = """
[sinks.matches]
kind = "files"
path = "run/matches.jsonl"
"""


class Folder:
    """A folder with a campus in it, and its streams as far as they have come."""

    def __init__(self, path: Path, campus: Campus) -> None:
        check_empty(path)
        self.path = path
        self.archive = path / "archive"
        self.knowledge = path / "knowledge"
        self.queries = [path / "queries" / f"{name}.chi" for name in QUERIES]
        self.annotations: dict[str, Annotation] = {}
        self.next: dict[str, int] = {}
        texts = {f"knowledge/{name}": text for name, text in knowledge(campus).items()}
        for name, about in stream_annotations().items():
            (self.annotations[name],) = parse_annotations(about)
            self.next[name] = 0
            texts[f"annotations/{name}.json"] = json.dumps(about, indent=2) + "\n"
            texts[f"data/{name}.jsonl"] = ""
        packaged = files("kaicep.demo") / "queries"
        texts |= {f"queries/{name}.chi": (packaged / f"{name}.chi").read_text("utf-8") for name in QUERIES}
        texts["kaicep.toml"] = _DEPLOYMENT + "".join(_STREAM.format(name=n) for n in self.next) + _SINK
        for name, text in texts.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self._shapers = {name: _shaper(self.form(name)) for name in self.next}

    def form(self, stream: str) -> Form:
        """A stream as connectors want it described."""
        return Form.of(stream, self.annotations[stream])

    def data(self, stream: str) -> Path:
        """The file of a stream."""
        return self.path / "data" / f"{stream}.jsonl"

    def write(self, reports: Iterable[SensorReport]) -> None:
        """Appends reports to the files of their streams."""
        lines: dict[str, list[str]] = {}
        for each in reports:
            lines.setdefault(each.stream, []).append(json.dumps(each.record))
        for stream, some in lines.items():
            self.next[stream] += len(some)
            with self.data(stream).open("a", encoding="utf-8") as file:
                file.write("\n".join(some) + "\n")

    def events(self, reports: Sequence[SensorReport]) -> list[Event]:
        """The reports as the events that they will be once they are written."""
        after = dict(self.next)
        found: list[Event] = []
        for each in reports:
            seq = after[each.stream]
            after[each.stream] = seq + 1
            shaped, _ = self._shapers[each.stream].shape([Record(0, seq, seq + 1, each.stream, each.record)])
            found += shaped
        return found


def check_empty(folder: Path) -> None:
    """Refuses a folder that has something in it."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        hint = "nothing is overwritten: name a new or empty folder"
        raise Mistake(f"{folder} is not empty", hint=hint)


def _shaper(form: Form) -> Shaper:
    return Shaper(form, Schema(tuple({**form.types, form.time: Type.TIMESTAMP}.items())))
