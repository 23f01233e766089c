"""From a pattern to the tables of the pattern machine (`kernel.machine`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kaicep.errors import Unsupported
from kaicep.kernel import tables as t
from kaicep.kernel.assemble import Assembler, Constants, Question, alone, of_one_event
from kaicep.kernel.automaton import Residual, Steps, certain, may_end, open_variables, steps, variables_in
from kaicep.kernel.predicates import BLOCK, COLUMN, REGISTERS, interpret
from kaicep.kernel.solutions import fields_of
from kaicep.plan.chi import Absent, Choice, Place, Together
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous, type_of, variables_of
from kaicep.plan.nodes import Pattern, Semantic
from kaicep.plan.paths import aggregated_variables, has_path_values, is_decided_by_one_event, restricted
from kaicep.plan.results import loops_of
from kaicep.plan.types import Type

_MODES = {"any": t.KEEP, "next": t.CONSUME, "strict": t.STRICT}
_MOST_PLACES = 62
_MOST_STATES = 200_000

Name = tuple[Any, ...]
"""What a column of the rows is: ("value", variable, column), ("count", variable), ("anchor", window), ..."""

TIME, POSITION = "the time of the event", "the place of the event in the order"
"""Names of columns that every event has."""
PARTITION = "the number of the partition"
"""The column of patterns that tell partitions apart."""


@dataclass(frozen=True)
class Roots:
    """Whatever of an event decides a PATH."""

    condition: Semantic
    variable: str

    def __hash__(self) -> int:
        """Short: a PATH is a deep tree."""
        return hash((self.variable, self.condition.variables))


@dataclass(frozen=True)
class Requirement:
    """A condition, and how it mentions variables.

    `bare`: outside aggregates; `previous`: in PREV, which is bare too; `aggregated`: in aggregates. `path` is
    the whole PATH of which `of` is what counts where some of its events are not bound.
    """

    of: Expr | Semantic
    bare: frozenset[str]
    previous: frozenset[str] = frozenset()
    aggregated: frozenset[str] = frozenset()
    path: Semantic | None = None

    def roots(self, variable: str) -> Roots:
        """What of an event of the variable decides the PATH."""
        assert self.path is not None
        return Roots(self.path, variable)


Due = tuple[Requirement, str | None]
"""A requirement to test, and the variable of which only the newest event is of interest, if there is one."""


@dataclass(frozen=True)
class Absence:
    """Whether an event that must be absent lies between two elements of a finished match."""

    variable: str
    element: int
    newest: str
    """The variable of the match's last event."""
    requirements: tuple[Requirement, ...]
    """What an event has to meet to be one that must be absent."""


def requirement_of(condition: Expr | Semantic, path: Semantic | None = None) -> Requirement:
    """The condition with what it mentions; `path` is the whole PATH where it is a part of one."""
    if isinstance(condition, Semantic):
        over = frozenset[str]().union(*map(aggregated_variables, condition.conditions))
        return Requirement(condition, frozenset(condition.variables), aggregated=over, path=path or condition)
    bare: set[str] = set()
    previous: set[str] = set()
    aggregated: set[str] = set()

    def visit(expr: Expr) -> None:
        if isinstance(expr, Aggregate):
            aggregated.update((expr.variable,) if expr.variable else ())
            return
        if isinstance(expr, Previous):
            previous.update(variables_of(expr.of))
        if isinstance(expr, Field):
            bare.add(expr.variable)
        for child in expr.children():
            visit(child)

    visit(condition)
    return Requirement(condition, frozenset(bare), frozenset(previous), frozenset(aggregated))


@dataclass
class _State:
    rest: Residual
    bound: frozenset[str]
    fronts: list[int] = field(default_factory=list)


@dataclass
class _Front:
    """A frontier in the making: its state, its openings, the key by which partial matches wait."""

    state: tuple[Residual, frozenset[str]]
    frontier: Steps
    killers: tuple[str, ...]
    pending: bool = False
    of: str | None = None
    """The bound event whose values make the key; None where the partition alone does."""


