"""Instants, durations and time zones: texts and numbers to microseconds, and back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

# ----------------------------------------------------------------------------------------------------------
# Time zones: which there are, how far their clocks are from UTC at an instant, and when they show a time.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A calendar ends where its years do, and a clock of another zone may have passed that end.
_FIRST_YEAR, _LAST_YEAR = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


@cache
def zone_names() -> frozenset[str]:
    """The names of all zones that are known here."""
    return frozenset(available_timezones())


def is_zone(name: str) -> bool:
    """Whether a zone is known by this name, as it is written.

    >>> is_zone("America/Los_Angeles"), is_zone("Los Angeles")
    (True, False)
    """
    return name in zone_names()


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def in_zone(micros: int, name: str) -> int:
    """When the clocks of a zone show a time that is given as if it were UTC.

    Of an hour that comes twice the first; a time that does not exist is moved on by the gap (semantics 2.12).

    >>> in_zone(0, "Europe/Berlin")
    -3600000000
    """
    second, rest = divmod(micros, 1_000_000)
    return _second_in_zone(second, name) * 1_000_000 + rest


@lru_cache(4096)
def _second_in_zone(second: int, name: str) -> int:
    """The second since 1970 that the clocks of a zone show as this one."""
    shown = min(max(_EPOCH + timedelta(seconds=second), _FIRST_YEAR), _LAST_YEAR).replace(tzinfo=_zone(name))
    return second - (shown.utcoffset() or timedelta()) // timedelta(seconds=1)


def zone_offset(ts: int, name: str) -> int:
    """What a zone adds to UTC at an instant, in microseconds.

    >>> zone_offset(0, "America/Los_Angeles")
    -28800000000
    """
    moment = min(max(_EPOCH + timedelta(microseconds=ts), _FIRST_YEAR), _LAST_YEAR)
    offset = moment.astimezone(_zone(name)).utcoffset() or timedelta()
    return offset // timedelta(microseconds=1)


# ----------------------------------------------------------------------------------------------------------
# Instants and durations: texts and numbers to microseconds, and back.
#
# Everything is UTC; whatever is finer than a microsecond is rounded to the nearest (semantics 1).

DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}

TIME_UNITS = {
    "s": Decimal(1_000_000),
    "ms": Decimal(1_000),
    "us": Decimal(1),
    "ns": Decimal("0.001"),
    "excel": Decimal(86_400_000_000),
}
"""What a time that is a number counts, in microseconds: `excel` counts days since the end of 1899."""
EXCEL_EPOCH = 25_569
"""The days from Excel's day 0 to 1970."""
_FIRST = -62_135_596_800_000_000  # 0001-01-01
_LAST = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999

_ISO = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d+))?)?)?"
    r"\s*(Z|z|[+-]\d{2}(?::?\d{2})?)?",
    re.ASCII,
)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h|d)", re.ASCII)


def parse_time(text: str, zone: str | None = None) -> int | None:
    """Microseconds of an ISO 8601 time, or None where the text is none. Without an offset it is of the zone.

    >>> parse_time("1970-01-01T00:00:01.5Z")
    1500000
    >>> parse_time("2012-05-07T09:00") == parse_time("2012-05-07T11:00+02:00")
    True
    >>> parse_time("2012-05-07T11:00", "Europe/Berlin") == parse_time("2012-05-07T09:00")
    True
    >>> parse_time("tomorrow") is None
    True
    """
    found = _ISO.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC
        )
    except ValueError:
        return None
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    if fraction:
        micros += int((Decimal("0." + fraction) * 1_000_000).to_integral_value(ROUND_HALF_EVEN))
    if offset is None and zone is not None:
        micros = in_zone(micros, zone)
    elif offset and offset not in "Zz":
        digits = offset[1:].replace(":", "").ljust(4, "0")
        minutes = int(digits[:2]) * 60 + int(digits[2:])
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            return None
        micros -= (minutes if offset[0] == "+" else -minutes) * DURATION_UNITS["min"]
    return micros if _FIRST <= micros <= _LAST else None


