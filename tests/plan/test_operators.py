"""Compiled expressions: the value that the judge gives, for every operator and with nulls everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Const, Expr, Field
from kaicep.plan.operators import event_function
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type
from kaicep.reference.expressions import Environment, evaluate

NAMES = {"b": Type.BOOL, "i": Type.INT64, "f": Type.FLOAT64, "s": Type.STRING, "t": Type.TIMESTAMP}


def field(name: str) -> Field:
    return Field("e", name, (("s", (name,)), ("r", ("other", name))), NAMES[name])


def of(type: Type, values: st.SearchStrategy, name: str) -> st.SearchStrategy[Expr]:
    return st.one_of(st.just(field(name)), values.map(lambda value: Const(value, type)))


BOOLS = of(Type.BOOL, st.sampled_from((True, False, None)), "b")
INTS = of(Type.INT64, st.sampled_from((0, 1, -7, INT64_MAX, INT64_MIN, None)), "i")
FLOATS = of(Type.FLOAT64, st.sampled_from((0.0, -0.0, 2.5, -0.5, 1e308, None)), "f")
TEXTS = of(Type.STRING, st.sampled_from(("", "Abc", "b", None)), "s")
TIMES = st.one_of(
    st.just(field("t")), st.just(Field("e", "ts", (("s", ("ts",)), ("r", ("ts",))), Type.TIMESTAMP))
)


def call(op: str, type: Type, *args: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.tuples(*args).map(lambda given: Call(op, given, type))


def numbers(base: st.SearchStrategy[Expr], type: Type) -> st.SearchStrategy[Expr]:
    return st.recursive(
        base,
        lambda below: st.one_of(
            *(call(op, type, below, below) for op in "+-*%"),
            *(call(op, type, below) for op in ("neg", "abs", "floor", "ceil", "round")),
            call("coalesce", type, below, below),
            call("if", type, BOOLS, below, below),
        ),
        max_leaves=4,
    )


WHOLE = numbers(INTS, Type.INT64)
REAL = numbers(
    st.one_of(FLOATS, call("float", Type.FLOAT64, INTS), call("/", Type.FLOAT64, FLOATS, FLOATS)),
    Type.FLOAT64,
)
STRINGS = st.one_of(TEXTS, call("lower", Type.STRING, TEXTS), call("upper", Type.STRING, TEXTS))
COMPARED = st.one_of(
    *(
        call(op, Type.BOOL, side, side)
        for side in (WHOLE, REAL, STRINGS)
        for op in ("=", "!=", "<", "<=", ">", ">=")
    ),
    call("in", Type.BOOL, WHOLE, WHOLE, INTS),
    call("contains", Type.BOOL, STRINGS, STRINGS),
    call("startsWith", Type.BOOL, STRINGS, STRINGS),
    call("regex", Type.BOOL, STRINGS, st.just(Const("b.?$", Type.STRING))),
    call("=", Type.BOOL, call("hour", Type.INT64, TIMES), INTS),
    call("<", Type.BOOL, call("dayOfWeek", Type.INT64, TIMES), INTS),
    call("<", Type.BOOL, call("+", Type.TIMESTAMP, TIMES, INTS), TIMES),
)
LOGIC = st.recursive(
    st.one_of(BOOLS, COMPARED),
    lambda below: st.one_of(
        call("and", Type.BOOL, below, below),
        call("or", Type.BOOL, below, below),
        call("not", Type.BOOL, below),
    ),
    max_leaves=5,
)
EVENTS = st.builds(
    lambda stream, ts, **values: Event(stream, 0, 0, ts, values),
    st.sampled_from(("s", "r")),
    st.integers(0, 10**15),
    b=st.sampled_from((True, False, None)),
    i=st.sampled_from((None, 0, 3, -4, INT64_MAX)),
    f=st.sampled_from((None, 0.0, -1.5, 7, 1e308)),
    s=st.sampled_from((None, "b", "ab", "B")),
    t=st.sampled_from((None, 0, 10**15, 253_402_300_799_999_999)),
    other=st.none(),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.one_of(WHOLE, REAL, STRINGS, LOGIC), EVENTS)
def test_the_value_is_that_of_the_reference(expr, event):
    wanted = evaluate(expr, Environment({"e": event}))
    assert repr(event_function(expr)(event)) == repr(wanted)
    assert repr(event_function(_untyped(expr))(event)) == repr(
        evaluate(_untyped(expr), Environment({"e": event}))
    )


def _untyped(expr: Expr) -> Expr:
    return Call(expr.op, tuple(map(_untyped, expr.args))) if isinstance(expr, Call) else expr
