"""A pattern, defined by enumeration (semantics 2): the events of each variable, and its matches."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, product
from typing import Protocol

from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, SpanWindow, Together, may_be_left_out
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Expr, Previous, VariableRef, variables_of, walk
from kaicep.plan.nodes import Chain, Latest, Pattern, Semantic
from kaicep.plan.paths import aggregated_variables, bare_variables, restricted
from kaicep.plan.results import Terms
from kaicep.plan.terms import Term
from kaicep.plan.types import Type, Value
from kaicep.reference.expressions import Environment, evaluate

# ----------------------------------------------------------------------------------------------------------
# What reaches a pattern or a window: the events that each variable may take, in order, in partitions.

Row = tuple[Term | None, ...]
"""The values of the selected variables of a PATH, in one of its solutions."""

Key = tuple[Value, ...]
"""The values that events of one partition, or of one group, have in common."""


EnvironmentOf = Callable[[Expr], Environment]
"""What an expression speaks of, by expression."""


class PathSemantics(Protocol):
    """What decides the PATHs; patterns and windows ask no more of it than this."""

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: EnvironmentOf | None = None
    ) -> frozenset[Row]:
        """The distinct values of `condition.selected`; where nothing is selected, `()` or nothing.

        `env_of` says what each of its expressions speaks of, where that is more than the events bound.
        """
        ...

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """The same of a condition about no event: what the knowledge says at some time."""
        ...

    def inside(self, given: Terms) -> PathSemantics:
        """The same inside a partition: the variables that it goes by stand for these terms."""
        ...


def sees(chain: Chain, event: Event) -> bool:
    """Whether the event is of the variable's streams and inside WITHIN."""
    return event.stream in chain.streams and event.ts in chain.within


def means(chain: Chain, event: Event, semantics: PathSemantics) -> bool:
    """Whether the PATH of the variable holds for the event."""
    return all(semantics.solutions(each, {chain.variable: event}) for each in chain.semantics)


def passes(chain: Chain, event: Event) -> bool:
    """Whether the FILTERs of the variable hold for the event."""
    env = Environment({chain.variable: event})
    return all(evaluate(each, env) is True for each in chain.conditions)


def may_take(chain: Chain, event: Event, semantics: PathSemantics) -> bool:
    """Whether the variable may take the event."""
    return sees(chain, event) and passes(chain, event) and means(chain, event, semantics)


def in_order(events: Iterable[Event], streams: Sequence[str]) -> list[Event]:
    """The events in the order of time; at one instant, by stream and then by identity (semantics 1)."""
    place = {name: index for index, name in enumerate(streams)}
    return sorted(events, key=lambda each: (each.ts, place[each.stream], each.id or "", each.part, each.seq))


def key_of(exprs: tuple[Expr, ...], event: Event) -> Key:
    """The values of the event by which it is partitioned or grouped, whichever variable is named."""
    values = []
    for expr in exprs:
        value = evaluate(expr, Environment(dict.fromkeys(variables_of(expr), event)))
        # The two zeros are one value, and the key shows in the match's id.
        values.append(value + 0.0 if isinstance(value, float) else value)
    return tuple(values)


def partitions(events: Iterable[Event], exprs: tuple[Expr, ...]) -> dict[Key, list[Event]]:
    """The events by partition, in their order; null is a value, and no key is one partition."""
    found: dict[Key, list[Event]] = {}
    for event in events:
        found.setdefault(key_of(exprs, event), []).append(event)
    return found


@dataclass(frozen=True)
class Partition:
    """Events that are evaluated by themselves, and what decides their PATHs there."""

    key: Key
    events: list[Event]
    semantics: PathSemantics


