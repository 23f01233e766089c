"""What raises, hangs, blocks, comes and goes: the graph lives."""

from __future__ import annotations

import threading

import pytest
from tests.live.harness import LONG, MODES, Clock, Gate, Got, python, service

from kaicep.errors import Mistake
from kaicep.live.event_service import Service, Settings
from kaicep.live.graph import Consumer, Operator, Supplier


def test_an_operator_that_raises_leaves_a_dead_letter():
    got = Got()
    running = service(
        Supplier("s"), python("inverse", "s", lambda number: 1 / number), got.consumer("c", "inverse", 2)
    )
    with running:
        for number in (1, 0, 2):
            running.push("s", number)
        assert running.drain(LONG)
    assert got.payloads("c") == [1, 0.5]
    (letter,) = running.dead_letters
    assert (letter.node, letter.payloads) == ("inverse", (0,))
    assert isinstance(letter.error, ZeroDivisionError)
    assert running.by_priority[2].shed == {"error": 1}


def test_a_consumer_that_raises_leaves_one_too():
    def refuse(delivery):
        raise ValueError(delivery.payload)

    letters = []
    running = Service(
        service(Supplier("s"), Consumer("c", "s", 1, refuse)).given,
        Settings(real_time=False),
        on_dead_letter=letters.append,
    )
    with running:
        running.push("s", 7)
        assert running.drain(LONG)
    assert [(each.node, str(each.error)) for each in letters] == [("c", "7")]


@pytest.mark.parametrize("real_time", MODES)
def test_an_operator_that_hangs_is_reported_and_its_level_goes_on(real_time):
    gate, got = Gate(), Got()
    hung, done = [], threading.Event()
    nodes = service(
        Supplier("s"),
        Supplier("t"),
        python("stuck", "s", gate),
        python("fine", "t", lambda each: done.set() or each),
        got.consumer("a", "stuck"),
        got.consumer("b", "fine"),
    ).given
    running = Service(nodes, Settings(real_time=real_time, cores=1, patience=0.05), on_hanging=hung.append)
    with running:
        running.push("s", 1)
        assert gate.entered.wait(LONG)
        running.push("t", 2)  # the only worker of the level is stuck
        assert done.wait(LONG)
        assert [each.node for each in hung] == ["stuck"]
        gate.opened.set()
        assert running.drain(LONG)
        running.push("t", 3)
        assert running.drain(LONG)
    assert got.payloads("a") == [1]
    assert got.payloads("b") == [2, 3]
    assert len(running.hanging) == 1


def test_an_operator_with_many_short_steps_does_not_hang():
    clock, got, hung = Clock(), Got(), []

    def long(payload):
        for _ in range(3):
            clock.forward(600)
            with running.dispatcher.lock:
                hung.extend(running.crew.watch(clock(), patience=1.0))
            yield payload

    running = service(Supplier("s"), python("long", "s", long), got.consumer("c", "long"), clock=clock)
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
    assert hung == []
    assert got.payloads("c") == [1, 1, 1]


@pytest.mark.parametrize("real_time", MODES)
def test_a_consumer_that_blocks_holds_nobody_up_above_it(real_time):
    gate, high = Gate(), threading.Event()
    running = service(
        Supplier("s"),
        Consumer("blocked", "s", 1, gate, queue=4),
        Consumer("airbag", "s", 3, lambda each: high.set() if each.payload == 19 else None),
        real_time=real_time,
        cores=1,
    )
    with running:
        running.push("s", 0)
        assert gate.entered.wait(LONG)
        for number in range(1, 20):
            running.push("s", number)
        assert high.wait(LONG)
        assert running.by_priority[3].delivered == 20
        gate.opened.set()
        assert running.drain(LONG)
        blocked = running.consumers["blocked"].counters
    assert blocked.shed == {"full": 15}
    assert blocked.delivered == 5


def test_a_callback_that_blocks_gives_its_worker_back_and_lower_levels_go_on():
    gate, low = Gate(), threading.Event()
    running = service(
        Supplier("s"),
        Consumer("blocked", "s", 3, gate, queue=4),
        Consumer("report", "s", 1, lambda each: low.set() if each.payload == 9 else None),
        cores=1,
    )
    with running:
        running.push("s", 0)
        assert gate.entered.wait(LONG)
        for number in range(1, 10):
            running.push("s", number)
        assert low.wait(LONG)
        blocked = running.consumers["blocked"]
        assert blocked.counters.blocked == 1
        gate.opened.set()
        assert running.drain(LONG)
        assert blocked.seat is not None  # it keeps a thread of its own
        running.push("s", 10)
        assert running.drain(LONG)
    assert blocked.counters.delivered + blocked.counters.shed["full"] == 11
    assert blocked.counters.delivered >= 6
    assert not [each for each in threading.enumerate() if each.name.startswith("kaicep-live")]


