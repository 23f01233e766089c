"""What a chi-CEP query means: patterns, windows of aggregates, PATHs and absences, by the book."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, groupby, product
from types import MappingProxyType
from typing import Any, Protocol

from kaicep.knowledge.event_graph import EventGraph, UnknownEntities, event_triples
from kaicep.knowledge.store import Knowledge
from kaicep.plan.algebra import element_variables, substitute
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, SpanWindow, Together, may_be_left_out
from kaicep.plan.events import Event
from kaicep.plan.expressions import Call, Expr, Field, Previous, VariableRef, type_of, variables_of, walk
from kaicep.plan.nodes import Chain, ChiPlan, Latest, OutputColumn, Pattern, Semantic, WindowAggregate
from kaicep.plan.paths import (
    aggregated_variables,
    bare_variables,
    has_path_values,
    path_references,
    restricted,
)
from kaicep.plan.results import (
    Answer,
    Terms,
    absence,
    answer,
    batch_shown,
    events_shown,
    identified,
    identified_by_events,
    loops_of,
)
from kaicep.plan.sparql import Group
from kaicep.plan.terms import Term
from kaicep.plan.time import format_time
from kaicep.plan.types import Type, Value
from kaicep.plan.typing import with_terms
from kaicep.reference.expressions import Environment, evaluate
from kaicep.reference.sparql import TimedGraph, bindings

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


# ----------------------------------------------------------------------------------------------------------
# PATHs, decided by the knowledge base and the graphs of the events (semantics 2).

Names = tuple[str, ...]
NOTHING: Terms = MappingProxyType({})


class KnowledgeSemantics:
    """Evaluates each PATH over the knowledge united with the graphs of the events that it is about.

    That union is what the reasoning closes. The knowledge is that of the event's time, and of the last
    one where there are several. Answers are kept, since a search asks for them again and again; so are
    the graphs, so that an entity nobody knows is counted once for each event.
    """

    def __init__(
        self, catalog: Catalog, knowledge: Knowledge | None = None, unknown: UnknownEntities | None = None
    ) -> None:
        self.catalog = catalog
        self.knowledge = Knowledge.empty() if knowledge is None else knowledge
        self.unknown = unknown
        self._graphs: dict[tuple[Event, int], EventGraph] = {}
        self._answers: dict[tuple[Semantic, Names, tuple[Event, ...]], frozenset[Row]] = {}

    def solutions(
        self,
        condition: Semantic,
        binding: Mapping[str, Event],
        env_of: EnvironmentOf | None = None,
        given: Terms = NOTHING,
    ) -> frozenset[Row]:
        """The distinct values of the selected variables; of none, `()` where there is any solution.

        Only those solutions count in which the variables that are `given` stand for these terms, and for
        which all expressions of the condition are true.
        """
        judged = tuple(name for each in condition.conditions for name in path_references(each))
        names = tuple(dict.fromkeys((*condition.selected, *judged, *given)))
        events = tuple(binding[name] for name in condition.variables)
        key = condition, names, events
        if key not in self._answers:
            self._answers[key] = self._solutions(condition, names, events)
        seen = env_of or (lambda _: Environment(dict(binding)))
        rows: set[Row] = set()
        for row in self._answers[key]:
            terms = dict(zip(names, row, strict=True))
            if any(terms[name] != term for name, term in given.items()):
                continue
            if all(evaluate(with_terms(each, terms), seen(each)) is True for each in condition.conditions):
                rows.add(tuple(terms[name] for name in condition.selected))
        return frozenset(rows)

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """What a condition about no event gives at some time."""
        then = KnowledgeSemantics(self.catalog, self.knowledge.at(ts))
        return then.solutions(condition, {})

    def inside(self, given: Terms) -> GivenSemantics:
        """The same inside a partition, whose variables stand for these terms."""
        return GivenSemantics(self, given)

    def _solutions(self, condition: Semantic, names: Names, events: tuple[Event, ...]) -> frozenset[Row]:
        epoch = self.knowledge.epoch(max((event.ts for event in events), default=0))
        knowledge = self.knowledge.in_epoch(epoch)
        graphs = {
            name: self._graph(event, epoch) for name, event in zip(condition.variables, events, strict=True)
        }
        triples = [triple for each in graphs.values() for triple in each.triples]
        entailed = [(each, None) for each in knowledge.entails_with(triples)]
        union = TimedGraph(knowledge, entailed, graphs=knowledge.graphs())
        nodes = {name: each.node for name, each in graphs.items()}
        return frozenset(
            row
            for group in condition.alternatives
            if self._is_known(group, graphs)
            for row in bindings(substitute(group, nodes), union, names)
        )

    def _is_known(self, group: Group, graphs: Mapping[str, EventGraph]) -> bool:
        """Whether the PATH is true or false at all: it asks for no entity that nobody knows."""
        return all(graph.answers(group, name, self.knowledge) for name, graph in graphs.items())

    def _graph(self, event: Event, epoch: int) -> EventGraph:
        if (event, epoch) not in self._graphs:
            stream = self.catalog.streams.get(event.stream, Stream(event.stream))
            knowledge = self.knowledge.in_epoch(epoch)
            self._graphs[event, epoch] = event_triples(event, stream, knowledge, self.unknown)
        return self._graphs[event, epoch]


@dataclass(frozen=True)
class GivenSemantics:
    """PATHs inside a partition: the variables that it goes by stand for the partition's values."""

    semantics: KnowledgeSemantics
    given: Terms

    def solutions(
        self, condition: Semantic, binding: Mapping[str, Event], env_of: EnvironmentOf | None = None
    ) -> frozenset[Row]:
        """As without a partition, of the solutions that belong to it."""
        return self.semantics.solutions(condition, binding, env_of, _given(condition, self.given))

    def known(self, condition: Semantic, ts: int) -> frozenset[Row]:
        """As without a partition: ABSENT has none."""
        return self.semantics.known(condition, ts)

    def inside(self, given: Terms) -> GivenSemantics:
        """The same, with more that is given."""
        return GivenSemantics(self.semantics, {**self.given, **given})


