"""Compiled windows against interpreted ones: the same answers to the last bit, however the events are cut."""

from __future__ import annotations

import math
import os
import random
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kaicep.api import parse_query
from kaicep.errors import Failure, Source
from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings, Table
from kaicep.kernel.compile import compile_source
from kaicep.kernel.compiled.window_memory import library_names
from kaicep.kernel.compiled.windows import CompiledWindow, compilable
from kaicep.kernel.operator import Limits
from kaicep.kernel.project import Projection
from kaicep.kernel.sort import Parts
from kaicep.kernel.windows import WindowOperator
from kaicep.knowledge.relations import Relations
from kaicep.knowledge.store import Knowledge
from kaicep.optimize import optimize
from kaicep.plan.catalog import Catalog, Stream
from kaicep.plan.events import Event, Match
from kaicep.plan.nodes import Project, QueryPlan, WindowAggregate
from kaicep.plan.program import build_program
from kaicep.plan.types import INT64_MAX, INT64_MIN, Type
from kaicep.testing import prepare

EXAMPLES = int(os.environ.get("KAICEP_EXAMPLES", "100"))

TYPES = {
    "k": Type.STRING,
    "g": Type.STRING,
    "x": Type.FLOAT64,
    "n": Type.INT64,
    "b": Type.BOOL,
    "z": Type.TIMESTAMP,
}
CATALOG = Catalog({"s": Stream("s", tuple(TYPES.items()))})

FLOATS = "SUM(?e.x) AS sum, AVG(?e.x) AS mean, MIN(?e.x) AS low, COUNT(DISTINCT ?e.x) AS different"
INTEGERS = "SUM(?e.n) AS whole, AVG(?e.n) AS share, MAX(?e.n) AS high, COUNT(?e.n) AS numbers"
ENDS = "COUNT(?e) AS events, FIRST(?e.n) AS first, LAST(?e.g) AS last, FIRST(?e.g) AS opening"
ANNOTATION = {
    "prefixes": {"ee": "http://ee#", "evt": "http://evt#"},
    "stream": "s",
    "class": "evt:Report",
    "entities": {"k": {"property": "evt:hasSource", "iri": "ee:{value}"}},
}
SHAPES = {
    "sliding by time": (
        f"SELECT ?e.b, {FLOATS}, {INTEGERS}, {ENDS} WINDOW (?e, sliding, 5s) PARTITION BY ?e.k"
    ),
    "sliding by count, grouped": (
        f"SELECT {ENDS}, AVG(?e.x) AS mean WINDOW (?e, sliding, 7) "
        "PARTITION BY ?e.b, ?e.n GROUP BY ?e.k, ?e.x"
    ),
    "batch by time, grouped": (
        f"SELECT ?e.k, {FLOATS}, {ENDS}, MIN(?e.z) AS early WINDOW (?e, batch, 3s) "
        "GROUP BY ?e.k, ?e.n HAVING (COUNT(?e) < 9)"
    ),
    "batch by count, grouped": (
        f"SELECT ?e.x, {INTEGERS}, COUNT(DISTINCT ?e.g) AS different FILTER (?e.b = true || ?e.n > 1) "
        "WINDOW (?e, batch, 4) PARTITION BY ?e.k GROUP BY ?e.x"
    ),
}


@cache
def planned(text: str) -> tuple[QueryPlan, Catalog]:
    program, catalog = build_program([parse_query(Source("q.chi", text), {})], CATALOG, 0)
    plan, _ = optimize(program.queries[0], catalog, Knowledge.parse("", format="trig"))
    return plan, catalog


def interpreted(plan: QueryPlan, events: list[Event]) -> list[str]:
    assert isinstance(plan.root, Project)
    assert isinstance(plan.root.input, WindowAggregate)
    operator = WindowOperator(plan.root.input, plan.root.columns, None)  # type: ignore[arg-type]
    found = [*operator.feed(events), *operator.advance(math.inf)]
    return shown([each.match for each in Projection(plan).answers(found)])


def shown(matches: list[Match]) -> list[str]:
    return sorted(each.to_json() for each in matches)


def table_of(events: list[Event], strings: Strings) -> Table:
    parts = Parts(None)
    parts.finished = True
    sorter = ColumnSorter(("s",), parts, TYPES, strings)
    sorter.offer(batch_of_events("s", events, TYPES, strings))
    made = sorter.release()
    assert made is not None
    return made


