"""Queries over the past: a snapshot in, all matches out, by the cheapest strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kaicep.api import read_annotations, read_queries
from kaicep.archive.archive import EVERYTHING, Archive, Snapshot
from kaicep.archive.as_sparql import rewrite_to_sparql
from kaicep.archive.parquet import LATE, PART, SEQ, TableShape, events_of
from kaicep.connectors.parts import is_history
from kaicep.errors import Diagnostic, Mistake, Unsupported
from kaicep.history.hybrid import Prefilter, both, spans
from kaicep.history.rewrite import sql_of
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.knowledge.annotation import Annotation, build_catalog, prefixes_of
from kaicep.knowledge.event_graph import UnknownEntities
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import RULES, optimize
from kaicep.optimize.relate_paths import relate_paths
from kaicep.plan.catalog import Stream
from kaicep.plan.events import Event, Match, by_end
from kaicep.plan.nodes import Interval
from kaicep.plan.time import format_time
from kaicep.query import Query, resolve_queries

if TYPE_CHECKING:
    import pyarrow

    from kaicep.kernel.batches import Batch
    from kaicep.plan.catalog import Catalog
    from kaicep.plan.chi import ChiQuery
    from kaicep.plan.nodes import QueryPlan
    from kaicep.plan.sparql import EpQuery

# ----------------------------------------------------------------------------------------------------------
# Which way through the past is the cheapest: by how many events there are to read, before any is read.
#
# What fits into one process is quickest there, filters first; SPARQL pays for a store of all events and is
# for small archives; Spark has to be started, and then takes any size. The bounds are estimates, not
# measurements.

SMALL = 20_000
"""Up to so many events a rewritten query is SPARQL on a store; above, Spark SQL on the tables."""

SPARK_FROM = 20_000_000
"""From so many events on it pays to start Spark."""


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy, where it runs (`process`, `store` or `spark`), and why."""

    strategy: str
    place: str
    why: str

    def __str__(self) -> str:
        places = {
            "process": "in this process",
            "store": "as SPARQL on a store in memory",
            "spark": "on Spark",
        }
        return f"{self.strategy} {places[self.place]}, {self.why}"


def rows_to_read(plans: Iterable[QueryPlan], catalog: Catalog, snapshot: Snapshot) -> int:
    """How many events the files have that the queries may have to read."""
    bounds = spans(plans, catalog)
    return sum(each.rows for stream, within in bounds.items() for each in snapshot.files(stream, within))


def chosen(strategy: str, rows: int, on_spark: bool) -> StrategyChoice:
    """The way for a strategy, `auto` included; `on_spark` says that Spark can take the queries.

    >>> print(chosen("auto", 4_000, True))
    hybrid in this process, since 4,000 events are fewer than 20,000,000
    >>> chosen("rewrite", 4_000_000, True).place
    'spark'
    """
    if strategy == "replay":
        return StrategyChoice("replay", "process", "as always")
    if strategy == "rewrite":
        if rows <= SMALL:
            return StrategyChoice("rewrite", "store", f"since {rows:,} events are at most {SMALL:,}")
        return StrategyChoice("rewrite", "spark", f"since {rows:,} events are more than {SMALL:,}")
    if rows < SPARK_FROM:
        return StrategyChoice("hybrid", "process", f"since {rows:,} events are fewer than {SPARK_FROM:,}")
    if not on_spark:
        return StrategyChoice(
            "hybrid", "process", "since Spark does not take these queries, or is not installed"
        )
    return StrategyChoice("hybrid", "spark", f"since there are {rows:,} events, {SPARK_FROM:,} or more")


def explained(plan: QueryPlan, catalog: Catalog, knowledge: Knowledge) -> str:
    """How a query over an archive would be answered, for a reader."""
    text = f"hybrid, in process below {SPARK_FROM:,} events and on Spark above"
    refused: list[str] = []
    for language, write in (
        ("SPARQL", lambda: rewrite_to_sparql(plan, catalog)),
        ("Spark SQL", lambda: sql_of(plan, catalog, knowledge)),
    ):
        try:
            write()
        except Unsupported as error:
            refused.append(f"no rewriting to {language}: {str(error).removeprefix(f'{plan.name}: ')}")
    return "; ".join([text, *refused])


