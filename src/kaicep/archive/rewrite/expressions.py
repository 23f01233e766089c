"""chi-CEP expressions as SPARQL: null is an error there, and both make a FILTER fail.

Three-valued logic and errors agree in SPARQL and here: `true || error` is true, `false && error` false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kaicep.errors import Unsupported
from kaicep.plan.expressions import Call, Const, Expr, Field, Previous
from kaicep.plan.literals import literal_of
from kaicep.plan.terms import Literal
from kaicep.plan.types import Type

__all__ = ["LARGEST", "constant_text", "expression_sparql", "fields_in", "must_be_there"]

FieldText = Callable[[Field, bool], str]
"""The text of a field's value; the second argument says that the field stands in PREV."""

_NULL = "?null"
"""A variable that nothing binds: an error, which is what null is."""

LARGEST = 1e300
"""The view holds no number beyond this, so that no sum of a few of them is infinite."""

_SIGNS = {"=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "and": "&&", "or": "||"}
_SUMS = {"+", "-", "*"}
_FUNCTIONS = {
    "abs": "ABS",
    "floor": "FLOOR",
    "ceil": "CEIL",
    "lower": "LCASE",
    "upper": "UCASE",
    "contains": "CONTAINS",
    "startsWith": "STRSTARTS",
    "coalesce": "COALESCE",
    "hour": "HOURS",
}


def expression_sparql(expr: Expr, field: FieldText, query: str) -> str:
    """An expression as SPARQL; `Unsupported` for what SPARQL would answer differently."""

    def say(each: Expr, previous: bool = False) -> str:
        match each:
            case Const(None, _):
                return _NULL
            case Const(value, kind):
                assert kind is not None, "only null has no type"
                return constant_text(value, kind)
            case Field():
                return field(each, previous)
            case Previous(of):
                return say(of, True)
            case Call():
                return call(each, [say(arg, previous) for arg in each.args])
        raise Unsupported(f"{query}: {type(each).__name__} is not known in SPARQL")

    def call(each: Call, args: list[str]) -> str:
        if each.op in _SIGNS:
            return f"({f' {_SIGNS[each.op]} '.join(args)})"
        if each.op in _SUMS and each.type in (Type.INT64, Type.FLOAT64) and _numbers(each):
            return _finite(f"({args[0]} {each.op} {args[1]})", each)
        if each.op == "hour" and len(args) > 1:
            raise Unsupported(f"{query}: one SPARQL query cannot say a time zone; replay and hybrid can")
        if each.op in _FUNCTIONS:
            return f"{_FUNCTIONS[each.op]}({', '.join(args)})"
        match each.op:
            case "not":
                return f"(!{args[0]})"
            case "neg" if _numbers(each):
                return f"(-{args[0]})"
            case "float":
                return f"xsd:double({args[0]})"
            case "in":
                return f"({args[0]} IN ({', '.join(args[1:])}))"
            case "if":
                return f"IF(COALESCE({args[0]}, false), {args[1]}, {args[2]})"
            case "round":
                # SPARQL rounds halves up; here they go away from zero.
                return f"IF({args[0]} < 0, -ROUND(-{args[0]}), ROUND({args[0]}))"
            case "/" if _numbers(each):
                divided = f"xsd:double({args[0]}) / xsd:double({args[1]})"
                return f"IF({args[1]} = 0, {_NULL}, {_finite(f'({divided})', each)})"
        raise Unsupported(f"{query}: one SPARQL query cannot say {each.op}; replay and hybrid can")

    return say(expr)


def _numbers(call: Call) -> bool:
    """Whether all arguments are numbers, rather than times."""
    return all(_type(arg) in (Type.INT64, Type.FLOAT64) for arg in call.args)


def _type(expr: Expr) -> Type | None:
    return _type(expr.of) if isinstance(expr, Previous) else getattr(expr, "type", None)


def _finite(text: str, call: Call) -> str:
    """A number that is not finite is null; SPARQL has INF for it. Integers fail by themselves.

    Sums of what the view holds are finite (`LARGEST`), so that they stand as they are.
    """
    if call.type is Type.INT64 or (call.op in ("+", "-") and all(map(_is_tame, call.args))):
        return text
    return f"IF(ABS({text}) <= 1.7976931348623157e308, {text}, {_NULL})"


def _is_tame(expr: Expr) -> bool:
    match expr:
        case Const(value, _):
            return isinstance(value, int | float) and abs(value) <= LARGEST
        case Field():
            return True
        case Previous(of):
            return _is_tame(of)
        case Call("float" | "+" | "-" | "neg" | "abs", args):
            return all(map(_is_tame, args))
    return False


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
        case Call("coalesce" | "if", _):
            return frozenset()
        case Call("in", (value, *_)):
            return must_be_there(value)
        case Call("not", (Call("and" | "or" | "not" | "in" | "coalesce" | "if", _),)):
            return frozenset()
        case Call(_, args):
            return frozenset().union(*map(must_be_there, args))
    return frozenset()


def fields_in(expr: Expr, previous: bool = False) -> Iterator[tuple[Field, bool]]:
    """The fields that an expression mentions, each with whether it stands in PREV."""
    if isinstance(expr, Field):
        yield expr, previous
    for child in expr.children():
        yield from fields_in(child, previous or isinstance(expr, Previous))
