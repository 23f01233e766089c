"""Expressions worked out by columns give what the reference gives row by row, null for null, bit for bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES

from kaicep.kernel.columns import Column, Strings, Table, column_of
from kaicep.kernel.vectors import _StringLookup, vectors_of
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type, Value
from kaicep.reference.expressions import Environment, evaluate

pytestmark = pytest.mark.random
BOOL, INT, FLOAT, TEXT, TIME = Type.BOOL, Type.INT64, Type.FLOAT64, Type.STRING, Type.TIMESTAMP
H = 3_600_000_000
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
SUMMER = 1_332_637_200_000_000  # 2012-03-25T01:00Z, when the clocks of Berlin change
# Of each type, the values at which something is different.
VALUES: dict[Type, tuple[Value, ...]] = {
    BOOL: (True, False),
    INT: (0, 1, -1, 2, 7, -7, 3, INT64_MAX, INT64_MIN, 2**62, 3_037_000_500, 2**53 + 1),
    FLOAT: (
        0.0,
        -0.0,
        0.5,
        -0.5,
        -0.25,
        1.5,
        -2.5,
        1e308,
        -1e308,
        0.49999999999999994,
        1e16,
        5e-324,
        2.0,
        2.0**63,
    ),
    TEXT: ("", "p", "Q", "pq", "é", "\U0001f600", "ab", "ABC"),
    TIME: (0, 1, -1, H, SUMMER, SUMMER - 1, 1_351_386_000_000_000, FIRST, LAST),
}
ORDERED = ("=", "!=", "<", "<=", ">", ">=")
STREAMS = ("s", "t", "u")


# --- a table of three streams ------------------------------------------------------------------------------

# On s and t an attribute of each type, and a second one that only s has; u has others of the same names.
TYPES = {f"{type.value}{number}": type for type in VALUES for number in (1, 2)}


def is_on(stream: str, name: str) -> bool:
    return stream == "s" or (stream == "t" and name.endswith("1"))


@st.composite
def tables(draw: st.DrawFn, strings: Strings) -> tuple[Table, list[Event]]:
    count = draw(st.integers(0, 7))
    events = []
    for row in range(count):
        stream = draw(st.sampled_from(STREAMS))
        values = {
            name: draw(st.sampled_from((None, *VALUES[type])))
            for name, type in TYPES.items()
            if is_on(stream, name)
        }
        events.append(Event(stream, 0, row, draw(st.sampled_from(VALUES[TIME])), values))  # type: ignore[arg-type]
    return table_of(events, TYPES, strings), events


def table_of(events: list[Event], types: dict[str, Type | None], strings: Strings) -> Table:
    """The events as a table."""
    count = len(events)
    return Table(
        STREAMS,
        np.array([each.ts for each in events], np.int64),
        np.array([STREAMS.index(each.stream) for each in events], np.int8),
        np.zeros(count, np.int64),
        np.arange(count),
        {
            name: column_of(type, [each.values.get(name) for each in events], strings)
            for name, type in types.items()
        },
        strings,
    )


# --- expressions of every operator -------------------------------------------------------------------------


@st.composite
def fields(draw: st.DrawFn, type: Type | None, variable: str = "e") -> Field:
    own = [name for name, found in TYPES.items() if found is type]
    if type is FLOAT:
        own += [name for name, found in TYPES.items() if found is INT]
    if type is TIME:
        own.append("ts")
    sources = []
    for stream in draw(st.sampled_from((STREAMS, ("s",), ("t", "s")))):
        names = draw(st.lists(st.sampled_from(own), max_size=2, unique=True))
        sources.append((stream, tuple(each for each in names if each == "ts" or is_on(stream, each))))
    return Field(variable, "x", tuple(sources), type)


def constants(type: Type) -> st.SearchStrategy[Expr]:
    return st.sampled_from((*VALUES[type], None)).map(lambda value: Const(value, type))


@st.composite
def expressions(draw: st.DrawFn, type: Type, depth: int) -> Expr:
    if depth == 0:
        return draw(st.one_of(fields(type), fields(type), constants(type)))

    def of(wanted: Type) -> Expr:
        return draw(expressions(wanted, draw(st.integers(0, depth - 1))))

    def maybe_null(wanted: Type) -> Expr:
        return Const(None, None) if draw(st.integers(0, 7)) == 0 else of(wanted)

    def call(ops: str | tuple[str, ...], *args: Expr) -> Call:
        return Call(draw(st.sampled_from(ops)), args, type)

    kind = draw(st.integers(0, 9))
    if kind == 0:
        return call(("coalesce",), *(maybe_null(type) for _ in range(draw(st.integers(1, 3)))))
    if kind == 1:
        return call(("if",), maybe_null(BOOL), maybe_null(type), maybe_null(type))
    if type is BOOL:
        if kind < 4:
            compared = draw(st.sampled_from((INT, FLOAT, TEXT, TEXT, BOOL)))
            if compared is INT and draw(st.booleans()):
                compared = TIME
            return call(
                ("=", "!=") if compared is BOOL else ORDERED, maybe_null(compared), maybe_null(compared)
            )
        if kind < 6:
            return call(("and", "or"), *(maybe_null(BOOL) for _ in range(draw(st.integers(2, 3)))))
        if kind == 6:
            return call(("not",), maybe_null(BOOL))
        if kind == 7:
            compared = draw(st.sampled_from(tuple(VALUES)))
            choices = draw(st.lists(st.one_of(constants(compared), st.just(None)), min_size=1, max_size=4))
            return call(("in",), maybe_null(compared), *(each or maybe_null(compared) for each in choices))
        if kind == 8:
            return call(("contains", "startsWith"), of(TEXT), maybe_null(TEXT))
        return call(("regex",), maybe_null(TEXT), Const(draw(st.sampled_from(("^p", "b.?$", ""))), TEXT))
    if type is TEXT:
        return call(("lower", "upper"), maybe_null(TEXT))
    if type is TIME:
        if draw(st.integers(0, 3)) == 0:
            return call(("+",), of(INT), of(TIME))
        return call(("+", "-"), maybe_null(TIME), of(INT))
    if type is INT and kind < 4:
        if kind == 2:
            return call(("-",), of(TIME), of(TIME))
        zone = draw(st.sampled_from((None, "UTC", "Europe/Berlin", "America/Los_Angeles")))
        return call(("hour", "dayOfWeek"), of(TIME), *((Const(zone, TEXT),) if zone else ()))
    if type is FLOAT and kind < 4:
        if kind == 2:
            return call(("float",), of(INT))
        both = draw(st.sampled_from(((INT, INT), (FLOAT, FLOAT), (INT, FLOAT))))
        return call(("/",), *map(of, both))
    if kind < 6:
        return call(("neg", "abs", "floor", "ceil", "round"), maybe_null(type))
    return call(("+", "-", "*", "%"), of(type), maybe_null(type))


def expected(expr: Expr, events: list[Event]) -> list[Value]:
    return [evaluate(expr, Environment({"e": each})) for each in events]


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_values_are_those_of_the_reference(data: st.DataObject) -> None:
    strings = Strings()
    table, events = data.draw(tables(strings))
    vectors = vectors_of(table)
    for type in (BOOL, *VALUES):
        expr = data.draw(expressions(type, 3))
        wanted = expected(expr, events)
        if type is BOOL:
            assert vectors.holds(expr).tolist() == [each is True for each in wanted]
        column = vectors.value(expr)
        assert column.type is type
        assert repr(column.values(strings)) == repr(wanted)


# --- every operation on all values -------------------------------------------------------------------------


def own(name: str, type: Type) -> Field:
    return Field("e", name, (("s", (name,)),), type)


ONE = {
    **dict.fromkeys(("neg", "abs", "floor", "ceil", "round"), ((INT, INT), (FLOAT, FLOAT))),
    **dict.fromkeys(("hour", "dayOfWeek"), ((TIME, INT),)),
    **dict.fromkeys(("lower", "upper"), ((TEXT, TEXT),)),
    "float": ((INT, FLOAT),),
    "not": ((BOOL, BOOL),),
}
TWO = {
    **dict.fromkeys("+-*%", ((INT, INT, INT), (FLOAT, FLOAT, FLOAT))),
    "/": ((INT, INT, FLOAT), (FLOAT, FLOAT, FLOAT), (INT, FLOAT, FLOAT)),
    **dict.fromkeys(("and", "or"), ((BOOL, BOOL, BOOL),)),
    **dict.fromkeys(("contains", "startsWith"), ((TEXT, TEXT, BOOL),)),
    **dict.fromkeys(ORDERED, tuple((type, type, BOOL) for type in VALUES)),
}
TIMES = (("+", TIME, INT, TIME), ("-", TIME, INT, TIME), ("+", INT, TIME, TIME), ("-", TIME, TIME, INT))
BINARY = [(op, *types) for op, some in TWO.items() for types in some] + list(TIMES)


@pytest.mark.parametrize(("op", "of", "type"), [(op, *types) for op, some in ONE.items() for types in some])
def test_an_operation_on_all_values(op: str, of: Type, type: Type) -> None:
    events = [Event("s", 0, row, 0, {"a": each}) for row, each in enumerate((None, *VALUES[of]))]
    assert same_values(Call(op, (own("a", of),), type), events, {"a": of}).type is type


@pytest.mark.parametrize(("op", "left", "right", "type"), BINARY)
def test_an_operation_on_all_pairs_of_values(op: str, left: Type, right: Type, type: Type) -> None:
    pairs = product((None, *VALUES[left]), (None, *VALUES[right]))
    events = [Event("s", 0, row, 0, {"a": a, "b": b}) for row, (a, b) in enumerate(pairs)]
    expr = Call(op, (own("a", left), own("b", right)), type)
    assert same_values(expr, events, {"a": left, "b": right}).type is type


# --- what resolving leaves without a type ------------------------------------------------------------------

ANYTHING: tuple[Value, ...] = (None, True, 3, -2, 2.5, -0.0, INT64_MAX, "p", "Q")
NUMBERS: tuple[Value, ...] = (None, 0, 3, -2, 2.5, -0.0, INT64_MAX, 1e308)
LOOSE = Field("e", "a", (("s", ("a",)), ("t", ("a", "b")), ("u", ("b",))), None)


@st.composite
def untyped(draw: st.DrawFn, values: tuple[Value, ...]) -> list[Event]:
    rows = draw(st.lists(st.tuples(*map(st.sampled_from, (STREAMS, values, values))), max_size=6))
    return [Event(stream, 0, row, 0, {"a": a, "b": b}) for row, (stream, a, b) in enumerate(rows)]


def same_values(expr: Expr, events: list[Event], types: dict[str, Type | None]) -> Column:
    """The column of an expression, which has the values that the reference gives."""
    strings = Strings()
    column = vectors_of(table_of(events, types, strings)).value(expr)
    assert repr(column.values(strings)) == repr(expected(expr, events))
    return column


@pytest.mark.parametrize(
    "expr",
    [
        LOOSE,
        Call("=", (LOOSE, Const(3, INT)), BOOL),
        Call("=", (Const("p", TEXT), LOOSE), BOOL),
        Call("in", (LOOSE, Const(3, INT), Const("p", TEXT), Const(None, None)), BOOL),
        Call("coalesce", (LOOSE, Const(None, None)), None),
        Call("if", (Call("!=", (LOOSE, Const(3, INT)), BOOL), LOOSE, Const(1, INT)), INT),
        Call("and", (LOOSE, Const(True, BOOL)), BOOL),
        Call("or", (LOOSE, Const(None, None)), BOOL),
        Call("not", (LOOSE,), BOOL),
        Call("if", (LOOSE, Const(1, INT), Const(2, INT)), INT),
    ],
)
@settings(max_examples=50)
@given(untyped(ANYTHING))
def test_values_of_unknown_types_are_those_of_the_reference(expr: Expr, events: list[Event]) -> None:
    same_values(expr, events, {"a": None, "b": None})
    wanted = [each is True for each in expected(expr, events)]
    assert vectors_of(table_of(events, {"a": None, "b": None}, Strings())).holds(expr).tolist() == wanted


@pytest.mark.parametrize(
    "expr",
    [
        *(Call(op, (LOOSE, Const(2, INT)), INT) for op in "+-*%"),
        *(Call(op, (LOOSE, LOOSE), INT) for op in "+-*"),
        *(Call(op, (LOOSE,), INT) for op in ("neg", "abs", "round", "floor", "float")),
        *(Call(op, (LOOSE, Const(2.5, FLOAT)), BOOL) for op in ORDERED),
        Call("/", (Const(1, INT), LOOSE), FLOAT),
        Call("<", (Call("+", (LOOSE, Const(1, INT)), INT), Const(3, INT)), BOOL),
    ],
)
@settings(max_examples=50)
@given(untyped(NUMBERS))
def test_numbers_of_unknown_types_are_those_of_the_reference(expr: Expr, events: list[Event]) -> None:
    same_values(expr, events, {"a": None, "b": None})


@settings(max_examples=50)
@given(untyped((None, 3, -2)), st.sampled_from((None, INT)))
def test_values_have_a_type_where_all_that_came_are_of_it(events: list[Event], type: Type | None) -> None:
    number = Field("e", "a", LOOSE.sources, INT)
    assert same_values(number, events, {"a": type, "b": None}).type is INT
    assert same_values(Call("+", (number, number), INT), events, {"a": type, "b": None}).type is INT


def test_an_int64_that_another_stream_widens_is_an_int64_still() -> None:
    values = [3, None, -(2**53), INT64_MAX]
    events = [Event("s", 0, row, 0, {"a": each}) for row, each in enumerate(values)]
    other = Event("t", 0, 9, 0, {"a": 2.5})
    column = vectors_of(table_of([*events, other], {"a": FLOAT}, Strings())).value(
        Field("e", "a", (("s", ("a",)),), INT)
    )
    assert column.type is INT
    assert column.values(Strings()) == [*values, None]


def test_int64_and_float64_that_were_not_widened_are_compared_exactly() -> None:
    events = [Event("s", 0, row, 0, {"a": a, "b": 2.0**53}) for row, a in enumerate((2**53 + 1, 2**53, None))]
    own = (("s", ("a",)),), (("s", ("b",)),)
    for op in ORDERED:
        expr = Call(op, (Field("e", "a", own[0], INT), Field("e", "b", own[1], FLOAT)), BOOL)
        assert same_values(expr, events, {"a": INT, "b": FLOAT}).type is BOOL


# --- many rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [TEXT, INT, FLOAT])
@pytest.mark.parametrize("null", [(), (Const(None, None),)])
def test_a_long_list_of_choices(type: Type, null: tuple[Expr, ...]) -> None:
    made = {TEXT: str, INT: int, FLOAT: float}[type]
    field = Field("e", "a", (("s", ("a",)),), type)
    choices = tuple(Const(made(each), type) for each in range(0, 1000, 2))
    events = [Event("s", 0, row, 0, {"a": made(row) if row % 5 else None}) for row in range(100)]
    among = Call("in", (field, *choices, *null), BOOL)
    for expr in (among, Call("not", (among,), BOOL)):
        same_values(expr, events, {"a": type})


def test_strings_that_come_later_are_looked_at_too() -> None:
    strings = Strings()
    field = Field("e", "a", (("s", ("a",)),), TEXT)
    exprs = (
        Call("regex", (field, Const("^a", TEXT)), BOOL),
        Call("upper", (field,), TEXT),
        Call("<", (field, Call("lower", (field,), TEXT)), BOOL),
    )
    for texts in (["ab", "ba"], [None, "Ab", "ab"], [f"{each}a" for each in range(300)]):
        events = [Event("s", 0, row, 0, {"a": each}) for row, each in enumerate(texts)]
        vectors = vectors_of(table_of(events, {"a": TEXT}, strings))
        for expr in exprs:
            assert vectors.value(expr).values(strings) == expected(expr, events)


def test_a_function_of_a_string_is_asked_once_for_each_different_one() -> None:
    strings = Strings()
    codes = strings.codes(["a", "b"])
    lookup = _StringLookup(strings, lambda text: asked.append(text) or text == "a", BOOL)
    asked: list[str] = []
    assert lookup.of(codes[[0, 1, 0]]).tolist() == [1, 0, 1]
    assert lookup.of(np.array([-1, 1])).tolist() == [-1, 0]
    assert asked == ["a", "b"]


def test_equal_expressions_of_a_table_are_worked_out_once() -> None:
    table = table_of([Event("s", 0, 0, 0, {"a": 2})], {"a": INT}, Strings())
    made = [
        vectors_of(table).value(Call("+", (Field(name, "a", (("s", ("a",)),), INT), Const(1, INT)), INT))
        for name in ("e", "other")
    ]
    assert made[0] is made[1]


def test_the_two_zeros_are_different_constants() -> None:
    table = table_of([Event("s", 0, 0, 0, {})], {}, Strings())
    for zero in (0.0, -0.0):
        (value,) = vectors_of(table).value(Call("coalesce", (Const(zero, FLOAT),), FLOAT)).values(Strings())
        assert repr(value) == repr(zero)


@settings(max_examples=max(EXAMPLES // 5, 20))
@given(st.lists(st.integers(FIRST, LAST), min_size=1), st.sampled_from(("Europe/Berlin", "Africa/Monrovia")))
def test_hours_of_a_zone(times: list[int], zone: str) -> None:
    events = [Event("s", 0, row, ts, {}) for row, ts in enumerate(times)]
    time = Field("e", "ts", (("s", ("ts",)),), TIME)
    for op in ("hour", "dayOfWeek"):
        same_values(Call(op, (time, Const(zone, TEXT)), INT), events, {})
