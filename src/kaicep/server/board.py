"""The status of a deployment: its thread writes it, and requests read it without delaying the thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaicep.plan.events import Match

if TYPE_CHECKING:
    from kaicep.deployment.config import Config
    from kaicep.deployment.on_spark import SparkDeployment
    from kaicep.deployment.registered import Registered
    from kaicep.deployment.running import Deployment

_RECENT = 1_000
_WAITING = 10_000
_AT_ONCE = 200
_HEARTBEAT = 10.0
_STALLED = 60.0
_EVERY = 1.0
_SAMPLES = 300
_SMOOTHED = 6


@dataclass(frozen=True)
class Sample:
    """The figures of one second: when it was over, events and matches a second, and the latency.

    The latency of a match is the time in seconds from the look at the sources that brought its last event
    to the moment at which it was out.
    """

    at: float
    events: float
    matches: float
    median: float | None = None
    worst: float | None = None
    """The 99th percentile."""


@dataclass(frozen=True)
class _News:
    """A match, or the end of a query, and its frame of an event stream, made once for all who follow."""

    query: str
    frame: bytes
    match: Match | None = None


class Board:
    """The status of a deployment, its matches of late, and those who follow them."""

    def __init__(self, deployment: Deployment | SparkDeployment) -> None:
        self._deployment = deployment
        self._lock = threading.RLock()
        self._recent: dict[str, tuple[str, deque[Match]]] = {}
        self._followers: list[_Follower] = []
        self._latencies: list[tuple[float, int]] = []
        self._counts: deque[tuple[float, Mapping[tuple[str, str], int]]] = deque(maxlen=_SMOOTHED)
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.versions: deque[tuple[int, float]] = deque(maxlen=_SAMPLES)
        """The versions of the knowledge, and since when each of them counts."""
        self._closed = threading.Event()
        self._sampler = threading.Thread(target=self._sample_on, daemon=True)
        self.closing = False
        deployment.listeners.append(self._take)
        deployment.endings.append(self._over)

    def start(self) -> None:
        """Begins to take samples."""
        self._sampler.start()

    def _take(self, told: Sequence[tuple[str, Match]]) -> None:
        """In the deployment's thread: new matches, each with its session."""
        with self._lock:
            self._latencies.append((time.monotonic() - self._deployment.ticked, len(told)))
            for session, match in told:
                known = self._recent.get(match.query)
                if known is None or known[0] != session:
                    known = self._recent[match.query] = (session, deque(maxlen=_RECENT))
                known[1].append(match)
            if not self._followers:
                return
            self._give([_News(each.query, _frame(each), each) for _, each in told])

    def _over(self, query: str, reason: str) -> None:
        """In the deployment's thread: a query from outside was ended."""
        with self._lock:
            self._give([_News(query, event("ended", {"query": query, "reason": reason}))])

    def _give(self, news: Sequence[_News]) -> None:
        for follower in self._followers:
            follower.give(news)

    # --- samples ---

    def _sample_on(self) -> None:
        while not self._closed.wait(_EVERY):
            self._sample()

    def _sample(self) -> None:
        """Adds what happened since the last time."""
        status, now = self.status, time.time()
        if not status:
            return
        counts = {("streams", name): each["events"] for name, each in status["streams"].items()}
        counts |= {("queries", name): each.get("matches", 0) for name, each in status["queries"].items()}
        version = status["knowledge"]["version"]
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, now))
        with self._lock:
            latencies, self._latencies = self._latencies, []
        before = self._counts[-1] if self._counts else None
        self._counts.append((now, counts))
        if before is not None:
            rates = _rates(before, (now, counts))
            events, matches = (sum(rates[key] for key in rates if key[0] == each) for each in _COUNTED)
            median, worst = (_share(latencies, each) for each in (0.5, 0.99))
            self.samples.append(Sample(now, events, matches, median, worst))

    @property
    def rates(self) -> Mapping[tuple[str, str], float]:
        """Events a second of each of the `streams`, matches a second of each of the `queries`, of late."""
        return _rates(self._counts[0], self._counts[-1]) if len(self._counts) > 1 else {}

    # --- what there is to read ---

    @property
    def status(self) -> dict[str, Any]:
        """How everything was going a moment ago."""
        return self._deployment.published

    @property
    def config(self) -> Config:
        """The deployment as its file describes it."""
        return self._deployment.config

    def registered(self, name: str) -> Registered | None:
        """A registered query, with its text."""
        return self._deployment.catalogue.text(name)

    @property
    def queries(self) -> dict[str, dict[str, Any]]:
        """The queries of the status."""
        found: dict[str, dict[str, Any]] = self.status.get("queries", {})
        return found

    @property
    def is_stalled(self) -> bool:
        """Whether the deployment's thread has not come round for long."""
        return time.monotonic() - self._deployment.ticked > _STALLED

    def recent(self, query: str | None = None) -> list[Match]:
        """The matches of late, of a query or of all, in the order in which they were found."""
        with self._lock:
            if query is not None:
                return list(self._recent[query][1]) if query in self._recent else []
            found = [each for _, some in self._recent.values() for each in some]
        return sorted(found, key=lambda each: (each.end, each.id))

    @property
    def at_work(self) -> bool:
        """Whether the deployment has something to show."""
        return bool(self.status)

    # --- who follows ---

    @property
    def following(self) -> int:
        """How many follow."""
        return len(self._followers)

    async def follow(self, query: str | None, last: int) -> AsyncIterator[bytes]:
        """The matches of a query, or of all, as server-sent events: the last ones so far, and what comes.

        A follower that is too slow misses some, and learns so. All learn when the deployment stops.
        """
        with self._lock:
            follower, recent = self._follower(query)
        try:
            yield b": welcome\n\n" + b"".join(map(_frame, recent[len(recent) - min(last, len(recent)) :]))
            while not (self.closing and not follower.waiting):
                news = await follower.next(_HEARTBEAT)
                if news:
                    yield b"".join(each.frame for each in news)
                if follower.lost:
                    follower.lost = 0
                    yield event("gap", "too slow: some matches were left out")
                if not news:
                    yield b": still here\n\n"
            yield event("end", "the deployment stops")
        finally:
            self._leave(follower)

    async def watch(self, query: str | None, seconds: float) -> AsyncIterator[tuple[list[Match], int]]:
        """The matches that come, as often as that, and how many were left out; ends with the deployment."""
        with self._lock:
            follower, _ = self._follower(query)
        try:
            while not (self.closing and not follower.waiting):
                await asyncio.sleep(seconds)
                news = await follower.next(_HEARTBEAT, _WAITING)
                lost, follower.lost = follower.lost, 0
                yield [each.match for each in news if each.match is not None], lost
        finally:
            self._leave(follower)

    def _follower(self, query: str | None) -> tuple[_Follower, list[Match]]:
        follower = _Follower(query, asyncio.get_running_loop())
        self._followers.append(follower)
        return follower, self.recent(query)

    def _leave(self, follower: _Follower) -> None:
        with self._lock:
            self._followers.remove(follower)

    def close(self) -> None:
        """Ends all followers."""
        self.closing = True
        self._closed.set()
        with self._lock:
            for each in self._followers:
                each.wake()


