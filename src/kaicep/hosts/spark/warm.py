"""Queries compiled before they are asked for, in the driver, so that workers need not."""

from __future__ import annotations

from kaicep.hosts.spark.job import Opened
from kaicep.hosts.spark.layout import layouts_of
from kaicep.hosts.spark.physical import physical
from kaicep.hosts.spark.wire import push, rows_of
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event
from kaicep.plan.nodes import Program
from kaicep.plan.types import Type, Value

__all__ = ["warm"]

_SECOND = 1_000_000
_VALUES: dict[Type, Value] = {
    Type.BOOL: True,
    Type.INT64: 1,
    Type.FLOAT64: 1.0,
    Type.STRING: "a",
    Type.TIMESTAMP: _SECOND,
}


def warm(program: Program, catalog: Catalog, knowledge: Knowledge) -> None:
    """Compiles in this process what workers need for queries, by a few events that go their way."""
    for part in physical(program, catalog, knowledge):
        _, layout = layouts_of([part], catalog)
        engine = Opened(Program(part.queries), catalog, knowledge, layout).engine("compiled")
        for name in layout.streams:
            if name not in layout.rdf:
                push(engine, rows_of(_events(catalog.streams[name]), layout), layout)
        engine.advance(_SECOND)
        state = engine.snapshot()
        engine.finish()
        again = Opened(Program(part.queries), catalog, knowledge, layout).engine("compiled")
        again.restore(state)


def _events(stream: Stream) -> list[Event]:
    values = {name: _VALUES[type] for name, type in stream.attributes}
    return [Event(stream.name, 0, seq, seq * _SECOND, values) for seq in range(3)]
