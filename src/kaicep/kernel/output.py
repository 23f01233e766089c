"""From what the pattern machine has written to `Matches`: spans, events and selected values, as columns.

A match is the last node of a chain. Its events are followed once; what identifies them, spans and selected
values are then read from the rows in which the machine keeps events, a few hundred matches at a time. Ids
follow from these columns; they are made when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import of_one_event, word_of
from kaicep.kernel.columns import (
    Array,
    Column,
    Lists,
    Matches,
    Refs,
    Strings,
    Table,
    Words,
    chosen,
    concatenated,
)
from kaicep.kernel.jit import direct
from kaicep.kernel.shape import PatternShape
from kaicep.kernel.vectors import vectors_of
from kaicep.kernel.words import Identities, identity_words, mix_pairs
from kaicep.plan.events import Event, MatchId
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, rewrite, type_of
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern
from kaicep.plan.operators import event_function
from kaicep.plan.paths import has_path_values
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type, Value

_emit = direct(machine.emit)
_IDENTITY = np.array([(0, each, 0) for each in (t.E_PLACE, t.E_PART, t.E_SEQ)])
"""What `gather` reads of events that are all at one place."""

Rounds = Mapping[str, tuple[Array, Array]]
"""By variable, where each match's events begin among those of all matches, and these events."""


@dataclass(frozen=True)
class Finished:
    """Matches before anything of them is written, and the rows of their events.

    `found` has for each place its last event, then the first event of all, then the LATEST ones; `rounds` is
    there for loops.
    """

    events: Array
    found: Array
    rounds: Mapping[str, tuple[Array, Array]]
    last: Array
    end: Array
    versions: Array

    def __len__(self) -> int:
        return len(self.last)

    def of(self, variable: str, place: int) -> tuple[Array, Array]:
        """Where the events of a variable begin in each match, and these events."""
        if variable in self.rounds:
            return self.rounds[variable]
        own = self.found[place]
        return np.concatenate([[0], np.cumsum(own >= 0)]), own[own >= 0]

    def rows(self, rows: Array) -> Finished:
        """Some of the matches."""
        rounds = {}
        for name, (offsets, events) in self.rounds.items():
            begins, flat = ranges(offsets, rows)
            rounds[name] = begins, events[flat]
        found, last = self.found[:, rows], self.last[rows]
        return Finished(self.events, found, rounds, last, self.end[rows], self.versions[rows])

    def packed(self) -> Finished:
        """The same matches, with a copy of no more rows than theirs."""
        needed = [self.found.ravel(), self.last, *(events for _, events in self.rounds.values())]
        used = np.unique(np.concatenate(needed))
        used = used[used >= 0]
        place = np.full(len(self.events) + 1, -1, np.int64)
        place[used] = np.arange(len(used))
        rounds = {name: (offsets, place[events]) for name, (offsets, events) in self.rounds.items()}
        return Finished(
            self.events[used], place[self.found], rounds, place[self.last], self.end, self.versions
        )


@dataclass(frozen=True)
class Made:
    """Matches, and what they were written from, which does not outlive the machine's next step."""

    matches: Matches
    of: Finished

    def take(self, rows: Array) -> Made:
        """Some of the matches."""
        return Made(taken(self.matches, rows), self.of.rows(rows))


