"""A pattern compiled: its states, the places that are open in each, and what an event must fulfil there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kaicep.kernel.automaton import (
    Residual,
    certain,
    may_end,
    open_variables,
    steps,
    variables_in,
)
from kaicep.kernel.chains import Chain, chain_of
from kaicep.kernel.conditions import Conditions, Due, Equality, Requirement, Test, requirement_of
from kaicep.kernel.operator import Semantics
from kaicep.plan.chi import Absent, Choice, Place, Together
from kaicep.plan.expressions import Expr
from kaicep.plan.nodes import Pattern, Semantic
from kaicep.plan.results import loops_of

__all__ = ["Compiled", "Frontier", "Opening", "State", "Watch"]


@dataclass(frozen=True)
class Watch:
    """How to tell that an event is one that must be absent, beside what is bound.

    `key` is what such an event and the match must agree in; `tests` are what else it must fulfil.
    """

    variable: str
    key: Equality | None
    tests: tuple[Test, ...]


class Opening:
    """A place that an event may take: which variable, which state it leads to, what it must fulfil.

    Waiting partial matches are found by `key`, where there is one. `after` are the variables whose
    events must be strictly earlier; `windows` those WINDOWs, by number, that a match from here is bound by.
    """

    def __init__(self, pattern: Compiled, state: State, variable: str, rest: Residual) -> None:
        self.variable = variable
        self.place = pattern.places[variable]
        self.is_loop = variable in pattern.loops
        self._pattern = pattern
        self._rest = rest
        self._state = state
        element = pattern.element[variable]
        self.after = tuple(
            pattern.places[name]
            for name in sorted(state.bound)
            if pattern.element[name] < element or name == variable
        )
        self.after_last = len(self.after) == len(state.bound)
        """Whether the event must be later than whatever was bound last."""
        coming = certain(rest) | {variable}
        self.windows = tuple(
            (index, window.width)
            for index, window in enumerate(pattern.windows)
            if coming.intersection(window.variables)
        )
        due = list(pattern.due(state, variable, rest))
        sides = [(each, pattern.conditions.equality(each, variable, state.bound)) for each in due]
        equal = [found for _, found in sides if found is not None]
        if not equal and state.bound:
            equal = list(pattern.common_key(variable, state.bound))
        self.key: Equality | None = pattern.conditions.compile_equality(equal, variable) if equal else None
        left = [each for each, found in sides if found is None]
        self.tests = pattern.conditions.tests(left, variable, state.bound)
        self.selecting = tuple(
            each.of for each, _ in due if isinstance(each.of, Semantic) and each.of.selected
        )

    @cached_property
    def target(self) -> State:
        """The state that an event at this place leads to."""
        return self._pattern.state(self._rest, self._state.bound | {self.variable})


@dataclass(frozen=True, eq=False)
class Frontier:
    """Places that stand open side by side, all of one element of the pattern."""

    number: int
    element: int
    openings: tuple[Opening, ...]


class State:
    """What is left of a pattern, and which variables have events."""

    def __init__(self, pattern: Compiled, rest: Residual, bound: frozenset[str]) -> None:
        self.rest = rest
        self.bound = bound
        self.may_end = may_end(rest) and bool(bound)
        self._pattern = pattern
        self._watches: dict[str, Watch] = {}

    @cached_property
    def frontiers(self) -> tuple[Frontier, ...]:
        """Where it may go on."""
        pattern = self._pattern
        made = []
        for number, found in enumerate(steps(self.rest)):
            openings = tuple(Opening(pattern, self, variable, rest) for variable, rest in found)
            made.append(Frontier(number, pattern.element[openings[0].variable], openings))
            for each in openings:
                if self.bound:
                    pattern.openings[each.place].append(each)
        return tuple(made)

    @cached_property
    def tests(self) -> tuple[Test, ...]:
        """What remains to be tested when a match ends here."""
        return self._pattern.conditions.tests(self._pattern.due(self, None, ()), None, self.bound)

    def watch(self, absent: str) -> Watch:
        """How to tell, beside what is bound in this state, that an event is one that must be absent."""
        if absent not in self._watches:
            self._watches[absent] = self._pattern.watch(absent, self.bound)
        return self._watches[absent]


class Compiled:
    """A pattern, ready to run: its variables by place, its chains, its states as they are reached."""

    def __init__(self, pattern: Pattern, semantics: Semantics) -> None:
        self.pattern = pattern
        self.windows = pattern.windows
        self.chains: tuple[Chain, ...] = tuple(chain_of(each) for each in pattern.chains)
        self.variables = tuple(each.variable for each in self.chains)
        self.places = {name: index for index, name in enumerate(self.variables)}
        self.loops = frozenset(loops_of(pattern.sequence))
        self.element = {
            name: index for index, each in enumerate(pattern.sequence) for name in variables_in(each)
        }
        self.absences = {
            index: each.variable for index, each in enumerate(pattern.sequence) if isinstance(each, Absent)
        }
        every = [requirement_of(each) for each in pattern.conditions]
        every += [requirement_of(each) for each in pattern.semantics]
        absent = frozenset(self.absences.values())
        self.requirements = [each for each in every if absent.isdisjoint(each.bare)]
        self.of_absent = {
            name: [each for each in every if name in each.bare and each.bare != (name,)] for name in absent
        }
        self.alone = {name: [each for each in every if each.bare == (name,)] for name in absent}
        """What an event must fulfil to be one that must be absent, whatever the match."""
        self.conditions = Conditions(
            self.variables, self.loops, pattern.conditions, pattern.streams, semantics
        )
        self.absent_keys = {name: self._absent_key(name) for name in absent}
        self.window_places: tuple[tuple[tuple[int, int], ...], ...] = tuple(
            tuple((index, each.width) for index, each in enumerate(pattern.windows) if name in each.variables)
            for name in self.variables
        )
        self.ambiguous = any(_is_ambiguous(each) for each in pattern.sequence)
        self.openings: list[list[Opening]] = [[] for _ in self.variables]
        """By place of the variable, those of all states that were reached, but the first."""
        self._states: dict[tuple[Residual, frozenset[str]], State] = {}
        self.first = self.state(pattern.sequence, frozenset())

    def state(self, rest: Residual, bound: frozenset[str]) -> State:
        """The state of what is left and what is bound."""
        found = self._states.get((rest, bound))
        if found is None:
            found = self._states[rest, bound] = State(self, rest, bound)
        return found

    def due(self, state: State, variable: str | None, rest: Residual) -> Iterator[Due]:
        """The requirements to test when `variable` is bound (None: nothing more) and `rest` is left."""
        bound = state.bound if variable is None else state.bound | {variable}
        for each in self.requirements:
            if not each.decidable(bound, rest):
                continue
            if not state.bound or not each.decidable(state.bound, state.rest):
                yield each, None
            elif variable in each.bare:
                yield each, variable

    def common_key(self, variable: str, bound: frozenset[str]) -> Iterator[tuple[Expr, Expr]]:
        """What the optimiser found all events of a match to agree in, where that may be relied on.

        Not where a variable may be left out, since then its conditions do not apply and tie nothing; nor
        under `next`, where an event that fits now counts even if a later one will not.
        """
        pattern = self.pattern
        always = certain(pattern.sequence)
        if pattern.match != "any" or not pattern.key or not always.issuperset(self.variables):
            return
        fields = dict(pattern.key)
        other = next((name for name in sorted(bound) if name not in self.loops and name != variable), None)
        if other is not None:
            yield fields[variable], fields[other]

    def may_be(self, absent: str) -> tuple[Test, ...]:
        """The tests of an absent event that nothing else has a say in."""
        return self.conditions.tests([(each, None) for each in self.alone[absent]], absent, frozenset())

    def crossing(self, left: int, right: int) -> tuple[str, ...]:
        """The absent variables between two elements."""
        return tuple(name for index, name in self.absences.items() if left < index < right)

    def is_settled(self, absent: str, state: State) -> bool:
        """Whether all that the absence mentions is as it will be at the end of the match."""
        still = open_variables(state.rest)
        return all(still.isdisjoint(each.aggregated.union(each.bare)) for each in self.of_absent[absent])

    def watch(self, absent: str, bound: frozenset[str]) -> Watch:
        """How to tell that an event is one that must be absent from a match with these variables."""
        equal = [each for each, _ in self._equalities(absent)]
        due: list[Due] = [
            (each, None)
            for each in self.of_absent[absent]
            if each not in equal and bound.issuperset(set(each.bare) - {absent})
        ]
        return Watch(absent, self.absent_keys[absent], self.conditions.tests(due, absent, bound))

    def _equalities(self, absent: str) -> Iterator[tuple[Requirement, tuple[Expr, Expr]]]:
        """The equations that apply in every match, so that absent events can be kept by their values."""
        always = certain(self.pattern.sequence)
        for each in self.of_absent[absent]:
            found = self.conditions.equality((each, None), absent, always)
            if found is not None:
                yield each, found

    def _absent_key(self, absent: str) -> Equality | None:
        sides = [found for _, found in self._equalities(absent)]
        return self.conditions.compile_equality(sides, absent) if sides else None


def _is_ambiguous(element: object) -> bool:
    """Whether one match may be reached on several ways."""
    if isinstance(element, Together):
        return True
    return isinstance(element, Choice) and any(not isinstance(each, Place) for each in element.members)
