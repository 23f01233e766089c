"""SPARQL over the closed knowledge: questions, a whole set of answers at a time, and updates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kaicep.errors import Diagnostic, Mistake, SourceText, Span
from kaicep.knowledge.graph import Ids, plain, solve
from kaicep.knowledge.loading import ALWAYS, DEFAULT, since
from kaicep.knowledge.store import Edit, Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.functions import OWN_FUNCTIONS, SPARQL_FUNCTIONS, SolutionScope, evaluate_expression, holds
from kaicep.plan.rdf_text import term_of
from kaicep.plan.sparql import Bind, Filter, Group
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple, TripleTerm, Variable
from kaicep.plan.text import group_text
from kaicep.plan.time import parse_time
from kaicep.plan.values import ExpressionError, normalise

if TYPE_CHECKING:
    import pyoxigraph

# ----------------------------------------------------------------------------------------------------------
# SPARQL over the closed knowledge, a whole set of answers at a time.
#
# Plain triple patterns are joined where the closure lies (`joins`). For everything else the closure is kept
# a second time in a pyoxigraph store, made when it is first needed; a change of the knowledge is carried
# over triple by triple.

_ON_VALUES = frozenset("= != < <= > >= in notin + - * / neg abs round ceil floor".split())  # noqa: SIM905

Row = tuple[Term | None, ...]
"""One answer: a term, or nothing, for each variable."""

_STORES: WeakKeyDictionary[Knowledge, ClosedStore] = WeakKeyDictionary()


def select(knowledge: Knowledge, group: Group, names: Sequence[str]) -> list[Row]:
    """The distinct values of these variables in the solutions of a group over the closed knowledge.

    >>> from kaicep.plan.sparql import TriplePattern, TripleBlock
    >>> knowledge = Knowledge.parse("<urn:s1> <urn:in> <urn:r1> .")
    >>> group = Group((TripleBlock((TriplePattern(Variable("s"), Iri("urn:in"), Iri("urn:r1")),)),))
    >>> select(knowledge, group, ["s"])
    [(Iri(value='urn:s1'),)]
    """
    asked = plain(group)
    if asked is not None and asked.variables.issuperset(names):
        return list(solve(asked, *knowledge.by_number(), names))
    with closed_store(knowledge.whole).besides(knowledge.passing(), _in_graphs(knowledge, True)) as store:
        return store.select(group, names)


def closed_store(knowledge: Knowledge) -> ClosedStore:
    """The store of a knowledge base, made when it is first asked for, and as new as its version."""
    found = _STORES.get(knowledge)
    if found is not None and found.version != knowledge.version:
        touched = knowledge.touched_since(found.version)
        if touched is None:
            found = None
        else:
            found.follow(touched, knowledge)
    if found is None:
        found = _STORES[knowledge] = ClosedStore(knowledge)
    return found


class ClosedStore:
    """The closure of a knowledge base at one version."""

    def __init__(self, knowledge: Knowledge) -> None:
        import pyoxigraph

        self.version = knowledge.version
        self._store = pyoxigraph.Store()
        self._store.bulk_extend(quads_of(knowledge))

    def follow(self, touched: Iterable[Triple], knowledge: Knowledge) -> None:
        """Takes over what is now true of these triples, so that nothing is loaded again."""
        from pyoxigraph import DefaultGraph

        for triple in touched:
            if knowledge.holds(triple):
                self._store.add(quad_of(triple))
            else:
                self._store.remove(quad_of(triple))
            s, p, o = map(to_oxigraph, triple)
            for quad in list(self._store.quads_for_pattern(s, p, o, None)):
                if not isinstance(quad.graph_name, DefaultGraph):
                    self._store.remove(quad)
        changed = {knowledge.by_number()[1].ids(each) for each in touched} if knowledge.placed else set()
        self._store.extend(quad for ids, quad in _in_graphs(knowledge) if ids in changed)
        self.version = knowledge.version

    @contextmanager
    def besides(
        self, triples: Iterable[Triple], graphs: Iterable[tuple[Ids, pyoxigraph.Quad]] = ()
    ) -> Iterator[ClosedStore]:
        """The store with some triples more, and some in named graphs, for as long as it takes."""
        more = (*map(quad_of, triples), *(quad for _, quad in graphs))
        quads = [quad for quad in more if quad not in self._store]
        self._store.extend(quads)
        try:
            yield self
        finally:
            for quad in quads:
                self._store.remove(quad)

    def select(self, group: Group, names: Sequence[str]) -> list[Row]:
        """The distinct values of these variables in the solutions of a group."""
        nameless = {name: Variable(f"kaicep_{name[2:]}") for name in names if name.startswith("_:")}
        if nameless:
            group = substitute(group, nameless)  # type: ignore[arg-type]  # one variable for another
        called = [nameless[name].name if name in nameless else name for name in names]
        if not names and not _apart(group)[1]:
            return [()] if self._answer(f"ASK {_text(group)}") else []
        base, judged = _apart(group)
        if judged:
            return self._judged(base, judged, called)
        wanted = " ".join(f"?{name}" for name in called)
        found = self._answer(f"SELECT DISTINCT {wanted} WHERE {_text(group)}")
        return [tuple(None if each is None else from_oxigraph(each) for each in row) for row in found]

    def _answer(self, query: str) -> Any:
        return self._store.query(query, custom_functions=_own_functions())

    def _judged(self, base: Group, judged: Sequence[Filter | Bind], names: Sequence[str]) -> list[Row]:
        """The answers where values are compared: exactly, which a store with numbers of 18 digits cannot."""
        bound = {each.variable for each in judged if isinstance(each, Bind)}
        mentioned = frozenset[str]().union(*map(element_variables, judged))
        asked = sorted((mentioned | set(names)) - bound)
        found: dict[Row, None] = {}
        for row in self.select(base, asked):
            solution = {name: term for name, term in zip(asked, row, strict=True) if term is not None}
            for each in judged:
                if isinstance(each, Bind):
                    with suppress(ExpressionError):
                        solution[each.variable] = evaluate_expression(each.expr, SolutionScope(solution))
            if all(
                holds(each.condition, SolutionScope(solution)) for each in judged if isinstance(each, Filter)
            ):
                found[tuple([solution.get(name) for name in names])] = None
        return list(found)


def _text(group: Group) -> str:
    return group_text(group, functions=OWN_FUNCTIONS)


@cache
def _own_functions() -> dict[pyoxigraph.NamedNode, Callable[..., Any]]:
    """The functions that the store is to take from us: its regular expressions are not RE2's."""
    import pyoxigraph

    def own(name: str) -> Callable[..., Any]:
        def answer(*given: Any) -> Any:
            try:
                return to_oxigraph(SPARQL_FUNCTIONS[name].of(*map(from_oxigraph, given)))
            except ExpressionError:
                return None

        return answer

    return {pyoxigraph.NamedNode(iri.value): own(name) for name, iri in OWN_FUNCTIONS.items()}