class Output:
    """How the matches of a plan are written."""

    def __init__(
        self, plan: ChiPlan, shape: PatternShape, strings: Strings, derived: frozenset[str] = frozenset()
    ) -> None:
        assert isinstance(plan.body, Pattern)
        self.plan, self.shape, self.strings, self._derived = plan, shape, strings, derived
        self.streams, self.partition = plan.body.streams, shape.pattern.partition
        self.columns = plan.columns
        self._optional = frozenset(name for name, out in loops_of(shape.pattern.sequence).items() if out)
        absent = set(shape.absences.values())
        self.variables = [name for name in plan.variables if name not in absent]
        latest = [each.variable for each in shape.pattern.latest]
        behind = len(shape.variables) + 1
        self.places = shape.places | {name: behind + number for number, name in enumerate(latest)}
        """Where the event of a variable stands in `found`."""
        self._identities = Identities(self.streams, derived)
        self._seed = MatchId(plan.name, plan.text)
        self._room = np.empty(machine.AT_ONCE, np.int64)
        self._picks: dict[tuple[int, int], tuple[int, int]] = {}
        first = len(shape.variables)
        self.start = self._pick(first, t.E_TS, 0)
        self._partition = [
            (type_of(each), self._pick(first, t.E_FIXED + shape.keep(each), 0)) for each in self.partition
        ]
        self._single = [name for name in self.variables if name not in shape.loops]
        self._seqs = {name: self._pick(self.places[name], t.E_SEQ, 0) for name in self._single}
        self._chosen = {each.name: self._pick_column(each) for each in self.columns if self._is_picked(each)}
        self.plain_columns = [
            (each.name, each.type, self._chosen[each.name])
            for each in self.columns
            if each.name in self._chosen
        ]
        """The columns that are read as they are: name, type, and where."""
        self._origins: dict[str, tuple[int, int]] = {}
        """Where streams and parts are read; nowhere as long as all events are of the first ones."""
        self._table = self._picked()

    def _picked(self) -> Array:
        return np.array([(place, *rest) for (place, _), rest in self._picks.items()], np.int64)

    def tell_origins_apart(self) -> None:
        """From here on events are of several streams or parts."""
        for name in self._single:
            place = self.places[name]
            self._origins[name] = self._pick(place, t.E_PLACE, -1), self._pick(place, t.E_PART, 0)
        self._table = self._picked()

    def _pick(self, place: int, word: int, nothing: int) -> int:
        """The column of what is read that has a word of a place's event."""
        found = self._picks.setdefault((place, word), (word, nothing))
        return list(self._picks).index((place, word)) if found else 0

    def _is_picked(self, column: OutputColumn) -> bool:
        if column.many or has_path_values(column.expr):
            return False
        if _of_last(column.expr) is not None:
            return True
        variable = of_one_event(column.expr)
        return variable is not None and variable not in self.shape.loops

    def _pick_column(self, column: OutputColumn) -> int:
        last = _of_last(column.expr)
        expr = last or column.expr
        variable = of_one_event(expr)
        assert variable is not None
        nothing = word_of(None if last else _without_event(expr), type_of(expr), self.strings.code)
        word = t.E_FIXED + self.shape.keep(expr)
        return self._pick(self.places[variable], word, nothing)

    # --- matches ---

    def made(self, memory: t.Memory, count: int) -> Made:
        """The matches that the machine has written."""
        shape = self.shape
        if shape.loops:
            return self.written(self.followed(memory, count))
        last, versions = (memory.out[each, :count] for each in (t.M_EVENT, t.M_VERSION))
        end, found, read = self.emitted(memory, count)
        return self.made_of(Finished(memory.events, found, {}, last, end, versions), read)

    def emitted(self, memory: t.Memory, count: int) -> tuple[Array, Array, Array]:
        """When the matches end that the machine has written, their events by place, what is read of these."""
        # All columns in one piece of memory: when it is free again, the next matches get it, as it is.
        places = len(self.shape.variables) + 2
        whole = np.empty((places + len(self._table), count), np.int64)
        end, found, read = whole[0], whole[1:places], whole[places:]
        end[:] = memory.out[t.M_END, :count]
        _emit(self.shape.tables, memory, memory.events.ravel(), found, self._table, read, self._room)
        return end, found, read

    def followed(self, memory: t.Memory, count: int) -> Finished:
        """The events of the matches that the machine has written."""
        shape = self.shape
        found = np.full((len(shape.variables) + 1, count), -1, np.int64)
        lengths = np.zeros((len(shape.variables), count), np.int64)
        machine.resolve(shape.tables, memory, count, found, lengths)
        rounds: dict[str, tuple[Array, Array]] = {}
        for name in shape.loops:
            place = shape.places[name]
            offsets = np.concatenate([[0], np.cumsum(lengths[place])])
            events = np.zeros(int(offsets[-1]), np.int64)
            machine.resolve_rounds(shape.tables, memory, count, place, offsets, events)
            rounds[name] = offsets, events
        last, end, versions = memory.out[[t.M_EVENT, t.M_END, t.M_VERSION], :count]
        return Finished(memory.events, found, rounds, last, end, versions)

    def written(self, found: Finished) -> Made:
        """Matches whose events are known."""
        read = np.empty((len(self._table), len(found)), np.int64)
        width = found.events.shape[1]
        own = np.ascontiguousarray(found.found)
        machine.gather(found.events.ravel(), width, own, self._table, read, self._room)
        return self.made_of(found, read)

    def made_of(self, found: Finished, read: Array) -> Made:
        """Matches whose events and words are known."""
        events = self.events_of(found, read)
        matches = self.of(
            lambda: self.ids_of(events, read),
            read[self.start],
            found.end,
            self._select(found, read),
            events,
        )
        return Made(matches, found)

    def ids_of(self, events: Mapping[str, Refs], read: Array) -> Words:
        """The ids of matches of these events, of which this was read."""
        partition = [column_of_words(type or Type.INT64, read[at]) for type, at in self._partition]
        return self._identify(read.shape[1], partition, events)

    def of(
        self,
        identify: Callable[[], Words],
        start: Array,
        end: Array,
        select: Mapping[str, Column | Lists],
        events: Mapping[str, Refs],
        terms: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    ) -> Matches:
        """Matches of these columns."""
        names = tuple(each.name for each in self.columns)
        return Matches(
            self.plan.name, self.streams, self.strings, identify, start, end, names, select, events, terms,
            optional=self._optional,
            derived=self._derived,
        )  # fmt: skip

    def of_single(self, table: Table, rows: Array) -> Matches:
        """Matches of one event each."""
        vectors = vectors_of(table)
        ts, place, part, seq = (chosen(each, rows) for each in (table.ts, table.place, table.part, table.seq))
        select = {each.name: vectors.value(each.expr).take(rows) for each in self.columns}
        partition = [vectors.value(each).take(rows) for each in self.partition]
        events = dict.fromkeys(self.variables, Refs(place, part, seq))
        return self.of(lambda: self._identify(len(rows), partition, events), ts, ts, select, events)

    def _identify(self, count: int, partition: Sequence[Column], events: Mapping[str, Refs]) -> Words:
        """The ids of matches: query, partition, and the events of each variable."""
        low, high = np.full(count, self._seed.low, np.uint64), np.full(count, self._seed.high, np.uint64)
        for column in partition:
            mix_pairs(low, high, *identity_words(column, self.strings))
        nothing = np.full(count, -1, np.int64)
        for name in self.plan.variables:
            self._identities.mix(low, high, events.get(name, Refs(nothing, nothing, nothing)))
        return low, high

    def events_of(self, found: Finished, read: Array) -> dict[str, Refs]:
        """The events of matches by variable, of which this was read."""
        events: dict[str, Refs] = {}
        for name in self.variables:
            if name in self.shape.loops:
                offsets, own = found.rounds[name]
                identities = np.empty((len(_IDENTITY), len(own)), np.int64)
                flat, width = found.events.ravel(), found.events.shape[1]
                machine.gather(flat, width, own[None], _IDENTITY, identities, self._room)
                events[name] = Refs(identities[0], identities[1], identities[2], offsets)
                continue
            seq = read[self._seqs[name]]
            if self._origins:
                place, part = (read[each] for each in self._origins[name])
            else:
                place, part = np.minimum(found.found[self.places[name]], 0), np.zeros(len(seq), np.int64)
            events[name] = Refs(place, part, seq)
        return events

    def _select(self, found: Finished, read: Array) -> dict[str, Column | Lists]:
        select: dict[str, Column | Lists] = {}
        for column in self.columns:
            if column.name in self._chosen:
                assert column.type is not None
                select[column.name] = column_of_words(column.type, read[self._chosen[column.name]])
            elif column.many:
                variable = of_one_event(column.expr)
                assert variable is not None
                offsets, own = found.rounds[variable]
                select[column.name] = Lists(offsets, self.kept(found.events, column.expr, own))
        return select

    def left(self) -> Iterator[OutputColumn]:
        """The columns that join values of several events."""
        for column in self.columns:
            if not (column.many or column.name in self._chosen or has_path_values(column.expr)):
                yield column

    def over(self, expr: Expr, found: Finished) -> Column:
        """The values of an expression of single events, by match; what says something of no event is null."""
        columns: dict[str, Column] = {}

        def written(each: Expr) -> Expr:
            if isinstance(each, Const):
                return each
            variable = of_one_event(each)
            if variable is None:
                assert isinstance(each, Call), each
                return replace(each, args=tuple(map(written, each.args)))
            name = str(len(columns))
            columns[name] = self.kept(found.events, each, found.found[self.places[variable]])
            return Field("", name, (("", (name,)),), type_of(each))

        whole, nothing = written(expr), np.zeros(len(found.last), np.int64)
        table = Table(("",), nothing, nothing, nothing, nothing, columns, self.strings)
        return vectors_of(table).value(whole)

    def kept(self, rows: Array, expr: Expr, events: Array) -> Column:
        """A value of events that are kept; null where there is no event."""
        type = type_of(expr)
        assert type is not None
        words = rows[events, t.E_FIXED + self.shape.keep(expr)]
        words[events < 0] = word_of(None, type, self.strings.code)
        return column_of_words(type, words)


