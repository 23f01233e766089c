"""A pattern as stores and steps: what the generator of `pattern.py` writes source for.

The states are those of `kernel.states`. A partial match waits in one *store* for each frontier of its
state. A *step* is a place that stands open there: the variable, what an event must fulfil, the state it
leads to. Stores are listed deepest first: an event that goes through them in this order never meets
what it has just made, so that it takes one place of a match only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kaicep.kernel.automaton import Residual, certain, open_variables, steps
from kaicep.kernel.compiled.expressions import NotCompiled
from kaicep.kernel.conditions import Due
from kaicep.kernel.states import Compiled, State
from kaicep.plan.chi import Choice, Loop, Place, Together
from kaicep.plan.expressions import Aggregate, Call, Expr, variables_of, walk
from kaicep.plan.nodes import Pattern, Semantic

__all__ = ["Automaton", "Killer", "Requirements", "Step", "Store"]

_MOST_STATES = 48
_MOST_VARIABLES = 30


@dataclass(frozen=True)
class Requirements:
    """What must hold at a moment: conditions, PATHs of the new event, and equations that may be a key.

    `keys` are pairs of an expression of the new event and one of what is bound before.
    """

    conditions: tuple[Expr, ...] = ()
    semantics: tuple[Semantic, ...] = ()
    keys: tuple[tuple[Expr, Expr], ...] = ()


@dataclass
class Step:
    """An open place. `after` are the bound variables whose events must be earlier; `last` says all."""

    variable: str
    source: State
    target: State
    requirements: Requirements
    after: tuple[str, ...]
    last: bool
    windows: tuple[int, ...]
    """The WINDOWs, by number, that a match from here is bound by and that have begun."""


@dataclass
class Killer:
    """An event that must be absent while a partial match waits here."""

    variable: str
    requirements: Requirements


@dataclass
class Store:
    """Where partial matches of a state wait at one frontier.

    `key` are the equations that hold for every step and killer, as (by variable: own expression; far one).
    `fields` are what an entry holds, in order; they are filled while source is generated.
    """

    number: int
    state: State
    steps: tuple[Step, ...]
    killers: tuple[Killer, ...]
    sorted: bool
    """Whether entries are in the order of their first event, and of nothing else."""
    own: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    far: tuple[Expr, ...] = ()
    fields: dict[tuple[object, ...], None] = field(default_factory=dict)

    @property
    def loops_back(self) -> bool:
        """Whether an event may put entries in here while it goes through it."""
        return any(each.target is self.state for each in self.steps)


class Automaton:
    """The stores and steps of a pattern."""

    def __init__(self, pattern: Pattern, compiled: Compiled) -> None:
        self.pattern = pattern
        self.compiled = compiled
        self.loops = compiled.loops
        self.states = self._reachable()
        self.begin = [self._step(compiled.first, *each) for each in _open(compiled.first)]
        self.stores: list[Store] = []
        self.by_state: dict[int, list[Store]] = {id(each): [] for each in self.states}
        for state in self._deepest_first():
            self._add(state)
        self.pending = self._pending()

    # --- states ---

    def _reachable(self) -> list[State]:
        if len(self.compiled.variables) > _MOST_VARIABLES:
            raise NotCompiled(f"more than {_MOST_VARIABLES} variables")
        for each in self.pattern.sequence:
            _simple(each)
        found: list[State] = []
        left = [self.compiled.first]
        while left:
            state = left.pop()
            if any(each is state for each in found):
                continue
            found.append(state)
            if len(found) > _MOST_STATES:
                raise NotCompiled(f"a pattern of more than {_MOST_STATES} states")
            left += [self.compiled.state(rest, state.bound | {name}) for name, rest in _open(state)]
        return found

    def _deepest_first(self) -> list[State]:
        depth: dict[int, int] = {}

        def deep(state: State) -> int:
            if id(state) not in depth:
                depth[id(state)] = 0
                targets = [self.compiled.state(rest, state.bound | {name}) for name, rest in _open(state)]
                depth[id(state)] = 1 + max((deep(each) for each in targets if each is not state), default=0)
            return depth[id(state)]

        return sorted((each for each in self.states if each.bound), key=deep)

    def _add(self, state: State) -> None:
        made = []
        for frontier in steps(state.rest):
            some = tuple(self._step(state, name, rest) for name, rest in frontier)
            made.append(Store(0, state, some, self._killers(state, some[0].variable), self._alone(state)))
        # What goes back to its own state comes last: then nothing new lies in the stores beside it.
        for store in sorted(made, key=lambda each: each.loops_back):
            store.number = len(self.stores)
            self._key(store)
            self.stores.append(store)
            self.by_state[id(state)].append(store)

    def _alone(self, state: State) -> bool:
        return len(state.bound) == 1 and self.loops.isdisjoint(state.bound)

    # --- steps ---

    def _step(self, state: State, variable: str, rest: Residual) -> Step:
        compiled = self.compiled
        target = compiled.state(rest, state.bound | {variable})
        element = compiled.element
        after = tuple(
            name for name in sorted(state.bound) if element[name] < element[variable] or name == variable
        )
        coming = certain(rest) | {variable}
        windows = tuple(
            index
            for index, each in enumerate(self.pattern.windows)
            if coming.intersection(each.variables) and state.bound.intersection(each.variables)
        )
        due = list(compiled.due(state, variable, rest))
        needed = self._requirements(due, variable, state)
        if not needed.keys and state.bound:
            common = tuple(compiled.common_key(variable, state.bound))
            needed = Requirements(needed.conditions, needed.semantics, common)
        return Step(variable, state, target, needed, after, len(after) == len(state.bound), windows)

    def _requirements(self, due: list[Due], variable: str | None, state: State) -> Requirements:
        conditions: list[Expr] = []
        semantics: list[Semantic] = []
        keys: list[tuple[Expr, Expr]] = []
        for each in due:
            requirement, newest = each
            if isinstance(requirement.of, Semantic):
                if requirement.bare != (variable,):
                    raise NotCompiled("a PATH that ties several events together")
                semantics.append(requirement.of)
                continue
            for name in requirement.bare:
                if name in self.loops and name != newest and (name != variable or name in state.bound):
                    raise NotCompiled(f"a condition on every round of ?{name} that is tested later")
            if requirement.previous and variable not in state.bound:
                continue  # there is no round before the first
            found = self.compiled.conditions.equality(each, variable, state.bound) if variable else None
            if found is not None:
                keys.append(found)
            else:
                conditions.append(requirement.of)
        return Requirements(tuple(conditions), tuple(semantics), tuple(keys))

    def ending(self, state: State) -> tuple[Expr, ...]:
        """What remains to be tested when a match ends in a state."""
        found = self._requirements(list(self.compiled.due(state, None, ())), None, state)
        if found.semantics:
            raise NotCompiled("a PATH that is asked at the end of a match")
        return found.conditions

    # --- absence ---

    def _killers(self, state: State, next_variable: str) -> tuple[Killer, ...]:
        element = self.compiled.element
        left = max(element[name] for name in state.bound)
        return tuple(
            self._killer(name, state) for name in self.compiled.crossing(left, element[next_variable])
        )

    def _killer(self, absent: str, state: State) -> Killer:
        still = open_variables(state.rest)
        conditions: list[Expr] = []
        semantics: list[Semantic] = []
        keys: list[tuple[Expr, Expr]] = []
        for each in (*self.compiled.alone[absent], *self.compiled.of_absent[absent]):
            others = set(each.bare) - {absent}
            if isinstance(each.of, Semantic):
                if others:
                    raise NotCompiled("a PATH that ties several events together")
                semantics.append(each.of)
                continue
            if each.aggregated or not self.loops.isdisjoint(each.bare):
                raise NotCompiled(f"the absence of ?{absent} depends on a loop")
            if not still.isdisjoint(others):
                raise NotCompiled(f"the absence of ?{absent} depends on an event after it")
            if not state.bound.issuperset(others):
                continue  # it mentions what was left out
            found = _equation(each.of, absent, state.bound)
            if found is not None:
                keys.append(found)
            else:
                conditions.append(each.of)
        return Killer(absent, Requirements(tuple(conditions), tuple(semantics), tuple(keys)))

    def _pending(self) -> dict[int, Store]:
        """By state in which a match may end before a trailing absence: where it waits for the deadline."""
        made: dict[int, Store] = {}
        for state in self.states:
            if not state.may_end or not self.compiled.absences:
                continue
            left = max(self.compiled.element[name] for name in state.bound)
            trailing = self.compiled.crossing(left, len(self.pattern.sequence))
            if trailing:
                killers = tuple(self._killer(name, state) for name in trailing)
                store = Store(len(self.stores) + len(made), state, (), killers, self._alone(state))
                self._key(store)
                made[id(state)] = store
        return made

    # --- keys ---

    def _key(self, store: Store) -> None:
        """The equations that all who come to a store have on the same side of what waits there."""
        coming: list[Step | Killer] = [*store.steps, *store.killers]
        comers = [(each.variable, each.requirements.keys) for each in coming]
        far = [{repr(far): (own, far) for own, far in keys} for _, keys in comers]
        common = [each for each in far[0] if all(each in other for other in far[1:])]
        if self.pattern.match == "strict" or len({name for name, _ in comers}) < len(comers):
            common = []
        store.far = tuple(far[0][each][1] for each in common)
        store.own = {
            name: tuple(found[each][0] for each in common)
            for (name, _), found in zip(comers, far, strict=True)
        }

    def tested(self, store: Store, requirements: Requirements) -> Iterator[Expr]:
        """The conditions that are left to test for what the key of the store has found."""
        known = {repr(each) for each in store.far}
        for own, far in requirements.keys:
            if repr(far) not in known:
                yield Call("=", (own, far), None)
        yield from requirements.conditions


def _open(state: State) -> list[tuple[str, Residual]]:
    return [each for frontier in steps(state.rest) for each in frontier]


def _simple(element: object) -> None:
    """Refuses groups whose matches might be reached on several ways."""
    if isinstance(element, Choice | Together) and not all(
        isinstance(each, Place) for each in element.members
    ):
        raise NotCompiled("a group with a loop or a group in it")
    if isinstance(element, Loop) and element.most is not None and element.most > _MOST_STATES:
        raise NotCompiled(f"a loop of {element.most} rounds")


def _equation(of: object, variable: str, bound: frozenset[str]) -> tuple[Expr, Expr] | None:
    """The sides of an equation between one event and others that are bound."""
    if not isinstance(of, Call) or of.op != "=" or any(isinstance(each, Aggregate) for each in walk(of)):
        return None
    for own, other in (of.args, of.args[::-1]):
        others = variables_of(other)
        if variables_of(own) == {variable} and others and others <= bound:
            return own, other
    return None
