"""The pattern operator that is compiled: tables of final events in, matches as columns out."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from kaicep.kernel.columns import Array, Column, Lists, Matches, Refs, Strings, Table, column_of
from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled import block as b
from kaicep.kernel.compiled import memory
from kaicep.kernel.compiled.automaton import Automaton, Store
from kaicep.kernel.compiled.expressions import Constants, Inputs, NotCompiled
from kaicep.kernel.compiled.layout import Kernel, Levels
from kaicep.kernel.compiled.pattern import generate
from kaicep.kernel.compiled.rows import MOST, RowReader
from kaicep.kernel.compiled.saved import load, save
from kaicep.kernel.compiled.verdicts import VerdictTable
from kaicep.kernel.conditions import fold_of
from kaicep.kernel.operator import Limits, Nobody, Semantics, refuse
from kaicep.kernel.states import Compiled
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import Match, by_end
from kaicep.plan.expressions import Aggregate
from kaicep.plan.identity import MatchId
from kaicep.plan.nodes import OutputColumn, Pattern, Project, QueryPlan
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type
from kaicep.plan.typing import type_of

__all__ = ["CompiledPattern", "Identities", "compilable", "kept_of_events", "some_of"]

CHUNK = 65_536
"""So many matches are written before they are given out; then they are still in the cache."""

_FAR_PAST = -(2**63)
_Words = dict[str, tuple[Array, Array, Array | None]]
_VIEWS = {"u8": np.uint64, "i8": np.int64, "f8": np.float64, "i4": np.int32, "i1": np.int8}


def compilable(plan: QueryPlan, catalog: Catalog) -> str | None:
    """None where an optimised plan can be compiled, else the reason why not, in words."""
    try:
        _kernel(plan, catalog, Constants(Strings()))
    except NotCompiled as reason:
        return str(reason)
    return None


def kept_of_events(plan: QueryPlan, catalog: Catalog) -> list[tuple[tuple[object, ...], ...]]:
    """What a compiled pattern keeps of the events that wait for others, store by store."""
    kernel = _kernel(plan, catalog, Constants(Strings()))
    return [tuple(each.fields) for each in kernel.stores] + [tuple(kernel.nodes)]


def _kernel(plan: QueryPlan, catalog: Catalog, constants: Constants, levels: Levels | None = None) -> Kernel:
    root = plan.root
    if not isinstance(root, Project) or not isinstance(root.input, Pattern):
        raise NotCompiled("it is no pattern")
    pattern = root.input
    if pattern.skip != "none":
        raise NotCompiled("AFTER MATCH SKIP")
    if any(catalog.streams[each].derived for each in pattern.streams):
        raise NotCompiled("it reads the output of a query")
    automaton = Automaton(pattern, Compiled(pattern, Nobody()))
    return generate(plan, automaton, Inputs(catalog, pattern.streams), constants, levels)


class CompiledPattern:
    """A `Pattern` and its columns, compiled.

    The arrays of the `Matches` that `feed` and `advance` give out are written again by the next call of
    either. Where there are many matches, `feed` gives them out in pieces, each valid until the next is
    asked for; it has done its work when the last has been taken. Who pushes single events feeds one and the
    same table again and again, with other values in its arrays: then nothing has to be looked up anew.
    """

    def __init__(
        self,
        plan: QueryPlan,
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
        levels: Levels | None = None,
    ) -> None:
        self.plan = plan
        self.strings = strings
        self.version: int | None = 0
        self.versioned = versioned
        self._semantics = semantics
        self._constants = Constants(strings)
        self.kernel = kernel = _kernel(plan, catalog, self._constants, levels)
        self.attributes = kernel.inputs.attributes
        self.streams = tuple(kernel.inputs.streams)
        for table in self._constants.tables:
            if isinstance(table, VerdictTable):
                table.semantics = semantics
        self._epochs: Array = np.zeros(0, np.int64)
        root = plan.root
        assert isinstance(root, Project)
        assert isinstance(root.input, Pattern)
        self.pattern = root.input
        self._columns = root.columns
        self._names = tuple(each.name for each in root.columns)
        self._optional = frozenset(
            name for name, left_out in loops_of(self.pattern.sequence).items() if left_out
        )
        found = compile_source(kernel.source)
        self._go, self._run, self._settle, self._sweep = (
            found[each] for each in ("go", "run", "settle", "sweep")
        )
        self._fire, self._push = found.get("fire"), b.HELPERS["push"]
        # A partial match takes eight bytes for each of its fields, and stretches may be half empty.
        self._limit = (limits or Limits()).most(
            16 * max((len(each.fields) for each in kernel.stores), default=1) + 1
        )
        # To hash a string takes longer than to look for matches in ten of its events.
        self._asks_for_words = f"S[{b.WORDS}]" in kernel.source
        self._table: Table | None = None
        self._reader: RowReader | None = None
        self._known = -1
        self._make_block()
        self.renew()

    def _make_block(self) -> None:
        kernel = self.kernel
        self.block = block = np.zeros(kernel.size, np.int64)
        self._numbers = (np.array(self._constants.floats), np.array(self._constants.ints, np.int64))
        self._widths = np.array([each.width for each in kernel.outputs], np.int64)
        self._key = np.zeros(64, np.int64)
        self._mask = np.zeros(0, np.int32)
        self._ones = np.zeros(0, np.int8)
        block[b.FLOATS], block[b.INTS] = (each.ctypes.data for each in self._numbers)
        block[b.WIDTHS] = self._widths.ctypes.data
        block[b.KEY] = self._key.ctypes.data
        block[b.OUTPUTS] = b.START + 2 * b.MOST_COLUMNS + b.MOST_TABLES
        block[b.OUTPUT_COUNT] = len(kernel.outputs)
        block[b.CHUNK] = CHUNK
        block[b.NOW] = block[b.LAST] = _FAR_PAST
        low, high = self.seed()
        block[b.SEED_LOW], block[b.SEED_HIGH] = (np.uint64(each).astype(np.int64) for each in (low, high))
        block[b.LIMIT] = self._limit
        for base, store, words in zip(kernel.bases, kernel.stores, kernel.words, strict=True):
            block[base + memory.WIDTH] = len(store.fields)
            block[base + memory.WORD_COUNT] = words
        block[b.NODE_WIDTH] = len(kernel.nodes)
        for at, columns in kernel.flats.values():
            block[at + 2] = len(columns)
        self._views: list[Array] = []
        self._by_name: dict[tuple[object, ...], Array] = {}
        self._capacity = -1
        flats = tuple(
            at + 3 + index for at, columns in kernel.flats.values() for index in range(len(columns))
        )
        weakref.finalize(self, _release, block, tuple(kernel.bases), flats)

    def seed(self) -> tuple[int, int]:
        """The id as far as it is known before any event."""
        made = MatchId(self.plan.name, self.plan.text)
        if not self.pattern.partition:
            for each in self.kernel.known:
                made.word(each)
        return made.low, made.high

    # --- events come ---

    def feed(self, table: Table) -> Sequence[Matches] | Iterator[Matches]:
        """What is found by these events, the next ones in order."""
        if not len(table):
            return ()
        block = self.block
        if table is not self._table or len(self.strings) != self._known:
            self._bind(table)
        if self.versioned:
            block[b.VERSION] = self.version or 0
        done = self._go(block, len(table))
        if done & 3 == 0:
            return self._pieces() if done else ()
        return self._rest(table, int(done & 3))

    def single(self, table: Table, watermark: int) -> Sequence[Match]:
        """As `feed` of a table with one event, then `advance`, but the matches are rows, in their order."""
        block = self.block
        if table is not self._table or len(self.strings.texts) != self._known:
            self._bind(table)
        if self.versioned:
            block[b.VERSION] = self.version or 0
        done = self._go(block, 1)
        if done == 0 and self._fire is None:
            block[b.NOW] = watermark
            return ()
        if done & 3 or done >> 2 > MOST or self._fire is not None or self.kernel.flats:
            pieces = self._pieces() if done & 3 == 0 else self._rest(table, int(done & 3))
            found = [match for piece in pieces for match in piece]
            found += [match for piece in self.advance(watermark) for match in piece]
            return sorted(found, key=by_end)
        block[b.NOW] = watermark
        return self._rows().matches(done >> 2)

    def _rows(self) -> RowReader:
        version = self.version if self.versioned else None
        if self._reader is None or self._reader.version != version:
            self._reader = RowReader(
                self.plan.name,
                self.block,
                self.kernel.outputs,
                self._columns,
                self.streams,
                self.strings,
                version,
            )
        return self._reader

    def _rest(self, table: Table, status: int) -> Iterator[Matches]:
        block = self.block
        while True:
            if status == 2:
                self._refuse(int(table.ts[block[b.ROW] - 1]))
            else:
                yield from self._pieces()
                self._begin()
            if status == 0:
                break
            status = self._run(block)
        self._settle(block)

    def _begin(self) -> None:
        """From here on matches are written over those that were given out."""
        self.block[b.OUT] = 0
        for at, _ in self.kernel.flats.values():
            self.block[at] = 0

    def _refuse(self, now: int) -> None:
        """Too much is held; what has expired and was not swept yet does not count."""
        self._sweep(self.block, now, 2**62)
        if self.block[b.HELD] > self._limit:
            raise refuse(
                f"{self.plan.name} (MATCH {self.pattern.match})",
                int(self.block[b.HELD]),
                "add a WINDOW that ties its events together, or make it narrower; an equality in a JOIN, "
                "PARTITION BY, or MATCH next in place of any also lets it hold less",
            )

    def advance(self, watermark: float) -> Sequence[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        block = self.block
        now = 2**63 - 1 if watermark == math.inf else math.ceil(max(watermark, -(2.0**62)))
        self._begin()
        if now > block[b.NOW]:
            block[b.NOW] = now
            if self._fire is not None:
                self._fire(block, now)
                return self._pieces()
        return ()

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        if self.pattern.deadline is None or watermark == math.inf:
            return watermark
        starts = [
            self._oldest(store, base)
            for store, base in zip(self.kernel.stores, self.kernel.bases, strict=True)
        ]
        return min([watermark, *(each + self.pattern.deadline for each in starts if each is not None)])

    @property
    def last_ts(self) -> int:
        """The time of the event that came last."""
        return int(self.block[b.LAST])

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        epochs = tuple(getattr(getattr(self._semantics, "knowledge", None), "epochs", ()))
        self._epochs = np.array([*epochs, 0], np.int64)
        self.block[b.EPOCHS], self.block[b.EPOCH_COUNT] = self._epochs.ctypes.data, len(epochs) + 1
        for table in self._constants.tables:
            if isinstance(table, VerdictTable):
                table.reset(epochs)
        self._known = -1

    @property
    def size(self) -> int:
        """How many partial matches are held."""
        if self.last_ts != _FAR_PAST:
            self._sweep(self.block, max(self.last_ts, int(self.block[b.NOW])), 2**62)
        return int(self.block[b.HELD])

    # --- columns in ---

    def _bind(self, table: Table) -> None:
        """Tells the kernel where the columns lie."""
        block = self.block
        rows = len(table)
        if len(self.strings) != self._known:
            self.learn()
        kept: list[Array] = []

        def place(at: int, array: Array, dtype: Any) -> None:
            if array.dtype != dtype or not array.flags.c_contiguous:
                array = np.ascontiguousarray(array, dtype)
            kept.append(array)
            block[at] = array.__array_interface__["data"][0]

        place(b.TS, table.ts, np.int64)
        place(b.PLACE, table.place, np.int8)
        place(b.PART, table.part, np.int64)
        place(b.SEQ, table.seq, np.int64)
        place(b.LOW, table.low, np.uint64)
        place(b.HIGH, table.high, np.uint64)
        if len(self._mask) < rows:
            self._mask = np.zeros(max(rows, 1024), np.int32)
            self._ones = np.ones(max(rows, 1024), np.int8)
            block[b.MASK] = self._mask.ctypes.data
        for number, (name, type) in enumerate(self.kernel.inputs.types.items()):
            column = table.columns[name]
            at = b.START + 2 * number
            place(at, column.data, _DATA[type])
            if type is Type.INT64:
                place(at + 1, self._ones if column.valid is None else column.valid.view(np.int8), np.int8)
        self._bound = kept
        self._table = table

    def learn(self) -> None:
        """Lets the tables and the slots follow the dictionary of strings."""
        block = self.block
        self._constants.grow()
        self._tables = [each.array for each in self._constants.tables]
        first = b.START + 2 * b.MOST_COLUMNS
        for number, each in enumerate(self._tables):
            block[first + number] = each.ctypes.data
        if self._asks_for_words:
            self._words = self.strings.words
            block[b.WORDS] = self._words.ctypes.data
        self._known = len(self.strings)
        for base, density in zip(self.kernel.bases, self.kernel.dense, strict=True):
            if density is not None:
                memory.open_slots(block, base, 1 if density == "one" else self._known + 2)

    # --- matches out ---

    def _pieces(self) -> Sequence[Matches]:
        """The matches that were written; those that awaited a deadline may have been judged by others."""
        if not self.block[b.OUT]:
            return ()
        found = self._matches()
        at = self.output(("version",))
        if not self.versioned or at < 0:
            return (found,)
        versions = self._views[at][: len(found)]
        bounds = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(found)]
        return tuple(
            replace(some_of(found, slice(low, high)), version=int(versions[low]))
            for low, high in pairwise(bounds)
        )

    def _matches(self) -> Matches:
        """The matches that were written."""
        block = self.block
        count = int(block[b.OUT])
        if block[b.OUT_CAPACITY] != self._capacity:
            self._see_outputs()
        views = self._by_name
        select: dict[str, Column | Lists] = {}
        for index, column in enumerate(self._columns):
            if column.name in self.kernel.listed:
                select[column.name] = self._listed(column, views, count)
                continue
            valid = views["valid", index][:count].view(np.bool_) if column.type is Type.INT64 else None
            assert column.type is not None
            select[column.name] = Column(column.type, views["select", index][:count], valid)
        return Matches(
            self.plan.name,
            self.streams,
            self.strings,
            views["low",][:count],
            views["high",][:count],
            views["start",][:count],
            views["end",][:count],
            self._names,
            select,
            Identities(partial(self._identities, views, count)),
            optional=self._optional,
            version=self.version if self.versioned else None,
        )

    def _identities(self, views: Mapping[Any, Array], count: int) -> _Words:
        """By variable, the words that its events are known by; of a loop, of all rounds of all matches."""
        made: _Words = {}
        for each in self.kernel.outputs:
            kind, *rest = each.of
            if kind == "seq":
                made[str(rest[0])] = views[each.of][:count], views["where", rest[0]][:count], None
            elif kind == "offset":
                offsets = np.concatenate([[0], views[each.of][:count]])
                seq, where = self._flat(str(rest[0]))[:2]
                made[str(rest[0])] = seq, where, offsets
        return made

    def _flat(self, loop: str) -> list[Array]:
        """The columns of a loop's rounds."""
        at, columns = self.kernel.flats[loop]
        count = int(self.block[at])
        return [_at(int(self.block[at + 3 + index]), count, np.int64) for index in range(len(columns))]

    def _listed(self, column: OutputColumn, views: Mapping[Any, Array], count: int) -> Column | Lists:
        """A column that is made of the values of all rounds."""
        loop, expr = self.kernel.listed[column.name]
        _, columns = self.kernel.flats[loop]
        flat = self._flat(loop)
        type = type_of(expr)
        assert type is not None
        data = flat[columns.index(("value", loop, expr))]
        valid = flat[columns.index(("null", loop, expr))] == 0 if type is Type.INT64 else None
        values = Column(
            type, data.view(np.float64) if type is Type.FLOAT64 else data.astype(_DATA[type]), valid
        )
        offsets = np.concatenate([[0], views["offset", loop][:count]])
        if column.many:
            return Lists(offsets, values)
        assert isinstance(column.expr, Aggregate)
        assert column.type is not None
        fold = fold_of(column.expr)
        plain = values.values(self.strings)
        bounds = offsets.tolist()
        made = [fold.of(plain[low:high]) for low, high in pairwise(bounds)]
        return column_of(column.type, made, self.strings)

    def column(self, of: tuple[object, ...]) -> Array:
        """What was written last of one of the outputs."""
        return self._views[self.output(of)]

    def _see_outputs(self) -> None:
        self._capacity = capacity = int(self.block[b.OUT_CAPACITY])
        first = int(self.block[b.OUTPUTS])
        self._views = [
            _at(int(self.block[first + number]), capacity, _VIEWS[each.view])
            for number, each in enumerate(self.kernel.outputs)
        ]
        self._by_name = dict(zip((each.of for each in self.kernel.outputs), self._views, strict=True))

    # --- state ---

    def snapshot(self) -> bytes:
        """The state."""
        self._sweep(self.block, max(self.last_ts, int(self.block[b.NOW])), 2**62)
        return save(self)

    def restore(self, state: bytes) -> None:
        """Goes on from a state; the operator is a new one."""
        load(self, state)

    def slots(self, base: int) -> Array:
        """The slots of a store: where each begins, its first entry, how many there are, its size."""
        count = int(self.block[base + memory.SLOT_COUNT])
        return _at(int(self.block[base + memory.SLOTS]), count * 4, np.int64).reshape(-1, 4)

    def arena(self, base: int) -> Array:
        """The entries of a store."""
        return _at(int(self.block[base + memory.ARENA]), int(self.block[base + memory.CAPACITY]), np.int64)

    def key_words(self, base: int, slot: int) -> Array:
        """The key of a slot of a hash."""
        width = int(self.block[base + memory.WORD_COUNT])
        return _at(int(self.block[base + memory.WORDS]) + slot * width * 8, width, np.int64)

    def find_slot(self, base: int, words: Sequence[int]) -> int:
        """The slot of a key of a hash."""
        return int(memory.find(self.block, base, np.array(words, np.int64), True))

    def open_entries(self, base: int, slot: int, count: int) -> None:
        """Makes room for entries at the end of a slot."""
        for _ in range(count):
            memory.reserve(self.block, base, slot)

    def await_deadline(self, end: int, store: int, slot: int) -> None:
        """Puts a deadline into the heap."""
        self._push(self.block, end, store, slot)

    def node(self, number: int) -> Array:
        """A round of a loop."""
        width = int(self.block[b.NODE_WIDTH])
        return _at(int(self.block[b.NODES]) + number * width * 8, width, np.int64)

    def new_node(self, parent: int) -> int:
        """A new round of a loop, after another one."""
        return int(b.HELPERS["new_node"](self.block, parent))

    def hold_node(self, number: int) -> None:
        """Holds on to a round."""
        b.HELPERS["hold_node"](self.block, number)

    def output(self, of: tuple[object, ...]) -> int:
        """The number of an output."""
        return next((index for index, each in enumerate(self.kernel.outputs) if each.of == of), -1)

    def _oldest(self, store: Store, base: int) -> int | None:
        """The smallest start of what is held in a store."""
        what: tuple[object, ...] = ("start",) if store.steps else ("out", self.output(("start",)))
        records = self.slots(base)
        some = records[(records[:, 2] > 0) & (records[:, 3] > 0)]
        if not len(some):
            return None
        at = list(store.fields).index(what)
        arena = self.arena(base)
        found = [
            arena[o + at * size + head : o + at * size + head + n].min() for o, head, n, size in some.tolist()
        ]
        return int(min(found))


