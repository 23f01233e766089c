"""Query 5 of the SCEPter paper with every strategy there is, and query 1: the paper's figure 8.

Query 1 compares one attribute with a number; query 5 asks the same of the sensors in the offices of a
department. All strategies see the same events in one run; before any number, they must give the same
matches.

There are two hosts. In process, FILTERs come first, so that a PATH is asked about few events. In the
reference, the PATH is asked about every event, as the paper's semantic filter is: that is figure 8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kaicep.errors import Failure
from kaicep.hosts.queries import attribute_types
from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Parts
from kaicep.knowledge.queries import Row, closed_store
from kaicep.knowledge.relations import Relations, RuntimeCounters, RuntimeSettings
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import RULES, Rule, optimize
from kaicep.optimize.relate_paths import relate_paths
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Chain, ChiPlan, Semantic
from kaicep.reference.chicep import answers, run_chi
from kaicep_bench.campus import QUERY1, QUERY5, prepared, reports, turtle
from kaicep_bench.table import Cell, Report, Table

__all__ = ["Size", "measure"]

MODULES = ("annotate", "cache", "evaluate")
SECOND = 1_000_000
# What is left to the run-time path: a PATH about the sensor alone, as after section 4.1 of the paper.
AT_RUN_TIME = tuple(each for each in RULES if each is not relate_paths)


@dataclass(frozen=True)
class Size:
    """How much is run: sensors, events, events a second of event time.

    Without any help every event is a SPARQL query, so that such strategies get the first `bare` events only.
    `rates` are those of the input, over which figure 8a draws what comes out.
    `turns` is how often the quick strategies are run, `slow_turns` the others; the median counts.
    """

    sensors: int = 2_000
    events: int = 20_000
    rate: int = 600
    bare: int = 2_000
    compared: int = 500
    rates: Sequence[int] = (100, 200, 500, 1_000, 1_500, 3_000, 10_000, 30_000, 100_000)
    turns: int = 7
    slow_turns: int = 3


# The matches of a plan about single events, whose events are buffered by intervals of that width, if any.
Host = Callable[[ChiPlan, Sequence[Event], Relations, int | None], Iterator[Match]]


@dataclass(frozen=True)
class Strategy:
    """A strategy to run a query: where, with which rules, and how the run-time path is set."""

    host: str
    name: str
    query: str = QUERY5
    rules: tuple[Rule, ...] = RULES
    cache: int = 0
    interval: int | None = None
    events: int | None = None
    turns: int = 1


@dataclass(frozen=True)
class Taken:
    """What a strategy did with how many events in how many seconds."""

    strategy: Strategy
    events: int
    last: int
    """The time of the last event."""
    seconds: float
    matches: Sequence[Match]
    counters: RuntimeCounters = field(default_factory=RuntimeCounters)


def measure(quick: bool = False) -> Report:
    """Runs everything and compares it."""
    return compare(
        Size(
            sensors=100,
            events=1_200,
            bare=100,
            compared=100,
            rates=(100, 1_000, 10_000),
            turns=1,
            slow_turns=1,
        )
        if quick
        else Size()
    )


def compare(size: Size) -> Report:
    """All strategies over the same events."""
    knowledge = Knowledge.parse(turtle(size.sensors))
    events = reports(size.sensors, size.events, size.rate)
    closed_store(knowledge)  # made once in the life of a process
    distinct = len({event.values["sensorID"] for event in events})
    matches = len(_run(Strategy("in process", ""), knowledge, events).matches)
    strategies = tuple(_strategies(size, distinct, _twin(events, matches)))
    found = [_median(taken) for taken in _in_turns(strategies, knowledge, events).values()]
    _check(found, knowledge, events[: size.compared])
    twins = {each.strategy.host: each for each in reversed(found) if each.strategy.query == QUERY1}
    rows = [_throughput(each, twins[each.strategy.host]) for each in found]
    return Report(
        "semantic",
        [
            Table("throughput", rows),
            Table(
                "throughput over the rate of the input (figure 8a)", list(_over_rates(found, knowledge, size))
            ),
            Table("microseconds an event, by module (figure 8b)", [_modules(each) for each in found]),
            Table("microseconds a lookup in the table of query 5", _lookups(knowledge, events)),
        ],
        [
            f"{size.sensors:,} sensors, {distinct:,} of which report; {knowledge.closed:,} triples closed",
            f"{size.events:,} events, {size.rate} to a second of event time",
            "in process: the kernel, FILTERs before PATHs; reference: every event is asked about",
            "strategies with fewer events got the first ones; all of query 5 found the same matches",
            f"the reference's own evaluation found them too, among the first {size.compared:,} events",
            f"medians of {size.turns} runs in turns, of {size.slow_turns} for the run-time path",
            "a cache is given as a share of the sensors that report; `both` has a buffer of 5 s",
            "figure 8a: query 5 is asked about every event as in the paper; query 1 and the compiled query 5",
            "run in process. Buffers are filled at the rate of the input; the others do not depend on it",
            "`match` is what is no other module's: the search, the lookup in a table, making the matches",
            "query 1 matches far more events than query 5; the other query 1 has as many matches as it",
        ],
    )


def _strategies(size: Size, distinct: int, twin: str) -> Iterator[Strategy]:
    five, quarter = max(distinct * 5 // 100, 1), max(distinct * 25 // 100, 1)
    for host in ("in process", "reference"):
        yield Strategy(host, "query 1", QUERY1, turns=size.turns)
        yield Strategy(host, "query 1, fewer matches", twin, turns=size.turns)
        yield Strategy(host, "query 5, compiled", turns=size.turns)
        yield Strategy(host, "query 5, no rules, bare", rules=(), events=size.bare, turns=size.slow_turns)
        asked = Strategy(host, "query 5, bare", rules=AT_RUN_TIME, turns=size.slow_turns)
        yield replace(asked, events=size.bare)
        yield replace(asked, name="query 5, buffer 1 s", interval=SECOND)
        yield replace(asked, name="query 5, buffer 5 s", interval=5 * SECOND)
        yield replace(asked, name="query 5, cache 5%", cache=five)
        yield replace(asked, name="query 5, cache 25%", cache=quarter)
        yield replace(asked, name="query 5, both, 5%", cache=five, interval=5 * SECOND)
        yield replace(asked, name="query 5, both, 25%", cache=quarter, interval=5 * SECOND)


def _twin(events: Sequence[Event], matches: int) -> str:
    """Query 1 with a bound that so many events are above."""
    flows = sorted((float(event.values["flowrate"] or 0) for event in events), reverse=True)
    return QUERY1.replace("500", str(flows[min(matches, len(flows) - 1)]))


def _over_rates(found: Sequence[Taken], knowledge: Knowledge, size: Size) -> Iterator[dict[str, Cell]]:
    """What comes out at each rate of the input: that rate, or the most that a strategy keeps up with."""
    distinct = len({event.values["sensorID"] for event in reports(size.sensors, size.events, size.rate)})
    most = {(each.strategy.host, each.strategy.name): each.events / each.seconds for each in found}
    steady = [("in process", "query 1"), ("in process", "query 5, compiled")]
    steady += [("reference", f"query 5, {name}") for name in ("bare", "cache 5%", "cache 25%")]
    asked = Strategy("reference", "query 5, buffer 1 s", rules=AT_RUN_TIME, interval=SECOND)
    two = replace(asked, name="query 5, buffer 2 s", interval=2 * SECOND)
    both = replace(two, name="query 5, both, 25%, 2 s", cache=max(distinct * 25 // 100, 1))
    for host, name in steady:
        for rate in size.rates:
            yield {"strategy": name, "input/s": rate, "output/s": round(min(rate, most[host, name]), 1)}
    for strategy in (asked, two, both):
        for rate in size.rates:
            count = 2 * rate * (strategy.interval or 0) // SECOND
            taken = _run(strategy, knowledge, reports(size.sensors, min(count, size.events), rate))
            out = min(rate, taken.events / taken.seconds)
            yield {"strategy": strategy.name, "input/s": rate, "output/s": round(out, 1)}


# --- running ---------------------------------------------------------------------------------------------


def _in_turns(
    strategies: Sequence[Strategy], knowledge: Knowledge, events: Sequence[Event]
) -> dict[Strategy, list[Taken]]:
    """The strategies take turns, so that a busy moment of the machine does not hit one of them alone."""
    found: dict[Strategy, list[Taken]] = {strategy: [] for strategy in strategies}
    for turn in range(max(strategy.turns for strategy in strategies)):
        for strategy in strategies:
            if turn < strategy.turns:
                found[strategy].append(_run(strategy, knowledge, events[: strategy.events]))
    return found


def _median(taken: Sequence[Taken]) -> Taken:
    return sorted(taken, key=lambda each: each.seconds)[len(taken) // 2]


def _run(strategy: Strategy, knowledge: Knowledge, events: Sequence[Event]) -> Taken:
    run = prepared(strategy.query, knowledge, events)
    (query,) = run.program.chi_plans
    plan, _ = optimize(query, run.catalog, knowledge, strategy.rules)
    relations = Relations(
        run.catalog, knowledge, settings=RuntimeSettings(strategy.cache, strategy.interval is not None)
    )
    started = time.perf_counter()
    matches = list(_HOSTS[strategy.host](plan, events, relations, strategy.interval))
    seconds = time.perf_counter() - started
    return Taken(strategy, len(events), events[-1].ts, seconds, matches, relations.runtime.counters)


def _in_process(
    plan: ChiPlan, events: Sequence[Event], relations: Relations, interval: int | None
) -> Iterator[Match]:
    (stream,) = plan.body.streams
    strings = Strings()
    machine = PatternMachine(plan, relations.catalog, relations, strings)
    types = attribute_types(machine, [plan], relations.catalog)
    parts = Parts(0)
    sorter = ColumnSorter((stream,), parts, types, strings)
    for some in _intervals(events, interval):
        for event in some:
            parts.arrive(event)
        sorter.offer(batch_of_events(stream, some, types, strings))
        table = sorter.release()
        if table is not None:
            for found in machine.feed(table):
                yield from found


def _on_reference(
    plan: ChiPlan, events: Sequence[Event], relations: Relations, interval: int | None
) -> Iterator[Match]:
    chain = _chain(plan)
    for some in _intervals(events, interval):
        if interval is not None:
            for condition in chain.semantics:
                relations.runtime.buffer(condition, some)
        for found in answers(plan, some, _Once(relations)):
            yield found.match


def _chain(plan: ChiPlan) -> Chain:
    (chain,) = plan.body.chains
    return chain


_HOSTS: Mapping[str, Host] = {"in process": _in_process, "reference": _on_reference}


def _intervals(events: Sequence[Event], width: int | None) -> Iterator[Sequence[Event]]:
    """The events by intervals of event time; without a width, all of them together."""
    if width is None:
        yield events
        return
    waiting: list[Event] = []
    for event in events:
        if waiting and event.ts // width != waiting[0].ts // width:
            yield waiting
            waiting = []
        waiting.append(event)
    yield waiting


class _Once:
    """Asks for each event once; the reference's search asks again for what an engine would remember."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations
        self._known: dict[tuple[int, ...], frozenset[Row]] = {}

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: object = None
    ) -> frozenset[Row]:
        key = id(condition), *map(id, binding.values())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._relations.solutions(condition, binding)
        return found

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        return self._relations.known(condition, ts)

    def inside(self, given: object) -> _Once:
        return self  # nothing here is partitioned


