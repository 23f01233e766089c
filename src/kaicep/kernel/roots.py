"""Numbers for events that a PATH cannot tell apart: the knowledge is asked once for each number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from kaicep.kernel.columns import NULLS, Array, Column, Strings, Table, column_of
from kaicep.kernel.keys import Keys
from kaicep.kernel.operator import ManyAtATime, Row, Semantics, solutions_of_each
from kaicep.kernel.state import read_event, write_event
from kaicep.kernel.vectors import vectors_of
from kaicep.plan.algebra import element_variables
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event, text_word
from kaicep.plan.expressions import Expr, Field, VariableRef, walk
from kaicep.plan.nodes import Semantic, WindowAggregate
from kaicep.plan.operators import event_function
from kaicep.plan.paths import path_references
from kaicep.plan.terms import Blank, Iri, Literal, Term
from kaicep.plan.types import INT64_MIN, Type, Value
from kaicep.plan.typing import with_terms

# ----------------------------------------------------------------------------------------------------------
# What a PATH can tell of events: they are numbered, and each number is asked about once.
#
# A PATH sees of an event the values that its annotation makes into a graph, and of the knowledge what holds
# at its time. Events that are alike in all of that have one number; a pattern keeps the number, and whoever
# asks the knowledge does so for one event that stands for all of them. Tables enter, numbers and verdicts
# leave, as arrays.

_FEW = 8
_MOST_EVENTS = 100_000
"""So many different events are remembered."""
_UNKNOWN = -1
_UNASKED = -2


class RootIds:
    """The events that a PATH can tell apart, numbered; what it says of each.

    `more` are expressions of the event that the question depends on besides its roots. `attributes` are
    what must be there as columns. `events` has by number an event that stands for all with that number:
    it is of their stream, at a time at which the same holds, with the values that matter. `semantics` knows
    what of their identity a PATH can see that is asked at run time; without it, every event has its number.
    """

    def __init__(
        self,
        condition: Semantic,
        variable: str,
        catalog: Catalog,
        more: tuple[Expr, ...] = (),
        semantics: Semantics | None = None,
    ) -> None:
        self.condition = condition
        self.variable = variable
        self.catalog = catalog
        self.semantics = semantics
        self.events: list[Event] = []
        self._more = tuple(dict.fromkeys((*more, *_fields_of(condition, variable))))
        self._roots = _roots_of(condition, variable, catalog)
        self.attributes = self._attributes()
        self._asked = _without_conditions(condition)
        self._identity: tuple[str, ...] = ()
        self._epochs: tuple[int, ...] = ()
        self._strings: Strings | None = None
        self._last = INT64_MIN
        self._keys: Keys | None = None
        self._names: Array = np.zeros(0, np.int64)
        self._free: list[int] = []
        self._by_code: dict[tuple[str, int], Array] = {}
        self._objects: dict[tuple[type, str], int] = {}
        self._verdicts: Array = np.zeros(0, np.int8)
        self._told: dict[tuple[str, int], Array] = {}
        self._look_at_identity()

    def _attributes(self) -> tuple[str, ...]:
        found = {name: None for names in self._roots.values() for name in names}
        fields = (each for expr in self._more for each in walk(expr) if isinstance(each, Field))
        found.update((name, None) for each in fields for _, names in each.sources for name in names)
        return tuple(each for each in found if each != "ts")

    # --- numbers ---

    def ids(self, table: Table, epochs: tuple[int, ...]) -> Array:
        """The number of each event; the knowledge changes at the epochs."""
        if not len(table):
            return np.zeros(0, np.int64)
        self._follow(table, epochs)
        codes = self._deciding_codes(table)
        epoch = np.searchsorted(np.array(self._epochs, np.int64), table.ts, "right")
        if codes is None:
            return self._numbered(table, epoch)
        first, last = int(epoch.min()), int(epoch.max())
        if (last - first + 1) * len(table.streams) > _FEW:
            return self._numbered(table, epoch)
        if first == last and len(table.streams) == 1:
            return self._looked_up(table, codes, epoch)
        made = np.zeros(len(table), np.int64)
        for place in range(len(table.streams)):
            for each in range(first, last + 1):
                rows = np.flatnonzero((table.place == place) & (epoch == each))
                if len(rows):
                    made[rows] = self._looked_up(table.take(rows), codes[rows], epoch[rows])
        return made

    def _deciding_codes(self, table: Table) -> Array | None:
        """The codes of the one string that decides, where it is so."""
        if len(self.attributes) != 1 or self._more or self._identity:
            return None
        column = table.columns.get(self.attributes[0])
        if column is None or column.type is not Type.STRING:
            return None
        own = [self._roots.get(each, ()) for each in table.streams]
        if not all(each in ((), self.attributes) for each in own):
            return None
        return (
            column.data
            if all(own)
            else np.where(np.array(list(map(bool, own)))[table.place], column.data, -1)
        )

    def _looked_up(self, table: Table, codes: Array, epoch: Array) -> Array:
        """The numbers of events of one stream and epoch, by the code of the string that decides."""
        key = table.streams[int(table.place[0])], int(epoch[0])
        known = self._by_code.get(key)
        if known is None or len(known) <= len(table.strings):
            size = max(64, 2 * len(table.strings))
            wider = np.full(size, _UNKNOWN, np.int64)
            if known is not None:
                wider[: len(known) - 1] = known[:-1]
                wider[-1] = known[-1]  # where the code of null leads to
            known = self._by_code[key] = wider
        found = known.take(codes)
        fresh = np.flatnonzero(found == _UNKNOWN)
        if len(fresh):
            first = np.full(len(known), _UNKNOWN, np.int64)
            first[codes[fresh[::-1]]] = fresh[::-1]
            rows = first[first != _UNKNOWN]
            known[codes[rows]] = self._numbered(table.take(rows), epoch[rows], codes[rows])
            found = known.take(codes)
        return found

    def _numbered(self, table: Table, epoch: Array, codes: Array | None = None) -> Array:
        """The numbers of events by all that counts; `codes` are of the one string that decides."""
        known = len(self._names)
        numbers, count = self._keys_of(table, epoch)
        fresh = count - known
        if fresh:
            rows = np.zeros(fresh, np.int64)
            at = np.flatnonzero(numbers >= known)[::-1]
            rows[numbers[at] - known] = at  # the first row of each is written last
            if codes is None:
                self._name(self._added(_events_of(table.take(rows), self)))
            else:
                self._name(self._added(self._alike(table.take(rows), int(epoch[0]), codes[rows].tolist())))
        return self._names[numbers]

    def _alike(self, table: Table, epoch: int, codes: list[int]) -> list[Event]:
        """Events that stand for those with these codes: the same ones for all queries that ask."""
        stream = table.streams[int(table.place[0])]
        # A stream of which no attribute is asked has one code for all its events.
        key = stream, self._roots.get(stream, ()), self._epochs, epoch
        known = table.strings.events.setdefault(key, {})
        if len(known) > _MOST_EVENTS:
            known.clear()
        new = [at for at, code in enumerate(codes) if code not in known]
        if new:
            made = _events_of(table.take(np.array(new)), self)
            known.update(zip([codes[at] for at in new], made, strict=True))
        return [known[code] for code in codes]

    def _keys_of(self, table: Table, epoch: Array) -> tuple[Array, int]:
        """The numbers of the keys of events, and how many keys there are."""
        words = self._words(table, epoch)
        if self._keys is None:
            self._keys = Keys(len(words))
        return self._keys.numbers(words), len(self._keys)

    def _name(self, numbers: Sequence[int]) -> None:
        """Says which numbers events with the latest keys have."""
        self._names = np.concatenate([self._names, np.array(numbers, np.int64)])

    def _added(self, events: Sequence[Event]) -> list[int]:
        """The numbers of new events; those that nobody uses any more are given again."""
        self._last = max([self._last, *(each.ts for each in events)])
        if not self._free:
            first = len(self.events)
            self.events += events
            return list(range(first, len(self.events)))
        made: list[int] = []
        for event in events:
            if self._free:
                number = self._free.pop()
                self.events[number] = event
                if number < len(self._verdicts):
                    self._verdicts[number] = _UNKNOWN
            else:
                number = len(self.events)
                self.events.append(event)
            made.append(number)
        return made

    def _words(self, table: Table, epoch: Array) -> Array:
        """What counts of each event, in 64 bits each: stream, epoch, kinds, values."""
        columns = [self._root_column(name, table) for name in self.attributes]
        columns += [vectors_of(table).value(each) for each in self._more]
        if "ts" in self._identity or any("ts" in each for each in self._roots.values()):
            columns.append(Column(Type.TIMESTAMP, table.ts))
        if "seq" in self._identity:
            columns += [Column(Type.INT64, table.part), Column(Type.INT64, table.seq)]
        kinds = len(columns) // _KINDS + 1
        words = np.zeros((2 + kinds + len(columns), len(table)), np.int64)
        numbers = [self._stream_number(each) for each in table.streams]
        words[0] = np.array(numbers, np.int64)[table.place]
        words[1] = epoch
        for number, column in enumerate(columns):
            word, kind = self._word(column)
            words[2 + kinds + number] = word
            words[2 + number // _KINDS] += kind << (3 * (number % _KINDS))
        return words

    def _stream_number(self, stream: str) -> int:
        return self._objects.setdefault((str, stream), len(self._objects))

    def _root_column(self, name: str, table: Table) -> Column:
        """The values of an attribute, on the streams where it is a root."""
        column = table.columns.get(name)
        here = [name in self._roots.get(each, ()) for each in table.streams]
        if column is None or not any(here):
            return Column(Type.STRING, np.full(len(table), -1, np.int32))
        if all(here):
            return column
        seen = np.array(here)[table.place]
        if column.type is None:
            return Column(None, np.where(seen, column.data, np.array(None, object)))
        data = np.where(seen, column.data, np.array(NULLS[column.type], column.data.dtype))
        if column.type is not Type.INT64:
            return Column(column.type, data)
        return Column(Type.INT64, data, seen if column.valid is None else seen & column.valid)

    def _word(self, column: Column) -> tuple[Array, Array]:
        """The values in 64 bits, and what kind each is of: null, or of which type."""
        kind = np.int64(7 if column.type is None else list(Type).index(column.type) + 1)
        if column.type is None:
            number = self._objects
            values = [
                0 if each is None else number.setdefault((type(each), repr(each)), len(number))
                for each in column.data
            ]
            known = np.array([each is not None for each in column.data], np.bool_)
            return np.array(values, np.int64), np.where(known, kind, 0)
        if column.type is Type.FLOAT64:
            known = ~np.isnan(column.data)
            return np.where(known, column.data, 0.0).view(np.int64), np.where(known, kind, 0)
        if column.type is Type.INT64 and column.valid is not None:
            return np.where(column.valid, column.data, 0), np.where(column.valid, kind, 0)
        return column.data.astype(np.int64), np.full(len(column), kind)

    # --- what changes ---

    def _follow(self, table: Table, epochs: tuple[int, ...]) -> None:
        """Finds the numbers anew where the strings have other codes, or the knowledge other epochs."""
        if self._strings is table.strings and self._epochs == epochs:
            return
        known = len(self._epochs)
        # An epoch that begins after all that was seen takes nothing from those before it.
        goes_on = self._strings is table.strings and epochs[:known] == self._epochs
        goes_on &= all(each > self._last for each in epochs[known:])
        self._strings, self._epochs = table.strings, epochs
        if not goes_on:
            self._find_anew(table)

    def _find_anew(self, like: Table) -> None:
        self._by_code.clear()
        self._told.clear()
        self._keys = None
        self._names = np.zeros(0, np.int64)
        free = set(self._free)
        used = [number for number in range(len(self.events)) if number not in free]
        if used:
            table = _table_of([self.events[each] for each in used], like)
            epoch = np.searchsorted(np.array(self._epochs, np.int64), table.ts, "right")
            numbers, _ = self._keys_of(table, epoch)
            first = np.unique(numbers, return_index=True)[1]
            self._name([used[each] for each in first.tolist()])

    def moved(self, ids: Array, ts: Array, table: Table, epochs: tuple[int, ...]) -> Array:
        """The numbers of events that have numbers, after the knowledge has got other epochs.

        `ts` is when they were; a new boundary may lie between two events that had the same number.
        """
        self._follow(table, epochs)
        pairs = np.stack([np.searchsorted(np.array(epochs, np.int64), ts, "right"), ids])
        different, first, places = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        if not different.shape[1]:
            return ids
        events = [
            replace(self.events[id], ts=when)
            for id, when in zip(ids[first].tolist(), ts[first].tolist(), strict=True)
        ]
        return self.ids(_table_of(events, table), epochs)[places.reshape(-1)]

    def renew(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._verdicts = np.zeros(0, np.int8)
        self._told.clear()
        self._look_at_identity()

    def _look_at_identity(self) -> None:
        """What of the identity of an event counts: nothing, its time, or which one it is."""
        condition = self.condition
        made: tuple[str, ...] = ("ts", "seq")
        if condition.relation is not None or not condition.alternatives:
            made = ()
        elif isinstance(self.semantics, ManyAtATime):
            made = self.semantics.identity_seen(condition, self.variable)
        if made != self._identity:
            self._identity = made
            self._strings = None

    def forget(self, used: Array) -> None:
        """Forgets the events whose numbers are not among these; their numbers will be given to others."""
        kept = set(used.tolist())
        self._free = [number for number in range(len(self.events)) if number not in kept]
        self._strings = None

    # --- verdicts ---

    def verdicts(
        self,
        table: Table,
        epochs: tuple[int, ...],
        semantics: Semantics,
        wanted: Array,
        ask: Callable[[list[int]], list[bool]] | None = None,
    ) -> Array:
        """Whether the PATH holds for the events that are wanted; it is asked once for each number.

        `ask` says it in another way than the semantics alone do.
        """
        found = np.zeros(len(table), np.bool_)
        rows = np.flatnonzero(wanted)
        if not len(rows) or not (self.condition.relation or self.condition.alternatives):
            return found  # nothing fulfils a PATH without an alternative
        own = table if len(rows) == len(table) else table.take(rows)
        if ask is None and not self.condition.conditions:
            told = self._told_by_text(own, epochs, semantics)
            found[rows] = told == 1
            left = np.flatnonzero(told == _UNKNOWN)
            if not len(left):
                return found
            if len(left) < len(rows):
                rows, own = rows[left], own.take(left)
        found[rows] = self._by_number(self.ids(own, epochs), semantics, ask)
        return found

    def _by_number(
        self, own: Array, semantics: Semantics, ask: Callable[[list[int]], list[bool]] | None
    ) -> Array:
        """Whether the PATH holds for the events of these numbers."""
        if len(self._verdicts) < len(self.events):
            more = np.full(2 * len(self.events), _UNKNOWN, np.int8)
            more[: len(self._verdicts)] = self._verdicts
            self._verdicts = more
        known = self._verdicts.take(own)
        fresh = np.unique(own[known == _UNKNOWN])
        if len(fresh):
            numbers = fresh.tolist()
            self._verdicts[fresh] = self._ask(numbers, semantics) if ask is None else ask(numbers)
            known = self._verdicts.take(own)
        holds: Array = known == 1
        return holds

    def _told_by_text(self, table: Table, epochs: tuple[int, ...], semantics: Semantics) -> Array:
        """What the text of the one attribute that decides says already, without an event that has it."""
        self._follow(table, epochs)
        codes = self._deciding_codes(table)
        when = np.searchsorted(np.array(epochs, np.int64), [table.ts.min(), table.ts.max()], "right")
        if codes is None or when[0] != when[1] or len(table.streams) > 1 or int(codes.min()) < 0:
            return np.full(len(table), _UNKNOWN, np.int8)
        if not isinstance(semantics, ManyAtATime):
            return np.full(len(table), _UNKNOWN, np.int8)
        key = table.streams[0], int(when[0])
        known = self._told.get(key)
        if known is None:
            known = np.zeros(0, np.int8)
        if len(known) < len(table.strings):
            more = np.full(2 * len(table.strings) - len(known), _UNASKED, np.int8)
            known = self._told[key] = np.concatenate([known, more])
        found = known.take(codes)
        asked = found == _UNASKED
        if asked.any():
            here = np.zeros(len(table.strings), np.bool_)
            here[codes[asked]] = True
            fresh = np.flatnonzero(here)
            texts = [table.strings.texts[each] for each in fresh.tolist()]
            answers = semantics.hold_for(self._asked, key[0], int(table.ts[0]), texts)
            known[fresh] = [_UNKNOWN if each is None else each for each in answers]
            found = known.take(codes)
        return found

    def _ask(self, ids: list[int], semantics: Semantics) -> list[bool]:
        events = [self.events[each] for each in ids]
        answers = solutions_of_each(semantics, self._asked, self.variable, events)
        if not self.condition.conditions:
            return list(map(bool, answers))
        return [
            any(self._holds(row, event) for row in rows) for event, rows in zip(events, answers, strict=True)
        ]

    def _holds(self, row: Row, event: Event) -> bool:
        """Whether the conditions on variables of the PATH are true of a solution."""
        terms = dict(zip(self._asked.selected, row, strict=True))
        return all(_function(with_terms(each, terms))(event) is True for each in self.condition.conditions)

    # --- state ---

    def save(self) -> dict[str, Any]:
        """The events by number, as JSON holds them."""
        return {"events": [write_event(each) for each in self.events], "free": self._free}

    def load(self, document: dict[str, Any]) -> None:
        """Goes on from what was saved: the numbers mean what they meant."""
        self.events = [read_event(each) for each in document["events"]]
        self._last = max((each.ts for each in self.events), default=INT64_MIN)
        self._free = list(document["free"])
        self._strings = None
        self._verdicts = np.zeros(0, np.int8)
        self._told.clear()


# --- what counts -------------------------------------------------------------------------------------------


def _roots_of(condition: Semantic, variable: str, catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """By stream, the attributes that a PATH can see: those of its relation, or all that are annotated."""
    found: dict[str, dict[str, None]] = {}
    if condition.relation is not None:
        for root in condition.relation.roots:
            for stream, names in (*root.literals, *root.entities) if root.variable == variable else ():
                own = catalog.streams[stream].reads(*names)
                found.setdefault(stream, {}).update(dict.fromkeys(own))
    elif condition.alternatives:
        for name, known in catalog.streams.items():
            found[name] = dict.fromkeys(known.graph_attributes)
    return {stream: tuple(names) for stream, names in found.items()}


def _fields_of(condition: Semantic, variable: str) -> list[Expr]:
    """What conditions on variables of the PATH read of an event."""
    parts = (part for each in condition.conditions for part in walk(each))
    return [each for each in parts if isinstance(each, Field) and each.variable == variable]


def _without_conditions(condition: Semantic) -> Semantic:
    """The PATH with all variables selected that its conditions are about, and without these."""
    if not condition.conditions:
        return condition
    judged = (name for each in condition.conditions for name in path_references(each))
    selected = tuple(dict.fromkeys((*condition.selected, *judged)))
    return replace(condition, selected=selected, conditions=())


@lru_cache(maxsize=4096)
def _function(expr: Expr) -> Callable[[Event], Value]:
    return event_function(expr)


# --- events and tables -------------------------------------------------------------------------------------


def _events_of(table: Table, roots: RootIds) -> list[Event]:
    """The events of a table, with the values that matter."""
    names = [each for each in roots.attributes if each in table.columns]
    columns = [table.columns[each].values(table.strings) for each in names]
    rows = zip(*columns, strict=True) if columns else [()] * len(table)
    places = zip(
        table.place.tolist(), table.part.tolist(), table.seq.tolist(), table.ts.tolist(), strict=True
    )
    # A column is float64 as soon as one of its streams has that.
    known = (roots.catalog.streams.get(each) for each in table.streams)  # a table may name more than it has
    whole = [
        {name for name, type in (each.attributes if each else ()) if type is Type.INT64}
        & {name for name in names if table.columns[name].type is not Type.INT64}
        for each in known
    ]
    made = []
    for (place, part, seq, ts), row in zip(places, rows, strict=True):
        values = dict(zip(names, row, strict=True))
        for name in whole[place]:
            if isinstance(values[name], float):
                values[name] = int(values[name])
        made.append(Event(table.streams[place], part, seq, ts, values))
    return made


def _table_of(events: Sequence[Event], like: Table) -> Table:
    """Events as a table, with columns of the same types as those of another one."""
    streams = tuple(dict.fromkeys(each.stream for each in events))
    return Table(
        streams,
        np.array([each.ts for each in events], np.int64),
        np.array([streams.index(each.stream) for each in events], np.int64),
        np.array([each.part for each in events], np.int64),
        np.array([each.seq for each in events], np.int64),
        {
            name: column_of(column.type, [each.values.get(name) for each in events], like.strings)
            for name, column in like.columns.items()
        },
        like.strings,
    )


_KINDS = 20  # so many kinds fit into a word


# ----------------------------------------------------------------------------------------------------------
# What PATHs say of the events of a window: in which partitions and groups each is, and with which values.
#
# Events that PATHs cannot tell apart, since they agree in all that is annotated, are asked about once. A
# *case* is an event inside one partition and one group; its *solutions* are the values of the variables
# that the query wants besides. Terms are known by numbers, 0 is no term.

Values = Mapping[str, Term | None]


class NumberedTerms:
    """Terms by number."""

    def __init__(self) -> None:
        self.terms: list[Term | None] = [None]
        self._numbers: dict[Term | None, int] = {None: 0}
        self._words: Array = np.zeros(0, np.uint64)

    def number(self, term: Term | None) -> int:
        """The number of a term."""
        if term not in self._numbers:
            self._numbers[term] = len(self.terms)
            self.terms.append(term)
        return self._numbers[term]

    def saved(self, number: int) -> list[str | None]:
        """A term as JSON can have it."""
        term = self.terms[number]
        if isinstance(term, Literal):
            return ["literal", term.lexical, term.datatype, term.language]
        if isinstance(term, Iri):
            return ["iri", term.value]
        return ["blank", term.label] if isinstance(term, Blank) else []

    def loaded(self, saved: list[str]) -> int:
        """The number of a term that was saved."""
        if not saved:
            return 0
        kind, *rest = saved
        return self.number({"literal": Literal, "iri": Iri, "blank": Blank}[kind](*rest))

    @property
    def words(self) -> Array:
        """By number, the word of the term's text in ids; of no term, that of the empty text."""
        more = [text_word(str(each or "")) for each in self.terms[len(self._words) :]]
        if more:
            self._words = np.concatenate([self._words, np.array(more, np.uint64)])
        return self._words.view(np.int64)


