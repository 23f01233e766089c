"""A Linked Data Event Stream on this machine: pages that are served, and counted."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PREFIXES = """
    @prefix : <urn:> . @prefix tree: <https://w3id.org/tree#> . @prefix ldes: <https://w3id.org/ldes#> .
    @prefix sosa: <http://www.w3.org/ns/sosa/> . @prefix prov: <http://www.w3.org/ns/prov#> .
"""


class Pages:
    """A server of pages, which count how often they are fetched."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, str, dict[str, str]]] = {}
        self.fetched: Counter[tuple[str, int]] = Counter()
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body, headers = pages.answer(self.path, dict(self.headers))
                pages.fetched[self.path, status] += 1
                self.send_response(status)
                for name, value in {**headers, "Content-Type": kind, "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, str, bytes, dict[str, str]]:
        if path not in self.pages:
            return 404, "text/plain", b"", {}
        text, kind, headers = self.pages[path]
        if "Location" in headers:
            return 302, kind, b"", headers
        if "ETag" in headers and asked.get("If-None-Match") == headers["ETag"]:
            return 304, kind, b"", headers
        if "Secret" in headers and asked.get("Authorization") != f"Bearer {headers['Secret']}":
            return 401, kind, b"", {}
        return 200, kind, (PREFIXES + text if kind == "text/turtle" else text).encode(), headers

    def put(self, path: str, text: str, kind: str = "text/turtle", **headers: str) -> None:
        self.pages[path] = text, kind, {name.replace("_", "-"): value for name, value in headers.items()}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def chain(pages: Pages) -> None:
    """Three pages, each with the next; the members of one are in the order of their times."""
    pages.put("/feed", "<#feed> a ldes:EventStream ; tree:view </1> .")
    pages.put(
        "/1",
        """<feed> tree:member :m2, :m1 . <> tree:relation [ tree:node <2> ; tree:value 5 ] .
           :m2 :v [ :in :deep ] ; sosa:resultTime 2 . :m1 :v 1 ; sosa:resultTime 1 . :else :v 9 .""",
        Cache_Control="public, immutable",
    )
    on = "<> tree:relation [ tree:node <3> ] ."
    pages.put("/2", f"<feed> tree:member :m3 . :m3 prov:generatedAtTime 3 . {on}")
    pages.put("/3", "<feed> tree:member :m3, :m4 . :m4 prov:generatedAtTime 4 .", ETag='"one"')
