"""The ASGI application of a deployment: its operations, its metrics, its log of changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kaicep import __version__
from kaicep.connectors.http import Reply
from kaicep.console.pages import OPEN, PAGES, Pages
from kaicep.deployment.config import read_token
from kaicep.deployment.registered import SUFFIXES, check_name
from kaicep.errors import Diagnostic, Failure, Mistake, Unsupported
from kaicep.plan.time import format_time, parse_time
from kaicep.processes import bound
from kaicep.server.board import Board
from kaicep.storage.disk import last_rows

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kaicep.deployment.on_spark import SparkDeployment
    from kaicep.deployment.running import Deployment

# ----------------------------------------------------------------------------------------------------------
# Who changed what: a file of lines of JSON. Each line is on disk before the change is answered.

_READ = 1 << 20


class Audit:
    """The log of the changes to a deployment that came from outside."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def add(self, role: str, address: str, what: str, name: str, detail: str = "") -> None:
        """Writes a change down."""
        row = {
            "time": format_time(time.time_ns() // 1_000),
            "role": role,
            "address": address,
            "what": what,
            "name": name,
            "detail": detail[:20_000],
        }
        with self._lock, self._path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self, most: int) -> list[dict[str, Any]]:
        """The newest changes, the newest first."""
        return list(islice(last_rows(self._path, _READ), most)) if self._path.exists() else []


# ----------------------------------------------------------------------------------------------------------
# The figures of a deployment as Prometheus reads them.

_STATES = ("waiting", "catching up", "live", "complete", "failed", "wrong")
_FIGURES = (
    ("stream", "kaicep_stream_events", "counter", "events", "Events taken in since the start."),
    ("stream", "kaicep_stream_late", "counter", "late", "Events that came too late."),
    ("stream", "kaicep_stream_dead", "counter", "dead", "Records that are not events."),
    ("stream", "kaicep_stream_lag_seconds", "gauge", "lag", "Age of the newest event."),
    (
        "stream",
        "kaicep_stream_watermark_seconds",
        "gauge",
        "watermark",
        "The time below which only late events come.",
    ),
    ("query", "kaicep_query_matches", "counter", "matches", "Matches so far."),
    ("query", "kaicep_query_held", "gauge", "held", "Events and partial matches buffered."),
    ("query", "kaicep_query_sent", "counter", "sent", "Events that Spark sent to the engines."),
    ("sink", "kaicep_sink_written", "counter", "written", "Matches made final."),
    ("sink", "kaicep_sink_backlog", "gauge", "backlog", "Matches that wait."),
)
_TABLES = {"stream": "streams", "query": "queries", "sink": "sinks"}
_OF_ENGINE = (
    ("kaicep_step_seconds", "newest", "How long the last step, or micro-batch, took."),
    ("kaicep_step_events", "events", "New events in the last micro-batch."),
    ("kaicep_step_sent", "sent", "Events that it sent to engines."),
    (
        "kaicep_step_widest",
        "widest",
        "Events that it sent to one engine: far above the others, a key is hot.",
    ),
    ("kaicep_step_written_bytes", "written", "State that it wrote."),
)


def as_prometheus(status: Mapping[str, Any]) -> str:
    """The status of a deployment as metrics.

    >>> print(as_prometheus({"streams": {"air": {"events": 3}}, "queries": {}, "sinks": {}}).splitlines()[2])
    kaicep_stream_events_total{stream="air"} 3.0
    """
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        """The figures of one moment."""

        def collect(self) -> Iterable[Metric]:
            return _families(status)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


