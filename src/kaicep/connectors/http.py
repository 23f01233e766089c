"""HTTP as a source: a server that no sender can block, limits on requests, and their events."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from uvicorn import Server
import hmac
from pathlib import Path

from kaicep.connectors.documents import value_record
from kaicep.connectors.log import Log, PushSource
from kaicep.connectors.records import Record, json_object
from kaicep.connectors.registry import Count, Variable, secret
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake
from kaicep.plan.types import Notation

# ----------------------------------------------------------------------------------------------------------
# An HTTP server for an ASGI application, in a thread of its own, that no sender can hold up.
#
# Every connection is bounded in time: until a request's head is there, until its body is, and while
# somebody does not read the answer. Where there are too many, those that wait longest without a request
# give way, so that there is always room for one that has something to ask.

_CONNECTIONS = 512
_HEAD = 10.0
_HEAD_BYTES = 64 << 10
_BODY = 30.0
_UNREAD = 30.0
_DISCARDED = 64 << 20

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in JSON: its status, what it says, its headers."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Listening:
    """Serves an application at an address from `start` to `stop`. Port 0 is any that is free."""

    def __init__(self, app: App, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self._app = app
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Begins to answer."""
        from uvicorn import Config, Server

        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = Config(
            self._app,
            http=_bounded_protocol(),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(_HEAD),
            timeout_graceful_shutdown=2,
        )
        self._server = Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops listening, and gives running answers a moment to finish."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()


class Guard:
    """Admits requests to an application, and gives it their bodies whole.

    `admit` sees the method, the path and the headers of a request before anything of its body is read, and
    returns an answer for one that is not let in. Requests of web pages of others, and those that came here
    by another name, are refused before.
    """

    def __init__(
        self, app: App, host: str, admit: Callable[[str, str, Headers], Reply | None], most: int
    ) -> None:
        self._app = app
        self._loopback = is_loopback(host)
        self._admit = admit
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or has the application answer it."""
        if scope["type"] != "http":
            return
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(pairs)
        length = _length(pairs)
        refused = self._refuse(scope, headers, length)
        body = b""
        if refused is None or isinstance(length, int):
            try:
                async with asyncio.timeout(_BODY):
                    body = await _read(receive, discard=refused is not None)
            except TimeoutError:
                refused = Reply(408, {"error": f"the body did not come within {_BODY:g} s"})
            except ConnectionError:
                return
        if refused is not None:
            await _send(send, refused)
            return
        await self._app(scope, _given(body, receive), send)

    def _refuse(self, scope: Scope, headers: Headers, length: int | Reply | None) -> Reply | None:
        host = headers.get("host", "")
        name = (urlsplit(f"//{host}").hostname or "") if host.isascii() else ""
        if self._loopback and not is_loopback(name):
            return Reply(403, {"error": f"this is not {host[:80] or 'known by no name'}: see the address"})
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return Reply(403, {"error": "requests of web pages of others are not answered"})
        refused = self._admit(scope["method"], scope["path"], headers)
        if refused is not None:
            return refused
        if isinstance(length, Reply):
            return length
        if length is None and scope["method"] in ("POST", "PUT", "PATCH"):
            return Reply(411, {"error": "say how long the body is, with Content-Length"})
        if length is not None and length > self._most:
            return Reply(413, {"error": f"{length} bytes are too many: a request has at most {self._most}"})
        return None


def _length(headers: list[tuple[str, str]]) -> int | Reply | None:
    """How long the body is said to be; an answer where that is not said in the one way there is."""
    if any(name == "transfer-encoding" for name, _ in headers):
        return Reply(411, {"error": "say how long the body is, with Content-Length, and send it as it is"})
    said = [value for name, value in headers if name == "content-length"]
    if len(said) > 1 or any(not (each.isascii() and each.isdigit() and len(each) < 16) for each in said):
        return Reply(400, {"error": "Content-Length is given once, as a number"})
    return int(said[0]) if said else None


async def _read(receive: Receive, discard: bool) -> bytes:
    """The body; what is not wanted is read too, to some extent, since its sender sees no answer before."""
    parts: list[bytes] = []
    size, more = 0, True
    while more and not (discard and size > _DISCARDED):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        part = message.get("body", b"")
        size += len(part)
        if not discard:
            parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


def _given(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, and then what comes."""
    waiting = [body]

    async def give() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return give


