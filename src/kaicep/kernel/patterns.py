"""The pattern operator: gives batches of columns to the pattern machine, and makes its matches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kaicep.kernel import machine
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import Question, alone, value_of, word_of
from kaicep.kernel.automaton import bounds_of
from kaicep.kernel.columns import Array, Column, Mask, Matches, Strings, Table, column_of
from kaicep.kernel.finished import LatestStage, Selection, aggregate_of, evaluated, holds_for_all
from kaicep.kernel.joins import JoinKeys, Ties, partition_variables, with_attributes, with_join_keys
from kaicep.kernel.keys import TypedKeys
from kaicep.kernel.operator import Limits, Passed, Semantics, refuse
from kaicep.kernel.output import Finished, Made, Output, taken, words_of
from kaicep.kernel.pattern_state import load_pattern, save_pattern
from kaicep.kernel.predicates import CONTEXT, OPS, WORDS, ask_hash
from kaicep.kernel.roots import RootIds
from kaicep.kernel.shape import (
    PARTITION,
    POSITION,
    TIME,
    Absence,
    PatternShape,
    Requirement,
    Roots,
    single_parts,
)
from kaicep.kernel.single import OnlyRow, SingleEvents, is_plain
from kaicep.kernel.skipping import Order, Skipping
from kaicep.kernel.solutions import (
    Given,
    PathSolutions,
    Scene,
    Seen,
    Terms,
    looks_back_at,
    mentions,
    values_attribute,
)
from kaicep.kernel.vectors import both, count_of, either, sees, spread, vectors_of
from kaicep.plan.catalog import Catalog
from kaicep.plan.chi import Place
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Expr, Field, Previous, type_of, variables_of, walk
from kaicep.plan.nodes import ChiPlan, OutputColumn, Pattern, Semantic
from kaicep.plan.paths import bare_variables
from kaicep.plan.types import INT64_MIN, Type, Value

_MANY_ANSWERS = 100_000
_CHUNK = 16_384
"""So many matches are written before they are given out; then they are still in the cache."""
_AT_ONCE = 4
"""So many pieces of matches may be made before they are asked for."""
_LARGE = 1 << 28
_SPARE = 4
"""There is room for so many times the events that are kept: to look for those that are over takes time."""
_FEW_KEYS = 1 << 16
_ENOUGH = 16_384
"""Below so many events, it is not worth while to look for those that can be forgotten."""


class PatternMachine:
    """A `Pattern` and its columns."""

    def __init__(
        self,
        plan: ChiPlan,
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        assert isinstance(plan.body, Pattern)
        self.plan, self.catalog, self.strings = plan, catalog, strings
        self._ties = Ties(plan.body, strings, semantics)
        self.pattern, keys, pairwise = with_join_keys(with_attributes(plan.body))
        given = partition_variables(plan.body)
        self.joins = JoinKeys(
            keys, [one for one in pairwise if not any(mentions(one, each) for each in given)]
        )
        self.version: int | None = 0
        self.versioned = versioned
        self.passed = Passed()
        self._semantics = semantics
        self._untied = PathSolutions(semantics)
        self._paths = PathSolutions(semantics, self._ties.names)
        self._limits = limits or Limits()
        self._columns = plan.columns
        self.bounds = bounds_of(self.pattern)
        components = {each: self.joins.roots_of(each) for each in keys}
        self.shape = PatternShape(self.pattern, strings.code, tuple(self._shown()), components)
        self.output = Output(plan, self.shape, strings, catalog.derived(self.pattern.streams))
        self._origins_differ = False
        self.selection = Selection(self.shape, self._columns, self._paths, self)
        self.streams = self.pattern.streams
        self.roots: dict[Roots, RootIds] = {}
        self.attributes = self._attributes()
        self._most_keys = _FEW_KEYS
        self._make_memory()
        self._answer_in_advance()

    def single(self, table: Table, row: OnlyRow) -> SingleEvents | None:
        """Itself for one event after the other, in the row of this table; None where batches are needed."""
        return SingleEvents(self, table, row) if is_plain(self) else None

    @cached_property
    def plain_output(self) -> Output | None:
        """What writes matches that are complete as the machine writes them, and no query but this one has."""
        completed = self.shape.loops or self.selection or self.shape.ambiguous or any(self.output.left())
        plain = not completed and self.pattern.skip == "none" and len(self._every_output()) == 1
        return self.output if plain else None

    @property
    def is_joined(self) -> bool:
        """Whether PATHs tie events together, by keys that an event may have several of."""
        return bool(self.joins.keys or self._ties.names)

    @cached_property
    def is_filter(self) -> bool:
        """Whether each event that passes is a match, and nothing has to be kept."""
        pattern = self.pattern
        return (
            len(pattern.sequence) == 1
            and isinstance(pattern.sequence[0], Place)
            and not (pattern.conditions or pattern.semantics or pattern.latest or self.shape.loops)
            and pattern.skip == "none"
        )

    # --- what it reads ---

    def _shown(self) -> Iterator[Expr]:
        """What must be known of events for the columns and the ids of matches."""
        for column in self._columns:
            yield from single_parts(column.expr)
        yield from self.pattern.partition

    def _attributes(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        exprs = [each for each in self.shape.columns if isinstance(each, Expr)]
        exprs += [each for _, key in self.shape.keys for each in key]
        roots = [each for each in self.shape.columns if isinstance(each, Roots)]
        for chain in self.pattern.all_chains:
            exprs += chain.conditions
            exprs += [expr for each in chain.semantics for expr in each.conditions]
            roots += [Roots(each, chain.variable) for each in chain.semantics]
        roots += [Roots(each, name) for name, some in self.shape.of_one.items() for each in some]
        roots += [Roots(each, each.variables[0]) for each in self._ties.conditions]
        exprs += [expr for each in self._ties.conditions for expr in each.conditions]
        roots += self.joins.roots
        for expr in exprs:
            for node in walk(expr):
                if isinstance(node, Field) and not self.joins.is_one(node):
                    found.update((name, None) for _, names in node.sources for name in names if name != "ts")
        for each in roots:
            found.update((name, None) for name in self._roots_of(each).attributes)
        return self.catalog.known_attributes(self.streams, found)

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
        row = 2 * columns + t.N_DEAD + 1 + t.E_FIXED + len(shape.kept)
        self._limit = meta[t.LIMIT] = self._limits.most(8 * row)
        self.shed = 0
        arena = np.zeros(at + columns + 4_096)
        arena.view(np.int64)[at : at + columns] = zero
        word = np.zeros(1, np.int64)
        self.memory = t.Memory(
            meta,
            np.zeros((int(tables.shape[t.S_FRONTS]), 4), np.int64),
            arena,
            arena.view(np.int64),
            np.zeros((256, 4), np.int64),
            np.zeros((256, t.E_FIXED + len(shape.kept)), np.int64),
            np.zeros((16, 3), np.int64),
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
        self.keys = TypedKeys()
        self._answered = 0
        self.absent = {
            each.of.variable: Absents(len(shape.kept))
            for each in shape.constants.questions
            if isinstance(each.of, Absence)
        }
        self.absent |= {name: Absents(len(shape.kept)) for name in shape.late}
        self.latest = LatestStage(shape, self._ties.names)
        self.skipping = Skipping(self.pattern.skip)

    # --- events come ---

    def feed(self, table: Table) -> Iterable[Matches]:
        """What is found by these events, the next ones in order.

        Where there are many matches, they come in pieces, and all is done when the last has been taken.
        """
        going = self._take(table)
        begun = list(itertools.islice(going, _AT_ONCE))
        return begun if len(begun) < _AT_ONCE else itertools.chain(begun, going)

    def _take(self, table: Table) -> Iterator[Matches]:
        table = self._with_join_keys(table)
        self._note_candidates(table)
        if self._ties.names:
            table = self._ties.expanded(table, self._solved, self._tied)
        self.forget_keys_if_many()
        if self.is_filter and len(table):
            rows = np.flatnonzero(spread(self._passing(table)[0], table))
            if len(rows):
                yield from self.singles(table, rows)
            return
        fits = self._fits(table) if len(table) else np.zeros(0, np.int64)
        rows = np.flatnonzero(fits != 0)
        if not len(rows):
            yield from self._drain(0)
            return
        if len(rows) < len(table):
            table, fits = table.take(rows), fits[rows]
        self.note_origins(table.place, table.part)
        self.memory.meta[t.VERSION] = self.version or 0
        batch = self._made(table, fits)
        self._note_absent(fits, batch)
        aside = sum(map(len, self.absent.values())) + len(self.latest)
        self.memory.meta[t.LIMIT] = self._limit - aside
        yield from self.search(batch, table, *machine.advance(self.shape.tables, self.memory, batch, 0))

    def search(self, batch: t.MachineBatch, table: Table, at: int, why: int) -> Iterator[Matches]:
        """Goes on with a batch from where the machine has stopped, and why it did."""
        while why != t.DONE:
            if why == t.FULL:
                yield from self._make_room(at)
            elif why == t.ASK:
                self._answer(batch, table)
            elif why == t.TOO_MUCH:
                self._hold_back(int(batch.ts[at - 1]))
            at, why = machine.advance(self.shape.tables, self.memory, batch, at)
        yield from self._drain(len(table))
        self._forget_answers()
        self.memory.meta[t.POSITION] += len(table)

    def note_origins(self, place: Array, part: Array) -> None:
        """Sees whether events are of several streams or parts; until then, matches need not look."""
        if not self._origins_differ and (place.any() or part.any()):
            self._origins_differ = True
            for each in self._every_output():
                each.tell_origins_apart()

    def _every_output(self) -> Sequence[Output]:
        return (self.output,)

    def advance(self, watermark: float) -> list[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        found: list[Matches] = []
        now = 2**63 - 1 if watermark == math.inf else math.ceil(max(watermark, -(2.0**62)))
        self.latest.until = max(self.latest.until, now)
        meta = self.memory.meta
        while (meta[t.HEAP] or meta[t.QUEUE] < meta[t.QUEUED]) and not machine.fire(self.memory, now):
            found += self._make_room(0)
        found += self._drain(0)
        self.memory.meta[t.NOW] = max(int(self.memory.meta[t.NOW]), now)
        return found

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        looked_up = self.latest.first_end
        ends = [watermark] if looked_up is None else [watermark, looked_up]
        if (self.pattern.deadline is None and not self.pattern.latest) or watermark == math.inf:
            return watermark
        waiting = self.skipping.first_end
        ends += [] if waiting is None else [waiting]
        awaited = self.awaiting()
        ends += [int(awaited[:, 0].min())] if len(awaited) else []
        if self.pattern.deadline is None:
            return min(ends)
        seg, cap, low, high = self.memory.cells.T
        counts = high - low
        begins = seg + self.shape.tables.shape[t.S_FIRST] * cap + low - np.cumsum(counts) + counts
        starts = self.memory.ints[np.repeat(begins, counts) + np.arange(counts.sum())]
        return min([*ends, int(starts.min(initial=2**62)) + self.pattern.deadline])

    @property
    def size(self) -> int:
        """How many partial matches are kept, and how many events that finished matches must be without."""
        self.tidy()
        return int(self.memory.meta[t.ROWS]) + sum(map(len, self.absent.values())) + len(self.latest)

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        self.memory.known[:] = -1
        self._answered = 0
        for each in self.roots.values():
            each.renew()
        self._paths.renew()
        self._untied.renew()
        self.joins.forget()
        self._answer_in_advance()
        self._ties.forget()
        self.selection.renew()
        if self.joins.keys and len(self.memory.nodes):
            self._forget_keys()  # what waits is found by other keys now

    def forget_keys_if_many(self) -> None:
        """Lets go of keys where there may be many that nothing is kept for."""
        if len(self.keys) > self._most_keys:
            self._forget_keys()

    def _forget_keys(self) -> None:
        """Gives keys for which something is kept new numbers, and forgets the others.

        What is saved has no others, so everything is saved and goes on from there.
        """
        state = self.snapshot()
        self._make_memory()
        self.restore(state)
        self._most_keys = max(_FEW_KEYS, 2 * len(self.keys))

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state."""
        return save_pattern(self)

    def restore(self, state: bytes) -> None:
        """Goes on from a state; the operator is a new one."""
        load_pattern(self, state)

    def begin(self, nodes: Array, events: Array, awaiting: Array, position: int) -> None:
        """Begins with these events and chains of them, and complete matches in the order of deadlines."""
        memory, meta = self.memory, self.memory.meta
        meta[t.NODES], meta[t.EVENTS], meta[t.QUEUED] = len(nodes), len(events), len(awaiting)
        meta[t.POSITION] = position
        self.memory = memory._replace(
            nodes=_with_room(nodes, len(memory.nodes)),
            events=_with_room(events, len(memory.events)),
            queue=_with_room(awaiting, len(memory.queue)),
        )

    def wait(self, rows: Array, cells: Array) -> None:
        """Lets partial matches wait in these cells."""
        self.make_cells()
        at = 0
        while (at := machine.put(self.shape.tables, self.memory, rows, cells, at)) < len(rows):
            self.memory = _with_larger_arena(self.memory)

    def tidy(self) -> None:
        """Forgets what is over."""
        meta = self.memory.meta
        begun = np.zeros(int(meta[t.ROWS]), np.int64)
        machine.begun(self.shape.tables, self.memory, max(meta[t.SWEPT], meta[t.NOW]), begun)
        machine.drop(self.shape.tables, self.memory, begun < 0)

    # --- too much ---

    def _hold_back(self, now: int) -> None:
        """Goes on with as much as may be kept; what is over and was not swept yet does not count."""
        begun = np.zeros(int(self.memory.meta[t.ROWS]), np.int64)
        machine.begun(self.shape.tables, self.memory, now, begun)
        over = begun < 0
        excess = self.size - int(over.sum()) - self._limit
        if excess > 0:
            if not self._limits.shed:
                self._refuse(excess + self._limit)
            waiting = np.flatnonzero((begun >= 0) & (begun < t.FOREVER))
            share = min(len(waiting), max(excess, len(waiting) // 10))
            if not share:
                self._refuse(excess + self._limit)
            oldest = np.argsort(begun[waiting], kind="stable")[:share]
            over[waiting[oldest]] = True
            self.shed += share
        machine.drop(self.shape.tables, self.memory, over)

    def _refuse(self, size: int) -> None:
        raise refuse(
            f"{self.plan.name} (MATCH {self.pattern.match})",
            size,
            "add a WINDOW that ties its events together, or make it narrower; an equality in a JOIN, "
            "PARTITION BY, or MATCH next instead of any also makes it keep less",
        )

    # --- room ---

    def _make_room(self, at: int) -> Iterator[Matches]:
        """Makes whatever is full larger; matches that were written are given out where that makes room."""
        memory, need = self.memory, int(self.memory.meta[t.NEED])
        if need in (t.N_NODES, t.N_EVENTS):
            yield from self._drain(at)
            self._make_room_for_events()
            return
        if need == t.N_OUT:
            yield from self._drain(at)
            if memory.out.shape[1] < _CHUNK:
                memory = memory._replace(out=np.zeros((5, 2 * memory.out.shape[1]), np.int64))
        elif need == t.N_ARENA:
            memory = _with_larger_arena(memory)
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
            memory = self._with_room_to_await()
        self.memory = memory

    def _with_room_to_await(self) -> t.Memory:
        memory, meta = self.memory, self.memory.meta
        if meta[t.HEAP] >= len(memory.heap):
            return memory._replace(heap=_longer(memory.heap))
        queue = memory.queue[meta[t.QUEUE] : meta[t.QUEUED]].copy()
        meta[t.QUEUE], meta[t.QUEUED] = 0, len(queue)
        return memory._replace(queue=_with_room(queue, len(memory.queue)))

    def _make_room_for_events(self) -> None:
        """Forgets what nothing leads to any more; makes room where that is not much."""
        memory = self.memory
        if max(len(memory.nodes), len(memory.events)) >= _ENOUGH:
            self.collect()
        if memory.meta[t.NODES] * _SPARE > len(memory.nodes):
            memory = memory._replace(nodes=_longer(memory.nodes))
        if memory.meta[t.EVENTS] * _SPARE > len(memory.events):
            memory = memory._replace(events=_longer(memory.events))
        self.memory = memory

    def collect(self) -> None:
        """Forgets events that nothing leads to any more, and what only concerns them."""
        memory = self.memory
        machine.collect(
            self.shape.tables,
            memory,
            np.zeros(len(memory.nodes), np.int64),
            np.zeros(len(memory.events), np.int64),
        )
        # Nodes have other numbers now, and questions about them no answers.
        memory.known[:] = -1
        self._answered = 0
        kept = memory.events[: memory.meta[t.EVENTS], t.E_POSITION]
        first = int(kept.min(initial=int(memory.meta[t.POSITION])))
        waiting = self.latest.first_position
        first = first if waiting is None else min(first, waiting)
        self.skipping.forget(first)
        for each in self.absent.values():
            each.forget(first)

    # --- columns in ---

    def _fits(self, table: Table) -> Array:
        """By bit, the places that each event may take."""
        *fits, counts = self._passing(table)
        if self.pattern.match == "strict":
            fits.append(counts)
        if all(each.__class__ is bool for each in fits):
            return np.full(len(table), sum(int(each) << place for place, each in enumerate(fits)))
        made = np.zeros(len(table), np.int64)
        for place, each in enumerate(fits):
            made |= spread(each, table).astype(np.int64) << place
        return made

    def _passing(self, table: Table) -> list[Mask]:
        """The events that may take each place, and those that count under strict."""
        fits: list[Mask] = []
        strict = self.pattern.match == "strict"
        counts: Mask = False
        came: Mask = False
        filtered: Mask = False
        met: Mask = False
        all_count = any(not chain.semantics for chain in self.pattern.chains)
        for chain in self.pattern.chains:
            here = sees(chain, table)
            passes = here
            came = either(came, here)
            own, from_paths = self.passed.in_order(chain.conditions)
            for each in own:
                passes = both(passes, vectors_of(table).holds(each))
            filtered = either(filtered, passes)
            for each in from_paths:
                passes = both(passes, vectors_of(table).holds(each))
            asked = here if strict and not all_count else passes
            for path in chain.semantics:
                asked = self._meets(Roots(path, chain.variable), table, asked)
            passes = both(passes, asked)
            counts = either(counts, here if all_count else asked)
            met = either(met, passes)
            for each in self.bounds.get(chain.variable, ()):
                passes = both(passes, vectors_of(table).holds(each))
            for path in self.shape.of_one[chain.variable]:
                passes = self._meets(Roots(path, chain.variable), table, passes)
            fits.append(passes)
            self.passed.fits[chain.variable] += count_of(passes, table)
        self.passed.came += count_of(came, table)
        self.passed.filters += count_of(filtered, table)
        self.passed.paths += count_of(met, table)
        return [*fits, counts]

    def _with_join_keys(self, table: Table) -> Table:
        """The table with what is known of its events' components."""
        if not self.joins.keys or not len(table):
            return table
        return self.joins.expanded(
            table,
            lambda each: self._roots_of(each).ids(table, self._epochs()),
            lambda each: self._roots_of(each).events,
            self._semantics,
        )

    def components(self, of: Field, ids: Array) -> Array:
        """The components of events that have these numbers as the roots of a PATH."""
        return self.joins.of(of, ids, lambda each: self._roots_of(each).events, self._semantics)

    def _made(self, table: Table, fits: Array) -> t.MachineBatch:
        count = len(table)
        values = np.zeros((len(self.shape.columns), count), np.int64)
        for of, number in self.shape.columns.items():
            if of is TIME:
                values[number] = table.ts
            elif of is POSITION:
                values[number] = self.memory.meta[t.POSITION] + np.arange(count)
            elif of is PARTITION:
                values[number] = self.key_ids(self.pattern.partition, table)
            elif isinstance(of, Roots):
                values[number] = self._roots_of(of).ids(table, self._epochs())
            else:
                assert isinstance(of, Expr)
                values[number] = words_of(vectors_of(table).value(of))
        keys = np.zeros((len(self.shape.keys), count), np.int32)
        for number, (_, exprs) in enumerate(self.shape.keys):
            keys[number] = self.key_ids(exprs, table)
        self.make_cells()
        return t.MachineBatch(
            np.ascontiguousarray(table.ts, np.int64),
            fits,
            keys,
            values,
            table.place.astype(np.int64),
            np.ascontiguousarray(table.part, np.int64),
            np.ascontiguousarray(table.seq, np.int64),
        )

    def key_ids(self, exprs: Sequence[Expr], table: Table) -> Array:
        """The numbers of the keys that events have for these expressions."""
        if not exprs:
            return np.zeros(len(table), np.int32)
        columns = [vectors_of(table).value(each) for each in exprs]
        return self.keys.ids(columns, len(self.pattern.partition))

    def make_cells(self) -> None:
        """Makes cells for all keys that there are."""
        fronts = int(self.shape.tables.shape[t.S_FRONTS])
        wanted = max(len(self.keys), 1) * fronts
        cells = self.memory.cells
        if len(cells) < wanted:
            more = np.zeros((max(2 * len(cells), wanted), 4), np.int64)
            more[: len(cells)] = cells
            self.memory = self.memory._replace(cells=more)

    # --- PATHs ---

    def _roots_of(self, roots: Roots) -> RootIds:
        found = self.roots.get(roots)
        if found is None:
            given = [each for each in self._ties.names if mentions(roots.condition, each)]
            keys = [each for each in self.pattern.partition if isinstance(each, Field)]
            more = tuple(each for each in keys if each.name in map(values_attribute, given))
            # The conditions are tested on the values of each event.
            plain = (
                replace(roots.condition, conditions=(), blocks=())
                if roots.condition.conditions
                else roots.condition
            )
            found = self.roots[roots] = RootIds(plain, roots.variable, self.catalog, more)
        return found

    def _epochs(self) -> tuple[int, ...]:
        """When the knowledge changes."""
        return tuple(getattr(getattr(self._semantics, "knowledge", None), "epochs", ()))

    def _meets(self, roots: Roots, table: Table, given: Mask) -> Array:
        """The given events for which a PATH holds, with the conditions on its variables."""
        wanted = spread(given, table)
        if self._paths.is_plain(roots.condition):
            return self._roots_of(roots).verdicts(table, self._epochs(), self._semantics, wanted)
        known = self._roots_of(roots)
        if not roots.condition.conditions:
            return known.verdicts(table, self._epochs(), self._semantics, wanted, self._any_solution(roots))
        met = np.zeros(len(table), np.bool_)
        for _, rows in self._solved(roots.condition, roots.variable, table, wanted):
            met[rows] = True
        return met

    def _any_solution(self, roots: Roots) -> Callable[[list[int]], list[bool]]:
        """Whether a PATH has a solution inside their partition, for events by number."""
        events, (condition, variable) = self._roots_of(roots).events, (roots.condition, roots.variable)
        return lambda ids: self._paths.have_any(condition, variable, [events[each] for each in ids])

    def _solved(
        self, condition: Semantic, variable: str, table: Table, wanted: Array
    ) -> Iterator[tuple[Terms, Array]]:
        """The solutions of a PATH about one variable with conditions, and the wanted rows these hold for."""
        roots = Roots(condition, variable)
        paths = self._untied if condition in self._ties.conditions else self._paths
        known = self._roots_of(roots)
        ids = known.ids(table, self._epochs())
        wanted_rows = np.flatnonzero(wanted)
        order = np.argsort(ids[wanted_rows], kind="stable")
        different, begins = np.unique(ids[wanted_rows[order]], return_index=True)
        for id, rows in zip(different.tolist(), np.split(wanted_rows[order], begins[1:]), strict=False):
            some = table.take(rows)
            for terms in paths.plain_for(condition, variable, known.events[id]):
                typed = [self._paths.typed(each, terms) for each in condition.conditions]
                yield (
                    terms,
                    rows[
                        np.logical_and.reduce([spread(vectors_of(some).holds(each), some) for each in typed])
                    ],
                )

    def _tied(self, condition: Semantic, variable: str, table: Table) -> tuple[Array, Sequence[Event]]:
        """What a PATH that ties events to partitions can tell of them, and by number an event."""
        known = self._roots_of(Roots(condition, variable))
        return known.ids(table, self._epochs()), known.events

    # --- questions ---

    def _answer(self, batch: t.MachineBatch, table: Table) -> None:
        """Answers what the machine asked."""
        count = min(int(self.memory.meta[t.ASKED]), len(self.memory.asked))
        asked = {tuple(each) for each in self.memory.asked[:count].tolist()}
        if 2 * (self._answered + len(asked)) >= len(self.memory.known):
            self._more_known(len(asked))
        for number, *words in sorted(asked):
            question = self.shape.constants.questions[number]
            self._learn((number, *words), self._reply(question, words, batch))

    def _answer_in_advance(self) -> None:
        """Answers the questions about PATHs that hold wherever the keys of their events are equal."""
        program = self.shape.tables.program.reshape(-1, WORDS)
        ask, yes = OPS["ASK_T"], OPS["YES"]
        for number, question in enumerate(self.shape.constants.questions):
            of = question.of
            if isinstance(of, Requirement) and isinstance(of.of, Semantic) and of.of is of.path:
                rows = (program[:, -1] == number) & np.isin(program[:, 0], (ask, yes))
                program[rows, 0] = yes if self.joins.decide(of.of, self._semantics) else ask

    def _reply(self, question: Question, words: list[int], batch: t.MachineBatch) -> int:
        of, first = question.of, int(self.memory.meta[t.POSITION])
        if isinstance(of, Requirement):
            assert isinstance(of.of, Semantic)
            binding = {
                name: self._roots_of(of.roots(name)).events[word]
                for name, word in zip(of.of.variables, words, strict=False)
            }
            return 2 * bool(self._paths.rows(of.of, binding))
        if isinstance(of, Call):
            given = [
                value_of(word, type, self.strings.texts.__getitem__)
                for word, type in zip(words, question.types, strict=False)
            ]
            value = question.value(given)
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

    def _chain(
        self, node: int, variable: str | None, at: int, batch: t.MachineBatch
    ) -> list[tuple[str, _Seen]]:
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

    def _whole(self, of: Any, node: int, at: int, batch: t.MachineBatch) -> Value:
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

    def _path_holds(
        self, requirement: Requirement, at: Mapping[str, int], rounds: Mapping[str, Sequence[_Seen]]
    ) -> bool:
        """Whether a PATH holds for one round of each variable; PREV is not tested on the first."""
        condition = requirement.of
        assert isinstance(condition, Semantic)
        events = {name: rounds[name][index] for name, index in at.items()}
        binding = {name: self.event_of(requirement.roots(name), seen) for name, seen in events.items()}
        inside = self.inside(rounds)
        if not condition.conditions:
            return bool(self._paths.rows(condition, binding, inside=inside))
        before = {name: rounds[name][index - 1] for name, index in at.items() if index > 0}

        def scene_of(expr: Expr) -> Scene:
            """Aggregates cover the rounds so far only beside the round itself."""
            so_far = {name: rounds[name][: at[name] + 1] for name in bare_variables(expr)}
            return Scene(events, before, {**rounds, **so_far})

        tested = [each for each in condition.conditions if looks_back_at(each) <= before.keys()]
        return bool(self._paths.rows(condition, binding, scene_of, tested, inside))

    def inside(self, rounds: Mapping[str, Sequence[Seen]]) -> Given:
        """The partition of a match, as far as it goes by variables of the PATH."""
        keys = (each for each in self.pattern.partition if isinstance(each, Field))
        own = {each.name: each for each in keys}
        found: dict[str, str | None] = {}
        for name in self._ties.names:
            seen = next(some[0] for variable, some in rounds.items() if variable in self.shape.places)
            value = seen.value(own[values_attribute(name)])
            assert value is None or isinstance(value, str)
            found[name] = value
        return found

    def event_of(self, roots: Roots, seen: _Seen) -> Event:
        """An event that says the same to a PATH as this one."""
        return self._roots_of(roots).events[int(seen.word(roots))]

    def _note_absent(self, fits: Array, batch: t.MachineBatch) -> None:
        for name, absent in self.absent.items():
            rows = np.flatnonzero((fits >> self.shape.places[name]) & 1)
            if absent.is_crowded(len(rows)):
                self.collect()
            absent.add(batch, rows, self.shape.tables.keep, int(self.memory.meta[t.POSITION]))

    def _occurs(self, of: Absence, node: int, at: int, batch: t.MachineBatch) -> bool:
        """Whether an event that must be absent lies between its neighbours in a finished match."""
        chain = self._chain(node, of.newest, at, batch)
        elements = self.shape.elements
        left = max(seen.position for name, seen in chain if elements[name] < of.element)
        right = min((seen.position for name, seen in chain if elements[name] > of.element))
        rounds: dict[str, list[_Seen]] = {}
        for name, seen in chain:
            rounds.setdefault(name, []).append(seen)
        own = self._partition_of(chain[0][1])
        absent = self.absent[of.variable]
        for row in absent.between(left, right):
            seen = _Seen(self, None, row, absent.events)
            if self._partition_of(seen) != own:
                continue
            beside = {**rounds, of.variable: [seen]}
            if all(holds_for_all(each, beside, None, self._path_holds) for each in of.requirements):
                return True
        return False

    def _partition_of(self, seen: _Seen) -> tuple[int, ...]:
        return tuple(seen.word(each) for each in self.pattern.partition)

    # --- matches out ---

    def singles(self, table: Table, rows: Array) -> Iterator[Matches]:
        """Makes a match of each of these events."""
        yield replace(self.output.of_single(table, rows), version=self.shown_version)

    @property
    def shown_version(self) -> int | None:
        """The version that a match of an event of now shows."""
        return self.version if self.versioned else None

    def _drain(self, at: int) -> Iterator[Matches]:
        """Makes matches of what the machine has written; `at` is the event of the batch that comes next."""
        made = list(self._written())
        if self.pattern.skip == "none":
            for each in made:
                yield from self._by_version(each.matches, each.of.versions)
            return
        for each in made:
            self.skipping.add(each.matches, self._order(each.of))
        below = int(self.memory.meta[t.POSITION]) + at
        for matches, versions in self.skipping.settled(self._awaited(), below):
            yield from self._by_version(matches, versions)

    def _written(self) -> Iterator[Made]:
        """The matches that the machine has written, and that have their LATEST events."""
        count = int(self.memory.meta[t.MATCHES])
        self.memory.meta[t.MATCHES] = 0
        if self.pattern.latest:
            if count:
                self.latest.add(self.output.followed(self.memory, count))
            for each in self.latest.decided(self):
                yield self._completed(self.output.written(each))
        elif count:
            yield self._completed(self.output.made(self.memory, count))

    def awaiting(self) -> Array:
        """Deadlines, last nodes and versions of complete matches, in the order of their deadlines."""
        memory, meta = self.memory, self.memory.meta
        queue = memory.queue[meta[t.QUEUE] : meta[t.QUEUED]]
        if not meta[t.HEAP]:
            return queue
        every = np.concatenate([memory.heap[: meta[t.HEAP]], queue])
        return every[np.lexsort(every.T[::-1])]

    def awaited(self) -> Array:
        """The rows of the last events of matches whose deadline has not been reached."""
        memory = self.memory
        nodes = memory.nodes[self.awaiting()[:, 1]]
        rows: Array = memory.events[nodes[nodes[:, t.N_DEAD] == 0, t.N_EVENT]]
        return rows

    def _awaited(self) -> dict[str, Array]:
        """The partitions and the last events of the matches that await their deadline, or LATEST events."""
        events = np.concatenate([self.awaited(), self.latest.last_rows()])
        partition = events[:, t.E_FIXED + self.shape.kept[self.shape.columns[PARTITION]]]
        return {"partition": partition, "last": events[:, t.E_POSITION]}

    def _order(self, made: Finished) -> Order:
        """What AFTER MATCH asks of matches."""
        kept, events = made.events, made.found[: len(self.shape.variables)]
        where, at = np.nonzero(events.T >= 0)
        bound = events[at, where]
        if self.shape.loops:
            each = [made.of(name, place) for name, place in self.shape.places.items()]
            count = len(made.last)
            where = np.concatenate([np.repeat(np.arange(count), np.diff(offsets)) for offsets, _ in each])
            bound = np.concatenate([own for _, own in each])
        places = kept[bound, t.E_POSITION]
        sorted_ = np.lexsort((places, where))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(where, minlength=len(made.last)))])
        places = places[sorted_]
        last = kept[made.last]
        resume, versions = np.full(len(last), -1, np.int64), made.versions.copy()
        mode, variable = self.pattern.skip, self.pattern.skip_variable
        if mode == "past_last":
            resume = places[offsets[1:] - 1] + 1
        elif mode in ("first", "last") and variable is not None:
            own = self._end_of(made, variable, first=mode == "first")
            resume = np.where(own < 0, -1, kept[own, t.E_POSITION])
        return Order(
            last[:, t.E_FIXED + self.shape.kept[self.shape.columns[PARTITION]]],
            places[offsets[:-1]],
            places[offsets[1:] - 1],
            resume,
            versions,
            offsets,
            places,
        )

    def _end_of(self, made: Finished, variable: str, first: bool) -> Array:
        """The first or the last event of a variable in each match; -1 where there is none."""
        if not first or variable not in self.shape.loops:
            last: Array = made.found[self.shape.places[variable]]
            return last
        offsets, own = made.rounds[variable]
        empty = offsets[1:] == offsets[:-1]
        return np.where(empty, -1, np.append(own, -1)[offsets[:-1]])

    def _by_version(self, made: Matches, versions: Array) -> Iterator[Matches]:
        if not self.versioned or not len(made):
            yield from (made,) if len(made) else ()
            return
        for version in np.unique(versions).tolist():
            yield replace(taken(made, np.flatnonzero(versions == version)), version=int(version))

    def _completed(self, made: Made, output: Output | None = None) -> Made:
        """The matches with the columns that join events, once for each solution of their PATHs."""
        for column in (output or self.output).left():
            made.matches.select[column.name] = self._joined(column, made.of)  # type: ignore[index]
        if self.selection:
            whole = made.of
            made = self.selection.of(made, lambda m: self.rounds_of(m, whole))
        if self.shape.ambiguous:
            ids = np.stack(made.matches.ids)
            made = made.take(np.sort(np.unique(ids, axis=1, return_index=True)[1]))
        return made

    # --- LATEST ---

    def _note_candidates(self, table: Table) -> None:
        """Takes the events that LATEST variables may be."""
        if not len(table) or not self.pattern.latest:
            return
        for each in self.latest.candidates:
            here = sees(each.chain, table)
            for condition in each.chain.conditions:
                here = both(here, vectors_of(table).holds(condition))
            for path in each.semantics:
                here = self._meets(Roots(path, each.chain.variable), table, here)
            each.add(self._kept_rows(table.take(np.flatnonzero(spread(here, table)))), self)
        self.latest.until = max(self.latest.until, int(table.ts[-1]))

    def _kept_rows(self, table: Table) -> Array:
        """Events as the machine keeps those of matches; they are in no partition."""
        self.note_origins(table.place, table.part)
        rows = np.zeros((len(table), t.E_FIXED + len(self.shape.kept)), np.int64)
        rows[:, t.E_TS : t.E_POSITION] = np.stack([table.ts, table.place, table.part, table.seq], axis=1)
        columns = list(self.shape.columns)
        for column, place in self.shape.kept.items() if len(table) else ():
            kept = columns[column]
            if isinstance(kept, Roots):
                rows[:, t.E_FIXED + place] = self._roots_of(kept).ids(table, self._epochs())
            elif isinstance(kept, Expr):
                rows[:, t.E_FIXED + place] = words_of(vectors_of(table).value(kept))
        return rows

    def seen(self, row: int, events: Array) -> _Seen:
        """An event of these rows, as conditions see it."""
        return _Seen(self, None, row, events)

    def rounds_of(self, m: int, found: Finished) -> dict[str, list[_Seen]]:
        """The events of a match by variable."""
        made = {}
        for name, place in self.output.places.items():
            if name in self.shape.loops:
                offsets, events = found.rounds[name]
                own = events[offsets[m] : offsets[m + 1]].tolist()
            else:
                own = [int(found.found[place, m])] if place < len(found.found) else []
            if own and own[0] >= 0:
                made[name] = [_Seen(self, None, each, found.events) for each in own]
        return made

    def holds(self, requirement: Requirement, rounds: Mapping[str, Sequence[_Seen]]) -> bool:
        """Whether events meet a requirement, in every way in which it applies."""
        counting = self.shape.counting(requirement, frozenset(rounds))
        return counting is None or holds_for_all(counting, rounds, None, self._path_holds)

    def alone(self, variable: str, rows: Array) -> Finished:
        """Matches of one event each, which the variable has."""
        found = np.full((self.place(variable) + 1, len(rows)), -1, np.int64)
        found[-1] = every = np.arange(len(rows))
        return Finished(rows, found, {}, every, rows[:, t.E_TS], every)

    def column(self, expr: Expr, found: Finished, type: Type | None = None) -> Column:
        """The values of an expression of single events; null where one was left out."""
        made = self.output.over(expr, found)
        if type is Type.FLOAT64 and made.type is Type.INT64:
            known = np.ones(len(found), np.bool_) if made.valid is None else made.valid
            return Column(type, np.where(known, made.data.astype(np.float64), np.nan))
        return made

    def are_bound(self, variables: Iterable[str], found: Finished) -> Array:
        """Whether matches have an event for each of these variables."""
        places = [self.place(each) for each in variables]
        bound: Array = np.all(found.found[places] >= 0, axis=0)
        return bound

    def hold(self, requirement: Requirement, found: Finished) -> Array:
        """Whether matches meet a requirement, in every way in which it applies."""
        of = requirement.of
        if isinstance(of, Semantic) or not self._is_of_single_events(of):
            each = (self.holds(requirement, self.rounds_of(m, found)) for m in range(len(found)))
            return np.fromiter(each, np.bool_, len(found))
        met: Array = ~self.are_bound(requirement.bare, found) | (self.output.over(of, found).data == 1)
        return met

    def _is_of_single_events(self, expr: Expr) -> bool:
        """Whether no round of a loop has a say in the value of an expression, but for all others."""
        aggregates = any(isinstance(each, Aggregate | Previous) for each in walk(expr))
        return not aggregates and self.shape.loops.keys().isdisjoint(variables_of(expr))

    def place(self, variable: str) -> int:
        """Where the event of a variable stands in `found`."""
        return self.output.places[variable]

    def occurs(self, absent: str, rounds: Mapping[str, Sequence[_Seen]], end: int) -> bool:
        """Whether an event that must be absent lies between its neighbours, in a match that ends then."""
        elements = self.shape.elements
        element = next(index for index, name in self.shape.absences.items() if name == absent)
        bound = [(elements[name], each) for name, some in rounds.items() if name in elements for each in some]
        left = max(seen.position for index, seen in bound if index < element)
        right = min((seen.position for index, seen in bound if index > element), default=None)
        own = self._partition_of(bound[0][1])
        known = self.absent[absent]
        for row in known.between(left, 2**62 if right is None else right):
            seen = _Seen(self, None, row, known.events)
            if seen.ts > end or self._partition_of(seen) != own:
                continue
            beside = {**rounds, absent: [seen]}
            if all(self.holds(each, beside) for each in self.shape.of_absent[absent]):
                return True
        return False

    def _joined(self, column: OutputColumn, made: Finished) -> Column:
        """A column that joins values of several events; with those of loops, value by value."""
        if self._is_of_single_events(column.expr):
            found = self.output.over(column.expr, made)
            if found.type is column.type:
                return found
        nothing: dict[str, list[_Seen]] = {name: [] for name in self.shape.loops}
        values = []
        for m in range(len(made.last)):
            rounds = self.rounds_of(m, made)
            values.append(
                evaluated(
                    column.expr, {name: some[0] for name, some in rounds.items()}, {}, {**nothing, **rounds}
                )
            )
        assert column.type is not None
        return column_of(column.type, values, self.strings)


