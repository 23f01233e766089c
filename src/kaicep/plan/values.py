"""RDF literals as values: one spelling each, arithmetic and order as SPARQL has them, aggregates."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    ROUND_DOWN,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DecimalException,
)
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from kaicep.plan.terms import XSD, Blank, Iri, Literal, Term, TripleTerm
from kaicep.plan.time import DURATION_UNITS, format_time, parse_time
from kaicep.plan.types import Type, Value

# ----------------------------------------------------------------------------------------------------------
# Literals: one spelling per value, and the way between attribute values, RDF and JSON.
#
# Two literals of one datatype are the same term exactly when they have the same value, provided both went
# through `normalise`. Knowledge, event graphs, queries and RDF streams all do that.

INTEGER_TYPES = frozenset(
    XSD + name
    for name in (
        "integer",
        "long",
        "int",
        "short",
        "byte",
        "nonNegativeInteger",
        "positiveInteger",
        "nonPositiveInteger",
        "negativeInteger",
        "unsignedLong",
        "unsignedInt",
        "unsignedShort",
        "unsignedByte",
    )
)
NUMERIC_TYPES = INTEGER_TYPES | {XSD + "decimal", XSD + "double", XSD + "float"}

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*?)0*)?", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_INSTANT = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d+))?(Z|[+-]\d{2}:\d{2})?", re.ASCII)
_DURATION = re.compile(
    r"(-)?P(?=[0-9T])(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)D)?"
    r"(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?",
    re.ASCII,
)
MOST_DIGITS = 4000
"""Python refuses to read or write integers that are much longer."""
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_SPECIAL_DOUBLES = {"INF": "INF", "+INF": "INF", "-INF": "-INF", "NaN": "NaN"}


def _integer(text: str) -> str | None:
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits = found.groups()
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def _decimal(text: str) -> str | None:
    found = _DECIMAL.fullmatch(text)
    if found is None or not any(each.isdigit() for each in text):
        return None
    sign, whole, fraction = found.groups()
    plain = f"{whole or '0'}.{fraction or '0'}"
    return f"-{plain}" if sign == "-" and plain != "0.0" else plain


def _double(text: str) -> str | None:
    if text in _SPECIAL_DOUBLES:
        return _SPECIAL_DOUBLES[text]
    return _double_text(float(text)) if _DOUBLE.fullmatch(text) else None


def _double_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "INF" if number > 0 else "-INF"
    return repr(number + 0.0)  # the two zeros are one value


def _date_time(text: str) -> str | None:
    """In UTC where it has a zone; without one it is another kind of value and stays without."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        return None
    seconds, fraction, zone = found.groups()
    micros = parse_time(text)
    if micros is None:
        return None
    if zone:
        return format_time(micros)
    shortest = (fraction or "").rstrip("0")
    return f"{seconds}.{shortest}" if shortest else seconds


_CANONICAL: dict[str, Callable[[str], str | None]] = {
    **dict.fromkeys(INTEGER_TYPES, _integer),
    XSD + "decimal": _decimal,
    XSD + "double": _double,
    XSD + "float": _double,
    XSD + "boolean": _BOOLEANS.get,
    XSD + "dateTime": _date_time,
    XSD + "dateTimeStamp": _date_time,
}


def normalise(literal: Literal) -> Literal:
    """The literal in the one spelling that its value has; an ill-typed one stays as it is.

    A language tag is written in lower case, and a literal that has one is written down with the
    datatype that `Literal(text, language=tag)` gives it.

    >>> print(normalise(Literal("+007", XSD + "integer")).lexical)
    7
    >>> [normalise(Literal(text, XSD + "decimal")).lexical for text in ("1", "-.50", "00.0")]
    ['1.0', '-0.5', '0.0']
    >>> normalise(Literal("5E2", XSD + "double")).lexical
    '500.0'
    >>> normalise(Literal("2012-05-07T11:00:00+02:00", XSD + "dateTime")).lexical
    '2012-05-07T09:00:00.000000Z'
    >>> normalise(Literal("seven", XSD + "integer")).lexical
    'seven'
    """
    if literal.language is not None:
        return Literal(literal.lexical, language=literal.language.lower())
    canonical = _CANONICAL.get(literal.datatype)
    if canonical is None:
        return literal
    # All of these datatypes collapse white space before they read a text.
    text = canonical(literal.lexical.strip(" \t\r\n"))
    return literal if text is None or text == literal.lexical else Literal(text, literal.datatype)