def _apart(group: Group) -> tuple[Group, list[Filter | Bind]]:
    """A group without the comparisons and sums at its top, and these.

    A FILTER judges the whole group, wherever it stands; a BIND can wait where nothing else has its variable.
    """
    elements = group.elements
    judged: list[Filter | Bind] = [
        each for each in elements if isinstance(each, Filter) and _compares(each.condition)
    ]
    judged += [each for each in elements if isinstance(each, Bind) and _compares(each.expr)]
    left = [each for each in group.elements if each not in judged]
    waiting = {each.variable for each in judged if isinstance(each, Bind)}
    if any(waiting & element_variables(each) for each in left):
        return group, []
    return (Group(tuple(left)), judged) if judged else (group, [])


def _compares(expr: Expr) -> bool:
    """Whether an expression is about values, and not about what is there or what a text has in it."""
    parts = list(walk(expr))
    if any(isinstance(each, Exists) for each in parts):
        return False
    return any(isinstance(each, Call) and each.op in _ON_VALUES for each in parts)


def quads_of(knowledge: Knowledge) -> Iterator[pyoxigraph.Quad]:
    """All triples, in the default graph, and what is always stated in named graphs.

    Each term is made once, which is half of the work.
    """
    import pyoxigraph

    facts, terms = knowledge.by_number()
    made: dict[int, Any] = {}

    def term(number: int) -> Any:
        if number not in made:
            made[number] = to_oxigraph(terms.term(number))
        return made[number]

    for s, p, o in facts:
        yield pyoxigraph.Quad(term(s), term(p), term(o))
    yield from (quad for _, quad in _in_graphs(knowledge))


def _in_graphs(knowledge: Knowledge, passing: bool = False) -> Iterator[tuple[Ids, pyoxigraph.Quad]]:
    """What is stated in named graphs; or only what holds there `passing`."""
    import pyoxigraph

    term = knowledge.by_number()[1].term
    for ids, graph in knowledge.in_graphs(passing):
        yield ids, pyoxigraph.Quad(*(to_oxigraph(term(each)) for each in (*ids, graph)))


def quad_of(triple: Triple) -> pyoxigraph.Quad:
    """A triple of ours as one of pyoxigraph's."""
    import pyoxigraph

    return pyoxigraph.Quad(*(to_oxigraph(term) for term in triple))


def to_oxigraph(term: Term) -> Any:
    """A term of ours as one of pyoxigraph's."""
    import pyoxigraph

    match term:
        case Iri(value):
            return pyoxigraph.NamedNode(value)
        case Blank(label):
            return pyoxigraph.BlankNode(label)
        case Literal(lexical, datatype, language):
            if language:
                return pyoxigraph.Literal(lexical, language=language)
            return pyoxigraph.Literal(lexical, datatype=pyoxigraph.NamedNode(datatype))
        case TripleTerm(triple):
            return pyoxigraph.Triple(*map(to_oxigraph, triple))


def from_oxigraph(node: Any) -> Term:
    """A term of pyoxigraph's as one of ours, in its one spelling."""
    term = term_of(node)
    return normalise(term) if isinstance(term, Literal) else term


# ----------------------------------------------------------------------------------------------------------
# SPARQL UPDATE and RDF Patch: statements to add and to remove, of the default graph or of a named one.
#
# `INSERT DATA`, `DELETE DATA`, `DELETE WHERE` and `DELETE .. INSERT .. WHERE` are read, one after the
# other. Each is a template to remove, a template to add and a WHERE, which is answered from the closed
# knowledge, so that it finds what a query finds; `GRAPH` finds what is stated in a named graph. Nothing
# that loads, clears, or asks a service.
#
# A first line `# valid from 2012-05-07T10:00:00Z` says from when on all of it counts: what is added holds
# from then on, and what is removed held until then.
#
# Of RDF Patch, the lines `A`, `D`, `PA`, `PD`, `H`, `TX`, `TC` and `TA` are read. What stands in a
# transaction that is aborted, or has no end, does not count.

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
