"""How far back the matches of queries reach, and what that means for cutting time in two."""

from __future__ import annotations

import math

from kaicep.kernel.sort import Lateness, allowed_lateness
from kaicep.plan.chi import span_bound
from kaicep.plan.nodes import ChiPlan, EpPlan, Pattern, Program, QueryPlan, WindowAggregate

__all__ = ["reach_of", "why_not_concurrent"]


def reach_of(program: Program) -> float:
    """How far back the events of a match of any of the queries can lie: infinity where nothing bounds it.

    A query that reads the output of another reaches as far as both together.
    """
    reach: dict[str, float] = {}
    for plan in program.queries:  # each comes after those that it reads
        below = max((reach[name] for name in plan.reads if name in reach), default=0.0)
        reach[plan.name] = _own_reach(plan) + below
    return max(reach.values(), default=0.0)


def _own_reach(plan: QueryPlan) -> float:
    if isinstance(plan, EpPlan):
        return math.inf
    source = plan.body
    if plan.is_absent:  # windows count from the first event of all
        return math.inf
    if isinstance(source, WindowAggregate):
        return source.window.width if source.window.width is not None else math.inf
    if source.latest or source.skip != "none":  # which depend on all that came before
        return math.inf
    span = span_bound(source.sequence, source.windows)
    return max(math.inf if span is None else span, source.deadline or 0.0)


def why_not_concurrent(program: Program, lateness: Lateness) -> str | None:
    """Why queries cannot be answered by three engines; None where they can."""
    if len(program.queries) > 1 and any(
        each in {query.name for query in program.queries} for plan in program.queries for each in plan.reads
    ):
        return "one query reads the output of another"
    for plan in program.queries:
        if not isinstance(plan, ChiPlan):
            return f"{plan.name} is EP-SPARQL"
        source = plan.body
        if isinstance(source, Pattern) and source.skip != "none":
            return f"{plan.name} skips after a match, so that a match depends on all before it"
        if isinstance(source, Pattern) and source.deadline is not None:
            return f"{plan.name} waits for an absence at its end"
        if plan.is_absent:
            return f"{plan.name} answers for windows without events too (ABSENT)"
        if isinstance(source, WindowAggregate) and source.window.width is None:
            return f"{plan.name} counts events, so that a window depends on all before it"
    if any(allowed_lateness(lateness, name) is None for plan in program.queries for name in plan.reads):
        return "nothing is ever certain without a bound on lateness"
    if reach_of(program) == math.inf:
        return "no WINDOW says how far back a match can reach"
    return None
