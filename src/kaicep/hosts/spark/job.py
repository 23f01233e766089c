"""What runs on the workers: the queries of a job, and the compiled kernels on their way there."""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from kaicep.errors import Failure
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.spark.layout import Layout, push
from kaicep.hosts.spark.output import FoundRows
from kaicep.hosts.spark.sent import Sent, sent
from kaicep.kernel.jit import kernel_folder
from kaicep.knowledge.store import Knowledge
from kaicep.query import Query
from kaicep.storage.disk import cache_folder

# ----------------------------------------------------------------------------------------------------------
# Compiled kernels on their way to the workers: packed in the driver, unpacked where they are first needed.
#
# Numba knows what it compiled by the content of the source, its own version and the processor. So the files
# of the driver's cache are good on every worker that is like it; another one compiles for itself.
#


_NAME = "kaicep-kernels-"


def pack(folder: Path) -> Path:
    """Writes the compiled functions of this machine into a zip file, named by its content."""
    here = kernel_folder()
    entries = {f"{here.name}/{file.name}": file.read_bytes() for file in here.glob("*.nb[ic]")}
    digest = blake2b(digest_size=12)
    for name in sorted(entries):
        digest.update(name.encode() + b"\0" + entries[name])
    target = folder / f"{_NAME}{digest.hexdigest()}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(entries):
            archive.writestr(zipfile.ZipInfo(name), entries[name], zipfile.ZIP_DEFLATED)
    return target


_BEGUN = count()
_LOADING = 3
"""So many pieces of work load modules and kernels in a process; then it has what all others need."""


def prepare() -> None:
    """Makes a process of a worker ready for its next piece of work.

    What was sent goes to where Numba looks for it; what is there, stays. PySpark looks for garbage after each
    task. Without what is here to stay, which is most of all objects, that takes no time; with it, it took
    longer than most tasks.
    """
    for each in sys.path:
        path = Path(each)
        if path.name.startswith(_NAME) and path.suffix == ".zip":
            _unpack(path)
    if TaskContext.get() is not None and next(_BEGUN) < _LOADING:
        gc.freeze()


@cache
def _unpack(packed: Path) -> None:
    # A cache that cannot be written to is none: then this worker compiles.
    with suppress(OSError), zipfile.ZipFile(packed) as archive:
        places = {name: cache_folder("kernels") / name for name in archive.namelist()}
        # Files of code belong to the index beside them and to no other: a function comes whole or not.
        missing = [name for name, path in places.items() if not _index(path).exists()]
        # The index comes after the code ("nbc" < "nbi"): who sees it, finds all of it.
        for name in sorted(missing, key=lambda name: name.rpartition(".")[2]):
            _put(places[name], archive.read(name))


def _index(path: Path) -> Path:
    """The file that says what is there of a function."""
    return path.with_name(re.sub(r"\.\d+\.nbc$", ".nbi", path.name))


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Workers that start together may write the same file: each writes its own, and the last one stays.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


# ----------------------------------------------------------------------------------------------------------
# What travels to the workers: the queries and what they are resolved against, and how events run there.
#


_LARGE = 1 << 16


@dataclass(frozen=True)
class Opened:
    """The queries on a worker."""

    query: Query
    layout: Layout

    def engine(self, on_matches: FoundRows | None = None) -> Engine:
        """An engine that has seen nothing."""
        return Engine(self.query, on_matches=on_matches)


Job = Sent[Opened]
"""The same on the way."""


def job_of(query: Query, layout: Layout) -> Job:
    """Packs queries for the way."""
    return sent(Opened(query, layout))


def opened(job: Job, knowledge: Knowledge | None = None) -> Opened:
    """The queries of a job in a worker process; with `knowledge` they have that in place of their own."""
    prepare()
    found = job.opened()
    return found if knowledge is None else replace(found, query=replace(found.query, knowledge=knowledge))


def in_order(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The matches of rows that come in the order of their time."""
    opening, found = opened(job), FoundRows()
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
    opening, found = opened(job), FoundRows()
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
