"""The queries over columns as one: whole instants go through them, the last one waits until it is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.answers import Block
from kaicep.kernel.epsparql.columnar import Chunk
from kaicep.kernel.epsparql.dictionary import Columns, Dictionary, TripleColumns
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.lowered import ColumnQuery, ColumnRule
from kaicep.kernel.epsparql.reading import Reader
from kaicep.kernel.epsparql.rules import runaway
from kaicep.kernel.epsparql.state import Occurrence
from kaicep.kernel.epsparql.terms import Facts
from kaicep.plan.terms import Triple
from kaicep.plan.time import format_time

__all__ = ["Batches"]

_ROWS = 1 << 16
_MOST_TERMS = 1 << 20


class Batches:
    """Takes triples, or occurrences that were read already, in the order of their end."""

    def __init__(
        self,
        queries: Sequence[ColumnQuery],
        rules: Sequence[ColumnRule],
        reader: Reader,
        facts: Facts,
        dictionary: Dictionary,
        limit: int,
    ) -> None:
        self.queries, self._rules, self._limit = queries, rules, limit
        self._made: dict[str, Columns] = {}  # what each rule makes with the last end
        self.dictionary = dictionary
        patterns = [pattern for query in (*queries, *rules) for pattern in query.patterns]
        self._expansion = Expansion(reader, facts, patterns, dictionary)
        self._open: list[Columns] = []
        self._ahead = 0  # so many of those were taken by the queries that only grow
        self._told: dict[str, set[tuple[int, int]]] = {}
        self.now: int | None = None
        self.most_terms = _MOST_TERMS

    def feed(self, occurrences: Sequence[tuple[Triple, int, int]]) -> list[Block]:
        """The answers of the instants that these triples complete."""
        return self._taken(self.dictionary.rows(occurrences))

    def feed_columns(self, triples: TripleColumns) -> list[Block]:
        """The same for columns."""
        columns = self.dictionary.columns(triples)
        found: list[Block] = []
        for first in range(0, len(columns), _ROWS):
            found += self._taken(columns.take(slice(first, first + _ROWS)))
        return found

    def _taken(self, columns: Columns) -> list[Block]:
        if not len(columns):
            return []
        self._refuse_disorder(columns)
        return self._put(self._expansion.of(columns), int(columns.end[-1]))

    def _put(self, columns: Columns, now: int) -> list[Block]:
        """The answers of what comes, the last instant open: queries that only grow answer that as well."""
        self._open.append(columns)
        waiting = _once(Columns.joined(self._open))
        found: list[Block] = []
        for rule in self._rules:
            block = rule.step(Chunk(waiting.take(slice(self._ahead, None))))
            if block is not None:
                block, made = rule.fill(self._untold(block, now))
                found.append(block)
                self._refuse_runaway(rule.name, made)
                derived = Columns.joined((waiting, self._expansion.of(made)))
                waiting = _once(derived.take(np.argsort(derived.end, kind="stable")))
        done = int(np.searchsorted(waiting.end, now))
        new, over = waiting.take(slice(self._ahead, None)), waiting.take(slice(0, done))
        self._open = [waiting.take(slice(done, None))]
        self._ahead = len(self._open[0])
        found += [self._untold(each, now) for each in self._step(new, grows=True)]
        self.now = now
        return [*found, *self._step(over, grows=False)]

    def _refuse_runaway(self, rule: str, made: Columns) -> None:
        """Counts what the rules make with one end; an instant may come in parts."""
        if not len(made):
            return
        kept = self._made.get(rule)
        if kept is not None and int(kept.end[-1]) == int(made.end[0]):
            made = Columns.joined((kept, made))
        made = _once(made)
        ends, counts = np.unique(made.end, return_counts=True)
        self._made[rule] = made.take(np.flatnonzero(made.end == ends[-1]))
        others = [len(each) for name, each in self._made.items() if name != rule and each.end[-1] == ends[-1]]
        counts[-1] += sum(others)
        if counts.max() > self._limit:
            raise runaway(rule, self._limit, int(ends[counts.argmax()]))

    def _untold(self, block: Block, now: int) -> Block:
        """Answers without those of the open instant that were given already."""
        told = self._told.setdefault(block.query, set()) if self.now is not None else set()
        again = np.flatnonzero(block.end == self.now) if told else ()
        ids = [(int(block.low[at]), int(block.high[at])) for at in again]
        known = [at for at, each in zip(again, ids, strict=True) if each in told]
        if known:
            block = block.take(np.delete(np.arange(len(block)), known))
        if now != self.now:
            told = set()
        last = np.flatnonzero(block.end == now)
        told.update(zip(block.low[last].tolist(), block.high[last].tolist(), strict=True))
        self._told[block.query] = told
        return block

    def _refuse_disorder(self, columns: Columns) -> None:
        before = np.concatenate(([columns.end[0] if self.now is None else self.now], columns.end[:-1]))
        wrong = np.flatnonzero(columns.end < before)
        if len(wrong):
            end, last = int(columns.end[wrong[0]]), int(before[wrong[0]])
            raise Failure(f"a triple that ends at {format_time(end)} comes after {format_time(last)}")

    def close(self) -> list[Block]:
        """The answers of the instant that is open."""
        waiting = Columns.joined(self._open) if self._open else Columns.of(())
        self._open, self._ahead = [], 0
        return self._step(waiting, grows=False)

    def read(self, occurrences: Iterable[Occurrence]) -> list[Block]:
        """The same of occurrences that were read already."""
        code = self.dictionary.code
        columns = Columns.of([(code(s), code(p), code(o), a, b) for s, p, o, a, b in occurrences])
        return self._put(columns, int(columns.end[-1])) if len(columns) else []

    def _step(self, columns: Columns, grows: bool) -> list[Block]:
        """The answers of the queries that only grow, or of the others."""
        if not len(columns):
            return []
        chunk = Chunk(columns)
        found = [query.step(chunk) for query in self.queries if query.grows is grows]
        return [each for each in found if each is not None]

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        for each in (*self._rules, *self.queries):
            each.forget(now)

    # --- the open instant ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many occurrences wait for the end of their instant."""
        return sum(map(len, self._open))

    def opened(self) -> list[Occurrence]:
        """The occurrences of the open instant."""
        if not self._open:
            return []
        columns, texts = Columns.joined(self._open), self.dictionary.texts
        rows = zip(*(each.tolist() for each in columns.all()), strict=True)
        return list(dict.fromkeys((texts[s], texts[p], texts[o], start, end) for s, p, o, start, end in rows))

    def reopen(self, now: int | None, occurrences: Sequence[Occurrence]) -> None:
        """Goes on with an instant that was open."""
        self.now = now
        self.read(occurrences)


def _once(columns: Columns) -> Columns:
    """What is the same is there once."""
    once = kernels.distinct(*columns.all())
    return columns if once.all() else columns.take(np.flatnonzero(once))
