"""The pattern operator: gives batches of columns to the pattern machine, and makes its matches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import Question, alone, of_one_event, value_of, word_of
from kaicep.kernel.columns import Array, Column, Lists, Matches, Refs, Strings, Table, column_of
from kaicep.kernel.expressions import value_function
from kaicep.kernel.operator import Limits, Semantics, refuse
from kaicep.kernel.predicates import CONTEXT, ask_hash
from kaicep.kernel.shape import POSITION, TIME, Absence, Roots, Shape
from kaicep.kernel.whole import aggregate_of, applied, evaluated, holds_for_all
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, VariableRef, walk
from kaicep.plan.identity import MatchId, text_word, value_words
from kaicep.plan.literals import native
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan, Semantic
from kaicep.plan.results import loops_of
from kaicep.plan.types import INT64_MIN, Type, Value
from kaicep.plan.typing import type_of

__all__ = ["PatternMachine"]

_MANY_ANSWERS = 100_000
_CHUNK = 65_536
"""So many matches are written before they are given out; then they are still in the cache."""


class PatternMachine:
    """A `Pattern` and its columns."""

    def __init__(
        self,
        plan: QueryPlan,
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        assert isinstance(plan.root, Project)
        assert isinstance(plan.root.input, Pattern)
        self.plan, self.catalog, self.strings = plan, catalog, strings
        self.pattern = pattern = plan.root.input
        self.version: int | None = 0
        self.versioned = versioned
        self._semantics = semantics
        self._limits = limits or Limits()
        self._columns = plan.root.columns
        self._optional = frozenset(name for name, out in loops_of(pattern.sequence).items() if out)
        self.shape = Shape(pattern, strings.code, tuple(self._shown()))
        self.streams = pattern.streams
        self.attributes = self._attributes()
        self._roots: dict[Roots, _Interned] = {}
        self._make_memory()

    # --- what it reads ---

    def _shown(self) -> Iterator[Expr]:
        """What must be known of events for the columns and the ids of matches."""
        for column in self._columns:
            yield from _single_parts(column.expr)
        yield from self.pattern.partition

    def _attributes(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        exprs = [each for each in self.shape.columns if isinstance(each, Expr)]
        exprs += [each for _, key in self.shape.keys for each in key]
        semantics = [each for _, _, own in self.shape.chains for each in own]
        semantics += [each.condition for each in self.shape.columns if isinstance(each, Roots)]
        for _, conditions, _ in self.shape.chains:
            exprs += conditions
        for expr in exprs:
            for node in walk(expr):
                if isinstance(node, Field):
                    found.update((name, None) for _, names in node.sources for name in names if name != "ts")
        if semantics:
            for stream in self.streams:
                known = self.catalog.streams[stream]
                found.update((name, None) for name, _ in (*known.concepts, *known.entities))
        declared = {name for stream in self.streams for name, _ in self.catalog.streams[stream].attributes}
        return tuple(each for each in found if each in declared)

    # --- memory ---

    def _make_memory(self) -> None:
        tables, shape = self.shape.tables, self.shape
        zero = shape.zero()
        columns = len(zero)
        at = int(tables.shape[t.S_ZERO])
        meta = np.zeros(t.META, np.int64)
        meta[t.FREE :] = -1
        meta[t.TOP] = at + columns
        meta[t.RESUME] = -1
        meta[t.SWEPT] = meta[t.NOW] = INT64_MIN // 2
        meta[t.LIMIT] = self._limits.most(8 * columns)
        arena = np.zeros(at + columns + 4_096)
        arena.view(np.int64)[at : at + columns] = zero
        word = np.zeros(1, np.int64)
        self.memory = t.Memory(
            meta,
            np.zeros((int(tables.shape[t.S_FRONTS]), 4), np.int64),
            arena,
            arena.view(np.int64),
            np.zeros((256, 4), np.int64),
            np.zeros((t.E_FIXED + len(shape.kept), 256), np.int64),
            np.zeros((16, 3), np.int64),
            np.full((64, 6), -1, np.int64),
            np.zeros((64, t.P_ROW + columns), np.int64),
            np.zeros((16, 5), np.int64),
            np.zeros(64, np.uint8),
            np.zeros(256, np.uint8),
            np.zeros(columns, np.int64),
            word,
            word.view(np.float64),
            np.zeros((256, 5), np.int64),
            np.zeros(len(CONTEXT), np.int64),
            np.zeros((5, 1_024), np.int64),
        )
        widest = max((len(key) for _, key in shape.keys), default=1)
        self._slots = np.full((64, 2 + widest), -1, np.int64)
        self._interned = np.zeros(2, np.int64)
        self._answered = 0
        self._absent: dict[str, list[_Absent]] = {}
        self._batch: t.Batch | None = None
        self._skipping = _Skipping(self.pattern.skip)

    def _point(self, batch: t.Batch) -> None:
        """Tells the interpreter where everything stands."""
        memory, tables = self.memory, self.shape.tables
        where = {
            "arena": memory.ints.ctypes.data,
            "program": tables.program.ctypes.data,
            "const": tables.const.ctypes.data,
            "meta": memory.meta.ctypes.data,
            "mask": memory.mask.ctypes.data,
            "values": batch.values.ctypes.data,
            "events": batch.values.shape[1],
            "known": memory.known.ctypes.data,
            "answers": len(memory.known),
            "asked": memory.asked.ctypes.data,
            "questions": len(memory.asked),
            "scalars": int(tables.shape[t.S_SCRATCH]),
        }
        memory.context[:] = [where[name] for name in CONTEXT]

    # --- events come ---

    def feed(self, table: Table) -> list[Matches]:
        """What is found by these events, the next ones in order."""
        found: list[Matches] = []
        if not len(table):
            return found
        self.memory.meta[t.VERSION] = self.version or 0
        fits = self._fits(table)
        rows = np.flatnonzero(fits)
        if len(rows) < len(table):
            table, fits = table.take(rows), fits[rows]
        if len(table):
            batch = self._batch = self._made(table, fits)
            self._note_absent(table, fits, batch)
            at = 0
            while True:
                self._point(batch)
                at, why = machine.advance(self.shape.tables, self.memory, batch, at)
                if why == t.DONE:
                    break
                if why == t.FULL:
                    self._make_room(found)
                elif why == t.ASK:
                    self._answer(batch, table)
                else:
                    self._refuse()
            self._drain(found)
            self._settle(found)
            self._forget_answers()
            self.memory.meta[t.POSITION] += len(table)
            self._batch = None
        return found

    def advance(self, watermark: float) -> list[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        found: list[Matches] = []
        now = 2**63 - 1 if watermark == math.inf else math.ceil(max(watermark, -(2.0**62)))
        while not machine.fire(self.memory, now):
            self._make_room(found)
        self._drain(found)
        self._settle(found)
        self.memory.meta[t.NOW] = max(int(self.memory.meta[t.NOW]), now)
        return found

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        if self.pattern.deadline is None or watermark == math.inf:
            return watermark
        ends = [watermark, *self._skipping.ends]
        heap = self.memory.heap[: self.memory.meta[t.HEAP], 0]
        ends += [int(heap.min())] if len(heap) else []
        first = int(self.shape.tables.shape[t.S_FIRST])
        for seg, cap, lo, hi in self.memory.cells[
            self.memory.cells[:, t.HI] > self.memory.cells[:, t.LO]
        ].tolist():
            start = self.memory.ints[seg + first * cap + lo : seg + first * cap + hi]
            ends.append(int(start.min()) + self.pattern.deadline)
        return min(ends)

    @property
    def size(self) -> int:
        """How many partial matches are kept."""
        return int(self.memory.meta[t.ROWS] + self.memory.meta[t.HEAP])

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        self.memory.known[:] = -1
        self._answered = 0
        for each in self._roots.values():
            each.verdicts.clear()

    def _refuse(self) -> None:
        raise refuse(
            f"{self.plan.name} (MATCH {self.pattern.match})",
            self.size,
            "add a WINDOW that ties its events together, or make it narrower; an equality in a JOIN, "
            "PARTITION BY, or MATCH next in place of any also lets it keep less",
        )

    # --- room ---

    def _make_room(self, found: list[Matches]) -> None:
        """Makes whatever is full larger."""
        memory, need = self.memory, int(self.memory.meta[t.NEED])
        if memory.meta[t.MATCHES]:
            self._drain(found)
            if need == t.N_OUT and memory.out.shape[1] >= _CHUNK:
                return
        if need in (t.N_NODES, t.N_EVENTS):
            self._collect()
            memory = self.memory
            if memory.meta[t.NODES] * 2 > len(memory.nodes):
                memory = memory._replace(nodes=_longer(memory.nodes))
            if memory.meta[t.EVENTS] * 2 > memory.events.shape[1]:
                wider = np.zeros((len(memory.events), 2 * memory.events.shape[1]), np.int64)
                wider[:, : memory.events.shape[1]] = memory.events
                memory = memory._replace(events=wider)
        elif need == t.N_ARENA:
            arena = _longer(memory.floats)
            memory = memory._replace(floats=arena, ints=arena.view(np.int64))
        elif need == t.N_PEND:
            memory = memory._replace(pend=_longer(memory.pend))
        elif need == t.N_HITS:
            memory = memory._replace(hits=_longer(memory.hits))
        elif need == t.N_MASK:
            widest = 2 * int(memory.meta[t.WIDEST]) + 4
            memory = memory._replace(
                marks=_longer(memory.marks), mask=np.zeros(max(widest, 2 * len(memory.mask)), np.uint8)
            )
        elif need == t.N_HEAP:
            memory = memory._replace(heap=_longer(memory.heap))
        elif need == t.N_OUT:
            memory = memory._replace(out=np.zeros((5, 2 * memory.out.shape[1]), np.int64))
        self.memory = memory

    def _collect(self) -> None:
        memory = self.memory
        machine.collect(
            self.shape.tables,
            memory,
            np.zeros(len(memory.nodes), np.int64),
            np.zeros(memory.events.shape[1], np.int64),
        )
        # Nodes have other numbers now, and questions about them no answers.
        memory.known[:] = -1
        self._answered = 0

    # --- columns in ---

    def _fits(self, table: Table) -> Array:
        """By bit, the places that each event may take."""
        fits = np.zeros(len(table), np.int64)
        strict = self.pattern.match == "strict"
        counts = np.zeros(len(table), np.bool_)
        all_count = any(not semantics for _, _, semantics in self.shape.chains)
        for place, (scan, conditions, semantics) in enumerate(self.shape.chains):
            here = self._sees(table, scan)
            passes = here
            for each in conditions:
                passes = passes & self._holds(each, table)
            asked = here if strict and not all_count else passes
            for path in semantics:
                asked = asked & self._verdicts(Roots(path, scan.variable), table, asked)
            passes = passes & asked
            counts |= here if all_count else asked
            fits |= passes.astype(np.int64) << place
        if strict:
            fits |= counts.astype(np.int64) << len(self.shape.variables)
        return fits

    def _sees(self, table: Table, scan: Any) -> Array:
        here: Array = np.ones(len(table), np.bool_)
        if set(table.streams) - set(scan.streams):
            here &= np.isin(
                table.place, [table.streams.index(each) for each in scan.streams if each in table.streams]
            )
        within = scan.within
        if within.low is not None:
            here &= table.ts >= within.low + (not within.low_inclusive)
        if within.high is not None:
            here &= table.ts < within.high + within.high_inclusive
        return here

    def _holds(self, condition: Expr, table: Table) -> Array:
        found: Array = self._evaluated(condition, table).data == 1
        return found

    def _evaluated(self, expr: Expr, table: Table) -> Column:
        value = value_function(expr, table.streams)
        return column_of(type_of(expr) or Type.BOOL, [value(each) for each in _events(table)], self.strings)

    def _made(self, table: Table, fits: Array) -> t.Batch:
        count = len(table)
        values = np.zeros((len(self.shape.columns), count), np.int64)
        for of, number in self.shape.columns.items():
            if of is TIME:
                values[number] = table.ts
            elif of is POSITION:
                values[number] = self.memory.meta[t.POSITION] + np.arange(count)
            elif isinstance(of, Roots):
                values[number] = self._root_ids(of, table)
            else:
                assert isinstance(of, Expr)
                values[number] = _words(self._evaluated(of, table))
        keys = np.zeros((len(self.shape.keys), count), np.int32)
        for number, (_, exprs) in enumerate(self.shape.keys):
            keys[number] = self._key_ids(exprs, table)
        self._make_cells()
        where = (table.place.astype(np.int64) << 48) | table.part
        return t.Batch(
            np.ascontiguousarray(table.ts, np.int64),
            fits,
            keys,
            values,
            where,
            np.ascontiguousarray(table.seq, np.int64),
            np.ascontiguousarray(table.low).view(np.int64),
            np.ascontiguousarray(table.high).view(np.int64),
        )

    def _key_ids(self, exprs: Sequence[Expr], table: Table) -> Array:
        count, partition = len(table), len(self.pattern.partition)
        words = np.zeros((len(exprs), count), np.int64)
        without = np.zeros(count, np.bool_)
        for number, expr in enumerate(exprs):
            column = self._evaluated(expr, table)
            words[number] = _words(column)
            if column.type is Type.FLOAT64:
                words[number] = (column.data + 0.0).view(np.int64)  # there is one zero
                null = np.isnan(column.data)
                words[number][null] = t.NULL
            if number >= partition or not self.pattern.partition:
                without |= words[number] == t.NULL
        ids = np.zeros(count, np.int32)
        while not machine.intern(words, without, self._slots, self._interned, ids):
            self._more_slots()
        return ids

    def _more_slots(self) -> None:
        old = self._slots[self._slots[:, 0] >= 0]
        old = old[np.argsort(old[:, 0])]
        self._slots = np.full((2 * len(self._slots), self._slots.shape[1]), -1, np.int64)
        at = int(self._interned[1])
        self._interned[:] = 0
        for width in np.unique(old[:, 1]).tolist():
            own = old[old[:, 1] == width]
            words = np.ascontiguousarray(own[:, 2 : 2 + width].T)
            made = np.zeros(len(own), np.int32)
            machine.intern(words, np.zeros(len(own), np.bool_), self._slots, self._interned, made)
            # They get the numbers that they had.
            fresh = np.flatnonzero(self._slots[:, 0] >= int(self._interned[0]) - len(own))
            self._slots[fresh, 0] = own[self._slots[fresh, 0] - (int(self._interned[0]) - len(own)), 0]
            self._interned[0] = 0 if width != old[:, 1].max() else self._interned[0]
        self._interned[0] = len(old)
        self._interned[1] = at

    def _make_cells(self) -> None:
        fronts = int(self.shape.tables.shape[t.S_FRONTS])
        wanted = max(int(self._interned[0]), 1) * fronts
        cells = self.memory.cells
        if len(cells) < wanted:
            more = np.zeros((max(2 * len(cells), wanted), 4), np.int64)
            more[: len(cells)] = cells
            self.memory = self.memory._replace(cells=more)

    # --- PATHs ---

    def _interner(self, roots: Roots) -> _Interned:
        if roots not in self._roots:
            self._roots[roots] = _Interned(roots, self.catalog)
        return self._roots[roots]

    def _root_ids(self, roots: Roots, table: Table) -> Array:
        epochs = tuple(getattr(getattr(self._semantics, "knowledge", None), "epochs", ()))
        return self._interner(roots).ids(table, epochs)

    def _verdicts(self, roots: Roots, table: Table, wanted: Array) -> Array:
        """Whether a PATH holds for each event."""
        known = self._interner(roots)
        ids = self._root_ids(roots, table)
        for id in np.unique(ids[wanted]).tolist():
            if id not in known.verdicts:
                event = known.events[id]
                known.verdicts[id] = bool(self._semantics.solutions(roots.condition, {roots.variable: event}))
        lookup = np.zeros(len(known.events) + 1, np.bool_)
        for id, holds in known.verdicts.items():
            lookup[id] = holds
        return lookup[ids]

    # --- questions ---

    def _answer(self, batch: t.Batch, table: Table) -> None:
        """Answers what the machine asked."""
        count = min(int(self.memory.meta[t.ASKED]), len(self.memory.asked))
        asked = {tuple(each) for each in self.memory.asked[:count].tolist()}
        if 2 * (self._answered + len(asked)) >= len(self.memory.known):
            self._more_known(len(asked))
        for number, *words in sorted(asked):
            question = self.shape.constants.questions[number]
            self._learn((number, *words), self._reply(question, words, batch))

    def _reply(self, question: Question, words: list[int], batch: t.Batch) -> int:
        of, first = question.of, int(self.memory.meta[t.POSITION])
        if isinstance(of, Semantic):
            binding = {
                name: self._interner(Roots(of, name)).events[word]
                for name, word in zip(of.variables, words, strict=False)
            }
            return 2 * bool(self._semantics.solutions(of, binding))
        if isinstance(of, Call):
            given = [
                value_of(word, type, self.strings.texts.__getitem__)
                for word, type in zip(words, question.types, strict=False)
            ]
            value = applied(of, given)
        elif isinstance(of, Absence):
            return 2 * (not self._occurs(of, words[0], words[1] - first, batch))
        else:
            value = self._whole(of, words[0], words[1] - first, batch)
        if question.type is Type.BOOL:
            return 1 if value is None else 2 * bool(value)
        return word_of(value, question.type, self.strings.code)

    def _learn(self, key: tuple[int, ...], answer: int) -> None:
        known = self.memory.known
        at = int(ask_hash(*key)) & (len(known) - 1)
        while known[at, 0] >= 0:
            at = (at + 1) & (len(known) - 1)
        known[at] = (*key, answer)
        self._answered += 1

    def _forget_answers(self) -> None:
        """Lets go of answers that are of no use any more, where there are many."""
        if self._answered > _MANY_ANSWERS:
            self.memory = self.memory._replace(known=np.full((64, 6), -1, np.int64))
            self._answered = 0

    def _more_known(self, more: int) -> None:
        old = self.memory.known[self.memory.known[:, 0] >= 0]
        size = len(self.memory.known)
        while size <= 4 * (len(old) + more):
            size *= 2
        self.memory = self.memory._replace(known=np.full((size, 6), -1, np.int64))
        self._answered = 0
        for row in old.tolist():
            self._learn(tuple(row[:5]), row[5])

    # --- what is asked of a whole match ---

    def _chain(self, node: int, variable: str | None, at: int, batch: t.Batch) -> list[tuple[str, _Seen]]:
        """The events of a row in order, and the one that is looked at."""
        tables, memory = self.shape.tables, self.memory
        found: list[tuple[str, _Seen]] = []
        if variable is not None:
            found.append((variable, _Seen(self, batch, at)))
        while node >= 0:
            event, up, state, _ = memory.nodes[node].tolist()
            name = self.shape.variables[int(tables.state[state, t.T_PLACE])]
            found.append((name, _Seen(self, None, event)))
            node = up
        found.reverse()
        return found

    def _whole(self, of: Any, node: int, at: int, batch: t.Batch) -> Value:
        """A condition that must hold for every round, or an aggregate over all of them."""
        if isinstance(of[0], Aggregate):
            expr, variable = of
            own = [seen for name, seen in self._chain(node, variable, at, batch) if name == expr.variable]
            return aggregate_of(expr, own)
        requirement, variable, newest = of
        rounds: dict[str, list[_Seen]] = {}
        for name, seen in self._chain(node, variable, at, batch):
            rounds.setdefault(name, []).append(seen)
        return holds_for_all(requirement, rounds, newest, self._path_holds)

    def _path_holds(self, condition: Semantic, binding: Mapping[str, _Seen]) -> bool:
        events = {
            name: self._interner(Roots(condition, name)).events[int(seen.word(Roots(condition, name)))]
            for name, seen in binding.items()
        }
        return bool(self._semantics.solutions(condition, events))

    def _note_absent(self, table: Table, fits: Array, batch: t.Batch) -> None:
        owed = {each.of.variable for each in self.shape.constants.questions if isinstance(each.of, Absence)}
        for name in owed:
            rows = np.flatnonzero((fits >> self.shape.places[name]) & 1)
            if len(rows):
                self._absent.setdefault(name, []).append(_Absent(self, batch, rows, table))

    def _occurs(self, of: Absence, node: int, at: int, batch: t.Batch) -> bool:
        """Whether an event that must be absent lies between its neighbours in a finished match."""
        chain = self._chain(node, of.newest, at, batch)
        elements = self.shape.elements
        left = max(seen.position for name, seen in chain if elements[name] < of.element)
        right = min((seen.position for name, seen in chain if elements[name] > of.element))
        rounds: dict[str, list[_Seen]] = {}
        for name, seen in chain:
            rounds.setdefault(name, []).append(seen)
        own = self._partition_of(chain[0][1])
        for some in self._absent.get(of.variable, ()):
            for seen in some.between(left, right):
                if self._partition_of(seen) != own:
                    continue
                beside = {**rounds, of.variable: [seen]}
                if all(
                    holds_for_all(each, beside, None, self._path_holds)
                    for each in self.shape.of_absent[of.variable]
                ):
                    return True
        return False

    def _partition_of(self, seen: _Seen) -> tuple[int, ...]:
        return tuple(seen.word(each) for each in self.pattern.partition)

    # --- matches out ---

    def _drain(self, found: list[Matches]) -> None:
        """Makes matches of what the machine has written."""
        count = int(self.memory.meta[t.MATCHES])
        if count:
            made, order = self._matches(count)
            self.memory.meta[t.MATCHES] = 0
            if self.pattern.skip == "none":
                found += self._by_version(made, order.versions)
            else:
                self._skipping.add(made, order)

    def _settle(self, found: list[Matches]) -> None:
        """Lets go of the matches that AFTER MATCH leaves, as far as that is certain."""
        if self.pattern.skip == "none":
            return
        for made, version in self._skipping.settled(self._awaited()):
            found.append(replace(made, version=version if self.versioned else None))

    def _awaited(self) -> dict[tuple[Value, ...], int]:
        """By partition, the place of the earliest last event of a match that awaits its deadline."""
        earliest: dict[tuple[Value, ...], int] = {}
        memory = self.memory
        for node in memory.heap[: memory.meta[t.HEAP], 1].tolist():
            event, _, _, dead = memory.nodes[node].tolist()
            if not dead:
                seen = _Seen(self, None, event)
                key = tuple(seen.value(each) for each in self.pattern.partition)
                earliest[key] = min(earliest.get(key, seen.position), seen.position)
        return earliest

    def _by_version(self, made: Matches, versions: Array) -> Iterator[Matches]:
        if not self.versioned or not len(made):
            yield from (made,) if len(made) else ()
            return
        for version in np.unique(versions).tolist():
            yield replace(taken(made, np.flatnonzero(versions == version)), version=int(version))

    def _matches(self, count: int) -> tuple[Matches, _Order]:
        memory, shape, tables = self.memory, self.shape, self.shape.tables
        places = len(shape.variables)
        found = np.full((places, count), -1, np.int64)
        lengths = np.zeros((places, count), np.int64)
        machine.resolve(tables, memory, count, found, lengths)
        last = memory.out[t.M_EVENT, :count]
        made = MatchId(self.plan.name, self.plan.text)
        low, high = np.full(count, made.low, np.uint64), np.full(count, made.high, np.uint64)
        for expr in self.pattern.partition:
            kinds, words = _identity_words(self._kept(expr, last), self.strings)
            machine.mix_pairs(low, high, kinds, words)
        rounds: dict[str, tuple[Array, Array]] = {}
        for name in self.plan.variables:
            place = shape.places[name]
            offsets = np.concatenate([[0], np.cumsum(lengths[place])])
            if name in shape.loops:
                events = np.zeros(int(offsets[-1]), np.int64)
                machine.resolve_rounds(tables, memory, count, place, offsets, events)
            else:
                events = found[place][found[place] >= 0]
            rounds[name] = offsets, events
            machine.mix_events(low, high, offsets, events, memory.events)
        first = self._firsts(count)
        select = {
            column.name: self._column(column, found, rounds, count)
            for column in self._columns
            if not isinstance(column.expr, VariableRef)
        }
        matches = Matches(
            self.plan.name,
            self.streams,
            self.strings,
            low,
            high,
            memory.events[t.E_TS, first],
            memory.out[t.M_END, :count].copy(),
            tuple(each.name for each in self._columns),
            select,
            self._refs(found, rounds),
            optional=self._optional,
        )
        order = _Order(memory.out[t.M_VERSION, :count].copy())
        if self.pattern.skip != "none":
            self._note_order(order, count, found, rounds)
        rows, terms = self._solutions(count, found)
        if rows is not None:
            matches, order = taken(matches, rows), order.take(rows)
            matches = self._with_terms(matches, terms)
        if shape.ambiguous:
            words = np.stack([matches.low, matches.high])
            rows = np.sort(np.unique(words, axis=1, return_index=True)[1])
            matches, order = taken(matches, rows), order.take(rows)
        return matches, order

    def _refs(self, found: Array, rounds: Mapping[str, tuple[Array, Array]]) -> dict[str, Refs]:
        memory, shape = self.memory, self.shape
        events: dict[str, Refs] = {}
        absent = set(shape.absences.values())
        for name in self.plan.variables:
            if name in absent:
                continue
            offsets, own = rounds[name]
            if name not in shape.loops:
                own = found[shape.places[name]]
            where, seq = memory.events[t.E_WHERE, own], memory.events[t.E_SEQ, own]
            place = np.where(own < 0, -1, where >> 48)
            events[name] = Refs(place, where & (2**48 - 1), seq, offsets if name in shape.loops else None)
        return events

    def _firsts(self, count: int) -> Array:
        """The first event of each match."""
        memory = self.memory
        first = memory.out[t.M_EVENT, :count].copy()
        node = memory.out[t.M_NODE, :count].copy()
        while (going := node >= 0).any():
            first[going] = memory.nodes[node[going], t.N_EVENT]
            node[going] = memory.nodes[node[going], t.N_UP]
        return first

    def _note_order(
        self, order: _Order, count: int, found: Array, rounds: Mapping[str, tuple[Array, Array]]
    ) -> None:
        """What AFTER MATCH asks of each match: the places of its events, its partition, where it resumes."""
        position = self.memory.events[t.E_POSITION]
        own = {
            name: [position[events[low:high]].tolist() for low, high in pairwise(offsets.tolist())]
            for name, (offsets, events) in rounds.items()
        }
        columns = [
            self._kept(each, self.memory.out[t.M_EVENT, :count]).values(self.strings)
            for each in self.pattern.partition
        ]
        mode, variable = self.pattern.skip, self.pattern.skip_variable
        for m in range(count):
            places = tuple(sorted(at for each in own.values() for at in each[m]))
            resume = -1
            if mode == "past_last":
                resume = places[-1] + 1
            elif mode in ("first", "last") and variable is not None and own[variable][m]:
                resume = own[variable][m][0 if mode == "first" else -1]
            order.keys.append((tuple(each[m] for each in columns), places, resume))

    def _solutions(self, count: int, found: Array) -> tuple[Array | None, list[dict[str, Any]]]:
        """Which match each row is of, and what its PATHs selected; None where nothing is selected."""
        selecting = [each for each in self.pattern.semantics if each.selected]
        if not selecting:
            return None, []
        rows: list[int] = []
        terms: list[dict[str, Any]] = []
        for m in range(count):
            answers: list[list[tuple[str, Any]]] = [[]]
            for condition in selecting:
                places = [self.shape.places[name] for name in condition.variables]
                if any(found[place, m] < 0 for place in places):
                    continue
                binding = {}
                for name, place in zip(condition.variables, places, strict=True):
                    roots = Roots(condition, name)
                    word = _Seen(self, None, int(found[place, m])).word(roots)
                    binding[name] = self._interner(roots).events[word]
                solutions = self._semantics.solutions(condition, binding)
                answers = [
                    [*before, *zip(condition.selected, row, strict=True)]
                    for before in answers
                    for row in solutions
                ]
            rows += [m] * len(answers)
            terms += map(dict, answers)
        return np.array(rows, np.int64), terms

    def _with_terms(self, matches: Matches, terms: list[dict[str, Any]]) -> Matches:
        """The matches with the columns that PATHs gave, which are part of their ids."""
        shown: dict[str, list[Any]] = {}
        named: dict[str, None] = {}
        for column in self._columns:
            if isinstance(column.expr, VariableRef):
                name = column.expr.name
                named[name] = None
                shown[column.name] = [None if row.get(name) is None else native(row[name]) for row in terms]
        low, high = matches.low.copy(), matches.high.copy()
        for name in named:
            words = np.array([text_word(str(row.get(name) or "")) for row in terms], np.uint64).view(np.int64)
            machine.mix_pairs(low, high, words, words)
        return replace(matches, low=low, high=high, terms=shown)

    def _kept(self, expr: Expr, events: Array) -> Column:
        """A value of events that are kept; null where there is no event."""
        row = t.E_FIXED + self.shape.keep(expr)
        type = type_of(expr)
        assert type is not None
        words = self.memory.events[row, np.maximum(events, 0)]
        return _column(type, words, events < 0)

    def _column(
        self, column: OutputColumn, found: Array, rounds: Mapping[str, tuple[Array, Array]], count: int
    ) -> Column | Lists:
        expr = column.expr
        variable = of_one_event(expr)
        if column.many:
            assert variable is not None
            offsets, events = rounds[variable]
            return Lists(offsets, self._kept(expr, events))
        if variable is not None and variable not in self.shape.loops:
            return self._kept(expr, found[self.shape.places[variable]])
        # Few queries join values of several events in SELECT; they are worked out value by value.
        made: list[Value] = []
        for m in range(count):
            seen = {
                name: _Seen(self, None, int(found[place, m]))
                for name, place in self.shape.places.items()
                if found[place, m] >= 0
            }
            covered = {
                name: [_Seen(self, None, each) for each in own[offsets[m] : offsets[m + 1]].tolist()]
                for name, (offsets, own) in rounds.items()
            }
            made.append(evaluated(expr, seen, {}, covered))
        assert column.type is not None
        return column_of(column.type, made, self.strings)


@dataclass
class _Order:
    """Of matches: the version of the knowledge, and what AFTER MATCH asks of them."""

    versions: Array
    keys: list[tuple[tuple[Value, ...], tuple[int, ...], int]] = field(default_factory=list)
    """The partition, the places of the events in the order, and where to resume."""

    def take(self, rows: Array) -> _Order:
        return _Order(self.versions[rows], [self.keys[row] for row in rows.tolist()] if self.keys else [])


class _Skipping:
    """AFTER MATCH: the matches that are not settled yet, and what those that were taken rule out."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._waiting: dict[tuple[Value, ...], list[tuple[tuple[int, ...], int, int, Matches]]] = {}
        self._resume: dict[tuple[Value, ...], int] = {}
        self._used: dict[tuple[Value, ...], set[int]] = {}

    def add(self, matches: Matches, order: _Order) -> None:
        versions = order.versions.tolist()
        for row, (partition, places, resume) in enumerate(order.keys):
            one = taken(matches, np.array([row]))
            self._waiting.setdefault(partition, []).append((places, resume, versions[row], one))

    @property
    def ends(self) -> Iterator[int]:
        """When the matches that wait have ended."""
        return (int(one.end[0]) for some in self._waiting.values() for _, _, _, one in some)

    def settled(self, awaited: Mapping[tuple[Value, ...], int]) -> Iterator[tuple[Matches, int]]:
        """The matches that are taken; none is before a match whose deadline is still awaited."""
        for partition, waiting in list(self._waiting.items()):
            waiting.sort(key=lambda each: (each[0][-1], each[0][0], -len(each[0]), each[0]))
            bound = awaited.get(partition, math.inf)
            ready = [each for each in waiting if each[0][-1] < bound]
            self._waiting[partition] = waiting[len(ready) :]
            if len(ready) == len(waiting):
                del self._waiting[partition]
            yield from self._taken(partition, ready)

    def _taken(
        self, partition: tuple[Value, ...], ready: list[tuple[tuple[int, ...], int, int, Matches]]
    ) -> Iterator[tuple[Matches, int]]:
        used = self._used.setdefault(partition, set())
        for places, group in groupby(ready, key=lambda each: each[0]):
            members = list(group)
            if places[0] < self._resume.get(partition, -1) or places[0] in used:
                continue
            if self.mode == "next":
                used.add(places[0])
            resume = max(each[1] for each in members)
            self._resume[partition] = max(self._resume.get(partition, -1), resume)
            yield from ((one, version) for _, _, version, one in members)