def operator_of(text: str, strings: Strings, held: int = 10_000) -> CompiledWindow:
    plan, catalog = planned(text)
    return CompiledWindow(plan, catalog, None, strings, Limits(held))  # type: ignore[arg-type]


def compiled(text: str, events: list[Event], chance: random.Random) -> list[str]:
    """The answers of an operator that gets the events in batches, and is saved and loaded now and then."""
    strings = Strings()
    operator = operator_of(text, strings)
    found: list[Match] = []
    left = list(events)
    while left:
        size = chance.choice((1, 2, 70, len(left)))
        for each in operator.feed(table_of(left[:size], strings)):
            found += each.rows
        del left[:size]
        if left and chance.random() < 0.3:
            for each in operator.advance(left[0].ts):
                found += each.rows
        if chance.random() < 0.3:
            state = operator.snapshot()
            strings = Strings()
            strings.code("another process knows other strings")
            operator = operator_of(text, strings)
            operator.restore(state)
            assert operator.snapshot() == state
    for each in operator.advance(math.inf):
        found += each.rows
    return shown(found)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Many events, few of whose values are harmless."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    keys = ["a", "b", "c", None, *(f"once{each}" for each in range(draw(st.sampled_from((0, 300)))))]
    odd = draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4))
    pauses = draw(st.sampled_from(((0, 0, 1), (0, 1, 10, 50), (1, 600))))
    ts, events = draw(st.integers(-20, 20)) * 1_000_000, []
    for seq in range(draw(st.integers(1, 250))):
        ts += chance.choice(pauses) * 100_000
        values = {
            "k": chance.choice(keys),
            "g": chance.choice(("u", "v", None)),
            "x": chance.choice((None, 0.0, -0.0, chance.uniform(-9, 9), float(chance.randint(-3, 3)), *odd)),
            "n": chance.choice((None, 1, 2, chance.randint(-3, 3), INT64_MAX, INT64_MIN, 2**53 + 1)),
            "b": chance.choice((None, True, False)),
            "z": chance.choice((None, 0, chance.randint(-5, 5))),
        }
        events.append(Event("s", 0, seq, ts, values))
    return events


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
@settings(
    max_examples=max(EXAMPLES // 10, 10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(events=histories(), seed=st.integers(0, 99))
def test_answers_are_those_of_the_interpreted_window(text: str, events: list[Event], seed: int) -> None:
    plan, _ = planned(text)
    assert compiled(text, events, random.Random(seed)) == interpreted(plan, events)


# --- meaning ---------------------------------------------------------------------------------------------


def test_a_path_is_looked_up_by_the_code_of_its_string() -> None:
    run = prepare(
        "SELECT ?e.k, COUNT(?e) AS many WINDOW (?e, sliding, 5min) "
        "PATH {?e evt:hasSource ?source . ?source a ee:Good}",
        """
        event | ts | k
        a     | 0  | one
        b     | 1  | two
        c     | 2  | one
        d     | 3  | three
        """,
        knowledge="@prefix ee: <http://ee#> . ee:one a ee:Good . ee:two a ee:Bad . ee:three a ee:Good .",
        annotations=[ANNOTATION],
    )
    plan, _ = optimize(run.program.queries[0], run.catalog, run.knowledge)
    strings = Strings()
    semantics = Relations(run.catalog, run.knowledge)
    operator = CompiledWindow(plan, run.catalog, semantics, strings, Limits())
    found = [match for each in operator.feed(table_of(list(run.batches[0]), strings)) for match in each.rows]
    assert shown(found) == shown(run.matches("reference"))
    assert [each.select["many"] for each in found] == [1, 2, 3]


# --- memory ----------------------------------------------------------------------------------------------


def test_keys_that_come_once_leave_nothing_behind() -> None:
    strings = Strings()
    operator = operator_of(SHAPES["sliding by time"], strings)
    for round in range(40):
        first = round * 100
        events = [
            Event("s", 0, seq, seq * 100_000, {"k": f"key{seq}", "x": 1.5})
            for seq in range(first, first + 100)
        ]
        operator.feed(table_of(events, strings))
    assert operator.size <= 2 * 5 * 10 + 100  # two windows of ten events per second, and a batch
    assert operator.used(operator.inner) < 500
    operator.advance(math.inf)
    assert operator.size == 0


def test_a_window_that_holds_too_much_says_what_to_do() -> None:
    strings = Strings()
    operator = operator_of(SHAPES["sliding by time"], strings, held=100)
    events = [Event("s", 0, seq, seq, {"k": "a"}) for seq in range(500)]
    with pytest.raises(Failure, match="make the window narrower"):
        operator.feed(table_of(events, strings))


def test_a_state_of_another_shape_is_refused() -> None:
    state = operator_of(SHAPES["sliding by time"], Strings()).snapshot()
    with pytest.raises(Failure, match="another shape"):
        operator_of(SHAPES["batch by count, grouped"], Strings()).restore(state)


def test_constants_are_no_part_of_the_source() -> None:
    one, other = (
        operator_of(
            f"SELECT AVG(?e.x) > {limit} AS a WINDOW (?e, sliding, {width}) PARTITION BY ?e.k", Strings()
        )
        for limit, width in ((500, "5s"), (7, "2min"))
    )
    assert one.source.text == other.source.text


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT STDDEV(?e.x) AS a WINDOW (?e, sliding, 5s)", "STDDEV"),
        ("SELECT MIN(?e.k) AS a WINDOW (?e, sliding, 5s)", "MIN of strings"),
        ("SELECT ?e.x", "no query over a window"),
    ],
)
def test_what_cannot_be_compiled_is_told(query: str, reason: str) -> None:
    assert compilable(*planned(query)) == reason