_DATATYPES = {
    Type.BOOL: XSD + "boolean",
    Type.INT64: XSD + "integer",
    Type.FLOAT64: XSD + "double",
    Type.STRING: XSD + "string",
    Type.TIMESTAMP: XSD + "dateTime",
}


def literal_of(value: bool | int | float | str, type: Type) -> Literal:
    """An attribute's value as an RDF literal, in its normal spelling.

    >>> print(literal_of(510, Type.FLOAT64))
    "510.0"^^<http://www.w3.org/2001/XMLSchema#double>
    >>> literal_of(0, Type.TIMESTAMP).lexical
    '1970-01-01T00:00:00.000000Z'
    """
    if type is Type.BOOL:
        text = "true" if value else "false"
    elif type is Type.INT64:
        text = str(int(value))
    elif type is Type.FLOAT64:
        text = _double_text(float(value))
    elif type is Type.TIMESTAMP:
        text = format_time(int(value))
    else:
        text = str(value)
    return Literal(text, _DATATYPES[type])


def native(term: Term) -> Value:
    """A selected term as JSON writes it: a number, a bool, the text of a time; else its own text.

    Of a number that JSON cannot write (an infinity, NaN) it is null.

    >>> native(Literal("500", XSD + "integer")), native(Literal("0.5", XSD + "decimal"))
    (500, 0.5)
    >>> native(Iri("urn:a")), native(Blank("b0"))
    ('urn:a', '_:b0')
    """
    if isinstance(term, Iri):
        return term.value
    if not isinstance(term, Literal):
        return str(term)
    canonical = None if term.language else _CANONICAL.get(term.datatype)
    text = canonical(term.lexical.strip(" \t\r\n")) if canonical else None
    if text is None:
        return term.lexical
    if term.datatype in INTEGER_TYPES:
        return int(text) if len(text) < MOST_DIGITS else text
    if term.datatype in NUMERIC_TYPES:
        number = float(text)
        return number if math.isfinite(number) else None
    if term.datatype == XSD + "boolean":
        return text == "true"
    micros = parse_time(text)
    return text if micros is None else format_time(micros)


def parse_xsd_duration(text: str) -> int | None:
    """Microseconds of an xsd:duration of days and time; None where it has years or months, or is none.

    >>> parse_xsd_duration("P1DT0.5S"), parse_xsd_duration("-PT5M")
    (86400500000, -300000000)
    >>> parse_xsd_duration("P1M") is None
    True
    """
    found = _DURATION.fullmatch(text.strip(" \t\r\n"))
    if found is None or len(text) > MOST_DIGITS:
        return None
    sign, years, months, days, hours, minutes, seconds = found.groups()
    if int(years or 0) or int(months or 0):
        return None
    whole = (int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)
    fine = Context(prec=MOST_DIGITS + 6).multiply(Decimal(seconds or 0), DURATION_UNITS["s"])
    micros = whole * DURATION_UNITS["min"] + int(fine.to_integral_value(ROUND_HALF_EVEN))
    return -micros if sign else micros


def format_xsd_duration(micros: int) -> str:
    """A duration in seconds, as xsd:duration writes it.

    >>> format_xsd_duration(300_000_000), format_xsd_duration(-500_000), format_xsd_duration(0)
    ('PT300S', '-PT0.5S', 'PT0S')
    """
    whole, fraction = divmod(abs(micros), DURATION_UNITS["s"])
    seconds = f"{whole}.{fraction:06}".rstrip("0") if fraction else str(whole)
    return f"{'-' if micros < 0 else ''}PT{seconds}S"


# ----------------------------------------------------------------------------------------------------------
# RDF literals as values: numbers, truth, comparison, order and arithmetic, as SPARQL 1.1 has them.
#
# Whatever has no value raises `ExpressionError`, which is SPARQL's error and no failure of the run.

STRING, BOOLEAN, DATE_TIME = XSD + "string", XSD + "boolean", XSD + "dateTime"
DURATION, DAY_TIME = XSD + "duration", XSD + "dayTimeDuration"

INTEGER, DECIMAL, FLOAT, DOUBLE = range(4)
_KINDS = (XSD + "integer", XSD + "decimal", XSD + "float", XSD + "double")

# A quotient keeps 18 digits after the point, the least that XML Schema asks for; the rest is exact.
_EXACT = Context(prec=200, rounding=ROUND_DOWN)
_UNROUNDED = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_FINEST = Decimal(1).scaleb(-18)
_WIDEST = 2**4096

