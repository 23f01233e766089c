"""A window that slides, over columns: what enters it and what leaves it changes the answer.

A pattern that only grows is run as one with a bound on its duration, each triple at the instant of its end,
or at its place among the triples. A solution is in the window from its end on, until the first of its
triples leaves; aggregates take its values when it comes and give them back when it goes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from kaicep.kernel.epsparql.columnar import Chunk, ColumnOperator
from kaicep.kernel.epsparql.dictionary import Dictionary, OccurrenceColumns
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.expressions import SolutionTest, Value
from kaicep.kernel.epsparql.fitting import Slide
from kaicep.kernel.epsparql.grouping import Removable, solution_line
from kaicep.kernel.epsparql.reading import StreamReader
from kaicep.kernel.epsparql.state import Occurrence, OperatorContext
from kaicep.kernel.epsparql.tables import Rows
from kaicep.plan.nodes import Extend, Grouping
from kaicep.plan.program import conjuncts

__all__ = ["SlidingWindow", "as_rows"]

_Codes = tuple[int, ...]
_FOREVER = 2**62


class _Groups:
    """GROUP BY over what is in a window: groups, their members counted, and what they give."""

    def __init__(self, slide: Slide, names: Sequence[str], dictionary: Dictionary) -> None:
        node = slide.grouping
        assert isinstance(node, Grouping)
        self._node, self._names, self._dictionary = node, names, dictionary
        self._keys = [None if expr is None else Value(expr, names, {}) for _, expr in node.keys]
        self._places = [names.index(name) if name in names else -1 for name, _ in node.keys]
        self._values = [None if each.of is None else Value(each.of, names, {}) for _, each in node.aggregates]
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
        code = self._dictionary.code
        texts = (each.result() for each in running)
        return (*group, *(-1 if text is None else code(text) for text in texts))

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


class SlidingWindow:
    """What is in one window, and what its SELECT gives at the instants at which it is evaluated."""

    def __init__(
        self,
        slide: Slide,
        below: ColumnOperator,
        context: OperatorContext,
        dictionary: Dictionary,
        reader: StreamReader,
    ) -> None:
        self._window, self._report, self.names = slide.window, slide.report, slide.names
        self._below, self._context, self._dictionary, self._reader = below, context, dictionary, reader
        self.streams = frozenset((slide.window.stream,))
        self._width = slide.window.rows or slide.window.width or 0
        self._by_rows = slide.window.rows is not None
        self._inside = _Groups(slide, below.names, dictionary) if slide.grouping else _Set(below.names)
        self._finish = self._finisher(slide)
        self._until: dict[_Codes, int] = {}
        self._leaving: list[tuple[int, _Codes]] = []
        self._coming: deque[tuple[int, int, _Codes]] = deque()
        for row in below.still.values.tolist():
            self._until[tuple(row)] = _FOREVER
        for known in self._until:
            self._inside.add(known)
        self._entries: deque[tuple[int, _Codes]] = deque()  # triples that came: when, and what
        self._came = 0
        self._moments: deque[int] = deque()  # at which triples ended, and no evaluation was yet
        self._rows: list[tuple[int, int, _Codes]] = []  # of evaluations of a window of rows
        self._last: int | None = None
        self._before: list[_Codes] = []
        context.keep(self)
        context.windows.append(self)

    def _finisher(self, slide: Slide) -> Callable[[_Codes], _Codes | None]:
        """From what the window gives to what the SELECT gives: HAVING, columns that are computed."""
        names, of, code = list(self._inside.names), self._dictionary.of, self._dictionary.code
        steps: list[SolutionTest | Value] = []
        for node in slide.above:
            if isinstance(node, Extend):
                steps.append(Value(node.expr, tuple(names), {}))
                names.append(node.name)
            else:
                steps.append(SolutionTest(conjuncts(node.condition), tuple(names), {}))
        places = [names.index(each) if each in names else -1 for each in slide.names]
        known: dict[_Codes, _Codes | None] = {}

        def finished(row: _Codes) -> _Codes | None:
            texts = tuple(map(of, row))
            for step in steps:
                if isinstance(step, Value):
                    texts = (*texts, step.of(texts, None, None))
                elif not step.holds(texts, None, None):
                    return None
            found = (None if place < 0 else texts[place] for place in places)
            return tuple(-1 if text is None else code(text) for text in found)

        def remembered(row: _Codes) -> _Codes | None:
            if row not in known:
                if len(known) > 10_000:
                    known.clear()
                known[row] = finished(row)
            return known[row]

        return remembered if steps or places != list(range(len(names))) else lambda row: row

    # --- what comes ----------------------------------------------------------------------------------

    def take_columns(self, triples: OccurrenceColumns, expansion: Expansion) -> None:
        """Triples of its stream, in the order of their end."""
        count = len(triples)
        if not count:
            return
        ends = triples.end.tolist()
        self._entries.extend(
            zip(
                ends,
                zip(triples.s.tolist(), triples.p.tolist(), triples.o.tolist(), strict=True),
                strict=True,
            )
        )
        when = np.arange(self._came + 1, self._came + count + 1) if self._by_rows else triples.end
        self._step(expansion.of(OccurrenceColumns(triples.s, triples.p, triples.o, when, when)))
        if self._by_rows:
            self._evaluate_rows(count)
        else:
            self._came += count
            new = dict.fromkeys(ends)
            self._moments.extend(new if not self._moments else (t for t in new if t > self._moments[-1]))
            if len(self._entries) > self._context.cap:
                self._drop(ends[-1] - self._width)
                if len(self._entries) > self._context.cap:
                    raise self._context.refuse_more("a window", bounded=True)

    def _step(self, columns: OccurrenceColumns) -> None:
        if not len(columns):
            return
        rows = self._below.step(Chunk(columns))
        values = map(tuple, rows.values.tolist())
        self._coming.extend(zip(rows.end.tolist(), rows.start.tolist(), values, strict=True))
        self._below.forget(int(columns.end[-1]))

    def _drop(self, oldest: int) -> None:
        while self._entries and self._entries[0][0] <= oldest:
            self._entries.popleft()

    def _evaluate_rows(self, count: int) -> None:
        step, kept = self._window.step or 1, self._window.rows or 0
        first = self._came + 1 - (len(self._entries) - count)  # the place of the oldest entry
        self._came += count
        for place in range(self._came - count + 1, self._came + 1):
            if place % step:
                continue
            while first <= place - kept:
                self._entries.popleft()
                first += 1
            now = self._at(place)
            end = self._entries[place - first][0]
            self._rows += [(self._entries[0][0], end, each) for each in self._shown(now, self._before)]
            self._before = now
        while len(self._entries) > kept:
            self._entries.popleft()

    def _at(self, now: int) -> list[_Codes]:
        """What the SELECT gives at an instant, or a place."""
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

    def _shown(self, now: list[_Codes], before: list[_Codes]) -> list[_Codes]:
        if self._report == "RSTREAM":
            return now
        some, others = (now, before) if self._report == "ISTREAM" else (before, now)
        known = set(others)
        return [each for each in some if each not in known]

    # --- evaluations ---------------------------------------------------------------------------------

    def until(self, limit: float, after: int) -> list[tuple[int, int, _Codes]]:
        """What it gives at all instants before `limit`, of which those up to `after` are done."""
        if self._by_rows:
            keep = [each for each in self._rows if each[1] >= limit]
            found, self._rows = [each for each in self._rows if each[1] < limit], keep
            return list(dict.fromkeys(found))
        found = []
        while (t := self.next_instant(after)) is not None and t < limit:
            after = t
            found += [(t - self._width, t, each) for each in self._evaluated(t)]
        return found

    def _evaluated(self, t: int) -> list[_Codes]:
        before, step = self._before, self._window.step
        if step is not None and self._last is not None and self._last + step < t:
            before = []  # the window was empty then
        self._drop(t - self._width)
        while self._moments and self._moments[0] <= t:
            self._moments.popleft()
        filled = bool(self._entries) and self._entries[0][0] <= t
        now = self._at(t) if filled else []
        self._last, self._before = t, now
        return self._shown(now, before)

    def next_instant(self, after: int) -> int | None:
        """When it is evaluated next, as far as is known."""
        if self._by_rows:
            return self._rows[0][1] if self._rows else None
        step = self._window.step
        if step is None:
            return self._moments[0] if self._moments else None
        following = (after // step + 1) * step
        if self._report == "DSTREAM" and self._before:
            return following
        for end, _ in self._entries:
            first = max(following, -(-end // step) * step)
            if first < end + self._width:
                return first
        return None

    def open_at(self, now: int | None) -> list[Occurrence]:
        """Something that ends at an instant, where anything does."""
        if not self._entries or self._entries[-1][0] != now:
            return []
        s, p, o = (self._dictionary.texts[code] for code in self._entries[-1][1])
        return [(s, p, o, now, now)]

    # --- state ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many triples there are in the window."""
        return len(self._entries)

    def forget(self, now: int) -> None:
        """What is too old goes when the window is evaluated."""

    def undo(self) -> None:
        """Nothing is tried twice here."""

    def commit(self) -> None:
        """Nothing waits for the end of an instant."""

    def due(self) -> int | None:
        """What is too old goes when the window is evaluated."""
        return None

    def sweep(self, now: int) -> None:
        """See `due`."""

    def dump(self, before: float = math.inf) -> Any:
        """The triples in the window with what they entail, and what was found last."""
        texts, read = self._dictionary.texts, self._reader.read_derived
        entries = [[end, list(read((texts[s], texts[p], texts[o])))] for end, (s, p, o) in self._entries]
        rows = [[start, end, self._texts(each)] for start, end, each in self._rows]
        found = [self._texts(each) for each in self._before]
        return [[entries], self._came, bool(self._moments or self._rows), rows, self._last, found]

    def _texts(self, codes: _Codes) -> list[str | None]:
        return list(map(self._dictionary.of, codes))

    def load(self, state: Any) -> None:
        """See `Keeper`."""
        [entries], self._came, fresh, rows, self._last, before = state
        code = self._dictionary.code

        def codes(texts: Sequence[str | None]) -> _Codes:
            return tuple(-1 if text is None else code(text) for text in texts)

        self._before = [codes(each) for each in before]
        self._rows = [(start, end, codes(values)) for start, end, values in rows]
        found: list[tuple[int, int, int, int, int]] = []
        for i, (end, facts) in enumerate(entries):
            (s, p, o), *_ = facts
            self._entries.append((end, (code(s), code(p), code(o))))
            when = self._came - len(entries) + 1 + i if self._by_rows else end
            found += [(code(s), code(p), code(o), when, when) for s, p, o in facts]
        self._step(OccurrenceColumns.of(found))
        if fresh and entries and not self._by_rows and self._window.step is None:
            self._moments.append(entries[-1][0])


def as_rows(found: Sequence[tuple[int, int, _Codes]], width: int) -> Rows:
    """Answers as rows."""
    values = np.array([each[2] for each in found], np.int32).reshape(len(found), width)
    start, end = (np.array([each[i] for each in found], np.int64) for i in (0, 1))
    return Rows(values, start, end)
