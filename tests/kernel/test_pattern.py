"""The pattern operator alone against the judge: every strategy and every way of skipping, any batches."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reference.test_chi_second_opinion import Case, NoPaths, cases

from kaicep.kernel.operator import Found
from kaicep.kernel.pattern import PatternOperator
from kaicep.plan.chi import Absent
from kaicep.plan.events import Event
from kaicep.plan.nodes import Pattern
from kaicep.reference.pattern import pattern_matches

SKIPS = ("none", "next", "past_last", "first", "last")

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "500"))
"""More of them at night."""


def shown(rounds, start: int, end: int) -> tuple[object, ...]:
    return tuple(sorted((name, tuple(each.seq for each in of)) for name, of in rounds.items())), start, end


def judged(pattern: Pattern, events: tuple[Event, ...]) -> list[tuple[object, ...]]:
    return sorted(
        shown(each.rounds, each.start, each.end) for each in pattern_matches(pattern, events, NoPaths())
    )


def lived(pattern: Pattern, events: tuple[Event, ...], chance: random.Random) -> list[tuple[object, ...]]:
    """The matches of an operator that gets the events in batches, and is saved and loaded now and then."""
    operator = PatternOperator(pattern, NoPaths())
    found: list[Found] = []
    left = list(events)
    while left:
        size = chance.choice((1, 1, 2, len(left)))
        found += operator.feed(left[:size])
        del left[:size]
        if left and chance.random() < 0.4:
            watermark = chance.choice((left[0].ts, left[0].ts - 1))
            found += operator.advance(watermark)
            promised = operator.promise(watermark)
            assert all(each.end >= promised for each in PatternCopy(operator).rest(left))
        if chance.random() < 0.4:
            operator = PatternCopy(operator).operator
    found += operator.advance(math.inf)
    return sorted(shown(each.rounds, each.start, each.end) for each in found)


class PatternCopy:
    """Another operator, loaded from the saved state of one."""

    def __init__(self, operator: PatternOperator) -> None:
        saved = operator.snapshot()
        self.operator = PatternOperator(operator.pattern, NoPaths())
        self.operator.restore(saved)
        assert self.operator.snapshot() == saved

    def rest(self, events: list[Event]) -> list[Found]:
        """What is still to be found."""
        return [*self.operator.feed(events), *self.operator.advance(math.inf)]


@pytest.mark.parametrize("effort", [EXAMPLES])
@pytest.mark.parametrize("match", ["any", "next", "strict"])
def test_the_operator_finds_what_the_judge_finds(match: str, effort: int) -> None:
    @settings(max_examples=effort, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(), st.sampled_from(SKIPS), st.integers(0, 2**32), st.data())
    def agree(case: Case, skip: str, seed: int, data: st.DataObject) -> None:
        positive = sorted(
            {name for each in case.sequence if not isinstance(each, Absent) for name in names_in(each)}
        )
        variable = data.draw(st.sampled_from(positive)) if skip in ("first", "last") else None
        pattern = replace(case.plan(match), skip=skip, skip_variable=variable)
        assert lived(pattern, case.events, random.Random(seed)) == judged(pattern, case.events)

    agree()


def names_in(element) -> list[str]:
    return [each.variable for each in getattr(element, "members", (element,))]
