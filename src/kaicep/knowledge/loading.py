"""Files of knowledge: every format, mistakes with their place, statements that hold for a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.errors import Diagnostic, Mistake, SourceText, Span
from kaicep.knowledge.graph import Ids, TermTable
from kaicep.plan.rdf_text import FORMATS, parsing
from kaicep.plan.terms import XSD, Blank, Iri, Literal
from kaicep.plan.time import format_time, parse_time
from kaicep.plan.values import normalise
from kaicep.storage.places import place_of

if TYPE_CHECKING:
    import pyoxigraph

# ----------------------------------------------------------------------------------------------------------
# Where everything stands in a JSON text, which the standard reader does not tell.

Places = dict[tuple[str | int, ...], Span]
"""Where each value stands, by its path."""

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def read_json(source: SourceText) -> tuple[Any, Places]:
    """The value of a JSON text, and the place of each member (its key) and each item by their path.

    >>> value, places = read_json(SourceText("a.json", '{"a": [1, {"b": 2}]}'))
    >>> places["a",], places["a", 1, "b"]
    (Span(start=1, end=4), Span(start=11, end=14))
    """
    try:
        value = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise Mistake(f"this is not JSON: {error.msg}", Span(error.pos, error.pos + 1), source) from None
    places: Places = {}
    _walk(source, _skip(source.text, 0), (), places)
    return value, places


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _walk(source: SourceText, at: int, path: tuple[str | int, ...], places: Places) -> int:
    """Goes over the value that begins at `at`, and says where it ends. The text is known to be right."""
    text = source.text
    if text[at] not in "{[":
        _, end = _DECODER.raw_decode(text, at)
        return end
    closing = "}" if text[at] == "{" else "]"
    at = _skip(text, at + 1)
    index = 0
    while text[at] != closing:
        inner: tuple[str | int, ...] = (*path, index)
        if closing == "}":
            start = at
            key, at = _DECODER.raw_decode(text, at)
            inner = (*path, key)
            if inner in places:
                raise Mistake(f'"{key}" is here twice', Span(start, at), source)
            places[inner] = Span(start, at)
            at = _skip(text, _skip(text, at) + 1)
        else:
            places[inner] = Span(at, at + 1)
        at = _skip(text, _walk(source, at, inner, places))
        index += 1
        if text[at] == ",":
            at = _skip(text, at + 1)
    return at + 1


# ----------------------------------------------------------------------------------------------------------
# Files of RDF to triples: every format by its suffix, every fault with its place.


def expanded(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Files and folders as they are now; a pattern such as `campus/*.ttl` stands for what it finds."""
    found: dict[Path, None] = {}
    for each in (place_of(path, "the knowledge") for path in paths):
        wild = [at for at, part in enumerate(each.parts) if set(part) & set("*?[")]
        if not wild or each.exists():
            found[each] = None
            continue
        base = type(each)(*each.parts[: wild[0]])
        if not base.is_dir():
            raise Mistake(f"cannot read the knowledge files {each}: there is no folder {base}")
        found |= dict.fromkeys(sorted(base.glob("/".join(each.parts[wild[0] :]))))
    return iter(found)


