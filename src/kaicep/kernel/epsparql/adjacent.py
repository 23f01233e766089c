"""`P SEQ Q` with nothing in between, said as the paper says it (queries 5 and 6).

    { P SEQ Q } EQUALSOPTIONAL { P SEQ I SEQ Q } FILTER (!BOUND(?of_i))

All the ways to put an I between a P and a Q are of no interest, only whether there is one. So it is looked
for from the latest P backwards: where the same I lies behind all earlier ones, the search is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kaicep.kernel.epsparql.operators import Operator, Pairing, picker
from kaicep.kernel.epsparql.state import Batch, Context, Row, Store, Values, all_reads
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.durations import conjuncts
from kaicep.plan.expressions import Call, Expr, VariableRef
from kaicep.plan.nodes import Bgp, Node, Temporal
from kaicep.plan.sparql import Path

__all__ = ["Adjacent", "Between", "nothing_between"]


@dataclass(frozen=True)
class Between:
    """The three groups: before, after, and what must not be in between."""

    before: Node
    after: Node
    inside: Node


def nothing_between(node: Node, condition: Expr) -> Between | None:
    """The groups of a plan that asks for what is adjacent; None where it asks for something else."""
    whole = _plain(node, "EQUALSOPTIONAL")
    pair, triple = (_plain(each, "SEQ") for each in (whole.left, whole.right)) if whole else (None, None)
    first = _plain(triple.left, "SEQ") if triple else None
    if pair is None or triple is None or first is None:
        return None
    found = Between(pair.left, pair.right, first.right)
    if (first.left, triple.right) != (found.before, found.after):
        return None
    names = [_names(each) for each in (found.before, found.after, found.inside)]
    if any(each is None for each in names):
        return None
    before, after, inside = (each or frozenset() for each in names)
    absent = {each for each in inside if each not in before | after}
    return found if any(_unbound(each) in absent for each in conjuncts(condition)) else None


def _plain(node: Node, op: str) -> Temporal | None:
    """The node, if it is this operator with nothing special about it."""
    plain = isinstance(node, Temporal) and node.condition is None and node.consumption == "unrestricted"
    return node if isinstance(node, Temporal) and plain and node.op == op else None


def _names(node: Node) -> frozenset[str] | None:
    """The variables of a group that binds them all; None for other groups."""
    if not isinstance(node, Bgp) or any(isinstance(each.predicate, Path) for each in node.patterns):
        return None
    return frozenset(name for each in node.patterns for name in pattern_variables(each))


def _unbound(expr: Expr) -> str | None:
    """The variable that a condition says is unbound."""
    if isinstance(expr, Call) and expr.op == "not":
        inner = expr.args[0]
        if isinstance(inner, Call) and inner.op == "bound" and isinstance(inner.args[0], VariableRef):
            return inner.args[0].name
    return None


class Adjacent(Operator):
    """Pairs of a solution before and one after, with no compatible one in between."""

    def __init__(
        self, before: Operator, after: Operator, inside: Operator, context: Context, bound: int | None
    ) -> None:
        self._pairing = Pairing(before, after)
        pair = Operator(self._pairing.names, frozenset(self._pairing.names))
        self._inner = Pairing(pair, inside)
        super().__init__(self._inner.names, frozenset(pair.names), timed=True)
        self.before, self.after, self.inside = before, after, inside
        self._bound = bound
        # Whatever lies between one that is before and one that is after lies behind all that ended earlier,
        # unless which ones agree is a matter of the one before.
        self._same_for_all = all(name in after.names for name in self._inner.shared)
        self._befores = Store(context, "SEQ", self._pairing.left_key, bound)
        self._alike = Store(context, "SEQ", picker(range(len(before.names))), bound)
        self._insides = Store(context, "SEQ", self._inner.right_key, bound)

    def reads(self) -> frozenset[str] | None:
        """See `Operator`."""
        return all_reads(self.before, self.after, self.inside)

    def step(self, batch: Batch) -> list[Row]:
        """See `Operator`."""
        afters = self.after.step(batch)
        latest: dict[Values, int] = {}
        for start, _, values in afters:
            latest[values] = max(start, latest.get(values, start))
        found = [row for each in afters for row in self._pairs(each, latest[each[2]])]
        for row in self.before.step(batch):
            self._befores.add(row)
            self._alike.add(row)
        for row in self.inside.step(batch):
            self._insides.add(row)
        return found

    def _pairs(self, after: Row, latest: int) -> list[Row]:
        """What comes right before; `latest` is when the last solution like it starts that ends with it."""
        start, end, right = after
        oldest = None if self._bound is None else end - self._bound
        kept = self._befores.between(self._pairing.right_key(right), oldest, start - 1)
        found: list[Row] = []
        for begun, ended, left in reversed(kept):
            if ended >= start:
                continue
            values = self._pairing.join(left, right)
            assert values is not None
            if self._is_between(values, ended, latest):
                if self._same_for_all:
                    break
                continue
            first = self._first_end(begun, left)
            if first == ended or not self._is_between(values, first, latest):
                found.append((begun, end, self._inner.alone_left(values)))
        return found

    def _is_between(self, values: Values, ended: int, start: int) -> bool:
        kept = self._insides.between(self._inner.left_key(values), ended + 1, start - 1)
        return any(ended < row[0] and row[1] < start for row in kept)

    def _first_end(self, start: int, values: Values) -> int:
        """When the first solution like one before ended: they make the same interval, so one is for all."""
        return next(row[1] for row in self._alike.at(self._alike.key(values)) if row[0] == start)

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `Operator`."""
        return []