def parted(
    events: Iterable[Event],
    exprs: tuple[Expr, ...],
    ties: Sequence[tuple[Chain, Semantic]],
    given: PathSemantics,
) -> list[Partition]:
    """The partitions of events that are given in order; a variable of the PATH may be in their key.

    An event is in the partition of every value that the part of the PATH which ties one of its variables
    finds for it. The text of a term is what the partition is known by.
    """
    names = tuple(each.name for each in exprs if isinstance(each, VariableRef))
    if not names:
        return [Partition(key, some, given) for key, some in partitions(events, exprs).items()]
    found: dict[tuple[Key, Row], list[Event]] = {}
    for event in events:
        rows = [given.solutions(tie, {chain.variable: event}) for chain, tie in ties if sees(chain, event)]
        for row in frozenset[Row]().union(*rows):
            key = key_with_terms(exprs, event, dict(zip(names, row, strict=True)))
            found.setdefault((key, row), []).append(event)
    return [
        Partition(key, some, given.inside(dict(zip(names, row, strict=True))))
        for (key, row), some in found.items()
    ]


def key_with_terms(exprs: tuple[Expr, ...], event: Event, terms: Terms) -> Key:
    """The values by which an event is partitioned or grouped, those of the PATH's variables by their text."""
    values: list[Value] = []
    for expr in exprs:
        if isinstance(expr, VariableRef):
            term = terms[expr.name]
            values.append(None if term is None else str(term))
        else:
            values += key_of((expr,), event)
    return tuple(values)


def solution_terms(paths: Iterable[Semantic], env: Environment, semantics: PathSemantics) -> Iterator[Terms]:
    """Every combination of the selected values; null where an event that they hang on was left out."""
    rows: list[list[Terms]] = []
    bound = {name: event for name, event in env.events.items() if event is not None}
    for path in paths:
        if not path.selected:
            continue
        nothing: Terms = dict.fromkeys(path.selected)
        part = restricted(path, bound)
        if part is None:
            rows.append([nothing])
            continue
        binding = {name: bound[name] for name in part.variables}
        if part.conditions:
            found = semantics.solutions(part, binding, lambda _: env)
        else:
            found = semantics.solutions(part, binding)
        rows.append([{**nothing, **dict(zip(part.selected, row, strict=True))} for row in found])
    for combination in product(*rows):
        yield {name: term for each in combination for name, term in each.items()}


# ----------------------------------------------------------------------------------------------------------
# What the events of a match have to meet: a condition on several of them, or a PATH (semantics 2).
#
# A condition with a variable outside of aggregates holds for each event of that variable; where one of
# these variables was left out, it does not apply. Of a PATH, that is said of its blocks one by one, and of
# the conditions on its variables: those that apply are met by one and the same solution.

Rounds = Mapping[str, tuple[Event, ...]]
"""The events of each variable that has any, in order."""


@dataclass(frozen=True)
class BoundCondition:
    """A condition, and how it mentions variables.

    `bare`: outside aggregates; it must then hold for each of their events. `previous`: in PREV, which
    is bare too. `aggregated`: in aggregates.
    """

    of: Expr | Semantic
    bare: tuple[str, ...]
    previous: frozenset[str] = frozenset()
    aggregated: frozenset[str] = frozenset()

    @property
    def totals(self) -> frozenset[str]:
        """The variables that it only aggregates."""
        return self.aggregated.difference(self.bare)


def requirement(condition: Expr | Semantic) -> BoundCondition:
    """A condition as a requirement."""
    if isinstance(condition, Semantic):
        aggregated = frozenset[str]().union(*map(aggregated_variables, condition.conditions))
        return BoundCondition(condition, condition.variables, aggregated=aggregated)
    return BoundCondition(
        condition,
        tuple(sorted(bare_variables(condition))),
        _previous(condition),
        aggregated_variables(condition),
    )


def _previous(expr: Expr) -> frozenset[str]:
    found = (bare_variables(each.of) for each in walk(expr) if isinstance(each, Previous))
    return frozenset[str]().union(*found)


