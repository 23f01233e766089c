"""Suppliers and consumers over the network: their clocks, their pace, what is counted."""

from __future__ import annotations

import json
import threading
import time

import pytest
from tests.live.harness import LONG, Gate, Got, python, service

from kaicep.errors import Failure
from kaicep.live.event_service import Service
from kaicep.live.gateway import Gateway, Offset, Receiver, Sender
from kaicep.live.graph import Consumer, Supplier
from kaicep.live.metrics import figures

HOUR = 3_600_000_000_000


def ahead() -> int:
    """The monotonic clock of another machine."""
    return time.monotonic_ns() + HOUR


@pytest.fixture(params=["tcp", "unix"])
def address(request, tmp_path):
    return ("127.0.0.1", 0) if request.param == "tcp" else str(tmp_path / "gateway")


def test_events_come_in_and_go_out(address):
    arrived = threading.Event()
    running = service(
        Supplier("raw"),
        Supplier("rows", type="records"),
        python("both", "raw rows", lambda raw, row: bytes(raw) + str(row["n"]).encode()),
        Consumer("c", "both", 2, lambda each: arrived.set()),
    )
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "c")
        sender = Sender(gateway.address, ["raw", "rows"])
        sender.push(("raw", b"x"), ("rows", json.dumps({"n": 7}).encode()))
        found = receiver.next()
        assert (found.payload, found.timely) == (b"x7", True)
        assert arrived.wait(LONG)
        sender.close()
        receiver.close()
        gateway.close()
    assert not [each for each in threading.enumerate() if each.name == "kaicep-live-gateway"]


def test_a_creation_time_is_taken_over(address):
    got = Got()
    done = threading.Event()
    running = service(
        Supplier("s", 10_000_000),
        Consumer("c", "s", 1, lambda each: (got.deliveries["c"].append(each), done.set())),
    )
    with running:
        gateway = Gateway(running, address)
        sender = Sender(gateway.address, ["s"])
        created = running.clock() - 1_000_000
        sender.push(("s", b"x"), created=created)
        assert done.wait(LONG)
        sender.close()
        gateway.close()
    assert got.deliveries["c"][0].begin == created


def test_another_clock_is_reckoned_with_and_validity_comes_in_that_of_the_consumer(address):
    running = service(Supplier("s", 10_000_000), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "c", clock=ahead)
        sender = Sender(gateway.address, ["s"], clock=ahead)
        # A clock is known better later on, by what is acknowledged: these are the bounds for the event.
        slack = 2_000 * sum(each["bound_us"] for each in figures(running)["connected"])
        created = ahead()
        sender.push(("s", b"x"), created=created)
        found = receiver.next()
        assert running.drain(LONG)
        counted = figures(running)
        sender.close()
        receiver.close()
        gateway.close()
    assert abs(found.begin - created) <= slack
    assert found.end - found.begin == 10_000_000_000
    for each in counted["connected"]:
        assert abs(each["ahead_us"] * 1000 - HOUR) <= each["bound_us"] * 1000
    assert 0 < counted["consumers"]["c"]["latency_us"]["max"] * 1000 < HOUR / 2


def test_the_surest_answer_counts_until_the_clocks_may_have_drifted():
    offset = Offset()
    offset.observe(asked=0, answer=1_000_000, answered=100)
    offset.observe(asked=1_000, answer=1_005_000, answered=9_000)  # not so sure
    assert (offset.ahead, offset.bound) == (999_950, 50)
    offset.observe(asked=10**9, answer=2 * 10**9, answered=10**9 + 200)
    assert offset.ahead == 10**9 - 100


def test_an_event_from_the_future_is_refused_with_the_reason(address):
    running = service(Supplier("s", 10_000_000), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "c")
        sender = Sender(gateway.address, ["s"])
        sender.push(("s", b"never"), created=time.monotonic_ns() + HOUR)
        sender.push(("s", b"now"))
        assert receiver.next().payload == b"now"
        (letter,) = running.dead_letters
        assert letter.payloads == (b"never",)
        assert "ms in the future; its clock is known to" in str(letter.error)
        assert running.suppliers["s"].counters.shed == {"refused": 1}
        sender.close()
        receiver.close()
        gateway.close()