def _families(status: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for what, name, kind, key, help in _FIGURES:
        make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        family = make(name, help, labels=[what])
        for label, row in status.get(_TABLES[what], {}).items():
            value = _seconds(row.get(key))
            if value is not None:
                family.add_metric([label], value)
        yield family
    for name, key, help in _OF_ENGINE:
        figure = status.get("engine", {}).get(key)
        if figure is not None:
            yield GaugeMetricFamily(name, help, value=figure)
    states = GaugeMetricFamily(
        "kaicep_query_state", "1 for the state that a query is in.", labels=["query", "state"]
    )
    for label, row in status.get("queries", {}).items():
        for state in _STATES:
            states.add_metric([label, state], float(row.get("state") == state))
    yield states


def _seconds(value: Any) -> float | None:
    micros = parse_time(value) if isinstance(value, str) else None
    return micros / 1_000_000 if micros is not None else value


# ----------------------------------------------------------------------------------------------------------
# Work for those who ask is done in processes of their own, so that the deployment goes on beside it.
#
# A process is begun when something is asked for, keeps the knowledge loaded, and is ended where an answer
# takes too long or too much memory, or where nobody asked for a while. It gets lines of JSON and answers
# with such; nothing else passes between the two.

_LOADING = 120.0
_QUEUE = 16


class Desk:
    """One such process: it does one thing after another."""

    def __init__(self, deployment: Path) -> None:
        self._deployment = deployment
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._turn = threading.Lock()
        self._waiting = threading.Semaphore(_QUEUE)
        self._closed = False

    def ask(self, what: str, seconds: float, **arguments: Any) -> Any:
        """The answer; a `Mistake` with what is wrong with the question, or where it takes too long."""
        if not self._waiting.acquire(blocking=False):
            raise Failure("too many requests at once: try again")
        try:
            with self._turn:
                if self._closed:
                    raise Failure("the deployment stops")
                return self._ask(what, seconds, arguments)
        finally:
            self._waiting.release()

    def prepare(self) -> None:
        """Starts the process, if it does not run yet and is not in use; does not wait."""
        if self._process is None and not self._closed and self._turn.acquire(blocking=False):
            try:
                self._process = self._start()
            finally:
                self._turn.release()

    def _ask(self, what: str, seconds: float, arguments: dict[str, Any]) -> Any:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
            process.stdin.flush()
            begun = self._line(process, _LOADING)
            answer = self._line(process, seconds) if begun is not None else None
        except OSError:
            begun = answer = None
        if answer is None:
            in_time = begun is not None and process.poll() is None
            self._end()
            if in_time:
                hint = "ask for less: a shorter range, or triples that are tied together"
                raise Mistake(f"it takes longer than {seconds:g} s", hint=hint)
            raise Failure("no answer: the process that worked on it ended; try again, or ask for less")
        read = json.loads(answer)
        if "wrong" in read:
            raise Mistake([Diagnostic(text, hint=hint) for text, hint in read["wrong"]])
        return read["answer"]

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """A line that the process writes; None where it does not within some time, or ends."""
        assert process.stdout is not None
        number, until = process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
            more = os.read(number, 1 << 16) if ready else b""
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(each for each in sys.path if each)
        return subprocess.Popen(
            bound([sys.executable, "-m", "kaicep.server.worker", str(self._deployment)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for each in (process.stdin, process.stdout):
                if each is not None:
                    each.close()


# ----------------------------------------------------------------------------------------------------------
# The application: who may come in, what there is to ask, and what it is answered.
#
# `OPERATIONS` is the one table of all that programs can ask. The routes and the OpenAPI document are made
# of it; the pages of the console are beside it.

MOST = 64 << 10
"""A request has at most so many bytes."""

COOKIE = "kaicep"
"""What a browser shows instead of a token that was entered once."""

_FOLLOWERS = 64
_QUERIES = 200
_PATIENCE = 5.0
_WORKING = 8
_STARTING = 30.0
_SLOW = frozenset(("trial", "misses", "story", "written", "events", "preview"))
_SSE = "text/event-stream"

Handler = Callable[["Application", Request], Awaitable[Response]]


@dataclass(frozen=True)
class HttpOperation:
    """Something that can be asked: how, what it is, what it takes, and whether it changes anything."""

    method: str
    path: str
    summary: str
    handler: Handler
    options: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    answer: str = "application/json"
    changes: bool = False


class Application:
    """Answers requests about a deployment. `asgi` is the application, `admit` says who may come in."""

    def __init__(self, deployment: Deployment | SparkDeployment) -> None:
        listen = deployment.config.listen
        self.deployment = deployment
        self.board = Board(deployment)
        self.desk = Desk(deployment.config.path)
        self.long_desk = Desk(deployment.config.path)
        self.audit = Audit(deployment.config.state / "audit.jsonl")
        self.pages = Pages(self)
        self._token = read_token(listen)
        self._read_token = read_token(listen, "read_token")
        self._working = CapacityLimiter(_WORKING)
        self._changing = {(each.method, each.path.split("{")[0]) for each in OPERATIONS if each.changes}
        self._changing |= {(each.method, each.path) for each in PAGES if each.changes}
        routes = [Route(each.path, self._bound(each), methods=[each.method]) for each in OPERATIONS]
        self.asgi = Starlette(
            routes=[*routes, *self.pages.routes, Route("/openapi.json", self._openapi)],
            exception_handlers={
                HTTPException: _http_error,
                Mistake: _refusal(400),
                Unsupported: _refusal(400),
                Failure: _refusal(503),
            },
        )

    def close(self) -> None:
        """Ends followers, and the work in progress."""
        self.board.close()
        self.desk.close()
        self.long_desk.close()

    # --- who may come in ---

    cookie = COOKIE
    """The name of the cookie that replaces a token."""

    @property
    def guarded(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def cookie_for(self, token: str) -> str | None:
        """What a browser is to show instead of a token; None where it is none of ours."""
        for known in (self._token, self._read_token):
            if known is not None and hmac.compare_digest(token.encode(), known.encode()):
                return cookie_of(known)
        return None

    def role(self, headers: Mapping[str, str]) -> str | None:
        """What a request may do: everything (`full`), read (`read`), or nothing."""
        if self._token is None:
            return "full"
        shown = headers.get("authorization", "").removeprefix("Bearer ").encode()
        cookie = _cookie(headers.get("cookie", ""))
        for role, token in (("full", self._token), ("read", self._read_token)):
            if token is not None and (
                hmac.compare_digest(shown, token.encode())
                or hmac.compare_digest(cookie.encode(), cookie_of(token).encode())
            ):
                return role
        return None

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> Reply | None:
        """Refuses who may not come in, before anything is read."""
        if path == "/health" or path.startswith(OPEN):
            return None
        role = self.role(headers)
        if role is None and method == "GET" and (path == "/" or path.startswith("/console")):
            return Reply(303, {"error": "the token is missing"}, {"Location": f"/console/login?next={path}"})
        if role is None:
            return Reply(401, {"error": "the token is missing or wrong"}, {"WWW-Authenticate": "Bearer"})
        if role == "read" and any(method == each and path.startswith(way) for each, way in self._changing):
            return Reply(403, {"error": "this token may look at everything and change nothing"})
        return None

    # --- how things are done ---

    async def ask(self, what: str, seconds: float = _PATIENCE, **arguments: Any) -> Any:
        """Has something worked out in a process of its own; what may take long in another one."""
        desk = self.long_desk if what in _SLOW else self.desk
        return await to_thread.run_sync(lambda: desk.ask(what, seconds, **arguments), limiter=self._working)

    def prepare(self) -> None:
        """Starts the processes that work out answers, before the first request."""
        self.desk.prepare()
        self.long_desk.prepare()

    async def register(self, name: str, language: str, text: str) -> None:
        """Registers a query from outside, after it was tried out."""
        if language not in SUFFIXES:
            raise HTTPException(
                400, f"there is no language {language[:40]}: choose one of {', '.join(SUFFIXES)}"
            )
        check_name(name, self.deployment.config.streams)
        known = self.board.queries
        if name not in known and sum(each["outside"] for each in known.values()) >= _QUERIES:
            raise HTTPException(429, f"there are {_QUERIES} posted queries already: remove one first")
        await self.ask("admit", name=name, suffix=SUFFIXES[language], text=text)
        await run_in_threadpool(self.deployment.ask, lambda: self.deployment.register(name, language, text))

    async def remove(self, name: str) -> None:
        """Removes a query that came from outside."""
        await run_in_threadpool(self.deployment.ask, lambda: self.deployment.unregister(name))

    def _bound(self, operation: HttpOperation) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            until = time.monotonic() + _STARTING
            while operation.path != "/health" and not self.board.status:
                if time.monotonic() > until:
                    raise Failure("the deployment is starting: try again")
                await asyncio.sleep(0.02)
            return await operation.handler(self, request)

        return answer

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def follow(self, query: str | None, last: int) -> Response:
        """The matches of a query, or of all, as they come."""
        if self.board.following >= _FOLLOWERS:
            raise HTTPException(503, f"{_FOLLOWERS} are following already")
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(self.board.follow(query, last), headers=headers, media_type=_SSE)


def cookie_of(token: str) -> str:
    """What replaces a token in a cookie: it does not reveal the token."""
    return hmac.new(token.encode(), b"kaicep console", hashlib.sha256).hexdigest()


def _cookie(header: str) -> str:
    for each in header.split(";"):
        name, _, value = each.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


# --- answers -----------------------------------------------------------------------------------------------


async def _health(app: Application, request: Request) -> Response:
    stalled = app.board.is_stalled
    return JSONResponse({"status": "stalled" if stalled else "ok"}, 503 if stalled else 200)


async def _status(app: Application, request: Request) -> Response:
    return JSONResponse(app.board.status)


async def _metrics(app: Application, request: Request) -> Response:
    return Response(as_prometheus(app.board.status), media_type="text/plain; version=0.0.4")


async def _queries(app: Application, request: Request) -> Response:
    return JSONResponse(app.board.queries)


async def _query(app: Application, request: Request) -> Response:
    return JSONResponse(_one_query(app, request.path_params["name"]))


def _one_query(app: Application, name: str) -> dict[str, Any]:
    found = app.board.queries.get(name)
    if found is None:
        raise HTTPException(404, f"no query is called {name[:80]}")
    known = app.board.registered(name)
    return {**found, "text": known.text if known else None}


async def _register(app: Application, request: Request) -> Response:
    name = request.path_params["name"]
    try:
        text = (await request.body()).decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "the query is not UTF-8 text") from None
    await app.register(name, request.query_params.get("language", "chi-cep"), text)
    app.pages.note(request, "registered", name, text)
    return JSONResponse(_one_query(app, name), 201)


async def _remove(app: Application, request: Request) -> Response:
    name = request.path_params["name"]
    await app.remove(name)
    app.pages.note(request, "removed", name)
    return JSONResponse({"removed": name})


async def _refresh(app: Application, request: Request) -> Response:
    app.deployment.knowledge.notify()
    return JSONResponse({"knowledge": "the endpoint is asked now"}, 202)


async def _follow(app: Application, request: Request) -> Response:
    name = request.path_params.get("name")
    if name is not None and name not in app.board.queries:
        raise HTTPException(404, f"no query is called {name[:80]}")
    return await app.follow(name, number(request, "last", 0))


async def _match(app: Application, request: Request) -> Response:
    id = request.path_params["id"]
    found = [each for each in app.board.recent() if each.id.startswith(id)]
    return JSONResponse({"matches": [each.to_dict() for each in found]})


def number(request: Request, name: str, default: int) -> int:
    """An option of a request that is a whole number."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HTTPException(400, f"{name} is a whole number")
    return int(text)


_LANGUAGE = {"language": f"one of {', '.join(SUFFIXES)}"}
_LAST = {"last": "how many of the last matches to begin with"}

OPERATIONS: tuple[HttpOperation, ...] = (
    HttpOperation("GET", "/health", "Whether the deployment makes progress", _health),
    HttpOperation("GET", "/status", "The state of streams, queries, sinks and archive", _status),
    HttpOperation("GET", "/metrics", "The same for Prometheus", _metrics, answer="text/plain"),
    HttpOperation("GET", "/queries", "The queries and their states", _queries),
    HttpOperation("GET", "/queries/{name}", "A query, with its text", _query),
    HttpOperation(
        "POST", "/queries/{name}", "Register a query", _register, _LANGUAGE, "text/plain", changes=True
    ),
    HttpOperation("DELETE", "/queries/{name}", "Remove a posted query", _remove, changes=True),
    HttpOperation(
        "POST", "/knowledge/refresh", "Fetch the knowledge of the endpoint", _refresh, changes=True
    ),
    HttpOperation("GET", "/queries/{name}/matches", "Its matches as they come", _follow, _LAST, answer=_SSE),
    HttpOperation("GET", "/matches", "The matches of all queries as they come", _follow, _LAST, answer=_SSE),
    HttpOperation("GET", "/matches/{id}", "Recent matches whose id begins with this", _match),
)


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the service.

    >>> sorted(openapi()["paths"]["/queries/{name}"])
    ['delete', 'get', 'post']
    """
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        names = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
        parameters += [
            {"name": name, "in": "query", "description": about, "schema": {"type": "string"}}
            for name, about in each.options.items()
        ]
        said: dict[str, Any] = {
            "summary": each.summary,
            "parameters": parameters,
            "responses": {
                "default": {"description": "the answer, or an error", "content": {each.answer: {}}}
            },
            "security": [{"token": []}] if each.path != "/health" else [],
        }
        if each.body is not None:
            said["requestBody"] = {"required": True, "content": {each.body: {"schema": {"type": "string"}}}}
        paths.setdefault(each.path, {})[each.method.lower()] = said
    return {
        "openapi": "3.1.0",
        "info": {"title": "kaicep", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = error.detail
    if error.status_code == 404 and said == "Not Found":
        said = "there are " + ", ".join(dict.fromkeys(each.path for each in OPERATIONS))
    headers = {**(error.headers or {}), "Connection": "close"}
    return JSONResponse({"error": said}, error.status_code, headers)


def _refusal(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status, {"Connection": "close"})

    return refuse
