"""A service under load: suppliers and consumers are other processes, which stamp what they send and get.

They keep to the last core, the service to the others. Where that is allowed (root, iproute2) they are in a
network namespace of their own, at the other end of a virtual cable; else they connect over loopback.
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from kaicep.errors import Failure
from kaicep.live import ticking
from kaicep.live.event_service import Service, Settings
from kaicep.live.gateway import Gateway, Receiver, Sender
from kaicep.live.graph import Graph, Node, Supplier
from kaicep.live.metrics import figures
from kaicep.processes import bound

__all__ = ["KEY", "Run", "apart", "generate", "run_once"]

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
    with _pinned() as core, apart() as (host, inside), service:
        gateway = Gateway(service, (host, 0))
        others: list[subprocess.Popen[str]] = []
        try:
            names = list(service.consumers)
            others.append(_started(inside, core, "consume", address=gateway.address, consumers=names))
            others.append(_started(inside, core, "generate", address=gateway.address, suppliers=suppliers))
            time.sleep(warm_up)
            service.count_anew()
            began, used = time.monotonic(), service.crew.busy_seconds()
            time.sleep(seconds)
            took, used = time.monotonic() - began, service.crew.busy_seconds() - used
            found = figures(service)
        finally:
            for each in reversed(others):
                each.communicate(timeout=10)
            gateway.close()
    cores = service.dispatcher.cores
    return Run(used / took / cores, cores, took, found)


@contextmanager
def _pinned() -> Iterator[int]:
    """This thread, and all that it starts, leaves the last core to others; gives its number."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    if len(before) > 1:
        os.sched_setaffinity(0, before - {max(before)})
    try:
        yield max(before, default=0)
    finally:
        if before:
            os.sched_setaffinity(0, before)


@contextmanager
def apart() -> Iterator[tuple[str, list[str]]]:
    """A host to listen on, and what goes before a command that shall run at the other end of the cable."""
    number = os.getpid()
    name, here, there = f"kaicep-{number}", f"kc{number}a", f"kc{number}b"
    net = f"10.{200 + number % 50}.{number // 50 % 256}"
    ready = shutil.which("ip") is not None and os.geteuid() == 0 and _ip("netns", "add", name)
    for each in Path("/run/netns").glob("kaicep-*"):
        if not Path(f"/proc/{each.name.removeprefix('kaicep-')}").exists():  # of a run that was killed
            _ip("netns", "del", each.name)
    try:
        if ready and all(
            _ip(*each.split())
            for each in (
                f"link add {here} type veth peer name {there} netns {name}",
                f"addr add {net}.1/30 dev {here}",
                f"link set {here} up",
                f"-n {name} addr add {net}.2/30 dev {there}",
                f"-n {name} link set {there} up",
                f"netns exec {name} true",
            )
        ):
            yield f"{net}.1", ["ip", "netns", "exec", name]
        else:
            yield "127.0.0.1", []
    finally:
        if ready:
            _ip("netns", "del", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


def _started(inside: Sequence[str], core: int, role: str, **wanted: Any) -> subprocess.Popen[str]:
    """A process of this module that is ready for its work; it ends when its stdin is closed."""
    command = f"from kaicep_bench.live_load import {role}; {role}()"
    made = subprocess.Popen(
        bound([*inside, sys.executable, "-c", command, str(core)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdin is not None
    assert made.stdout is not None
    made.stdin.write(json.dumps(wanted) + "\n")
    made.stdin.flush()
    if made.stdout.readline().strip() != "ready":
        raise Failure(f"the process that should {role} did not start")
    return made


def _settle() -> Any:
    """What a process is to do; it keeps to the core that it was given."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    ticking.real_time(0, ticking.TOP + 1)
    wanted = json.loads(sys.stdin.readline())
    return {**wanted, "address": tuple(wanted["address"])}


def consume() -> None:
    """The consumers: they receive and acknowledge until stdin is closed."""
    wanted = _settle()
    receivers = [Receiver(wanted["address"], each) for each in wanted["consumers"]]
    by_socket: dict[Any, Receiver] = {each.fileno(): each for each in receivers}
    print("ready", flush=True)
    while True:
        ready = select.select([sys.stdin, *by_socket], [], [])[0]
        if sys.stdin in ready:
            return
        for each in ready:
            while (more := by_socket[each].next()) is not None and by_socket[each].has_next:
                pass
            if more is None:
                del by_socket[each]


def generate() -> None:
    """The load generator: told on stdin what to send where, it sends until stdin is closed."""
    wanted = _settle()
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
