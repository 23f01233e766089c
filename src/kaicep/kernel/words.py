"""The arithmetic of ids on columns, the same as `plan.identity` does on Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kaicep.kernel.compile import compile_source
from kaicep.plan.identity import MatchId, stream_words

__all__ = ["SOURCE", "identities", "identity_of"]

SOURCE = '''
@njit(nogil=True, cache=True)
def mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True)
def pair(low, high, first, second):
    low = mix(low ^ first)
    return low, mix(high + second + np.uint64(0x9E3779B97F4A7C15)) ^ (low >> np.uint64(1))


@njit(nogil=True, cache=True)
def number_words(value):
    """Kind and word of a float64 (NaN is null), as `plan.identity.value_words` gives them."""
    if value != value:
        return np.uint64(0), np.uint64(0)
    if value == math.floor(value) and -9223372036854775808.0 <= value < 9223372036854775808.0:
        return np.uint64(3), np.uint64(np.int64(value))
    cell = np.empty(1, np.float64)
    cell[0] = value
    return np.uint64(4), cell.view(np.uint64)[0]
'''
"""What generated kernels that make ids begin with."""


_IDENTITIES = """
@njit(nogil=True, cache=True)
def identities(low, high, part, seq, out_low, out_high):
    for i in range(len(part)):
        word = np.uint64(part[i])
        a, b = pair(low, high, word, word)
        word = np.uint64(seq[i])
        out_low[i], out_high[i] = pair(a, b, word, word)


@njit(nogil=True, cache=True)
def identify(low, high, seq, out_low, out_high):
    word = np.uint64(seq)
    out_low[0], out_high[0] = pair(low, high, word, word)
"""


def identities(stream: str, part: Any, seq: Any) -> tuple[Any, Any]:
    """The two words of the identity of each event of a stream.

    >>> from kaicep.plan.events import Event
    >>> from kaicep.plan.identity import event_words
    >>> low, high = identities("s", np.array([0, 1]), np.array([5, 6]))
    >>> (int(low[1]), int(high[1])) == event_words(Event("s", 1, 6, 0))
    True
    """
    low, high = stream_words(stream)
    out = np.empty(len(part), np.uint64), np.empty(len(part), np.uint64)
    compile_source(SOURCE + _IDENTITIES)["identities"](np.uint64(low), np.uint64(high), part, seq, *out)
    return out


def identity_of(stream: str, part: int, out_low: Any, out_high: Any) -> Callable[[int], None]:
    """Writes the words of an event's identity, by its position in a part, into arrays of one element."""
    made = MatchId.of(*stream_words(stream)).word(part)
    low, high = np.uint64(made.low), np.uint64(made.high)
    identify = compile_source(SOURCE + _IDENTITIES)["identify"]
    return lambda seq: identify(low, high, seq, out_low, out_high)
