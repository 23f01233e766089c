"""The application: who may come in, what there is to ask, and what it is answered.

`OPERATIONS` is the one table of all that programs can ask. The routes and the OpenAPI document are made of
it; the pages of the console are beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kaicep import __version__
from kaicep.connectors.listening import Reply
from kaicep.console.pages import OPEN, PAGES, Pages
from kaicep.endtoend.config import read_token
from kaicep.endtoend.registered import SUFFIXES, check_name
from kaicep.errors import Failure, Mistake, Unsupported
from kaicep.server.audit import Audit
from kaicep.server.board import Board
from kaicep.server.desk import Desk
from kaicep.server.metrics import as_prometheus

if TYPE_CHECKING:
    from kaicep.endtoend.deployment import Deployment
    from kaicep.endtoend.spark_deployment import SparkDeployment

__all__ = ["COOKIE", "MOST", "OPERATIONS", "Application", "Operation", "cookie_of"]

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
class Operation:
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
        self._cookies = {cookie_of(each): each for each in (self._token, self._read_token) if each}
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
                400, f"there is no language {language[:40]}: it is one of {', '.join(SUFFIXES)}"
            )
        check_name(name, self.deployment.config.streams)
        known = self.board.queries
        if name not in known and sum(each["outside"] for each in known.values()) >= _QUERIES:
            raise HTTPException(429, f"there are {_QUERIES} queries from outside already: remove one first")
        await self.ask("admit", name=name, suffix=SUFFIXES[language], text=text)
        await run_in_threadpool(self.deployment.ask, lambda: self.deployment.register(name, language, text))

    async def remove(self, name: str) -> None:
        """Removes a query that came from outside."""
        await run_in_threadpool(self.deployment.ask, lambda: self.deployment.unregister(name))

    def _bound(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
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

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/health", "Whether the deployment is at work", _health),
    Operation("GET", "/status", "How streams, queries, sinks and archive are doing", _status),
    Operation("GET", "/metrics", "The same for Prometheus", _metrics, answer="text/plain"),
    Operation("GET", "/queries", "The queries and their states", _queries),
    Operation("GET", "/queries/{name}", "A query, with its text", _query),
    Operation(
        "POST", "/queries/{name}", "Register a query", _register, _LANGUAGE, "text/plain", changes=True
    ),
    Operation("DELETE", "/queries/{name}", "Remove a query from outside", _remove, changes=True),
    Operation("POST", "/knowledge/refresh", "Fetch the knowledge of the endpoint", _refresh, changes=True),
    Operation("GET", "/queries/{name}/matches", "Its matches as they come", _follow, _LAST, answer=_SSE),
    Operation("GET", "/matches", "The matches of all queries as they come", _follow, _LAST, answer=_SSE),
    Operation("GET", "/matches/{id}", "Recent matches whose id begins with this", _match),
)
"""All that programs can ask."""


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
