"""Aggregates over a list of values: exactly what the reference computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaicep.kernel.aggregates import FOLDS
from kaicep.reference.expressions import aggregate

FLOATS = st.one_of(
    st.none(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from((0.1, -0.0, 5e-324, 1e308))
)
INTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
OPS = ["COUNT", "DISTINCT", "SUM", "AVG", "STDDEV", "MIN", "MAX", "FIRST", "LAST"]


def referred(op, values):
    return aggregate("COUNT", values, True) if op == "DISTINCT" else aggregate(op, values)


@pytest.mark.parametrize("op", OPS)
@given(values=st.one_of(st.lists(FLOATS, max_size=12), st.lists(INTS, max_size=12)))
def test_a_fold_gives_what_the_reference_gives(op, values):
    assert repr(FOLDS[op].of(values)) == repr(referred(op, values))


def test_events_are_counted_null_or_not():
    assert FOLDS["EVENTS"].of([None, 1]) == 2
    assert FOLDS["COUNT"].of([None, 1]) == 1
