"""A service under load: events come from a process of its own, over a socket, stamped when they are sent."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from kaicep.errors import Failure
from kaicep.live import priorities
from kaicep.live.gateway import Gateway, Sender
from kaicep.live.graph import Graph
from kaicep.live.metrics import figures
from kaicep.live.nodes import Node, Supplier
from kaicep.live.service import Service, Settings
from kaicep.processes import bound

__all__ = ["KEY", "Run", "generate", "run_once"]

KEY = "KAICEP_BENCH_KEY"
"""The variable that holds the key for AES; it is set here, to nothing but zeros."""


@dataclass(frozen=True)
class Run:
    """What one run gave: the share of the CPU that was used, and the figures of the service."""

    load: float
    cores: int
    seconds: float
    figures: Mapping[str, Any]

    def level(self, priority: int) -> Mapping[str, Any]:
        """The figures of a level."""
        found: Mapping[str, Any] = self.figures["levels"][str(priority)]
        return found

    @property
    def mbps(self) -> float:
        """What was delivered in time, in megabits a second."""
        total = sum(each["bytes"] for each in self.figures["levels"].values())
        return float(total * 8 / 1e6 / self.seconds)


def run_once(nodes: Sequence[Node], warm_up: float, seconds: float, discard: bool, **settings: Any) -> Run:
    """Runs a graph under the events of a generator, and counts after the time to warm up."""
    os.environ.setdefault(KEY, "00" * 32)
    service = Service(Graph.of(*nodes, discard=discard), Settings(**settings))
    suppliers = [
        (each.name, each.period, each.source.get("size"), each.source.get("rows"))
        for each in nodes
        if isinstance(each, Supplier) and each.period
    ]
    with tempfile.TemporaryDirectory() as folder, service:
        gateway = Gateway(service, f"{folder}/gateway")
        command = "from kaicep_bench.live_load import generate; generate()"
        wanted = json.dumps({"address": gateway.address, "suppliers": suppliers})
        generator = subprocess.Popen(
            bound([sys.executable, "-c", command]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert generator.stdin is not None
        assert generator.stdout is not None
        try:
            generator.stdin.write(wanted + "\n")
            generator.stdin.flush()
            if generator.stdout.readline().strip() != "ready":
                raise Failure("the load generator did not start")
            time.sleep(warm_up)
            service.count_anew()
            began, used = time.monotonic(), service.crew.busy_seconds()
            time.sleep(seconds)
            took, used = time.monotonic() - began, service.crew.busy_seconds() - used
            found = figures(service)
        finally:
            generator.stdin.close()
            generator.wait(10)
            generator.stdout.close()
            gateway.close()
    cores = service.dispatcher.cores
    return Run(used / took / cores, cores, took, found)


def generate() -> None:
    """The load generator: told on stdin what to send where, it sends until stdin is closed."""
    wanted = json.loads(sys.stdin.readline())
    priorities.real_time(0, priorities.TOP + 1)
    names = [each[0] for each in wanted["suppliers"]]
    sender = Sender(wanted["address"], names)
    # Suppliers of one stream send at the same time, as in the paper; the streams are spread over a period.
    streams: dict[tuple[str, int], list[tuple[str, Iterator[bytes]]]] = {}
    for name, period, size, rows in wanted["suppliers"]:
        payloads = [json.dumps(each).encode() for each in rows] if rows else [_wave(size)]
        streams.setdefault((name.partition(".")[0], period), []).append((name, cycle(payloads)))
    now = time.monotonic_ns()
    due = {
        key: now + (key[1] * 1000 * number) // max(1, len(streams))
        for number, key in enumerate(sorted(streams))
    }
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        key = min(due, key=due.__getitem__)
        wait = due[key] - time.monotonic_ns()
        if wait > 0:
            time.sleep(wait / 1e9)
        events = [(name, next(payloads)) for name, payloads in streams[key]]
        sender.push(*events, created=time.monotonic_ns())
        due[key] += key[1] * 1000
    sender.close()


def _wave(size: int) -> bytes:
    return bytes(round(128 + 100 * math.cos(0.3 * each)) for each in range(size))
