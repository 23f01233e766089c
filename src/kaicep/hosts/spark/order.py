"""One order over all buckets of a stream: a match is held back until nobody can find one that ends before.

Every bucket tells how far it has come with each micro-batch. The driver keeps what all of them found, and
lets go, in the order of end and id, of what ends before the least of their watermarks. What it keeps is saved
for each micro-batch, so that a restart neither loses nor repeats a match.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from kaicep.hosts.spark.clock import FOREVER, NEVER
from kaicep.hosts.spark.output import FOUND_ARROW
from kaicep.hosts.spark.states import States
from kaicep.plan.events import Match

__all__ = ["InOneOrder"]


class InOneOrder:
    """Takes the rows of so many buckets, and gives their matches to a function in one order."""

    def __init__(self, buckets: int, states: States, sink: Callable[[int, list[Match]], None]) -> None:
        self.buckets = buckets
        self.states = states
        self.sink = sink
        self.reached: dict[str, int] = {}
        self.waiting = FOUND_ARROW.empty_table()
        self.next: int | None = None

    def take(self, rows: DataFrame, number: int) -> None:
        """One micro-batch: what it settles to the sink, then the rest to disk."""
        if self.next != number:
            self._go_on(self.states.read(number - 1))
        self.next = None  # what fails half-way is not gone on with
        ready = self.settled(rows.toArrow().cast(FOUND_ARROW))
        self.sink(number, [Match.from_json(line) for line in ready["match"].to_pylist()])
        self.states.save(number, self._saved())
        self.next = number + 1

    def settled(self, come: pa.Table) -> pa.Table:
        """The matches that no other can stand before, in their order, once these rows have come."""
        told = come.group_by(["owner", "bucket"]).aggregate([("watermark", "max")])
        for row in told.to_pylist():
            place = f"{row['owner']}/{row['bucket']}"
            self.reached[place] = max(self.reached.get(place, NEVER), row["watermark_max"])
        every = pa.concat_tables([self.waiting, come.filter(pc.is_valid(come["match"]))])
        every = every.sort_by([("end", "ascending"), ("id", "ascending")])
        least = min(self.reached.values()) if len(self.reached) == self.buckets else NEVER
        ready = every if least == FOREVER else every.filter(pc.less(every["end"], pa.scalar(least)))
        self.waiting = every.slice(len(ready))
        return ready

    def _saved(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, FOUND_ARROW) as writer:
            writer.write_table(self.waiting)
        rows: bytes = sink.getvalue().to_pybytes()
        return json.dumps(self.reached).encode() + b"\n" + rows

    def _go_on(self, state: bytes | None) -> None:
        head, _, rows = (state or b"{}").partition(b"\n")
        self.reached = json.loads(head)
        self.waiting = FOUND_ARROW.empty_table()
        if rows:
            with pa.ipc.open_stream(rows) as reader:
                self.waiting = reader.read_all()
