"""Keys and their numbers: what partial matches wait for, and which events belong together.

A key is one word for each of its expressions. Words of other types mean other things, so that keys of
different types never get the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel.columns import Array, Column
from kaicep.kernel.output import words_of
from kaicep.kernel.tables import NULL
from kaicep.plan.types import Type

__all__ = ["Keys"]


class Keys:
    """A dictionary from keys to numbers, which count up from 0."""

    def __init__(self) -> None:
        self._slots = np.full((64, 3), -1, np.int64)
        self._meta = np.zeros(2, np.int64)
        self._kinds: list[tuple[Type | None, ...]] = []
        self._by_code: dict[int, Array] = {}

    def __len__(self) -> int:
        return int(self._meta[0])

    def ids(self, columns: Sequence[Column], may_be_null: int) -> Array:
        """The numbers of the keys of events, -1 where a value is null; the first ones `may_be_null`."""
        if len(columns) == 1 and columns[0].type is Type.STRING and not may_be_null:
            return self._ids_of_strings(columns[0].data)
        words = np.stack([_key_words(each) for each in columns])
        without = (words[may_be_null:] == NULL).any(axis=0)
        return self._ids(words, without, self._kind(tuple(each.type for each in columns)))

    def _ids_of_strings(self, codes: Array) -> Array:
        """By code; only a string that is new is looked for."""
        kind = self._kind((Type.STRING,))
        most = int(codes.max(initial=-1)) + 1
        known = self._by_code.get(kind)
        if known is None or len(known) < most + 1:
            more = np.full(2 * most + 16, -2, np.int32)
            if known is not None:
                more[: len(known) - 1] = known[:-1]
            more[-1] = -1  # what the code of null, -1, leads to
            known = self._by_code[kind] = more
        ids: Array = known[codes]
        if ids.min(initial=0) < -1:
            fresh = np.unique(codes[ids == -2])
            words = fresh.astype(np.int64)[None, :]
            known[fresh] = self._ids(words, np.zeros(len(fresh), np.bool_), kind)
            ids = known[codes]
        return ids

    def _kind(self, types: tuple[Type | None, ...]) -> int:
        if types not in self._kinds:
            self._kinds.append(types)
            if self._slots.shape[1] < 2 + len(types):
                wider = np.full((len(self._slots), 2 + len(types)), -1, np.int64)
                wider[:, : self._slots.shape[1]] = self._slots
                self._slots = wider
        return self._kinds.index(types)

    def _ids(self, words: Array, without: Array, kind: int) -> Array:
        ids = np.zeros(words.shape[1], np.int32)
        while not machine.intern(words, without, kind, self._slots, self._meta, ids):
            larger = np.full((2 * len(self._slots), self._slots.shape[1]), -1, np.int64)
            machine.rehash(self._slots, larger, np.array([len(each) for each in self._kinds]))
            self._slots = larger
        return ids

    # --- saved state ---

    def saved(self, numbers: Array) -> list[tuple[tuple[Type | None, ...], Array, Array]]:
        """Of these keys, by the types of their expressions: where they stand among `numbers`, their words."""
        rows = self._slots[self._slots[:, 0] >= 0]
        rows = rows[np.argsort(rows[:, 0])][numbers]
        found = []
        for kind, types in enumerate(self._kinds):
            own = np.flatnonzero(rows[:, 1] == kind)
            if len(own):
                found.append((types, own, np.ascontiguousarray(rows[own, 2 : 2 + len(types)].T)))
        return found

    def load(self, count: int, saved: Sequence[tuple[tuple[Type | None, ...], Array, Array]]) -> None:
        """Takes keys that were saved; they are numbered as they stood among them."""
        for types, own, words in saved:
            ids = self._ids(words, np.zeros(len(own), np.bool_), self._kind(types))
            renumbered = np.full(len(self), -1, np.int64)
            renumbered[ids] = own
            fresh = self._slots[:, 1] == self._kind(types)
            self._slots[fresh, 0] = renumbered[self._slots[fresh, 0]]
        self._meta[0] = count


def _key_words(column: Column) -> Array:
    if column.type is not Type.FLOAT64:
        return words_of(column)
    words = (column.data + 0.0).view(np.int64)  # there is one zero
    words[np.isnan(column.data)] = NULL
    return words
