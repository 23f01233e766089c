"""The service of a running deployment over HTTP: its state, its queries, their matches as they come.

Whoever comes from outside gets at nothing but this. Requests are small, few at a time, and on any address
but this machine's own they show a token. What they ask for is done by the deployment's own thread.
"""

from __future__ import annotations

import hmac
import json
import queue
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from kaicep.connectors.disk import replace_file
from kaicep.connectors.listening import BoundedServer
from kaicep.connectors.sources.http import is_loopback
from kaicep.endtoend.config import Config, read_token
from kaicep.endtoend.registered import SUFFIXES, check_name
from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported
from kaicep.plan.events import Match
from kaicep.server.metrics import as_prometheus
from kaicep.server.trial import try_out

if TYPE_CHECKING:
    from kaicep.endtoend.deployment import Deployment

__all__ = ["ADDRESS", "Service"]

ADDRESS = "address.json"
"""The file of the state folder that says where the service is."""

_CONNECTIONS = 64
_FOLLOWERS = 32
_QUERIES = 200
_TEXT = 64 << 10
_WAITING = 10_000
_SILENCE = 30.0
_HEARTBEAT = 10.0
_STALLED = 60.0


class Service:
    """Listens while it is entered. `url` says where."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._config = deployment.config
        self._file = deployment.config.state / ADDRESS
        self._server = _bound(self._config, deployment)
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        self.url = f"http://{name}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        replace_file(self._file, json.dumps({"url": self.url}).encode())
        return self

    def __exit__(self, *error: object) -> None:
        self._file.unlink(missing_ok=True)
        self._server.closing = True
        self._server.shutdown()
        self._server.server_close()


def _bound(config: Config, deployment: Deployment) -> _Server:
    listen = config.listen
    token = read_token(listen)
    try:
        return _Server((listen.host, listen.port), deployment, token)
    except OSError as error:
        hint = "another program listens there, or the address is not this machine's; port 0 is any free one"
        where = f"{listen.host}:{listen.port}"
        raise Mistake(Diagnostic(f"cannot listen on {where}: {error.strerror}", hint=hint)) from None


class _Server(BoundedServer):
    def __init__(self, address: tuple[str, int], deployment: Deployment, token: str | None) -> None:
        self.deployment = deployment
        self.token = token
        self.loopback = is_loopback(address[0])
        self.closing = False
        self.followers = threading.Semaphore(_FOLLOWERS)
        self.trials = threading.Lock()
        super().__init__(address, _Handler, _CONNECTIONS)


class _Refused(Exception):
    """An answer that is no: its status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kaicep"
    sys_version = ""
    timeout = _SILENCE
    server: _Server

    def do_GET(self) -> None:
        """Shows something."""
        self._serve(self._get)

    def do_POST(self) -> None:
        """Registers a query."""
        self._serve(self._post)

    def do_DELETE(self) -> None:
        """Removes a query."""
        self._serve(self._delete)

    def _serve(self, what: Any) -> None:
        split = urlsplit(self.path)
        way = [unquote(each) for each in split.path.strip("/").split("/")]
        options = {name: values[-1] for name, values in parse_qs(split.query).items()}
        try:
            self._admit(way)
            what(way, options)
        except _Refused as refused:
            self._answer(refused.status, {"error": str(refused)})
        except Mistake as mistake:
            self._answer(400, {"error": str(mistake)})
        except (Failure, Unsupported) as error:
            self._answer(503 if isinstance(error, Failure) else 400, {"error": str(error)})

    def _admit(self, way: list[str]) -> None:
        """Refuses who may not come in, before anything is read."""
        token = self.server.token
        if token is not None:
            given = (self.headers.get("Authorization") or "").removeprefix("Bearer ").encode()
            if way != ["health"] and not hmac.compare_digest(given, token.encode()):
                raise _Refused(401, "the token is missing or wrong")
        elif self.headers.get("Origin") is not None or not self._is_for_us():
            # A page in a browser may send requests to this machine in the name of whoever reads it.
            raise _Refused(403, "without a token, requests of web pages are not answered")

    def _is_for_us(self) -> bool:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0].strip("[]")
        return not self.server.loopback or is_loopback(host)

    # --- what there is to get ---

    def _get(self, way: list[str], options: Mapping[str, str]) -> None:
        deployment = self.server.deployment
        match way:
            case ["health"]:
                stalled = time.monotonic() - deployment.ticked > _STALLED
                self._answer(503 if stalled else 200, {"status": "stalled" if stalled else "ok"})
            case ["status"]:
                self._answer(200, deployment.ask(deployment.status))
            case ["metrics"]:
                text = as_prometheus(deployment.ask(deployment.status))
                self._send(200, text.encode(), "text/plain; version=0.0.4")
            case ["queries"]:
                self._answer(200, deployment.ask(deployment.catalogue.status))
            case ["queries", name]:
                self._answer(200, deployment.ask(lambda: self._query(name)))
            case ["queries", name, "matches"]:
                self._follow(name, options)
            case ["matches", id]:
                found = deployment.ask(lambda: deployment.remembered(id))
                self._answer(200, {"matches": [each.to_dict() for each in found]})
            case _:
                known = "/health, /status, /metrics, /queries, /queries/NAME/matches, /matches/ID"
                raise _Refused(404, f"there are {known}")

    def _query(self, name: str) -> dict[str, Any]:
        catalogue = self.server.deployment.catalogue
        found = catalogue.status().get(name)
        if found is None:
            raise _Refused(404, f"no query is called {name[:80]}")
        known = catalogue.registry.queries.get(name)
        return {**found, "text": known.text if known else None}

    def _post(self, way: list[str], options: Mapping[str, str]) -> None:
        body = self._body()
        match way:
            case ["queries", name]:
                pass
            case _:
                raise _Refused(404, "queries are posted to /queries/NAME")
        language = options.get("language", "chi-cep")
        if language not in SUFFIXES:
            raise _Refused(400, f"there is no language {language[:40]}: it is one of {', '.join(SUFFIXES)}")
        deployment = self.server.deployment
        check_name(name, deployment.config.streams)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise _Refused(400, "the query is no UTF-8 text") from None
        known = deployment.catalogue.registry.queries
        if name not in known and sum(each.outside for each in known.values()) >= _QUERIES:
            raise _Refused(429, f"there are {_QUERIES} queries from outside already: remove one first")
        with self.server.trials:  # one at a time, since each takes a process of its own
            try_out(deployment.config.path, name, SUFFIXES[language], text)
        deployment.ask(lambda: deployment.register(name, language, text))
        self._answer(201, deployment.ask(lambda: self._query(name)))

    def _delete(self, way: list[str], options: Mapping[str, str]) -> None:
        match way:
            case ["queries", name]:
                self.server.deployment.ask(lambda: self.server.deployment.unregister(name))
                self._answer(200, {"removed": name})
            case _:
                raise _Refused(404, "queries are deleted at /queries/NAME")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is None or not length.isascii() or not length.isdigit():
            raise _Refused(411, "say how long the body is, with Content-Length")
        if int(length) > _TEXT:
            raise _Refused(413, f"{length} bytes are too many: a query has at most {_TEXT}")
        return self.rfile.read(int(length))

    # --- matches as they come ---

    def _follow(self, name: str, options: Mapping[str, str]) -> None:
        last = options.get("last", "0")
        if not last.isascii() or not last.isdigit():
            raise _Refused(400, "last is how many of the last matches to begin with")
        if not self.server.followers.acquire(blocking=False):
            raise _Refused(503, f"{_FOLLOWERS} are following already")
        waiting: queue.Queue[Match] = queue.Queue(_WAITING)
        lost = threading.Event()

        def take(match: Match) -> None:
            try:
                waiting.put_nowait(match)
            except queue.Full:
                lost.set()

        deployment = self.server.deployment
        try:
            recent = deployment.ask(lambda: deployment.follow(name, take, int(last)))
            if recent is None:
                raise _Refused(404, f"no query is called {name[:80]}")
            try:
                self._stream(recent, waiting, lost)
            finally:
                deployment.ask(lambda: deployment.unfollow(name, take))
        except (OSError, Failure):
            self.close_connection = True  # whoever it was is gone, or the deployment is
        finally:
            self.server.followers.release()

    def _stream(self, recent: list[Match], waiting: queue.Queue[Match], lost: threading.Event) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        for each in recent:
            self._event(each)
        self.wfile.flush()
        spoken = time.monotonic()
        while not self.server.closing or not waiting.empty():
            try:
                self._event(waiting.get(timeout=0.2))
                spoken = time.monotonic()
            except queue.Empty:
                if lost.is_set():
                    self.wfile.write(b"event: gap\ndata: too slow: some matches were left out\n\n")
                    lost.clear()
                if time.monotonic() - spoken > _HEARTBEAT:
                    self.wfile.write(b": still here\n\n")
                    spoken = time.monotonic()
            self.wfile.flush()
        self.wfile.write(b"event: end\ndata: the deployment stops\n\n")

    def _event(self, match: Match) -> None:
        self.wfile.write(f"id: {match.id}\nevent: match\ndata: {match.to_json()}\n\n".encode())

    # --- answers ---

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(body, ensure_ascii=False).encode() + b"\n", "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if status >= 400:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not written down: they may carry what is nobody's business."""
