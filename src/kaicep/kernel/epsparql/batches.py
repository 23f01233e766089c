"""The queries over columns as one: whole instants go through them, the last one waits until it is over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from kaicep.errors import Failure
from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.answers import Block
from kaicep.kernel.epsparql.columnar import Chunk
from kaicep.kernel.epsparql.dictionary import (
    NO_TRIPLES,
    Array,
    Dictionary,
    OccurrenceColumns,
    TripleColumns,
)
from kaicep.kernel.epsparql.expansion import Expansion
from kaicep.kernel.epsparql.groups import Numbered
from kaicep.kernel.epsparql.lowered import ColumnQuery, ColumnRule
from kaicep.kernel.epsparql.reading import KnownFacts, StreamReader
from kaicep.kernel.epsparql.state import Evaluated, Occurrence, Sent
from kaicep.plan.time import format_time

_ROWS = 1 << 16
_MOST_TERMS = 1 << 20
_Derived = dict[str, set[tuple[int, int, int, int, int]]]
"""What each rule derives at an instant."""


class Batches:
    """Takes triples in the order of their end, through the rules and then through the queries.

    Where all rules only grow, they and the queries that only grow take the open instant as far as it has
    come. All else takes instants that are over. `rules` stand in groups, each after those that it reads.
    """

    def __init__(
        self,
        queries: Sequence[ColumnQuery],
        rules: Sequence[Sequence[ColumnRule]],
        reader: StreamReader,
        facts: KnownFacts,
        dictionary: Dictionary,
        limit: int,
    ) -> None:
        self._rules, self._limit = rules, limit
        self._grow = all(rule.grows for rule in chain(*rules))
        self._growing, self._others = ([e for e in queries if e.grows is grows] for grows in (True, False))
        self._made: dict[str, OccurrenceColumns] = {}  # what each rule makes with the last end
        self.dictionary = dictionary
        everyone = [*chain(*rules), *queries]
        patterns = [pattern for query in everyone for pattern in query.patterns]
        self._expansion = Expansion(reader, facts, patterns, dictionary)
        self._windows = [each for query in everyone for each in query.context.windows]
        self._open = NO_TRIPLES  # what ends at the last instant
        self._ahead = 0  # so many of those were taken already
        self._told: dict[str, set[tuple[int, int]]] = {}  # answers at the open instant, by query
        self._new: dict[str, set[tuple[int, int]]] = {}
        self.now: int | None = None
        self._done: float = -math.inf  # up to which instants are over
        self.most_terms = _MOST_TERMS

    def feed(self, occurrences: Sequence[Sent]) -> list[Block]:
        """The answers of the instants that these triples complete."""
        plain = [each[:3] for each in occurrences] if self._windows else occurrences
        columns = self.dictionary.rows(plain)  # type: ignore[arg-type]
        self._refuse_disorder(columns)
        if self._windows:
            streams: dict[str, list[int]] = {}
            for at, each in enumerate(occurrences):
                if len(each) == 4:
                    streams.setdefault(each[3], []).append(at)
            for stream, places in streams.items():
                some = columns if len(places) == len(columns) else columns.take(np.array(places, np.int64))
                for window in self._windows:
                    window.take(stream, some, self._expansion)
        return self._taken(columns)

    def feed_columns(self, triples: TripleColumns) -> list[Block]:
        """The same for columns, which are no stream's."""
        columns = self.dictionary.columns(triples)
        self._refuse_disorder(columns)
        found: list[Block] = []
        for first in range(0, len(columns), _ROWS):
            found += self._taken(columns.take(slice(first, first + _ROWS)))
        return found

    def _taken(self, columns: OccurrenceColumns) -> list[Block]:
        return self._put(self._expansion.of(columns), int(columns.end[-1])) if len(columns) else []

    def _put(self, columns: OccurrenceColumns, now: int) -> list[Block]:
        """The answers of what comes; the last instant is open."""
        begun = int(columns.end[0]) if len(columns) else now
        over, waiting, ahead = self._open, _once(columns), 0
        if begun == self.now:
            over, waiting, ahead = NO_TRIPLES, _once(OccurrenceColumns.joined((over, columns))), self._ahead
        found: list[Block] = []
        if self._grow and len(waiting) > ahead:
            found, waiting = self._derived(waiting, ahead, now)
            new = Chunk(waiting.take(slice(ahead, None)) if ahead else waiting)
            found += [self._untold(each, now) for each in self._step(self._growing, new)]
        if begun < now:
            done = int(np.searchsorted(waiting.end, now))
            over = OccurrenceColumns.joined((over, waiting.take(slice(0, done))))
            waiting = waiting.take(slice(done, None))
        self._open, self._ahead = waiting, len(waiting) if self._grow else 0
        self._go_on(now)
        return [*found, *self._over(over, now - 1)]

    def close(self, watermark: float) -> list[Block]:
        """The answers that are certain once nothing ends below the watermark any more."""
        over = NO_TRIPLES
        if self.now is not None and self.now < watermark:
            over, self._open, self._ahead = self._open, NO_TRIPLES, 0
        return self._over(over, math.ceil(watermark) - 1 if math.isfinite(watermark) else watermark)

    def _over(self, columns: OccurrenceColumns, until: float) -> list[Block]:
        """The answers of instants that are over, up to the last one of them."""
        due = any((t := self._next(each)) is not None and t <= until for each in self._windows)
        self._done = max(self._done, until)
        if not due and (not len(columns) or (self._grow and not self._others)):
            return []
        if self._grow:
            return self._step(self._others, Chunk(columns, until))
        found: list[Block] = []
        for rules in self._rules:
            blocks, columns = self._settled(rules, columns, until)
            found += blocks
        chunk = Chunk(columns, until)
        return [*found, *self._step(self._growing, chunk), *self._step(self._others, chunk)]

    def _step(self, queries: Sequence[ColumnQuery], chunk: Chunk) -> list[Block]:
        """The answers of some queries."""
        return [block for each in queries if (block := each.step(chunk)) is not None]

    # --- rules that only grow ------------------------------------------------------------------------

    def _derived(
        self, waiting: OccurrenceColumns, ahead: int, now: int
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules make that only grow, and all there is then; the first ones of it were taken before."""
        found: list[Block] = []
        for rules in self._rules:
            blocks, waiting = self._grown(rules, waiting, ahead, now)
            found += blocks
        return found, waiting

    def _grown(
        self,
        rules: Sequence[ColumnRule],
        waiting: OccurrenceColumns,
        ahead: int,
        now: int,
        until: float = -math.inf,
    ) -> tuple[list[Block], OccurrenceColumns]:
        if rules[0].recursive:
            return self._closed(rules, waiting, ahead, now)
        block = rules[0].step(Chunk(waiting.take(slice(ahead, None)), until))
        if block is None:
            return [], waiting
        block, made = rules[0].fill(self._untold(block, now))
        self._refuse_runaway(rules[0].name, made)
        return [block], _once(OccurrenceColumns.merged((waiting, self._expansion.of(made))))

    def _closed(
        self, rules: Sequence[ColumnRule], waiting: OccurrenceColumns, ahead: int, now: int
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules that read each other's triples make, round by round, each of what is new."""
        known, all_made, coming = Numbered(7), Numbered(7), waiting.take(slice(ahead, None))
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
            coming = _fresh(OccurrenceColumns.merged(derived) if derived else NO_TRIPLES, known)
            parts.append(coming)
        for rule in rules:
            rule.settle()
            if made[rule.name]:
                self._refuse_runaway(rule.name, OccurrenceColumns.merged(made[rule.name]))
        return found, OccurrenceColumns.merged(parts)

    # --- rules that may take back what they derive -----------------------------------------------------

    def _settled(
        self, rules: Sequence[ColumnRule], columns: OccurrenceColumns, until: float
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules make at instants that are over."""
        if not rules[0].recursive or all(each.grows for each in rules):
            last = int(columns.end[-1]) if len(columns) else kernels.FIRST
            self._told = {}
            return self._grown(rules, columns, 0, last, until)
        windows = [each for rule in rules for each in rule.context.windows]
        found, parts, begin = list[Block](), list[OccurrenceColumns](), 0
        while True:
            coming = [t for each in windows if (t := self._next(each)) is not None and t <= until]
            end = min([*coming, *([int(columns.end[begin])] if begin < len(columns) else [])], default=None)
            if end is None:
                return found, OccurrenceColumns.joined(parts) if parts else columns
            over = int(np.searchsorted(columns.end, end, side="right"))
            settle = self._turned if rules[0].turns else self._followed
            blocks, everything = settle(rules, columns.take(slice(begin, over)), end)
            found += blocks
            parts.append(everything)
            begin = over

    def _followed(
        self, rules: Sequence[ColumnRule], columns: OccurrenceColumns, end: int
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules make at an instant that read it later only: they see it when all are done."""
        chunk, blocks, made = Chunk(columns, end), list[Block](), [columns]
        for rule in rules:
            block = rule.step(chunk)
            if block is not None:
                block, triples = rule.fill(block)
                self._refuse_runaway(rule.name, triples)
                blocks.append(block)
                made.append(self._expansion.of(triples))
        everything = _once(OccurrenceColumns.joined(made))
        new = Chunk(everything.take(slice(len(columns), None)), end)
        for rule in rules if len(new.columns) else ():
            rule.step(new)
        return blocks, everything

    def _turned(
        self, rules: Sequence[ColumnRule], columns: OccurrenceColumns, end: int
    ) -> tuple[list[Block], OccurrenceColumns]:
        """What rules make at an instant: each round derives everything anew from what the one before derived.

        A rule for which nothing has changed derives the same. It is over when there is no other; rounds that
        come back to an earlier one turn in a circle.
        """
        derived: _Derived = {each.name: set() for each in rules}
        tried, found, turning = list[_Derived](), dict[str, Block](), rules
        while True:
            made = OccurrenceColumns.of([row for each in derived.values() for row in sorted(each)])
            everything = columns
            if len(made):
                everything = _once(OccurrenceColumns.joined((columns, self._expansion.of(made))))
            chunk, again = Chunk(everything, end), dict(derived)
            for rule in turning:
                rule.context.undo()
                block = rule.step(chunk)
                again[rule.name] = set()
                found.pop(rule.name, None)
                if block is not None:
                    found[rule.name], triples = rule.fill(block)
                    again[rule.name] = triples.listed()
            changed = {name for name in again if again[name] != derived[name]}
            turning = [each for each in rules if each.sources & changed]
            if not changed:
                break
            self._refuse_runaways({name: Counter({end: len(found)}) for name, found in again.items()})
            if again in tried or len(tried) > self._limit:
                raise Failure(
                    f"the CONSTRUCT rule {min(changed)} never settles: it takes back what it derives; "
                    f"rules that change each other's conditions at one instant have no answer"
                )
            tried.append(again)
            derived = again
        for rule in rules:
            rule.context.commit()
        return list(found.values()), everything

    # --- how much is derived -------------------------------------------------------------------------

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
        kept, last = self._made.get(rule), int(made.end[-1])
        if kept is not None and kept.end[-1] == made.end[0]:
            made = OccurrenceColumns.joined((kept, made))
        if len(made) + sum(map(len, self._made.values())) <= self._limit:  # as nearly always
            self._made[rule] = made.take(slice(made.end.searchsorted(last), None))
            return
        made = _once(made)
        ends, counts = np.unique(made.end, return_counts=True)
        self._made[rule] = made.take(np.flatnonzero(made.end == ends[-1]))
        others = [
            len(_once(each)) for name, each in self._made.items() if name != rule and each.end[-1] == ends[-1]
        ]
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
        low, high = block.low, block.high
        if len(block) and block.end[0] < now:
            last = block.end.searchsorted(now)
            low, high = low[last:], high[last:]
        self._new.setdefault(block.query, set()).update(zip(low.tolist(), high.tolist(), strict=True))
        return block

    def _go_on(self, now: int) -> None:
        """The instant that is open is this one."""
        if now != self.now:
            self._told = {}
        for query, new in self._new.items():
            self._told.setdefault(query, set()).update(new)
        self._new, self.now = {}, now

    def _refuse_disorder(self, columns: OccurrenceColumns) -> None:
        ends = columns.end
        if self.now is not None and len(ends) and ends[0] < self.now:
            raise _out_of_order(int(ends[0]), self.now)
        if len(ends) > 1 and (wrong := np.flatnonzero(ends[1:] < ends[:-1])).size:
            raise _out_of_order(int(ends[wrong[0] + 1]), int(ends[wrong[0]]))

    # --- windows, and the open instant ----------------------------------------------------------------

    @property
    def streams(self) -> frozenset[str]:
        """The streams that windows are on."""
        return frozenset(name for each in self._windows for name in each.streams)

    def promise(self, watermark: float) -> float:
        """The smallest end of any answer that is still to be found."""
        coming = [t for each in self._windows if (t := self._next(each)) is not None]
        return min(
            watermark, *coming, *([self.now] if self.waiting and self.now is not None else ()), math.inf
        )

    def _next(self, window: Evaluated) -> int | None:
        return window.next_instant(
            kernels.FIRST if self._done == -math.inf else int(min(self._done, kernels.LAST))
        )

    @property
    def waiting(self) -> int:
        """How many occurrences wait for the end of their instant."""
        return len(self._open)

    def opened(self) -> list[Occurrence]:
        """The occurrences of the open instant."""
        if not self.waiting:
            return []
        texts = self.dictionary.texts
        rows = zip(*(each.tolist() for each in self._open.all()), strict=True)
        return [(texts[s], texts[p], texts[o], start, end) for s, p, o, start, end in rows]

    def reopen(self, now: int | None, occurrences: Iterable[Occurrence]) -> None:
        """Goes on with an instant that was open."""
        self.now = now
        code = self.dictionary.code
        rows = [(code(s), code(p), code(o), start, end) for s, p, o, start, end in occurrences]
        if rows and now is not None:
            self._put(OccurrenceColumns.of(rows), now)


def _out_of_order(end: int, last: int) -> Failure:
    return Failure(f"a triple that ends at {format_time(end)} comes after {format_time(last)}")


def runaway(rule: str, limit: int, end: int) -> Failure:
    """The error of a rule that derives too much."""
    return Failure(
        f"the CONSTRUCT rule {rule} runs away: more than {limit:,} triples are derived "
        f"at {format_time(end)}; bound it with a FILTER, or let it read earlier triples only (SEQ); "
        "if it is meant to derive so many, allow more (--derived N, `derived` in kaicep.toml)"
    )


def _once(columns: OccurrenceColumns) -> OccurrenceColumns:
    """What is the same is there once."""
    if len(columns) < 2:
        return columns
    once = kernels.distinct(*columns.all())
    return columns if once.all() else columns.take(np.flatnonzero(once))


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
