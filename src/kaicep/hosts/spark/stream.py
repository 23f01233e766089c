"""The host over endless data: streaming DataFrames in and out, one version of knowledge a batch."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from kaicep.errors import Failure, Mistake
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import asks_the_knowledge
from kaicep.hosts.spark.batch import bucket
from kaicep.hosts.spark.clock import ABOUT, END, EVENT_ROW, FOREVER, NEVER, Place, StreamClock, clocked
from kaicep.hosts.spark.job import Job, Opened, job_of, opened
from kaicep.hosts.spark.layout import ARROW_TYPES, EVENT, Layout, layouts_of, push, sources_of
from kaicep.hosts.spark.output import FOUND, FOUND_ARROW, found_row, known
from kaicep.hosts.spark.physical import Part, physical
from kaicep.hosts.spark.prefilter import candidates
from kaicep.hosts.spark.watch import observed
from kaicep.knowledge.store import Knowledge, catch_up, fingerprint
from kaicep.optimize import RULES, STEADY
from kaicep.plan.events import Match, by_end
from kaicep.plan.nodes import Program
from kaicep.plan.types import Type
from kaicep.query import Query

# ----------------------------------------------------------------------------------------------------------
# The knowledge of a running stream in files: every engine judges a micro-batch by one and the same version.
#
# A version is written down when it counts from then on, under the next number. The first engine that works
# on a micro-batch writes down which number is the newest; all others, and all of them once more when the
# micro-batch has to be run again, read that. So nobody has to be told of anything, and engines may be
# anywhere that the folder can be reached from.

_KEPT = 8
"""So many micro-batches are remembered; Spark may ask for the last one again."""

_ORIGINS: WeakKeyDictionary[Knowledge, str] = WeakKeyDictionary()
"""What knowledge of this process was when a stream first began with it."""

_READ: dict[tuple[Path, int, int], Knowledge] = {}
"""The last few versions that this process has read, by their files: all buckets of a worker share them."""

_MOST_READ = 4


def folder_of(checkpoint: Path) -> Path:
    """Where the knowledge of a stream is, beside its checkpoint."""
    return checkpoint.absolute() / "kaicep" / "knowledge"


class Published:
    """The folder of one stream; `own` is the number of what this process has written down last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = -1
        self._version = -1

    def begin(self, knowledge: Knowledge) -> None:
        """A stream begins, or goes on: then with the updates that it has had, if they are of this knowledge.

        Whoever has changed the files that the knowledge is loaded from gets what these say now.
        """
        with knowledge.lock:
            origin = _ORIGINS.get(knowledge)
            if origin is None:
                origin = _ORIGINS[knowledge] = fingerprint(knowledge)
            newest = self._newest()
            head = self._head(newest) if newest >= 0 else {}
            if head.get("origin") != origin or head["version"] < knowledge.version:
                self.publish(knowledge)
                return
            if head["version"] > knowledge.version:
                catch_up(knowledge, self.read(newest))
            self.own, self._version = newest, knowledge.version

    def publish(self, knowledge: Knowledge) -> None:
        """Lets the knowledge count as it is, from the next micro-batch on; unless it does so already."""
        with knowledge.lock:
            if knowledge.version == self._version:
                return
            newest = self._newest()
            origin = _ORIGINS.get(knowledge) or (self._head(newest)["origin"] if newest >= 0 else None)
            head = {"version": knowledge.version, "origin": origin}
            content = json.dumps(head).encode() + b"\n" + pickle.dumps(knowledge, protocol=5)
            self._version = knowledge.version
        number = newest + 1
        while not _created(self.folder / f"{number}.knowledge", content):
            number += 1
        self.own = number

    def chosen(self, batch: int) -> int:
        """The number of the version by which a micro-batch is judged, whoever asks, and however often."""
        file = self.folder / f"{batch}.chosen"
        if not file.exists():
            newest = self._newest()
            if newest < 0:
                raise Failure(
                    f"no knowledge is published in {self.folder}: it must be a folder of all workers"
                )
            if _created(file, str(newest).encode()):
                self._forget(batch)
        return int(file.read_text())

    def read(self, number: int) -> Knowledge:
        """The version of a number; it is read once in each process, and must not be changed."""
        file = self.folder / f"{number}.knowledge"
        # Of a folder that was emptied meanwhile, a number says nothing.
        stamp = file.stat()
        key = file, stamp.st_ino, stamp.st_mtime_ns
        found = _READ.pop(key, None)
        if found is None:
            _, _, content = file.read_bytes().partition(b"\n")
            found = pickle.loads(content)
        assert isinstance(found, Knowledge)
        while len(_READ) >= _MOST_READ:
            del _READ[next(iter(_READ))]
        _READ[key] = found
        return found

    def _newest(self) -> int:
        return max(self._numbers("knowledge"), default=-1)

    def _numbers(self, kind: str) -> Iterator[int]:
        return (int(file.stem) for file in self.folder.glob(f"*.{kind}"))

    def _head(self, number: int) -> dict[str, Any]:
        with (self.folder / f"{number}.knowledge").open("rb") as file:
            head: dict[str, Any] = json.loads(file.readline())
        return head

    def _forget(self, batch: int) -> None:
        """Removes what is of micro-batches long ago."""
        batches = sorted(self._numbers("chosen"))
        for each in batches[:-_KEPT]:
            if each != batch:
                (self.folder / f"{each}.chosen").unlink(missing_ok=True)
        oldest = min(int((self.folder / f"{each}.chosen").read_text()) for each in {batch, *batches[-_KEPT:]})
        for number in self._numbers("knowledge"):
            if number < oldest:
                (self.folder / f"{number}.knowledge").unlink(missing_ok=True)