def parse_formatted(text: str, form: str, zone: str | None = None) -> int | None:
    """Microseconds of a time in a format of `strptime`, or None where the text is none.

    >>> parse_formatted("07.05.2012 09:00", "%d.%m.%Y %H:%M") == parse_time("2012-05-07T09:00")
    True
    """
    try:
        found = datetime.strptime(text.strip(), form)
    except ValueError:
        return None
    try:
        if found.tzinfo is not None:
            return (found - _EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        return None
    micros = (found.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    micros = micros if zone is None else in_zone(micros, zone)
    return micros if _FIRST <= micros <= _LAST else None


_PLAIN = 2.0**31


def time_from_number(number: int | float | Decimal, unit: str = "s") -> int | None:
    """Microseconds of a time that is a number, or None where it is not a time of the years 1 to 9999.

    >>> time_from_number(1.5), time_from_number(1500, "ms"), time_from_number(45_000.25, "excel")
    (1500000, 1500000, 1678860000000000)
    """
    if unit == "s" and number.__class__ is float and -_PLAIN < number < _PLAIN:
        # Up to here the product is off by less than a quarter: so near to a whole number, it is that one.
        scaled = number * 1e6
        near = round(scaled)
        if -0.25 <= scaled - near <= 0.25:
            return near
    try:
        exact = number if isinstance(number, Decimal) else Decimal(repr(number))
        if not exact.is_finite() or abs(exact) > 10**21:
            return None
        if unit == "excel":
            exact -= EXCEL_EPOCH
        micros = int((exact * TIME_UNITS[unit]).to_integral_value(ROUND_HALF_EVEN))
    except InvalidOperation:
        return None
    return micros if _FIRST <= micros <= _LAST else None


def nearest_thousandth(count: Any) -> Any:
    """A thousandth of a count, or of counts in an array of NumPy; a half goes to the even neighbour.

    >>> nearest_thousandth(1500), nearest_thousandth(2500), nearest_thousandth(2501)
    (2, 2, 3)
    """
    whole, rest = divmod(count, 1_000)
    return whole + ((rest > 500) | ((rest == 500) & (whole % 2 == 1)))


def unit_of_number(number: int | float | Decimal) -> str | None:
    """The unit in which a number is a time between 1980 and 2100; None where there is none.

    >>> unit_of_number(1_336_381_200_000), unit_of_number(10**30)
    ('ms', None)
    """
    for unit in ("s", "ms", "us", "ns"):
        micros = time_from_number(number, unit)
        if micros is not None and _LIKELY[0] <= micros <= _LIKELY[1]:
            return unit
    return None


_LIKELY = (315_532_800_000_000, 4_102_444_800_000_000)


def format_time(micros: int) -> str:
    """The one way a time is written down.

    >>> format_time(0)
    '1970-01-01T00:00:00.000000Z'
    """
    second, rest = divmod(micros, 1_000_000)
    return f"{_format_second(second)}.{rest:06}Z"


@lru_cache(4096)
def _format_second(second: int) -> str:
    """A second since 1970; times that are written down together mostly share it."""
    return (_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()


def datetime_of(micros: int) -> datetime:
    """A time as Python has it, in UTC.

    >>> datetime_of(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return _EPOCH + timedelta(microseconds=micros)


def parse_duration(text: str) -> int | None:
    """Microseconds of a duration such as `5min`, or None where the text is none.

    >>> parse_duration("5min"), parse_duration("1.5s")
    (300000000, 1500000)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    number, unit = found.groups()
    micros = int((Decimal(number) * DURATION_UNITS[unit]).to_integral_value(ROUND_HALF_EVEN))
    return micros if micros <= _LAST else None


def format_duration(micros: int) -> str:
    """A duration in the largest unit that gives a whole number.

    >>> format_duration(300_000_000), format_duration(1500)
    ('5min', '1500us')
    """
    for unit, size in reversed(DURATION_UNITS.items()):
        if micros and micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us"
