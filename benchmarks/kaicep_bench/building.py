"""A building: two points of one piece of equipment in one PATH, against the same rule in stages by hand.

The model has Brick's shape: air handlers that feed terminal units that feed rooms, each with its points. The
readings are two days of all points, one every quarter of an hour. Both forms must find the same pairs.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

from kaicep.api import FiniteRun, build_run, open_run, parse_query
from kaicep.connectors.files import StreamData
from kaicep.errors import Failure, SourceText
from kaicep.examples.building.generate import write
from kaicep.knowledge.annotation import parse_annotations
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Event, Match
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type
from kaicep_bench.table import Cell, Report, Table

__all__ = ["Size", "measure", "model", "packed_rules", "readings"]

PREFIXES = {"brick": "https://brickschema.org/schema/Brick#", "b": "urn:building:", "evt": "urn:event:"}
UNITS, TURNS = 100, 3
STATEMENTS = 204_708
DAYS, EVERY = 2, 15
AHU_POINTS = (
    "Supply_Air_Temperature_Sensor",
    "Supply_Air_Temperature_Setpoint",
    "Return_Air_Temperature_Sensor",
    "Outside_Air_Temperature_Sensor",
    "Supply_Fan_Status",
    "Heating_Valve_Command",
    "Cooling_Valve_Command",
    "Outside_Air_Damper_Command",
)
UNIT_POINTS = (
    "Zone_Air_Temperature_Sensor",
    "Heating_Setpoint",
    "Cooling_Setpoint",
    "Supply_Air_Flow_Sensor",
    "Supply_Air_Flow_Setpoint",
    "Damper_Position_Command",
    "Damper_Position_Sensor",
    "Heating_Valve_Command",
    "Cooling_Valve_Command",
    "Discharge_Air_Temperature_Sensor",
    "Occupancy_Sensor",
    "CO2_Sensor",
)
CLASSES = """
brick:Sensor rdfs:subClassOf brick:Point . brick:Setpoint rdfs:subClassOf brick:Point .
brick:Command rdfs:subClassOf brick:Point . brick:Status rdfs:subClassOf brick:Point .
brick:AHU owl:equivalentClass brick:Air_Handler_Unit .
brick:Air_Handler_Unit rdfs:subClassOf brick:Equipment .
brick:VAV rdfs:subClassOf brick:Terminal_Unit . brick:Terminal_Unit rdfs:subClassOf brick:Equipment .
brick:hasPoint owl:inverseOf brick:isPointOf . brick:feeds owl:inverseOf brick:isFedBy .
"""
ANNOTATION = {
    "prefixes": PREFIXES,
    "stream": "readings",
    "class": "evt:Reading",
    "types": {"point": "string", "value": "float64"},
    "attributes": {"value": "evt:value"},
    "entities": {"point": {"property": "evt:of", "iri": "b:{value}"}},
}


@dataclass(frozen=True)
class Rule:
    """A rule in its natural form, and in stages by hand; the stages' last query finds what the rule finds."""

    name: str
    natural: str
    stages: tuple[tuple[str, str], ...]


def _stage(kind: str, level: str) -> str:
    return f"""SELECT ?e.point, ?e.value, ?u AS unit FROM (?e, readings) WHERE FILTER (?e.value {level})
        PATH {{?e evt:of ?p . ?p a brick:{kind} ; brick:isPointOf ?u . ?u a brick:VAV}}"""


def _pair(name: str, one: tuple[str, str], other: tuple[str, str], sequence: str, width: str) -> Rule:
    natural = f"""SELECT ?x.point, ?y.point AS other FROM (?x, readings), (?y, readings)
        WHERE FILTER (?x.value {one[1]}) FILTER (?y.value {other[1]}) {sequence} WINDOW (?x, ?y, {width})
        PATH {{?x evt:of ?p . ?p a brick:{one[0]} ; brick:isPointOf ?u . ?u a brick:VAV .
               ?y evt:of ?q . ?q a brick:{other[0]} ; brick:isPointOf ?u}}"""
    joined = f"""SELECT ?x.point, ?y.point AS other FROM (?x, first), (?y, second)
        WHERE JOIN (?x.unit = ?y.unit) {sequence} WINDOW (?x, ?y, {width})"""
    return Rule(name, natural, (("first", _stage(*one)), ("second", _stage(*other)), ("joined", joined)))


RULES = (
    _pair(
        "heats and cools",
        ("Heating_Valve_Command", "> 0.85"),
        ("Cooling_Valve_Command", "> 0.85"),
        "",
        "20min",
    ),
    _pair(
        "warm after the damper opened",
        ("Damper_Position_Command", "> 0.9"),
        ("Zone_Air_Temperature_Sensor", "> 0.9"),
        "SEQ (?x, ?y)",
        "2h",
    ),
)


