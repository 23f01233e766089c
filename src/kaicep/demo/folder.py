"""The files of the demo: knowledge about its campus, annotations, queries, the deployment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from kaicep.connectors.records import Record
from kaicep.connectors.shape import Form, Schema, Shaper
from kaicep.demo.campus import VENDORS, Campus, SensorReport
from kaicep.errors import Mistake
from kaicep.knowledge.annotation import Annotation, parse_annotations
from kaicep.plan.events import Event
from kaicep.plan.types import Type

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
        "buildings.ttl": _turtle(("bd", "org"), _BUILDING, _buildings(campus)),
        "equipment.ttl": _turtle(("bd", "ee", "org"), _EQUIPMENT, _equipment(campus)),
        "hvac.ttl": _turtle(("bd", "ee", "hvc"), _HVAC, _hvac(campus)),
        "organization.ttl": _turtle(("bd", "org"), _ORGANIZATION, _organization(campus)),
        "events.ttl": _turtle(("evt",), _EVENT, ()),
    }


def _turtle(prefixes: Iterable[str], words: str, things: Iterable[str]) -> str:
    names = {**_GENERAL, **{each: NAMESPACES[each] for each in prefixes}}
    head = [f"@prefix {name}: <{iri}> ." for name, iri in names.items()]
    return "\n".join([*head, "", words, "", *things]) + "\n"


def _buildings(campus: Campus) -> Iterable[str]:
    for each in campus.buildings:
        hours = f"bd:opensAt {each.opens} ; bd:closesAt {each.closes}"
        yield f'bd:{each.code} a bd:Building ; rdfs:label "{each.label}" ; {hours} .'
    for room in campus.rooms:
        place = f'bd:partOf bd:{room.building.code} ; bd:roomNumber "{room.sign}"'
        yield f"bd:{room.name} a bd:{room.kind} ; {place} ; bd:belongsTo org:{room.department.name} ."


def _equipment(campus: Campus) -> Iterable[str]:
    for sensor in campus.sensors:
        place = f"bd:hasLocation bd:{sensor.room.name}"
        yield f"ee:{sensor.name} a ee:{sensor.kind} ; {place} ; ee:madeBy ee:Vendor{sensor.vendor} ."
    for meter, building in campus.meters.items():
        yield f"ee:{meter} a ee:BuildingMeter ; bd:hasLocation bd:{building.code} ."
    for each in campus.departments:
        yield f"ee:{each.meter} a ee:AccountMeter ; ee:paidBy org:{each.name} ."


def _hvac(campus: Campus) -> Iterable[str]:
    for fan, building in campus.fans.items():
        yield f"ee:{fan} a hvc:Fan ; hvc:serves bd:{building.code} ."


def _organization(campus: Campus) -> Iterable[str]:
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
