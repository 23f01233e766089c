"""Runs the incremental EP-SPARQL operator as the reference is run, cut and saved at will."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.reference.epsparql_support import knowledge_of, plan, rows_of

from kaicep.kernel.epsparql import EpOperator
from kaicep.knowledge.store import Knowledge
from kaicep.plan.events import Match
from kaicep.plan.nodes import EpPlan
from kaicep.plan.terms import Triple
from kaicep.reference.sparql import run_epsparql

Rows = list[tuple[Triple, int, int]]


def operator(plans: Sequence[EpPlan], knowledge: Knowledge, limit: int = 10_000) -> EpOperator:
    return EpOperator(plans, knowledge, limit)


def run_kernel(
    plans: Sequence[EpPlan],
    occurrences: Sequence[Any],
    knowledge: Knowledge,
    limit: int = 10_000,
    seed: int | None = None,
) -> dict[str, list[Match]]:
    """What `run_epsparql` gives, by the operator; a seed cuts the input, and saves and restores between."""
    rows = sorted(occurrences, key=lambda row: row[2])
    running = operator(plans, knowledge, limit)
    if not running.streams:
        rows = [row[:3] for row in rows]
    found: list[Match] = []
    random = Random(seed)
    while rows:
        size = len(rows) if seed is None else random.randint(1, 3)
        part, rows = rows[:size], rows[size:]
        found += running.feed(part)
        if seed is not None and rows and random.random() < 0.4:
            found += running.advance(rows[0][2])
        if seed is not None and random.random() < 0.4:
            state = running.snapshot()
            running = operator(plans, knowledge, limit)
            running.restore(state)
            assert running.snapshot() == state
    found += running.finish()
    assert len({(each.query, each.id) for each in found}) == len(found)
    return {each.name: sorted_matches(m for m in found if m.query == each.name) for each in plans}


def sorted_matches(matches: object) -> list[Match]:
    return sorted(matches, key=lambda match: (match.end_us, match.id))  # type: ignore[call-overload,no-any-return]


def both(
    occurrences: Sequence[Any] | str,
    *queries: str,
    knowledge: str = "",
    limit: int = 10_000,
    seed: int | None = None,
) -> tuple[dict[str, list[Match]], dict[str, list[Match]]]:
    """The matches by the reference and by the kernel."""
    plans = [plan(text, f"q{index}") for index, text in enumerate(queries)]
    rows = rows_of(occurrences, queries) if isinstance(occurrences, str) else occurrences
    known = knowledge_of(knowledge)
    return run_epsparql(plans, rows, known, limit), run_kernel(plans, rows, known, limit, seed)
