"""What a window keeps of its events and of its groups, by what its query asks for: the machine's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kaicep.errors import Unsupported
from kaicep.kernel import window_machine as w
from kaicep.plan.expressions import Aggregate, Call, Expr, Field, type_of
from kaicep.plan.nodes import WindowAggregate
from kaicep.plan.types import Type

__all__ = ["Layout", "Valid"]

_KINDS = {Type.FLOAT64: w.FLOAT, Type.INT64: w.INT, Type.STRING: w.TEXT}
_WORDS = {w.VALUES: 1, w.SUM: 4, w.SQUARE: 2, w.LEAST: 2, w.MOST: 2, w.DISTINCT: 1}


@dataclass(frozen=True)
class Valid:
    """Whether a value is there, as a column of its own: every int64 may be a value."""

    of: Expr


class Layout:
    """The columns that are kept, the parts of a group's record, and the results that a group answers with.

    `answered` has for each expression that an answer reads the number of its result: all aggregates, and
    of a batch, which has no event that triggers, the attributes that its first event shows.
    """

    def __init__(self, node: WindowAggregate, exprs: Iterable[Expr]) -> None:
        self.sliding = node.window.kind == "sliding"
        self.kept: dict[Expr | Valid | str, int] = {}
        self.answered: dict[Expr, int] = {}
        self.edges: dict[tuple[int, str], int] = {}
        """Of a batch, the results that identify the first and the last event."""
        self.group_words = w.G_ADDS
        self._places: dict[tuple[int, Expr], int] = {}
        self._adds: list[list[int]] = []
        self._results: list[list[int]] = []
        self._links = 0
        for expr in exprs:
            self._answer(expr)
        if not self.sliding:
            for op in (w.FIRST, w.LAST):
                for name in ("place", "part", "seq"):
                    self.edges[op, name] = self._result(op, self._column(name), w.OTHER)
        figures = [self.sliding, node.window.width or 0, node.window.count or 0, len(self.kept)]
        for each in self._adds:
            each[w.A_LINK] += w.E_KEPT + len(self.kept)
        self.steps = w.Steps(
            np.array(figures, np.int64),
            np.array(self._adds, np.int64).reshape(-1, w.A_ADD),
            np.array(self._results, np.int64).reshape(-1, w.R_RESULT),
        )
        self.entry_words = w.E_KEPT + len(self.kept) + self._links

    @property
    def texts(self) -> list[int]:
        """The kept columns that have strings."""
        return [at for of, at in self.kept.items() if isinstance(of, Expr) and type_of(of) is Type.STRING]

    @property
    def ranked(self) -> list[int]:
        """The kept columns whose strings are compared."""
        adds = self.steps.adds
        extreme = np.isin(adds[:, w.A_OP], (w.LEAST, w.MOST)) & (adds[:, w.A_KIND] == w.TEXT)
        return sorted(set(adds[extreme, w.A_COLUMN].tolist()))

    def _answer(self, expr: Expr) -> None:
        for each in _outermost(expr):
            if each in self.answered:
                continue
            if isinstance(each, Aggregate):
                self.answered[each] = self._aggregate(each)
            elif not self.sliding:
                self.answered[each] = self._end(w.FIRST, each)

    def _aggregate(self, expr: Aggregate) -> int:
        of, op = expr.of, expr.op
        if of is None:
            return self._result(w.EVENTS)
        if op == "COUNT":
            return self._result(w.WORD, at=self._add(w.DISTINCT if expr.distinct else w.VALUES, of))
        if op in ("FIRST", "LAST"):
            return self._end(w.FIRST if op == "FIRST" else w.LAST, of)
        kind = _kind(of)
        if op in ("MIN", "MAX"):
            at = self._add(w.LEAST if op == "MIN" else w.MOST, of)
            return self._result(w.EXTREME, self._column(of), kind, at=at)
        counted, total = self._add(w.VALUES, of), self._add(w.SUM, of)
        if op == "STDDEV":
            return self._result(w.DEVIATION, 0, kind, self._add(w.SQUARE, of), total, counted)
        return self._result(w.TOTAL if op == "SUM" else w.AVERAGE, 0, kind, 0, total, counted)

    def _end(self, op: int, expr: Expr) -> int:
        return self._result(op, self._column(expr), _kind(expr), self._valid(expr))

    def _result(
        self, op: int, column: int = 0, kind: int = 0, valid: int = 0, at: int = 0, counted: int = 0
    ) -> int:
        self._results.append([op, column, kind, valid, at, counted])
        return len(self._results) - 1

    def _add(self, op: int, expr: Expr) -> int:
        """Where in a group's record something is kept up to date."""
        if (op, expr) not in self._places:
            self._places[op, expr] = at = self.group_words
            self.group_words += _WORDS[op]
            self._adds.append([op, self._column(expr), _kind(expr), self._valid(expr), at, self._links])
            self._links += 2 * (self.sliding and op in (w.LEAST, w.MOST))
        return self._places[op, expr]

    def _column(self, of: Expr | Valid | str) -> int:
        return self.kept.setdefault(of, len(self.kept))

    def _valid(self, expr: Expr) -> int:
        return self._column(Valid(expr)) if type_of(expr) is Type.INT64 else 0


def _kind(expr: Expr) -> int:
    type = type_of(expr)
    if type is None:
        raise Unsupported(
            "a window over an attribute whose type is not declared: declare it in the annotation"
        )
    return _KINDS.get(type, w.OTHER)


def _outermost(expr: Expr) -> Iterable[Expr]:
    """The aggregates of an expression, and the attributes outside of them."""
    if isinstance(expr, Aggregate | Field):
        yield expr
    elif isinstance(expr, Call):
        for each in expr.args:
            yield from _outermost(each)
