"""The operators of SPARQL and the temporal ones, as incremental joins; consumption policies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaicep.kernel.epsparql.expressions import SolutionTest, Value
from kaicep.kernel.epsparql.reading import term_of
from kaicep.kernel.epsparql.state import InstantBatch, OperatorContext, Row, Store, Values, all_reads
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.expressions import Call, Expr, VariableRef
from kaicep.plan.nodes import Bgp, Node, Ordered, Temporal
from kaicep.plan.program import conjuncts
from kaicep.plan.sparql import Path
from kaicep.plan.values import sort_key

__all__ = [
    "Extension",
    "Filtered",
    "JoinedSolutions",
    "LeftJoined",
    "SolutionOperator",
    "Pairing",
    "Projected",
    "Restricted",
    "GivenRows",
    "Sorted",
    "United",
    "Without",
    "picker",
    "Adjacent",
    "Between",
    "nothing_between",
]


# ----------------------------------------------------------------------------------------------------------
# The operators of SPARQL and the temporal ones, as incremental joins of two sides.
#
# An operator is stepped with occurrences that end at one instant and gives the solutions that end then. One
# that only grows may be stepped several times for an instant, with what is new each time. The others
# (optional sides, NOT, MINUS, EXISTS, groups) are stepped once, with the whole instant: answers are
# timewise monotone (section 4.2 of the paper), so what ends later changes nothing.
#
# Solutions that knowledge alone gives have no time; they are never listed, but looked up by what they are
# to be joined with (`still`).


class SolutionOperator:
    """What all operators share: the names of their variables, and those that every solution binds.

    `timed` says that every solution has a time, so that there is no need to ask for those that have none.
    """

    def __init__(self, names: Sequence[str], certain: frozenset[str], timed: bool = False) -> None:
        self.names = tuple(names)
        self.certain = certain
        self.timed = timed

    def reads(self) -> frozenset[str] | None:
        """The predicates of the occurrences that it looks at; None is any."""
        raise NotImplementedError

    def step(self, batch: InstantBatch) -> list[Row]:
        """The solutions that end with the batch and come through it."""
        raise NotImplementedError

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """The solutions without time that are compatible with given terms."""
        raise NotImplementedError

    def fits(self, values: Values, given: Mapping[str, str]) -> bool:
        """Whether a solution is compatible with given terms."""
        return all(
            text is None or given.get(name, text) == text
            for name, text in zip(self.names, values, strict=True)
        )

    def bindings(self, values: Values) -> dict[str, str]:
        """The variables that a solution binds."""
        return {n: text for n, text in zip(self.names, values, strict=True) if text is not None}


def picker(places: Sequence[int]) -> Callable[[Values], Hashable]:
    """The values at some places, as a key; of one place it is the value itself."""
    if len(places) == 1:
        place = places[0]
        return lambda values: values[place]
    return lambda values: tuple([values[each] for each in places])


class Pairing:
    """How solutions of two sides are joined: by a key of the variables that both know.

    Where a side may leave one unbound, they are compared one by one as well.
    """

    def __init__(self, left: SolutionOperator, right: SolutionOperator) -> None:
        shared = [name for name in left.names if name in right.names]
        self.left_key = picker([left.names.index(each) for each in shared])
        self.right_key = picker([right.names.index(each) for each in shared])
        exact = all(each in left.certain and each in right.certain for each in shared)
        loose = [] if exact else shared
        self._loose = [(left.names.index(each), right.names.index(each)) for each in loose]
        self._extra = [i for i, name in enumerate(right.names) if name not in left.names]
        self.names = left.names + tuple(right.names[i] for i in self._extra)
        self.shared = shared
        self.exact = not self._loose

    def join(self, left: Values, right: Values) -> Values | None:
        """Both together; None where they disagree."""
        extra = tuple([right[i] for i in self._extra])
        if not self._loose:
            return left + extra
        for i, j in self._loose:
            if left[i] is not None and right[j] is not None and left[i] != right[j]:
                return None
        filled = list(left)
        for i, j in self._loose:
            if filled[i] is None:
                filled[i] = right[j]
        return tuple(filled) + extra

    def alone_left(self, left: Values) -> Values:
        """A left side without a partner."""
        return left + (None,) * len(self._extra)

    def alone_right(self, names: Sequence[str], right: Values) -> Values:
        """A right side without a partner."""
        values = dict(zip(names, right, strict=True))
        return tuple(values.get(name) for name in self.names)


class JoinedSolutions(SolutionOperator):
    """Join: compatible solutions of both sides."""

    def __init__(
        self, left: SolutionOperator, right: SolutionOperator, context: OperatorContext, bound: int | None
    ) -> None:
        self.pairing = Pairing(left, right)
        super().__init__(self.pairing.names, left.certain | right.certain, left.timed or right.timed)
        self.left, self.right = left, right
        self._bound = bound
        self._lefts = Store(context, "a join of groups", self.pairing.left_key, bound)
        self._rights = Store(context, "a join of groups", self.pairing.right_key, bound)

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return all_reads(self.left, self.right)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        lefts, rights = self.left.step(batch), self.right.step(batch)
        if not lefts and not rights:
            return []
        found: list[Row] = []
        join, oldest = self.pairing.join, batch.end - self._bound if self._bound is not None else None
        for b in rights:
            for a in self._lefts.between(self.pairing.right_key(b[2]), oldest, None):
                if (values := join(a[2], b[2])) is not None:
                    found.append((min(a[0], b[0]), b[1], values))
            for timeless in () if self.left.timed else self.left.still(self.right.bindings(b[2])):
                if (values := join(timeless, b[2])) is not None:
                    found.append((b[0], b[1], values))
            self._rights.add(b)
        for a in lefts:
            for b in self._rights.between(self.pairing.left_key(a[2]), oldest, None):
                if (values := join(a[2], b[2])) is not None:
                    found.append((min(a[0], b[0]), a[1], values))
            for timeless in () if self.right.timed else self.right.still(self.left.bindings(a[2])):
                if (values := join(a[2], timeless)) is not None:
                    found.append((a[0], a[1], values))
            self._lefts.add(a)
        return found

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        found: list[Values] = []
        for a in self.left.still(given):
            for b in self.right.still({**given, **self.left.bindings(a)}):
                if (values := self.pairing.join(a, b)) is not None:
                    found.append(values)
        return found


class LeftJoined(SolutionOperator):
    """OPTIONAL: the left side with every partner that is known by its end, or alone.

    `bound` is that of the answers, `near` that of the condition: a partner that makes the pair longer
    than `near` is none. One that makes it longer than `bound` is no answer, but it still is a partner.
    """

    def __init__(
        self,
        left: SolutionOperator,
        right: SolutionOperator,
        condition: SolutionTest,
        pairing: Pairing,
        context: OperatorContext,
        bound: int | None,
        near: int | None,
    ) -> None:
        super().__init__(pairing.names, left.certain)
        self.left, self.right, self.pairing = left, right, pairing
        self._condition = condition
        witness = near is None and pairing.exact and not condition
        keep = near if near is not None else bound if witness else None
        self._rights = Store(context, "OPTIONAL", pairing.right_key, keep, witness)

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._condition.reads(self.left, self.right)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        self._condition.step(batch)
        for b in self.right.step(batch):
            self._rights.add(b)
        found: list[Row] = []
        for a in self.left.step(batch):
            found += self._pairs(a) or [(a[0], a[1], self.pairing.alone_left(a[2]))]
        return found

    def _pairs(self, a: Row) -> list[Row]:
        start, end, left = a
        pairs = [(min(start, b[0]), b[2]) for b in self._rights.at(self.pairing.left_key(left))]
        pairs += [(start, each) for each in self.right.still(self.left.bindings(left))]
        found: list[Row] = []
        for begun, right in pairs:
            values = self.pairing.join(left, right)
            if values is not None and self._condition.holds(values, begun, end):
                found.append((begun, end, values))
        return found

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        found: list[Values] = []
        for a in self.left.still(given):
            joined = (self.pairing.join(a, b) for b in self.right.still(self.left.bindings(a)))
            pairs = [each for each in joined if each is not None and self._condition.holds(each, None, None)]
            found += pairs or [self.pairing.alone_left(a)]
        return [each for each in found if self.fits(each, given)]


class Without(SolutionOperator):
    """MINUS: the left side without what the right side, known by then, agrees with on a variable."""

    def __init__(self, left: SolutionOperator, right: SolutionOperator, context: OperatorContext) -> None:
        super().__init__(left.names, left.certain)
        self.left, self.right = left, right
        self._pairing = Pairing(left, right)
        self._places = [(left.names.index(n), right.names.index(n)) for n in self._pairing.shared]
        self._rights = Store(context, "MINUS", self._pairing.right_key)

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return all_reads(self.left, self.right)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        for b in self.right.step(batch):
            # Only what it says of the shared variables matters, and once.
            shared = {j for _, j in self._places}
            values = tuple(text if j in shared else None for j, text in enumerate(b[2]))
            known = self._rights.at(self._pairing.right_key(values))
            if any(text is not None for text in values) and all(each[2] != values for each in known):
                self._rights.add((b[0], b[1], values))
        return [a for a in self.left.step(batch) if not self._is_known(a[2], timed=True)]

    def _is_known(self, left: Values, timed: bool) -> bool:
        kept = self._rights.at(self._pairing.left_key(left)) if timed else ()
        if any(self._agrees(left, each[2]) for each in kept):
            return True
        return any(self._agrees(left, each) for each in self.right.still(self.left.bindings(left)))

    def _agrees(self, left: Values, right: Values) -> bool:
        pairs = [(left[i], right[j]) for i, j in self._places]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        return bool(both) and all(a == b for a, b in both)

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        return [each for each in self.left.still(given) if not self._is_known(each, timed=False)]


class United(SolutionOperator):
    """UNION: the solutions of either side."""

    def __init__(self, left: SolutionOperator, right: SolutionOperator) -> None:
        names = left.names + tuple(each for each in right.names if each not in left.names)
        super().__init__(names, left.certain & right.certain, left.timed and right.timed)
        self.sides = (left, right)
        self._places = [
            [side.names.index(name) if name in side.names else -1 for name in names] for side in self.sides
        ]

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return all_reads(*self.sides)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        sides = zip(self.sides, self._places, strict=True)
        return [
            (a, b, _padded(values, places)) for side, places in sides for a, b, values in side.step(batch)
        ]

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        sides = zip(self.sides, self._places, strict=True)
        return [_padded(values, places) for side, places in sides for values in side.still(given)]


def _padded(values: Values, places: Sequence[int]) -> Values:
    return tuple([values[place] if place >= 0 else None for place in places])


class Filtered(SolutionOperator):
    """FILTER: the solutions for which the condition is true."""

    def __init__(self, below: SolutionOperator, condition: SolutionTest) -> None:
        super().__init__(below.names, below.certain, below.timed)
        self.below = below
        self._condition = condition

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._condition.reads(self.below)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        self._condition.step(batch)
        holds = self._condition.holds
        return [each for each in self.below.step(batch) if holds(each[2], each[0], each[1])]

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        return [each for each in self.below.still(given) if self._condition.holds(each, None, None)]


class Extension(SolutionOperator):
    """BIND: a value more; an expression without a value binds nothing."""

    def __init__(self, below: SolutionOperator, name: str, value: Value, must: str | None) -> None:
        again = name in below.names
        super().__init__(below.names if again else (*below.names, name), below.certain, below.timed)
        self.below = below
        self._value = value
        self._place = self.names.index(name)
        self._again = again
        self._must = must

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._value.reads(self.below)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        self._value.step(batch)
        found = ((a, b, self._with(values, a, b)) for a, b, values in self.below.step(batch))
        return [(a, b, values) for a, b, values in found if values is not None]

    def _with(self, values: Values, start: int | None, end: int | None) -> Values | None:
        value = self._value.of(values, start, end)
        if value is not None and self._must is not None and value != self._must:
            return None
        if not self._again:
            return (*values, value)
        return values if value is None else (*values[: self._place], value, *values[self._place + 1 :])

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        # A variable that is bound anew says nothing about what is below.
        inside = {name: text for name, text in given.items() if name != self.names[self._place]}
        found = (self._with(each, None, None) for each in self.below.still(inside))
        return [each for each in found if each is not None and self.fits(each, given)]


class GivenRows(SolutionOperator):
    """VALUES: solutions that are given in the query, and have no time."""

    def __init__(self, names: Sequence[str], rows: Sequence[Values]) -> None:
        full = {name for i, name in enumerate(names) if all(row[i] is not None for row in rows)}
        super().__init__(names, frozenset(full))
        self._rows = list(rows)

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return frozenset()

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        return []

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        return [each for each in self._rows if self.fits(each, given)]


class Projected(SolutionOperator):
    """SELECT: what it does not name cannot be seen."""

    def __init__(self, below: SolutionOperator, names: Sequence[str], distinct: bool) -> None:
        super().__init__(names, below.certain & frozenset(names), below.timed)
        self.below = below
        self._distinct = distinct
        self._places = [below.names.index(name) if name in below.names else -1 for name in self.names]

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self.below.reads()

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        found = [(a, b, _padded(values, self._places)) for a, b, values in self.below.step(batch)]
        return list(dict.fromkeys(found)) if self._distinct else found

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        inside = {name: text for name, text in given.items() if name in self.names}
        found = [_padded(each, self._places) for each in self.below.still(inside)]
        return list(dict.fromkeys(found)) if self._distinct else found


class Sorted(SolutionOperator):
    """ORDER BY and LIMIT over what has no time: the first ones; alike in all keys, they go by their text."""

    def __init__(self, below: SolutionOperator, node: Ordered) -> None:
        super().__init__(node.names, below.certain & frozenset(node.names))
        self._below, self._node = below, node
        self._keys = [(Value(expr, below.names, {}), downwards) for expr, downwards in node.keys]
        self._places = [below.names.index(name) if name in below.names else -1 for name in node.names]
        self._seen = [(i, name) for i, name in enumerate(below.names) if not name.startswith("_:")]

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._below.reads()

    def step(self, batch: InstantBatch) -> list[Row]:
        """Inside of a window nothing has a time."""
        return []

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        found = sorted(self._below.still({}), key=self._text)
        for value, downwards in reversed(self._keys):
            found.sort(key=lambda each: _sort_key(value.of(each, None, None)), reverse=downwards)
        shown = [_padded(each, self._places) for each in found]
        if self._node.distinct:
            shown = list(dict.fromkeys(shown))
        return [each for each in shown[self._node.offset :][: self._node.limit] if self.fits(each, given)]

    def _text(self, values: Values) -> str:
        shown = sorted((name, text) for i, name in self._seen if (text := values[i]) is not None)
        return " ".join(f"?{name}={text}" for name, text in shown)


def _sort_key(text: str | None) -> Any:
    return sort_key(None if text is None else term_of(text))


class Restricted(SolutionOperator):
    """The solutions that are compatible with terms that are given."""

    def __init__(self, below: SolutionOperator, given: Mapping[str, str]) -> None:
        super().__init__(below.names, below.certain)
        self.below = below
        self._given = given

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self.below.reads()

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        return [each for each in self.below.step(batch) if self.fits(each[2], self._given)]

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        if any(self._given.get(name, text) != text for name, text in given.items() if name in self.names):
            return []
        return self.below.still({**given, **self._given})


# ----------------------------------------------------------------------------------------------------------
# `P SEQ Q` with nothing in between, said as the paper says it (queries 5 and 6).
#
#     { P SEQ Q } EQUALSOPTIONAL { P SEQ I SEQ Q } FILTER (!BOUND(?of_i))
#
# All the ways to put an I between a P and a Q are of no interest, only whether there is one. So it is
# looked for from the latest P backwards: where the same I lies behind all earlier ones, the search is over.


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


class Adjacent(SolutionOperator):
    """Pairs of a solution before and one after, with no compatible one in between."""

    def __init__(
        self,
        before: SolutionOperator,
        after: SolutionOperator,
        inside: SolutionOperator,
        context: OperatorContext,
        bound: int | None,
    ) -> None:
        self._pairing = Pairing(before, after)
        pair = SolutionOperator(self._pairing.names, frozenset(self._pairing.names))
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
        """See `SolutionOperator`."""
        return all_reads(self.before, self.after, self.inside)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
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
        """See `SolutionOperator`."""
        return []
