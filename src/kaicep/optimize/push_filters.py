"""Filter push-down: the parts of a condition that one event decides go to that event.

`JOIN (?a.x > 5 && ?b.x > ?a.x)` says two things, and the first of them can be said as soon as there is
an ?a. A condition is taken apart only where all its variables are bound, once, in every match: one that
mentions an event which was left out does not apply as a whole, one about a loop holds for every round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kaicep.optimize.rule import RuleContext, certain_variables, with_conditions
from kaicep.plan.chi import Element, Loop, Together
from kaicep.plan.expressions import Expr, variables_of
from kaicep.plan.nodes import ChiPlan, Pattern
from kaicep.plan.program import conjuncts
from kaicep.plan.text import resolved_text


def push_filters(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Takes conjunctions apart and gives single events what concerns them alone."""
    body = plan.body
    if not isinstance(body, Pattern):
        return plan
    once = certain_variables(body) - set(_loops(body.sequence))
    kept: list[Expr] = []
    single: dict[str, list[Expr]] = {}
    for each in body.conditions:
        if not variables_of(each) <= once:
            kept.append(each)
            continue
        for part in conjuncts(each):
            names = variables_of(part)
            if len(names) == 1:
                single.setdefault(next(iter(names)), []).append(part)
                context.note("push_filters", f"{resolved_text(part)} concerns one event alone")
            else:
                kept.append(part)
    chains = tuple(with_conditions(chain, single) for chain in body.chains)
    return replace(plan, body=replace(body, chains=chains, conditions=tuple(kept)))


def _loops(sequence: tuple[Element, ...]) -> Iterator[str]:
    for each in sequence:
        if isinstance(each, Loop):
            yield each.variable
        elif isinstance(each, Together):
            yield from _loops(each.members)
