"""Query 5 of the SCEPter paper in every way there is to run it, and query 1: the paper's figure 8.

Query 1 compares one attribute with a number; query 5 asks the same of the sensors in the offices of a
department. All ways see the same events in one run, and must give the same matches before any number does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kaicep.bench.campus import QUERY1, QUERY5, prepared, reports, turtle
from kaicep.bench.table import Cell, Report, Table
from kaicep.errors import Failure
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.runtime import Counters, Settings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import RULES, Rule, optimize
from kaicep.optimize.relate_paths import relate_paths
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import QueryPlan, Semantic, SemanticFilter
from kaicep.reference.chicep import answers, run_chi

__all__ = ["Size", "measure"]

MODULES = ("annotate", "cache", "evaluate")
SECOND = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much is run: sensors, events, events a second of event time.

    Without buffer every event is a SPARQL query, so that these ways get fewer events. `turns` is how
    often the quick ways are run, of which the median counts.
    """

    sensors: int = 2_000
    events: int = 20_000
    rate: int = 600
    bare: int = 2_000
    judged: int = 200
    turns: int = 5


@dataclass(frozen=True)
class Way:
    """A way to run a query: the rules that are applied, and how the run-time path is set.

    `interval` is that of the buffer, in microseconds of event time; None is none.
    """

    name: str
    query: str = QUERY5
    rules: tuple[Rule, ...] = RULES
    cache: int = 0
    interval: int | None = None
    events: int | None = None
    turns: int = 1


@dataclass(frozen=True)
class Taken:
    """What a way did with how many events in how many seconds."""

    way: Way
    events: int
    seconds: float
    matches: Sequence[Match]
    counters: Counters = field(default_factory=Counters)


def measure(quick: bool = False) -> Report:
    """Runs everything and compares it."""
    size = Size(sensors=100, events=600, bare=100, judged=50, turns=1) if quick else Size()
    return compare(size)


def compare(size: Size) -> Report:
    """All ways over the same events."""
    knowledge = Knowledge.parse(turtle(size.sensors))
    events = reports(size.sensors, size.events, size.rate)
    closed_store(knowledge)  # made once in the life of a process
    distinct = len({event.values["sensorID"] for event in events})
    ways = tuple(_ways(size, distinct))
    found = {way: _median(taken) for way, taken in _in_turns(ways, knowledge, events).items()}
    _check(found, knowledge, events[: size.judged])
    first = found[ways[0]]
    return Report(
        "semantic",
        [
            Table("throughput (figure 8a)", [_throughput(each, first) for each in found.values()]),
            Table("microseconds an event, by module (figure 8b)", [_modules(each) for each in found.values()]),
        ],
        [
            f"{size.sensors:,} sensors, of which {distinct:,} report; {size.events:,} events at "
            f"{size.rate} a second of event time; {knowledge.asserted:,} triples, closed {knowledge.closed:,}",
            "host: the judge's pattern search with the optimised plan; each PATH is asked once an event",
            f"ways without a buffer have fewer events where the column says so; all matches are equal to those "
            f"of the compiled plan, and its to the judge's own on the first {size.judged:,} events",
            f"rows of several turns ({size.turns}) are medians; a cache is given as a share of the sensors",
            "`match` is all that is no other module's: the search, the lookup, and making matches",
        ],
    )


