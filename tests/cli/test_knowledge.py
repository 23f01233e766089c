"""`kaicep knowledge`: a summary, the concepts of streams, and PATHs to copy, over the campus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kaicep.cli.knowledge import _class_rows
from kaicep.cli.main import app
from kaicep.knowledge.store import Knowledge
from kaicep.knowledge.vocabulary import ClassUse, KnowledgeNames
from kaicep.plan.terms import Iri

DATA = Path(__file__).parents[2] / "examples" / "campus" / "data"
KNOWLEDGE = ("--knowledge", str(DATA / "knowledge"))
AIRFLOW = ("--annotation", str(DATA / "annotations" / "airflowReport.json"))
OCCUPANCY = ("--annotation", str(DATA / "annotations" / "roomOccupancy.json"))
ALL = (*KNOWLEDGE, *AIRFLOW, *OCCUPANCY)


def kaicep(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="kaicep")


def printed(*words: str) -> str:
    result = kaicep("knowledge", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def from_json(*words: str) -> Any:
    return json.loads(printed(*words, "--json"))


def test_bare_it_lists_its_commands() -> None:
    result = kaicep("knowledge")
    said = result.stdout + result.stderr
    assert re.findall(r"^  (\w+)  +\S", said, re.M) == ["summary", "concepts", "path"]
    assert "..." not in said.split("Commands:")[1]


# --- summary ---------------------------------------------------------------------------------------


def test_summary() -> None:
    assert (
        re.sub(r"\d+\.\d+ s", "0.00 s", printed("summary", *ALL))
        == """\
400 statements, 639 with what follows from them (rdfs), in 0.00 s

classes and their instances
  ee:Equipment               61
    ee:Sensor                60
      ee:AirflowSensor       60
        ee:VavAirflowSensor  42
    ee:Meter                  1
      ee:AirHandlerMeter      1
  bd:Room                    42
    bd:Office                18
      bd:FacultyOffice        9
      bd:StaffOffice          3
    bd:MeetingRoom           12
      bd:ConferenceRoom       6
    bd:Laboratory             6
      bd:ComputerLaboratory   3
      bd:WetLaboratory        3
    bd:LectureHall            6
  bd:Building                 3
  org:Department              3
  evt:Event                   0
    evt:AirflowReport         0
    evt:RoomOccupancy         0

properties, how often they are used, and between what
  bd:belongsTo       42  bd:Room -> org:Department
  bd:hasLocation     61  ee:Equipment -> bd:Room
  bd:partOf          42  bd:Room -> bd:Building
  bd:roomNumber      42  bd:Room -> xsd:string
  ee:madeBy          61  ee:Equipment -> (no class)
  evt:hasRoom         0
  evt:hasSource       0
  evt:hasTime         0
  hvc:airflow         0
  hvc:flowrate        0
  hvc:hasValue        1  (no class) -> xsd:integer
  hvc:supplyAirflow   0
  rdfs:label          9  (no class) or bd:Building or org:Department -> xsd:string