def files_of(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The files to read: a folder stands for those files in it that have a known suffix, by name."""
    for each in expanded(paths):
        if not each.is_dir():
            yield each
            continue
        inside = sorted(file for file in each.iterdir() if file.is_file() and suffix_of(file) in FORMATS)
        if not inside:
            raise Mistake(f"the folder {each} has no knowledge in it", hint=f"files end in {_suffixes()}")
        yield from inside


def suffix_of(path: Path) -> str:
    """What tells the format of a file: its suffix in lower case, without the dot."""
    return path.suffix.lower().removeprefix(".")


def _suffixes() -> str:
    return ", ".join(f".{each}" for each in FORMATS)


@dataclass
class Said:
    """What a text says: its triples in order, and the graph of those (by place) that are in a named one."""

    name: str
    triples: list[Ids] = field(default_factory=list)
    graphs: dict[int, int] = field(default_factory=dict)
    # The numbers of its blank nodes in the order in which they first occur.
    blanks: list[int] = field(default_factory=list)


def read_bytes(path: Path) -> bytes:
    """The content of a knowledge file."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise Mistake(f"cannot read the knowledge file {path}: {reason}") from None


class TextReader:
    """Reads texts into triples of one numbering of terms.

    Blank nodes are called b0, b1, ... in the order in which they first occur over all texts, so that
    the same files give the same names everywhere. A text that is read again, `after` what it said
    before, has the same blank nodes in the same places. `prefixes` are those of all texts; what the first
    of them says counts.
    """

    def __init__(self, terms: TermTable, prefixes: dict[str, str] | None = None, blanks: int = 0) -> None:
        self.terms = terms
        self.prefixes = prefixes or {}
        self.blanks = blanks

    def file(self, path: Path) -> Said:
        """What a file says, its format told by its suffix."""
        return self.content(path, None)

    def content(self, path: Path, data: bytes | None, after: Said | None = None) -> Said:
        """What a file says that has, or had when somebody looked, this content."""
        suffix = suffix_of(path)
        if suffix not in FORMATS:
            problem = f"{path}: what format is that?" if not suffix else f"{path}: unknown suffix .{suffix}"
            raise Mistake(problem, hint=f"knowledge files end in {_suffixes()}")
        return self.text(read_bytes(path) if data is None else data, suffix, str(path), path.name, after)

    def text(self, data: bytes, format: str, name: str, base: str, after: Said | None = None) -> Said:
        """What a text says; relative IRIs are read as if it lay at `file:///` + `base`."""
        said = Said(name, blanks=list(after.blanks) if after else [])
        with parsing(data, format, name, base) as quads:
            said.triples = list(self._triples(quads, said))
            self.prefixes = {**quads.prefixes, **self.prefixes}
        return said

    def new_blank(self) -> int:
        """The number of a blank node that nobody spoke of yet."""
        while True:
            blank = Blank(f"b{self.blanks}")
            self.blanks += 1
            if self.terms.known(blank) is None:
                return self.terms.number(blank)

    def _triples(self, quads: Iterable[pyoxigraph.Quad], said: Said) -> Iterator[Ids]:
        import pyoxigraph

        named, blank, literal = pyoxigraph.NamedNode, pyoxigraph.BlankNode, pyoxigraph.Literal
        number = self.terms.number
        names: dict[str, int] = {}
        blanks: dict[str, int] = {}

        def numbered(term: Any) -> int:
            if isinstance(term, named):
                found = names.get(term.value)
                if found is None:
                    found = names[term.value] = number(Iri(term.value))
                return found
            if isinstance(term, blank):
                found = blanks.get(term.value)
                if found is None:
                    if len(blanks) == len(said.blanks):
                        said.blanks.append(self.new_blank())
                    found = blanks[term.value] = said.blanks[len(blanks)]
                return found
            if isinstance(term, literal):
                return number(normalise(Literal(term.value, term.datatype.value, term.language)))
            problem = "a triple that speaks of a triple is not supported here"
            raise Mistake(problem, source=SourceText(said.name, ""))

        default = pyoxigraph.DefaultGraph()
        for at, quad in enumerate(quads):
            yield numbered(quad.subject), numbered(quad.predicate), numbered(quad.object)
            if quad.graph_name != default:
                said.graphs[at] = numbered(quad.graph_name)


# ----------------------------------------------------------------------------------------------------------
# When a statement holds: sets of half-open intervals, and what named graphs say of themselves.
#
# The statements of a named graph hold from its `kai:validFrom` (included) to its `kai:validTo` (not
# included), both said of the graph's name in the default graph, as xsd:dateTime; one that is missing is
# without end on that side. A graph of which neither is said holds always, like the default graph.

KAI = "https://kaicep.org/ns#"
"""The namespace of our own words."""
VALID_FROM = Iri(KAI + "validFrom")
"""From when on the statements of a graph hold."""
VALID_TO = Iri(KAI + "validTo")
"""Until when the statements of a graph hold."""

# In order, without overlap, and without two that touch: one spelling for every set of instants.
Validity = tuple[tuple[int, int], ...]
"""Half-open intervals, in order."""

_BEGIN, _END = -(1 << 63), 1 << 63
ALWAYS: Validity = ((_BEGIN, _END),)
"""From the beginning of time to its end."""
NEVER: Validity = ()
"""At no time."""


def since(ts: int) -> Validity:
    """From that instant on."""
    return ((ts, _END),)


def before(ts: int) -> Validity:
    """Until that instant, without it."""
    return ((_BEGIN, ts),)


def holds_at(validity: Validity, ts: int) -> bool:
    """Whether the instant is one of these.

    >>> [holds_at(((1, 3), (5, 6)), ts) for ts in (0, 1, 3, 5)]
    [False, True, False, True]
    """
    return any(start <= ts < end for start, end in validity)


def union(one: Validity, other: Validity) -> Validity:
    """The instants of either.

    >>> union(((1, 3), (7, 9)), ((3, 5),))
    ((1, 5), (7, 9))
    """
    if not one or not other or one == other:
        return one or other
    merged: list[tuple[int, int]] = []
    for start, end in sorted(one + other):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


def intersection(one: Validity, other: Validity) -> Validity:
    """The instants of both.

    >>> intersection(((1, 5), (7, 9)), ((3, 8),))
    ((3, 5), (7, 8))
    """
    if one in (ALWAYS, other):
        return other
    if other == ALWAYS:
        return one
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((start, end) for start, end in pairs if start < end))


