"""The stable id of a match: a function of the query, the partition and the events, and of nothing else.

It is 128 bits, made from a seed (a cryptographic hash of the query's name and text) into which words
of 64 bits are mixed one after the other. An event enters as the two words of its own identity, which
are the same in every match that it is part of, so that they are computed once. Strings enter by a hash
of their own, numbers as they are. Nothing here depends on host, batch or order of arrival, and a compiled
kernel does the same arithmetic on integers (`kernel.words`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from kaicep.plan.events import Event
from kaicep.plan.types import Value

__all__ = ["MatchId", "event_words", "id_words", "match_id", "stream_words", "text_word", "value_words"]

_MASK = 2**64 - 1

Words = tuple[int, int]


def _mix(word: int) -> int:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class MatchId:
    """A match's id in the making.

    >>> MatchId("q", "SELECT *").text("a").hex() == match_id("q", "SELECT *", ["a"])
    True
    """

    def __init__(self, name: str, text: str) -> None:
        self.low, self.high = _seed(f"{name}\0{text}")

    @classmethod
    def of(cls, low: int, high: int) -> MatchId:
        """One that goes on from these words."""
        made = cls.__new__(cls)
        made.low, made.high = low, high
        return made

    def copy(self) -> MatchId:
        """Another one that goes on from here: name and text need be hashed only once."""
        return MatchId.of(self.low, self.high)

    def pair(self, low: int, high: int) -> MatchId:
        """Mixes in two integers of 64 bits, one into each half."""
        self.low = _mix(self.low ^ low)
        self.high = _mix((self.high + high + 0x9E3779B97F4A7C15) & _MASK) ^ (self.low >> 1)
        return self

    def word(self, value: int) -> MatchId:
        """Mixes in an integer of 64 bits."""
        value &= _MASK
        return self.pair(value, value)

    def text(self, value: str) -> MatchId:
        """Mixes in a string."""
        return self.word(text_word(value))

    def value(self, value: Value) -> MatchId:
        """Mixes in a value that events have in common."""
        kind, word = value_words(value)
        return self.pair(kind, word)

    def event(self, event: Event) -> MatchId:
        """Mixes in an event's identity."""
        return self.pair(*event_words(event))

    def hex(self) -> str:
        """The id as 32 hexadecimal digits."""
        return f"{self.low:016x}{self.high:016x}"


@lru_cache(maxsize=1024)
def _seed(text: str) -> Words:
    seed = blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")


def text_word(value: str) -> int:
    """The word of a string."""
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little")


def value_words(value: Value) -> Words:
    """The kind of a value and its word: numbers that are equal have the same, whatever their type.

    >>> value_words(2) == value_words(2.0), value_words(True) == value_words(1)
    (True, False)
    """
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, str):
        return 2, text_word(value)
    if isinstance(value, float):
        if not value.is_integer() or not -(2.0**63) <= value < 2.0**63:
            return 4, int(struct.unpack("<Q", struct.pack("<d", value))[0])
        value = int(value)
    return 3, value & _MASK


@lru_cache(maxsize=1024)
def stream_words(stream: str) -> Words:
    """The words that the identities of a stream's events start from."""
    return _seed(f"stream\0{stream}")


def event_words(event: Event) -> Words:
    """The two words of an event's identity."""
    made = MatchId.of(*stream_words(event.stream))
    if event.id is not None:
        made.pair(*id_words(event.id))
    else:
        made.word(event.part).word(event.seq)
    return made.low, made.high


def id_words(id: str) -> Words:
    """The two words of a match's id; of any other text, that of the text twice."""
    try:
        return int(id[:16], 16), int(id[16:], 16)
    except ValueError:
        return text_word(id), text_word(id)


def match_id(name: str, text: str, parts: Iterable[str]) -> str:
    """The id of a match that is known by a list of strings."""
    made = MatchId(name, text)
    for each in parts:
        made.text(each)
    return made.hex()
