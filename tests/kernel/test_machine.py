"""The pattern machine against the reference: every construct of a pattern, many streams, any cut of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import Drawn, events, patterns
from tests.hosts.test_against_reference import judged
from tests.hosts.test_shapes import PADDING, SHAPES

from kaicep.api import FiniteRun
from kaicep.errors import Failure
from kaicep.hosts.queries import attribute_types
from kaicep.kernel.batches import ColumnSorter, batch_of_events
from kaicep.kernel.columns import Strings, Table
from kaicep.kernel.operator import Limits
from kaicep.kernel.pattern_state import why_other_shape
from kaicep.kernel.patterns import PatternMachine
from kaicep.kernel.sort import Parts
from kaicep.kernel.warm import entries, is_warm, warm
from kaicep.knowledge.relations import Relations
from kaicep.optimize import optimize
from kaicep.plan.events import Event, Match

pytestmark = pytest.mark.random

MORE = {
    "three, next": (
        "SELECT ?a.x, ?c.k FROM (?a, s), (?b, s), (?c, t) JOIN (?b.x >= ?a.x) SEQ (?a, ?b, ?c)"
        " WINDOW (?a, ?c, 6s) MATCH next"
    ),
    "a bound that follows from a join": (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, s) FILTER (?a.x > 1) JOIN (?b.x - ?a.x >= 1)"
        " JOIN (?n.x > ?a.x) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 6s)"
    ),
    "a bound, strict": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, s) FILTER (?b.x > 1) JOIN (?a.x > ?b.x) JOIN (?c.x < ?b.x)"
        " SEQ (?a, ?b, ?c) WINDOW (?a, ?c, 6s) MATCH strict"
    ),
    "a choice with windows of its own": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) FILTER (?b.x > 1) JOIN (?c.y > ?a.y) SEQ (?a, (?b | ?c))"
        " WINDOW (?a, ?b, 4s) WINDOW (?a, ?c, 2s) MATCH next"
    ),
    "a conjunction": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) FILTER (?b.x > 1) JOIN (?c.k = ?b.k) SEQ (?a, (?b & ?c))"
        " WINDOW (?a, ?b, ?c, 6s)"
    ),
    "a loop in a conjunction": (
        "SELECT ?a.x FROM (?a, s), (?b, s), (?c, t) SEQ (?a, (?b+ & ?c)) WINDOW (?a, ?b, ?c, 4s)"
    ),
    "a condition on every round, tested later": (
        "SELECT ?a.x, COUNT(?b) AS n FROM (?a, s), (?b, s), (?c, s) JOIN (?b.x > PREV(?b.x))"
        " JOIN (?c.x > ?b.x) SEQ (?a, ?b+, ?c) WINDOW (?a, ?c, 6s) MATCH next"
    ),
    "aggregates of a loop": (
        "SELECT ?a.x, SUM(?b.y) AS n FROM (?a, s), (?b, s) JOIN (SUM(?b.y) > ?a.y) JOIN (MAX(?b.x) < 4)"
        " JOIN (?b.x >= FIRST(?b.x)) SEQ (?a, ?b+) WINDOW (?a, ?b, 4s)"
    ),
    "an absence that a later event decides": (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, t) JOIN (?n.y > ?b.y) SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 6s)"
    ),
    "strings of two events": (
        "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?a.k < ?b.k || contains(?a.k, ?b.k)) SEQ (?a, ?b)"
        " WINDOW (?a, ?b, 6s)"
    ),
    "a PATH over two events": (
        "SELECT ?a.x, ?r FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 6s)"
        " PATH {?a :from ?p . ?p :in ?r . ?b :from ?q . ?q :in ?r}"
    ),
    "an optional event before a silence": (
        "SELECT ?a.k FROM (?a, s), (?b, s), (?n, t) JOIN (?n.x > ?b.x) SEQ (?a, ?b?, !?n)"
        " WINDOW (?a, ?b, ?n, 3s)"
    ),
}
ALL = {name: text for name, text in (SHAPES | MORE).items() if name not in ("sliding", "batch")}


def machine_of(run: FiniteRun, strings: Strings, limits: Limits | None = None) -> PatternMachine:
    plan = optimize(run.program.queries[0], run.catalog, run.knowledge)[0]
    return PatternMachine(plan, run.catalog, Relations(run.catalog, run.knowledge), strings, limits)


def found_by_machine(run: FiniteRun, some: tuple[Event, ...], seed: int) -> list[str]:
    """All matches, the events being given in pieces, and the state being saved now and then."""
    chance, strings = random.Random(seed), Strings()
    machine = machine_of(run, strings)
    matches: list[Match] = []
    events = table_of(machine, run, some, strings)
    at, count = 0, len(events)
    while at < count:
        to = min(count, at + chance.choice((1, 2, 5, 100)))
        for chunk in machine.feed(events.take(slice(at, to))):
            matches += chunk
        if to < count and chance.random() < 0.5:
            for chunk in machine.advance(int(events.ts[to])):
                matches += chunk
        at = to
        if chance.random() < 0.3:
            state, strings = machine.snapshot(), Strings()
            strings.codes(chance.sample("pqrz", 4))
            machine = machine_of(run, strings)
            machine.restore(state)
            assert machine.snapshot() == state
            events = table_of(machine, run, some, strings)
    for chunk in machine.advance(float("inf")):
        matches += chunk
    return [each.to_json() for each in sorted(matches, key=lambda match: (match.end_us, match.id))]


def table_of(machine: PatternMachine, run: FiniteRun, some: tuple[Event, ...], strings: Strings) -> Table:
    """The events in order, as columns."""
    types = attribute_types(machine, [machine.plan], run.catalog)
    parts = Parts(None)
    sorter = ColumnSorter(machine.streams, parts, types, strings)
    for stream in machine.streams:
        own = [each for each in some if each.stream == stream]
        sorter.offer(batch_of_events(stream, own, types, strings))
    parts.finished = True
    table = sorter.release()
    assert table is not None
    return table


@pytest.mark.parametrize("name", ALL)
def test_the_machine_gives_what_the_reference_gives(name: str) -> None:
    @settings(max_examples=max(EXAMPLES // 20, 20), suppress_health_check=list(HealthCheck))
    @given(events(most=14), st.integers(0, 2**32))
    def agree(some: tuple[Event, ...], seed: int) -> None:
        every = (*some, *PADDING)
        run = Drawn({"q": ALL[name]}, every, None).run()
        assert run is not None
        assert found_by_machine(run, every, seed) == judged(run)

    agree()


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(patterns(), events(), st.integers(0, 2**32))
def test_random_patterns_give_what_the_reference_gives(text: str, some: tuple[Event, ...], seed: int) -> None:
    every = (*some, *PADDING)
    run = Drawn({"q": text}, every, None).run()
    if run is not None:
        assert found_by_machine(run, every, seed) == judged(run)


def test_what_is_oldest_is_let_go_of_and_counted() -> None:
    some = tuple(
        Event("s", 0, seq, seq, {"x": seq, "y": 1.0, "k": "end" if seq % 10_000 == 9_999 else "p"})
        for seq in range(50_000)
    )
    text = "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?b.k = 'end') SEQ (?a, ?b)"
    run = Drawn({"q": text}, some, None).run()
    assert run is not None
    strings = Strings()
    machine = machine_of(run, strings, Limits(held=100, shed=True))
    every, begun = table_of(machine, run, some, strings), 0
    for at in range(0, len(every), 1_000):
        for chunk in machine.feed(every.take(slice(at, at + 1_000))):
            for match in chunk:
                assert match.end_us - 100 <= match.start_us < match.end_us
        begun = at + 1_000
        assert machine.size <= 100
        assert machine.shed == begun - machine.size
    assert len(machine.memory.nodes) < 50_000
    refusing = machine_of(run, strings, Limits(held=100))
    with pytest.raises(Failure, match="keeps 101 events and partial matches"):
        list(refusing.feed(every))


def test_a_warm_machine_has_nothing_left_to_compile() -> None:
    functions = [each for each, _ in entries()]
    warm()
    assert is_warm()
    known = [len(each.overloads) for each in functions]
    some = tuple(Event("s", 0, seq, seq, {"x": seq, "y": 1.0, "k": "p"}) for seq in range(100))
    for text in (
        "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) AFTER MATCH SKIP TO NEXT PARTITION BY ?a.k",
        "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?b.x > ?a.x) SEQ (?a, ?b+) MATCH strict",
    ):
        run = Drawn({"q": text}, some, None).run()
        assert run is not None
        found_by_machine(run, some, 1)
    assert [len(each.overloads) for each in functions] == known


def test_an_edited_query_goes_on_with_the_state_where_it_keeps_the_same() -> None:
    some = tuple(Event("s", 0, seq, seq * 1_000_000, {"x": seq, "y": 1.0, "k": "p"}) for seq in range(6))

    def machine(rest: str) -> tuple[PatternMachine, Table]:
        run = Drawn({"q": f"SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) {rest}"}, some, None).run()
        assert run is not None
        made = machine_of(run, strings := Strings())
        return made, table_of(made, run, some, strings)

    old, events = machine("JOIN (?b.x > ?a.x) WINDOW (?a, ?b, 10s)")
    list(old.feed(events.take(slice(0, 4))))
    new, events = machine("JOIN (?b.x > ?a.x) FILTER (?b.x > 4) WINDOW (?a, ?b, 2s)")
    assert why_other_shape(old.shape, new.shape) is None
    new.restore(old.snapshot())
    found = [match.select["x"] for chunk in new.feed(events.take(slice(4, 6))) for match in chunk]
    assert sorted(found) == [3, 4]
    other, _ = machine("JOIN (?b.y > ?a.y) WINDOW (?a, ?b, 10s)")
    assert why_other_shape(old.shape, other.shape) is not None
    with pytest.raises(Failure, match="it needs other values of earlier events"):
        other.restore(old.snapshot())


def test_a_sum_that_no_state_has_is_worked_out_from_the_events() -> None:
    some = tuple(Event("s", 0, seq, seq * 1_000_000, {"x": seq, "y": 0.5, "k": "p"}) for seq in range(7))

    def machine(rest: str) -> tuple[PatternMachine, Table]:
        text = f"SELECT ?b.x, ?b.y FROM (?a, s), (?b, s) SEQ (?a, ?b+) WINDOW (?a, ?b, 10s) {rest}"
        run = Drawn({"q": text}, some, None).run()
        assert run is not None
        made = machine_of(run, strings := Strings())
        return made, table_of(made, run, some, strings)

    having = "HAVING (SUM(?b.x) > 12 && AVG(?b.y) < 1)"
    (old, before), (new, events), (always, _) = machine(""), machine(having), machine(having)
    list(old.feed(before.take(slice(0, 5))))
    list(always.feed(events.take(slice(0, 5))))
    new.restore(old.snapshot())
    found, wanted = (
        sorted(str(match.select) for chunk in each.feed(events.take(slice(5, 7))) for match in chunk)
        for each in (new, always)
    )
    assert found == wanted
    assert len(found) > 20