class _Absent:
    """Events of a batch that must be absent from matches which end later."""

    def __init__(self, operator: PatternMachine, batch: t.Batch, rows: Array, table: Table) -> None:
        self.operator, self.batch, self.rows = operator, batch, rows
        self.first = int(operator.memory.meta[t.POSITION])

    def between(self, left: int, right: int) -> Iterator[_Seen]:
        low, high = np.searchsorted(self.rows, (left - self.first + 1, right - self.first))
        for row in self.rows[low:high].tolist():
            yield _Seen(self.operator, self.batch, row, self.first)


class _Seen:
    """An event of a match, as conditions see it: kept, or the one that is looked at in its batch."""

    def __init__(
        self, operator: PatternMachine, batch: t.Batch | None, at: int, first: int | None = None
    ) -> None:
        self.operator, self.batch, self.at = operator, batch, at
        meta = operator.memory.meta
        if batch is None:
            self.position = int(operator.memory.events[t.E_POSITION, at])
        else:
            self.position = at + (int(meta[t.POSITION]) if first is None else first)

    def word(self, of: object) -> int:
        shape, memory = self.operator.shape, self.operator.memory
        column = shape.columns[alone(of) if isinstance(of, Expr) else of]
        if self.batch is not None:
            return int(self.batch.values[column, self.at])
        return int(memory.events[t.E_FIXED + shape.kept[column], self.at])

    def value(self, expr: Expr) -> Value:
        return value_of(self.word(expr), type_of(expr), self.operator.strings.texts.__getitem__)


class _Interned:
    """The events that a PATH can tell apart: by stream, annotated values and epoch of the knowledge."""

    def __init__(self, roots: Roots, catalog: Catalog) -> None:
        self.roots = roots
        self.catalog = catalog
        self.events: list[Event] = []
        self.verdicts: dict[int, bool] = {}
        self._ids: dict[tuple[Any, ...], int] = {}

    def ids(self, table: Table, epochs: tuple[int, ...]) -> Array:
        made = np.zeros(len(table), np.int64)
        for row, event in enumerate(_events(table)):
            known = self.catalog.streams[event.stream]
            names = [name for name, _ in (*known.concepts, *known.entities)]
            values = {name: event.value(name) for name in names}
            epoch = sum(each <= event.ts for each in epochs)
            key = (event.stream, epoch, *((name, type(each), each) for name, each in values.items()))
            if "hasTime" in repr(self.roots.condition):
                key = (*key, event.ts)
            if key not in self._ids:
                self._ids[key] = len(self.events)
                self.events.append(event)
            made[row] = self._ids[key]
        return made


def _events(table: Table) -> list[Event]:
    names = list(table.columns)
    columns = [table.columns[name].values(table.strings) for name in names]
    places = zip(
        table.place.tolist(), table.part.tolist(), table.seq.tolist(), table.ts.tolist(), strict=True
    )
    rows = zip(*columns, strict=True) if columns else [()] * len(table)
    return [
        Event(table.streams[place], part, seq, ts, dict(zip(names, row, strict=True)))
        for (place, part, seq, ts), row in zip(places, rows, strict=True)
    ]


