"""chi-CEP expressions as SPARQL: null is an error there, and both make a FILTER fail.

Three-valued logic and errors agree in SPARQL and here: `true || error` is true, `false && error` false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kaicep.errors import Unsupported
from kaicep.plan.expressions import Call, Const, Expr, Field, Previous
from kaicep.plan.literals import literal_of
from kaicep.plan.operators import OPERATORS, Nulls, express
from kaicep.plan.terms import Literal
from kaicep.plan.types import Type

__all__ = ["constant_text", "expression_sparql", "fields_in", "must_be_there"]

FieldText = Callable[[Field, bool], str]
"""The text of a field's value; the second argument says that the field stands in PREV."""


def expression_sparql(expr: Expr, field: FieldText, query: str) -> str:
    """An expression as SPARQL; `Unsupported` for what SPARQL would answer differently."""

    def say(each: Expr, previous: bool = False) -> str:
        match each:
            case Const(None, _):
                return "?null"  # nothing binds it: an error, which is what null is
            case Const(value, kind):
                assert kind is not None, "only null has no type"
                return constant_text(value, kind)
            case Field():
                return field(each, previous)
            case Previous(of):
                return say(of, True)
            case Call():
                return express("sparql", each, [say(arg, previous) for arg in each.args], query)
        raise Unsupported(f"{query}: {type(each).__name__} is not known in SPARQL")

    return say(expr)


def constant_text(value: Any, type: Type) -> str:
    """A constant as SPARQL writes it; a number with an exponent is a double there.

    >>> constant_text(500.5, Type.FLOAT64), constant_text(5, Type.INT64), constant_text("a", Type.STRING)
    ('500.5e0', '5', '"a"')
    """
    literal = literal_of(value, type)
    match type:
        case Type.INT64 | Type.BOOL:
            return literal.lexical
        case Type.FLOAT64:
            text = repr(float(value))
            return text if "e" in text else f"{text}e0"
        case Type.TIMESTAMP:
            return f'"{literal.lexical}"^^xsd:dateTime'
    return str(Literal(literal.lexical))


def must_be_there(expr: Expr) -> frozenset[tuple[Field, bool]]:
    """The fields without which a condition cannot be true, each with whether it stands in PREV."""
    match expr:
        case Field():
            return frozenset(((expr, False),))
        case Previous(of):
            return frozenset((each, True) for each, _ in must_be_there(of))
        case Call("or", args):
            return frozenset.intersection(*map(must_be_there, args))
        case Call("in", (value, *_)):
            return must_be_there(value)
        case Call("not", (Call(op, _),)) if OPERATORS[op].nulls is Nulls.OWN or op == "not":
            return frozenset()
        case Call(op, args) if OPERATORS[op].nulls is Nulls.SPREAD or op == "and":
            return frozenset().union(*map(must_be_there, args))
    return frozenset()


def fields_in(expr: Expr, previous: bool = False) -> Iterator[tuple[Field, bool]]:
    """The fields that an expression mentions, each with whether it stands in PREV."""
    if isinstance(expr, Field):
        yield expr, previous
    for child in expr.children():
        yield from fields_in(child, previous or isinstance(expr, Previous))
