"""From a plan to its operators; bounds on the duration go down to whatever may forget by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from kaicep.errors import Failure
from kaicep.kernel.epsparql.exists import probe
from kaicep.kernel.epsparql.expressions import Probe, SolutionTest, Value, existences
from kaicep.kernel.epsparql.grouping import Grouped
from kaicep.kernel.epsparql.operators import (
    Adjacent,
    Extension,
    Filtered,
    GivenRows,
    JoinedSolutions,
    LeftJoined,
    Pairing,
    Projected,
    Restricted,
    SolutionOperator,
    Sorted,
    United,
    Without,
    nothing_between,
)
from kaicep.kernel.epsparql.patterns import basic
from kaicep.kernel.epsparql.state import OperatorContext
from kaicep.kernel.epsparql.temporal import Consuming, Negation, Paired, optional_side
from kaicep.kernel.epsparql.windows import Evaluating
from kaicep.plan.expressions import Exists, Expr
from kaicep.plan.nodes import (
    Bgp,
    Evaluations,
    Extend,
    FilterSolutions,
    Grouping,
    InsideWindow,
    Join,
    LeftJoin,
    Minus,
    Node,
    Ordered,
    Solutions,
    Temporal,
    Union,
    ValuesTable,
)
from kaicep.plan.program import conjuncts, duration_bound, tighter
from kaicep.plan.sparql import WindowClause

__all__ = ["build"]


def build(
    node: Node, context: OperatorContext, bound: int | None = None, given: Mapping[str, str] | None = None
) -> SolutionOperator:
    """The operator of a plan.

    Solutions longer than `bound` are of no use to whoever asks. Variables that are `given` stand for
    their terms, as EXISTS has it.
    """
    return _Builder(context, given or {}).operator(node, bound)


@dataclass(frozen=True)
class _Builder:
    context: OperatorContext
    given: Mapping[str, str]
    windows: Mapping[WindowClause, OperatorContext] = field(default_factory=dict)

    def operator(self, node: Node, bound: int | None) -> SolutionOperator:
        match node:
            case Bgp(patterns):
                return basic(patterns, self.context, bound, self.given)
            case Join(left, right):
                return JoinedSolutions(
                    self.operator(left, bound), self.operator(right, bound), self.context, bound
                )
            case LeftJoin():
                return self._left_join(node, bound)
            case Union(left, right):
                return United(self.operator(left, bound), self.operator(right, bound))
            case Minus(left, right):
                return Without(self.operator(left, bound), self.operator(right, None), self.context)
            case FilterSolutions(below, condition):
                near = tighter(bound, duration_bound(condition))
                between = None if self.given else nothing_between(below, condition)
                if between is not None:
                    parts = (between.before, between.after, between.inside)
                    before, after, inside = (self.operator(each, near) for each in parts)
                    inner: SolutionOperator = Adjacent(before, after, inside, self.context, near)
                else:
                    inner = self.operator(below, near)
                return Filtered(inner, self._condition(condition, inner.names))
            case Extend(below, name, expr):
                inner = self.operator(below, bound)
                return Extension(inner, name, self._value(expr, inner.names), self.given.get(name))
            case ValuesTable(names, rows):
                texts = [tuple(None if each is None else str(each) for each in row) for row in rows]
                return self._restricted(GivenRows(names, texts))
            case Temporal():
                return self._temporal(node, bound)
            case Grouping():
                return self._grouping(node)
            case Ordered(below):
                return Sorted(self.operator(below, None), node)
            case Evaluations():
                return self._restricted(Evaluating(node, self.context, partial(self._evaluated, node.input)))
            case InsideWindow(below, window):
                return replace(self, context=self.windows[window]).operator(below, None)
            case Solutions(below, names, distinct):
                seen = {name: text for name, text in self.given.items() if name in names}
                inner = replace(self, given=seen).operator(below, bound)
                return replace(self, given=seen)._restricted(Projected(inner, names, distinct))
        raise Failure(f"no operator of SPARQL: {type(node).__name__}")

    def _evaluated(self, below: Node, windows: Mapping[WindowClause, OperatorContext]) -> SolutionOperator:
        context = OperatorContext(
            self.context.facts, self.context.query, self.context.cap, False, timeless=True
        )
        return _Builder(context, {}, windows).operator(below, None)

    def _restricted(self, operator: SolutionOperator) -> SolutionOperator:
        return Restricted(operator, self.given) if self.given else operator

    def _left_join(self, node: LeftJoin, bound: int | None) -> SolutionOperator:
        near = duration_bound(node.condition)
        left, right = self.operator(node.left, bound), self.operator(node.right, near)
        pairing = Pairing(left, right)
        condition = self._condition(node.condition, pairing.names)
        return LeftJoined(left, right, condition, pairing, self.context, bound, near)

    def _temporal(self, node: Temporal, bound: int | None) -> SolutionOperator:
        if node.op == "NOT":
            # What lies inside of a solution is no longer than the solution.
            sides = [self.operator(each, bound) for each in (node.left, node.right)]
            return Negation(sides[0], sides[1], self.context, bound)
        consuming = node.consumption != "unrestricted"
        bound = None if consuming else bound
        near = None if consuming else duration_bound(node.condition)
        left_bound = near if optional_side(node.op) == "left" else bound
        left, right = self.operator(node.left, left_bound), self.operator(node.right, bound)
        pairing = Pairing(left, right)
        condition = self._condition(node.condition, pairing.names)
        if consuming:
            return Consuming(node.op, left, right, condition, pairing, self.context, node.consumption)
        return Paired(node.op, left, right, condition, pairing, self.context, bound, near)

    def _grouping(self, node: Grouping) -> SolutionOperator:
        below = self.operator(node.input, None)
        keys = [(name, self._maybe_value(expr, below)) for name, expr in node.keys]
        aggregates = [(name, each, self._maybe_value(each.of, below)) for name, each in node.aggregates]
        return Grouped(below, keys, aggregates, self.context)

    def _maybe_value(self, expr: Expr | None, below: SolutionOperator) -> Value | None:
        return None if expr is None else self._value(expr, below.names)

    def _condition(self, condition: Expr | None, names: Iterable[str]) -> SolutionTest:
        known = tuple(names)
        return SolutionTest(conjuncts(condition), known, self._probes(condition, known), self.given)

    def _value(self, expr: Expr, names: Iterable[str]) -> Value:
        known = tuple(names)
        return Value(expr, known, self._probes(expr, known), self.given)

    def _probes(self, expr: Expr | None, names: tuple[str, ...]) -> dict[Exists, Probe]:
        outer = frozenset(names) | self.given.keys()
        return {each: probe(each, outer, self.context, build) for each in existences(expr)}
