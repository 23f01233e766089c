"""Knowledge that changes while a deployment runs: a SPARQL server, files, and their shapes by SHACL."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from kaicep.errors import Diagnostic, Failure, Mistake, SourceText
from kaicep.knowledge.closure import Change
from kaicep.knowledge.kept import Kept
from kaicep.knowledge.loading import (
    ALWAYS,
    Said,
    Stated,
    expanded,
    files_of,
    read_bytes,
    stated,
    suffix_of,
)
from kaicep.knowledge.queries import UPDATES, UpdateOperation, carry_out, operations
from kaicep.knowledge.store import Edit, Knowledge, check_level
from kaicep.plan.rdf_text import FORMATS
from kaicep.plan.terms import n_triples
from kaicep.plan.time import format_time
from kaicep.storage.disk import write_whole
from kaicep.storage.places import place_of

# ----------------------------------------------------------------------------------------------------------
# Knowledge that a SPARQL 1.1 server keeps: a copy of it in a file, which is renewed from time to time.
#
# The copy is what is read. So a change over there becomes a change here like that of any file, and a restart
# works while the server does not. It is fetched in a thread of its own, and replaced as a whole.

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


# ----------------------------------------------------------------------------------------------------------
# SHACL: whether the knowledge has the shape that somebody asks of it.
#
# Shapes are files of RDF. They are tested against everything that holds, with what follows, when it is
# loaded and after every change, by pyshacl (extra `shacl`).

Validate = Callable[[Knowledge], tuple[Diagnostic, ...]]
"""What is wrong with a knowledge base."""

_MOST = 20
# What rdflib calls the formats that it reads.
_RDFLIB = {"TURTLE": "turtle", "N_TRIPLES": "nt", "RDF_XML": "xml", "JSON_LD": "json-ld"}


def shapes_of(paths: Iterable[str | Path]) -> Validate:
    """A test for the shapes of these files, which are read now."""
    try:
        import pyshacl  # type: ignore[import-untyped, unused-ignore]
        from rdflib import Graph
        from rdflib.namespace import RDF, SH
    except ImportError:
        hint = "pip install 'kaicep[shacl]'"
        raise Mistake("shapes need the package pyshacl, which is not installed", hint=hint) from None
    shapes = Graph()
    for path in files_of(paths):
        _parse(shapes, path)

    def validate(knowledge: Knowledge) -> tuple[Diagnostic, ...]:
        data = Graph()
        data.parse(data="\n".join(map(n_triples, knowledge.match())), format="nt")
        _, report, _ = pyshacl.validate(data, shacl_graph=shapes, advanced=False, do_owl_imports=False)
        results = list(report.subjects(RDF.type, SH.ValidationResult))
        found = sorted({_told(report, each, SH) for each in results})
        more = (f"and {len(found) - _MOST} more violations",) if len(found) > _MOST else ()
        return tuple(Diagnostic(each, severity="warning") for each in (*found[:_MOST], *more))

    return validate


def _parse(shapes: Any, path: Path) -> None:
    kind = _RDFLIB.get(FORMATS.get(suffix_of(path), ""))
    if kind is None:
        raise Mistake(f"{path}: shapes are files of one graph", hint=".ttl, .nt, .rdf or .jsonld")
    try:
        shapes.parse(data=read_bytes(path), format=kind)
    except Exception as error:  # rdflib's parsers raise what they like
        raise Mistake(f"no shapes: {error}", source=SourceText(str(path), "")) from None


def _told(report: Any, result: Any, sh: Any) -> str:
    """A violation in words: what is wrong with which thing."""
    node, path = report.value(result, sh.focusNode), report.value(result, sh.resultPath)
    messages: Iterator[str] = (str(each) for each in report.objects(result, sh.resultMessage))
    value = report.value(result, sh.value)
    about = f"<{node}>" + (f", <{path}>" if path is not None else "")
    said = "; ".join(sorted(messages)) or str(report.value(result, sh.sourceConstraintComponent))
    return f"{about}: {said}" + (f" (it is {value.n3()})" if value is not None and value != node else "")


# ----------------------------------------------------------------------------------------------------------
# Knowledge files that somebody edits while queries run.
#
# Whoever runs the queries calls `poll` from time to time, between two events; there are no threads here.

_LOG = logging.getLogger("kaicep.knowledge")

# A file that was written less than this (seconds) before it was read may be written again within the
# same tick of the file system's clock, so its content is looked at once more.
_TICK = 2.0


@dataclass(frozen=True)
class _SeenFile:
    """A file as it was when somebody looked: its stamp in the file system, and its content until taken."""

    stamp: tuple[int, int, int]
    settled: bool
    digest: bytes
    data: bytes = b""


class Followed(Protocol):
    """A file or a folder that renews itself, from somewhere else (such as `Copy`)."""

    file: Path
    trouble: str | None
    """Why the last try to renew it came to nothing; what it says then stays what it was."""

    def look(self) -> None:
        """Begins to renew it if that is due; it does not wait for it."""
        ...

    def notify(self) -> None:
        """Somebody says that there is something new: it is looked for at the next look."""
        ...


class KnowledgeFiles:
    """The knowledge of files, folders and patterns, and a way to keep up with them.

    A folder stands for the files in it, as it does for `Knowledge.load`, and a pattern for those that it
    finds; files may come and go. What they say is compared with what they said before, and the difference
    is one update. What was changed by `knowledge.update` stays, until a file says something else about the
    same triple. `news` says of the last update which files were new, changed or removed.

    Those that are `followed` renew themselves: the copy of what an endpoint says, the messages of a topic.

    A file of SPARQL UPDATE (`.ru`) or RDF Patch (`.rdfp`) is applied when it appears, or has new content,
    after the others of that moment; to delete it undoes nothing.

    Whoever has to come to the same knowledge once more gives what the files said `before` instead, with the
    number of that version, and what they said later to `follow`. `news_of_files` is what has
    become other. From `poll` on, the files themselves count.

    `validate` tells what is wrong with the knowledge (`shapes`). With `refuse`, a change that brings any
    violation is not taken, and neither is knowledge that begins with some; else they are warnings in the log.
    """

    def __init__(
        self,
        paths: Iterable[str | Path],
        reasoning: str = "rdfs",
        followed: Sequence[Followed] = (),
        validate: Validate | None = None,
        refuse: bool = False,
        before: tuple[Mapping[Path, bytes], int] | None = None,
    ) -> None:
        check_level(reasoning)
        started = time.perf_counter()
        self._followed = followed
        self._validate = validate
        self._refuse = refuse
        self.violations: tuple[Diagnostic, ...] = ()
        named = (*(each.file for each in followed), *paths)
        self._paths = tuple(dict.fromkeys(place_of(each, "the knowledge") for each in named))
        self._seen: dict[Path, _SeenFile] = {}
        self._taken: dict[Path, bytes] = {}
        self._told: set[object] = set()
        self._unseen: str | None = None
        self.news: tuple[str, ...] = ()
        now = self._look() if before is None else _seen_as(before[0])
        self._other: dict[Path, bytes | None] = {path: seen.data for path, seen in now.items()}
        updates = {path: self._operations(path, now[path]) for path in now if suffix_of(path) in UPDATES}
        texts = {path: seen.data for path, seen in now.items() if path not in updates}
        self.knowledge, said = Knowledge.of_texts(texts, reasoning, started)
        self._reader = self.knowledge.reader
        self._unread: dict[Path, bytes] = {}
        self._first: Kept | None = None
        if isinstance(said, Kept):
            # It was read in an earlier run: it is read again when what each file says matters.
            self._first, self._unread = said, texts
            said = tuple(
                Said(str(path), blanks=list(own)) for path, own in zip(texts, said.blanks, strict=True)
            )
        self._said = dict(zip(texts, said, strict=True))
        self._stated = stated(self._said.values(), self._reader.terms)
        self._mark_taken(now)
        edit = Edit(self.knowledge)
        self._apply(edit, updates)
        edit.done()
        self.knowledge.version = 0 if before is None else before[1]  # all of this was loading
        self._judge()

    @property
    def trouble(self) -> str | None:
        """Why files or endpoint cannot be looked at, in words; what they said before stands meanwhile."""
        return self._unseen or next((each.trouble for each in self._followed if each.trouble), None)

    def notify(self) -> None:
        """Somebody says that an endpoint or a topic has something new."""
        for each in self._followed:
            each.notify()

    def poll(self) -> Change | Mistake | None:
        """Look at the files: what changed in the knowledge; or what is wrong with them, once; or None.

        While a file is wrong, what it said before stands; the others are followed all the same, from
        the next look on.
        """
        for each in self._followed:
            each.look()
        try:
            now = self._look()
        except Mistake as mistake:
            before, self._unseen = self._unseen, str(mistake)
            return None if before == self._unseen else mistake
        self._unseen = None
        changed = {path: seen for path, seen in now.items() if self._taken.get(path) != seen.digest}
        gone = [path for path in self._taken if path not in now]
        if not changed and not gone:
            self._told.clear()
            return None
        with self.knowledge.lock:
            self._read_all()
            return self._follow(changed, gone)

    def news_of_files(self) -> Mapping[Path, bytes | None]:
        """What files say that is other than when this was asked last; those that are gone as None."""
        found, self._other = self._other, {}
        return found

    def follow(self, contents: Mapping[Path, bytes | None], version: int) -> None:
        """Takes what files said in the version after this one; those that were gone are None."""
        changed = _seen_as({path: data for path, data in contents.items() if data is not None})
        gone = [path for path, data in contents.items() if data is None and path in self._taken]
        with self.knowledge.lock:
            self._read_all()
            change = self._follow(changed, gone)
        if isinstance(change, Mistake):
            raise change
        self.knowledge.version = version
        self._other.clear()

    def _read_all(self) -> None:
        """What each file says, where only an earlier run has read it."""
        for path, data in self._unread.items():
            self._said[path] = self._reader.content(path, data, self._said[path])
        if self._first is not None:
            held = dict.fromkeys(self._first.always, ALWAYS) | self._first.sometimes
            self._stated = Stated(held, self._first.placed)
        self._unread, self._first = {}, None

    def _follow(self, changed: dict[Path, _SeenFile], gone: list[Path]) -> Change | Mistake | None:
        said, updates, wrong = self._read(changed)
        new = [each for key, each in wrong.items() if key not in self._told]
        if new:
            self._told |= set(wrong)
            return Mistake([each for mistake in new for each in mistake.diagnostics])
        good = {path: changed[path] for path in (*said, *updates)}
        together = frozenset((path, seen.digest) for path, seen in good.items())
        if together in self._told or not (good or gone):
            return None
        verbs = {path: "changed" if path in self._taken else "new" for path in good}
        try:
            change = self._take(said, updates, gone)
        except Mistake as mistake:
            # Each is right for itself, but not with the others.
            self._told.add(together)
            return mistake
        self._mark_taken(good)
        self._other |= {**{path: seen.data for path, seen in good.items()}, **dict.fromkeys(gone)}
        named = sorted({**verbs, **dict.fromkeys(gone, "removed")}.items())
        self.news = tuple(f"{path.name} is {verb}" for path, verb in named)
        return change

    def _mark_taken(self, files: dict[Path, _SeenFile]) -> None:
        for path, seen in files.items():
            self._taken[path] = seen.digest
            self._seen[path] = replace(seen, data=b"")

    def _read(
        self, changed: dict[Path, _SeenFile]
    ) -> tuple[dict[Path, Said], dict[Path, tuple[UpdateOperation, ...]], dict[object, Mistake]]:
        """What the changed files say now, the updates among them, and what is wrong with others."""
        said: dict[Path, Said] = {}
        updates: dict[Path, tuple[UpdateOperation, ...]] = {}
        wrong: dict[object, Mistake] = {}
        for path, seen in changed.items():
            try:
                if suffix_of(path) in UPDATES:
                    updates[path] = self._operations(path, seen)
                else:
                    said[path] = self._reader.content(path, seen.data, self._said.get(path))
            except Mistake as mistake:
                wrong[path, seen.digest] = mistake
        return said, updates, wrong

    def _take(
        self,
        said: dict[Path, Said],
        updates: dict[Path, tuple[UpdateOperation, ...]],
        gone: list[Path],
    ) -> Change | None:
        texts = {path: each for path, each in {**self._said, **said}.items() if path not in gone}
        new = stated([texts[path] for path in sorted(texts)], self._reader.terms)
        edit = Edit(self.knowledge)
        try:
            edit.restate(self._stated.otherwise(new))
            self._apply(edit, updates)
            self._judge()
        except Mistake:
            edit.undo()
            raise
        self._said, self._stated = texts, new
        for path in gone:
            del self._taken[path]
        before = self.knowledge.version
        change = edit.done()
        return change if change.version != before or change.missing else None

    def _judge(self) -> None:
        """Say what is wrong with the knowledge as it is now, or refuse it."""
        if self._validate is None:
            return
        found = self._validate(self.knowledge)
        if found and self._refuse:
            raise Mistake([replace(each, severity="error") for each in found])
        for each in found:
            if each not in self.violations:
                _LOG.warning("the knowledge violates its shapes: %s", each.message)
        self.violations = found

    def _apply(self, edit: Edit, updates: dict[Path, tuple[UpdateOperation, ...]]) -> None:
        for path in sorted(updates):
            for operation in updates[path]:
                carry_out(operation, edit)

    def _operations(self, path: Path, seen: _SeenFile) -> tuple[UpdateOperation, ...]:
        try:
            return operations(seen.data.decode("utf-8-sig"), str(path))
        except UnicodeDecodeError:
            raise Mistake(f"cannot read the knowledge file {path}: it is not UTF-8") from None

    def _look(self) -> dict[Path, _SeenFile]:
        """All files as they are now; what has the same stamp is not read again."""
        now: dict[Path, _SeenFile] = {}
        for path in self._files():
            try:
                found = path.stat()
            except OSError as error:
                reason = error.strerror or str(error)
                raise Mistake(f"cannot read the knowledge file {path}: {reason}") from None
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            old = self._seen.get(path)
            if old is not None and old.settled and old.stamp == stamp:
                now[path] = old
                continue
            settled = time.time() - found.st_mtime > _TICK
            data = read_bytes(path)
            digest = hashlib.sha256(data).digest()
            now[path] = _SeenFile(stamp, settled, digest, b"" if digest == self._taken.get(path) else data)
        self._seen = now
        return now

    def _files(self) -> Iterator[Path]:
        for each in expanded(self._paths):
            if each.is_dir():
                yield from sorted(
                    file
                    for file in each.iterdir()
                    if file.is_file() and suffix_of(file) in {*FORMATS, *UPDATES}
                )
            else:
                yield each


def _seen_as(contents: Mapping[Path, bytes]) -> dict[Path, _SeenFile]:
    """Files of which only the content is known; they are read when somebody looks."""
    return {
        path: _SeenFile((-1, -1, -1), False, hashlib.sha256(data).digest(), data)
        for path, data in contents.items()
    }
