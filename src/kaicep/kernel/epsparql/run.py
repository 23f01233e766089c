"""The EP-SPARQL queries of a run as one operator: occurrences in, matches out, instant by instant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

from kaicep.errors import Failure
from kaicep.kernel.epsparql.answers import Block, LazyMatches
from kaicep.kernel.epsparql.batches import Batches
from kaicep.kernel.epsparql.dictionary import Dictionary, TripleColumns
from kaicep.kernel.epsparql.groups import GroupedColumns
from kaicep.kernel.epsparql.lowered import ColumnRule, lowered, rules_in_order
from kaicep.kernel.epsparql.reading import KnownFacts, Reasoning, StreamReader
from kaicep.kernel.epsparql.state import Keeper, Sent
from kaicep.kernel.epsparql.windows import Windows
from kaicep.kernel.operator import Limits
from kaicep.kernel.state import decode, encode
from kaicep.plan.events import Match
from kaicep.plan.nodes import EpPlan
from kaicep.plan.sparql import MOST_DERIVED
from kaicep.plan.time import format_duration

_SLICE = 1 << 16
_OTHERS = "the saved state is that of an earlier kaicep, which kept other things"


class EpOperator:
    """All EP-SPARQL queries of a run: what one of them constructs, all of them read.

    `feed` takes occurrences (triple, start, end) in the order of their end. Those that end together
    belong together, so the last instant is answered when a later one begins, or when the watermark has
    passed it; what nothing can change any more is answered at once. `limit` is how many triples the rules may
    derive with one end, `held` how many solutions one operator may keep.
    """

    def __init__(
        self,
        plans: Sequence[EpPlan],
        knowledge: Reasoning,
        limit: int | None = None,
        held: int = Limits().held,
    ) -> None:
        self._plans, self._held = plans, held
        self._facts = KnownFacts(knowledge, knowledge.graphs())
        self._reader = StreamReader(knowledge, self._facts)
        self._limit = limit or max((each.most_derived for each in plans), default=MOST_DERIVED)
        named = "\0".join(part for each in plans for part in (each.name, each.text))
        self._mark = blake2b(named.encode(), digest_size=16).hexdigest()
        self._build()
        self.streams = self._batches.streams

    def _build(self) -> None:
        """Makes the operators of the queries anew, without state."""
        dictionary = Dictionary()
        how = self._facts, self._held, dictionary, self._reader
        made = [lowered(each, *how) for each in self._plans]
        rules = [each for each in made if isinstance(each, ColumnRule)]
        queries = [each for each in made if not isinstance(each, ColumnRule)]
        self._contexts = [each.context for each in made]
        ordered = rules_in_order(rules, self._reader)
        self._batches = Batches(queries, ordered, self._reader, self._facts, dictionary, self._limit)

    def feed(self, occurrences: Iterable[Sent]) -> Sequence[Match]:
        """The matches of the instants that these occurrences, the next ones in order, complete.

        Where windows are on `streams`, an occurrence names its own, after its end.
        """
        rows, blocks = iter(occurrences), list[Block]()
        while some := list(islice(rows, _SLICE)):
            blocks += self._batches.feed(some)
            if len(some) < _SLICE:
                break
        self._make_room()
        return LazyMatches(blocks) if blocks else ()

    def feed_columns(self, triples: TripleColumns) -> Sequence[Match]:
        """The same for triples that are columns."""
        blocks = self._batches.feed_columns(triples)
        self._make_room()
        return LazyMatches(blocks)

    def advance(self, watermark: float) -> Sequence[Match]:
        """The matches that are certain once nothing ends below the watermark any more."""
        blocks = self._batches.close(watermark)
        if math.isfinite(watermark):
            for each in self._contexts:
                each.forget(int(watermark))
        return LazyMatches(blocks) if blocks else ()

    def finish(self) -> Sequence[Match]:
        """The matches of the last instant: the input has ended."""
        return self.advance(math.inf)

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return self._batches.promise(watermark)

    def kept(self) -> list[tuple[str, str]]:
        """What each operator keeps, and for how long after it ended."""
        return [_explained(keeper) for each in self._contexts for keeper in each.keepers]

    @property
    def size(self) -> int:
        """How many solutions, occurrences and groups are kept."""
        return self._batches.waiting + sum(each.size for each in self._contexts)

    # --- state -----------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Forgets terms that no solution kept has, once there are many: all starts anew from the state."""
        most = self._batches.most_terms
        if len(self._batches.dictionary) > most:
            state = self.snapshot()
            self._build()
            self.restore(state)
            self._batches.most_terms = max(most, 4 * len(self._batches.dictionary))

    def snapshot(self) -> bytes:
        """The state, the open instant included."""
        now, opened = self._batches.now, self._batches.opened()
        before = math.inf if now is None or not opened else now  # what is open is taken again
        kept = [[keeper.dump(before) for keeper in each.keepers] for each in self._contexts]
        return encode("epsparql", [self._mark, now, opened, kept])

    def restore(self, state: bytes) -> None:
        """Goes on from a state of the same queries."""
        mark, *rest = decode("epsparql", state)
        if mark != self._mark:
            raise Failure("the saved state is that of other EP-SPARQL queries")
        if len(rest) != 3:
            raise Failure(_OTHERS)
        now, opened, kept = rest
        for context, states in zip(self._contexts, kept, strict=True):
            if len(states) != len(context.keepers):
                raise Failure(_OTHERS)
            for keeper, each in zip(context.keepers, states, strict=True):
                keeper.load(each)
            context.commit()
        self._batches.reopen(now, opened)


def _explained(keeper: Keeper) -> tuple[str, str]:
    names = " ".join(f"?{each}" for each in keeper.about if not each.startswith("_:"))
    bound = keeper.bound
    if isinstance(keeper, GroupedColumns):
        long = "a row for each group" + (", for one instant" if bound == 0 else "")
    elif bound is None:
        long = "what is in it" if isinstance(keeper, Windows) else "for ever"
    elif bound % 1_000 == 999:
        long = f"for less than {format_duration(bound + 1)}"
    else:
        long = f"for {format_duration(bound)}" if bound else "for one instant"
    return f"{keeper.label} {names}".rstrip(), long
