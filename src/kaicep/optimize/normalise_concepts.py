"""Semantic normalisation (section 4.1 of the SCEPter paper): concepts become the attributes of each stream.

Resolving has found which attributes carry a concept. Where a stream has several, the first that is not
null counts: that is said here with `coalesce`, so that nothing below this rule knows of concepts.
"""

from __future__ import annotations

from dataclasses import replace

from kaicep.optimize.rule import RuleContext, map_chains
from kaicep.plan.expressions import Call, Expr, Field, Previous, rewrite, walk
from kaicep.plan.nodes import Chain, ChiPlan, Pattern


def normalise_concepts(plan: ChiPlan, context: RuleContext) -> ChiPlan:
    """Replaces every concept in a condition by attributes."""
    told: set[str] = set()

    def normalised(conditions: tuple[Expr, ...]) -> tuple[Expr, ...]:
        for field in (node for each in conditions for node in walk(each) if isinstance(node, Field)):
            for stream, attributes in field.sources:
                text = f"{field.name} is {' or '.join(attributes)} on {stream}"
                if attributes and attributes != (field.name,) and text not in told:
                    told.add(text)
                    context.note("normalise_concepts", text)
        return tuple(
            each if any(isinstance(node, Previous) for node in walk(each)) else rewrite(each, _spread)
            for each in conditions
        )

    def on_chain(chain: Chain) -> Chain:
        return replace(chain, conditions=normalised(chain.conditions))

    body = map_chains(plan.body, on_chain)
    if isinstance(body, Pattern):
        return replace(plan, body=replace(body, conditions=normalised(body.conditions)))
    return replace(plan, body=replace(body, having=normalised(body.having)))


def _spread(expr: Expr) -> Expr:
    """A field that several attributes of one stream carry, as the first of them that is not null."""
    if not isinstance(expr, Field):
        return expr
    most = max((len(found) for _, found in expr.sources), default=0)
    if most < 2:
        return expr
    parts = tuple(
        replace(
            expr,
            name="/".join(dict.fromkeys(found[at] for _, found in expr.sources if at < len(found))),
            sources=tuple((stream, found[at : at + 1]) for stream, found in expr.sources),
        )
        for at in range(most)
    )
    return Call("coalesce", parts, expr.type, span=expr.span)
