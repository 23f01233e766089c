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
from kaicep.kernel.epsparql.conditions import Check
from kaicep.kernel.epsparql.dictionary import NOT_WHOLE, Array, Dictionary
from kaicep.kernel.epsparql.expressions import Value
from kaicep.kernel.epsparql.tables import Rows, SolutionTable
from kaicep.plan.terms import XSD, Literal
from kaicep.plan.time import format_time

PARTNERS, SOME, NONE, MARK = range(4)
_FEW = 4  # values are calculated one by one


@dataclass(frozen=True)
class Asking:
    """What is asked for: `PARTNERS` or else the solution alone; only those with `SOME` partner, or `NONE`.

    Or all, with a variable that is bound where there is a partner (`MARK`).

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
    mark: tuple[str, ...] = ()


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
        dictionary: Dictionary,
        matters: frozenset[str] | None = None,
    ) -> None:
        self.asking, self.kept, self._how = asking, kept, how
        self.names = tuple(names) if how.want == PARTNERS else (*asking.names, *how.mark)
        self.certain = asking.certain
        (first, second), self._loose = shared_places(asking, kept)
        self._keys = first, second
        self._common = how.common and asking.certain.isdisjoint(kept.certain)
        self._unseen = [i for i, name in enumerate(kept.names) if matters is not None and name not in matters]
        places = [(_place(asking.names, name), _place(kept.names, name)) for name in names]
        self._layout = np.array(places, np.int64).reshape(-1, 2)
        bound, any_will_do = -1 if how.bound is None else how.bound, how.want != PARTNERS
        spec = [how.relation, bound, -1, any_will_do, 0, how.once, self._common, how.theirs, 0]
        self._spec = np.array(spec, np.int64)  # see `kernels.ask`
        self.check = check(names)
        witness = np.concatenate((second, self._loose[:, 1])) if how.witness else None
        self.table = SolutionTable(len(kept.names), second, how.keep, dictionary, witness)
        self.table.about = kept.names
        self._known: SolutionTable | None = None
        if not how.timed and len(kept.still):
            self._known = SolutionTable(len(kept.names), second, None, dictionary)
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
        if len(kept):
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
            if len(who):
                met[who] = True
                parts.append((rows, who))
        if not len(asking):
            return Rows.none(len(self.names))
        if self._how.want == MARK:
            values = np.column_stack((asking.values, np.where(met, 0, -1).astype(np.int32)))
            return Rows(values, asking.start, asking.end)
        if self._how.want != PARTNERS:
            return asking.take(np.flatnonzero(met == (self._how.want == SOME)))
        if not parts and not met.any():
            return _chosen(asking, self.asking.names, self.names)
        alone = np.flatnonzero(~met)
        if len(alone):
            parts.append((_chosen(asking.take(alone), self.asking.names, self.names), alone))
        if len(parts) < 2:
            return parts[0][0] if parts else Rows.none(len(self.names))
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
        how, check, spec = self._how, self.check, self._spec
        known = table is self._known
        near = how.near if not known else None
        new = Rows.none(len(self.kept.names)) if known else kept
        sides = asking.values, asking.start, asking.end, new.values, new.start, new.end
        timed = timed and not (how.theirs and known)
        program = check.program if timed else _NO_PROGRAM
        spec[2] = -1 if near is None else near
        spec[4] = check.is_more if timed else bool(check)
        spec[8] = table.vague
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
        return found.once() if self._distinct else found


class Restricted(ColumnOperator):
    """The solutions that have certain terms at some places, or nothing."""

    def __init__(self, below: ColumnOperator, wanted: Sequence[tuple[int, int]]) -> None:
        self._below, self._wanted = below, wanted
        self.names, self.certain = below.names, below.certain
        self.still = self._left(below.still)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._left(self._below.step(chunk))

    def _left(self, rows: Rows) -> Rows:
        for place, code in self._wanted:
            rows = rows.take(np.flatnonzero((rows.values[:, place] == code) | (rows.values[:, place] < 0)))
        return rows


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
    """VALUES: solutions given in the query, without a time; or (`at_once`) there at each evaluation."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[int]], at_once: bool) -> None:
        self.names, self._at_once = tuple(names), at_once
        self.certain = frozenset(name for i, name in enumerate(names) if all(row[i] >= 0 for row in rows))
        self._values = np.array(rows, np.int32).reshape(len(rows), len(names))
        self.still = Rows.none(len(names)) if at_once else timeless(self._values)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        if not self._at_once:
            return Rows.none(len(self.names))
        when = np.full(len(self._values), int(chunk.until))
        return Rows(self._values, when, when)