class _Follower:
    def __init__(self, query: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self.query = query
        self.waiting: deque[_News] = deque()
        self.lost = 0
        self._loop = loop
        self._news = asyncio.Event()

    def give(self, news: Sequence[_News]) -> None:
        for each in news:
            if self.query in (None, each.query):
                if len(self.waiting) < _WAITING:
                    self.waiting.append(each)
                else:
                    self.lost += 1
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def next(self, patience: float, most: int = _AT_ONCE) -> list[_News]:
        """What came, as soon as something has; nothing after a while without."""
        if not self.waiting:
            self._news.clear()
            if not self.waiting:
                try:
                    async with asyncio.timeout(patience):
                        await self._news.wait()
                except TimeoutError:
                    pass
        return [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]


_COUNTED = ("streams", "queries")
_Counts = tuple[float, Mapping[tuple[str, str], int]]


def _rates(before: _Counts, after: _Counts) -> dict[tuple[str, str], float]:
    seconds = max(after[0] - before[0], 1e-3)
    return {key: max(0, count - before[1].get(key, count)) / seconds for key, count in after[1].items()}


def _share(latencies: Sequence[tuple[float, int]], share: float) -> float | None:
    """The latency that this share of the matches did not exceed.

    >>> _share([(0.2, 1), (0.1, 3)], 0.5), _share([(0.2, 1), (0.1, 3)], 0.99), _share([], 0.5)
    (0.1, 0.2, None)
    """
    left = share * sum(count for _, count in latencies)
    for latency, count in sorted(latencies):
        left -= count
        if left <= 0:
            return latency
    return None


def _frame(match: Match) -> bytes:
    return f"id: {match.id}\nevent: match\ndata: {match.to_json()}\n\n".encode()


def event(kind: str, data: Any) -> bytes:
    """A server-sent event.

    >>> event("end", "it stops")
    b'event: end\\ndata: it stops\\n\\n'
    """
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()
