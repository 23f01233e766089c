"""Keys and their numbers: columns of values enter, the number of each row's combination leaves.

What partial matches wait for, which events belong together, and what PATHs can tell apart are all found by
such numbers. They are given in the order in which keys first occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kaicep.kernel.columns import Array, Column, Strings, Words
from kaicep.kernel.jit import entry
from kaicep.kernel.output import column_of_words, words_of
from kaicep.kernel.tables import NULL
from kaicep.kernel.words import identity_words, mix, object_words
from kaicep.plan.types import Type

U = np.uint64
_SMALL = 1 << 22
"""Words below this, as the codes of strings are, find the numbers of their keys in a table."""


@entry
def number(words, known, slots, direct, meta, ids):  # type: ignore[no-untyped-def]
    """The numbers of keys, whose words stand below each other; a new one gets the next.

    False where there is no room; `meta` has how many there are, and the first key that has no number yet.
    `direct` has the numbers of small words, where keys have one.
    """
    last, width, count, small = U(len(slots) - 1), len(words), meta[0], U(len(direct))
    for i in range(meta[1], words.shape[1]):
        if small and U(words[0, i]) < small and direct[U(words[0, i])] >= 0:
            ids[i] = direct[U(words[0, i])]
            continue
        h = U(width)
        for j in range(width):
            h = mix(h ^ U(words[j, i]))
        at = h & last
        while True:
            found = slots[at]
            same = found >= 0
            if found < 0:
                if 2 * count >= len(slots) or count >= known.shape[1]:
                    meta[0], meta[1] = count, i
                    return False
                found = slots[at] = count
                for j in range(width):
                    known[j, count] = words[j, i]
                count += 1
                same = True
            else:
                for j in range(width):
                    same &= known[j, found] == words[j, i]
            if same:
                ids[i] = found
                if small and U(words[0, i]) < small:
                    direct[U(words[0, i])] = found
                break
            at = (at + U(1)) & last
    meta[0], meta[1] = count, 0
    return True


class Keys:
    """The numbers of combinations of so many words.

    >>> keys = Keys(2)
    >>> keys.numbers([np.array([5, 5, 5]), np.array([1, 2, 1])]).tolist(), len(keys)
    ([0, 1, 0], 2)
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._direct: Array = np.zeros(0, np.int64)
        self._begin(np.zeros((width, 0), np.int64), 64)

    def __len__(self) -> int:
        return int(self._meta[0])

    @property
    def words(self) -> Array:
        """The words of the keys, a column for each."""
        return self._words[:, : len(self)]

    def numbers(self, words: Sequence[Array] | Array, rows: int | None = None) -> Array:
        """The numbers of some keys, given by rows of words; without words, there are so many."""
        count = len(words[0]) if rows is None else rows
        given = np.empty((self.width, count), np.int64)
        for own, each in zip(given, words, strict=True):
            own[:] = each
        ids = np.empty(count, np.int64)
        most = int(given.max(initial=-1)) if self.width == 1 else -1
        if len(self._direct) <= most < _SMALL:
            self._direct = np.full(2 * most + 1, -1, np.int64)
        while not number(given, self._words, self._slots, self._direct, self._meta, ids):
            at = self._meta[1]
            self._begin(self.words.copy(), 4 * len(self))
            self._meta[1] = at
        return ids

    def keep(self, rows: Any) -> None:
        """Forgets all other keys; those that stay get new numbers, in their order."""
        self.load(self.words[:, rows].copy())

    def load(self, words: Array) -> None:
        """Begins again with these keys, in this order."""
        self.width = len(words)
        self._direct = np.zeros(0, np.int64)
        self._begin(words, 2 * words.shape[1] + 64)

    def _begin(self, words: Array, room: int) -> None:
        self._words = np.zeros((self.width, room), np.int64)
        self._slots: Array = np.full(2 << int(room).bit_length(), -1, np.int64)
        self._meta = np.zeros(2, np.int64)
        nothing, ids = np.zeros(0, np.int64), np.empty(words.shape[1], np.int64)
        number(words, self._words, self._slots, nothing, self._meta, ids)


def key_words(column: Column) -> list[Array]:
    """The values of a column as words that are equal where the values are; `key_width` says how many.

    Null is a value, and the two zeros are one.
    """
    if column.type is None:
        return list(object_words(column))
    if column.type is Type.FLOAT64:
        return [np.where(np.isnan(column.data), np.nan, column.data + 0.0).view(np.int64)]
    if column.type is Type.INT64:
        valid = np.ones(len(column), np.int64) if column.valid is None else column.valid.astype(np.int64)
        return [column.data * valid, valid]
    return [words_of(column)]


def key_identities(type: Type | None, words: Array, strings: Strings) -> Words:
    """The values of keys, given by their words, as ids have them."""
    if type is None:
        kinds, values = words
        return kinds, values
    column = column_of_words(type, words[0])
    if type is Type.INT64:
        column = Column(type, words[0], words[1] != 0)
    return identity_words(column, strings)


def key_width(type: Type | None) -> int:
    """How many words a value of a type is among keys."""
    return 2 if type in (None, Type.INT64) else 1


