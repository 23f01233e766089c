"""Runs queries over columns, and says what came out: the one way that every pattern benchmark runs kaicep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kaicep as kai
from kaicep.hosts.queries import Listed
from kaicep.kernel.columns import Matches, Refs
from kaicep.plan.events import Match
from kaicep.reference import evaluate
from kaicep_bench.data import STREAM, Columns, arrow_batches, events, mix
from kaicep_bench.memory import Peak

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Result", "Tally", "compiled", "engine_of", "run_reference", "run_columns"]

_SEED = np.uint64(0x9E3779B97F4A7C15)
_TYPES = {"sensorID": "string", "flowrate": "float64"}


@dataclass(frozen=True)
class Result:
    """What a run found: how many matches, their checksum, the seconds, the bytes that it held at most."""

    matches: int
    checksum: int
    seconds: float
    memory: int = 0


class Tally:
    """Takes matches as they come, and adds up how many there are and a checksum of them.

    That is a hash of each match, of its sensor and its events from left to right, summed up over 64 bits:
    the same in whatever order the matches come. The peers do the same arithmetic. NumPy needs more time
    for it than the engine may for the match, so that `seconds` has what was spent here.
    """

    def __init__(self, data: Columns) -> None:
        self.matches = 0
        self.checksum = 0
        self.seconds = 0.0
        self._sensors = data.sensor

    def take(self, matches: Matches | Listed) -> None:
        """Takes a chunk of matches, in columns or one by one."""
        started = time.perf_counter()
        if isinstance(matches, Matches):
            self._columns(list(matches.events.values()))
        else:
            self._rows(matches)
        self.seconds += time.perf_counter() - started

    def _columns(self, places: list[Refs]) -> None:
        words = mix(self._sensors[places[0].seq].astype(np.uint64) ^ _SEED)
        for refs in places:
            if refs.offsets is None:
                words = np.where(refs.place < 0, words, _with(words, refs.seq))
            else:
                starts, counts = refs.offsets[:-1], np.diff(refs.offsets)
                for turn in range(int(counts.max(initial=0))):
                    there = counts > turn
                    words[there] = _with(words[there], refs.seq[starts[there] + turn])
        self.matches += len(words)
        self.checksum = (self.checksum + int(words.sum(dtype=np.uint64))) % 2**64

    def _rows(self, matches: Iterable[Match]) -> None:
        by_length: dict[int, list[list[int]]] = {}
        for match in matches:
            shown: list[Any] = list((match.events or {}).values())
            bound = [each for some in shown for each in (some if isinstance(some, list) else [some])]
            by_length.setdefault(len(bound), []).append([each["seq"] for each in bound])
        for rows in by_length.values():
            self.positions(rows)

    def positions(self, rows: Sequence[Sequence[int]] | NDArray[np.int64]) -> None:
        """Takes matches of as many events each, by the positions of these."""
        there = np.zeros(len(rows), np.int64)
        self._columns([Refs(there, there, seqs) for seqs in np.asarray(rows).T])


def _with(words: NDArray[np.uint64], seqs: NDArray[Any]) -> NDArray[np.uint64]:
    return mix(words ^ seqs.astype(np.uint64))


def compiled(texts: str | Mapping[str, str], **known: Any) -> kai.Query:
    """A query over the data sets, or several by name; with knowledge and annotations, if it needs them."""
    return kai.compile(texts, streams={STREAM: _TYPES}, **known)


def engine_of(query: kai.Query, tally: Tally) -> kai.Engine:
    """An engine for events in order, whose matches are tallied."""
    return kai.Engine(query, lateness=0, on_matches=tally.take)


def run_columns(query: kai.Query, data: Columns, batch: int = 65_536) -> Result:
    """Runs queries over the data, every match taken in hand; engine and input are made before time counts."""
    tally = Tally(data)
    engine = engine_of(query, tally)
    batches = list(arrow_batches(data, batch))
    with Peak() as peak:
        started = time.perf_counter()
        for each in batches:
            engine.push(each)
        engine.finish()
        seconds = time.perf_counter() - started
    return Result(tally.matches, tally.checksum, seconds - tally.seconds, peak.bytes)


def run_reference(query: kai.Query, data: Columns) -> Result:
    """The same by the reference, which is slow."""
    tally = Tally(data)
    started = time.perf_counter()
    rows = evaluate(query, [list(events(data))])
    seconds = time.perf_counter() - started
    tally.take(Listed("reference", rows))
    return Result(tally.matches, tally.checksum, seconds)
