"""What each construct of chi-CEP costs: one query for each (`construct_queries`), on data set A.

Every query is first compared with the reference on a few hundred events of few sensors, which behave as those
of A do. A query that is slower than 100,000 events a second gets a fifth of A: a fifth of its sensors, of its
events, and of the events a second. A construct that fails has a row that says why.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kaicep as kai
from kaicep.errors import Failure, KaicepError
from kaicep.hosts.queries import Listed
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.terms import Iri
from kaicep.reference import evaluate
from kaicep_bench import jvm
from kaicep_bench.building import packed_rules
from kaicep_bench.campus import ANNOTATION, PREFIXES, room
from kaicep_bench.construct_queries import CONSTRUCTS, REFERENCE_ROW, Construct
from kaicep_bench.data import SETS, STREAM, Columns, Shape, arrow_batches, events, make, write
from kaicep_bench.table import Cell, Report, Table

if TYPE_CHECKING:
    from kaicep.kernel.columns import Matches

__all__ = ["COMMAND", "Taken", "check", "compiled", "measure", "run_construct", "scaled"]

COMMAND = "command"
"""The second stream: every other event of a data set, where a query needs one."""

TURNS = 3
SLOW = 100_000  # events a second
FIFTH, PROBED, QUICK, CHECKED = 5, 50, 200, 1_000  # of A: for slow queries, to find these, quick runs, checks
COMPARED = 300
ROW_SECONDS = 15.0
"""A row takes so long, or one run longer than that."""
STEPS = 16  # at least so many batches, between which knowledge changes and the clock is looked at
RULE_DAYS = 20
SENSORS_IN_A_ROOM, DEPARTMENTS = 5, 10
SENSOR_TYPES = {"sensorID": "string", "flowrate": "float64"}
COMMAND_TYPES = {"sensorID": "string", "level": "float64"}
BELONGS_TO, DEPARTMENT = Iri(PREFIXES["bd"] + "belongsTo"), Iri(PREFIXES["org"] + "D0")


@dataclass(frozen=True)
class Taken:
    """What a run did: how many events in how many seconds, the matches, whether all events were taken."""

    events: int
    seconds: float
    matches: int
    whole: bool = True

    @property
    def speed(self) -> float:
        """Events a second."""
        return self.events / self.seconds


def measure(quick: bool = False, peers: bool = False) -> Report:
    """Measures every construct, with `peers` beside Esper."""
    if peers:
        jvm.build()
    failures: list[str] = []
    base: Taken | None = None
    tables: dict[str, list[dict[str, Cell]]] = {}
    for construct in CONSTRUCTS:
        row, taken = _measured(construct, quick, peers, failures)
        base = taken if construct.name == REFERENCE_ROW else base
        if base and taken:
            row["of 3 any"] = round(taken.speed / base.speed, 2)
        tables.setdefault(construct.group, []).append(row)
    tables["the rules of a building"] = list(_rules(1 if quick else RULE_DAYS, base))
    divisor = QUICK if quick else 1
    return Report(
        "constructs",
        [Table(group, rows) for group, rows in tables.items()],
        [
            f"{scaled(divisor).events:,} events of {scaled(divisor).sensors:,} sensors, "
            f"{scaled(divisor).rate:,} a second of event time"
            + (
                ""
                if quick
                else f"; a fifth of all three for queries slower than {SLOW:,} events/s; best of {TURNS}"
            ),
            f"{COMPARED} events of {scaled(CHECKED).sensors} sensors gave the matches of the reference",
            "of 3 any: events/s as a multiple of those of query 3 with MATCH any in this run",
            f"the rules of a building: the template's day, {1 if quick else RULE_DAYS} times",
            f"a row takes up to {ROW_SECONDS:g} s; what is not through by then is stopped",
        ],
        failures=failures,
    )


def _rules(days: int, base: Taken | None) -> Iterator[dict[str, Cell]]:
    """The rules of `kaicep init --template building`, over days of its own readings."""
    for name, count, seconds, matches in packed_rules(days):
        yield {
            "construct": name,
            "events/s": round(count / seconds, 1),
            "of 3 any": round(count / seconds / base.speed, 2) if base else None,
            "events": count,
            "matches": matches,
            "per event": round(matches / count, 3),
            "note": None,
        }


def _measured(
    construct: Construct, quick: bool, peers: bool, failures: list[str]
) -> tuple[dict[str, Cell], Taken | None]:
    """The row of a construct, and what was measured if anything was; what went wrong is noted."""
    row: dict[str, Cell] = dict.fromkeys(
        ("construct", "events/s", "of 3 any", "events", "matches", "per event", "note")
    )
    row["construct"] = construct.name
    try:
        check(construct)
        divisor, taken = _best(construct, quick)
    except Exception as error:  # one construct does not take the others with it
        failures.append(f"{construct.group}, {construct.name}: {_said(error)}")
        return {**row, "note": f"failed: {_said(error)}"}, None
    row |= {
        "events/s": round(taken.speed, 1),
        "events": taken.events,
        "matches": taken.matches,
        "per event": round(taken.matches / taken.events, 3),
        "note": None if taken.whole else f"stopped after {taken.events:,} events",
    }
    if peers and construct.epl is not None:
        row |= _beside_esper(construct, scaled(divisor), taken, quick)
    return row, taken


def _said(error: Exception) -> str:
    text = str(error) if isinstance(error, KaicepError) else f"{type(error).__name__}: {error}"
    return text.strip().partition("\n")[0]


# --- input and queries ------------------------------------------------------------------------------------


def scaled(divisor: int) -> Shape:
    """Data set A, or a part of it with as many events of each sensor, as far apart, of fewer sensors."""
    whole = SETS["A"]
    name = whole.name if divisor == 1 else f"{whole.name}/{divisor}"
    return Shape(name, whole.events // divisor, whole.sensors // divisor, whole.rate // divisor)


def _turtle(sensors: int) -> str:
    """What is known: the rooms of the sensors, and their departments; D0 has a tenth of them."""
    lines = [f"@prefix {name}: <{iri}> ." for name, iri in PREFIXES.items()]
    lines.append("hvc:Highest hvc:hasValue 900 .")
    for number in range(-(-sensors // SENSORS_IN_A_ROOM)):
        lines.append(f"bd:R{number} a bd:Office ; bd:belongsTo org:D{number % DEPARTMENTS} .")
    for number in range(sensors):
        lines.append(f"ee:s{number:05} bd:hasLocation bd:R{number // SENSORS_IN_A_ROOM} .")
    return "\n".join(lines)


@cache
def _knowledge(sensors: int) -> kai.Knowledge:
    return kai.Knowledge.parse(_turtle(sensors))


def compiled(construct: Construct, sensors: int) -> kai.Query:
    """The query of a construct, with knowledge of so many sensors if it asks for any."""
    streams = {STREAM: SENSOR_TYPES, **({COMMAND: COMMAND_TYPES} if construct.commands else {})}
    if not construct.asks_the_knowledge:
        return kai.compile(construct.texts, streams=streams)
    # Knowledge that changes is nobody else's.
    known = kai.Knowledge.parse(_turtle(sensors)) if construct.changes else _knowledge(sensors)
    annotation = {**ANNOTATION, "stream": STREAM, "time": "ts"}
    return kai.compile(construct.texts, streams=streams, annotations=[annotation], knowledge=known)


def _halves(data: Columns) -> tuple[Columns, Columns]:
    """The reports and the commands, where a query needs both: every other event."""
    first, second = (
        Columns(data.shape, data.ts[start::2], data.sensor[start::2], data.flowrate[start::2])
        for start in (0, 1)
    )
    return first, second


Batches = Sequence[Sequence[tuple[str, Any]]]


@cache
def _batches(shape: Shape, commands: bool, first: int | None = None) -> Batches:
    """A data set as Arrow batches with their streams; those in one step come at the same time."""
    data = make(shape).first(first or shape.events)
    size = min(65_536, -(-len(data) // STEPS))
    if not commands:
        return [[(STREAM, each)] for each in arrow_batches(data, size)]
    reports, others = (arrow_batches(each, size // 2) for each in _halves(data))
    return [
        [(STREAM, report), (COMMAND, other.rename_columns(["sensorID", "level", "ts"]))]
        for report, other in zip(reports, others, strict=True)
    ]


# --- running ----------------------------------------------------------------------------------------------


def _best(construct: Construct, quick: bool) -> tuple[int, Taken]:
    """The best of the runs over as much as is reasonable, and which part of A that is."""
    if quick:
        return QUICK, run_construct(construct, scaled(QUICK))
    probed = run_construct(construct, scaled(PROBED), most=ROW_SECONDS)
    if not probed.whole:
        return PROBED, probed
    if probed.speed < SLOW:  # something may have been compiled, that the comparison had no need for
        probed = run_construct(construct, scaled(PROBED), most=ROW_SECONDS)
    divisor = FIFTH if probed.speed < SLOW else 1
    found: list[Taken] = []
    while len(found) < TURNS and sum(each.seconds for each in found) < ROW_SECONDS * (1 - 1 / TURNS):
        found.append(run_construct(construct, scaled(divisor), most=ROW_SECONDS))
    whole = [each for each in found if each.whole]
    return divisor, max(whole or found, key=lambda each: each.speed)


def run_construct(
    construct: Construct,
    shape: Shape,
    first: int | None = None,
    kept: list[Match] | None = None,
    most: float = math.inf,
) -> Taken:
    """Runs the query of a construct over a data set or its first events; `kept` gets the matches.

    After `most` seconds it stops between two batches.
    """
    query = compiled(construct, shape.sensors)
    matches = 0

    def take(some: Matches | Listed) -> None:
        nonlocal matches
        if construct.all_count or some.query == "query":
            matches += len(some)
        if kept is not None:
            kept.extend(some)

    engine = kai.Engine(query, lateness=0, on_matches=take)
    steps = _batches(shape, construct.commands, first)
    pushed = 0
    started = time.perf_counter()
    for number, step in enumerate(steps):
        if construct.changes and number:
            _change(construct.changes, query.knowledge, number, step)
        for stream, rows in step:
            engine.push(rows, stream)
            pushed += len(rows)
        if time.perf_counter() - started > most and number + 1 < len(steps):
            return Taken(pushed, time.perf_counter() - started, matches, whole=False)
    engine.finish()
    return Taken(pushed, time.perf_counter() - started, matches)


def _change(mode: str, knowledge: kai.Knowledge, number: int, step: Sequence[tuple[str, Any]]) -> None:
    """One more room belongs to the department: from the next event on, or as if it always had."""
    added = [(room(number), BELONGS_TO, DEPARTMENT)]
    knowledge.update(added, valid_from=_begin(step) if mode == "from now" else None)


def _begin(step: Sequence[tuple[str, Any]]) -> int:
    """The time of the first event of a step."""
    return min(int(rows.column("ts")[0].value) for _, rows in step)


# --- comparing --------------------------------------------------------------------------------------------


def check(construct: Construct) -> int:
    """Compares the matches in a few events with those of the reference; returns how many there are."""
    shape = scaled(CHECKED)
    found: list[Match] = []
    run_construct(construct, shape, COMPARED, found)
    truth = _reference(construct, shape)
    if sorted(found, key=by_end) != truth:
        wrong = ", and others" if len(found) == len(truth) else ""
        raise Failure(f"{len(found)} matches in {COMPARED} events, the reference has {len(truth)}{wrong}")
    return len(truth)


def _reference(construct: Construct, shape: Shape) -> list[Match]:
    """The matches as the reference has them.

    It knows one state of the knowledge: a statement that is added while the stream runs is for it one that
    holds from the next event on, which is the same for a query about single events.
    """
    query = compiled(construct, shape.sensors)
    if construct.changes:
        for number, step in islice(enumerate(_batches(shape, construct.commands, COMPARED)), 1, None):
            _change("from now", query.knowledge, number, step)
    given = list(_events(construct, make(shape).first(COMPARED)))
    return evaluate(query, [given])


def _events(construct: Construct, data: Columns) -> Iterator[Event]:
    if not construct.commands:
        yield from events(data)
        return
    reports, commands = _halves(data)
    yield from events(reports)
    for each in events(commands):
        values = {"sensorID": each.values["sensorID"], "level": each.values["flowrate"]}
        yield replace(each, stream=COMMAND, values=values)


# --- Esper ------------------------------------------------------------------------------------------------


def _beside_esper(construct: Construct, shape: Shape, own: Taken, quick: bool) -> Mapping[str, Cell]:
    """What Esper says of the same events; where it has another number of matches, that."""
    assert construct.epl is not None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "columns"
        write(make(shape), file)
        streams = "2" if construct.commands else "1"
        try:
            (taken,) = jvm.run(jvm.ESPER, "epl", file, own.events, [streams, construct.epl], quick)
        except Failure as error:
            return {"Esper note": _said(error)}
    speed = taken.events / taken.seconds
    note: str | None
    if taken.events < own.events:
        note = f"stopped after {taken.events:,} events"
    else:
        note = None if taken.matches == own.matches else f"{taken.matches:,} matches"
    return {
        "Esper events/s": round(speed, 1),
        "of Esper": round(own.speed / speed, 2) if note is None else None,
        "Esper note": note,
    }
