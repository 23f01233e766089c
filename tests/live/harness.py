"""A short way to a running service: nodes in, what consumers got out; a clock that stands still."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from kaicep.live import ticking
from kaicep.live.bindings import Delivery
from kaicep.live.event_service import Service, Settings
from kaicep.live.graph import Consumer, Graph, Node, Operator
from kaicep.live.processor import Seat

LONG = 120.0
"""Seconds after which a test gives up on what should happen at once."""

MODES = [
    pytest.param(False, id="queue"),
    pytest.param(
        True, id="fifo", marks=pytest.mark.skipif(not ticking.allowed(), reason="no SCHED_FIFO here")
    ),
]


class Clock:
    """A clock that only goes when told to; in milliseconds."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def forward(self, milliseconds: float) -> None:
        self.now += round(milliseconds * 1_000_000)


class Got:
    """What consumers got, by their names; callbacks are made by `consumer`."""

    def __init__(self) -> None:
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)

    def consumer(self, name: str, input: str, priority: int = 1, **settings: Any) -> Consumer:
        return Consumer(name, input, priority, lambda each: self.deliveries[name].append(each), **settings)

    def payloads(self, name: str) -> list[Any]:
        return [each.payload for each in self.deliveries[name]]


class Gate:
    """An operator that stands still until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, payload: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(LONG), "nobody opened the gate"
        return payload


def python(name: str, inputs: str, function: Callable[..., Any] = lambda *payloads: payloads) -> Operator:
    """An operator of a function; its inputs are given in one text."""
    return Operator(name, "python", tuple(inputs.split()), {}, function)


def service(*nodes: Node, discard: bool = True, clock: Clock | None = None, **settings: Any) -> Service:
    """A service of these nodes, not started; quiet about real time unless it is asked for."""
    made = Settings(**{"real_time": False, "cores": 2, "admission": False, **settings})
    graph = Graph.of(*nodes, discard=discard)
    return Service(graph, made, clock=clock) if clock else Service(graph, made)


def names_of_starts(running: Service) -> list[str]:
    """A list that fills with the name of whatever starts; a mover is called `move N` after its level."""
    starts: list[str] = []

    def note(seat: Seat) -> None:
        starts.append(f"move {seat.processor.priority}" if seat.mover else seat.task[0].name)

    running.dispatcher.on_start = note
    return starts
