"""What is counted and how it is shown; who is admitted when there is too much; what that costs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.live.harness import LONG, MODES, Clock, Gate, Got, python, service

from kaicep.live.bindings import Histogram
from kaicep.live.graph import Operator, Supplier
from kaicep.live.metrics import figures, prometheus, recall, shown
from kaicep.live.processor import ENOUGH, Admission, Hopeless, NodeCounts
from kaicep.live.sharing import LiveQuery
from kaicep.testing import prepare


@given(st.lists(st.integers(0, 10**10), min_size=1), st.floats(0, 100))
def test_a_percentile_is_right_to_a_sixtieth(values, share):
    found = Histogram()
    for each in values:
        found.record(each)
    exact = sorted(values)[max(0, -(-len(values) * share // 100).__int__() - 1)]
    assert exact <= found.percentile(share) <= exact * (1 + 1 / 60) + 1
    assert found.percentile(100) == found.largest == max(values)


def running_pair(**settings):
    """A high and a low consumer, of suppliers of their own."""
    got = Got()
    running = service(
        Supplier("a", 10_000, 10_000),
        Supplier("b", 10_000, 10_000),
        python("o", "a", lambda each: each),
        python("p", "b", lambda each: each),
        got.consumer("airbag", "o", 3),
        got.consumer("report", "p", 1),
        clock=Clock(),
        **settings,
    )
    return running, got


def test_everything_is_counted_by_priority():
    running, _ = running_pair()
    with running:
        running.push("a", b"four")
        running.push("b", 1)
        running.push("b", 2)
        assert running.drain(LONG)
        found = figures(running)
    assert json.loads(json.dumps(found)) == found
    high, low = found["levels"]["3"], found["levels"]["1"]
    assert (high["offered"], high["delivered"], high["timely"], high["late"], high["bytes"]) == (
        1,
        1,
        1,
        0,
        4,
    )
    assert low["timely"] + low["lost"] == low["offered"] == 2
    assert low["queues"] == {"input": 0, "pending": 0, "moving": 0}
    assert found["consumers"]["airbag"]["recall"] == 1


def test_a_level_that_delivered_nothing_has_no_latency():
    running, _ = running_pair()
    with running:
        running.push("a", 1)
        assert running.drain(LONG)
        found = figures(running)
    assert found["levels"]["3"]["latency_us"]["p99"] == 0  # the clock stands still
    assert set(found["levels"]["1"]["latency_us"].values()) == {None}
    assert 'latency_seconds{priority="1"' not in prometheus(found)
    high, low = (row.split() for row in shown(found).splitlines()[3:5])
    assert len(low) == len(high) - 3


def test_figures_for_prometheus_and_for_a_person():
    running, _ = running_pair()
    with running:
        running.push("a", 1)
        assert running.drain(LONG)
        found = figures(running)
    text = prometheus(found)
    assert 'kaicep_live_timely_total{priority="3"} 1\n' in text
    assert 'kaicep_live_shed_total{priority="1",reason="outdated"} 0\n' in text
    assert 'kaicep_live_latency_seconds{priority="3",quantile="0.99"}' in text
    for line in text.splitlines():
        assert line.startswith(("# HELP kaicep_live_", "# TYPE kaicep_live_", "kaicep_live_"))
    table = shown(found).splitlines()
    assert table[2].split()[:3] == ["level", "timely", "late"]
    assert [row.split()[0] for row in table[3:5]] == ["high", "low"]


PATHS = {"airbag": ["spectrum", "airbag"], "report": ["spectrum", "mean", "report"], "screen": ["screen"]}


class Passing:
    """Figures that go on: what passed each node in an interval, and what died there."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.counted = dict.fromkeys(("spectrum", "mean", "airbag", "report", "screen"), NodeCounts(0, 0))
        self.interval()

    def interval(self, pressed: bool = True, **given: tuple[int, int]) -> list[str]:
        for node, (through, missed) in given.items():
            before = self.counted[node]
            self.counted[node] = NodeCounts(before.through + through, before.missed + missed)
        self.admission.observe(PATHS, self.counted.__getitem__, pressed)
        return sorted(self.admission.hopeless)

    def fails(self, node: str) -> list[str]:
        """Lets a node get nothing through for two intervals."""
        self.interval(**{node: (0, 5)})
        return self.interval(**{node: (0, 5)})


