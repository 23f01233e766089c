"""The queries over columns as one: whole instants go through them, the last one waits until it is over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import Chunk
from kaicep.kernel.epsparql.dictionary import Array, Dictionary, OccurrenceColumns, TripleColumns
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.groups import Numbered
from kaicep.kernel.epsparql.lowered import ColumnQuery, ColumnRule, SlidingQuery
from kaicep.kernel.epsparql.reading import KnownFacts, StreamReader
from kaicep.kernel.epsparql.rules import Block, runaway
from kaicep.kernel.epsparql.state import Occurrence, Sent
from kaicep.plan.time import format_time

__all__ = ["Batches"]

_ROWS = 1 << 16
_MOST_TERMS = 1 << 20


class Batches:
    """Takes triples, or occurrences that were read already, in the order of their end."""

    def __init__(
        self,
        queries: Sequence[ColumnQuery],
        rules: Sequence[Sequence[ColumnRule]],
        reader: StreamReader,
        facts: KnownFacts,
        dictionary: Dictionary,
        limit: int,
    ) -> None:
        self.queries, self._rules, self._limit = queries, rules, limit
        self._made: dict[str, OccurrenceColumns] = {}  # what each rule makes with the last end
        self.dictionary = dictionary
        patterns = [pattern for query in (*queries, *chain(*rules)) for pattern in query.patterns]
        self._expansion = Expansion(reader, facts, patterns, dictionary)
        self._sliding = [each for each in queries if isinstance(each, SlidingQuery)]
        self.done = kernels.FIRST  # the last instant at which windows were evaluated
        self._open: list[OccurrenceColumns] = []
        self._ahead = 0  # so many of those were taken by the queries that only grow
        self._told: dict[str, set[tuple[int, int]]] = {}  # answers at the open instant, by query
        self._new: dict[str, set[tuple[int, int]]] = {}
        self.now: int | None = None
        self._over: int | None = None  # the last instant that was closed
        self.most_terms = _MOST_TERMS

    def feed(self, occurrences: Sequence[Sent]) -> list[Block]:
        """The answers of the instants that these triples complete."""
        if not self._sliding:
            return self._taken(self.dictionary.rows(occurrences))  # type: ignore[arg-type]
        columns = self.dictionary.rows([each[:3] for each in occurrences])
        found = self._taken(columns)
        streams: dict[str, list[int]] = {}
        for at, each in enumerate(occurrences):
            if len(each) == 4:
                streams.setdefault(each[3], []).append(at)
        for stream, places in streams.items():
            some = columns.take(np.array(places, np.int64))
            for query in self._sliding:
                query.take(stream, some, self._expansion)
        return found + (self.passed(self.now) if self.now is not None else [])

    def passed(self, limit: float) -> list[Block]:
        """The answers of the windows at all instants before another."""
        found = [each.until(limit, self.done) for each in self._sliding]
        if math.isfinite(limit):
            self.done = max(self.done, int(limit) - 1)
        return [each for each in found if each is not None]

    def feed_columns(self, triples: TripleColumns) -> list[Block]:
        """The same for columns."""
        columns = self.dictionary.columns(triples)
        found: list[Block] = []
        for first in range(0, len(columns), _ROWS):
            found += self._taken(columns.take(slice(first, first + _ROWS)))
        return found

    def _taken(self, columns: OccurrenceColumns) -> list[Block]:
        if not len(columns):
            return []
        self._refuse_disorder(columns)
        return self._put(self._expansion.of(columns), int(columns.end[-1]))

    def _put(self, columns: OccurrenceColumns, now: int) -> list[Block]:
        """The answers of what comes, the last instant open: queries that only grow answer that as well."""
        self._open.append(columns)
        waiting = _once(OccurrenceColumns.joined(self._open))
        found: list[Block] = []
        for rules in self._rules:
            if rules[0].recursive:
                blocks, waiting = self._closed(rules, waiting, now)
                found += blocks
                continue
            block = rules[0].step(Chunk(waiting.take(slice(self._ahead, None))))
            if block is not None:
                block, made = rules[0].fill(self._untold(block, now))
                found.append(block)
                self._refuse_runaway(rules[0].name, made)
                waiting = _once(_in_order((waiting, self._expansion.of(made))))
        done = int(np.searchsorted(waiting.end, now))
        new, over = waiting.take(slice(self._ahead, None)), waiting.take(slice(0, done))
        self._open = [waiting.take(slice(done, None))]
        self._ahead = len(self._open[0])
        found += [self._untold(each, now) for each in self._step(new, grows=True)]
        self._go_on(now)
        return [*found, *self._step(over, grows=False)]

    def _closed(
        self, rules: Sequence[ColumnRule], waiting: OccurrenceColumns, now: int
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules that read each other's triples make, round by round, each of what is new."""
        known, all_made, coming = Numbered(7), Numbered(7), waiting.take(slice(self._ahead, None))
        known.numbers(_as_codes(waiting))
        parts, found = [waiting], list[Block]()
        made: dict[str, list[OccurrenceColumns]] = {each.name: [] for each in rules}
        told: dict[str, set[tuple[int, int]]] = {each.name: set() for each in rules}
        counts: dict[str, Counter[int]] = {each.name: Counter() for each in rules}
        while len(coming):
            chunk, derived = Chunk(coming), list[OccurrenceColumns]()
            for rule in rules:
                block = rule.step(chunk)
                if block is None:
                    continue
                block, triples = rule.fill(self._untold(_others(block, told[rule.name]), now))
                found.append(block)
                triples = _fresh(triples, all_made)
                made[rule.name].append(triples)
                counts[rule.name].update(triples.end.tolist())
                derived.append(self._expansion.of(triples))
            self._refuse_runaways(counts)
            coming = _fresh(_in_order(derived) if derived else OccurrenceColumns.of(()), known)
            parts.append(coming)
        for rule in rules:
            rule.settle()
            if made[rule.name]:
                self._refuse_runaway(rule.name, _in_order(made[rule.name]))
        return found, _in_order(parts)

    def _refuse_runaways(self, counts: dict[str, Counter[int]]) -> None:
        total = sum(counts.values(), Counter[int]())
        over = [end for end, many in total.items() if many > self._limit]
        if over:
            rule = max(sorted(counts), key=lambda name: counts[name][min(over)])
            raise runaway(rule, self._limit, min(over))

    def _refuse_runaway(self, rule: str, made: OccurrenceColumns) -> None:
        """Counts what the rules make with one end; an instant may come in parts."""
        if not len(made):
            return
        kept = self._made.get(rule)
        if kept is not None and int(kept.end[-1]) == int(made.end[0]):
            made = OccurrenceColumns.joined((kept, made))
        made = _once(made)
        ends, counts = np.unique(made.end, return_counts=True)
        self._made[rule] = made.take(np.flatnonzero(made.end == ends[-1]))
        others = [len(each) for name, each in self._made.items() if name != rule and each.end[-1] == ends[-1]]
        counts[-1] += sum(others)
        if counts.max() > self._limit:
            raise runaway(rule, self._limit, int(ends[counts.argmax()]))

    def _untold(self, block: Block, now: int) -> Block:
        """Answers without those of the open instant that were given already."""
        told = self._told.get(block.query, ())
        again = np.flatnonzero(block.end == self.now) if told else ()
        ids = [(int(block.low[at]), int(block.high[at])) for at in again]
        known = [at for at, each in zip(again, ids, strict=True) if each in told]
        if known:
            block = block.take(np.delete(np.arange(len(block)), known))
        last = np.flatnonzero(block.end == now)
        new = self._new.setdefault(block.query, set())
        new.update(zip(block.low[last].tolist(), block.high[last].tolist(), strict=True))
        return block

    def _go_on(self, now: int) -> None:
        """The instant that is open is this one."""
        if now != self.now:
            self._told = {}
        for query, new in self._new.items():
            self._told.setdefault(query, set()).update(new)
        self._new, self.now = {}, now

    def _refuse_disorder(self, columns: OccurrenceColumns) -> None:
        before = np.concatenate(([columns.end[0] if self.now is None else self.now], columns.end[:-1]))
        wrong = np.flatnonzero(columns.end < before)
        if len(wrong):
            end, last = int(columns.end[wrong[0]]), int(before[wrong[0]])
            raise Failure(f"a triple that ends at {format_time(end)} comes after {format_time(last)}")

    def close(self) -> list[Block]:
        """The answers of the instant that is open."""
        waiting = OccurrenceColumns.joined(self._open) if self._open else OccurrenceColumns.of(())
        self._open, self._ahead, self._over = [], 0, self.now
        return self._step(waiting, grows=False)

    def read(self, occurrences: Iterable[Occurrence]) -> list[Block]:
        """The same of occurrences that were read already."""
        code = self.dictionary.code
        columns = OccurrenceColumns.of([(code(s), code(p), code(o), a, b) for s, p, o, a, b in occurrences])
        return self._put(columns, int(columns.end[-1])) if len(columns) else []

    def _step(self, columns: OccurrenceColumns, grows: bool) -> list[Block]:
        """The answers of the queries that only grow, or of the others."""
        if not len(columns):
            return []
        chunk = Chunk(columns)
        found = [query.step(chunk) for query in self.queries if query.grows is grows]
        return [each for each in found if each is not None]

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        for each in (*chain(*self._rules), *self.queries):
            each.forget(now)

    # --- the open instant ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many occurrences wait for the end of their instant."""
        return sum(map(len, self._open))

    def opened(self) -> list[Occurrence]:
        """The occurrences of the open instant; of windows, some triple that ends then is enough."""
        if not self.waiting:
            open_now = self.now if self.now != self._over else None
            found = (each.window.open_at(open_now) for each in self._sliding)
            return next((each for each in found if each), [])
        columns, texts = OccurrenceColumns.joined(self._open), self.dictionary.texts
        rows = zip(*(each.tolist() for each in columns.all()), strict=True)
        return list(dict.fromkeys((texts[s], texts[p], texts[o], start, end) for s, p, o, start, end in rows))

    def reopen(self, now: int | None, occurrences: Sequence[Occurrence]) -> None:
        """Goes on with an instant that was open."""
        self.now = now
        self.read(occurrences)


