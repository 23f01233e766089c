"""The window machine against the reference: every kind of window, many streams, any cut of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import Drawn, S, _filters, events
from tests.hosts.test_against_reference import judged
from tests.hosts.test_shapes import PADDING

from kaicep.api import FiniteRun
from kaicep.errors import Failure
from kaicep.hosts.queries import attribute_types
from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings, Table
from kaicep.kernel.operator import Limits
from kaicep.kernel.sort import Parts
from kaicep.kernel.warm import entries, warm
from kaicep.kernel.windowing import WindowMachine
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.events import Event, Match
from kaicep.plan.types import INT64_MAX, INT64_MIN

pytestmark = pytest.mark.random

COLUMNS = [
    "COUNT(?e) AS n",
    "COUNT(?e.x) AS nx",
    "COUNT(DISTINCT ?e.k) AS nk",
    "COUNT(DISTINCT ?e.y) AS ny",
    "SUM(?e.y) AS total",
    "SUM(?e.x) AS totalx",
    "SUM(?e.x * 9223372036854775807) AS large",
    "AVG(?e.y) AS mean",
    "AVG(?e.x) AS meanx",
    "MIN(?e.y) AS least",
    "MIN(?e.k) AS leastk",
    "MAX(?e.k) AS most",
    "MAX(?e.x) AS mostx",
    "STDDEV(?e.y) AS spread",
    "STDDEV(?e.x) AS spreadx",
    "STDDEV(?e.y * 1e-200) AS tiny",
    "FIRST(?e.x) AS first",
    "FIRST(?e.k) AS firstk",
    "LAST(?e.y) AS last",
    "MIN(?e.x + 1) AS more",
    "MAX(?e.y) - MIN(?e.y) AS span",
    "MAX(?e.ts) AS newest",
    "AVG(?e.x) > 1 AS high",
    "COUNT(?e) > 1 || SUM(?e.x) = 4 AS some",
]
IN = "PATH {?e :from ?e1 . ?e1 :in ?room}"
PATHS = [
    "PATH {?e :from ?e1 . ?e1 :in ?room . ?room a :Room}",
    IN,
    "PATH {?e :from ?e1 . OPTIONAL {?e1 :in ?room}}",
    IN + " PATH {?room :of ?unit}",
    IN + " PATH {:limit :value ?v} FILTER (?e.x > ?v)",
    IN + " PATH {?room :of ?unit . ?e :level ?l} FILTER (?l > 1 || ?unit != 'urn:kaicep:CS')",
    "PATH {?e :from :p} OR PATH {?e :level 3}",
]


@st.composite
def windows(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(("sliding", "batch")))
    sliding = kind == "sliding"
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=5, unique=True))
    clauses = [f"WINDOW (?e, {kind}, {draw(st.sampled_from(('1s', '3s', '5s', '1', '2', '3')))})"]
    path = draw(st.sampled_from(["", "", *PATHS]))
    rooms = "?room" in path
    groups = draw(
        st.lists(st.sampled_from(("?e.k", "?e.x", "?e.y", *["?room"] * 2 * rooms)), max_size=2, unique=True)
    )
    parts = draw(st.lists(st.sampled_from(("?e.k", "?e.x", *["?room"] * rooms)), max_size=2, unique=True))
    havings = ["COUNT(?e) > 1", "SUM(?e.y) > AVG(?e.x)", "COUNT(DISTINCT ?e.k) = 1"]
    if groups:
        clauses.append("GROUP BY " + ", ".join(groups))
    if parts:
        clauses.append("PARTITION BY " + ", ".join(parts))
    if sliding:
        chosen.append("?e.x AS now")
        chosen.append("?e.ts AS at")
        havings.append("MAX(?e.y) > ?e.y")
    shown = [each for each in ("?room", "?unit") if each in path and (sliding or each in (*groups, *parts))]
    for each in shown:
        if draw(st.booleans()):
            chosen.append(draw(st.sampled_from((each, f"coalesce({each}, 'none') AS named_{each[1:]}"))))
            havings.append(f"{each} = 'urn:kaicep:r2' || COUNT(?e) = 2")
    chosen += [
        f"{each} AS group{at}" for at, each in enumerate(groups) if each != "?room" and draw(st.booleans())
    ]
    if draw(st.integers(0, 2)) == 0:
        clauses.append(f"HAVING ({draw(st.sampled_from(havings))})")
    if draw(st.booleans()):
        clauses.append(draw(st.sampled_from(_filters("e"))))
    clauses.append(path)
    some = draw(st.lists(st.sampled_from(("s", "t")), min_size=1, max_size=2, unique=True))
    within = draw(st.sampled_from(("", "", "", "WITHIN [1970-01-01T00:00:02, 1970-01-01T00:00:06)")))
    return f"SELECT {', '.join(chosen)} FROM (?e, {', '.join(some)}) {within} WHERE {' '.join(clauses)}"


def machine_of(run: FiniteRun, strings: Strings, limits: Limits | None = None) -> WindowMachine:
    plan = optimize(run.program.queries[0], run.catalog, run.knowledge)[0]
    return WindowMachine(plan, run.catalog, Relations(run.catalog, run.knowledge), strings, limits)


def table_of(run: FiniteRun, machine: WindowMachine, some: tuple[Event, ...]) -> Table | None:
    types = attribute_types(machine, [machine.plan], run.catalog)
    parts = Parts(None)
    sorter = ColumnSorter(machine.streams, parts, types, machine.strings)
    for stream in machine.streams:
        own = [each for each in some if each.stream == stream]
        sorter.offer(batch_of_events(stream, own, types, machine.strings))
    parts.finished = True
    return sorter.release()


def found_by_machine(run: FiniteRun, some: tuple[Event, ...], seed: int) -> list[str]:
    """All matches, the events being given in pieces, and the state being saved and loaded now and then."""
    chance = random.Random(seed)
    machine = machine_of(run, Strings())
    table = table_of(run, machine, some)
    matches: list[Match] = []
    at = 0
    while table is not None and at < len(table):
        to = min(len(table), at + chance.choice((1, 2, 5, 100)))
        for chunk in machine.feed(table.take(slice(at, to))):
            matches += chunk
        if to < len(table) and chance.random() < 0.5:
            for chunk in machine.advance(int(table.ts[to])):
                matches += chunk
        if chance.random() < 0.3:
            strings = Strings()
            strings.codes(chance.sample("qpzab", 5))
            saved = machine.snapshot()
            machine = machine_of(run, strings)
            machine.restore(saved)
            table = table_of(run, machine, some)
        at = to
    for chunk in machine.advance(float("inf")):
        matches += chunk
    assert machine.node.window.width is None or machine.size == 0
    return [each.to_json() for each in sorted(matches, key=lambda match: (match.end_us, match.id))]


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(windows(), events(most=14), st.integers(0, 2**32))
def test_random_windows_give_what_the_reference_gives(text: str, some: tuple[Event, ...], seed: int) -> None:
    every = (*some, *PADDING)
    run = Drawn({"q": text}, every, None).run()
    assume(run is not None)
    assert run is not None
    assert found_by_machine(run, every, seed) == judged(run)


FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.sampled_from((5e-324, 1.7e308, -1.7e308)),
)
INTS = st.one_of(st.integers(INT64_MIN, INT64_MAX), st.integers(-5, 5))


@settings(max_examples=max(EXAMPLES // 4, 20), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.lists(st.tuples(st.none() | INTS, st.none() | FLOATS), max_size=12),
    st.sampled_from(("sliding, 3", "sliding, 4s", "batch, 5", "batch, 6s")),
    st.integers(0, 2**32),
)
def test_aggregates_are_exact(rows: list[tuple[int | None, float | None]], window: str, seed: int) -> None:
    columns = [
        f"{op}(?e.{of}) AS {op}_{of}" for op in ("SUM", "AVG", "STDDEV", "MIN", "MAX", "LAST") for of in "xy"
    ]
    some = tuple(Event("s", 0, at, at * S, {"x": x, "y": y, "k": "p"}) for at, (x, y) in enumerate(rows))
    every = (*some, *PADDING)
    run = Drawn({"q": f"SELECT {', '.join(columns)} FROM (?e, s) WINDOW (?e, {window})"}, every, None).run()
    assert run is not None
    assert found_by_machine(run, every, seed) == judged(run)


def silent(keys: int) -> tuple[Event, ...]:
    """Events that each have a key of their own."""
    return tuple(Event("s", 0, at, at * S, {"x": at, "y": 0.5, "k": f"k{at}"}) for at in range(keys))


def run_of(text: str, some: tuple[Event, ...]) -> FiniteRun:
    run = Drawn({"q": text}, (*some, PADDING[1]), None).run()
    assert run is not None
    return run


@pytest.mark.parametrize("window", ["sliding, 3s", "batch, 3s", "batch, 1"])
@pytest.mark.parametrize("clause", ["PARTITION BY ?e.k", "PARTITION BY ?e.k GROUP BY ?e.x", "GROUP BY ?e.k"])
def test_keys_that_do_not_come_back_are_forgotten(window: str, clause: str) -> None:
    some = silent(9_000)
    run = run_of(f"SELECT COUNT(DISTINCT ?e.x) AS n FROM (?e, s) WINDOW (?e, {window}) {clause}", some)
    machine = machine_of(run, Strings())
    table = table_of(run, machine, some)
    assert table is not None
    found = [each for at in range(0, 9_000, 500) for each in machine.feed(table.take(slice(at, at + 500)))]
    assert sum(map(len, found)) > 8_990
    assert machine.size <= 3
    assert len(machine.snapshot()) < 20_000
    assert len(machine._groups) <= 3


def test_too_much_is_refused() -> None:
    some = silent(20)
    run = run_of("SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, sliding, 1h)", some)
    machine = machine_of(run, Strings(), Limits(10))
    table = table_of(run, machine, some)
    assert table is not None
    assert len(list(machine.feed(table.take(slice(0, 10))))) == 1
    with pytest.raises(Failure, match="make the window narrower"):
        machine.feed(table.take(slice(10, 20)))


def test_the_state_of_another_window_is_refused() -> None:
    some = silent(3)
    saved = machine_of(
        run_of("SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 1h)", some), Strings()
    ).snapshot()
    other = run_of("SELECT SUM(?e.x) AS n FROM (?e, s) WINDOW (?e, batch, 1h)", some)
    with pytest.raises(Failure, match="another window"):
        machine_of(other, Strings()).restore(saved)


def test_an_answer_shows_the_version_of_its_last_event() -> None:
    some = silent(4)
    run = run_of("SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 2)", some)
    plan = optimize(run.program.queries[0], run.catalog, run.knowledge)[0]
    semantics = Relations(run.catalog, run.knowledge)
    machine = WindowMachine(plan, run.catalog, semantics, Strings(), versioned=True)
    table = table_of(run, machine, some)
    assert table is not None
    versions = []
    for at in range(4):
        machine.version = at
        machine.renew()
        versions += [match.version for each in machine.feed(table.take(slice(at, at + 1))) for match in each]
    assert versions == [1, 3]


def test_an_identity_may_be_any_two_words() -> None:
    some = silent(2)
    run = run_of("SELECT COUNT(?e) AS n FROM (?e, s) WINDOW (?e, batch, 2)", some)
    machine = machine_of(run, Strings())
    table = table_of(run, machine, some)
    assert table is not None
    derived = replace(table, part=np.array([INT64_MIN, 3]), seq=np.array([INT64_MAX, INT64_MIN]))
    (found,) = machine.feed(derived)
    first, last, count = found.batch["e"]
    assert (first.part.tolist(), first.seq.tolist()) == ([INT64_MIN], [INT64_MAX])
    assert (last.part.tolist(), last.seq.tolist(), count.tolist()) == ([3], [INT64_MIN], [2])


def test_a_warm_kernel_has_nothing_left_to_compile_for_windows() -> None:
    functions = [each for each, _ in entries()]
    warm()
    known = [len(each.overloads) for each in functions]
    some = tuple(Event("s", 0, seq, seq, {"x": seq % 7, "y": 1.0, "k": f"p{seq % 90}"}) for seq in range(300))
    for kind in ("sliding", "batch"):
        shown = "COUNT(DISTINCT ?e.x) AS n, MIN(?e.k) AS k"
        text = f"SELECT {shown} FROM (?e, s) WINDOW (?e, {kind}, 3s) GROUP BY ?e.k"
        run = Drawn({"q": text}, some, None).run()
        assert run is not None
        found_by_machine(run, some, 1)
    assert [len(each.overloads) for each in functions] == known