# ----------------------------------------------------------------------------------------------------------
# Queries over the past: an archive's snapshot in, all matches out, by one of three strategies.
#
# They are those of the SCEPter paper (its section 5), and their answers are the same. *Replay* runs all
# events of the range through the kernel, with PATHs decided at run time. *Rewrite* asks one query for
# everything: SPARQL or Spark SQL (`history.rewrite`). *Hybrid* leaves out by
# columns what no variable can take, PATHs decided for whole sets of values at a time, and runs the rest
# through the kernel, in this process or on Spark. `chosen` says which where nobody does.

STRATEGIES = ("replay", "rewrite", "hybrid")
"""The ways through the past (SCEPter paper, section 5)."""

_MOST_FILTERED = 8
"""Of so many queries, little is left that none of them needs."""

AT_RUN_TIME = tuple(each for each in RULES if each is not relate_paths)
"""Without semantic relations, what is left of a PATH is decided at run time."""


@dataclass(frozen=True)
class History(Query):
    """Queries, resolved against what an archive holds."""

    archive: Archive
    unknown: UnknownEntities = field(default_factory=UnknownEntities)

    def only(self, names: Collection[str]) -> History:
        """Some of the queries."""
        return replace(self, program=self.program.only(names))

    def spans(self) -> dict[str, Interval]:
        """The streams that the queries read, and the bounds of what they see of each."""
        return spans(self.program.queries, self.catalog)

    def diagnostics(self, snapshot: Snapshot) -> Iterator[Diagnostic]:
        """What the queries, the knowledge and the archive give reason to say."""
        yield from (*self.knowledge.warnings, *self.knowledge.contradictions)
        for query in self.program.queries:
            yield from query.warnings
        for stream, within in self.spans().items():
            expired = snapshot.expired(stream)
            if expired is not None and (within.low is None or within.low < expired):
                yield Diagnostic(
                    f"{stream}: events before {format_time(expired)} have been removed from the archive",
                    severity="warning",
                )
                continue
            begin = min((each.low for each in snapshot.files(stream) if each.low is not None), default=None)
            if begin is not None and within.low is not None and within.low < begin:
                yield Diagnostic(
                    f"{stream}: the archive begins at {format_time(begin)}, and holds nothing before",
                    severity="warning",
                )


def open_history(
    queries: Sequence[Path],
    archive: Archive,
    knowledge: Sequence[Path] = (),
    annotations: Sequence[Path | Annotation] = (),
    reasoning: str = "rdfs",
    now: int | None = None,
) -> History:
    """Reads and resolves queries against what an archive holds; `Mistake` with whatever is wrong."""
    known = read_annotations(annotations)
    parsed = read_queries(queries, prefixes_of(known))
    return history_of(parsed, archive, Knowledge.load(*knowledge, reasoning=reasoning), known, now)


def history_of(
    queries: Sequence[ChiQuery | EpQuery],
    archive: Archive,
    knowledge: Knowledge,
    annotations: Sequence[Annotation] = (),
    now: int | None = None,
) -> History:
    """Parsed queries, resolved against what an archive holds."""
    own = {each.name for each in queries}
    snapshot = archive.snapshot()
    for name in own & set(snapshot.tables):
        raise Mistake(f"the query {name} has the name of an archived stream", hint="rename the query's file")
    for each in annotations:
        if each.stream in snapshot.tables:
            _check_time(each, snapshot.shape(each.stream))
    shapes = {name: snapshot.shape(name) for name in snapshot.tables}
    streams = (Stream(name, each.attributes, rdf=each.rdf) for name, each in shapes.items())
    query = resolve_queries(queries, build_catalog(streams, annotations, knowledge, own), knowledge, now)
    return History(query.program, query.catalog, knowledge, archive)


def _check_time(annotation: Annotation, shape: TableShape) -> None:
    if not shape.rdf and annotation.time != shape.time:
        raise Mistake(
            f"the time of {annotation.stream} is {shape.time} in the archive, "
            f"and {annotation.time} in its annotation"
        )


def past_matches(
    history: History, strategy: str = "hybrid", as_seen: bool = False, snapshot: Snapshot | None = None
) -> list[Match]:
    """All matches over a snapshot, by default that of now, in the order of their end, then of their id.

    With `as_seen`, events that came too late when they came are left out (semantics 1).
    """
    snapshot = history.archive.snapshot() if snapshot is None else snapshot
    way = way_of(history, strategy, snapshot)
    asked = history, snapshot, as_seen
    if way.strategy == "rewrite":
        from kaicep.history.rewrite import rewritten_matches, sql_matches

        if way.place == "store":
            return rewritten_matches(*asked)
        return sql_matches(*asked, history.unknown)
    if way.place == "spark":
        from kaicep.history.hybrid import spark_history

        return spark_history(*asked)
    strategy = way.strategy
    engine = engine_of(history, strategy, snapshot)
    found = [match for some in replayed(history, engine, snapshot, strategy, as_seen) for match in some]
    found += engine.finish()
    return sorted(found, key=by_end)