_SPACES = {
    STRING: "string",
    BOOLEAN: "boolean",
    DATE_TIME: "time",
    DURATION: "duration",
    DAY_TIME: "duration",
    XSD + "yearMonthDuration": "months",
    XSD + "dateTimeStamp": "time",
    XSD + "time": "clock",
    **{XSD + name: name for name in ("date", "gYear", "gYearMonth", "gMonth", "gMonthDay", "gDay")},
}
# How each of these is a part of a time, what is left out standing for the first.
_PARTS = {
    "date": "{}T00:00:00{}",
    "clock": "2000-01-01T{}{}",
    "gYear": "{}-01-01T00:00:00{}",
    "gYearMonth": "{}-01T00:00:00{}",
    "gMonth": "2000{}-01T00:00:00{}",
    "gMonthDay": "2000{}T00:00:00{}",
    "gDay": "2000-01{}T00:00:00{}",
}
_ZONED = re.compile(r"(.*?)(Z|[+-]\d\d:\d\d)?", re.ASCII)
_MONTHS = re.compile(r"(-?)P(?:(\d+)Y)?(?:(\d+)M)?", re.ASCII)

_INTEGER_TEXT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL_TEXT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)", re.ASCII)
_DOUBLE_TEXT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?INF|NaN", re.ASCII)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


class ExpressionError(Exception):
    """An expression that has no value; a FILTER then does not hold and a BIND binds nothing."""


class Number(NamedTuple):
    """A number and its rank in SPARQL's promotion: integer, decimal, float, double.

    A float is kept with the precision of a double, so that its text and its value are the same thing.
    """

    kind: int
    value: int | Decimal | float


# --- from terms to values and back -----------------------------------------------------------------


def boolean(value: bool) -> Literal:
    """A truth value as a term."""
    return Literal("true" if value else "false", BOOLEAN)


def number(term: Term) -> Number:
    """The number that a term stands for."""
    if not isinstance(term, Literal) or term.language or term.datatype not in NUMERIC_TYPES:
        raise ExpressionError(f"{term} is not a number")
    text = term.lexical.strip()
    try:
        if term.datatype in INTEGER_TYPES:
            if not _INTEGER_TEXT.fullmatch(text):
                raise ValueError(text)
            return Number(INTEGER, int(text))
        if term.datatype == _KINDS[DECIMAL]:
            if not _DECIMAL_TEXT.fullmatch(text):
                raise ValueError(text)
            return Number(DECIMAL, Decimal(text))
        if not _DOUBLE_TEXT.fullmatch(text):
            raise ValueError(text)
        return Number(FLOAT if term.datatype == _KINDS[FLOAT] else DOUBLE, float(text))
    except (ValueError, DecimalException) as error:
        raise ExpressionError(f"{term} is not a number") from error


def numeral(value: Number) -> Literal:
    """A number as a term, in the one spelling of its value.

    >>> numeral(Number(1, Decimal("1.50"))).lexical, numeral(Number(3, math.inf)).lexical
    ('1.5', 'INF')
    """
    plain = value.value
    if isinstance(plain, int) and plain.bit_length() > 3 * MOST_DIGITS:
        raise ExpressionError("an integer that is too large")
    if isinstance(plain, float):
        text = _double_text(plain)
    else:
        text = f"{plain:f}" if isinstance(plain, Decimal) else str(plain)
    return normalise(Literal(text, _KINDS[value.kind]))


def date_time(term: Term) -> int:
    """The instant of an xsd:dateTime in microseconds; without a zone it is UTC."""
    if (
        isinstance(term, Literal)
        and _SPACES.get(term.datatype) == "time"
        and _DATE_TIME.fullmatch(term.lexical)
    ):
        micros = parse_time(term.lexical)
        if micros is not None:
            return micros
    raise ExpressionError(f"{term} is not a time")


def _duration(term: Literal) -> int:
    micros = parse_xsd_duration(term.lexical)
    if micros is None:
        raise ExpressionError(f"{term} is not a duration of days and time")
    return micros


def _space(term: Literal) -> str | None:
    """The kind of values that a literal's datatype has, where we know it."""
    if term.language:
        return "language"
    if term.datatype in NUMERIC_TYPES:
        return "number"
    return _SPACES.get(term.datatype)


def _comparable(term: Literal) -> int | float | Decimal | str | tuple[str, str]:
    """The value of a literal, to be compared with another of the same space."""
    space = _space(term)
    if space == "number":
        return number(term).value
    if space == "boolean":
        return _boolean(term)
    if space == "time":
        return date_time(term)
    if space == "duration":
        return _duration(term)
    if space == "months":
        return _months(term)
    if space in _PARTS:
        return _part(term, space)
    if space == "language":
        return (term.lexical, term.language or "")
    if space == "string":
        return term.lexical
    raise ExpressionError(f"values of {term.datatype} cannot be compared")


