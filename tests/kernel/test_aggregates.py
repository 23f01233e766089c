"""Aggregates: what is added and taken away leaves exactly what the judge computes from scratch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaicep.kernel.aggregates import FOLDS, WINDOWS
from kaicep.reference.exact import aggregate

FLOATS = st.one_of(
    st.none(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from((0.1, -0.0, 5e-324, 1e308))
)
INTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
OPS = ["COUNT", "DISTINCT", "SUM", "AVG", "STDDEV", "MIN", "MAX", "FIRST", "LAST"]


def judged(op, values):
    return aggregate("COUNT", values, True) if op == "DISTINCT" else aggregate(op, values)


@pytest.mark.parametrize("op", OPS)
@given(values=st.one_of(st.lists(FLOATS, max_size=12), st.lists(INTS, max_size=12)))
def test_a_fold_gives_what_the_judge_gives(op, values):
    assert repr(FOLDS[op].of(values)) == repr(judged(op, values))


@pytest.mark.parametrize("op", OPS)
@given(values=st.one_of(st.lists(FLOATS, max_size=12), st.lists(INTS, max_size=12)), size=st.integers(1, 4))
def test_a_window_gives_what_the_judge_gives_after_every_step(op, values, size):
    window = WINDOWS[op]()
    for index, value in enumerate(values):
        if index >= size:
            window.remove(values[index - size])
        window.add(value)
        assert repr(window.result()) == repr(judged(op, values[max(0, index - size + 1) : index + 1]))


def test_events_are_counted_null_or_not():
    assert FOLDS["EVENTS"].of([None, 1]) == 2
    assert FOLDS["COUNT"].of([None, 1]) == 1
