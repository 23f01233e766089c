"""The progress of a session's streams: Spark's own, and the matches of kaicep's queries.

A stream of `match` carries its figures as observed metrics, which every listener of Spark's gets, under
Connect too. The matches of `deliver` are counted where its function is called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kaicep.plan.events import Match
from kaicep.plan.time import format_time

_NAME, _MATCHES, _LAST = "kaicep", "matches of ", "last of "


@dataclass
class Found:
    """How many matches of a query there were, and when the last one ended, in microseconds."""

    matches: int = 0
    last: int | None = None

    def add(self, matches: int, last: int | None) -> None:
        """MatchCounts some more."""
        self.matches += matches
        if last is not None:
            self.last = last if self.last is None else max(self.last, last)


class MatchCounts(dict[str, Found]):
    """What was found, by query."""

    def count(self, matches: Iterable[Match]) -> None:
        """MatchCounts the matches of a micro-batch."""
        for each in matches:
            self.setdefault(each.query, Found()).add(1, each.end_us)


DELIVERED: dict[str, MatchCounts] = {}
"""What `deliver` gave to the functions of this process, by the id of the run of the stream."""


def observed(found: DataFrame, names: Iterable[str]) -> DataFrame:
    """Rows of matches, whose number and last end Spark reports by query with every micro-batch."""
    figures = []
    for name in names:
        own = sf.when(sf.col("query") == sf.lit(name), sf.col("end"))
        figures += [sf.count(own).alias(_MATCHES + name), sf.max(own).alias(_LAST + name)]
    # One plan cannot have two metrics of one name, and a user may join the matches of two calls.
    return found.observe(f"{_NAME} {uuid4().hex[:8]}", *figures)


@dataclass
class _Stream:
    """A stream of the session, as far as it was heard of."""

    id: str
    name: str | None
    state: str = "starting"
    problem: str | None = None
    events: int = 0
    newest: Mapping[str, Any] = field(default_factory=dict)
    found: MatchCounts = field(default_factory=MatchCounts)


class Watch(StreamingQueryListener):
    """What is known of the streams of a session; `print` shows it, `status` gives it as numbers.

    It hears of streams that start after it.
    """

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A stream has started."""
        with self._lock:
            self._streams[str(event.runId)] = _Stream(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is done."""
        progress = event.progress
        with self._lock:
            stream = self._known(progress.runId, progress.id)
            stream.state, stream.newest = "running", progress
            stream.events += progress.numInputRows or 0
            for name, row in progress.observedMetrics.items():
                if name.startswith(f"{_NAME} "):
                    _add(stream.found, row.asDict())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """A stream has nothing to do."""
        with self._lock:
            self._known(event.runId, event.id).state = "idle"

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A stream was stopped, or has failed."""
        with self._lock:
            stream = self._known(event.runId, event.id)
            stream.problem = _problem_in(event.exception or "")
            stream.state = "stopped" if stream.problem is None else "failed"

    def _known(self, run: Any, id: Any) -> _Stream:
        return self._streams.setdefault(str(run), _Stream(str(id), None))

    def status(self) -> dict[str, dict[str, Any]]:
        """How each stream is doing, by its name or its id; of one that was started again, the newest run."""
        with self._lock:
            return {each.name or each.id: _figures(run, each) for run, each in self._streams.items()}

    def __str__(self) -> str:
        return "\n".join(_lines(self.status())) or "no stream has started"


def _problem_in(text: str) -> str | None:
    """The line of a stack trace that says what is wrong: what Python raised, where it was Python.

    >>> _problem_in("Py4J: Traceback (most recent call last):\\n  File a.py\\nOSError: full\\n at x")
    'OSError: full'
    """
    _, _, raised = text.partition("Traceback (most recent call last):")
    lines = [line for line in (raised or text).splitlines() if line.strip() and line[0] != " "]
    return lines[0].strip() if lines else None


def _add(found: MatchCounts, row: Mapping[str, Any]) -> None:
    for column, count in row.items():
        if column.startswith(_MATCHES):
            name = column.removeprefix(_MATCHES)
            found.setdefault(name, Found()).add(int(count), row.get(_LAST + name))


def _figures(run: str, stream: _Stream) -> dict[str, Any]:
    newest = stream.newest
    found = DELIVERED.get(run, stream.found)
    return {
        "state": stream.state,
        "problem": stream.problem,
        "batch": newest.get("batchId"),
        "events": stream.events,
        "rate": newest.get("processedRowsPerSecond"),
        "took": newest["batchDuration"] / 1_000 if newest else None,
        "state_bytes": sum(each.memoryUsedBytes for each in newest.get("stateOperators", ())),
        "sources": {each.description: each.endOffset for each in newest.get("sources", ())},
        "queries": {
            name: {"matches": each.matches, "last": None if each.last is None else format_time(each.last)}
            for name, each in found.items()
        },
    }


def _lines(status: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, each in status.items():
        yield f"stream {name}: {each['state']}, {each['events']:,} events"
        if each["took"] is not None:
            rate = f", {each['rate']:,.0f} events/s" if each["rate"] else ""
            yield f"  micro-batch {each['batch']} took {each['took']:,.2f} s{rate}"
        for query, found in each["queries"].items():
            last = f", the last at {found['last']}" if found["last"] else ""
            yield f"  query {query}: {found['matches']:,} matches{last}"
        if each["problem"]:
            yield f"  problem: {each['problem']}"
