"""Events that come in by HTTP: what a request may hold, and what it is answered."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass

from kaicep.connectors.listening import Reply
from kaicep.connectors.log import Log
from kaicep.connectors.records import json_object
from kaicep.errors import Failure

__all__ = ["Intake", "Limits"]

_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_RETRY = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a request may be, how many events it may hold, how many may wait to be read."""

    request: int = 10 << 20
    events: int = 10_000
    backlog: int = 100_000


class _Bad(ValueError):
    """A body that holds no events, with the reason."""


class Intake:
    """Takes events in: checks a request, writes its events to the log, and only then says 200."""

    def __init__(self, log: Log, limits: Limits, backlog: Callable[[], int], token: str | None) -> None:
        self._log = log
        self._limits = limits
        self._backlog = backlog
        self._token = token

    def refuse(self, authorization: str | None) -> Reply | None:
        """An answer that can be given before the body is read; None where it is welcome."""
        if self._token is not None:
            given = (authorization or "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self._token.encode()):
                return Reply(401, {"error": "the token is missing or wrong"}, {"WWW-Authenticate": "Bearer"})
        if (waiting := self._backlog()) >= self._limits.backlog:
            return Reply(429, {"error": f"{waiting} events wait to be read: try again later"}, _RETRY)
        return None

    def take(self, body: bytes, content_type: str | None) -> Reply:
        """The answer to a body: one JSON object, a list of them, or one on every line."""
        kind = (content_type or "").split(";")[0].strip().lower()
        try:
            events = _lines(body) if kind in _LINES else _events(body)
        except _Bad as bad:
            return Reply(400, {"error": str(bad)})
        if len(events) > self._limits.events:
            most = self._limits.events
            return Reply(413, {"error": f"{len(events)} events are too many: a request has at most {most}"})
        if not events:
            return Reply(200, {"accepted": 0})
        try:
            seqs = self._log.append(events)
        except Failure as failure:
            return Reply(503, {"error": str(failure)}, _RETRY)
        return Reply(200, {"accepted": len(events), "first": seqs.start, "next": seqs.stop})


def _lines(body: bytes) -> list[bytes]:
    events = []
    for number, raw in enumerate(body.split(b"\n"), 1):
        if raw.strip():
            fields, reason = json_object(raw)
            if fields is None:
                raise _Bad(f"line {number}: {reason}")
            events.append(raw.strip())
    return events


def _events(body: bytes) -> list[bytes]:
    """The events of a JSON document, each as its own text."""
    if not body.lstrip().startswith(b"["):
        fields, reason = json_object(body.strip())
        if fields is None:
            raise _Bad(reason)
        return [json.dumps(fields).encode()]
    try:
        values = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise _Bad(f"not JSON: {error}") from None
    for number, each in enumerate(values, 1):
        if not isinstance(each, dict):
            raise _Bad(f"event {number}: not a JSON object")
    return [json.dumps(each).encode() for each in values]
