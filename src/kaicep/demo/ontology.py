"""What is known of a campus: one Turtle file for each domain, and the annotations of its streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kaicep.demo.campus import VENDORS, Campus

__all__ = ["NAMESPACES", "knowledge", "stream_annotations"]

NAMESPACES = {
    "bd": "http://cei.usc.edu/Building.owl#",
    "ee": "http://cei.usc.edu/Equipment.owl#",
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
}
"""The namespaces of the campus, by prefix."""
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