def holds(
    required: BoundCondition, rounds: Rounds, semantics: PathSemantics, unfinished: Collection[str] = ()
) -> bool:
    """Whether events meet a requirement, as far as they decide it; `unfinished` loops may go on."""
    if isinstance(required.of, Semantic):
        part = restricted(required.of, rounds.keys(), unfinished)
        return part is None or all(
            _has_solution(part, env, rounds, semantics) for env in _environments(requirement(part), rounds)
        )
    if not required.totals.isdisjoint(unfinished):
        return True
    return all(evaluate(required.of, env) is True for env in _environments(required, rounds))


def _has_solution(condition: Semantic, env: Environment, rounds: Rounds, semantics: PathSemantics) -> bool:
    """Whether a PATH has a solution; there is no round before the first, so that PREV is not tested on it."""
    binding = {name: event for name, event in env.events.items() if event is not None}
    if not condition.conditions:
        return bool(semantics.solutions(condition, binding))
    tested = tuple(each for each in condition.conditions if _previous(each) <= env.previous.keys())

    def seen(expr: Expr) -> Environment:
        """Aggregates cover the rounds so far only beside the round itself."""
        so_far = {name: of for name, of in env.rounds.items() if name in bare_variables(expr)}
        return replace(env, rounds={**rounds, **so_far})

    return bool(semantics.solutions(replace(condition, conditions=tested), binding, seen))


def _environments(required: BoundCondition, rounds: Rounds) -> Iterator[Environment]:
    """Every way in which the requirement applies: one event for each variable that it mentions bare.

    There is none where such a variable was left out.
    """
    covered = {each: rounds.get(each, ()) for each in required.aggregated}
    for indexes in product(*(range(len(rounds.get(each, ()))) for each in required.bare)):
        at = dict(zip(required.bare, indexes, strict=True))
        if any(at[each] == 0 for each in required.previous):
            continue  # there is no round before the first
        yield Environment(
            {each: rounds[each][index] for each, index in at.items()},
            {each: rounds[each][index - 1] for each, index in at.items() if index > 0},
            {each: found[: at[each] + 1] if each in at else found for each, found in covered.items()},
        )


def windows_hold(windows: Collection[SpanWindow], rounds: Rounds) -> bool:
    """Whether the events of the named variables lie no further apart than each WINDOW says."""
    for window in windows:
        times = [event.ts for name in window.variables for event in rounds.get(name, ())]
        if times and max(times) - min(times) > window.width:
            return False
    return True


# ----------------------------------------------------------------------------------------------------------
# LATEST: the last known event of something else, looked up for a match of the others (semantics 2).


class LatestEvents:
    """The LATEST variables of a pattern, and all events, of any partition, that they may take, in order."""

    def __init__(self, pattern: Pattern, events: Sequence[Event], semantics: PathSemantics) -> None:
        self.latest = pattern.latest
        self.semantics = semantics
        self.events = {each.variable: list(self._possible(each, events)) for each in pattern.latest}

    def _possible(self, latest: Latest, events: Sequence[Event]) -> Iterator[Event]:
        """The events that pass the variable's own FILTERs and PATHs."""
        for event in events:
            if may_take(latest.chain, event, self.semantics):
                yield event

    def added_to(self, rounds: Rounds) -> Rounds | None:
        """The events of a match with the latest ones beside them; None where that makes it no match."""
        found = dict(rounds)
        for each in self.latest:
            event = self._last(each, rounds)
            if event is not None:
                found[each.variable] = (event,)
            elif not each.optional:
                return None
        for each in self.latest:
            if not windows_hold(each.windows, found):
                return None
            if not all(holds(requirement(one), found, self.semantics) for one in each.conditions):
                return None
        return found

    def _last(self, latest: Latest, rounds: Rounds) -> Event | None:
        """The last candidate in order: no event of the match, and no later than its last one."""
        bound = [event for events in rounds.values() for event in events]
        end = max(event.ts for event in bound)
        equal = [Call("=", sides, Type.BOOL) for sides in latest.keys]
        deciding = [*map(requirement, equal), *map(requirement, latest.semantics)]
        for event in reversed(self.events[latest.variable]):
            if event.ts > end or event in bound:
                continue
            beside = {**rounds, latest.variable: (event,)}
            if all(holds(each, beside, self.semantics) for each in deciding):
                return event
        return None


# ----------------------------------------------------------------------------------------------------------
# Which events match a pattern: the definition, enumerated (semantics 2).
#
# How often each loop goes round is free. A *course* fixes it; which events then take the places is tried
# out, from left to right, all of them. What comes out is tested as a whole: conditions, WINDOWs, absences.
#
# Much of this need not be tried: a condition is tested as soon as it is decided, and no event is looked at
# that lies outside a WINDOW. Under `MATCH next` the first is more than that, it is the definition: an event
# fits a place if every condition holds that is decided by then, and no match passes over an event that fits
# a place that is open on its course.

Course = Mapping[str, int]
"""How many events each variable of an element takes, where it takes any.

Which member of a choice is taken is for the events to say: a course has the numbers of all members.
"""


@dataclass(frozen=True)
class MatchedPattern:
    """A match of a pattern: its events by variable, their places in the order, and the time it spans.

    The events of LATEST variables are in `rounds` only: they take no place.
    """

    rounds: Rounds
    variables: tuple[str, ...]
    positions: tuple[int, ...]
    start: int
    end: int

    def positions_of(self, variable: str) -> list[int]:
        """The places in the order of the variable's events."""
        return [at for name, at in zip(self.variables, self.positions, strict=True) if name == variable]


def pattern_matches(
    pattern: Pattern, events: Sequence[Event], semantics: PathSemantics, known: Sequence[Event] = ()
) -> list[MatchedPattern]:
    """The matches among the events of one partition, which are given in order.

    `known` are all events, of any partition, that LATEST variables may take, in order.
    """
    latest = LatestEvents(pattern, known, semantics)
    found = _Enumeration(pattern, events, semantics, latest).matches()
    return _skip(found, pattern.skip, pattern.skip_variable)


# --- courses ---------------------------------------------------------------------------------------------


def courses(element: Element, available: Callable[[str], int]) -> list[Course]:
    """The courses of an element, where a loop finds no more than `available` events of its variable.

    >>> courses(Together((Place("b"), Loop("c", 0, None))), lambda variable: 2)
    [{'b': 1}, {'b': 1, 'c': 1}, {'b': 1, 'c': 2}]
    """
    match element:
        case Place():
            return [{element.variable: 1}]
        case Loop():
            enough = max(element.least, available(element.variable))
            most = enough if element.most is None else min(enough, element.most)
            return [{element.variable: n} if n else {} for n in range(element.least, most + 1)]
        case Choice():
            return _choose(element, available)
        case Together():
            return _combine([courses(each, available) for each in element.members])
    return [{}]  # an absence takes no event


def _choose(choice: Choice, available: Callable[[str], int]) -> list[Course]:
    """The choice is left out, or each of its members could be taken.

    Of a member that is not taken only its beginning matters: one round of each loop is enough.

    >>> courses(Choice((Place("b"), Loop("c", 1, None))), lambda variable: 2)
    [{'b': 1, 'c': 1}, {'b': 1, 'c': 1}, {'b': 1, 'c': 2}]
    """
    found: list[Course] = [{}] if may_be_left_out(choice) else []
    for taken in choice.members:
        ways = [courses(each, available if each is taken else lambda _: 1) for each in choice.members]
        some = [[course for course in way if course] for way in ways]
        found += _combine([way for way in some if way])
    return found


def _combine(ways: Sequence[Sequence[Course]]) -> list[Course]:
    return [{name: n for course in each for name, n in course.items()} for each in product(*ways)]


def open_places(element: Element, course: Course, taken: Sequence[str]) -> frozenset[str]:
    """The variables of an element that are still to have events on this course.

    >>> b_or_c = Choice((Place("b"), Loop("c", 1, None)))
    >>> sorted(open_places(b_or_c, {"b": 1, "c": 2}, "")), sorted(open_places(b_or_c, {"b": 1, "c": 2}, "c"))
    (['b', 'c'], ['c'])
    """
    match element:
        case Place() | Loop():
            name = element.variable
            return frozenset((name,)) if taken.count(name) < course.get(name, 0) else frozenset()
        case Choice():
            members = _still_open(element, taken)
        case Together():
            members = element.members
        case Absent():
            members = ()
    return frozenset[str]().union(*(open_places(each, course, taken) for each in members))


def missing_events(element: Element, course: Course, taken: Sequence[str]) -> int:
    """How many events the element still takes on this course, at least.

    >>> missing_events(Choice((Place("b"), Loop("c", 1, None))), {"b": 1, "c": 3}, "c")
    2
    """
    match element:
        case Place() | Loop():
            return course.get(element.variable, 0) - taken.count(element.variable)
        case Choice():
            return min(missing_events(each, course, taken) for each in _still_open(element, taken))
        case Together():
            return sum(missing_events(each, course, taken) for each in element.members)
    return 0


def _still_open(choice: Choice, taken: Sequence[str]) -> Sequence[Element]:
    """The member that has been taken; before that, all of them."""
    begun = [each for each in choice.members if not _variables(each).keys().isdisjoint(taken)]
    return begun or choice.members


@cache
def _variables(element: Element) -> Mapping[str, int | None]:
    """The variables that may have events at an element, and how many at most."""
    match element:
        case Place():
            return {element.variable: 1}
        case Loop():
            return {element.variable: element.most}
        case Choice() | Together():
            return {name: most for each in element.members for name, most in _variables(each).items()}
    return {}


# --- conditions ------------------------------------------------------------------------------------------


def _decided(required: BoundCondition, rounds: Rounds, unfinished: Collection[str]) -> bool:
    """Whether all that it mentions bare is bound, and all that it only aggregates is finished.

    Where one that it mentions bare was left out, it never comes to that: it does not apply.
    """
    return required.totals.isdisjoint(unfinished) and all(each in rounds for each in required.bare)


# --- the enumeration -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BoundEvents:
    """Events that are bound: to which variables and at which places in the order, from left to right."""

    variables: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    rounds: Rounds = field(default_factory=dict, compare=False)

    def add(self, variable: str, at: int, event: Event) -> _BoundEvents:
        rounds = {**self.rounds, variable: (*self.rounds.get(variable, ()), event)}
        return _BoundEvents((*self.variables, variable), (*self.positions, at), rounds)