"""
    )


def test_summary_without_reasoning_counts_what_is_stated() -> None:
    made = from_json("summary", *ALL, "--reasoning", "none")
    instances = {each["name"]: each["instances"] for each in made["classes"]}
    assert (made["statements"], made["closed"]) == (400, 400)
    assert (instances["bd:Office"], instances["bd:FacultyOffice"]) == (6, 9)


def test_summary_as_json() -> None:
    made = from_json("summary", *ALL)
    assert list(made) == [
        "statements", "closed", "passing", "reasoning", "seconds", "classes", "properties", "warnings"
    ]  # fmt: skip
    assert {
        "name": "bd:Office",
        "iri": "http://cei.usc.edu/Building.owl#Office",
        "instances": 18,
        "above": ["bd:Room"],
    } in made["classes"]
    assert {
        "name": "bd:partOf",
        "iri": "http://cei.usc.edu/Building.owl#partOf",
        "uses": 42,
        "subjects": ["bd:Room"],
        "objects": ["bd:Building"],
    } in made["properties"]


def test_summary_tells_what_is_odd(tmp_path: Path) -> None:
    file = tmp_path / "odd.ttl"
    file.write_text("<urn:o> <http://www.w3.org/2002/07/owl#imports> <urn:elsewhere> .")
    result = kaicep("knowledge", "summary", "--knowledge", str(file))
    assert result.exit_code == 0
    assert "warning: <urn:o> imports <urn:elsewhere>, which is not loaded" in result.stderr
    made = kaicep("knowledge", "summary", "--knowledge", str(file), "--json")
    assert json.loads(made.stdout)["warnings"] == ["<urn:o> imports <urn:elsewhere>, which is not loaded"]


def test_of_very_many_classes_those_in_use_are_shown() -> None:
    """A hundred leaves below a hundred branches, one of them with instances far down."""
    top = Iri("urn:Top")
    classes = [ClassUse(top, 7)]
    for number in range(100):
        branch = Iri(f"urn:B{number:02}")
        classes.append(ClassUse(branch, 7 if number == 93 else 0, (top,)))
        classes += [
            ClassUse(Iri(f"urn:L{number:02}x{leaf:02}"), 7 if number == leaf == 93 else 0, (branch,))
            for leaf in range(100)
        ]
    rows = _class_rows(classes, KnowledgeNames(Knowledge.empty()))
    assert rows[:3] == [("<urn:Top>", "7"), ("  <urn:B93>", "7"), ("    <urn:L93x93>", "7")]
    assert len(rows) == 61
    assert rows[-1] == ("... and 10,041 more, see --json",)


def test_classes_in_a_circle_are_shown_all_the_same() -> None:
    one, other = Iri("urn:A"), Iri("urn:B")
    rows = _class_rows(
        [ClassUse(one, 1, (other,)), ClassUse(other, 1, (one,))], KnowledgeNames(Knowledge.empty())
    )
    assert rows == [("<urn:A>", "1"), ("<urn:B>", "1")]


# --- concepts --------------------------------------------------------------------------------------


def test_concepts() -> None:
    assert (
        printed("concepts", *ALL)
        == """\
airflowReport (evt:AirflowReport)
  flowrate   hvc:airflow
  airvolume  hvc:airflow
  flow_cfm   hvc:supplyAirflow
  sensorID   evt:hasSource -> ee:{value}, 61 known

roomOccupancy (evt:RoomOccupancy)
  room  evt:hasRoom -> by bd:roomNumber, 42 known

what is read from where
  ?e.evt:hasRoom        roomOccupancy: room
  ?e.evt:hasSource      airflowReport: sensorID
  ?e.hvc:airflow        airflowReport: flowrate, airvolume, flow_cfm
  ?e.hvc:flowrate       airflowReport: flowrate, airvolume, flow_cfm
  ?e.hvc:supplyAirflow  airflowReport: flow_cfm
"""
    )


def test_concepts_that_no_stream_carries() -> None:
    assert printed("concepts", *KNOWLEDGE, *AIRFLOW).endswith("""

no stream carries
  evt:hasRoom

no stream has events of
  evt:RoomOccupancy
""")


def test_concepts_as_json() -> None:
    made = from_json("concepts", *KNOWLEDGE, *AIRFLOW)
    assert made["streams"]["airflowReport"] == {
        "class": "evt:AirflowReport",
        "attributes": {
            "flowrate": "hvc:airflow",
            "airvolume": "hvc:airflow",
            "flow_cfm": "hvc:supplyAirflow",
        },
        "entities": {
            "sensorID": {
                "property": "evt:hasSource",
                "iri": "http://cei.usc.edu/Equipment.owl#{value}",
                "known": 61,
            }
        },
    }
    assert made["carriers"]["hvc:supplyAirflow"] == {"airflowReport": ["flow_cfm"]}
    assert (made["missing"], made["silent"]) == (["evt:hasRoom"], ["evt:RoomOccupancy"])


# --- path ------------------------------------------------------------------------------------------


def test_path_from_a_stream() -> None:
    assert (
        printed("path", "airflowReport", "org:EEDepartment", *ALL)
        == """\
