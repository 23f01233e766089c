"""The columns in which events and matches travel between Spark and the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kaicep.hosts.inprocess import Engine
from kaicep.hosts.spark.physical import Part
from kaicep.kernel.arrow import batch_of_arrow
from kaicep.kernel.batches import Batch
from kaicep.kernel.state import read_event, write_event
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, Match
from kaicep.plan.expressions import Field
from kaicep.plan.nodes import EpPlan, Root, Semantic, walk_objects
from kaicep.plan.types import Type, Value

# ----------------------------------------------------------------------------------------------------------
# Rows that cross between Spark and the kernel: events one way, matches the other.
#
# On the way, an event is a row of numbered columns: `_stream` (its place in the layout), `_part`, `_seq`,
# `_ts`, the attributes that the queries need, and for an RDF stream the whole event as text. Times are
# microseconds. `push` is the one place where such rows become events.
#


EVENT = ("_stream", "_part", "_seq", "_ts")
"""What every event has on the way, besides its attributes."""

_TIME = pa.timestamp("us")
ARROW_TYPES: Mapping[Type, pa.DataType] = {
    Type.BOOL: pa.bool_(),
    Type.INT64: pa.int64(),
    Type.FLOAT64: pa.float64(),
    Type.STRING: pa.string(),
    Type.TIMESTAMP: pa.int64(),
}
"""The columns of attributes on the way."""


@dataclass(frozen=True)
class Layout:
    """Which streams travel, and in which columns: an attribute of one name and type has one column.

    `attributes` has for each stream the attributes that travel, each with the number of its column;
    `rdf` are the streams of triples; the streams are numbered from `first` on.
    """

    streams: tuple[str, ...]
    columns: tuple[Type, ...]
    attributes: tuple[tuple[tuple[str, int], ...], ...]
    rdf: frozenset[str] = frozenset()
    first: int = 0

    def place(self, stream: str) -> int:
        """The number of a stream."""
        return self.first + self.streams.index(stream)

    def of_stream(self, stream: str) -> dict[str, int]:
        """The attributes of a stream by name, with the numbers of their columns."""
        return dict(self.attributes[self.streams.index(stream)])

    def names(self) -> tuple[str, ...]:
        """The names of all columns, in their order."""
        return (*EVENT, *(f"a{number}" for number in range(len(self.columns))), *(("_rdf",) * bool(self.rdf)))

    def to_json(self) -> dict[str, Any]:
        """The same, to be kept beside rows."""
        types = [str(each) for each in self.columns]
        return {**vars(self), "columns": types, "rdf": sorted(self.rdf)}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Layout:
        """What `to_json` wrote down."""
        columns = tuple(Type(each) for each in read["columns"])
        attributes = tuple(tuple((name, at) for name, at in each) for each in read["attributes"])
        return cls(tuple(read["streams"]), columns, attributes, frozenset(read["rdf"]), read["first"])

    def schema(self) -> pa.Schema:
        """The columns as Arrow knows them."""
        fields = [("_stream", pa.int32()), ("_part", pa.int64()), ("_seq", pa.int64()), ("_ts", pa.int64())]
        fields += [(f"a{number}", ARROW_TYPES[type]) for number, type in enumerate(self.columns)]
        return pa.schema(fields + [("_rdf", pa.string())] * bool(self.rdf))


def push(engine: Engine, rows: pa.RecordBatch, layout: Layout) -> list[Match]:
    """Gives rows to an engine, stream by stream, as columns where that is possible."""
    found: list[Match] = []
    numbers = rows.column("_stream")
    for number in pc.unique(numbers).to_pylist():
        own = rows.filter(pc.equal(numbers, number))
        stream = layout.streams[number - layout.first]
        attributes = layout.of_stream(stream)
        if stream in layout.rdf or not attributes.keys().isdisjoint(("part", "seq")):
            found += engine.push(events_of(own, layout))
        else:
            found += engine.push_batch(_columns(engine, own, stream, layout, attributes))
    return found


def _columns(
    engine: Engine, rows: pa.RecordBatch, stream: str, layout: Layout, attributes: Mapping[str, int]
) -> Batch:
    types = {name: layout.columns[number] for name, number in attributes.items()}
    columns = {
        "_ts": rows.column("_ts").cast(_TIME),
        "part": rows.column("_part"),
        "seq": rows.column("_seq"),
    }
    for name, number in attributes.items():
        cells = rows.column(f"a{number}")
        columns[name] = cells.cast(_TIME) if types[name] is Type.TIMESTAMP else cells
    return batch_of_arrow(pa.RecordBatch.from_pydict(columns), stream, types, engine.strings, "_ts")


def events_of(rows: pa.RecordBatch, layout: Layout) -> list[Event]:
    """The events of rows, in their order.

    >>> layout = Layout(("s",), (Type.INT64,), ((("x", 0),),))
    >>> [each.values for each in events_of(rows_of([Event("s", 0, 7, 5, {"x": 1})], layout), layout)]
    [{'x': 1}]
    """
    used = {number for each in layout.attributes for _, number in each}
    cells = {number: rows.column(f"a{number}").to_pylist() for number in used}
    attributes = [[(name, cells[number]) for name, number in each] for each in layout.attributes]
    texts = rows.column("_rdf").to_pylist() if layout.rdf else ()
    made: list[Event] = []
    base = (rows.column(each).to_pylist() for each in EVENT)
    for row, (number, part, seq, ts) in enumerate(zip(*base, strict=True)):
        if texts and texts[row] is not None:
            made.append(read_event(json.loads(texts[row])))
        else:
            place = number - layout.first
            values: dict[str, Value] = {name: each[row] for name, each in attributes[place]}
            made.append(Event(layout.streams[place], part, seq, ts, values))
    return made


def rows_of(events: Iterable[Event], layout: Layout) -> pa.RecordBatch:
    """The rows of events."""
    columns: dict[str, list[Any]] = {name: [] for name in layout.names()}
    numbers = {
        name: (layout.place(name), own) for name, own in zip(layout.streams, layout.attributes, strict=True)
    }
    cells = [columns[f"a{number}"] for number in range(len(layout.columns))]
    for event in events:
        place, attributes = numbers[event.stream]
        for name, value in zip(EVENT, (place, event.part, event.seq, event.ts), strict=True):
            columns[name].append(value)
        row: list[Value] = [None] * len(cells)
        for name, number in attributes:
            row[number] = event.values.get(name)
        for cell, each in zip(cells, row, strict=True):
            cell.append(each)
        if layout.rdf:
            columns["_rdf"].append(rdf_text(event) if event.stream in layout.rdf else None)
    return pa.RecordBatch.from_pydict(columns, layout.schema())


def rdf_text(event: Event) -> str:
    """An event of an RDF stream as it travels."""
    return json.dumps(write_event(event), ensure_ascii=False)


# ----------------------------------------------------------------------------------------------------------
# What of an event travels to the kernel: the attributes that its queries read, and no others.
#


def sources_of(part: Part, catalog: Catalog) -> tuple[str, ...]:
    """The streams whose data the queries of a part need, in an order that never changes."""
    if any(isinstance(each, EpPlan) for each in part.queries):
        read = [name for name, each in catalog.streams.items() if each.rdf or each.annotated]
        return tuple(
            name for name in dict.fromkeys((*read, *part.streams)) if not catalog.streams[name].derived
        )
    return tuple(name for name in part.streams if not catalog.streams[name].derived)


def layouts_of(
    parts: Sequence[Part], catalog: Catalog, known: dict[tuple[str, Type], int] | None = None, first: int = 0
) -> tuple[list[Layout], Layout]:
    """The columns of the events of each part, and those of all of them together.

    `known` are columns that there are already; streams are numbered from `first` on.
    """
    columns = {} if known is None else known
    streams = tuple(dict.fromkeys(name for part in parts for name in sources_of(part, catalog)))
    rdf = frozenset(name for name in streams if catalog.streams[name].rdf)
    own = [[_attributes(part, name, catalog) for name in streams] for part in parts]
    numbered = [
        tuple(tuple((each[0], columns.setdefault(each, len(columns))) for each in some) for some in part)
        for part in own
    ]
    types = tuple(type for _, type in columns)
    every = tuple(
        tuple(dict.fromkeys(each for part in numbered for each in part[place]))
        for place in range(len(streams))
    )
    return [Layout(streams, types, each, rdf, first) for each in numbered], Layout(
        streams, types, every, rdf, first
    )


def _attributes(part: Part, name: str, catalog: Catalog) -> list[tuple[str, Type]]:
    """The attributes of a stream that a part needs."""
    if name not in sources_of(part, catalog):
        return []
    stream, needed = catalog.streams[name], _needed(part)
    wanted = needed.get(name, set())
    if "*" in needed:
        wanted = wanted | set(stream.graph_attributes)
    wanted = set(stream.reads(*wanted))
    return [each for each in stream.attributes if each[0] in wanted and each[0] != "ts"]


def _needed(part: Part) -> dict[str, set[str]]:
    """The attributes by stream; `*` where the whole graph of an event is asked for."""
    needed: dict[str, set[str]] = {}
    for query in (*part.queries, *part.optimised):
        if isinstance(query, EpPlan):
            needed["*"] = set()
        for each in walk_objects(query):
            if isinstance(each, Field):
                for stream, names in each.sources:
                    needed.setdefault(stream, set()).update(names)
            elif isinstance(each, Root):
                for stream, names in (*each.literals, *each.entities):
                    needed.setdefault(stream, set()).update(names)
            elif isinstance(each, Semantic) and each.relation is None:
                needed["*"] = set()
    return needed
