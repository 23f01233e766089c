"""The cache of closures: large ontologies are read and reasoned over once.

A file of the cache is named after everything that its content depends on: the texts, the level of reasoning
and the code that reads and reasons. It has columns of numbers and a text with all terms, of which a later
run makes what it needs when it needs it. Nothing in it is executed, and its digest is tested. A folder that
others may write to is not used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

from kaicep.errors import Diagnostic, SourceText
from kaicep.knowledge.graph import BLANK, IRI, LITERAL, Ids, TermTable, TripleIndex
from kaicep.knowledge.loading import InGraphs, Validity
from kaicep.plan.terms import Blank, Iri, Literal, Term, TripleTerm
from kaicep.storage.disk import private_folder, write_whole

_MAGIC = b"kaicep knowledge 1\n"
_DIGEST = 16
_MOST_FILES = 32
_NOTHING: dict[int, None] = {}


@cache
def _code() -> bytes:
    """What reads and reasons, as far as it is ours."""
    import pyoxigraph

    made = blake2b(pyoxigraph.__version__.encode(), digest_size=_DIGEST)
    for package in ("kaicep.knowledge", "kaicep.plan"):
        for each in sorted(files(package).iterdir(), key=lambda file: file.name):
            if each.name.endswith(".py"):
                made.update(each.read_bytes())
    return made.digest()


def key_of(texts: Iterable[tuple[str, bytes]], reasoning: str) -> str:
    """The name for what these texts, with the names of their files, say under a level of reasoning."""
    made = blake2b(_code(), digest_size=_DIGEST)
    made.update(reasoning.encode())
    for name, data in texts:
        made.update(b"\0".join((b"", str(len(name)).encode(), name.encode(), str(len(data)).encode(), data)))
    return made.hexdigest()


@dataclass(frozen=True)
class KeptTriples:
    """Triples as three columns of numbers, in their order."""

    s: Any
    p: Any
    o: Any

    def __len__(self) -> int:
        return len(self.s)

    def __iter__(self) -> Iterator[Ids]:
        return zip(self.s.tolist(), self.p.tolist(), self.o.tolist(), strict=True)

    def having(self, properties: Collection[int]) -> Iterator[Ids]:
        """Those with one of these properties."""
        import numpy as np

        at = np.flatnonzero(np.isin(self.p, np.array(list(properties), self.p.dtype)))
        return iter(KeptTriples(self.s[at], self.p[at], self.o[at]))


@dataclass(frozen=True)
class Kept:
    """What a file has: the closure of what holds always, and what else a knowledge base consists of."""

    terms: KeptTerms
    graph: KeptGraph
    always: KeptTriples
    sometimes: dict[Ids, Validity]
    placed: dict[Ids, InGraphs]
    prefixes: dict[str, str]
    blanks: tuple[tuple[int, ...], ...]  # of each text
    odd: tuple[Diagnostic, ...]
    contradictions: tuple[Diagnostic, ...]


class KeptTerms:
    """Terms by their numbers, made when they are asked for.

    `kinds` are 0 for an IRI, 1 for a blank node, and from 2 on one of the types of literals; `spans` are
    where the spelling of each begins in `text`. `hashes` are those of all spellings, in their order, and
    `order` says whose they are.
    """

    def __init__(self, columns: Mapping[str, Any], types: Sequence[tuple[str, str | None]]) -> None:
        self._kinds, self._spans, self._text, self._hashes, self._order = map(columns.__getitem__, _TERMS)
        self._types = list(types)
        self._made: dict[int, Term] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made again."""
        return self.__dict__ | {"_made": {}}

    def __len__(self) -> int:
        return len(self._kinds)

    def term(self, number: int) -> Term:
        """The term of a number."""
        place = number >> 2
        found = self._made.get(place)
        if found is None:
            found = self._made[place] = self._term(place)
        return found

    def _term(self, place: int) -> Term:
        text = self._spelling(place).decode("utf-8", "surrogatepass")
        kind = int(self._kinds[place])
        if kind == 0:
            return Iri(text)
        return Blank(text) if kind == 1 else Literal(text, *self._types[kind - 2])

    def _spelling(self, place: int) -> bytes:
        made: bytes = self._text[self._spans[place] : self._spans[place + 1]].tobytes()
        return made

    def known(self, term: Term) -> int | None:
        """The number of a term, or None where it has none."""
        if isinstance(term, Literal) and (term.datatype, term.language) not in self._types:
            return None
        kind, text = _spelt(term, self._types)
        wanted = _hash(kind, text)
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            place = int(self._order[at])
            if self._kinds[place] == kind and self._spelling(place) == text:
                return place << 2 | (IRI, BLANK, LITERAL)[min(kind, 2)]
            at += 1
        return None