class _Enumeration:
    """All that the events of one partition can be bound to, and which of it is a match."""

    def __init__(
        self, pattern: Pattern, events: Sequence[Event], semantics: PathSemantics, latest: LatestEvents
    ) -> None:
        self.pattern = pattern
        self.semantics = semantics
        self.latest = latest
        chains = pattern.chains
        # Those that count for contiguity: the PATH of at least one variable holds (where each has one).
        self.events = [
            event
            for event in events
            if any(not chain.semantics for chain in chains)
            or any(sees(chain, event) and means(chain, event, semantics) for chain in chains)
        ]
        self.candidates = {each.variable: self._candidates(each) for each in chains}
        self.element = {
            name: index for index, each in enumerate(pattern.sequence) for name in _variables(each)
        }
        self.absences = {
            index: each.variable for index, each in enumerate(pattern.sequence) if isinstance(each, Absent)
        }
        every = [*map(requirement, pattern.conditions), *map(requirement, pattern.semantics)]
        absent = frozenset(self.absences.values())
        # Of a PATH, what does not speak of an absent event is a requirement all the same.
        self.requirements = [
            each for each in every if isinstance(each.of, Semantic) or absent.isdisjoint(each.bare)
        ]
        self.of_absent = {name: [each for each in every if name in each.bare] for name in absent}

    def _candidates(self, chain: Chain) -> list[int]:
        """The places in the order of the events that the variable may take."""
        return [at for at, event in enumerate(self.events) if may_take(chain, event, self.semantics)]

    def matches(self) -> list[MatchedPattern]:
        """All matches, each once, before skipping."""
        found = map(self._accept, self._bind_from(0, _BoundEvents()))
        return [each for each in found if each is not None]

    # --- what there is to try ---

    def _bind_from(self, index: int, bound: _BoundEvents) -> Iterator[_BoundEvents]:
        """Every way of binding this element of the sequence and all later ones."""
        if index == len(self.pattern.sequence):
            yield bound
            return
        for each in dict.fromkeys(self._bind_element(index, bound)):
            yield from self._bind_from(index + 1, each)

    def _bind_element(self, index: int, bound: _BoundEvents) -> Iterator[_BoundEvents]:
        element = self.pattern.sequence[index]
        if isinstance(element, Loop):
            yield from self._bind_rounds(index, element, bound)
            return

        def available(name: str) -> int:
            return len(self._between(name, *self._reach(index, (name,), bound)))

        for course in courses(element, available):
            yield from self._bind_course(index, course, bound)

    def _bind_rounds(self, index: int, loop: Loop, bound: _BoundEvents) -> Iterator[_BoundEvents]:
        """The courses of a loop, each from the one before: what has n rounds has n - 1 before the last."""
        reached = [bound]
        for n in count():
            if n >= loop.least:
                yield from reached
            if n == loop.most or not reached:
                return
            course = {loop.variable: n + 1}
            reached = [longer for each in reached for longer in self._bind_event(index, course, each)]

    def _bind_course(self, index: int, course: Course, bound: _BoundEvents) -> Iterator[_BoundEvents]:
        if not open_places(self.pattern.sequence[index], course, bound.variables):
            yield bound
            return
        for each in self._bind_event(index, course, bound):
            yield from self._bind_course(index, course, each)

    def _bind_event(self, index: int, course: Course, bound: _BoundEvents) -> Iterator[_BoundEvents]:
        """Every way of binding one more event to an open place of the element (semantics 2.4)."""
        element = self.pattern.sequence[index]
        names = open_places(element, course, bound.variables)
        first, end = self._reach(index, names, bound)
        end = min(end, len(self.events) + 1 - missing_events(element, course, bound.variables))
        if self.pattern.match == "strict" and bound.positions:
            end = min(end, first + 1)
        earliest = None
        for at, name in sorted((at, each) for each in names for at in self._between(each, first, end)):
            if earliest is not None and at > earliest:
                return  # it would pass over one that fits
            if self._fits(index, course, bound, name, at):
                earliest = at if self.pattern.match == "next" and bound.positions else None
                yield bound.add(name, at, self.events[at])

    def _reach(self, index: int, names: Collection[str], bound: _BoundEvents) -> tuple[int, int]:
        """From which position on, and before which, an event may be that takes one of these places.

        One that is later is ruled out by a WINDOW: it names the place, or one that comes after it.
        """
        if not bound.positions:
            return 0, len(self.events)
        coming = {each.variable for each in self.pattern.sequence[index + 1 :] if isinstance(each, Place)}
        latest = max((self._latest(coming | {name}, bound.rounds) for name in names), default=math.inf)
        return bound.positions[-1] + 1, bisect_right(self.events, latest, key=lambda each: each.ts)

    def _latest(self, names: Collection[str], rounds: Rounds) -> float:
        """The time after which some WINDOW would not hold, if one of these variables had an event then."""
        return min(
            (
                window.width + rounds[name][0].ts
                for window in self.pattern.windows
                if any(name in names for name in window.variables)
                for name in window.variables
                if name in rounds
            ),
            default=math.inf,
        )

    def _between(self, variable: str, first: int, end: int) -> list[int]:
        candidates = self.candidates[variable]
        return candidates[bisect_left(candidates, first) : bisect_left(candidates, end)]

    def _fits(self, index: int, course: Course, bound: _BoundEvents, name: str, at: int) -> bool:
        """Whether the event fits the place, given what is bound before it."""
        event = self.events[at]
        # Members of one conjunction may share an instant; elements and the rounds of a loop may not.
        for other, events in bound.rounds.items():
            if (other == name or self.element[other] < index) and events[-1].ts >= event.ts:
                return False
        now = bound.add(name, at, event)
        concerned = [each for each in self.requirements if name in each.bare or each.totals]
        left = self._unfinished(index, course, now) if concerned else frozenset()
        return all(
            holds(each, now.rounds, self.semantics, left)
            for each in concerned
            if isinstance(each.of, Semantic) or _decided(each, now.rounds, left)
        )

    def _unfinished(self, index: int, course: Course, bound: _BoundEvents) -> frozenset[str]:
        """The variables that may still have events, as far as the events so far can tell (semantics 2.3).

        A loop is finished when it can go round no more, or when it has all its rounds and the next place
        is taken.
        """
        element, last = self.pattern.sequence[index], bound.variables[-1]
        later = map(_variables, self.pattern.sequence[index + 1 :])
        again = (last,) if len(bound.rounds[last]) != _variables(element)[last] else ()
        return open_places(element, course, bound.variables).union(again, *later)

    # --- the match as a whole ---

    def _accept(self, bound: _BoundEvents) -> MatchedPattern | None:
        """The match, if every condition, every WINDOW and every absence holds."""
        if not bound.positions or not windows_hold(self.pattern.windows, bound.rounds):
            return None
        if not all(holds(each, bound.rounds, self.semantics) for each in self.requirements):
            return None
        rounds = self.latest.added_to(bound.rounds)
        if rounds is None:
            return None
        start, end = self.events[bound.positions[0]].ts, self.events[bound.positions[-1]].ts
        for index, absent in self.absences.items():
            left, right = self._neighbours(bound, index)
            if right is None:
                assert self.pattern.deadline is not None
                end = start + self.pattern.deadline
                right = bisect_right(self.events, end, key=lambda each: each.ts)
            if any(self._occurs(absent, at, rounds) for at in self._between(absent, left + 1, right)):
                return None
        return MatchedPattern(rounds, bound.variables, bound.positions, start, end)

    def _neighbours(self, bound: _BoundEvents, index: int) -> tuple[int, int | None]:
        """The places of the bound events nearest to an element; None where nothing is bound after it."""
        places = [(self.element[name], at) for name, at in zip(bound.variables, bound.positions, strict=True)]
        left = max(at for element, at in places if element < index)
        return left, min((at for element, at in places if element > index), default=None)

    def _occurs(self, absent: str, at: int, rounds: Rounds) -> bool:
        """Whether the event is one that must be absent, beside the events of the match."""
        beside = {**rounds, absent: (self.events[at],)}
        return all(holds(each, beside, self.semantics) for each in self.of_absent[absent])


# --- skipping --------------------------------------------------------------------------------------------


def _skip(found: list[MatchedPattern], mode: str, variable: str | None) -> list[MatchedPattern]:
    """The matches that AFTER MATCH leaves; those of the same events stand or fall together."""
    if mode == "none":
        return found
    same_events: dict[tuple[int, ...], list[MatchedPattern]] = {}
    for each in found:
        same_events.setdefault(each.positions, []).append(each)
    taken: list[MatchedPattern] = []
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


def _resume(match: MatchedPattern, mode: str, variable: str | None) -> int:
    """The place in the order before which no later match may begin."""
    if mode == "past_last":
        return match.positions[-1] + 1
    if mode in ("first", "last") and variable is not None:
        at = match.positions_of(variable)
        return at[0 if mode == "first" else -1] if at else -1
    return -1
