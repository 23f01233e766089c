"""Equal subplans of different queries are run once.

Two queries that look for the same pattern and differ in what they select need one search. A window keeps
the aggregates of its columns, so there the columns must be the same too.
"""

from __future__ import annotations

from collections.abc import Sequence

from kaicep.plan.nodes import ChiPlan, Pattern, QueryPlan


def subplan(plan: ChiPlan) -> object:
    """What of a plan is the same for all queries that can share it."""
    return plan.body if isinstance(plan.body, Pattern) else (plan.body, plan.columns)


def share_subplans(plans: Sequence[QueryPlan]) -> dict[str, str]:
    """The queries that can use the work of another one, which is named first."""
    first: dict[object, str] = {}
    shared: dict[str, str] = {}
    for plan in plans:
        if isinstance(plan, ChiPlan):
            owner = first.setdefault(subplan(plan), plan.name)
            if owner != plan.name:
                shared[plan.name] = owner
    return shared
