"""SEQ, EQUALS and the others: pairs of solutions in a temporal relation, each found when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kaicep.kernel.epsparql.expressions import SolutionTest
from kaicep.kernel.epsparql.operators import Pairing, SolutionOperator
from kaicep.kernel.epsparql.state import InstantBatch, OperatorContext, Row, Store, Values, all_reads

__all__ = ["Consuming", "Negation", "Paired", "optional_side"]

_RELATIONS: dict[str, Callable[[Row, Row], bool]] = {
    "SEQ": lambda a, b: a[1] < b[0],
    "OPTIONALSEQ": lambda a, b: a[1] < b[0],
    "EQUALS": lambda a, b: a[0] == b[0] and a[1] == b[1],
    "EQUALSOPTIONAL": lambda a, b: a[0] == b[0] and a[1] == b[1],
    "DURING": lambda a, b: b[0] < a[0] and a[1] < b[1],
    "MEETS": lambda a, b: a[1] == b[0],
    "STARTS": lambda a, b: a[0] == b[0] and a[1] <= b[1],
    "FINISHES": lambda a, b: a[1] == b[1] and a[0] >= b[0],
    "PAR": lambda a, b: a[0] <= b[1] and b[0] <= a[1],
}

# For a right side, the first and the last end that a left side can have; None is any.
_ENDS: dict[str, Callable[[Row], tuple[int | None, int | None]]] = {
    "SEQ": lambda b: (None, b[0] - 1),
    "OPTIONALSEQ": lambda b: (None, b[0] - 1),
    "EQUALS": lambda b: (b[1], b[1]),
    "EQUALSOPTIONAL": lambda b: (b[1], b[1]),
    "DURING": lambda b: (b[0] + 1, b[1] - 1),
    "MEETS": lambda b: (b[0], b[0]),
    "STARTS": lambda b: (b[0], b[1]),
    "FINISHES": lambda b: (b[1], b[1]),
    "PAR": lambda b: (b[0], None),
}

# Both sides end together: nothing is kept from one instant to the next.
_TOGETHER = ("EQUALS", "EQUALSOPTIONAL", "FINISHES")
# The left side ends first: when a right side comes, all its partners have come.
_LEFT_FIRST = ("SEQ", "OPTIONALSEQ", "DURING")


def optional_side(op: str) -> str | None:
    """Which side may be missing."""
    return {"OPTIONALSEQ": "left", "EQUALSOPTIONAL": "right"}.get(op)


class _Temporal(SolutionOperator):
    """What the temporal operators share: two sides, how they pair, and the left solutions kept."""

    def __init__(
        self,
        op: str,
        left: SolutionOperator,
        right: SolutionOperator,
        condition: SolutionTest,
        pairing: Pairing,
        store: Store,
    ) -> None:
        optional = optional_side(op)
        sides = {"left": right.certain, "right": left.certain, None: left.certain | right.certain}
        super().__init__(pairing.names, sides[optional], timed=optional is None)
        self.op, self.left, self.right, self.pairing = op, left, right, pairing
        self._optional = optional
        self._condition = condition
        self._lefts = store
        self._related = _RELATIONS[op]
        self._ends = _ENDS[op]
        self._now: int | None = None

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return self._condition.reads(self.left, self.right)

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """Only a mandatory side that needs no partner may have no time."""
        if self._optional == "left":
            alone = [self.pairing.alone_right(self.right.names, each) for each in self.right.still(given)]
        elif self._optional == "right":
            alone = [self.pairing.alone_left(each) for each in self.left.still(given)]
        else:
            alone = []
        return [each for each in alone if self.fits(each, given)]

    def _pair(self, a: Row, b: Row) -> Row | None:
        """Both together, where they are in relation, agree, and meet the condition."""
        if not self._related(a, b):
            return None
        values = self.pairing.join(a[2], b[2])
        if values is None:
            return None
        start, end = min(a[0], b[0]), max(a[1], b[1])
        if self._condition and not self._condition.holds(values, start, end):
            return None
        return start, end, values

    def _is_new_instant(self, batch: InstantBatch) -> bool:
        if self._now == batch.end:
            return False
        self._now = batch.end
        return True


class Paired(_Temporal):
    """Every pair, and for the optional forms what has no partner."""

    def __init__(
        self,
        op: str,
        left: SolutionOperator,
        right: SolutionOperator,
        condition: SolutionTest,
        pairing: Pairing,
        context: OperatorContext,
        bound: int | None,
        near: int | None,
    ) -> None:
        witness = op == "OPTIONALSEQ" and near is None and pairing.exact and not condition
        keep = bound if op != "OPTIONALSEQ" or witness else None
        store = Store(context, op, pairing.left_key, near if near is not None else keep, witness)
        super().__init__(op, left, right, condition, pairing, store)
        self._rights = None if op in _LEFT_FIRST else Store(context, op, pairing.right_key, bound)
        self._brief = op not in _LEFT_FIRST and op != "PAR"
        # How far back a left side may end; where a partner is optional, an old one is one too.
        self._reach = bound if op != "OPTIONALSEQ" else near

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        self._condition.step(batch)
        if self._brief and self._is_new_instant(batch):
            self._forget_instant()
        lefts, rights = self.left.step(batch), self.right.step(batch)
        if not lefts and not rights:
            return []
        found: list[Row] = []
        matched: set[int] = set()
        for b in rights:
            pairs = self._before(b)
            if self._optional == "left" and not pairs:
                pairs = [(b[0], b[1], self.pairing.alone_right(self.right.names, b[2]))]
            found += pairs
            if self._rights is not None:
                self._rights.add(b)
        for i, a in enumerate(lefts):
            if self._rights is not None:
                pairs = self._after(a, self._rights)
                found += pairs
                if pairs:
                    matched.add(i)
            self._lefts.add(a)
        if self._optional == "right":
            alone = (a for i, a in enumerate(lefts) if i not in matched)
            found += [(a[0], a[1], self.pairing.alone_left(a[2])) for a in alone]
        return found

    def _before(self, b: Row) -> list[Row]:
        """A right side with its partners among the left sides kept."""
        first, last = self._ends(b)
        if self._reach is not None:
            oldest = b[1] - self._reach
            first = oldest if first is None else max(first, oldest)
        kept = self._lefts.between(self.pairing.right_key(b[2]), first, last)
        return [pair for a in kept if (pair := self._pair(a, b)) is not None]

    def _after(self, a: Row, rights: Store) -> list[Row]:
        """A left side with its partners among the right sides kept."""
        kept = rights.between(self.pairing.left_key(a[2]), a[0], None)
        return [pair for b in kept if (pair := self._pair(a, b)) is not None]

    def _forget_instant(self) -> None:
        """Of what was kept for one instant only, nothing is of use in the next."""
        if self.op in _TOGETHER:
            self._lefts.clear()
        if self._rights is not None:
            self._rights.clear()


class Consuming(_Temporal):
    """One partner for each right side: the most recent, or the earliest that is not used up.

    Both are a matter of all partners so far, so no bound on the duration lets one be forgotten.
    """

    def __init__(
        self,
        op: str,
        left: SolutionOperator,
        right: SolutionOperator,
        condition: SolutionTest,
        pairing: Pairing,
        context: OperatorContext,
        policy: str,
    ) -> None:
        store = Store(context, f"{op} (CONSUMPTION {policy})", pairing.left_key)
        super().__init__(op, left, right, condition, pairing, store)
        self._policy = policy
        self._used: list[Row] = []
        context.keep(self, commits=True)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        self._condition.step(batch)
        if self._is_new_instant(batch) and self.op in _TOGETHER:
            self._lefts.clear()
        lefts = self.left.step(batch)
        for a in lefts:
            self._lefts.add(a)
        used: list[Row] = []
        found: list[Row] = []
        for b in sorted(self.right.step(batch), key=lambda b: (b[0], _text(self.right.names, b[2]))):
            chosen = self._chosen(b, used)
            if chosen is not None:
                used.append(chosen[0])
                found.append(chosen[1])
            elif self._optional == "left":
                found.append((b[0], b[1], self.pairing.alone_right(self.right.names, b[2])))
        if self._optional == "right":
            taken = set(map(id, used))
            alone = (a for a in lefts if id(a) not in taken)
            found += [(a[0], a[1], self.pairing.alone_left(a[2])) for a in alone]
        self._used = used if self._policy == "chronological" else []
        return found

    def _chosen(self, b: Row, used: Sequence[Row]) -> tuple[Row, Row] | None:
        gone = set(map(id, used)) if self._policy == "chronological" else set()
        choices: list[tuple[Row, Row]] = []
        for a in self._lefts.between(self.pairing.right_key(b[2]), *self._ends(b)):
            if id(a) not in gone and (pair := self._pair(a, b)) is not None:
                choices.append((a, pair))
        if not choices:
            return None
        recent = self._policy == "recent"
        best = (max if recent else min)((a[1], a[0]) for a, _ in choices)
        among = [each for each in choices if (each[0][1], each[0][0]) == best]
        return min(among, key=lambda each: _text(self.left.names, each[0][2]))

    # --- the used ones go when the instant is over -------------------------------------------------

    @property
    def size(self) -> int:
        """What it keeps is counted with its store."""
        return 0

    def undo(self) -> None:
        """Nothing was taken out yet."""
        self._used = []

    def commit(self) -> None:
        """Takes out what was used up."""
        for each in self._used:
            self._lefts.remove(each)
        self._used = []

    def due(self) -> int | None:
        """Nothing grows old here."""
        return None

    def sweep(self, now: int) -> None:
        """Nothing grows old here."""

    def dump(self, before: float = math.inf) -> Any:
        """All state is in the store."""
        return None

    def load(self, state: Any) -> None:
        """All state is in the store."""


class Negation(SolutionOperator):
    """`P NOT Q`: P with no compatible Q inside its interval, bounds included."""

    def __init__(
        self, left: SolutionOperator, right: SolutionOperator, context: OperatorContext, bound: int | None
    ) -> None:
        super().__init__(left.names, left.certain, timed=True)
        self.left, self.right = left, right
        self._pairing = Pairing(left, right)
        self._rights = Store(context, "NOT", self._pairing.right_key, bound)

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return all_reads(self.left, self.right)

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        for b in self.right.step(batch):
            self._rights.add(b)
        return [a for a in self.left.step(batch) if not self._has_inside(a)]

    def _has_inside(self, a: Row) -> bool:
        kept = self._rights.between(self._pairing.left_key(a[2]), a[0], a[1])
        return any(a[0] <= b[0] and b[1] <= a[1] and self._pairing.join(a[2], b[2]) is not None for b in kept)

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        return []


def _text(names: Sequence[str], values: Values) -> str:
    """The order among solutions of one interval: that of their text."""
    bound = sorted((name, text) for name, text in zip(names, values, strict=True) if text is not None)
    return " ".join(["[]", *(f"?{name}={text}" for name, text in bound)])