async def _send(send: Send, reply: Reply) -> None:
    """An answer after which the connection is closed."""
    body = json.dumps(reply.body, ensure_ascii=False).encode() + b"\n"
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    headers |= {name.lower(): value for name, value in reply.headers.items()}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _bounded_protocol() -> Any:
    """Uvicorn's protocol with bounds on what a connection may take: time, and bytes of a head."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Bounded(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
        """A connection that is ended where it waits too long, or is in the way of others."""

        _deadline: asyncio.TimerHandle | None = None
        _asked = False
        _head = 0
        _waiting: dict[int, dict[Any, None]] = {}  # noqa: RUF012

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_request()
            if len(self.connections) > _CONNECTIONS:
                next(iter(self._others())).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._others().pop(self, None)
            self._end_deadline()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self._asked:
                self._head += len(data)
            super().data_received(data)
            if not self._asked and self._head > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of a request is too long.")

        def on_headers_complete(self) -> None:
            self._asked = True
            self._end_deadline()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._others().pop(self, None)
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete and not self.transport.is_closing():
                self._await_request()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._begin_deadline(_UNREAD)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._end_deadline()

        def _await_request(self) -> None:
            self._asked, self._head = False, 0
            self._others()[self] = None
            self._begin_deadline(_HEAD)

        def _others(self) -> dict[Any, None]:
            """Those that have not asked anything yet, the oldest first."""
            return self._waiting.setdefault(id(self.server_state), {})

        def _begin_deadline(self, seconds: float) -> None:
            self._end_deadline()
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

        def _end_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Bounded


# ----------------------------------------------------------------------------------------------------------
# Events that come in by HTTP: what a request may hold, and what it is answered.

_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
_RETRY = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How large a request may be, how many events it may hold, how many may wait to be read."""

    request: int = 10 << 20
    events: int = 10_000
    backlog: int = 100_000


class _Bad(ValueError):
    """A body that holds no events, with the reason."""


class Intake:
    """Takes events in: checks a request, writes its events to the log, and only then says 200."""

    def __init__(
        self,
        log: Log,
        limits: RequestLimits,
        backlog: Callable[[], int],
        token: str | None,
        notation: Notation,
    ) -> None:
        self._log = log
        self._limits = limits
        self._backlog = backlog
        self._token = token
        self._notation = notation

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
        """The answer to a body: one JSON object, a list of them, or one on every line; or one document."""
        kind = (content_type or "").split(";")[0].strip().lower()
        try:
            if self._notation.rdf is not None and self._notation.rdf.format is not None:
                events = _document(body, self._notation)
            else:
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


def _document(body: bytes, notation: Notation) -> list[bytes]:
    record = value_record(0, 0, "http", body, notation)
    if record.fields is None:
        raise _Bad(record.reason)
    return [body]


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


# ----------------------------------------------------------------------------------------------------------
# HTTP as a source: events are posted to `/events`, one or many in a request.
#
# A request is answered with 200 when its events are on the disk, not before. A sender that gets no answer
# sends again, and its events may then be there twice, under two numbers.

_PATH = "/events"


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
                f"{where}: host {options.host} can be reached by others, and there is no token",
                hint='name an environment variable that holds one: token = "KAICEP_TOKEN"',
            )
        self._server: Listening | None = None

    @property
    def address(self) -> str:
        """Where to post events to, while it is open."""
        if self._server is None:
            raise Failure(f"stream {self.form.stream}: not open, so it does not listen")
        return self._server.url + _PATH

    def _start(self, log: Log) -> None:
        limits = RequestLimits(self._options.request, self._options.events, self._options.backlog)
        intake = Intake(log, limits, lambda: self.backlog, self._token, self.form.notation)
        app = Guard(
            _application(intake),
            self._options.host,
            lambda method, path, headers: intake.refuse(headers.get("authorization")),
            limits.request,
        )
        try:
            self._server = Listening(app, self._options.host, self._options.port)
        except OSError as error:
            place = f"{self._options.host}:{self._options.port}"
            hint = "another program listens there; port = 0 takes any that is free"
            raise Mistake(
                f"stream {self.form.stream}: cannot listen on {place}: {error.strerror}", hint=hint
            ) from None
        self._server.start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _record(self, seq: int, raw: bytes) -> Record:
        return value_record(0, seq, "http", raw, self.form.notation)


def _application(intake: Intake) -> App:
    """Takes in what is posted to `/events`. The log is written in another thread: its fsync takes a while."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def take(request: Request) -> JSONResponse:
        reply = await run_in_threadpool(
            intake.take, await request.body(), request.headers.get("content-type")
        )
        return JSONResponse(reply.body, reply.status, dict(reply.headers))

    async def elsewhere(request: Request, error: Exception) -> JSONResponse:
        status = getattr(error, "status_code", 404)
        headers = getattr(error, "headers", None)
        return JSONResponse({"error": f"events are posted to {_PATH}"}, status, headers)

    routes = [Route(_PATH, take, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers={404: elsewhere, 405: elsewhere})
