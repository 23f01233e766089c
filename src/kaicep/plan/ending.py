"""The end of a finite input: with `--end open` the streams go on, and what is undecided is not reported.

At a closed end nothing more comes, ever. At an open one a query knows that its streams have come as far as
their newest event: a trailing absence whose deadline is not before that, and a batch window that ends after
it, may still turn out otherwise (semantics 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, Together
from kaicep.plan.events import Match
from kaicep.plan.nodes import ChiPlan, Pattern, Program, QueryPlan, WindowAggregate

__all__ = ["is_undecided", "open_ends"]


def open_ends(program: Program, newest: Mapping[str, int]) -> dict[str, int | None]:
    """By query, the largest time of the streams that it reads, also through other queries."""
    known: dict[str, int | None] = dict(newest)
    ends: dict[str, int | None] = {}
    for query in program.queries:
        reads: Iterable[str] = query.reads or newest  # EP-SPARQL reads them all
        found = [end for name in reads if (end := known.get(name)) is not None]
        ends[query.name] = known[query.name] = max(found, default=None)
    return ends


def is_undecided(plan: QueryPlan, match: Match, end: int | None) -> bool:
    """Whether a later event could still take a match back, where its streams have come to this time."""
    source = plan.body if isinstance(plan, ChiPlan) else None
    if isinstance(source, WindowAggregate):
        is_batch = source.window.kind == "batch" and source.window.width is not None
        return is_batch and (end is None or match.end_us > end)
    if isinstance(source, Pattern) and _awaits(source, match.events or {}):
        return end is None or match.end_us >= end
    return False


def _awaits(pattern: Pattern, events: Mapping[str, object]) -> bool:
    """Whether nothing of the match comes after an absence: that it is one was certain at the deadline."""
    for index, element in enumerate(pattern.sequence):
        later = (name for each in pattern.sequence[index + 1 :] for name in _variables(each))
        if isinstance(element, Absent) and not any(events.get(name) for name in later):
            return True
    return False


def _variables(element: Element) -> Iterator[str]:
    match element:
        case Place() | Loop():
            yield element.variable
        case Choice() | Together():
            for each in element.members:
                yield from _variables(each)