def _created(file: Path, content: bytes) -> bool:
    """Writes a file as a whole, unless there is one of its name; whether it was this one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{uuid4().hex}.new")
    try:
        with new.open("wb") as written:
            written.write(content)
            written.flush()
            os.fsync(written.fileno())
        os.link(new, file)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


# ----------------------------------------------------------------------------------------------------------
# The host over endless data: streaming DataFrames of events in, a streaming DataFrame of matches out.
#
# Two operators in Python, and Spark between them. The first (`clock`) lets every bucket know how far the
# sources have come. The second holds an engine for each bucket: its state is one value in Spark's state
# store, which Spark commits with the source's offsets, so that a restart loses nothing and repeats nothing.
# Lateness, order and deadlines are the engine's; Spark's own watermark plays no part.

BUCKETS = 8
"""How many buckets a query with a key has where nobody says, on whatever machine; a checkpoint knows it."""

_MOST_BUCKETS = 1 << 16
_MOST_LIVE = 256


@dataclass(frozen=True)
class Streamed(Query):
    """Queries over streams, and how their time goes: the lateness, and the parts of sources to wait for.

    `idle` is how many milliseconds a part may be silent before it holds nobody back; None: any. `published`
    is where versions of the knowledge are found while the stream runs (`published.py`); None: it stays as it
    is.
    """

    lateness: int
    parts: Mapping[str, Sequence[int]]
    idle: int | None = None
    published: Path | None = None

    @property
    def divided(self) -> tuple[Part, ...]:
        """The parts of the queries; where the knowledge may change, as they are whatever becomes known."""
        rules = RULES if self.published is None else STEADY
        return physical(self, rules)


@dataclass(frozen=True)
class Target:
    """A part of the queries on the workers: what runs there, how its clock goes, what it calls its state."""

    job: Job
    buckets: int
    lateness: int
    waits: tuple[Place, ...]
    streams: frozenset[int]
    named: str
    mark: str
    idle: int | None
    published: Path | None

    def opened(self, now: int) -> Opened:
        """What runs on a worker in the micro-batch of that time, which is another one in each."""
        if self.published is None:
            return opened(self.job)
        published = Published(self.published)
        return opened(self.job, published.read(published.chosen(now)))

    def numbers(self, place: int) -> list[int]:
        """The numbers of its buckets, where it stands at a place among the targets."""
        return [place * _MOST_BUCKETS + each for each in range(self.buckets)]


def hangs_on_knowledge(program: Program) -> bool:
    """Whether other knowledge may give other matches."""
    return bool(program.ep_plans) or any(map(asks_the_knowledge, program.chi_plans))


Frames = Callable[[Layout], Mapping[str, DataFrame]]
"""The events of each stream as rows of a layout, with their `_kind`."""


def match_stream(queries: Sequence[tuple[Streamed, Frames]], buckets: int = BUCKETS) -> DataFrame:
    """The matches of queries over streams, with `owner` (whose they are), `bucket` and `watermark`.

    Queries with other streams and other knowledge may share one stream of Spark's, one state store and one
    checkpoint.
    """
    found, owners, _ = found_stream(queries, buckets)
    whose = sf.element_at(sf.lit(owners), sf.col("owner") + 1)
    known = ~sf.col("watermark").isin(NEVER, FOREVER)
    reached = sf.when(known, sf.timestamp_micros("watermark"))
    return found.withColumns({"owner": whose, "watermark": reached})


def found_stream(
    queries: Sequence[tuple[Streamed, Frames]], buckets: int = BUCKETS, marks: bool = False
) -> tuple[DataFrame, list[int], int]:
    """The rows of `FOUND`, by part; whose the parts are; and how many buckets there are in all.

    With `marks` each bucket tells with every micro-batch how far it has come.
    """
    if not 0 < buckets < _MOST_BUCKETS:
        raise Mistake(f"{buckets} is not a number of buckets", hint=f"1 to {_MOST_BUCKETS - 1}")
    columns: dict[tuple[str, Type], int] = {}
    planned: list[tuple[Streamed, Frames, tuple[Part, ...], list[Layout], Layout]] = []
    first = 0
    for query, frames in queries:
        parts = query.divided
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
        rows += _addressed(query, frames(whole), parts, own, whole, len(targets))
        targets += own
        owners += [owner] * len(own)
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), rows)
    rdf = any(layout.rdf for *_, layout in planned)
    names = dict.fromkeys(plan.name for query, *_ in planned for plan in query.program.queries)
    found = observed(_answered(together, tuple(targets), types, rdf, marks), names)
    return found, owners, sum(each.buckets for each in targets)


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
    # What is published need not travel.
    knowledge = query.knowledge if query.published is None else Knowledge.empty()
    job = job_of(Query(program, query.catalog, knowledge), layout)
    clock = query.lateness, waits, frozenset(read)
    return Target(job, count, *clock, named, mark, query.idle, query.published)


def _addressed(
    query: Streamed,
    frames: Mapping[str, DataFrame],
    parts: Sequence[Part],
    targets: Sequence[Target],
    layout: Layout,
    first: int,
) -> list[DataFrame]:
    """The rows of each stream with `_to`: the buckets of all parts that want them.

    The clock needs every event's place and time; the values of one that nobody wants need not travel.
    """
    everybody = [number for place, each in enumerate(targets, first) for number in each.numbers(place)]
    found: list[DataFrame] = []
    for stream, rows in frames.items():
        to: list[Column] = []
        used = sf.lit(False)
        for place, (part, target) in enumerate(zip(parts, targets, strict=True), first):
            if layout.place(stream) not in target.streams:
                continue
            rows, wanted = candidates(rows, stream, part, layout, query.catalog, query.knowledge, str(place))
            number = sf.lit(place * _MOST_BUCKETS) + _bucket(part, stream, layout, target.buckets)
            to.append(sf.when(wanted, number.cast("int")))
            used = used | wanted
        ends = sf.lit(everybody).cast("array<int>")
        some = sf.array_compact(sf.array(*to)) if to else sf.array().cast("array<int>")
        addressed = sf.when(sf.col("_kind") == END, ends).otherwise(some)
        cells = [sf.when(used, sf.col(name)).alias(name) for name in layout.names()[len(EVENT) :]]
        found.append(rows.select(*EVENT, *cells, "_kind", addressed.alias("_to")))
    return found


def _bucket(part: Part, stream: str, layout: Layout, buckets: int) -> Column:
    """The bucket of an event; where each event stands alone, any will do."""
    if part.way == "rows":
        return sf.pmod(sf.xxhash64("_part", "_seq"), sf.lit(buckets)).cast("int")
    return bucket(part, stream, layout, buckets)


def _answered(
    rows: DataFrame, targets: tuple[Target, ...], types: Sequence[Type], rdf: bool, marks: bool
) -> DataFrame:
    """Rows of events in, rows of matches out, by way of both operators."""
    everybody: dict[int, list[int]] = {}
    for place, target in enumerate(targets):
        for stream in target.streams:
            everybody.setdefault(stream, []).extend(target.numbers(place))
    columns = [
        ("_stream", pa.int32()),
        *((name, pa.int64()) for name in EVENT[1:]),
        ("_kind", pa.int32()),
        ("_to", pa.list_(pa.int32())),
        *((f"a{number}", ARROW_TYPES[type]) for number, type in enumerate(types)),
        *[("_rdf", pa.string())] * rdf,
    ]
    clock = known(rows, pa.schema(columns)).mapInArrow(
        clocked(everybody), from_arrow_schema(pa.schema([*columns, *ABOUT]))
    )
    sent = [("_target", pa.int32()), *(each for each in (*columns, *ABOUT) if each[0] != "_to")]
    cells: list[Column] = []
    for number, type in enumerate(types):
        if type in (Type.INT64, Type.TIMESTAMP):
            # pandas makes floats of integers where one is missing.
            cell = sf.col(f"a{number}")
            cells += [sf.coalesce(cell, sf.lit(0)).alias(f"a{number}"), cell.isNull().alias(f"n{number}")]
            sent.append((f"n{number}", pa.bool_()))
        else:
            cells.append(sf.col(f"a{number}"))
    plain = [name for name, _ in (*columns, *ABOUT) if name[0] == "_" and name != "_to"]
    spread = known(clock.select(sf.explode("_to").alias("_target"), *plain, *cells), pa.schema(sent))
    return spread.groupBy("_target").applyInPandasWithState(
        _held(targets, tuple(types), marks),
        FOUND,
        from_arrow_schema(pa.schema([("state", pa.binary())])),
        "append",
        "NoTimeout",
    )


def _held(targets: tuple[Target, ...], types: tuple[Type, ...], marks: bool) -> Callable[..., Iterator[Any]]:
    """The function of the second operator; with `marks` each bucket tells how far it has come, every time."""

    def work(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        place, number = divmod(int(key[0]), _MOST_BUCKETS)
        now = state.getCurrentProcessingTimeMs()
        held = Bucket(
            targets[place], bytes(state.get[0]) if state.exists else None, targets[place].opened(now)
        )
        found = held.take([_batch(each, types) for each in frames], now)
        state.update((held.saved(),))
        if found or marks:
            reached = FOREVER if held.ended else held.clock.watermark
            own = place, number, NEVER if reached is None else reached
            made = [found_row(each, *own) for each in (*found, *((None,) * marks))]
            yield pa.Table.from_pylist(made, FOUND_ARROW).to_pandas()

    return work


def _batch(frame: Any, types: tuple[Type, ...]) -> pa.RecordBatch:
    """A frame of pandas as rows of Arrow, nulls in their places."""
    names = [name for name in frame.columns if name[0] == "_" and name not in ("_rdf", "_runs")]
    columns = {name: pa.array(frame[name].to_numpy()) for name in names}
    columns["_runs"] = pa.array(frame["_runs"], pa.binary(), from_pandas=True)
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

    def __init__(self, target: Target, state: bytes | None, own: Opened) -> None:
        self.target = target
        self.opened = own
        self.ended = False
        if state is None:
            self.clock = StreamClock(target.lateness, target.waits, idle=target.idle, names=self._names)
            self.engine = self.opened.engine()
        else:
            self._go_on(state)

    def _go_on(self, state: bytes) -> None:
        head, _, saved = state.partition(b"\n")
        document = json.loads(head)
        if document["mark"] != self.target.mark:
            raise Failure(
                f"the checkpoint is not of {self.target.named} as it is now, but of {document['named']}: "
                "another text, lateness or number of buckets; give the query a checkpoint of its own"
            )
        latest, heard, reached = (
            {(stream, part): value for stream, part, value in document[name]}
            for name in ("latest", "heard", "reached")
        )
        of_parts = self.target.lateness, self.target.waits, latest, self.target.idle, heard, reached
        self.clock = StreamClock(*of_parts, self._names)
        live = _LIVE.pop(document["live"], None)
        if live is not None and live.knowledge is self.opened.query.knowledge:
            self.engine = live
        else:
            self.engine = self.opened.engine()
            self.engine.restore(saved)

    @property
    def _names(self) -> dict[int, str]:
        layout = self.opened.layout
        return {layout.place(name): name for name in layout.streams}

    def take(self, batches: Sequence[pa.RecordBatch], now: int = 0) -> list[Match]:
        """The matches that the rows of one micro-batch settle; `now` is its time in milliseconds.

        The rows are those that `clocked` sends to a bucket, or, with `_used`, all of a micro-batch.
        """
        rows = [each for each in batches if each.num_rows]
        found: list[Match] = []
        if rows:
            (batch,) = pa.Table.from_batches(rows).combine_chunks().to_batches()
            kinds = batch.column("_kind").to_numpy(zero_copy_only=False)
            if "_used" in batch.schema.names:
                used = batch.column("_used").to_numpy(zero_copy_only=False)
                late, again = self.clock.judge_all(batch, now)
            else:
                used = kinds == EVENT_ROW
                late, again = self.clock.judge(batch, now)
            used = used & ~late & ~again
            found += push(self.engine, batch.filter(pa.array(used)), self.opened.layout)
            self.ended = bool((kinds == END).any())
        else:
            self.clock.now = now
        watermark = self.clock.watermark
        if watermark is not None:
            found += self.engine.advance(watermark)
        if self.ended:
            found += self.engine.finish()
        return sorted(found, key=by_end)

    def saved(self) -> bytes:
        """The state; the engine stays at hand for the next batch, if that comes to this worker."""
        live = uuid4().hex
        clock = self.clock
        head = {
            "mark": self.target.mark,
            "named": self.target.named,
            "latest": [[*place, ts] for place, ts in sorted(clock.latest.items()) if ts != NEVER],
            "heard": [[*place, at] for place, at in sorted(clock.heard.items())] if clock.idle else [],
            "reached": [[*place, seq] for place, seq in sorted(clock.reached.items())],
            "live": live,
        }
        if not self.ended:
            while len(_LIVE) >= _MOST_LIVE:
                del _LIVE[next(iter(_LIVE))]
            _LIVE[live] = self.engine
        return json.dumps(head).encode() + b"\n" + self.engine.snapshot()
