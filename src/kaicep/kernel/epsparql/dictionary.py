"""Terms as integer codes, and what the compiled kernels know of each: its number, its kind, its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np

from kaicep.kernel.epsparql.kernels import ILL, NODE, NUMBER, OTHER, STRING
from kaicep.kernel.epsparql.reading import term_of
from kaicep.plan.terms import XSD, Iri, Literal, Term, Triple
from kaicep.plan.values import NUMERIC_TYPES, ExpressionError, number

Array = Any
"""An array of NumPy."""

_EXACT = 2.0**53
_SLACK = 2.0**-52
_INTEGER, _MOST_DIGITS = f'"^^<{XSD}integer>', 15
NOT_WHOLE = -(2**63)
"""What is no integer."""


@dataclass(frozen=True)
class TripleColumns:
    """Triples as columns: places in a list of terms (texts of N-Triples), start and end.

    A list that only grows may be given with every batch; the terms known from before cost nothing.
    """

    terms: Sequence[str]
    s: Array
    p: Array
    o: Array
    start: Array
    end: Array


@dataclass(slots=True, eq=False)
class OccurrenceColumns:
    """Occurrences as columns of codes and times, in the order of their end. Nobody changes them."""

    s: Array
    p: Array
    o: Array
    start: Array
    end: Array

    def __len__(self) -> int:
        return len(self.end)

    def take(self, places: Array) -> OccurrenceColumns:
        """Some of the rows."""
        return OccurrenceColumns(*[each[places] for each in self.all()])

    def all(self) -> tuple[Array, ...]:
        """The columns themselves."""
        return self.s, self.p, self.o, self.start, self.end

    def listed(self) -> set[tuple[int, int, int, int, int]]:
        """The different rows."""
        return set(zip(*(each.tolist() for each in self.all()), strict=True))

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int, int, int]]) -> OccurrenceColumns:
        """Rows as columns."""
        if len(rows) == 1:
            times = np.array(rows[0], np.int64)
            codes = times.astype(np.int32)
            return OccurrenceColumns(codes[:1], codes[1:2], codes[2:3], times[3:4], times[4:])
        table = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 5).T)
        return OccurrenceColumns(*table[:3].astype(np.int32), *table[3:])

    @staticmethod
    def joined(parts: Sequence[OccurrenceColumns]) -> OccurrenceColumns:
        """One after the other."""
        parts = [each for each in parts if len(each)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return OccurrenceColumns(
            *(np.concatenate(each) for each in zip(*(part.all() for part in parts), strict=True))
        )

    @staticmethod
    def merged(parts: Sequence[OccurrenceColumns]) -> OccurrenceColumns:
        """Several in the order of their end as one."""
        parts = [each for each in parts if len(each)] or parts[:1]
        joined = OccurrenceColumns.joined(parts)
        if all(one.end[-1] <= other.end[0] for one, other in pairwise(parts)):
            return joined
        return joined.take(np.argsort(joined.end, kind="stable"))


NO_TRIPLES = OccurrenceColumns.of(())


class Dictionary:
    """The terms of an operator; a code is a place in `texts`, which only grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._iris: dict[str, int] = {}
        # By datatype, then by text: looking a literal itself up would take as long as all the rest.
        self._literals: dict[str, dict[str, int]] = {}
        self._numbers = Growing(np.float64, np.float64, np.int8)
        self._wholes = Growing(np.int64)
        self._bytes = Growing(np.uint8)
        self._ends = Growing(np.int64)
        self._initials = Growing(np.uint8)
        self._mapped: tuple[Sequence[str], Array] = ((), np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.texts)

    def code(self, text: str) -> int:
        """The code of the text of a term."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.texts)
            self.texts.append(text)
        return found

    def of(self, code: int) -> str | None:
        """The text of a code; None is unbound."""
        return self.texts[code] if code >= 0 else None

    def codes(self, texts: Iterable[str | None]) -> tuple[int, ...]:
        """The codes of several; -1 is unbound."""
        return tuple([-1 if text is None else self.code(text) for text in texts])

    # --- from triples ------------------------------------------------------------------------------

    def rows(self, occurrences: Iterable[tuple[Triple, int, int]]) -> OccurrenceColumns:
        """Triples with their intervals as columns."""
        iris, literals, term = self._iris, self._literals, self._term
        none: dict[str, int] = {}
        rows = list[tuple[int, int, int, int, int]]()
        for (s, p, o), start, end in occurrences:
            a = iris.get(s.value) if type(s) is Iri else None
            b = iris.get(p.value) if type(p) is Iri else None
            if type(o) is Iri:
                c = iris.get(o.value)
            elif type(o) is Literal and o.language is None:
                c = literals.get(o.datatype, none).get(o.lexical)
            else:
                c = None
            if a is None or b is None or c is None:
                a, b, c = term(s), term(p), term(o)
            rows.append((a, b, c, start, end))
        return OccurrenceColumns.of(rows)

    def _term(self, term: Term) -> int:
        if isinstance(term, Iri):
            found = self._iris[term.value] = self.code(str(term))
            return found
        if not isinstance(term, Literal):
            return self.code(str(term))
        found = self.code(str(term))
        if term.language is None:
            self._literals.setdefault(term.datatype, {})[term.lexical] = found
        return found

    def columns(self, triples: TripleColumns) -> OccurrenceColumns:
        """Columns over a list of terms as columns of codes."""
        terms, mapped = self._mapped
        if triples.terms is not terms:
            mapped = np.empty(0, np.int32)
        if len(mapped) < len(triples.terms):
            new = [self.code(each) for each in triples.terms[len(mapped) :]]
            mapped = np.concatenate((mapped, np.array(new, np.int32)))
            self._mapped = (triples.terms, mapped)
        s, p, o = (mapped[each] for each in (triples.s, triples.p, triples.o))
        times = (np.ascontiguousarray(each, np.int64) for each in (triples.start, triples.end))
        return OccurrenceColumns(s, p, o, *times)

    def integers(self, values: Array) -> Array:
        """The codes of integers."""
        found, place = np.unique(values, return_inverse=True)
        code = self.code
        codes = [code(f'"{each}"^^<{XSD}integer>') for each in found.tolist()]
        return np.array(codes, np.int32)[place]

    # --- what the kernels see ----------------------------------------------------------------------

    def numbers(self) -> tuple[Array, Array, Array]:
        """Of each code a number, how far it may be off, and the kind of the term."""
        new = self.texts[len(self._numbers) :]
        if new:
            values, errors, kinds = zip(*map(_number, new), strict=True)
            self._numbers.extend(values, errors, kinds)
        value, error, kind = self._numbers.arrays()
        return value, error, kind

    def wholes(self) -> Array:
        """Of each code the integer, where it is one as SPARQL writes it; any other is `NOT_WHOLE`."""
        new = self.texts[len(self._wholes) :]
        if new:
            self._wholes.extend([_whole(each) for each in new])
        return self._wholes.arrays()[0]

    def initials(self) -> Array:
        """Of each code the first letter, which says what kind of term it is; a triple counts as a literal."""
        new = self.texts[len(self._initials) :]
        if new:
            self._initials.extend([ord('"' if each.startswith("<<") else each[0]) for each in new])
        return self._initials.arrays()[0]

    def letters(self) -> tuple[Array, Array]:
        """The texts of all codes as bytes, and where each of them ends."""
        new = self.texts[len(self._ends) :]
        if new:
            texts = [each.encode() for each in new]
            begin = len(self._bytes)
            self._bytes.extend(np.frombuffer(b"".join(texts), np.uint8))
            self._ends.extend(begin + np.cumsum([len(each) for each in texts]))
        return self._bytes.arrays()[0], self._ends.arrays()[0]


class Growing:
    """Arrays of one length that grow at their end."""

    def __init__(self, *types: Any) -> None:
        self._arrays = [np.empty(256, each) for each in types]
        self.cut(0)

    def __len__(self) -> int:
        return self._length

    def extend(self, *columns: Any) -> None:
        """Adds a column of values to each."""
        length = self._length + len(columns[0])
        for i, column in enumerate(columns):
            if length > len(self._arrays[i]):
                wider = np.empty(max(length, 2 * len(self._arrays[i])), self._arrays[i].dtype)
                wider[: self._length] = self._arrays[i][: self._length]
                self._arrays[i] = wider
            self._arrays[i][self._length : length] = column
        self.cut(length)

    def cut(self, length: int) -> None:
        """Forgets all but the first values."""
        self._length = length
        self._filled = [each[:length] for each in self._arrays]

    def arrays(self) -> list[Array]:
        """What there is of each."""
        return self._filled


def _whole(text: str) -> int:
    if not text.endswith(_INTEGER):
        return NOT_WHOLE
    digits = text[1 : -len(_INTEGER)]
    if len(digits) > _MOST_DIGITS or not digits.removeprefix("-").isdecimal():
        return NOT_WHOLE
    return int(digits) if str(int(digits)) == digits else NOT_WHOLE


def _number(text: str) -> tuple[float, float, int]:
    """The number of a term, its error, its kind.

    >>> _number('"2"^^<http://www.w3.org/2001/XMLSchema#integer>'), _number("<urn:a>")
    ((2.0, 0.0, 1), (0.0, 0.0, 0))
    """
    if text[0] != '"':
        return 0.0, 0.0, NODE
    term = term_of(text)
    assert isinstance(term, Literal)
    if term.language or term.datatype not in NUMERIC_TYPES:
        plain = term.language is None and term.datatype == XSD + "string"
        return 0.0, 0.0, STRING if plain else OTHER
    try:
        value = number(term).value
        near = float(value)
    except (ExpressionError, OverflowError):
        return 0.0, 0.0, ILL
    if not abs(near) < 1e300:
        return 0.0, 0.0, ILL
    exact = abs(near) < _EXACT if isinstance(value, int) else Decimal(near) == value
    return near, 0.0 if exact else abs(near) * _SLACK, NUMBER