def way_of(history: History, strategy: str, snapshot: Snapshot) -> StrategyChoice:
    """How a strategy is carried out over a snapshot; `auto` is the cheapest."""
    if strategy != "auto" and strategy not in STRATEGIES:
        raise Unsupported(f"there is no strategy {strategy}; there are auto, {', '.join(STRATEGIES)}")
    from kaicep.history.hybrid import takes

    plans = history.program.queries
    whole = snapshot.until is None and snapshot.since is None
    rows = rows_to_read(plans, history.catalog, snapshot)
    return chosen(strategy, rows, whole and takes(plans, history.catalog))


def follow(
    history: History,
    strategy: str = "hybrid",
    as_seen: bool = False,
    lateness: int = 0,
    wait: Callable[[], bool] = lambda: True,
    idle: float = 30.0,
) -> Iterator[list[Match]]:
    """The matches over what an archive holds, then over what it gets, each once, in order of their end.

    `wait` is called where there is nothing new; it returns whether to look again. A part may be as much as
    `lateness` behind its newest event; what comes later than that is used by no match, nor is what the
    archive has marked as late by the time it comes in. A part that is behind the others and gets nothing
    for `idle` seconds does not hold them back (semantics 1).
    """
    if strategy == "rewrite":
        raise Unsupported(
            "a query cannot follow by rewriting: its answer is of one moment; use hybrid or replay"
        )
    snapshot = history.archive.snapshot()
    engine = engine_of(history, strategy, snapshot, lateness)
    silence = _SilentParts(idle)
    while True:
        silent = silence.parts(history, snapshot)
        settled = _settled(history, snapshot, lateness, silent)
        yield from replayed(history, engine, snapshot, strategy, as_seen, reach=settled)
        for stream, part in sorted(silent):
            yield engine.idle(stream, part)
        if settled > -math.inf:
            yield engine.advance(int(settled))
        before, as_seen = replace(snapshot, since=None), True
        while snapshot.cut == before.cut and silence.parts(history, snapshot) <= silent:
            if not wait():
                return
            snapshot = replace(history.archive.snapshot(), since=before)
        snapshot = replace(snapshot, since=before)


class _SilentParts:
    """Which parts have been silent for so long that they hold nobody back."""

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._moved: dict[tuple[str, int], tuple[int, float]] = {}

    def parts(self, history: History, snapshot: Snapshot) -> set[tuple[str, int]]:
        """Those that are behind the one which is furthest ahead, and have got nothing for a while."""
        now = time.monotonic()
        newest = _newest(history, snapshot)
        for key in newest:
            position = snapshot.cut.next(*key)
            if self._moved.get(key, (-1, now))[0] != position:
                self._moved[key] = position, now
        ahead = max(newest.values(), default=0)
        waited = {key for key in newest if is_history(key[1]) or now - self._moved[key][1] >= self._idle}
        return {key for key in waited if newest[key] < ahead}


def _newest(history: History, snapshot: Snapshot) -> dict[tuple[str, int], int]:
    """The largest time of every part that the queries read."""
    return {
        (stream, part): ts
        for stream in history.spans()
        for part, ts in snapshot.tables[stream].newest.items()
    }


def _settled(
    history: History, snapshot: Snapshot, lateness: int, silent: Collection[tuple[str, int]]
) -> float:
    """The time below which nothing new is expected: every part that is not silent has come as far."""
    newest = _newest(history, snapshot)
    if {stream for stream, _ in newest} != set(history.spans()):
        return -math.inf
    return min((ts for key, ts in newest.items() if key not in silent), default=-math.inf) - lateness


def engine_of(history: History, strategy: str, snapshot: Snapshot, lateness: int | None = None) -> Engine:
    """The engine that the events of a snapshot are put through."""
    parts = {stream: tuple(snapshot.tables[stream].positions) or (0,) for stream in history.spans()}
    rules = AT_RUN_TIME if strategy == "replay" else RULES
    return Engine(
        history,
        lateness=lateness,
        settings=Settings(parts=parts, rules=rules),
        unknown=history.unknown,
    )


