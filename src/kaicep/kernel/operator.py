"""What every operator of the kernel can do.

The contract, for whoever writes another one:

- `feed` gets final events as a `Table`: in the order of the query (`kernel.batches`), none late, none twice.
  Batches say nothing: any cut of the same events gives the same answers.
- `advance(watermark)` promises that no later event has a `ts` below it. The operator then reports what only
  had to wait for that (a trailing absence whose deadline is below, a batch that ends at or below), and
  forgets what no later event can touch. `math.inf` is the end of the input.
- Both return what was found, as soon as it is certain, in no particular order. Each match is found once. A
  chunk of matches is good until the next one is asked for.
- `promise(watermark)` is the smallest `end` that a match found later can have, given the watermark.
- `snapshot` is the whole state as bytes (`kernel.state`); `restore`, on a new operator, goes on from it with
  the same answers. The codes of strings may differ between the two, and so may constants of conditions: the
  state keeps events and which of them belong together, never what a condition made of them.
- `renew` says that the knowledge has another version: events to come are judged by that one. What was
  judged keeps its verdict.
- `size` is what is kept: events and partial matches. Above its `Limits` the operator refuses to go on with a
  `Failure` that says what to write instead, or sheds what is oldest, and counts that in `shed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kaicep.errors import Failure
from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr
from kaicep.plan.nodes import Semantic
from kaicep.plan.terms import Term

if TYPE_CHECKING:
    from kaicep.kernel.columns import Matches, Table

Row = tuple[Term | None, ...]
"""The values of the selected variables of a PATH, in one of its solutions."""


class Semantics(Protocol):
    """What decides the PATHs; an operator asks no more of it than this."""

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing."""
        ...

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """The same of a condition about no event: what the knowledge says at some time."""
        ...


@runtime_checkable
class ManyAtATime(Semantics, Protocol):
    """What decides PATHs for many events at a time, and knows which events it can tell apart."""

    def solutions_of_each(
        self, condition: Semantic, variable: str, events: Sequence[Event]
    ) -> Sequence[frozenset[Row]]:
        """The solutions of a condition about one event, for each of these."""
        ...

    def hold_for(
        self, condition: Semantic, stream: str, ts: int, texts: Sequence[str]
    ) -> Sequence[bool | None]:
        """Whether a condition about one event holds where its root is this text; None: ask with events."""
        ...

    def identity_seen(self, condition: Semantic, variable: str) -> tuple[str, ...]:
        """What of the identity of an event the answer depends on: nothing, `ts`, or `ts` and `seq`."""
        ...


def solutions_of_each(
    semantics: Semantics, condition: Semantic, variable: str, events: Sequence[Event]
) -> Sequence[frozenset[Row]]:
    """The solutions for each event: asked for together where that can be done."""
    if isinstance(semantics, ManyAtATime):
        return semantics.solutions_of_each(condition, variable, events)
    return [semantics.solutions(condition, {variable: each}) for each in events]


class Nobody:
    """Decides no PATH: for an operator that is made only to see whether it can be."""

    def solutions(self, condition: object, binding: object) -> frozenset[Any]:
        """Nothing."""
        return frozenset()

    def known(self, condition: object, ts: object) -> frozenset[Any]:
        """Nothing."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one operator may keep: events and partial matches together, and bytes.

    Above that it refuses to go on, or, with `shed`, a pattern lets go of what is oldest and counts it.
    """

    held: int = 2_000_000
    bytes: int = 1 << 30
    shed: bool = False

    def most(self, bytes_each: int) -> int:
        """How many may be kept if each takes so many bytes.

        >>> Limits(held=100, bytes=1_000).most(20)
        50
        """
        return min(self.held, self.bytes // bytes_each)


@dataclass(slots=True)
class Passed:
    """How many events came (of its streams, inside WITHIN), passed the FILTERs, and the PATHs of a variable.

    `own` are the FILTERs as they are written; the other conditions are what became of a PATH. None: all are.
    `fits` counts the events that passed all of them for each variable.
    """

    own: frozenset[Expr] | None = None
    came: int = 0
    filters: int = 0
    paths: int = 0
    fits: Counter[str] = field(default_factory=Counter)

    def in_order(self, conditions: Sequence[Expr]) -> tuple[Sequence[Expr], Sequence[Expr]]:
        """Conditions: those that are FILTERs, and those that came from a PATH."""
        if self.own is None:
            return conditions, ()
        return [each for each in conditions if each in self.own], [
            each for each in conditions if each not in self.own
        ]


class KernelOperator(Protocol):
    """An incremental operator; see the module for the contract."""

    attributes: tuple[str, ...]
    """The attributes of events that it needs as columns."""
    version: int | None
    """Of the knowledge that judges events from now on; a match shows that of its last event."""
    versioned: bool
    """Whether the knowledge decides anything, so that matches show its version."""
    shed: int
    """How many partial matches it let go of because it kept too many."""
    passed: Passed
    """How many events came, and how far."""

    def feed(self, table: Table) -> Iterable[Matches]:
        """What is found by these events, the next ones in order."""
        ...

    def advance(self, watermark: float) -> Iterable[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        ...

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        ...

    def snapshot(self) -> bytes:
        """The state."""
        ...

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        ...

    def renew(self) -> None:
        """Events to come are judged by another version of the knowledge."""
        ...

    @property
    def size(self) -> int:
        """How many events and partial matches are kept."""
        ...


def refuse(operator: str, kept: int, instead: str) -> Failure:
    """The error of an operator that keeps too much."""
    return Failure(f"{operator} keeps {kept:,} events and partial matches, which is its limit: {instead}")
