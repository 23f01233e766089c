"""What the operators keep: solutions by key, occurrences by their terms; both can forget and be saved."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Protocol

from kaicep.errors import Failure
from kaicep.kernel.epsparql.reading import KnownFacts
from kaicep.plan.terms import Triple

__all__ = [
    "InstantBatch",
    "OperatorContext",
    "Evaluated",
    "OccurrenceGraph",
    "Keeper",
    "Occurrence",
    "OccurrenceReader",
    "Row",
    "Sent",
    "Store",
    "Values",
    "all_reads",
]

Values = tuple[str | None, ...]
"""What the variables of an operator stand for, in the order of its names; None is unbound."""
Row = tuple[int, int, Values]
"""A solution that has a time: start, end, values."""
Occurrence = tuple[str, str, str, int, int]
"""A triple with its interval."""
Sent = tuple[Triple, int, int] | tuple[Triple, int, int, str]
"""A triple, its start and its end, and the name of its stream where that matters."""

_END = itemgetter(1)
_FEW = 8


class InstantBatch:
    """Occurrences that end at one instant, by their predicate too."""

    __slots__ = ("all", "by_predicate", "end")

    def __init__(self, end: int, occurrences: list[Occurrence]) -> None:
        self.end = end
        self.all = occurrences
        if len(occurrences) == 1:
            self.by_predicate = {occurrences[0][1]: occurrences}
            return
        self.by_predicate = {}
        for each in occurrences:
            self.by_predicate.setdefault(each[1], []).append(each)


class OccurrenceReader(Protocol):
    """Whatever looks at occurrences."""

    def reads(self) -> frozenset[str] | None:
        """The predicates of those that it looks at; None is any."""
        ...


def all_reads(*readers: OccurrenceReader) -> frozenset[str] | None:
    """The predicates that any of some readers looks at; None is any."""
    found: set[str] = set()
    for each in readers:
        reads = each.reads()
        if reads is None:
            return None
        found |= reads
    return frozenset(found)


class Keeper(Protocol):
    """Whatever keeps state from one instant to the next."""

    @property
    def size(self) -> int:
        """How many things it keeps."""
        ...

    def undo(self) -> None:
        """Forgets what the current instant brought: the instant is tried again."""

    def commit(self) -> None:
        """The current instant is over."""

    def due(self) -> int | None:
        """When it can next forget something; None is never."""

    def sweep(self, now: int) -> None:
        """Forgets what can be of no use from `now` on."""

    def dump(self, before: float = math.inf) -> Any:
        """Its state in the types of JSON, but for solutions and occurrences that end at `before` or later."""

    def load(self, state: Any) -> None:
        """Takes over a state that was dumped."""


class Evaluated(Protocol):
    """Windows that are evaluated together (`windows.Evaluating`)."""

    streams: frozenset[str]

    def next_instant(self, after: int) -> int | None:
        """When it is evaluated next, although nothing comes; None is not before something does."""


_BOUND = 'FILTER (getDURATION() < "PT1H"^^xsd:duration)'
_EVER = "it asks about all of the past, whatever the duration of an answer: "
_WAYS = {
    "an aggregate": "a group never ends: group by fewer keys, or inside of a WINDOW",
    "a window": "narrow its RANGE",
    "OPTIONAL": f"bound the optional group by a FILTER inside of it, such as {_BOUND}",
    "OPTIONALSEQ": f"bound the pair by a FILTER inside of the right group, such as {_BOUND}",
    "MINUS": f"{_EVER}narrow its pattern, or use NOT, which asks about the interval of an answer",
    "EXISTS": f"{_EVER}narrow its pattern, or use NOT, which asks about the interval of an answer",
}
"""What to do where no bound on the duration of the answers helps."""


class OperatorContext:
    """What the operators of a query share: the knowledge, a cap, and the list of all that keeps state.

    With `replays`, an instant may be tried several times, and state can undo the last try. Where it is
    `timeless`, there are facts alone. `windows` are those operators that answer at instants of their own.
    """

    def __init__(
        self, facts: KnownFacts, query: str, cap: int, replays: bool, timeless: bool = False
    ) -> None:
        self.facts = facts
        self.query = query
        self.cap = cap
        self.replays = replays
        self.timeless = timeless
        self.windows: list[Evaluated] = []
        self.keepers: list[Keeper] = []
        self._committing: list[Keeper] = []
        self._due = math.inf

    def keep(self, keeper: Keeper, commits: bool = False) -> None:
        """Takes note of something that keeps state; `commits` where it waits for the end of an instant."""
        self.keepers.append(keeper)
        if commits or self.replays:
            self._committing.append(keeper)

    @property
    def size(self) -> int:
        """How many things are kept."""
        return sum(each.size for each in self.keepers)

    def commit(self, now: int) -> None:
        """The instant is over."""
        for each in self._committing:
            each.commit()
        if now >= self._due:
            self.sweep(now)

    def wake(self, due: int) -> None:
        """Something can be forgotten from then on."""
        self._due = min(self._due, due)

    def sweep(self, now: int) -> None:
        """Lets everything forget that is due."""
        if now < self._due:
            return
        self._due = math.inf
        for each in self.keepers:
            due = each.due()
            if due is not None and due <= now:
                each.sweep(now)
                due = each.due()
            if due is not None:
                self.wake(due)

    def refuse_more(self, operator: str, bounded: bool) -> Failure:
        """The error of an operator that keeps too much."""
        way = f"add a bound on the duration, such as {_BOUND}"
        way = _WAYS.get(operator, "narrow the duration in its FILTER" if bounded else way)
        if "CONSUMPTION" in operator:
            way = "leave the policy out: under it any earlier solution may still be the partner"
        return Failure(f"{operator} in {self.query} keeps more than {self.cap:,} solutions: {way}")


class _Aging:
    """What is kept for a while: things that started before `now - bound` are of no use any more.

    Half a bound passes between two sweeps, so that at most half as much again is kept, and each thing
    is looked at a few times in its life.
    """

    def __init__(self, context: OperatorContext, operator: str, bound: int | None) -> None:
        self.context = context
        self.operator = operator
        self.bound = bound
        self.size = 0
        self._due: int | None = None

    def due(self) -> int | None:
        """See `Keeper`."""
        return self._due

    def _grown(self, end: int) -> None:
        self.size += 1
        if self.bound is not None and self._due is None:
            self._due = end + self.bound + 1
            self.context.wake(self._due)
        if self.size > self.context.cap:
            if not self.context.replays:
                self.sweep(end)
            if self.size > self.context.cap:
                raise self.context.refuse_more(self.operator, self.bound is not None)

    def sweep(self, now: int) -> None:
        """See `Keeper`."""
        if self.bound is not None:
            self._forget(now - self.bound)
            self._due = now + self.bound // 2 + 1 if self.size else None
            if self._due is not None:
                self.context.wake(self._due)

    def _forget(self, horizon: int) -> None:
        raise NotImplementedError


class Store(_Aging):
    """Solutions by a key, those of one key in the order of their end.

    What a key leaves unbound agrees with anything, so that whoever asks by such a key, or asks where
    there is one, gets all solutions to choose from.

    With `witness`, of the solutions of a key that are too old to be joined, the one that ended first
    stays: that there is one still matters.
    """

    def __init__(
        self,
        context: OperatorContext,
        operator: str,
        key: Callable[[Values], Hashable],
        bound: int | None = None,
        witness: bool = False,
    ) -> None:
        super().__init__(context, operator, bound)
        self.key = key
        self.witness = witness
        self.rows: dict[Hashable, list[Row]] = {}
        self._vague = 0
        self._added: list[Hashable] = []
        context.keep(self)

    def add(self, row: Row) -> None:
        """Keeps a solution; it ends no earlier than all that came before."""
        key = self.key(row[2])
        kept = self.rows.get(key)
        if kept is None:
            self.rows[key] = [row]
            self._vague += _is_vague(key)
        else:
            kept.append(row)
        if self.context.replays:
            self._added.append(key)
        self._grown(row[1])

    def at(self, key: Hashable) -> Sequence[Row]:
        """The solutions that may agree with a key."""
        if self._vague or _is_vague(key):
            return sorted((row for rows in self.rows.values() for row in rows), key=_END)
        return self.rows.get(key, ())

    def between(self, key: Hashable, first: int | None, last: int | None) -> Sequence[Row]:
        """Those that end from `first` to `last`; of few, others may be among them."""
        rows = self.at(key)
        if len(rows) <= _FEW:
            return rows
        low = 0 if first is None else bisect_left(rows, first, key=_END)
        return rows[low:] if last is None else rows[low : bisect_right(rows, last, lo=low, key=_END)]

    def remove(self, row: Row) -> None:
        """Takes a solution out."""
        key = self.key(row[2])
        self.rows[key].remove(row)
        self.size -= 1

    def clear(self) -> None:
        """Forgets everything."""
        self.rows.clear()
        self._vague = 0
        self._added.clear()
        self.size = 0

    def undo(self) -> None:
        """See `Keeper`."""
        for key in reversed(self._added):
            rows = self.rows[key]
            rows.pop()
            if not rows:
                del self.rows[key]
                self._vague -= _is_vague(key)
        self.size -= len(self._added)
        self._added.clear()

    def commit(self) -> None:
        """See `Keeper`."""
        self._added.clear()

    def _forget(self, horizon: int) -> None:
        kept: dict[Hashable, list[Row]] = {}
        for key, rows in self.rows.items():
            alive = [each for each in rows if each[0] >= horizon]
            if self.witness and len(alive) < len(rows) and (not alive or alive[0] is not rows[0]):
                alive.insert(0, rows[0])
            if alive:
                kept[key] = alive
        self.rows = kept
        self._vague = sum(map(_is_vague, kept))
        self.size = sum(len(each) for each in kept.values())

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        rows = [each for rows in self.rows.values() for each in rows if each[1] < before]
        return sorted(rows, key=lambda row: (row[1], row[0], [text or "" for text in row[2]]))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        self.rows, self.size, self._vague = {}, 0, 0
        for start, end, values in state:
            self.add((start, end, tuple(values)))
        self._added.clear()


def _is_vague(key: Hashable) -> bool:
    return key is None or (type(key) is tuple and None in key)


_Shape = tuple[bool, bool, bool]
_Asked = tuple[str | None, str | None, str | None]


class OccurrenceGraph(_Aging):
    """Occurrences by the terms that are known of them."""

    def __init__(self, context: OperatorContext, operator: str, bound: int | None) -> None:
        super().__init__(context, operator, bound)
        self.facts = context.facts
        self._all: dict[Occurrence, None] = {}
        self._indexes: dict[_Shape, dict[_Asked, list[Occurrence]]] = {}
        self._added: list[Occurrence] = []
        context.keep(self)

    def add(self, occurrence: Occurrence) -> None:
        """Keeps an occurrence; it ends no earlier than all that came before."""
        if occurrence in self._all:
            return
        self._all[occurrence] = None
        for shape, index in self._indexes.items():
            index.setdefault(_place(shape, occurrence), []).append(occurrence)
        if self.context.replays:
            self._added.append(occurrence)
        self._grown(occurrence[4])

    def timed(self, s: str | None, p: str | None, o: str | None) -> Sequence[Occurrence]:
        """The occurrences with these terms; None stands for any."""
        shape = (s is not None, p is not None, o is not None)
        index = self._indexes.get(shape)
        if index is None:
            index = self._indexes[shape] = {}
            for each in self._all:
                index.setdefault(_place(shape, each), []).append(each)
        return index.get((s, p, o), ())

    def undo(self) -> None:
        """See `Keeper`."""
        for each in reversed(self._added):
            del self._all[each]
            for shape, index in self._indexes.items():
                index[_place(shape, each)].pop()
        self.size -= len(self._added)
        self._added.clear()

    def commit(self) -> None:
        """See `Keeper`."""
        self._added.clear()

    def _forget(self, horizon: int) -> None:
        self._all = {each: None for each in self._all if each[3] >= horizon}
        self._indexes.clear()
        self.size = len(self._all)

    def dump(self, before: float = math.inf) -> Any:
        """See `Keeper`."""
        return [each for each in self._all if each[4] < before]

    def load(self, state: Iterable[Any]) -> None:
        """See `Keeper`."""
        self._all, self.size = {}, 0
        self._indexes.clear()
        for s, p, o, start, end in state:
            self.add((s, p, o, start, end))
        self._added.clear()

    def __iter__(self) -> Iterator[Occurrence]:
        return iter(self._all)


def _place(shape: _Shape, occurrence: Occurrence) -> _Asked:
    s, p, o = occurrence[0], occurrence[1], occurrence[2]
    return s if shape[0] else None, p if shape[1] else None, o if shape[2] else None
