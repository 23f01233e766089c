"""What is asked of all events of a match at once: conditions on every round of a loop, aggregates over it.

The machine asks this only where no program can say it: a condition on a loop that is tested after the loop
has grown, a PATH over its rounds, a sum of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from kaicep.kernel.aggregates import FOLDS
from kaicep.kernel.assemble import of_one_event
from kaicep.kernel.shape import Requirement
from kaicep.kernel.solutions import Seen
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Previous
from kaicep.plan.nodes import Semantic
from kaicep.plan.operators import apply
from kaicep.plan.types import Value

__all__ = ["aggregate_of", "evaluated", "holds_for_all"]


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
