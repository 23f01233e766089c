"""The pages: what each of them shows, and what you can do there.

`PAGES` is the table of them. A page is rendered from what the board shows and from what the worker process
answers; nothing is done in the deployment's thread but to register and to remove a query.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from kaicep.assist.help import KEYWORDS
from kaicep.console.drawing import chart, plan_graph, timeline
from kaicep.deployment.updates import next_change
from kaicep.errors import Failure, KaicepError, Mistake
from kaicep.plan.events import Match
from kaicep.plan.time import format_time, parse_time
from kaicep.server.board import event
from kaicep.storage.disk import replace_file

if TYPE_CHECKING:
    from kaicep.server.app import Application

_log = logging.getLogger("kaicep.console")
_HERE = Path(__file__).parent
_STATIC = _HERE / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml"}
_SHOWN = 100
_FOLLOWING = 128
_EVERY = 1.0
_ROWS_EVERY = 0.4
_ROWS_AT_ONCE = 40
_QUICK, _LONG = 20.0, 40.0
_THEMES = ("auto", "light", "dark")
_MINUTES = 10 * 60 * 1_000_000

OPEN = ("/console/login", "/console/static/")
"""What somebody without a token may ask for."""

_NAVIGATION = (
    ("/console", "Overview", "o"),
    ("/console/matches", "Matches", "m"),
    ("/console/why", "Why nothing", "w"),
    ("/console/workbench", "Workbench", "q"),
    ("/console/knowledge", "Knowledge", "k"),
    ("/console/data", "Data", "d"),
    ("/console/plan", "Plan", "p"),
    ("/console/log", "Log", "l"),
)

Handler = Callable[["Pages", Request], Awaitable[Response]]


@dataclass(frozen=True)
class Page:
    """A page, or a part of one: how it is asked for, who makes it, and whether it changes anything."""

    method: str
    path: str
    handler: Handler
    changes: bool = False


class Pages:
    """Renders the pages of an application."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.board = app.board
        self._following = 0
        self._parts: tuple[float, dict[str, str]] = (0.0, {})
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "span": _span,
            "local": _local,
            "pretty": _pretty,
            "rule": _rule,
            "size": _size,
            "tidy": _tidy,
            "unmet": _unmet,
        }

        self._templates.tests["time"] = _is_time

    @property
    def routes(self) -> list[Route]:
        """The routes of all pages."""
        return [Route(each.path, self._guarded(each), methods=[each.method]) for each in PAGES]

    def _guarded(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            starting = not self.board.at_work and page.path not in (*OPEN, "/console/static/{name}")
            try:
                if starting:
                    raise Failure("The deployment is starting. This page reloads by itself.")
                found = await page.handler(self, request)
            except (KaicepError, HTTPException) as error:
                found = self._problem(request, error)
            except Exception:
                _log.exception("the page %s failed", page.path)
                found = self._problem(request, Failure("this page failed; the log of the process says why"))
            if starting:  # it may be at work by now: the page must still reload
                found.headers["Refresh"] = "2"
            for name, value in _HEADERS.items():
                found.headers.setdefault(name, value)
            return found

        return answer

    def _problem(self, request: Request, error: KaicepError | HTTPException) -> Response:
        """What is wrong, as a page or as a part of one."""
        if isinstance(error, HTTPException):
            said: list[tuple[str, str | None]]
            status, said = error.status_code, [(error.detail, None)]
        elif isinstance(error, Mistake):
            status, said = 400, _said(error)
        else:
            status, said = 503 if isinstance(error, Failure) else 400, [(str(error), None)]
        name = "problem_part.html" if "hx-request" in request.headers else "problem.html"
        title = _TITLES.get(status, "Something is wrong")
        return self.render(request, name, status, title=title, said=said)

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page of a template."""
        nonce = secrets.token_urlsafe(16)
        html = self._templates.get_template(template).render(
            **values,
            nonce=nonce,
            navigation=_NAVIGATION,
            here=request.url.path,
            deployment=self.board.status.get("name", "kaicep"),
            role=self.app.role(request.headers),
            guarded=self.app.guarded,
            theme=_theme(request),
            asset=_asset,
        )
        headers = {"Content-Security-Policy": _policy(nonce), "Cache-Control": "no-store"}
        return Response(html, status, headers, "text/html")

    def part(self, template: str, **values: Any) -> str:
        """A part of a page, for a stream."""
        return self._templates.get_template(template).render(**values)

    # --- streams ---

    def stream(self, source: AsyncIterator[bytes]) -> Response:
        """A stream of events for a page; there is a bound to how many follow."""
        if self._following >= _FOLLOWING:
            raise HTTPException(503, f"{_FOLLOWING} pages are following already")

        async def counted() -> AsyncIterator[bytes]:
            self._following += 1
            try:
                yield b"retry: 2000\n\n"
                async for each in source:
                    yield each
            finally:
                self._following -= 1

        return StreamingResponse(
            counted(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def overview_stream(self) -> AsyncIterator[bytes]:
        """The parts of the overview, each when it has changed."""
        shown: dict[str, str] = {}
        quiet = 0
        while not self.board.closing:
            changed = {id: html for id, html in self.overview_parts().items() if shown.get(id) != html}
            shown |= changed
            quiet = 0 if changed else quiet + 1
            yield b"".join(event("part", {"id": id, "html": html}) for id, html in changed.items())
            if quiet % 10 == 9:
                yield b": still here\n\n"
            await asyncio.sleep(_EVERY)
        yield event("end", "the deployment stops")

    def overview_parts(self) -> dict[str, str]:
        """The parts of the overview, rendered once a second for all who look."""
        made, parts = self._parts
        if time.monotonic() - made > _EVERY / 2:
            values = _overview(self)
            parts = {name: self.part(f"part_{name}.html", **values) for name in _PARTS}
            self._parts = time.monotonic(), parts
        return parts

    async def plan_stream(self, name: str, found: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """The plan of a query with what flows on its edges, whenever that has changed."""
        shown = ""
        while not self.board.closing and name in self.board.queries:
            html = self.part("part_flow.html", **_flow_values(self, name, found))
            yield event("part", {"id": "flow", "html": html}) if html != shown else b": still here\n\n"
            shown = html
            await asyncio.sleep(_EVERY)
        yield event("end", "the query is gone")

    async def match_stream(self, query: str, text: str, values: list[str]) -> AsyncIterator[bytes]:
        """The matches as they come, as rows; of very many the newest."""
        yield b": welcome\n\n"
        async for some, lost in self.board.watch(query or None, _ROWS_EVERY):
            fitting: list[Match] = []
            for each in reversed(some):
                if len(fitting) < _ROWS_AT_ONCE and _fits(each, text, values):
                    fitting.append(each)
            if fitting:
                rows = [_row(each.to_dict()) for each in fitting]
                html = self.part("part_rows.html", rows=rows, new=True)
                yield event("rows", {"id": "rows", "html": html, "most": _SHOWN})
            elif lost or not some:
                yield b": still here\n\n"
        yield event("end", "the deployment stops")

    # --- what changes something ---

    def note(self, request: Request, what: str, name: str, detail: str = "") -> None:
        """Writes down who changed what."""
        self.app.audit.add(self.app.role(request.headers) or "nobody", _client(request), what, name, detail)

    def change_knowledge(self, update: str) -> str:
        """Puts an update where the deployment looks for changes; its name."""
        folder = self.board.config.changes
        name = f"{next_change(folder)}.ru"
        replace_file(folder / name, update.encode())
        return name


# --- what pages share --------------------------------------------------------------------------------------


_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_TITLES = {400: "Please correct this", 403: "Not allowed", 404: "Not found", 503: "Not available now"}
_PARTS = ("tiles", "charts", "streams", "queries", "rest")


def _said(mistake: Mistake) -> list[tuple[str, str | None]]:
    return [(each.message, each.hint) for each in mistake.diagnostics]


def _policy(nonce: str) -> str:
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@cache
def _asset(name: str) -> str:
    """The address of something that the browser loads; it changes with the content."""
    digest = hashlib.sha256((_STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/console/static/{name}?v={digest}"


def _theme(request: Request) -> str:
    chosen = request.cookies.get("kaicep-theme", "auto")
    return chosen if chosen in _THEMES else "auto"


def _client(request: Request) -> str:
    return request.client.host if request.client else "?"


async def _form(request: Request) -> dict[str, str]:
    read = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
    return {name: some[0].replace("\r\n", "\n") for name, some in read.items()}


_UNITS = ((31_557_600.0, "years"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def _span(seconds: float | None) -> str:
    """A length of time.

    >>> _span(0.0042), _span(12.34), _span(4000), _span(400_000_000)
    ('4.2 ms', '12.3 s', '1.1 h', '12.7 years')
    """
    if seconds is None:
        return "none yet"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{_tenths(seconds / size)} {unit}"
    if seconds >= 1:
        return f"{_tenths(seconds)} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _size(number: int) -> str:
    """A number of bytes.

    >>> _size(71_204), _size(2_500_000_000)
    ('71.2 kB', '2.5 GB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _local(text: str) -> str:
    """An IRI as a row shows it: its last part.

    >>> _local("http://cei.usc.edu/Building.owl#RTH102"), _local("plain text")
    ('RTH102', 'plain text')
    """
    if not text.startswith(("http://", "https://", "urn:")):
        return text
    cut = max(text.rstrip("/#:").rfind(each) for each in "#/:")
    return text[cut + 1 :] or text


def _pretty(iso: str | None) -> str:
    """A time as it stands in a page before the reader's own form of it is known."""
    return "" if iso is None else iso[:19].replace("T", " ")


_RULES = {
    "cax-sco": "subclass",
    "prp-spo1": "subproperty",
    "prp-dom": "domain",
    "prp-rng": "range",
    "prp-inv1": "inverse",
    "prp-inv2": "inverse",
    "prp-trp": "transitive",
    "prp-symp": "symmetric",
    "scm-sco": "subclass of a subclass",
    "scm-spo": "subproperty of a subproperty",
    "eq-rep-s": "sameAs",
    "eq-rep-o": "sameAs",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_COMPARISON = re.compile(r" (<=|>=|!=|<|>|=) (\S+)$")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{9,}(?!\d|e)")


def _rule(name: str) -> str:
    """A rule of the reasoning in words."""
    return _RULES.get(name, name)


def _tidy(text: str) -> str:
    """A text whose numbers have no more digits than somebody reads.

    >>> _tidy("585.2 - 524.4 = 60.80000000000007 > 50.0")
    '585.2 - 524.4 = 60.8 > 50.0'
    """
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.9g}", text)


def _unmet(text: str) -> str:
    """A comparison that does not hold, with what it would have needed.

    >>> _unmet("560.0 - 520.0 = 40.0 > 50.0"), _unmet("not a meeting room")
    ('560.0 - 520.0 = 40.0, needs > 50.0', 'not a meeting room')
    """
    return _COMPARISON.sub(r", needs \1 \2", text)


def _shown(value: object) -> str:
    if isinstance(value, Mapping) and "value" in value:
        value = value["value"]
    if isinstance(value, float):
        return f"{value:.6g}"
    return _local(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_time(value: object) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None


def _row(match: Mapping[str, Any]) -> dict[str, Any]:
    selected = [(name, _shown(value), _is_time(value)) for name, value in (match.get("select") or {}).items()]
    return {**match, "selected": selected, "triples": list(match.get("triples") or ())[:6]}


def _fits(match: Match, text: str, values: list[str]) -> bool:
    if not text and not values:
        return True
    said = match.to_json()
    return text.lower() in said.lower() and (not values or any(f'"{each}"' in said for each in values))


# --- overview ----------------------------------------------------------------------------------------------


def _overview(pages: Pages) -> dict[str, Any]:
    board, status = pages.board, pages.board.status
    samples, rates = list(board.samples), board.rates
    queries = {
        name: {**each, "rate": rates.get(("queries", name), 0.0), "host": status["engine"]["kind"]}
        for name, each in status["queries"].items()
    }
    streams = {
        name: {**each, "rate": rates.get(("streams", name), 0.0)} for name, each in status["streams"].items()
    }
    recent = [each for each in samples if time.time() - each.at < 10]
    return {
        "status": status,
        "streams": streams,
        "queries": queries,
        "rate": sum(each["rate"] for each in streams.values()),
        "found": sum(each["rate"] for each in queries.values()),
        "worst": max((each.worst for each in recent if each.worst is not None), default=None),
        "rates": chart([("events", [each.events for each in samples])], "/s"),
        "matches": chart([("matches", [each.matches for each in samples])], "/s"),
        "latency": chart(
            [
                ("median", [_milliseconds(each.median) for each in samples]),
                ("p99", [_milliseconds(each.worst) for each in samples]),
            ],
            " ms",
        ),
        "since": _newest_version(board.versions),
        "stalled": board.is_stalled,
        "host": _host,
    }


def _host(name: str) -> str:
    return {"inprocess": "in process", "spark": "Spark"}.get(name, name)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1_000


def _newest_version(versions: Any) -> str | None:
    return format_time(int(versions[-1][1] * 1_000_000)) if versions else None


async def _overview_page(pages: Pages, request: Request) -> Response:
    pages.app.prepare()
    return pages.render(request, "overview.html", title="Overview", parts=pages.overview_parts())


async def _overview_live(pages: Pages, request: Request) -> Response:
    return pages.stream(pages.overview_stream())


# --- matches -----------------------------------------------------------------------------------------------


async def _values_of(pages: Pages, entity: str) -> list[str]:
    found: list[str] = await pages.app.ask("related", _QUICK, entity=entity) if entity else []
    return found


async def _matches_page(pages: Pages, request: Request) -> Response:
    asked = request.query_params
    query, text, entity, low, high = (
        asked.get(each, "").strip() for each in ("query", "text", "entity", "low", "high")
    )
    past = asked.get("past") == "yes"
    rows: list[Any] = []
    readable, wrong = 1, None
    try:
        values = await _values_of(pages, entity)
        if past:
            given = {"query": query, "text": text, "values": values, "low": low, "high": high}
            found = await pages.app.ask("written", _LONG, **given)
            rows, readable = found["matches"], found["readable"]
        else:
            every = pages.board.recent(query or None)[::-1]
            rows = [each.to_dict() for each in every if _fits(each, text, values)][:_SHOWN]
    except Mistake as mistake:
        wrong = _said(mistake)
    return pages.render(
        request,
        "matches.html",
        title="Matches",
        rows=[_row(each) for each in rows],
        queries=sorted(pages.board.queries),
        query=query,
        text=text,
        entity=entity,
        low=low,
        high=high,
        past=past,
        readable=readable,
        wrong=wrong,
        live=f"/console/live/matches?{urlencode({'query': query, 'text': text, 'entity': entity})}",
    )


async def _matches_live(pages: Pages, request: Request) -> Response:
    asked = request.query_params
    values = await _values_of(pages, asked.get("entity", ""))
    return pages.stream(pages.match_stream(asked.get("query", ""), asked.get("text", ""), values))


async def _story_page(pages: Pages, request: Request) -> Response:
    id = request.path_params["id"]
    remembered = next((each.to_dict() for each in pages.board.recent() if each.id == id), None)
    version = pages.board.status["knowledge"]["version"]
    found = await pages.app.ask("story", _LONG, id=id, match=remembered, version=version)
    return pages.render(
        request,
        "story.html",
        title=f"A match of {found['query']}",
        story=found,
        drawing=timeline(found["readings"], found["absences"]),
    )


# --- why nothing -------------------------------------------------------------------------------------------


async def _why_page(pages: Pages, request: Request) -> Response:
    asked = request.query_params
    query, low, high, key = (asked.get(each, "").strip() for each in ("query", "low", "high", "key"))
    names = sorted(pages.board.queries)
    found = wrong = None
    if query and (low or high):
        try:
            found = await pages.app.ask("misses", _LONG, query=query, low=low, high=high, key=key)
        except Mistake as mistake:
            wrong = _said(mistake)
    if not (low and high):
        low, high = _last_minutes(pages)
    return pages.render(
        request,
        "why.html",
        title="Why nothing",
        names=names,
        query=query or (names[0] if names else ""),
        low=low,
        high=high,
        key=key,
        found=found,
        wrong=wrong,
        streams=pages.board.status["streams"],
        state=pages.board.queries.get(query or (names[0] if names else "")),
    )


def _last_minutes(pages: Pages) -> tuple[str, str]:
    """The last minutes of what has come."""
    ends = [
        parse_time(each["newest"]) or 0 for each in pages.board.status["streams"].values() if each["newest"]
    ]
    if not ends:
        return "", ""
    return format_time(max(ends) - _MINUTES)[:19] + "Z", format_time(max(ends) + 999_999)[:19] + "Z"


# --- workbench ---------------------------------------------------------------------------------------------

_BLANK = """\
# Every event of {stream}. Add FILTER, JOIN, SEQ, WINDOW or PATH to say which ones you look for.
SELECT *
FROM (?e, {stream})
"""


async def _workbench_page(pages: Pages, request: Request) -> Response:
    name = request.query_params.get("query", "")
    known = pages.board.registered(name) if name else None
    streams = list(pages.board.config.streams)
    low, high = _last_minutes(pages)
    return pages.render(
        request,
        "workbench.html",
        title="Workbench",
        name=name if known else "",
        text=known.text if known else _BLANK.format(stream=streams[0] if streams else "stream"),
        language="ep-sparql" if known and known.suffix == ".epsparql" else "chi-cep",
        keywords=" ".join(sorted(KEYWORDS)),
        queries={each: row.get("outside", False) for each, row in sorted(pages.board.queries.items())},
        streams=streams,
        low=low,
        high=high,
    )


async def _language(pages: Pages, request: Request) -> Response:
    what = request.path_params["what"]
    if what not in ("diagnostics", "completions", "hover"):
        raise HTTPException(404, f"unknown question {what[:40]}: ask for diagnostics, completions or hover")
    try:
        asked = json.loads(await request.body())
        given: dict[str, Any] = {"text": str(asked["text"]), "language": str(asked["language"])}
        if what != "diagnostics":
            given["offset"] = int(asked["offset"])
    except (ValueError, KeyError, TypeError):
        raise HTTPException(400, "send JSON with text and language") from None
    return JSONResponse(await pages.app.ask(what, _QUICK, **given))


async def _try(pages: Pages, request: Request) -> Response:
    form = await _form(request)
    found = await pages.app.ask(
        "trial", _LONG, **{each: form.get(each, "") for each in ("text", "language", "low", "high")}
    )
    return pages.render(
        request, "part_trial.html", found=found, rows=[_row(each) for each in found["matches"]]
    )


async def _draft_plan(pages: Pages, request: Request) -> Response:
    """The plan of the text in the editor: whole, or as it stands beside the editor."""
    form = await _form(request)
    given = {each: form.get(each, "") for each in ("text", "language")}
    try:
        found = await pages.app.ask("plan", _QUICK, name="draft", **given)
    except Mistake:
        if form.get("beside"):  # somebody is typing: the plan stays as it was
            return Response(status_code=204)
        raise
    values = _plan_values(found) | {"optimised": plan_graph(found["optimised"])}
    if form.get("beside"):
        return pages.render(request, "part_beside.html", **values)
    return pages.render(request, "part_plan.html", **values)


async def _register(pages: Pages, request: Request) -> Response:
    form = await _form(request)
    name, language, text = (form.get(each, "").strip() for each in ("name", "language", "text"))
    await pages.app.register(name, language, text)
    pages.note(request, "registered", name, text)
    return pages.render(request, "part_registered.html", name=name)


async def _remove(pages: Pages, request: Request) -> Response:
    name = (await _form(request)).get("name", "")
    await pages.app.remove(name)
    pages.note(request, "removed", name)
    return RedirectResponse("/console/workbench", 303)


async def _path(pages: Pages, request: Request) -> Response:
    form = await _form(request)
    found = await pages.app.ask("paths", _QUICK, start=form.get("start", ""), end=form.get("end", "").strip())
    return pages.render(request, "part_paths.html", found=found)


# --- knowledge ---------------------------------------------------------------------------------------------


async def _knowledge_page(pages: Pages, request: Request) -> Response:
    text = request.query_params.get("text", "").strip()
    return pages.render(
        request,
        "knowledge.html",
        title="Knowledge",
        text=text,
        about=await pages.app.ask("overview", _QUICK),
        found=await pages.app.ask("search", _QUICK, text=text) if text else None,
        versions=[
            (number, format_time(int(at * 1_000_000))) for number, at in reversed(pages.board.versions)
        ],
    )


async def _entity_page(pages: Pages, request: Request) -> Response:
    found = await pages.app.ask("entity", _QUICK, iri=request.query_params.get("iri", ""))
    return pages.render(request, "entity.html", title=found["label"], entity=found)


def _update(form: Mapping[str, str]) -> str:
    when = form.get("valid_from", "").strip()
    head = f"# valid from {when}\n" if when else ""
    parts = [
        f"{verb} DATA {{\n{form[field].strip()}\n}}"
        for verb, field in (("DELETE", "remove"), ("INSERT", "add"))
        if form.get(field, "").strip()
    ]
    return head + form.get("prefixes", "") + " ;\n".join(parts) + "\n"


async def _change(pages: Pages, request: Request) -> tuple[dict[str, str], str]:
    form = await _form(request)
    if not (form.get("add", "").strip() or form.get("remove", "").strip()):
        raise HTTPException(400, "Nothing to change: write statements to add or to remove.")
    used = await pages.app.ask("prefixes", _QUICK, text=f"{form.get('add', '')} {form.get('remove', '')}")
    form["prefixes"] = "".join(f"PREFIX {name}: <{iri}>\n" for name, iri in used.items())
    return form, _update(form)


async def _preview(pages: Pages, request: Request) -> Response:
    form, update = await _change(pages, request)
    found = await pages.app.ask("preview", _LONG, update=update)
    return pages.render(request, "part_preview.html", found=found, form=form, update=update)


async def _apply(pages: Pages, request: Request) -> Response:
    _, update = await _change(pages, request)
    await pages.app.ask("preview", _LONG, update=update)
    name = await run_in_threadpool(pages.change_knowledge, update)
    pages.note(request, "changed the knowledge", name, update)
    return pages.render(request, "part_applied.html", name=name)


# --- data, plan, log ---------------------------------------------------------------------------------------


async def _data_page(pages: Pages, request: Request) -> Response:
    asked = request.query_params
    stream, low, high, key, condition, what = (
        asked.get(each, "").strip() for each in ("stream", "low", "high", "key", "condition", "what")
    )
    extent = await pages.app.ask("extent", _QUICK)
    names = sorted({*extent, *pages.board.status["streams"]})
    stream = stream or (names[0] if names else "")
    rows: Any = None
    wrong = None
    try:
        if what == "dead":
            rows = await pages.app.ask("dead", _QUICK, stream=stream)
        elif stream in extent:
            given = {"stream": stream, "low": low, "high": high, "key": key, "condition": condition}
            rows = await pages.app.ask("events", _LONG, late=what == "late", **given)
    except Mistake as mistake:
        wrong = _said(mistake)
    return pages.render(
        request,
        "data.html",
        title="Data",
        names=names,
        extent=extent,
        stream=stream,
        low=low,
        high=high,
        key=key,
        condition=condition,
        what=what or "events",
        rows=rows,
        wrong=wrong,
        counts=pages.board.status["streams"].get(stream, {}),
    )


async def _plan_page(pages: Pages, request: Request) -> Response:
    names = sorted(pages.board.queries)
    name = request.query_params.get("query", "") or (names[0] if names else "")
    known = pages.board.registered(name) if name else None
    values: dict[str, Any] = {"found": None}
    row = pages.board.queries.get(name, {})
    if known is not None:
        language = "ep-sparql" if known.suffix == ".epsparql" else "chi-cep"
        found = await pages.app.ask("plan", _QUICK, name=name, text=known.text, language=language)
        values = _plan_values(found) | _flow_values(pages, name, found)
    return pages.render(
        request,
        "plan.html",
        title="Plan",
        names=names,
        name=name,
        row=row,
        text=known.text if known else "",
        **values,
    )


async def _plan_live(pages: Pages, request: Request) -> Response:
    name = request.query_params.get("query", "")
    known = pages.board.registered(name)
    if known is None:
        raise HTTPException(404, f"no query is called {name[:80]}")
    language = "ep-sparql" if known.suffix == ".epsparql" else "chi-cep"
    found = await pages.app.ask("plan", _QUICK, name=name, text=known.text, language=language)
    return pages.stream(pages.plan_stream(name, found))


def _plan_values(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"found": found, "logical": plan_graph(found["logical"])}


def _flow_values(pages: Pages, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The optimised and the physical plan of a registered query, with what flows on their edges."""
    row, rates = pages.board.queries.get(name, {}), pages.board.rates
    fits, steps = row.get("fits") or {}, row.get("steps")
    matches = f"{row.get('matches', 0):,} matches, {rates.get(('queries', name), 0.0):.3g}/s"
    kept = "" if row.get("held") is None else f", {row['held']:,} kept"

    def flowing(card: Mapping[str, Any]) -> dict[str, Any]:
        variable = str(card.get("what", "")).partition(" in ")[0].removeprefix("?")
        if card.get("inputs"):
            flow = matches + kept
        else:
            flow = f"{fits[variable]:,} of {steps['in']:,} events" if steps and variable in fits else ""
        return {**card, "flow": flow, "inputs": [flowing(each) for each in card.get("inputs", ())]}

    used = pages.board.status["engine"]["kind"]
    return {
        "optimised": plan_graph(flowing(found["optimised"])),
        "physical": [
            (title, kind == used, plan_graph(_physical(pages, name, found, kind, matches)))
            for kind, title in (("inprocess", "In process"), ("spark", "On Spark"))
        ],
    }


def _physical(
    pages: Pages, name: str, found: Mapping[str, Any], kind: str, matches: str
) -> Mapping[str, Any]:
    """From sources to sinks as a host runs it, as a plan's card; with live figures for the host in use."""
    config, status, rates = pages.board.config, pages.board.status, pages.board.rates
    live = status["engine"]["kind"] == kind

    def source(stream: str) -> dict[str, Any]:
        row = status["streams"].get(stream)
        if row is None:
            flow = f"{rates.get(('queries', stream), 0.0):.3g}/s"
            return _card("Query", stream, (), (), flow if live else "")
        parts = len(row["positions"])
        flow = f"{row['events']:,} events, {rates.get(('streams', stream), 0.0):.3g}/s" if live else ""
        lines = [config.streams[stream].source["kind"], f"{parts} source partition{'s' * (parts != 1)}"]
        if kind == "inprocess":
            return _card("Source", stream, lines, (), flow)
        return _card("Archive", stream, ["Delta table"], [_card("Source", stream, lines, ())], flow)

    how = found["physical"]
    text = [how[each] for each in (kind, "end to end" if kind == "inprocess" else "") if each in how]
    lines = [line for each in text for line in wrap(each, 44)]
    flow = matches if live else ""
    title = "Micro-batches" if kind == "spark" else "Engine"
    engine = _card(title, "", lines, [source(each) for each in found["streams"]], flow)
    if kind == "spark":
        engine = _card("Table of matches", "", ["Delta table"], [engine], flow)
    outside = status["queries"].get(name, {}).get("outside", False)
    sinks = [each.name for each in config.sinks.values() if each.takes(name, outside)]
    return _card("Sinks", ", ".join(sinks) or "none", (), [engine])


def _card(
    operator: str, what: str, lines: Sequence[str], inputs: Sequence[Mapping[str, Any]], flow: str = ""
) -> dict[str, Any]:
    """A box of a plan: its headline, its lines, what feeds it, and what is written on the edge above it."""
    return {"operator": operator, "what": what, "": lines, "inputs": inputs, "flow": flow}


async def _log_page(pages: Pages, request: Request) -> Response:
    return pages.render(request, "log.html", title="Log", entries=pages.app.audit.last(200))


# --- logging in ---------------------------------------------------------------------------------------------


async def _start(pages: Pages, request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def _login_page(pages: Pages, request: Request) -> Response:
    return pages.render(request, "login.html", title="Log in", wrong=False, next=_next(request.query_params))


async def _login(pages: Pages, request: Request) -> Response:
    form = await _form(request)
    cookie = pages.app.cookie_for(form.get("token", "").strip())
    if cookie is None:
        await asyncio.sleep(0.5)
        return pages.render(request, "login.html", 401, title="Log in", wrong=True, next=_next(form))
    answer = RedirectResponse(_next(form), 303)
    answer.set_cookie(pages.app.cookie, cookie, httponly=True, samesite="strict", path="/")
    return answer


def _next(given: Mapping[str, str]) -> str:
    """Where to go after the token: a page of ours."""
    wanted = given.get("next", "")
    return (
        wanted if wanted.startswith("/console") and "//" not in wanted and "\\" not in wanted else "/console"
    )


async def _logout(pages: Pages, request: Request) -> Response:
    answer = RedirectResponse("/console/login", 303)
    answer.delete_cookie(pages.app.cookie, path="/")
    return answer


async def _choose_theme(pages: Pages, request: Request) -> Response:
    chosen = (await _form(request)).get("to", "auto")
    answer = RedirectResponse(_next({"next": _back(request)}), 303)
    if chosen in _THEMES:
        answer.set_cookie("kaicep-theme", chosen, samesite="strict", path="/console", max_age=31_536_000)
    return answer


def _back(request: Request) -> str:
    _, mark, rest = request.headers.get("referer", "").partition("/console")
    return mark + rest


async def _static(pages: Pages, request: Request) -> Response:
    path = _STATIC / request.path_params["name"]
    if path.name not in _files():
        raise HTTPException(404, f"there is no {path.name[:80]}")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(await run_in_threadpool(path.read_bytes), 200, headers, _TYPES[path.suffix])


async def _missing(pages: Pages, request: Request) -> Response:
    raise HTTPException(404, "The console has no such page; its pages are in the list.")


@cache
def _files() -> frozenset[str]:
    return frozenset(each.name for each in _STATIC.iterdir() if each.suffix in _TYPES)


PAGES: tuple[Page, ...] = (
    Page("GET", "/", _start),
    Page("GET", "/console", _overview_page),
    Page("GET", "/console/live/overview", _overview_live),
    Page("GET", "/console/matches", _matches_page),
    Page("GET", "/console/live/matches", _matches_live),
    Page("GET", "/console/matches/{id}", _story_page),
    Page("GET", "/console/why", _why_page),
    Page("GET", "/console/workbench", _workbench_page),
    Page("POST", "/console/language/{what}", _language),
    Page("POST", "/console/workbench/try", _try),
    Page("POST", "/console/workbench/plan", _draft_plan),
    Page("POST", "/console/workbench/path", _path),
    Page("POST", "/console/workbench/register", _register, changes=True),
    Page("POST", "/console/workbench/remove", _remove, changes=True),
    Page("GET", "/console/knowledge", _knowledge_page),
    Page("GET", "/console/knowledge/entity", _entity_page),
    Page("POST", "/console/knowledge/preview", _preview),
    Page("POST", "/console/knowledge/apply", _apply, changes=True),
    Page("GET", "/console/data", _data_page),
    Page("GET", "/console/plan", _plan_page),
    Page("GET", "/console/live/plan", _plan_live),
    Page("GET", "/console/log", _log_page),
    Page("GET", "/console/login", _login_page),
    Page("POST", "/console/login", _login),
    Page("POST", "/console/logout", _logout),
    Page("POST", "/console/theme", _choose_theme),
    Page("GET", "/console/static/{name}", _static),
    Page("GET", "/console/{rest:path}", _missing),
)
