"""Which plan a query over past and present gets, and why: by its window, its range, and how urgent it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kaicep.archive.snapshot import Snapshot
from kaicep.endtoend.concurrent import Concurrent
from kaicep.endtoend.config import URGENCY
from kaicep.endtoend.history import History
from kaicep.endtoend.joint import HandOff, Joined
from kaicep.endtoend.reach import reach_of, why_not_concurrent
from kaicep.errors import Failure
from kaicep.hosts.settings import Settings
from kaicep.kernel.sort import Lateness
from kaicep.plan.nodes import Interval, Program
from kaicep.plan.time import format_duration

__all__ = ["Choice", "choose_plan", "events_within", "explained", "joined"]

EVENTS_A_SECOND = 1_000_000
"""How many archived events an engine gets through in a second; `kaicep bench recovery` measures it."""

_WINDOWS = 4
"""The windows around the cut are gone through twice: they pay where the range is so many times as long."""


@dataclass(frozen=True)
class Choice:
    """A plan, `hand-off` or `concurrent`, and the reason for it in words."""

    plan: str
    reason: str

    def __str__(self) -> str:
        return f"{self.plan}: {self.reason}"


def choose_plan(
    history: History, snapshot: Snapshot, lateness: Lateness, urgency: int = URGENCY, plan: str = "auto"
) -> Choice:
    """The plan that suits queries over a snapshot and what comes after it.

    A hand-off costs least. It lets the live source wait until the past is done: where that takes longer
    than `urgency` (microseconds), and the range is much longer than the window, both go on side by side.
    """
    impossible = why_not_concurrent(history.program, lateness)
    if plan == "concurrent" and impossible is not None:
        raise Failure(f"a concurrent plan is not possible: {impossible}")
    if plan != "auto":
        return Choice(plan, "as it was asked for")
    events, length = events_within(history, snapshot)
    reach = reach_of(history.program)
    wait = events * 1_000_000 // EVENTS_A_SECOND
    if wait <= urgency:
        return Choice("hand-off", f"{events:,} events of the past are soon gone through")
    if impossible is not None:
        return Choice("hand-off", f"although there are {events:,} events of the past, since {impossible}")
    if reach * _WINDOWS > length:
        window = format_duration(int(reach))
        return Choice("hand-off", f"the window of {window} is much of the range that it looks back on")
    patience = format_duration(urgency)
    return Choice(
        "concurrent", f"{events:,} events of the past would hold live matches up for longer than {patience}"
    )


def explained(program: Program) -> str:
    """How queries would be joined over an archive and what comes, for a reader."""
    impossible = why_not_concurrent(program, 0)
    if impossible is not None:
        return f"hand-off, since {impossible}"
    window = format_duration(int(reach_of(program) * _WINDOWS))
    many = URGENCY * EVENTS_A_SECOND // 1_000_000
    return f"hand-off; concurrent from {many:,} events of the past on, if these cover {window} or more"


def events_within(history: History, snapshot: Snapshot) -> tuple[int, float]:
    """How many archived events the queries have to look at, at most, and how long a time these cover."""
    events, length = 0, 0.0
    for stream, within in history.spans().items():
        files = snapshot.files(stream, within)
        events += sum(each.rows for each in files)
        length = max(length, _covered(within, [(each.low, each.high) for each in files]))
    return events, length


def _covered(within: Interval, ranges: list[tuple[int | None, int | None]]) -> float:
    """How long a time files cover inside the bounds; where nothing is known of one, it may be any."""
    if not ranges:
        return 0.0
    low = min(-math.inf if low is None else low for low, _ in ranges)
    high = max(math.inf if high is None else high for _, high in ranges)
    low = low if within.low is None else max(low, within.low)
    high = high if within.high is None else min(high, within.high)
    return high - low


def joined(
    history: History,
    snapshot: Snapshot,
    lateness: Lateness,
    plan: str = "auto",
    settings: Settings | None = None,
) -> Joined:
    """A query over a snapshot and what comes after it, by a plan or by the one that suits it.

    `settings.parts` are the parts of the live source, where the archive may not know of all of them.
    """
    chosen = choose_plan(history, snapshot, lateness, plan=plan)
    made = Concurrent if chosen.plan == "concurrent" else HandOff
    return made(history, snapshot, lateness, settings)
