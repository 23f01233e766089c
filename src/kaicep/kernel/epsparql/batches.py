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
from kaicep.kernel.epsparql.lowered import ColumnQuery
from kaicep.kernel.epsparql.reading import Reader
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
        self, queries: Sequence[ColumnQuery], reader: Reader, facts: Facts, dictionary: Dictionary
    ) -> None:
        self.queries = queries
        self.dictionary = dictionary
        patterns = [pattern for query in queries for pattern in query.patterns]
        self._expansion = Expansion(reader, facts, patterns, dictionary)
        self._open: list[Columns] = []
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
        self.now = int(columns.end[-1])
        self._open.append(self._expansion.of(columns))
        waiting = Columns.joined(self._open)
        done = int(np.searchsorted(waiting.end, self.now))
        self._open = [waiting.take(slice(done, None))]
        return self._step(waiting.take(slice(0, done)))

    def _refuse_disorder(self, columns: Columns) -> None:
        before = np.concatenate(([columns.end[0] if self.now is None else self.now], columns.end[:-1]))
        wrong = np.flatnonzero(columns.end < before)
        if len(wrong):
            end, last = int(columns.end[wrong[0]]), int(before[wrong[0]])
            raise Failure(f"a triple that ends at {format_time(end)} comes after {format_time(last)}")

    def close(self) -> list[Block]:
        """The answers of the instant that is open."""
        waiting = Columns.joined(self._open) if self._open else Columns.of(())
        self._open = []
        return self._step(waiting)

    def read(self, occurrences: Iterable[Occurrence]) -> list[Block]:
        """The answers of whole instants, of occurrences that were read already."""
        code = self.dictionary.code
        return self._step(Columns.of([(code(s), code(p), code(o), a, b) for s, p, o, a, b in occurrences]))

    def _step(self, columns: Columns) -> list[Block]:
        if not len(columns):
            return []
        once = kernels.distinct(*columns.all())
        if not once.all():
            columns = columns.take(np.flatnonzero(once))
        chunk = Chunk(columns)
        found = [query.step(chunk) for query in self.queries]
        return [each for each in found if each is not None]

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        for each in self.queries:
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
        code = self.dictionary.code
        rows = [(code(s), code(p), code(o), start, end) for s, p, o, start, end in occurrences]
        self.now, self._open = now, [Columns.of(rows)] if rows else []
