"""The events that a match of EP-SPARQL rests on: with them alone it is there.

A solution does not say which triples it used, so this is found out by leaving events out, first many at a
time, then one by one, as long as the match stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kaicep.api import Run
from kaicep.plan.events import Event, Match
from kaicep.why.sources import events_of

__all__ = ["supporting"]

_MOST_TRIES = 400


def supporting(run: Run, match: Match) -> list[Event]:
    """The fewest events, left to right, that still give the match; more of them where there are very many."""
    everything = [each for each in events_of(run) if not each.late]
    inside = [each for each in everything if match.start_us <= _start(each) and each.ts <= match.end_us]
    kept = inside if _gives(run, inside, match) else everything
    tries, size = _MOST_TRIES, len(kept) // 2
    while size and tries > 0:
        place = 0
        while place < len(kept) and tries > 0:
            without = kept[:place] + kept[place + size :]
            tries -= 1
            if _gives(run, without, match):
                kept = without
            else:
                place += size
        size //= 2
    return kept


def _start(event: Event) -> int:
    return event.ts if event.start is None else event.start


def _gives(run: Run, events: Sequence[Event], match: Match) -> bool:
    return any(each.id == match.id for each in replace(run, batches=(events,)).matches())
