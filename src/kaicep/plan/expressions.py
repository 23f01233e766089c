"""Expressions: one small family of nodes for both languages.

As parsed, an expression names attributes (`?e.flowrate`), concepts (`?e.hvc:airflow`) and variables.
Resolving a query (`plan.resolve`) turns both into a `Field`, which knows the attributes to read on
each stream, and gives every chi-CEP expression its type. SPARQL expressions (in a PATH, in EP-SPARQL)
keep variables and RDF terms and are typed by their values, as SPARQL says.

`Call.op` is the operator or the function in its canonical spelling. chi-CEP: the names of the table in
`plan.operators` (`in` has the value first and then the choices). SPARQL: the same signs, `notin`, and the
functions of the table in `plan.functions` (`bound`, `str`, `getduration`, ...); the call of an IRI has that
as op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TypeVar

from kaicep.errors import Span
from kaicep.plan.terms import Iri, Term
from kaicep.plan.types import Type, Value

_T = TypeVar("_T")
_MOST_REMEMBERED = 10_000


def by_identity(function: Callable[[Expr], _T]) -> Callable[[Expr], _T]:
    """Remembers what a function says of expressions.

    They are found by their place in memory: to hash one takes longer than most functions need.
    """
    known: dict[int, tuple[Expr, _T]] = {}

    @wraps(function)
    def remembered(expr: Expr) -> _T:
        found = known.get(id(expr))
        if found is None:
            if len(known) >= _MOST_REMEMBERED:
                known.clear()
            found = known[id(expr)] = expr, function(expr)
        return found[1]

    return remembered


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(expr: Expr) -> tuple[str, ...]:
    """What the nodes of a kind consist of."""
    kind = type(expr)
    if kind not in _NAMES:
        _NAMES[kind] = tuple(each.name for each in fields(expr))
    return _NAMES[kind]


@dataclass(frozen=True)
class Expr:
    """What all expressions share: where they stand in the text. It plays no part in equality."""

    span: Span | None = field(default=None, compare=False, repr=False, kw_only=True)

    def children(self) -> tuple[Expr, ...]:
        """The expressions directly below this one."""
        below: list[Expr] = []
        for name in _names(self):
            value = getattr(self, name)
            if isinstance(value, Expr):
                below.append(value)
            elif isinstance(value, tuple):
                below.extend(item for item in value if isinstance(item, Expr))
        return tuple(below)


@dataclass(frozen=True)
class Const(Expr):
    """A chi-CEP literal. `null` has no type."""

    value: Value
    type: Type | None


@dataclass(frozen=True)
class Attribute(Expr):
    """`?e.flowrate`, as written."""

    variable: str
    name: str


@dataclass(frozen=True)
class Concept(Expr):
    """`?e.hvc:airflow`, as written; `iri` is the concept with its prefix resolved."""

    variable: str
    iri: Iri
    text: str


@dataclass(frozen=True)
class Field(Expr):
    """An attribute of an event variable, resolved.

    `sources` says, for each stream of the variable, which attributes to read: the first that is not
    null counts; none at all means null there. `name` is what a column of it is called. The attribute
    `ts` is the event time. Where the type is float64, an int64 that a stream holds is widened. The type
    is None only on an open stream (see `plan.catalog.Stream`).
    """

    variable: str
    name: str
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    type: Type | None


@dataclass(frozen=True)
class Previous(Expr):
    """`PREV(?b.x)`: the value in the round before."""

    of: Expr


@dataclass(frozen=True)
class Aggregate(Expr):
    """An aggregate: over a loop or a window in chi-CEP, over a group in SPARQL.

    `op` is COUNT SUM AVG MIN MAX STDDEV FIRST LAST (SPARQL: COUNT SUM AVG MIN MAX SAMPLE
    GROUP_CONCAT). `variable` is the event variable (chi-CEP only); `of` is what is aggregated, None
    for `COUNT(?e)` and `COUNT(*)`.
    """

    op: str
    of: Expr | None
    distinct: bool = False
    variable: str | None = None
    separator: str = " "
    type: Type | None = None


@dataclass(frozen=True)
class Call(Expr):
    """An operator or a function, applied."""

    op: str
    args: tuple[Expr, ...]
    type: Type | None = None


@dataclass(frozen=True)
class VariableRef(Expr):
    """A SPARQL variable (in chi-CEP: a variable of a PATH in SELECT)."""

    name: str


@dataclass(frozen=True)
class TermConst(Expr):
    """An RDF term in a SPARQL expression."""

    term: Term


@dataclass(frozen=True)
class Exists(Expr):
    """`EXISTS { ... }` and `NOT EXISTS { ... }`; `group` is a `plan.sparql.Group`."""

    group: object
    negated: bool = False


def type_of(expr: Expr) -> Type | None:
    """The type of a resolved expression; None for null and for what is not known."""
    if isinstance(expr, Const | Field | Call | Aggregate):
        return expr.type
    return type_of(expr.of) if isinstance(expr, Previous) else None


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    yield expr
    for child in expr.children():
        yield from walk(child)


def rewrite(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with `change` applied to every node, children first."""
    updates: dict[str, object] = {}
    for name in _names(expr):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            updates[name] = rewrite(value, change)
        elif isinstance(value, tuple) and any(isinstance(item, Expr) for item in value):
            updates[name] = tuple(rewrite(i, change) if isinstance(i, Expr) else i for i in value)
    return change(replace(expr, **updates) if updates else expr)  # type: ignore[arg-type]


@by_identity
def variables_of(expr: Expr) -> frozenset[str]:
    """The names of all variables that the expression mentions, event variables and others."""
    names: set[str] = set()
    for node in walk(expr):
        if isinstance(node, Attribute | Concept | Field) or (isinstance(node, Aggregate) and node.variable):
            names.add(node.variable or "")
        elif isinstance(node, VariableRef):
            names.add(node.name)
    return frozenset(names)
