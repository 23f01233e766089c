"""Aggregates over windows: which events each answer is about (semantics 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kaicep.plan.events import Event
from kaicep.plan.nodes import WindowAggregate
from kaicep.reference.chains import Key, Semantics, chain_of, key_of
from kaicep.reference.expressions import Environment, evaluate

__all__ = ["Windowed", "window_answers"]


@dataclass(frozen=True)
class Windowed:
    """The events that one answer aggregates: those of one group inside one window.

    `trigger` is the event that a sliding window answers to. `first` and `last` are those of the whole
    window, all groups together; `start` and `end` are its span.
    """

    variable: str
    group: Key
    events: tuple[Event, ...]
    trigger: Event | None
    first: Event
    last: Event
    start: int
    end: int

    @property
    def environment(self) -> Environment:
        """What the window's expressions speak of.

        Outside aggregates that is the event that triggers. A batch has none, and its expressions name
        only what its events have in common.
        """
        event = self.trigger or self.events[0]
        return Environment({self.variable: event}, rounds={self.variable: self.events})


def window_answers(
    node: WindowAggregate, events: Sequence[Event], semantics: Semantics
) -> Iterator[Windowed]:
    """The windows over the events of one partition, given in order, for which HAVING holds."""
    chain = chain_of(node.input)
    inside = [
        each
        for each in events
        if chain.sees(each)
        and chain.passes(each)
        and chain.means(each, semantics)
        and all(semantics.solutions(path, dict.fromkeys(path.variables, each)) for path in node.semantics)
    ]
    windows = _sliding(node, inside) if node.window.kind == "sliding" else _batches(node, inside)
    for window in windows:
        if all(evaluate(each, window.environment) is True for each in node.having):
            yield window


def _sliding(node: WindowAggregate, events: Sequence[Event]) -> Iterator[Windowed]:
    """On every event, the window that ends with it, of which the event's own group answers."""
    window = node.window
    keyed = [(each, key_of(node.group_by, each)) for each in events]
    for index, (trigger, group) in enumerate(keyed):
        held = keyed[: index + 1]
        if window.width is not None:
            held = [(each, key) for each, key in held if each.ts > trigger.ts - window.width]
        elif window.count is not None:
            held = held[-window.count :]
        members = tuple(each for each, key in held if key == group)
        first = held[0][0]
        yield Windowed(window.variable, group, members, trigger, first, trigger, first.ts, trigger.ts)


def _batches(node: WindowAggregate, events: Sequence[Event]) -> Iterator[Windowed]:
    """One window after the other, of which every group answers."""
    window = node.window
    if window.width is not None:
        width = window.width
        for number, inside in groupby(events, key=lambda each: each.ts // width):
            yield from _groups(node, list(inside), number * width, (number + 1) * width)
    elif window.count is not None:
        for start in range(0, len(events) - window.count + 1, window.count):
            batch = events[start : start + window.count]
            yield from _groups(node, batch, batch[0].ts, batch[-1].ts)


def _groups(node: WindowAggregate, batch: Sequence[Event], start: int, end: int) -> Iterator[Windowed]:
    groups: dict[Key, list[Event]] = {}
    for each in batch:
        groups.setdefault(key_of(node.group_by, each), []).append(each)
    for group, members in groups.items():
        yield Windowed(node.window.variable, group, tuple(members), None, batch[0], batch[-1], start, end)