def test_stopping_waits_for_the_keeper_too(monkeypatch):
    gone = threading.Event()

    def slow(self, stopping):
        stopping.wait()
        gone.wait(0.2)

    monkeypatch.setattr(Service, "_keep", slow)
    with service(Supplier("s")):
        pass
    assert not [each for each in threading.enumerate() if each.name.startswith("kaicep-live")]


def test_a_join_with_a_silent_side_keeps_what_it_may_and_counts_the_rest():
    got = Got()
    both = Operator("both", "python", ("a", "b"), {}, lambda *each: each, queue=3)
    running = service(Supplier("a", ring=100), Supplier("b"), both, got.consumer("c", "both"))
    with running:
        for number in range(10):
            running.push("a", number)
        assert running.drain(LONG)
        assert [len(each) for each in running.operators["both"].waiting] == [3, 0]
        assert running.operators["both"].counters.shed == {"unpaired": 7}
        running.push("b", "x")
        assert running.drain(LONG)
    assert got.payloads("c") == [(7, "x")]


def test_a_parallel_operator_works_on_several_events_and_keeps_their_order():
    first, second, got = Gate(), threading.Event(), Got()

    def work(number: int) -> int:
        if number == 0:
            return first(number)
        second.set()
        return number

    parallel = Operator("o", "python", ("s",), {}, work, parallel=True)
    running = service(Supplier("s", ring=10), parallel, got.consumer("c", "o"), cores=2)
    with running:
        running.push("s", 0)
        running.push("s", 1)
        assert second.wait(LONG)  # while the first is still under way
        assert got.payloads("c") == []
        first.opened.set()
        assert running.drain(LONG)
    assert got.payloads("c") == [0, 1]


def test_what_remembers_cannot_be_parallel():
    with pytest.raises(Mistake, match="o: ekf remembers what came before"):
        service(Supplier("s"), Operator("o", "ekf", ("s",), parallel=True), Consumer("c", "o"))


def test_start_and_stop_in_any_order():
    got = Got()
    running = service(Supplier("s"), python("o", "s", lambda each: each), got.consumer("c", "o"))
    running.stop()
    running.push("s", 1)
    assert got.payloads("c") == []
    running.start()
    running.start()
    assert running.drain(LONG)
    running.stop()
    running.stop()
    running.push("s", 2)
    running.start()
    assert running.drain(LONG)
    running.stop()
    assert got.payloads("c") == [1, 2]
    assert not [each for each in threading.enumerate() if each.name.startswith("kaicep-live-worker")]


def test_stopping_leaves_behind_what_hangs_and_goes_on_after_it():
    gate, got = Gate(), Got()
    running = service(Supplier("s"), python("o", "s", gate), got.consumer("c", "o"))
    running.start()
    running.push("s", 1)
    assert gate.entered.wait(LONG)
    running.stop(timeout=0.01)
    running.start()
    running.push("s", 2)
    gate.opened.set()
    assert running.drain(LONG)
    running.stop()
    assert got.payloads("c") == [1, 2]


def test_an_unknown_supplier_is_told_with_a_known_one():
    running = service(Supplier("radar"), Consumer("c", "radar"))
    with pytest.raises(Mistake, match="did you mean radar"):
        running.push("rader", 1)


# --- while it runs -----------------------------------------------------------------------------------------


def test_nodes_come_and_go_while_it_runs():
    got = Got()
    running = service(Supplier("s"), python("o", "s", lambda each: each), got.consumer("c", "o", 1))
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
        running.add(Supplier("t"), python("both", "o t"), got.consumer("d", "both", 3))
        assert running.operators["o"].priority == 3  # the new one needs it more urgently
        running.push("s", 2)
        running.push("t", 3)
        assert running.drain(LONG)
        running.remove("d")
        assert running.operators["o"].priority == 1
        assert "both" not in running.operators
        running.push("s", 4)
        assert running.drain(LONG)
    assert got.payloads("c") == [1, 2, 4]
    assert got.payloads("d") == [(2, 3)]


def test_what_does_not_fit_is_refused_as_a_whole():
    running = service(Supplier("s"), Consumer("c", "s"))
    with pytest.raises(Mistake, match="nowhere, which does not exist"):
        running.add(Supplier("t"), Consumer("d", "nowhere"))
    assert list(running.suppliers) == ["s"]
    with pytest.raises(Mistake, match="two nodes are named c"):
        running.add(Consumer("c", "s"))


def test_a_new_operator_that_remembers_has_its_own_memory():
    got = Got()
    window = {"size": 2}
    running = service(
        Supplier("s", type="records"), Operator("w", "window", ("s",), window), got.consumer("c", "w")
    )
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
        running.add(Operator("v", "window", ("s",), window), got.consumer("d", "v"))
        running.push("s", 2)
        running.push("s", 3)
        assert running.drain(LONG)
    assert got.payloads("c") == [[1, 2], [2, 3]]
    assert got.payloads("d") == [[2, 3]]