def some_of(matches: Matches, rows: Array | slice) -> Matches:
    """Some of the matches, none of which has a loop."""
    assert isinstance(matches.events, Identities)
    return replace(
        matches,
        low=matches.low[rows],
        high=matches.high[rows],
        start=matches.start[rows],
        end=matches.end[rows],
        select={each: it.take(rows) for each, it in matches.select.items() if isinstance(it, Column)},
        events=matches.events.take(rows),
    )


class Identities(Mapping[str, Refs]):
    """The events of matches by variable; taken apart when somebody asks."""

    def __init__(self, words: Callable[[], _Words]) -> None:
        self._read = words

    @cached_property
    def _words(self) -> _Words:
        return self._read()

    def __getitem__(self, name: str) -> Refs:
        seq, where, offsets = self._words[name]
        return Refs(where >> 48, where & (2**48 - 1), seq, offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def take(self, rows: Array | slice) -> Identities:
        """Those of some matches, none of which has a loop."""
        made: _Words = {name: (seq[rows], where[rows], None) for name, (seq, where, _) in self._words.items()}
        return Identities(lambda: made)

    def __len__(self) -> int:
        return len(self._words)


_DATA = {
    Type.BOOL: np.int8,
    Type.INT64: np.int64,
    Type.FLOAT64: np.float64,
    Type.STRING: np.int32,
    Type.TIMESTAMP: np.int64,
}


def _at(address: int, count: int, dtype: Any) -> Array:
    """The array at an address."""
    if count == 0 or address == 0:
        return np.zeros(0, dtype)
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def _release(block: Array, bases: tuple[int, ...], flats: tuple[int, ...]) -> None:
    """Gives back what the kernel has taken."""
    for base in bases:
        memory.release_store(block, base)
    first = int(block[b.OUTPUTS])
    for at in (b.INDEX, b.HEAP, b.NODES, b.PATH, *range(first, first + int(block[b.OUTPUT_COUNT])), *flats):
        memory.release_column(int(block[at]))
