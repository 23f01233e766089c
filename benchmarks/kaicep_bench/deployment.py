"""A whole deployment: 1 to 1,000 mixed queries, from Parquet, JSON Lines and a broker, with an archive.

The queries are the campus's shapes with other levels, departments and kinds of rooms. Each run is a process
of its own that runs `Deployment` to the end of its source, so that its memory is its own. Then: how long from
an event's line in a followed file to its match in the sink, at 10,000 events a second; and catching up with
the same events from the source (a deployment that was down) beside from the archive (a query that is new).
A broker is measured where KAICEP_BENCH_KAFKA names its servers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.deployment.config import load_config
from kaicep.deployment.running import Deployment
from kaicep.errors import Failure
from kaicep.plan.time import parse_time
from kaicep.processes import bound
from kaicep_bench.campus import ANNOTATION, DEPARTMENTS, turtle
from kaicep_bench.memory import Peak
from kaicep_bench.table import Cell, Report, Table

if TYPE_CHECKING:
    import pyarrow

__all__ = ["made_source", "measure", "mixed", "work", "written_down"]

SENSORS = 2_000
RATE = 600
START = parse_time("2012-05-07T09:00") or 0
SERVERS = "KAICEP_BENCH_KAFKA"

_PLACE = """?{0} evt:hasSource ?{0}s . ?{0}s bd:hasLocation ?{0}r . ?{0}r rdf:type bd:KIND .
?{0}r bd:belongsTo org:DEPARTMENT"""


def _placed(variable: str) -> str:
    """That an event comes from a sensor in a kind of room of a department."""
    return _PLACE.format(variable)


SHAPES: Mapping[str, str] = {
    "filter": "SELECT ?e.sensorID, ?e.flowrate FROM (?e, airflowReport) FILTER (?e.flowrate > HIGH)",
    "average": """SELECT AVG(?e.flowrate) > MEAN AS average FROM (?e, airflowReport)
WINDOW (?e, sliding, 5min)""",
    "rise": """SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport) FILTER (?a.flowrate > LEVEL)
JOIN (?b.sensorID = ?a.sensorID) JOIN (?b.flowrate - ?a.flowrate > 50) SEQ (?a, ?b) WINDOW (?a, ?b, 5min)""",
    "department": f"""SELECT ?e.sensorID FROM (?e, airflowReport) FILTER (?e.hvc:airflow > LEVEL)
PATH {{{_placed("e")}}}""",
    "green": f"""SELECT ?e.sensorID FROM (?e, airflowReport) FILTER (?e.flowrate > LEVEL)
PATH {{{_placed("e")} . ?e hvc:airflow ?rate .
hvc:GreenOfficeAirflow hvc:hasValue ?green . FILTER (?rate > ?green)}}""",
    "department average": f"""SELECT AVG(?e.flowrate) > MEAN AS average FROM (?e, airflowReport)
WINDOW (?e, sliding, 5min) PATH {{{_placed("e")}}}""",
    "semantic rise": f"""SELECT ?a.sensorID FROM (?a, airflowReport), (?b, airflowReport)
FILTER (?a.flowrate > LEVEL) JOIN (?b.sensorID = ?a.sensorID) JOIN (?b.flowrate - ?a.flowrate > 50)
SEQ (?a, ?b) WINDOW (?a, ?b, 5min) PATH {{{_placed("a")}}} PATH {{{_placed("b")}}}""",
    "disagree": """SELECT ?room FROM (?high, airflowReport), (?low, airflowReport)
FILTER (?high.hvc:airflow > LEVEL) FILTER (?low.hvc:airflow < 200) WINDOW (?high, ?low, 2min)
PATH {?high evt:hasSource ?one . ?one bd:hasLocation ?room . ?room bd:belongsTo org:DEPARTMENT .
?low evt:hasSource ?other . ?other bd:hasLocation ?room}""",
    "three up": """SELECT ?a.sensorID, LAST(?up.flowrate) AS reached
FROM (?a, airflowReport), (?up, airflowReport)
FILTER (?a.flowrate > LEVEL) FILTER (?up.flowrate >= PREV(?up.flowrate) + 10) SEQ (?a, ?up{2}) MATCH strict
WINDOW (?a, ?up, 15min) PARTITION BY ?a.sensorID""",
    "silent": f"""SELECT ?last.sensorID FROM (?last, airflowReport), (?next, airflowReport)
FILTER (?last.flowrate > LEVEL) SEQ (?last, !?next) WINDOW (?last, ?next, WAIT)
PARTITION BY ?last.sensorID PATH {{{_placed("last")}}}""",
}
"""The campus's queries by shape, with their constants left open."""

_KINDS = ("Office", "MeetingRoom", "Laboratory", "FacultyOffice", "StaffOffice")


