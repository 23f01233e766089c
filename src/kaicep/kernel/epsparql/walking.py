"""Paths of any length over columns: the nodes that steps join, and a node that a path joins with itself.

What is found of `p+` is a set of links: two nodes and an interval, whatever the way between them. A new step
makes links with all that lead to it and all that lead on. A path that may be empty joins a node that is known
from elsewhere with itself at any time, and any other one whenever it occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator, Joiner, PatternColumns
from kaicep.kernel.epsparql.dictionary import Array, Dictionary
from kaicep.kernel.epsparql.reading import KnownFacts
from kaicep.kernel.epsparql.state import Keeper
from kaicep.kernel.epsparql.tables import Rows
from kaicep.plan.sparql import Node as Place
from kaicep.plan.terms import Variable

Link = tuple[int, int, int, int]
"""Two nodes, start and end."""
_Timed = tuple[int, int, int]


class Nodes(ColumnOperator):
    """The subjects and objects, each whenever it occurs; those of facts at any time."""

    def __init__(self, every: PatternColumns, name: str) -> None:
        self._every, self.names, self.certain = every, (name,), frozenset((name,))
        self._ends = [
            every.names.index(each.name) for each in every.places[::2] if isinstance(each, Variable)
        ]
        self.still = self._of(every.still).once()

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._of(self._every.step(chunk))

    def _of(self, rows: Rows) -> Rows:
        return Rows.merged([Rows(rows.values[:, [at]], rows.start, rows.end) for at in self._ends])


class Links(ColumnOperator, Keeper):
    """What some steps join: one after the other, or (not `unbounded`) each by itself.

    The two `ends` are variables or terms; `alone` are the nodes that are joined with themselves. From an end
    that is known for good, nothing else is looked at. Links longer than `bound` are of no use.
    """

    label = "a group of several triples"

    def __init__(
        self,
        steps: ColumnOperator,
        ends: tuple[Place, Place],
        fixed: tuple[int | None, int | None],
        unbounded: bool,
        alone: Nodes | None,
        bound: int | None,
        dictionary: Dictionary,
    ) -> None:
        self._steps, self._fixed, self._unbounded, self._alone = steps, fixed, unbounded, alone
        self.bound, self._dictionary = bound, dictionary
        self.names = tuple(dict.fromkeys(each.name for each in ends if isinstance(each, Variable)))
        self.certain = frozenset(self.names)
        self._places = [i for i, each in enumerate(ends) if isinstance(each, Variable)][: len(self.names)]
        self._same = len(self.names) == 1 and len([e for e in ends if isinstance(e, Variable)]) == 2
        self._backwards = fixed[0] is None and fixed[1] is not None
        self._root = fixed[1] if self._backwards else fixed[0]
        self._from: dict[int, dict[_Timed, None]] = {}
        self._into: dict[int, dict[_Timed, None]] = {}
        self._left = 16  # so many there were after the last sweep, or hardly any
        self._size, self._added = 0, list[tuple[dict[int, dict[_Timed, None]], int, _Timed]]()
        found = self._rows(self._led(steps.still))
        self.still = found if alone is None else Rows.merged((found, self._loops(alone.still)))
        self.commit()

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        steps = self._steps.step(chunk)
        if self.bound is not None and self._size > 2 * self._left and len(steps):
            self.forget(int(steps.end[0]))
        found = self._rows(self._led(steps))
        return found if self._alone is None else Rows.merged((found, self._loops(self._alone.step(chunk))))

    def _loops(self, nodes: Rows) -> Rows:
        return Rows(np.repeat(nodes.values, len(self.names), axis=1), nodes.start, nodes.end)

    def _rows(self, links: Iterable[Link]) -> Rows:
        """Links as solutions, as far as they fit the ends."""
        first, last = self._fixed
        found = [
            (start, end, [each[i] for i in self._places])
            for *each, start, end in links
            if (first is None or each[0] == first)
            and (last is None or each[1] == last)
            and not (self._same and each[0] != each[1])
        ]
        return Rows.of(found, len(self.names))

    def _led(self, rows: Rows) -> Iterable[Link]:
        """The links that new steps make."""
        steps = [(a, b, start, end) for start, end, (a, b) in rows.listed()]
        if not self._unbounded:
            return dict.fromkeys(steps)
        if self._backwards:
            return [
                (b, a, start, end) for a, b, start, end in self._closed([(b, a, *t) for a, b, *t in steps])
            ]
        return self._closed(steps)

    def _closed(self, steps: Iterable[Any]) -> list[Link]:
        new = [each for each in steps if self._put(self._from, each[0], (each[1], each[2], each[3]))]
        waiting: list[Link] = []
        for a, b, start, end in new:
            if self._root in (None, a):
                waiting.append((a, b, start, end))
            led = self._into.get(a, ())
            waiting += [(before, b, min(start, begun), max(end, over)) for before, begun, over in led]
        found: list[Link] = []
        while waiting:
            first, last, start, end = link = waiting.pop()
            if self.bound is not None and end - start > self.bound:
                continue
            if not self._put(self._into, last, (first, start, end)):
                continue
            found.append(link)
            for on, begun, over in self._from.get(last, ()):
                waiting.append((first, on, min(start, begun), max(end, over)))
        return found

    def _put(self, into: dict[int, dict[_Timed, None]], key: int, what: _Timed) -> bool:
        kept = into.setdefault(key, {})
        if what in kept:
            return False
        kept[what] = None
        self._size += 1
        if self.replays:
            self._added.append((into, key, what))
        return True

    # --- state ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return self._size

    def undo(self) -> None:
        """See `Keeper`."""
        for into, key, what in self._added:
            del into[key][what]
        self._size -= len(self._added)
        self._added = []

    def commit(self) -> None:
        """See `Keeper`."""
        self._added = []

    def forget(self, now: int) -> None:
        """See `Keeper`."""
        if self.bound is None:
            return
        oldest = now - self.bound
        for into in (self._from, self._into):
            for key, kept in list(into.items()):
                into[key] = {each: None for each in kept if each[1] >= oldest}
                if not into[key]:
                    del into[key]
        self._size = sum(len(kept) for into in (self._from, self._into) for kept in into.values())
        self._left = max(16, self._size)

    def dump(self, before: float = math.inf) -> Any:
        """The steps that have a time."""
        of, kept = self._dictionary.of, self._from.items()
        steps = [(a, *each) for a, some in kept for each in some if kernels.FIRST < each[2] < before]
        return sorted([of(a), of(b), start, end] for a, b, start, end in steps)

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        code = self._dictionary.code
        self._closed([(code(a), code(b), start, end) for a, b, start, end in state])
        self._left = max(16, self._size)  # what was not swept before is not swept because it was saved
        self.commit()


class EmptyToo(ColumnOperator):
    """Solutions with the links of a path, one end of which they know, and those that need no step."""

    def __init__(self, joiner: Joiner, ends: tuple[str, str]) -> None:
        self._joiner = joiner
        self.names, self.certain = joiner.names, joiner.certain
        left = joiner.sides[0].names
        first, last = (left.index(each) if each in left else -1 for each in ends)
        self._both = (first, last) if first >= 0 and last >= 0 else None
        known = max(first, last)
        self._columns = [left.index(each) if each in left else known for each in self.names]
        self.still = Rows.merged((joiner.still, self._unmoved(joiner.sides[0].still)))

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        left, right = (each.step(chunk) for each in self._joiner.sides)
        return Rows.merged((self._joiner.joined(left, right), self._unmoved(left)))

    def _unmoved(self, rows: Rows) -> Rows:
        if self._both is not None:
            rows = rows.take(np.flatnonzero(rows.values[:, self._both[0]] == rows.values[:, self._both[1]]))
        return Rows(np.ascontiguousarray(rows.values[:, self._columns]), rows.start, rows.end)


class OfTheGraph(ColumnOperator, Keeper):
    """Solutions in which a path joins no node with itself that is no node of the graph by then.

    What another triple of the same instant may still make a node waits for the next step.
    """

    label = "a group of several triples"

    def __init__(
        self,
        below: ColumnOperator,
        ends: tuple[str, str],
        nodes: Nodes,
        facts: KnownFacts,
        dictionary: Dictionary,
    ) -> None:
        self._below, self._nodes, self._facts, self._dictionary = below, nodes, facts, dictionary
        self.names, self.certain = below.names, below.certain
        self._ends = tuple(below.names.index(each) for each in ends)
        self._since: dict[int, int] = {}
        self._added: list[int] = []
        self._waiting = Rows.none(len(self.names))
        self.still = self._chosen(below.still)

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        for _, end, (node,) in self._nodes.step(chunk).listed():
            if self._since.get(node, kernels.LAST) > end:
                self._since[node] = end
                if self.replays:
                    self._added.append(node)
        rows = Rows.merged((self._waiting, self._below.step(chunk)))
        found = self._chosen(rows)
        if len(rows):
            last = int(rows.end[-1])
            left = np.flatnonzero((rows.end == last) & ~self._are_met(rows))
            self._waiting = rows.take(left)
        return found

    def _chosen(self, rows: Rows) -> Rows:
        return rows.take(np.flatnonzero(self._are_met(rows)))

    def _are_met(self, rows: Rows) -> Array:
        first, last = (rows.values[:, each] for each in self._ends)
        met = first != last
        for at in np.flatnonzero(~met).tolist():
            node = int(first[at])
            met[at] = self._since.get(node, kernels.LAST) <= int(rows.end[at]) or self._is_known(node)
        return met

    def _is_known(self, node: int) -> bool:
        text = self._dictionary.texts[node]
        return bool(self._facts.match(text, None, None) or self._facts.match(None, None, text))

    # --- state ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """See `Keeper`."""
        return len(self._since)

    def undo(self) -> None:
        """See `Keeper`."""
        for each in self._added:
            self._since.pop(each, None)
        self._added, self._waiting = [], Rows.none(len(self.names))

    def commit(self) -> None:
        """See `Keeper`."""
        self._added = []

    def dump(self, before: float = math.inf) -> Any:
        """When each node was there first."""
        found = ((end, self._dictionary.texts[node]) for node, end in self._since.items())
        return sorted([text, end] for end, text in found if end < before)

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        self._since = {self._dictionary.code(text): end for text, end in state}
