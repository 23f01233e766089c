"""An edited query: whether it may go on with the state of the old one, and what that keeps.

The state has no whole events, only what the query needs of those that take part in something. So an edited
query goes on where it asks more of the last event alone (a higher threshold, one condition more), has a
narrower WINDOW, or selects something else of what is kept: all that waits was rightly taken in. Where it asks
less, it would have needed events that were let go of; where it asks something else of an event that waits,
nobody could tell which ones meet that. Then it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from kaicep.plan.chi import Absent, Place, SpanWindow
from kaicep.plan.expressions import Call, Const, Expr, variables_of
from kaicep.plan.nodes import Chain, ChiPlan, Pattern, WindowAggregate

__all__ = ["why_anew"]


def why_anew(old: ChiPlan, new: ChiPlan) -> str | None:
    """Why an edited query cannot go on with the state of the old one; None where it can.

    Both plans are optimised.
    """
    before, after = old.body, new.body
    if isinstance(before, Pattern) and isinstance(after, Pattern):
        return _pattern(before, after)
    if isinstance(before, WindowAggregate) and isinstance(after, WindowAggregate):
        return _window(before, after)
    return "it was a pattern and is a window now, or the other way round"


def _pattern(old: Pattern, new: Pattern) -> str | None:
    same = (
        (old.sequence == new.sequence, "its SEQ is another"),
        (old.streams == new.streams, "it reads other streams"),
        (old.match == new.match, "its MATCH is another"),
        ((old.skip, old.skip_variable) == (new.skip, new.skip_variable), "its AFTER MATCH is another"),
        (old.partition == new.partition, "its PARTITION BY is another"),
        (old.key == new.key, "its events have another key in common"),
        ((old.latest, old.ties) == (new.latest, new.ties), "its LATEST or its PATH is another"),
    )
    for holds, difference in same:
        if not holds:
            return difference
    if _asks_as_before(old, new):
        return None
    if new.match != "any":
        return f"under MATCH {new.match} events that are not kept have a say in the choice"
    if new.skip != "none":
        return "with AFTER MATCH the matches of before have a say in which are reported"
    if any(isinstance(each, Absent) for each in new.sequence):
        return "an absence may have been decided by events that are not kept"
    if not _imply(new.conditions, old.conditions):
        return "a condition that held is gone or asks for less"
    if not all(any(_inside(window, each) for window in new.windows) for each in old.windows):
        return "a WINDOW is gone or wider than before"
    if not set(old.semantics) <= set(new.semantics):
        return "its PATH is another"
    reason = _chains(old.chains, new.chains)
    if reason is None and _what_waits(old) != _what_waits(new):
        return "it asks something else of an event that is not the last"
    return reason


def _what_waits(pattern: Pattern) -> tuple[object, ...]:
    """What decides whether events may wait for the last one."""
    final = pattern.sequence[-1]
    last = final.variable if isinstance(final, Place) else None
    return (
        {each for each in pattern.conditions if last not in variables_of(each)},
        {each for each in pattern.windows if last not in each.variables},
        [each for each in pattern.chains if each.variable != last],
        pattern.semantics,
    )


def _inside(narrow: SpanWindow, wide: SpanWindow) -> bool:
    return set(narrow.variables) >= set(wide.variables) and narrow.width <= wide.width


def _asks_as_before(old: Pattern, new: Pattern) -> bool:
    """Whether two patterns differ in nothing that decides what is kept."""
    return (old.conditions, old.windows, old.semantics, old.chains) == (
        new.conditions,
        new.windows,
        new.semantics,
        new.chains,
    )


def _window(old: WindowAggregate, new: WindowAggregate) -> str | None:
    if (old.streams, old.partition, old.group_by) != (new.streams, new.partition, new.group_by):
        return "its streams, its PARTITION BY or its GROUP BY are others"
    if (old.semantics, old.ties, old.expected) != (new.semantics, new.ties, new.expected):
        return "its PATH is another"
    before, after = old.window, new.window
    if before.kind != after.kind or before.variable != after.variable:
        return "its WINDOW is of another kind"
    if before != after:
        if before.width is None or after.width is None:
            return "its WINDOW counts events, and counts others now"
        if after.width > before.width or before.kind == "batch":
            return "its WINDOW is wider than before, or ends at other times"
    reason = _chains(old.chains, new.chains)
    if reason is None and old.chain != new.chain:
        return "it asks something else of the events in its WINDOW"
    return reason


def _chains(old: Iterable[Chain], new: Iterable[Chain]) -> str | None:
    for before, after in zip(old, new, strict=True):
        if (before.variable, before.streams, before.within) != (after.variable, after.streams, after.within):
            return "a variable ranges over other streams, or its WITHIN is another"
        if not set(before.semantics) <= set(after.semantics):
            return "its PATH is another"
        if not _imply(after.conditions, before.conditions):
            return "a FILTER is gone or lets more events pass"
    return None


def _imply(new: Iterable[Expr], old: Iterable[Expr]) -> bool:
    """Whether whatever fulfils the new conditions fulfils the old ones."""
    stronger = tuple(new)
    return all(any(_implies(each, wanted) for each in stronger) for wanted in old)


def _implies(strong: Expr, weak: Expr) -> bool:
    """Whether one condition implies another; seen where they are the same but for a threshold."""
    if strong == weak:
        return True
    match strong, weak:
        case Call(op, (left, Const(high, kind))), Call(other, (same, Const(low, likewise))):
            if op != other or left != same or kind != likewise or not isinstance(high, int | float):
                return False
            if not isinstance(low, int | float):
                return False
            return (op in (">", ">=") and high >= low) or (op in ("<", "<=") and high <= low)
    return False
