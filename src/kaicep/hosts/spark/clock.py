"""The clock of a stream in Spark: which events are late, and how far every part of the sources has come.

Events meet in buckets, but whether one is late depends on its whole part (semantics 1), and a bucket that
gets no event must still learn that time has passed. So before events are spread, each batch of rows is put
into the order of its positions; every row then knows the latest time before it in the batch (`_prev`), and
each part of a source leaves one row more for all buckets: the stretch of positions (`_chunk` to `_last`) and
the latest time in it. A bucket puts the stretches together and knows as much as if it had seen every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from kaicep.errors import Failure

__all__ = ["CLOCK", "END", "EVENT_ROW", "FOREVER", "NEVER", "Clock", "clocked", "clocked_type"]

EVENT_ROW, CLOCK, END = 0, 1, 2
"""The kinds of rows: an event, how far a part has come, the end of all input."""

NEVER, FOREVER = -(2**63), 2**63 - 1
"""A time before all others, and one after them."""

_MOST_GAPS = 64
"""So many holes in the positions of a batch are told of: each is a row for every bucket."""

Place = tuple[int, int]
"""A part of a source: the number of its stream, and its own."""


def clocked(everybody: Mapping[int, Sequence[int]]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; `everybody` are the buckets that a stream's time matters to."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if rows.num_rows:
                yield _with_clock(rows, everybody)

    return work


def clocked_type(rows: DataFrame) -> str:
    """The columns of the rows that `clocked` makes of these."""
    fields = [f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields]
    return ", ".join([*fields, "_prev bigint", "_chunk bigint", "_last bigint"])


def _with_clock(rows: pa.RecordBatch, everybody: Mapping[int, Sequence[int]]) -> pa.RecordBatch:
    stream, part, seq, ts, kind = _numbers(rows, "_stream", "_part", "_seq", "_ts", "_kind")
    order = np.lexsort((seq, part, stream, kind))
    stream, part, seq, ts, kind = (each[order] for each in (stream, part, seq, ts, kind))
    prev, chunk = np.full(len(ts), NEVER), seq.copy()
    borders = (np.diff(stream) != 0) | (np.diff(part) != 0) | (np.diff(kind) != 0)
    edges = np.flatnonzero(borders | _wide_gaps(seq, borders)) + 1
    marks: list[dict[str, Any]] = []
    for low, high in zip([0, *edges], [*edges, len(ts)], strict=True):
        if kind[low] != EVENT_ROW:
            continue
        latest = np.maximum.accumulate(ts[low:high])
        prev[low + 1 : high] = latest[:-1]
        chunk[low:high] = seq[low]
        mark = {"_stream": stream[low], "_part": part[low], "_seq": seq[low], "_ts": latest[-1]}
        mark |= {"_kind": CLOCK, "_chunk": seq[low], "_last": seq[high - 1], "_prev": NEVER}
        marks.append({**mark, "_to": list(everybody[int(stream[low])])})
    kept = rows.take(pa.array(order))
    for name, values in (("_prev", prev), ("_chunk", chunk), ("_last", seq)):
        kept = kept.append_column(name, pa.array(values, pa.int64()))
    kept = kept.filter(pc.greater(pc.list_value_length(kept.column("_to")), 0))
    together = pa.Table.from_batches([kept, pa.RecordBatch.from_pylist(marks, kept.schema)])
    return together.combine_chunks().to_batches()[0]


def _wide_gaps(seq: Any, borders: Any) -> Any:
    """After which positions some are missing, if not too many: another task may have these.

    Spark may give a task the first and the third file of a part, and another task the second.
    """
    steps = np.where(borders, 0, np.diff(seq))
    wide = steps > 1
    if np.count_nonzero(wide) > _MOST_GAPS:
        wide &= steps > np.partition(steps, -_MOST_GAPS)[-_MOST_GAPS]
    return wide


def _numbers(rows: pa.RecordBatch, *names: str) -> list[Any]:
    return [rows.column(name).to_numpy(zero_copy_only=False) for name in names]


def _places(stream: Any, part: Any, kind: Any) -> list[Place]:
    """The parts of sources that events came from; there is mostly one."""
    events = kind == EVENT_ROW
    return [
        (int(source), int(each))
        for source in np.unique(stream[events])
        for each in np.unique(part[events & (stream == source)])
    ]


class Clock:
    """How far every part of the sources has come, as a bucket knows it, and when it was heard of last.

    With `idle` (milliseconds), a part that has been silent for so long holds nobody back (semantics 1).
    """

    def __init__(
        self,
        lateness: int,
        waits: Sequence[Place],
        latest: Mapping[Place, int] | None = None,
        idle: int | None = None,
        heard: Mapping[Place, int] | None = None,
    ) -> None:
        self.lateness = lateness
        self.idle = idle
        self.latest: dict[Place, int] = {**dict.fromkeys(waits, NEVER), **(latest or {})}
        self.heard: dict[Place, int] = dict(heard or {})
        self.now = max(self.heard.values(), default=0)

    def late(self, rows: pa.RecordBatch, now: int = 0) -> Any:
        """Which of the rows of one batch are late, as an array of truth; takes note of all of them.

        The rows are a bucket's, as `clocked` sends them. `now` is the time of the batch on the clock on the
        wall, in milliseconds.
        """
        self._begin(now)
        stream, part, ts, kind, prev, chunk, last = _numbers(
            rows, "_stream", "_part", "_ts", "_kind", "_prev", "_chunk", "_last"
        )
        before = np.full(len(ts), NEVER)
        marks = np.flatnonzero(kind == CLOCK)
        for place in sorted({(int(stream[each]), int(part[each])) for each in marks}):
            own = sorted(
                (int(chunk[each]), int(last[each]), int(ts[each]))
                for each in marks
                if (stream[each], part[each]) == place
            )
            lows, highs, times = np.array(own).T
            if np.any(lows[1:] <= highs[:-1]):
                raise Failure(
                    "the rows of one part of the source come in several orders: match them before they are "
                    "repartitioned, and let a micro-batch of small files be one task"
                )
            newest = np.maximum.accumulate(np.concatenate(([self.latest.get(place, NEVER)], times)))
            here = (stream == place[0]) & (part == place[1]) & (kind == EVENT_ROW)
            before[here] = newest[np.searchsorted(lows, chunk[here])]
            self.latest[place], self.heard[place] = int(newest[-1]), now
        newest = np.maximum(before, prev)
        return (newest != NEVER) & (ts < newest - self.lateness)

    def late_of_all(self, rows: pa.RecordBatch, now: int = 0) -> Any:
        """The same, where the rows are all that a batch has, as they came from Spark, in any order."""
        self._begin(now)
        stream, part, seq, ts, kind = _numbers(rows, "_stream", "_part", "_seq", "_ts", "_kind")
        late = np.zeros(len(ts), bool)
        for place in _places(stream, part, kind):
            here = np.flatnonzero((stream == place[0]) & (part == place[1]) & (kind == EVENT_ROW))
            if np.any(np.diff(seq[here]) < 0):
                here = here[np.argsort(seq[here], kind="stable")]
            newest = np.maximum.accumulate(np.concatenate(([self.latest.get(place, NEVER)], ts[here])))
            late[here] = (newest[:-1] != NEVER) & (ts[here] < newest[:-1] - self.lateness)
            self.latest[place], self.heard[place] = int(newest[-1]), now
        return late

    def _begin(self, now: int) -> None:
        self.now = now
        for place in self.latest:
            self.heard.setdefault(place, now)  # nobody is silent before there was a batch

    @property
    def watermark(self) -> int | None:
        """No event that is not late can be below this; None where nothing is known.

        Where all parts are silent, the furthest of them counts.
        """
        silent = [place for place in self.latest if self._is_silent(place)]
        active = [ts for place, ts in self.latest.items() if place not in silent]
        least = min(active) if active else max((self.latest[each] for each in silent), default=NEVER)
        return None if least == NEVER else least - self.lateness

    def _is_silent(self, place: Place) -> bool:
        return self.idle is not None and self.now - self.heard.get(place, self.now) >= self.idle
