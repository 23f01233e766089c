"""A small campus and its morning, made from a seed: knowledge, annotations and two streams.

    python examples/campus/generate.py FOLDER [--seed 7]

Three buildings, 42 rooms, 62 airflow sensors of three vendors, 7 May 2012 from 08:00 to 11:00.
Most of the morning is noise around a usual airflow; what the queries find was put there on purpose
and is listed in PLANTED, SILENCES, COOLINGS and PEOPLE below, near misses included. The same seed
gives the same bytes. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

DAY = "2012-05-07"
OPENS, CLOSES = "08:00:00", "11:00:00"

NAMESPACES = {
    "bd": "http://cei.usc.edu/Building.owl#",
    "ee": "http://cei.usc.edu/Equipment.owl#",
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
}

# What each vendor calls the airflow, in cubic feet per minute.
VENDORS = {"A": "flowrate", "B": "airvolume", "C": "flow_cfm"}

DEPARTMENTS = {
    "EEDepartment": "Electrical Engineering",
    "CSDepartment": "Computer Science",
    "CEDepartment": "Civil Engineering",
}

BUILDINGS = {"RTH": "Tutor Hall", "EEB": "Electrical Engineering Building", "OHE": "Olin Hall"}

# The rooms of every building: number, class, usual airflow, vendors of its sensors.
FLOOR_PLAN = (
    ("101", "LectureHall", 400, "AB"),
    ("102", "LectureHall", 400, "CA"),
    ("105", "FacultyOffice", 300, "A"),
    ("106", "FacultyOffice", 310, "B"),
    ("107", "StaffOffice", 320, "A"),
    ("108", "Office", 300, "C"),
    ("110", "MeetingRoom", 330, "AB"),
    ("112", "ConferenceRoom", 340, "CA"),
    ("201", "ComputerLaboratory", 380, "B"),
    ("202", "WetLaboratory", 390, "C"),
    ("205", "FacultyOffice", 300, "A"),
    ("206", "Office", 310, "B"),
    ("210", "MeetingRoom", 330, "AC"),
    ("214", "ConferenceRoom", 340, "BA"),
)

# Who has which floor of which building.
FLOORS = {
    ("RTH", "1"): "EEDepartment",
    ("RTH", "2"): "CSDepartment",
    ("EEB", "1"): "EEDepartment",
    ("EEB", "2"): "CEDepartment",
    ("OHE", "1"): "CEDepartment",
    ("OHE", "2"): "CSDepartment",
}

# Readings put there on purpose; they take the place of what the sensor would have said meanwhile.
PLANTED: dict[str, tuple[tuple[str, float], ...]] = {
    # Above 500, then up by more than 50 within five minutes (queries 3 and 7), and near misses.
    "RTH110VOL": (("08:20:00", 510.0), ("08:24:00", 575.0)),
    "RTH210VOL": (("08:41:00", 505.0), ("08:46:00", 560.0)),  # five minutes exactly
    "EEB110VOL": (("08:50:00", 520.0), ("08:55:01", 600.0)),  # a second too late
    "EEB210VOL": (("09:05:00", 530.0), ("09:08:30", 580.0)),  # up by 50, not by more
    "OHE110VOL": (("08:30:00", 510.0), ("08:32:00", 570.0), ("08:34:00", 630.0)),  # three pairs
    "RTH112VOL2": (("09:10:00", 515.0), ("09:13:20", 590.0)),  # a conference room is a meeting room
    "EEB214VOL2": (("10:05:00", 501.0), ("10:09:10", 551.5)),
    "RTH101VOL": (("09:00:00", 610.0), ("09:04:00", 700.0)),  # a lecture hall: query 3 alone
    "EEB105VOL": (("08:35:00", 505.5), ("08:39:00", 565.5)),  # an office: query 3 alone
    "RTH110AHU": (("08:52:00", 520.0), ("08:55:30", 600.0)),  # no airflow sensor: query 3 alone
    "TMP001VOL": (("10:12:00", 530.0), ("10:16:00", 590.0)),  # in no inventory: query 3 alone
    "OHE112VOL": (("09:20:00", 510.0), ("09:23:00", 590.0)),  # vendor C has no flowrate: neither
    "OHE214VOL2": (("09:50:00", 520.0), ("09:50:00", 590.0)),  # at one instant: no sequence
    "OHE210VOL": (("10:48:00", 500.0), ("10:50:00", 520.0), ("10:53:00", 580.0)),  # 500 is not above
    # A slow rise of a vendor B sensor.
    "OHE106VOL": (("10:00:00", 330), ("10:04:00", 372), ("10:08:00", 415), ("10:12:00", 460)),
    # Two sensors of one room that disagree, and one low reading in a room of its own.
    "EEB101VOL": (("10:10:00", 620.0), ("10:14:00", 615.0)),
    "EEB101VOL2": (("10:11:00", 210), ("10:15:30", 205)),
    "RTH102VOL": (("08:57:10", 190.0),),
    "RTH102VOL2": (("08:58:00", 560.0),),
    "OHE101VOL": (("10:30:00", 580.0),),
    "OHE101VOL2": (("10:32:00", 230),),
    "RTH105VOL": (("10:10:30", 200.0),),
}

# From and until when a sensor says nothing: it reports at both ends, the last one never again.
SILENCES = {
    "RTH205VOL": ("09:03:00", "09:25:00"),
    "EEB202VOL": ("08:20:00", "08:30:00"),  # ten minutes and no more
    "OHE201VOL": ("08:20:00", "08:30:01"),
    "EEB206VOL": ("10:31:00", None),
}

# Times at which many sensors are high together: (sensors, from, until, about how much).
COOLINGS = (
    ("vendor A", "09:30:00", "09:40:00", 540.0),
    ("offices of EEDepartment", "10:20:00", "10:30:00", 525.0),
)

# How many people a meeting room's counter saw, besides its regular reports.
PEOPLE = {
    "RTH110": (("08:15:00", 0),),
    "RTH210": (("08:38:00", 0), ("08:43:00", 4)),  # somebody comes back before the second reading
}

# Readings that the network delivered late: they stand further down in the file.
DELAYED = {("OHE210VOL", "10:50:00"): 240, ("RTH110VOL", "08:20:00"): 45}

BAD_LINES = (
    '{"sensorID": "RTH110VOL", "timestamp": "2012-05-07T08:21:00Z", "flowrate": 333.0',
    '{"sensorID": "RTH110VOL", "flowrate": 333.0}',
    '{"sensorID": "RTH110VOL", "timestamp": "breakfast", "flowrate": 333.0}',
    '{"sensorID": "RTH110VOL", "timestamp": "2012-05-07T08:24:00Z", "flowrate": "rather high"}',
    "RTH110VOL;2012-05-07T08:25:00Z;333.0",
)


@dataclass(frozen=True)
class Room:
    """A room; `usual` is its airflow on a quiet morning."""

    name: str
    building: str
    number: str
    kind: str
    department: str
    usual: int

    @property
    def is_office(self) -> bool:
        """Whether its class is bd:Office or one below it."""
        return self.kind.endswith("Office")

    @property
    def is_meeting_room(self) -> bool:
        """Whether its class is bd:MeetingRoom or one below it."""
        return self.kind in ("MeetingRoom", "ConferenceRoom")


@dataclass(frozen=True)
class Sensor:
    """A sensor; `kind` is its class, None where the knowledge has never heard of it."""

    name: str
    vendor: str
    room: Room
    kind: str | None

    @property
    def is_airflow_sensor(self) -> bool:
        """Whether its class is ee:AirflowSensor or one below it."""
        return self.kind is not None and self.kind.endswith("AirflowSensor")


def rooms() -> list[Room]:
    """Every room of the campus."""
    return [
        Room(building + number, building, number, kind, FLOORS[building, number[0]], usual)
        for building in BUILDINGS
        for number, kind, usual, _ in FLOOR_PLAN
    ]


def sensors() -> list[Sensor]:
    """Every sensor: one or two to a room, a meter that is none, and one that nobody registered."""
    vendors = {number: letters for number, _, _, letters in FLOOR_PLAN}
    made = []
    for room in rooms():
        first, *second = vendors[room.number]
        made.append(Sensor(f"{room.name}VOL", first, room, "VavAirflowSensor"))
        made += [Sensor(f"{room.name}VOL2", letter, room, "AirflowSensor") for letter in second]
    at = {room.name: room for room in rooms()}
    made.append(Sensor("RTH110AHU", "A", at["RTH110"], "AirHandlerMeter"))
    made.append(Sensor("TMP001VOL", "A", at["RTH210"], None))
    return made


def at(clock: str) -> datetime:
    """A time of that morning."""
    return datetime.fromisoformat(f"{DAY}T{clock}")


def stamp(moment: datetime) -> str:
    """A time as the sensors write it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def cooling(sensor: Sensor, moment: datetime) -> float | None:
    """About how much the sensor reads where many are high together."""
    belongs = {
        "vendor A": sensor.vendor == "A" and sensor.kind is not None,
        "offices of EEDepartment": sensor.room.is_office and sensor.room.department == "EEDepartment",
    }
    for who, start, end, level in COOLINGS:
        if belongs[who] and at(start) <= moment < at(end):
            return level
    return None


