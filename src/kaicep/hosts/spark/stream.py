"""The host over endless data: streaming DataFrames of events in, a streaming DataFrame of matches out.

Two operators in Python, and Spark between them. The first (`clock`) lets every bucket know how far the
sources have come. The second holds an engine for each bucket: its state is one value in Spark's state store,
which Spark commits with the source's offsets, so that a restart loses nothing and repeats nothing. Lateness,
order and deadlines are the engine's; Spark's own watermark plays no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from kaicep.errors import Diagnostic, Failure, Mistake
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.spark.batch import bucket
from kaicep.hosts.spark.clock import END, EVENT_ROW, NEVER, Clock, Place, clocked, clocked_type
from kaicep.hosts.spark.job import Job, Opened, job_of, opened
from kaicep.hosts.spark.layout import layouts_of, sources_of
from kaicep.hosts.spark.output import MATCHES, row_of
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.prefilter import candidates
from kaicep.hosts.spark.wire import ARROW_TYPES, Layout, push
from kaicep.knowledge.store import Knowledge
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match
from kaicep.plan.nodes import Program
from kaicep.plan.types import Type

__all__ = ["BUCKETS", "Bucket", "Frames", "Streamed", "addressed", "match_stream", "target_of"]

BUCKETS = 8
"""How many buckets a query with a key has where nobody says, on whatever machine; a checkpoint knows it."""

_MOST_BUCKETS = 1 << 16
_MOST_LIVE = 256


@dataclass(frozen=True)
class Streamed:
    """Queries over streams, and how their time goes: the lateness, and the parts of sources to wait for.

    `kernel` is that of the engines; a state is of one of them.
    """

    program: Program
    catalog: Catalog
    knowledge: Knowledge
    lateness: int
    parts: Mapping[str, Sequence[int]]
    kernel: str = "interpreted"


@dataclass(frozen=True)
class Target:
    """A part of the queries on the workers: what runs there, how its clock goes, what it calls its state."""

    job: Job
    buckets: int
    lateness: int
    waits: tuple[Place, ...]
    streams: frozenset[int]
    kernel: str
    named: str
    mark: str

    def numbers(self, place: int) -> list[int]:
        """The numbers of its buckets, where it stands at a place among the targets."""
        return [place * _MOST_BUCKETS + each for each in range(self.buckets)]


Frames = Callable[[Layout], Mapping[str, DataFrame]]
"""The events of each stream as rows of a layout, with their `_kind`."""


def match_stream(queries: Sequence[tuple[Streamed, Frames]], buckets: int = BUCKETS) -> DataFrame:
    """The matches of queries over streams, with `owner` (whose they are), `bucket` and `watermark`.

    Queries with other streams and other knowledge may share one stream of Spark's, one state store and one
    checkpoint.
    """
    if not 0 < buckets < _MOST_BUCKETS:
        raise Mistake(Diagnostic(f"{buckets} is no number of buckets", hint=f"1 to {_MOST_BUCKETS - 1}"))
    columns: dict[tuple[str, Type], int] = {}
    planned: list[tuple[Streamed, Frames, tuple[Part, ...], list[Layout], Layout]] = []
    first = 0
    for query, frames in queries:
        parts = physical(query.program, query.catalog, query.knowledge)
        layouts, whole = layouts_of(parts, query.catalog, columns, first)
        planned.append((query, frames, parts, layouts, whole))
        first += len(whole.streams)
    types = tuple(type for _, type in columns)
    targets: list[Target] = []
    owners: list[int] = []
    rows: list[DataFrame] = []
    for owner, (query, frames, parts, layouts, whole) in enumerate(planned):
        own = [target_of(query, part, each, buckets) for part, each in zip(parts, layouts, strict=True)]
        whole = Layout(whole.streams, types, whole.attributes, whole.rdf, whole.first)
        rows += addressed(query, frames(whole), parts, own, whole, len(targets))
        targets += own
        owners += [owner] * len(own)
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), rows)
    found = _answered(together, tuple(targets), types)
    whose = sf.element_at(sf.lit(owners), sf.col("owner") + 1)
    reached = sf.timestamp_micros(sf.nullif("watermark", sf.lit(NEVER)))
    return found.withColumns({"owner": whose, "watermark": reached})


def target_of(query: Streamed, part: Part, layout: Layout, buckets: int) -> Target:
    """What the workers need of a part."""
    program = Program(part.queries)
    read = [layout.place(name) for name in layout.streams if name in sources_of(part, query.catalog)]
    waits = tuple(
        (layout.place(name), number)
        for name in layout.streams
        if layout.place(name) in read
        for number in query.parts.get(name, (0,))
    )
    count = buckets if part.way in ("rows", "buckets") else 1
    texts = "\0".join(word for each in part.queries for word in (each.name, each.text))
    mark = blake2b(f"{texts}\0{count}\0{query.lateness}".encode(), digest_size=16).hexdigest()
    named = ", ".join(each.name for each in part.queries)
    job = job_of(program, query.catalog, query.knowledge, layout)
    return Target(job, count, query.lateness, waits, frozenset(read), query.kernel, named, mark)


def addressed(
    query: Streamed,
    frames: Mapping[str, DataFrame],
    parts: Sequence[Part],
    targets: Sequence[Target],
    layout: Layout,
    first: int,
) -> list[DataFrame]:
    """The rows of each stream with `_to`: the buckets of all parts that want them."""
    everybody = [number for place, each in enumerate(targets, first) for number in each.numbers(place)]
    found: list[DataFrame] = []
    for stream, rows in frames.items():
        to: list[Column] = []
        for place, (part, target) in enumerate(zip(parts, targets, strict=True), first):
            if layout.place(stream) not in target.streams:
                continue
            rows, wanted = candidates(rows, stream, part, layout, query.catalog, query.knowledge, str(place))
            number = sf.lit(place * _MOST_BUCKETS) + _bucket(part, stream, layout, target.buckets)
            to.append(sf.when(wanted, number.cast("int")))
        ends = sf.lit(everybody).cast("array<int>")
        some = sf.array_compact(sf.array(*to)) if to else sf.array().cast("array<int>")
        addressed = sf.when(sf.col("_kind") == END, ends).otherwise(some)
        found.append(rows.select(*layout.names(), "_kind", addressed.alias("_to")))
    return found


def _bucket(part: Part, stream: str, layout: Layout, buckets: int) -> Column:
    """The bucket of an event; where each event stands alone, any will do."""
    if part.way == "rows":
        return sf.pmod(sf.xxhash64("_part", "_seq"), sf.lit(buckets)).cast("int")
    return bucket(part, stream, layout, buckets)


def _answered(rows: DataFrame, targets: tuple[Target, ...], types: Sequence[Type]) -> DataFrame:
    """Rows of events in, rows of matches out, by way of both operators."""
    everybody: dict[int, list[int]] = {}
    for place, target in enumerate(targets):
        for stream in target.streams:
            everybody.setdefault(stream, []).extend(target.numbers(place))
    clock = rows.mapInArrow(clocked(everybody), clocked_type(rows))
    plain = [name for name in clock.columns if name not in ("_to", "_stream") and not name.startswith("a")]
    cells: list[Column] = []
    for number, type in enumerate(types):
        cell = sf.col(f"a{number}")
        if type in (Type.INT64, Type.TIMESTAMP):
            # pandas makes floats of integers where one is missing.
            cells += [sf.coalesce(cell, sf.lit(0)).alias(f"a{number}"), cell.isNull().alias(f"n{number}")]
        else:
            cells.append(cell)
    spread = clock.select(sf.explode("_to").alias("_target"), "_stream", *plain, *cells)
    return spread.groupBy("_target").applyInPandasWithState(
        _held(targets, tuple(types)),
        f"{MATCHES}, owner int, bucket int, watermark bigint",
        "state binary",
        "append",
        "NoTimeout",
    )


def _held(targets: tuple[Target, ...], types: tuple[Type, ...]) -> Callable[..., Iterator[Any]]:
    def work(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        place, number = divmod(int(key[0]), _MOST_BUCKETS)
        held = Bucket(targets[place], bytes(state.get[0]) if state.exists else None)
        found = held.take(pa.Table.from_batches([_batch(each, types) for each in frames]))
        state.update((held.saved(),))
        if found:
            reached = None if held.ended else held.clock.watermark
            own = {"owner": place, "bucket": number, "watermark": NEVER if reached is None else reached}
            yield pa.Table.from_pylist([{**row, **own} for row in map(row_of, found)]).to_pandas()

    return work


def _batch(frame: Any, types: tuple[Type, ...]) -> pa.RecordBatch:
    """A frame of pandas as rows of Arrow, nulls in their places."""
    names = [name for name in frame.columns if name[0] == "_" and name != "_rdf"]
    columns = {name: pa.array(frame[name].to_numpy()) for name in names}
    for number, type in enumerate(types):
        values, gaps = frame[f"a{number}"], frame.get(f"n{number}")
        if gaps is not None:
            columns[f"a{number}"] = pa.array(values.to_numpy(), pa.int64(), mask=gaps.to_numpy(bool))
        else:
            columns[f"a{number}"] = pa.array(values, ARROW_TYPES[type], from_pandas=True)
    if "_rdf" in frame.columns:
        columns["_rdf"] = pa.array(frame["_rdf"], pa.string(), from_pandas=True)
    return pa.RecordBatch.from_pydict(columns)


_LIVE: dict[str, Engine] = {}
"""Engines of this worker that are as they were saved, by the mark of what was saved."""


class Bucket:
    """The engine of one bucket for the time of one batch, and its clock."""

    def __init__(self, target: Target, state: bytes | None, own: Opened | None = None) -> None:
        self.target = target
        self.opened = own or opened(target.job)
        self.clock = Clock(target.lateness, target.waits)
        self.ended = False
        self.engine = self.opened.engine(target.kernel)
        if state is not None:
            self._go_on(state)

    def _go_on(self, state: bytes) -> None:
        head, _, saved = state.partition(b"\n")
        document = json.loads(head)
        if document["mark"] != self.target.mark:
            raise Failure(
                f"the checkpoint is not of {self.target.named} as it is now, but of {document['named']}: "
                "another text, lateness or number of buckets; give the query a checkpoint of its own"
            )
        self.clock = Clock(
            self.target.lateness, self.target.waits, {(a, b): latest for a, b, latest in document["latest"]}
        )
        live = _LIVE.pop(document["live"], None)
        if live is not None:
            self.engine = live
        else:
            self.engine.restore(saved)

    def take(self, rows: pa.Table) -> list[Match]:
        """The matches that the rows of one batch settle."""
        if not rows.num_rows:
            return []
        (batch,) = rows.combine_chunks().to_batches()
        kinds = batch.column("_kind").to_numpy(zero_copy_only=False)
        used = (kinds == EVENT_ROW) & ~self.clock.late(batch)
        found = push(self.engine, batch.filter(pa.array(used)), self.opened.layout)
        watermark = self.clock.watermark
        if watermark is not None:
            found += self.engine.advance(watermark)
        if (kinds == END).any():
            self.ended = True
            found += self.engine.finish()
        return sorted(found, key=lambda match: (match.end, match.id))

    def saved(self) -> bytes:
        """The state; the engine stays at hand for the next batch, if that comes to this worker."""
        live = uuid4().hex
        latest = [[*place, ts] for place, ts in sorted(self.clock.latest.items()) if ts != NEVER]
        head = {"mark": self.target.mark, "named": self.target.named, "latest": latest, "live": live}
        if not self.ended:
            while len(_LIVE) >= _MOST_LIVE:
                del _LIVE[next(iter(_LIVE))]
            _LIVE[live] = self.engine
        return json.dumps(head).encode() + b"\n" + self.engine.snapshot()
