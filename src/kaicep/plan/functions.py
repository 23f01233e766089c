"""SPARQL expressions over a solution: operators, functions and casts (SPARQL 1.1, section 17).

`SPARQL_FUNCTIONS` is the table of what is called by a name or an IRI; parser and evaluation go by it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any
from urllib.parse import quote

from kaicep.errors import Failure
from kaicep.plan.events import match_id
from kaicep.plan.expressions import Call, Exists, Expr, TermConst, VariableRef
from kaicep.plan.regex import BadPattern, matcher, pattern
from kaicep.plan.terms import RDF, XSD, Blank, Iri, Literal, Term
from kaicep.plan.time import format_time
from kaicep.plan.values import (
    DATE_TIME,
    DAY_TIME,
    DURATION,
    NUMERIC_TYPES,
    STRING,
    ExpressionError,
    Number,
    arithmetic,
    as_double,
    boolean,
    calculate,
    date_time,
    equal,
    format_xsd_duration,
    is_finite,
    less,
    normalise,
    number,
    numeral,
    parse_xsd_duration,
    truth,
)

BEFORE = "_:before "
"""How the name of the variable begins that has the text of a solution before anything is computed of it."""

Interval = tuple[int, int]
"""When a solution holds: its start and its end in microseconds."""


@dataclass(frozen=True, slots=True)
class SolutionScope:
    """What an expression sees: the bindings, the interval, and a way to answer EXISTS."""

    bindings: Mapping[str, Term]
    interval: Interval | None = None
    exists: Callable[[Exists], bool] | None = None


def solution_text(bindings: Mapping[str, Term], interval: Interval | None) -> str:
    """The one way a solution is written down: its interval, then its variables by name.

    >>> solution_text({"b": Iri("urn:b"), "a": Iri("urn:a")}, (0, 5))
    '[0,5] ?a=<urn:a> ?b=<urn:b>'
    """
    when = "[]" if interval is None else f"[{interval[0]},{interval[1]}]"
    return " ".join([when, *(f"?{name}={bindings[name]}" for name in sorted(bindings))])


def holds(expr: Expr, scope: SolutionScope) -> bool:
    """Whether a condition is true; an error is not."""
    try:
        return truth(evaluate_expression(expr, scope))
    except ExpressionError:
        return False


def evaluate_expression(expr: Expr, scope: SolutionScope) -> Term:
    """The value of an expression; `ExpressionError` where it has none.

    >>> two = TermConst(Literal("2", XSD + "integer"))
    >>> evaluate_expression(Call("+", (two, two)), SolutionScope({})).lexical
    '4'
    """
    match expr:
        case TermConst(term):
            return term
        case VariableRef(name):
            if name not in scope.bindings:
                raise ExpressionError(f"?{name} is unbound")
            return scope.bindings[name]
        case Exists():
            if scope.exists is None:
                raise Failure("EXISTS needs a graph to look into, and there is none here")
            return boolean(scope.exists(expr))
        case Call(op, args):
            own = SPARQL_FUNCTIONS.get(op)
            if op in _FORMS or (own is not None and own.form):
                return (_FORMS[op] if own is None else own.of)(expr, scope)
            of = _OPERATORS[op] if own is None else own.of
            return of(*(evaluate_expression(each, scope) for each in args))
        case _:
            raise Failure(f"no SPARQL expression: {type(expr).__name__}")


# --- forms that do not evaluate all their arguments, or look at the solution -----------------------


def _bound(call: Call, scope: SolutionScope) -> Term:
    of = call.args[0]
    return boolean(not isinstance(of, VariableRef) or of.name in scope.bindings)


def _if(call: Call, scope: SolutionScope) -> Term:
    condition, then, otherwise = call.args
    return evaluate_expression(then if truth(evaluate_expression(condition, scope)) else otherwise, scope)


def _coalesce(call: Call, scope: SolutionScope) -> Term:
    for each in call.args:
        try:
            return evaluate_expression(each, scope)
        except ExpressionError:
            continue
    raise ExpressionError("COALESCE of nothing")


def _truths(args: Iterable[Expr], scope: SolutionScope) -> list[bool | None]:
    """The truth of each argument; None is an error."""
    found: list[bool | None] = []
    for each in args:
        try:
            found.append(truth(evaluate_expression(each, scope)))
        except ExpressionError:
            found.append(None)
    return found


def _decided(found: list[bool | None], decisive: bool) -> Term:
    """One decisive side decides whatever the other is; otherwise an error stays an error."""
    if decisive in found:
        return boolean(decisive)
    if None in found:
        raise ExpressionError("neither true nor false")
    return boolean(not decisive)


def _in(call: Call, scope: SolutionScope) -> Term:
    value = evaluate_expression(call.args[0], scope)
    found: list[bool | None] = []
    for each in call.args[1:]:
        try:
            found.append(equal(value, evaluate_expression(each, scope)))
        except ExpressionError:
            found.append(None)
    return _decided(found, True)


def _bnode(call: Call, scope: SolutionScope) -> Term:
    """A node for each solution: a function of the solution, so that every run makes the same one.

    The solution is what it was before SELECT or BIND gave it anything more: its text is the last argument
    then (see `plan.algebra`).
    """
    key, args = str(call.span), list(call.args)
    text = solution_text(scope.bindings, scope.interval)
    if args and isinstance(args[-1], VariableRef) and args[-1].name.startswith(BEFORE):
        text = _simple(evaluate_expression(args.pop(), scope))
    if args:
        key = _simple(evaluate_expression(args[0], scope))
    return Blank("n" + match_id("bnode", key, [text]))


def _interval(scope: SolutionScope) -> Interval:
    if scope.interval is None:
        raise ExpressionError("knowledge has no time")
    return scope.interval


def _get_duration(call: Call, scope: SolutionScope) -> Term:
    start, end = _interval(scope)
    return Literal(format_xsd_duration(end - start), DURATION)


def _get_time(side: int) -> Callable[[Call, SolutionScope], Term]:
    return lambda _, scope: Literal(format_time(_interval(scope)[side]), DATE_TIME)


# --- terms -----------------------------------------------------------------------------------------


def _literal(term: Term) -> Literal:
    if not isinstance(term, Literal):
        raise ExpressionError(f"{term} is not a literal")
    return term


def _string(term: Term) -> Literal:
    """A string, with or without a language."""
    literal = _literal(term)
    if literal.datatype not in (STRING, RDF + "langString"):
        raise ExpressionError(f"{term} is not a string")
    return literal


def _simple(term: Term) -> str:
    """The text of a string without a language."""
    literal = _string(term)
    if literal.language:
        raise ExpressionError(f"{term} has a language")
    return literal.lexical


def _like(model: Literal, text: str) -> Literal:
    """A string in the language of another."""
    return Literal(text, language=model.language)


def _agreeing(first: Term, second: Term) -> tuple[Literal, str]:
    """Two strings that may be compared: the second has the language of the first, or none."""
    left, right = _string(first), _string(second)
    if right.language and right.language != left.language:
        raise ExpressionError("strings of different languages")
    return left, right.lexical


def _str(term: Term) -> Literal:
    if isinstance(term, Iri):
        return Literal(term.value)
    if isinstance(term, Literal):
        return Literal(term.lexical)
    raise ExpressionError(f"{term} has no text")


_ABSOLUTE = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20<>"{}|^`\\]*')


def _iri(term: Term) -> Iri:
    if isinstance(term, Iri):
        return term
    text = _simple(term)
    if not _ABSOLUTE.fullmatch(text):
        raise ExpressionError(f"{term} is not an absolute IRI")
    return Iri(text)


def _datatype(term: Term) -> Iri:
    literal = _literal(term)
    return Iri(RDF + "langString" if literal.language else literal.datatype)


def _lang_matches(tag: Term, range_: Term) -> Literal:
    known, wanted = _simple(tag).lower(), _simple(range_).lower()
    if wanted == "*":
        return boolean(known != "")
    return boolean(known == wanted or known.startswith(wanted + "-"))


def _is_numeric(term: Term) -> Literal:
    try:
        number(term)
    except ExpressionError:
        return boolean(False)
    return boolean(True)


def _strdt(text: Term, datatype: Term) -> Literal:
    if not isinstance(datatype, Iri):
        raise ExpressionError(f"{datatype} is not a datatype")
    return Literal(_simple(text), datatype.value)


def _strlang(text: Term, tag: Term) -> Literal:
    return Literal(_simple(text), language=_simple(tag).lower())


# --- numbers ---------------------------------------------------------------------------------------


def _negated(term: Term) -> Literal:
    return numeral(calculate("-", Number(0, 0), number(term)))


def _absolute(term: Term) -> Literal:
    found = number(term)
    return _negated(term) if found.value < 0 else numeral(found)


def _rounded(term: Term, rounding: str, shift: Decimal = Decimal(0)) -> Literal:
    """The number without a fraction, of its own kind; what has no fraction stays as it is."""
    found = number(term)
    if isinstance(found.value, int) or not is_finite(found.value) or found.value == int(found.value):
        return numeral(found)
    exact = Decimal(found.value)
    _, digits, exponent = exact.as_tuple()
    work = Context(prec=len(digits) + abs(int(exponent)) + 2)
    whole = work.add(exact, shift).to_integral_value(rounding)
    return numeral(Number(found.kind, float(whole) if isinstance(found.value, float) else whole))


# --- strings ---------------------------------------------------------------------------------------


def _substr(text: Term, start: Term, length: Term | None = None) -> Literal:
    """Positions count from 1; fractions are rounded as XPath does."""
    source = _string(text)
    first = _position(start)
    last = math.inf if length is None else first + _position(length)
    return _like(source, "".join(c for i, c in enumerate(source.lexical, 1) if first <= i < last))


def _position(term: Term) -> float:
    value = as_double(number(term).value)
    return math.floor(value + 0.5) if math.isfinite(value) else value


def _strbefore(text: Term, mark: Term) -> Literal:
    source, part = _agreeing(text, mark)
    before, found, _ = source.lexical.partition(part) if part else ("", True, "")
    return _like(source, before) if found else Literal("")


def _strafter(text: Term, mark: Term) -> Literal:
    source, part = _agreeing(text, mark)
    _, found, after = source.lexical.partition(part) if part else ("", True, source.lexical)
    return _like(source, after) if found else Literal("")


def _concat(*terms: Term) -> Literal:
    parts = [_string(each) for each in terms]
    languages = {each.language for each in parts}
    text = "".join(each.lexical for each in parts)
    return Literal(text, language=languages.pop() if len(languages) == 1 else None)


def _has(holds: Callable[[str, str], bool]) -> Callable[[Term, Term], Literal]:
    """Whether a string has another one in it, at a place that the test looks at."""

    def has(text: Term, part: Term) -> Literal:
        source, wanted = _agreeing(text, part)
        return boolean(holds(source.lexical, wanted))

    return has


_EMPTY = Literal("")


def _regex(text: Term, expression: Term, flags: Term = _EMPTY) -> Literal:
    try:
        matches = matcher(_simple(expression), _simple(flags))
    except BadPattern as error:
        raise ExpressionError(f"no regular expression: {expression}") from error
    return boolean(matches(_string(text).lexical))


def _replace(text: Term, expression: Term, replacement: Term, flags: Term = _EMPTY) -> Literal:
    """`$1` in the replacement is the first group, `\\$` a dollar sign."""
    source, by = _string(text), _simple(replacement)
    try:
        compiled = pattern(_simple(expression), _simple(flags))
    except BadPattern as error:
        raise ExpressionError(f"no regular expression: {expression}") from error
    if compiled.fullmatch(""):
        raise ExpressionError("a regular expression that matches the empty string replaces nothing")

    def filled(found: Any) -> str:
        def part(escape: re.Match[str]) -> str:
            if escape[1] is None:
                return escape[0][-1]
            return (found[int(escape[1])] or "") if int(escape[1]) <= compiled.groups else ""

        return re.sub(r"\\[\\$]|\$([0-9])", part, by)

    return _like(source, compiled.sub(filled, source.lexical))


def _hash(algorithm: str) -> Callable[[Term], Literal]:
    return lambda term: Literal(hashlib.new(algorithm, _simple(term).encode()).hexdigest())


# --- time ------------------------------------------------------------------------------------------

_PARTS = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d(?:\.\d+)?)(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _part(index: int) -> Callable[[Term], Literal]:
    """A part of a time as it is written, in its own zone."""

    def part(term: Term) -> Literal:
        text = _time_part(term, index)
        datatype = XSD + ("decimal" if index == 6 else "integer")
        return normalise(Literal(text, datatype))

    return part


def _time_part(term: Term, index: int) -> str:
    date_time(term)
    found = _PARTS.fullmatch(_literal(term).lexical)
    return (found[index] or "") if found else ""


def _timezone(term: Term) -> Literal:
    zone = _time_part(term, 7)
    if not zone:
        raise ExpressionError(f"{term} has no time zone")
    minutes = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[4:]))
    hours, rest = divmod(abs(minutes), 60)
    text = (f"{hours}H" if hours else "") + (f"{rest}M" if rest else "") or "0S"
    return Literal(f"{'-' if minutes < 0 else ''}PT{text}", DAY_TIME)


# --- casts -----------------------------------------------------------------------------------------


def _plain(term: Term) -> Literal:
    literal = _literal(term)
    if literal.language:
        raise ExpressionError(f"{term} has a language")
    return literal


def _to_boolean(term: Term) -> Literal:
    literal = _plain(term)
    if literal.datatype in NUMERIC_TYPES:
        value = number(literal).value
        return boolean(value == value and value != 0)
    return _read(literal, "boolean")


def _to_number(kind: str) -> Callable[[Term], Literal]:
    def cast(term: Term) -> Literal:
        literal = _plain(term)
        if literal.datatype == XSD + "boolean":
            literal = Literal("1" if truth(literal) else "0")
        if literal.datatype not in NUMERIC_TYPES:
            return _read(literal, kind)
        value = number(literal).value
        if kind in ("integer", "decimal") and not is_finite(value):
            raise ExpressionError(f"{term} is not a {kind}")
        if kind == "integer":
            return numeral(Number(0, int(value)))
        if kind == "decimal":
            return numeral(Number(1, Decimal(value)))
        return numeral(Number(2 if kind == "float" else 3, as_double(value)))

    return cast


def _read(literal: Literal, kind: str) -> Literal:
    """A string read as another datatype."""
    if literal.datatype not in (STRING, XSD + kind):
        raise ExpressionError(f"{literal} cannot be read as {kind}")
    cast = normalise(Literal(literal.lexical.strip(), XSD + kind))
    if kind == "boolean":
        if cast.lexical not in ("true", "false"):
            raise ExpressionError(f"{literal} is not a truth value")
    elif kind == "dateTime":
        date_time(cast)
    else:
        number(cast)
    return cast


def _to_duration(datatype: str) -> Callable[[Term], Literal]:
    def cast(term: Term) -> Literal:
        literal = _plain(term)
        spelt = literal.datatype in (STRING, DURATION, DAY_TIME)
        if not spelt or parse_xsd_duration(literal.lexical) is None:
            raise ExpressionError(f"{term} is not a duration of days and time")
        return Literal(literal.lexical, datatype)

    return cast


_FORMS: dict[str, Callable[[Call, SolutionScope], Term]] = {
    "and": lambda call, scope: _decided(_truths(call.args, scope), False),
    "or": lambda call, scope: _decided(_truths(call.args, scope), True),
    "in": _in,
    "notin": lambda call, scope: boolean(not truth(_in(call, scope))),
    "solution": lambda _, scope: Literal(solution_text(scope.bindings, scope.interval)),
}
_OPERATORS: dict[str, Callable[..., Term]] = {
    "=": lambda left, right: boolean(equal(left, right)),
    "!=": lambda left, right: boolean(not equal(left, right)),
    "<": lambda left, right: boolean(less(left, right)),
    ">": lambda left, right: boolean(less(right, left)),
    "<=": lambda left, right: boolean(less(left, right) or equal(left, right)),
    ">=": lambda left, right: boolean(less(right, left) or equal(left, right)),
    "+": lambda left, right: arithmetic("+", left, right),
    "-": lambda left, right: arithmetic("-", left, right),
    "*": lambda left, right: arithmetic("*", left, right),
    "/": lambda left, right: arithmetic("/", left, right),
    "not": lambda term: boolean(not truth(term)),
    "neg": _negated,
}


@dataclass(frozen=True)
class Function:
    """A function: what it makes of the terms of its arguments, and how many it takes (None: any number).

    A form is given the call and its scope instead: it does not evaluate all its arguments, or looks at the
    solution. A `temporal` one speaks of an interval, which knowledge has not. One that is `refused` says why.
    """

    of: Callable[..., Term]
    least: int
    most: int | None
    form: bool = False
    temporal: bool = False
    refused: str | None = None


def _refuse(reason: str) -> Function:
    return Function(_bound, 0, 0, form=True, refused=reason)


_UNREPEATABLE = "the same events must give the same matches"

SPARQL_FUNCTIONS: Mapping[str, Function] = {
    "bound": Function(_bound, 1, 1, form=True),
    "if": Function(_if, 3, 3, form=True),
    "coalesce": Function(_coalesce, 1, None, form=True),
    "bnode": Function(_bnode, 0, 1, form=True),
    "getduration": Function(_get_duration, 0, 0, form=True, temporal=True),
    "getstarttime": Function(_get_time(0), 0, 0, form=True, temporal=True),
    "getendtime": Function(_get_time(1), 0, 0, form=True, temporal=True),
    "now": _refuse("time is event time: write getENDTIME()"),
    "rand": _refuse(_UNREPEATABLE),
    "uuid": _refuse(_UNREPEATABLE),
    "struuid": _refuse(_UNREPEATABLE),
    "abs": Function(_absolute, 1, 1),
    "ceil": Function(lambda term: _rounded(term, ROUND_CEILING), 1, 1),
    "floor": Function(lambda term: _rounded(term, ROUND_FLOOR), 1, 1),
    # XPath rounds halves towards positive infinity.
    "round": Function(lambda term: _rounded(term, ROUND_FLOOR, Decimal("0.5")), 1, 1),
    "str": Function(_str, 1, 1),
    "lang": Function(lambda term: Literal(_literal(term).language or ""), 1, 1),
    "langmatches": Function(_lang_matches, 2, 2),
    "datatype": Function(_datatype, 1, 1),
    "iri": Function(_iri, 1, 1),
    "strdt": Function(_strdt, 2, 2),
    "strlang": Function(_strlang, 2, 2),
    "sameterm": Function(lambda left, right: boolean(left == right), 2, 2),
    "isiri": Function(lambda term: boolean(isinstance(term, Iri)), 1, 1),
    "isblank": Function(lambda term: boolean(isinstance(term, Blank)), 1, 1),
    "isliteral": Function(lambda term: boolean(isinstance(term, Literal)), 1, 1),
    "isnumeric": Function(_is_numeric, 1, 1),
    "strlen": Function(lambda term: numeral(Number(0, len(_string(term).lexical))), 1, 1),
    "substr": Function(_substr, 2, 3),
    "ucase": Function(lambda term: _like(_string(term), _string(term).lexical.upper()), 1, 1),
    "lcase": Function(lambda term: _like(_string(term), _string(term).lexical.lower()), 1, 1),
    "encode_for_uri": Function(lambda term: Literal(quote(_string(term).lexical, safe="-_.~")), 1, 1),
    "contains": Function(_has(str.__contains__), 2, 2),
    "strstarts": Function(_has(str.startswith), 2, 2),
    "strends": Function(_has(str.endswith), 2, 2),
    "strbefore": Function(_strbefore, 2, 2),
    "strafter": Function(_strafter, 2, 2),
    "concat": Function(_concat, 0, None),
    "regex": Function(_regex, 2, 3),
    "replace": Function(_replace, 3, 4),
    "md5": Function(_hash("md5"), 1, 1),
    "sha1": Function(_hash("sha1"), 1, 1),
    "sha256": Function(_hash("sha256"), 1, 1),
    "sha384": Function(_hash("sha384"), 1, 1),
    "sha512": Function(_hash("sha512"), 1, 1),
    "year": Function(_part(1), 1, 1),
    "month": Function(_part(2), 1, 1),
    "day": Function(_part(3), 1, 1),
    "hours": Function(_part(4), 1, 1),
    "minutes": Function(_part(5), 1, 1),
    "seconds": Function(_part(6), 1, 1),
    "timezone": Function(_timezone, 1, 1),
    "tz": Function(lambda term: Literal(_time_part(term, 7)), 1, 1),
    XSD + "string": Function(_str, 1, 1),
    XSD + "boolean": Function(_to_boolean, 1, 1),
    XSD + "integer": Function(_to_number("integer"), 1, 1),
    XSD + "decimal": Function(_to_number("decimal"), 1, 1),
    XSD + "float": Function(_to_number("float"), 1, 1),
    XSD + "double": Function(_to_number("double"), 1, 1),
    XSD + "dateTime": Function(lambda term: _read(_plain(term), "dateTime"), 1, 1),
    XSD + "duration": Function(_to_duration(DURATION), 1, 1),
    XSD + "dayTimeDuration": Function(_to_duration(DAY_TIME), 1, 1),
}
"""What is called by a name in small letters, or by an IRI."""
OWN_FUNCTIONS: Mapping[str, Iri] = {name: Iri(f"urn:kaicep:function:{name}") for name in ("regex", "replace")}
"""Functions that a store answers in a way of its own: it has to be given ours, by these names."""
