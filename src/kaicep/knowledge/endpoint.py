"""Knowledge that a SPARQL 1.1 server keeps: a copy of it in a file, which is renewed from time to time.

The copy is what is read. So a change over there becomes a change here like that of any file, and a restart
works while the server does not. It is fetched in a thread of its own, and replaced as a whole.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kaicep.errors import Failure, Mistake
from kaicep.plan.cache import write_whole
from kaicep.plan.time import format_time

_LOG = logging.getLogger("kaicep.knowledge")
_PATIENCE = 60.0
_MOST_BYTES = 2 << 30
_ALL = "SELECT ?g ?s ?p ?o WHERE {{?s ?p ?o} UNION {GRAPH ?g {?s ?p ?o}}}"
_FORM = re.compile(r"^\s*(?:(?:PREFIX\s+\S*\s*<[^>]*>|BASE\s*<[^>]*>|#[^\n]*)\s*)*CONSTRUCT\b", re.IGNORECASE)


@dataclass(frozen=True)
class Endpoint:
    """Where a SPARQL server is, and what of it is wanted: a graph, what a CONSTRUCT makes, or everything.

    The names of graphs are kept where everything is wanted. `token` is the name of an environment variable
    with what is sent as a bearer token; a user and a password stand in the address.
    """

    url: str
    graph: str = ""
    construct: str = ""
    refresh: float = 60.0
    token: str = ""

    def problem(self) -> str | None:
        """What is wrong with it, if anything."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return (
                f"{self.url} is no address of a SPARQL server: such as http://localhost:3030/building/sparql"
            )
        if self.graph and self.construct:
            return "there is a graph and a CONSTRUCT: leave one of them out"
        if re.search(r'[\x00-\x20<>"{}|\\^`]', self.graph):
            return f"{self.graph} is no IRI of a graph"
        if self.construct and not _FORM.match(self.construct):
            return "construct is a SPARQL query that begins with CONSTRUCT, after its prefixes"
        return None

    @property
    def query(self) -> str:
        """What the server is asked."""
        if self.graph:
            return f"CONSTRUCT {{?s ?p ?o}} WHERE {{GRAPH <{self.graph}> {{?s ?p ?o}}}}"
        return self.construct or _ALL

    def fetch(self) -> bytes:
        """What the server says, as N-Quads in order: the same statements are the same bytes."""
        import pyoxigraph

        asked = self.graph or self.construct
        accept = "application/n-triples" if asked else "application/sparql-results+json"
        body = self._post(accept)
        try:
            if asked:
                quads = set(pyoxigraph.parse(body, format=pyoxigraph.RdfFormat.N_TRIPLES))
            else:
                results = pyoxigraph.parse_query_results(body, format=pyoxigraph.QueryResultsFormat.JSON)
                quads = set(_quads(results))
        except (SyntaxError, ValueError, OSError) as error:
            raise Failure(f"{self._shown} answers with what is no {accept}: {error}") from None
        lines = sorted(f"{each} .\n" for each in quads)
        return "".join(lines).encode()

    @property
    def _shown(self) -> str:
        """The address without its password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def _post(self, accept: str) -> bytes:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
        headers = {"Accept": accept, "Content-Type": "application/sparql-query", **self._credentials()}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", path, self.query.encode(), headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Failure(f"{self._shown} cannot be reached: {reason}") from None
        finally:
            connection.close()
        if answer.status != 200:
            reason = body[:200].decode("utf-8", "replace").strip().partition("\n")[0]
            raise Failure(f"{self._shown} answers with {answer.status} {answer.reason}: {reason}")
        return body

    def _credentials(self) -> dict[str, str]:
        parts = urlsplit(self.url)
        if self.token:
            return {"Authorization": f"Bearer {os.environ.get(self.token, '')}"}
        if parts.username:
            both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return {"Authorization": f"Basic {b64encode(both.encode()).decode()}"}
        return {}


def _quads(results: Any) -> Iterable[Any]:
    import pyoxigraph

    for row in results:
        graph = row["g"]
        ends = row["s"], row["p"], row["o"]
        yield pyoxigraph.Quad(*ends) if graph is None else pyoxigraph.Quad(*ends, graph)


def copy_in(folder: Path) -> Path:
    """The file of a copy in its folder."""
    return folder / "endpoint.nq"


class Copy:
    """The copy of what an endpoint says, in a file.

    `trouble` is why the last try to renew it came to nothing; the copy then stays what it was. `fetched` is
    when the server was last heard (seconds since the epoch), also by an earlier run.
    """

    def __init__(self, endpoint: Endpoint, file: Path) -> None:
        self.endpoint = endpoint
        self.file = file
        self.trouble: str | None = None
        self._due = time.monotonic() + endpoint.refresh
        self._at_work: threading.Thread | None = None
        self._asked = False

    @classmethod
    def begun(cls, endpoint: Endpoint, folder: Path) -> Copy:
        """The copy, as new as can be had: where the server cannot be reached, that of an earlier run."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(endpoint, copy_in(folder))
        made._renew()
        if made.trouble is not None:
            if made.fetched is None:
                hint = "the first start needs the server; later ones work with what it said last"
                raise Mistake(made.trouble, hint=hint)
            when = format_time(int(made.fetched * 1e6))
            _LOG.warning("%s: continuing with its answer of %s", made.trouble, when)
        return made

    @property
    def fetched(self) -> float | None:
        """When the server was last heard."""
        with suppress(OSError):
            return self.file.stat().st_mtime
        return None

    def notify(self) -> None:
        """Somebody says that there is something new: it is fetched at the next look."""
        self._asked = True

    def look(self) -> None:
        """Begins to renew the copy if that is due; it does not wait for it."""
        busy = self._at_work is not None and self._at_work.is_alive()
        if busy or not (self._asked or time.monotonic() >= self._due):
            return
        self._asked = False
        self._at_work = threading.Thread(target=self._renew, name="kaicep-endpoint", daemon=True)
        self._at_work.start()

    def _renew(self) -> None:
        before, trouble = self.trouble, None
        try:
            data = self.endpoint.fetch()
            if self._reads() == data:
                os.utime(self.file)
            elif not write_whole(self.file, data):
                trouble = f"the copy of {self.endpoint._shown} cannot be written to {self.file}"
        except (Failure, OSError) as error:
            trouble = str(error)
        self.trouble = trouble
        self._due = time.monotonic() + self.endpoint.refresh
        if trouble is not None and before is None:
            _LOG.warning("%s: the knowledge stays as it was", trouble)
        elif before is not None and trouble is None:
            _LOG.warning("%s answers again", self.endpoint._shown)

    def _reads(self) -> bytes | None:
        with suppress(OSError):
            return self.file.read_bytes()
        return None
