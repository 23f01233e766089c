"""Parts of conditions that are true or false for all events are decided in advance and left out."""

from __future__ import annotations

from dataclasses import replace

from kaicep.optimize.rule import RuleContext, map_chains
from kaicep.plan.expressions import Call, Const, Expr, rewrite
from kaicep.plan.nodes import Chain, ChiPlan, Pattern
from kaicep.plan.text import resolved_text
from kaicep.plan.types import Type

_TRUE, _FALSE = Const(True, Type.BOOL), Const(False, Type.BOOL)


def fold_constants(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Simplifies conditions by the constants in them."""

    def folded(conditions: tuple[Expr, ...]) -> tuple[Expr, ...]:
        made: list[Expr] = []
        for each in conditions:
            simple = rewrite(each, _folded)
            if simple != each:
                context.note("fold_constants", f"{resolved_text(each)} is {resolved_text(simple)}")
            if simple != _TRUE:
                made.append(simple)
        return tuple(made)

    def on_chain(chain: Chain) -> Chain:
        return replace(chain, conditions=folded(chain.conditions))

    body = map_chains(plan.body, on_chain)
    if isinstance(body, Pattern):
        body = replace(body, conditions=folded(body.conditions))
    return replace(plan, body=body)


def _folded(expr: Expr) -> Expr:
    """One step: a connective with a constant side, or the sign of a number."""
    match expr:
        case Call("not", (Const(bool(value)),)):
            return _FALSE if value else _TRUE
        case Call("and" | "or", (left, right)):
            return _connective(expr, left, right)
        case Call("neg", (Const(int() | float() as number, type),)) if not isinstance(number, bool):
            return Const(-number, type) if number != -(2**63) else expr
        case Call("float", (Const(int() as number),)):
            return Const(float(number), Type.FLOAT64)
    return expr


def _connective(expr: Call, left: Expr, right: Expr) -> Expr:
    """Three-valued: false decides a conjunction, true a disjunction, the other constant says nothing."""
    decides, passes = (_FALSE, _TRUE) if expr.op == "and" else (_TRUE, _FALSE)
    if decides in (left, right):
        return decides
    if left == passes:
        return right
    return left if right == passes else expr