# holds for 25 of the 61 that ?sensor may be
PATH {?e evt:hasSource ?sensor . ?sensor bd:hasLocation ?location . ?location bd:belongsTo org:EEDepartment}
"""
    )


def test_path_from_a_class_with_the_prefixes_of_the_files_alone() -> None:
    assert (
        printed("path", "ee:Meter", "bd:Building", *KNOWLEDGE)
        == """\
PREFIX bd: <http://cei.usc.edu/Building.owl#>
PREFIX ee: <http://cei.usc.edu/Equipment.owl#>

# holds for 1 of the 1 that ?meter may be
PATH {?meter rdf:type ee:Meter . ?meter bd:hasLocation ?location . ?location bd:partOf ?building . \
?building rdf:type bd:Building}
"""
    )


def test_path_between_things_and_to_what_the_event_says_itself() -> None:
    assert (
        printed("path", "ee:RTH101VOL", "<http://cei.usc.edu/Building.owl#RTH>", *ALL)
        == """\
# holds
PATH {ee:RTH101VOL bd:hasLocation ?location . ?location bd:partOf bd:RTH}
"""
    )
    assert (
        printed("path", "airflowReport", "hvc:airflow", *ALL)
        == """\
# holds for every event
PATH {?e hvc:airflow ?airflow}
"""
    )


def test_path_as_json() -> None:
    assert from_json("path", "ee:RTH101VOL", "bd:RTH101", *KNOWLEDGE) == [
        {
            "path": "PATH {ee:RTH101VOL bd:hasLocation bd:RTH101}",
            "prefixes": {
                "bd": "http://cei.usc.edu/Building.owl#",
                "ee": "http://cei.usc.edu/Equipment.owl#",
            },
            "holds": 1,
            "of": 1,
        }
    ]


@pytest.mark.parametrize(
    "end", ["org:EEDepartment", "bd:MeetingRoom", "bd:roomNumber", "ee:VendorB", "bd:RTH"]
)
def test_a_path_is_copied_into_a_query_and_finds_events(tmp_path: Path, end: str) -> None:
    query = tmp_path / "copied.chi"
    found = printed("path", "airflowReport", end, *ALL)
    query.write_text(f"SELECT ?e.sensorID FROM (?e, airflowReport)\n{found}")
    events = tmp_path / "airflowReport.jsonl"
    events.write_text("".join((DATA / "airflowReport.jsonl").open().readlines()[:200]))
    result = kaicep("match", str(query), "--stream", f"airflowReport={events}", *ALL)
    assert (result.exit_code, "warning" in result.stderr) == (0, False)
    assert result.stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("path", "airflowReprt", "bd:Office", *ALL), 2, "help: did you mean airflowReport?"),
        (("path", "airflowReport", "bd:Offce", *ALL), 2, "help: did you mean bd:Office"),
        (("path", "airflowReport", "Office", *ALL), 2, "help: did you mean bd:Office?"),
        (("path", "airflowReport", "bdd:Office", *ALL), 2, "help: did you mean bd:?"),
        (("path", "airflowReport", "bd:Office", *AIRFLOW), 2, "no knowledge is given"),
        (("path", "org:EEDepartment", "hvc:GreenOfficeAirflow", *ALL), 1, "there is no way from"),
        (("summary",), 2, "no knowledge is given"),
        (("concepts", *KNOWLEDGE), 2, "nothing is annotated"),
        (("summary", *KNOWLEDGE, "--reasoning", "owl"), 2, "choose one of none, rdfs, owl-rl"),
        (("summary", "--knowledge", "nowhere.ttl"), 2, "cannot read --knowledge nowhere.ttl"),
    ],
)
def test_what_goes_wrong(words: tuple[str, ...], status: int, message: str) -> None:
    result = kaicep("knowledge", *words)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr
