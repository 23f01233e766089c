"""A cut: for each part of each stream, the position of the next event, so that everything before it is in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kaicep.errors import Failure

__all__ = ["Cut"]


@dataclass(frozen=True)
class Cut:
    """A set of source positions: stream -> part -> the first position that is not in it.

    >>> cut = Cut({"meter": {0: 120, 1: 80}})
    >>> cut.next("meter", 1), cut.next("meter", 7)
    (80, 0)
    >>> Cut.parse(cut.text()) == cut
    True
    """

    positions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def next(self, stream: str, part: int) -> int:
        """The position at which a part goes on after the cut."""
        return self.positions.get(stream, {}).get(part, 0)

    def beyond(self, other: Cut) -> Iterator[tuple[str, int, int]]:
        """Where this cut goes further than the other: stream, part, the position there.

        >>> list(Cut({"meter": {0: 5, 1: 2}}).beyond(Cut({"meter": {0: 4, 1: 2}})))
        [('meter', 0, 5)]
        """
        for stream, parts in self.positions.items():
            for part, position in parts.items():
                if position > other.next(stream, part):
                    yield stream, part, position

    def text(self) -> str:
        """The cut as JSON: the same cut, the same text."""
        return json.dumps(self.positions, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Cut:
        """The cut that a text of `text` says."""
        try:
            found = json.loads(text)
            return cls(
                {name: {int(part): int(at) for part, at in parts.items()} for name, parts in found.items()}
            )
        except (AttributeError, TypeError, ValueError):
            raise Failure(f"not a cut: {text[:80]}") from None
