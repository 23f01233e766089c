"""LATEST: the last known event of something else, looked up for a match of the others (semantics 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kaicep.plan.events import Event
from kaicep.plan.expressions import Call
from kaicep.plan.nodes import Latest, Pattern
from kaicep.plan.types import Type
from kaicep.reference.chains import Semantics, may_take
from kaicep.reference.requirements import Rounds, holds, requirement, windows_hold

__all__ = ["LatestEvents"]


class LatestEvents:
    """The LATEST variables of a pattern, and all events, of any partition, that they may take, in order."""

    def __init__(self, pattern: Pattern, events: Sequence[Event], semantics: Semantics) -> None:
        self.latest = pattern.latest
        self.semantics = semantics
        self.events = {each.variable: list(self._possible(each, events)) for each in pattern.latest}

    def _possible(self, latest: Latest, events: Sequence[Event]) -> Iterator[Event]:
        """The events that pass the variable's own FILTERs and PATHs."""
        for event in events:
            if may_take(latest.chain, event, self.semantics):
                yield event

    def added_to(self, rounds: Rounds) -> Rounds | None:
        """The events of a match with the latest ones beside them; None where that makes it no match."""
        found = dict(rounds)
        for each in self.latest:
            event = self._last(each, rounds)
            if event is not None:
                found[each.variable] = (event,)
            elif not each.optional:
                return None
        for each in self.latest:
            if not windows_hold(each.windows, found):
                return None
            if not all(holds(requirement(one), found, self.semantics) for one in each.conditions):
                return None
        return found

    def _last(self, latest: Latest, rounds: Rounds) -> Event | None:
        """The last candidate in order: no event of the match, and no later than its last one."""
        bound = [event for events in rounds.values() for event in events]
        end = max(event.ts for event in bound)
        equal = [Call("=", sides, Type.BOOL) for sides in latest.keys]
        deciding = [*map(requirement, equal), *map(requirement, latest.semantics)]
        for event in reversed(self.events[latest.variable]):
            if event.ts > end or event in bound:
                continue
            beside = {**rounds, latest.variable: (event,)}
            if all(holds(each, beside, self.semantics) for each in deciding):
                return event
        return None
