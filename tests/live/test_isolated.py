"""Operators in processes of their own: the same events, and nobody waits for their interpreter lock."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
from tests.live.harness import LONG, MODES, Got, service

from kaicep.errors import Mistake
from kaicep.live import ticking
from kaicep.live.graph import Consumer, Operator, Supplier, operator
from kaicep.live.kinds import Isolated
from kaicep.live.metrics import figures, shown

pytestmark = pytest.mark.slow


def doubled(samples):
    return samples * 2


@operator("s", name="steps", isolate=True)
def in_steps(number):
    yield from range(number)


def whose(payload):
    return os.getpid(), bytes(payload)


def inverse(number):
    return 1 / number


def lock_up(payload):
    """Keeps the interpreter lock of its process for ever."""
    ctypes.PyDLL(None).pause()


def isolated(function, **settings) -> Operator:
    return Operator("o", "python", ("s",), {}, function, isolate=True, **settings)


def test_arrays_go_there_and_back():
    got = Got()
    running = service(Supplier("s", ring=9), isolated(doubled), got.consumer("c", "o"))
    arrays = [np.arange(number, dtype=np.float64) for number in (3, 0, 400_000, 5)]
    with running:
        for each in arrays:
            running.push("s", each)
        assert running.drain(LONG)
    for found, given in zip(got.payloads("c"), arrays, strict=True):
        np.testing.assert_array_equal(found, given * 2)


def test_bytes_of_the_network_and_another_process():
    got = Got()
    running = service(Supplier("s", ring=9), isolated(whose), got.consumer("c", "o"))
    with running:
        running.push("s", memoryview(b"xyz")[1:])
        running.push("s", b"w")
        assert running.drain(LONG)
        (pid,) = running.operators["o"].function.pids
    assert pid != os.getpid()
    assert got.payloads("c") == [(pid, b"yz"), (pid, b"w")]


def test_steps_come_one_by_one():
    got = Got()
    running = service(Supplier("s"), in_steps, got.consumer("c", "steps"))
    with running:
        running.push("s", 3)
        assert running.drain(LONG)
    assert got.payloads("c") == [0, 1, 2]


def test_what_remembers_remembers_there_too():
    found = []
    for isolate in (False, True):
        got = Got()
        ekf = Operator("o", "ekf", ("s",), {"frequency": 0.1}, isolate=isolate)
        running = service(Supplier("s", ring=9), ekf, got.consumer("c", "o"))
        with running:
            for number in range(3):
                running.push("s", np.cos(np.arange(8) + number))
            assert running.drain(LONG)
        found.append(got.payloads("c"))
    np.testing.assert_array_equal(*found)


def test_an_error_comes_back_and_the_next_event_is_worked_on():
    got = Got()
    running = service(Supplier("s", ring=9), isolated(inverse), got.consumer("c", "o"))
    with running:
        for number in (0, 2):
            running.push("s", number)
        assert running.drain(LONG)
    (letter,) = running.dead_letters
    assert isinstance(letter.error, ZeroDivisionError)
    assert got.payloads("c") == [0.5]


@pytest.mark.parametrize("real_time", MODES)
def test_whoever_keeps_the_lock_there_delays_nobody_here_and_may_be_killed(real_time):
    high, got = threading.Event(), Got()
    running = service(
        Supplier("s"),
        Supplier("t"),
        isolated(lock_up),
        got.consumer("low", "o", 1),
        Consumer("airbag", "t", 3, lambda each: high.set()),
        real_time=real_time,
        cores=1,
    )
    with running:
        running.push("s", b"")
        (pid,) = running.operators["o"].function.pids
        while running.operators["o"].processor.busy == 0:
            time.sleep(0.001)
        if real_time:
            assert os.sched_getscheduler(pid) == os.SCHED_FIFO
            assert os.sched_getparam(pid).sched_priority < ticking.TOP - 1
        running.push("t", b"")
        assert high.wait(LONG)
        os.kill(pid, signal.SIGKILL)
        assert running.drain(LONG)
    (letter,) = running.dead_letters
    assert "its process ended" in str(letter.error)


def test_a_parallel_one_has_a_process_for_each_of_its_events():
    running = service(Supplier("s", ring=9), isolated(lock_up, parallel=True), Consumer("c", "o"), cores=2)
    with running:
        running.push("s", b"")
        running.push("s", b"")
        function = running.operators["o"].function
        while len(function.pids) < 2:
            time.sleep(0.001)
        for pid in function.pids:
            os.kill(pid, signal.SIGKILL)
        assert running.drain(LONG)


def test_its_process_ends_when_nobody_needs_it():
    running = service(Supplier("s"), isolated(doubled), Consumer("c", "o"), Consumer("d", "s"))
    (child,) = running.operators["o"].function._all
    running.remove("c")
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (isolated(lambda each: each), "another process cannot import"),
        (Operator("o", "query", ("s",), {"query": "q.chi"}, isolate=True), "a query releases"),
    ],
)
def test_what_cannot_be_isolated_is_refused(made, message):
    with pytest.raises(Mistake, match=message):
        service(Supplier("s"), made, Consumer("c", "o"))


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads here")
def test_an_operator_that_computes_while_others_wait_is_counted_and_named():
    entered, done = threading.Event(), threading.Event()

    def busy(payload):
        entered.set()
        while not done.is_set():
            pass

    running = service(Supplier("s"), Operator("o", "python", ("s",), {}, busy), Consumer("c", "o"))
    with running:
        running.push("s", 1)
        assert entered.wait(LONG)
        (seat,) = [each for each in running.crew._seats if each.task is not None]
        clock = time.pthread_getcpuclockid(seat.thread.ident)
        with running.dispatcher.lock:
            assert running.crew.lockers(waited=0.0) == []
            began = time.clock_gettime(clock)
            while time.clock_gettime(clock) < began + 0.05:
                time.sleep(0.001)
            assert running.crew.lockers(waited=0.001) == []  # nobody waited for long
            running.crew._used[id(seat)] = began
            found = running.crew.lockers(waited=0.05)
            found[0].counters.locked += 3
        running._set_apart(found[0])
        done.set()
        assert running.drain(LONG)
        assert found[0].function is busy  # it may remember
        assert "o has kept the interpreter lock 3 times: isolate = true helps" in shown(figures(running))


def test_one_that_remembers_nothing_is_moved_to_a_process():
    got = Got()
    parallel = Operator("o", "python", ("s",), {}, doubled, parallel=True)
    running = service(Supplier("s", ring=9), parallel, got.consumer("c", "o"))
    with running:
        running.push("s", np.ones(1))
        running.operators["o"].counters.locked = 3
        running._set_apart(running.operators["o"])
        running.push("s", np.ones(2))
        assert running.drain(LONG)
        assert isinstance(running.operators["o"].function, Isolated)
        assert figures(running)["operators"]["o"]["isolated"]
    assert [each.tolist() for each in got.payloads("c")] == [[2], [2, 2]]
