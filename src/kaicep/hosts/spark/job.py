"""What travels to the workers: the queries and what they are resolved against, and how events run there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.spark.kernels import unpack
from kaicep.hosts.spark.output import Found
from kaicep.hosts.spark.sent import Sent, sent
from kaicep.hosts.spark.wire import Layout, push
from kaicep.knowledge.store import Knowledge
from kaicep.query import Query

__all__ = ["Job", "Opened", "in_order", "job_of", "opened", "row_by_row"]

_LARGE = 1 << 16


@dataclass(frozen=True)
class Opened:
    """The queries on a worker."""

    query: Query
    layout: Layout

    def engine(self, on_matches: Found | None = None) -> Engine:
        """An engine that has seen nothing."""
        return Engine(self.query, on_matches=on_matches)


Job = Sent[Opened]
"""The same on the way."""


def job_of(query: Query, layout: Layout) -> Job:
    """Packs queries for the way."""
    return sent(Opened(query, layout))


def opened(job: Job, knowledge: Knowledge | None = None) -> Opened:
    """The queries of a job in a worker process; with `knowledge` they have that in place of their own."""
    unpack()
    found = job.opened()
    return found if knowledge is None else replace(found, query=replace(found.query, knowledge=knowledge))


def in_order(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The matches of rows that come in the order of their time."""
    opening, found = opened(job), Found()
    engine: Engine | None = None
    now: int | None = None
    for rows in _larger(batches):
        engine = engine or opening.engine(on_matches=found)
        edges = pc.min_max(rows.column("_ts")).as_py()
        if now is not None and edges["min"] < now:
            raise Failure("Spark gave the events of a bucket out of order: please report this")
        now = edges["max"]
        push(engine, rows, opening.layout)
        engine.advance(edges["max"])
        yield from found.taken()
    if engine is not None:
        engine.finish()
        yield from found.taken()


def row_by_row(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The matches of a query about single events; the order says nothing, so every batch is a whole."""
    opening, found = opened(job), Found()
    for rows in _larger(batches):
        engine = opening.engine(on_matches=found)
        push(engine, rows, opening.layout)
        engine.finish()
        yield from found.taken()


def _larger(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth the trouble: Spark's have ten thousand at most."""
    held: list[pa.RecordBatch] = []
    for rows in batches:
        held.append(rows)
        if sum(each.num_rows for each in held) >= _LARGE:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held = []
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