class Meanings:
    """The cases of events; `chain` has the PATHs that only have to hold."""

    def __init__(
        self, node: WindowAggregate, chain: Sequence[Semantic], catalog: Catalog, semantics: Semantics
    ) -> None:
        self.node, self.catalog = node, catalog
        self.terms = NumberedTerms()
        self.names = tuple(dict.fromkeys(name for each in node.semantics for name in each.selected))
        self._partition = _names(node.partition)
        self._group = _names(node.group_by)
        self._semantics = semantics
        variable = node.window.variable
        self._asked = [_Asked(each, variable, catalog, self._partition) for each in chain]
        self._wanted = [_Asked(each, variable, catalog, self._partition) for each in node.semantics]
        self._ties = [_Asked(each, variable, catalog) for each in node.ties]
        self._every = [*self._asked, *self._wanted, *self._ties]
        self.needed = bool(self._every)
        self._filters = not (self._wanted or self._ties or self._partition or self._group) and all(
            each.path.variables for each in self._asked
        )
        """Whether PATHs only leave events out, so that all others are one case."""
        self.attributes = tuple(dict.fromkeys(name for each in self._every for name in each.roots.attributes))
        self._events = Keys(len(self._every))
        self.clear()

    def clear(self) -> None:
        """Forgets all answers."""
        self._events = Keys(len(self._every))
        self._starts: list[int] = [0]
        self._cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._solutions: list[int] = [0]
        self._rows: list[tuple[int, ...]] = []
        self._arrays: tuple[Array, ...] | None = None
        if self._filters:
            self._cases, self._rows, self._solutions, self._starts = [((), ())], [()], [0, 1], [0, 1]

    def renew(self) -> None:
        """Lets everything be asked again: the knowledge has a new version."""
        for each in self._every:
            each.roots.renew()
        self.clear()

    # --- events ---

    @property
    def epochs(self) -> tuple[int, ...]:
        """The times at which what the knowledge says changes."""
        return tuple(getattr(getattr(self._semantics, "knowledge", None), "epochs", ()))

    def cases(self, table: Table) -> tuple[Array, Array]:
        """The row of each entry, and its case; those of one partition stand together."""
        if len(self._events) > _MOST_EVENTS:
            for each in self._every:
                each.roots.forget(np.zeros(0, np.int64))
            self.clear()
        if self._filters:
            return self._left(table)
        ids = self._ids(table)
        starts = np.array(self._starts, np.int64)
        counts = starts[ids + 1] - starts[ids]
        rows = np.repeat(np.arange(len(ids)), counts)
        first = np.repeat(starts[ids] - np.cumsum(counts) + counts, counts)
        return rows, first + np.arange(len(rows))

    def _left(self, table: Table) -> tuple[Array, Array]:
        """The rows for which all PATHs hold."""
        left = np.ones(len(table), np.bool_)
        for each in self._asked:
            if len(each.roots.events) > _MOST_EVENTS:
                each.roots.forget(np.zeros(0, np.int64))
            left = each.roots.verdicts(table, self.epochs, self._semantics, left)
        rows = np.flatnonzero(left)
        return rows, np.zeros(len(rows), np.int64)

    def _ids(self, table: Table) -> Array:
        """What all PATHs together can tell of the events, as numbers."""
        epochs = self.epochs
        numbers = [each.roots.ids(table, epochs) for each in self._every]
        known = len(self._events)
        ids = self._events.numbers(numbers, len(table))
        fresh = len(self._events) - known
        if fresh:
            combinations = self._events.words[:, known:].tolist()
            found = [
                path.ask([path.roots.events[id] for id in own], self._semantics)
                for path, own in zip(self._every, combinations, strict=True)
            ]
            for each in zip(*found, strict=True):
                self._learn(each)
            self._arrays = None
        return ids

    def _learn(self, found: Sequence[list[Values]]) -> None:
        """Notes the cases of an event, of which each PATH has these solutions."""
        number = self.terms.number
        for path, own in zip(self._every, found, strict=True):
            path.found = own
        for partition, group, solutions in self._cases_of():
            self._cases.append((tuple(map(number, partition)), tuple(map(number, group))))
            self._rows += [tuple(number(each[name]) for name in self.names) for each in solutions]
            self._solutions.append(len(self._rows))
        self._starts.append(len(self._cases))

    def _cases_of(
        self,
    ) -> Iterator[tuple[tuple[Term | None, ...], tuple[Term | None, ...], list[Values]]]:
        for partition in self._partitions():
            given = dict(zip(self._partition, partition, strict=True))
            if not all(each.solutions(given) for each in self._asked):
                continue
            found = [each.solutions(given) for each in self._wanted]
            groups: dict[tuple[Term | None, ...], list[Values]] = {}
            for parts in product(*found):
                values = {name: term for part in parts for name, term in part.items()}
                groups.setdefault(tuple(values[name] for name in self._group), []).append(values)
            for group, solutions in groups.items():
                yield partition, group, solutions

    def _partitions(self) -> list[tuple[Term | None, ...]]:
        if not self._partition:
            return [()]
        found = {
            tuple(each[name] for name in self._partition): None
            for tie in self._ties
            for each in tie.solutions({})
        }
        return list(found)

    # --- cases ---

    def partition_terms(self, name: str, cases: Array) -> Array:
        """The terms of cases that their partitions go by."""
        found: Array = self._columns()[0][cases, self._partition.index(name)]
        return found

    def group_terms(self, name: str, cases: Array) -> Array:
        """The terms of cases that their groups go by."""
        found: Array = self._columns()[1][cases, self._group.index(name)]
        return found

    def solutions(self, cases: Array) -> tuple[Array, dict[str, Array]]:
        """Which case each solution is of, by its place among those that are given, and its terms by name."""
        _, _, starts, rows = self._columns()
        counts = starts[cases + 1] - starts[cases]
        of = np.repeat(np.arange(len(cases)), counts)
        at = np.repeat(starts[cases] - np.cumsum(counts) + counts, counts) + np.arange(len(of))
        return of, {name: rows[at, number] for number, name in enumerate(self.names)}

    def _columns(self) -> tuple[Array, ...]:
        if self._arrays is None:
            partitions, groups = ([each[side] for each in self._cases] for side in (0, 1))
            self._arrays = (
                np.array(partitions, np.int64).reshape(len(self._cases), len(self._partition)),
                np.array(groups, np.int64).reshape(len(self._cases), len(self._group)),
                np.array(self._solutions, np.int64),
                np.array(self._rows, np.int64).reshape(len(self._rows), len(self.names)),
            )
        return self._arrays