def _single_parts(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Const | VariableRef):
        return
    if of_one_event(expr) is not None:
        yield expr
    elif isinstance(expr, Aggregate):
        yield from () if expr.of is None else (expr.of,)
    else:
        for each in expr.children():
            yield from _single_parts(each)


def _words(column: Column) -> Array:
    """A column as words of the machine."""
    if column.type is Type.FLOAT64:
        return np.ascontiguousarray(column.data, np.float64).view(np.int64)
    data = column.data.astype(np.int64)
    if column.type in (Type.STRING, Type.BOOL):
        data[data < 0] = t.NULL
    elif column.type is Type.INT64 and column.valid is not None:
        data[~column.valid] = t.NULL
    return data


def _column(type: Type, words: Array, without: Array) -> Column:
    """Words of the machine as a column."""
    if type is Type.FLOAT64:
        data = words.view(np.float64).copy()
        data[without] = np.nan
        return Column(type, data)
    null = (words == t.NULL) | without
    if type is Type.INT64:
        return Column(type, np.where(null, 0, words), ~null if null.any() else None)
    if type is Type.TIMESTAMP:
        return Column(type, np.where(null, t.NULL, words))
    return Column(type, np.where(null, -1, words).astype(np.int32 if type is Type.STRING else np.int8))


def _identity_words(column: Column, strings: Strings) -> tuple[Array, Array]:
    pairs = [value_words(each) for each in column.values(strings)]
    kinds = np.array([kind for kind, _ in pairs], np.uint64)
    words = np.array([word for _, word in pairs], np.uint64)
    return kinds.view(np.int64), words.view(np.int64)