def test_whom_nothing_reaches_is_left_out_and_named_with_the_place():
    passing = Passing()
    one = {"spectrum": (10, 0), "airbag": (0, 5), "mean": (10, 0), "report": (10, 0)}
    assert passing.interval(**one) == []
    assert passing.interval(**one) == ["airbag"]
    (found,) = passing.admission.hopeless.values()
    assert (found.node, found.missed) == ("airbag", 10)


def test_all_behind_a_node_that_nothing_passes_are_left_out():
    passing = Passing()
    passing.interval(spectrum=(0, 10), screen=(1, 9))
    assert passing.interval(spectrum=(0, 10), screen=(1, 9)) == ["airbag", "report"]


def test_what_dies_in_one_interval_was_kept_waiting():
    passing = Passing()
    assert passing.interval(airbag=(0, 50)) == []
    assert [passing.interval() for _ in range(5)] == [[]] * 5
    assert passing.interval(airbag=(1, 0)) == []
    assert passing.interval(airbag=(0, 50)) == []


def test_a_consumer_that_gets_anything_in_time_stays():
    passing = Passing()
    for _ in range(20):
        assert passing.interval(spectrum=(5, 50), airbag=(1, 50), screen=(1, 99)) == []


def test_a_few_late_events_say_nothing():
    passing = Passing()
    for _ in range(20):
        assert passing.interval(airbag=(0, 7)) == []
        passing.interval(airbag=(1, 0))


def test_a_try_that_fails_makes_the_next_one_wait_longer():
    passing, waits = Passing(), []
    for _ in range(3):
        assert passing.fails("airbag") == ["airbag"]
        waits.append(1)
        while passing.interval():
            waits[-1] += 1
    assert waits == [10, 20, 40]
    passing.interval(airbag=(1, 0))
    assert passing.fails("airbag") == ["airbag"]
    assert [passing.interval() for _ in range(10)].count([]) == 1


def test_whoever_was_left_out_because_of_others_comes_back_when_they_have_less_to_do():
    passing = Passing()
    assert passing.fails("airbag") == ["airbag"]
    assert [passing.interval() for _ in range(3)] == [["airbag"]] * 3
    assert passing.interval(pressed=False) == ["airbag"]
    assert passing.interval(pressed=False) == []


def test_whoever_was_the_load_itself_waits():
    passing = Passing()
    assert passing.fails("airbag") == ["airbag"]
    passing.interval()
    assert [passing.interval(pressed=False) for _ in range(8)] == [["airbag"]] * 8
    assert passing.interval(pressed=False) == []


@pytest.mark.parametrize("real_time", MODES)
def test_a_burst_of_others_leaves_nobody_out(real_time):
    """What was kept waiting meanwhile is outdated all at once; shedding alone would serve the next event."""
    got, gate, clock = Got(), Gate(), Clock()

    def slow(_: object) -> Iterator[None]:
        gate.entered.set()
        while not gate.opened.wait(0.001):
            yield None

    running = service(
        Supplier("s", 50_000, 1_000),
        python("spectrum", "s", lambda payload: payload),
        python("slow", "s", slow),
        python("copy", "spectrum", lambda payload: payload),
        got.consumer("high", "spectrum", 3),
        got.consumer("middle", "slow", 2),
        got.consumer("low", "copy"),
        real_time=real_time,
        clock=clock,
        cores=1,
        admission=True,
    )
    looked = threading.Semaphore(0)
    observe = running.admission.observe

    def looking(*given: Any) -> bool:
        found = observe(*given)
        looked.release()
        return found

    running.admission.observe = looking
    with running:
        assert looked.acquire(timeout=LONG)
        running.push("s", 0)
        assert gate.entered.wait(LONG)
        for number in range(1, 30):
            running.push("s", number)
        until = time.monotonic() + LONG
        while len(running.operators["copy"].waiting[0]) < ENOUGH:
            assert time.monotonic() < until
            time.sleep(0.001)
        clock.forward(100)
        gate.opened.set()
        assert running.drain(LONG)
        assert running.operators["copy"].counters.shed["outdated"] >= ENOUGH
        while looked.acquire(blocking=False):
            pass
        for _ in range(3):
            assert looked.acquire(timeout=LONG)
        assert running.push("s", "fresh")
        assert running.drain(LONG)
    assert got.payloads("low")[-1:] == ["fresh"]


