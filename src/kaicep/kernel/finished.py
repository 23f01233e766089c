"""Tests and completes finished matches: conditions on whole loops, selected solutions, LATEST."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np

from kaicep.kernel import tables as t
from kaicep.kernel.aggregates import FOLDS
from kaicep.kernel.assemble import alone, of_one_event
from kaicep.kernel.automaton import variables_in
from kaicep.kernel.columns import Array, Column, Words
from kaicep.kernel.keys import Keys, NumberLists, value_words
from kaicep.kernel.output import Finished, Made, Output
from kaicep.kernel.shape import PatternShape, Requirement, Roots, requirement_of
from kaicep.kernel.solutions import Given, PathSolutions, Scene, Seen, Terms, fields_of, mentions, value_in
from kaicep.kernel.words import mix_pairs
from kaicep.plan.chi import Place
from kaicep.plan.events import Event, text_word
from kaicep.plan.expressions import (
    Aggregate,
    Call,
    Const,
    Expr,
    Previous,
    VariableRef,
    type_of,
    variables_of,
    walk,
)
from kaicep.plan.nodes import Latest, OutputColumn, Pattern, Semantic
from kaicep.plan.operators import apply
from kaicep.plan.paths import has_path_values, path_references
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Value
from kaicep.plan.values import native

# ----------------------------------------------------------------------------------------------------------
# What is asked of all events of a match at once: conditions on every round of a loop, aggregates over it.
#
# The machine asks this only where no program can say it: a condition on a loop that is tested after the
# loop has grown, a PATH over its rounds, a sum of all of them.


def aggregate_of(expr: Aggregate, rounds: Sequence[Seen]) -> Value:
    """An aggregate over the rounds of a loop."""
    if expr.of is None:
        return len(rounds)
    fold = FOLDS["DISTINCT" if expr.distinct and expr.op == "COUNT" else expr.op]
    return fold.of([each.value(expr.of) for each in rounds])


def holds_for_all(
    requirement: Requirement,
    rounds: Mapping[str, Sequence[Seen]],
    newest: str | None,
    path_holds: Callable[[Requirement, Mapping[str, int], Mapping[str, Sequence[Any]]], bool],
) -> bool:
    """Whether a requirement holds for every combination of rounds; of `newest` only the last is new.

    A PATH is decided by `path_holds`, given which round of each variable is meant, and all rounds.
    """
    bare = sorted(requirement.bare)
    for at in _combinations(bare, rounds, newest):
        if any(at[name] == 0 for name in requirement.previous):
            continue  # there is no round before the first
        of = requirement.of
        if isinstance(of, Semantic):
            if not path_holds(requirement, at, rounds):
                return False
            continue
        events = {name: rounds[name][index] for name, index in at.items()}
        before = {name: rounds[name][at[name] - 1] for name in requirement.previous}
        covered = {
            name: rounds.get(name, ())[: at[name] + 1] if name in at else rounds.get(name, ())
            for name in requirement.aggregated
        }
        if evaluated(of, events, before, covered) is not True:
            return False
    return True


def _combinations(
    bare: Sequence[str], rounds: Mapping[str, Sequence[Seen]], newest: str | None
) -> Iterator[dict[str, int]]:
    choices = [range(len(rounds.get(name, ()))) for name in bare]
    choices = [each[-1:] if name == newest else each for name, each in zip(bare, choices, strict=True)]
    return (dict(zip(bare, chosen, strict=True)) for chosen in product(*choices))


def evaluated(
    expr: Expr,
    events: Mapping[str, Seen],
    before: Mapping[str, Seen],
    covered: Mapping[str, Sequence[Seen]],
) -> Value:
    """The value of an expression, one event being given for each variable that it mentions bare."""
    if isinstance(expr, Const):
        return expr.value
    variable = of_one_event(expr)
    if variable is not None:
        return events[variable].value(expr) if variable in events else None
    if isinstance(expr, Previous):
        own = of_one_event(expr.of)
        assert own is not None
        return before[own].value(expr.of)
    if isinstance(expr, Aggregate):
        return aggregate_of(expr, covered[str(expr.variable)])
    assert isinstance(expr, Call)
    return apply(expr, [evaluated(each, events, before, covered) for each in expr.args])


# ----------------------------------------------------------------------------------------------------------
# What PATHs select of finished matches: one match for each distinct solution, with its values as columns.
#
# Matches enter; they leave repeated, once for each combination of what their PATHs select. The selected
# terms, alone or inside an expression, are part of the ids.

_MOST_SOLUTIONS = 100_000
"""So many solutions are remembered."""

RoundsOf = Mapping[str, Sequence[Seen]]
"""The events of a match by variable; nothing for one that was left out."""


class Teller(Protocol):
    """What a selection asks of the pattern operator."""

    output: Output

    def event_of(self, roots: Roots, seen: Any) -> Event:
        """An event that says the same to a PATH as one of a match."""
        ...

    def inside(self, rounds: RoundsOf) -> Given:
        """The partition of a match, as far as it goes by variables of the PATH."""
        ...


class Selection:
    """The PATHs of a pattern whose variables are selected."""

    def __init__(
        self,
        shape: PatternShape,
        columns: Sequence[OutputColumn],
        paths: PathSolutions,
        operator: Teller,
    ) -> None:
        self._shape, self._paths, self._operator = shape, paths, operator
        self._columns = [each for each in columns if has_path_values(each.expr)]
        self._named = tuple(dict.fromkeys(n for each in self._columns for n in path_references(each.expr)))
        self._selecting = _selecting(shape.of_paths)
        self._latest = {
            each.variable: _selecting(map(requirement_of, each.semantics)) for each in shape.pattern.latest
        }
        self._nothing: Terms = dict.fromkeys(
            name for some in self._latest.values() for each in some for name in _names_of(each)
        )

        self._partition = shape.pattern.partition if paths.given else ()
        self._seen: dict[str, list[object]] = {}
        self._by_match = False
        if self._columns:
            self._look_at_what_decides()
        self.renew()

    def _look_at_what_decides(self) -> None:
        """Finds by variable what of its event decides the solutions, or is shown with them."""
        exprs = [each.expr for each in self._columns]
        for each in (*self._selecting, *(one for some in self._latest.values() for one in some)):
            assert isinstance(each.of, Semantic)
            exprs += each.of.conditions
            for name in each.of.variables:
                self._seen.setdefault(name, []).append(each.roots(name))
        for field in (field for expr in exprs for field in fields_of(expr)):
            self._seen.setdefault(field.variable, []).append(field)
        aggregates = any(isinstance(part, Aggregate) for expr in exprs for part in walk(expr))
        self._by_match = aggregates or not self._shape.loops.keys().isdisjoint(self._seen)

    def __bool__(self) -> bool:
        """Whether anything is selected."""
        return bool(self._columns)

    def of(self, made: Made, rounds_of: Callable[[int], RoundsOf]) -> Made:
        """The matches, each as often as it has solutions; `rounds_of` gives the events of one of them.

        Matches that agree in all that PATHs and columns see of them have the same solutions.
        """
        if self._by_match or len(self._known) > _MOST_SOLUTIONS:
            self.renew()
        numbers = self._numbers(made.of)
        fresh = self._known.fresh(numbers)
        first = np.zeros(len(self._known_words), np.int64)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        for number in fresh:
            self._known.add(number, self._solved(rounds_of(int(first[number]))))
        which, solutions = self._known.of(numbers)
        taken = made if np.array_equal(which, np.arange(len(numbers))) else made.take(which)
        words = self._words

        def identify() -> Words:
            low, high = (each.copy() for each in taken.matches.ids)
            for each in words:
                own = np.array(each, np.uint64).view(np.int64)[solutions]
                mix_pairs(low, high, own, own)
            return low, high

        chosen = solutions.tolist()
        shown = {name: [values[each] for each in chosen] for name, values in self._values.items()}
        return replace(taken, matches=replace(taken.matches, identify=identify, terms=shown))

    def renew(self) -> None:
        """Asks anew: the knowledge has a new version."""
        self._known_words = Keys(1 + len(self._partition) + sum(1 + len(of) for of in self._seen.values()))
        self._known = NumberLists()
        self._words: list[list[int]] = [[] for _ in self._named]
        self._values: dict[str, list[Any]] = {each.name: [] for each in self._columns}

    def _numbers(self, made: Finished) -> Array:
        """Matches of which nothing that is asked about can be told apart have the same number."""
        count = len(made.last)
        words: list[Array] = [np.arange(count) if self._by_match else np.zeros(count, np.int64)]
        words += [self._words_of(each, made, made.last) for each in self._partition]
        for name, seen in self._seen.items():
            at = self._operator.output.places[name]
            events = made.found[at] if at < len(made.found) else np.full(count, -1)
            words.append(events >= 0)
            words += [np.where(events < 0, 0, self._words_of(each, made, events)) for each in seen]
        return self._known_words.numbers(words)

    def _words_of(self, of: object, made: Finished, events: Array) -> Array:
        column = self._shape.columns[alone(of) if isinstance(of, Expr) else of]
        words: Array = made.events[events, t.E_FIXED + self._shape.kept[column]]
        return words

    def _solved(self, rounds: RoundsOf) -> list[int]:
        """The solutions of one match, by the number that each gets."""
        made: list[int] = []
        found = [self._solutions(each, rounds) for each in self._asked(rounds)]
        for some in product(*found):
            row = dict(self._nothing) | {name: term for each in some for name, term in each.items()}
            made.append(len(self._words[0]))
            for name, words in zip(self._named, self._words, strict=True):
                words.append(text_word(str(row[name] or "")))
            for column in self._columns:
                self._values[column.name].append(self._shown(column, row, rounds))
        return made

    def _asked(self, rounds: RoundsOf) -> list[Requirement]:
        """The PATHs that count: that of a LATEST event says what the others say, and more."""
        asked = [each for name, some in self._latest.items() if name in rounds for each in some]
        covered = {name for each in asked for name in _names_of(each)}
        return asked + [each for each in self._selecting if covered.isdisjoint(_names_of(each))]

    def _solutions(self, requirement: Requirement, rounds: RoundsOf) -> list[Terms]:
        """What a PATH selects; nulls where an event that it hangs on was left out."""
        assert requirement.path is not None
        nothing: Terms = dict.fromkeys(requirement.path.selected)
        counting = self._shape.counting(requirement, frozenset(rounds))
        if counting is None:
            return [nothing]
        of = counting.of
        assert isinstance(of, Semantic)
        events = {name: some[0] for name, some in rounds.items()}
        event_of, inside = self._operator.event_of, self._operator.inside(rounds)
        binding = {name: event_of(counting.roots(name), events[name]) for name in of.variables}
        found = self._paths.rows(of, binding, lambda _: Scene(events, {}, rounds), inside=inside)
        return [{**nothing, **dict(zip(of.selected, row, strict=True))} for row in found]

    def _shown(self, column: OutputColumn, terms: Terms, rounds: RoundsOf) -> Any:
        """The value of a column in one solution, as JSON writes it."""
        if isinstance(column.expr, VariableRef):
            term = terms[column.expr.name]
            return None if term is None else native(term)
        typed = self._paths.typed(column.expr, terms)
        value = value_in(typed, Scene({name: some[0] for name, some in rounds.items()}, {}, rounds))
        if isinstance(value, int) and (column.type or type_of(typed)) is Type.TIMESTAMP:
            return format_time(value)
        return value


def _selecting(requirements: Iterable[Requirement]) -> list[Requirement]:
    return [each for each in requirements if _names_of(each)]


def _names_of(requirement: Requirement) -> tuple[str, ...]:
    assert isinstance(requirement.of, Semantic)
    return requirement.of.selected


# ----------------------------------------------------------------------------------------------------------
# LATEST: the last known events of something else, between finished matches and AFTER MATCH (semantics 2).
#
# Events that LATEST variables may take come in, and the matches that the machine has found. A match waits
# until no event at the time of its last one can come any more; then its LATEST events are looked up, and it
# leaves with them, or is none. Candidates that nothing tells apart, since they have the same keys and say
# the same to the PATHs, are one list; the last of it that is early enough, and no event of the match,
# stands for all.

_FEW = 1_024
"""So many rows are sorted again and again."""
_ROW_BITS = 40
"""The bits of a row where it stands behind its group."""
_ENOUGH = 16_384
"""Below so many candidates, it is not worth while to look for those that can be forgotten."""

Rounds = Mapping[str, Sequence[Any]]
"""The events of a match by variable; nothing for one that was left out."""


class Judge(Protocol):
    """What the stage asks of the pattern operator."""

    def seen(self, row: int, events: Array) -> Any:
        """An event of these rows, as conditions see it."""
        ...

    def holds(self, requirement: Requirement, rounds: Rounds) -> bool:
        """Whether events meet a requirement, in every way in which it applies."""
        ...

    def rounds_of(self, m: int, found: Finished) -> dict[str, list[Any]]:
        """The events of a match by variable."""
        ...

    def occurs(self, absent: str, rounds: Rounds, end: int) -> bool:
        """Whether an event that must be absent lies between its neighbours, in a match that ends then."""
        ...

    def alone(self, variable: str, rows: Array) -> Finished:
        """Matches of one event each, which the variable has."""
        ...

    def column(self, expr: Expr, found: Finished, type: Type | None = None) -> Column:
        """The values of an expression of single events; null where one was left out."""
        ...

    def are_bound(self, variables: Iterable[str], found: Finished) -> Array:
        """Whether matches have an event for each of these variables."""
        ...

    def hold(self, requirement: Requirement, found: Finished) -> Array:
        """Whether matches meet a requirement, in every way in which it applies."""
        ...

    def place(self, variable: str) -> int:
        """Where the event of a variable stands in `found`."""
        ...

    def awaited(self) -> Array:
        """The rows of the last events of matches whose deadline has not been reached."""
        ...


class _ByGroup:
    """Rows by group, in which the last one before another is looked for."""

    def __init__(self) -> None:
        self._settled: Array = np.zeros(0, np.int64)
        self._fresh: Array = np.zeros(0, np.int64)

    def add(self, groups: Array, rows: Array) -> None:
        """Takes rows. A few are sorted in often, all of them only after many."""
        self._fresh = np.sort(np.concatenate([self._fresh, groups << _ROW_BITS | rows]))
        if len(self._fresh) > max(_FEW, len(self._settled) // 4):
            self._settled = np.sort(np.concatenate([self._settled, self._fresh]))
            self._fresh = self._fresh[:0]

    def last(self, groups: Array, before: Array) -> Array:
        """The last row of each group that is before another; -1 where there is none."""
        found = np.full(len(groups), -1, np.int64)
        for rows in (self._settled, self._fresh):
            if len(rows):
                at = np.searchsorted(rows, groups << _ROW_BITS | before) - 1
                own = rows[np.maximum(at, 0)]
                there = (at >= 0) & (own >> _ROW_BITS == groups)
                found = np.where(there, np.maximum(found, own & ((1 << _ROW_BITS) - 1)), found)
        return found


class _Candidates:
    """The events that a LATEST variable may take.

    `given` are those of its own PATHs that speak of the match's partition: they are asked of each match.
    """

    def __init__(self, latest: Latest, shape: PatternShape, given: Sequence[Semantic]) -> None:
        self.latest = latest
        self.chain = latest.chain
        self.semantics = [each for each in self.chain.semantics if each not in given]
        self.asked = [requirement_of(each) for each in (*latest.semantics, *given)]
        self.tested = [requirement_of(each) for each in latest.conditions]
        alike: list[object] = [
            Roots(each.path, latest.variable) for each in self.asked if each.path is not None
        ]
        alike += [
            each
            for requirement in self.asked
            if isinstance(requirement.of, Semantic)
            for expr in requirement.of.conditions
            for each in fields_of(expr)
            if each.variable == latest.variable
        ]
        self._alike = [t.E_FIXED + shape.keep(each) for each in alike]
        self._room = np.zeros((64, t.E_FIXED + len(shape.kept)), np.int64)
        self._count = 0
        self._settled = 0
        self._span = _span(shape.pattern)
        # So many events before the last one may be events of the match itself.
        self._spare: int | None = 0
        if any(set(each.streams) & set(self.chain.streams) for each in shape.pattern.chains):
            self._spare = None if shape.loops else len(shape.variables)
        self._begin()

    def __len__(self) -> int:
        return self._count

    @property
    def events(self) -> Array:
        """The candidates, in order."""
        return self._room[: self._count]

    def _begin(self) -> None:
        self._keys = Keys(len(self.latest.keys))
        self._groups = Keys(1 + len(self._alike))
        self._of_key: dict[int, list[int]] = {}
        self._rows = _ByGroup()
        self._group_of: list[Array] = []

    def add(self, rows: Array, judge: Judge) -> None:
        """Takes events that pass the variable's own conditions, the next ones in order."""
        if not len(rows):
            return
        begin, self._count = self._count, self._count + len(rows)
        if self._count > len(self._room):
            more = np.zeros((2 * self._count - len(self._room), self._room.shape[1]), np.int64)
            self._room = np.concatenate([self._room, more])
        self._room[begin : self._count] = rows
        self._note(begin, judge)

    def _note(self, begin: int, judge: Judge) -> None:
        """Sorts candidates by their keys, and by what PATHs can tell of them."""
        rows = self.events[begin:]
        found = judge.alone(self.latest.variable, rows)
        groups = self._keys.numbers(
            [value_words(judge.column(own, found)) for own, _ in self.latest.keys], len(rows)
        )
        if self._alike:
            known, keys = len(self._groups), groups
            groups = self._groups.numbers([keys, *rows[:, self._alike].T])
            for key, *_ in self._groups.words[:, known:].T.tolist():
                self._of_key.setdefault(key, []).append(known)
                known += 1
        self._rows.add(groups, begin + np.arange(len(rows)))
        self._group_of.append(groups)

    def last(self, found: Finished, judge: Judge) -> Array:
        """The row of the last candidate for each match; -1 where there is none."""
        if not len(self):
            return np.full(len(found), -1, np.int64)
        matches, groups = self._groups_of(found, judge)
        some = found if matches is None else found.rows(matches)
        until = some.events[some.last, t.E_TS]
        rows = self._rows.last(groups, np.searchsorted(self.events[:, t.E_TS], until, "right"))
        while self._spare != 0 and len(own := np.flatnonzero(self._is_own(rows, some))):
            rows[own] = self._rows.last(groups[own], rows[own])
        if matches is None:
            return rows
        made = np.full(len(found), -1, np.int64)
        for m, row in sorted(zip(matches.tolist(), rows.tolist(), strict=True), reverse=True):
            if row >= 0 and made[m] < 0 and self._meets(row, m, found, judge):
                made[m] = row
        return made

    def _meets(self, row: int, m: int, found: Finished, judge: Judge) -> bool:
        beside = {**judge.rounds_of(m, found), self.latest.variable: [judge.seen(row, self.events)]}
        return all(judge.holds(each, beside) for each in self.asked)

    def _groups_of(self, found: Finished, judge: Judge) -> tuple[Array | None, Array]:
        """The groups of candidates that have the keys of a match, and of which match; None: of each one."""
        words = np.zeros((len(self.latest.keys), len(found)), np.int64)
        bound = np.ones(words.shape, np.bool_)
        for at, (own, other) in enumerate(self.latest.keys):
            words[at] = value_words(judge.column(other, found, type_of(own)))
            bound[at] = judge.are_bound(variables_of(other), found)
        keys = np.where((words == t.NULL).any(axis=0), -1, self._keys.numbers(words, len(found)))
        open_: Array = ~np.all(bound, axis=0)
        if not (open_.any() or self._alike):
            return None, keys
        matches: list[int] = []
        groups: list[int] = []
        for m in range(len(found)):
            some = [int(keys[m])]
            if open_[m]:  # an equality with an event that was left out does not apply
                wanted, there = words[:, m], bound[:, m]
                alike = np.all(self._keys.words[there] == wanted[there][:, None], axis=0)
                some = [] if t.NULL in wanted[there] else np.flatnonzero(alike).tolist()
            if self._alike:
                some = [group for key in some for group in self._of_key.get(key, ())]
            matches += [m] * len(some)
            groups += some
        return np.array(matches, np.int64), np.array(groups, np.int64)

    def _is_own(self, rows: Array, found: Finished) -> Array:
        """Whether a candidate is an event of the match itself."""
        own = np.zeros(len(rows), np.bool_)
        who = slice(t.E_PLACE, t.E_SEQ + 1)
        identities = self.events[rows, who]
        for events in found.found[:-1]:
            same = (found.events[events, who] == identities).all(axis=1)
            own |= same & (events >= 0)
        for offsets, events in found.rounds.values():
            of = np.repeat(np.arange(len(rows)), np.diff(offsets))
            same = found.events[events, who] == identities[of]
            own[of[np.flatnonzero(same.all(axis=1))]] = True
        return own & (rows >= 0)

    def forget(self, before: int, judge: Judge) -> None:
        """Lets go of what no match takes whose last event is not before that time."""
        if max(len(self), len(self._keys)) <= 2 * self._settled + _ENOUGH:
            return
        if self._spare is None and self._span is None:
            return
        # A match with loops may have any number of candidates among its own events.
        horizon = before - int(self._span or 0) if self._spare is None else before
        groups, times = np.concatenate(self._group_of), self.events[:, t.E_TS]
        count = int(np.searchsorted(times, horizon, "right"))
        order = np.argsort(groups[:count], kind="stable")
        _, places, sizes = np.unique(groups[order], return_inverse=True, return_counts=True)
        after = np.cumsum(sizes)[places] - np.arange(count)  # so many of the group, itself among them
        rows = np.sort(np.concatenate([order[after <= 1 + (self._spare or 0)], np.arange(count, len(self))]))
        if not self.latest.optional and self._span is not None and self.latest.windows:
            width = min(each.width for each in self.latest.windows)
            rows = rows[times[rows] >= before - self._span - width]
        kept = self.events[rows]
        self._room[: len(rows)] = kept
        self._settled = self._count = len(rows)
        self._begin()
        if len(rows):
            self._note(0, judge)