# Rules for one run of all: two points of one unit, each time others.
FOURTEEN = (
    *RULES,
    *(
        _pair(f"{one} and {other}", (one, "> 0.9"), (other, "> 0.9"), sequence, width)
        for one, other in zip(UNIT_POINTS, (*UNIT_POINTS[5:], *UNIT_POINTS[:5]), strict=True)
        for sequence, width in (("SEQ (?x, ?y)", "1h"),)
    ),
)
ONTOLOGY = """
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> . @prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix skos: <http://www.w3.org/2004/02/skos/core#> . @prefix sh: <http://www.w3.org/ns/shacl#> .
@prefix o: <urn:ontology:> .
"""


@dataclass(frozen=True)
class Size:
    """How large the building is, and how many statements the ontology for loading has."""

    units: int
    days: int
    statements: int


def model(units: int = UNITS) -> tuple[str, list[str]]:
    """A building with so many terminal units, as Turtle; the names of its points."""
    lines = [f"@prefix {name}: <{iri}> ." for name, iri in PREFIXES.items()]
    lines += ["@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> ."]
    lines += ["@prefix owl: <http://www.w3.org/2002/07/owl#> .", CLASSES]
    kinds = dict.fromkeys((*AHU_POINTS, *UNIT_POINTS))
    lines += [f"brick:{kind} rdfs:subClassOf brick:{kind.rsplit('_', 1)[-1]} ." for kind in kinds]
    points: list[str] = []

    def add(equipment: str, some: Sequence[str]) -> None:
        for kind in some:
            point = f"{equipment}.{kind}"
            points.append(point)
            lines.append(
                f"<urn:building:{point}> a brick:{kind} ; brick:isPointOf <urn:building:{equipment}> ."
            )

    for number in range(units):
        ahu = number // 10
        if number % 10 == 0:
            lines.append(f"b:ahu{ahu} a brick:AHU .")
            add(f"ahu{ahu}", AHU_POINTS)
        lines.append(f"b:vav{number} a brick:VAV ; brick:isFedBy b:ahu{ahu} ; brick:feeds b:room{number} .")
        add(f"vav{number}", UNIT_POINTS)
    return "\n".join(lines), points


def ontology(statements: int) -> str:
    """An ontology with about so many statements, as Brick's are: classes with labels, tags and shapes."""
    rows = [ONTOLOGY]
    for number in range(40):
        rows.append(
            f"o:p{number} a owl:ObjectProperty ; rdfs:domain o:C{number} ; owl:inverseOf o:q{number} ."
        )
    count = 3 * 40
    number = 0
    while count < statements:
        above = f" ; rdfs:subClassOf o:C{(number - 1) // 6}" if number else ""
        tags = ", ".join(f"o:T{number % each}" for each in (97, 89, 83))
        rows.append(
            f'o:C{number} a owl:Class, sh:NodeShape{above} ; rdfs:label "Class {number} of things"@en ;'
            f' skos:definition "Number {number} of many things in a building, some of which are like it." ;'
            f" o:hasAssociatedTag {tags} ;"
            f" sh:property [ sh:path o:p{number % 40} ; sh:class o:C{number // 2} ;"
            f' sh:minCount 0 ; sh:message "a {number} has points" ] .'
        )
        count += 12 + bool(number)
        number += 1
    return "\n".join(rows)


