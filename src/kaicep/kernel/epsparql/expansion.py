"""Columns of triples read under the hierarchies of the knowledge base, as far as the patterns can see.

Every shape of triples (see `reading`) is given a number for what the patterns see of it: the triple itself
or not, and which of the triples that it brings. A class with forty thousand others below it is thus one
lookup for each triple.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kaicep.kernel.epsparql import kernels
from kaicep.kernel.epsparql.columnar import PatternColumns
from kaicep.kernel.epsparql.dictionary import NO_TRIPLES, Array, Dictionary, Growing, OccurrenceColumns
from kaicep.kernel.epsparql.reading import (
    SUBCLASS,
    TYPE,
    Fact,
    KnownFacts,
    StreamReader,
    Template,
    is_subject,
)

_UNKNOWN, _ASK = -2, -1
_NOTHING, _ITSELF = (False, ()), (True, ())
_Seen = tuple[bool, Template]


class Expansion:
    """What the patterns of some queries see of triples."""

    def __init__(
        self,
        reader: StreamReader,
        facts: KnownFacts,
        patterns: Sequence[PatternColumns],
        dictionary: Dictionary,
    ) -> None:
        self._reader, self._facts, self._dictionary = reader, facts, dictionary
        self._wanted = {each.asked()[1:] for each in patterns}
        self._numbers: dict[_Seen, int] = {_NOTHING: 0, _ITSELF: 1}
        self._seen: list[_Seen] = [_NOTHING, _ITSELF]
        self._own = np.array([False, True])
        self._type = dictionary.code(TYPE)
        # Of each code whether it is a literal, and the number of what is seen of triples that have it for
        # their predicate, with a node for an object and with a literal, or for their class.
        self._codes = Growing(np.bool_, np.int32, np.int32, np.int32)
        self._classes = self._subclasses()
        self._members: dict[tuple[str, str | None], Array] = {}

    def of(self, columns: OccurrenceColumns) -> OccurrenceColumns:
        """The triples that the patterns may meet, those that they bring included, in order."""
        shapes, least, most = self._shaped(columns)
        if least == most and most < 2 and least >= 0:
            return columns if most else NO_TRIPLES
        own = np.flatnonzero((shapes > 0) & self._own[shapes])
        parts, places = [columns.take(own)], [own]
        for number in np.unique(shapes).tolist():
            if number == _ASK:
                rows = np.flatnonzero(shapes == _ASK)
                more, asked = self._asked(columns, rows)
                parts.append(more)
                places.append(asked)
            elif self._seen[number][1]:
                rows = np.flatnonzero(shapes == number)
                for s, p, o in self._seen[number][1]:
                    made, kept = self._made(columns.take(rows), s, p, o)
                    parts.append(made)
                    places.append(rows[kept])
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate(places), kind="stable")
        return OccurrenceColumns.joined(parts).take(order)

    # --- shapes --------------------------------------------------------------------------------------

    def _shaped(self, columns: OccurrenceColumns) -> tuple[Array, int, int]:
        """The number of what is seen of each triple, and the least and the largest of them."""
        texts = self._dictionary.texts
        if len(texts) > len(self._codes):
            new = texts[len(self._codes) :]
            self._codes.extend([not is_subject(each) for each in new], *[[_UNKNOWN] * len(new)] * 3)
        asked = columns.p, columns.o, self._type, *self._codes.arrays()
        shapes, least, most = kernels.shapes(*asked)
        if least == _UNKNOWN:
            self._learn(columns.take(np.flatnonzero(shapes == _UNKNOWN)))
            shapes, least, most = kernels.shapes(*asked)
        return shapes, least, most

    def _learn(self, columns: OccurrenceColumns) -> None:
        literal, *known = self._codes.arrays()
        which = np.where(columns.p == self._type, 2, literal[columns.o].astype(np.int8))
        keys = np.where(which == 2, columns.o, columns.p)
        for i, shapes in enumerate(known):
            new = np.unique(keys[which == i])
            shapes[new] = self._learned(i, new.tolist())

    def _learned(self, which: int, codes: Sequence[int]) -> list[int]:
        texts = self._dictionary.texts
        if which == 2 and self._classes is not None:
            return [self._classes.get(texts[code], 0) for code in codes]
        return [self._number(self._shape(which, texts[code])) for code in codes]

    def _shape(self, which: int, text: str) -> _Seen | None:
        """What the patterns see of a shape; None where each triple is to be asked about."""
        if which == 2:
            own = self._wants(TYPE, text)
            fact: Fact = ("_:any", TYPE, text)
        else:
            own = self._wants(text, None)
            fact = ("_:any", text, '"any"' if which == 1 else "_:any")
        template = self._reader.template(fact)
        if template is None:
            return None
        return own, tuple(e for e in template if self._wants(e[1], e[2] if isinstance(e[2], str) else None))

    def _number(self, seen: _Seen | None) -> int:
        if seen is None:
            return _ASK
        if seen not in self._numbers:
            self._numbers[seen] = len(self._seen)
            self._seen.append(seen)
            self._own = np.array([each[0] for each in self._seen])
        return self._numbers[seen]

    def _wants(self, predicate: str, of: str | None) -> bool:
        """Whether a pattern may meet triples with a predicate, and an object where that is known."""
        return any(p in (None, predicate) and (o is None or of is None or o == of) for p, o in self._wanted)

    def _subclasses(self) -> dict[str, int] | None:
        """What is seen of the classes below those that patterns name; None where others matter as well."""
        classes = {o for p, o in self._wanted if p == TYPE and o is not None}
        open_ended = any(p is None or (p == TYPE and o is None) for p, o in self._wanted)
        if open_ended or not self._reader.by_shape or self._facts.match(TYPE, None, None):
            return None
        above: dict[str, list[str]] = {each: [] for each in classes}
        for each in sorted(classes):
            for below, _, _ in self._facts.match(None, SUBCLASS, each):
                if below != each:
                    above.setdefault(below, []).append(each)
        return {
            each: self._number((each in classes, tuple((0, TYPE, one) for one in some)))
            for each, some in above.items()
        }

    # --- what triples bring --------------------------------------------------------------------------

    def _made(
        self, rows: OccurrenceColumns, s: int | str, p: str, o: int | str
    ) -> tuple[OccurrenceColumns, Array]:
        """What one line of a template makes of rows, and of which: what is a fact already is left out."""
        code = self._dictionary.code

        def filled(slot: int | str) -> Array:
            return (
                (rows.s, rows.o)[slot] if isinstance(slot, int) else np.full(len(rows), code(slot), np.int32)
            )

        made = OccurrenceColumns(
            filled(s), np.full(len(rows), code(p), np.int32), filled(o), rows.start, rows.end
        )
        kept = np.ones(len(rows), np.bool_)
        if self._facts.uses(p):
            about = o if isinstance(o, str) else None
            candidates = np.flatnonzero(self._is_member(p, about, made.s))
            texts = self._dictionary.texts
            for at in candidates.tolist():
                kept[at] = not self._facts.has(texts[made.s[at]], p, texts[made.o[at]])
        kept &= (made.s != rows.s) | (made.p != rows.p) | (made.o != rows.o)
        places = np.flatnonzero(kept)
        return made.take(places), places

    def _is_member(self, p: str, o: str | None, subjects: Array) -> Array:
        """Which subjects have facts with a predicate (and an object): all that have any have a code."""
        if (p, o) not in self._members:
            codes = [self._dictionary.code(s) for s, _, _ in self._facts.match(None, p, o)]
            self._members[p, o] = np.unique(np.array(codes, np.int32))
        return np.isin(subjects, self._members[p, o])

    def _asked(self, columns: OccurrenceColumns, rows: Array) -> tuple[OccurrenceColumns, Array]:
        texts, code = self._dictionary.texts, self._dictionary.code
        found: list[tuple[int, int, int, int, int]] = []
        places: list[int] = []
        for at in rows.tolist():
            fact = texts[columns.s[at]], texts[columns.p[at]], texts[columns.o[at]]
            for s, p, o in self._reader.read_derived(fact):
                if self._wants(p, o):
                    found.append((code(s), code(p), code(o), int(columns.start[at]), int(columns.end[at])))
                    places.append(at)
        return OccurrenceColumns.of(found), np.array(places, np.int64)
