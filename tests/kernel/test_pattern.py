"""The pattern machine alone against the reference: every MATCH and AFTER MATCH, any batches, saved states."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES

from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Matches, Strings
from kaicep.kernel.operator import Nobody
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Parts
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.chi import Absent, Choice, Element, Loop, Place, SpanWindow, Together
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate, Call, Const, Expr, Field, Previous
from kaicep.plan.nodes import Chain, ChiPlan, Pattern
from kaicep.plan.types import Type
from kaicep.reference.chicep import pattern_matches

SKIPS = ("none", "next", "past_last", "first", "last")

pytestmark = pytest.mark.random

OPS = ("<", "<=", "=", "!=", ">")
VARIABLES = ("a", "b", "c", "d")


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
        used = {name for each in self.sequence for name in names_in(each)}
        return Pattern(
            tuple(self.chain(name) for name in VARIABLES if name in used),
            ("s",),
            self.sequence,
            tuple(each.expr() for each in self.conditions),
            windows=self.windows,
            match=match,
            deadline=self.deadline,
        )

    def chain(self, variable: str) -> Chain:
        if variable not in self.filters:
            return Chain(variable, ("s",))
        least = Const(self.filters[variable], Type.INT64)
        return Chain(variable, ("s",), conditions=(Call(">=", (x(variable), least), Type.BOOL),))


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


# --- the machine -----------------------------------------------------------------------------------------

CATALOG = Catalog({"s": Stream("s", (("x", Type.INT64),))})


def shown(rounds: Mapping[str, Sequence[int]], start: int, end: int) -> tuple[object, ...]:
    return tuple(sorted((name, tuple(of)) for name, of in rounds.items())), start, end


def referred(pattern: Pattern, events: tuple[Event, ...]) -> list[tuple[object, ...]]:
    return sorted(
        shown({name: [event.seq for event in of] for name, of in each.rounds.items()}, each.start, each.end)
        for each in pattern_matches(pattern, events, Nobody())
    )


def of_matches(found: Iterable[Matches]) -> list[tuple[object, ...]]:
    made = []
    for match in (match for chunk in found for match in chunk):
        assert match.events is not None
        rounds = {
            name: [each["seq"] for each in (of if isinstance(of, list) else [of])]
            for name, of in match.events.items()
        }
        made.append(shown({name: of for name, of in rounds.items() if of}, match.start_us, match.end_us))
    return made


class Running:
    """A machine that gets events of one stream, and can be saved and loaded."""

    def __init__(self, pattern: Pattern, state: bytes | None = None) -> None:
        self.pattern = pattern
        self.strings = Strings()
        variables = tuple(dict.fromkeys(name for each in pattern.sequence for name in names_in(each)))
        plan = ChiPlan("q", "q", pattern, (), ("s",), variables)
        self.machine = PatternMachine(plan, CATALOG, Nobody(), self.strings)
        if state is not None:
            self.machine.restore(state)

    def copy(self) -> Running:
        saved = self.machine.snapshot()
        made = Running(self.pattern, saved)
        assert made.machine.snapshot() == saved
        return made

    def feed(self, events: Sequence[Event]) -> list[tuple[object, ...]]:
        parts = Parts(None)
        sorter = ColumnSorter(("s",), parts, {"x": Type.INT64}, self.strings)
        sorter.offer(batch_of_events("s", events, {"x": Type.INT64}, self.strings))
        parts.finished = True
        table = sorter.release()
        return of_matches(self.machine.feed(table)) if table is not None else []

    def advance(self, watermark: float) -> list[tuple[object, ...]]:
        return of_matches(self.machine.advance(watermark))

    def rest(self, events: Sequence[Event]) -> list[tuple[object, ...]]:
        """What is still to be found."""
        return [*self.feed(events), *self.advance(math.inf)]


def lived(pattern: Pattern, events: tuple[Event, ...], chance: random.Random) -> list[tuple[object, ...]]:
    """The matches of a machine that gets the events in batches, and is saved and loaded now and then."""
    running = Running(pattern)
    found: list[tuple[object, ...]] = []
    left = list(events)
    while left:
        size = chance.choice((1, 1, 2, len(left)))
        found += running.feed(left[:size])
        del left[:size]
        if left and chance.random() < 0.4:
            watermark = chance.choice((left[0].ts, left[0].ts - 1))
            found += running.advance(watermark)
            promised = running.machine.promise(watermark)
            assert all(end >= promised for _, _, end in running.copy().rest(left))  # type: ignore[misc]
        if chance.random() < 0.4:
            running = running.copy()
    found += running.advance(math.inf)
    return sorted(found)


@pytest.mark.parametrize("effort", [EXAMPLES])
@pytest.mark.parametrize("match", ["any", "next", "strict"])
def test_the_machine_finds_what_the_reference_finds(match: str, effort: int) -> None:
    @settings(max_examples=effort, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(), st.sampled_from(SKIPS), st.integers(0, 2**32), st.data())
    def agree(case: Case, skip: str, seed: int, data: st.DataObject) -> None:
        positive = sorted(
            {name for each in case.sequence if not isinstance(each, Absent) for name in names_in(each)}
        )
        variable = data.draw(st.sampled_from(positive)) if skip in ("first", "last") else None
        pattern = replace(case.plan(match), skip=skip, skip_variable=variable)
        assert lived(pattern, case.events, random.Random(seed)) == referred(pattern, case.events)

    agree()


def names_in(element) -> list[str]:
    return [each.variable for each in getattr(element, "members", (element,))]
