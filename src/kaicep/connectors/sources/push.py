"""What sources that are pushed to have in common: a log between those who send and those who read.

Whatever comes in is written to the log, and acknowledged when it is on the disk. Its number in the log is
the `seq` of the event; it is given once, and a restart gives the same ones (semantics 1).
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from kaicep.connectors.columnar import value_events
from kaicep.connectors.contract import Batch, Guarantee, Position, Source, read_position
from kaicep.connectors.log import Log
from kaicep.connectors.records import Record
from kaicep.connectors.shape import SAMPLE, Form, Schema, Shaper, refuse_wide

__all__ = ["PushSource"]


class PushSource(Source):
    """A source with a log; a subclass says how things come in, and what a record of the log holds."""

    guarantee = Guarantee.DURABLE
    finite = False

    def __init__(self, form: Form, log: Path, batch: int) -> None:
        super().__init__(form)
        refuse_wide(form, "what is sent record by record")
        self._folder = log
        self._batch = batch
        self._log: Log | None = None
        self._next = 0
        self._shaper = Shaper(form)

    @abstractmethod
    def _start(self, log: Log) -> None:
        """Begins to take in what is sent."""

    @abstractmethod
    def _stop(self) -> None:
        """Takes in nothing more."""

    @abstractmethod
    def _record(self, seq: int, raw: bytes) -> Record:
        """The record that the log holds under a number."""

    def _value(self, raw: bytes) -> bytes | None:
        """The JSON of a record that the log holds; None where there is more to it."""
        return raw

    @property
    def schema(self) -> Schema | None:
        """The attributes, inferred from the oldest records of the log."""
        return self._shaper.schema

    @property
    def position(self) -> dict[int, int]:
        """One past the number of the last record given."""
        return {0: self._next}

    @property
    def backlog(self) -> int:
        """How many records wait in the log to be read."""
        return self._log.end - self._next if self._log else 0

    def named(self, part: int) -> str | None:
        """The one part: what is sent."""
        return "what is sent"

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Opens the log at the position, and begins to take in what is sent."""
        self._log = Log(self._folder)
        try:
            self._next = read_position(position).get(0, self._log.first)
            self._log.read(self._next, 0)
            self._shaper = Shaper(self.form, schema)
            self._start(self._log)
        except BaseException:
            self.close()
            raise

    def next_batch(self, timeout: float) -> Batch:
        """What is in the log and was not given yet."""
        assert self._log is not None
        self._log.wait(self._next, timeout)
        raw = self._log.read(self._next, self._batch)
        first = self._next
        if self.schema is None and any(self._record(0, each).fields is not None for each in raw):
            for seq, each in enumerate(self._log.read(self._log.first, SAMPLE), self._log.first):
                self._shaper.learn(self._record(seq, each))
            self._shaper.settle()
        taken = list(range(first, first + len(raw))), list(map(self._value, raw))
        events, dead = value_events(
            self._shaper, {0: taken}, lambda part, at: self._record(first + at, raw[at])
        )
        self._next += len(raw)
        return Batch(self.position, events, dead)

    def forget(self, position: Position) -> None:
        """Removes from the log what lies before the position, in large pieces."""
        if self._log is not None:
            self._log.forget(min(self._next, read_position(position).get(0, 0)))

    def close(self) -> None:
        """Stops taking in, and closes the log."""
        self._stop()
        if self._log is not None:
            self._log.close()
            self._log = None
