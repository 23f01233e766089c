"""The nodes of a graph at run time: events, counters, inputs, queues, and where their results go."""

from __future__ import annotations

import base64
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from kaicep.live.graph import KINDS, Graph, inputs_of
from kaicep.plan.events import Match

if TYPE_CHECKING:
    from kaicep.live.processor import EventProcessor, Seat

# ----------------------------------------------------------------------------------------------------------
# Events, how long they are valid (CPEP, section II.B), and the EventStore that keeps them (section III.B).
#
# It has one ring for each type of event, and references to its slots. All times here are nanoseconds of the
# monotonic clock, which no correction of the wall clock moves.
#
# An event is put here once, by the worker that took or made it; everybody who needs it is bound to its
# slot, and nothing is copied. The ring of a type has as many slots as there can be valid events of it, so
# what is overwritten is outdated.
#
# All of this happens under the lock of the service, which makes a writer wait for readers and the other way
# round; an operator that runs has taken its events out of their slots before, and keeps them alive itself.

FOR_EVER = 1 << 62
"""The end of what never gets outdated."""

GROWTH = 4096
"""How far a ring may grow beyond its size, where nothing may be lost."""


class Event:
    """Something that a supplier pushed or an operator made; nothing of it is changed any more.

    It is valid on [begin, end). `pushed` is when the service took the latest of the suppliers' events in it,
    and `sent` when its supplier sent it, perhaps on another machine, in the service's own time.
    `trace` has, by supplier, the number of its event in here, where somebody downstream must know.
    `wall` is the event time in microseconds, for queries.
    """

    __slots__ = ("begin", "end", "payload", "pushed", "sent", "seq", "trace", "wall")

    def __init__(
        self,
        seq: int,
        begin: int,
        end: int,
        pushed: int,
        wall: int,
        payload: Any,
        trace: dict[str, int],
        sent: int | None = None,
    ) -> None:
        self.seq = seq
        self.begin = begin
        self.end = end
        self.pushed = pushed
        self.sent = pushed if sent is None else sent
        self.wall = wall
        self.payload = payload
        self.trace = trace


def derived(seq: int, payload: Any, parts: list[Event]) -> Event:
    """An event made of others: valid where all of them are.

    >>> made = derived(0, None, [Event(0, 1, 8, 1, 0, None, {}), Event(0, 3, 6, 3, 0, None, {})])
    >>> made.begin, made.end
    (3, 6)
    """
    if len(parts) == 1:
        (one,) = parts
        return Event(seq, one.begin, one.end, one.pushed, one.wall, payload, one.trace, one.sent)
    trace = {name: number for part in parts for name, number in part.trace.items()}
    return Event(
        seq,
        max(part.begin for part in parts),
        min(part.end for part in parts),
        max(part.pushed for part in parts),
        max(part.wall for part in parts),
        payload,
        trace,
        max(part.sent for part in parts),
    )


def is_outdated(event: Event, now: int) -> bool:
    """Whether an event is valid no longer. The interval is half open, as the paper defines it.

    >>> is_outdated(Event(0, 0, 10, 0, 0, None, {}), 9), is_outdated(Event(0, 0, 10, 0, 0, None, {}), 10)
    (False, True)
    """
    return now >= event.end


class Slot:
    """A place in a ring: its event (None once it is overwritten), and how many are bound to it."""

    __slots__ = ("event", "pins")

    def __init__(self, event: Event) -> None:
        self.event: Event | None = event
        self.pins = 0


class Ring:
    """The slots of one type of event, oldest first.

    With `keep` (outdated events are marked, or never get outdated) a slot that somebody is bound to is not
    overwritten, and the ring grows instead.
    """

    def __init__(self, size: int, keep: bool) -> None:
        self.size = size
        self.keep = keep
        self.longest = 0
        self.overwritten = 0
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, event: Event) -> Slot:
        """Puts an event into the next slot; whatever was there is gone."""
        slots = self._slots
        while len(slots) >= self.size and (
            not slots[0].pins or not self.keep or len(slots) >= self.size + GROWTH
        ):
            old = slots.popleft()
            if old.pins:
                self.overwritten += old.pins
                old.event = None
        slot = Slot(event)
        slots.append(slot)
        if len(slots) > self.longest:
            self.longest = len(slots)
        return slot

    def events(self) -> list[Event]:
        """The events that are kept, oldest first."""
        return [each.event for each in self._slots if each.event is not None]