def _span(pattern: Pattern) -> int | None:
    """How long a match can be; None where no WINDOW says that."""
    names = {name for each in pattern.sequence for name in variables_in(each)}
    if len(names) == 1 and isinstance(pattern.sequence[0], Place):
        return 0
    return min((each.width for each in pattern.windows if names.issubset(each.variables)), default=None)


class LatestStage:
    """The matches that wait for their LATEST events, and the candidates."""

    def __init__(self, shape: PatternShape, given: Sequence[str]) -> None:
        self._shape = shape
        self.candidates = [
            _Candidates(each, shape, [one for one in _own_paths(each) if _is_given(one, given)])
            for each in shape.pattern.latest
        ]
        self.waiting: list[Finished] = []
        self.until = int(t.NULL)
        """No event before this time will come any more."""

    def __len__(self) -> int:
        return sum(map(len, self.candidates)) + sum(map(len, self.waiting))

    def add(self, found: Finished) -> None:
        """Takes matches that the machine has found."""
        if len(found):
            self.waiting.append(found.packed())

    def decided(self, judge: Judge) -> Iterator[Finished]:
        """The matches that have their LATEST events, in rows of `found` behind those of the pattern."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            late = each.events[each.last, t.E_TS] >= self.until
            if late.any():
                self.waiting.append(each.rows(np.flatnonzero(late)).packed())
            rows = np.flatnonzero(~late)
            if len(rows):
                yield self._looked_up(each.rows(rows), judge)
        self._forget(judge)

    def _looked_up(self, found: Finished, judge: Judge) -> Finished:
        rows = [each.last(found, judge) for each in self.candidates]
        there = [
            own >= 0 for own, each in zip(rows, self.candidates, strict=True) if not each.latest.optional
        ]
        taken = np.flatnonzero(np.logical_and.reduce([np.ones(len(found), np.bool_), *there]))
        every, begin = found.rows(taken), len(found.events)
        events, more = [found.events], []
        for own, each in zip(rows, self.candidates, strict=True):
            chosen = own[taken]
            more.append(np.where(chosen < 0, -1, begin + np.arange(len(taken))))
            events.append(each.events[np.maximum(chosen, 0)] if len(each) else each.events)
            begin += len(events[-1])
        every = replace(
            every,
            events=np.concatenate(events),
            found=np.concatenate([every.found, np.array(more, np.int64)]),
        )
        fits = np.ones(len(every), np.bool_)
        for each in self.candidates:
            fits &= self._in_windows(each.latest, every, judge)
        for requirement in (requirement for each in self.candidates for requirement in each.tested):
            own = np.flatnonzero(fits)
            fits[own] = judge.hold(requirement, every.rows(own))
        for absent in self._shape.late:
            for m in np.flatnonzero(fits).tolist():
                fits[m] = not judge.occurs(absent, judge.rounds_of(m, every), int(every.end[m]))
        return every.rows(np.flatnonzero(fits)).packed()

    def _in_windows(self, latest: Latest, found: Finished, judge: Judge) -> Array:
        """Whether matches are as short as the WINDOWs that name a LATEST variable want them."""
        fits = np.ones(len(found), np.bool_)
        for window in latest.windows:
            first, last = np.full(len(found), t.FOREVER), np.full(len(found), t.NULL)
            for name in window.variables:
                offsets, events = found.of(name, judge.place(name))
                of, times = np.repeat(np.arange(len(found)), np.diff(offsets)), found.events[events, t.E_TS]
                np.minimum.at(first, of, times)
                np.maximum.at(last, of, times)
            fits &= (first > last) | (last - first <= window.width)
        return fits

    def _forget(self, judge: Judge) -> None:
        times = [int(each.events[each.last, t.E_TS].min()) for each in self.waiting]
        times += judge.awaited()[:, t.E_TS].tolist()
        before = min([self.until - (self._shape.pattern.deadline or 0), *times])
        for each in self.candidates:
            each.forget(before, judge)

    # --- saved state ---

    def kept(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Rows of events, which the pattern writes as it writes its own, and other arrays; by name."""
        rows = {f"of {each.latest.variable}": each.events.copy() for each in self.candidates}
        others: dict[str, Array] = {"until": np.array([self.until])}
        for number, each in enumerate(self.waiting):
            rows[f"waiting {number}"] = each.events.copy()
            others[f"{number} found"] = each.found
            others[f"{number} last"], others[f"{number} end"] = each.last, each.end
            others[f"{number} versions"] = each.versions
            for name, (offsets, events) in each.rounds.items():
                others[f"{number} offsets {name}"], others[f"{number} rounds {name}"] = offsets, events
        return rows, others

    def load(self, rows: Mapping[str, Array], others: Mapping[str, Array], judge: Judge) -> None:
        """Goes on from what was kept."""
        self.until = int(others["until"][0])
        for each in self.candidates:
            each.add(rows[f"of {each.latest.variable}"], judge)
        for name, events in rows.items():
            if not name.startswith("waiting "):
                continue
            number = name.removeprefix("waiting ")
            rounds = {
                name: (others[f"{number} offsets {name}"], others[f"{number} rounds {name}"])
                for name in self._shape.loops
            }
            found, last, end, versions = (
                others[f"{number} {each}"] for each in ("found", "last", "end", "versions")
            )
            self.waiting.append(Finished(events, found, rounds, last, end, versions))

    # --- what others must know ---

    @property
    def first_end(self) -> int | None:
        """When the first of the matches that wait has ended."""
        return min((int(each.end.min()) for each in self.waiting), default=None)

    @property
    def first_position(self) -> int | None:
        """The place in the order of the first event of the matches that wait."""
        return min((int(each.events[:, t.E_POSITION].min()) for each in self.waiting), default=None)

    def last_rows(self) -> Array:
        """The rows of the last events of the matches that wait."""
        width = t.E_FIXED + len(self._shape.kept)
        return np.concatenate([np.zeros((0, width), np.int64), *(w.events[w.last] for w in self.waiting)])


def _own_paths(latest: Latest) -> tuple[Semantic, ...]:
    return latest.chain.semantics


def _is_given(condition: Semantic, given: Sequence[str]) -> bool:
    return any(mentions(condition, each) for each in given)