class _Asked:
    """A PATH, asked for all that must be known of a solution to see whether it counts.

    Its conditions speak of the event too, and a partition goes by some of its variables.
    """

    def __init__(
        self, path: Semantic, variable: str, catalog: Catalog, partition: Sequence[str] = ()
    ) -> None:
        self.path = path
        mentioned = frozenset[str]().union(*map(element_variables, path.alternatives))
        self._given = tuple(each for each in partition if each in mentioned)
        judged = (name for each in path.conditions for name in path_references(each))
        self._names = tuple(dict.fromkeys((*path.selected, *judged, *self._given)))
        relation = path.relation
        if relation is not None:
            known = element_variables(relation.rest) | {root.name for root in relation.roots}
            relation = relation if known.issuperset(self._names) else None
        self._more = path
        if self._names != path.selected or path.conditions:
            self._more = replace(path, selected=self._names, conditions=(), relation=relation)
        self.roots = RootIds(replace(self._more, conditions=path.conditions), variable, catalog)
        self._variable = variable
        self.found: list[Values] = []
        """What holds for the event that is looked at."""

    def ask(self, events: Sequence[Event], semantics: Semantics) -> list[list[Values]]:
        """Asks what holds for each of these events."""
        if self.path.variables:
            found = solutions_of_each(semantics, self._more, self._variable, events)
        else:
            found = [semantics.solutions(self._more, {})] * len(events)
        return [
            [
                each
                for each in (dict(zip(self._names, row, strict=True)) for row in rows)
                if all(_test(with_terms(test, each))(event) is True for test in self.path.conditions)
            ]
            for rows, event in zip(found, events, strict=True)
        ]

    def solutions(self, given: Values) -> list[Values]:
        """The different values of the selected variables; of none, one where there is any solution."""
        inside = (each for each in self.found if all(each[name] == given[name] for name in self._given))
        rows = dict.fromkeys(tuple(each[name] for name in self.path.selected) for each in inside)
        return [dict(zip(self.path.selected, row, strict=True)) for row in rows]


@lru_cache(maxsize=1024)
def _test(condition: Expr) -> Callable[[Event], Value]:
    return event_function(condition)


def _names(exprs: Sequence[Expr]) -> tuple[str, ...]:
    return tuple(each.name for each in exprs if isinstance(each, VariableRef))
