"""A histogram of durations in the manner of HDR: constant memory, and every value within 1.6 percent."""

from __future__ import annotations

__all__ = ["Histogram"]

_BITS = 6  # buckets for each doubling: 2**6


class Histogram:
    """Counts whole numbers from 0 on.

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
