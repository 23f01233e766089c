"""The pattern operator alone against the reference: every strategy and every way of skipping, any batches."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaicep.kernel.operator import Found
from kaicep.kernel.pattern import PatternOperator
from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, SpanWindow, Together
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous
from kaicep.plan.nodes import Filter, Node, Pattern, Scan
from kaicep.plan.types import Type
from kaicep.reference.pattern import pattern_matches

SKIPS = ("none", "next", "past_last", "first", "last")

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "500"))
"""More of them at night."""

OPS = ("<", "<=", "=", "!=", ">")
VARIABLES = ("a", "b", "c", "d")


class NoPaths:
    def solutions(self, condition, binding):
        raise AssertionError("no PATH in these patterns")


# --- conditions ------------------------------------------------------------------------------------------


def x(variable: str) -> Field:
    return Field(variable, "x", (("s", ("x",)),), Type.INT64)


@dataclass(frozen=True)
class Compare:
    """`?u.x op ?v.x`, for every round of both."""

    u: str
    op: str
    v: str

    def expr(self) -> Expr:
        return Call(self.op, (x(self.u), x(self.v)), Type.BOOL)


@dataclass(frozen=True)
class Rising:
    """`?u.x >= PREV(?u.x)`"""

    u: str

    def expr(self) -> Expr:
        return Call(">=", (x(self.u), Previous(x(self.u))), Type.BOOL)


@dataclass(frozen=True)
class AtLeast:
    """`COUNT(?u.x) >= n`, on the finished loop."""

    u: str
    n: int

    def expr(self) -> Expr:
        count = Aggregate("COUNT", x(self.u), variable=self.u)
        return Call(">=", (count, Const(self.n, Type.INT64)), Type.BOOL)


@dataclass(frozen=True)
class SoFar:
    """`SUM(?u.x) <= ?u.x + n`: beside a bare mention, the sum covers the rounds so far."""

    u: str
    n: int

    def expr(self) -> Expr:
        total = Aggregate("SUM", x(self.u), variable=self.u)
        return Call("<=", (total, Call("+", (x(self.u), Const(self.n, Type.INT64)))), Type.BOOL)


Condition = Compare | Rising | AtLeast | SoFar


@dataclass(frozen=True)
class Case:
    sequence: tuple[Element, ...]
    conditions: tuple[Condition, ...]
    filters: dict[str, int]
    windows: tuple[SpanWindow, ...]
    deadline: int
    events: tuple[Event, ...]

    def plan(self, match: str) -> Pattern:
        return Pattern(
            tuple(self.chain(each) for each in VARIABLES),
            ("s",),
            self.sequence,
            tuple(each.expr() for each in self.conditions),
            windows=self.windows,
            match=match,
            deadline=self.deadline,
        )

    def chain(self, variable: str) -> Node:
        scan = Scan(variable, ("s",))
        if variable not in self.filters:
            return scan
        least = Const(self.filters[variable], Type.INT64)
        return Filter(scan, (Call(">=", (x(variable), least), Type.BOOL),))


# --- cases --------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = list(draw(st.permutations(VARIABLES)))
    sequence: list[Element] = []
    loops: list[str] = []
    absent: list[str] = []
    while names and (not sequence or draw(st.booleans()) or draw(st.booleans())):
        kinds = ["place", "place", "loop"]
        if len(names) > 1:
            kinds += ["choice", "together"]
        if isinstance(sequence[0] if sequence else None, Place) and not absent:
            kinds.append("absent")
        kind = draw(st.sampled_from(kinds))
        name = names.pop()
        if kind == "place":
            sequence.append(Place(name))
        elif kind == "loop":
            least, most = draw(st.sampled_from([(1, None), (0, None), (0, 1), (1, 2), (2, 3)]))
            sequence.append(Loop(name, least, most))
            loops.append(name)
        elif kind == "choice":
            sequence.append(Choice((Place(name), Place(names.pop()))))
        elif kind == "together":
            other = names.pop()
            optional = draw(st.booleans())
            sequence.append(Together((Place(name), Loop(other, 0, 1) if optional else Place(other))))
        else:
            sequence.append(Absent(Place(name)))
            absent.append(name)
    used = [name for name in VARIABLES if name not in names]
    events = draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=5
        )
    )
    in_time = sorted(events, key=lambda each: each[0])
    made = [Event("s", 0, seq, ts, {"x": value}) for seq, (ts, value) in enumerate(in_time)]
    return Case(
        tuple(sequence),
        tuple(draw(st.lists(conditions(used, loops), max_size=2))),
        draw(st.dictionaries(st.sampled_from(used), st.integers(0, 2), max_size=2)),
        tuple(
            SpanWindow(tuple(variables), width)
            for variables, width in draw(
                st.lists(
                    st.tuples(st.lists(st.sampled_from(used), min_size=1, unique=True), st.integers(0, 5)),
                    max_size=1,
                )
            )
        ),
        draw(st.integers(0, 4)),
        tuple(made),
    )


def conditions(used: list[str], loops: list[str]) -> st.SearchStrategy[Condition]:
    name = st.sampled_from(used)
    kinds: list[st.SearchStrategy[Condition]] = [st.builds(Compare, name, st.sampled_from(OPS), name)]
    if loops:
        loop = st.sampled_from(loops)
        kinds += [
            st.builds(Rising, loop),
            st.builds(AtLeast, loop, st.integers(0, 3)),
            st.builds(SoFar, loop, st.integers(0, 4)),
        ]
    return st.one_of(kinds)


# --- the operator ---------------------------------------------------------------------------------------


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
