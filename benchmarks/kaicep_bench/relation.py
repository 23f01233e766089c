"""What the knowledge of a large campus costs: loading it, a relation's table, and a sensor that moves.

A move is an update of the knowledge and the refresh of every table that it touches. Refreshed tables are
compared with tables made anew.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine
from kaicep.knowledge.queries import closed_store
from kaicep.knowledge.relations import Relations, make_table
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.nodes import ChiPlan, Relation, Semantic
from kaicep.plan.terms import Triple
from kaicep_bench.campus import HAS_LOCATION, QUERY5, prepared, reports, room, sensor, turtle
from kaicep_bench.table import Cell, Report, Table

__all__ = ["measure"]

# Where every sensor is: the largest table that a PATH with a selected variable can have.
EVERYWHERE = "SELECT ?e.sensorID, ?loc PATH {?e evt:hasSource ?src . ?src bd:hasLocation ?loc}"
MOVES = 20
TURNS = 5

T = TypeVar("T")


@dataclass
class _Rows:
    """The rows of the table, and how their times are taken."""

    rows: list[dict[str, Cell]] = field(default_factory=list)

    def time(self, step: str, work: Callable[[], T], goal: float | None = None, turns: int = 1) -> T:
        """Runs it so many times; the median counts, and the longest is told."""
        taken: list[float] = []
        results: list[T] = []  # all are held, so that none is thrown away on another's time
        for _ in range(turns):
            started = time.perf_counter()
            results.append(work())
            taken.append((time.perf_counter() - started) * 1000)
        self.add(step, taken, goal)
        return results[0]

    def add(self, step: str, taken: list[float], goal: float | None = None) -> None:
        """A row of these milliseconds."""
        row: dict[str, Cell] = {"step": step, "ms": round(statistics.median(taken), 3)}
        self.rows.append({**row, "longest ms": round(max(taken), 3), "times": len(taken), "goal ms": goal})


def measure(quick: bool = False) -> Report:
    """Builds the campus and moves sensors about."""
    sensors = 500 if quick else 50_000
    text = turtle(sensors)
    rows = _Rows()
    knowledge = rows.time("load and close", lambda: Knowledge.parse(text))
    asserted, closed = knowledge.asserted, knowledge.closed
    plans = [_plan(query, knowledge) for query in (QUERY5, EVERYWHERE)]
    sizes = [_build(rows, plan, knowledge) for plan in plans]
    _moves(rows, knowledge, sensors, plans)
    _engine_moves(rows, knowledge, sensors)
    rows.time("a copy for the rest of SPARQL, made when first needed", lambda: closed_store(knowledge))
    _copy_moves(rows, knowledge, sensors)
    _dated_moves(rows, knowledge, sensors, plans)
    return Report(
        "relation",
        [Table(f"{sensors:,} sensors, {asserted:,} triples, closed {closed:,}", rows.rows)],
        [
            f"query 5 has a table of {sizes[0]:,} sensors; the other one tells the room of all {sizes[1]:,}",
            "a move: one sensor gets another room; both tables are refreshed, and equal to new ones",
            "the engine, in its one process, also optimises the query anew, since constants may have changed",
        ],
    )


def _plan(query: str, knowledge: Knowledge) -> ChiPlan:
    run = prepared(query, knowledge, reports(10, 10, 10))
    plan, _ = optimize(run.program.chi_plans[0], run.catalog, knowledge)
    return plan


def _condition(plan: ChiPlan) -> tuple[Semantic, Relation]:
    condition = max(plan.body.all_semantics, key=lambda each: len(each.selected))
    assert condition.relation is not None
    return condition, condition.relation


def _build(rows: _Rows, plan: ChiPlan, knowledge: Knowledge) -> int:
    condition, relation = _condition(plan)
    name = "table of query 5" if not condition.selected else "table of all sensors and their rooms"
    table = rows.time(name, lambda: make_table(relation, condition.selected, knowledge), 100.0, TURNS)
    return len(table.rows or ())


def _move(knowledge: Knowledge, sensors: int, chance: random.Random) -> tuple[list[Triple], list[Triple]]:
    """What is to be added and what to be removed, so that some sensor is in another room."""
    moved = sensor(chance.randrange(sensors))
    return [(moved, HAS_LOCATION, room(chance.randrange(sensors // 5)))], list(
        knowledge.at(1 << 62).match(moved, HAS_LOCATION, None)
    )


def _relations(knowledge: Knowledge, plans: list[ChiPlan]) -> Relations:
    run = prepared(QUERY5, knowledge, reports(10, 10, 10))
    made = Relations(run.catalog, knowledge)
    for plan in plans:
        condition, relation = _condition(plan)
        made.table(relation, condition.selected, knowledge.epoch(1 << 62))
    return made


def _compare(relations: Relations, knowledge: Knowledge, plans: list[ChiPlan]) -> None:
    for plan in plans:
        condition, relation = _condition(plan)
        epoch = knowledge.epoch(1 << 62)
        kept = relations.table(relation, condition.selected, epoch)
        if kept.rows != make_table(relation, condition.selected, knowledge.in_epoch(epoch)).rows:
            raise Failure("a refreshed table is not what a new one would be")


def _moves(rows: _Rows, knowledge: Knowledge, sensors: int, plans: list[ChiPlan]) -> None:
    chance = random.Random(1)
    relations = _relations(knowledge, plans)
    updates: list[float] = []
    refreshes: list[float] = []
    for _ in range(MOVES):
        add, remove = _move(knowledge, sensors, chance)
        started = time.perf_counter()
        knowledge.update(add, remove)
        updated = time.perf_counter()
        relations.renew()
        updates.append((updated - started) * 1000)
        refreshes.append((time.perf_counter() - updated) * 1000)
    _compare(relations, knowledge, plans)
    rows.add("move: update of the knowledge", updates)
    rows.add("move: refresh of both tables", refreshes)
    rows.add("move in all", [sum(both) for both in zip(updates, refreshes, strict=True)], 20.0)


def _engine_moves(rows: _Rows, knowledge: Knowledge, sensors: int) -> None:
    chance = random.Random(2)
    events = reports(sensors, MOVES + 1, 1)
    run = prepared(QUERY5, knowledge, events)
    engine = Engine(replace(run, knowledge=knowledge), lateness=0)
    engine.push(events[:1])
    taken: list[float] = []
    for event in events[1:]:
        add, remove = _move(knowledge, sensors, chance)
        started = time.perf_counter()
        knowledge.update(add, remove)
        engine.push([event])
        taken.append((time.perf_counter() - started) * 1000)
    rows.add("move under a running engine, with its next event", taken, 20.0)


def _copy_moves(rows: _Rows, knowledge: Knowledge, sensors: int) -> None:
    chance = random.Random(3)
    taken: list[float] = []
    for _ in range(MOVES):
        knowledge.update(*_move(knowledge, sensors, chance))
        started = time.perf_counter()
        closed_store(knowledge)
        taken.append((time.perf_counter() - started) * 1000)
    rows.add("move: that copy follows", taken)


def _dated_moves(rows: _Rows, knowledge: Knowledge, sensors: int, plans: list[ChiPlan]) -> None:
    """Moves that leave the past as it was: each begins an epoch, and the newest table is wanted."""
    chance = random.Random(4)
    relations = _relations(knowledge, plans)
    taken: list[float] = []
    for number in range(MOVES):
        add, remove = _move(knowledge, sensors, chance)
        started = time.perf_counter()
        knowledge.update(add, remove, valid_from=(1_400_000_000 + number) * 1_000_000)
        relations.renew()
        for plan in plans:
            condition, relation = _condition(plan)
            relations.table(relation, condition.selected, knowledge.epoch(1 << 62))
        taken.append((time.perf_counter() - started) * 1000)
    _compare(relations, knowledge, plans)
    rows.add("move from an instant on, tables of the newest epoch", taken, 20.0)
