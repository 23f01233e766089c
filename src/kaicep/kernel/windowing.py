"""The window operator: batches of columns in, matches out, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kaicep.errors import Failure, Unsupported
from kaicep.kernel import window_machine as w
from kaicep.kernel.columns import DTYPES, NULLS, Array, Column, Mask, Matches, Refs, Strings, Table, Words
from kaicep.kernel.jit import direct
from kaicep.kernel.keys import Keys, key_identities, key_width, key_words
from kaicep.kernel.operator import Limits, Passed, Semantics, refuse
from kaicep.kernel.output import words_of
from kaicep.kernel.roots import Meanings
from kaicep.kernel.state import read_state, write_state
from kaicep.kernel.sums import FAR, SCRATCH, SQUARES
from kaicep.kernel.vectors import both, count_of, sees, spread, vectors_of
from kaicep.kernel.words import Identities, mix_pairs
from kaicep.plan.catalog import Catalog
from kaicep.plan.events import MatchId
from kaicep.plan.expressions import Aggregate, Call, Expr, Field, VariableRef, type_of, walk
from kaicep.plan.nodes import ChiPlan, OutputColumn, WindowAggregate
from kaicep.plan.paths import has_path_values, path_references
from kaicep.plan.time import format_time
from kaicep.plan.types import INT64_MIN, Type
from kaicep.plan.typing import with_terms
from kaicep.plan.values import native

# ----------------------------------------------------------------------------------------------------------
# What a window keeps of its events and of its groups, by what its query asks for: the machine's tables.

_KINDS = {Type.FLOAT64: w.FLOAT, Type.INT64: w.INT, Type.STRING: w.TEXT}
_WORDS = {w.VALUES: 1, w.SUM: 4, w.SQUARE: 2, w.LEAST: 2, w.MOST: 2, w.DISTINCT: 1}


@dataclass(frozen=True)
class Valid:
    """Whether a value is there, as a column of its own: every int64 may be a value."""

    of: Expr


class WindowLayout:
    """The columns that are kept, the parts of a group's record, and the results that a group answers with.

    `answered` has for each expression that an answer reads the number of its result: all aggregates, and
    of a batch, which has no event that triggers, the attributes that its first event shows.
    """

    def __init__(self, node: WindowAggregate, exprs: Iterable[Expr]) -> None:
        self.sliding = node.window.kind == "sliding"
        self.kept: dict[Expr | Valid | str, int] = {}
        self.answered: dict[Expr, int] = {}
        self.edges: dict[tuple[int, str], int] = {}
        """Of a batch, the results that identify the first and the last event."""
        self.group_words = w.G_ADDS
        self._places: dict[tuple[int, Expr], int] = {}
        self._adds: list[list[int]] = []
        self._results: list[list[int]] = []
        self._links = 0
        for expr in exprs:
            self._answer(expr)
        if not self.sliding:
            for op in (w.FIRST, w.LAST):
                for name in ("place", "part", "seq"):
                    self.edges[op, name] = self._result(op, self._column(name), w.OTHER)
        figures = [self.sliding, node.window.width or 0, node.window.count or 0, len(self.kept)]
        for each in self._adds:
            each[w.A_LINK] += w.E_KEPT + len(self.kept)
        self.steps = w.WindowSteps(
            np.array(figures, np.int64),
            np.array(self._adds, np.int64).reshape(-1, w.A_ADD),
            np.array(self._results, np.int64).reshape(-1, w.R_RESULT),
        )
        self.entry_words = w.E_KEPT + len(self.kept) + self._links

    @property
    def texts(self) -> list[int]:
        """The kept columns that have strings."""
        return [at for of, at in self.kept.items() if isinstance(of, Expr) and type_of(of) is Type.STRING]

    @cached_property
    def ranked(self) -> list[int]:
        """The kept columns whose strings are compared."""
        adds = self.steps.adds
        extreme = np.isin(adds[:, w.A_OP], (w.LEAST, w.MOST)) & (adds[:, w.A_KIND] == w.TEXT)
        return sorted(set(adds[extreme, w.A_COLUMN].tolist()))

    def _answer(self, expr: Expr) -> None:
        for each in _outermost(expr):
            if each in self.answered:
                continue
            if isinstance(each, Aggregate):
                self.answered[each] = self._aggregate(each)
            elif not self.sliding:
                self.answered[each] = self._end(w.FIRST, each)

    def _aggregate(self, expr: Aggregate) -> int:
        of, op = expr.of, expr.op
        if of is None:
            return self._result(w.EVENTS)
        if op == "COUNT":
            return self._result(w.WORD, at=self._add(w.DISTINCT if expr.distinct else w.VALUES, of))
        if op in ("FIRST", "LAST"):
            return self._end(w.FIRST if op == "FIRST" else w.LAST, of)
        kind = _kind(of)
        if op in ("MIN", "MAX"):
            at = self._add(w.LEAST if op == "MIN" else w.MOST, of)
            return self._result(w.EXTREME, self._column(of), kind, at=at)
        counted, total = self._add(w.VALUES, of), self._add(w.SUM, of)
        if op == "STDDEV":
            return self._result(w.DEVIATION, 0, kind, self._add(w.SQUARE, of), total, counted)
        return self._result(w.TOTAL if op == "SUM" else w.AVERAGE, 0, kind, 0, total, counted)

    def _end(self, op: int, expr: Expr) -> int:
        return self._result(op, self._column(expr), _kind(expr), self._valid(expr))

    def _result(
        self, op: int, column: int = 0, kind: int = 0, valid: int = 0, at: int = 0, counted: int = 0
    ) -> int:
        self._results.append([op, column, kind, valid, at, counted])
        return len(self._results) - 1

    def _add(self, op: int, expr: Expr) -> int:
        """Where in a group's record something is kept up to date."""
        if (op, expr) not in self._places:
            self._places[op, expr] = at = self.group_words
            self.group_words += _WORDS[op]
            self._adds.append([op, self._column(expr), _kind(expr), self._valid(expr), at, self._links])
            self._links += 2 * (self.sliding and op in (w.LEAST, w.MOST))
        return self._places[op, expr]

    def _column(self, of: Expr | Valid | str) -> int:
        return self.kept.setdefault(of, len(self.kept))

    def _valid(self, expr: Expr) -> int:
        return self._column(Valid(expr)) if type_of(expr) is Type.INT64 else 0


