"""What is found row by row: pairs under a consumption policy, and pairs with nothing in between.

Which partner is taken depends on those that others took before, or on the latest one: there is no use in all
pairs. So a table by key is gone through from the one end, and only as far as it takes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import Dictionary
from kaicep.kernel.epsparql.state import Keeper
from kaicep.kernel.epsparql.tables import Rows
from kaicep.plan.algebra import pattern_variables
from kaicep.plan.expressions import Call, Expr, VariableRef
from kaicep.plan.nodes import Bgp, Node, Temporal
from kaicep.plan.program import conjuncts
from kaicep.plan.sparql import Path

Codes = tuple[int, ...]
Row = tuple[int, int, Codes]
"""A solution: start, end, codes."""

_END = itemgetter(1)
_FEW = 8


class Pairing:
    """How rows of two sides are joined: by a key of the variables that both know.

    Where a side may leave one unbound, they are compared one by one as well.
    """

    def __init__(self, left: ColumnOperator, right: ColumnOperator) -> None:
        self.shared = [name for name in left.names if name in right.names]
        self.left_key = [left.names.index(each) for each in self.shared]
        self.right_key = [right.names.index(each) for each in self.shared]
        exact = left.certain & right.certain >= set(self.shared)
        self._loose = [] if exact else list(zip(self.left_key, self.right_key, strict=True))
        self._extra = [i for i, name in enumerate(right.names) if name not in left.names]
        self.names = left.names + tuple(right.names[i] for i in self._extra)
        self._right_places = [right.names.index(n) if n in right.names else -1 for n in self.names]

    def join(self, left: Codes, right: Codes) -> Codes | None:
        """Both together; None where they disagree."""
        extra = tuple([right[i] for i in self._extra])
        if not self._loose:
            return left + extra
        filled = list(left)
        for i, j in self._loose:
            if left[i] >= 0 and right[j] >= 0 and left[i] != right[j]:
                return None
            if filled[i] < 0:
                filled[i] = right[j]
        return tuple(filled) + extra

    def alone_left(self, left: Codes) -> Codes:
        """A left side without a partner."""
        return left + (-1,) * len(self._extra)

    def alone_right(self, right: Codes) -> Codes:
        """A right side without a partner."""
        return tuple([right[i] if i >= 0 else -1 for i in self._right_places])


class RowTable(Keeper):
    """Rows by a key, those of one key in the order of their end; those that began too long ago go.

    What a key leaves unbound agrees with anything, so that whoever asks by such a key, or asks where there is
    one, gets all rows to choose from.
    """

    def __init__(self, label: str, key: Sequence[int], bound: int | None, dictionary: Dictionary) -> None:
        self.label, self._places, self.bound, self._dictionary = label, key, bound, dictionary
        self._rows: dict[Codes, list[Row]] = {}
        self._vague = self._size = 0
        self._left = 16  # so many there were after the last sweep, or hardly any
        self._added: list[Row] = []

    def key(self, values: Codes) -> Codes:
        """The key of a row."""
        return tuple([values[each] for each in self._places])

    def add(self, row: Row) -> None:
        """Keeps a row; it ends no earlier than all that came before."""
        if self.bound is not None and self._size > 2 * self._left:
            self.forget(row[1])
        key = self.key(row[2])
        if key not in self._rows:
            self._rows[key] = []
            self._vague += -1 in key
        self._rows[key].append(row)
        if self.replays:
            self._added.append(row)
        self._size += 1

    def at(self, key: Codes) -> Sequence[Row]:
        """The rows that may agree with a key."""
        if self._vague or -1 in key:
            return sorted((row for rows in self._rows.values() for row in rows), key=_END)
        return self._rows.get(key, ())

    def between(self, key: Codes, first: int | None, last: int | None) -> Sequence[Row]:
        """Those that end from `first` to `last`; of few, others may be among them."""
        rows = self.at(key)
        if len(rows) <= _FEW:
            return rows
        low = 0 if first is None else bisect_left(rows, first, key=_END)
        return rows[low:] if last is None else rows[low : bisect_right(rows, last, lo=low, key=_END)]

    def remove(self, row: Row) -> None:
        """Takes a row out."""
        key = self.key(row[2])
        rows = self._rows[key]
        del rows[next(i for i in reversed(range(len(rows))) if rows[i] is row)]
        self._size -= 1
        if not rows:
            del self._rows[key]
            self._vague -= -1 in key

    def clear(self) -> None:
        """Forgets everything."""
        self._rows, self._vague, self._size, self._added = {}, 0, 0, []

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return self._size

    def undo(self) -> None:
        """See `Keeper`."""
        for row in reversed(self._added):
            self.remove(row)
        self._added = []

    def commit(self) -> None:
        """See `Keeper`."""
        self._added = []

    def forget(self, now: int) -> None:
        """See `Keeper`."""
        if self.bound is None:
            return
        oldest = now - self.bound
        kept = {key: [row for row in rows if row[0] >= oldest] for key, rows in self._rows.items()}
        self._rows = {key: rows for key, rows in kept.items() if rows}
        self._vague = sum(-1 in key for key in self._rows)
        self._size = sum(map(len, self._rows.values()))
        self._left = max(16, self._size)

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        of = self._dictionary.of
        rows = [each for rows in self._rows.values() for each in rows if each[1] < before]
        found = [[start, end, list(map(of, values))] for start, end, values in rows]
        return sorted(found, key=lambda row: (row[1], row[0], [text or "" for text in row[2]]))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        self.clear()
        for start, end, values in state:
            self.add((start, end, self._dictionary.codes(values)))
        self._added = []


# ----------------------------------------------------------------------------------------------------------
# Consumption policies.

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


class Consuming(ColumnOperator, Keeper):
    """One partner for each right side: the most recent, or the earliest that is not used up.

    Both are a matter of all partners so far, so no bound on the duration lets one be forgotten.
    """

    def __init__(
        self,
        op: str,
        sides: tuple[ColumnOperator, ColumnOperator],
        check: Callable[[Sequence[str]], Check],
        policy: str,
        dictionary: Dictionary,
    ) -> None:
        left, right = self._sides = sides
        self._op, self._policy, self._dictionary = op, policy, dictionary
        self._pairing = Pairing(left, right)
        self.names = self._pairing.names
        self._optional = {"OPTIONALSEQ": "left", "EQUALSOPTIONAL": "right"}.get(op)
        certain = {"left": right.certain, "right": left.certain}
        self.certain = certain.get(self._optional or "", left.certain | right.certain)
        self._check = check(self.names)
        self.lefts = RowTable(f"{op} (CONSUMPTION {policy})", self._pairing.left_key, None, dictionary)
        self._used: list[Row] = []
        self.still = Rows.none(len(self.names))

    def know(self) -> None:
        """Only a mandatory side that needs no partner may have no time."""
        left, right = self._sides
        alone: list[Row] = []
        if self._optional == "left":
            alone = [(start, end, self._pairing.alone_right(b)) for start, end, b in right.still.listed()]
        elif self._optional == "right":
            alone = [(start, end, self._pairing.alone_left(a)) for start, end, a in left.still.listed()]
        self.still = Rows.of(alone, len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        lefts, rights = (_by_end(each.step(chunk)) for each in self._sides)
        found: list[Row] = []
        for end in sorted(lefts.keys() | rights.keys()):
            found += self._at(lefts.get(end, []), rights.get(end, []))
        return Rows.of(found, len(self.names))

    def _at(self, lefts: list[Row], rights: list[Row]) -> list[Row]:
        """The pairs of an instant; what they use up is gone when it is over."""
        if self._op in _TOGETHER:
            self.lefts.clear()
        for a in lefts:
            self.lefts.add(a)
        used, found = list[Row](), list[Row]()
        for b in sorted(rights, key=lambda b: (b[0], self._text(1, b[2]))):
            chosen = self._chosen(b, used)
            if chosen is not None:
                used.append(chosen[0])
                found.append(chosen[1])
            elif self._optional == "left":
                found.append((b[0], b[1], self._pairing.alone_right(b[2])))
        taken = set(map(id, used))
        if self._optional == "right":
            found += [(a[0], a[1], self._pairing.alone_left(a[2])) for a in lefts if id(a) not in taken]
        if self._policy == "chronological":
            self._used += used
        if not self.replays:
            self.commit()
        return found

    def _chosen(self, b: Row, used: Sequence[Row]) -> tuple[Row, Row] | None:
        gone = set(map(id, (*used, *self._used))) if self._policy == "chronological" else set()
        key = tuple([b[2][i] for i in self._pairing.right_key])
        choices: list[tuple[Row, Row]] = []
        for a in self.lefts.between(key, *_ENDS[self._op](b)):
            if id(a) not in gone and (pair := self._pair(a, b)) is not None:
                choices.append((a, pair))
        if not choices:
            return None
        recent = self._policy == "recent"
        best = (max if recent else min)((a[1], a[0]) for a, _ in choices)
        among = [each for each in choices if (each[0][1], each[0][0]) == best]
        return min(among, key=lambda each: self._text(0, each[0][2]))

    def _pair(self, a: Row, b: Row) -> Row | None:
        """Both together, where they are in relation, agree, and meet the condition."""
        if not _RELATIONS[self._op](a, b):
            return None
        values = self._pairing.join(a[2], b[2])
        start, end = min(a[0], b[0]), max(a[1], b[1])
        if values is None or not self._check.holds(values, start, end):
            return None
        return start, end, values

    def _text(self, side: int, values: Codes) -> str:
        """The order among solutions of one interval: that of their text."""
        pairs = zip(self._sides[side].names, values, strict=True)
        bound = sorted((name, self._dictionary.texts[code]) for name, code in pairs if code >= 0)
        return " ".join(["[]", *(f"?{name}={text}" for name, text in bound)])

    def undo(self) -> None:
        """Nothing was taken out yet."""
        self._used = []

    def commit(self) -> None:
        """Takes out what was used up."""
        for each in self._used:
            self.lefts.remove(each)
        self._used = []


def _by_end(rows: Rows) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for each in rows.listed():
        found.setdefault(each[1], []).append(each)
    return found


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


class Adjacent(ColumnOperator):
    """Pairs of a solution before and one after, with no compatible one in between."""

    def __init__(
        self,
        before: ColumnOperator,
        after: ColumnOperator,
        inside: ColumnOperator,
        bound: int | None,
        dictionary: Dictionary,
    ) -> None:
        self._pairing = Pairing(before, after)
        pair = ColumnOperator()
        pair.names, pair.certain = self._pairing.names, frozenset(self._pairing.names)
        self._inner = Pairing(pair, inside)
        self.names, self.certain = self._inner.names, pair.certain
        self._before, self._after, self._inside = before, after, inside
        self._bound = bound
        # Whatever lies between one that is before and one that is after lies behind all that ended earlier,
        # unless which ones agree is a matter of the one before.
        self._same_for_all = all(name in after.names for name in self._inner.shared)
        everything = range(len(before.names))
        self.tables = [
            RowTable("SEQ", key, bound, dictionary)
            for key in (self._pairing.left_key, everything, self._inner.right_key)
        ]
        self._befores, self._alike, self._insides = self.tables
        self.still = Rows.none(len(self.names))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        afters, befores, insides = (
            _by_end(each.step(chunk)) for each in (self._after, self._before, self._inside)
        )
        found: list[Row] = []
        for end in sorted(afters.keys() | befores.keys() | insides.keys()):
            latest: dict[Codes, int] = {}
            for start, _, values in afters.get(end, ()):
                latest[values] = max(start, latest.get(values, start))
            found += (row for each in afters.get(end, ()) for row in self._pairs(each, latest[each[2]]))
            for row in befores.get(end, ()):
                self._befores.add(row)
                self._alike.add(row)
            for row in insides.get(end, ()):
                self._insides.add(row)
        return Rows.of(found, len(self.names))

    def _pairs(self, after: Row, latest: int) -> list[Row]:
        """What comes right before; `latest` is when the last solution like it starts that ends with it."""
        start, end, right = after
        oldest = None if self._bound is None else end - self._bound
        kept = self._befores.between(tuple([right[i] for i in self._pairing.right_key]), oldest, start - 1)
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

    def _is_between(self, values: Codes, ended: int, start: int) -> bool:
        key = tuple([values[i] for i in self._inner.left_key])
        kept = self._insides.between(key, ended + 1, start - 1)
        return any(ended < row[0] and row[1] < start for row in kept)

    def _first_end(self, start: int, values: Codes) -> int:
        """When the first solution like one before ended: they make the same interval, so one is for all."""
        return next(row[1] for row in self._alike.at(values) if row[0] == start)
