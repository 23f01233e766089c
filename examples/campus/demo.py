"""`make demo`: the campus of this folder, twelve queries, and what they find, in words.

python examples/campus/demo.py
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from kaicep.api import Run, open_run
from kaicep.plan.events import Match
from kaicep.plan.time import format_time

CAMPUS = Path(__file__).resolve().parent
DATA = CAMPUS / "data"
KNOWLEDGE = sorted((DATA / "knowledge").glob("*.ttl"))
SHOWN = 3

# The queries of the paper name no stream: they are for a run that knows one.
OF_THE_PAPER = {
    "query1": "Above 500 cfm, by the name that vendor A gives to the airflow",
    "query1-semantic": "Above 500 cfm, whatever the vendor calls it",
    "query2": "Above 500 cfm on the average of five minutes, over the campus",
    "query3": "Above 500 cfm, and within five minutes another 50 up",
    "query4": "An office of Electrical Engineering above 500 cfm",
    "query5": "An office of Electrical Engineering above what the ontology calls green",
    "query6": "The offices of Electrical Engineering above 500 cfm on the average of five minutes",
    "query7": "A meeting room above 500 cfm, and within five minutes another 50 up",
}
OUR_OWN = {
    "silent": "A sensor says nothing for ten minutes",
    "rising": "Three readings, each at least 25 cfm above the one before",
    "disagree": "Two sensors of one room differ by more than 200 cfm",
    "empty-but-cooled": "A meeting room is empty and cooled all the same",
}

WHERE = """
PREFIX bd: <http://cei.usc.edu/Building.owl#>
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
SELECT ?room ?number ?kind ?department ?sensor WHERE {
  ?room bd:roomNumber ?number ; a ?kind ; bd:belongsTo/rdfs:label ?department .
  OPTIONAL { ?sensor bd:hasLocation ?room }
}
"""


def places() -> dict[str, str]:
    """What to call a room, by its IRI and by the names of its sensors."""
    from pyoxigraph import Store

    store = Store()
    for path in KNOWLEDGE:
        store.load(path=str(path))
    found = {}
    for room, number, kind, department, sensor in store.query(WHERE):
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.value.rpartition("#")[2]).lower()
        found[room.value] = f"{number.value}, {words} of {department.value}"
        if sensor is not None:
            found[sensor.value.rpartition("#")[2]] = found[room.value]
    return found


def line(match: Match, known: dict[str, str]) -> str:
    """One match in one line: when, where, and what was selected."""
    start, end = (format_time(each)[11:19] for each in (match.start, match.end))
    where = match.select.get("room") or match.select.get("sensorID")
    parts = [f"{start} to {end}" if start != end else start]
    if where is not None:
        parts.append(known.get(where, "a place that the knowledge does not know"))
    parts.append(
        ", ".join(f"{name} {shown(value)}" for name, value in match.select.items() if name != "room")
    )
    return "  ".join(parts)


def shown(value: object) -> str:
    """A selected value, short."""
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    return text[11:19] if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", text) else text


def open_query(name: str, streams: list[str]) -> Run:
    """A query over streams of this folder, ready to run."""
    return open_run(
        queries=[CAMPUS / "queries" / f"{name}.chi"],
        streams=[(each, DATA / f"{each}.jsonl") for each in streams],
        knowledge=KNOWLEDGE,
        annotations=[DATA / "annotations" / f"{each}.json" for each in streams],
    )


def tell(name: str, title: str, matches: list[Match], known: dict[str, str]) -> None:
    """Prints what a query found."""
    print(f"\n{title}  [{name}, {len(matches)} matches]", flush=True)
    for match in matches[:SHOWN]:
        print(f"  {line(match, known)}", flush=True)
    if len(matches) > SHOWN:
        print(f"  ... and {len(matches) - SHOWN} more", flush=True)


COMMANDS = """
Try next, here in the root of the repository:

  .venv/bin/kaicep match examples/campus/queries/query7.chi --out table \\
      --stream airflowReport=examples/campus/data/airflowReport.jsonl \\
      --annotation examples/campus/data/annotations/airflowReport.json \\
      --knowledge examples/campus/data/knowledge/building.ttl \\
      --knowledge examples/campus/data/knowledge/equipment.ttl

  .venv/bin/kaicep explain examples/campus/queries/query7.chi \\
      --annotation examples/campus/data/annotations/airflowReport.json

  .venv/bin/kaicep match examples/campus/queries/query1-semantic.chi --dead-letters /tmp/bad.jsonl \\
      --stream airflowReport=examples/campus/data/airflowReport-with-bad-lines.jsonl \\
      --annotation examples/campus/data/annotations/airflowReport.json"""


def main() -> None:
    """The demo."""
    logging.getLogger("kaicep").setLevel(logging.ERROR)  # what is unknown is told once, at the end
    began = time.perf_counter()
    known = places()
    print("A morning on a small campus, 7 May 2012: airflow sensors of three vendors, and what is known of")
    print("the rooms that they are in.")
    matches = events = 0
    unknown: set[str] = set()
    plan = [(name, title, ["airflowReport"]) for name, title in OF_THE_PAPER.items()]
    plan += [(name, title, ["airflowReport", "roomOccupancy"]) for name, title in OUR_OWN.items()]
    for name, title, streams in plan:
        run = open_query(name, streams)
        found = run.matches("inprocess")
        tell(name, title, found, known)
        matches += len(found)
        events = sum(len(each.events) for each in run.streams)
        unknown |= {value for _, value in run.unknown}
    took = time.perf_counter() - began
    print(f"\n{len(plan)} queries over {events} events: {matches} matches in {took:.1f} s, in this process.")
    for each in sorted(unknown):
        print(f"The knowledge does not know {each}: what asks for its room does not find it.")
    print(COMMANDS)


if __name__ == "__main__":
    main()
