"""A Linked Data Event Stream over HTTP as a source: its pages are followed, each member comes in once.

Members have no order but what their times say, and pages may come anywhere in a tree, so the stream itself
gives no positions. A member gets its number when it is written to the log (semantics 1); beside the log
stands which members it has, or had.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urldefrag, urlsplit

from kaicep.connectors.contract import SourceBatch
from kaicep.connectors.documents import USUAL_TIMES, described, json_fields
from kaicep.connectors.log import Log, PushSource
from kaicep.connectors.records import Record, json_object
from kaicep.connectors.registry import Count, Duration, Variable, secret
from kaicep.connectors.shape import Form
from kaicep.errors import Failure, Mistake, reason_of
from kaicep.plan.rdf_text import parsing

_TREE, _LDES = "https://w3id.org/tree#", "https://w3id.org/ldes#"
_EARLIER = (_TREE + "LessThanRelation", _TREE + "LessThanOrEqualToRelation")
_FORMATS = {
    "application/n-quads": "nq",
    "application/n-triples": "nt",
    "application/trig": "trig",
    "text/turtle": "ttl",
    "application/ld+json": "jsonld",
    "application/rdf+xml": "rdf",
}
_PATIENCE = 10.0
_RETRY = 5.0
_MOST = 256 << 20
_CHUNK = 1 << 16
_DIGEST = 16


@dataclass(frozen=True, slots=True)
class LdesOptions:
    """Where the event stream begins, and where the log is.

    When it is followed, its pages are looked at again `every` so often. `token` names an environment variable
    with what is sent as a bearer token. Beyond `backlog` members that wait to be read, no page is fetched.
    """

    url: str
    log: Path
    follow: bool = True
    every: Duration = Duration(60_000_000)
    token: Variable | None = None
    backlog: Count = Count(100_000)
    batch: Count = Count(10_000)


@dataclass(frozen=True, slots=True)
class _Page:
    """A page: its members that may be new, the pages that it leads to, and whether it may change."""

    members: list[dict[str, Any]]
    earlier: list[str]
    later: list[str]
    etag: str | None
    final: bool


class LdesSource(PushSource):
    """The members of an event stream, one record each."""

    def __init__(self, form: Form, options: LdesOptions) -> None:
        super().__init__(form, options.log, options.batch)
        self._options = options
        self.finite = not options.follow
        self._where = f"stream {form.stream}"
        self._token = secret(options.token, self._where)
        self._times = form.notation.rdf or USUAL_TIMES
        if urlsplit(options.url).scheme not in ("http", "https") or not urlsplit(options.url).hostname:
            hint = 'such as "https://example.org/ldes"; a folder of members is read with kind = "files"'
            raise Mistake(f"{self._where}: url: {options.url} is no address of a page", hint=hint)
        self._origin = _origin(options.url)
        self._opener = urllib.request.build_opener(_SameOrigin(self._origin))
        self._pages: dict[str, _Page] = {}
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._complete = False
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why no page comes."""
        return self._trouble

    def named(self, part: int) -> str | None:
        """Where the event stream begins."""
        return self._options.url

    def next_batch(self, timeout: float) -> SourceBatch:
        """The members that came and were not given yet."""
        complete = self._complete
        batch = super().next_batch(timeout)
        ended = self.finite and complete and not self.backlog
        return replace(batch, ended=ended)

    def _start(self, log: Log) -> None:
        self._stopping.clear()
        self._complete = False
        self._pages.clear()
        members = _Members(self._options.log, log)
        self._thread = threading.Thread(target=self._follow, args=(log, members), daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _record(self, seq: int, raw: bytes) -> Record:
        fields, reason = json_object(raw)
        if fields is not None and "reason" in fields:
            reason, fields = str(fields["reason"]), None
        return Record(0, seq, seq + 1, self._options.url, fields, raw.decode(), reason)

    # --- in the thread of its own ---------------------------------------------------------------------

    def _follow(self, log: Log, members: _Members) -> None:
        """Looks at all pages, again and again; whatever a server does is a reason to try again."""
        while not self._stopping.is_set():
            try:
                self._crawl(log, members)
            except Exception as error:
                self._trouble = reason_of(error)
                self._pages.clear()  # members of pages that were fetched may not have been taken yet
                self._stopping.wait(_RETRY)
                continue
            self._trouble = None
            self._complete = not self._stopping.is_set()
            if self.finite:
                return
            self._stopping.wait(self._options.every / 1_000_000)

    def _crawl(self, log: Log, members: _Members) -> None:
        """Goes over the pages, those with earlier members first, as far as their relations say."""
        waiting: list[str | list[dict[str, Any]]] = [self._options.url]
        seen: set[str] = set()
        while waiting and not self._stopping.is_set():
            next_one = waiting.pop()
            if isinstance(next_one, list):
                self._take(log, members, next_one)
            elif next_one not in seen:
                seen.add(next_one)
                page = self._page(next_one)
                waiting += [*reversed(page.later), page.members, *reversed(page.earlier)]

    def _take(self, log: Log, members: _Members, found: list[dict[str, Any]]) -> None:
        while self.backlog >= self._options.backlog:
            if self._stopping.wait(0.1):
                return
        new = [each for each in found if each["member"] not in members]
        new.sort(key=lambda each: (self._moment(each), each["member"]))
        if new:
            log.append([json.dumps(each, ensure_ascii=False).encode() for each in new])
            members.add([each["member"] for each in new])

    def _moment(self, member: dict[str, Any]) -> float:
        start = member.get(self._times.start)
        moment = self.form.notation.time_of(start) if isinstance(start, str) else start
        return moment if isinstance(moment, int | float) else 0

    def _page(self, url: str) -> _Page:
        """A page as it is now; one that has not changed since has no new members."""
        known = self._pages.get(url)
        if known is None or not known.final:
            answer = self._fetch(url, known.etag if known is not None else None)
            known = self._read(url, *answer) if answer is not None else known
            assert known is not None
            self._pages[url] = replace(known, members=[])
        return known

    def _fetch(self, url: str, etag: str | None) -> tuple[bytes, Any] | None:
        """The bytes and the headers of a page; None where it is as it was."""
        headers = {"Accept": ", ".join(_FORMATS)}
        if etag is not None:
            headers["If-None-Match"] = etag
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with self._opener.open(urllib.request.Request(url, headers=headers), timeout=_PATIENCE) as answer:
                return self._body(url, answer), answer.headers
        except urllib.error.HTTPError as error:
            if error.code == 304 and etag is not None:
                return None
            raise Failure(f"{url} answers with {error.code} {error.reason}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise Failure(f"{url} cannot be read: {getattr(error, 'reason', error)}") from None

    def _body(self, url: str, answer: IO[bytes]) -> bytes:
        body = bytearray()
        while chunk := answer.read(_CHUNK):
            body += chunk
            if len(body) > _MOST:
                raise Failure(f"{url} has more than {_MOST >> 20} MB")
            if self._stopping.is_set():
                raise Failure(f"{url} was not read to its end")
        return bytes(body)

    def _read(self, url: str, body: bytes, headers: Any) -> _Page:
        kind = headers.get_content_type()
        if kind not in _FORMATS:
            raise Failure(f"{url} is {kind}, and no RDF")
        try:
            with parsing(body, _FORMATS[kind], url, url) as parsed:
                quads = list(parsed)
        except Mistake as mistake:
            raise Failure(f"{url} cannot be parsed: {mistake.diagnostics[0].message}") from None
        nameless = [q for q in quads if q.predicate.value == _TREE + "member" and not _is_iri(q.object)]
        if nameless:
            raise Failure(f"{url} has a member without an IRI, {nameless[0].object}")
        final = "immutable" in (headers.get("Cache-Control") or "")
        for each in quads if self.form.notation.rdf is None else ():
            if each.predicate.value == _LDES + "timestampPath" and _is_iri(each.object):
                self._times = replace(self._times, starts=(each.object.value,))
        earlier, later = self._leads_to(quads)
        return _Page(list(self._members(quads)), earlier, later, headers.get("ETag"), final)

    def _members(self, quads: list[Any]) -> Iterator[dict[str, Any]]:
        about: dict[Any, list[Any]] = {}
        graphs: dict[str, list[Any]] = {}
        for each in quads:
            if type(each.graph_name).__name__ == "DefaultGraph":
                about.setdefault(each.subject, []).append(each)
            else:
                graphs.setdefault(each.graph_name, []).append(each)
        members = dict.fromkeys(each.object for each in quads if each.predicate.value == _TREE + "member")
        for member in members:
            own = [*described(member, about), *graphs.get(member, ())]
            names: dict[str, str] = {}

            def label(name: str, names: dict[str, str] = names) -> str:
                return names.setdefault(name, f"b{len(names)}")

            in_record = self.form.notation.blank_nodes == "record"
            fields = json_fields(own, self._times, label if in_record else str)
            yield {"member": str(member), **fields}

    def _leads_to(self, quads: list[Any]) -> tuple[list[str], list[str]]:
        """The pages that a page leads to: those with earlier members, and the others, each in order."""
        said: dict[tuple[Any, str], list[Any]] = {}
        for each in (each for each in quads if hasattr(each.object, "value")):
            said.setdefault((each.subject, each.predicate.value), []).append(each.object)
        relations = [each.object for each in quads if each.predicate.value == _TREE + "relation"]
        found: list[tuple[bool, str, str]] = []
        for each in dict.fromkeys(relations):
            kinds = said.get((each, "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"), [])
            value = next((node.value for node in said.get((each, _TREE + "value"), [])), "")
            earlier = any(kind.value in _EARLIER for kind in kinds)
            found += [(earlier, value, node.value) for node in said.get((each, _TREE + "node"), [])]
        if not found:
            views = (each.object for each in quads if each.predicate.value == _TREE + "view")
            found = [(False, "", each.value) for each in views if _is_iri(each)]
        pages = [(earlier, urldefrag(node).url) for earlier, _, node in sorted(found)]
        for _, node in pages:
            if _origin(node) != self._origin:
                raise Failure(f"{node} is on another server than {self._options.url}, and is not followed")
        return [node for earlier, node in pages if earlier], [node for earlier, node in pages if not earlier]


class _Members:
    """Which members are, or were, in the log: a digest for each of its records, in a file beside it."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._path = folder / "members"
        data = self._path.read_bytes() if self._path.exists() else b""
        count = min(len(data) // _DIGEST, log.end)
        if count < log.first:
            hint = "bring a copy of it back, or begin with a new log"
            raise Failure(f"{self._path} is not whole: it says which members were taken in ({hint})")
        self._digests = {data[at * _DIGEST :][:_DIGEST] for at in range(count)}
        with self._path.open("ab") as file:
            file.truncate(count * _DIGEST)
        for raw in log.read(count, log.end - count):  # a crash came between the log and this file
            self.add([json.loads(raw)["member"]])

    def __contains__(self, member: str) -> bool:
        return _digest(member) in self._digests

    def add(self, members: list[str]) -> None:
        """Takes note of members, in the order in which they are in the log."""
        digests = [_digest(each) for each in members]
        with self._path.open("ab") as file:
            file.write(b"".join(digests))
            file.flush()
            os.fsync(file.fileno())
        self._digests.update(digests)


def _is_iri(node: Any) -> bool:
    return type(node).__name__ == "NamedNode"


def _digest(member: str) -> bytes:
    return blake2b(member.encode(), digest_size=_DIGEST).digest()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Goes where a page has moved to, on the same server."""

    def __init__(self, origin: tuple[str, str]) -> None:
        self._origin = origin

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request of the other place."""
        if _origin(newurl) != self._origin:
            raise Failure(f"{req.full_url} leads to another server, {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
