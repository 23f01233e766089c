"""What is counted: by priority, by node, by consumer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kaicep.live.histogram import Histogram

__all__ = ["MISSED", "REASONS", "Counters"]

REASONS = (
    "outdated",
    "overwritten",
    "full",
    "hopeless",
    "refused",
    "unacknowledged",
    "error",
    "removed",
    "unpaired",
    "orphan",
)
"""Why something was shed: its validity was over before a worker had time for it; a newer event took its slot
before that; a queue was full; nothing reached its consumers in time any more; its time of creation could not
be; it was sent and its consumer left without a word; an operator failed; its reader was removed; nothing came
to be joined with while it was valid; what it belongs with was shed. The last two are no losses of their own:
with suppliers of different rates there is always something left over."""

MISSED = ("outdated", "overwritten", "full")
"""What is shed because there is too much to do."""


@dataclass
class Counters:
    """The figures of a priority or of a node. Latencies are in nanoseconds.

    `offered` is what came to it, `ran` how often an operator ran, for `busy` nanoseconds in all, `delivered`
    what consumers got: `timely` or `late`. `shed` is by reason. `latency` reaches from the supplier to the
    consumer, wherever they are; `inside` is the part of it within the service. `blocked` counts how often a
    callback did not return in time for its worker, `locked` how often an operator kept the interpreter lock
    for so long that others waited.
    """

    offered: int = 0
    ran: int = 0
    busy: int = 0
    delivered: int = 0
    timely: int = 0
    late: int = 0
    bytes: int = 0
    shed: Counter[str] = field(default_factory=Counter)
    blocked: int = 0
    locked: int = 0
    latency: Histogram = field(default_factory=Histogram)
    inside: Histogram = field(default_factory=Histogram)

    def count(self, latency: int, inside: int, timely: bool, size: int) -> None:
        """Counts a delivery."""
        self.delivered += 1
        self.latency.record(latency)
        self.inside.record(inside)
        if timely:
            self.timely += 1
            self.bytes += size
        else:
            self.late += 1

    @property
    def lost(self) -> int:
        """All that was shed and would have been of use."""
        return sum(count for reason, count in self.shed.items() if reason not in ("unpaired", "orphan"))