class Absents:
    """Events that must be absent from matches which end later, as the machine keeps events."""

    def __init__(self, kept: int) -> None:
        self.events = np.zeros((0, t.E_FIXED + kept), np.int64)
        self._settled = 0

    def __len__(self) -> int:
        return len(self.events)

    def is_crowded(self, more: int) -> bool:
        """Whether there may be many that no partial match has to do with."""
        return len(self.events) + more > 2 * self._settled + _ENOUGH

    def add(self, batch: t.MachineBatch, rows: Array, keep: Array, first: int) -> None:
        """Takes rows of a batch whose first event has a place in the order."""
        more = np.zeros((len(rows), self.events.shape[1]), np.int64)
        more[:, t.E_TS], more[:, t.E_POSITION] = batch.ts[rows], first + rows
        more[:, t.E_FIXED :] = batch.values[keep][:, rows].T
        self.events = np.concatenate([self.events, more])

    def forget(self, before: int) -> None:
        """Lets go of what lies before a place in the order."""
        self.events = self.events[np.searchsorted(self.events[:, t.E_POSITION], before) :].copy()
        self._settled = len(self.events)

    def between(self, left: int, right: int) -> range:
        """The rows of those between two places in the order."""
        places = self.events[:, t.E_POSITION]
        return range(int(np.searchsorted(places, left + 1)), int(np.searchsorted(places, right)))


