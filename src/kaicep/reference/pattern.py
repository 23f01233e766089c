"""Which events match a pattern: the definition, searched by brute force (semantics 2).

What is left of a pattern after some of its events are found is a pattern again. It says which places
may come next; an event that fits such a place leaves a still smaller pattern behind. A search through
all these steps, event by event in order, finds every match.

Places come in *frontiers*. Where the pattern leaves a choice that is not the events' to make (one more
round of a loop, or none), each way is a frontier of its own. Where the event decides (which branch of a
disjunction, which member of a conjunction), all these places are in one frontier. Only `MATCH next`
sees the difference: in each frontier it takes the earliest event that fits any place.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, Together, may_be_left_out
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Expr, Field, Previous, variables_of
from kaicep.plan.nodes import Pattern, Semantic
from kaicep.reference.chains import Chain, Semantics, chain_of
from kaicep.reference.expressions import Environment, evaluate

__all__ = ["Found", "Rounds", "frontiers", "may_end", "pattern_matches"]

Residual = tuple[Element, ...]
"""What is left of a pattern."""

Frontier = tuple[tuple[str, Residual], ...]
"""Places that stand open side by side: the variable to bind, and what is left after that."""

Rounds = Mapping[str, tuple[Event, ...]]
"""The events of each variable that has any, in order."""


@dataclass(frozen=True)
class Found:
    """A match of a pattern: its events by variable, their places in the order, and the time it spans."""

    rounds: Rounds
    variables: tuple[str, ...]
    positions: tuple[int, ...]
    start: int
    end: int

    def positions_of(self, variable: str) -> list[int]:
        """The places in the order of the variable's events."""
        return [at for name, at in zip(self.variables, self.positions, strict=True) if name == variable]


def pattern_matches(pattern: Pattern, events: Sequence[Event], semantics: Semantics) -> list[Found]:
    """The matches among the events of one partition, which are given in order."""
    return _skip(_Search(pattern, events, semantics).matches(), pattern.skip, pattern.skip_variable)


# --- what is left of a pattern ---------------------------------------------------------------------------


def may_end(rest: Residual) -> bool:
    """Whether a match may be complete although this is left of the pattern."""
    return all(may_be_left_out(each) for each in rest)


@lru_cache(maxsize=4096)
def frontiers(rest: Residual) -> tuple[Frontier, ...]:
    """The frontiers of what is left of a pattern; ending here is not among them (see `may_end`).

    >>> [[variable for variable, _ in each] for each in frontiers((Loop("b", 0, None), Place("c")))]
    [['b'], ['c']]
    >>> [[variable for variable, _ in each] for each in frontiers((Choice((Place("b"), Place("c"))),))]
    [['b', 'c']]
    """
    if not rest:
        return ()
    first, later = rest[0], rest[1:]
    inside = tuple(tuple((variable, left + later) for variable, left in each) for each in _inside(first))
    return inside + (frontiers(later) if may_be_left_out(first) else ())


def _inside(element: Element) -> list[Frontier]:
    """The frontiers of one element; what is left is what is left of that element."""
    match element:
        case Place():
            return [((element.variable, ()),)]
        case Loop():
            return _round(element)
        case Choice():
            # Of each branch that has any, one frontier: these are open side by side.
            ways = [found for found in map(_inside, element.members) if found]
            return [sum(way, ()) for way in product(*ways)] if ways else []
        case Together():
            return _any_member(element.members)
    return []  # an absence binds nothing


def _round(loop: Loop) -> list[Frontier]:
    if loop.most == 0:
        return []
    most = None if loop.most is None else loop.most - 1
    return [((loop.variable, (Loop(loop.variable, max(loop.least - 1, 0), most),)),)]


