"""How many Python objects a test makes of events, matches and records: the path of columns makes none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kaicep.connectors.records import Record
from kaicep.plan.events import Event, Match


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """By class, how many were made since the test asked for this."""
    made = Counter[type]()

    def count(kind: type) -> None:
        plain = kind.__init__

        def counted(self: Any, *args: Any, **more: Any) -> None:
            made[kind] += 1
            plain(self, *args, **more)

        monkeypatch.setattr(kind, "__init__", counted)

    unread = Match.unread

    def counted_unread(cls: type[Match], *args: Any) -> Match:
        made[Match] += 1
        return unread(*args)

    for each in (Event, Match, Record):
        count(each)
    monkeypatch.setattr(Match, "unread", classmethod(counted_unread))  # which makes one without __init__
    return made