def _lookups(knowledge: Knowledge, events: Sequence[Event]) -> list[dict[str, Cell]]:
    """What it costs to ask about a sensor for the first time, and about one that was met before."""
    run = prepared(QUERY5, knowledge, events)
    plan, _ = optimize(run.program.chi_plans[0], run.catalog, knowledge)
    (condition,) = _chain(plan).semantics
    relations = Relations(run.catalog, knowledge)
    first = list({event.values["sensorID"]: event for event in events}.values())
    rows: list[dict[str, Cell]] = []
    for name, asked in (("first time", first), ("later", events)):
        bindings = [{condition.variables[0]: event} for event in asked]
        started = time.perf_counter()
        for binding in bindings:
            relations.solutions(condition, binding)
        taken = time.perf_counter() - started
        rows.append({"sensor": name, "lookups": len(asked), "us": round(taken * 1e6 / len(asked), 2)})
    return rows


# --- comparing -------------------------------------------------------------------------------------------


def _check(found: Sequence[Taken], knowledge: Knowledge, first: Sequence[Event]) -> None:
    """All strategies agree about the events that they share, and the reference agrees with them."""
    strategies = [each for each in found if each.strategy.query == QUERY5]
    compiled = strategies[0].matches
    for each in strategies:
        if not _equal(each.matches, [match for match in compiled if match.end_us <= each.last]):
            raise Failure(
                f"{each.strategy.host}, {each.strategy.name}: other matches than the compiled plan has"
            )
    run = prepared(QUERY5, knowledge, first)
    (query,) = run.program.chi_plans
    truth = [each.match for each in run_chi(query, first, run.catalog, knowledge)]
    if not _equal(truth, [match for match in compiled if match.end_us <= first[-1].ts]):
        raise Failure("the compiled plan has other matches than the reference")


def _equal(some: Sequence[Match], others: Sequence[Match]) -> bool:
    return [each.to_json() for each in some] == [each.to_json() for each in others]


def _throughput(taken: Taken, twin: Taken) -> dict[str, Cell]:
    rate = taken.events / taken.seconds
    return {
        "host": taken.strategy.host,
        "strategy": taken.strategy.name,
        "events": taken.events,
        "events/s": round(rate, 1),
        "of query 1": round(rate * twin.seconds / twin.events, 4),
        "matches": len(taken.matches),
        "evaluations": taken.counters.evaluations,
        "hits": taken.counters.hits,
        "misses": taken.counters.misses,
        "evictions": taken.counters.evictions,
    }


def _modules(taken: Taken) -> dict[str, Cell]:
    spent = {name: taken.counters.seconds.get(name, 0.0) for name in MODULES}
    spent["match"] = taken.seconds - sum(spent.values())
    micros: dict[str, Cell] = {name: round(of * 1e6 / taken.events, 2) for name, of in spent.items()}
    return {
        "host": taken.strategy.host,
        "strategy": taken.strategy.name,
        **micros,
        "seconds in all": round(taken.seconds, 4),
    }