def _kind(expr: Expr) -> int:
    type = type_of(expr)
    if type is None:
        raise Unsupported(
            "a window over an attribute whose type is not declared: declare it in the annotation"
        )
    return _KINDS.get(type, w.OTHER)


def asked_of(plan: ChiPlan) -> tuple[Expr, ...]:
    """What HAVING and the columns of a plan read of an answer: what its window keeps follows from that."""
    assert isinstance(plan.body, WindowAggregate)
    exprs = (*plan.body.having, *(each.expr for each in plan.columns))
    return tuple(dict.fromkeys(part for each in exprs for part in _outermost(each)))


def _outermost(expr: Expr) -> Iterable[Expr]:
    """The aggregates of an expression, and the attributes outside of them."""
    if isinstance(expr, Aggregate | Field):
        yield expr
    elif isinstance(expr, Call):
        for each in expr.args:
            yield from _outermost(each)


# ----------------------------------------------------------------------------------------------------------
# The window operator: gives batches of columns to the window machine, and makes matches of its answers.
#
# Final events enter as a `Table`, matches leave as columns. Everything that concerns one event (FILTERs,
# what is aggregated, keys) and every condition on an answer is worked out for whole columns at once; what
# PATHs say is asked once for events that they cannot tell apart (`kernel.meanings`).

_CHUNK = 65_536
"""So many entries, and so many answers, are worked on at a time; then they are still in the cache."""
_FEW = 1_024
_ENDLESS = 2**62
_advance, _pass_time = direct(w.advance), direct(w.pass_time)
_NOTHING = np.zeros(0, np.int64)