def _loaded(statements: int) -> Iterator[dict[str, Cell]]:
    """Loading an ontology for the first time, and again."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "ontology.ttl")
        path.write_text(ontology(statements))
        before = os.environ.get("KAICEP_CACHE_DIR")
        os.environ["KAICEP_CACHE_DIR"] = folder
        try:
            for level in ("rdfs", "owl-rl"):
                taken = [Knowledge.load(path, reasoning=level) for _ in range(1 + TURNS)]
                again = statistics.median(each.seconds for each in taken[1:])
                yield {
                    "reasoning": level,
                    "statements": taken[0].asserted,
                    "closed": taken[0].closed,
                    "first load s": round(taken[0].seconds, 2),
                    "second load s": round(again, 3),
                    "goal": 0.5,
                }
        finally:
            if before is None:
                del os.environ["KAICEP_CACHE_DIR"]
            else:
                os.environ["KAICEP_CACHE_DIR"] = before


def readings(points: Sequence[str], days: int = DAYS, seed: int = 7) -> list[Event]:
    """A reading of each point every quarter of an hour, evenly between 0 and 1."""
    chance = random.Random(seed)
    start = parse_time("2026-01-05T00:00:00Z") or 0
    made: list[Event] = []
    for turn in range(days * 24 * 60 // EVERY):
        for place, point in enumerate(points):
            ts = start + turn * EVERY * 60_000_000 + place * 1_000
            made.append(Event("readings", 0, len(made), ts, {"point": point, "value": chance.random()}))
    return made


def measure(quick: bool = False) -> Report:
    """Runs both forms of each rule in turns."""
    size = Size(10, 1, 5_000) if quick else Size(UNITS, DAYS, STATEMENTS)
    text, points = model(size.units)
    events = readings(points, size.days)
    rows: list[dict[str, Cell]] = []
    for level in ("rdfs", "owl-rl"):
        knowledge = Knowledge.parse(text, reasoning=level)
        for rule in RULES:
            rows.append({"reasoning": level, **_compared(rule, knowledge, events)})
        taken, count = _taken(
            [(f"rule{n}", each.natural) for n, each in enumerate(FOURTEEN)], knowledge, events, None
        )
        every: dict[str, Cell] = {
            "rule": "fourteen rules at once",
            "natural s": round(taken, 3),
            "matches": count,
        }
        rows.append({"reasoning": level, **every})
    return Report(
        "building",
        [
            Table("two points of one piece of equipment", rows),
            Table("loading an ontology", list(_loaded(size.statements))),
            Table("the rules of `kaicep init --template building`, over its day", list(_packed())),
        ],
        [
            f"{len(points):,} points, {len(events):,} readings, {knowledge.asserted:,} triples",
            "natural: one PATH about two readings; stages: one query for each point, a third that joins them",
            f"medians of {TURNS} runs in turns, without reading files; both forms find the same pairs",
        ],
    )


def _packed() -> Iterator[dict[str, Cell]]:
    """The rules of the building that `kaicep init` makes, each alone and all at once."""
    for name, _, taken, matches in packed_rules():
        yield {"rule": name, "matches": matches, "s": round(taken, 3)}


def packed_rules(days: int = 1) -> Iterator[tuple[str, int, float, int]]:
    """By rule, and for all at once: how many readings, the median of the seconds, and how many matches.

    The pack has one day, which is repeated; in that day must be found what the pack says.
    """
    with as_file(files("kaicep.examples") / "building") as pack, TemporaryDirectory() as folder:
        write(Path(folder))
        expected = (pack / "expected.jsonl").read_text("utf-8").splitlines()
        queries = sorted((pack / "queries").glob("*.chi"))
        for some in (*([each] for each in queries), queries):
            run = open_run(
                some,
                [("trend", Path(folder, "data", "trend.csv"))],
                [Path(folder, "knowledge.ttl")],
                [pack / "annotations" / "trend.json"],
            )
            names = {each.stem for each in some}
            wanted = [each for each in expected if json.loads(each)["query"] in names]
            if [each.to_json() for each in run.matches()] != wanted:
                raise Failure(f"{', '.join(sorted(names))}: other matches than the pack expects")
            day = [event for batch in run.batches for event in batch]
            whole = replace(run, batches=[_on_day(day, number) for number in range(days)])
            taken: list[float] = []
            for _ in range(TURNS):
                started = time.perf_counter()
                count = len(whole.matches())
                taken.append(time.perf_counter() - started)
            name = some[0].stem if len(some) == 1 else "all at once"
            yield name, days * len(day), statistics.median(taken), count


def _on_day(events: list[Event], number: int) -> list[Event]:
    """The events of a day, so many days later."""
    later = number * 86_400_000_000
    return [replace(each, ts=each.ts + later, seq=each.seq + number * len(events)) for each in events]


def _compared(rule: Rule, knowledge: Knowledge, events: list[Event]) -> dict[str, Cell]:
    ways: dict[str, list[float]] = {"natural": [], "stages": []}
    found: dict[str, int] = {}
    for _ in range(TURNS):
        for way, queries, last in (
            ("natural", (("natural", rule.natural),), "natural"),
            ("stages", rule.stages, "joined"),
        ):
            taken, found[way] = _taken(queries, knowledge, events, last)
            ways[way].append(taken)
    if found["natural"] != found["stages"]:
        raise Failure(f"{rule.name}: {found['natural']} pairs, and by stages {found['stages']}")
    natural, stages = (statistics.median(ways[way]) for way in ("natural", "stages"))
    return {
        "rule": rule.name,
        "matches": found["natural"],
        "natural s": round(natural, 3),
        "stages s": round(stages, 3),
        "natural / stages": round(natural / stages, 2),
        "goal": 1.5,
    }


def _taken(
    queries: Sequence[tuple[str, str]], knowledge: Knowledge, events: list[Event], last: str | None
) -> tuple[float, int]:
    run = prepared(queries, knowledge, events)
    started = time.perf_counter()
    matches: list[Match] = run.matches()
    taken = time.perf_counter() - started
    return taken, sum(last is None or each.query == last for each in matches)


def prepared(queries: Sequence[tuple[str, str]], knowledge: Knowledge, events: list[Event]) -> FiniteRun:
    """Queries over the readings, resolved."""
    known = tuple(parse_annotations(ANNOTATION))
    attributes = (("point", Type.STRING), ("value", Type.FLOAT64))
    data = StreamData("readings", attributes, events)
    parsed = [parse_query(SourceText(f"{name}.chi", text), PREFIXES) for name, text in queries]
    return build_run(parsed, [data], known, knowledge)
