"""Files of RDF to triples: every format by its suffix, every fault with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaicep.errors import Diagnostic, Mistake, Source, Span, did_you_mean
from kaicep.knowledge.graph import Ids, Terms
from kaicep.plan.literals import normalise
from kaicep.plan.terms import Blank, Iri, Literal
from kaicep.storage.places import place_of

if TYPE_CHECKING:
    import pyoxigraph

__all__ = ["FORMATS", "Reader", "Said", "expanded", "files_of", "read_bytes", "suffix_of"]

# Suffix to the name that pyoxigraph's RdfFormat has for the format.
FORMATS = {
    "ttl": "TURTLE",
    "turtle": "TURTLE",
    "nt": "N_TRIPLES",
    "nq": "N_QUADS",
    "trig": "TRIG",
    "rdf": "RDF_XML",
    "owl": "RDF_XML",
    "xml": "RDF_XML",
    "jsonld": "JSON_LD",
}
"""The formats of RDF, by suffix."""


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
            raise Mistake(Diagnostic(f"cannot read the knowledge files {each}: there is no folder {base}"))
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
            raise Mistake(
                Diagnostic(f"the folder {each} has no knowledge in it", hint=f"files end in {_suffixes()}")
            )
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
        raise Mistake(Diagnostic(f"cannot read the knowledge file {path}: {reason}")) from None


_DEEP = 500
_LONG = 4_096
_JSON = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def _too_much(data: bytes, format: str) -> str | None:
    """Why a text cannot be given to a parser that gives up, and the process with it, in words.

    In RDF/XML an entity stands for a text, as tools write them for namespaces, and for no other entity.
    """
    if format == "JSON_LD":
        depth = 0
        for found in _JSON.finditer(data):
            depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
            if depth > _DEEP:
                return f"it is nested more than {_DEEP} deep"
    return _too_much_xml(data) if format == "RDF_XML" else None


def _too_much_xml(data: bytes) -> str | None:
    import pyexpat

    depth, problem = 0, None

    def begin(name: str, attributes: object) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEP:
            stop(f"it is nested more than {_DEEP} deep")

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1

    def entity(name: str, parameter: bool, value: str | None, *rest: object) -> None:
        if parameter or value is None or "&" in value or len(value) > _LONG:
            stop(f"the entity {name} is more than a short text")

    def stop(why: str) -> None:
        nonlocal problem
        problem = why
        raise ValueError

    parser = pyexpat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = begin, end, entity
    try:
        parser.Parse(data, True)
    except (ValueError, pyexpat.ExpatError):
        return problem  # what is no XML is said by the parser that reads it
    return None


class Reader:
    """Reads texts into triples of one numbering of terms.

    Blank nodes are called b0, b1, ... in the order in which they first occur over all texts, so that
    the same files give the same names everywhere. A text that is read again, `after` what it said
    before, has the same blank nodes in the same places. `prefixes` are those of all texts; what the first
    of them says counts.
    """

    def __init__(self, terms: Terms, prefixes: dict[str, str] | None = None, blanks: int = 0) -> None:
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
            raise Mistake(Diagnostic(problem, hint=f"knowledge files end in {_suffixes()}"))
        return self.text(read_bytes(path) if data is None else data, suffix, str(path), path.name, after)

    def text(self, data: bytes, format: str, name: str, base: str, after: Said | None = None) -> Said:
        """What a text says; relative IRIs are read as if it lay at `file:///` + `base`."""
        import pyoxigraph

        if format not in FORMATS:
            raise Mistake(Diagnostic(f"unknown format {format}", hint=did_you_mean(format, FORMATS)))
        kind = getattr(pyoxigraph.RdfFormat, FORMATS[format])
        # Only the file's name, not its folder: the same files give the same IRIs on every machine.
        where = Path("/", base).as_uri()
        said = Said(name, blanks=list(after.blanks) if after else [])
        problem = _too_much(data, FORMATS[format])
        if problem is not None:
            raise Mistake(
                Diagnostic(f"{name}: {problem}", hint="such a text ends the process that parses it")
            )
        try:
            parser = pyoxigraph.parse(data, format=kind, base_iri=where)
            said.triples = list(self._triples(parser, said))
            self.prefixes = {**parser.prefixes, **self.prefixes}
        except SyntaxError as error:
            raise Mistake(_syntax_diagnostic(error, data, name)) from None
        except _Unreadable as error:
            raise Mistake(Diagnostic(str(error), source=Source(name, ""))) from None
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
            raise _Unreadable("a triple that speaks of a triple is not supported here")

        default = pyoxigraph.DefaultGraph()
        for at, quad in enumerate(quads):
            yield numbered(quad.subject), numbered(quad.predicate), numbered(quad.object)
            if quad.graph_name != default:
                said.graphs[at] = numbered(quad.graph_name)


class _Unreadable(Exception):
    pass


def _syntax_diagnostic(error: SyntaxError, data: bytes, name: str) -> Diagnostic:
    """The parser's complaint with the place underlined; it counts lines and columns from 1."""
    source = Source(name, data.decode("utf-8", "replace"))
    message = error.msg or "invalid syntax"
    if message.startswith("Parser error") and ": " in message:
        message = message.split(": ", 1)[1]  # the place is told by the diagnostic
    if error.lineno is None:
        return Diagnostic(message, source=source)
    start = _offset(source.text, error.lineno, error.offset or 1)
    end = _offset(source.text, error.end_lineno or error.lineno, error.end_offset or 0)
    return Diagnostic(message, Span(start, max(end, start + 1)), source)


def _offset(text: str, line: int, column: int) -> int:
    at = 0
    for _ in range(line - 1):
        following = text.find("\n", at)
        if following < 0:
            break
        at = following + 1
    return min(at + column - 1, len(text))