class EventStore:
    """The rings by the name of the node that makes the events."""

    def __init__(self) -> None:
        self.rings: dict[str, Ring] = {}

    def ring(self, name: str, size: int, keep: bool) -> Ring:
        """The ring of a node; its size follows the graph, which may have changed."""
        found = self.rings.setdefault(name, Ring(size, keep))
        found.size, found.keep = size, keep
        return found

    def newest(self, name: str) -> Event | None:
        """The last event of a node that is still kept."""
        events = self.rings[name].events() if name in self.rings else []
        return events[-1] if events else None


# ----------------------------------------------------------------------------------------------------------
# Counters by priority, node and consumer; durations as histograms.

REASONS = (
    "outdated",
    "overwritten",
    "full",
    "hopeless",
    "refused",
    "unacknowledged",
    "error",
    "removed",
    "unpaired",
    "orphan",
)
"""Why something was shed: its validity was over before a worker had time for it; a newer event took its slot
before that; a queue was full; nothing reached its consumers in time any more; its time of creation could not
be; it was sent and its consumer left without a word; an operator failed; its reader was removed; nothing came
to be joined with while it was valid; what it belongs with was shed. The last two are no losses of their own:
with suppliers of different rates there is always something left over."""

MISSED = ("outdated", "overwritten", "full")
"""What is shed because there is too much to do."""


_BITS = 6  # buckets for each doubling: 2**6


class Histogram:
    """Counts whole numbers from 0 on in the manner of HDR: in constant memory, each within 1.6 percent.

    >>> found = Histogram()
    >>> for value in range(1, 1001):
    ...     found.record(value)
    >>> found.count, found.percentile(50), found.percentile(99), found.largest
    (1000, 503, 991, 1000)
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0
        self._buckets: dict[int, int] = {}

    def record(self, value: int) -> None:
        """Counts a value; what is below 0 counts as 0."""
        if value < 0:
            value = 0
        shift = value.bit_length() - _BITS - 1
        bucket = (shift << (_BITS + 1)) + (value >> shift) if shift > 0 else value
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        if value > self.largest:
            self.largest = value

    def percentile(self, share: float) -> int:
        """The value that so many percent of all are not above; 0 where there is none.

        Of a bucket, it is the largest value, but never more than was seen.
        """
        wanted = max(1, -(-self.count * share // 100))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                shift, start = bucket >> (_BITS + 1), bucket & ((1 << (_BITS + 1)) - 1)
                return min((start << shift) + (1 << shift) - 1, self.largest)
        return 0


@dataclass
class Counters:
    """The figures of a priority or of a node. Latencies are in nanoseconds.

    `offered` is what came to it, `ran` how often an operator ran, for `busy` nanoseconds in all, `delivered`
    what consumers got: `timely` or `late`. `shed` is by reason. `latency` reaches from the supplier to the
    consumer, wherever they are; `inside` is the part of it within the service. `blocked` counts how often a
    callback did not return in time for its worker, `locked` how often an operator kept the interpreter lock
    for so long that others waited.
    """

    offered: int = 0
    ran: int = 0
    busy: int = 0
    delivered: int = 0
    timely: int = 0
    late: int = 0
    bytes: int = 0
    shed: Counter[str] = field(default_factory=Counter)
    blocked: int = 0
    locked: int = 0
    latency: Histogram = field(default_factory=Histogram)
    inside: Histogram = field(default_factory=Histogram)

    def count(self, latency: int, inside: int, timely: bool, size: int) -> None:
        """Counts a delivery."""
        self.delivered += 1
        self.latency.record(latency)
        self.inside.record(inside)
        if timely:
            self.timely += 1
            self.bytes += size
        else:
            self.late += 1

    @property
    def lost(self) -> int:
        """All that was shed and would have been of use."""
        return sum(count for reason, count in self.shed.items() if reason not in ("unpaired", "orphan"))


# ----------------------------------------------------------------------------------------------------------
# The nodes of a graph at run time: readers, bindings, when they are ready, what they take.
#
# Everything here is done under the lock of the service, except `run` and `deliver`.

Checkpoint = Callable[[], None]
Shed = Callable[["RunningReader", str, int], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer gets: an event's payload, whether it is still valid, and how long it took.

    `latency` is the time in nanoseconds since the latest of its suppliers' events was sent, `inside` the time
    since the service took it, both until `at`. The event is valid on [begin, end), in nanoseconds of the
    monotonic clock.
    """

    consumer: str
    payload: Any
    seq: int
    timely: bool
    latency: int
    inside: int
    at: int
    begin: int
    end: int