def timeless(values: Array) -> Rows:
    """Solutions that have no time."""
    return Rows(values, np.full(len(values), kernels.LAST), np.full(len(values), kernels.FIRST))


class Extended(ColumnOperator):
    """BIND: a value for each solution, evaluated as SPARQL says: once for the same terms.

    Of the variables below, expressions see the first ones (`width`), or all. One that has a value already
    gets the new one, if there is one; where one is `given`, no other value will do.
    """

    def __init__(
        self,
        below: ColumnOperator,
        name: str,
        value: Value,
        dictionary: Dictionary,
        timed: bool,
        width: int | None = None,
        given: str | None = None,
    ) -> None:
        self._width = len(below.names) if width is None else width
        again = name in below.names
        self.below, self.names = below, below.names if again else (*below.names, name)
        self.certain = below.certain
        self._place, self._again = self.names.index(name), again
        self._value, self._dictionary, self._has_time = value, dictionary, timed
        self._given = None if given is None else dictionary.code(given)
        self._seen = [i for i, each in enumerate(below.names) if each in value.named]
        self.still = Rows.none(len(self.names))

    def know(self) -> None:
        """Takes note of what has no time below."""
        self.still = self._with(self.below.still, timed=False)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._with(self.below.step(chunk), timed=self._has_time)

    def _with(self, rows: Rows, timed: bool) -> Rows:
        if not len(rows):
            return Rows.none(len(self.names))
        made = self._made(rows, timed)
        if self._given is not None:
            left = np.flatnonzero((made < 0) | (made == self._given))
            rows, made = rows.take(left), made[left]
        if not self._again:
            return Rows(np.column_stack((rows.values, made)), rows.start, rows.end)
        values = rows.values.copy()
        values[made >= 0, self._place] = made[made >= 0]
        return Rows(values, rows.start, rows.end)

    def _made(self, rows: Rows, timed: bool) -> Array:
        value, width = self._value, self._width
        if value.place is not None:
            return np.ascontiguousarray(rows.values[:, value.place])
        of, code, known = self._dictionary.of, self._dictionary.code, dict[tuple[int, ...], int]()
        if value.is_end and timed:
            ends, which = np.unique(rows.end, return_inverse=True)
            codes = [code(str(Literal(format_time(each), XSD + "dateTime"))) for each in ends.tolist()]
            return np.array(codes, np.int32)[which]
        made, left = np.full(len(rows), -1, np.int32), list(range(len(rows)))
        if value.is_arithmetic and len(rows) > _FEW:
            integers = value.integers(rows.values, self._dictionary)
            whole = integers != NOT_WHOLE
            made[whole], left = self._dictionary.integers(integers[whole]), np.flatnonzero(~whole).tolist()
        if not left:
            return made
        listed = rows.listed()
        for i in left:
            start, end, row = listed[i]
            asks = (*((start, end) if value.timed else ()), *(row[each] for each in self._seen))
            found = None if value.whole else known.get(asks)
            if found is None:
                given = (start, end) if timed else (None, None)
                text = value.of(tuple(map(of, row[:width])), *given)
                found = known[asks] = -1 if text is None else code(text)
            made[i] = found
        return made