def _longer(array: Array) -> Array:
    more = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
    more[: len(array)] = array
    return more


def taken(matches: Matches, rows: Array) -> Matches:
    """Some of the matches."""
    return replace(
        matches,
        low=matches.low[rows],
        high=matches.high[rows],
        start=matches.start[rows],
        end=matches.end[rows],
        select={name: _taken_column(each, rows) for name, each in matches.select.items()},
        events={name: _taken_refs(each, rows) for name, each in matches.events.items()},
        terms={name: [each[row] for row in rows.tolist()] for name, each in matches.terms.items()},
    )


def _taken_column(column: Column | Lists, rows: Array) -> Column | Lists:
    if isinstance(column, Column):
        return column.take(rows)
    offsets, flat = _taken_lists(column.offsets, rows)
    return Lists(offsets, column.flat.take(flat))


def _taken_refs(refs: Refs, rows: Array) -> Refs:
    if refs.offsets is None:
        return Refs(refs.place[rows], refs.part[rows], refs.seq[rows])
    offsets, flat = _taken_lists(refs.offsets, rows)
    return Refs(refs.place[flat], refs.part[flat], refs.seq[flat], offsets)


def _taken_lists(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """The offsets of some lists, and which values are in them."""
    lengths = offsets[rows + 1] - offsets[rows]
    made = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.arange(int(made[-1])) + np.repeat(offsets[rows] - made[:-1], lengths)
    return made, flat