_TERMS = ("kinds", "spans", "text", "hashes", "order")


def _spelt(term: Term, types: list[tuple[str, str | None]]) -> tuple[int, bytes]:
    """The kind of a term, and its text; a type of literals that is new goes to the others."""
    match term:
        case Iri(value):
            return 0, value.encode("utf-8", "surrogatepass")
        case Blank(label):
            return 1, label.encode("utf-8", "surrogatepass")
        case Literal(lexical, datatype, language):
            if (datatype, language) not in types:
                types.append((datatype, language))
            return 2 + types.index((datatype, language)), lexical.encode("utf-8", "surrogatepass")
        case TripleTerm():  # only of a stream: it is looked up here, and is not found
            return _spelt(Literal(str(term), "a triple"), types)


def _hash(kind: int, text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=7, salt=bytes((kind & 255,))).digest())


class KeptGraph:
    """A set of triples that stays as it is: columns, and indexes of those properties that are asked for.

    It answers what a `TripleIndex` answers; `thawed` is one, to be changed.
    """

    def __init__(self, facts: KeptTriples, steps: KeptTriples, transitive: Sequence[int]) -> None:
        self._facts = facts
        self._steps = steps
        self._transitive = dict.fromkeys(transitive)
        self._forgotten()

    def _forgotten(self) -> None:
        self._out: dict[int, dict[int, dict[int, None]]] = {}
        self._in: dict[int, dict[int, dict[int, None]]] = {}
        self._steps_in: dict[int, dict[int, dict[int, None]]] = {}

    def __getstate__(self) -> tuple[Any, ...]:
        """The columns alone; the indexes are made again."""
        return self._facts, self._steps, self._transitive

    def __setstate__(self, kept: tuple[Any, ...]) -> None:
        self._facts, self._steps, self._transitive = kept
        self._forgotten()

    def thawed(self) -> TripleIndex:
        """The same as a graph that can be changed."""
        made = TripleIndex()
        for ids in self._facts:
            made.add(*ids)
        for ids in self._steps:
            made.add_step(*ids)
        for each in self._transitive:
            made.add_transitive(each)
        return made

    def __len__(self) -> int:
        return len(self._facts)

    def __iter__(self) -> Iterator[Ids]:
        return iter(self._facts)

    @cached_property
    def _slices(self) -> dict[int, tuple[int, int]]:
        """Where the triples of each property are: they lie in the order of their properties."""
        import numpy as np

        found, starts = np.unique(self._facts.p, return_index=True)
        ends = [*starts.tolist()[1:], len(self._facts)]
        return dict(zip(found.tolist(), zip(starts.tolist(), ends, strict=True), strict=True))

    def _of(self, p: int) -> tuple[list[int], list[int]]:
        start, end = self._slices.get(p, (0, 0))
        return self._facts.s[start:end].tolist(), self._facts.o[start:end].tolist()

    def _outgoing(self, p: int) -> dict[int, dict[int, None]]:
        found = self._out.get(p)
        if found is None:
            found = self._out[p] = _grouped(*self._of(p))
        return found

    def _incoming(self, p: int) -> dict[int, dict[int, None]]:
        found = self._in.get(p)
        if found is None:
            found = self._in[p] = _grouped(*reversed(self._of(p)))
        return found

    @cached_property
    def _by_subject(self) -> tuple[Any, Any]:
        order = self._facts.s.argsort(kind="stable")
        return self._facts.s[order], order

    @cached_property
    def _by_object(self) -> tuple[Any, Any]:
        order = self._facts.o.argsort(kind="stable")
        return self._facts.o[order], order

    def _around(self, index: tuple[Any, Any], number: int, other: Any) -> Iterator[tuple[int, int]]:
        """What stands beside a term: the two other columns."""
        terms, order = index
        at = order[terms.searchsorted(number) : terms.searchsorted(number, "right")]
        p, beside = self._facts.p[at].tolist(), other[at].tolist()
        return zip(p, beside, strict=True)

    def has(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is there."""
        return o in self._outgoing(p).get(s, _NOTHING)

    def mentions(self, term: int) -> bool:
        """Whether the term is the subject or the object of a triple."""
        return any(
            bool(terms.searchsorted(term) < terms.searchsorted(term, "right"))
            for terms, _ in (self._by_subject, self._by_object)
        )

    def uses(self, p: int) -> bool:
        """Whether the term is the predicate of a triple."""
        return p in self._slices

    def objects(self, s: int, p: int) -> dict[int, None]:
        """All `o` with (s, p, o)."""
        return self._outgoing(p).get(s, _NOTHING)

    def subjects(self, p: int, o: int) -> dict[int, None]:
        """All `s` with (s, p, o)."""
        return self._incoming(p).get(o, _NOTHING)

    def pairs(self, p: int) -> Iterator[tuple[int, int]]:
        """All (s, o) with (s, p, o)."""
        return zip(*self._of(p), strict=True)

    def about(self, s: int) -> Iterator[tuple[int, int]]:
        """All (p, o) with (s, p, o)."""
        return self._around(self._by_subject, s, self._facts.o)

    def towards(self, o: int) -> Iterator[tuple[int, int]]:
        """All (s, p) with (s, p, o)."""
        return ((s, p) for p, s in self._around(self._by_object, o, self._facts.s))

    def between(self, s: int, o: int) -> Iterator[int]:
        """All `p` with (s, p, o)."""
        return (p for p, other in self.about(s) if other == o)

    def steps_to(self, p: int, o: int) -> dict[int, None]:
        """All `s` with a step (s, p, o)."""
        found = self._steps_in.get(p)
        if found is None:
            own = self._steps.p == p
            found = self._steps_in[p] = _grouped(self._steps.o[own].tolist(), self._steps.s[own].tolist())
        return found.get(o, _NOTHING)

    def is_step(self, s: int, p: int, o: int) -> bool:
        """Whether the triple is a step of a transitive property."""
        return s in self.steps_to(p, o)

    def is_transitive(self, p: int) -> bool:
        """Whether the property is transitive."""
        return p in self._transitive


def _grouped(one: Iterable[int], other: Iterable[int]) -> dict[int, dict[int, None]]:
    made: dict[int, dict[int, None]] = {}
    for each, beside in zip(one, other, strict=True):
        inner = made.get(each)
        if inner is None:
            made[each] = {beside: None}
        else:
            inner[beside] = None
    return made


# --- files -------------------------------------------------------------------------------------------------


def find(key: str) -> Kept | None:
    """What was kept under a name; None where there is nothing, or it is not whole."""
    folder = private_folder("knowledge")
    if folder is None:
        return None
    path = folder / key
    try:
        data = path.read_bytes()
        path.touch()  # those that were not used for longest go first
    except OSError:
        return None
    body = memoryview(data)[len(_MAGIC) + _DIGEST :]
    digest = data[len(_MAGIC) : len(_MAGIC) + _DIGEST]
    if not data.startswith(_MAGIC) or blake2b(body, digest_size=_DIGEST).digest() != digest:
        return None
    return _read(body)


def _read(body: memoryview) -> Kept:
    import numpy as np

    size = int.from_bytes(body[:8], "little")
    head = json.loads(bytes(body[8 : 8 + size]))
    at = 8 + size
    columns: dict[str, Any] = {}
    for name, kind, count in head["columns"]:
        columns[name] = np.frombuffer(body, np.dtype(kind), count, at)
        at += columns[name].nbytes

    def triples(name: str) -> KeptTriples:
        return KeptTriples(*(columns[f"{name}.{place}"] for place in "spo"))

    return Kept(
        KeptTerms(columns, [(datatype, language) for datatype, language in head["types"]]),
        KeptGraph(triples("facts"), triples("steps"), head["transitive"]),
        triples("always"),
        {tuple(ids): tuple(map(tuple, when)) for ids, when in head["sometimes"]},
        _placed(triples("placed"), columns["graphs"], head["validities"]),
        head["prefixes"],
        tuple(tuple(each) for each in head["blanks"]),
        tuple(_diagnostic(each) for each in head["odd"]),
        tuple(_diagnostic(each) for each in head["contradictions"]),
    )


def _diagnostic(kept: dict[str, Any]) -> Diagnostic:
    name = kept.pop("name")
    return Diagnostic(**kept, source=None if name is None else SourceText(name, ""))


def keep(
    key: str,
    graph: TripleIndex,
    terms: TermTable,
    always: Collection[Ids],
    sometimes: Mapping[Ids, Validity],
    placed: Mapping[Ids, InGraphs],
    prefixes: Mapping[str, str],
    blanks: Iterable[Sequence[int]],
    odd: Iterable[Diagnostic],
    contradictions: Iterable[Diagnostic],
) -> bool:
    """Keeps a closure for later runs, where there is a place for it."""
    folder = private_folder("knowledge")
    if folder is None:
        return False
    types: list[tuple[str, str | None]] = []
    columns = dict(_term_columns(terms, types))
    steps = (ids for p in dict.fromkeys(p for _, p, _ in graph) for ids in graph.steps(p))
    for name, some in (("facts", sorted(graph, key=itemgetter(1))), ("steps", steps), ("always", always)):
        columns |= _columns(name, some)
    validities: dict[Validity, int] = {}
    columns |= _placed_columns(placed, validities)
    head = {
        "validities": list(validities),
        "columns": [(name, each.dtype.str, len(each)) for name, each in columns.items()],
        "types": types,
        "transitive": list(graph.transitive),
        "sometimes": list(sometimes.items()),
        "prefixes": dict(prefixes),
        "blanks": [list(each) for each in blanks],
        "odd": [_plain(each) for each in odd],
        "contradictions": [_plain(each) for each in contradictions],
    }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join((len(text).to_bytes(8, "little"), text, *(each.tobytes() for each in columns.values())))
    _make_room(folder)
    return write_whole(folder / key, _MAGIC + blake2b(body, digest_size=_DIGEST).digest() + body)


def _plain(diagnostic: Diagnostic) -> dict[str, Any]:
    """A warning about files that belongs to no line of them."""
    return {
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "severity": diagnostic.severity,
        "name": None if diagnostic.source is None else diagnostic.source.name,
    }


def _placed_columns(placed: Mapping[Ids, InGraphs], validities: dict[Validity, int]) -> dict[str, Any]:
    """The statements of named graphs, once for each graph: with its number, and that of when they hold."""
    import numpy as np

    rows = [(ids, graph, when) for ids, places in placed.items() for graph, when in places.items()]
    graphs = [(graph, validities.setdefault(when, len(validities))) for _, graph, when in rows]
    made = np.array(graphs, np.int32).reshape(-1)
    return {**dict(_columns("placed", [ids for ids, _, _ in rows])), "graphs": made}


def _placed(triples: KeptTriples, graphs: Any, validities: list[list[list[int]]]) -> dict[Ids, InGraphs]:
    """What `_placed_columns` wrote."""
    when = [tuple((start, end) for start, end in each) for each in validities]
    made: dict[Ids, InGraphs] = {}
    for ids, (graph, number) in zip(triples, graphs.reshape(-1, 2).tolist(), strict=True):
        made.setdefault(ids, {})[graph] = when[number]
    return made


def _columns(name: str, triples: Iterable[Ids]) -> Iterator[tuple[str, Any]]:
    import numpy as np

    made = np.array(list(triples), np.int32).reshape(-1, 3)
    for at, place in enumerate("spo"):
        yield f"{name}.{place}", np.ascontiguousarray(made[:, at])


def _term_columns(terms: TermTable, types: list[tuple[str, str | None]]) -> Iterator[tuple[str, Any]]:
    import numpy as np

    spelt = [_spelt(term, types) for term in terms]
    kinds = np.array([kind for kind, _ in spelt], np.int32)
    hashes = np.array([_hash(*each) for each in spelt], np.int64)
    order = np.argsort(hashes, kind="stable")
    spans = np.cumsum([0, *(len(text) for _, text in spelt)], dtype=np.int64)
    text = np.frombuffer(b"".join(text for _, text in spelt), np.uint8)
    yield from zip(_TERMS, (kinds, spans, text, hashes[order], order.astype(np.int64)), strict=True)


def _make_room(folder: Path) -> None:
    """Removes what was not used for longest, where there are many."""
    with suppress(OSError):
        there = sorted(
            (each for each in folder.iterdir() if each.is_file()), key=lambda file: file.stat().st_mtime
        )
        for each in there[: max(0, len(there) + 1 - _MOST_FILES)]:
            each.unlink()
