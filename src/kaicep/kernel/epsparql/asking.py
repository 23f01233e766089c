"""Over columns: what hangs on partners (OPTIONAL, NOT, MINUS, EXISTS), UNION, SELECT, VALUES and BIND.

One side asks, the other one is kept. What is asked for has come by the end of the solution that asks, so many
instants can be answered at a step here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, shared_places
from kaicep.kernel.epsparql.conditions import OF_TIME, Check
from kaicep.kernel.epsparql.dictionary import Array, Dictionary
from kaicep.kernel.epsparql.expressions import Value, expression_variables
from kaicep.kernel.epsparql.tables import Rows, SolutionTable, first_of
from kaicep.plan.expressions import Call, Expr, VariableRef, walk

__all__ = ["PARTNERS", "Asker", "Asking", "Extended", "Given", "ProjectedColumns", "UnitedColumns"]

PARTNERS, SOME, NONE = range(3)


@dataclass(frozen=True)
class Asking:
    """What is asked for: `PARTNERS` or else the solution alone; only those with `SOME` partner, or `NONE`.

    `bound` is that of the answers, `near` that of a pair, None is any; `keep` is for how long a partner is
    kept after its end. With `witness`, the first of a key is kept for longer; `once` keeps equal ones once.
    With `common`, the two must agree on something. With `theirs`, conditions see the partner's interval.
    """

    want: int
    relation: int = kernels.JOIN
    bound: int | None = None
    near: int | None = None
    keep: int | None = None
    witness: bool = False
    once: bool = False
    common: bool = False
    theirs: bool = False
    timed: bool = False


class Asker(ColumnOperator):
    """The solutions of one side, by what the other side has for them.

    `names` are those that conditions see, and that pairs have; `matters` those of the kept side, of which
    the others are not looked at.
    """

    def __init__(
        self,
        asking: ColumnOperator,
        kept: ColumnOperator,
        how: Asking,
        names: Sequence[str],
        check: Callable[[Sequence[str]], Check],
        matters: frozenset[str] | None = None,
    ) -> None:
        self.asking, self.kept, self._how = asking, kept, how
        self.names = tuple(names) if how.want == PARTNERS else asking.names
        self.certain = asking.certain
        (first, second), self._loose = shared_places(asking, kept)
        self._keys = first, second
        self._common = how.common and asking.certain.isdisjoint(kept.certain)
        self._unseen = [i for i, name in enumerate(kept.names) if matters is not None and name not in matters]
        places = [(_place(asking.names, name), _place(kept.names, name)) for name in names]
        self._layout = np.array(places, np.int64).reshape(-1, 2)
        self.check = check(names)
        witness = np.concatenate((second, self._loose[:, 1])) if how.witness else None
        self.table = SolutionTable(len(kept.names), second, how.keep, witness)
        self._known: SolutionTable | None = None
        if not how.timed and len(kept.still):
            self._known = SolutionTable(len(kept.names), second, None)
            self._known.add(self._cut(kept.still))
        self.still = Rows.none(len(self.names))

    def know(self) -> None:
        """Takes note of what has no time on the side that asks."""
        self.still = self._answered(self.asking.still, Rows.none(len(self.kept.names)), timed=False)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        asking, kept = self.asking.step(chunk), self._cut(self.kept.step(chunk))
        if not len(asking) and not len(kept):
            return Rows.none(len(self.names))
        self.table.expect(kept)
        return self._answered(asking, kept, timed=True)

    def _cut(self, rows: Rows) -> Rows:
        if not self._unseen or not len(rows):
            return rows
        values = rows.values.copy()
        values[:, self._unseen] = -1
        return Rows(values, rows.start, rows.end)

    def _answered(self, asking: Rows, kept: Rows, timed: bool) -> Rows:
        met, parts = np.zeros(len(asking), np.bool_), []
        for table in (self.table, self._known):
            if table is None or (table is self.table and not timed):
                continue
            rows, who, some = self._asked(asking, kept, table, timed)
            met |= some
            met[who] = True
            parts.append((rows, who))
        if self._how.want != PARTNERS:
            return asking.take(np.flatnonzero(met == (self._how.want == SOME)))
        alone = np.flatnonzero(~met)
        if len(alone):
            parts.append((_chosen(asking.take(alone), self.asking.names, self.names), alone))
        if not parts:
            return Rows.none(len(self.names))
        order = np.argsort(np.concatenate([who for _, who in parts]), kind="stable")
        values, start, end = (
            np.concatenate([getattr(rows, each) for rows, _ in parts])[order]
            for each in ("values", "start", "end")
        )
        return Rows(values, start, end)

    def _asked(
        self, asking: Rows, kept: Rows, table: SolutionTable, timed: bool
    ) -> tuple[Rows, Array, Array]:
        """The pairs, the places of those who asked for them, and who has a partner beside those."""
        how, check = self._how, self.check
        known = table is self._known
        near = how.near if not known else None
        spec = np.array(
            [
                how.relation,
                -1 if how.bound is None else how.bound,
                -1 if near is None else near,
                how.want != PARTNERS,
                0,
                how.once,
                self._common,
                how.theirs,
                table.vague,
            ],
            np.int64,
        )
        new = Rows.none(len(self.kept.names)) if known else kept
        sides = asking.values, asking.start, asking.end, new.values, new.start, new.end
        timed = timed and not (how.theirs and known)
        program = check.program if timed else _NO_PROGRAM
        spec[4] = check.is_more if timed else bool(check)
        numbers = check.numbers()
        what = table.arrays(), self._keys, self._loose, self._layout, program, numbers
        values, start, end, unsure, who, n, met, length = kernels.ask(spec, *sides, *what)
        if not known and len(new):
            table.grown(length, int(new.end[-1]))
        found, who = Rows(values[:n], start[:n], end[:n]), who[:n]
        if check and n:
            if timed:
                left = check.settled(found.values, found.start, found.end, unsure[:n])
            else:
                left = check.timeless(found.values)
            found, who = found.take(left), who[left]
        return found, who, met

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        self.asking.forget(now)
        self.kept.forget(now)
        self.table.forget(now)


_NO_PROGRAM = np.empty((0, 2), np.int64)


def _place(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


class UnitedColumns(ColumnOperator):
    """UNION: the solutions of either side."""

    def __init__(self, left: ColumnOperator, right: ColumnOperator) -> None:
        self.sides = left, right
        self.names = left.names + tuple(each for each in right.names if each not in left.names)
        self.certain = left.certain & right.certain
        self.still = Rows.merged([_chosen(each.still, each.names, self.names) for each in self.sides])

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return Rows.merged([_chosen(each.step(chunk), each.names, self.names) for each in self.sides])

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        for each in self.sides:
            each.forget(now)


class ProjectedColumns(ColumnOperator):
    """SELECT: what it does not name cannot be seen."""

    def __init__(self, below: ColumnOperator, names: Sequence[str], distinct: bool) -> None:
        self.below, self.names, self._distinct = below, tuple(names), distinct
        self.certain = below.certain & frozenset(names)
        self.still = self._seen(below.still)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._seen(self.below.step(chunk))

    def _seen(self, rows: Rows) -> Rows:
        found = _chosen(rows, self.below.names, self.names)
        if not self._distinct or len(found) < 2:
            return found
        return found.take(first_of(np.column_stack((found.end, found.start, found.values))))

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        self.below.forget(now)


def _chosen(rows: Rows, names: Sequence[str], wanted: Sequence[str]) -> Rows:
    """Solutions of some variables as those of others: what they have not is unbound."""
    if tuple(names) == tuple(wanted):
        return rows
    values = np.full((len(rows), len(wanted)), -1, np.int32)
    for i, name in enumerate(wanted):
        if name in names:
            values[:, i] = rows.values[:, names.index(name)]
    return Rows(values, rows.start, rows.end)


class Given(ColumnOperator):
    """VALUES: solutions that are given in the query, and have no time."""

    def __init__(
        self, names: Sequence[str], rows: Sequence[Sequence[str | None]], dictionary: Dictionary
    ) -> None:
        self.names = tuple(names)
        full = {name for i, name in enumerate(names) if all(row[i] is not None for row in rows)}
        self.certain = frozenset(full)
        codes = [[-1 if text is None else dictionary.code(text) for text in row] for row in rows]
        values = np.array(codes, np.int32).reshape(len(rows), len(names))
        self.still = timeless(values)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return Rows.none(len(self.names))


def timeless(values: Array) -> Rows:
    """Solutions that have no time."""
    return Rows(values, np.full(len(values), kernels.LAST), np.full(len(values), kernels.FIRST))


class Extended(ColumnOperator):
    """BIND: a value more for each solution, evaluated as SPARQL says: once for the same terms.

    Of the variables below, expressions see the first ones (`width`), or all.
    """

    def __init__(
        self,
        below: ColumnOperator,
        name: str,
        expr: Expr,
        value: Value,
        dictionary: Dictionary,
        width: int | None = None,
    ) -> None:
        self._width = len(below.names) if width is None else width
        self.below, self.names, self.certain = below, (*below.names, name), below.certain
        self._value, self._dictionary = value, dictionary
        named = expression_variables(expr)
        self._seen = [i for i, each in enumerate(below.names) if each in named]
        plain = isinstance(expr, VariableRef) and expr.name in below.names
        self._same = below.names.index(expr.name) if plain and isinstance(expr, VariableRef) else None
        calls = {each.op for each in walk(expr) if isinstance(each, Call)}
        self._timed, self._whole = bool(calls & OF_TIME), calls & _WHOLE
        self.still = Rows.none(len(self.names))

    def know(self) -> None:
        """Takes note of what has no time below."""
        self.still = self._with(self.below.still, timed=False)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._with(self.below.step(chunk), timed=True)

    def _with(self, rows: Rows, timed: bool) -> Rows:
        if self._same is not None:
            return Rows(np.hstack((rows.values, rows.values[:, [self._same]])), rows.start, rows.end)
        made = np.full((len(rows), 1), -1, np.int32)
        of, code, known = self._dictionary.of, self._dictionary.code, dict[tuple[int, ...], int]()
        times = zip(rows.start.tolist(), rows.end.tolist(), strict=True)
        for i, (row, (start, end)) in enumerate(zip(rows.values.tolist(), times, strict=True)):
            asks = (*((start, end) if self._timed else ()), *(row[each] for each in self._seen))
            found = known.get(asks) if not self._whole else None
            if found is None:
                given = (start, end) if timed else (None, None)
                text = self._value.of(tuple(map(of, row[: self._width])), *given)
                found = known[asks] = -1 if text is None else code(text)
            made[i, 0] = found
        return Rows(np.hstack((rows.values, made)), rows.start, rows.end)

    def forget(self, now: int) -> None:
        """See `ColumnOperator`."""
        self.below.forget(now)


_WHOLE = {"bnode", "solution", "rand", "uuid", "struuid"}
