"""Rewrites: from a plan to a plan with the same meaning that costs less.

One rewrite a file, a plain function of the same name; `RULES` is their order. A plan enters with the
catalogue and the knowledge it is resolved against; the better plan leaves with notes of what each rule
did, which `explain` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kaicep.errors import Diagnostic
from kaicep.knowledge.store import Knowledge
from kaicep.optimize.empty_paths import empty_paths
from kaicep.optimize.fold_constants import fold_constants
from kaicep.optimize.normalise_concepts import normalise_concepts
from kaicep.optimize.partition_from_equality import partition_from_equality
from kaicep.optimize.prune_constants import prune_constants
from kaicep.optimize.push_filters import push_filters
from kaicep.optimize.relate_paths import relate_paths
from kaicep.optimize.rule import Note, Rule, RuleContext
from kaicep.optimize.share_subplans import share_subplans, subplan
from kaicep.optimize.transform_paths import transform_paths
from kaicep.plan.catalog import Catalog
from kaicep.plan.nodes import ChiPlan, QueryPlan

_Plan = TypeVar("_Plan", ChiPlan, QueryPlan)

__all__ = ["RULES", "STEADY", "Note", "Rule", "optimize", "path_warnings", "share_subplans", "subplan"]

RULES: tuple[Rule, ...] = (
    prune_constants,
    transform_paths,
    normalise_concepts,
    fold_constants,
    push_filters,
    partition_from_equality,
    relate_paths,
)
"""The rules in the order in which they are applied."""

STEADY: tuple[Rule, ...] = (normalise_concepts, fold_constants, push_filters, partition_from_equality)
"""Those that do not look at the knowledge: what they make of a plan holds whatever becomes known."""


def path_warnings(plan: QueryPlan, catalog: Catalog, knowledge: Knowledge) -> tuple[Diagnostic, ...]:
    """What is to be said of PATHs that hold for nothing; nothing, where nothing is known."""
    if not isinstance(plan, ChiPlan) or not plan.body.all_semantics or not knowledge.statements:
        return ()
    optimised, _ = optimize(plan, catalog, knowledge)
    return tuple(empty_paths(plan, optimised, RuleContext(catalog, knowledge)))


def optimize(
    plan: _Plan, catalog: Catalog, knowledge: Knowledge, rules: Sequence[Rule] = RULES
) -> tuple[_Plan, tuple[Note, ...]]:
    """The plan after all rules, and what each of them did; the rules are for chi-CEP."""
    if not isinstance(plan, ChiPlan):
        return plan, ()
    context = RuleContext(catalog, knowledge)
    for rule in rules:
        plan = rule(plan, context)
    return plan, tuple(context.notes)
