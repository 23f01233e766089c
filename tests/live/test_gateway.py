"""Suppliers and consumers over the network."""

from __future__ import annotations

import json
import threading

import pytest
from tests.live.harness import LONG, Got, python, service

from kaicep.errors import Failure
from kaicep.live.gateway import Gateway, Sender, receive
from kaicep.live.nodes import Consumer, Supplier


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
        connection, reader = receive(gateway.address, "c")
        sender = Sender(gateway.address, ["raw", "rows"])
        sender.push(("raw", b"x"), ("rows", json.dumps({"n": 7}).encode()))
        _, _, payload = reader.frame()
        assert bytes(payload) == b"x7"
        assert arrived.wait(LONG)
        sender.close()
        connection.close()
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


def test_whom_nobody_knows_is_told_so(address):
    running = service(Supplier("s"), Consumer("c", "s"))
    with running:
        gateway = Gateway(running, address)
        with pytest.raises(Failure, match="no supplier is named t"):
            Sender(gateway.address, ["t"])
        with pytest.raises(Failure, match="no consumer is named d"):
            receive(gateway.address, "d")
        gateway.close()
