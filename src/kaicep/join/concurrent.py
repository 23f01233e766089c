"""The concurrent plan (SCEPter paper, section 6): engines for past, present and the cut.

It starts on the live source at once, with nothing. The archive is put through an engine of its own, and the
matches that lie across the cut are found by a third, which sees one window on either side of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from kaicep.archive.archive import Snapshot
from kaicep.history.archived import Seam
from kaicep.history.strategies import History, replayed
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.join.handoff import JoinedRun, engine_for, reach_of, settled, stood
from kaicep.kernel.sort import Lateness
from kaicep.plan.events import Match, by_end
from kaicep.plan.nodes import Interval, WindowAggregate

_NOTHING = Interval(low=0, low_inclusive=False, high=0)


class Concurrent(JoinedRun):
    """Events before some time are the past's, events from it on the present's, also if they are archived.

    That time is one before which nothing can come any more but what is late. Each match is told by one of
    the three engines; when the one across has seen a window after that time, the present goes on alone.
    """

    at_once = True

    def __init__(
        self, history: History, snapshot: Snapshot, lateness: Lateness, settings: Settings | None = None
    ) -> None:
        self.history = history
        self.snapshot = snapshot
        self._past, self.engine, self._across = (
            engine_for(history, snapshot, lateness, settings) for _ in range(3)
        )
        self._at = settled(self._past, snapshot)
        self._reach = reach_of(history.program)
        self._windows = {each.name: each.body for each in history.program.chi_plans}
        self._seam = Seam(snapshot.cut)
        self._behind: list[Callable[[Engine], list[Match]]] = []
        self._ready = False
        self._over = False
        self._first = self._begun(self.engine, self._at)

    @property
    def size(self) -> int:
        """How many events and partial matches it holds."""
        return self.engine.size + (0 if self._over else self._past.size + self._across.size)

    def past(self) -> Iterator[list[Match]]:
        """Works through the archive, then through the window before the time of the cut once more."""
        first, self._first = self._first, []
        yield self._of("present", first)
        before = Interval(high=int(self._at)) if self._at > -math.inf else _NOTHING
        for found in replayed(self.history, self._past, self.snapshot, "hybrid", True, before):
            yield self._of("past", found)
        yield self._of("past", self._past.finish())
        yield self._of("across", self._begun(self._across, self._at - self._reach))
        while self._behind:  # what comes while this is worked through waits its turn
            yield self._spanning(self._behind.pop(0))
        self._ready = True

    @property
    def alone(self) -> bool:
        """Whether the present goes on alone."""
        return self._over

    def edited(self, history: History) -> str | None:
        """Another text of the query; None where it goes on with what it holds, else why it does not."""
        if not self._over:
            return "its matches across the cut are still being found"
        (plan,) = history.program.queries
        reason = self.engine.go_on_as(plan, history.catalog)
        if reason is None:
            self.history = history
        return reason

    def _begun(self, engine: Engine, low: float) -> list[Match]:
        """Puts what the archive has from a time on through an engine, which then goes on from the cut."""
        bounds = Interval(low=int(low)) if low > -math.inf else Interval()
        found = [
            each
            for some in replayed(self.history, engine, self.snapshot, "hybrid", True, bounds, self._at)
            for each in some
        ]
        return found + stood(engine, self.snapshot)

    def do(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        """Lets the present do something, and the one across as well, now or when it has come so far."""
        found = self._of("present", what(self.engine))
        if not self._ready:
            self._behind.append(what)
        elif not self._over:
            found += self._spanning(what)
        return sorted(found, key=by_end)

    def _spanning(self, what: Callable[[Engine], list[Match]]) -> list[Match]:
        found = self._of("across", what(self._across))
        self._over = self._across.watermark > self._at + self._reach  # what began before cannot go on
        return found

    def _of(self, side: str, matches: Sequence[Match]) -> list[Match]:
        return [each for each in matches if self._side(each) == side]

    def _side(self, match: Match) -> str:
        """Who tells of a match: each is told by one of the three."""
        source = self._windows[match.query]
        if isinstance(source, WindowAggregate) and source.window.kind == "sliding":
            if match.end_us < self._at:
                return "past"
            return "across" if match.end_us < self._at + self._reach else "present"
        over = match.end_us <= self._at if isinstance(source, WindowAggregate) else match.end_us < self._at
        if over:
            return "past"
        return "present" if match.start_us >= self._at else "across"