class RunningSupplier:
    """A supplier at run time: it numbers events and knows how long they are valid."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.processor: EventProcessor
        self.priority = 0
        self.validity: int | None = None
        self.ring: Ring
        self.followers: Sequence[tuple[RunningReader, int]] = ()
        self.admitted = True
        self.traced = False
        self.seq = 0
        self.counters = Counters()

    def event(self, payload: Any, created: int, pushed: int, wall: int, sent: int | None = None) -> Event:
        """A new event of it."""
        seq = self.seq
        self.seq = seq + 1
        end = FOR_EVER if self.validity is None else created + self.validity
        return Event(seq, created, end, pushed, wall, payload, {self.name: seq} if self.traced else {}, sent)


class RunningReader:
    """An operator or a consumer at run time: what waits on each of its inputs, at most `limit`.

    `due` is when the first of the events that it would take gets outdated: t_e of section III.C.
    """

    parallel = False

    def __init__(self, name: str, inputs: int, limit: int) -> None:
        self.name = name
        self.processor: EventProcessor
        self.priority = 0
        self.limit = limit
        self.waiting: list[deque[Slot]] = [deque() for _ in range(inputs)]
        self.common: Sequence[tuple[str, tuple[int, ...]]] = ()
        self.queued = False
        self.admitted = True
        self.due = FOR_EVER
        self.counters = Counters()

    def bind(self, input: int, slot: Slot, shed: Shed) -> None:
        """Binds an input to the slot of an event; if too many wait already, the oldest goes."""
        if len(self.waiting[input]) >= self.limit:
            self._release(input)
            shed(self, "full" if len(self.waiting) == 1 else "unpaired", 1)
            self._renew()
        slot.pins += 1
        self.waiting[input].append(slot)
        if slot.event is not None and slot.event.end < self.due and len(self.waiting[input]) == 1:
            self.due = slot.event.end

    def is_ready(self, shed: Shed) -> bool:
        """Whether there is an event for every input, and they belong together."""
        while True:
            for queue in self.waiting:
                while queue and queue[0].event is None:
                    queue.popleft()
                    shed(self, "overwritten" if self.queued or len(self.waiting) == 1 else "unpaired", 1)
                if not queue:
                    return False
            if not self._drop_orphans(shed):
                return True

    def _drop_orphans(self, shed: Shed) -> bool:
        """Releases what waits for something that was shed.

        Inputs that have a supplier in common must be made of the same event of it, and events come in
        order: where one is older than the other, what belongs with it will not come.
        """
        for supplier, inputs in self.common:
            numbers = [self._head(each).trace.get(supplier, -1) for each in inputs]
            newest = max(numbers)
            stale = [each for each, number in zip(inputs, numbers, strict=True) if number < newest]
            for each in stale:
                self._release(each)
                shed(self, "orphan", 1)
            if stale:
                return True
        return False

    def _head(self, input: int) -> Event:
        event = self.waiting[input][0].event
        assert event is not None, "overwritten slots have been dropped"
        return event

    def _release(self, input: int) -> None:
        self.waiting[input].popleft().pins -= 1

    def take(self, now: int, discard: bool, shed: Shed) -> list[tuple[int, Event]] | None:
        """Takes one event of every input, by the number of the input; None if it is not ready after all.

        With `discard`, the bindings of branches that are outdated are released; the others stay, and what
        is due next is due by them alone (section III.C).
        """
        while self.is_ready(shed):
            if discard and now >= self.due and self.release_outdated(now, "outdated", shed):
                continue
            taken: list[tuple[int, Event]] = []
            for number, queue in enumerate(self.waiting):
                slot = queue.popleft()
                slot.pins -= 1
                assert slot.event is not None, "overwritten slots have been dropped"
                taken.append((number, slot.event))
            self._renew()
            return taken
        self._renew()
        return None

    def release_outdated(self, now: int, reason: str, shed: Shed) -> bool:
        """Releases the bindings to events that are no longer valid; returns whether there were any."""
        released = False
        for number, queue in enumerate(self.waiting):
            while queue and (queue[0].event is None or now >= queue[0].event.end):
                self._release(number)
                shed(self, reason, 1)
                released = True
        self._renew()
        return released

    def _renew(self) -> None:
        due = FOR_EVER
        for queue in self.waiting:
            if queue and (event := queue[0].event) is not None and event.end < due:
                due = event.end
        self.due = due

    def forget(self, shed: Shed, reason: str) -> None:
        """Releases all that waits."""
        for number, queue in enumerate(self.waiting):
            count = len(queue)
            while queue:
                self._release(number)
            if count:
                shed(self, reason, count)
        self.due = FOR_EVER


class RunningOperator(RunningReader):
    """An operator at run time. Different operators run side by side.

    It runs one event after the other, unless it is `parallel`; its events come out in order all the same.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        function: Callable[..., Any],
        each: bool,
        limit: int,
        parallel: bool = False,
    ) -> None:
        super().__init__(name, 1 if each else len(inputs), limit)
        self.function = function
        self.each = each
        self.parallel = parallel
        self.taken = 0
        self._made: dict[int, tuple[list[Event], list[Any]]] = {}
        self._next = 0
        self.places = 1
        self.ring: Ring
        self.followers: Sequence[tuple[RunningReader, int]] = ()
        self.seq = 0
        self._arrived: deque[int] = deque()

    def bind(self, input: int, slot: Slot, shed: Shed) -> None:
        """Binds an input; one that takes the events one by one has them all in one line."""
        if self.each:
            self._arrived.append(input)
            super().bind(0, slot, shed)
        else:
            super().bind(input, slot, shed)

    def take(self, now: int, discard: bool, shed: Shed) -> list[tuple[int, Event]] | None:
        """As of any reader; of one that takes them one by one, with the number of the input it came from."""
        taken = super().take(now, discard, shed)
        if not self.each:
            return taken
        left = len(self.waiting[0]) + (1 if taken else 0)
        while len(self._arrived) > left:  # those of what was shed
            self._arrived.popleft()
        return [(self._arrived.popleft(), taken[0][1])] if taken else None

    def in_turn(
        self, number: int, parts: list[Event], made: list[Any]
    ) -> Iterator[tuple[list[Event], list[Any]]]:
        """What may come out now that the task of a number is done: it waits for those that began before."""
        self._made[number] = parts, made
        while self._next in self._made:
            yield self._made.pop(self._next)
            self._next += 1

    def run(self, taken: Sequence[tuple[int, Event]], checkpoint: Checkpoint) -> list[Any]:
        """The payloads that it makes of what it took; a generator lets others go first between its steps."""
        if self.each:
            ((input, event),) = taken
            made = self.function(input, event)
        else:
            made = self.function(*[event.payload for _, event in taken])
        if isinstance(made, GeneratorType):
            found = []
            for each in made:
                if each is not None:
                    found.append(each)
                checkpoint()
            return found
        return [] if made is None else [made]