def mixed(number: int) -> dict[str, str]:
    """So many queries, shape after shape, each with constants of its own.

    >>> list(mixed(2)), mixed(1)["filter-0"][-6:]
    (['filter-0', 'average-1'], '660.0)')
    """
    made: dict[str, str] = {}
    for index, (name, text) in zip(range(number), itertools.cycle(SHAPES.items()), strict=False):
        turn = index // len(SHAPES)
        constants = {
            "HIGH": 660.0 + turn % 50 / 2,
            "MEAN": 430.0 + turn % 50 / 10,
            "LEVEL": 600.0 + turn % 60,
            "WAIT": f"{600 + turn % 60}s",
            "KIND": _KINDS[turn % len(_KINDS)],
            "DEPARTMENT": f"{DEPARTMENTS[turn % len(DEPARTMENTS)]}Department",
        }
        for word, value in constants.items():
            text = text.replace(word, str(value))
        made[f"{name.replace(' ', '-')}-{index}"] = text
    return made


def measure(quick: bool = False) -> Report:
    """The throughput by number of queries and source, the delay, and catching up."""
    numbers = (1, 10) if quick else (1, 10, 100, 1_000)
    counts = {number: 3_000 if quick else max(100_000, 2_000_000 // number) for number in numbers}
    kinds = ["parquet", "jsonl", *(["kafka"] if os.environ.get(SERVERS) else [])]
    through: list[dict[str, Cell]] = []
    for number, kind in itertools.product(numbers, kinds):
        through.append(_through(number, kind, counts[number]))
    agreed = {(row["queries"], row["matches"]) for row in through}
    if len(agreed) != len(numbers):
        raise Failure(f"the sources give different matches: {sorted(agreed)}")
    delay = [
        _process(
            {"what": "delay", "queries": 13, "rate": 500 if quick else 10_000, "seconds": 3 if quick else 20}
        )
    ]
    again = [
        _process({"what": "catch up", "queries": number, "kind": kind, "count": counts[number]})
        for number in numbers[1:-1] or numbers[-1:]
        for kind in ("parquet", "jsonl")
    ]
    notes = [
        f"{len(SHAPES)} shapes in turn, {SENSORS:,} sensors, {RATE} events a second by their times",
        "from the opening of the deployment to its end, with the start of its queries; matches go to a file",
        "start: the same queries over one event; after the start: events a second of the rest of the time",
        "delay: from the write of a line to a followed file until its match is in the sink's file",
        "catching up: the same events by a deployment that comes back, and by a new query over the archive",
        *([] if len(kinds) == 3 else [f"without a broker: {SERVERS} does not name one"]),
    ]
    tables = [Table("throughput", through), Table("delay", delay), Table("catching up", again)]
    return Report("deployment", tables, notes)


def _through(number: int, kind: str, count: int) -> dict[str, Cell]:
    return _process({"what": "throughput", "queries": number, "kind": kind, "count": count})


def _process(task: Mapping[str, Any]) -> dict[str, Cell]:
    """Runs a task in a process of its own."""
    command = [sys.executable, "-c", "from kaicep_bench.deployment import work; work()"]
    done = subprocess.run(bound(command), input=json.dumps(task), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"{task}: the process failed: {done.stderr[-600:]}")
    found: dict[str, Cell] = json.loads(done.stdout.splitlines()[-1])
    return found


def work() -> None:
    """What a process does that was started for a task: reads it, runs it, tells its figures."""
    task = json.loads(sys.stdin.read())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        found = {"throughput": _run_through, "delay": _run_delay, "catch up": _run_again}[task["what"]](
            task, place
        )
    sys.stdout.write(json.dumps(found) + "\n")


def _run_through(task: Mapping[str, Any], place: Path) -> dict[str, Cell]:
    path = written_down(place, task["queries"], made_source(place, task["kind"], task["count"]))
    _warm(place / "warm", task["queries"])
    start, _ = _ran(
        written_down(place / "start", task["queries"], made_source(place / "start", "parquet", 1))
    )
    with Peak() as peak:
        seconds, matches = _ran(path)
    return {
        "queries": task["queries"],
        "source": task["kind"],
        "events": task["count"],
        "matches": matches,
        "s": round(seconds, 2),
        "start s": round(start, 2),
        "events/s": round(task["count"] / seconds),
        "after the start": round(task["count"] / max(seconds - start, 0.001)),
        "peak MB": round(peak.bytes / 1e6),
    }


def _warm(place: Path, queries: int) -> None:
    """Runs some events, so that what is compiled at first use is."""
    _ran(written_down(place, min(queries, len(SHAPES)), made_source(place, "parquet", 2_000)))


def _ran(path: Path) -> tuple[float, int]:
    begun = time.perf_counter()
    deployment = Deployment(load_config(path))
    deployment.run()
    seconds = time.perf_counter() - begun
    return seconds, sum(each.written for each in deployment.outlets.values())


def _run_delay(task: Mapping[str, Any], place: Path) -> dict[str, Cell]:
    """Writes lines at a rate, and sees when the matches of some of them, by the first query, are out."""
    file = place / "reports.jsonl"
    file.touch()
    source = f'{{kind = "files", path = "{file}", follow = true}}'
    path = written_down(place, task["queries"], source, tick="20ms")
    deployment = Deployment(load_config(path))
    written: dict[int, float] = {}
    seen: dict[int, float] = {}

    def listen(found: Any) -> None:
        now = time.monotonic()
        for _, match in found:
            if match.query.startswith("filter-0"):
                seen[match.events["e"]["seq"]] = now

    deployment.listeners.append(listen)
    thread = threading.Thread(target=deployment.run, args=(task["seconds"] + 15.0,))
    thread.start()
    steps = task["rate"] // 100
    lines = list(_lines(_rows(0, task["rate"] * task["seconds"])))
    lines[::steps] = [json.dumps({**json.loads(each), "flowrate": 999.0}) for each in lines[::steps]]
    begun = time.monotonic()
    with file.open("a", encoding="utf-8") as out:
        for count in range(0, len(lines), steps):
            time.sleep(max(0.0, begun + count / task["rate"] - time.monotonic()))
            out.write("\n".join(lines[count : count + steps]) + "\n")
            out.flush()
            written[count] = time.monotonic()
    now, count = time.monotonic(), len(lines)
    last = max(written)
    while last not in seen and thread.is_alive():
        time.sleep(0.05)
    deployment.stop()
    thread.join()
    settled = [seq for seq in written if seq > count // 4 and seq in seen]
    waits = sorted(seen[seq] - written[seq] for seq in settled)
    return {
        "queries": task["queries"],
        "events/s": round(count / (now - begun)),
        "p50 ms": round(waits[len(waits) // 2] * 1e3, 1),
        "p99 ms": round(waits[int(len(waits) * 0.99)] * 1e3, 1),
    }


def _run_again(task: Mapping[str, Any], place: Path) -> dict[str, Cell]:
    """Answers everything from the source, then once more, by queries of other names, from the archive."""
    source = made_source(place, task["kind"], task["count"])
    path = written_down(place, task["queries"], source)
    _warm(place / "warm", task["queries"])
    from_source, matches = _ran(path)
    for each in (place / "queries").iterdir():
        each.rename(each.with_stem(f"again-{each.stem}"))
    begun = time.perf_counter()
    deployment = Deployment(load_config(path))
    deployment.run()
    from_archive = time.perf_counter() - begun
    found = sum(each.written for each in deployment.outlets.values())
    if found != matches:
        raise Failure(f"{matches} matches from the source, {found} from the archive")
    return {
        "queries": task["queries"],
        "source": task["kind"],
        "events": task["count"],
        "source s": round(from_source, 2),
        "archive s": round(from_archive, 2),
        "source / archive": round(from_source / from_archive, 2),
    }


# --- what is run --------------------------------------------------------------------------------------------


def written_down(place: Path, queries: int, source: str, tick: str = "250ms") -> Path:
    """Writes a deployment down; returns its file."""
    (place / "queries").mkdir(parents=True)
    for name, text in mixed(queries).items():
        (place / "queries" / f"{name}.chi").write_text(text, "utf-8")
    (place / "campus.ttl").write_text(turtle(SENSORS), "utf-8")
    (place / "airflowReport.json").write_text(json.dumps(ANNOTATION), "utf-8")
    path = place / "kaicep.toml"
    path.write_text(
        f"""name = "bench"
tick = "{tick}"
[knowledge]
files = ["campus.ttl"]
[queries]
folder = "queries"
[streams.airflowReport]
annotation = "airflowReport.json"
lateness = "0s"
source = {source}
[sinks.matches]
kind = "files"
path = "matches.jsonl"
""",
        "utf-8",
    )
    return path


def made_source(place: Path, kind: str, count: int) -> str:
    """Makes so many events; says where they are as `kaicep.toml` has it."""
    place.mkdir(parents=True, exist_ok=True)
    rows = _rows(0, count)
    if kind == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, place / "reports.parquet")
        return '{kind = "files", path = "reports.parquet"}'
    if kind == "jsonl":
        with (place / "reports.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(each + "\n" for each in _lines(rows))
        return '{kind = "files", path = "reports.jsonl"}'
    from kaicep_bench.spark_ingest import new_topic, send

    servers = os.environ[SERVERS]
    topic = new_topic(servers)
    send(servers, topic, rows)
    return f'{{kind = "kafka", servers = "{servers}", topic = "{topic}", follow = false}}'


def _lines(rows: pyarrow.Table) -> Iterator[str]:
    for batch in rows.to_batches(100_000):
        for row in batch.to_pylist():
            yield json.dumps({**row, "timestamp": row["timestamp"].isoformat()})


def _rows(first: int, count: int) -> pyarrow.Table:
    """Reports of airflow: readings around 400, so that a level of 600 is rare."""
    import numpy
    import pyarrow

    chance = numpy.random.default_rng(first)
    times = START + (numpy.arange(first, first + count) * 1_000_000) // RATE
    names = pyarrow.array([f"S{number}" for number in range(SENSORS)])
    return pyarrow.table(
        {
            "timestamp": pyarrow.array(times).cast(pyarrow.timestamp("us", tz="UTC")),
            "sensorID": names.take(pyarrow.array(chance.integers(0, SENSORS, count))),
            "flowrate": pyarrow.array(numpy.round(chance.normal(400, 80, count), 1)),
        }
    )