def readings(sensor: Sensor, dice: random.Random) -> list[tuple[datetime, float]]:
    """What one sensor says over the morning: every three to five minutes, and what was planted."""
    moment = at("10:00:00" if sensor.kind is None else OPENS) + timedelta(seconds=dice.randrange(180))
    said: list[tuple[datetime, float]] = []
    while moment < at(CLOSES):
        level = cooling(sensor, moment) or sensor.room.usual
        value = level + dice.uniform(-10, 10)
        said.append((moment, round(value) if sensor.vendor == "B" else round(value, 1)))
        moment += timedelta(seconds=dice.randrange(180, 300))
    planted = [(at(clock), value) for clock, value in PLANTED.get(sensor.name, ())]
    if sensor.name in SILENCES:
        start, end = SILENCES[sensor.name]
        planted = [(at(clock), float(sensor.room.usual)) for clock in (start, end) if clock is not None]
        if end is None:
            said = [each for each in said if each[0] < at(start)]
    if planted:
        first, last = planted[0][0], planted[-1][0]
        said = [each for each in said if not first <= each[0] <= last] + planted
    return sorted(said, key=lambda each: each[0])


def airflow_reports(dice: random.Random) -> list[dict[str, object]]:
    """The stream airflowReport in the order of arrival, which is not quite that of time."""
    arrivals = []
    for sensor in sensors():
        for moment, value in readings(sensor, dice):
            delay = DELAYED.get((sensor.name, moment.strftime("%H:%M:%S")), dice.uniform(0, 10))
            record = {"sensorID": sensor.name, "timestamp": stamp(moment), VENDORS[sensor.vendor]: value}
            arrivals.append((moment + timedelta(seconds=delay), sensor.name, record))
    return [record for _, _, record in sorted(arrivals, key=lambda each: each[:2])]


