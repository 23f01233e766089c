"""Time zones: which there are, how far their clocks are from UTC at an instant, and when they show a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

__all__ = ["in_zone", "is_zone", "zone_names", "zone_offset"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A calendar ends where its years do, and a clock of another zone may have passed that end.
_FIRST, _LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


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
    shown = min(max(_EPOCH + timedelta(seconds=second), _FIRST), _LAST).replace(tzinfo=_zone(name))
    return second - (shown.utcoffset() or timedelta()) // timedelta(seconds=1)


def zone_offset(ts: int, name: str) -> int:
    """What a zone adds to UTC at an instant, in microseconds.

    >>> zone_offset(0, "America/Los_Angeles")
    -28800000000
    """
    moment = min(max(_EPOCH + timedelta(microseconds=ts), _FIRST), _LAST)
    offset = moment.astimezone(_zone(name)).utcoffset() or timedelta()
    return offset // timedelta(microseconds=1)
