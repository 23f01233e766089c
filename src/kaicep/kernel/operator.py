"""What every operator of the kernel can do, whether it is interpreted or compiled.

The contract, for whoever writes another one:

- `feed` gets final events: in the order of the query (`kernel.sort`), none late, none twice. Batches say
  nothing: any cut of the same events gives the same answers.
- `advance(watermark)` promises that no later event has a `ts` below it. The operator then answers what
  only had to wait for that (a trailing absence whose deadline is below, a batch that ends at or below),
  and forgets what no later event can touch. `math.inf` is the end of the input.
- Both return what was found, as soon as it is certain, in no particular order. Each match is found once.
- `promise(watermark)` is the smallest `end` that a match found later can have, given the watermark.
- `snapshot` is the whole state as bytes; `restore`, on a new operator of the same query, goes on from it
  with the same answers. Constants of conditions may differ between the two: the state holds events and
  which of them belong together, never what a condition made of them. The format has a version, and is
  the same on every machine (`kernel.codec`).
- `size` is what is held: events and partial matches. Above its `Limits` the operator refuses to go on
  with a `Failure` that says what to write instead, or sheds what is oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kaicep.errors import Failure
from kaicep.plan.events import Event
from kaicep.plan.nodes import Semantic
from kaicep.plan.terms import Term
from kaicep.plan.types import Value

__all__ = ["Found", "Key", "Limits", "Nobody", "Operator", "Row", "Rows", "Semantics", "Windowed", "refuse"]

Row = tuple[Term | None, ...]
"""The values of the selected variables of a PATH, in one of its solutions."""

Rows = tuple[tuple[tuple[str, ...], tuple[Row, ...]], ...]
"""What PATHs selected: for each of them its variables and its solutions."""

Key = tuple[Value, ...]
"""The values that events of one partition, or of one group, have in common."""


class Semantics(Protocol):
    """What decides the PATHs; an operator asks no more of it than this."""

    def solutions(self, condition: Semantic, binding: Mapping[str, Event]) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing."""
        ...


class Nobody:
    """Decides no PATH: for an operator that is made only to see whether it can be."""

    def solutions(self, condition: object, binding: object) -> frozenset[Any]:
        """Nothing."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Found:
    """A match of a pattern: its partition, its events by variable, its span, what its PATHs selected."""

    partition: Key
    rounds: Mapping[str, Sequence[Event]]
    start: int
    end: int
    rows: Rows = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class Windowed:
    """An answer of a window: its partition and group, the values of its aggregates, its span.

    `event` is the one that triggers, or the first of the group in a batch; `first` and `last` are those
    of the group, `edges` those of the whole window, all groups together.
    """

    partition: Key
    group: Key
    values: tuple[Value, ...]
    event: Event
    first: Event
    last: Event
    edges: tuple[Event, Event]
    count: int
    start: int
    end: int
    rows: Rows = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one operator may hold: events and partial matches together, and bytes.

    Above that it refuses to go on, or, with `shed`, a pattern lets go of what is oldest and counts it.
    """

    held: int = 2_000_000
    bytes: int = 1 << 30
    shed: bool = False

    def most(self, bytes_each: int) -> int:
        """How many may be held if each takes so many bytes.

        >>> Limits(held=100, bytes=1_000).most(20)
        50
        """
        return min(self.held, self.bytes // bytes_each)


class Operator(Protocol):
    """An incremental operator; see the module for the contract."""

    version: int
    """Of the knowledge that judges events from now on; a match shows that of its last event."""

    def feed(self, events: Iterable[Event]) -> Sequence[Found | Windowed]:
        """What is found by these events, the next ones in order."""
        ...

    def advance(self, watermark: float) -> Sequence[Found | Windowed]:
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

    @property
    def size(self) -> int:
        """How many events and partial matches are held."""
        ...


def refuse(operator: str, held: int, instead: str) -> Failure:
    """The error of an operator that holds too much."""
    return Failure(f"{operator} holds {held:,} events and partial matches, and may hold no more: {instead}")
