"""Who is served when not all can be: the most important consumers first, and only whole ones.

Shedding by validity alone works on events that are thrown away later. When deadlines are missed, the least
important consumers are therefore left out altogether, so that what only they need is not even begun; when
all is well again, they are let in step by step. A try that fails makes the next one wait longer.
"""

from __future__ import annotations

__all__ = ["Admission"]

TOLERATED = 0.02
_BAD = 2  # one bad interval may be a hiccup of the machine
_QUIET = 6
_MOST_QUIET = 96
_STEPS = 12  # that many tries bring everybody back


class Admission:
    """How many of so many consumers, in the order of importance, are admitted.

    >>> some = Admission(10)
    >>> [some.observe(delivered=50, missed=50) for _ in range(2)], some.admitted
    ([False, True], 9)
    >>> [some.observe(100, 0) for _ in range(6)][-1], some.admitted
    (True, 10)
    """

    def __init__(self, consumers: int) -> None:
        self.consumers = consumers
        self.admitted = consumers
        self._bad = 0
        self._quiet = 0
        self._wanted = _QUIET
        self._tried = False

    def resize(self, consumers: int) -> None:
        """Consumers came or went; all are admitted again."""
        self.consumers = self.admitted = consumers

    def observe(self, delivered: int, missed: int) -> bool:
        """Takes the figures of one interval; returns whether the number of admitted consumers changed."""
        before = self.admitted
        share = missed / (delivered + missed) if missed else 0.0
        self._bad = self._bad + 1 if share > TOLERATED else 0
        if self._bad >= _BAD:
            if self._tried:
                self._wanted = min(2 * self._wanted, _MOST_QUIET)
            # One event that is lost leaves traces at several nodes: the share is too large by that.
            cut = max(1, round(self.admitted * min(0.25, share / 4)))
            self.admitted = max(1, self.admitted - cut)
            self._quiet = 0
            self._tried = False
            self._bad = 0
        elif delivered and not self._bad and self.admitted < self.consumers:
            self._quiet += 1
            if self._tried and self._quiet >= _QUIET // 2:
                self._tried, self._wanted = False, _QUIET
            if self._quiet >= self._wanted:
                self.admitted = min(self.consumers, self.admitted + max(1, self.consumers // _STEPS))
                self._quiet = 0
                self._tried = True
        return self.admitted != before
