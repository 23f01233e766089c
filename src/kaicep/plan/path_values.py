"""Variables of the PATH in expressions: what a term of the knowledge base is as a value (semantics 2).

A variable of the PATH has no type before there is a solution. With one, its value stands in the expression
like a literal, and the types are what they would be then: where a query with that literal would be
refused, since it compares a string with a number, the part that does so is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from kaicep.plan.expressions import Call, Const, Expr, VariableRef, rewrite
from kaicep.plan.terms import RDF, XSD, Iri, Literal, Term
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value
from kaicep.plan.typing import retyped
from kaicep.plan.values import ExpressionError, date_time, number

__all__ = ["term_value", "with_terms"]

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def term_value(term: Term | None) -> tuple[Value, Type | None]:
    """A term as a value of an expression, with its type; what is not a value there is null.

    >>> term_value(Literal("1.5", XSD + "decimal")), term_value(Iri("urn:a"))
    ((1.5, Type.FLOAT64), ('urn:a', Type.STRING))
    >>> term_value(Literal("P1D", XSD + "duration"))
    (None, None)
    """
    if isinstance(term, Iri):
        return term.value, Type.STRING
    if not isinstance(term, Literal):
        return None, None
    if term.datatype == XSD + "string" or term.datatype == RDF + "langString" or term.language:
        return term.lexical, Type.STRING
    if term.datatype == XSD + "boolean":
        truth = _TRUTHS.get(term.lexical.strip())
        return truth, None if truth is None else Type.BOOL
    try:
        if term.datatype == XSD + "dateTime":
            return date_time(term), Type.TIMESTAMP
        found = number(term).value
    except ExpressionError:
        return None, None
    if isinstance(found, int):
        return (found, Type.INT64) if INT64_MIN <= found <= INT64_MAX else (None, None)
    try:
        near = float(found)
    except OverflowError:
        return None, None
    return (near, Type.FLOAT64) if math.isfinite(near) else (None, None)


def with_terms(expr: Expr, terms: Mapping[str, Term | None]) -> Expr:
    """A resolved expression with the values of a solution in the places of its variables, typed anew."""
    return _with_terms(expr, tuple(sorted(terms.items())))


@lru_cache(maxsize=4096)
def _with_terms(expr: Expr, terms: tuple[tuple[str, Term | None], ...]) -> Expr:
    known = dict(terms)

    def change(node: Expr) -> Expr:
        if isinstance(node, VariableRef):
            return Const(*term_value(known.get(node.name)), span=node.span)
        # Whether an int64 is to be widened shows only now.
        return node.args[0] if isinstance(node, Call) and node.op == "float" else node

    return retyped(rewrite(expr, change))
