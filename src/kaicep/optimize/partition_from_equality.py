"""A key from equalities: where JOINs say that all events of a match agree in something.

Events with different keys then never meet, so state is kept, and found, by key. The answer stays as it
is where every match binds every variable and may skip whatever it likes. Elsewhere events of other keys
have a say: under `strict` and with skipping they count; under `next` one of them may be taken before the
JOIN that tells them apart is tested; and a JOIN with an event that is left out, or absent, ties nothing.
"""

from __future__ import annotations

from dataclasses import replace

from kaicep.optimize.rule import Context, certain_variables, with_source
from kaicep.plan.expressions import Call, Expr, Field
from kaicep.plan.nodes import Node, Pattern, QueryPlan, Scan
from kaicep.plan.text import resolved_text

__all__ = ["partition_from_equality"]


def partition_from_equality(plan: QueryPlan, context: Context) -> QueryPlan:
    """Finds a key for the pattern, if its JOINs tie all variables by one."""

    def keyed(node: Node) -> Node:
        if not isinstance(node, Pattern) or node.match != "any" or node.skip != "none":
            return node
        variables = [each.variable for each in node.walk() if isinstance(each, Scan)]
        if len(variables) < 2 or not certain_variables(node).issuperset(variables):
            return node
        key = _key(node.conditions, variables)
        if key is None:
            return node
        shown = " = ".join(resolved_text(each) for _, each in key)
        context.note("partition_from_equality", f"all events of a match agree in {shown}")
        return replace(node, key=key)

    return with_source(plan, keyed)


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
