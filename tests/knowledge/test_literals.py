"""One spelling per value."""

from __future__ import annotations

import pytest

from kaicep.plan.terms import XSD, Blank, Iri, Literal
from kaicep.plan.types import Type
from kaicep.plan.values import format_xsd_duration, literal_of, native, normalise, parse_xsd_duration


@pytest.mark.parametrize(
    ("datatype", "text", "normal"),
    [
        ("integer", "+007", "7"),
        ("integer", "-0", "0"),
        ("integer", " 5\n", "5"),
        ("integer", "9" * 5000, "9" * 5000),
        ("int", "012", "12"),
        ("integer", "5.0", "5.0"),  # ill-typed: left alone
        ("integer", "", ""),
        ("decimal", "1", "1.0"),
        ("decimal", "-.50", "-0.5"),
        ("decimal", "100.0100", "100.01"),
        ("decimal", "-0.00", "0.0"),
        ("decimal", ".", "."),
        ("double", "500", "500.0"),
        ("double", "5E2", "500.0"),
        ("double", "-0", "0.0"),
        ("double", "1e999", "INF"),
        ("double", "+INF", "INF"),
        ("double", "NaN", "NaN"),
        ("double", "nan", "nan"),
        ("double", "1_0", "1_0"),
        ("float", "1.50", "1.5"),
        ("boolean", "1", "true"),
        ("boolean", "TRUE", "TRUE"),
        ("dateTime", "2012-05-07T11:00:00+02:00", "2012-05-07T09:00:00.000000Z"),
        ("dateTime", "2012-05-07T09:00:00.5Z", "2012-05-07T09:00:00.500000Z"),
        ("dateTime", "2012-05-07T09:00:00", "2012-05-07T09:00:00"),
        ("dateTime", "2012-05-07T09:00:00.500", "2012-05-07T09:00:00.5"),
        ("dateTime", "2012-05-07", "2012-05-07"),
        ("dateTime", "2012-13-07T09:00:00Z", "2012-13-07T09:00:00Z"),
        ("string", "007", "007"),
    ],
)
def test_normalise(datatype: str, text: str, normal: str) -> None:
    once = normalise(Literal(text, XSD + datatype))
    assert once == Literal(normal, XSD + datatype)
    assert normalise(once) == once


def test_language_tags_do_not_mind_their_case() -> None:
    assert normalise(Literal("x", "urn:any", "EN-gb")) == Literal("x", language="en-gb")


@pytest.mark.parametrize(
    ("value", "type", "written"),
    [
        (5, Type.INT64, f'"5"^^<{XSD}integer>'),
        (510.0, Type.FLOAT64, f'"510.0"^^<{XSD}double>'),
        (-0.0, Type.FLOAT64, f'"0.0"^^<{XSD}double>'),
        (True, Type.BOOL, f'"true"^^<{XSD}boolean>'),
        ("5", Type.STRING, '"5"'),
        (1_500_000, Type.TIMESTAMP, f'"1970-01-01T00:00:01.500000Z"^^<{XSD}dateTime>'),
    ],
)
def test_literal_of_a_value_is_normal(value: bool | int | float | str, type: Type, written: str) -> None:
    literal = literal_of(value, type)
    assert str(literal) == written
    assert normalise(literal) == literal


@pytest.mark.parametrize(
    ("term", "value"),
    [
        (Literal("5", XSD + "int"), 5),
        (Literal("0.5", XSD + "decimal"), 0.5),
        (Literal("5", XSD + "double"), 5.0),
        (Literal("INF", XSD + "double"), None),
        (Literal("five", XSD + "integer"), "five"),
        (Literal("1", XSD + "boolean"), True),
        (Literal("1970-01-01T00:00:00", XSD + "dateTime"), "1970-01-01T00:00:00.000000Z"),
        (Literal("1970-01-01", XSD + "date"), "1970-01-01"),
        (Literal("5", language="en"), "5"),
        (Iri("urn:x"), "urn:x"),
        (Blank("b0"), "_:b0"),
    ],
)
def test_native(term: Iri | Blank | Literal, value: object) -> None:
    assert native(term) == value
    assert type(native(term)) is type(value)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("PT300S", 300_000_000),
        ("P30D", 30 * 86_400_000_000),
        ("P1DT2H3M4.5S", 93_784_500_000),
        ("-PT0.5S", -500_000),
        ("P0Y0M1D", 86_400_000_000),
        ("P1Y", None),
        ("P1M", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("5min", None),
    ],
)
def test_durations(text: str, micros: int | None) -> None:
    assert parse_xsd_duration(text) == micros


@pytest.mark.parametrize("micros", [0, 1, -1, 500_000, 300_000_000, 86_400_000_001])
def test_durations_come_back(micros: int) -> None:
    assert parse_xsd_duration(format_xsd_duration(micros)) == micros