class _Seen:
    """An event of a match, as conditions see it: one that is looked at in its batch, or one that is kept."""

    def __init__(
        self, operator: PatternMachine, batch: t.MachineBatch | None, at: int, events: Array | None = None
    ) -> None:
        self.operator, self.batch, self.at = operator, batch, at
        self.events = operator.memory.events if events is None else events
        if batch is None:
            self.position = int(self.events[at, t.E_POSITION])
        else:
            self.position = at + int(operator.memory.meta[t.POSITION])

    @property
    def ts(self) -> int:
        """The time of an event that is kept."""
        return int(self.events[self.at, t.E_TS])

    def word(self, of: object) -> int:
        shape = self.operator.shape
        column = shape.columns[alone(of) if isinstance(of, Expr) else of]
        if self.batch is not None:
            return int(self.batch.values[column, self.at])
        return int(self.events[self.at, t.E_FIXED + shape.kept[column]])

    def value(self, expr: Expr) -> Value:
        return value_of(self.word(expr), type_of(expr), self.operator.strings.texts.__getitem__)


def _with_larger_arena(memory: t.Memory) -> t.Memory:
    arena = _longer(memory.floats)
    return memory._replace(floats=arena, ints=arena.view(np.int64))


def _with_room(rows: Array, least: int) -> Array:
    """The rows in an array with as much room again."""
    made = np.zeros((max(least, 2 * len(rows)), rows.shape[1]), np.int64)
    made[: len(rows)] = rows
    return made


def _longer(array: Array) -> Array:
    """Twice as much of an array. Memory that nobody touches costs nothing, so that more is taken at once."""
    room = array.base if isinstance(array.base, np.ndarray) else array
    if len(room) < 2 * len(array):
        share = 8 if array.nbytes < _LARGE else 2
        room = t.zeros((share * len(array), *array.shape[1:]), array.dtype.type)
        room[: len(array)] = array
    return room[: 2 * len(array)]
