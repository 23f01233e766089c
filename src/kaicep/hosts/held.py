"""The events that an interpreted operator holds, and whether they are all that another one has to know.

They are given to another operator again, in order: to that of the edited query (`editing`), or to the one
that was compiled meanwhile (`growing`). What it finds among them is known already.
"""

from __future__ import annotations

from collections.abc import Sequence

from kaicep.kernel.codec import decode, read_event
from kaicep.kernel.operator import Operator
from kaicep.kernel.pattern import PatternOperator
from kaicep.plan.chi import Absent
from kaicep.plan.events import Event
from kaicep.plan.nodes import Node, Pattern

__all__ = ["held_events", "why_not_enough"]


def held_events(operator: Operator, streams: Sequence[str]) -> list[Event]:
    """The events that an interpreted operator holds, in the order of the query."""
    kind = "pattern" if isinstance(operator, PatternOperator) else "window"
    found = [read_event(row) for row in decode(kind, operator.snapshot())["events"]]
    places = {name: index for index, name in enumerate(streams)}
    return sorted(found, key=lambda each: (each.ts, places[each.stream], each.order_within()))


def why_not_enough(source: Node, judged_anew: bool) -> str | None:
    """Why the events that are held for a pattern or a window do not tell all; None where they do.

    `judged_anew`: there is a PATH, and it would be decided by other knowledge than when they came. An event
    that was judged keeps its verdict.
    """
    if judged_anew:
        return "events that it holds were judged by knowledge that has changed since"
    if not isinstance(source, Pattern):
        return None
    if source.match != "any":
        return f"under MATCH {source.match} events that are not held have a say in the choice"
    if source.skip != "none":
        return "with AFTER MATCH the matches of before have a say in which are told"
    if any(isinstance(each, Absent) for each in source.sequence):
        return "an absence may have been decided by events that are not held"
    return None