def _part(term: Literal, space: str) -> int:
    """The instant at which a day, a month, ... begins; without a zone in UTC."""
    found = _ZONED.fullmatch(term.lexical.strip())
    text, zone = found.groups() if found else ("", None)
    # --05 is May, --05-07 a day in it, ---07 a day of any month
    text = text.removeprefix("--" if space == "gDay" else "-" if space in ("gMonth", "gMonthDay") else "")
    micros = parse_time(_PARTS[space].format(text, zone or "Z"))
    if micros is None:
        raise ExpressionError(f"{term} is not a {space}")
    return micros


def _months(term: Literal) -> int:
    found = _MONTHS.fullmatch(term.lexical.strip())
    if found is None or not any(found.groups()[1:]) or len(term.lexical) > MOST_DIGITS:
        raise ExpressionError(f"{term} is not a duration of years and months")
    sign, years, months = found.groups()
    return (-1 if sign else 1) * (12 * int(years or 0) + int(months or 0))


def _boolean(term: Literal) -> bool:
    if term.lexical in ("true", "1"):
        return True
    if term.lexical in ("false", "0"):
        return False
    raise ExpressionError(f"{term} is not a truth value")


def truth(term: Term) -> bool:
    """The effective boolean value (SPARQL 1.1, section 17.2.2)."""
    if isinstance(term, Literal):
        space = _space(term)
        if space in ("string", "language"):
            return term.lexical != ""
        if space in ("boolean", "number"):
            try:
                value = _comparable(term)
            except ExpressionError:
                return False  # an ill-typed literal of these is false, and no error
            return bool(value) and value == value
    raise ExpressionError(f"{term} has no truth value")


# --- comparison ------------------------------------------------------------------------------------


def equal(left: Term, right: Term) -> bool:
    """`=`: by value where both have one; terms of other kinds are equal when they are the same.

    Whether two literals of a datatype that we do not know are equal cannot be said, unless they are
    the same.
    """
    if not isinstance(left, Literal) or not isinstance(right, Literal):
        return left == right
    if left == right:
        return left.lexical != "NaN" or _space(left) != "number"
    if left.language or right.language:
        tags = (left.language or "").lower(), (right.language or "").lower()
        return left.lexical == right.lexical and tags[0] == tags[1]
    first, second = _comparable(left), _comparable(right)
    return _space(left) == _space(right) and first == second


def less(left: Term, right: Term) -> bool:
    """`<` on numbers, strings, truth values, times and durations."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        space = _space(left)
        if space == _space(right) and space not in (None, "language"):
            first, second = _comparable(left), _comparable(right)
            return first == first and second == second and bool(operator.lt(first, second))
    raise ExpressionError(f"cannot order {left} and {right}")


def order_key(term: Term) -> tuple[object, ...]:
    """A total order of terms: blank nodes, IRIs, literals, triples; values by value, the rest by text."""
    if isinstance(term, Blank):
        return (0, term.label)
    if isinstance(term, Iri):
        return (1, term.value)
    if isinstance(term, TripleTerm):
        return (4, *map(order_key, term.triple))
    try:
        value = _comparable(term)
        if value == value:
            return (2, _space(term), value, str(term))
    except ExpressionError:
        pass
    return (3, str(term))


def sort_key(term: Term | None) -> tuple[object, ...]:
    """The order of ORDER BY: what is unbound comes first, and values that are equal are alike."""
    return (-1,) if term is None else order_key(term)[:3]


# --- arithmetic ------------------------------------------------------------------------------------


def arithmetic(op: str, left: Term, right: Term) -> Literal:
    """`+ - * /` on numbers, times and durations."""
    if not isinstance(left, Literal) or not isinstance(right, Literal):
        raise ExpressionError(f"no arithmetic on {left} and {right}")
    spaces = (_space(left), _space(right))
    if spaces == ("number", "number"):
        return numeral(calculate(op, number(left), number(right)))
    if spaces == ("time", "time") and op == "-":
        return Literal(format_xsd_duration(date_time(left) - date_time(right)), DAY_TIME)
    if spaces == ("time", "duration") and op in "+-":
        return _shifted(left, _duration(right) if op == "+" else -_duration(right))
    if spaces == ("duration", "time") and op == "+":
        return _shifted(right, _duration(left))
    if spaces == ("duration", "duration") and op in "+-":
        both = DAY_TIME if left.datatype == right.datatype == DAY_TIME else DURATION
        change = _duration(right) if op == "+" else -_duration(right)
        return Literal(format_xsd_duration(_duration(left) + change), both)
    raise ExpressionError(f"no {op} on {left} and {right}")


def _shifted(time: Literal, micros: int) -> Literal:
    """A time moved by a duration; it stays without a zone where it has none."""
    try:
        text = format_time(date_time(time) + micros)
    except OverflowError as error:
        raise ExpressionError("no time of the years 1 to 9999") from error
    zoned = time.lexical[-1] == "Z" or time.lexical[-6] in "+-"
    return normalise(Literal(text if zoned else text[:-1], DATE_TIME))


def calculate(op: str, left: Number, right: Number) -> Number:
    """`+ - * /` on numbers, in the wider of both kinds; integers divide to a decimal."""
    kind = max(left.kind, right.kind, DECIMAL if op == "/" else INTEGER)
    if kind >= FLOAT:
        return Number(kind, _floating(op, as_double(left.value), as_double(right.value)))
    if kind == INTEGER:
        whole = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op](left.value, right.value)
        if abs(whole) >= _WIDEST:
            raise ExpressionError("an integer that is too large")
        return Number(kind, whole)
    work = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply, "/": _EXACT.divide}[op]
    try:
        exact = work(Decimal(left.value), Decimal(right.value))
        return Number(kind, exact.quantize(_FINEST, context=_EXACT) if op == "/" else exact)
    except DecimalException as error:
        raise ExpressionError(f"no decimal {op} of these numbers") from error


def add_exactly(left: int | Decimal | float, right: int | Decimal | float) -> int | Decimal:
    """The sum of integers or decimals, with all its digits."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return _UNROUNDED.add(Decimal(left), Decimal(right))


