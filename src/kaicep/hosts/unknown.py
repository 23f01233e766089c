"""Unknown entities: finds them in batches of events, column by column.

A value of an annotated attribute that names no entity makes a PATH untrue (semantics 2, event graph). It is
counted for every event that has it, on the streams that some query with a PATH reads.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from kaicep.errors import Mistake
from kaicep.kernel.batches import Batch
from kaicep.knowledge.event_graph import UnknownEntities, entity_in, naming, shown_values
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.types import Type, Value


class UnknownValues:
    """Counts the values of events that no entity is known for."""

    def __init__(self, knowledge: Knowledge, counted: UnknownEntities) -> None:
        self._knowledge = knowledge
        self._counted = counted
        self._version = knowledge.version
        self._known: dict[tuple[str, str, tuple[tuple[type, Value], ...], int], str | None] = {}

    def look(self, batch: Batch, catalog: Catalog) -> None:
        """Takes note of a batch."""
        if self._version != self._knowledge.version:
            self._version = self._knowledge.version
            self._known.clear()
        stream = catalog.streams[batch.stream]
        for name, _ in stream.entities:
            read = stream.reads(name)
            if any(each not in batch.types for each in read):
                continue
            for (values, epoch), count in self._values(batch, read).items():
                missing = self._missing(stream, name, dict(zip(read, values, strict=True)), epoch)
                if missing is not None:
                    self._counted.add(batch.stream, name, missing, count)

    def _values(self, batch: Batch, read: tuple[str, ...]) -> Counter[tuple[tuple[Value, ...], int]]:
        """How often each value is there, or each combination of values, by the epoch of the knowledge."""
        columns = [batch.column(each) for each in read]
        epochs = np.searchsorted(np.array(self._knowledge.epochs, np.int64), batch.ts, "right")
        if len(columns) > 1 or columns[0].type is not Type.STRING:
            rows = zip(*(each.values(batch.strings) for each in columns), strict=True)
            return Counter(zip(rows, epochs.tolist(), strict=True))
        found: Counter[tuple[tuple[Value, ...], int]] = Counter()
        codes, first, last = columns[0].data, int(epochs.min(initial=0)), int(epochs.max(initial=0))
        for epoch in range(first, last + 1):
            own = codes if first == last else codes[epochs == epoch]
            for code, count in zip(*map(np.ndarray.tolist, np.unique(own, return_counts=True)), strict=True):
                text = None if code < 0 else batch.strings.texts[code]
                found[(text,), epoch] = count
        return found

    def _missing(self, stream: Stream, name: str, values: dict[str, Value], epoch: int) -> str | None:
        """The values as text, where they have no entity."""
        key = stream.name, name, tuple((type(each), each) for each in values.values()), epoch
        if key not in self._known:
            event = Event(stream.name, 0, 0, 0, values)
            literals = naming(event, stream, name)
            try:
                found = literals and entity_in(event, stream, name, self._knowledge.in_epoch(epoch))
                self._known[key] = shown_values(literals) if literals and found is None else None
            except Mistake:  # several: whoever asks for it says so
                self._known[key] = None
        return self._known[key]
