"""Time zones: which there are, and how far their clocks are from UTC at an instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

__all__ = ["is_zone", "zone_names", "zone_offset"]

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


def zone_offset(ts: int, name: str) -> int:
    """What a zone adds to UTC at an instant, in microseconds.

    >>> zone_offset(0, "America/Los_Angeles")
    -28800000000
    """
    moment = min(max(_EPOCH + timedelta(microseconds=ts), _FIRST), _LAST)
    offset = moment.astimezone(_zone(name)).utcoffset() or timedelta()
    return offset // timedelta(microseconds=1)
