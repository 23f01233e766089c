"""SPARQL groups as written, in a PATH or in an EP-SPARQL query.

These nodes keep the shape of the text, so that it can be printed again; `plan.algebra` turns them
into operators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

from kaicep.errors import SourceText, Span
from kaicep.plan.expressions import Expr
from kaicep.plan.terms import Iri, Term, Variable

MOST_DERIVED = 10_000
"""So many triples may rules derive at one instant, where nobody says otherwise."""

TEMPORAL_OPERATORS = (
    "SEQ",
    "EQUALS",
    "OPTIONALSEQ",
    "EQUALSOPTIONAL",
    "DURING",
    "MEETS",
    "STARTS",
    "FINISHES",
    "PAR",
    "NOT",
)
"""The operators between groups that speak of time (semantics 3.2)."""

Node = Term | Variable
"""What may be subject or object of a pattern."""


@dataclass(frozen=True)
class Path:
    """A property path; a plain IRI stands for itself and is no Path."""


@dataclass(frozen=True)
class Inverse(Path):
    """`^p`"""

    of: Iri | Path


@dataclass(frozen=True)
class Steps(Path):
    """`p/q`"""

    parts: tuple[Iri | Path, ...]


@dataclass(frozen=True)
class Alternative(Path):
    """`p|q`"""

    parts: tuple[Iri | Path, ...]


@dataclass(frozen=True)
class Repeat(Path):
    """`p*` (from 0, unbounded), `p+` (from 1, unbounded), `p?` (at most once)."""

    of: Iri | Path
    least: int
    unbounded: bool


@dataclass(frozen=True)
class Negated(Path):
    """`!(p|^q)`: any property but these; `inverse` holds those read backwards."""

    forward: tuple[Iri, ...]
    inverse: tuple[Iri, ...]


Predicate = Iri | Variable | Path
"""What may stand between them."""
_P = TypeVar("_P", bound=Predicate)


def may_be_empty(path: Predicate) -> bool:
    """Whether a path may lead from a node to itself in no step at all.

    >>> may_be_empty(Repeat(Iri("urn:p"), 0, True)), may_be_empty(Iri("urn:p"))
    (True, False)
    """
    match path:
        case Repeat(of, least):
            return least == 0 or may_be_empty(of)
        case Steps(parts):
            return all(may_be_empty(each) for each in parts)
        case Alternative(parts):
            return any(may_be_empty(each) for each in parts)
        case Inverse(of):
            return may_be_empty(of)
    return False


def simplified(path: _P) -> _P | Path:
    """The same path, without steps of none that are repeated: `(p*)+` leads where `p*` does.

    >>> simplified(Repeat(Repeat(Iri("urn:p"), 0, True), 1, True)) == Repeat(Iri("urn:p"), 0, True)
    True
    """
    match path:
        case Inverse(of):
            return Inverse(simplified(of))
        case Steps(parts):
            return Steps(tuple(map(simplified, parts)))
        case Alternative(parts):
            return Alternative(tuple(map(simplified, parts)))
        case Repeat(of, least, unbounded):
            if not may_be_empty(of):
                return Repeat(simplified(of), least, unbounded)
            inner = _without_empty(simplified(of))
            if isinstance(inner, Repeat):
                return Repeat(inner.of, 0, True)
            return Repeat(inner, 0, unbounded)
    return path


def _without_empty(path: Iri | Path) -> Iri | Path:
    """A path that leads where another one does in a step or more."""
    if not may_be_empty(path):
        return path
    match path:
        case Inverse(of):
            return Inverse(_without_empty(of))
        case Repeat(of, _, unbounded):
            return Repeat(of, 1, True) if unbounded else of
        case Alternative(parts):
            return Alternative(tuple(map(_without_empty, parts)))
        case Steps(parts):
            some = (each for size in range(1, len(parts) + 1) for each in combinations(parts, size))
            ways = (tuple(map(_without_empty, each)) for each in some)
            return Alternative(tuple(each[0] if len(each) == 1 else Steps(each) for each in ways))
    return path


def has_empty(path: Predicate) -> bool:
    """Whether some part of a path may be empty."""
    match path:
        case Inverse(of):
            return has_empty(of)
        case Repeat(of, least, _):
            return least == 0 or has_empty(of)
        case Steps(parts) | Alternative(parts):
            return any(map(has_empty, parts))
    return False


@dataclass(frozen=True)
class TriplePattern:
    """Subject, predicate and object, each a term, a variable or (the predicate) a path.

    A blank node of the text is a variable here whose name begins with `_:`; nobody can name it, so
    it is never selected.
    """

    subject: Node
    predicate: Predicate
    object: Node
    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Element:
    """A part of a group."""

    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Group(Element):
    """`{ ... }`: its parts in the order of the text."""

    elements: tuple[Element, ...]


@dataclass(frozen=True)
class TripleBlock(Element):
    """Triple patterns that stand together."""

    patterns: tuple[TriplePattern, ...]


@dataclass(frozen=True)
class Filter(Element):
    """`FILTER (...)`; it judges the whole group, wherever it stands in it."""

    condition: Expr


@dataclass(frozen=True)
class Optional(Element):
    """`OPTIONAL { ... }`"""

    group: Group


@dataclass(frozen=True)
class MinusGroup(Element):
    """`MINUS { ... }`"""

    group: Group


@dataclass(frozen=True)
class Bind(Element):
    """`BIND (expr AS ?v)`"""

    expr: Expr
    variable: str


@dataclass(frozen=True)
class Values(Element):
    """`VALUES (?a ?b) { ... }`; None is UNDEF."""

    variables: tuple[str, ...]
    rows: tuple[tuple[Term | None, ...], ...]


@dataclass(frozen=True)
class GroupOperation(Element):
    """Two groups and what ties them: `UNION`, or a temporal operator; chains lean to the left."""

    op: str
    left: Element
    right: Element


@dataclass(frozen=True)
class WindowClause:
    """`FROM NAMED WINDOW :name ON stream [RANGE .. STEP ..]`, in microseconds, or `[ROWS .. STEP ..]`.

    Without a step it is evaluated at every instant at which a triple of the stream ends, or after every one.
    """

    name: Iri
    stream: str
    width: int | None = None
    rows: int | None = None
    step: int | None = None
    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class InWindow(Element):
    """`WINDOW :name { ... }`: plain SPARQL over what is in the window."""

    window: WindowClause
    group: Group


@dataclass(frozen=True)
class InGraph(Element):
    """`GRAPH :name { ... }`: plain SPARQL over what is stated in a named graph of the knowledge."""

    name: Node
    group: Group


@dataclass(frozen=True)
class Projection:
    """One column of a SELECT: a variable, or an expression and its name."""

    name: str
    expr: Expr | None = None
    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Ordering:
    """`ORDER BY ... LIMIT n OFFSET m`; the keys are expressions, and whether the greatest is first."""

    keys: tuple[tuple[Expr, bool], ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Select:
    """`SELECT ... WHERE ... GROUP BY ... HAVING ...`; `columns` is None for `*`.

    A group key is a variable (no expression), or an expression with a name (`_:` and a number where
    the text gives none). `report` says which solutions of its windows it gives: all (RSTREAM), those that the
    evaluation before did not have (ISTREAM), or those that only that one had (DSTREAM).
    """

    columns: tuple[Projection, ...] | None
    where: Group
    group_by: tuple[Projection, ...] = ()
    having: tuple[Expr, ...] = ()
    distinct: bool = False
    report: str = "RSTREAM"
    windows: tuple[WindowClause, ...] = ()
    ordering: Ordering | None = None


@dataclass(frozen=True)
class SubSelect(Element):
    """A SELECT inside a group."""

    select: Select


@dataclass(frozen=True)
class Construct:
    """`CONSTRUCT { template } WHERE ...`. A blank node of the template is a `Blank` term."""

    template: tuple[TriplePattern, ...]
    where: Group
    windows: tuple[WindowClause, ...] = ()


@dataclass(frozen=True)
class EpQuery:
    """An EP-SPARQL query as written."""

    form: Select | Construct
    consumption: str = "unrestricted"
    prefixes: tuple[tuple[str, str], ...] = ()
    base: str | None = None
    name: str = field(default="query", compare=False)
    source: SourceText | None = field(default=None, compare=False, repr=False)
