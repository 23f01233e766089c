"""SPARQL UPDATE and RDF Patch: statements to add and to remove, of the default graph or of a named one.

`INSERT DATA`, `DELETE DATA`, `DELETE WHERE` and `DELETE .. INSERT .. WHERE` are read, one after the
other. Each is a template to remove, a template to add and a WHERE, which is answered from the closed
knowledge, so that it finds what a query finds; `GRAPH` finds what is stated in a named graph. Nothing that
loads, clears, or asks a service.

A first line `# valid from 2012-05-07T10:00:00Z` says from when on all of it counts: what is added holds from
then on, and what is removed held until then.

Of RDF Patch, the lines `A`, `D`, `PA`, `PD`, `H`, `TX`, `TC` and `TA` are read. What stands in a transaction
that is aborted, or has no end, does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kaicep.errors import Diagnostic, Mistake, SourceText, Span
from kaicep.knowledge.graph import Ids
from kaicep.knowledge.loading import ALWAYS, DEFAULT, since
from kaicep.knowledge.queries import from_oxigraph, quads_of
from kaicep.knowledge.store import Edit, Knowledge
from kaicep.plan.terms import Blank, Term, Triple
from kaicep.plan.time import parse_time

UPDATES = ("ru", "rdfp")
"""The suffixes of files that change what is known."""

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
    |(?P<text>'{3}(?:[^\\]|\\.)*?'{3}|"{3}(?:[^\\]|\\.)*?"{3}|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    |(?P<iri><[^<>"{}|^`\\\s]*>)
    |(?P<mark>[{};])
    |(?P<word>[?$@]?(?:[\w.:%-]|\\.)+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_FORMS = {
    ("INSERT", "DATA", "{}"): (None, 0, None),
    ("DELETE", "DATA", "{}"): (0, None, None),
    ("DELETE", "WHERE", "{}"): (0, None, 0),
    ("INSERT", "{}", "WHERE", "{}"): (None, 0, 1),
    ("DELETE", "{}", "WHERE", "{}"): (0, None, 1),
    ("DELETE", "{}", "INSERT", "{}", "WHERE", "{}"): (0, 1, 2),
}
# SPARQL reads these before anything else, so that one could stand for a brace or a quote.
_CODE_POINT = re.compile(r"\\u00[0-7][0-9A-Fa-f]|\\U000000[0-7][0-9A-Fa-f]")
_VALID_FROM = re.compile(r"#[ \t]*valid[ \t]+from\b[ \t]*([^\r\n]*)")
_REFUSED_INSIDE = ("SERVICE",)
_WAY_OUT = "possible are INSERT DATA, DELETE DATA, DELETE WHERE and DELETE .. INSERT .. WHERE"
_NAMED = "what is added or removed names its graph: GRAPH <urn:g> {..}"


@dataclass(frozen=True)
class UpdateOperation:
    """One operation: bodies of the templates to remove and to add, and of the WHERE, without braces.

    `valid_from` is the instant from which on it counts; None: always.
    """

    prologue: str
    remove: str = ""
    add: str = ""
    where: str = ""
    valid_from: int | None = None


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def operations(text: str, name: str) -> tuple[UpdateOperation, ...]:
    """The operations of a text, all of them checked; where its name ends in `.rdfp`, it is an RDF Patch.

    >>> operations("PREFIX : <urn:> DELETE DATA { :s1 :in :r1 } ; INSERT DATA { :s1 :in :r2 }", "<update>")[1]
    UpdateOperation(prologue='PREFIX : <urn:>', remove='', add=' :s1 :in :r2 ', where='', valid_from=None)
    """
    import pyoxigraph

    source = SourceText(name, text)
    if name.endswith(".rdfp"):
        return _patch(source, _valid_from(source))
    escaped = _CODE_POINT.search(text)
    if escaped:
        raise _refused(_Token("", escaped.group(), *escaped.span()), source)
    when = _valid_from(source)
    found = tuple(replace(each, valid_from=when) for each in _operations(source))
    try:
        # Nothing in it reaches further than this store: that has been seen to.
        pyoxigraph.Store().update(text)
    except SyntaxError as error:
        raise Mistake(_diagnostic(str(error), source)) from None
    return found


def _valid_from(source: SourceText) -> int | None:
    said = _VALID_FROM.match(source.text)
    if said is None:
        return None
    when = parse_time(said[1].strip())
    if when is None:
        hint = "such as # valid from 2012-05-07T10:00:00Z"
        raise Mistake(f"{said[1].strip() or 'nothing'} is not a time", Span(*said.span(1)), source, hint)
    return when


# What is added to and removed from each graph, None being the default graph.
_Changes = dict[Term | None, tuple[list[Triple], list[Triple]]]


def carry_out(operation: UpdateOperation, edit: Edit) -> list[Triple]:
    """Adds and removes what the operation says, and tells it; blank nodes that are not there are new."""
    knowledge, blanks = edit.knowledge, dict[Term, int]()
    reader = knowledge.reader

    def number(term: Term) -> int:
        if isinstance(term, Blank) and reader.terms.known(term) is None:
            if term not in blanks:
                blanks[term] = reader.new_blank()
            return blanks[term]
        return reader.terms.number(term)

    def ids(triple: Triple) -> Ids:
        return number(triple[0]), number(triple[1]), number(triple[2])

    when = ALWAYS if operation.valid_from is None else since(operation.valid_from)
    told: list[Triple] = []
    for name, (add, remove) in _changes_of(operation, knowledge).items():
        graph = DEFAULT if name is None else reader.terms.number(name)
        edit.state(map(ids, add), map(ids, remove), when, graph)
        told += [*add, *remove]
    return told


def _changes_of(operation: UpdateOperation, knowledge: Knowledge) -> _Changes:
    """What the templates give, all of them at once: a blank node is one node in all graphs of a solution."""
    import pyoxigraph

    store = pyoxigraph.Store()
    if operation.where.strip():
        store.bulk_extend(quads_of(knowledge))
    sides = ((side, part) for side in ("add", "remove") for part in _by_graph(getattr(operation, side)))
    parts = {f"urn:kaicep:made:{number}": each for number, each in enumerate(sides)}
    template = "\n".join(f"GRAPH <{aside}> {{{body}\n}}" for aside, (_, (_, body)) in parts.items())
    store.update(f"{operation.prologue}\nINSERT {{{template}}} WHERE {{{operation.where}\n}}")
    made: _Changes = {}
    for aside, (side, (graph, _)) in parts.items():
        name = _name(graph, operation.prologue) if graph else None
        changes = made.setdefault(name, ([], []))[side == "remove"]
        for quad in store.quads_for_pattern(None, None, None, pyoxigraph.NamedNode(aside)):
            s, p, o = quad.triple
            changes.append((from_oxigraph(s), from_oxigraph(p), from_oxigraph(o)))
    return made


def _by_graph(template: str) -> Iterator[tuple[str, str]]:
    """The parts of a template, each with the name of its graph; those of the default graph without."""
    parts: list[tuple[str, str]] = []
    graph, start, naming = "", 0, False
    for token in _tokens(template):
        if naming:
            graph, naming = token.text, False
        elif token.kind == "word" and token.text.upper() == "GRAPH":
            parts.append(("", template[start : token.start]))
            naming = True
        elif token.kind == "mark" and token.text == "{":
            start = token.end
        elif token.kind == "mark" and token.text == "}":
            parts.append((graph, template[start : token.start]))
            start = token.end
    for graph, body in (*parts, ("", template[start:])):
        body = re.sub(r"^[\s.]+", " ", body)  # a dot may stand after a graph
        if body.strip():
            yield graph, body


def _name(graph: str, prologue: str) -> Term:
    """What a graph is called."""
    import pyoxigraph

    found: Any = pyoxigraph.Store().query(f"{prologue}\nSELECT ?g {{ VALUES ?g {{ {graph} }} }}")
    (row,) = found
    return from_oxigraph(row["g"])


_PATCH_LINE = re.compile(r"\s*(?P<code>[A-Z]{1,2})\b\s*(?P<rest>.*?)\s*\.?\s*(?:#[^\"<>]*)?$")
_PATCH_HINT = "a line such as A <urn:s1> <urn:in> <urn:r1> . or D, PA, PD, H, TX, TC, TA"


def _patch(source: SourceText, when: int | None) -> tuple[UpdateOperation, ...]:
    """The operations of an RDF Patch: lines that remove or add, those of one kind together."""
    prefixes: dict[str, str] = {}
    done: list[UpdateOperation] = []
    waiting: list[UpdateOperation] | None = None
    start = 0
    for line in source.text.splitlines(keepends=True):
        place, start = start, start + len(line)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _PATCH_LINE.match(line)
        code, rest = (found["code"], found["rest"]) if found else ("", "")
        if code == "PA":
            prefix, _, iri = rest.partition(" ")
            prefixes[prefix.strip('":')] = iri.strip(' "<>')
        elif code == "PD":
            prefixes.pop(rest.strip('":'), None)
        elif code == "TX":
            waiting = []
        elif code in ("TC", "TA"):
            done += (waiting or []) if code == "TC" else []
            waiting = None
        elif code in ("A", "D"):
            prologue = " ".join(f"PREFIX {name}: <{iri}>" for name, iri in prefixes.items())
            said = _patched(prologue, code, rest, source, Span(place, start - 1))
            _put(done if waiting is None else waiting, code, prologue, said, when)
        elif code != "H":
            raise Mistake("no line of an RDF Patch", Span(place, start - 1), source, _PATCH_HINT)
    return tuple(done)


def _put(into: list[UpdateOperation], code: str, prologue: str, triple: str, when: int | None) -> None:
    """A triple beside those before it: an operation first removes and then adds."""
    last = into[-1] if into else None
    if last is None or last.prologue != prologue or (code == "D" and last.add):
        into.append(UpdateOperation(prologue, valid_from=when))
        last = into[-1]
    add, remove = (last.add + triple, last.remove) if code == "A" else (last.add, last.remove + triple)
    into[-1] = replace(last, add=add, remove=remove)


def _patched(prologue: str, code: str, rest: str, source: SourceText, span: Span) -> str:
    """What a line adds or removes, as part of a template: three terms, or four with that of a graph."""
    import pyoxigraph

    if [each for each in _tokens(rest) if each.kind == "mark"] or _CODE_POINT.search(rest):
        raise Mistake("no line of an RDF Patch", span, source, _PATCH_HINT)
    verb = "INSERT" if code == "A" else "DELETE"
    triple, _, graph = rest.rpartition(" ")
    for said in (f" {rest} .", f" GRAPH {graph} {{ {triple} }}"):
        try:
            pyoxigraph.Store().update(f"{prologue} {verb} DATA {{ {said} }}")
        except SyntaxError:
            continue
        return said
    hint = "a subject, a property, a value, and the IRI of a graph or none; what is removed has no blank node"
    raise Mistake("no triple that this can follow", span, source, hint)


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or ""
        if kind != "skip":
            yield _Token(kind, found.group(), found.start(), found.end())


def _operations(source: SourceText) -> Iterator[UpdateOperation]:
    prologue: list[str] = []
    words: list[_Token] = []
    bodies: list[str] = []
    depth = start = 0
    tokens = [*_tokens(source.text), _Token("mark", ";", len(source.text), len(source.text))]
    for token in tokens:
        if token.kind == "mark" and token.text in "{}":
            depth += 1 if token.text == "{" else -1
            if token.text == "{" and depth == 1:
                start = token.end
            elif depth == 0:
                bodies.append(source.text[start : token.start])
                words.append(_Token("body", "{}", token.start, token.end))
        elif depth > 0:
            if token.kind == "word" and token.text.upper() in _REFUSED_INSIDE:
                raise _refused(token, source)
        elif token.kind == "mark":
            rest = _without_prologue(words, prologue)
            if rest:
                yield _operation(rest, bodies, " ".join(prologue), source)
            words, bodies = [], []
        else:
            words.append(token)


def _without_prologue(words: list[_Token], prologue: list[str]) -> list[_Token]:
    """The words after the declarations, which hold for everything that follows them."""
    at = 0
    while at < len(words) and words[at].text.upper() in ("PREFIX", "BASE"):
        length = 3 if words[at].text.upper() == "PREFIX" else 2
        prologue.append(" ".join(each.text for each in words[at : at + length]))
        at += length
    return words[at:]


def _operation(words: list[_Token], bodies: list[str], prologue: str, source: SourceText) -> UpdateOperation:
    form = _FORMS.get(tuple(each.text.upper() for each in words))
    if form is None:
        known = {word for each in _FORMS for word in each}
        raise _refused(next((each for each in words if each.text.upper() not in known), words[0]), source)
    remove, add, where = ("" if place is None else bodies[place] for place in form)
    templates = [words[at] for at, each in enumerate(words) if each.kind == "body"]
    for place in {each for each in form[:2] if each is not None}:
        if any(graph[0] in "?$" for graph, _ in _by_graph(bodies[place]) if graph):
            token = templates[place]
            message = "a graph that is changed is named, not found"
            raise Mistake(message, Span(token.start, token.end), source, _NAMED)
    return UpdateOperation(prologue, remove, add, where)


def _refused(token: _Token, source: SourceText) -> Mistake:
    message = f"{token.text} is not possible in an update of the knowledge"
    return Mistake(message, Span(token.start, token.end), source, _WAY_OUT)


def _diagnostic(message: str, source: SourceText) -> Diagnostic:
    found = re.match(r"error at (\d+):(\d+): (.*)", message, re.DOTALL)
    if found is None:
        return Diagnostic(message, source=source)
    lines = source.text.split("\n")
    offset = sum(len(line) + 1 for line in lines[: int(found[1]) - 1]) + int(found[2]) - 1
    told = found[3] if len(found[3]) < 80 else "invalid syntax"
    return Diagnostic(told, Span(offset, offset + 1), source)
