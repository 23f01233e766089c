"""HTTP as a source: events are posted to `/events`, one or many in a request.

A request is answered with 200 when its events are on the disk, not before. A sender that gets no answer
sends again, and its events may then be there twice, under two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kaicep.connectors.intake import Intake, Limits
from kaicep.connectors.listening import App, Guard, Listening, is_loopback
from kaicep.connectors.log import Log
from kaicep.connectors.options import Count, Variable, secret
from kaicep.connectors.records import Record, json_object
from kaicep.connectors.shape import Form
from kaicep.connectors.sources.push import PushSource
from kaicep.errors import Diagnostic, Failure, Mistake

__all__ = ["HttpOptions", "HttpSource"]

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
                Diagnostic(
                    f"{where}: host {options.host} can be reached by others, and there is no token",
                    hint='name an environment variable that holds one: token = "KAICEP_TOKEN"',
                )
            )
        self._server: Listening | None = None

    @property
    def address(self) -> str:
        """Where to post events to, while it is open."""
        if self._server is None:
            raise Failure(f"stream {self.form.stream}: not open, so it does not listen")
        return self._server.url + _PATH

    def _start(self, log: Log) -> None:
        limits = Limits(self._options.request, self._options.events, self._options.backlog)
        intake = Intake(log, limits, lambda: self.backlog, self._token)
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
                Diagnostic(
                    f"stream {self.form.stream}: cannot listen on {place}: {error.strerror}", hint=hint
                )
            ) from None
        self._server.start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _record(self, seq: int, raw: bytes) -> Record:
        fields, reason = json_object(raw)
        return Record(0, seq, seq + 1, "http", fields, raw.decode(errors="replace"), reason)


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
