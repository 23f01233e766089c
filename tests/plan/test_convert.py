"""What a value of the outside world becomes as a value of each type."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kaicep.plan.types import Instant, Type, Unfit, convert, guess, guess_text, widen

B, I, F, S, T = Type.BOOL, Type.INT64, Type.FLOAT64, Type.STRING, Type.TIMESTAMP  # noqa: E741
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "type", "expected"),
    [
        (None, I, None),
        (NAN, I, None),
        (INF, F, None),
        (-INF, S, None),
        (NAN, T, None),
        # bool
        (True, B, True),
        ("false", B, False),
        (" TRUE ", B, True),
        (0, B, False),
        ("1", B, True),
        # int64
        (5, I, 5),
        (5.0, I, 5),
        ("5", I, 5),
        ("007", I, 7),
        (" -3 ", I, -3),
        ("1e3", I, 1000),
        ("9223372036854775807", I, 2**63 - 1),
        ("nan", I, None),
        (Decimal("4.00"), I, 4),
        # float64
        (5, F, 5.0),
        ("2.5", F, 2.5),
        (".5", F, 0.5),
        ("-Infinity", F, None),
        ("1e999", F, None),
        pytest.param(10**400, F, None, id="beyond float64"),
        (Decimal("0.1"), F, 0.1),
        # string
        ("a", S, "a"),
        ("", S, ""),
        (7, S, "7"),
        (7.0, S, "7.0"),
        (True, S, "true"),
        ({"a": [1, None, "é"]}, S, '{"a":[1,null,"é"]}'),
        ([], S, "[]"),
        (b"caf\xc3\xa9", S, "café"),
        (Decimal("1.50"), S, "1.50"),
        (Instant(0), S, "1970-01-01T00:00:00.000000Z"),
        # timestamp
        (1.5, T, 1_500_000),
        (1, T, 1_000_000),
        ("1.5", T, 1_500_000),
        ("1970-01-01T00:00:01Z", T, 1_000_000),
        ("1970-01-01", T, 0),
        (1336381200.123457, T, 1336381200123457),
        (Instant(17), T, 17),
    ],
)
def test_converts(value: object, type: Type, expected: object) -> None:
    found = convert(value, type)
    assert found == expected
    assert found.__class__ is expected.__class__


@pytest.mark.parametrize(
    ("value", "type", "reason"),
    [
        ("yes", B, '"yes" is not a bool'),
        (2, B, "2 is not a bool"),
        (0.5, B, "0.5 is not a bool"),
        ("warm", I, '"warm" is not an int64'),
        ("", F, '"" is not a float64'),
        (True, I, "true is not an int64"),
        (True, F, "true is not a float64"),
        (1.5, I, "1.5 is not an int64: it has a fraction"),
        ("1.5", I, '"1.5" is not an int64: it has a fraction'),
        (2**63, I, "9223372036854775808 does not fit into int64"),
        ("1e30", I, '"1e30" does not fit into int64'),
        ("1e999999999", I, '"1e999999999" does not fit into int64'),
        ([1], F, "[1] is not a float64"),
        ("1_000", I, '"1_000" is not an int64'),
        ("٣", I, '"٣" is not an int64'),
        (b"\xff", S, "\"b'\\\\xff'\" is not UTF-8 text"),
        ("tomorrow", T, '"tomorrow" is neither an ISO 8601 time nor epoch seconds'),
        (True, T, "true is neither an ISO 8601 time nor epoch seconds"),
        (10**30, T, f"{10**30} is not a time between the years 1 and 9999 in epoch seconds"),
        (
            Instant(10**18),
            T,
            "a time 1000000000000000000 microseconds from 1970 is not of the years 1 to 9999",
        ),
        ("x" * 100, I, '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... is not an int64'),
    ],
)
def test_refuses(value: object, type: Type, reason: str) -> None:
    with pytest.raises(Unfit) as caught:
        convert(value, type)
    assert str(caught.value) == reason


def test_a_value_nested_too_deeply_is_unfit() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unfit, match="nested too deeply"):
        convert(deep, S)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("0", I),
        ("-12", I),
        ("9223372036854775808", F),
        ("1.0", F),
        ("1e3", F),
        ("NaN", F),
        ("true", B),
        ("False", B),
        ("007", S),
        ("+1", S),
        ("1.", S),
        ("2012-05-07T09:00", S),
        (" 1", S),
    ],
)
def test_a_cell_suggests(text: str, expected: Type | None) -> None:
    assert guess_text(text) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], I),
        ([1, 2.5], F),
        ([2**70], F),
        ([1, "a"], S),
        ([True, 1], S),
        ([True, None], B),
        ([None, None], None),
        ([{"a": 1}], S),
        ([Instant(1)], T),
        ([Instant(1), 1], S),
    ],
)
def test_values_together_suggest(values: list[object], expected: Type | None) -> None:
    known = None
    for value in values:
        known = widen(known, guess(value))
    assert known is expected
