"""Section III.A of CPEP: what goes first, in both modes, and in random graphs."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.live.harness import LONG, MODES, Gate, Got, names_of_starts, python, service

from kaicep.live.event_service import Service
from kaicep.live.graph import Supplier
from kaicep.live.processor import Seat


@pytest.mark.parametrize("real_time", MODES)
def test_processing_before_sharing_and_sharing_before_lower_processing(real_time):
    gate, got = Gate(), Got()
    running = service(
        *(Supplier(each) for each in ("door", "top", "between")),
        python("gate", "door", gate),
        python("high", "top"),
        python("middle", "between"),
        python("low", "high"),
        got.consumer("airbag", "high", 3),
        got.consumer("doorman", "gate", 3),
        got.consumer("driver", "middle", 2),
        got.consumer("report", "low", 1),
        real_time=real_time,
        cores=1,
    )
    starts = names_of_starts(running)
    with running:
        running.push("door", 0)
        assert gate.entered.wait(LONG)
        for number in range(3):  # what is least urgent comes first
            running.push("between", number)
            running.push("top", number)
        gate.opened.set()
        assert running.drain(LONG)
    assert starts[:2] == ["gate", "doorman"]
    order = ["high", "airbag", "move 3", "middle", "driver", "low", "report"]
    ranks = [0, 0, 1, 2, 2, 3, 3]
    seen = [ranks[order.index(each)] for each in starts[2:]]
    assert seen == sorted(seen), starts
    assert starts.count("move 3") == len(got.payloads("report")) == 3


@pytest.mark.parametrize("real_time", MODES)
def test_a_long_operator_lets_others_go_first_between_its_steps(real_time):
    started, pushed, order = threading.Event(), threading.Event(), []

    def long(payload):
        for step in range(3):
            order.append(f"low {step}")
            if step == 0:
                started.set()
                assert pushed.wait(LONG)
            yield step if step == 2 else None

    got = Got()
    running = service(
        Supplier("slow"),
        Supplier("fast"),
        python("long", "slow", long),
        python("short", "fast", lambda each: order.append("high") or each),
        got.consumer("report", "long", 1),
        got.consumer("airbag", "short", 3),
        real_time=real_time,
        cores=1,
    )
    with running:
        running.push("slow", 0)
        assert started.wait(LONG)
        # With one core for both, the urgent one is started at once beside the long one; that goes on
        # with its next step only when the urgent one is done.
        running.push("fast", 1)
        pushed.set()
        assert running.drain(LONG)
    assert order.index("high") < order.index("low 1")
    assert got.payloads("report") == [2]


@pytest.mark.parametrize("real_time", MODES)
def test_what_is_urgent_starts_while_all_cores_work_for_others(real_time):
    gate, got = Gate(), Got()
    delivered = threading.Event()
    running = service(
        Supplier("slow"),
        Supplier("fast"),
        python("gate", "slow", gate),
        python("short", "fast", lambda each: delivered.set() or each),
        got.consumer("report", "gate", 1),
        got.consumer("airbag", "short", 3),
        real_time=real_time,
        cores=1,
    )
    with running:
        running.push("slow", 0)
        assert gate.entered.wait(LONG)
        running.push("fast", 1)
        assert delivered.wait(LONG)
        gate.opened.set()


@pytest.mark.parametrize("real_time", MODES[1:])
def test_threads_have_interleaved_priorities(real_time):
    got = Got()
    running = service(
        Supplier("s"),
        *(got.consumer(f"c{each}", "s", each) for each in (1, 2, 3)),
        real_time=real_time,
        cores=2,
    )
    intakes: list[int] = []
    measured, over = threading.Event(), threading.Event()

    def take_in() -> None:
        leave = running.crew.take_in(lambda: running.suppliers["s"].processor)
        intakes.append(os.sched_getparam(0).sched_priority)
        measured.set()
        assert over.wait(LONG)
        leave()

    def of(seats: list[Seat]) -> set[int]:
        ids = [each.thread.native_id for each in seats]
        assert {os.sched_getscheduler(each) for each in ids} == {os.SCHED_FIFO}
        return {os.sched_getparam(each).sched_priority for each in ids}

    with running:
        for consumer in running.consumers.values():
            with running.dispatcher.lock:
                running.crew.attend(consumer)
        thread = threading.Thread(target=take_in)
        thread.start()
        assert measured.wait(LONG)
        by_level = {each.seat.processor: [each.seat] for each in running.consumers.values()}
        found = [
            of(each)
            for level in running.dispatcher.processors
            for each in (level.workers, level.movers, by_level[level])
        ]
        over.set()
        thread.join()
    assert all(len(each) == 1 for each in found)
    ranks = [min(each) for each in found]
    assert ranks == list(range(ranks[0], ranks[0] - 9, -1))
    assert intakes == [ranks[0]]  # as the workers of the level that needs the events most


def test_a_worker_takes_no_new_event_while_an_operator_is_pending():
    gate, got = Gate(), Got()
    running = service(
        Supplier("s"),
        python("first", "s", gate),
        python("second", "first"),
        got.consumer("c", "second"),
        cores=1,
    )
    starts = names_of_starts(running)
    with running:
        for number in range(3):
            running.push("s", number)
        gate.opened.set()
        assert running.drain(LONG)
    assert starts == ["first", "second", "c"] * 3


# --- random graphs -----------------------------------------------------------------------------------------


@st.composite
def graphs(draw):
    """Suppliers, operators over what stands before them, consumers; what is sent; how long operators take."""
    suppliers = [f"s{each}" for each in range(draw(st.integers(1, 4)))]
    nodes, inputs = list(suppliers), {}
    for number in range(draw(st.integers(0, 8))):
        inputs[f"o{number}"] = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3, unique=True))
        nodes.append(f"o{number}")
    consumers = draw(st.lists(st.tuples(st.sampled_from(nodes), st.integers(1, 3)), min_size=1, max_size=5))
    sent = draw(st.lists(st.sampled_from(suppliers), max_size=20))
    pauses = {each: draw(st.sampled_from((0, 0, 0, 0.0001, 0.0005))) for each in inputs}
    return suppliers, inputs, consumers, sent, pauses


def expected(suppliers, inputs, sent):
    """What each node gives: an operator zips what it reads."""
    found = {each: [(each, n) for n, name in enumerate(sent) if name == each] for each in suppliers}
    for name, read in inputs.items():
        found[name] = [hash((name, *each)) for each in zip(*(found[one] for one in read), strict=False)]
    return found


def run_random(graph, cores: int) -> None:
    suppliers, inputs, consumers, sent, pauses = graph

    def function(name: str):
        def run(*payloads):
            if pauses[name]:
                time.sleep(pauses[name])
            return hash((name, *payloads))

        return run

    got = Got()
    running = service(
        *(Supplier(each) for each in suppliers),
        *(python(name, " ".join(read), function(name)) for name, read in inputs.items()),
        *(got.consumer(f"c{n}", input, level) for n, (input, level) in enumerate(consumers)),
        cores=cores,
    )
    broken: list[str] = []
    watch_order(running, broken)
    with running:
        for number, name in enumerate(sent):
            running.push(name, (name, number))
        assert running.drain(LONG), "nothing moves any more"
    assert not broken
    wanted = expected(suppliers, inputs, sent)
    for number, (input, _) in enumerate(consumers):
        assert got.payloads(f"c{number}") == wanted[input]


def watch_order(running: Service, broken: list[str]) -> None:
    """Notes whatever starts although something more urgent is ready."""

    def check(seat: Seat) -> None:
        for level in running.dispatcher.processors:
            if level is seat.processor:
                if seat.mover and level.has_work:
                    broken.append(f"a mover of {level.priority} before its workers")
                return
            if level.has_work or level.moving:
                broken.append(f"{seat.processor.priority} before {level.priority}")

    running.dispatcher.on_start = check


FAST = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
ALL = settings(FAST, max_examples=1000)


@FAST
@given(graphs(), st.integers(1, 3))
def test_random_graphs_deliver_everything_once_and_in_order(graph, cores):
    run_random(graph, cores)


@pytest.mark.night
@ALL
@given(graphs(), st.integers(1, 3))
def test_a_thousand_random_graphs(graph, cores):
    run_random(graph, cores)


@pytest.mark.parametrize("real_time", MODES)
def test_under_stress_everything_is_delivered_once_or_counted_as_shed(real_time):
    """Many threads push at once, operators take random times, and more comes than can be done."""
    got, chance = Got(), random.Random(3)
    pauses = [chance.choice((0, 0, 0.0002, 0.001)) for _ in range(1000)]

    def slow(number):
        time.sleep(pauses[number])
        return number

    lines = {f"{level}{each}": level for level in (1, 2, 3) for each in "ab"}
    running = service(
        *(Supplier(f"s{each}", 20_000, 5_000) for each in lines),
        *(python(f"o{each}", f"s{each}", slow) for each in lines),
        *(python(f"p{each}", f"o{each}", lambda number: number) for each in lines),
        *(got.consumer(f"c{each}", f"p{each}", level) for each, level in lines.items()),
        # What the high level makes is needed below as well.
        *(got.consumer(f"d{each}", f"o{each}", 1) for each, level in lines.items() if level == 3),
        real_time=real_time,
    )
    broken: list[str] = []
    watch_order(running, broken)

    def push(name: str) -> None:
        for number in range(300):
            running.push(name, number)

    with running:
        threads = [threading.Thread(target=push, args=(f"s{each}",)) for each in lines]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert running.drain(LONG)
    assert not broken
    assert all(ring.longest <= ring.size == 4 for ring in running.store.rings.values())
    for each in lines:
        found = got.payloads(f"c{each}")
        assert found == sorted(set(found))
        nodes = [running.suppliers[f"s{each}"], running.operators[f"o{each}"], running.operators[f"p{each}"]]
        lost = sum(node.counters.lost for node in (*nodes, running.consumers[f"c{each}"]))
        assert len(found) + lost == 300