def _given(condition: Semantic, terms: Terms) -> Terms:
    names = frozenset[str]().union(*map(element_variables, condition.alternatives))
    return {name: term for name, term in terms.items() if name in names}


# ----------------------------------------------------------------------------------------------------------
# Aggregates over windows: which events each answer is about (semantics 2).


@dataclass(frozen=True)
class Windowed:
    """The events that one answer aggregates: those of one group inside one window.

    `trigger` is the event that a sliding window answers to. `first` and `last` are those of the whole
    window, all groups together; `start` and `end` are its span. `terms` are those that the group goes by,
    `solutions` those that are wanted besides, each combination by itself.
    """

    variable: str
    group: Key
    events: tuple[Event, ...]
    trigger: Event | None
    first: Event
    last: Event
    start: int
    end: int
    terms: Terms = field(default_factory=dict)
    solutions: tuple[Terms, ...] = ()

    @property
    def environment(self) -> Environment:
        """What the window's expressions speak of.

        Outside aggregates that is the event that triggers. A batch has none, and its expressions name
        only what its events have in common.
        """
        event = self.trigger or self.events[0]
        return Environment({self.variable: event}, rounds={self.variable: self.events})


def window_answers(
    node: WindowAggregate, events: Sequence[Event], semantics: PathSemantics
) -> Iterator[Windowed]:
    """The windows over the events of one partition, given in order, for which HAVING holds."""
    inside = [
        each
        for each in events
        if may_take(node.chain, each, semantics)
        and all(semantics.solutions(path, dict.fromkeys(path.variables, each)) for path in node.semantics)
    ]
    grouped = [(each, _groups_of(node, each, semantics)) for each in inside]
    windows = _sliding(node, grouped) if node.window.kind == "sliding" else _batches(node, grouped)
    for window in windows:
        solutions = tuple(
            terms
            for terms in _window_solutions(node, window, semantics)
            if all(evaluate(with_terms(each, terms), window.environment) is True for each in node.having)
        )
        if solutions:
            yield replace(window, solutions=solutions)


