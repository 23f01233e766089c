"""A web address as a sink, at least once: matches are posted, some at a time, one JSON object a line.

Each has its id, by which the other side knows one that comes again. An answer of 2xx means that they
arrived; anything that may pass (no connection, 408, 429, 5xx) is tried again, at growing intervals.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice
from urllib.parse import urlsplit

from kaicep.connectors.contract import Guarantee, Mark, Sink
from kaicep.connectors.registry import Count, Duration, Variable, secret
from kaicep.errors import Failure, Mistake
from kaicep.plan.events import Match

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
_ANSWER, _SHORTEST_ANSWER = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where to post to, how many matches at a time, and for how long a commit keeps trying.

    `token` names an environment variable; what it holds is sent as a bearer token.
    """

    url: str
    token: Variable | None = None
    batch: Count = Count(500)
    patience: Duration = Duration(300_000_000)


class _Passing(Exception):
    """A reason to try again, and how long the other side asks to wait."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class WebhookSink(Sink):
    """Posts matches to a web address."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, name: str, options: WebhookOptions) -> None:
        self._where = f"sink {name}"
        self._options = options
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = "write it as https://host/path"
            raise Mistake(f"{self._where}: url: {options.url} is not a web address", hint=hint)
        if parts.username or parts.password:
            hint = "name an environment variable that holds a token instead: token = ..."
            raise Mistake(f"{self._where}: url: do not put a password into the file", hint=hint)
        self._parts = parts
        self._place = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Content-Type": "application/x-ndjson", "User-Agent": "kaicep"}
        if (token := secret(options.token, self._where)) is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: HTTPConnection | None = None
        self._waiting: deque[Match] = deque()
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why matches wait."""
        return self._trouble

    def open(self) -> None:
        """Makes ready; the first connection is made when there is something to send."""
        self._waiting.clear()

    def write(self, matches: Sequence[Match]) -> None:
        """Takes matches; they are sent with the next commit."""
        self._waiting.extend(matches)

    def commit(self, mark: Mark) -> None:
        """Sends everything, and keeps trying for as long as its patience lasts."""
        deadline = time.monotonic() + self._options.patience / 1_000_000
        wait = _FIRST_WAIT
        while self._waiting:
            some = list(islice(self._waiting, self._options.batch))
            try:
                answer = max(_SHORTEST_ANSWER, min(_ANSWER, deadline - time.monotonic()))
                self._post(b"".join(each.to_json().encode() + b"\n" for each in some), answer)
            except _Passing as passing:
                self._trouble = f"{self._place}: {passing}"
                pause = max(passing.wait, wait * random.uniform(0.5, 1.0))
                if time.monotonic() + pause > deadline:
                    raise Failure(
                        f"{self._where}: {len(self._waiting)} matches could not be sent: {self._trouble}"
                    ) from None
                time.sleep(pause)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                self._trouble, wait = None, _FIRST_WAIT
                for _ in some:
                    self._waiting.popleft()

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes, patience: float) -> None:
        """One try."""
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        try:
            if self._connection is None:
                kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
                self._connection = kind(self._parts.hostname or "", self._parts.port)
            self._connection.timeout = patience  # for one that is still to be made
            if self._connection.sock is not None:
                self._connection.sock.settimeout(patience)
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise _Passing(f"no connection: {error}") from None
        if 200 <= answer.status < 300:
            return
        said = f"it answered {answer.status} {answer.reason}"
        if answer.status in (408, 429) or answer.status >= 500:
            after = answer.getheader("Retry-After") or ""
            raise _Passing(said, float(after) if after.isdigit() else 0.0)
        raise Failure(f"{self._where}: {self._place}: {said}; {len(self._waiting)} matches are kept")
