"""The value of expressions: three-valued logic, overflow, the functions."""

from __future__ import annotations

import math
from itertools import product

import pytest
from tests.reference.chi_letters import answers

from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Field, Previous
from kaicep.plan.time import parse_time
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type
from kaicep.reference.expressions import Environment, evaluate

NONE = Environment()


def call(op, *values, type=None):
    return evaluate(Call(op, tuple(Const(each, None) for each in values), type), NONE)


def same(found, expected):
    return found == expected and type(found) is type(expected)


AND = {
    (True, True): True,
    (True, False): False,
    (True, None): None,
    (False, False): False,
    (False, None): False,
    (None, None): None,
}
OR = {
    (True, True): True,
    (True, False): True,
    (True, None): True,
    (False, False): False,
    (False, None): None,
    (None, None): None,
}


@pytest.mark.parametrize(("left", "right"), list(product([True, False, None], repeat=2)))
def test_logic_has_three_values(left, right):
    assert call("and", left, right) is (AND[left, right] if (left, right) in AND else AND[right, left])
    assert call("or", left, right) is (OR[left, right] if (left, right) in OR else OR[right, left])


def test_not():
    assert [call("not", each) for each in (True, False, None)] == [False, True, None]


@pytest.mark.parametrize(
    "op", ["=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "contains", "regex"]
)
def test_a_null_makes_null(op):
    assert call(op, None, None) is None
    assert call(op, "a" if op in ("contains", "regex") else 1, None) is None


@pytest.mark.parametrize(
    ("value", "choices", "expected"),
    [
        (1, (1, 2), True),
        (3, (1, 2), False),
        (1, (1, None), True),
        (3, (1, None), None),
        (None, (1, 2), None),
        ("a", ("b", "a"), True),
    ],
)
def test_in_is_that_of_sql(value, choices, expected):
    assert call("in", value, *choices) is expected


def test_if_takes_the_second_unless_the_condition_is_true():
    assert [call("if", each, "then", "else") for each in (True, False, None)] == ["then", "else", "else"]


def test_coalesce_takes_the_first_that_is_not_null():
    assert call("coalesce", None, 2, 3) == 2
    assert call("coalesce", None, None) is None


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("+", (INT64_MAX, 0), INT64_MAX),
        ("+", (INT64_MAX, 1), None),
        ("-", (INT64_MIN, 1), None),
        ("*", (2**62, 2), None),
        ("*", (-(2**62), 2), INT64_MIN),
        ("neg", (INT64_MIN,), None),
        ("abs", (INT64_MIN,), None),
        ("abs", (-5,), 5),
        ("abs", (-5.5,), 5.5),
        ("+", (1.7e308, 1.7e308), None),
        ("*", (1e200, 1e200), None),
        ("/", (1e308, 1e-308), None),
        ("/", (7.0, 2.0), 3.5),
        ("/", (1.0, 0.0), None),
        ("/", (0.0, 0.0), None),
        ("%", (7, 0), None),
        ("%", (7.5, 0.0), None),
        ("%", (7, 3), 1),
        ("%", (-7, 3), -1),
        ("%", (7, -3), 1),
        ("%", (-7, -3), -1),
        ("%", (INT64_MIN, -1), 0),
        ("%", (-7.5, 2.0), -1.5),
        ("%", (7.5, -2.0), 1.5),
        ("float", (2**53 + 1,), 9007199254740992.0),
    ],
)
def test_arithmetic(op, args, expected):
    assert same(call(op, *args), expected)


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        ("round", 0.5, 1.0),
        ("round", 1.5, 2.0),
        ("round", 2.5, 3.0),
        ("round", -0.5, -1.0),
        ("round", -2.5, -3.0),
        ("round", 0.49999999999999994, 0.0),
        ("round", 4503599627370497.5, 4503599627370498.0),
        ("round", 1e300, 1e300),
        ("round", 7, 7),
        ("floor", -1.5, -2.0),
        ("floor", 1.5, 1.0),
        ("ceil", -1.5, -1.0),
        ("ceil", 1.5, 2.0),
        ("floor", -7, -7),
        ("ceil", -7, -7),
    ],
)
def test_rounding_keeps_the_type(op, value, expected):
    assert same(call(op, value), expected)


def test_rounding_gives_no_negative_zero():
    assert [math.copysign(1, call(op, -0.3)) for op in ("round", "ceil")] == [1, 1]


def test_texts():
    assert call("lower", "ÀB") == "àb"
    assert call("upper", "àb") == "ÀB"
    assert call("contains", "airflow", "flow") is True
    assert call("startsWith", "airflow", "flow") is False
    assert call("regex", "airflow", "f.o") is True
    assert call("regex", "airflow", "^f") is False


def test_strings_compare_by_code_point():
    assert call("<", "Z", "a") is True
    assert call("<", "\uffff", "\U00010000") is True