def occupancy_reports(dice: random.Random) -> list[dict[str, object]]:
    """The stream roomOccupancy: every meeting room about every ten minutes, and what was planted."""
    said = []
    for room in rooms():
        if not room.is_meeting_room:
            continue
        planted = [(at(clock), people) for clock, people in PEOPLE.get(room.name, ())]
        taken = [dice.random() < 0.6 for _ in range(6)]  # by half hours
        for step in range(18):
            moment = at(OPENS) + timedelta(seconds=600 * step + dice.randrange(60))
            people = dice.randrange(2, 12) if taken[step // 3] else 0
            if not any(abs((moment - other).total_seconds()) < 900 for other, _ in planted):
                said.append((moment, room, people))
        said += [(moment, room, people) for moment, people in planted]
    return [
        {"room": f"{room.building} {room.number}", "timestamp": stamp(moment), "people": people}
        for moment, room, people in sorted(said, key=lambda each: (each[0], each[1].name))
    ]


def turtle(*prefixes: str) -> str:
    """The head of a Turtle file."""
    names = {
        "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
        "owl": "http://www.w3.org/2002/07/owl#",
        **NAMESPACES,
    }
    return (
        "".join(f"@prefix {each}: <{names[each]}> .\n" for each in ("rdf", "rdfs", "owl", *prefixes)) + "\n"
    )


BUILDING = """\
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
bd:WetLaboratory rdfs:subClassOf bd:Laboratory .

bd:hasLocation a owl:ObjectProperty ; rdfs:range bd:Room .
bd:belongsTo a owl:ObjectProperty .
bd:partOf a owl:ObjectProperty .
bd:roomNumber a owl:DatatypeProperty .
"""

EQUIPMENT = """\
ee:Equipment a owl:Class .
ee:Sensor rdfs:subClassOf ee:Equipment .
ee:AirflowSensor rdfs:subClassOf ee:Sensor .
ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor ; rdfs:label "sensor of a variable air volume box" .
ee:Meter rdfs:subClassOf ee:Equipment .
ee:AirHandlerMeter rdfs:subClassOf ee:Meter .

ee:madeBy a owl:ObjectProperty .
"""

HVAC = """\
hvc:airflow a owl:DatatypeProperty ; rdfs:label "volume of air, cubic feet per minute" .
hvc:supplyAirflow rdfs:subPropertyOf hvc:airflow .
hvc:flowrate owl:equivalentProperty hvc:airflow .

hvc:GreenOfficeAirflow rdfs:label "upper bound of a sustainable office" ; hvc:hasValue 500 .
"""

ORGANIZATION = """\
org:Department a owl:Class .
"""

EVENT = """\
evt:Event a owl:Class .
evt:AirflowReport rdfs:subClassOf evt:Event .
evt:RoomOccupancy rdfs:subClassOf evt:Event .

evt:hasSource a owl:ObjectProperty .
evt:hasRoom a owl:ObjectProperty .
evt:hasTime a owl:DatatypeProperty .
"""


def knowledge() -> dict[str, str]:
    """The ontologies, one Turtle file to a domain, by the name of the file."""
    building = turtle("bd", "org") + BUILDING
    building += "".join(
        f'\nbd:{name} a bd:Building ; rdfs:label "{label}" .' for name, label in BUILDINGS.items()
    )
    for room in rooms():
        building += (
            f"\nbd:{room.name} a bd:{room.kind} ; bd:partOf bd:{room.building} ;"
            f' bd:roomNumber "{room.building} {room.number}" ; bd:belongsTo org:{room.department} .'
        )
    equipment = turtle("bd", "ee") + EQUIPMENT
    for sensor in sensors():
        if sensor.kind is not None:
            equipment += (
                f"\nee:{sensor.name} a ee:{sensor.kind} ; bd:hasLocation bd:{sensor.room.name} ;"
                f" ee:madeBy ee:Vendor{sensor.vendor} ."
            )
    organization = turtle("org") + ORGANIZATION
    organization += "".join(
        f'\norg:{name} a org:Department ; rdfs:label "{label}" .' for name, label in DEPARTMENTS.items()
    )
    return {
        "building.ttl": building + "\n",
        "equipment.ttl": equipment + "\n",
        "hvac.ttl": turtle("hvc") + HVAC,
        "organization.ttl": organization + "\n",
        "event.ttl": turtle("evt") + EVENT,
    }


def annotations() -> dict[str, object]:
    """What the streams mean, by the name of the file."""
    return {
        "airflowReport.json": {
            "prefixes": NAMESPACES,
            "stream": "airflowReport",
            "class": "evt:AirflowReport",
            "time": "timestamp",
            "types": {"sensorID": "string", **dict.fromkeys(VENDORS.values(), "float64")},
            # Vendor C measures the supply air, which is one kind of airflow.
            "attributes": {
                "flowrate": "hvc:airflow",
                "airvolume": "hvc:airflow",
                "flow_cfm": "hvc:supplyAirflow",
            },
            "entities": {"sensorID": {"property": "evt:hasSource", "iri": "ee:{value}"}},
        },
        "roomOccupancy.json": {
            "prefixes": NAMESPACES,
            "stream": "roomOccupancy",
            "class": "evt:RoomOccupancy",
            "time": "timestamp",
            "types": {"room": "string", "people": "int64"},
            "entities": {"room": {"property": "evt:hasRoom", "lookup": "bd:roomNumber"}},
        },
    }


def spoilt(lines: list[str]) -> list[str]:
    """A minute and a half of the reports, from 08:19:40 on, with unreadable ones between them."""
    start = next(number for number, line in enumerate(lines) if "T08:19:4" in line)
    mixed = lines[start : start + 20]
    for place, bad in enumerate(BAD_LINES):
        mixed.insert(4 * place + 1, bad)
    return mixed


def write(folder: Path, seed: int) -> None:
    """Writes the campus into the folder."""
    dice = random.Random(seed)
    reports, occupancy = airflow_reports(dice), occupancy_reports(dice)
    lines = [json.dumps(each) for each in reports]
    files = {
        "airflowReport.jsonl": "\n".join(lines),
        "airflowReport-with-bad-lines.jsonl": "\n".join(spoilt(lines)),
        "roomOccupancy.jsonl": "\n".join(json.dumps(each) for each in occupancy),
        **{f"annotations/{name}": json.dumps(each, indent=2) for name, each in annotations().items()},
        **{f"knowledge/{name}": text.rstrip("\n") for name, text in knowledge().items()},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((text + "\n").encode())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a small campus and its morning into a folder.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "data")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    write(chosen.folder, chosen.seed)
    print(f"wrote the campus into {chosen.folder}")


if __name__ == "__main__":
    main()