def _ways(size: Size, distinct: int) -> Iterator[Way]:
    at_run_time = tuple(each for each in RULES if each is not relate_paths)
    five, quarter = max(distinct * 5 // 100, 1), max(distinct * 25 // 100, 1)
    yield Way("query 1", QUERY1, turns=size.turns)
    yield Way("query 5, compiled", turns=size.turns)
    yield Way("query 5, no rule at all, bare", rules=(), events=size.bare)
    yield Way("query 5, run-time path bare", rules=at_run_time, events=size.bare)
    yield Way("  buffer 1 s", rules=at_run_time, interval=SECOND)
    yield Way("  buffer 5 s", rules=at_run_time, interval=5 * SECOND)
    yield Way("  cache 5%", rules=at_run_time, cache=five)
    yield Way("  cache 25%", rules=at_run_time, cache=quarter)
    yield Way("  buffer 5 s, cache 5%", rules=at_run_time, cache=five, interval=5 * SECOND)
    yield Way("  buffer 5 s, cache 25%", rules=at_run_time, cache=quarter, interval=5 * SECOND)


def _in_turns(
    ways: Sequence[Way], knowledge: Knowledge, events: Sequence[Event]
) -> dict[Way, list[Taken]]:
    """The ways take turns, so that a busy moment of the machine does not hit one of them alone."""
    found: dict[Way, list[Taken]] = {way: [] for way in ways}
    for turn in range(max(way.turns for way in ways)):
        for way in ways:
            if turn < way.turns:
                found[way].append(_run(way, knowledge, events[: way.events]))
    return found


def _median(taken: Sequence[Taken]) -> Taken:
    middle = statistics.median_low(each.seconds for each in taken)
    return next(each for each in taken if each.seconds == middle)


def _run(way: Way, knowledge: Knowledge, events: Sequence[Event]) -> Taken:
    run = prepared(way.query, knowledge, events)
    (query,) = run.program.queries
    plan, _ = optimize(query, run.catalog, knowledge, way.rules)
    relations = Relations(run.catalog, knowledge, settings=Settings(way.cache, way.interval is not None))
    started = time.perf_counter()
    matches = list(_driven(plan, events, relations, way.interval))
    return Taken(way, len(events), time.perf_counter() - started, matches, relations.runtime.counters)


def _driven(
    plan: QueryPlan, events: Sequence[Event], relations: Relations, interval: int | None
) -> Iterator[Match]:
    """The matches of a query about single events, interval by interval where there is a buffer."""
    conditions = [
        each for node in plan.root.walk() if isinstance(node, SemanticFilter) for each in node.conditions
    ]
    for some in [events] if interval is None else _intervals(events, interval):
        for condition in conditions if interval is not None else ():
            relations.runtime.buffer(condition, some)
        for found in answers(plan, some, _Once(relations)):
            yield found.match


def _intervals(events: Sequence[Event], width: int) -> Iterator[list[Event]]:
    waiting: list[Event] = []
    for event in events:
        if waiting and event.ts // width != waiting[0].ts // width:
            yield waiting
            waiting = []
        waiting.append(event)
    yield waiting


class _Once:
    """Asks for each event once; the judge's search asks again for what an engine would remember."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._known: dict[tuple[int, ...], frozenset[Row]] = {}

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        key = id(condition), *map(id, binding.values())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._relations.solutions(condition, binding)
        return found


def _check(found: Mapping[Way, Taken], knowledge: Knowledge, first: Sequence[Event]) -> None:
    """All ways agree about the events that they share, and the judge agrees with them."""
    compiled = next(each for each in found.values() if each.way.query == QUERY5)
    for each in found.values():
        if each.way.query == QUERY5 and not _equal(each.matches, compiled.matches[: len(each.matches)]):
            raise Failure(f"{each.way.name.strip()}: other matches than the compiled plan has")
    run = prepared(QUERY5, knowledge, first)
    (query,) = run.program.queries
    truth = [each.match for each in run_chi(query, first, run.catalog, knowledge)]
    shared = [each for each in compiled.matches if each.end <= first[-1].ts]
    if not _equal(truth, shared):
        raise Failure("the compiled plan has other matches than the judge")


def _equal(some: Sequence[Match], others: Sequence[Match]) -> bool:
    return [each.to_json() for each in some] == [each.to_json() for each in others]


def _throughput(taken: Taken, first: Taken) -> dict[str, Cell]:
    rate, twin = taken.events / taken.seconds, first.events / first.seconds
    counters = taken.counters
    return {
        "way": taken.way.name,
        "events": taken.events,
        "events/s": round(rate, 1),
        "of query 1": round(rate / twin, 4),
        "matches": len(taken.matches),
        "evaluations": counters.evaluations,
        "hits": counters.hits,
        "misses": counters.misses,
        "evictions": counters.evictions,
    }


def _modules(taken: Taken) -> dict[str, Cell]:
    spent = {name: taken.counters.seconds.get(name, 0.0) for name in MODULES}
    spent["match"] = taken.seconds - sum(spent.values())
    micros: dict[str, Cell] = {name: round(of * 1e6 / taken.events, 2) for name, of in spent.items()}
    return {"way": taken.way.name, **micros, "seconds in all": round(taken.seconds, 4)}