class NumberLists:
    """Lists of numbers, found by number.

    >>> lists = NumberLists()
    >>> for each in lists.fresh(np.array([3, 1, 3])):
    ...     lists.add(each, [each, 10 * each])
    >>> [each.tolist() for each in lists.of(np.array([3, 1]))]
    [[0, 0, 1, 1], [3, 30, 1, 10]]
    """

    def __init__(self) -> None:
        self._starts: Array = np.zeros(0, np.int64)
        self._counts: Array = np.zeros(0, np.int64)
        self._flat: list[int] = []
        self._array: Array = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._flat)

    def fresh(self, numbers: Array) -> list[int]:
        """Those for which there is no list yet, each once."""
        most = int(numbers.max(initial=-1)) + 1
        if most > len(self._starts):
            more = np.full(2 * most - len(self._starts), -1, np.int64)
            self._starts = np.concatenate([self._starts, more])
            self._counts = np.concatenate([self._counts, np.zeros(len(more), np.int64)])
        found: list[int] = np.unique(numbers[self._starts[numbers] < 0]).tolist()
        return found

    def add(self, number: int, values: Sequence[int]) -> None:
        """Takes the list of a number that is fresh."""
        self._starts[number], self._counts[number] = len(self._flat), len(values)
        self._flat += values

    def of(self, numbers: Array) -> tuple[Array, Array]:
        """All values in the lists of some numbers, and at which place each number stands."""
        if len(self._array) < len(self._flat):
            self._array = np.array(self._flat, np.int64)
        counts = self._counts[numbers]
        rows = np.repeat(np.arange(len(numbers)), counts)
        begins = np.repeat(self._starts[numbers] - np.cumsum(counts) + counts, counts)
        return rows, self._array[begins + np.arange(len(rows))]


Types = tuple[Type | None, ...]


class TypedKeys:
    """The numbers of combinations of values: one word for each, and those of other types are other keys."""

    def __init__(self) -> None:
        self._keys = Keys(2)
        self._kinds: list[Types] = []
        self._by_code: dict[tuple[int, bool], Array] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def ids(self, columns: Sequence[Column], may_be_null: int) -> Array:
        """The numbers of the keys of events, -1 where a value is null; the first ones `may_be_null`."""
        kind = self._kind(tuple(each.type for each in columns))
        if len(columns) == 1 and columns[0].type is Type.STRING:
            return self._ids_of_strings(columns[0].data, kind, may_be_null > 0)
        words = self._written(kind, [value_words(each) for each in columns])
        without = (words[1 + may_be_null : 1 + len(columns)] == NULL).any(axis=0)
        if not without.any():
            return self._keys.numbers(words)
        ids: Array = np.full(len(without), -1, np.int64)
        ids[~without] = self._keys.numbers(words[:, ~without])
        return ids

    def _ids_of_strings(self, codes: Array, kind: int, may_be_null: bool) -> Array:
        """By code; only a string that is new is looked for."""
        most = int(codes.max(initial=-1)) + 1
        known = self._by_code.get((kind, may_be_null))
        if known is None or len(known) < most + 1:
            more = np.full(2 * most + 16, -2, np.int32)
            if known is not None:
                more[: len(known) - 1] = known[:-1]
            more[-1] = -2 if may_be_null else -1  # what the code of null, -1, leads to
            known = self._by_code[kind, may_be_null] = more
        ids: Array = known.take(codes, mode="wrap")
        if ids.min(initial=0) < -1:
            fresh = np.unique(codes[ids == -2])
            words = np.where(fresh < 0, NULL, fresh.astype(np.int64))
            known[fresh] = self._keys.numbers(self._written(kind, [words]))
            ids = known.take(codes, mode="wrap")
        return ids

    def _kind(self, types: Types) -> int:
        if types not in self._kinds:
            self._kinds.append(types)
            if self._keys.width < 1 + len(types):
                known = self._keys.words
                wider = np.zeros((1 + len(types), known.shape[1]), np.int64)
                wider[: len(known)] = known
                self._keys.load(wider)
        return self._kinds.index(types)

    def _written(self, kind: int, words: Sequence[Array]) -> Array:
        """Keys of a kind as words, as many as the widest has."""
        made = np.zeros((self._keys.width, len(words[0])), np.int64)
        made[0] = kind
        made[1 : 1 + len(words)] = words
        return made

    # --- saved state ---

    def saved(self, numbers: Array) -> list[tuple[Types, Array, Array]]:
        """Of these keys, by the types of their expressions: where they stand among `numbers`, their words."""
        words = self._keys.words[:, numbers]
        found = []
        for kind, types in enumerate(self._kinds):
            own = np.flatnonzero(words[0] == kind)
            if len(own):
                found.append((types, own, np.ascontiguousarray(words[1 : 1 + len(types), own])))
        return found

    def load(self, count: int, saved: Sequence[tuple[Types, Array, Array]]) -> None:
        """Takes keys that were saved, and no others; they are numbered as they stood among them."""
        kinds = [self._kind(types) for types, _, _ in saved]
        whole = np.zeros((self._keys.width, count), np.int64)
        for kind, (_, own, words) in zip(kinds, saved, strict=True):
            whole[:, own] = self._written(kind, list(words))
        self._keys.load(whole)
        self._by_code.clear()


def value_words(column: Column) -> Array:
    """The values of a column as one word each, equal where the values are; null is NULL."""
    if column.type is not Type.FLOAT64:
        return words_of(column)
    words = (column.data + 0.0).view(np.int64)  # there is one zero
    words[np.isnan(column.data)] = NULL
    return words