def _of_last(expr: Expr) -> Expr | None:
    """What of the last round of a loop an expression is."""
    if isinstance(expr, Aggregate) and expr.op == "LAST" and expr.of is not None:
        return expr.of if of_one_event(expr.of) is not None else None
    return None


def _without_event(expr: Expr) -> Value:
    """The value of an expression of one event where that was left out: whatever it says of it is null."""
    nulls = rewrite(expr, lambda each: Const(None, type_of(each)) if isinstance(each, Field) else each)
    return event_function(nulls)(Event("", 0, 0, 0))


# --- columns and words -------------------------------------------------------------------------------------


def words_of(column: Column) -> Array:
    """A column as words of the machine."""
    if column.type is Type.FLOAT64:
        return np.ascontiguousarray(column.data, np.float64).view(np.int64)
    data = column.data.astype(np.int64)
    if column.type in (Type.STRING, Type.BOOL):
        data[data < 0] = t.NULL
    elif column.type is Type.INT64 and column.valid is not None:
        data[~column.valid] = t.NULL
    return data


def column_of_words(type: Type, words: Array) -> Column:
    """Words of the machine as a column."""
    if type is Type.FLOAT64:
        return Column(type, words.view(np.float64))
    if type is Type.TIMESTAMP:
        return Column(type, words)
    if type is Type.INT64:
        null = words == t.NULL
        return Column(type, np.where(null, 0, words), ~null) if null.any() else Column(type, words)
    return Column(type, np.maximum(words, -1).astype(np.int32 if type is Type.STRING else np.int8))


