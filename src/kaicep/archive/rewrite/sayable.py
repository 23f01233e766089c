"""What one SPARQL or SQL query cannot say of a plan; the strategies replay and hybrid can answer it."""

from __future__ import annotations

from kaicep.errors import Unsupported
from kaicep.plan.chi import always_bound
from kaicep.plan.expressions import VariableRef
from kaicep.plan.nodes import ChiPlan, Pattern, Semantic, WindowAggregate
from kaicep.plan.paths import has_path_values

__all__ = ["refuse_unsayable"]


def refuse_unsayable(plan: ChiPlan) -> None:
    """Raises `Unsupported` where a plan has something that one query cannot say."""
    part = _unsayable(plan)
    if part is not None:
        raise Unsupported(f"{plan.name}: one query cannot say {part}; the strategies replay and hybrid can")


def _unsayable(plan: ChiPlan) -> str | None:
    if isinstance(plan.body, WindowAggregate):
        return why_no_window(plan, plan.body)
    return _why_no_pattern(plan, plan.body)


def why_no_window(plan: ChiPlan, source: WindowAggregate) -> str | None:
    """What in a query over a window one query cannot say."""
    if source.expected is not None:
        return "ABSENT"
    if any(isinstance(each, VariableRef) for each in source.partition):
        return "PARTITION BY a variable of the PATH"
    if any(isinstance(each, VariableRef) for each in source.group_by):
        return "GROUP BY a variable of the PATH"
    if any(has_path_values(each) for each in source.having):
        return "a variable of the PATH in HAVING"
    if _has_path_columns(plan):
        return "a variable of the PATH inside a column"
    if any(each.conditions for each in source.all_semantics):
        return "a variable of the PATH in a condition"
    return None


def _why_no_pattern(plan: ChiPlan, source: Pattern) -> str | None:
    """What in a pattern one query cannot say."""
    if source.latest:
        return "LATEST"
    if any(isinstance(each, VariableRef) for each in source.partition):
        return "PARTITION BY a variable of the PATH"
    if _has_path_columns(plan):
        return "a variable of the PATH inside a column"
    for each in source.all_semantics:
        if each.conditions:
            return "a variable of the PATH in a condition"
        if each.blocks and not _is_tested_at_once(each, source):
            return "PATH blocks that share variables, with MATCH next or strict or with events left out"
    return None


def _has_path_columns(plan: ChiPlan) -> bool:
    """Whether a column is more than a variable of the PATH by itself."""
    inside = (each.expr for each in plan.columns if not isinstance(each.expr, VariableRef))
    return any(map(has_path_values, inside))


def _is_tested_at_once(condition: Semantic, pattern: Pattern) -> bool:
    """Whether it makes no difference that some blocks could be tested before others, or without them."""
    if len(condition.variables) == 1:
        return True
    bound = {name for each in pattern.sequence for name in always_bound(each)}
    return pattern.match == "any" and bound.issuperset(condition.variables)
