"""Nulls, types and arithmetic at their edges."""

from __future__ import annotations

import pytest

VALUES = """
    event | ts | i                    | f    | s   | b
    v1    | 0  | 9223372036854775807  | 1e308 | ab | true
    v2    | 1  | -7                   | -2.5 |     | false
    v3    | 2  |                      | 0.0  | abc |
"""


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("?e.i + 1 > 0", ""),  # overflow is null; -6 > 0 is false; null
        ("?e.i > 0", "v1"),
        ("!(?e.i > 0)", "v2"),  # not null is null
        ("?e.i > 0 || ?e.f = 0", "v1 v3"),  # null or true is true
        ("?e.i != 5", "v1 v2"),
        ("?e.f * 10 > 0", ""),  # infinity is null
        ("1 / ?e.f < 0", "v2"),  # a division by zero is null
        ("?e.i % 4 = -3", "v2"),  # the sign of the left side
        ("?e.i / 2 = -3.5", "v2"),  # / is of float64
        ("coalesce(?e.i, 0) = 0", "v3"),
        ("if(?e.b, 1, 2) = 2", "v2 v3"),  # the second unless the condition is true
        ("?e.b", "v1"),
        ("?e.i IN (1, null, -7)", "v2"),
        ("!(?e.i IN (1, 2))", "v1 v2"),
        ("!(?e.i IN (1, null))", ""),
        ("round(?e.f) = -3", "v2"),  # half away from zero
        ("floor(?e.f) = -3", "v2"),
        ("ceil(?e.f) = -2", "v2"),
        ("abs(?e.f) = 2.5", "v2"),
        ("contains(?e.s, 'b')", "v1 v3"),
        ("startsWith(upper(?e.s), 'ABC')", "v3"),
        ("regex(?e.s, 'b.')", "v3"),
        ("?e.s > 'ab'", "v3"),  # by code point; null compares with nothing
        ("?e.s = null", ""),
        ("?e.ts < '1970-01-01T00:00:01Z'", "v1"),
        ("?e.ts - 1s >= '1970-01-01T00:00:01Z'", "v3"),
        ("hour(?e.ts) = 0 && dayOfWeek(?e.ts) = 4", "v1 v2 v3"),  # 1970-01-01 was a Thursday
        ("hour(?e.ts, 'America/Los_Angeles') = 16", "v1 v2 v3"),  # where it was still Wednesday
        ("dayOfWeek(?e.ts, 'America/Los_Angeles') = 3", "v1 v2 v3"),
    ],
)
def test_conditions(check, condition, rows):
    expect = "?e\n" + "\n".join(rows.split())
    check(f"SELECT ?e.i FROM (?e, s) FILTER ({condition})", events=VALUES, expect=expect)


def test_selected_values_are_written_as_their_types_say(check):
    check(
        "SELECT ?e.i, ?e.f * 2 AS twice, ?e.ts AS at, ?e.i = -7 AS seven FROM (?e, s) FILTER (?e.f < 0)",
        events=VALUES,
        expect="i | twice | at | seven\n -7 | -5.0 | 1970-01-01T00:00:01Z | true",
    )


def test_null_is_a_partition_of_its_own(check):
    check(
        """
        SELECT ?a.k FROM (?a, s), (?b, s) SEQ (?a, ?b) PARTITION BY ?a.k WINDOW (?a, ?b, 1min)
        """,
        events="event | ts | k\n e1 | 0 | x\n e2 | 1 |\n e3 | 2 | x\n e4 | 3 |",
        expect="?a | ?b | k\n e1 | e3 | x\n e2 | e4 |",
    )
