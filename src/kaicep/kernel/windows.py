"""Aggregates over windows, event by event (semantics 2).

A sliding window adds what comes and takes away what goes, exactly and in amortised constant time; a batch
only adds. What a partition holds is forgotten when its window has passed, though it never comes back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from kaicep.kernel.aggregates import WINDOWS, Window
from kaicep.kernel.chains import chain_of
from kaicep.kernel.codec import EventTable, decode, decode_rows, encode, encode_rows, read_event
from kaicep.kernel.expressions import Writer, key_function, value_function
from kaicep.kernel.operator import Key, Limits, Rows, Semantics, Windowed, refuse
from kaicep.kernel.project import WindowNames, window_aggregates
from kaicep.plan.events import Event
from kaicep.plan.expressions import Aggregate
from kaicep.plan.nodes import OutputColumn, WindowAggregate
from kaicep.plan.types import Value

__all__ = ["WindowOperator"]

_BYTES_EACH = 512  # about what an event in a window takes


class _Entry:
    """An event inside a window: its group, what is aggregated of it, what its PATHs selected."""

    __slots__ = ("event", "group", "rows", "values", "version")

    def __init__(self, event: Event, group: Key, values: tuple[Value, ...], rows: Rows, version: int) -> None:
        self.event = event
        self.group = group
        self.values = values
        self.rows = rows
        self.version = version


class _Group:
    """The aggregates over one group of a window, and its first and last event."""

    __slots__ = ("aggregates", "count", "first", "last")

    def __init__(self, aggregates: list[Window], first: _Entry) -> None:
        self.aggregates = aggregates
        self.count = 0
        self.first = first
        self.last = first

    def add(self, entry: _Entry) -> None:
        self.count += 1
        self.last = entry
        for aggregate, value in zip(self.aggregates, entry.values, strict=True):
            aggregate.add(value)

    def remove(self, entry: _Entry) -> None:
        self.count -= 1
        for aggregate, value in zip(self.aggregates, entry.values, strict=True):
            aggregate.remove(value)

    def results(self) -> tuple[Value, ...]:
        return tuple(each.result() for each in self.aggregates)


class _Part:
    """The window of one partition: the events inside, their groups, and when it is next looked after."""

    __slots__ = ("due", "groups", "inside", "key", "number")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.inside: deque[_Entry] = deque()
        self.groups: dict[Key, _Group] = {}
        self.number = 0
        """Which batch is open: its number since the epoch, for batches by time."""
        self.due = math.inf


class WindowOperator:
    """A `WindowAggregate`, one event at a time; `columns` are those that are selected from it."""

    def __init__(
        self,
        node: WindowAggregate,
        columns: Iterable[OutputColumn],
        semantics: Semantics,
        limits: Limits | None = None,
        name: str = "the window",
    ) -> None:
        self.node = node
        self.version = 0
        self.name = name
        self._semantics = semantics
        self._limit = (limits or Limits()).most(_BYTES_EACH)
        self._chain = chain_of(node.input)
        self._streams = frozenset(self._chain.streams)
        self._partition_of = key_function(node.partition, node.streams)
        self._group_of = key_function(node.group_by, node.streams)
        aggregates = window_aggregates(node, columns)
        self._kinds = [_kind(each) for each in aggregates]
        self._values = [value_function(each.of, node.streams) if each.of else _nothing for each in aggregates]
        self._having = _having(node, aggregates)
        self.parts: dict[Key, _Part] = {}
        self.now: float = -math.inf
        self._serial = 0
        self._due: list[tuple[float, int, _Part]] = []
        self._held = 0

    @property
    def size(self) -> int:
        """How many events are held."""
        return self._held

    def feed(self, events: Iterable[Event]) -> list[Windowed]:
        """What is found by these events, the next ones in order."""
        found: list[Windowed] = []
        for event in events:
            if event.ts > self.now:
                self._move(event.ts, found)
            entry = self._entry(event)
            if entry is not None:
                self._take(entry, found)
        return found

    def advance(self, watermark: float) -> list[Windowed]:
        """What is found by knowing that no event below the watermark will come."""
        found: list[Windowed] = []
        if watermark > self.now:
            self._move(watermark, found)
        return found

    def promise(self, watermark: float) -> float:
        """The smallest end of any match that is still to be found."""
        return watermark

    # --- an event comes ---

    def _entry(self, event: Event) -> _Entry | None:
        """The event as it stands in a window, if it passes FILTER and PATH."""
        chain = self._chain
        if event.stream not in self._streams or event.ts not in chain.within:
            return None
        if (chain.passes is not None and not chain.passes(event)) or not chain.means(event, self._semantics):
            return None
        rows: Rows = ()
        for each in self.node.semantics:
            found = self._semantics.solutions(each, dict.fromkeys(each.variables, event))
            if not found:
                return None
            if each.selected:
                rows += ((each.selected, tuple(found)),)
        return self._made(event, rows, self.version)

    def _made(self, event: Event, rows: Rows, version: int) -> _Entry:
        return _Entry(
            event, self._group_of(event), tuple(value(event) for value in self._values), rows, version
        )

    def _take(self, entry: _Entry, found: list[Windowed]) -> None:
        key = self._partition_of(entry.event)
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = _Part(key)
        window, ts = self.node.window, entry.event.ts
        if window.kind == "sliding":
            if window.width is not None:
                self._expire(part, ts)
            elif window.count is not None and len(part.inside) == window.count:
                self._leave(part)
            self._enter(part, entry)
            self._answer(part, part.groups[entry.group], part.inside[0].event.ts, ts, found)
        else:
            if window.width is not None:
                part.number = ts // window.width
            self._enter(part, entry)
            if window.count is not None and len(part.inside) == window.count:
                self._close(part, part.inside[0].event.ts, ts, found)
        if window.width is not None and part.due == math.inf:
            self._schedule(part)

    def _enter(self, part: _Part, entry: _Entry) -> None:
        group = part.groups.get(entry.group)
        if group is None:
            group = part.groups[entry.group] = _Group([WINDOWS[each]() for each in self._kinds], entry)
        group.add(entry)
        part.inside.append(entry)
        self._held += 1
        if self._held > self._limit:
            raise refuse(
                f"{self.name} (WINDOW ?{self.node.window.variable}, {self.node.window.kind})",
                self._held,
                "make the window narrower, or keep more events out by a FILTER",
            )

    def _leave(self, part: _Part) -> None:
        """The oldest event leaves a sliding window."""
        entry = part.inside.popleft()
        self._held -= 1
        group = part.groups[entry.group]
        group.remove(entry)
        if group.count == 0:
            del part.groups[entry.group]

    def _expire(self, part: _Part, ts: float) -> None:
        assert self.node.window.width is not None
        oldest = ts - self.node.window.width
        while part.inside and part.inside[0].event.ts <= oldest:
            self._leave(part)

    # --- answers ---

    def _answer(self, part: _Part, group: _Group, start: int, end: int, found: list[Windowed]) -> None:
        sliding = self.node.window.kind == "sliding"
        entry = group.last if sliding else group.first
        values = group.results()
        if self._having(entry.event, values):
            edges = part.inside[0].event, part.inside[-1].event
            first, last = group.first.event, group.last.event
            found.append(
                Windowed(
                    part.key,
                    entry.group,
                    values,
                    entry.event,
                    first,
                    last,
                    edges,
                    group.count,
                    start,
                    end,
                    entry.rows,
                    part.inside[-1].version,
                )
            )

    def _close(self, part: _Part, start: int, end: int, found: list[Windowed]) -> None:
        """A batch is over: every group answers."""
        for group in part.groups.values():
            self._answer(part, group, start, end, found)
        self._held -= len(part.inside)
        part.inside.clear()
        part.groups.clear()
        del self.parts[part.key]

    # --- time passes ---

    def _schedule(self, part: _Part) -> None:
        """Has the partition looked after when its batch ends, or when its window may be empty."""
        width = self.node.window.width
        assert width is not None
        if self.node.window.kind == "batch":
            part.due = (part.number + 1) * width
        else:
            part.due = part.inside[-1].event.ts + width
        self._serial += 1
        heappush(self._due, (part.due, self._serial, part))

    def _move(self, now: float, found: list[Windowed]) -> None:
        self.now = now
        width = self.node.window.width
        while self._due and self._due[0][0] <= now:
            part = heappop(self._due)[2]
            part.due = math.inf
            assert width is not None
            if self.node.window.kind == "batch":
                self._close(part, part.number * width, (part.number + 1) * width, found)
                continue
            self._expire(part, now)
            if part.inside:
                self._schedule(part)
            else:
                del self.parts[part.key]

    # --- saved state ---

    def snapshot(self) -> bytes:
        """The state: the events inside each window; the aggregates follow from them."""
        table = EventTable()
        parts = []
        for part in sorted(self.parts.values(), key=lambda each: repr(each.key)):
            entries = [
                [table.place(each.event), encode_rows(each.rows), each.version]
                for each in part.inside
                if self._is_inside(each)
            ]
            if entries:
                parts.append([list(part.key), entries])
        now = str(self.now) if math.isinf(self.now) else self.now
        window = self.node.window
        shape = [window.kind, window.width, window.count]
        return encode("window", {"window": shape, "now": now, "events": table.document(), "parts": parts})

    def _is_inside(self, entry: _Entry) -> bool:
        """Whether the event may still be in a window that is to come: what is not is soon forgotten."""
        window = self.node.window
        if window.kind == "batch" or window.width is None:
            return True
        return entry.event.ts > self.now - window.width

    def restore(self, state: bytes) -> None:
        """Goes on from a state."""
        document: dict[str, Any] = decode("window", state)
        events = [read_event(each) for each in document["events"]]
        self.now = float(document["now"]) if isinstance(document["now"], str) else document["now"]
        self.parts.clear()
        self._due.clear()
        self._held = 0
        width = self.node.window.width
        for key, entries in document["parts"]:
            part = self.parts[tuple(key)] = _Part(tuple(key))
            for place, rows, version in entries:
                self._enter(part, self._made(events[place], decode_rows(rows), version))
            if width is not None:
                part.number = part.inside[-1].event.ts // width
                self._schedule(part)
        heapify(self._due)


def _nothing(_: Event) -> Value:
    return None


def _kind(expr: Aggregate) -> str:
    if expr.of is None:
        return "EVENTS"
    return "DISTINCT" if expr.distinct and expr.op == "COUNT" else expr.op


def _having(
    node: WindowAggregate, aggregates: tuple[Aggregate, ...]
) -> Callable[[Event, tuple[Value, ...]], bool]:
    writer = Writer(node.streams)
    for each in node.having:
        writer.require(each, WindowNames(aggregates))
    writer.lines.append("return True")
    return writer.function("event, values")