def test_whoever_is_connected_gets_what_is_pushed_from_then_on(address, monkeypatch):
    attach = Service.attach

    def slowly(self, name, send):
        time.sleep(0.1)
        return attach(self, name, send)

    monkeypatch.setattr(Service, "attach", slowly)
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        receiver, other = Receiver(gateway.address, "c"), Receiver(gateway.address, "c")
        assert set(running.consumers) == {"c", "c#2"}
        assert running.consumers["c"].callback is not None
        receiver.close()
        other.close()
        gateway.close()


def test_a_delivery_counts_once_and_when_it_is_acknowledged(address):
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        first, second = Receiver(gateway.address, "c"), Receiver(gateway.address, "c")
        sender = Sender(gateway.address, ["s"])
        sender.push(("s", b"x"))
        assert first.next().payload == b"x"
        while not running.by_priority[1].delivered:
            time.sleep(0.001)
        assert running.by_priority[1].delivered == 1  # the other one has not said that it has it
        assert second.next().payload == b"x"
        while running.by_priority[1].delivered < 2:
            time.sleep(0.001)
        assert running.consumers["c"].counters.delivered == 1
        assert running.consumers["c#2"].counters.delivered == 1
        second.close()
        while "c#2" in running.consumers:
            time.sleep(0.001)
        sender.close()
        first.close()
        gateway.close()


def test_a_slow_reader_is_shed_from_the_oldest_on_and_holds_nobody_up(address):
    got, last = Got(), threading.Event()
    running = service(
        Supplier("s", ring=50),
        Consumer("slow", "s", 3, queue=4),
        Consumer(
            "fast",
            "s",
            1,
            lambda each: (got.deliveries["f"].append(each), each.payload == b"49" and last.set()),
        ),
    )
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "slow")
        sender = Sender(gateway.address, ["s"])
        for number in range(50):
            sender.push(("s", str(number).encode()))
        assert last.wait(LONG)
        slow = running.consumers["slow"].counters
        while slow.shed["full"] < 50 - 4 - 4 - 1:  # on their way, waiting, in the hands of the thread
            time.sleep(0.001)
        found = [receiver.next().payload]
        while found[-1] != b"49":
            found.append(receiver.next().payload)
        assert len(found) + slow.shed["full"] == 50
        assert found[-4:] == [b"46", b"47", b"48", b"49"]
        receiver.close()
        sender.close()
        gateway.close()
    assert len(got.deliveries["f"]) == 50


def test_what_was_sent_to_who_left_is_shed(address):
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "c")
        sender = Sender(gateway.address, ["s"])
        sender.push(("s", b"x"))
        while not running.dispatcher.sent:
            time.sleep(0.001)
        receiver.close()
        while not running.consumers["c"].counters.shed["unacknowledged"]:
            time.sleep(0.001)
        assert running.by_priority[1].delivered == 0
        sender.close()
        gateway.close()


def test_late_events_are_marked_on_the_wire(address):
    gate = Gate()
    running = service(Supplier("s", 1), python("slow", "s", gate), Consumer("c", "slow"), discard=False)
    with running:
        gateway = Gateway(running, address)
        receiver = Receiver(gateway.address, "c")
        sender = Sender(gateway.address, ["s"])
        sender.push(("s", b"x"))
        assert gate.entered.wait(LONG)
        began = running.clock()
        while running.clock() < began + 1_000_000:  # its millionth of a second is over
            time.sleep(0.001)
        gate.opened.set()
        assert receiver.next().timely is False
        assert running.drain(LONG)
        while not running.by_priority[1].late:
            time.sleep(0.001)
        sender.close()
        receiver.close()
        gateway.close()


def test_whom_nobody_knows_is_refused(address):
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        with pytest.raises(Failure, match="no supplier is named t"):
            Sender(gateway.address, ["t"])
        with pytest.raises(Failure, match="no consumer is named d"):
            Receiver(gateway.address, "d")
        gateway.close()


def test_a_token_is_wanted_where_there_is_one(address):
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address, token="geheim")
        for token in (None, "falsch"):
            with pytest.raises(Failure, match="the token is missing or wrong"):
                Receiver(gateway.address, "c", token=token)
        Receiver(gateway.address, "c", token="geheim").close()
        gateway.close()
