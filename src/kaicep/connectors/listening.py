"""An HTTP server for an ASGI application, in a thread of its own, that no sender can hold up.

Every connection is bounded in time: until a request's head is there, until its body is, and while somebody
does not read the answer. Where there are too many, those that wait longest without a request give way, so
that there is always room for one that has something to ask.
"""

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

__all__ = ["App", "Guard", "Listening", "Reply", "is_loopback"]

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