@pytest.mark.parametrize(
    ("moment", "zone", "hour", "day"),
    [
        ("2012-05-07T09:00", "UTC", 9, 1),
        ("2012-05-07T06:59", "America/Los_Angeles", 23, 7),  # in summer seven hours behind
        ("2012-01-02T07:59", "America/Los_Angeles", 23, 7),  # in winter eight
        ("2012-05-06T22:00", "Europe/Berlin", 0, 1),
        ("2012-05-07T18:30", "Asia/Kolkata", 0, 2),  # half hours are taken along
        ("2012-10-28T00:59:59.999999", "Europe/Berlin", 2, 7),  # the hour that comes twice,
        ("2012-10-28T01:00", "Europe/Berlin", 2, 7),  # the first time and the second
        ("0001-01-01T00:00", "America/Los_Angeles", 16, 7),  # where the calendar begins
        ("9999-12-31T23:59", "Asia/Tokyo", 8, 6),  # and where it ends
    ],
)
def test_hours_and_days_of_a_zone(moment, zone, hour, day):
    ts = parse_time(moment)
    assert (call("hour", ts, zone), call("dayOfWeek", ts, zone)) == (hour, day)


def test_hours_and_days_are_utc():
    monday = parse_time("2012-05-07T09:59:59.999999Z")
    assert (call("hour", monday), call("dayOfWeek", monday)) == (9, 1)
    sunday = parse_time("1969-12-28T23:00:00Z")
    assert (call("hour", sunday), call("dayOfWeek", sunday)) == (23, 7)
    assert call("dayOfWeek", 0) == 4


def test_a_time_that_no_calendar_writes_is_null():
    last = parse_time("9999-12-31T23:59:59.999999")
    assert call("+", last, 0, type=Type.TIMESTAMP) == last
    assert call("+", last, 1, type=Type.TIMESTAMP) is None


SOURCES = (("s", ("x", "y")), ("t", ("z",)), ("u", ()))


def test_a_field_is_the_first_attribute_that_is_not_null():
    field = Field("e", "c", SOURCES, Type.INT64)

    def value(stream, **values):
        return evaluate(field, Environment({"e": Event(stream, 0, 0, 0, values)}))

    assert value("s", x=1, y=2) == 1
    assert value("s", y=2) == 2
    assert value("s") is None
    assert value("t", x=1, z=3) == 3
    assert value("u", x=1) is None
    assert evaluate(field, Environment({"e": None})) is None
    assert evaluate(field, NONE) is None


def test_a_field_of_int_on_one_stream_and_float_on_another_is_float():
    field = Field("e", "c", SOURCES, Type.FLOAT64)
    assert same(evaluate(field, Environment({"e": Event("t", 0, 0, 0, {"z": 3})})), 3.0)


def test_the_time_of_an_event_is_its_ts():
    field = Field("e", "ts", (("s", ("ts",)),), Type.TIMESTAMP)
    assert evaluate(field, Environment({"e": Event("s", 0, 0, 17, {"ts": 99})})) == 17


def test_previous_and_aggregates():
    x = Field("b", "x", (("s", ("x",)),), Type.INT64)
    one, two, three = (Event("s", 0, n, n, {"x": value}) for n, value in enumerate((1, None, 4)))
    env = Environment({"b": three}, {"b": one}, {"b": (one, two, three)})
    assert evaluate(Call("-", (x, Previous(x))), env) == 3
    assert evaluate(Aggregate("COUNT", None, variable="b"), env) == 3
    assert evaluate(Aggregate("COUNT", x, variable="b"), env) == 2
    doubled = Call("*", (x, Const(2, Type.INT64)))
    assert evaluate(Aggregate("SUM", doubled, variable="b"), env) == 10


def test_a_condition_holds_only_when_it_is_true():
    query = "SELECT ?e.label FROM (?e, s) FILTER ({})"
    given = "e1@0:1 e2@1"

    def labels(condition):
        return [each.match.select["label"] for each in answers(query.format(condition), given)]

    assert labels("?e.x = 1") == ["e1"]
    assert labels("!(?e.x = 1)") == []
    assert labels("?e.x != 1 OR ?e.x = 1") == ["e1"]
    assert labels("coalesce(?e.x, 0) = 0") == ["e2"]
    assert labels("if(?e.x = 1, false, true)") == ["e2"]


def test_mixed_arithmetic_is_that_of_doubles():
    query = """SELECT ?e.x / 2 AS half, ?e.x + 0.5 AS more, ?e.ts - ?e.ts AS zero, ?e.ts + 1min AS later,
               -?e.x AS less, ?e.x % 3 AS rest FROM (?e, s)"""
    (answer,) = answers(query, "e1@0:7")
    assert answer.match.select == {
        "half": 3.5,
        "more": 7.5,
        "zero": 0,
        "later": "1970-01-01T00:01:00.000000Z",
        "less": -7,
        "rest": 1,
    }
    assert answer.values["later"] == 60_000_000
