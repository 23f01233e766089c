"""Documents of RDF as records: Turtle, TriG, N-Triples, N-Quads, RDF/XML and JSON-LD (semantics 3.7).

A file holds records in the order in which they begin, and their `seq` counts them. A record is a named
graph; or, in the default graph, a thing that has a time, with what is said of it and of its blank nodes; or
what a reifier that has a time reifies. A message, or a member of an event stream, is one record as a whole.
Whatever belongs to no time is a bad record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.connectors.records import Record, json_object, tell
from kaicep.errors import Mistake
from kaicep.plan.rdf_text import FORMATS, parsing, triple_of
from kaicep.plan.terms import RDF, XSD, Triple, n_triples
from kaicep.plan.types import Notation, RdfTimes

if TYPE_CHECKING:
    import pyoxigraph

USUAL_TIMES = RdfTimes()
_LINES = ("N_TRIPLES", "N_QUADS")
_SHARED = 100  # so many times a triple may be in records, on average
_REIFIES = RDF + "reifies"
_LABEL = re.compile(r"_:([\w.\-\u00b7]+)|nodeID\s*=\s*[\"']([^\"']*)")
_NUMBERS = (XSD + "integer", XSD + "decimal", XSD + "double", XSD + "long", XSD + "int")


def read_document(part: int, path: Path, format: str, notation: Notation) -> Sequence[Record]:
    """The records of a file, good and bad; a mistake where it cannot be parsed.

    The file that was read last is remembered: whoever counts its records wants to have them next.
    """
    found = path.stat()
    return _read_document(part, path, format, notation, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=1)
def _read_document(part: int, path: Path, format: str, notation: Notation, _: object) -> Sequence[Record]:
    data = path.read_bytes()
    labels = _labels(data, format)
    made = []
    for seq, each in enumerate(_groups(_parsed(data, format, path), notation.rdf or USUAL_TIMES)):
        place = part, seq, each.line or seq + 1, str(path)
        made.append(_record(place, each, notation, labels))
    tell(path, len(data))
    return made


def value_record(part: int, seq: int, file: str, value: bytes, notation: Notation) -> Record:
    """The record of a message, good or bad: a JSON object, or a document of RDF.

    >>> from kaicep.plan.types import Notation
    >>> text = b'<urn:o> <http://www.w3.org/ns/sosa/resultTime> "2026-01-01T00:00:00Z" ; <urn:v> 5 .'
    >>> record = value_record(0, 7, "topic", text, Notation(rdf=RdfTimes(format="ttl")))
    >>> record.fields["start"], len(record.fields["triples"])
    ('2026-01-01T00:00:00Z', 2)
    """
    place, text = (part, seq, seq + 1, file), value.decode(errors="replace")
    if notation.rdf is None or notation.rdf.format is None:
        fields, reason = json_object(value)
        return Record(*place, fields, text, reason)
    format = notation.rdf.format
    try:
        with parsing(value, format, file) as quads:
            groups = list(_groups(quads, notation.rdf))
    except Mistake as mistake:
        return Record(*place, None, text, mistake.diagnostics[0].message)
    return _record(place, _together(groups), notation, _labels(value, format), text)


def json_fields(
    quads: Iterable[pyoxigraph.Quad], times: RdfTimes, label: Callable[[str], str] = str
) -> dict[str, Any]:
    """The record that quads are together, as JSON holds it; a bad one has a `reason`.

    >>> import pyoxigraph
    >>> text = '<urn:o> <http://www.w3.org/ns/sosa/resultTime> "2026-01-01T00:00:00Z" .'
    >>> quads = pyoxigraph.parse(text, format=pyoxigraph.RdfFormat.N_TRIPLES)
    >>> json_fields(quads, RdfTimes())["start"]
    '2026-01-01T00:00:00Z'
    """
    group = _together(list(_groups(quads, times)))
    fields, reason = _fields(group, times)
    return {
        **(fields or {"reason": reason}),
        "triples": [n_triples(triple_of(each, label)) for each in group.quads],
    }


# --- which triples belong together, and when they hold ----------------------------------------------


@dataclass
class _Group:
    """The triples of a record, and what is said of its time."""

    name: str
    quads: list[Any] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    line: int = 0
    reason: str = ""


@dataclass(frozen=True)
class _BadLine:
    """A line of N-Triples or N-Quads that is none."""

    line: int
    text: str
    reason: str


def _parsed(data: bytes, format: str, path: Path) -> list[Any]:
    """The quads of a file; of one with a line for each, a bad line in its place."""
    try:
        with parsing(data, format, str(path), path.name) as quads:
            return list(quads)
    except Mistake:
        if FORMATS[format] not in _LINES:
            raise
    found: list[Any] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            with parsing(line, format, str(path)) as quads:
                found += list(quads)
        except Mistake as mistake:
            reason = mistake.diagnostics[0].message
            found.append(_BadLine(number, line.decode(errors="replace").rstrip("\r"), reason))
    return found


def _groups(items: Iterable[Any], times: RdfTimes) -> Iterator[_Group]:
    """The records of a document in the order in which they begin."""
    items = list(items)
    about: dict[Any, list[Any]] = {}  # the default graph by subject
    graphs: dict[Any, list[Any]] = {}
    for each in items:
        if isinstance(each, _BadLine):
            continue
        if type(each.graph_name).__name__ == "DefaultGraph":
            about.setdefault(each.subject, []).append(each)
        else:
            graphs.setdefault(each.graph_name, []).append(each)
    timed = {node for node, said in about.items() if _said(said, times.starts)}
    reified = {_spo(each.object) for node in timed for each in about[node] if _reifies(each)}
    inner = {each.object for said in about.values() for each in said if each.object != each.subject}
    reached: set[Any] = set()
    begun: dict[Any, _Group] = {}
    size = 0

    def begins(each: Any) -> Any:
        """What a quad begins, or goes on with; None where it belongs to something else."""
        if isinstance(each, _BadLine) or each.graph_name in graphs:
            return each if isinstance(each, _BadLine) else each.graph_name
        subject = each.subject
        if subject in graphs or subject in timed:
            return subject
        return None if _spo(each) in reified or (_is_blank(subject) and subject in inner) else subject

    def roots() -> Iterator[Any]:
        yield from map(begins, items)
        for subject, said in about.items():  # blank nodes that only lead to each other
            if subject not in reached and not reified.issuperset(map(_spo, said)):
                yield subject

    for root in roots():
        if root is None or root in begun:
            continue
        if isinstance(root, _BadLine):
            begun[root] = _Group(root.text, line=root.line, reason=root.reason)
            continue
        said, own = about.get(root, []), described(root, about, timed)
        reached.update(each.subject for each in own)
        size += len(own)
        if size > _SHARED * len(items):
            raise Mistake("its records have too many blank nodes in common")
        if root in graphs:
            begun[root] = _graph(root, graphs[root], said, times)
            continue
        if root not in timed:
            own = [each for each in own if not reified or _spo(each) not in reified]
        elif any(map(_reifies, said)):
            own = [each.object for each in said if _reifies(each)]
        begun[root] = _Group(str(root), own, _said(said, times.starts), _said(said, times.ends))
    yield from begun.values()


def _graph(name: Any, quads: list[Any], about: list[Any], times: RdfTimes) -> _Group:
    """A named graph: its time is said of its name, or else in it."""
    own = [*about, *(each for each in quads if each.subject == name)]
    return _Group(
        f"the graph {name}",
        quads,
        _said(own, times.starts) or _said(quads, times.starts),
        _said(own, times.ends) or _said(quads, times.ends),
    )


def described(root: Any, about: Mapping[Any, list[Any]], others: Container[Any] = ()) -> list[Any]:
    """What is said of a thing, by subject, and of the blank nodes that it leads to, but for some others."""
    found: list[Any] = []
    waiting, seen = [root], {root}
    while waiting:
        said = about.get(waiting.pop(), [])
        found += said
        for node in (each.object for each in said):
            if _is_blank(node) and node not in seen and node not in others:
                seen.add(node)
                waiting.append(node)
    return found


def _together(groups: list[_Group]) -> _Group:
    """A document that is one record."""
    one = _Group("it")
    for each in groups:
        one.quads += each.quads
        one.starts += [start for start in each.starts if start not in one.starts]
        one.ends += [end for end in each.ends if end not in one.ends]
    return one


def _said(quads: Iterable[Any], properties: Sequence[str]) -> list[Any]:
    """The different values of the first of these properties that has any."""
    found: dict[str, dict[Any, None]] = {}
    for each in quads:
        if each.predicate.value in properties:
            found.setdefault(each.predicate.value, {})[each.object] = None
    return list(next((found[name] for name in properties if name in found), ()))


def _spo(triple: Any) -> tuple[Any, Any, Any]:
    return triple.subject, triple.predicate, triple.object


def _reifies(quad: Any) -> bool:
    return bool(quad.predicate.value == _REIFIES) and type(quad.object).__name__ == "Triple"


def _is_blank(node: Any) -> bool:
    return type(node).__name__ == "BlankNode"


# --- from groups to records -------------------------------------------------------------------------


def _fields(group: _Group, times: RdfTimes) -> tuple[dict[str, object] | None, str]:
    """When a record begins and ends, as its columns would say it; or the reason why there is no record."""
    if group.reason:
        return None, group.reason
    found: dict[str, object] = {}
    for column, values in ((times.start, group.starts), (times.end, group.ends)):
        if len(values) > 1:
            return None, f"{group.name} has {len(values)} times: {', '.join(map(str, values))}"
        for each in values:
            found[column] = _time(each)
    if times.start not in found:
        return None, f"no time: {group.name} has no {' and no '.join(times.starts)}"
    return found, ""


def _time(node: Any) -> object:
    """What stands for a time: a number is one of JSON."""
    value = str(node.value) if hasattr(node, "value") else str(node)
    if getattr(node, "datatype", None) is not None and node.datatype.value in _NUMBERS:
        number, _ = json_object(b'{"of": %s}' % value.encode())
        return value if number is None else number["of"]
    return value


def _labels(data: bytes, format: str) -> frozenset[str] | None:
    """The labels of blank nodes in a text; None where every node has one."""
    if FORMATS[format] in _LINES:
        return None
    text = data.decode(errors="replace") if b"_:" in data or b"nodeID" in data else ""
    return frozenset(one.rstrip(".") or other for one, other in _LABEL.findall(text))


def _record(
    place: tuple[int, int, int, str],
    group: _Group,
    notation: Notation,
    labels: frozenset[str] | None,
    text: str | None = None,
) -> Record:
    part, seq, _, _ = place
    fields, reason = _fields(group, notation.rdf or USUAL_TIMES)
    names: dict[str, str] = {}
    # A label begins with no dot, so that nothing is called as a node without one.
    own = f".{part}.{seq}." if notation.blank_nodes == "stream" else "."

    def label(name: str) -> str:
        if labels is None or name in labels:
            return name
        return names.setdefault(name, f"{own}{len(names)}")

    triples: tuple[Triple, ...] = tuple([triple_of(each, label) for each in dict.fromkeys(group.quads)])
    if fields is None:
        shown = "\n".join(map(n_triples, triples)) or group.name
        return Record(*place, None, shown if text is None else text, reason)
    return Record(*place, {**fields, "triples": triples}, text)