def minus(one: Validity, other: Validity) -> Validity:
    """The instants of the one that the other does not have.

    >>> minus(ALWAYS, since(5)) == before(5)
    True
    """
    if not other or not one:
        return one
    if other == ALWAYS or one == other:
        return NEVER
    edges = (_BEGIN, *(edge for interval in other for edge in interval), _END)
    gaps = tuple((edges[at], edges[at + 1]) for at in range(0, len(edges), 2) if edges[at] < edges[at + 1])
    return intersection(one, gaps)


def boundaries(validity: Validity) -> Iterator[int]:
    """The instants at which it begins or ends."""
    for interval in validity:
        for edge in interval:
            if _BEGIN < edge < _END:
                yield edge


def starts(validity: Validity) -> int | None:
    """Its first instant; None where it has no beginning."""
    return validity[0][0] if validity and validity[0][0] > _BEGIN else None


DEFAULT = -1
"""What stands for the default graph among the numbers of graphs."""

InGraphs = dict[int, Validity]
"""The graphs in which a statement stands, by number, and when it holds in each."""


@dataclass(frozen=True)
class Stated:
    """Every statement and when it holds; of those that any named graph has, in which graphs they stand."""

    held: Mapping[Ids, Validity]
    placed: Mapping[Ids, InGraphs]

    def places(self, ids: Ids) -> InGraphs:
        """The graphs in which a statement stands."""
        found = self.placed.get(ids)
        if found is not None:
            return found
        return {DEFAULT: self.held[ids]} if ids in self.held else {}

    def otherwise(self, new: Stated) -> dict[Ids, InGraphs]:
        """What the new one states otherwise."""
        gone: dict[Ids, InGraphs] = {ids: {} for ids in self.held if ids not in new.held}
        changed = {ids for ids, when in new.held.items() if self.held.get(ids) != when}
        changed.update(ids for ids in {*self.placed, *new.placed} if ids in new.held)
        return gone | {ids: new.places(ids) for ids in changed if self.places(ids) != new.places(ids)}


def everywhere(places: InGraphs) -> Validity:
    """When a statement holds, in whichever graph."""
    held = NEVER
    for each in places.values():
        held = union(held, each)
    return held