# --- sums ------------------------------------------------------------------------------------------------

SUMS = """
@njit(nogil=True, cache=True)
def summed(values, signs, far, scratch):
    low, high, fars = 0, 0, 0
    for i in range(len(values)):
        if is_near(values[i]):
            low, high = near_moved(low, high, values[i], signs[i])
        else:
            fars += signs[i]
            far_add(far, 0, values[i], signs[i])
    return near_read(low, high) if fars == 0 else far_read(far, 0, low, high, scratch)


@njit(nogil=True, cache=True)
def averaged(values, signs, count, scratch):
    low, high = 0, 0
    for i in range(len(values)):
        low, high = whole_moved(low, high, values[i], signs[i])
    return whole_average(low, high, count, scratch)
"""


def moved(values: list[float] | list[int], gone: int) -> tuple[np.ndarray, np.ndarray]:
    """The values, and then the first of them taken away again."""
    signs = [1] * len(values) + [-1] * gone
    type = np.int64 if values and isinstance(values[0], int) else np.float64
    return np.array([*values, *values[:gone]], type), np.array(signs, np.int64)


def nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1000, 1000),
    st.floats(-5e-308, 5e-308),
    st.sampled_from((1.7976931348623157e308, 5e-324, 2.0**-64, 2.0**-65, 2.0**31, -(2.0**31), 2.0**-12)),
)


@settings(max_examples=EXAMPLES * 10, deadline=None)
@given(values=st.lists(numbers, max_size=12), gone=st.integers(0, 12), mirrored=st.booleans())
@example(values=[1e308, 1e308, -1e308, -1e308, 5e-324], gone=0, mirrored=False)
@example(values=[2.0**-1074, 2.0**1023, -(2.0**1023)], gone=0, mirrored=False)
@example(values=[0.5, 2.0**53, 1.0], gone=0, mirrored=False)
def test_a_sum_is_exact_and_rounded_once(values: list[float], gone: int, mirrored: bool) -> None:
    if mirrored:
        values = [*values, *(-each for each in values[1:])]
    gone = min(gone, len(values))
    far, scratch = np.zeros(72, np.int64), np.zeros(72, np.int64)
    got = compile_source(library_names() + SUMS)["summed"](*moved(values, gone), far, scratch)
    assert got == nearest(sum(map(Fraction, values[gone:]), Fraction(0)))


@settings(max_examples=EXAMPLES * 10, deadline=None)
@given(
    values=st.lists(st.integers(INT64_MIN, INT64_MAX), min_size=1, max_size=9),
    gone=st.integers(0, 8),
    count=st.integers(1, 2**31 - 1),
)
@example(values=[INT64_MIN] * 9, gone=0, count=2**31 - 1)
@example(values=[2**53 + 1, 2**53 + 2], gone=0, count=2)
def test_an_average_of_integers_is_rounded_once(values: list[int], gone: int, count: int) -> None:
    gone = min(gone, len(values))
    scratch = np.zeros(72, np.int64)
    got = compile_source(library_names() + SUMS)["averaged"](*moved(values, gone), count, scratch)
    assert got == sum(values[gone:]) / count
