"""A key from equalities: where JOINs say that all events of a match agree in something.

Events with different keys then never meet, so state is kept, and found, by key. The answer stays as it
is where every match binds every variable and may skip whatever it likes. Elsewhere events of other keys
have a say: under `strict` and with skipping they count; under `next` one of them may be taken before the
JOIN that tells them apart is tested; and a JOIN with an event that is left out, or absent, ties nothing.
"""

from __future__ import annotations

from dataclasses import replace

from kaicep.optimize.rule import RuleContext, certain_variables
from kaicep.plan.expressions import Call, Expr, Field
from kaicep.plan.nodes import ChiPlan, Pattern
from kaicep.plan.text import resolved_text


def partition_from_equality(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Finds a key for the pattern, if its JOINs tie all variables by one."""
    body = plan.body
    if not isinstance(body, Pattern) or body.match != "any" or body.skip != "none":
        return plan
    variables = [each.variable for each in body.all_chains]
    if len(variables) < 2 or not certain_variables(body).issuperset(variables):
        return plan
    key = _key(body.conditions, variables)
    if key is None:
        return plan
    shown = " = ".join(resolved_text(each) for _, each in key)
    context.note("partition_from_equality", f"all events of a match agree in {shown}")
    return replace(plan, body=replace(body, key=key))


def _key(conditions: tuple[Expr, ...], variables: list[str]) -> tuple[tuple[str, Expr], ...] | None:
    """One field for each variable, all of them equal to each other."""
    classes: list[set[Field]] = []
    for each in conditions:
        sides = each.args if isinstance(each, Call) and each.op == "=" else ()
        fields = {side for side in sides if isinstance(side, Field)}
        if len(fields) != 2 or len({field.variable for field in fields}) != 2:
            continue
        touching = [found for found in classes if found & fields]
        classes = [found for found in classes if found not in touching]
        classes.append(fields.union(*touching))
    for found in classes:
        by_variable = {field.variable: field for field in sorted(found, key=lambda each: each.name)}
        if set(by_variable) == set(variables):
            return tuple((name, by_variable[name]) for name in variables)
    return None