class RunningConsumer(RunningReader):
    """A consumer at run time: a bounded queue and a callback, called with one delivery after the other.

    Where `own` is set, a thread of its own delivers (its `seat`), and no worker waits for the callback: it is
    remote, or it was seen to block. What goes to a `remote` one counts when that has acknowledged it.
    """

    def __init__(self, name: str, callback: Callable[[Delivery], Any] | None, limit: int) -> None:
        super().__init__(name, 1, limit)
        self.callback = callback
        self.own = False
        self.remote = False
        self.seat: Seat | None = None

    def deliver(self, event: Event, now: int) -> Delivery:
        """Calls the callback, if there is one."""
        made = Delivery(
            self.name,
            event.payload,
            event.seq,
            now < event.end,
            now - event.sent,
            now - event.pushed,
            now,
            event.begin,
            event.end,
        )
        if self.callback is not None:
            self.callback(made)
        return made


def connect(graph: Graph, nodes: Iterable[RunningSupplier | RunningReader], store: EventStore) -> None:
    """Gives every node its ring, its readers, and what must be joined with what."""
    known = list(nodes)
    readers = {each.name: each for each in known if isinstance(each, RunningReader)}
    commons = {name: _common(graph, name) for name in graph.operators}
    traced = {supplier for each in commons.values() for supplier, _ in each}
    for node in known:
        if isinstance(node, RunningSupplier):
            micros = graph.suppliers[node.name].validity
            node.validity = None if micros is None else micros * 1000
            node.traced = node.name in traced
        if isinstance(node, RunningOperator):
            node.common = commons[node.name]
        if isinstance(node, RunningSupplier | RunningOperator):
            keep = not graph.discard or graph.validity(node.name) is None
            node.ring = store.ring(node.name, graph.capacity(node.name), keep)
            node.followers = [
                (readers[each], inputs_of(graph.node(each)).index(node.name))
                for each in graph.followers(node.name)
            ]


