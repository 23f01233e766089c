"""Simulated events: the same for the same seed, at a given rate, to try things out and to measure."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from kaicep.connectors.contract import Guarantee, Position, Source, SourceBatch, read_position
from kaicep.connectors.registry import Count
from kaicep.connectors.shape import Form, Schema
from kaicep.errors import Mistake
from kaicep.plan.events import Event
from kaicep.plan.time import parse_time
from kaicep.plan.types import Type, Value

_SECOND = 1_000_000
_BLOCK = 1_000


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """How many events of how many sensors, how many a second of event time, from when on.

    With `pace` they come as fast as their times say, otherwise as fast as they are taken.
    """

    seed: int = 0
    rate: float = 600.0
    sensors: Count = Count(100)
    count: Count | None = None
    start: str = "2012-05-07T09:00"
    pace: bool = False
    batch: Count = Count(10_000)


class GeneratorSource(Source):
    """Readings of sensors: `sensorID` and `value`, which depend on the seed and on `seq` alone."""

    guarantee = Guarantee.REPLAYABLE

    def __init__(self, form: Form, options: GeneratorOptions) -> None:
        super().__init__(form)
        self._options = options
        start = parse_time(options.start)
        if start is None:
            hint = "write it as 2012-05-07T09:00"
            raise Mistake(f"stream {form.stream}: start: {options.start} is not an ISO 8601 time", hint=hint)
        self._first = start
        self._seq = 0
        self._opened = (0.0, 0)

    @property
    def finite(self) -> bool:
        """Whether there is a `count`."""
        return self._options.count is not None

    @property
    def schema(self) -> Schema:
        """Time, sensor and value."""
        return Schema(((self.form.time, Type.TIMESTAMP), ("sensorID", Type.STRING), ("value", Type.FLOAT64)))

    @property
    def position(self) -> dict[int, int]:
        """One past the last event given."""
        return {0: self._seq}

    def open(self, position: Position | None = None, schema: Schema | None = None) -> None:
        """Begins at an event."""
        self._seq = read_position(position).get(0, 0)
        self._opened = (time.monotonic(), self._seq)

    def next_batch(self, timeout: float) -> SourceBatch:
        """The events that are due."""
        if self._options.pace and self._due() <= self._seq and not self._ended(self._seq):
            since, first = self._opened
            wait = since + (self._seq - first + 1) / self._options.rate - time.monotonic()
            time.sleep(max(0.0, min(timeout, wait)))
        end = self._seq + self._options.batch
        if self._options.count is not None:
            end = min(end, self._options.count)
        if self._options.pace:
            end = min(end, self._due())
        events = []
        while self._seq < end:
            # Drawn in blocks: the values of a block depend on its number and on nothing before it.
            block, offset = divmod(self._seq, _BLOCK)
            draws = random.Random(f"{self._options.seed}/{block}")
            numbers = [draws.random() for _ in range(2 * _BLOCK)]
            until = min(end, (block + 1) * _BLOCK)
            events += [
                self._event(block * _BLOCK + each, *numbers[2 * each : 2 * each + 2])
                for each in range(offset, until - block * _BLOCK)
            ]
            self._seq = until
        return SourceBatch(self.position, events, ended=self._ended(self._seq))

    def close(self) -> None:
        """There is nothing to close."""

    def _ended(self, seq: int) -> bool:
        return self._options.count is not None and seq >= self._options.count

    def _due(self) -> int:
        """The seq of the first event that is not due yet."""
        since, first = self._opened
        return first + int((time.monotonic() - since) * self._options.rate)

    def _event(self, seq: int, sensor: float, value: float) -> Event:
        ts = self._first + int(seq * _SECOND / self._options.rate)
        name = f"s{int(sensor * self._options.sensors)}"
        values: dict[str, Value] = {self.form.time: ts, "sensorID": name, "value": round(value * 1_000, 1)}
        return Event(self.form.stream, 0, seq, ts, values)