# --- some of the matches -----------------------------------------------------------------------------------


def taken(matches: Matches, rows: Array) -> Matches:
    """Some of the matches."""
    return replace(
        matches,
        identify=lambda: (matches.ids[0][rows], matches.ids[1][rows]),
        start=matches.start[rows],
        end=matches.end[rows],
        select={name: _taken_column(each, rows) for name, each in matches.select.items()},
        events={name: _taken_refs(each, rows) for name, each in matches.events.items()},
        terms={name: _taken_terms(each, rows) for name, each in matches.terms.items()},
    )


def _taken_terms(terms: Sequence[Any], rows: Array) -> list[Any]:
    return [terms[row] for row in rows.tolist()]


def _taken_column(column: Column | Lists, rows: Array) -> Column | Lists:
    if isinstance(column, Column):
        return column.take(rows)
    offsets, flat = ranges(column.offsets, rows)
    return Lists(offsets, column.flat.take(flat))


def _taken_refs(refs: Refs, rows: Array) -> Refs:
    if refs.offsets is None:
        return Refs(refs.place[rows], refs.part[rows], refs.seq[rows])
    offsets, flat = ranges(refs.offsets, rows)
    return Refs(refs.place[flat], refs.part[flat], refs.seq[flat], offsets)


def ranges(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """The offsets of some lists, and which values are in them."""
    lengths = offsets[rows + 1] - offsets[rows]
    made = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.arange(int(made[-1])) + np.repeat(offsets[rows] - made[:-1], lengths)
    return made, flat


def joined(some: Sequence[Matches]) -> Matches:
    """Matches one after the other."""
    head, *_ = some
    if len(some) == 1:
        return head
    return replace(
        head,
        identify=lambda: (_joined_ids(some, 0), _joined_ids(some, 1)),
        start=np.concatenate([each.start for each in some]),
        end=np.concatenate([each.end for each in some]),
        select={name: _joined_columns([each.select[name] for each in some]) for name in head.select},
        events={name: _joined_refs([each.events[name] for each in some]) for name in head.events},
        terms={name: [one for each in some for one in each.terms[name]] for name in head.terms},
    )


def _joined_ids(some: Sequence[Matches], half: int) -> Array:
    return np.concatenate([each.ids[half] for each in some])


def _joined_columns(columns: Sequence[Column | Lists]) -> Column | Lists:
    lists = [each for each in columns if isinstance(each, Lists)]
    if lists:
        return Lists(
            _joined_offsets([each.offsets for each in lists]), concatenated([each.flat for each in lists])
        )
    return concatenated([each for each in columns if isinstance(each, Column)])


def _joined_refs(refs: Sequence[Refs]) -> Refs:
    offsets = [each.offsets for each in refs if each.offsets is not None]
    return Refs(
        np.concatenate([each.place for each in refs]),
        np.concatenate([each.part for each in refs]),
        np.concatenate([each.seq for each in refs]),
        _joined_offsets(offsets) if offsets else None,
    )


def _joined_offsets(offsets: Sequence[Array]) -> Array:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(each) for each in offsets]))])
