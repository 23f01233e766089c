"""What the operators of a query share: the knowledge, a cap, and all that keeps state between steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from kaicep.errors import Failure
from kaicep.kernel.epsparql.reading import KnownFacts
from kaicep.plan.terms import Triple

if TYPE_CHECKING:
    from kaicep.kernel.epsparql.dictionary import OccurrenceColumns
    from kaicep.kernel.epsparql.expansion import Expansion

Occurrence = tuple[str, str, str, int, int]
"""A triple with its interval."""
Sent = tuple[Triple, int, int] | tuple[Triple, int, int, str]
"""A triple, its start and its end, and the name of its stream where that matters."""


class Keeper:
    """Whatever keeps state from one step to the next.

    For people there is what keeps it (`label`), of which variables, and how long after its end (`bound`);
    None is for ever.
    """

    label = ""
    about: tuple[str, ...] = ()
    bound: int | None = None
    replays = False
    """Whether instants are tried several times, so that the last try can be taken back."""

    @property
    def size(self) -> int:
        """How many things it keeps."""
        return 0

    def exceeds(self, cap: int) -> bool:
        """Whether it keeps more than that."""
        return self.size > cap

    def undo(self) -> None:
        """Forgets what came since the last `commit`: the instant is tried again."""

    def commit(self) -> None:
        """What came so far stays."""

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""

    def dump(self, before: float = math.inf) -> Any:
        """Its state in the types of JSON, but for solutions and occurrences that end at `before` or later."""

    def load(self, state: Any) -> None:
        """Takes over a state that was dumped."""


class Evaluated(Protocol):
    """Windows that are evaluated together (`windows.Windows`)."""

    streams: frozenset[str]

    def take(self, stream: str, triples: OccurrenceColumns, expansion: Expansion) -> None:
        """Triples of a stream, in the order of their end."""

    def next_instant(self, after: int) -> int | None:
        """When they are evaluated next, as far as is known."""
        ...


_BOUND = 'FILTER (getDURATION() < "PT1H"^^xsd:duration)'
_EVER = "it asks about all of the past, whatever the duration of an answer: "
_WAYS = {
    "an aggregate": "a group never ends: group by fewer keys, or inside of a WINDOW",
    "a window": "narrow its RANGE",
    "OPTIONAL": f"bound the optional group by a FILTER inside of it, such as {_BOUND}",
    "OPTIONALSEQ": f"bound the pair by a FILTER inside of the right group, such as {_BOUND}",
    "MINUS": f"{_EVER}narrow its pattern, or use NOT, which asks about the interval of an answer",
    "EXISTS": f"{_EVER}narrow its pattern, or use NOT, which asks about the interval of an answer",
}
"""What to do where no bound on the duration of the answers helps."""


class OperatorContext:
    """What the operators of a query share; `windows` are those that answer at instants of their own."""

    def __init__(self, facts: KnownFacts, query: str, cap: int) -> None:
        self.facts, self.query, self.cap = facts, query, cap
        self.keepers: list[Keeper] = []
        self.windows: list[Evaluated] = []

    def keep(self, keeper: Keeper) -> None:
        """Takes note of something that keeps state."""
        self.keepers.append(keeper)

    @property
    def size(self) -> int:
        """How many things are kept."""
        return sum(each.size for each in self.keepers)

    def check(self) -> None:
        """Refuses to keep more than the cap in one place."""
        for each in self.keepers:
            if each.exceeds(self.cap):
                raise self.refuse_more(each)

    def replay(self) -> None:
        """From now on instants are tried several times."""
        for each in self.keepers:
            each.replays = True

    def undo(self) -> None:
        """Everything is as it was at the last `commit`."""
        for each in self.keepers:
            each.undo()

    def commit(self) -> None:
        """What came so far stays."""
        for each in self.keepers:
            each.commit()

    def forget(self, now: int) -> None:
        """Drops what is of no use from `now` on."""
        for each in self.keepers:
            each.forget(now)

    def refuse_more(self, keeper: Keeper) -> Failure:
        """The error of an operator that keeps too much."""
        way = f"add a bound on the duration, such as {_BOUND}"
        way = _WAYS.get(
            keeper.label, "narrow the duration in its FILTER" if keeper.bound is not None else way
        )
        if "CONSUMPTION" in keeper.label:
            way = "leave the policy out: under it any earlier solution may still be the partner"
        return Failure(f"{keeper.label} in {self.query} keeps more than {self.cap:,} solutions: {way}")