def absences(
    node: WindowAggregate, events: Sequence[Event], semantics: PathSemantics
) -> Iterator[tuple[int, int, Terms]]:
    """ABSENT: by window, from that of the first event to that of the last, what is expected and has no event.

    `events` are all of the streams inside WITHIN, in order.
    """
    assert node.expected is not None
    assert node.window.width is not None
    width, names = node.window.width, node.expected.selected
    for number in range(events[0].ts // width, events[-1].ts // width + 1):
        start, end = number * width, (number + 1) * width
        inside = [each for each in events if start <= each.ts < end and may_take(node.chain, each, semantics)]
        groups = (_groups_of(node, each, semantics).values() for each in inside)
        came = {tuple(terms[name] for name in names) for some in groups for terms in some}
        for row in semantics.known(node.expected, end - 1) - came:
            yield start, end, dict(zip(names, row, strict=True))


Groups = dict[Key, Terms]
"""The groups of an event: one, or one for each value of the PATH's variables that it is grouped by."""

Grouped = Sequence[tuple[Event, Groups]]


def _groups_of(node: WindowAggregate, event: Event, semantics: PathSemantics) -> Groups:
    names = [each.name for each in node.group_by if isinstance(each, VariableRef)]
    env = Environment({node.window.variable: event})
    found: Groups = {}
    for terms in solution_terms(node.semantics, env, semantics) if names else ({},):
        own = {name: terms[name] for name in names}
        found[key_with_terms(node.group_by, event, own)] = own
    return found


def _window_solutions(node: WindowAggregate, window: Windowed, semantics: PathSemantics) -> list[Terms]:
    """What the PATH says of the event that triggers, inside the group.

    Of a batch, it is what all of its events have in common: what it is grouped or partitioned by.
    """
    event = window.trigger or window.events[0]
    found = solution_terms(node.semantics, Environment({window.variable: event}), semantics)
    inside = [each for each in found if all(each[name] == term for name, term in window.terms.items())]
    if window.trigger is not None:
        return inside
    common = {each.name for each in (*node.group_by, *node.partition) if isinstance(each, VariableRef)}
    return [{name: term for name, term in each.items() if name in common} for each in inside]


def _sliding(node: WindowAggregate, events: Grouped) -> Iterator[Windowed]:
    """On every event, the window that ends with it, of which the event's own groups answer."""
    window = node.window
    for index, (trigger, groups) in enumerate(events):
        held = events[: index + 1]
        if window.width is not None:
            held = [(each, keys) for each, keys in held if each.ts > trigger.ts - window.width]
        elif window.count is not None:
            held = held[-window.count :]
        first = held[0][0]
        for group, terms in groups.items():
            members = tuple(each for each, keys in held if group in keys)
            span = first, trigger, first.ts, trigger.ts
            yield Windowed(window.variable, group, members, trigger, *span, terms)


def _batches(node: WindowAggregate, events: Grouped) -> Iterator[Windowed]:
    """One window after the other, of which every group answers."""
    window = node.window
    if window.width is not None:
        width = window.width
        for number, inside in groupby(events, key=lambda each: each[0].ts // width):
            yield from _answer_by_group(node, list(inside), number * width, (number + 1) * width)
    elif window.count is not None:
        for start in range(0, len(events) - window.count + 1, window.count):
            batch = events[start : start + window.count]
            yield from _answer_by_group(node, batch, batch[0][0].ts, batch[-1][0].ts)


def _answer_by_group(node: WindowAggregate, batch: Grouped, start: int, end: int) -> Iterator[Windowed]:
    members: dict[Key, list[Event]] = {}
    terms: Groups = {}
    for each, groups in batch:
        terms.update(groups)
        for group in groups:
            members.setdefault(group, []).append(each)
    first, last = batch[0][0], batch[-1][0]
    for group, events in members.items():
        span = first, last, start, end
        yield Windowed(node.window.variable, group, tuple(events), None, *span, terms[group])


# ----------------------------------------------------------------------------------------------------------
# The answers to a chi-CEP query over a finite input (semantics 2).


def run_chi(
    plan: ChiPlan,
    events: Sequence[Event],
    catalog: Catalog,
    knowledge: Knowledge | None = None,
    unknown: UnknownEntities | None = None,
) -> list[Answer]:
    """All answers to a query, in the order of their end, then of their id.

    `events` are those of the streams that the query reads, in any order, late ones left out. Values
    that no entity of the knowledge base is known for are counted in `unknown`.
    """
    return answers(plan, events, KnowledgeSemantics(catalog, knowledge, unknown))


def answers(plan: ChiPlan, events: Iterable[Event], semantics: PathSemantics) -> list[Answer]:
    """All answers to a query, with the PATHs decided by `semantics`."""
    source = plan.body
    given = list(events)
    seen = [event for event in given if any(sees(chain, event) for chain in source.chains)]
    by_variable = {chain.variable: chain for chain in source.chains}
    ties = [(by_variable[each.variables[0]], each) for each in source.ties]
    looked_up = [each.chain for each in source.latest] if isinstance(source, Pattern) else []
    known = in_order((e for e in given if any(sees(chain, e) for chain in looked_up)), source.streams)
    found: dict[str, Answer] = {}
    for part in parted(in_order(seen, source.streams), source.partition, ties, semantics):
        if isinstance(source, Pattern):
            made = _pattern_answers(plan, source, part, known)
        else:
            made = _window_answers(plan, source, part)
        # Solutions that differ in nothing that is selected are one match.
        found.update((each.match.id, each) for each in made)
    return sorted(found.values(), key=lambda each: (each.match.end_us, each.match.id))


# --- patterns ----------------------------------------------------------------------------------------------


def _pattern_answers(
    plan: ChiPlan,
    pattern: Pattern,
    part: Partition,
    known: Sequence[Event],
) -> Iterator[Answer]:
    loops = loops_of(pattern.sequence)
    for found in pattern_matches(pattern, part.events, part.semantics, known):
        rounds = found.rounds
        env = Environment({name: of[0] for name, of in rounds.items()}, rounds=rounds)
        for terms in _solutions(pattern, env, part.semantics):
            made = identified_by_events(plan, part.key, rounds)
            shown = events_shown(plan.variables, loops, rounds)
            span = found.start, found.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _solutions(pattern: Pattern, env: Environment, semantics: PathSemantics) -> Iterator[Terms]:
    """The selected values; where a LATEST event is bound, those of its PATH together with the others."""
    bound = [each for each in pattern.latest if each.variable in env.events]
    paths = [path for each in bound for path in each.semantics]
    covered = {name for path in paths for name in path.selected}
    paths += [path for path in pattern.semantics if covered.isdisjoint(path.selected)]
    nothing = {name: None for each in pattern.latest for path in each.semantics for name in path.selected}
    for terms in solution_terms(paths, env, semantics):
        yield {**nothing, **terms}


# --- windows -----------------------------------------------------------------------------------------------


def _window_answers(
    plan: ChiPlan,
    node: WindowAggregate,
    part: Partition,
) -> Iterator[Answer]:
    if node.expected is not None:
        for start, end, terms in absences(node, part.events, part.semantics):
            yield absence(plan, start, end, terms)
        return
    for window in window_answers(node, part.events, part.semantics):
        env = window.environment
        for terms in window.solutions:
            made = identified(plan, (*part.key, *window.group)).word(window.start).word(window.end)
            if window.trigger is not None:
                made.event(window.trigger)
            elif node.window.count is not None:
                made.event(window.first).event(window.last)
            shown = {window.variable: _window_shown(window)}
            span = window.start, window.end
            yield answer(plan, plan.columns, made, span, terms, shown, partial(_value, env, terms))


def _window_shown(window: Windowed) -> dict[str, Any]:
    if window.trigger is not None:
        return window.trigger.identity
    return batch_shown(window.events[0], window.events[-1], len(window.events))


# --- both --------------------------------------------------------------------------------------------------


def _value(env: Environment, terms: Terms, column: OutputColumn) -> Any:
    """The value of a column; of a loop's attribute the list of values, one for each round."""
    if column.many:
        assert isinstance(column.expr, Field)
        name = column.expr.variable
        return [evaluate(column.expr, Environment({name: each})) for each in env.rounds.get(name, ())]
    if not has_path_values(column.expr):
        return evaluate(column.expr, env)
    expr = with_terms(column.expr, terms)
    value = evaluate(expr, env)
    if column.type is None and type_of(expr) is Type.TIMESTAMP and isinstance(value, int):
        return format_time(value)  # as a variable that is selected by itself
    return value
