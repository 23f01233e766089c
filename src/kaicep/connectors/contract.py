"""The contract of every connector: what a source and a sink promise, in a handful of methods.

A **source** is one stream. It is opened at a position, gives batches, and can say at any time where it
stands. A **sink** takes matches and makes them final when told to. Neither knows of the other: whoever
drives them takes a batch, writes what came of it, and commits the sink together with the position.

The off-by-one to beware of: **a position names the next record, never the last one.** After the events
with seq 0, 1 and 2 of part 0 the position is `{0: 3}`; a source opened there gives seq 3 first. A part
that the position does not mention is read from its beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from kaicep.connectors.shape import DeadLetter, Form, Schema
from kaicep.errors import Mistake
from kaicep.plan.events import Event, Match
from kaicep.plan.types import json_text

Position = Mapping[int, int]
"""Part -> seq of its next record. As JSON its keys are texts; `read_position` makes numbers of them."""

Mark = Mapping[str, Any]
"""What a sink commits together with its matches, any JSON object: for example stream -> position."""


def read_position(data: Mapping[Any, Any] | None) -> dict[int, int]:
    """A position as it was, or as it comes back from JSON.

    >>> read_position({"0": 12, "1": 0}), read_position(None)
    ({0: 12, 1: 0}, {})
    >>> read_position({"0": -1})
    Traceback (most recent call last):
    kaicep.errors.Mistake: error: this is not a position: {"0":-1}
      = help: a position maps each part to the number of its next record, such as {"0": 12}
    """
    try:
        position = {int(part): seq for part, seq in (data or {}).items()}
        if all(part >= 0 and type(seq) is int and seq >= 0 for part, seq in position.items()):
            return position
    except (AttributeError, TypeError, ValueError):
        pass
    hint = 'a position maps each part to the number of its next record, such as {"0": 12}'
    raise Mistake(f"this is not a position: {json_text(data)}", hint=hint)


class Guarantee(Enum):
    """What a connector promises when a process is killed at any moment and started again."""

    REPLAYABLE = "the source keeps its records: read again from a position, it gives the same ones"
    DURABLE = "what was acknowledged is in a local log and is replayed from there; a sender may repeat"
    EXACTLY_ONCE = "matches and their mark are committed in one step: every match is there once"
    AT_LEAST_ONCE = "no match is lost; one may come again, with the same id to know it by"
    BEST_EFFORT = "what was written is written; after a restart matches may be shown again"


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that a source no longer has, though they come after the position: `end` is not included."""

    part: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Records of one stream, and the position after them.

    `dead` holds a letter for every record that is not an event: those count in the position too. `lost` says
    what the source no longer has. With `ended`, nothing will ever come after this batch.
    """

    position: Position
    events: Sequence[Event] = ()
    dead: Sequence[DeadLetter] = ()
    lost: Sequence[Lost] = ()
    ended: bool = False

    def __bool__(self) -> bool:
        """Whether it holds anything."""
        return bool(self.events or self.dead or self.lost)


class Source(ABC):
    """A stream of events from somewhere.

    `finite` says whether it ends by itself. Opened sources are closed at the end of a `with` block.
    """

    guarantee: ClassVar[Guarantee]

    def __init__(self, form: Form) -> None:
        self.form = form

    @property
    @abstractmethod
    def finite(self) -> bool:
        """Whether a batch with `ended` will come."""

    @property
    @abstractmethod
    def schema(self) -> Schema | None:
        """The attributes; None until enough records were seen to tell those that are not declared.

        Whoever keeps a position keeps the schema beside it and gives both to `open`: types inferred from
        the records that were there on one day may differ from those inferred on another.
        """

    @property
    def trouble(self) -> str | None:
        """What the source is waiting for, such as a broker that is down, in words; None where all is well."""
        return None

    @abstractmethod
    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Makes ready to give the record *at* the position first: not the one after it.

        A part that is not in the position is read from its beginning. A server that is not there yet is
        no error here: batches stay empty, and `trouble` says why.
        """

    @abstractmethod
    def next_batch(self, timeout: float) -> SourceBatch:
        """The next records, in order of arrival; an empty batch where none came within `timeout` seconds.

        Raises `Failure` where records are missing that should be there, rather than leave them out.
        """

    @property
    @abstractmethod
    def position(self) -> dict[int, int]:
        """The position after the last batch: one past the last record given, in every part."""

    def named(self, part: int) -> str | None:
        """What a part is, so that another source is not taken for it; None where its files tell."""
        return None

    def finished(self, reached: Mapping[int, int]) -> Collection[int]:
        """The parts that will send nothing more, as far as the source can tell, and hold nobody back.

        `reached` is how far the events of each part have come by their time, less the stream's lateness.
        """
        return ()

    def forget(self, position: Position) -> None:  # noqa: B027 (most sources keep nothing to forget)
        """Records before the position are safe elsewhere, so that a source may let go of its own copies."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and connections; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Sink(ABC):
    """A place for matches."""

    guarantee: ClassVar[Guarantee]

    @property
    def trouble(self) -> str | None:
        """What the sink is waiting for, in words; None where all is well."""
        return None

    @abstractmethod
    def open(self) -> Mark | None:
        """Makes ready to write; gives the mark of the last commit.

        A sink that commits matches and mark in one step has undone everything after that mark when this
        returns: go on from there. Of any other sink the mark is None; whoever drives it keeps its own,
        saves it after `commit`, and so writes some matches again after a crash.
        """

    @abstractmethod
    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches, in the order in which they shall appear. They are not final before `commit`."""

    @abstractmethod
    def commit(self, mark: Mark) -> None:
        """Makes final all that was written, together with the mark; returns when it is.

        Raises `Failure` where that was not possible in time. The matches are kept then: `commit` may be
        called again.
        """

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and connections; what was not committed is not promised. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
