"""A deployment as a service: listening, the client of it, and the messages that it logs."""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from kaicep.connectors.http import Guard, Listening
from kaicep.deployment.config import Config, read_token
from kaicep.errors import Failure, Mistake
from kaicep.server.app import MOST, Application
from kaicep.storage.disk import replace_file

if TYPE_CHECKING:
    from kaicep.deployment.on_spark import SparkDeployment
    from kaicep.deployment.running import Deployment

# ----------------------------------------------------------------------------------------------------------
# Messages of a deployment: for a person, or as lines of JSON for a machine.


class PlainLines(logging.Formatter):
    """`09:00:00 warning: ...`; what is well goes without saying so."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{moment} {level}{record.getMessage()}{trace}"


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how serious, from where, and the message.

    >>> record = logging.LogRecord("kaicep.run", logging.INFO, "", 0, "%s runs", ("campus",), None)
    >>> json.loads(JsonLines().format(record))["message"]
    'campus runs'
    """

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return json.dumps(
            {
                "time": f"{moment}.{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}),
            },
            ensure_ascii=False,
        )


# ----------------------------------------------------------------------------------------------------------
# The service of a running deployment: one ASGI application, for programs and for people.
#
# Requests read what the deployment's thread has laid out on the board; what takes longer is done in
# processes of their own. Only to register and to remove a query is that thread asked.

ADDRESS = "address.json"
"""The file of the state folder that says where the service is."""


class Service:
    """Listens while it is entered. `url` says where."""

    def __init__(self, deployment: Deployment | SparkDeployment) -> None:
        listen = deployment.config.listen
        self._file = deployment.config.state / ADDRESS
        self.application = Application(deployment)
        app = Guard(self.application.asgi, listen.host, self.application.admit, MOST)
        try:
            self._server = Listening(app, listen.host, listen.port)
        except OSError as error:
            hint = (
                "another program listens there, or the address is not this machine's; port 0 is any free one"
            )
            where = f"{listen.host}:{listen.port}"
            raise Mistake(f"cannot listen on {where}: {error.strerror}", hint=hint) from None
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        self.application.board.start()
        replace_file(self._file, json.dumps({"url": self.url}).encode())
        return self

    def __exit__(self, *error: object) -> None:
        self._file.unlink(missing_ok=True)
        self.application.close()
        self._server.stop()


# ----------------------------------------------------------------------------------------------------------
# The other side: asks a running deployment, which is found by its state folder.

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
                raise Mistake(str(reason).removeprefix("error: "))
            raise Failure(str(reason))
        return answer
