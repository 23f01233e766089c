"""What the events of a match have to meet: a condition on several of them, or a PATH (semantics 2).

A condition with a variable outside of aggregates holds for each event of that variable; where one of these
variables was left out, it does not apply. Of a PATH, that is said of its blocks one by one, and of the
conditions on its variables: those that apply are met by one and the same solution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from kaicep.plan.chi import SpanWindow
from kaicep.plan.events import Event
from kaicep.plan.expressions import Expr, Previous, walk
from kaicep.plan.nodes import Semantic
from kaicep.plan.paths import aggregated_variables, bare_variables, restricted
from kaicep.reference.chains import Semantics
from kaicep.reference.expressions import Environment, evaluate

__all__ = ["Requirement", "Rounds", "holds", "requirement", "windows_hold"]

Rounds = Mapping[str, tuple[Event, ...]]
"""The events of each variable that has any, in order."""


@dataclass(frozen=True)
class Requirement:
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


def requirement(condition: Expr | Semantic) -> Requirement:
    """A condition as a requirement."""
    if isinstance(condition, Semantic):
        aggregated = frozenset[str]().union(*map(aggregated_variables, condition.conditions))
        return Requirement(condition, condition.variables, aggregated=aggregated)
    return Requirement(
        condition,
        tuple(sorted(bare_variables(condition))),
        _previous(condition),
        aggregated_variables(condition),
    )


def _previous(expr: Expr) -> frozenset[str]:
    found = (bare_variables(each.of) for each in walk(expr) if isinstance(each, Previous))
    return frozenset[str]().union(*found)


def holds(
    required: Requirement, rounds: Rounds, semantics: Semantics, unfinished: Collection[str] = ()
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


def _has_solution(condition: Semantic, env: Environment, rounds: Rounds, semantics: Semantics) -> bool:
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


def _environments(required: Requirement, rounds: Rounds) -> Iterator[Environment]:
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
