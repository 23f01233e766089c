"""Answers as columns, and as matches for whoever asks for them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from kaicep.kernel.epsparql.dictionary import Array
from kaicep.kernel.epsparql.rules import json_of
from kaicep.plan.events import Match, by_end

__all__ = ["Answers", "Block"]


@dataclass(frozen=True)
class Block:
    """Answers of one query, in the order of end and id: places in `texts` (-1 is unbound), times, ids.

    Those of a rule have `triples`: for each of its template the terms, and for which answers there is one.
    """

    query: str
    names: tuple[str, ...]
    texts: Sequence[str]
    values: Array
    start: Array
    end: Array
    low: Array
    high: Array
    triples: tuple[tuple[Array, Array, Array, Array], ...] | None = None

    def __len__(self) -> int:
        return len(self.end)

    def take(self, places: Array) -> Block:
        """Some of them."""
        made = self.triples
        return Block(
            self.query,
            self.names,
            self.texts,
            self.values[places],
            self.start[places],
            self.end[places],
            self.low[places],
            self.high[places],
            None
            if made is None
            else tuple((a[places], b[places], c[places], d[places]) for a, b, c, d in made),
        )

    def matches(self) -> Iterator[Match]:
        """The answers as matches."""
        if self.triples is not None:
            yield from self._constructed()
            return
        names, query = self.names, self.query
        shown = {code: json_of(self.texts[code]) for code in np.unique(self.values).tolist() if code >= 0}
        times = zip(self.start.tolist(), self.end.tolist(), strict=True)
        ids = zip(self.low.tolist(), self.high.tolist(), strict=True)
        for row, (start, end), (low, high) in zip(self.values.tolist(), times, ids, strict=True):
            pairs = zip(names, row, strict=True)
            select = {name: shown[code].copy() for name, code in pairs if code >= 0}
            yield Match(query, f"{low:016x}{high:016x}", start, end, select)

    def _constructed(self) -> Iterator[Match]:
        texts, lines = self.texts, [set[str]() for _ in range(len(self))]
        for columns in self.triples or ():
            for into, (s, p, o, is_one) in zip(lines, zip(*map(_listed, columns), strict=True), strict=True):
                if is_one:
                    into.add(f"{texts[s]} {texts[p]} {texts[o]} .")
        columns = self.start, self.end, self.low, self.high
        answers = zip(*map(_listed, columns), strict=True)
        for made, (start, end, low, high) in zip(lines, answers, strict=True):
            id = f"{low:016x}{high:016x}"
            yield Match(self.query, id, start, end, triples=tuple(sorted(made)))


def _listed(column: Array) -> list[int]:
    return column.tolist()  # type: ignore[no-any-return]


class Answers(Sequence[Match]):
    """Matches that are made when somebody looks at them; their columns are there at once."""

    def __init__(self, blocks: Iterable[Block], others: Iterable[Match] = ()) -> None:
        self.blocks = [each for each in blocks if len(each)]
        self._others = list(others)
        self._made: list[Match] | None = None

    def __len__(self) -> int:
        return len(self._others) + sum(map(len, self.blocks))

    def __iter__(self) -> Iterator[Match]:
        return iter(self._matches())

    @overload
    def __getitem__(self, place: int) -> Match: ...

    @overload
    def __getitem__(self, place: slice) -> list[Match]: ...

    def __getitem__(self, place: int | slice) -> Match | list[Match]:
        return self._matches()[place]

    def _matches(self) -> list[Match]:
        if self._made is None:
            made = [*self._others, *(match for block in self.blocks for match in block.matches())]
            if len(self.blocks) + bool(self._others) > 1:
                made.sort(key=by_end)
            self._made = made
        return self._made
