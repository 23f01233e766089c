"""What only the reference can run so far: a host that is asked for it says so, and gives no wrong answer."""

from __future__ import annotations

from collections.abc import Iterator

from kaicep.errors import Unsupported
from kaicep.plan.chi import always_bound
from kaicep.plan.expressions import VariableRef
from kaicep.plan.nodes import Pattern, Project, QueryPlan, Semantic, SemanticFilter, WindowAggregate
from kaicep.plan.paths import has_path_values

__all__ = ["refuse_gaps", "why_only_the_reference"]


def refuse_gaps(plan: QueryPlan) -> None:
    """Raises `Unsupported` where only the reference can run a query."""
    reason = why_only_the_reference(plan)
    if reason is not None:
        raise Unsupported(f"{plan.name}: {reason} runs in the reference only, so far (--host reference)")


def why_only_the_reference(plan: QueryPlan) -> str | None:
    """What in a query no host but the reference can run; None where there is nothing."""
    source = plan.root.input if isinstance(plan.root, Project) else None
    if not isinstance(plan.root, Project) or not isinstance(source, Pattern | WindowAggregate):
        return None
    if isinstance(source, Pattern) and source.latest:
        return "LATEST"
    if any(isinstance(each, VariableRef) for each in source.partition):
        return "PARTITION BY a variable of the PATH"
    if isinstance(source, WindowAggregate):
        if any(isinstance(each, VariableRef) for each in source.group_by):
            return "GROUP BY a variable of the PATH"
        if any(has_path_values(each) for each in source.having):
            return "a variable of the PATH in HAVING"
    inside = (each.expr for each in plan.root.columns if not isinstance(each.expr, VariableRef))
    if any(has_path_values(each) for each in inside):
        return "a variable of the PATH inside a column"
    for each in _semantics(source):
        if each.conditions:
            return "a variable of the PATH in a condition"
        if each.blocks and isinstance(source, Pattern) and not _is_tested_at_once(each, source):
            return "PATH blocks that share variables, with MATCH next or strict or with events left out"
    return None


def _semantics(source: Pattern | WindowAggregate) -> Iterator[Semantic]:
    yield from source.semantics
    for each in source.walk():
        if isinstance(each, SemanticFilter):
            yield from each.conditions


def _is_tested_at_once(condition: Semantic, pattern: Pattern) -> bool:
    """Whether it makes no difference that some blocks could be tested before others, or without them."""
    if len(condition.variables) == 1:
        return True
    bound = {name for each in pattern.sequence for name in always_bound(each)}
    return pattern.match == "any" and bound.issuperset(condition.variables)
