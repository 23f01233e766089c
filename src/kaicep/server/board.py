"""What a deployment has to show: its thread puts it here, and whoever asks reads it without disturbing it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from kaicep.plan.events import Match

if TYPE_CHECKING:
    from kaicep.endtoend.deployment import Deployment

__all__ = ["Board", "event"]

_RECENT = 1_000
_WAITING = 10_000
_AT_ONCE = 200
_HEARTBEAT = 10.0
_STALLED = 60.0


class Board:
    """The status of a deployment, its matches of late, and those who follow them."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._lock = threading.RLock()
        self._recent: dict[str, tuple[str, deque[Match]]] = {}
        self._followers: list[_Follower] = []
        self.closing = False
        deployment.listeners.append(self._take)

    def _take(self, told: Sequence[tuple[str, Match]]) -> None:
        """In the deployment's thread: new matches, each with its session."""
        with self._lock:
            for session, match in told:
                known = self._recent.get(match.query)
                if known is None or known[0] != session:
                    known = self._recent[match.query] = (session, deque(maxlen=_RECENT))
                known[1].append(match)
            if not self._followers:
                return
            frames = [(each.query, _frame(each)) for _, each in told]
            for follower in self._followers:
                follower.give(frames)

    # --- what there is to read ---

    @property
    def status(self) -> dict[str, Any]:
        """How everything was going a moment ago."""
        return self._deployment.published

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

    # --- who follows ---

    @property
    def following(self) -> int:
        """How many follow."""
        return len(self._followers)

    async def follow(self, query: str | None, last: int) -> AsyncIterator[bytes]:
        """The matches of a query, or of all, as server-sent events: the last ones so far, and what comes.

        Whoever is too slow misses some, and is told so. All are told when the deployment stops.
        """
        follower = _Follower(query, asyncio.get_running_loop())
        with self._lock:
            recent = self.recent(query)
            self._followers.append(follower)
        try:
            yield b": welcome\n\n" + b"".join(map(_frame, recent[len(recent) - min(last, len(recent)) :]))
            while not (self.closing and not follower.waiting):
                frames = await follower.next()
                if frames or follower.lost:
                    yield b"".join(frames)
                if follower.lost:
                    follower.lost = False
                    yield event("gap", "too slow: some matches were left out")
                if not frames:
                    yield b": still here\n\n"
            yield event("end", "the deployment stops")
        finally:
            with self._lock:
                self._followers.remove(follower)

    def close(self) -> None:
        """Lets all who follow come to their end."""
        self.closing = True
        with self._lock:
            for each in self._followers:
                each.wake()


class _Follower:
    def __init__(self, query: str | None, loop: asyncio.AbstractEventLoop) -> None:
        self.query = query
        self.waiting: deque[bytes] = deque()
        self.lost = False
        self._loop = loop
        self._news = asyncio.Event()

    def give(self, frames: Sequence[tuple[str, bytes]]) -> None:
        for query, frame in frames:
            if self.query in (None, query):
                if len(self.waiting) < _WAITING:
                    self.waiting.append(frame)
                else:
                    self.lost = True
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def next(self) -> list[bytes]:
        """What came, as soon as something has; nothing after a while without."""
        if not self.waiting:
            self._news.clear()
            if not self.waiting:
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await self._news.wait()
                except TimeoutError:
                    pass
        return [self.waiting.popleft() for _ in range(min(_AT_ONCE, len(self.waiting)))]


def _frame(match: Match) -> bytes:
    return f"id: {match.id}\nevent: match\ndata: {match.to_json()}\n\n".encode()


def event(kind: str, data: Any) -> bytes:
    """A server-sent event.

    >>> event("end", "it stops")
    b'event: end\\ndata: it stops\\n\\n'
    """
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()