class WindowMachine:
    """A `WindowAggregate` and its columns."""

    shed = 0
    """A window lets go of nothing that counts."""

    def __init__(
        self,
        plan: ChiPlan,
        catalog: Catalog,
        semantics: Semantics,
        strings: Strings,
        limits: Limits | None = None,
        versioned: bool = False,
    ) -> None:
        assert isinstance(plan.body, WindowAggregate)
        self.plan, self.catalog, self.semantics, self.strings = plan, catalog, semantics, strings
        self.node = node = plan.body
        self.version: int | None = 0
        self.versioned = versioned
        self.passed = Passed()
        self.streams = node.streams
        self._columns = plan.columns
        self._meanings = Meanings(node, node.chain.semantics, catalog, semantics)
        shown = [each.expr for each in self._columns]
        self._layout = layout = WindowLayout(node, (*node.having, *shown))
        self._read_answers()
        self.attributes = self._attributes(shown)
        self._limit = (limits or Limits()).most(
            8 * (layout.entry_words if layout.sliding else layout.group_words + 2 * layout.entry_words)
        )
        self._begin()

    def _read_answers(self) -> None:
        """Makes ready what HAVING and the columns of its plan read of an answer."""
        having = self.node.having
        self._plain_having = tuple(self._read(each) for each in having if not has_path_values(each))
        self._path_having = tuple(self._read(each) for each in having if has_path_values(each))
        self._shown = tuple(self._read(each.expr) for each in self._columns)

    def _read(self, expr: Expr) -> Expr:
        return _answered(expr, self._layout.answered, self.streams)

    def _attributes(self, shown: Sequence[Expr]) -> tuple[str, ...]:
        """The attributes that it needs as columns."""
        node = self.node
        found = dict.fromkeys(self._meanings.attributes)
        for expr in (*self.node.chain.conditions, *node.partition, *node.group_by, *node.having, *shown):
            for part in walk(expr):
                if isinstance(part, Field):
                    found.update((name, None) for _, names in part.sources for name in names)
        return self.catalog.known_attributes(self.streams, found)

    # --- memory ---

    def _begin(self) -> None:
        """The state of a window that has seen nothing."""
        layout = self._layout
        meta = np.zeros(w.META, np.int64)
        meta[[w.FREE, w.HEAD, w.OPEN, w.FULL, w.FAR_FREE, w.SQUARE_FREE]] = -1
        meta[w.NUMBER] = INT64_MIN // 2
        meta[w.LIMIT] = self._limit
        rows = len(layout.steps.adds) + 1
        self._state = w.WindowState(
            meta,
            np.zeros((64, layout.entry_words), np.int64),
            np.zeros((0, layout.group_words), np.int64),
            np.zeros((0, w.P_PARTITION), np.int64),
            np.zeros((rows, FAR), np.int64),
            np.zeros((rows, SQUARES), np.int64),
            np.zeros((4 << rows.bit_length(), w.S_SLOT), np.int64),
            np.zeros(0, np.int64),
            np.zeros(SCRATCH, np.int64),
        )
        self._partitions = Keys(self._width(self.node.partition))
        self._groups = Keys(1 + self._width(self.node.group_by)) if self.node.group_by else self._partitions
        self._alive = 0
        self._now = -_ENDLESS - 1
        """The time that has passed: what is over by then has left."""

    @staticmethod
    def _width(exprs: Sequence[Expr]) -> int:
        return sum(1 if isinstance(each, VariableRef) else key_width(type_of(each)) for each in exprs)

    @property
    def size(self) -> int:
        """How many entries are kept; of batches, how many groups."""
        return int(self._state.meta[w.HELD])

    # --- events come, and time passes ---

    def feed(self, table: Table) -> list[Matches]:
        """What is found by these events, the next ones in order."""
        found: list[Matches] = []
        if not len(table):
            return found
        self._state.meta[w.VERSION] = self.version or 0
        self._forget_keys()
        rows = np.flatnonzero(self._passes(table))
        chosen = table if len(rows) == len(table) else table.take(rows)
        for first in range(0, len(chosen), _CHUNK):
            own = chosen if len(chosen) <= _CHUNK else chosen.take(slice(first, first + _CHUNK))
            self._take(own, found)
        self._pass_time(int(table.ts[-1]), found)
        return found

    def advance(self, watermark: float) -> list[Matches]:
        """What is found by knowing that no event below the watermark will come."""
        found: list[Matches] = []
        self._pass_time(math.ceil(min(max(watermark, -_ENDLESS), _ENDLESS)), found)
        return found

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return watermark

    def renew(self) -> None:
        """Lets PATHs be asked again: the knowledge has a new version."""
        self._meanings.renew()

    def _passes(self, table: Table) -> Array:
        """Which events the window sees: also past the FILTERs."""
        passes = sees(self.node.chain, table)
        self.passed.came += count_of(passes, table)
        own, from_paths = self.passed.in_order(self.node.chain.conditions)
        for each in own:
            passes = both(passes, holds(each, table))
        self.passed.filters += count_of(passes, table)
        for each in from_paths:
            passes = both(passes, holds(each, table))
        return spread(passes, table)

    def _take(self, table: Table, found: list[Matches]) -> None:
        """Takes the events that pass, as entries: one for each partition and group that they are in."""
        cases: Array | None = None
        if self._meanings.needed:
            rows, cases = self._meanings.cases(table)
            if len(rows) != len(table) or (np.diff(rows) != 1).any():
                table = table.take(rows)
            fresh = np.diff(rows, prepend=-1) != 0
            self.passed.paths += int(np.count_nonzero(fresh))
        else:
            self.passed.paths += len(table)
        self.passed.fits[self.node.chain.variable] = self.passed.paths
        if not len(table):
            return
        partitions, groups = self._numbered(table, cases)
        flags = np.full(len(table), w.NEW | w.DONE)
        if cases is not None:
            fresh[1:] |= partitions[1:] != partitions[:-1]
            flags = fresh * w.NEW + np.append(fresh[1:], True) * w.DONE
        self._rank(table)
        entries = w.Entries(
            np.ascontiguousarray(table.ts, np.int64),
            partitions,
            groups,
            flags,
            *self._identities_kept(table),
            self._kept(table),
        )
        answers = self._room(len(table) if self._layout.sliding else _FEW)
        at = 0
        while True:
            at = _advance(self._layout.steps, self._state, entries, answers, at)
            need = int(self._state.meta[w.NEED])
            if need == w.NOTHING:
                break
            answers = self._make_room(need, answers, table, cases, found)
        self._drain(answers, table, cases, found)
        self._now = int(table.ts[-1])

    def _pass_time(self, now: int, found: list[Matches]) -> None:
        if self.node.window.width is None or now <= self._now:
            return
        self._now = now
        answers = self._room(0 if self._layout.sliding else max(self.size, 1))
        _pass_time(self._layout.steps, self._state, now, answers)
        self._drain(answers, None, None, found)

    # --- entries ---

    def _identities_kept(self, table: Table) -> Words:
        """The words of the identities of events, where the id of an answer is made of them."""
        if not self._is_batch_by_count:
            return _NOTHING, _NOTHING
        low, high = self._identities_in(table, Refs(table.place, table.part, table.seq))
        return low, high

    @property
    def _is_batch_by_count(self) -> bool:
        return self.node.window.count is not None and not self._layout.sliding

    def _kept(self, table: Table) -> Array:
        """What is kept of entries, as words."""
        kept = np.zeros((len(self._layout.kept), len(table)), np.int64)
        for of, number in self._layout.kept.items():
            if isinstance(of, Valid):
                column = value(of.of, table)
                kept[number] = 1 if column.valid is None else column.valid
            elif isinstance(of, Expr):
                kept[number] = words_of(value(of, table))
            elif of == "place":
                places = [self.streams.index(each) if each in self.streams else -1 for each in table.streams]
                kept[number] = np.array(places)[table.place]
            else:
                kept[number] = table.part if of == "part" else table.seq
        return kept

    def _rank(self, table: Table) -> None:
        """Sees to it that the strings that come can be compared with those that came."""
        for number in self._layout.ranked:
            (expr,) = (of for of, at in self._layout.kept.items() if at == number)
            assert isinstance(expr, Expr)
            self._rank_codes(value(expr, table).data)

    def _rank_codes(self, codes: Array) -> None:
        ranks, texts = self._state.ranks, self.strings.texts
        came = np.unique(codes[codes >= 0])
        known = np.flatnonzero(ranks >= 0)
        if np.isin(came, known).all():
            return
        every = np.union1d(known, came)
        ranks = np.full(len(texts), -1, np.int64)
        ranks[sorted(every.tolist(), key=texts.__getitem__)] = np.arange(len(every))
        self._state = self._state._replace(ranks=ranks)

    # --- keys ---

    def _numbered(self, table: Table, cases: Array | None) -> tuple[Array, Array]:
        """The numbers of the partitions and of the groups of entries."""
        node, meanings = self.node, self._meanings
        words = self._key_words(node.partition, table, cases, meanings.partition_terms)
        partitions = groups = self._partitions.numbers(words, len(table))
        if node.group_by:
            words = self._key_words(node.group_by, table, cases, meanings.group_terms)
            groups = self._groups.numbers([partitions, *words], len(table))
        self._make_records()
        return partitions, groups

    @staticmethod
    def _key_words(
        exprs: Sequence[Expr], table: Table, cases: Array | None, terms: Callable[[str, Any], Array]
    ) -> list[Array]:
        found: list[Array] = []
        for each in exprs:
            found += (
                [terms(each.name, cases)] if isinstance(each, VariableRef) else key_words(value(each, table))
            )
        return found

    def _make_records(self) -> None:
        """Makes records of the partitions and the groups that are new."""
        state = self._state
        old = len(state.partitions)
        if len(self._partitions) > old:
            longer = _longer(state.partitions, 2 * len(self._partitions))
            longer[old:, [w.P_FIRST, w.P_LAST, w.P_OPEN, w.P_GROUPS]] = -1
            state = state._replace(partitions=longer)
        old = len(state.groups)
        if len(self._groups) > old:
            longer = _longer(state.groups, 2 * len(self._groups))
            w.clear_groups(self._layout.steps, longer[old:])
            state = state._replace(groups=longer)
        self._state = state

    def _forget_keys(self) -> None:
        """Once in a while, forgets the keys that did not come back."""
        if len(self._groups) + len(self._partitions) > 2 * self._alive + _FEW:
            self._sweep()

    def _sweep(self) -> None:
        """Forgets the keys of which nothing is kept; the others get new numbers."""
        state, meta = self._state, self._state.meta
        groups = np.flatnonzero(state.groups[: len(self._groups), w.G_COUNT] > 0)
        group_at = _new_numbers(groups, len(self._groups))
        partitions, partition_at = groups, group_at
        if self.node.group_by:
            partitions = np.unique(state.groups[groups, w.G_PARTITION])
            partition_at = _new_numbers(partitions, len(self._partitions))
            self._groups.keep(groups)
            self._groups.words[0] = partition_at[self._groups.words[0]]
            self._groups.load(self._groups.words.copy())
        self._partitions.keep(partitions)
        kept, own = state.groups[groups], state.partitions[partitions]
        _renumber(kept[:, w.G_PARTITION], partition_at)
        _renumber(kept[:, w.G_OPEN], group_at)
        _renumber(own[:, w.P_GROUPS], group_at)
        _renumber(own[:, w.P_OPEN], partition_at)
        _renumber(meta[w.OPEN : w.OPEN + 1], partition_at)
        used = state.entries[: meta[w.TOP]]
        used[used[:, w.E_GROUP] < 0, w.E_PARTITION] = -1
        _renumber(used[:, w.E_PARTITION], partition_at)
        _renumber(used[:, w.E_GROUP], group_at)
        self._state = state._replace(groups=kept, partitions=own)
        self._alive = len(self._groups) + len(self._partitions)

    # --- room ---

    def _room(self, count: int) -> w.WindowAnswers:
        results = len(self._layout.steps.results)
        return w.WindowAnswers(
            np.empty((w.O_RESULTS + results + 4 * self._is_batch_by_count, count), np.int64),
            np.empty((results, count), np.bool_),
        )

    def _make_room(
        self, need: int, answers: w.WindowAnswers, table: Table, cases: Array | None, found: list[Matches]
    ) -> w.WindowAnswers:
        """Makes whatever is full larger."""
        state = self._state
        if need == w.N_OUT:
            self._drain(answers, table, cases, found)
            return self._room(min(2 * answers.words.shape[1], _CHUNK))
        if need == w.N_TOO_MUCH:
            window = self.node.window
            raise refuse(
                f"{self.plan.name} (WINDOW ?{window.variable}, {window.kind})",
                self.size,
                "make the window narrower, or leave out more events with a FILTER",
            )
        if need == w.N_ENTRIES:
            self._state = state._replace(entries=_longer(state.entries, 2 * len(state.entries)))
        elif need == w.N_FAR:
            self._state = state._replace(far=_longer(state.far, 2 * len(state.far)))
        elif need == w.N_SQUARES:
            self._state = state._replace(squares=_longer(state.squares, 2 * len(state.squares)))
        elif need == w.N_SLOTS:
            self._load_slots(state.slots)
        return answers

    def _load_slots(self, old: Array) -> None:
        """Counts values in new slots; those of groups that are over are forgotten."""
        state, adds = self._state, len(self._layout.steps.adds)
        serials = state.groups[state.groups[:, w.G_COUNT] > 0, w.G_SERIAL]
        old = old[np.isin(old[:, w.S_KEY] // max(adds, 1), serials) & (old[:, w.S_COUNT] > 0)]
        self._state = state._replace(
            slots=np.zeros((8 << (len(old) + adds).bit_length(), w.S_SLOT), np.int64)
        )
        w.rehash(old, self._state)

    # --- matches ---

    def _drain(
        self, answers: w.WindowAnswers, table: Table | None, cases: Array | None, found: list[Matches]
    ) -> None:
        """Makes matches of what the machine has answered."""
        count = int(self._state.meta[w.OUT])
        if not count:
            return
        self._state.meta[w.OUT] = 0
        rows = self._rows(answers.words[:, :count], answers.missing[:, :count], table)
        self._report(rows, cases, found)

    def _report(self, rows: Answered, cases: Array | None, found: list[Matches]) -> None:
        """Makes matches of the answers for which HAVING holds."""
        for each in self._plain_having:
            rows = rows.where(holds(each, rows.shown))
        if len(rows) and self._meanings.names:
            rows = self._with_terms(rows, cases)
            for each in self._path_having:
                rows = rows.where(self._holds_with_terms(each, rows))
        if len(rows):
            found += self._by_version(rows)

    def _rows(self, words: Array, missing: Array, table: Table | None) -> Answered:
        """The answers, with the event that triggers each or the first of a batch, and the aggregates."""
        results = {
            f"={number}": _result(words[w.O_RESULTS + number], missing[number], type_of(expr))
            for expr, number in self._layout.answered.items()
        }
        if table is not None and self._layout.sliding:
            # Every entry answers, one after the other.
            own = table.take(slice(int(words[w.O_ROW, 0]), int(words[w.O_ROW, -1]) + 1))
            columns = {**own.columns, **results}
            shown = replace(own, columns=columns, memo={})
        else:
            place, part, seq = (self._edge(words, w.FIRST, name) for name in ("place", "part", "seq"))
            shown = Table(self.streams, words[w.O_END], place, part, seq, results, self.strings)
        return Answered(words, shown, {})

    def _edge(self, words: Array, op: int, name: str) -> Array:
        found: Array = words[w.O_RESULTS + self._layout.edges[op, name]]
        return found

    def _with_terms(self, rows: Answered, cases: Array | None) -> Answered:
        """Each answer with each solution of its PATHs; of a batch, that is what its group goes by."""
        if self._layout.sliding:
            assert cases is not None
            of, terms = self._meanings.solutions(cases[rows.words[w.O_ROW]])
            made = rows.where(of)
            return Answered(made.words, made.shown, terms)
        groups = rows.words[w.O_GROUP]
        partitions = self._state.groups[groups, w.G_PARTITION]
        terms = {}
        for keys, exprs, numbers, at in (
            (self._partitions, self.node.partition, partitions, 0),
            (self._groups, self.node.group_by, groups, 1),
        ):
            for each in exprs:
                if isinstance(each, VariableRef):
                    terms[each.name] = keys.words[at, numbers]
                at += self._width((each,))
        return Answered(rows.words, rows.shown, terms)

    def _holds_with_terms(self, expr: Expr, rows: Answered) -> Array:
        made = np.zeros(len(rows), np.bool_)
        for of, at in self._by_terms(expr, rows):
            made[at] = holds(of, rows.shown.take(at))
        return made

    def _by_terms(self, expr: Expr, rows: Answered) -> Iterator[tuple[Expr, Array]]:
        """An expression with the values of each combination of terms, and the answers that have them."""
        names, terms = path_references(expr), self._meanings.terms.terms
        numbers, of = np.unique(np.stack([rows.terms[name] for name in names]), axis=1, return_inverse=True)
        for number, combination in enumerate(numbers.T.tolist()):
            values = {name: terms[each] for name, each in zip(names, combination, strict=True)}
            yield with_terms(expr, values), np.flatnonzero(of.ravel() == number)

    def _by_version(self, rows: Answered) -> Iterator[Matches]:
        versions = rows.words[w.O_VERSION]
        if not self.versioned:
            yield self._matches(rows, None)
            return
        for version in np.unique(versions).tolist():
            yield self._matches(rows.where(versions == version), version)

    def _matches(self, rows: Answered, version: int | None) -> Matches:
        identify: Callable[[], Words] = partial(self._identify, rows, self._keys_of(rows))
        if rows.terms:
            # Solutions that differ in nothing that is selected are one match.
            ids = np.stack(identify())
            different = np.sort(np.unique(ids, axis=1, return_index=True)[1])
            rows, (low, high) = rows.where(different), ids[:, different]
            identify = lambda: (low, high)  # noqa: E731
        select: dict[str, Column] = {}
        terms: dict[str, list[Any]] = {}
        for column, expr in zip(self._columns, self._shown, strict=True):
            if has_path_values(expr):
                terms[column.name] = self._term_column(column, expr, rows)
            else:
                select[column.name] = value(expr, rows.shown)
        events: dict[str, Refs] = {}
        batch: dict[str, tuple[Refs, Refs, Array]] = {}
        if self._layout.sliding:
            events[self.node.window.variable] = rows.refs
        else:
            first, last = (
                Refs(*(self._edge(rows.words, op, name) for name in ("place", "part", "seq")))
                for op in (w.FIRST, w.LAST)
            )
            batch[self.node.window.variable] = first, last, rows.words[w.O_EVENTS]
        return Matches(
            self.plan.name,
            rows.shown.streams,
            self.strings,
            identify,
            rows.words[w.O_START],
            rows.words[w.O_END],
            tuple(each.name for each in self._columns),
            select,
            events,
            terms,
            batch,
            derived=self.catalog.derived(rows.shown.streams),
            version=version,
        )

    def _identify(self, rows: Answered, keys: Sequence[Array]) -> Words:
        """The ids of answers: query, partition and group, when, the events, the solution."""
        seed = MatchId(self.plan.name, self.plan.text)
        low, high = np.full(len(rows), seed.low, np.uint64), np.full(len(rows), seed.high, np.uint64)
        for exprs, words in zip((self.node.partition, self.node.group_by), keys, strict=True):
            for first, second in self._key_identities(exprs, words):
                mix_pairs(low, high, first, second)
        for at in (w.O_START, w.O_END):
            mix_pairs(low, high, rows.words[at], rows.words[at])
        if self._layout.sliding:
            mix_pairs(low, high, *self._identities_in(rows.shown, rows.refs))
        elif self._is_batch_by_count:
            *_, first_low, first_high, last_low, last_high = rows.words
            mix_pairs(low, high, first_low, first_high)
            mix_pairs(low, high, last_low, last_high)
        for name in dict.fromkeys(name for each in self._columns for name in path_references(each.expr)):
            words = self._meanings.terms.words[rows.terms[name]]
            mix_pairs(low, high, words, words)
        return low, high

    def _keys_of(self, rows: Answered) -> list[Array]:
        """The words of the partitions and of the groups that answered."""
        groups = rows.words[w.O_GROUP]
        if not self.node.group_by:
            return [self._partitions.words[:, groups], groups[:0]]
        partitions = self._state.groups[groups, w.G_PARTITION]
        return [self._partitions.words[:, partitions], self._groups.words[1:, groups]]

    def _key_identities(self, exprs: Sequence[Expr], words: Array) -> Iterator[Words]:
        """The values of keys, as ids have them."""
        at = 0
        for each in exprs:
            width = self._width((each,))
            if isinstance(each, VariableRef):
                known = words[at] > 0
                yield 2 * known, self._meanings.terms.words[words[at]] * known
            else:
                yield key_identities(type_of(each), words[at : at + width], self.strings)
            at += width

    def _identities_in(self, table: Table, refs: Refs) -> Iterator[Array]:
        """The words of the identities of events."""
        known = Identities(table.streams, self.catalog.derived(table.streams))
        return (each.view(np.int64) for each in known.of(refs))

    def _term_column(self, column: OutputColumn, expr: Expr, rows: Answered) -> list[Any]:
        """A column that depends on the solution, as JSON writes it."""
        if isinstance(expr, VariableRef):
            terms = self._meanings.terms.terms
            return [None if terms[at] is None else native(terms[at]) for at in rows.terms[expr.name].tolist()]
        made: list[Any] = [None] * len(rows)
        for of, at in self._by_terms(expr, rows):
            values: list[Any] = list(value(of, rows.shown.take(at)).values(self.strings))
            if type_of(of) is Type.TIMESTAMP and column.type in (None, Type.TIMESTAMP):
                values = [None if each is None else format_time(each) for each in values]
            for row, each in zip(at.tolist(), values, strict=True):
                made[row] = each
        return made

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state."""
        self._sweep()
        state, meta = self._state, self._state.meta
        self._load_slots(state.slots)
        arrays = {
            "meta": meta,
            "entries": state.entries[: meta[w.TOP]].copy(),
            "groups": state.groups.copy(),
            "partitions": state.partitions,
            "far": state.far[: meta[w.FAR_TOP]],
            "squares": state.squares[: meta[w.SQUARE_TOP]],
            "slots": self._state.slots[self._state.slots[:, w.S_COUNT] > 0],
            "partition_keys": self._partitions.words.copy(),
        }
        if self.node.group_by:
            arrays["group_keys"] = self._groups.words.copy()
        document: dict[str, Any] = {"layout": self._signature()}
        for kind, save in (("texts", self._text), ("terms", self._meanings.terms.saved)):
            codes = _codes_of(self._coded(arrays, kind))
            saved = [save(each) for each in codes.tolist()]
            order = np.array(sorted(range(len(saved)), key=lambda at: str(saved[at])), np.int64)
            document[kind] = [saved[at] for at in order.tolist()]
            _recode(self._coded(arrays, kind), codes, np.argsort(order))
        arrays["slots"] = arrays["slots"][np.lexsort(arrays["slots"].T[::-1])]  # they stood as they hash
        return write_state("window", document, arrays)

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        document, arrays = read_state("window", state)
        if document["layout"] != self._signature():
            raise Failure(f"this is the saved state of another window than that of {self.plan.name}")
        loaded = {
            "texts": [self.strings.code(each) for each in document["texts"]],
            "terms": [self._meanings.terms.loaded(each) for each in document["terms"]],
        }
        for kind, codes in loaded.items():
            _recode(self._coded(arrays, kind), np.arange(len(codes)), np.array(codes, np.int64))
        self._begin()
        own, meta = self._state, arrays["meta"].copy()
        meta[w.LIMIT] = self._limit
        self._state = own._replace(
            meta=meta,
            entries=_longer(arrays["entries"], len(arrays["entries"]) + 64),
            groups=arrays["groups"],
            partitions=arrays["partitions"],
            far=_longer(arrays["far"], len(arrays["far"]) + len(own.far)),
            squares=_longer(arrays["squares"], len(arrays["squares"]) + len(own.squares)),
        )
        self._load_slots(arrays["slots"])
        self._partitions.load(arrays["partition_keys"])
        if self.node.group_by:
            self._groups.load(arrays["group_keys"])
        for number in self._layout.ranked:
            used = arrays["entries"][:, w.E_GROUP] >= 0
            self._rank_codes(arrays["entries"][used, w.E_KEPT + number])
        for array, at in self._coded(arrays, "extremes"):
            self._rank_codes(array[at])

    def why_other(self, old: WindowMachine) -> str | None:
        """Why it cannot go on with the state of another window; None where it can."""
        return None if self._signature() == old._signature() else "it keeps other aggregates"

    def _signature(self) -> list[Any]:
        """What must be the same where a state is loaded: all but the width of a sliding window."""
        steps, window = self._layout.steps, self.node.window
        width = None if self._layout.sliding else window.width
        return [
            window.kind,
            width,
            window.count,
            steps.adds.tolist(),
            steps.results.tolist(),
            len(self.node.partition),
        ]

    def _text(self, code: int) -> str:
        return self.strings.texts[code]

    def _coded(self, arrays: Mapping[str, Array], kind: str) -> Iterator[tuple[Array, Any]]:
        """Where in a state the codes of strings (or of those alone that are compared) or of terms are."""
        layout, adds = self._layout, self._layout.steps.adds
        entries, groups, slots = arrays["entries"], arrays["groups"], arrays["slots"]
        keys = [("partition_keys", self.node.partition, 0)]
        keys += [("group_keys", self.node.group_by, 1)] if self.node.group_by else []
        for name, exprs, row in keys if kind != "extremes" else ():
            for each in exprs:
                if type_of(each) is Type.STRING if kind == "texts" else isinstance(each, VariableRef):
                    yield arrays[name], (row,)
                row += self._width((each,))
        for number in layout.texts if kind == "texts" else ():
            yield entries, (entries[:, w.E_GROUP] >= 0, w.E_KEPT + number)
        for number, (op, _, type, _, at, _) in enumerate(adds.tolist() if kind != "terms" else ()):
            if type == w.TEXT and op in (w.LEAST, w.MOST) and not layout.sliding:
                yield groups, (groups[:, at] >= 0, at + 1)
            elif type == w.TEXT and op == w.DISTINCT and kind == "texts":
                yield slots, (slots[:, w.S_KEY] % len(adds) == number, w.S_WORD)


@dataclass(frozen=True)
class Answered:
    """Answers as the machine wrote them, what their expressions read, and the terms of their solutions."""

    words: Array
    shown: Table
    terms: dict[str, Array]

    def __len__(self) -> int:
        return int(self.words.shape[1])

    @cached_property
    def refs(self) -> Refs:
        """The events that trigger; a single one is copied, since its row is written again (`hosts.lane`)."""
        own = self.shown.place, self.shown.part, self.shown.seq
        return Refs(*(each.copy() for each in own)) if len(self) == 1 else Refs(*own)

    def where(self, rows: Array | bool) -> Answered:
        """Some of the answers."""
        rows = np.asarray(rows)
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)
        terms = {name: each[rows] for name, each in self.terms.items()}
        return Answered(self.words[:, rows], self.shown.take(rows), terms)


# --- values ------------------------------------------------------------------------------------------------


def value(expr: Expr, table: Table) -> Column:
    """The values of an expression about one event."""
    return vectors_of(table).value(expr)


def holds(condition: Expr, table: Table) -> Mask:
    """Where a condition on one event is true."""
    return vectors_of(table).holds(condition)


def _result(words: Array, missing: Array, type: Type | None) -> Column:
    """A result of the machine as a column."""
    assert type is not None
    if type is Type.FLOAT64:
        return Column(type, np.where(missing, np.nan, words.view(np.float64)))
    if type is Type.INT64:
        return Column(type, words, ~missing if missing.any() else None)
    return Column(type, np.where(missing, NULLS[type], words).astype(DTYPES[type]))


def _answered(expr: Expr, known: Mapping[Expr, int], streams: Sequence[str]) -> Expr:
    """An expression that reads the results of the machine where they are columns."""
    if expr in known:
        name = f"={known[expr]}"
        return Field("", name, tuple((each, (name,)) for each in streams), type_of(expr))
    if isinstance(expr, Call):
        return replace(expr, args=tuple(_answered(each, known, streams) for each in expr.args))
    return expr


# --- arrays ------------------------------------------------------------------------------------------------


def _longer(array: Array, rows: int) -> Array:
    more = np.zeros((rows, *array.shape[1:]), array.dtype)
    more[: len(array)] = array
    return more


def _new_numbers(kept: Array, count: int) -> Array:
    numbers = np.full(count, -1, np.int64)
    numbers[kept] = np.arange(len(kept))
    return numbers


def _renumber(numbers: Array, new: Array) -> None:
    known = numbers >= 0
    numbers[known] = new[numbers[known]]


def _codes_of(places: Iterable[tuple[Array, Any]]) -> Array:
    found = [array[at] for array, at in places]
    every: Array = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return every[every >= 0]


def _recode(places: Iterable[tuple[Array, Any]], old: Array, new: Array) -> None:
    """Puts new codes in the place of old ones, which are given in order."""
    for array, at in places:
        codes = array[at]
        known = codes >= 0
        codes[known] = new[np.searchsorted(old, codes[known])]
        array[at] = codes