def stated(read: Iterable[Said], terms: TermTable) -> Stated:
    """Every statement that was read."""
    texts = tuple(read)
    graphs = _graphs(texts, terms)
    held: dict[Ids, Validity] = {}
    for said in texts:
        held |= dict.fromkeys(said.triples, ALWAYS) if not said.graphs else {}
    placed: dict[Ids, InGraphs] = {}
    for said in texts:
        for at, ids in enumerate(said.triples if said.graphs else ()):
            graph = said.graphs.get(at, DEFAULT)
            when = graphs.get(graph, ALWAYS)
            if graph != DEFAULT or ids in placed:
                places = placed.setdefault(ids, {DEFAULT: held[ids]} if ids in held else {})
                places[graph] = union(places.get(graph, NEVER), when)
            held[ids] = union(held.get(ids, NEVER), when)
    return Stated(held, placed)


def graph_validity(graph: int, links: Mapping[Iri, Iterable[int]], terms: TermTable) -> Validity:
    """When the statements of a graph hold, by what kai:validFrom and kai:validTo say of it."""
    edges: list[int | None] = [None, None]
    for side, link in enumerate((VALID_FROM, VALID_TO)):
        moments = {_moment(terms, graph, each, "the update") for each in links[link]}
        if len(moments) > 1:
            raise _mistake(f"the graph {terms.term(graph)} has two times for {link}", "the update")
        edges[side] = next(iter(moments), None)
    return _interval(terms, graph, *edges)


def odd_validity(read: Iterable[Said], terms: TermTable) -> Iterator[Diagnostic]:
    """Validity that is said where it has no effect."""
    texts = tuple(read)
    links = {terms.known(VALID_FROM), terms.known(VALID_TO)} - {None}
    named = {graph for said in texts for graph in said.graphs.values()}
    for said in texts if links else ():
        for at, (s, p, _) in enumerate(said.triples):
            if p not in links or (s in named and at not in said.graphs):
                continue
            reason = "said inside a graph" if at in said.graphs else "no graph has that name"
            hint = "say it in the default graph, of the name of a graph: kai:validFrom and kai:validTo"
            message = f"the validity of {terms.term(s)} has no effect: {reason}"
            yield Diagnostic(message, None, SourceText(said.name, ""), hint, "warning")


def _graphs(texts: tuple[Said, ...], terms: TermTable) -> dict[int, Validity]:
    """The validity of every graph that has one."""
    sides = {terms.known(VALID_FROM): 0, terms.known(VALID_TO): 1}
    sides.pop(None, None)
    named = {graph for said in texts for graph in said.graphs.values()}
    found: dict[int, list[int | None]] = {}
    for said in texts if sides and named else ():
        for at, (s, p, o) in enumerate(said.triples):
            if p not in sides or s not in named or at in said.graphs:
                continue
            link, moment = terms.term(p), _moment(terms, s, o, said.name)
            edges = found.setdefault(s, [None, None])
            if edges[sides[p]] not in (None, moment):
                raise _mistake(f"the graph {terms.term(s)} has two times for {link}", said.name)
            edges[sides[p]] = moment
    return {graph: _interval(terms, graph, *edges) for graph, edges in found.items()}


def _interval(terms: TermTable, graph: int, start: int | None, end: int | None) -> Validity:
    if start is not None and end is not None and start >= end:
        times = f"from {format_time(start)} to {format_time(end)}"
        raise Mistake(f"the graph {terms.term(graph)} is valid {times}: it never holds")
    return ((_BEGIN if start is None else start, _END if end is None else end),)


def _moment(terms: TermTable, graph: int, number: int, name: str) -> int:
    term = terms.term(number)
    moment = None
    if isinstance(term, Literal) and term.datatype in (XSD + "dateTime", XSD + "dateTimeStamp"):
        moment = parse_time(term.lexical) if "T" in term.lexical else None
    if moment is None:
        raise _mistake(f"the validity of the graph {terms.term(graph)} is not an xsd:dateTime: {term}", name)
    return moment


def _mistake(message: str, name: str) -> Mistake:
    hint = 'such as "2012-05-08T00:00:00Z"^^xsd:dateTime'
    return Mistake(message, None, SourceText(name, ""), hint)
