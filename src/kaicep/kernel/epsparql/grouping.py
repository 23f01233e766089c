"""Aggregates of SPARQL, value by value and exact: of values that come, and of values that come and go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from kaicep.kernel.epsparql.expressions import Values
from kaicep.kernel.epsparql.reading import term_of
from kaicep.plan.terms import XSD, Literal, Term
from kaicep.plan.values import (
    ExpressionError,
    Number,
    add_exactly,
    aggregate,
    as_double,
    calculate,
    multiply_exactly,
    number,
    numeral,
    order_key,
)


class Running:
    """An aggregate that takes one value after the other; None is an error.

    >>> total = Running("SUM", distinct=False, separator=" ")
    >>> total.add('"2"^^<http://www.w3.org/2001/XMLSchema#integer>')
    >>> total.result()
    '"2"^^<http://www.w3.org/2001/XMLSchema#integer>'
    """

    def __init__(self, op: str, distinct: bool, separator: str) -> None:
        self.op = op
        self.separator = separator
        self.seen: dict[str | None, None] | None = {} if distinct else None
        self.count = 0
        self.wrong = False
        self.best: str | None = None
        self.kind = 0
        self.whole: int | Decimal = 0
        self.floating = Fraction(0)
        self.special: list[float] = []
        self.texts: list[str] = []

    def add(self, value: str | None, times: int = 1) -> None:
        """Takes a value, so many times."""
        if self.seen is not None:
            if value in self.seen:
                return
            self.seen[value] = None
        if value is None:
            self.wrong = True
            return
        self.count += times
        term = term_of(value) if self.op != "COUNT" else None
        if term is None or (self.wrong and self.op != "SAMPLE"):
            return
        if self.op in ("MIN", "MAX", "SAMPLE"):
            self.compare(value, term)
        elif self.op in ("SUM", "AVG"):
            self._sum(term, times)
        else:
            self._list(term)

    def compare(self, value: str, term: Term) -> None:
        """Takes the better one of the best value so far and this one."""
        if self.best is not None:
            known, new = order_key(term_of(self.best)), order_key(term)
            if not (new > known if self.op == "MAX" else new < known):
                return
        self.best = value

    def _sum(self, term: Term, times: int) -> None:
        try:
            kind, value = number(term)
        except ExpressionError:
            self.wrong = True
            return
        whole = 0 if isinstance(value, float) else multiply_exactly(value, times)
        as_float = as_double(value)
        if math.isfinite(as_float):
            self.add_sum(kind, whole, times * Fraction(as_float), ())
        else:
            self.add_sum(kind, whole, Fraction(0), (as_float,))

    def add_sum(self, kind: int, whole: int | Decimal, floating: Fraction, special: Sequence[float]) -> None:
        """Takes a sum: of exact numbers, of all of them as doubles, and what of these is not finite."""
        if kind >= 1 and self.kind < 1:
            self.whole = Decimal(self.whole)
        self.kind = max(self.kind, kind)
        self.whole = add_exactly(self.whole, whole)
        self.floating += floating
        if special:  # infinities and what is not a number swallow each other: one stands for all
            self.special = [sum([*self.special, *special])]

    def _list(self, term: Term) -> None:
        try:
            alone = aggregate(self.op, [term])
        except ExpressionError:
            self.wrong = True
            return
        assert isinstance(alone, Literal)
        self.texts.append(alone.lexical)

    def result(self) -> str | None:
        """The aggregate of what came so far; None where it has no value."""
        if self.op == "COUNT":
            return _whole(self.count)
        if self.wrong and self.op != "SAMPLE":
            return None
        if self.op in ("MIN", "MAX", "SAMPLE"):
            return self.best
        if self.op == "GROUP_CONCAT":
            return str(Literal(self.separator.join(self.texts)))
        return self._total()

    def _total(self) -> str | None:
        total = Number(self.kind, self.whole if self.kind < 2 else self._rounded())
        try:
            if self.op == "SUM" or not self.count:
                return str(numeral(total))
            return str(numeral(calculate("/", total, Number(0, self.count))))
        except ExpressionError:
            return None

    def _rounded(self) -> float:
        return sum(self.special) if self.special else as_double(self.floating)

    @property
    def is_whole(self) -> bool:
        """Whether only integers were summed up, and nothing is listed."""
        return self.kind < 1 and self.floating == self.whole and not self.special and not self.texts

    def resume(
        self, seen: Sequence[str | None], count: int, wrong: bool, best: str | None, total: int
    ) -> None:
        """Goes on from integers that were taken elsewhere."""
        self.seen = None if self.seen is None else dict.fromkeys(seen)
        self.count, self.wrong, self.best = count, wrong, best
        self.whole, self.floating = total, Fraction(total)

    def dump(self) -> Any:
        """Its state in the types of JSON."""
        seen = None if self.seen is None else list(self.seen)
        exact = [str(self.whole), *(str(each) for each in self.floating.as_integer_ratio())]
        special = [repr(each) for each in self.special]
        return [seen, self.count, self.wrong, self.best, self.kind, exact, special, self.texts]

    def load(self, state: Any) -> None:
        """Takes over a state that was dumped."""
        seen, self.count, self.wrong, self.best, self.kind, exact, special, self.texts = state
        self.seen = None if seen is None else dict.fromkeys(seen)
        self.whole = int(exact[0]) if self.kind < 1 else Decimal(exact[0])
        self.floating = Fraction(int(exact[1]), int(exact[2]))
        self.special = [float(each) for each in special]


class Removable:
    """An aggregate of values that come and go; None is an error. `line` is the solution that has a value.

    >>> total = Removable("SUM", distinct=False, separator=" ")
    >>> for text, sign in (("2", 1), ("3", 1), ("2", -1)):
    ...     total.change(f'"{text}"^^<{XSD}integer>', "", sign)
    >>> total.result() == f'"3"^^<{XSD}integer>'
    True
    """

    def __init__(self, op: str, distinct: bool, separator: str) -> None:
        self._op, self._separator = op, separator
        self._seen: dict[str | None, int] | None = {} if distinct and op not in _EXTREMES else None
        self._count = self._wrong = 0
        self._kinds = [0, 0, 0, 0]
        self._whole: int | Decimal = 0
        self._small = 0  # of the doubles, those that are integers
        self._floating = Fraction(0)
        self._special: dict[str, int] = {}
        self._heap: list[tuple[Any, str, str]] = []
        self._lines: dict[str, str] = {}

    def change(self, value: str | None, line: str, sign: int) -> None:
        """Takes a value (1), or gives it back (-1)."""
        if self._seen is not None:
            times = self._seen.get(value, 0) + sign
            if times:
                self._seen[value] = times
            else:
                del self._seen[value]
            if times != (sign + 1) // 2:
                return
        if value is None:
            self._wrong += sign
            return
        self._count += sign
        if self._op == "COUNT":
            return
        if self._op in ("SUM", "AVG"):
            self._sum(value, sign)
        elif sign < 0:
            del self._lines[line]
        else:
            self._lines[line] = value
            if self._op in _EXTREMES:
                key = order_key(term_of(value))
                heappush(self._heap, (_Downwards(key) if self._op == "MAX" else key, line, value))

    def _sum(self, text: str, sign: int) -> None:
        found = _number(text)
        if found is None:
            self._wrong += sign
            return
        kind, value = found
        self._kinds[kind] += sign
        if isinstance(value, int) and abs(value) < 2**53:
            self._whole = add_exactly(self._whole, sign * value)
            self._small += sign * value
            return
        if not isinstance(value, float):
            self._whole = add_exactly(self._whole, value if sign > 0 else Decimal(value).copy_negate())
        as_float = as_double(value)
        if math.isfinite(as_float):
            self._floating += sign * Fraction(as_float)
        else:
            self._special[repr(as_float)] = self._special.get(repr(as_float), 0) + sign

    def add_to(self, running: Running) -> None:
        """Gives all that there is to an aggregate of more."""
        running.count += self._count
        running.wrong = running.wrong or self._wrong > 0
        if self._op in ("SUM", "AVG"):
            kind = self._kind()
            whole = self._whole if kind else int(self._whole)
            running.add_sum(kind, whole, self._floating + self._small, self._not_finite())
        elif self._op in _EXTREMES and (best := self.result()) is not None:
            running.compare(best, term_of(best))

    def result(self) -> str | None:
        """The aggregate of what there is; None where it has no value."""
        if self._op == "COUNT":
            return _whole(self._count)
        if self._wrong and self._op != "SAMPLE":
            return None
        if self._op in _EXTREMES:
            while self._heap and self._heap[0][1] not in self._lines:
                heappop(self._heap)
            return self._heap[0][2] if self._heap else None
        if self._op == "GROUP_CONCAT":
            listed = Running(self._op, self._seen is not None, self._separator)
            for line in sorted(self._lines):
                listed.add(self._lines[line])
            return listed.result()
        kind = self._kind()
        try:
            total = numeral(made := Number(kind, self._total(kind)))
            if self._op == "AVG" and self._count:
                total = numeral(calculate("/", made, Number(0, self._count)))
        except ExpressionError:
            return None
        return str(total)

    def _kind(self) -> int:
        return max((kind for kind, many in enumerate(self._kinds) if many), default=0)

    def _not_finite(self) -> list[float]:
        return [float(text) for text, many in self._special.items() if many]

    def _total(self, kind: int) -> int | Decimal | float:
        if kind < 2:
            return Decimal(self._whole) if kind else int(self._whole)
        special = self._not_finite()
        return sum(special) if special else as_double(self._floating + self._small)


_EXTREMES = ("MIN", "MAX", "SAMPLE")


class _Downwards:
    """A key, the greatest of which is first."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key

    def __lt__(self, other: _Downwards) -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Downwards) and bool(other.key == self.key)

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=100_000)
def _number(text: str) -> tuple[int, int | Decimal | float] | None:
    try:
        kind, value = number(term_of(text))
    except ExpressionError:
        return None
    return kind, value


def _whole(number: int | Decimal) -> str:
    """An integer as a term's text."""
    return f'"{number}"^^<{XSD}integer>'


def solution_line(names: Sequence[str], values: Values) -> str:
    """A solution as text: its variables by name."""
    bound = sorted((name, text) for name, text in zip(names, values, strict=True) if text is not None)
    return " ".join(f"?{name}={text}" for name, text in bound)