def _common(graph: Graph, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """The suppliers that several inputs of an operator are made of, with these inputs."""
    operator = graph.operators[name]
    if KINDS[operator.kind].each:
        return []
    roots = [graph.roots(each) for each in operator.inputs]
    found = []
    for supplier in graph.suppliers:
        inputs = tuple(number for number, each in enumerate(roots) if supplier in each)
        if len(inputs) > 1:
            found.append((supplier, inputs))
    return found


# ----------------------------------------------------------------------------------------------------------
# Deliveries as lines of JSON, for files and for the network.


def as_json(payload: Any) -> str:
    """A payload as JSON: rows as they are, matches as everywhere, bytes in base64, arrays as lists.

    >>> as_json({"x": 1})
    '{"x": 1}'
    """
    return json.dumps(payload, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Match):
        return value.to_dict()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if hasattr(value, "dtype"):
        if value.dtype.kind == "c":
            return [value.real.tolist(), value.imag.tolist()]
        return value.tolist()
    return str(value)


def as_bytes(payload: Any) -> bytes:
    """A payload for the network: bytes and arrays as they are, all else as JSON.

    >>> as_bytes({"x": 1}), as_bytes(b"raw")
    (b'{"x": 1}', b'raw')
    """
    if hasattr(payload, "tobytes"):
        return payload.tobytes()  # type: ignore[no-any-return]
    return payload if isinstance(payload, bytes) else as_json(payload).encode()


def received_line(consumer: str, payload: bytes, timely: bool) -> str:
    """What came over the network as one line of JSON.

    >>> received_line("airbag", b'{"x": 1}', True)
    '{"consumer": "airbag", "timely": true, "payload": {"x": 1}}\\n'
    """
    try:
        content = json.loads(payload)
    except ValueError:
        content = base64.b64encode(payload).decode()
    return json.dumps({"consumer": consumer, "timely": timely, "payload": content}) + "\n"


def line(delivery: Delivery) -> str:
    """A delivery as one line of JSON."""
    about = {
        "consumer": delivery.consumer,
        "seq": delivery.seq,
        "timely": delivery.timely,
        "latency_us": delivery.latency // 1000,
    }
    return f'{json.dumps(about)[:-1]}, "payload": {as_json(delivery.payload)}}}\n'
