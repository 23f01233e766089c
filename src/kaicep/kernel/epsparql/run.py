"""The EP-SPARQL queries of a run as one operator: occurrences in, matches out, instant by instant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from kaicep.errors import Failure
from kaicep.kernel.codec import decode, encode
from kaicep.kernel.epsparql.rules import Query, Rules
from kaicep.kernel.epsparql.state import Batch, Occurrence
from kaicep.kernel.epsparql.terms import Facts, Reader, Statements
from kaicep.kernel.operator import Limits
from kaicep.plan.events import Match
from kaicep.plan.nodes import QueryPlan, Triples
from kaicep.plan.terms import Triple
from kaicep.plan.time import format_time

__all__ = ["EpOperator"]

_HELD = Limits().held
_ID = attrgetter("id")


class EpOperator:
    """All EP-SPARQL queries of a run: what one of them constructs, all of them read.

    `feed` takes occurrences (triple, start, end) in the order of their end. Those that end together
    belong together, so the last instant is answered when a later one begins, or when the watermark has
    passed it. `entails` reads a triple under the hierarchies of the knowledge base; `limit` is how many
    triples the rules may derive with one end, `held` how many solutions one operator may keep.
    """

    def __init__(
        self,
        plans: Sequence[QueryPlan],
        knowledge: Statements,
        entails: Callable[[Triple], frozenset[Triple]],
        limit: int = 10_000,
        held: int = _HELD,
    ) -> None:
        facts = Facts(knowledge)
        self._reader = Reader(entails)
        rules = [each for each in plans if isinstance(each.root, Triples)]
        self._rules = Rules(rules, facts, self._reader, held, limit)
        self._queries = [Query(each, facts, held) for each in plans if each not in rules]
        self._contexts = [each.context for each in (*self._rules.queries, *self._queries)]
        named = "\0".join(part for each in plans for part in (each.name, each.text))
        self._mark = blake2b(named.encode(), digest_size=16).hexdigest()
        self._open: dict[Occurrence, None] = {}
        self._now: int | None = None

    def feed(self, occurrences: Iterable[tuple[Triple, int, int]]) -> list[Match]:
        """The matches of the instants that these occurrences, the next ones in order, complete."""
        found: list[Match] = []
        for triple, start, end in occurrences:
            if self._now is None or end > self._now:
                found += self._close()
                self._now = end
            elif end < self._now:
                raise Failure(
                    f"a triple that ends at {format_time(end)} comes after {format_time(self._now)}"
                )
            for s, p, o in self._reader.read(triple):
                self._open[s, p, o, start, end] = None
        return found

    def advance(self, watermark: float) -> list[Match]:
        """The matches that are certain once nothing ends below the watermark any more."""
        found = self._close() if self._now is not None and self._now < watermark else []
        if math.isfinite(watermark):
            for each in self._contexts:
                each.sweep(int(watermark))
        return found

    def finish(self) -> list[Match]:
        """The matches of the last instant: the input has ended."""
        return self.advance(math.inf)

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return min(watermark, self._now) if self._open and self._now is not None else watermark

    @property
    def size(self) -> int:
        """How many solutions, occurrences and groups are kept."""
        return len(self._open) + sum(each.size for each in self._contexts)

    def _close(self) -> list[Match]:
        """Answers the instant that is open."""
        if self._now is None or not self._open:
            return []
        everything, found = self._rules.close(self._now, self._open)
        batch = Batch(self._now, list(everything))
        for query in self._queries:
            found += query.matches(query.step(batch))
        for each in self._contexts:
            each.commit(self._now)
        self._open = {}
        return sorted(found, key=_ID) if len(found) > 1 else found

    # --- state --------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The state, the open instant included."""
        kept = [[keeper.dump() for keeper in each.keepers] for each in self._contexts]
        return encode("epsparql", [self._mark, self._now, list(self._open), kept])

    def restore(self, state: bytes) -> None:
        """Goes on from a state of the same queries."""
        mark, now, opened, kept = decode("epsparql", state)
        if mark != self._mark:
            raise Failure("the saved state is that of other EP-SPARQL queries")
        self._now = now
        self._open = {_occurrence(each): None for each in opened}
        for context, states in zip(self._contexts, kept, strict=True):
            for keeper, each in zip(context.keepers, states, strict=True):
                keeper.load(each)


def _occurrence(row: Any) -> Occurrence:
    s, p, o, start, end = row
    return s, p, o, start, end
