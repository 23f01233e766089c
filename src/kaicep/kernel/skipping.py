"""AFTER MATCH over columns: which of the matches of a partition are taken (semantics 2).

Matches are taken in the order of their last event, first event, longer first, then from left to right. A
match is decided when no match before it can come any more; one that still awaits a deadline holds back those
behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kaicep.kernel.columns import Array, Matches
from kaicep.kernel.jit import entry
from kaicep.kernel.output import joined, ranges, taken


@dataclass(frozen=True)
class Order:
    """What AFTER MATCH asks of matches.

    The numbers of their partitions; the places in the order of their first and last events; before which
    place no later match may begin if this one is taken; the places of all events, match by match.
    """

    partition: Array
    first: Array
    last: Array
    resume: Array
    versions: Array
    offsets: Array
    places: Array

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Array) -> Order:
        """That of some of the matches."""
        offsets, flat = ranges(self.offsets, rows)
        return Order(
            self.partition[rows],
            self.first[rows],
            self.last[rows],
            self.resume[rows],
            self.versions[rows],
            offsets,
            self.places[flat],
        )

    def after(self, others: Sequence[Order]) -> Order:
        """That of other matches and then these."""
        every = [*others, self]
        made = {
            each.name: np.concatenate([getattr(one, each.name) for one in every]) for each in fields(Order)
        }
        lengths = np.concatenate([np.diff(one.offsets) for one in every])
        return Order(**{**made, "offsets": np.concatenate([[0], np.cumsum(lengths)])})


class Skipping:
    """The matches that are not decided yet, and what those that were taken rule out."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.waiting: list[tuple[Matches, Order]] = []
        self.resume = np.full(16, -1, np.int64)
        """By partition, the place in the order before which no match may begin."""
        self.used = np.zeros(0, np.int64)
        """The places of first events with which no match may begin, in order."""

    def add(self, matches: Matches, order: Order) -> None:
        """Takes matches that were found."""
        if len(matches):
            self.waiting.append((matches, order))

    @property
    def first_end(self) -> int | None:
        """When the first of the matches that wait has ended."""
        return min((int(each.end.min()) for each, _ in self.waiting), default=None)

    def settled(self, bounds: Mapping[str, Array], below: int) -> Iterator[tuple[Matches, Array]]:
        """The matches that are taken, with their versions.

        Those are decided whose last event is before the place `below`, and before that of every match that
        awaits its deadline: `bounds` has the partitions of these and the places of their last events.
        """
        if not self.waiting:
            return
        matches, order = self._together()
        rows, same = _in_order(order)
        partitions = int(max(order.partition.max(), bounds["partition"].max(initial=0))) + 1
        first_open = np.full(partitions, below, np.int64)
        np.minimum.at(first_open, bounds["partition"], bounds["last"])
        decided = order.last[rows] < first_open[order.partition[rows]]
        rest = np.sort(rows[~decided])
        self.waiting = [(taken(matches, rest), order.take(rest))] if len(rest) else []
        rows, same = rows[decided], same[decided]
        chosen = self._chosen(order, rows, same, partitions)
        if chosen.any():
            rows = rows[chosen]
            yield taken(matches, rows), order.versions[rows]

    def _together(self) -> tuple[Matches, Order]:
        if len(self.waiting) == 1:
            return self.waiting[0]
        *others, last = [order for _, order in self.waiting]
        return joined([each for each, _ in self.waiting]), last.after(others)

    def _chosen(self, order: Order, rows: Array, same: Array, partitions: int) -> Array:
        """Which of the matches, in order, are taken."""
        if len(self.resume) < partitions:
            more = np.full(2 * partitions, -1, np.int64)
            more[: len(self.resume)] = self.resume
            self.resume = more
        first = order.first[rows]
        firsts, number = np.unique(first, return_inverse=True)
        used = np.isin(firsts, self.used)
        chosen = np.zeros(len(rows), np.bool_)
        choose(
            order.partition[rows], first, number, order.resume[rows], same, used, self.resume,
            self.mode == "next", chosen,
        )  # fmt: skip
        if self.mode == "next":
            self.used = np.union1d(self.used, firsts[used])
        return chosen

    def kept(self) -> tuple[Matches | None, dict[str, Array]]:
        """The matches that wait, and the arrays that say the rest."""
        partitions = np.flatnonzero(self.resume >= 0)
        arrays = {"used": self.used, "resumed": partitions, "resumed at": self.resume[partitions]}
        if not self.waiting:
            return None, arrays | {"partition": np.zeros(0, np.int64)}
        matches, order = self._together()
        return matches, arrays | {each.name: getattr(order, each.name).copy() for each in fields(Order)}

    def load(self, matches: Matches | None, arrays: Mapping[str, Array]) -> None:
        """Goes on from what was kept."""
        self.used = arrays["used"]
        self.resume = np.full(int(arrays["resumed"].max(initial=15)) + 1, -1, np.int64)
        self.resume[arrays["resumed"]] = arrays["resumed at"]
        if matches is not None:
            self.waiting = [(matches, Order(**{each.name: arrays[each.name] for each in fields(Order)}))]

    def forget(self, before: int) -> None:
        """Lets go of what says nothing of matches that begin at a place in the order or after it."""
        before = min((before, *(int(order.first.min()) for _, order in self.waiting)))
        self.used = self.used[np.searchsorted(self.used, before) :]
        self.resume[self.resume <= before] = -1


def _in_order(order: Order) -> tuple[Array, Array]:
    """The matches in their order, partition by partition; whether each has the events of the one before."""
    lengths = np.diff(order.offsets)
    rows = np.lexsort((-lengths, order.first, order.last, order.partition))
    keys = np.stack([order.partition, order.last, order.first, lengths])[:, rows]
    tie = np.zeros(len(rows), np.bool_)
    tie[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    among = tie.copy()
    among[:-1] |= tie[1:]
    some = np.flatnonzero(among)
    if not len(some):
        return rows, tie
    # Only those that begin, end and count alike are compared event by event.
    places = np.full((len(some), int(lengths[rows[some]].max())), -1, np.int64)
    at, flat = ranges(order.offsets, rows[some])
    where = np.repeat(np.arange(len(some)), np.diff(at))
    places[where, np.arange(len(flat)) - at[where]] = order.places[flat]
    groups = np.cumsum(~tie[some])
    again = np.lexsort((*places.T[::-1], groups))
    rows[some] = rows[some[again]]
    places = places[again]
    tie[some[1:]] &= (places[1:] == places[:-1]).all(axis=1)
    return rows, tie


@entry
def choose(
    partition: Any,
    first: Any,
    number: Any,
    resume: Any,
    same: Any,
    used: Any,
    resumed: Any,
    once: Any,
    chosen: Any,
) -> None:
    """Goes through matches in order; matches of the same events stand or fall together."""
    at = 0
    while at < len(first):
        end, furthest = at + 1, resume[at]
        while end < len(first) and same[end]:
            furthest = max(furthest, resume[end])
            end += 1
        if first[at] >= resumed[partition[at]] and not used[number[at]]:
            chosen[at:end] = True
            resumed[partition[at]] = max(resumed[partition[at]], furthest)
            if once:
                used[number[at]] = True
        at = end