def _once(columns: OccurrenceColumns) -> OccurrenceColumns:
    """What is the same is there once."""
    once = kernels.distinct(*columns.all())
    return columns if once.all() else columns.take(np.flatnonzero(once))


def _in_order(parts: Sequence[OccurrenceColumns]) -> OccurrenceColumns:
    """All of them, in the order of their end."""
    joined = OccurrenceColumns.joined(parts)
    return joined.take(np.argsort(joined.end, kind="stable"))


def _as_codes(columns: OccurrenceColumns) -> Array:
    """Occurrences as rows of codes alone."""
    times = (each.view(np.int32).reshape(-1, 2) for each in (columns.start, columns.end))
    return np.column_stack((columns.s, columns.p, columns.o, *times))


def _fresh(columns: OccurrenceColumns, known: Numbered) -> OccurrenceColumns:
    """Those that were not known; now they are."""
    before = known.count
    return columns.take(np.flatnonzero(kernels.first_times(known.numbers(_as_codes(columns)), before)))


def _others(block: Block, told: set[tuple[int, int]]) -> Block:
    """The answers that were not given in an earlier round."""
    ids = list(zip(block.low.tolist(), block.high.tolist(), strict=True))
    new = [at for at, each in enumerate(ids) if each not in told]
    told.update(ids)
    return block if len(new) == len(ids) else block.take(np.array(new, np.int64))
