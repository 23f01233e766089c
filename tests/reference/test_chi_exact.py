"""Aggregates do not drift: checked against rational arithmetic."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaicep.plan.types import INT64_MAX, INT64_MIN
from kaicep.reference.expressions import aggregate

floats = st.floats(allow_nan=False, allow_infinity=False)
ints = st.integers(INT64_MIN, INT64_MAX)


def rounded(exact):
    try:
        return float(exact)
    except OverflowError:
        return None


def exact_variance(values):
    n = len(values)
    mean = sum(map(Fraction, values)) / n
    return sum((Fraction(each) - mean) ** 2 for each in values) / (n - 1)


@given(st.lists(floats, min_size=1))
def test_a_sum_of_floats_is_the_exact_sum_rounded_once(values):
    assert aggregate("SUM", values) == rounded(sum(map(Fraction, values)))


@given(st.lists(ints, min_size=1))
def test_a_sum_of_ints_is_exact_or_null(values):
    exact = sum(values)
    assert aggregate("SUM", values) == (exact if INT64_MIN <= exact <= INT64_MAX else None)


@given(st.lists(ints, min_size=1))
def test_an_average_of_ints_is_rounded_once(values):
    assert aggregate("AVG", values) == float(Fraction(sum(values), len(values)))


@given(st.lists(floats, min_size=1))
def test_an_average_of_floats_is_the_sum_through_one_division(values):
    whole = rounded(sum(map(Fraction, values)))
    assert aggregate("AVG", values) == (None if whole is None else whole / len(values))


@settings(deadline=None)
@given(st.one_of(st.lists(floats, min_size=2), st.lists(ints, min_size=2)))
def test_a_standard_deviation_is_the_root_of_the_exact_variance(values):
    variance = rounded(exact_variance(values))
    assert aggregate("STDDEV", values) == (None if variance is None else math.sqrt(variance))


@given(st.lists(st.one_of(st.none(), floats), min_size=1), st.randoms())
def test_the_order_does_not_matter(values, chance: random.Random):
    shuffled = values[:]
    chance.shuffle(shuffled)
    for op in ("SUM", "AVG", "STDDEV", "MIN", "MAX", "COUNT"):
        one, other = aggregate(op, values), aggregate(op, shuffled)
        assert repr(one) == repr(other)


def test_a_partial_sum_that_overflows_does_not_spoil_the_whole():
    assert aggregate("SUM", [1.7e308, 1.7e308, -1.7e308]) == 1.7e308
    assert aggregate("SUM", [1.7e308, -1.7e308, 1.7e308]) == 1.7e308
    assert aggregate("SUM", [1.7e308, 1.7e308]) is None
    assert aggregate("AVG", [1.7e308, 1.7e308]) is None


def test_the_sum_of_tenths_does_not_drift():
    assert aggregate("SUM", [0.1] * 10) == 1.0
    assert aggregate("STDDEV", [1e16, 1e16 + 2]) == math.sqrt(2)


def test_the_two_zeros_are_one_value():
    for values in ([0.0, -0.0], [-0.0, 0.0]):
        assert repr(aggregate("MIN", values)) == repr(aggregate("MAX", values)) == "0.0"
        assert aggregate("COUNT", values, distinct=True) == 1


@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX", "STDDEV", "FIRST", "LAST"])
@pytest.mark.parametrize("values", [[], [None, None]])
def test_of_no_value_an_aggregate_is_null(op, values):
    assert aggregate(op, values) is None


def test_of_no_value_a_count_is_zero():
    assert (
        aggregate("COUNT", []) == aggregate("COUNT", [None]) == aggregate("COUNT", [None], distinct=True) == 0
    )


def test_nulls_are_skipped_but_by_first_and_last():
    values = [None, 3, 1, None, 1]
    assert aggregate("COUNT", values) == 3
    assert aggregate("COUNT", values, distinct=True) == 2
    assert aggregate("SUM", values) == 5
    assert aggregate("AVG", values) == 5 / 3
    assert (aggregate("MIN", values), aggregate("MAX", values)) == (1, 3)
    assert (aggregate("FIRST", values), aggregate("LAST", values)) == (None, 1)


def test_one_value_has_no_standard_deviation():
    assert aggregate("STDDEV", [5.0, None]) is None
    assert aggregate("STDDEV", [5.0, 5.0]) == 0.0


def test_the_extremes_of_strings_go_by_code_point():
    assert (aggregate("MIN", ["b", "B", "é"]), aggregate("MAX", ["b", "B", "é"])) == ("B", "é")
