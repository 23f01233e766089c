"""WINDOW blocks: plain SPARQL, evaluated again and again over the triples that are in a window.

Where what a window gives follows from what enters it and what leaves it (`slide`), it slides: a pattern that
only grows is run as one with a bound on its duration, each triple at the instant of its end, or at its place
among the triples. A solution is in the window from its end on, until the first of its triples leaves;
aggregates take its values when it comes and give them back when it goes. Any other pattern is evaluated
whole: all that is in the windows and all that the knowledge has to say is given to its operators as if it
happened at one instant.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator
from kaicep.kernel.epsparql.dictionary import NO_TRIPLES, Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.expressions import BOUND_TO_PLACE, Outside, SolutionTest, Value
from kaicep.kernel.epsparql.grouping import Removable, solution_line
from kaicep.kernel.epsparql.reading import StreamReader, term_of
from kaicep.kernel.epsparql.state import Keeper
from kaicep.kernel.epsparql.tables import Rows
from kaicep.plan.algebra import only_grows
from kaicep.plan.expressions import Call, Exists
from kaicep.plan.nodes import (
    Bgp,
    Evaluations,
    Extend,
    FilterSolutions,
    Grouping,
    InsideWindow,
    Join,
    Node,
    Ordered,
    Solutions,
    Temporal,
    walk_objects,
)
from kaicep.plan.program import bindable, conjuncts
from kaicep.plan.sparql import Path, WindowClause, has_empty
from kaicep.plan.values import sort_key

_Codes = tuple[int, ...]
_FOREVER = 2**62


# ----------------------------------------------------------------------------------------------------------
# Windows that slide.


@dataclass(frozen=True)
class Slide:
    """One window whose answer follows from what enters and what leaves: `below` only grows.

    `above` are the conditions and values over its groups, from the innermost to the outermost.
    """

    window: WindowClause
    below: Node
    grouping: Grouping | None
    above: tuple[Extend | FilterSolutions, ...]
    names: tuple[str, ...]


def slide(node: Evaluations) -> Slide | None:
    """The parts of one window that slides; None for anything else."""
    inner = node.input
    if len(node.windows) != 1 or not isinstance(inner, Solutions) or _depends_on_time(inner):
        return None
    above: list[Extend | FilterSolutions] = []
    body, grouping = inner.input, None
    while isinstance(body, Extend | FilterSolutions):
        above.append(body)
        body = body.input
    if isinstance(body, Grouping):
        grouping, below = body, _opened(body.input)
    else:
        above, below = [], _opened(inner.input)
    if below is None or not only_grows(below) or not all(map(_slides, below.walk())):
        return None
    if grouping is not None and not all(map(_is_set, below.walk())):
        return None
    if any(isinstance(each, Extend) and each.name in bindable(each.input) for each in above):
        return None
    if grouping is None:
        below = Solutions(below, inner.names)
    return Slide(node.windows[0], below, grouping, tuple(reversed(above)), inner.names)


def _opened(node: Node) -> Node | None:
    """A group without its WINDOW around it; None where there is more, or no such thing."""
    if isinstance(node, InsideWindow):
        return None if any(isinstance(each, InsideWindow) for each in node.input.walk()) else node.input
    if isinstance(node, Extend | FilterSolutions):
        below = _opened(node.input)
        return None if below is None else replace(node, input=below)
    return None


def _slides(node: Node) -> bool:
    """Whether a window of it may slide: what is a node of the graph is a matter of all that is in it."""
    if isinstance(node, Bgp):
        return not any(isinstance(e.predicate, Path) and has_empty(e.predicate) for e in node.patterns)
    return not (isinstance(node, Extend) and node.name in bindable(node.input))


def _is_set(node: Node) -> bool:
    """Whether an operator gives each solution once, where those below it do."""
    if isinstance(node, Bgp):
        return not any(isinstance(each.predicate, Path) for each in node.patterns)
    return isinstance(node, Join | FilterSolutions | Extend)


def _depends_on_time(root: Node) -> bool:
    return any(
        isinstance(part, Exists | Temporal) or (isinstance(part, Call) and part.op in BOUND_TO_PLACE)
        for part in walk_objects(root)
    )


class _Groups:
    """GROUP BY over what is in a window: groups, their members counted, and what they give."""

    def __init__(self, slide: Slide, names: Sequence[str], dictionary: Dictionary, outside: Outside) -> None:
        node = slide.grouping
        assert isinstance(node, Grouping)
        self._node, self._names, self._dictionary = node, names, dictionary
        self._keys = [None if expr is None else Value(expr, names, outside) for _, expr in node.keys]
        self._places = [names.index(name) if name in names else -1 for name, _ in node.keys]
        self._values = [
            None if each.of is None else Value(each.of, names, outside) for _, each in node.aggregates
        ]
        self._lined = any(each.op not in ("COUNT", "SUM", "AVG") for _, each in node.aggregates)
        self._lined = self._lined or any(each.of is None and each.distinct for _, each in node.aggregates)
        self._members: dict[_Codes, tuple[_Codes, list[str | None], str]] = {}
        self._groups: dict[_Codes, list[Removable]] = {}
        self._sizes: dict[_Codes, int] = {}
        self._results: dict[_Codes, _Codes] = {}
        self.names = (*(name for name, _ in node.keys), *(name for name, _ in node.aggregates))

    def add(self, row: _Codes) -> None:
        """A solution comes."""
        of, code = self._dictionary.of, self._dictionary.code
        texts = tuple(map(of, row))
        key: list[int] = []
        for value, place in zip(self._keys, self._places, strict=True):
            if value is None:
                key.append(row[place] if place >= 0 else -1)
            else:
                text = value.of(texts, None, None)
                key.append(-1 if text is None else code(text))
        line = solution_line(self._names, texts) if self._lined else ""
        values = [line if each is None else each.of(texts, None, None) for each in self._values]
        group = tuple(key)
        self._members[row] = group, values, line
        if group not in self._groups:
            self._groups[group] = self._empty()
            self._sizes[group] = 0
        self._sizes[group] += 1
        for running, text in zip(self._groups[group], values, strict=True):
            running.change(text, line, 1)
        self._results.pop(group, None)

    def remove(self, row: _Codes) -> None:
        """A solution goes."""
        group, values, line = self._members.pop(row)
        self._sizes[group] -= 1
        self._results.pop(group, None)
        if not self._sizes[group]:
            del self._groups[group], self._sizes[group]
            return
        for running, text in zip(self._groups[group], values, strict=True):
            running.change(text, line, -1)

    def _empty(self) -> list[Removable]:
        return [Removable(each.op, each.distinct, each.separator) for _, each in self._node.aggregates]

    def all(self) -> Iterator[_Codes]:
        """What the groups give; without keys there is always one."""
        if not self._groups and not self._keys:
            yield self._result((), self._empty())
        for group, running in self._groups.items():
            found = self._results.get(group)
            if found is None:
                found = self._results[group] = self._result(group, running)
            yield found

    def _result(self, group: _Codes, running: list[Removable]) -> _Codes:
        return (*group, *self._dictionary.codes(each.result() for each in running))

    def __len__(self) -> int:
        return len(self._members)


class _Set:
    """The solutions that are in a window, without groups."""

    def __init__(self, names: Sequence[str]) -> None:
        self._rows: dict[_Codes, None] = {}
        self.names = tuple(names)

    def add(self, row: _Codes) -> None:
        """A solution comes."""
        self._rows[row] = None

    def remove(self, row: _Codes) -> None:
        """A solution goes."""
        del self._rows[row]

    def all(self) -> Iterator[_Codes]:
        """The solutions."""
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Sliding:
    """What is in one window, kept up to date; see `Inside`."""

    def __init__(self, slide: Slide, below: ColumnOperator, dictionary: Dictionary, outside: Outside) -> None:
        self.names = slide.names
        self._below, self._dictionary = below, dictionary
        self._width = slide.window.rows or slide.window.width or 0
        self._inside = (
            _Groups(slide, below.names, dictionary, outside) if slide.grouping else _Set(below.names)
        )
        self._finish = self._finisher(slide, outside)
        self._until: dict[_Codes, int] = {}
        self._leaving: list[tuple[int, _Codes]] = []
        self._coming: deque[tuple[int, int, _Codes]] = deque()
        for row in below.still.values.tolist():
            self._until[tuple(row)] = _FOREVER
        for known in self._until:
            self._inside.add(known)

    def _finisher(self, slide: Slide, outside: Outside) -> Callable[[_Codes], _Codes | None]:
        """From what the window gives to what the SELECT gives: HAVING, columns that are computed."""
        names, of, codes = list(self._inside.names), self._dictionary.of, self._dictionary.codes
        steps: list[SolutionTest | Value] = []
        for node in slide.above:
            if isinstance(node, Extend):
                steps.append(Value(node.expr, tuple(names), outside))
                names.append(node.name)
            else:
                steps.append(SolutionTest(conjuncts(node.condition), tuple(names), outside))
        places = [names.index(each) if each in names else -1 for each in slide.names]
        known: dict[_Codes, _Codes | None] = {}

        def finished(row: _Codes) -> _Codes | None:
            texts = tuple(map(of, row))
            for step in steps:
                if isinstance(step, Value):
                    texts = (*texts, step.of(texts, None, None))
                elif not step.holds(texts, None, None):
                    return None
            return codes(None if place < 0 else texts[place] for place in places)

        def remembered(row: _Codes) -> _Codes | None:
            if row not in known:
                if len(known) > 10_000:
                    known.clear()
                known[row] = finished(row)
            return known[row]

        return remembered if steps or places != list(range(len(names))) else lambda row: row

    def enter(self, window: WindowClause, columns: OccurrenceColumns) -> None:
        """See `Inside`."""
        rows = self._below.step(Chunk(columns))
        self._coming.extend((end, start, row) for start, end, row in rows.listed())

    def at(self, now: int) -> list[_Codes]:
        """See `Inside`."""
        width, until, leaving, inside = self._width, self._until, self._leaving, self._inside
        coming = self._coming
        while coming and coming[0][0] <= now:
            _, start, row = coming.popleft()
            over, known = start + width, until.get(row)
            if over <= now or (known is not None and known >= over):
                continue
            until[row] = over
            if known is None:
                inside.add(row)
                heappush(leaving, (over, row))
        while leaving and leaving[0][0] <= now:
            _, row = heappop(leaving)
            over = until[row]
            if over > now:
                heappush(leaving, (over, row))
            else:
                del until[row]
                inside.remove(row)
        found = (self._finish(each) for each in inside.all())
        return list(dict.fromkeys(each for each in found if each is not None))


# ----------------------------------------------------------------------------------------------------------
# Windows that are evaluated whole.


class WindowColumns(ColumnOperator):
    """A WINDOW block: what is in this window, and nothing else."""

    def __init__(self, below: ColumnOperator, window: WindowClause) -> None:
        self._below, self._window = below, window
        self.names, self.certain, self.still = below.names, below.certain, below.still

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        return self._below.step(chunk.windows[self._window])


class Sorted(ColumnOperator):
    """ORDER BY and LIMIT of an evaluation: the first ones; alike in all keys, they go by their text."""

    def __init__(
        self, below: ColumnOperator, node: Ordered, dictionary: Dictionary, outside: Outside
    ) -> None:
        self.names, self.certain = node.names, below.certain & frozenset(node.names)
        self.still = Rows.none(len(node.names))
        self._below, self._node, self._dictionary = below, node, dictionary
        self._keys = [(Value(expr, below.names, outside), downwards) for expr, downwards in node.keys]
        self._places = [below.names.index(name) if name in below.names else -1 for name in node.names]
        self._seen = [i for i, name in enumerate(below.names) if not name.startswith("_:")]

    def step(self, chunk: Chunk) -> Rows:
        """See `ColumnOperator`."""
        of, node = self._dictionary.of, self._node
        found = [tuple(map(of, row)) for row in self._below.step(chunk).values.tolist()]
        names = [self._below.names[i] for i in self._seen]
        found.sort(key=lambda each: solution_line(names, tuple([each[i] for i in self._seen])))
        for value, downwards in reversed(self._keys):
            found.sort(key=lambda each, of=value.of: _sort_key(of(each, None, None)), reverse=downwards)  # type: ignore[misc]
        shown = [tuple([each[i] if i >= 0 else None for i in self._places]) for each in found]
        if node.distinct:
            shown = list(dict.fromkeys(shown))
        now, codes = int(chunk.until), self._dictionary.codes
        return Rows.of([(now, now, codes(e)) for e in shown[node.offset :][: node.limit]], len(self.names))


def _sort_key(text: str | None) -> Any:
    return sort_key(None if text is None else term_of(text))


class Whole:
    """What is in some windows, given whole to the operators `below`; see `Inside`."""

    def __init__(
        self,
        windows: Sequence[WindowClause],
        below: ColumnOperator,
        before: Callable[[Chunk], None],
        known: OccurrenceColumns,
    ) -> None:
        self.names = below.names
        self._below, self._before, self._known = below, before, known
        self._inside = dict.fromkeys(windows, NO_TRIPLES)
        self._coming: dict[WindowClause, list[OccurrenceColumns]] = {each: [] for each in windows}
        self._count = 0

    def enter(self, window: WindowClause, columns: OccurrenceColumns) -> None:
        """See `Inside`."""
        self._coming[window].append(columns)

    def at(self, now: int) -> list[_Codes]:
        """See `Inside`."""
        self._count += 1
        windows: dict[WindowClause, Chunk] = {}
        for window, inside in self._inside.items():
            some = OccurrenceColumns.joined([inside, *self._coming[window]])
            first = int(np.searchsorted(some.end, now - (window.rows or window.width or 0), side="right"))
            last = int(np.searchsorted(some.end, now, side="right"))
            self._inside[window], self._coming[window] = some.take(slice(first, None)), []
            windows[window] = self._together(some.take(slice(first, last)))
        chunk = self._together(NO_TRIPLES)
        chunk = Chunk(chunk.columns, self._count, windows)
        self._before(chunk)
        return list(dict.fromkeys(map(tuple, self._below.step(chunk).values.tolist())))

    def _together(self, columns: OccurrenceColumns) -> Chunk:
        """These triples and the knowledge, at one instant."""
        some = OccurrenceColumns.joined([self._known, columns])
        now = np.full(len(some), self._count, np.int64)
        some = OccurrenceColumns(some.s, some.p, some.o, now, now)
        return Chunk(some.take(np.flatnonzero(kernels.distinct(*some.all()))), self._count)


# ----------------------------------------------------------------------------------------------------------
# When windows are evaluated, and what of it is shown.


class Inside(Protocol):
    """What windows give."""

    names: tuple[str, ...]

    def enter(self, window: WindowClause, columns: OccurrenceColumns) -> None:
        """Triples come, with what they entail: at the instants of their end, or their places."""

    def at(self, now: int) -> list[_Codes]:
        """What the pattern gives at an instant, or a place."""
        ...


class Windows(ColumnOperator, Keeper):
    """What windows give whenever they are evaluated, in the interval of the longest of them."""

    label = "a window"

    def __init__(
        self, node: Evaluations, inside: Inside, reader: StreamReader, dictionary: Dictionary
    ) -> None:
        self._inside, self._reader, self._dictionary = inside, reader, dictionary
        self.names, self.certain = inside.names, frozenset[str]()
        self.still = Rows.none(len(self.names))
        self._report, (self._first, *_) = node.report, node.windows
        self.streams = frozenset(each.stream for each in node.windows)
        self._width = max((each.width or 0 for each in node.windows), default=0)
        self.about, self.bound = self.names, self._width or None
        self._by_rows = self._first.rows is not None
        steps = [each.step for each in node.windows if each.step is not None]
        self._step = math.lcm(*steps) if steps and not self._by_rows else None
        # The triples that came, by window: when, and what.
        self._entries: dict[WindowClause, deque[tuple[int, tuple[int, int, int]]]]
        self._entries = {each: deque() for each in node.windows}
        self._came = 0
        self._moments: deque[int] = deque()  # at which triples ended, and no evaluation was yet
        self._rows: list[tuple[int, int, _Codes]] = []  # of evaluations of a window of rows
        self._done = kernels.FIRST
        self._last: int | None = None
        self._before: list[_Codes] = []
        self._given: Rows | None = None
        self._again: Rows | None = None

    # --- what comes ----------------------------------------------------------------------------------

    def take(self, stream: str, triples: OccurrenceColumns, expansion: Expansion) -> None:
        """Triples of a stream, in the order of their end."""
        if not len(triples) or stream not in self.streams:
            return
        ends, count = triples.end.tolist(), len(triples)
        codes = list(zip(triples.s.tolist(), triples.p.tolist(), triples.o.tolist(), strict=True))
        when = np.arange(self._came + 1, self._came + count + 1) if self._by_rows else triples.end
        read = expansion.of(OccurrenceColumns(triples.s, triples.p, triples.o, when, when))
        for window, entries in self._entries.items():
            if window.stream == stream:
                entries.extend(zip(ends, codes, strict=True))
                self._enter(window, read)
        self._came += count
        if self._by_rows:
            self._evaluate_rows(count)
        else:
            new = dict.fromkeys(ends)
            self._moments.extend(new if not self._moments else (t for t in new if t > self._moments[-1]))

    def _enter(self, window: WindowClause, columns: OccurrenceColumns) -> None:
        if len(columns):
            self._inside.enter(window, columns)

    def _evaluate_rows(self, count: int) -> None:
        step, kept = self._first.step or 1, self._first.rows or 0
        entries = self._entries[self._first]
        first = self._came + 1 - len(entries)  # the place of the oldest entry
        for place in range(self._came - count + 1, self._came + 1):
            if place % step:
                continue
            while first <= place - kept:
                entries.popleft()
                first += 1
            now = self._inside.at(place)
            end = entries[place - first][0]
            self._rows += [(entries[0][0], end, each) for each in self._shown(now, self._before)]
            self._before = now
        while len(entries) > kept:
            entries.popleft()

    # --- evaluations ---------------------------------------------------------------------------------

    def step(self, chunk: Chunk) -> Rows:
        """What it gives at all instants up to `until` that are not done."""
        found, self._again = self._again, None
        if found is None:
            found = self._evaluated(chunk.until)
        if self.replays:
            self._given = found
        return found

    def _evaluated(self, until: float) -> Rows:
        if self._by_rows:
            found = list(dict.fromkeys(each for each in self._rows if each[1] <= until))
            self._rows = [each for each in self._rows if each[1] > until]
            return Rows.of(found, len(self.names))
        found = []
        while (t := self.next_instant(self._done)) is not None and t <= until:
            self._done = t
            found += [(t - self._width, t, each) for each in self._at(t)]
        if math.isfinite(until):
            self._done = max(self._done, int(until))
        return Rows.of(found, len(self.names))

    def _at(self, t: int) -> list[_Codes]:
        before = self._before
        if self._step is not None and self._last is not None and self._last + self._step < t:
            before = []  # the windows were empty then
        for window, entries in self._entries.items():
            while entries and entries[0][0] <= t - (window.width or 0):
                entries.popleft()
        while self._moments and self._moments[0] <= t:
            self._moments.popleft()
        filled = any(each and each[0][0] <= t for each in self._entries.values())
        now = self._inside.at(t) if filled else []
        self._last, self._before = t, now
        return self._shown(now, before)

    def _shown(self, now: list[_Codes], before: list[_Codes]) -> list[_Codes]:
        if self._report == "RSTREAM":
            return now
        some, others = (now, before) if self._report == "ISTREAM" else (before, now)
        known = set(others)
        return [each for each in some if each not in known]

    def next_instant(self, after: int) -> int | None:
        """When it is evaluated next, as far as is known."""
        after = max(after, self._done)
        if self._by_rows:
            return self._rows[0][1] if self._rows else None
        if self._step is None:
            return self._moments[0] if self._moments else None
        following = (after // self._step + 1) * self._step
        if self._report == "DSTREAM" and self._before:
            return following
        coming = [self._next_of(each, entries, following) for each, entries in self._entries.items()]
        return min((each for each in coming if each is not None), default=None)

    def _next_of(
        self, window: WindowClause, entries: deque[tuple[int, tuple[int, int, int]]], following: int
    ) -> int | None:
        assert self._step is not None
        for end, _ in entries:
            first = max(following, -(-end // self._step) * self._step)
            if first < end + (window.width or 0):
                return first
        return None

    # --- state ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many triples there are in the windows."""
        return sum(map(len, self._entries.values()))

    def undo(self) -> None:
        """An evaluation is the same whenever it is tried again."""
        self._again = self._given

    def commit(self) -> None:
        """See `Keeper`."""
        self._given = self._again = None

    def dump(self, before: float = math.inf) -> Any:
        """The triples in the windows with what they entail, and what was found last."""
        texts, read, of = self._dictionary.texts, self._reader.read_derived, self._dictionary.of
        inside = [
            [[end, list(read((texts[s], texts[p], texts[o])))] for end, (s, p, o) in entries]
            for entries in self._entries.values()
        ]
        rows = [[start, end, list(map(of, each))] for start, end, each in self._rows]
        found = [list(map(of, each)) for each in self._before]
        return [inside, self._came, list(self._moments), rows, self._done, self._last, found]

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        inside, self._came, moments, rows, self._done, self._last, before = state
        code, codes = self._dictionary.code, self._dictionary.codes
        self._before, self._moments = [codes(each) for each in before], deque(moments)
        self._rows = [(start, end, codes(values)) for start, end, values in rows]
        for (window, kept), entries in zip(self._entries.items(), inside, strict=True):
            found: list[tuple[int, int, int, int, int]] = []
            for i, (end, facts) in enumerate(entries):
                (s, p, o), *_ = facts
                kept.append((end, (code(s), code(p), code(o))))
                when = self._came - len(entries) + 1 + i if self._by_rows else end
                found += [(code(s), code(p), code(o), when, when) for s, p, o in facts]
            self._enter(window, OccurrenceColumns.of(found))
