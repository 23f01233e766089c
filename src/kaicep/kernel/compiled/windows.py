"""The compiled operator of a query over a window: aggregates over columns (semantics 2).

It does what `kernel.windows` does with `kernel.project`, on tables instead of events: the same answers with
the same ids, exact to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from kaicep.kernel.columns import DTYPES, Array, Column, Matches, Refs, Strings, Table
from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled.expressions import NotCompiled
from kaicep.kernel.compiled.sums import FAR
from kaicep.kernel.compiled.verdicts import VerdictTable
from kaicep.kernel.compiled.window_memory import META, Want
from kaicep.kernel.compiled.window_saved import load, plain_shape, save
from kaicep.kernel.compiled.window_shape import Shape
from kaicep.kernel.compiled.window_source import Output, WindowSource
from kaicep.kernel.operator import Limits, Semantics, refuse
from kaicep.plan.catalog import Catalog
from kaicep.plan.nodes import Project, QueryPlan, WindowAggregate
from kaicep.plan.types import Type

__all__ = ["CompiledWindow", "compilable"]

# Places in `meta`, as `window_memory.SOURCE` names them.
_AT, _OUT, _WANT, _USED, _FREE, _PUSED, _PFREE = 0, 1, 2, 3, 4, 5, 6
_ARENA, _FAR_USED, _FAR_FREE, _HELD, _COUNTED, _VERSION, _NUMBER, _LIMIT, _RINGS = (
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    15,
    16,
)
_ENDLESS = 2**62


def compilable(plan: QueryPlan, catalog: Catalog) -> str | None:
    """None where the query can be compiled, else the reason why it cannot."""
    if not isinstance(plan.root, Project) or not isinstance(plan.root.input, WindowAggregate):
        return "no query over a window"
    try:
        WindowSource(Shape(plan, catalog), Strings())
    except NotCompiled as reason:
        return str(reason)
    return None


class CompiledWindow:
    """The operator of an optimised plan, `Project` over `WindowAggregate`."""

    def __init__(
        self,
        plan: QueryPlan,
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits,
        versioned: bool = False,
    ) -> None:
        self.plan = plan
        self.version: int | None = 0
        self.shape = Shape(plan, catalog)
        self.strings = strings
        self._versioned = versioned
        self._kernel = _Kernel(self.shape, strings)
        self.source = self._kernel.source
        for each in self.source.constants.tables:
            if isinstance(each, VerdictTable):
                each.semantics = semantics
        self.attributes = self.shape.inputs.attributes
        # Of an event there is its entry in the rings, which may be half empty.
        self._limit = limits.most(16 * max(self.shape.width, 1) + 32 * self.shape.grouped)
        self.begin()

    def begin(self) -> None:
        """The state of a window that has seen nothing."""
        source, shape = self.source, self.shape
        self._meta = np.zeros(META, np.int64)
        self._meta[_RINGS : _RINGS + 96] = -1
        self._meta[[_FREE, _PFREE, _FAR_FREE]] = -1
        self._meta[_LIMIT] = self._limit
        self.inner = Records(shape.inner.stride, source.key_words, source.inner_direct)
        self.outer = Records(shape.outer.stride, source.outer_key_words, source.outer_direct)
        self.arena = np.zeros(1024, np.int64)
        self.far = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self.now: float = -math.inf
        """How far time has come."""
        self._swept: float = -math.inf
        self._fed = self._fed_at_sweep = 0
        self._ones = np.ones(64, np.bool_)
        self._state_changed()

    def _state_changed(self) -> None:
        """Takes note of arrays that were made anew."""
        self._state = [self._meta, *self.inner.arrays, self.arena, self.far, self._counts]
        if self.shape.grouped:
            self._state += self.outer.arrays

    @property
    def size(self) -> int:
        """How many events are held; a batch holds its groups only."""
        if self.shape.sliding:
            return int(self._meta[_HELD])
        counts = self.inner.ints(self.used(self.inner))[:, self.shape.inner.int32("ring.count")]
        return int(np.count_nonzero(counts > 0))

    # --- events come ---

    def feed(self, table: Table) -> Iterable[Matches]:
        """What is found by these events, the next ones in order."""
        if not len(table):
            return []
        found = self._run(self._kernel, table)
        self._look_after(int(table.ts[-1]))
        return found

    def _run(self, kernel: _Kernel, table: Table) -> list[Matches]:
        """Lets a kernel take the events, as often as it stops because it needs more room."""
        count = len(table)
        inputs = self._inputs(kernel, table)
        meta, feed = self._meta, kernel.functions["feed"]
        meta[_AT] = meta[_OUT] = 0
        meta[_VERSION] = self.version or 0
        out = kernel.out(count if self.shape.sliding else 64)
        found: list[Matches] = []
        while True:
            feed(*kernel.numbers, *self._state, self.strings.words, out, *inputs)
            want = Want(int(meta[_WANT]))
            if want is Want.NOTHING:
                break
            if want is Want.OUTPUT:
                found += self._matches(out, table)
                out = kernel.out(max(2 * len(out) // kernel.source.columns, int(meta[_USED]) + 64))
            else:
                self._make_room(want, int(table.ts[meta[_AT]]))
        self._fed += count
        if kernel is self._kernel:
            found += self._matches(out, table)
        return found

    def advance(self, watermark: float) -> Iterable[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        shape, meta = self.shape, self._meta
        width = shape.node.window.width
        self._look_after(watermark)
        if shape.sliding or width is None:
            return []
        if not meta[_USED] or watermark < (int(meta[_NUMBER]) + 1) * width:
            return []
        meta[_OUT] = 0
        out = self._kernel.out(int(meta[_USED]))
        self._kernel.functions["close"](*self._kernel.numbers, *self._state, out)
        return self._matches(out, None)

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return watermark

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        for each in self.source.constants.tables:
            if isinstance(each, VerdictTable):
                each.reset(())  # where the knowledge changes with time, windows are interpreted

    def _inputs(self, kernel: _Kernel, table: Table) -> list[Array]:
        source = kernel.source
        source.constants.grow()
        known = len(self.strings) + 1
        if self.inner.learn(known) | self.outer.learn(known):
            self._state_changed()
        made = [table.ts, table.place, table.part, table.seq, table.low, table.high]
        columns = [table.columns[name] for name in source.shape.inputs.attributes]
        made += [each.data for each in columns]
        made += [self._mask(columns[number]) for number in source.masks]
        made += [each.array for each in source.constants.tables]
        return [_plain(each) for each in made]

    def _mask(self, column: Column) -> Array:
        if column.valid is not None:
            return column.valid
        if len(self._ones) < len(column):
            self._ones = np.ones(len(column), np.bool_)
        return self._ones[: len(column)]

    # --- room ---

    def _make_room(self, want: Want, now: int) -> None:
        """Frees what is not needed, where it is time to; else makes arrays larger."""
        meta = self._meta
        done = self._fed + int(meta[_AT])
        many = done - self._fed_at_sweep >= meta[_USED] + meta[_PUSED]
        if want is Want.HELD or (many and want in (Want.RECORDS, Want.ARENA)):
            self._sweep(now)
            self._fed_at_sweep = done
        if want in (Want.HELD, Want.RECORDS) and self.size > self._limit:
            window = self.shape.node.window
            raise refuse(
                f"{self.plan.name} (WINDOW ?{window.variable}, {window.kind})",
                self.size,
                "make the window narrower, or keep more events out by a FILTER",
            )
        if want is Want.RECORDS:
            self._more_records()
        elif want is Want.ARENA:
            self.arena = _larger(self.arena, 2 * len(self.arena))
        elif want is Want.FAR:
            self.far = _larger(self.far, max(2 * len(self.far), 72 * 1024))
        elif want is Want.COUNTS:
            made = np.zeros(max(2 * len(self._counts), 3 * 4096), np.int64)
            self._kernel.functions["counts_moved"](self._counts, made, meta)
            self._counts = made
        self._state_changed()

    def _more_records(self) -> None:
        shape = self.shape
        for records, layout in ((self.inner, shape.inner), (self.outer, shape.outer)):
            used = self.used(records)
            if used + 64 <= records.capacity:
                continue
            records.grow()
            if not records.direct:
                at = layout.int32("ring.count")
                ints = records.rec.view(np.int32)
                self._kernel.functions["rebuild"](records.look, used, records.rec, layout.stride, ints, at)

    def used(self, records: Records) -> int:
        """How many records there are, free ones between them included."""
        return int(self._meta[_USED if records is self.inner else _PUSED])

    def _look_after(self, now: float) -> None:
        """Once in a while, forgets the keys that did not come back."""
        self.now = max(now, self.now)
        width = self.shape.node.window.width
        if not self.shape.sliding or width is None:
            return
        if self._swept == -math.inf and now != math.inf:
            self._swept = now
        elif now - self._swept >= width:
            self._sweep(now)
            self._swept = now
            self._fed_at_sweep = self._fed

    def _sweep(self, now: float) -> None:
        """A batch by time has nothing to sweep: when it is over, all of it goes."""
        sweep = self._kernel.functions.get("sweep")
        if sweep is not None and now > -_ENDLESS:
            sweep(*self._kernel.numbers, *self._state, int(min(now, _ENDLESS)))

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state."""
        self._sweep(self.now)
        return save(self)

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        load(self, state)

    @property
    def number(self) -> int:
        """Which batch by time is open."""
        return int(self._meta[_NUMBER])

    def refill(self, table: Table) -> None:
        """Takes events back in, of which there are keys and what is aggregated (`plain_shape`)."""
        if not len(table):
            return
        kernel = _Kernel(plain_shape(self.shape), self.strings)
        if not self.shape.sliding and not self.shape.timed:
            kernel.numbers[1][0] = _ENDLESS  # a batch by count is not full before it is all there
        self._run(kernel, table)

    def append_far(self, digits: Array) -> Array:
        """Adds far sums; their numbers."""
        first = int(self._meta[_FAR_USED])
        self.far = _larger(self.far, max(len(self.far), first + len(digits)))
        self.far[first : first + len(digits)] = digits
        self._meta[_FAR_USED] += len(digits)
        self._state_changed()
        return np.arange(first // FAR, (first + len(digits)) // FAR)

    # --- matches ---

    def _matches(self, out: Array, table: Table | None) -> list[Matches]:
        count = int(self._meta[_OUT])
        self._meta[_OUT] = 0
        if not count:
            return []
        cells = out.reshape(self.source.columns, -1)[:, :count]
        if 2 * count < len(out) // self.source.columns:
            cells = cells.copy()
        select = {each.name: _column(cells, each) for each in self.source.outputs}
        if self.shape.sliding:
            assert table is not None
            return [self._sliding(cells, select, table)]
        return self._batches(cells, select)

    def _sliding(self, cells: Array, select: dict[str, Column], table: Table) -> Matches:
        rows: Any = slice(None) if cells.shape[1] == len(table) else cells[2]
        return Matches(
            self.plan.name,
            table.streams,
            self.strings,
            cells[0].view(np.uint64),
            cells[1].view(np.uint64),
            cells[3],
            table.ts[rows],
            tuple(select),
            select,
            {self.shape.node.window.variable: Refs(table.place[rows], table.part[rows], table.seq[rows])},
            version=self.version if self._versioned else None,
        )

    def _batches(self, cells: Array, select: dict[str, Column]) -> list[Matches]:
        versions = cells[11]
        found = []
        for version in dict.fromkeys(versions.tolist()) if self._versioned else (None,):
            rows: Any = slice(None) if version is None else versions == version
            own = cells[:, rows]
            found.append(
                Matches(
                    self.plan.name,
                    self.shape.node.streams,
                    self.strings,
                    own[0].view(np.uint64),
                    own[1].view(np.uint64),
                    own[2],
                    own[3],
                    tuple(select),
                    {name: each.take(rows) for name, each in select.items()},
                    {},
                    batch={
                        self.shape.node.window.variable: (Refs(*own[5:8]), Refs(*own[8:11]), own[4]),
                    },
                    version=version,
                )
            )
        return found


class _Kernel:
    """The functions for a shape, and the constants that they are called with."""

    def __init__(self, shape: Shape, strings: Strings) -> None:
        self.source = WindowSource(shape, strings)
        self.functions = compile_source(self.source.text)
        constants = self.source.constants
        self.numbers = [np.array(constants.floats, np.float64), np.array(constants.ints, np.int64)]

    def out(self, room: int) -> Array:
        """An output for so many matches."""
        return np.empty(room * self.source.columns, np.int64)


class Records:
    """Records of partitions or groups, their keys, and the table by which they are found."""

    def __init__(self, stride: int, key_words: int, direct: bool) -> None:
        self.stride = stride
        self.key_words = key_words
        self.direct = direct
        self.capacity = 128
        self.rec = _aligned(self.capacity * stride)
        self.keys = np.zeros(self.capacity * key_words, np.int64)
        self.look = np.full(1 if direct else 4 * self.capacity, -1, np.int32)

    @property
    def arrays(self) -> list[Array]:
        """As kernels take them."""
        return [self.rec, self.keys, self.look]

    def longs(self, used: int) -> Array:
        """The records as rows of int64."""
        return self.rec.reshape(-1, self.stride)[:used]

    def ints(self, used: int) -> Array:
        """The records as rows of int32."""
        return self.rec.view(np.int32).reshape(-1, 2 * self.stride)[:used]

    def learn(self, codes: int) -> bool:
        """Has a place for so many codes, where records are found by them; whether that was new."""
        if not self.direct or codes <= len(self.look):
            return False
        more = max(codes, 2 * len(self.look)) - len(self.look)
        self.look = np.concatenate([self.look, np.full(more, -1, np.int32)])
        return True

    def grow(self) -> None:
        """Twice as many; a hash table is left empty."""
        self.capacity *= 2
        rec = _aligned(self.capacity * self.stride)
        rec[: len(self.rec)] = self.rec
        self.rec = rec
        self.keys = _larger(self.keys, self.capacity * self.key_words)
        if not self.direct:
            self.look = np.full(4 * self.capacity, -1, np.int32)


def _aligned(words: int) -> Array:
    """Zeros that begin where a line of the cache does."""
    made = np.zeros(words + 8, np.int64)
    skip = -(made.ctypes.data // 8) % 8
    return made[skip : skip + words]


def _larger(array: Array, size: int) -> Array:
    made = np.zeros(size, array.dtype)
    made[: len(array)] = array
    return made


def _plain(array: Array) -> Array:
    """The array as kernels are compiled for: in one piece, and not marked as read only."""
    if not array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    if not array.flags.writeable:
        return np.array(_Alias(array), copy=False)
    return array


class _Alias:
    """The same memory without the mark."""

    def __init__(self, array: Array) -> None:
        self.array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _column(cells: Array, output: Output) -> Column:
    data = cells[output.column]
    if output.type is Type.FLOAT64:
        return Column(output.type, data.view(np.float64))
    if output.null is not None:
        nulls = cells[output.null] != 0
        return Column(output.type, data, ~nulls if nulls.any() else None)
    return Column(output.type, data.astype(DTYPES[output.type], copy=False))
