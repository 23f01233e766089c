"""The EP-SPARQL queries of a run as one operator: occurrences in, matches out, instant by instant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kaicep.errors import Failure
from kaicep.kernel.epsparql.fitting import fits_columns, slide
from kaicep.kernel.epsparql.reading import Fact, KnownFacts, Reasoning, StreamReader
from kaicep.kernel.epsparql.rules import Rules, StandingQuery, pushed
from kaicep.kernel.epsparql.state import InstantBatch, Occurrence, OperatorContext, Sent
from kaicep.kernel.epsparql.windows import Evaluating
from kaicep.kernel.operator import Limits
from kaicep.kernel.state import decode, encode
from kaicep.plan.algebra import only_grows
from kaicep.plan.events import Match
from kaicep.plan.nodes import EpPlan, Triples
from kaicep.plan.sparql import MOST_DERIVED
from kaicep.plan.terms import Triple
from kaicep.plan.time import format_time

if TYPE_CHECKING:
    from kaicep.kernel.epsparql.batches import Batches
    from kaicep.kernel.epsparql.dictionary import Dictionary, TripleColumns
    from kaicep.kernel.epsparql.lowered import ColumnQuery, ColumnRule

__all__ = ["EpOperator", "Sent"]

_HELD = Limits().held
_ID = attrgetter("id")
_FEW = 20_000
_BATCH = 256
_TRICKLE = 2_000
_SLICE = 1 << 16
_NEVER = -(2**63)


class EpOperator:
    """All EP-SPARQL queries of a run: what one of them constructs, all of them read.

    `feed` takes occurrences (triple, start, end) in the order of their end. Those that end together
    belong together, so the last instant is answered when a later one begins, or when the watermark has
    passed it. `limit` is how many triples the rules may derive with one end, `held` how many solutions
    one operator may keep. With `compiled`, queries that can be run over columns are, from the start or
    (None) while there is enough input at a time for that to pay; the answers are the same.
    """

    def __init__(
        self,
        plans: Sequence[EpPlan],
        knowledge: Reasoning,
        limit: int | None = None,
        held: int = _HELD,
        compiled: bool | None = None,
    ) -> None:
        self._plans = [each for each in plans if not isinstance(each.root, Triples)]
        self._facts, self._held = KnownFacts(knowledge), held
        self._reader = StreamReader(knowledge, self._facts)
        self._constructs = [each for each in plans if isinstance(each.root, Triples)]
        self._limit = limit or max((each.most_derived for each in plans), default=MOST_DERIVED)
        named = "\0".join(part for each in plans for part in (each.name, each.text))
        self._mark = blake2b(named.encode(), digest_size=16).hexdigest()
        self._open: dict[Occurrence, None] = {}
        self._ahead = 0  # so many of those were taken already, where rules only grow
        self._everything: dict[Occurrence, None] = {}
        self._now: int | None = None
        self._done = _NEVER  # the last instant that was answered
        self._auto = compiled is None and any(fits_columns(each.root) for each in plans)
        self._few: float = _FEW if self._auto else math.inf
        self._trickle = 0
        self._columns: Batches | None = None
        self._read: list[Occurrence] = []
        self._queries: list[StandingQuery | ColumnQuery] = []
        self._interpreted: list[StandingQuery] = []
        self._contexts: list[OperatorContext] = []
        self._build(compiled is True)
        if compiled is None and any(slide(each.root) for each in plans):
            # A window that slides costs the same however large it is, so it slides from the start.
            self._build(True)
            if self._whole is None:
                self._build(False)
            else:
                self._auto, self._few = False, math.inf

    def _build(self, compiled: bool) -> None:
        """Makes the operators of the queries anew, without state."""
        made: list[StandingQuery | ColumnQuery | None] = [None] * len(self._plans)
        self._columns, over = None, list[Any]()
        if compiled:
            from kaicep.kernel.epsparql.batches import Batches
            from kaicep.kernel.epsparql.dictionary import Dictionary
            from kaicep.kernel.epsparql.lowered import SlidingQuery, lowered, rules_in_order

            dictionary = Dictionary()
            roots = [pushed(each.root) for each in self._plans]
            found = [
                lowered(each, root, self._facts, self._held, dictionary, self._reader)
                for each, root in zip(self._plans, roots, strict=True)
            ]
            columnar = [each for each in found if each is not None]
            if len(columnar) == len(found):
                over = self._rules_over_columns(dictionary)
            if len(columnar) + len(over) < len(self._plans) + len(self._constructs):
                # Windows go by the triples as they came, which are seen one by one then.
                found = [None if isinstance(each, SlidingQuery) else each for each in found]
                columnar = [each for each in found if each is not None]
            made = [*found]
            if columnar or over:
                ordered = rules_in_order(over, self._reader)
                how = self._reader, self._facts, dictionary, self._limit
                self._columns = Batches(columnar, ordered, *how)
        rules = [] if over else self._constructs
        self._rules = Rules(rules, self._facts, self._reader, self._held, self._limit)
        pairs = zip(made, self._plans, strict=True)
        self._queries = [each or StandingQuery(plan, self._facts, self._held) for each, plan in pairs]
        self._interpreted = [each for each in self._queries if isinstance(each, StandingQuery)]
        self._contexts = [each.context for each in (*over, *self._rules.queries, *self._queries)]
        self._windows = [each for context in self._contexts for each in context.windows]
        self.streams = frozenset(name for each in self._windows for name in each.streams)

    def _rules_over_columns(self, dictionary: Dictionary) -> list[ColumnRule]:
        """The rules over columns, where all of them only grow."""
        from kaicep.kernel.epsparql.lowered import ColumnRule, lowered

        plans = [each for each in self._constructs if only_grows(each.root.input)]
        how = self._facts, self._held, dictionary, self._reader
        found = [lowered(each, pushed(each.root), *how) for each in plans]
        rules = [each for each in found if isinstance(each, ColumnRule)]
        return rules if len(rules) == len(self._constructs) else []

    @property
    def _whole(self) -> Batches | None:
        """The columns, where all queries are over columns and nothing is derived."""
        return self._columns if not self._rules.queries and not self._interpreted else None

    # --- input -----------------------------------------------------------------------------------------

    def feed(self, occurrences: Iterable[Sent]) -> Sequence[Match]:
        """The matches of the instants that these occurrences, the next ones in order, complete.

        Where windows are on `streams`, an occurrence names its own, after its end.
        """
        rows = iter(occurrences)
        found = self._fed(rows)
        if self._few <= 0:
            self._switch(compiled=True)
            found += self._fed(rows)
        whole = self._whole
        if whole is None:
            return self._together(found)
        from kaicep.kernel.epsparql.rules import LazyMatches

        blocks, fed = [], 0
        while some := list(islice(rows, _SLICE)):
            blocks += whole.feed(some)
            fed += len(some)
        self._after(whole, fed)
        return LazyMatches(blocks, found)

    def feed_columns(self, triples: TripleColumns) -> Sequence[Match]:
        """The same for triples that are columns; where every query is over columns, none is made a triple."""
        if len(triples.end) >= self._few:
            self._switch(compiled=True)
        whole = self._whole
        if whole is None:
            return self.feed(_rows(triples))
        from kaicep.kernel.epsparql.rules import LazyMatches

        blocks = whole.feed_columns(triples)
        self._after(whole, len(triples.end))
        return LazyMatches(blocks)

    def _after(self, whole: Batches, fed: int) -> None:
        """Makes room; and where little comes at a time, that is done sooner one by one."""
        self._make_room(whole)
        self._trickle = self._trickle + 1 if fed < _BATCH else 0
        if self._auto and self._trickle > _TRICKLE:
            self._switch(compiled=False)

    def _fed(self, occurrences: Iterator[Sent]) -> list[Match]:
        """Takes occurrences one by one, up to where columns take over."""
        found: list[Match] = []
        if self._whole is not None:
            return found
        for fed, row in enumerate(occurrences):
            triple, start, end = row[:3]
            if self._now is None or end > self._now:
                found += self._close()
                found += self._pass(end)
                self._now = end
            elif end < self._now:
                raise Failure(
                    f"a triple that ends at {format_time(end)} comes after {format_time(self._now)}"
                )
            facts = self._reader.read(triple)
            for s, p, o in facts:
                self._open[s, p, o, start, end] = None
            if self.streams and len(row) == 4 and row[3] in self.streams:
                self._take(row[3], end, facts)
            if fed >= _BATCH:
                self._few -= 1
                if self._few <= 0:
                    break
        return found + self._go_ahead()

    def _go_ahead(self) -> list[Match]:
        """The answers at the open instant that nothing can change any more: those of what only grows."""
        if self._now is None or not self._rules.grow or self._ahead == len(self._open):
            return []
        new = islice(self._open, self._ahead, None)
        self._ahead = len(self._open)
        added, found = self._rules.extend(self._now, new, self._everything)
        self._everything.update(added)
        if self._columns is not None:
            self._read += added
        batch = InstantBatch(self._now, list(added))
        for query in self._interpreted:
            if query.grows:
                found += query.matches(query.fresh(batch))
        return sorted(found, key=_ID) if len(found) > 1 else found

    def _take(self, stream: str, end: int, facts: Iterable[Fact]) -> None:
        some = tuple(facts)
        for each in self._windows:
            if isinstance(each, Evaluating) and stream in each.streams:
                each.take(stream, end, some)

    def _pass(self, limit: float) -> list[Match]:
        """Answers the instants before another at which windows are evaluated, although nothing ends then."""
        found: list[Match] = []
        while True:
            coming = [t for each in self._windows if (t := each.next_instant(self._done)) is not None]
            if not coming or min(coming) >= limit:
                return found
            found += self._at(min(coming), {})

    def advance(self, watermark: float) -> Sequence[Match]:
        """The matches that are certain once nothing ends below the watermark any more."""
        whole = self._whole
        if whole is not None:
            from kaicep.kernel.epsparql.rules import LazyMatches

            found: Sequence[Match] = []
            over = whole.now is not None and whole.now < watermark
            blocks = [*(whole.close() if over else ()), *whole.passed(watermark)]
            found = LazyMatches(blocks) if blocks else found
        else:
            over = self._now is not None and self._now < watermark
            closed = self._close() if over else []
            found = self._together(closed + self._pass(watermark), over)
        if math.isfinite(watermark):
            for each in self._contexts:
                each.sweep(int(watermark))
            if self._columns is not None:
                self._columns.forget(int(watermark))
        return found

    def finish(self) -> Sequence[Match]:
        """The matches of the last instant: the input has ended."""
        return self.advance(math.inf)

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        whole = self._whole
        now, waits = (whole.now, whole.waiting) if whole is not None else (self._now, len(self._open))
        done = self._done if whole is None else whole.done
        coming = [t for each in self._windows if (t := each.next_instant(done)) is not None]
        return min(watermark, *coming, *([now] if waits and now is not None else ()), math.inf)

    @property
    def size(self) -> int:
        """How many solutions, occurrences and groups are kept."""
        waits = self._whole.waiting if self._whole is not None else len(self._open)
        return waits + sum(each.size for each in self._contexts)

    def _close(self) -> list[Match]:
        """Answers the instant that is open; what is for columns is put aside."""
        if self._now is None or not self._open:
            return []
        found = self._go_ahead()
        opened, self._open, self._ahead = self._open, {}, 0
        return sorted((*found, *self._at(self._now, opened)), key=_ID)

    def _at(self, end: int, opened: dict[Occurrence, None]) -> list[Match]:
        """The matches of an instant, at which these occurrences end."""
        self._done, found = end, list[Match]()
        everything, self._everything = self._everything, {}
        if not self._rules.grow:
            everything, found = self._rules.settle(end, opened)
            if self._columns is not None:
                self._read += everything
        waiting = [each for each in self._interpreted if not (self._rules.grow and each.grows)]
        if waiting:
            batch = InstantBatch(end, list(everything))
            for query in waiting:
                found += query.matches(query.step(batch))
        self._rules.commit(end)
        for each in self._queries:
            each.commit(end)
        return found

    def _together(self, found: list[Match], over: bool = False) -> Sequence[Match]:
        """Matches, with those of the columns; the last instant may be `over`."""
        if self._columns is None:
            return found
        from kaicep.kernel.epsparql.rules import LazyMatches

        blocks = self._columns.read(self._read)
        self._read = []
        if over or not self._rules.grow:
            blocks += self._columns.close()
        self._make_room(self._columns)
        return LazyMatches(blocks, found) if blocks else found

    # --- state -----------------------------------------------------------------------------------------

    def _switch(self, compiled: bool) -> None:
        """Goes on over columns, or without them, with the state so far."""
        state = self.snapshot()
        self._build(compiled)
        self.restore(state)
        self._few, self._trickle = math.inf if compiled else _FEW, 0

    def _make_room(self, columns: Batches) -> None:
        """Forgets terms that no solution kept has, once there are many: all starts anew from the state."""
        if len(columns.dictionary) > columns.most_terms:
            self._switch(compiled=True)
            assert self._columns is not None
            self._columns.most_terms = max(columns.most_terms, 4 * len(self._columns.dictionary))

    def snapshot(self) -> bytes:
        """The state, the open instant included."""
        whole = self._whole
        now, opened = (self._now, list(self._open)) if whole is None else (whole.now, whole.opened())
        before = math.inf if now is None or not opened else now  # what is open is taken again
        kept = [[keeper.dump(before) for keeper in each.keepers] for each in self._contexts]
        done = self._done if whole is None else whole.done
        return encode("epsparql", [self._mark, now, done, opened, kept])

    def restore(self, state: bytes) -> None:
        """Goes on from a state of the same queries."""
        mark, now, self._done, opened, kept = decode("epsparql", state)
        if mark != self._mark:
            raise Failure("the saved state is that of other EP-SPARQL queries")
        rows = [_occurrence(each) for each in opened]
        for context, states in zip(self._contexts, kept, strict=True):
            for keeper, each in zip(context.keepers, states, strict=True):
                keeper.load(each)
        if self._whole is not None:
            self._whole.reopen(now, rows)
            self._whole.done = self._done
        self._now, self._open, self._ahead = now, dict.fromkeys(rows), 0
        self._everything, self._read = {}, []
        if self._whole is None:
            self._go_ahead()
            if self._columns is not None:
                self._columns.read(self._read)
                self._read = []


def _occurrence(row: Any) -> Occurrence:
    s, p, o, start, end = row
    return s, p, o, start, end


def _rows(triples: TripleColumns) -> Iterator[tuple[Triple, int, int]]:
    from kaicep.kernel.epsparql.reading import term_of

    columns = (triples.s, triples.p, triples.o, triples.start, triples.end)
    terms = triples.terms
    for s, p, o, start, end in zip(*(each.tolist() for each in columns), strict=True):
        yield (term_of(terms[s]), term_of(terms[p]), term_of(terms[o])), start, end
