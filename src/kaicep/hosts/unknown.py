"""Which entities nobody knows: batches of events are looked through for them, column by column.

A value of an annotated attribute that names no entity makes a PATH untrue (semantics 2, event graph). It is
counted for every event that has it, on the streams that some query with a PATH reads.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from kaicep.errors import Mistake
from kaicep.kernel.batches import Batch
from kaicep.knowledge.event_graph import UnknownEntities, entity_in, literal_in
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.types import Type, Value

__all__ = ["UnknownValues"]


class UnknownValues:
    """Counts the values of events that no entity is known for."""

    def __init__(self, knowledge: Knowledge, counted: UnknownEntities) -> None:
        self._knowledge = knowledge
        self._counted = counted
        self._version = knowledge.version
        self._known: dict[tuple[str, str, type, Value, int], str | None] = {}

    def look(self, batch: Batch, catalog: Catalog) -> None:
        """Takes note of a batch."""
        if self._version != self._knowledge.version:
            self._version = self._knowledge.version
            self._known.clear()
        for attribute, _ in catalog.streams[batch.stream].entities:
            if attribute not in batch.types:
                continue
            for (value, epoch), count in self._values(batch, attribute).items():
                missing = self._missing(batch.stream, attribute, value, epoch, catalog)
                if missing is not None:
                    self._counted.add(batch.stream, attribute, missing, count)

    def _values(self, batch: Batch, attribute: str) -> Counter[tuple[Value, int]]:
        """How often each value is there, by the epoch of the knowledge."""
        column = batch.column(attribute)
        epochs = np.searchsorted(np.array(self._knowledge.epochs, np.int64), batch.ts, "right")
        if column.type is not Type.STRING:
            return Counter(zip(column.values(batch.strings), epochs.tolist(), strict=True))
        pairs, counts = np.unique(np.stack([column.data, epochs]), axis=1, return_counts=True)
        texts = [None if code < 0 else batch.strings.texts[code] for code in pairs[0].tolist()]
        return Counter(dict(zip(zip(texts, pairs[1].tolist(), strict=True), counts.tolist(), strict=True)))

    def _missing(self, stream: str, attribute: str, value: Value, epoch: int, catalog: Catalog) -> str | None:
        """The value as text, where it has no entity."""
        key = stream, attribute, type(value), value, epoch
        if key not in self._known:
            event, known = Event(stream, 0, 0, 0, {attribute: value}), catalog.streams[stream]
            literal = literal_in(event, known, attribute)
            try:
                found = literal and entity_in(event, known, attribute, self._knowledge.in_epoch(epoch))
                self._known[key] = literal.lexical if literal is not None and found is None else None
            except Mistake:  # several: whoever asks for it says so
                self._known[key] = None
        return self._known[key]
