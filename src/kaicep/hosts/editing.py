"""An edited query: whether it may go on with the state of the old one, and what that keeps.

A query that asks for more than before (a higher threshold, a narrower window, one condition more) finds
everything that it still needs among the events which the old one holds. They are given to its operator
again, in order, and what it finds among them is known already. Where the new query asks for less, it would
have needed events that the old one has let go of: it begins anew.

A compiled pattern holds no whole events, only what it needs of them. It goes on where the query asks more of
its last event alone, or has a narrower WINDOW: everything that waits was rightly taken in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kaicep.hosts.held import why_not_enough
from kaicep.kernel.chains import chain_parts
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Place, SpanWindow
from kaicep.plan.expressions import Call, Const, Expr, variables_of
from kaicep.plan.nodes import (
    Node,
    Pattern,
    Project,
    QueryPlan,
    WindowAggregate,
)

__all__ = ["asks_as_before", "why_anew", "why_anew_compiled"]


def why_anew(old: QueryPlan, new: QueryPlan, judged_anew: bool) -> str | None:
    """Why an edited query cannot go on with what the old one holds; None where it can.

    Both plans are optimised. `judged_anew`: the new one has a PATH, and the knowledge is not what it was when
    the old one began.
    """
    if not isinstance(old.root, Project) or not isinstance(new.root, Project):
        return "it is EP-SPARQL"
    before, after = old.root.input, new.root.input
    if isinstance(before, Pattern) and isinstance(after, Pattern):
        return _pattern(before, after, judged_anew)
    if isinstance(before, WindowAggregate) and isinstance(after, WindowAggregate):
        return _window(before, after, judged_anew)
    return "it was a pattern and is a window now, or the other way round"


def _pattern(old: Pattern, new: Pattern, judged_anew: bool) -> str | None:
    same = (
        (old.sequence == new.sequence, "its SEQ is another"),
        (old.streams == new.streams, "it reads other streams"),
        (old.match == new.match, "its MATCH is another"),
        ((old.skip, old.skip_variable) == (new.skip, new.skip_variable), "its AFTER MATCH is another"),
        (old.partition == new.partition, "its PARTITION BY is another"),
    )
    for holds, reason in same:
        if not holds:
            return reason
    if asks_as_before(old, new):
        return None
    missing = why_not_enough(old, judged_anew)
    if missing is not None:
        return missing
    if not _imply(new.conditions, old.conditions):
        return "a condition that held is gone or asks for less"
    if not all(any(_inside(window, each) for window in new.windows) for each in old.windows):
        return "a WINDOW is gone or wider than before"
    if not set(old.semantics) <= set(new.semantics):
        return "its PATH is another"
    return _chains(old.chains, new.chains)


def why_anew_compiled(old: QueryPlan, new: QueryPlan, catalog: Catalog) -> str | None:
    """Why an edited query that runs compiled cannot go on with what the old one holds; None where it can."""
    reason = why_anew(old, new, judged_anew=False)  # what it holds goes over as it was judged
    if reason is not None:
        return reason
    assert isinstance(old.root, Project)
    assert isinstance(new.root, Project)
    before, after = old.root.input, new.root.input
    if not isinstance(before, Pattern) or not isinstance(after, Pattern):
        return "it is a window, and compiled"
    if before.key != after.key:
        return "its events have another key in common"
    if _what_waits(before) != _what_waits(after):
        return "it is compiled, and asks something else of an event that is not the last"
    from kaicep.kernel.compiled.operator import kept_of_events

    if kept_of_events(old, catalog) != kept_of_events(new, catalog):
        return "it is compiled, and needs other attributes of events that wait"
    return None


def _what_waits(pattern: Pattern) -> tuple[object, ...]:
    """What decides whether events may wait for the last one."""
    final = pattern.sequence[-1]
    last = final.variable if isinstance(final, Place) else None
    return (
        {each for each in pattern.conditions if last not in variables_of(each)},
        {each for each in pattern.windows if last not in each.variables},
        [each for each in pattern.chains if chain_parts(each)[0].variable != last],
        pattern.semantics,
    )


def _inside(narrow: SpanWindow, wide: SpanWindow) -> bool:
    return set(narrow.variables) >= set(wide.variables) and narrow.width <= wide.width


def asks_as_before(old: Node, new: Node) -> bool:
    """Whether two patterns differ in nothing that decides what is held."""
    if not isinstance(old, Pattern) or not isinstance(new, Pattern):
        return False
    return (old.conditions, old.windows, old.semantics, old.chains) == (
        new.conditions,
        new.windows,
        new.semantics,
        new.chains,
    )


def _window(old: WindowAggregate, new: WindowAggregate, judged_anew: bool) -> str | None:
    if (old.streams, old.partition, old.group_by) != (new.streams, new.partition, new.group_by):
        return "its streams, its PARTITION BY or its GROUP BY are others"
    if old.semantics != new.semantics:
        return "its PATH is another"
    before, after = old.window, new.window
    if before.kind != after.kind or before.variable != after.variable:
        return "its WINDOW is of another kind"
    missing = why_not_enough(old, judged_anew)
    if missing is not None:
        return missing
    if old.input == new.input and before == after:
        return None
    if before.width is None or after.width is None:
        return "its WINDOW counts events, and counts others now"
    if after.width > before.width or (before.kind == "batch" and after.width != before.width):
        return "its WINDOW is wider than before, or ends at other times"
    return _chains((old.input,), (new.input,))


def _chains(old: Sequence[Node], new: Sequence[Node]) -> str | None:
    for before, after in zip(old, new, strict=True):
        scan, conditions, semantics = chain_parts(before)
        other, stronger, more = chain_parts(after)
        if scan != other:
            return "a variable ranges over other streams, or its WITHIN is another"
        if not set(semantics) <= set(more):
            return "its PATH is another"
        if not _imply(stronger, conditions):
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
