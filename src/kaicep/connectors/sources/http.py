"""HTTP as a source: events are posted to `/events`, one or many in a request.

A request is answered with 200 when its events are on the disk, not before. A sender that gets no answer
sends again, and its events may then be there twice, under two numbers.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

from kaicep.connectors.intake import Intake, Limits, Reply
from kaicep.connectors.listening import BoundedServer
from kaicep.connectors.log import Log
from kaicep.connectors.options import Count, Variable, secret
from kaicep.connectors.records import Record, json_object
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.push import PushSource
from kaicep.errors import Diagnostic, Failure, Mistake

__all__ = ["HttpOptions", "HttpSource", "is_loopback"]

_PATH = "/events"
_CONNECTIONS = 64
_SILENCE = 30.0
_LINGER = 1_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where to listen, where the log is, and the limits of a request.

    Port 0 is any that is free. `token` names an environment variable; without one, only this machine can
    send. `backlog` is how many events may wait to be read before senders are told to slow down.
    """

    log: Path
    host: str = "127.0.0.1"
    port: int = 0
    token: Variable | None = None
    request: Count = Count(10 << 20)
    events: Count = Count(10_000)
    backlog: Count = Count(100_000)
    batch: Count = Count(10_000)


class HttpSource(PushSource):
    """Events that others send by HTTP."""

    def __init__(self, form: Form, options: HttpOptions) -> None:
        super().__init__(form, options.log, options.batch)
        self._options = options
        where = f"stream {form.stream}"
        self._token = secret(options.token, where)
        if self._token is None and not is_loopback(options.host):
            raise Mistake(
                Diagnostic(
                    f"{where}: host {options.host} can be reached by others, and there is no token",
                    hint='name an environment variable that holds one: token = "KAICEP_TOKEN"',
                )
            )
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """Where to post events to, while it is open."""
        if self._server is None:
            raise Failure(f"stream {self.form.stream}: not open, so that nobody listens")
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}{_PATH}"

    def _start(self, log: Log) -> None:
        limits = Limits(self._options.request, self._options.events, self._options.backlog)
        intake = Intake(log, limits, lambda: self.backlog, self._token)
        try:
            self._server = _Server((self._options.host, self._options.port), intake)
        except OSError as error:
            place = f"{self._options.host}:{self._options.port}"
            hint = "another program listens there; port = 0 takes any that is free"
            raise Mistake(
                Diagnostic(
                    f"stream {self.form.stream}: cannot listen on {place}: {error.strerror}", hint=hint
                )
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _record(self, seq: int, raw: bytes) -> Record:
        fields, reason = json_object(raw)
        return Record(0, seq, seq + 1, "http", fields, raw.decode(errors="replace"), reason)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(BoundedServer):
    """Hands what is sent to the intake."""

    def __init__(self, address: tuple[str, int], intake: Intake) -> None:
        self.intake = intake
        super().__init__(address, _Handler, _CONNECTIONS)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request and answers it."""

    protocol_version = "HTTP/1.1"
    server_version = "kaicep"
    sys_version = ""
    timeout = _SILENCE
    server: _Server
    _allowed: ClassVar[dict[str, str]] = {"Allow": "POST"}

    def do_POST(self) -> None:
        """Takes in events."""
        if self.path.split("?")[0] != _PATH:
            self._answer(Reply(404, {"error": f"events are posted to {_PATH}"}), close=True)
            return
        length = self.headers.get("Content-Length")
        refused = self.server.intake.refuse(length, self.headers.get("Authorization"))
        if refused is not None:
            self._answer(refused, close=True)
            return
        body = self.rfile.read(int(length or 0))
        if len(body) == int(length or 0):
            self._answer(self.server.intake.take(body, self.headers.get("Content-Type")))

    def do_GET(self) -> None:
        """Says what to do instead."""
        self._answer(Reply(405, {"error": f"events are posted to {_PATH}"}, self._allowed), close=True)

    def _answer(self, reply: Reply, close: bool = False) -> None:
        body = json.dumps(reply.body).encode() + b"\n"
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        if close:
            self._linger()

    def _linger(self) -> None:
        """Reads some of what a refused sender still sends: if hung up on, it might never see the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(1)
        for _ in range(_LINGER):
            if not self.connection.recv(1 << 16):
                break

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted by whoever reads the events, not printed."""
