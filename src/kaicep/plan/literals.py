"""Literals: one spelling per value, and the way between attribute values, RDF and JSON.

Two literals of one datatype are the same term exactly when they have the same value, provided both
went through `normalise`. Knowledge, event graphs, queries and RDF streams all do that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal

from kaicep.plan.terms import XSD, Blank, Iri, Literal, Term
from kaicep.plan.time import DURATION_UNITS, format_time, parse_time
from kaicep.plan.types import Type, Value

__all__ = [
    "INTEGER_TYPES",
    "MOST_DIGITS",
    "NUMERIC_TYPES",
    "format_xsd_duration",
    "literal_of",
    "native",
    "normalise",
    "parse_xsd_duration",
]

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
"""The datatypes that are integers."""
NUMERIC_TYPES = INTEGER_TYPES | {XSD + "decimal", XSD + "double", XSD + "float"}
"""The datatypes that are numbers."""

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*?)0*)?", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_DATE_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d+))?(Z|[+-]\d{2}:\d{2})?", re.ASCII)
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
    found = _DATE_TIME.fullmatch(text)
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
    if isinstance(term, Blank):
        return f"_:{term.label}"
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
