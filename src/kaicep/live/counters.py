"""Counters by priority, node and consumer; durations as histograms."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

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


_BITS = 6  # buckets for each doubling: 2**6


class Histogram:
    """Counts whole numbers from 0 on in the manner of HDR: in constant memory, each within 1.6 percent.

    >>> found = Histogram()
    >>> for value in range(1, 1001):
    ...     found.record(value)
    >>> found.count, found.percentile(50), found.percentile(99), found.largest
    (1000, 503, 991, 1000)
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0
        self._buckets: dict[int, int] = {}

    def record(self, value: int) -> None:
        """Counts a value; what is below 0 counts as 0."""
        if value < 0:
            value = 0
        shift = value.bit_length() - _BITS - 1
        bucket = (shift << (_BITS + 1)) + (value >> shift) if shift > 0 else value
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        if value > self.largest:
            self.largest = value

    def percentile(self, share: float) -> int:
        """The value that so many percent of all are not above; 0 where there is none.

        Of a bucket, it is the largest value, but never more than was seen.
        """
        wanted = max(1, -(-self.count * share // 100))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                shift, start = bucket >> (_BITS + 1), bucket & ((1 << (_BITS + 1)) - 1)
                return min((start << shift) + (1 << shift) - 1, self.largest)
        return 0


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
