"""The arithmetic of ids on columns, the same as `plan.identity` does on Python's integers."""

# mypy: ignore-errors
# Numba infers the types of all that follows.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kaicep.kernel.columns import NO_TIME, Array, Column, Strings
from kaicep.kernel.jit import entry, inner
from kaicep.plan.events import MatchId, stream_words, value_words
from kaicep.plan.types import Type

__all__ = [
    "derived_identities",
    "identify",
    "identify_derived",
    "identify_positions",
    "identities",
    "identity_of",
    "identity_words",
    "mix",
    "object_words",
    "pair",
    "signed_words",
    "unsigned_words",
]

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


@entry
def identify_positions(low, high, part, seq, out_low, out_high):
    """The words of events' identities, by where they stand in their stream."""
    for i in range(len(part)):
        word = U(part[i])
        a, b = pair(low, high, word, word)
        word = U(seq[i])
        out_low[i], out_high[i] = pair(a, b, word, word)


@entry
def identify_derived(low, high, first, second, out_low, out_high):
    """The same of events that are matches, by the words of their ids."""
    for i in range(len(first)):
        out_low[i], out_high[i] = pair(low, high, first[i], second[i])


@entry
def identify(low, high, seq, out_low, out_high):
    """The same of one event, by its position in its part."""
    word = U(seq)
    out_low[0], out_high[0] = pair(low, high, word, word)


def identities(stream: str, part: Any, seq: Any) -> tuple[Any, Any]:
    """The two words of the identity of each event of a stream.

    >>> from kaicep.plan.events import Event
    >>> from kaicep.plan.events import event_words
    >>> low, high = identities("s", np.array([0, 1]), np.array([5, 6]))
    >>> (int(low[1]), int(high[1])) == event_words(Event("s", 1, 6, 0))
    True
    """
    low, high = stream_words(stream)
    out = np.empty(len(part), np.uint64), np.empty(len(part), np.uint64)
    identify_positions(U(low), U(high), np.ascontiguousarray(part), np.ascontiguousarray(seq), *out)
    return out


def derived_identities(stream: str, low_words: Any, high_words: Any) -> tuple[Any, Any]:
    """The same of events that are matches of another query, by the words of their ids.

    >>> from kaicep.plan.events import Event
    >>> from kaicep.plan.events import event_words
    >>> low, high = derived_identities("q", np.array([5], np.uint64), np.array([6], np.uint64))
    >>> (int(low[0]), int(high[0])) == event_words(Event("q", 0, 0, 0, id=f"{5:016x}{6:016x}"))
    True
    """
    low, high = stream_words(stream)
    out = np.empty(len(low_words), np.uint64), np.empty(len(low_words), np.uint64)
    identify_derived(U(low), U(high), low_words, high_words, *out)
    return out


def signed_words(words: Any) -> Any:
    """Words of ids as signed numbers in the same order, so that ids sort as part and position do."""
    return (words ^ _SIGN).view(np.int64)


def unsigned_words(numbers: Any) -> Any:
    """What `signed_words` was given."""
    return np.ascontiguousarray(numbers, np.int64).view(np.uint64) ^ _SIGN


def identity_of(stream: str, part: int, out_low: Any, out_high: Any) -> Callable[[int], None]:
    """Writes the words of an event's identity, by its position in a part, into arrays of one element."""
    made = MatchId.of(*stream_words(stream)).word(part)
    low, high = U(made.low), U(made.high)
    return lambda seq: identify(low, high, seq, out_low, out_high)


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
