"""Small numbers for keys: columns of values enter, the number of each row's combination leaves.

Null is a value, and the two zeros are one. Numbers are given in the order in which keys first occur; those
that are of no use any more are given back by `keep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kaicep.kernel.columns import Array, Column
from kaicep.kernel.output import words_of
from kaicep.kernel.window_machine import intern
from kaicep.kernel.words import object_words
from kaicep.plan.types import Type

__all__ = ["Keys", "key_width", "key_words"]


def key_words(column: Column) -> list[Array]:
    """The values of a column as words that are equal where the values are; `key_width` says how many."""
    if column.type is None:
        return list(object_words(column))
    if column.type is Type.FLOAT64:
        return [np.where(np.isnan(column.data), np.nan, column.data + 0.0).view(np.int64)]
    if column.type is Type.INT64:
        valid = np.ones(len(column), np.int64) if column.valid is None else column.valid.astype(np.int64)
        return [column.data * valid, valid]
    return [words_of(column)]


def key_width(type: Type | None) -> int:
    """How many words a value of a type is among keys."""
    return 2 if type in (None, Type.INT64) else 1


class Keys:
    """The numbers of combinations of so many words.

    >>> keys = Keys(2)
    >>> keys.numbers([np.array([5, 5, 5]), np.array([1, 2, 1])]).tolist(), len(keys)
    ([0, 1, 0], 2)
    """

    def __init__(self, width: int) -> None:
        self.width, self.count = width, 0
        self._words: Array = np.zeros((width, 64), np.int64)
        self._slots: Array = np.full(256, -1, np.int64)

    def __len__(self) -> int:
        return self.count

    @property
    def words(self) -> Array:
        """The words of the keys, a column for each."""
        return self._words[:, : self.count]

    def numbers(self, words: Sequence[Array], rows: int | None = None) -> Array:
        """The numbers of some keys, given by rows of words; without words, there are so many."""
        count = len(words[0]) if rows is None else rows
        given = np.empty((self.width, count), np.int64)
        for own, each in zip(given, words, strict=True):
            own[:] = each
        self._make_room(self.count + count)
        ids = np.empty(count, np.int64)
        self.count = intern(given, self._words, self._slots, self.count, ids)
        return ids

    def keep(self, rows: Any) -> None:
        """Forgets all other keys; those that stay get new numbers, in their order."""
        self.load(self.words[:, rows].copy())

    def load(self, words: Array) -> None:
        """Begins again with these keys, in this order."""
        width, count = words.shape
        self.width, self.count = width, 0
        self._words = np.zeros((width, count + 64), np.int64)
        self._slots = np.full(4 << (count + 64).bit_length(), -1, np.int64)
        self.numbers(list(words), count)

    def _make_room(self, count: int) -> None:
        if count > self._words.shape[1]:
            more = np.zeros((self.width, 2 * count), np.int64)
            more[:, : self.count] = self.words
            self._words = more
        if 2 * count > len(self._slots):
            self._slots = np.full(4 << int(count).bit_length(), -1, np.int64)
            known, again = self.words.copy(), np.empty(self.count, np.int64)
            intern(known, self._words, self._slots, 0, again)
