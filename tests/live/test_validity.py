"""Sections II.B, III.B and III.C of CPEP: what is valid when, the rings, and what is shed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.harness import LONG, Clock, Gate, Got, python, service

from kaicep.live.bindings import GROWTH, Event, Ring
from kaicep.live.graph import Consumer, Graph, Operator, Supplier

MS = 1000


def joining(got: Got, discard: bool = True, clock: Clock | None = None, **settings):
    """Two suppliers of different validity, an operator of both, and a consumer."""
    return service(
        Supplier("short", 10 * MS, 10 * MS),
        Supplier("long", 50 * MS, 10 * MS),
        python("both", "short long"),
        got.consumer("c", "both", 3),
        discard=discard,
        clock=clock or Clock(),
        **settings,
    )


def shed(running, name):
    nodes = {**running.suppliers, **running.operators, **running.consumers}
    return dict(nodes[name].counters.shed)


def test_what_is_derived_is_valid_where_all_parts_are():
    got, clock = Got(), Clock()
    with joining(got, clock=clock) as running:
        running.push("long", 1)
        clock.forward(3)
        running.push("short", 2)
        assert running.drain(LONG)
    (delivery,) = got.deliveries["c"]
    assert delivery.payload == (2, 1)
    assert (delivery.begin, delivery.end) == (clock.now, clock.now + 10_000_000)
    assert delivery.timely


def test_an_outdated_branch_is_released_and_the_other_one_waits_for_the_next():
    got, clock = Got(), Clock()
    with joining(got, clock=clock) as running:
        both = running.operators["both"]
        running.push("short", "s1")
        assert running.drain(LONG)
        assert both.due == clock.now + 10_000_000
        clock.forward(10)  # [begin, end): at its end it is valid no longer
        running.push("long", "l1")
        assert running.drain(LONG)
        assert got.payloads("c") == []
        assert shed(running, "both") == {"unpaired": 1}
        assert both.due == clock.now + 50_000_000  # that of the branch that is still valid
        clock.forward(5)
        running.push("short", "s2")
        assert running.drain(LONG)
    assert got.payloads("c") == [("s2", "l1")]


def test_what_is_ready_and_gets_outdated_before_a_worker_picks_it_is_shed():
    got, clock, ran = Got(), Clock(), []

    def slow(payload):
        clock.forward(20)
        return payload

    running = service(
        Supplier("s", 10 * MS),
        python("slow", "s", slow),
        python("next", "slow", ran.append),
        got.consumer("c", "next"),
        clock=clock,
    )
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
        assert shed(running, "next") == {"outdated": 1}
    assert ran == []


def test_marked_events_are_delivered_late():
    got, clock = Got(), Clock()
    with joining(got, discard=False, clock=clock) as running:
        running.push("short", "s1")
        assert running.drain(LONG)
        clock.forward(10)
        running.push("long", "l1")
        assert running.drain(LONG)
        counters = running.by_priority[3]
    assert [each.timely for each in got.deliveries["c"]] == [False]
    assert (counters.delivered, counters.timely, counters.late, counters.lost) == (1, 0, 1, 0)


def test_validity_is_checked_again_before_delivery():
    got, clock = Got(), Clock()

    def slow(payload):
        clock.forward(20)
        return payload

    running = service(
        Supplier("s", 10 * MS), python("slow", "s", slow), got.consumer("c", "slow"), clock=clock
    )
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
        assert shed(running, "c") == {"outdated": 1}
    assert got.payloads("c") == []


def test_an_outdated_event_in_the_input_queue_starts_nothing():
    got, clock = Got(), Clock()
    running = joining(got, clock=clock)
    running.push("short", 1)  # not started: it waits
    clock.forward(11)
    with running:
        assert running.drain(LONG)
        assert shed(running, "short") == {"outdated": 1}
        assert running.by_priority[3].shed == {"outdated": 1}


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch):
    got, clock = Got(), Clock()
    with joining(got, clock=clock) as running:
        running.push("short", 1)
        monkeypatch.setattr("time.time_ns", lambda: 0)
        monkeypatch.setattr("time.time", lambda: 0.0)
        running.push("long", 2)
        assert running.drain(LONG)
    assert got.payloads("c") == [(1, 2)]


def test_parts_of_one_event_are_joined_with_each_other_even_if_one_was_lost():
    got = Got()

    def sometimes(number):
        return None if number == 1 else -number

    running = service(
        Supplier("s"),
        python("always", "s", lambda number: number),
        python("sometimes", "s", sometimes),
        python("both", "always sometimes"),
        got.consumer("c", "both"),
    )
    with running:
        for number in range(4):
            running.push("s", number)
        assert running.drain(LONG)
        assert shed(running, "both") == {"orphan": 1}
    assert got.payloads("c") == [(0, 0), (2, -2), (3, -3)]


# --- rings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("validity", "period", "ring", "size"),
    [
        (10, 20, None, 1),
        (10, 10, None, 1),
        (25, 10, None, 3),
        (30, 10, None, 3),
        (30, 10, 7, 7),
        (30, None, 5, 5),
    ],
)
def test_a_ring_has_room_for_what_can_be_valid_at_a_time(validity, period, ring, size):
    supplier = Supplier("s", validity * MS, period and period * MS, ring)
    graph = Graph.of(supplier, Operator("o", "fft", ("s",)), Consumer("c", "o"))
    assert graph.capacity("s") == graph.capacity("o") == size


def event(seq: int) -> Event:
    return Event(seq, 0, 1, 0, 0, None, {})


def test_a_ring_overwrites_the_oldest():
    ring = Ring(2, keep=False)
    slots = [ring.put(event(number)) for number in range(2)]
    slots[0].pins = 1
    ring.put(event(2))
    assert slots[0].event is None
    assert [each.seq for each in ring.events()] == [1, 2]
    assert ring.overwritten == 1


def test_a_ring_that_must_keep_grows_and_shrinks_again():
    ring = Ring(1, keep=True)
    slots = [ring.put(event(number)) for number in range(3) if True]
    assert len(ring) == 1  # nobody was bound to them
    slots[2].pins = 1
    ring.put(event(3))
    assert len(ring) == 2
    slots[2].pins = 0
    ring.put(event(4))
    assert len(ring) == 1


def test_not_even_that_grows_for_ever():
    ring = Ring(1, keep=True)
    for number in range(GROWTH + 10):
        ring.put(event(number)).pins = 1
    assert len(ring) == GROWTH + 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8)), max_size=40), st.integers(1, 4))
def test_no_ring_is_ever_longer_than_its_size(pushes, periods):
    got, clock = Got(), Clock()
    running = service(
        *(Supplier(each, periods * 10 * MS, 10 * MS) for each in "ab"),
        python("both", "a b"),
        python("one", "a"),
        got.consumer("high", "both", 3),
        got.consumer("low", "one", 1),
        clock=clock,
    )
    with running:
        for name, pause in pushes:
            running.push(name, (name, clock.now))
            clock.forward(pause)
        assert running.drain(LONG)
    assert running.store.rings
    for ring in running.store.rings.values():
        assert ring.longest <= ring.size == periods
    offered = running.suppliers["a"].counters
    assert (
        len(got.payloads("low"))
        + offered.lost
        + running.operators["one"].counters.lost
        + running.consumers["low"].counters.lost
        == offered.offered
    )


def test_a_new_series_starts_before_the_last_is_done_and_each_sees_its_own_slots():
    gate, got = Gate(), Got()
    both_seen = threading.Event()
    seen = []

    def first(number):
        seen.append(number)
        if len(seen) == 3:
            both_seen.set()
        return number

    running = service(
        Supplier("s", 60_000_000 * MS, 10_000_000 * MS),
        python("first", "s", first),
        python("second", "first", gate),
        python("both", "first second"),
        got.consumer("c", "both"),
    )
    with running:
        for number in range(3):
            running.push("s", number)
        assert both_seen.wait(LONG)  # the second operator still works on the first series
        gate.opened.set()
        assert running.drain(LONG)
    assert got.payloads("c") == [(0, 0), (1, 1), (2, 2)]


def test_events_are_references_to_the_same_memory():
    got = Got()
    looks = []

    def look(array):
        looks.append(array)
        return array[::2]

    running = service(
        Supplier("s", 10_000_000),
        python("one", "s", look),
        python("two", "s", look),
        got.consumer("a", "one", 3),
        got.consumer("b", "two", 1),
        got.consumer("raw", "s", 2),
    )
    samples = np.arange(1000, dtype=np.uint8)
    with running:
        running.push("s", samples)
        assert running.drain(LONG)
        assert running.store.newest("s").payload is samples
    assert all(each is samples for each in (*looks, *got.payloads("raw")))
    assert all(np.shares_memory(got.payloads(each)[0], samples) for each in ("a", "b"))


def test_arrow_is_looked_at_and_not_copied():
    pa = pytest.importorskip("pyarrow")
    from kaicep.live.kinds import _array

    column = pa.array(np.arange(100, dtype=np.float64))
    address = column.buffers()[1].address
    assert _array(column).__array_interface__["data"][0] == address
    raw = b"abc"
    assert (
        _array(raw).__array_interface__["data"][0] == _array(memoryview(raw)).__array_interface__["data"][0]
    )


def test_workers_share_the_operators_of_one_event():
    """Both operators are inside at once: each waits for the other."""
    meeting, got = threading.Barrier(2, timeout=LONG), Got()

    def meet(payload):
        meeting.wait()
        return payload

    running = service(
        Supplier("s"),
        python("left", "s", meet),
        python("right", "s", lambda each: meet(each)),
        python("both", "left right"),
        got.consumer("c", "both"),
        cores=2,
    )
    with running:
        running.push("s", 1)
        assert running.drain(LONG)
    assert got.payloads("c") == [(1, 1)]
