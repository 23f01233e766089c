"""Shapes of queries on the machine, against the reference: few shapes, many streams, cuts and crashes."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import EXAMPLES
from tests.hosts.random_runs import Drawn, events
from tests.hosts.test_against_reference import interleaved, judged

from kaicep.api import FiniteRun
from kaicep.hosts import replacing
from kaicep.hosts.inprocess import Engine
from kaicep.hosts.queries import Settings
from kaicep.plan.events import Event, Match

pytestmark = pytest.mark.random

SHAPES = {
    "filter": "SELECT ?a.x, ?a.k, ?a.y FROM (?a, s, t) FILTER (?a.x > 1 || ?a.y < 3)",
    "pair": (
        "SELECT ?a.x, ?b.x - ?a.x AS d FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b)"
        " WINDOW (?a, ?b, 4s)"
    ),
    "next": "SELECT ?a.x FROM (?a, s), (?b, s) FILTER (?b.x > 1) SEQ (?a, ?b) WINDOW (?a, ?b, 5s) MATCH next",
    "strict": "SELECT ?a.y FROM (?a, s), (?b, t) SEQ (?a, ?b) MATCH strict WINDOW (?a, ?b, 5s)",
    "three": (
        "SELECT ?a.x, ?c.k FROM (?a, s), (?b, s), (?c, t) JOIN (?b.x >= ?a.x) SEQ (?a, ?b, ?c)"
        " WINDOW (?a, ?c, 6s) PARTITION BY ?a.k"
    ),
    "any order": "SELECT ?a.x, ?b.y FROM (?a, s), (?b, t) JOIN (?a.k = ?b.k) WINDOW (?a, ?b, 3s)",
    "absence": (
        "SELECT ?a.x FROM (?a, s), (?n, s), (?b, s) FILTER (?n.k = 'q') JOIN (?n.x > ?a.x)"
        " SEQ (?a, !?n, ?b) WINDOW (?a, ?b, 6s)"
    ),
    "silence": "SELECT ?a.k FROM (?a, s), (?n, t) JOIN (?n.k = ?a.k) SEQ (?a, !?n) WINDOW (?a, ?n, 3s)",
    "loop": (
        "SELECT ?a.x, ?b.x, COUNT(?b) AS n FROM (?a, s), (?b, s) JOIN (?b.x > PREV(?b.x)) JOIN (?b.k = ?a.k)"
        " SEQ (?a, ?b+) WINDOW (?a, ?b, 4s)"
    ),
    "path": (
        "SELECT ?a.x FROM (?a, s), (?b, s) JOIN (?a.k = ?b.k) SEQ (?a, ?b) WINDOW (?a, ?b, 6s)"
        " PATH {?a :from ?p . ?p :in ?r . ?r a :Office}"
    ),
    "sliding": "SELECT SUM(?a.y) AS total, ?a.k FROM (?a, s) WINDOW (?a, sliding, 3s) GROUP BY ?a.k",
    "batch": (
        "SELECT AVG(?a.x) AS mean, COUNT(?a) AS n, MAX(?a.y) AS top FROM (?a, s, t) WINDOW (?a, batch, 3s)"
    ),
}

# A stream without events is one whose attributes nobody knows.
PADDING = tuple(Event(name, 7, 0, 0, {"x": None, "y": None, "k": None}) for name in ("s", "t"))


def engine_for(run: FiniteRun, drawn: Drawn) -> Engine:
    parts = {name: sorted({each.part for each in drawn.events if each.stream == name}) for name in ("s", "t")}
    chosen = Settings(parts=parts)
    return Engine(run, lateness=drawn.lateness, settings=chosen)


def lived(run: FiniteRun, drawn: Drawn, chance: random.Random) -> list[str]:
    engine = engine_for(run, drawn)
    found: list[Match] = []
    order = interleaved(drawn.events, chance)
    while order:
        size = chance.choice((1, 2, 5, len(order)))
        some: list[Event] = order[:size]
        del order[:size]
        streams = {each.stream for each in some}
        if len(streams) == 1 and chance.random() < 0.5:
            found += engine.push_batch(engine.batch(streams.pop(), some))
        else:
            found += engine.push(some)
        if chance.random() < 0.3:
            saved = engine.snapshot()
            engine = engine_for(run, drawn)
            engine.restore(saved)
            assert engine.snapshot() == saved
    found += engine.finish()
    return [each.to_json() for each in sorted(found, key=lambda match: (match.end_us, match.id))]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_gives_what_the_reference_gives(shape: str) -> None:
    @settings(max_examples=max(EXAMPLES // 12, 8), deadline=None, suppress_health_check=list(HealthCheck))
    @given(events(most=14), st.sampled_from((None, 0, 2_000_000)), st.integers(0, 2**32))
    def agree(some: tuple[Event, ...], lateness: int | None, seed: int) -> None:
        drawn = Drawn({"q": SHAPES[shape]}, (*some, *PADDING), lateness)
        run = drawn.run()
        assert run is not None
        assert lived(run, drawn, random.Random(seed)) == judged(run)

    agree()


def test_many_queries_of_one_shape_are_found_in_one_pass_and_come_and_go() -> None:
    def text(level: float) -> str:
        return (
            f"SELECT ?a.x, ?b.y FROM (?a, s), (?b, s) FILTER (?b.y > {level}) JOIN (?a.k = ?b.k)"
            " SEQ (?a, ?b) WINDOW (?a, ?b, 6s)"
        )

    chance = random.Random(3)
    some = tuple(
        Event("s", 0, seq, seq * 300_000, {"x": seq, "y": chance.random() * 12, "k": chance.choice("pq")})
        for seq in range(200)
    )
    queries = {f"q{number}": text(number + 0.5) for number in range(12)}
    drawn = Drawn(queries, (*some, PADDING[1]), 0)
    run = drawn.run()
    assert run is not None
    wanted = judged(run)
    engine = engine_for(run, drawn)
    assert len(engine._steps) == 1
    found = engine.push(some[:100])
    saved = engine.snapshot()
    engine = engine_for(run, drawn)
    engine.restore(saved)
    for name in ("q0", "q7"):  # the one that asks least, and one among the others
        engine.unregister(name)
    found += engine.push(some[100:])
    found += engine.finish()
    half = 99 * 300_000
    told = sorted(each.to_json() for each in found)
    assert told == sorted(
        line
        for line, match in zip(wanted, run.matches("reference"), strict=True)
        if match.end_us <= half or match.query not in ("q0", "q7")
    )
    assert len(told) > 200


def test_keys_that_come_once_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "_FEW_STRINGS", 500)
    some = tuple(
        Event("s", 0, seq, seq * 100_000, {"x": 1, "y": float(seq), "k": f"once{seq // 2}"})
        for seq in range(4_000)
    )
    drawn = Drawn({"q": SHAPES["pair"]}, (*some[:20], PADDING[1]), 0)
    run = drawn.run()
    assert run is not None
    engine = engine_for(run, drawn)
    early = engine.batch("s", some[3_000:3_100])  # made long before it is pushed
    found: list[Match] = []
    most = 0
    for start in range(0, 3_000, 100):
        found += engine.push(some[start : start + 100])
        most = max(most, len(engine.strings))
    found += engine.push_batch(early)
    found += engine.push(some[3_100:])
    assert len(found) == 2_000  # every key comes twice in a row
    assert most < 700
    engine.advance(10**15)
    assert engine.size == 0
