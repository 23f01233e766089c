"""The other side: asks a running deployment, which is found by its state folder."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from kaicep.endtoend.config import Config, read_token
from kaicep.errors import Diagnostic, Failure, Mistake
from kaicep.server.service import ADDRESS

__all__ = ["Client"]

_PATIENCE = 40.0


class Client:
    """Asks the deployment of a configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._headers = {}
        token = read_token(config.listen)
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            self._url = urlsplit(json.loads((config.state / ADDRESS).read_bytes())["url"])
        except (OSError, ValueError, KeyError):
            raise self._absent() from None

    def _absent(self) -> Failure:
        return Failure(f"{self._config.name} is not running: start it with kaicep run {self._config.path}")

    @property
    def url(self) -> str:
        """Where the deployment listens; a `Failure` if nothing answers there."""
        self._ask("/health").read()
        return f"http://{self._url.netloc}"

    def status(self) -> dict[str, Any]:
        """How everything is going."""
        with_body = self._ask("/status")
        found: dict[str, Any] = json.loads(with_body.read())
        return found

    def register(self, name: str, language: str, text: str) -> None:
        """Registers a query, or another text of it; a `Mistake` with what is wrong with it."""
        self._ask(f"/queries/{quote(name, safe='')}?language={language}", text.encode()).read()

    def remembered(self, id: str) -> list[dict[str, Any]]:
        """Recent matches whose id begins with this."""
        found: dict[str, Any] = json.loads(self._ask(f"/matches/{quote(id, safe='')}").read())
        return list(found["matches"])

    def matches(self, query: str, last: int) -> Iterator[str]:
        """The matches of a query as lines of JSON, the last ones so far first, until the deployment stops."""
        answer = self._ask(f"/queries/{quote(query, safe='')}/matches?last={last}")
        kind = ""
        while line := answer.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind == "match":
                yield value
            elif name == "data" and kind == "ended":
                raise Failure(f"{query} was ended: {json.loads(value)['reason']}")
            elif name == "data" and kind == "end":
                return

    def _ask(self, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=_PATIENCE)
        try:
            connection.request("GET" if body is None else "POST", path, body, self._headers)
            answer = connection.getresponse()
        except OSError:
            raise self._absent() from None
        if answer.status not in (200, 201):
            try:
                reason = json.loads(answer.read())["error"]
            except (ValueError, KeyError):
                reason = f"it answered {answer.status}"
            if answer.status == 400:
                raise Mistake(Diagnostic(str(reason).removeprefix("error: ")))
            raise Failure(str(reason))
        return answer
