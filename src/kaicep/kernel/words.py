"""The arithmetic of ids on columns, the same as `plan.identity` does on Python's integers."""

# mypy: ignore-errors
# Numba infers the types of all that follows.

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from kaicep.kernel.columns import NO_TIME, Array, Column, Refs, Strings, Words
from kaicep.kernel.jit import entry, inner
from kaicep.plan.events import stream_words, value_words
from kaicep.plan.types import Type

U = np.uint64
_SIGN = np.uint64(1 << 63)


@inner(forceinline=True)
def mix(word):
    """Every bit of the word reaches every other, as in `plan.identity`."""
    word = (word ^ (word >> U(30))) * U(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> U(27))) * U(0x94D049BB133111EB)
    return word ^ (word >> U(31))


@inner(forceinline=True)
def pair(low, high, first, second):
    """Mixes two words into an id, one into each half."""
    low = mix(low ^ first)
    return low, mix(high + second + U(0x9E3779B97F4A7C15)) ^ (low >> U(1))


@inner(forceinline=True)
def _event(seeds, place, part, seq):
    """The words of an event's identity, by where it stands in its stream, or by those of its id."""
    low, high, derived = seeds[place, 0], seeds[place, 1], seeds[place, 2]
    if derived:
        return pair(low, high, U(part) ^ _SIGN, U(seq) ^ _SIGN)
    low, high = pair(low, high, U(part), U(part))
    return pair(low, high, U(seq), U(seq))


@entry
def identify(low, high, seeds, place, part, seq):
    """The words of events' identities."""
    for i in range(len(low)):
        low[i], high[i] = _event(seeds, place[i], part[i], seq[i])


@entry
def mix_pairs(low, high, first, second):
    """Mixes two words into each id."""
    for m in range(len(low)):
        low[m], high[m] = pair(low[m], high[m], U(first[m]), U(second[m]))


@entry
def mix_events(low, high, seeds, place, part, seq, offsets):
    """Mixes into each id how many events a variable has, and their identities.

    Without offsets it has one for each match, or none where the place is -1.
    """
    for m in range(len(low)):
        begin, end = m, m + np.int64(len(offsets) > 0 or place[m] >= 0)
        if len(offsets) > 0:
            begin, end = offsets[m], offsets[m + 1]
        a, b = pair(low[m], high[m], U(end - begin), U(end - begin))
        for x in range(begin, end):
            c, d = _event(seeds, place[x], part[x], seq[x])
            a, b = pair(a, b, c, d)
        low[m], high[m] = a, b


class Identities:
    """What the identities of the events of some streams begin with.

    >>> from kaicep.plan.events import Event, event_words
    >>> known = Identities(("r", "s"), frozenset())
    >>> low, high = known.of(Refs(np.array([0, 1]), np.array([0, 1]), np.array([5, 6])))
    >>> (int(low[1]), int(high[1])) == event_words(Event("s", 1, 6, 0))
    True
    >>> low, high = Identities(("q",), frozenset("q")).of(Refs(np.zeros(1), *np.array([[-(2**63)], [-9]])))
    >>> (int(low[0]), int(high[0])) == event_words(Event("q", 0, 0, 0, id=f"{0:016x}{2**63 - 9:016x}"))
    True
    """

    def __init__(self, streams: Sequence[str], derived: Collection[str]) -> None:
        rows = [(*stream_words(each), int(each in derived)) for each in streams]
        self._seeds = np.array(rows, np.uint64).reshape(-1, 3)

    def of(self, refs: Refs) -> Words:
        """The words of the identities of these events."""
        low, high = np.empty((2, len(refs.seq)), np.uint64)
        identify(low, high, self._seeds, *_whole(refs))
        return low, high

    def mix(self, low: Array, high: Array, refs: Refs) -> None:
        """Mixes into each id how many events a variable has, and their identities."""
        offsets = _NO_OFFSETS if refs.offsets is None else np.ascontiguousarray(refs.offsets, np.int64)
        mix_events(low, high, self._seeds, *_whole(refs), offsets)


_NO_OFFSETS = np.zeros(0, np.int64)


def _whole(refs: Refs) -> Iterator[Array]:
    return (np.ascontiguousarray(each, np.int64) for each in (refs.place, refs.part, refs.seq))


def signed_words(words: Any) -> Any:
    """Words of ids as signed numbers in the same order, so that ids sort as part and position do."""
    return (words ^ _SIGN).view(np.int64)


# --- values ----------------------------------------------------------------------------------------------


def identity_words(column: Column, strings: Strings) -> tuple[Array, Array]:
    """The kinds of values and their words, as `plan.identity.value_words` gives them."""
    data, count = column.data, len(column)
    if column.type is None:
        return object_words(column)
    if column.type is Type.FLOAT64:
        whole = (np.abs(data) < 2.0**63) | (data == -(2.0**63))
        whole[whole] = data[whole] == np.floor(data[whole])
        words = (data + 0.0).view(np.int64).copy()
        words[whole] = data[whole].astype(np.int64)
        kinds, null = np.where(whole, 3, 4), np.isnan(data)
    elif column.type is Type.STRING:
        null = data < 0
        words = np.zeros(count, np.int64)
        words[~null] = strings.words[data[~null]].view(np.int64)
        kinds = np.full(count, 2)
    else:
        words = data.astype(np.int64)
        kinds = np.full(count, 1 if column.type is Type.BOOL else 3)
        null = words < 0 if column.type is Type.BOOL else words == NO_TIME
        if column.type is Type.INT64:
            null = np.zeros(count, np.bool_) if column.valid is None else ~column.valid
    return np.where(null, 0, kinds), np.where(null, 0, words)


def object_words(column: Column) -> tuple[Array, Array]:
    """The same of values whose types nobody knows."""
    pairs = [value_words(each) for each in column.data]
    kinds, words = (np.array([each[side] for each in pairs], np.uint64) for side in (0, 1))
    return kinds.view(np.int64), words.view(np.int64)
