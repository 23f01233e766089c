"""WINDOW blocks: plain SPARQL, evaluated again and again over the triples that are in a window.

What is in a window has no time of its own: its triples are facts, beside those of the knowledge, and the
operators above are asked for what they have of facts alone (`still`). A window is brought up to date triple
by triple, with its indexes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kaicep.kernel.epsparql.operators import SolutionOperator
from kaicep.kernel.epsparql.reading import Fact, KnownFacts
from kaicep.kernel.epsparql.state import InstantBatch, OperatorContext, Row, Values
from kaicep.plan.nodes import Evaluations
from kaicep.plan.sparql import WindowClause

__all__ = ["Evaluating"]

_Shape = tuple[bool, bool, bool]
_Asked = tuple[str | None, str | None, str | None]


class Contents(KnownFacts):
    """The facts, and what is in a window: each of its triples counts once, however often it was sent."""

    def __init__(self, facts: KnownFacts) -> None:
        self._facts = facts
        self._counts: dict[Fact, int] = {}
        self._indexes: dict[_Shape, dict[_Asked, dict[Fact, None]]] = {}
        self.entries: deque[tuple[int, tuple[Fact, ...]]] = deque()

    def put(self, end: int, facts: tuple[Fact, ...]) -> None:
        """A triple of the stream, with what it entails."""
        self.entries.append((end, facts))
        for each in facts:
            count = self._counts.get(each, 0)
            self._counts[each] = count + 1
            if not count:
                for shape, index in self._indexes.items():
                    index.setdefault(_place(shape, each), {})[each] = None

    def drop(self) -> None:
        """The oldest triple leaves."""
        for each in self.entries.popleft()[1]:
            count = self._counts[each] - 1
            if count:
                self._counts[each] = count
                continue
            del self._counts[each]
            for shape, index in self._indexes.items():
                place = _place(shape, each)
                del index[place][each]
                if not index[place]:
                    del index[place]

    def match(self, s: str | None, p: str | None, o: str | None) -> Sequence[Fact]:
        """See `KnownFacts`."""
        shape = (s is not None, p is not None, o is not None)
        index = self._indexes.get(shape)
        if index is None:
            index = self._indexes[shape] = {}
            for each in self._counts:
                index.setdefault(_place(shape, each), {})[each] = None
        inside = index.get((s, p, o), ())
        known = self._facts.match(s, p, o)
        return [*known, *(each for each in inside if each not in known)] if known else list(inside)

    def has(self, s: str, p: str, o: str) -> bool:
        """See `KnownFacts`."""
        return (s, p, o) in self._counts or self._facts.has(s, p, o)

    def uses(self, predicate: str) -> bool:
        """See `KnownFacts`."""
        return True


def _place(shape: _Shape, fact: Fact) -> _Asked:
    return fact[0] if shape[0] else None, fact[1] if shape[1] else None, fact[2] if shape[2] else None


class Evaluating(SolutionOperator):
    """What windows give whenever they are evaluated, in the interval of the longest of them."""

    def __init__(
        self,
        node: Evaluations,
        context: OperatorContext,
        build: Callable[[Mapping[WindowClause, OperatorContext]], SolutionOperator],
    ) -> None:
        self._context = context
        self._contents = {each: Contents(context.facts) for each in node.windows}
        contexts = {
            each: OperatorContext(facts, context.query, context.cap, replays=False, timeless=True)
            for each, facts in self._contents.items()
        }
        self._below = build(contexts)
        super().__init__(self._below.names, self._below.certain, timed=True)
        (self._first, *_), self._report = node.windows, node.report
        self._width = max((each.width or 0 for each in node.windows), default=0)
        steps = [each.step for each in node.windows if each.step is not None]
        self._step = math.lcm(*steps) if steps and self._first.rows is None else None
        self._by_rows = self._first.rows is not None
        self.streams = frozenset(each.stream for each in node.windows)
        self._came = 0  # triples, of a window of rows
        self._fresh = False  # whether a triple came at the instant that is open
        self._rows: list[Row] = []  # of evaluations of a window of rows at the instant that is open
        self._last: int | None = None
        self._before: list[Values] = []
        self._now: tuple[int, list[Values]] | None = None
        context.keep(self, commits=True)
        context.windows.append(self)

    def take(self, stream: str, end: int, facts: Iterable[Fact]) -> None:
        """A triple of a stream, with what it entails; they come in the order of their end."""
        some = tuple(facts)
        for window, contents in self._contents.items():
            if window.stream == stream:
                contents.put(end, some)
                if len(contents.entries) > self._context.cap:
                    raise self._context.refuse_more("a window", bounded=True)
        self._fresh = True
        if self._by_rows:
            self._came += 1
            [contents] = self._contents.values()
            while len(contents.entries) > (self._first.rows or 0):
                contents.drop()
            if self._came % (self._first.step or 1) == 0:
                now = self._evaluated()
                self._rows += [(contents.entries[0][0], end, each) for each in self._shown(now, self._before)]
                self._before = now

    def next_instant(self, after: int) -> int | None:
        """When the windows are evaluated next, although nothing comes."""
        if self._step is None:
            return None
        following = (after // self._step + 1) * self._step
        if self._report == "DSTREAM" and self._before:
            return following
        oldest = [each.entries[0][0] for each in self._contents.values() if each.entries]
        return max(following, -(-min(oldest) // self._step) * self._step) if oldest else None

    # --- as an operator --------------------------------------------------------------------------------

    def reads(self) -> frozenset[str] | None:
        """See `SolutionOperator`."""
        return None

    def step(self, batch: InstantBatch) -> list[Row]:
        """See `SolutionOperator`."""
        if self._by_rows:
            return self._rows
        t, before = batch.end, self._before
        if self._step is None:
            if not self._fresh:
                return []
        elif t % self._step:
            return []
        elif self._last is not None and self._last + self._step < t:
            before = []  # the windows were empty then
        for window, contents in self._contents.items():
            oldest = t - (window.width or 0)
            while contents.entries and contents.entries[0][0] <= oldest:
                contents.drop()
        now = self._evaluated() if any(each.entries for each in self._contents.values()) else []
        self._now = t, now
        return [(t - self._width, t, each) for each in self._shown(now, before)]

    def still(self, given: Mapping[str, str]) -> list[Values]:
        """See `SolutionOperator`."""
        return []

    def _evaluated(self) -> list[Values]:
        return list(dict.fromkeys(self._below.still({})))

    def _shown(self, now: list[Values], before: list[Values]) -> list[Values]:
        if self._report == "RSTREAM":
            return now
        some, others = (now, before) if self._report == "ISTREAM" else (before, now)
        known = set(others)
        return [each for each in some if each not in known]

    # --- state -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many triples there are in the windows."""
        return sum(len(each.entries) for each in self._contents.values())

    def undo(self) -> None:
        """An evaluation is the same whenever it is tried again."""

    def commit(self) -> None:
        """The instant is over."""
        self._rows, self._fresh = [], False
        if self._now is not None:
            self._last, self._before = self._now
            self._now = None

    def due(self) -> int | None:
        """What is too old goes when the windows are evaluated."""
        return None

    def sweep(self, now: int) -> None:
        """See `due`."""

    def dump(self, before: float = math.inf) -> Any:
        """The triples in the windows, and what was found last."""
        inside = [list(each.entries) for each in self._contents.values()]
        return [inside, self._came, self._fresh, self._rows, self._last, self._before]

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        inside, self._came, self._fresh, rows, self._last, before = state
        self._before = [tuple(each) for each in before]
        self._rows = [(start, end, tuple(values)) for start, end, values in rows]
        for window, entries in zip(list(self._contents), inside, strict=True):
            contents = self._contents[window]
            while contents.entries:
                contents.drop()
            for end, facts in entries:
                contents.put(end, tuple((s, p, o) for s, p, o in facts))
