"""SPARQL over the closed knowledge, a whole set of answers at a time.

Plain triple patterns are joined where the closure lies (`joins`). For everything else the closure is kept
a second time in a pyoxigraph store, made when it is first needed; a change of the knowledge is carried
over triple by triple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kaicep.knowledge.graph import Ids, plain, solve
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.expressions import Call, Exists, Expr, walk
from kaicep.plan.functions import OWN_FUNCTIONS, SPARQL_FUNCTIONS, SolutionScope, evaluate_expression, holds
from kaicep.plan.rdf_text import term_of
from kaicep.plan.sparql import Bind, Filter, Group
from kaicep.plan.terms import Blank, Iri, Literal, Term, Triple, TripleTerm, Variable
from kaicep.plan.text import group_text
from kaicep.plan.values import ExpressionError, normalise

if TYPE_CHECKING:
    import pyoxigraph

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
                self._store.add(_quad(triple))
            else:
                self._store.remove(_quad(triple))
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
        more = (*map(_quad, triples), *(quad for _, quad in graphs))
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


def _quad(triple: Triple) -> pyoxigraph.Quad:
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
