"""The stable id of a match: a function of the query, the partition and the events, and of nothing else.

It is 128 bits, made from a seed (a cryptographic hash of the query's name and text) into which words
of 64 bits are mixed one after the other. Strings enter by a hash of their own. Nothing here depends
on host, batch or order of arrival, and a compiled kernel can do the same arithmetic on integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kaicep.plan.events import Event

__all__ = ["MatchId", "match_id"]

_MASK = 2**64 - 1


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
        seed = blake2b(f"{name}\0{text}".encode(), digest_size=16).digest()
        self._low = int.from_bytes(seed[:8], "little")
        self._high = int.from_bytes(seed[8:], "little")

    def copy(self) -> MatchId:
        """Another one that goes on from here: name and text need be hashed only once."""
        made = MatchId.__new__(MatchId)
        made._low, made._high = self._low, self._high
        return made

    def word(self, value: int) -> MatchId:
        """Mixes in an integer of 64 bits."""
        value &= _MASK
        self._low = _mix(self._low ^ value)
        self._high = _mix((self._high + value + 0x9E3779B97F4A7C15) & _MASK) ^ (self._low >> 1)
        return self

    def text(self, value: str) -> MatchId:
        """Mixes in a string."""
        return self.word(int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little"))

    def event(self, event: Event) -> MatchId:
        """Mixes in an event's identity."""
        self.text(event.stream)
        if event.id is not None:
            return self.text(event.id)
        return self.word(event.part).word(event.seq)

    def hex(self) -> str:
        """The id as 32 hexadecimal digits."""
        return f"{self._low:016x}{self._high:016x}"


def match_id(name: str, text: str, parts: Iterable[str]) -> str:
    """The id of a match that is known by a list of strings."""
    made = MatchId(name, text)
    for each in parts:
        made.text(each)
    return made.hex()
