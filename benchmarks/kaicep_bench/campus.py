"""A campus of any size and its reports, made from a seed: what the example has, many times over."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kaicep.api import FiniteRun, build_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import SourceText
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event
from kaicep.plan.terms import Iri
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type

__all__ = ["HAS_LOCATION", "QUERY1", "QUERY5", "prepared", "reports", "room", "sensor", "turtle"]

BD, EE = "http://cei.usc.edu/Building.owl#", "http://cei.usc.edu/Equipment.owl#"
PREFIXES = {
    "bd": BD,
    "ee": EE,
    "hvc": "http://cei.usc.edu/HVAC.owl#",
    "org": "http://cei.usc.edu/Organization.owl#",
    "evt": "http://cei.usc.edu/Event.owl#",
}
HAS_LOCATION = Iri(BD + "hasLocation")
"""The property from a sensor to its room."""

# Queries 1 and 5 of the SCEPter paper (its section 3.2).
QUERY1 = "SELECT ?e.sensorID, ?e.flowrate FILTER (?e.flowrate > 500)"
"""Query 1 of the SCEPter paper: one attribute against a number."""
QUERY5 = """SELECT ?e.sensorID
PATH {?e evt:hasSource ?src . ?src rdf:type ee:AirflowSensor . ?src bd:hasLocation ?loc .
  ?loc rdf:type bd:Office . ?loc bd:belongsTo org:EEDepartment .
  ?e hvc:airflow ?rate . hvc:GreenOfficeAirflow hvc:hasValue ?gaf . FILTER (?rate > ?gaf)}"""
"""Query 5 of the SCEPter paper: the same, of the offices of a department."""

ANNOTATION = {
    "prefixes": PREFIXES,
    "stream": "airflowReport",
    "class": "evt:AirflowReport",
    "time": "timestamp",
    "types": {"sensorID": "string", "flowrate": "float64"},
    "attributes": {"flowrate": "hvc:airflow"},
    "entities": {"sensorID": {"property": "evt:hasSource", "iri": "ee:{value}"}},
}
SCHEMA = """
bd:Office rdfs:subClassOf bd:Room . bd:FacultyOffice rdfs:subClassOf bd:Office .
bd:StaffOffice rdfs:subClassOf bd:Office . bd:MeetingRoom rdfs:subClassOf bd:Room .
bd:Laboratory rdfs:subClassOf bd:Room . bd:hasLocation rdfs:range bd:Room .
ee:Sensor rdfs:subClassOf ee:Equipment . ee:AirflowSensor rdfs:subClassOf ee:Sensor .
ee:VavAirflowSensor rdfs:subClassOf ee:AirflowSensor . ee:Meter rdfs:subClassOf ee:Equipment .
evt:AirflowReport rdfs:subClassOf evt:Event .
hvc:GreenOfficeAirflow hvc:hasValue 500 .
"""
ROOMS = ("FacultyOffice", "StaffOffice", "Office", "MeetingRoom", "Laboratory")
SENSORS = ("AirflowSensor", "VavAirflowSensor", "VavAirflowSensor", "Meter")
DEPARTMENTS = ("EE", "CS", "CE", "ME", "CH", "BM", "IS", "AE")


def room(number: int) -> Iri:
    """A room by its number."""
    return Iri(f"{BD}R{number}")


def sensor(number: int) -> Iri:
    """A sensor by its number."""
    return Iri(f"{EE}S{number}")


def turtle(sensors: int, seed: int = 7) -> str:
    """The knowledge of a campus with so many sensors, and a room for every five of them."""
    chance = random.Random(seed)
    rooms = max(sensors // 5, 1)
    lines = [f"@prefix {name}: <{iri}> ." for name, iri in PREFIXES.items()]
    lines += ["@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .", SCHEMA]
    for number in range(rooms):
        floor, place = divmod(number, len(DEPARTMENTS))
        kind, department = ROOMS[floor % len(ROOMS)], DEPARTMENTS[place]
        lines.append(f"bd:R{number} a bd:{kind} ; bd:belongsTo org:{department}Department .")
    for number in range(sensors):
        lines.append(
            f"ee:S{number} a ee:{chance.choice(SENSORS)} ; bd:hasLocation bd:R{chance.randrange(rooms)} ."
        )
    return "\n".join(lines)


def reports(sensors: int, events: int, rate: int, seed: int = 7) -> list[Event]:
    """Airflow reports, so many a second of event time.

    The paper's sensors report every one to fifteen minutes, each in its own rhythm; so do these, only
    faster, so that some are heard of fifteen times as often as others.
    """
    chance = random.Random(seed)
    weights = [1 / 15 ** chance.random() for _ in range(sensors)]
    chosen = chance.choices(range(sensors), weights, k=events)
    start = parse_time("2012-05-07T09:00:00Z") or 0
    return [
        Event(
            "airflowReport",
            0,
            seq,
            start + seq * 1_000_000 // rate,
            {"sensorID": f"S{number}", "flowrate": round(chance.gauss(400.0, 80.0), 1)},
        )
        for seq, number in enumerate(chosen)
    ]


def prepared(query: str, knowledge: Knowledge, events: Sequence[Event], name: str = "query") -> FiniteRun:
    """A query over the reports, resolved."""
    known = tuple(parse_annotations(ANNOTATION))
    attributes = (("sensorID", Type.STRING), ("flowrate", Type.FLOAT64))
    data = StreamData("airflowReport", attributes, list(events))
    return build_run([parse_query(SourceText(f"{name}.chi", query), PREFIXES)], [data], known, knowledge)