def _any_member(members: tuple[Element, ...]) -> list[Frontier]:
    """Every member goes on in one of its ways, or is done for good where it may be."""
    done: Frontier = ()
    found: list[Frontier] = []
    for way in product(*(_inside(each) + [done] * may_be_left_out(each) for each in members)):
        still_open = [(member, frontier) for member, frontier in zip(members, way, strict=True) if frontier]
        steps: list[tuple[str, Residual]] = []
        for index, (_, frontier) in enumerate(still_open):
            before = tuple(member for member, _ in still_open[:index])
            after = tuple(member for member, _ in still_open[index + 1 :])
            steps += [(variable, (Together(before + left + after),)) for variable, left in frontier]
        if steps:
            found.append(tuple(steps))
    return found


@lru_cache(maxsize=4096)
def _open(rest: Residual) -> frozenset[str]:
    """The variables that may still be bound."""
    return frozenset(name for each in rest for name in _variables(each))


def _variables(element: Element) -> Iterator[str]:
    match element:
        case Place():
            yield element.variable
        case Loop():
            if element.most != 0:
                yield element.variable
        case Choice() | Together():
            for each in element.members:
                yield from _variables(each)


@lru_cache(maxsize=4096)
def _certain(rest: Residual) -> frozenset[str]:
    """The variables that will be bound in every match that goes on from here."""
    names: set[str] = set()
    for each in rest:
        if isinstance(each, Together):
            names |= _certain(each.members)
        elif isinstance(each, Place) or (isinstance(each, Loop) and each.least > 0):
            names.add(each.variable)
    return frozenset(names)


# --- conditions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Requirement:
    """A condition, and how it mentions variables.

    `bare`: outside aggregates; it must then hold for each of their events. `previous`: in PREV, which
    is bare too. `aggregated`: in aggregates.
    """

    of: Expr | Semantic
    bare: tuple[str, ...]
    previous: frozenset[str] = frozenset()
    aggregated: frozenset[str] = frozenset()


def _requirement(condition: Expr | Semantic) -> _Requirement:
    if isinstance(condition, Semantic):
        return _Requirement(condition, condition.variables)
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
    return _Requirement(condition, tuple(sorted(bare)), frozenset(previous), frozenset(aggregated))


def _decidable(requirement: _Requirement, bound: Collection[str], rest: Residual) -> bool:
    """Whether all that it mentions bare is bound, and all that it only aggregates is finished.

    Where one that it mentions bare was left out, it never comes to that: it does not apply.
    """
    finished = requirement.aggregated.difference(requirement.bare).isdisjoint(_open(rest))
    return finished and all(each in bound for each in requirement.bare)


def _environments(requirement: _Requirement, rounds: Rounds, newest: str | None) -> Iterator[Environment]:
    """Every way in which the requirement applies: one event for each variable that it mentions bare.

    There is none where such a variable was left out. `newest` is a variable of which only the last
    event is of interest, the earlier ones having been looked at.
    """
    choices = [range(len(rounds.get(each, ()))) for each in requirement.bare]
    choices = [
        each[-1:] if variable == newest else each
        for variable, each in zip(requirement.bare, choices, strict=True)
    ]
    for indexes in product(*choices):
        at = dict(zip(requirement.bare, indexes, strict=True))
        if any(at[each] == 0 for each in requirement.previous):
            continue  # there is no round before the first
        covered = {each: rounds.get(each, ()) for each in requirement.aggregated}
        yield Environment(
            {each: rounds[each][index] for each, index in at.items()},
            {each: rounds[each][at[each] - 1] for each in requirement.previous},
            {each: found[: at[each] + 1] if each in at else found for each, found in covered.items()},
        )


# --- the search ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """Part of a match: what is bound, in order, and what is left of the pattern."""

    rest: Residual
    variables: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    rounds: Rounds = field(default_factory=dict)


@dataclass(frozen=True)
class _Opening:
    """A place that an event may take, and what can be said of it before any event is looked at.

    The event must come later than `after`. One later than `until` need not be looked at: some WINDOW
    would not hold in any match from here. `due` are the requirements that it brings to a decision.
    """

    variable: str
    rest: Residual
    after: float
    until: float
    due: tuple[tuple[_Requirement, str | None], ...]