def test_whoever_waits_for_others_is_let_in_by_the_service_when_nothing_waits():
    got = Got()
    running = service(
        Supplier("s"), python("copy", "s"), got.consumer("low", "copy"), admission=True, cores=1
    )
    with running:
        with running.dispatcher.lock:
            running.admission._leave_out(Hopeless("low", "copy", 9))
            running.admission._left["low"] = 1_000_000
            running.admission._pressed["low"] = 2
            running._admit()
        assert not running.push("s", "nobody wants it")
        until = time.monotonic() + LONG
        while not running.push("s", "again"):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert running.drain(LONG)
    assert got.payloads("low") == [("again",)]


def test_the_service_notices_that_something_had_to_wait():
    got, gate = Got(), Gate()
    running = service(Supplier("s"), python("slow", "s", gate), got.consumer("c", "slow"), cores=1)
    with running:
        running.push("s", 1)
        assert gate.entered.wait(LONG)
        assert not running.dispatcher.pressed
        running.push("s", 2)
        assert running.dispatcher.pressed
        gate.opened.set()
        assert running.drain(LONG)


def test_who_is_not_admitted_costs_nothing_and_is_counted():
    running, got = running_pair()
    with running:
        with running.dispatcher.lock:
            running.admission.hopeless["report"] = Hopeless("report", "p", 9)
            running._admit()
        assert running.push("a", 1)
        assert not running.push("b", 2)
        assert running.drain(LONG)
        found = figures(running)
    assert got.payloads("airbag") == [1]
    assert running.operators["p"].counters.ran == 0
    assert found["levels"]["1"]["shed"]["hopeless"] == 1
    assert "left out for now: report: 9 events in a row ended at p" in shown(found)
    assert found["consumers"]["report"]["recall"] == 0
    assert found["consumers"]["airbag"]["recall"] == 1


def test_what_is_waiting_goes_when_its_consumer_is_left_out():
    got = Got()
    running = service(
        Supplier("a"), Supplier("b"), python("both", "a b"), got.consumer("low", "both"), clock=Clock()
    )
    with running:
        running.push("a", 1)
        assert running.drain(LONG)
        with running.dispatcher.lock:
            running.admission.hopeless["low"] = Hopeless("low", "both", 9)
            running._admit()
            running.admission.hopeless.clear()
            running._admit()
        running.push("a", 2)
        running.push("b", 2)
        assert running.drain(LONG)
    assert got.payloads("low") == [(2, 2)]


def test_a_match_of_two_events_is_lost_with_either():
    text = "SELECT ?a.x FROM (?a, s), (?b, s) SEQ (?a, ?b) WINDOW (?a, ?b, 10s)"
    query = LiveQuery.of(prepare({"q.chi": text}, {"s": "event | ts | x\none | 0 | 1"}))
    got = Got()
    running = service(
        Supplier("s", type="records"),
        Operator("q", "query", ("s",), {"query": "q.chi"}, query),
        got.consumer("c", "q"),
        clock=Clock(),
    )
    running.suppliers["s"].counters.offered = 10
    running.suppliers["s"].counters.shed["hopeless"] = 1
    assert recall(running, "s") == pytest.approx(0.9)
    assert recall(running, "q") == recall(running, "c") == pytest.approx(0.81)