def replayed(
    history: History,
    engine: Engine,
    snapshot: Snapshot,
    strategy: str,
    as_seen: bool,
    bounds: Interval = EVERYTHING,
    reach: float = math.inf,
    waits: float = math.inf,
) -> Iterator[list[Match]]:
    """Puts the events of a snapshot through an engine in order of time; the matches after each batch.

    Only those inside the `bounds` are; what comes after them may be as early as `reach`. From `waits`
    on nothing is left out: those wait for their turn, and other knowledge may judge them then. Of several
    streams, the one that is furthest behind goes next, so that no more is held than it takes.
    """
    queries = history.program.queries
    hybrid = strategy == "hybrid" and len(queries) <= _MOST_FILTERED
    plans = [optimize(each, history.catalog, history.knowledge)[0] for each in queries] if hybrid else []
    waiting: dict[str, Iterator[tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]]] = {}
    reached: dict[str, float] = {}
    for stream, within in history.spans().items():
        made = (
            Prefilter(stream, plans, history.catalog, history.knowledge, history.unknown) if hybrid else None
        )
        waiting[stream] = _kept(snapshot, stream, both(within, bounds), made, as_seen, waits)
        reached[stream] = -math.inf
    while waiting:
        stream = min(waiting, key=lambda each: reached[each])
        found = next(waiting[stream], None)
        if found is None:
            del waiting[stream], reached[stream]
        else:
            rows, kept = found
            reached[stream] = _last_time(rows)
            yield _pushed(engine, history, snapshot, stream, kept)
        if reached and (least := min(reached.values())) > -float("inf"):
            yield engine.advance(int(min(least, reach))) if reach > -math.inf else []


def _kept(
    snapshot: Snapshot,
    stream: str,
    bounds: Interval,
    prefilter: Prefilter | None,
    as_seen: bool,
    waits: float,
) -> Iterator[tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]]:
    """The rows of a stream in order of time, batch by batch, and what of each is put through."""
    if prefilter is None:
        yield from ((rows, rows) for rows in snapshot.batches(stream, bounds, None, as_seen))
        return
    if waits > -math.inf:
        before = bounds if waits == math.inf else both(bounds, Interval(high=int(waits)))
        for rows in snapshot.batches(stream, before, prefilter.where, as_seen):
            yield rows, prefilter.kept(rows)
    if waits < math.inf:
        after = bounds if waits == -math.inf else both(bounds, Interval(low=int(waits)))
        yield from ((rows, rows) for rows in snapshot.batches(stream, after, None, as_seen))


def _pushed(
    engine: Engine, history: History, snapshot: Snapshot, stream: str, rows: pyarrow.RecordBatch
) -> list[Match]:
    """Gives rows to the engine, by columns where it takes them so. Their late marks count no more."""
    if history.catalog.streams[stream].rdf:
        return engine.push(_unmarked(each) for each in events_of(stream, rows, snapshot.shape(stream)))
    made = batch_of_rows(rows, stream, engine)
    made.late = None
    return engine.push_batch(made)


def _unmarked(event: Event) -> Event:
    return replace(event, late=False) if event.late else event


def _last_time(rows: pyarrow.RecordBatch) -> int:
    import pyarrow

    found: int = rows.column("ts").cast(pyarrow.int64())[-1].as_py()
    return found


def batch_of_rows(rows: pyarrow.Table | pyarrow.RecordBatch, stream: str, engine: Engine) -> Batch:
    """Rows of the archive, which are records, as a batch for an engine."""
    import pyarrow

    from kaicep.kernel.arrow import batch_of_arrow

    types = dict(engine.catalog.streams[stream].attributes)
    names = rows.schema.names
    if "part" in names or "seq" in names:  # attributes, which are not to be taken for the event's own
        return engine.batch(stream, list(events_of(stream, rows, TableShape(tuple(types.items())))))
    if isinstance(rows, pyarrow.Table):
        (rows,) = rows.combine_chunks().to_batches() or [_nothing(rows.schema)]
    named = rows.rename_columns([{PART: "part", SEQ: "seq"}.get(each, each) for each in names])
    made = batch_of_arrow(named, stream, types, engine.strings)
    marks = rows.column(LATE)
    if marks.true_count:
        made.late = marks.to_numpy(zero_copy_only=False).copy()
    return made


def _nothing(schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([], schema)