class _Search:
    """The search for the matches of a pattern among the events of one partition."""

    def __init__(self, pattern: Pattern, events: Sequence[Event], semantics: Semantics) -> None:
        self.pattern = pattern
        self.semantics = semantics
        chains = [chain_of(each) for each in pattern.chains]
        # Those that count for contiguity: the PATH of at least one variable holds (where each has one).
        self.events = [
            event
            for event in events
            if any(not chain.semantics for chain in chains)
            or any(chain.sees(event) and chain.means(event, semantics) for chain in chains)
        ]
        self.candidates = {each.variable: self._candidates(each) for each in chains}
        self.absences = {
            index: each.variable for index, each in enumerate(pattern.sequence) if isinstance(each, Absent)
        }
        self.element = {
            name: index for index, each in enumerate(pattern.sequence) for name in _variables(each)
        }
        every = [_requirement(each) for each in pattern.conditions]
        every += [_requirement(each) for each in pattern.semantics]
        absent = frozenset(self.absences.values())
        self.requirements = [each for each in every if absent.isdisjoint(each.bare)]
        self.of_absent = {name: [each for each in every if name in each.bare] for name in absent}

    def _candidates(self, chain: Chain) -> frozenset[int]:
        """The places in the order of the events that the variable may take."""
        return frozenset(
            at
            for at, event in enumerate(self.events)
            if chain.sees(event) and chain.passes(event) and chain.means(event, self.semantics)
        )

    def matches(self) -> list[Found]:
        """All matches, each once, before skipping."""
        found: dict[tuple[tuple[str, ...], tuple[int, ...]], Found] = {}
        states = [_State(self.pattern.sequence)]
        while states:
            state = states.pop()
            match = self._finished(state)
            if match is not None:
                found[match.variables, match.positions] = match
            for frontier in frontiers(state.rest):
                states.extend(self._steps(state, frontier))
        return list(found.values())

    def _steps(self, state: _State, frontier: Frontier) -> Iterator[_State]:
        """What a next event at one of these places makes of the state."""
        openings = [self._opening(state, variable, rest) for variable, rest in frontier]
        # The first event of a match has no predecessor: any that fits will do.
        mode = self.pattern.match if state.positions else "any"
        first = state.positions[-1] + 1 if state.positions else 0
        last = min(first + 1, len(self.events)) if mode == "strict" else len(self.events)
        for at in range(first, last):
            ts = self.events[at].ts
            if all(ts > each.until for each in openings):
                break
            fitting = [each for each in openings if self._fits(state, each, at)]
            yield from (self._bind(state, each, at) for each in fitting)
            if fitting and mode == "next":
                break

    def _opening(self, state: _State, variable: str, rest: Residual) -> _Opening:
        earlier = [
            events[-1].ts
            for name, events in state.rounds.items()
            # Members of one conjunction may share an instant; rounds of a loop may not.
            if self.element[name] < self.element[variable] or name == variable
        ]
        return _Opening(
            variable,
            rest,
            max(earlier, default=-math.inf),
            self._until(state, variable, rest),
            tuple(self._due(state, variable, rest)),
        )

    def _until(self, state: _State, variable: str, rest: Residual) -> float:
        """How late the event may be, for the sake of its own WINDOWs and of those of later events."""
        coming = _certain(rest) | {variable}
        limits = [
            min(state.rounds[each][0].ts for each in window.variables if each in state.rounds) + window.width
            for window in self.pattern.windows
            if coming.intersection(window.variables) and state.rounds.keys() & set(window.variables)
        ]
        return min(limits, default=math.inf)

    def _due(
        self, state: _State, variable: str | None, rest: Residual
    ) -> Iterator[tuple[_Requirement, str | None]]:
        """The requirements to test when `variable` is bound (None: nothing more) and `rest` is left.

        With each, the variable of which only the newest event is to be tested, where the requirement
        was decidable before.
        """
        bound: set[str] = set(state.rounds) if variable is None else {*state.rounds, variable}
        for each in self.requirements:
            if not _decidable(each, bound, rest):
                continue
            if not state.rounds or not _decidable(each, set(state.rounds), state.rest):
                yield each, None
            elif variable in each.bare:
                yield each, variable

    def _fits(self, state: _State, opening: _Opening, at: int) -> bool:
        """Whether the event fits the place, given what is bound before it."""
        if at not in self.candidates[opening.variable] or self.events[at].ts <= opening.after:
            return False
        rounds = self._bind(state, opening, at).rounds
        return all(self._holds(each, rounds, newest) for each, newest in opening.due)

    def _bind(self, state: _State, opening: _Opening, at: int) -> _State:
        so_far = state.rounds.get(opening.variable, ())
        return _State(
            opening.rest,
            (*state.variables, opening.variable),
            (*state.positions, at),
            {**state.rounds, opening.variable: (*so_far, self.events[at])},
        )

    def _holds(self, requirement: _Requirement, rounds: Rounds, newest: str | None = None) -> bool:
        for env in _environments(requirement, rounds, newest):
            if isinstance(requirement.of, Semantic):
                binding = {name: event for name, event in env.events.items() if event is not None}
                if not self.semantics.solutions(requirement.of, binding):
                    return False
            elif evaluate(requirement.of, env) is not True:
                return False
        return True

    # --- the finished match ---

    def _finished(self, state: _State) -> Found | None:
        """The match, if the pattern may end here and everything that judges a whole match holds."""
        if not state.positions or not may_end(state.rest):
            return None
        if not all(self._holds(each, state.rounds, newest) for each, newest in self._due(state, None, ())):
            return None
        if not self._windows_hold(state.rounds):
            return None
        start, end = self.events[state.positions[0]].ts, self.events[state.positions[-1]].ts
        for index, absent in self.absences.items():
            left, right = self._neighbours(state, index)
            if right is None:
                assert self.pattern.deadline is not None
                end = start + self.pattern.deadline
                right = bisect_right(self.events, end, key=lambda each: each.ts)
            if any(self._occurs(absent, at, state.rounds) for at in range(left + 1, right)):
                return None
        return Found(state.rounds, state.variables, state.positions, start, end)

    def _windows_hold(self, rounds: Rounds) -> bool:
        for window in self.pattern.windows:
            times = [event.ts for name in window.variables for event in rounds.get(name, ())]
            if times and max(times) - min(times) > window.width:
                return False
        return True

    def _neighbours(self, state: _State, index: int) -> tuple[int, int | None]:
        """The places of the bound events nearest to an element; None where nothing is bound after it."""
        bound = [(self.element[name], at) for name, at in zip(state.variables, state.positions, strict=True)]
        left = max(at for element, at in bound if element < index)
        return left, min((at for element, at in bound if element > index), default=None)

    def _occurs(self, absent: str, at: int, rounds: Rounds) -> bool:
        """Whether the event is one that must be absent, beside the events of the match."""
        if at not in self.candidates[absent]:
            return False
        beside = {**rounds, absent: (self.events[at],)}
        return all(self._holds(each, beside) for each in self.of_absent[absent])


# --- skipping --------------------------------------------------------------------------------------------


def _skip(found: list[Found], mode: str, variable: str | None) -> list[Found]:
    """The matches that AFTER MATCH leaves; those of the same events stand or fall together."""
    if mode == "none":
        return found
    same_events: dict[tuple[int, ...], list[Found]] = {}
    for each in found:
        same_events.setdefault(each.positions, []).append(each)
    taken: list[Found] = []
    used: set[int] = set()
    resume = -1
    for positions in sorted(same_events, key=lambda at: (at[-1], at[0], -len(at), at)):
        first = positions[0]
        if first in used or first < resume:
            continue
        taken += same_events[positions]
        if mode == "next":
            used.add(first)
        for each in same_events[positions]:
            resume = max(resume, _resume(each, mode, variable))
    return taken


def _resume(match: Found, mode: str, variable: str | None) -> int:
    """The place in the order before which no later match may begin."""
    if mode == "past_last":
        return match.positions[-1] + 1
    if mode in ("first", "last") and variable is not None:
        at = match.positions_of(variable)
        return at[0 if mode == "first" else -1] if at else -1
    return -1