class PatternShape:
    """The tables of a pattern, and what its columns are.

    `columns` are what the machine reads of an event: expressions, roots of PATHs, `TIME`, `POSITION`. `keys`
    are the lists of expressions by which partial matches are found. `kept` are the columns that are kept of
    events which become part of a match.
    """

    def __init__(
        self,
        pattern: Pattern,
        code: Callable[[str], int],
        output: tuple[Expr, ...] = (),
        components: Mapping[Field, Roots] = MappingProxyType({}),
    ) -> None:
        self.pattern = pattern
        self._components = frozenset(components)
        self.variables = tuple(each.variable for each in pattern.chains)
        self.places = {name: index for index, name in enumerate(self.variables)}
        if len(self.variables) > _MOST_PLACES:
            raise Unsupported(
                f"a pattern may have {_MOST_PLACES} variables; this one has {len(self.variables)}"
            )
        self.loops = loops_of(pattern.sequence)
        self.elements = {
            name: index for index, each in enumerate(pattern.sequence) for name in variables_in(each)
        }
        self.absences = {
            index: each.variable for index, each in enumerate(pattern.sequence) if isinstance(each, Absent)
        }
        self.of_paths = [requirement_of(each) for each in pattern.semantics]
        several = [each for each in pattern.semantics if not is_decided_by_one_event(each)]
        every = [*map(requirement_of, pattern.conditions), *map(requirement_of, several)]
        absent = frozenset(self.absences.values())
        # Of a PATH, what does not speak of an absent event is a requirement all the same.
        self.requirements = [
            each for each in every if isinstance(each.of, Semantic) or absent.isdisjoint(each.bare)
        ]
        self.of_one = {
            chain.variable: [
                each
                for each in pattern.semantics
                if is_decided_by_one_event(each)
                and each.variables == (chain.variable,)
                and replace(each, selected=()) not in chain.semantics
            ]
            for chain in pattern.chains
        }
        """By variable, the PATHs that its event alone decides, and that its chain does not test."""
        self._parts: dict[tuple[int, frozenset[str], frozenset[str]], Requirement | None] = {}
        self.of_absent = {name: [each for each in every if name in each.bare] for name in absent}
        looked_up = {each.variable for each in pattern.latest}
        self.late = tuple(
            name for name, own in self.of_absent.items() if any(each.bare & looked_up for each in own)
        )
        """The absent variables that only a match with its LATEST events can tell."""
        self.ambiguous = any(_is_ambiguous(each) for each in pattern.sequence)
        self.constants = Constants(code)
        self.columns: dict[object, int] = {}
        self.types: list[Type | None] = []
        self.kept: dict[int, int] = {}
        self.keys: list[tuple[str, tuple[Expr, ...]]] = []
        self.carried: dict[Name, int] = {}
        self.states: dict[tuple[Residual, frozenset[str]], _State] = {}
        self._comers: dict[tuple[Residual, frozenset[str]], set[str]] = {}
        self.arrivals: dict[tuple[Residual, frozenset[str], str, bool], int] = {}
        self.scalars = 0
        for each in output:
            self.keep(each)
        for condition in pattern.semantics:
            if condition.selected:
                for part in _parts(requirement_of(condition)):
                    self.keep(part)
        for part in self._looked_up():
            self.keep(part)
        for component, roots in components.items():
            self.keep(component)
            self.column(roots, Type.INT64)
            self.keep(roots)
        if pattern.skip != "none":
            self.keep(PARTITION)
        self.tables = self._tables()

    def _looked_up(self) -> Iterator[object]:
        """What must be known of events to find the LATEST ones of a match."""
        for each in self.pattern.latest:
            yield from (part for sides in each.keys for side in sides for part in single_parts(side))
            for condition in (*each.chain.semantics, *each.semantics):
                yield from _parts(requirement_of(condition))
            for expr in each.conditions:
                yield from _parts(requirement_of(expr))
        for name in self.late:
            yield from (part for each in self.of_absent[name] for part in _parts(each))

    # --- columns ---

    def column(self, of: object, type: Type | None = None) -> int:
        """The column of the batch that has something of an event."""
        if isinstance(of, Expr):
            of, type = alone(of), type_of(of)
        if of not in self.columns:
            self.columns[of] = len(self.columns)
            self.types.append(type)
        return self.columns[of]

    def keep(self, of: object) -> int:
        """Where something is found of an event that is kept."""
        return self.kept.setdefault(self.column(of), len(self.kept))

    def carry(self, *name: Any) -> int:
        """The column of the rows that has something of a partial match."""
        return self.carried.setdefault(name, t.FIXED + len(self.carried))

    def _key(self, variable: str, exprs: tuple[Expr, ...]) -> int:
        if not exprs:
            return -1
        found = variable, tuple(map(alone, exprs))
        # The same values make the same key, whichever variable they are of.
        for number, (_, each) in enumerate(self.keys):
            if each == found[1]:
                return number
        self.keys.append(found)
        return len(self.keys) - 1

    # --- states ---

    def _reach(self) -> None:
        left: list[tuple[Residual, frozenset[str]]] = [(self.pattern.sequence, frozenset())]
        while left:
            key = left.pop()
            if key in self.states:
                continue
            if len(self.states) >= _MOST_STATES:
                raise Unsupported("a pattern with so many combinations of places cannot be run")
            self.states[key] = _State(*key)
            rest, bound = key
            for name, after in (step for each in steps(rest) for step in each):
                left.append((after, bound | {name}))
                self._comers.setdefault(left[-1], set()).add(name)

    def counting(
        self, requirement: Requirement, bound: frozenset[str], unfinished: frozenset[str] = frozenset()
    ) -> Requirement | None:
        """What of a requirement counts where these variables have events, and these may have more."""
        of = requirement.of
        if not isinstance(of, Semantic):
            finished = (requirement.aggregated - requirement.bare).isdisjoint(unfinished)
            return requirement if finished and bound >= requirement.bare else None
        key = id(of), bound & requirement.bare, unfinished & requirement.aggregated
        if key not in self._parts:
            found = restricted(of, key[1], key[2])
            made = None if found is None else requirement_of(found, of)
            # Equal ones are one, so that it shows whether anything was added.
            self._parts[key] = next((each for each in self._parts.values() if each == made), made)
        return self._parts[key]

    def due(
        self, rest: Residual, bound: frozenset[str], variable: str | None, after: Residual
    ) -> Iterator[Due]:
        """The requirements to test when `variable` is bound (None: nothing more) and `after` is left."""
        now = bound if variable is None else bound | {variable}
        for each in self.requirements:
            counting = self.counting(each, now, open_variables(after))
            if counting is None:
                continue
            if not bound or counting is not self.counting(each, bound, open_variables(rest)):
                yield counting, None
            elif variable in counting.bare:
                yield counting, variable

    def crossing(self, left: int, right: int) -> tuple[str, ...]:
        """The absent variables between two elements."""
        between = (name for index, name in self.absences.items() if left < index < right)
        return tuple(name for name in between if name not in self.late)

    def is_settled(self, absent: str, rest: Residual) -> bool:
        """Whether all that an absence mentions is as it will be at the end of the match."""
        still = open_variables(rest)
        return all(
            still.isdisjoint((each.aggregated | each.bare) - {absent}) for each in self.of_absent[absent]
        )

    # --- all of it ---

    def _tables(self) -> t.Tables:
        self._reach()
        self.fronts: list[_Front] = []
        for key, state in self.states.items():
            if key[1]:
                self._add_fronts(key, state)
        pending = {key: self._pending(key) for key in self.states if key[1]}
        self.program: list[int] = []
        self.windows: list[tuple[int, int]] = []
        openings: list[list[int]] = []
        fronts: list[list[int]] = []
        for front in self.fronts:
            fronts.append(self._write_front(front, openings))
        first = (self.pattern.sequence, frozenset[str]())
        begin = len(openings)
        for frontier in steps(first[0]):
            for name, after in frontier:
                openings.append(self._opening(first, name, after, -1))
        shape = np.full(t.S_SHAPE, -1, np.int64)
        if self.pattern.deadline is not None:
            shape[t.S_DEADLINE] = self.pattern.deadline
            shape[t.S_FIRST] = self.carry("first")
        until = self._until(fronts, openings)
        states, carries = self._arrival_tables(pending)
        scratch = REGISTERS * BLOCK
        columns = t.FIXED + len(self.carried)
        widths = [width for _, width in self.windows]
        shape[t.S_FRONTS], shape[t.S_COLUMNS] = max(len(fronts), 1), columns
        shape[t.S_BEGIN], shape[t.S_BEGIN_END] = begin, len(openings)
        shape[t.S_INTERPRETER] = interpret()
        shape[t.S_SCRATCH], shape[t.S_ZERO] = scratch, scratch + self.scalars
        shape[t.S_COUNTS] = len(self.variables) if self.pattern.match == "strict" else -1
        shape[t.S_SWEEP] = max(widths) if widths else -1
        shape[t.S_UNTIL], shape[t.S_WIDTH] = until
        return t.Tables(
            shape,
            _table(fronts, t.F_FRONT),
            _table(openings, t.O_OPENING),
            _table(states, t.T_STATE),
            _table(carries, 4),
            _table(self.windows, 2),
            np.array(list(self.kept), np.int64),
            np.array(self.program, np.int64),
            np.array(self.constants.words, np.int64),
        )

    def _add_fronts(self, key: tuple[Residual, frozenset[str]], state: _State) -> None:
        rest, bound = key
        left = max(self.elements[name] for name in bound)
        for frontier in steps(rest):
            element = self.elements[frontier[0][0]]
            killers = tuple(name for name in self.crossing(left, element) if self.is_settled(name, rest))
            state.fronts.append(len(self.fronts))
            self.fronts.append(_Front(key, frontier, killers))

    def _pending(self, key: tuple[Residual, frozenset[str]]) -> int:
        """The frontier where matches that may end in a state wait for the deadline of an absence."""
        left, end = max(self.elements[name] for name in key[1]), len(self.pattern.sequence)
        if not may_end(key[0]) or not any(left < index for index in self.absences):
            return -1
        self.fronts.append(_Front(key, (), self.crossing(left, end), pending=True))
        return len(self.fronts) - 1

    # --- frontiers and openings ---

    def _write_front(self, front: _Front, openings: list[list[int]]) -> list[int]:
        bound = front.state[1]
        far, own, of = self._front_key(front)
        front.of = of
        begin = len(openings)
        for name, after in front.frontier:
            key = self._key(name, own.get(name, ()))
            openings.append(
                self._opening(front.state, name, after, key, dict(zip(far, own[name], strict=True)))
            )
        for name in front.killers:
            openings.append(self._killer(front, name, self._key(name, own.get(name, ()))))
        row = [0] * t.F_FRONT
        row[t.F_BITS] = sum(1 << place for place in {each[t.O_PLACE] for each in openings[begin:]})
        row[t.F_BEGIN], row[t.F_END] = begin, len(openings)
        row[t.F_MODE] = -1 if front.pending else _MODES[self.pattern.match]
        single = len(bound) == 1 and not bound & self.loops.keys()
        row[t.F_SORTED] = int(single and not front.pending)
        row[t.F_LAST] = self._last(bound if single else None)
        row[t.F_KEY], row[t.F_KEY_ROW] = -1, -1
        if far and of is None:  # the partition, which every event of a match has in common
            row[t.F_KEY] = self._key("", far)
        elif far:
            again = not self._components.isdisjoint(far)
            if again:
                # Another version of the knowledge lets partial matches wait elsewhere.
                for each in far:
                    self.keep(each)
            key = self._key(str(of), far)
            if {of} == self._comers[front.state] and not again:
                row[t.F_KEY] = key  # it is the event that comes there
            else:
                row[t.F_KEY_ROW] = self.carry("key", key, of)
        return row

    def _last(self, bound: frozenset[str] | None) -> int:
        """The column with the time of the last event of a row; `bound` where there is only that one."""
        if bound is None:
            return self.carry("last")
        for index, window in enumerate(self.pattern.windows):
            if bound & set(window.variables):
                return self.carry("anchor", index)
        return self.carry("last")

    def _until(self, fronts: list[list[int]], openings: list[list[int]]) -> tuple[int, int]:
        """The column of the rows that says how long they may wait, and what is to be added to it.

        That is where a WINDOW begins, if it is the same one that counts wherever rows wait.
        """
        found = set()
        for front in fronts:
            here = [
                tuple(self.windows[row[t.O_WINDOW] : row[t.O_WINDOW_END]])
                for row in openings[front[t.F_BEGIN] : front[t.F_END]]
                if row[t.O_KIND] != t.KILL or front[t.F_MODE] < 0
            ]
            found.update(here or [()])
        if len(found) == 1:
            for column, width in next(iter(found))[:1]:
                if len(next(iter(found))) == 1 and width > 0:
                    return column, width
        return self.carry("until"), 0

    def _front_key(self, front: _Front) -> tuple[tuple[Expr, ...], dict[str, tuple[Expr, ...]], str | None]:
        """What is equal in all that comes to a frontier and what waits there.

        The expressions of the bound event, by variable those of the event that comes, and which event it is.
        """
        pattern = self.pattern
        partition = pattern.partition
        comers = [name for name, _ in front.frontier] + list(front.killers)
        if not comers:
            return (), {}, None
        nothing = dict.fromkeys(comers, partition)
        if pattern.match == "strict" or len(set(comers)) < len(comers):
            return partition, nothing, None
        equal = [self._equalities(front, name, after) for name, after in front.frontier]
        equal += [self._absent_equalities(front, name) for name in front.killers]
        common = [far for far in equal[0] if all(far in each for each in equal[1:])]
        by_variable: dict[str, list[Expr]] = {}
        for far in common:
            by_variable.setdefault(next(iter(variables_of(far))), []).append(far)
        if not by_variable:
            return partition, nothing, None
        of = max(by_variable, key=lambda name: len(by_variable[name]))
        fars = tuple(by_variable[of])
        own = {
            name: (*partition, *(found[each] for each in fars))
            for name, found in zip(comers, equal, strict=True)
        }
        return (*partition, *fars), own, of

    def _equalities(self, front: _Front, variable: str, after: Residual) -> dict[Expr, Expr]:
        """By expression of an event that is bound, the expression of the new one that must be equal to it."""
        rest, bound = front.state
        found: dict[Expr, Expr] = {}
        for requirement, _ in self.due(rest, bound, variable, after):
            found.update(self._equality(requirement, variable, bound))
        pattern = self.pattern
        if (
            not found
            and pattern.match == "any"
            and pattern.key
            and certain(pattern.sequence) >= set(self.variables)
        ):
            fields = dict(pattern.key)
            other = next(
                (name for name in sorted(bound) if name not in self.loops and name != variable), None
            )
            if other is not None:
                found[fields[other]] = fields[variable]
        return found

    def _absent_equalities(self, front: _Front, absent: str) -> dict[Expr, Expr]:
        found: dict[Expr, Expr] = {}
        for each in self.of_absent[absent]:
            if front.state[1] >= each.bare - {absent}:
                found.update(self._equality(each, absent, front.state[1]))
        return found

    def _equality(self, requirement: Requirement, variable: str, bound: frozenset[str]) -> dict[Expr, Expr]:
        of = requirement.of
        if not isinstance(of, Call) or of.op != "=" or requirement.aggregated or requirement.previous:
            return {}
        for own, other in (of.args, of.args[::-1]):
            far = of_one_event(other)
            if of_one_event(own) == variable and far in bound and far != variable and far not in self.loops:
                return {other: own}
        return {}

    def _opening(
        self,
        source: tuple[Residual, frozenset[str]],
        variable: str,
        after: Residual,
        key: int,
        equal: Mapping[Expr, Expr] = MappingProxyType({}),
    ) -> list[int]:
        rest, bound = source
        row = [0] * t.O_OPENING
        row[t.O_PLACE] = self.places[variable]
        row[t.O_STATE] = self._arrival(after, bound | {variable}, variable, variable in bound)
        row[t.O_KIND], row[t.O_KEY] = t.EXTEND, key
        element = self.elements[variable]
        earlier = [name for name in bound if self.elements[name] < element or name == variable]
        row[t.O_LATER] = int(len(earlier) == len(bound) and bool(bound))
        program = Assembler(_Bound(self, variable), self.constants)
        if not row[t.O_LATER]:
            for name in sorted(earlier):
                program.earlier(self.carry("time", name), self.column(TIME, Type.TIMESTAMP))
        for each in self.due(rest, bound, variable, after):
            if not self._is_found_by_key(each, variable, bound, equal):
                self._require(program, each, variable, bound)
        row[t.O_PROGRAM], row[t.O_MIDDLE], row[t.O_END] = self._written(program)
        if may_end(after):
            program = Assembler(_Bound(self, variable), self.constants)
            target = after, bound | {variable}
            for each in self.due(*target, None, ()):
                self._require(program, each, variable, bound)
            self._require_absences(program, target)
            row[t.O_FINAL], row[t.O_FINAL_MIDDLE], row[t.O_FINAL_END] = self._written(program)
        coming = certain(after) | {variable}
        row[t.O_WINDOW] = len(self.windows)
        for index, window in enumerate(self.pattern.windows):
            if coming.intersection(window.variables) and bound.intersection(window.variables):
                self.windows.append((self.carry("anchor", index), window.width))
        row[t.O_WINDOW_END] = len(self.windows)
        return row

    def _is_found_by_key(
        self, due: Due, variable: str, bound: frozenset[str], equal: Mapping[Expr, Expr]
    ) -> bool:
        """Whether all that wait where the event looks are equal to it in what is required."""
        found = self._equality(due[0], variable, bound)
        partition = self.pattern.partition  # its nulls are alike, but not equal
        return bool(found) and all(
            far not in partition and equal.get(far) == own for far, own in found.items()
        )

    def _require(self, program: Assembler, due: Due, variable: str, bound: frozenset[str]) -> None:
        requirement, newest = due
        if variable in requirement.previous and variable not in bound:
            return  # there is no round before the first
        if isinstance(requirement.of, Semantic):
            self._require_path(program, due, variable, bound)
        elif self._is_single(due, variable, bound):
            program.require([requirement.of])
        else:
            self._ask_whole(program, requirement, newest)

    def _is_single(self, due: Due, variable: str, bound: frozenset[str]) -> bool:
        """Whether one event for each variable decides: there is no loop to go through."""
        requirement, newest = due
        if requirement.previous - {variable}:
            return False
        return not any(
            name in self.loops and name != newest and (name != variable or name in bound)
            for name in requirement.bare
        )

    def _ask_whole(self, program: Assembler, requirement: Requirement, newest: str | None) -> None:
        for node in _parts(requirement):
            self.keep(node)
        program.ask_true(Question((requirement, program.scope.variable, newest), (), Type.BOOL))

    def _require_path(self, program: Assembler, due: Due, variable: str, bound: frozenset[str]) -> None:
        requirement, newest = due
        condition = requirement.of
        assert isinstance(condition, Semantic)
        names = condition.variables
        looped = {name for name in names if name in self.loops} - {
            variable if variable not in bound else newest
        }
        # What speaks of no event may still speak of the partition.
        aside = not names and bool(self.pattern.ties)
        if len(names) > 4 or looped or aside or condition.conditions:
            self._ask_whole(program, requirement, newest)
            return
        operands = []
        for name in names:
            column = self.column(requirement.roots(name), Type.INT64)
            operands.append(
                program.event(column) if name == variable else COLUMN + self.carry("value", name, column)
            )
        question = Question(requirement, (Type.INT64,) * len(names), Type.BOOL)
        program.ask_true(question, operands)

    def _require_absences(self, program: Assembler, target: tuple[Residual, frozenset[str]]) -> None:
        """What only the finished match can say of events that must be absent."""
        _, bound = target
        last = max(self.elements[name] for name in bound)
        for index, absent in self.absences.items():
            if (
                absent not in self.late
                and index < last
                and any(self._is_owed(absent, index, key) for key in self.states)
            ):
                beside = self._beside(absent, bound)
                for part in (part for requirement in beside for part in _parts(requirement)):
                    self.keep(part)
                absence = Absence(absent, index, program.scope.variable, beside)
                program.ask_true(Question(absence, (), Type.BOOL))

    def _beside(self, absent: str, bound: frozenset[str]) -> tuple[Requirement, ...]:
        """What an absent event has to meet beside these; what mentions an event left out does not count."""
        found = (self.counting(each, bound | {absent}) for each in self.of_absent[absent])
        return tuple(each for each in found if each is not None)

    def _is_owed(self, absent: str, index: int, key: tuple[Residual, frozenset[str]]) -> bool:
        rest, bound = key
        if not bound or max(self.elements[name] for name in bound) > index:
            return False
        return any(self.elements[front[0][0]] > index for front in steps(rest)) and not self.is_settled(
            absent, rest
        )

    def _killer(self, front: _Front, absent: str, key: int) -> list[int]:
        row = [0] * t.O_OPENING
        row[t.O_PLACE], row[t.O_KIND], row[t.O_KEY] = self.places[absent], t.KILL, key
        bound = front.state[1]
        program = Assembler(_Bound(self, absent), self.constants)
        for requirement in self._beside(absent, bound):
            self._require(program, (requirement, None), absent, bound)
        row[t.O_PROGRAM], row[t.O_MIDDLE], row[t.O_END] = self._written(program)
        row[t.O_WINDOW] = len(self.windows)
        if front.pending:
            assert self.pattern.deadline is not None
            self.windows.append((self.carry("first"), self.pattern.deadline))
        row[t.O_WINDOW_END] = len(self.windows)
        return row

    def _written(self, program: Assembler) -> tuple[int, int, int]:
        begin = len(self.program)
        self.program += program.scalars
        middle = len(self.program)
        self.program += program.vectors
        self.scalars = max(self.scalars, program.scalar_count)
        return begin, middle, len(self.program)

    # --- arrivals ---

    def _arrival(self, rest: Residual, bound: frozenset[str], variable: str, again: bool) -> int:
        return self.arrivals.setdefault((rest, bound, variable, again), len(self.arrivals))

    def _arrival_tables(
        self, pending: dict[tuple[Residual, frozenset[str]], int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        states: list[list[int]] = []
        carries: list[list[int]] = []
        for rest, bound, variable, again in self.arrivals:
            fronts = self.states[rest, bound].fronts
            row = [0] * t.T_STATE
            row[t.T_BEGIN], row[t.T_END] = (fronts[0], fronts[-1] + 1) if fronts else (0, 0)
            row[t.T_FINAL], row[t.T_PLACE] = int(may_end(rest)), self.places[variable]
            row[t.T_PENDING] = pending[rest, bound]
            row[t.T_CARRY] = len(carries)
            for name, column in self.carried.items():
                made = self._carried(name, column, variable, bound, again)
                if made is not None:
                    carries.append(made)
            row[t.T_CARRY_END] = len(carries)
            states.append(row)
        return states, carries

    def _carried(
        self, name: Name, d: int, variable: str, bound: frozenset[str], again: bool
    ) -> list[int] | None:
        """How a column of the new row comes from the event and the row before."""
        kind, *of = name
        before = bound if again else bound - {variable}
        if kind == "anchor":
            names = set(self.pattern.windows[of[0]].variables)
            if names & before:
                return [t.C_ROW, d, d, 0]
            return [t.C_TIME, d, 0, 0] if variable in names else None
        if kind == "last":
            return [t.C_TIME, d, 0, 0]
        if kind == "until":
            return None
        if kind == "first":
            return [t.C_ROW, d, d, 0] if before else [t.C_TIME, d, 0, 0]
        owner = of[-1] if kind == "key" else of[0]
        if owner != variable:
            return [t.C_ROW, d, d, 0]  # what nobody has set is as in the row that all begin with
        if kind == "time":
            return [t.C_TIME, d, 0, 0]
        if kind == "key":
            return [t.C_KEY, d, of[0], 0]
        if kind in ("value", "LAST"):
            return [t.C_EVENT, d, of[1], 0]
        if kind == "COUNT":
            return [t.C_COUNT, d, d, 0]
        if kind == "FIRST":
            return [t.C_ROW, d, d, 0] if again else [t.C_EVENT, d, of[1], 0]
        is_float = self.types[of[1]] is Type.FLOAT64
        if kind in ("LOW", "HIGH"):  # which are written together
            sum_ = t.C_SUM_FLOAT if is_float else t.C_SUM_INT
            return [sum_, d, self.carried["HIGH", *of], of[1]] if kind == "LOW" else None
        operation = {
            "VALUES": t.C_COUNT_FLOAT if is_float else t.C_COUNT_INT,
            "NUMBER": t.C_COUNT_FLOAT if is_float else t.C_COUNT_INT,
            "MIN": t.C_MIN_FLOAT if is_float else t.C_MIN_INT,
            "MAX": t.C_MAX_FLOAT if is_float else t.C_MAX_INT,
        }[kind]
        return [operation, d, d, of[1]]

    def zero(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The row that every match begins with."""
        row = np.full(t.FIXED + len(self.carried), t.NULL, np.int64)
        row[t.NODE] = -1
        for (kind, *of), column in self.carried.items():
            if kind in ("COUNT", "VALUES", "LOW", "HIGH", "NUMBER"):
                row[column] = 0
            elif kind in ("MIN", "MAX", "FIRST", "LAST", "value") and self.types[of[1]] is Type.FLOAT64:
                row[column] = np.float64(np.nan).view(np.int64)
        return row


def _is_ambiguous(element: object) -> bool:
    """Whether one match may be reached on several ways."""
    if isinstance(element, Together):
        return True
    return isinstance(element, Choice) and any(not isinstance(each, Place) for each in element.members)


def _parts(requirement: Requirement) -> Iterator[object]:
    """What must be known of single events to decide a requirement."""
    if isinstance(requirement.of, Semantic):
        yield from (requirement.roots(name) for name in requirement.of.variables)
        for each in requirement.of.conditions:
            yield from fields_of(each)
        return
    yield from single_parts(requirement.of)


def single_parts(expr: Expr) -> Iterator[Expr]:
    """The parts of an expression that speak of one event each; with PATH values, its attributes."""
    if has_path_values(expr):
        yield from fields_of(expr)
    elif isinstance(expr, Const):
        return
    elif of_one_event(expr) is not None:
        yield expr
    elif isinstance(expr, Aggregate):
        yield from () if expr.of is None else (expr.of,)
    else:
        for each in expr.children():
            yield from single_parts(each)


def _table(rows: list[Any], width: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(rows or [[0] * width], np.int64).reshape(-1, width)


@dataclass(frozen=True)
class _Bound:
    """Where a program finds values while a variable is looked at, the others being bound before."""

    shape: PatternShape
    variable: str

    def event(self, expr: Expr) -> int:
        return self.shape.column(expr)

    def row(self, expr: Expr, variable: str) -> int:
        return self.shape.carry("value", variable, self.shape.column(expr))

    def previous(self, expr: Expr, variable: str) -> int:
        return self.row(expr, variable)

    def folded(self, expr: Aggregate, kind: str) -> int:
        if kind == "COUNT":
            return self.shape.carry("COUNT", expr.variable)
        assert expr.of is not None
        return self.shape.carry(kind, expr.variable, self.shape.column(expr.of))

    def keep(self, expr: Expr) -> int:
        return self.shape.keep(expr)

    def node(self) -> int:
        return t.NODE

    def position(self) -> int:
        return self.shape.column(POSITION, Type.INT64)