def multiply_exactly(value: int | Decimal, times: int) -> int | Decimal:
    """An integer or a decimal so many times, with all its digits."""
    return value * times if isinstance(value, int) else _UNROUNDED.multiply(value, Decimal(times))


def as_double(value: int | Decimal | Fraction | float) -> float:
    """The nearest double; an infinity beyond all of them."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_finite(value: int | Decimal | float) -> bool:
    """Whether it is a number, neither infinite nor NaN."""
    return not isinstance(value, float) or math.isfinite(value)


def _floating(op: str, left: float, right: float) -> float:
    """The operations of IEEE 754, which know infinities."""
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


# ----------------------------------------------------------------------------------------------------------
# The aggregates of SPARQL over the values of a group, in an order that is given.
#
# No result depends on the order of arrival: floating sums are exact sums rounded once, SAMPLE takes the
# smallest value, GROUP_CONCAT gets its values in the order of their solutions.


def aggregate(op: str, values: Sequence[Term | None], separator: str = " ") -> Term:
    """The aggregate of some values, of which None is an error; `ExpressionError` where there is none.

    >>> from kaicep.plan.terms import XSD
    >>> aggregate("SUM", [Literal("1", XSD + "integer"), Literal("2.5", XSD + "decimal")]).lexical
    '3.5'
    """
    found = [each for each in values if each is not None]
    if op == "COUNT":
        return numeral(Number(0, len(found)))
    if op == "SAMPLE":
        return min(_some(found), key=order_key)
    if len(found) < len(values):
        raise ExpressionError(f"{op} over an error")
    if op == "SUM":
        return numeral(_sum([number(each) for each in found]))
    if op == "AVG":
        return numeral(_average([number(each) for each in found]))
    if op == "MIN":
        return min(_some(found), key=order_key)
    if op == "MAX":
        return max(_some(found), key=order_key)
    return Literal(separator.join(_text(each) for each in found))


def _some(values: Sequence[Term]) -> Sequence[Term]:
    if not values:
        raise ExpressionError("an aggregate of nothing")
    return values


def _sum(numbers: Sequence[Number]) -> Number:
    kind = max((each.kind for each in numbers), default=0)
    if kind < 2:
        start = Decimal(0) if kind else 0
        return Number(kind, reduce(add_exactly, (each.value for each in numbers), start))
    values = [as_double(each.value) for each in numbers]
    special = [each for each in values if not math.isfinite(each)]
    return Number(kind, sum(special) if special else as_double(sum(map(Fraction, values))))


def _average(numbers: Sequence[Number]) -> Number:
    if not numbers:
        return Number(0, 0)
    return calculate("/", _sum(numbers), Number(0, len(numbers)))


def _text(term: Term) -> str:
    if isinstance(term, Literal):
        return term.lexical
    if isinstance(term, Iri):
        return term.value
    raise ExpressionError(f"{term} has no text")
