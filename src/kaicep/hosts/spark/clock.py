"""The clock of a stream in Spark: which events are late, and how far each source partition has come.

Events meet in buckets, but whether one is late depends on its whole part (semantics 1), and a bucket that
gets no event must still learn that time has passed. So before events are spread, every row learns the latest
time before it in its batch of rows (`_prev`), and each batch leaves one row more for all buckets, for every
part in it: its *runs* (`_runs`), which are ranges of positions without a gap, with the latest time in each.
No other batch has a position inside of a run, however the rows of a part are spread over tasks. So a bucket
that puts all runs together knows as much as if it had seen every event. Runs overlap where a position comes
twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kaicep.errors import Failure

EVENT_ROW, CLOCK, END = 0, 1, 2
"""The kinds of rows: an event, how far a part has come, the end of all input."""

NEVER, FOREVER = -(2**63), 2**63 - 1
"""A time before all others, and one after them."""

_ABOUT = ("_stream", "_part", "_seq", "_kind", "_prev", "_runs", "_target", "_to")
"""The columns of a row that are not the content of its event."""

Place = tuple[int, int]
"""A part of a source: the number of its stream, and its own."""


def clocked(everybody: Mapping[int, Sequence[int]]) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; `everybody` are the buckets that a stream's time matters to."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if rows.num_rows:
                yield _with_clock(rows, everybody)

    return work


ABOUT = (("_prev", pa.int64()), ("_runs", pa.binary()))
"""The columns that `clocked` adds."""


def _with_clock(rows: pa.RecordBatch, everybody: Mapping[int, Sequence[int]]) -> pa.RecordBatch:
    stream, part, seq, ts, kind = _numbers(rows, "_stream", "_part", "_seq", "_ts", "_kind")
    order = np.lexsort((seq, part, stream, kind))
    stream, part, seq, ts, kind = (each[order] for each in (stream, part, seq, ts, kind))
    prev = np.full(len(ts), NEVER)
    borders = np.flatnonzero((np.diff(stream) != 0) | (np.diff(part) != 0) | (np.diff(kind) != 0)) + 1
    marks: list[dict[str, Any]] = []
    for low, high in zip([0, *borders], [*borders, len(ts)], strict=True):
        if kind[low] != EVENT_ROW:
            continue
        latest = np.maximum.accumulate(ts[low:high])
        prev[low + 1 : high] = latest[:-1]
        mark = {"_stream": stream[low], "_part": part[low], "_seq": seq[low], "_ts": latest[-1]}
        mark |= {"_kind": CLOCK, "_prev": NEVER, "_runs": _packed(seq[low:high], ts[low:high])}
        marks.append({**mark, "_to": list(everybody[int(stream[low])])})
    kept = rows.take(pa.array(order)).append_column("_prev", pa.array(prev, pa.int64()))
    kept = kept.append_column("_runs", pa.nulls(len(ts), pa.binary()))
    kept = kept.filter(pc.greater(pc.list_value_length(kept.column("_to")), 0))
    together = pa.Table.from_batches([kept, pa.RecordBatch.from_pylist(marks, kept.schema)])
    return together.combine_chunks().to_batches()[0]


def _packed(seq: Any, ts: Any) -> bytes:
    """The runs of positions in ascending order; many of them differ by little, and become small."""
    begins = np.flatnonzero(np.diff(seq, prepend=seq[0] - 2) != 1)
    ends = np.append(begins[1:], len(seq)) - 1
    runs = np.stack([seq[begins], seq[ends], np.maximum.reduceat(ts, begins)])
    return zlib.compress(np.diff(runs, prepend=0).tobytes(), 1)


def _unpacked(runs: Sequence[bytes]) -> Any:
    """The runs of several batches: first position, last position and latest time, by last position."""
    some = [np.frombuffer(zlib.decompress(each), np.int64).reshape(3, -1).cumsum(1) for each in runs]
    every = np.concatenate(some, 1)
    return every[:, np.lexsort((every[0], every[1]))]


def _repeated(lows: Any, lasts: Any) -> tuple[Any, Any]:
    """The positions that are in several runs, in ascending order, and in how many."""
    edges, place = np.unique(np.concatenate((lows, lasts + 1)), return_inverse=True)
    steps = np.zeros(len(edges), np.int64)
    np.add.at(steps, place, np.repeat([1, -1], len(lows)))
    cover = np.cumsum(steps)
    many = np.flatnonzero(cover > 1)
    ranges = [np.arange(edges[each], edges[each + 1]) for each in many]
    return np.concatenate([np.empty(0, np.int64), *ranges]), np.repeat(cover[many], [len(r) for r in ranges])


def _numbers(rows: pa.RecordBatch, *names: str) -> list[Any]:
    return [rows.column(name).to_numpy(zero_copy_only=False) for name in names]


def _places(stream: Any, part: Any, some: Any) -> list[Place]:
    """The parts of sources that some of the rows are of; there is mostly one."""
    return [
        (int(source), int(each))
        for source in np.unique(stream[some])
        for each in np.unique(part[some & (stream == source)])
    ]


class StreamClock:
    """How far every part of the sources has come, as a bucket knows it, and when it was heard of last.

    With `idle` (milliseconds), a part that has been silent for so long holds nobody back (semantics 1).
    `latest` is the largest time of each part, `reached` its largest position; `names` are those of streams.
    """

    def __init__(
        self,
        lateness: int,
        waits: Sequence[Place],
        latest: Mapping[Place, int] | None = None,
        idle: int | None = None,
        heard: Mapping[Place, int] | None = None,
        reached: Mapping[Place, int] | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        self.lateness = lateness
        self.idle = idle
        self.latest: dict[Place, int] = {**dict.fromkeys(waits, NEVER), **(latest or {})}
        self.heard: dict[Place, int] = dict(heard or {})
        self.reached: dict[Place, int] = dict(reached or {})
        self.names = names or {}
        self.now = max(self.heard.values(), default=0)

    def judge(self, rows: pa.RecordBatch, now: int = 0) -> tuple[Any, Any]:
        """Which of the rows of one batch are late, and which repeat another, as arrays of truth.

        The rows are a bucket's, as `clocked` sends them. `now` is the time of the batch on the clock on the
        wall, in milliseconds.
        """
        self._begin(now)
        stream, part, seq, ts, kind, prev = _numbers(
            rows, "_stream", "_part", "_seq", "_ts", "_kind", "_prev"
        )
        before, again = prev.copy(), np.zeros(len(ts), bool)
        packed = rows.column("_runs")
        for place in _places(stream, part, kind == CLOCK):
            own = (stream == place[0]) & (part == place[1])
            marks = packed.filter(pa.array(own & (kind == CLOCK))).to_pylist()
            lows, lasts, times = _unpacked(marks)
            newest = np.maximum.accumulate(np.concatenate(([self.latest.get(place, NEVER)], times)))
            here = np.flatnonzero(own & (kind == EVENT_ROW))
            before[here] = np.maximum(prev[here], newest[np.searchsorted(lasts, seq[here])])
            positions, counts = _repeated(lows, lasts)
            for position, count in zip(positions.tolist(), counts.tolist(), strict=True):
                copies = here[seq[here] == position]
                # Only the batch that a copy came with knows what stood before it there.
                before[copies] = before[copies].max(initial=NEVER)
                again[copies[1:]] = self._same(rows, place, position, copies, count)
            self._come(place, int(lows.min()), int(lasts[-1]), int(newest[-1]))
        return (before != NEVER) & (ts < before - self.lateness), again

    def judge_all(self, rows: pa.RecordBatch, now: int = 0) -> tuple[Any, Any]:
        """The same, where the rows are all that a batch has, as they came from Spark, in any order."""
        self._begin(now)
        stream, part, seq, ts, kind = _numbers(rows, "_stream", "_part", "_seq", "_ts", "_kind")
        late, again = np.zeros(len(ts), bool), np.zeros(len(ts), bool)
        for place in _places(stream, part, kind == EVENT_ROW):
            here = np.flatnonzero((stream == place[0]) & (part == place[1]) & (kind == EVENT_ROW))
            steps = np.diff(seq[here])
            if np.any(steps < 0):
                here = here[np.argsort(seq[here], kind="stable")]
                steps = np.diff(seq[here])
            for position in np.unique(seq[here][1:][steps == 0]).tolist():
                copies = here[seq[here] == position]
                again[copies[1:]] = self._same(rows, place, position, copies, len(copies))
            newest = np.maximum.accumulate(np.concatenate(([self.latest.get(place, NEVER)], ts[here])))
            late[here] = (newest[:-1] != NEVER) & (ts[here] < newest[:-1] - self.lateness)
            self._come(place, int(seq[here[0]]), int(seq[here[-1]]), int(newest[-1]))
        return late, again

    def _same(self, rows: pa.RecordBatch, place: Place, position: int, copies: Any, count: int) -> bool:
        """True, unless copies of an event have different content; those of one content are all together."""
        if len(copies):
            content = [name for name in rows.schema.names if name not in _ABOUT]
            some = rows.select(content).take(pa.array(copies)).to_pylist()
            if len(copies) < count or any(each != some[0] for each in some):
                raise Failure(f"{self._named(place, position)} comes several times, with different content")
        return True

    def _come(self, place: Place, first: int, last: int, ts: int) -> None:
        """Takes note of the positions and the largest time that a batch has of a part."""
        before = self.reached.get(place)
        if before is not None and first <= before:
            raise Failure(
                f"{self._named(place, first)} comes after position {before}, which an earlier micro-batch "
                "had: from one to the next, the positions of a source partition have to grow. Rows that come "
                "again can be removed with dropDuplicates"
            )
        self.latest[place], self.heard[place], self.reached[place] = ts, self.now, last

    def _named(self, place: Place, position: int) -> str:
        stream, part = place
        return f"position {position} of part {part} of {self.names.get(stream, stream)}"

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
