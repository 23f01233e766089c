"""The processors of the levels and their threads, one dispatcher that decides what starts, and overload."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from kaicep.live import ticking
from kaicep.live.bindings import (
    Event,
    RunningConsumer,
    RunningOperator,
    RunningReader,
    RunningSupplier,
    Slot,
    is_outdated,
)
from kaicep.live.ticking import Lock

# ----------------------------------------------------------------------------------------------------------
# EventProcessors, one for each priority level, and the rule by which they start work (CPEP, section III.A).
#
# Each has three queues: InputQ (suppliers' events), PendingQ (operators and consumers that have what they
# need), MovingQ (events for readers of lower levels); Workers, who empty the first two, pending before
# input, and Movers, who empty the third. What may start is decided in one place, `Dispatcher.dispatch`,
# under one lock: from the most urgent level down, processing before moving, and nothing below while
# anything above is ready and not started. Threads have interleaved priorities besides, where the system has
# them; then the kernel also takes the core from what is running already.
#


Task = tuple[RunningReader, list[tuple[int, Event]]]
"""A reader, and the events that it gets."""
Bundle = tuple[RunningReader, int, Slot]
"""A reader, which of its inputs is meant, and the slot of the event."""
Start = Callable[["Seat"], None]

INPUTS = 4096
"""How many suppliers' events may wait at a level; beyond that the oldest go."""


class Seat:
    """A place for a thread: it is given a task, works it off, and waits for the next.

    A worker's seat and a mover's belong to a level, that of a `consumer` to it alone. `number` is the place
    of its task among those of an operator that works on several at once.
    """

    def __init__(
        self, processor: EventProcessor, mover: bool = False, consumer: RunningConsumer | None = None
    ) -> None:
        self.processor = processor
        self.mover = mover
        self.consumer = consumer
        self.reported = False
        self.number = 0
        self.task: Task | None = None
        self.bundle: Bundle | None = None
        self.ended = False
        self.lost = False
        self.since = 0
        self.counted = False
        self.thread: threading.Thread | None = None
        self._parking = threading.Lock()
        self._parking.acquire()

    def wake(self) -> None:
        """Lets the thread go on; it may be that it does not wait yet."""
        self._parking.release()

    def park(self) -> None:
        """Waits until woken."""
        self._parking.acquire()


class EventProcessor:
    """The queues and the threads of one level."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.input: deque[tuple[RunningSupplier, Event]] = deque()
        self.pending: deque[RunningReader] = deque()
        self.moving: list[tuple[int, int, Bundle]] = []
        self.resuming: deque[Seat] = deque()
        self.workers: list[Seat] = []
        self.movers: list[Seat] = []
        self.idle: list[Seat] = []
        self.idle_movers: list[Seat] = []
        self.busy = 0
        self.busy_movers = 0

    @property
    def has_work(self) -> bool:
        """Whether anything waits to be processed."""
        return bool(self.pending or self.input or self.resuming)


class Dispatcher:
    """Decides what starts. Callers of its methods have the lock, unless a method says otherwise."""

    def __init__(
        self,
        cores: int,
        discard: bool,
        clock: Callable[[], int],
        lock: Lock,
        count_shed: Callable[[RunningReader | RunningSupplier, str, int], None],
    ) -> None:
        self.cores = cores
        self.discard = discard
        self.clock = clock
        self.lock = lock
        self.shed = count_shed
        self.processors: list[EventProcessor] = []
        self.running = False
        self.pressed = False
        """Whether anything had to wait since somebody set this back, because all cores were in use."""
        self.on_start: Callable[[Seat], None] | None = None
        """Called when a seat gets something to do, with the lock held: for tests that watch the order."""
        self._stamps = count()
        self._under_way = 0
        self.sent = 0
        """How many deliveries are on their way to consumers elsewhere, who have not acknowledged them."""

    def level(self, priority: int) -> EventProcessor:
        """The processor of a priority; a new one takes its place among the others."""
        for each in self.processors:
            if each.priority == priority:
                return each
        made = EventProcessor(priority)
        self.processors.append(made)
        self.processors.sort(key=lambda each: -each.priority)
        return made

    # --- what comes in ---

    def arrive(self, supplier: RunningSupplier, event: Event) -> None:
        """A supplier's event waits in the InputQ of its level."""
        queue = supplier.processor.input
        if len(queue) >= INPUTS:
            self.shed(queue.popleft()[0], "full", 1)
        queue.append((supplier, event))

    def spread(self, source: RunningSupplier | RunningOperator, event: Event) -> None:
        """Puts an event into its slot and notifies its readers, those of other levels through a mover."""
        slot = source.ring.put(event)
        for reader, input in source.followers:
            if not reader.admitted:
                continue
            if reader.processor is source.processor:
                self.bind(reader, input, slot)
            else:
                slot.pins += 1  # it is bound once it has been moved
                bundle = (reader, input, slot)
                heapq.heappush(source.processor.moving, (-reader.priority, next(self._stamps), bundle))

    def bind(self, reader: RunningReader, input: int, slot: Slot) -> None:
        """Binds a reader to a slot, and lets it wait for a worker if that was all it needs."""
        reader.bind(input, slot, self.shed)
        self.enqueue(reader)

    def enqueue(self, reader: RunningReader) -> None:
        """Puts a reader into the PendingQ if it is ready and not there yet; consumers go first."""
        if reader.queued:
            return
        if self.discard and len(reader.waiting) > 1 and (now := self.clock()) >= reader.due:
            reader.release_outdated(now, "unpaired", self.shed)
        if not reader.is_ready(self.shed):
            return
        if isinstance(reader, RunningConsumer) and reader.own:
            self._hand(reader)
            return
        reader.queued = True
        if isinstance(reader, RunningConsumer):
            reader.processor.pending.appendleft(reader)
        else:
            reader.processor.pending.append(reader)

    def _hand(self, consumer: RunningConsumer) -> None:
        """Gives the thread of a consumer what it delivers next; no worker is needed, and no core reckoned."""
        if consumer.seat is None or not self.running:
            return
        taken = consumer.take(self.clock(), self.discard, self.shed)
        if taken is not None:
            consumer.queued = True
            consumer.seat.task = consumer, taken
            self._start(consumer.seat)

    # --- what starts ---

    def dispatch(self) -> None:
        """Starts all that may start."""
        if not self.running:
            return
        used = 0
        for processor in self.processors:
            used += processor.busy
            while processor.pending or processor.input or processor.resuming:
                if used >= self.cores:
                    self.pressed = True
                    return
                if processor.resuming:
                    used += 1
                    self._resume(processor)
                    continue
                if not processor.idle:
                    return
                task = self._pick(processor)
                if task is not None:
                    seat = processor.idle.pop()
                    seat.task = task
                    if isinstance(task[0], RunningOperator):
                        seat.number = task[0].taken
                        task[0].taken += 1
                    seat.counted = not isinstance(task[0], RunningConsumer)  # a callback may block
                    processor.busy += seat.counted
                    used += seat.counted
                    self._start(seat)
            used += processor.busy_movers
            while processor.moving:
                if used >= self.cores or not processor.idle_movers:
                    self.pressed = True
                    return
                seat = processor.idle_movers.pop()
                seat.bundle = heapq.heappop(processor.moving)[2]
                processor.busy_movers += 1
                used += 1
                self._start(seat)

    def _start(self, seat: Seat) -> None:
        seat.since = self.clock()
        self._under_way += 1
        if self.on_start is not None:
            self.on_start(seat)
        seat.wake()

    def _resume(self, processor: EventProcessor) -> None:
        seat = processor.resuming.popleft()
        seat.counted = True
        processor.busy += 1
        seat.since = self.clock()
        seat.wake()

    def _pick(self, processor: EventProcessor) -> Task | None:
        """The next task of a level: pending before input; what is outdated is dropped on the way."""
        now = self.clock()
        while processor.pending:
            reader = processor.pending.popleft()
            taken = reader.take(now, self.discard, self.shed)
            if taken is None or reader.parallel:
                reader.queued = False
            if taken is not None:
                if reader.parallel:
                    self.enqueue(reader)
                return reader, taken
        if processor.input:
            supplier, event = processor.input.popleft()
            if self.discard and is_outdated(event, now):
                self.shed(supplier, "outdated", 1)
            else:
                self.spread(supplier, event)
        return None

    # --- what ends ---

    def finish(self, seat: Seat) -> None:
        """A worker is done with its task: it is free, and what it worked for may be ready again."""
        assert seat.task is not None
        reader = seat.task[0]
        seat.task = None
        self._under_way -= 1
        seat.since = 0
        if seat.counted:
            seat.processor.busy -= 1
            seat.counted = False
        seat.reported = False
        if not reader.parallel:
            reader.queued = False
        self.enqueue(reader)
        self.free(seat)

    def moved(self, seat: Seat) -> None:
        """A mover takes its bundle to the readers' level."""
        assert seat.bundle is not None
        reader, input, slot = seat.bundle
        seat.bundle = None
        self._under_way -= 1
        seat.since = 0
        seat.processor.busy_movers -= 1
        slot.pins -= 1
        if reader.admitted:
            self.bind(reader, input, slot)
        self.free(seat)

    def free(self, seat: Seat) -> None:
        """A seat has nothing to do; one that was given up for lost, or has no service any more, ends."""
        if seat.lost or not self.running:
            seat.ended = True
        elif seat.consumer is not None:
            pass  # it waits for what is next for its consumer
        elif seat.mover:
            seat.processor.idle_movers.append(seat)
        else:
            seat.processor.idle.append(seat)
        self.dispatch()

    def checkpoint(self, seat: Seat) -> None:
        """Lets more urgent work go first, if there is any; takes the lock itself.

        Whoever comes here does not hang, however long all of its steps take together.
        """
        seat.since = self.clock()
        if not self._is_pressed(seat.processor) or seat.lost:
            return
        with self.lock:
            if not self.running:
                return
            seat.processor.busy -= seat.counted
            seat.counted = False
            seat.since = 0
            seat.processor.resuming.append(seat)
            self.dispatch()
        seat.park()

    def _is_pressed(self, processor: EventProcessor) -> bool:
        used = 0
        for each in self.processors:
            if each is processor:
                return False
            used += each.busy + each.busy_movers
            if each.has_work or each.moving or used >= self.cores:
                return True
        return False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, nothing is on its way, and no worker is busy."""
        waits = any(each.has_work or each.moving for each in self.processors)
        return not waits and not self._under_way and not self.sent

    def queues(self) -> dict[int, dict[str, Any]]:
        """How much waits, by priority and queue."""
        return {
            each.priority: {
                "input": len(each.input),
                "pending": len(each.pending),
                "moving": len(each.moving),
            }
            for each in self.processors
        }


# ----------------------------------------------------------------------------------------------------------
# Which consumers are left out because nothing reaches them in time anyway.
#
# Validity alone sheds what is outdated, one event at a time and after others have worked for it. A consumer
# whose events all die at the same node wastes whatever was done for it before that node. Such a one is left
# out for a while, with all that only it needs, and named with the node; then it is tried again, and at once
# where others had too much to do and have no longer. Nobody else is touched: a consumer that gets anything
# in time stays.

ENOUGH, INTERVALS = 8, 2
"""So many events must have died at a node, in so many intervals, and none come through, before that says
anything. Those that were kept waiting by others all die in one interval, as soon as it is their turn."""
_RELAXED = 2
"""After so many intervals in which nothing had to wait, whoever was left out because of others is tried."""
_FIRST, _LONGEST = 10, 160
"""For how many intervals a consumer is left out, the first time and at most; a failed try doubles it."""


@dataclass(frozen=True)
class NodeCounts:
    """What happened at a node so far: how many events came through it, and how many died of lack of time."""

    through: int
    missed: int


@dataclass(frozen=True)
class Hopeless:
    """A consumer that is left out: where its events died, and how many in a row."""

    consumer: str
    node: str
    missed: int


class Admission:
    """Watches the figures of the nodes, one interval after the other.

    >>> some = Admission()
    >>> upstream = {"airbag": ["spectrum", "airbag"], "screen": ["screen"]}
    >>> counted = {name: NodeCounts(0, 0) for name in ("spectrum", "airbag", "screen")}
    >>> some.observe(upstream, counted.__getitem__)
    False
    >>> counted |= {"spectrum": NodeCounts(9, 0), "airbag": NodeCounts(0, 4), "screen": NodeCounts(1, 50)}
    >>> some.observe(upstream, counted.__getitem__)
    False
    >>> counted |= {"spectrum": NodeCounts(19, 0), "airbag": NodeCounts(0, 9)}
    >>> some.observe(upstream, counted.__getitem__), list(some.hopeless.values())
    (True, [Hopeless(consumer='airbag', node='airbag', missed=9)])
    """

    def __init__(self) -> None:
        self.hopeless: dict[str, Hopeless] = {}
        self._since: dict[str, NodeCounts] = {}
        self._before: dict[str, NodeCounts] = {}
        self._intervals: Counter[str] = Counter()
        self._left: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._pressed: dict[str, int] = {}
        self._relaxed = 0

    def observe(
        self,
        upstream: Mapping[str, Iterable[str]],
        counted: Callable[[str], NodeCounts],
        pressed: bool = True,
    ) -> bool:
        """Takes the figures of all nodes; returns whether anybody is left out now, or let in, who was not.

        `upstream` has for each consumer the nodes that its events pass, itself included. `pressed` is whether
        anything had to wait in this interval because all cores were in use.
        """
        changed = self._let_in(upstream.keys(), pressed)
        nodes = {node for some in upstream.values() for node in some}
        dead = {node: missed for node in nodes if (missed := self._missed(node, counted(node)))}
        for consumer, some in upstream.items():
            if consumer not in self.hopeless:
                for node in some:
                    if node in dead:
                        self._leave_out(Hopeless(consumer, node, dead[node]))
                        changed = True
                        break
        return changed

    def _let_in(self, known: Iterable[str], pressed: bool) -> bool:
        known = set(known)
        self._relaxed = 0 if pressed else self._relaxed + 1
        over = [
            name
            for name, left in self._left.items()
            if left <= 1 or name not in known or (self._relaxed >= _RELAXED and self._others_pressed(name))
        ]
        for name in over:
            del self._left[name], self.hopeless[name], self._pressed[name]
        for name in self._pressed:
            self._pressed[name] += pressed
        for name in self._left:
            self._left[name] -= 1
        return bool(over)

    def _others_pressed(self, name: str) -> bool:
        """Whether there was too much to do also without a consumer; the first interval may be its own."""
        return self._pressed[name] > 1

    def _leave_out(self, found: Hopeless) -> None:
        self.hopeless[found.consumer] = found
        self._pressed[found.consumer] = 0
        self._left[found.consumer] = self._next.get(found.consumer, _FIRST)
        self._next[found.consumer] = min(2 * self._left[found.consumer], _LONGEST)

    def _missed(self, node: str, now: NodeCounts) -> int:
        """How many events died at a node since the last one came through; 0 while that says nothing."""
        since, before = self._since.setdefault(node, now), self._before.get(node, now)
        self._before[node] = now
        if now.through != since.through or now.missed < since.missed:
            self._next.pop(node, None)  # if it is a consumer: it got something, and is new to us again
            self._forget(node, now)
            return 0
        self._intervals[node] += now.missed > before.missed
        missed = now.missed - since.missed
        if missed < ENOUGH or self._intervals[node] < INTERVALS:
            return 0
        self._forget(node, now)
        return missed

    def _forget(self, node: str, now: NodeCounts) -> None:
        self._since[node] = now
        self._intervals[node] = 0


# ----------------------------------------------------------------------------------------------------------
# The threads of a service, on the seats of the levels and of consumers, and a watchdog over them.

BLOCKED = 0.02
"""After how many seconds a callback has blocked: it gets a thread of its own, and its worker another."""


LOCKED = 0.02
"""For how many seconds an operator may keep the interpreter lock before that is counted."""
_MOSTLY = 0.8


@dataclass(frozen=True)
class Hanging:
    """An operator or a consumer that does not come back, and for how many seconds when it was noticed."""

    node: str
    seconds: float


class Crew:
    """As many workers for each level as there are cores, and a mover.

    `process` works a seat's task off. All methods want the lock to be held, except `leave`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        real_time: bool,
        process: Callable[[Seat], None],
        rest: Callable[[], None],
    ) -> None:
        self.dispatcher = dispatcher
        self.real_time = real_time
        self._process = process
        self._rest = rest
        self._seats: list[Seat] = []
        self._intakes: dict[int, Callable[[], EventProcessor]] = {}
        self._processes: dict[int, Callable[[], RunningOperator | None]] = {}
        self._used: dict[int, float] = {}

    def fill(self, processor: EventProcessor) -> None:
        """Fills the seats of a level, if the service runs."""
        if not self.dispatcher.running:
            return
        while len(processor.workers) < self.dispatcher.cores:
            seat = Seat(processor)
            processor.workers.append(seat)
            processor.idle.append(seat)
            self._employ(seat)
        if not processor.movers:
            seat = Seat(processor, mover=True)
            processor.movers.append(seat)
            processor.idle_movers.append(seat)
            self._employ(seat)

    def attend(self, consumer: RunningConsumer) -> None:
        """Gives a consumer a thread of its own, if the service runs and it has none."""
        consumer.own = True
        if self.dispatcher.running and consumer.seat is None:
            consumer.seat = Seat(consumer.processor, consumer=consumer)
            self._employ(consumer.seat)
            self.rank()
            self.dispatcher.enqueue(consumer)

    def release(self, consumer: RunningConsumer) -> None:
        """Lets the thread of a consumer end, after what it delivers now."""
        seat, consumer.seat, consumer.own = consumer.seat, None, False
        if seat is None:
            return
        seat.lost = True
        if seat.task is None:
            seat.ended = True
            seat.wake()

    def take_in(self, level: Callable[[], EventProcessor]) -> Callable[[], None]:
        """Ranks the calling thread, which takes events in, with the workers of a level, whatever it is then.

        Call what is returned when it takes in no more; without the lock, both.
        """
        me = threading.get_native_id()
        with self.dispatcher.lock:
            self._intakes[me] = level
            self.rank()

        def leave() -> None:
            with self.dispatcher.lock:
                self._intakes.pop(me, None)

        return leave

    def _employ(self, seat: Seat) -> None:
        what = "mover" if seat.mover else "worker" if seat.consumer is None else "output"
        name = f"kaicep-live-{what}-{seat.processor.priority}"
        seat.thread = threading.Thread(target=self._work, args=(seat,), name=name, daemon=True)
        self._seats.append(seat)
        seat.thread.start()

    def _work(self, seat: Seat) -> None:
        """What a thread does all its life."""
        while not seat.ended:
            seat.park()
            if seat.bundle is not None:
                with self.dispatcher.lock:
                    self.dispatcher.moved(seat)
            elif seat.task is not None:
                self._process(seat)
            if not seat.processor.has_work:
                self._rest()

    def rank(self) -> None:
        """Gives the threads their priorities.

        In each level: workers and intake, then movers, then output, which is above the next level's workers.
        """
        if not (self.real_time and self.dispatcher.running):
            return
        first = {id(each): 3 * number for number, each in enumerate(self.dispatcher.processors)}
        for seat in self._seats:
            if seat.thread is not None and seat.thread.native_id is not None:
                below = 1 if seat.mover else 2 if seat.consumer is not None else 0
                rank = first[id(seat.processor)] + below
                ticking.real_time(seat.thread.native_id, ticking.TOP - 1 - rank)
        for pid, whose in tuple(self._processes.items()):
            operator = whose()
            if operator is not None and not ticking.real_time(
                pid, ticking.TOP - 1 - first[id(operator.processor)]
            ):
                del self._processes[pid]  # it has ended
        for thread, level in self._intakes.items():
            ticking.real_time(thread, ticking.TOP - 1 - first[id(level())])

    def rank_process(self, pid: int, whose: Callable[[], RunningOperator | None]) -> None:
        """Ranks a process that works for an operator, once that is there, with the workers of its level.

        Without the lock.
        """
        with self.dispatcher.lock:
            self._processes[pid] = whose
            self.rank()

    def lockers(self, waited: float) -> list[RunningOperator]:
        """The operators that have computed all the while that somebody waited in vain for the interpreter."""
        found: list[RunningOperator] = []
        used: dict[int, float] = {}
        if hasattr(time, "pthread_getcpuclockid"):
            for seat in self._seats:
                reader = seat.task[0] if seat.task is not None else None
                if isinstance(reader, RunningOperator) and seat.thread and seat.thread.ident:
                    spent = time.clock_gettime(time.pthread_getcpuclockid(seat.thread.ident))
                    used[id(seat)] = spent
                    if waited > LOCKED and spent - self._used.get(id(seat), spent) > _MOSTLY * waited:
                        found.append(reader)
        self._used = used
        return found

    def busy_seconds(self) -> float:
        """The CPU time that the threads have used so far; 0 if the system does not report it."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        idents = [each.thread.ident for each in self._seats if each.thread and each.thread.is_alive()]
        return sum(time.clock_gettime(time.pthread_getcpuclockid(each)) for each in idents if each)

    def watch(self, now: int, patience: float) -> list[Hanging]:
        """Finds workers that do not return, and gives their place to others.

        A callback that blocks keeps its thread, which is its own from then on.
        """
        found: list[Hanging] = []
        changed = False
        for seat in tuple(self._seats):
            seconds = (now - seat.since) / 1e9 if seat.since else 0.0
            if seat.lost or seat.task is None or seat.reported:
                continue
            reader = seat.task[0]
            if isinstance(reader, RunningConsumer) and seat.consumer is None and seconds > BLOCKED:
                reader.counters.blocked += 1
                reader.own, reader.seat, seat.consumer = True, seat, reader
                self._replace(seat)
                changed = True
            if seconds > patience:
                found.append(Hanging(reader.name, seconds))
                seat.reported = True
                if seat.consumer is None:
                    self._give_up(seat)
                    self._replace(seat)
                    changed = True
        self._seats = [each for each in self._seats if not each.ended]
        if changed:
            self.rank()
            self.dispatcher.dispatch()
        return found

    def _replace(self, seat: Seat) -> None:
        seat.processor.workers.remove(seat)
        self.fill(seat.processor)

    def _give_up(self, seat: Seat) -> None:
        seat.lost = True
        seat.processor.busy -= seat.counted
        seat.counted = False

    def dismiss(self) -> list[Seat]:
        """Lets all threads end when they are done with what they do; gives the seats they sat on."""
        seats, self._seats = self._seats, []
        for seat in seats:
            self._give_up(seat)
            if seat.consumer is not None:
                seat.consumer.seat = None
                if seat.task is None and not seat.ended:
                    seat.ended = True
                    seat.wake()
        for processor in self.dispatcher.processors:
            for seat in (*processor.idle, *processor.idle_movers):
                seat.ended = True
                seat.wake()
            for seat in processor.resuming:
                seat.wake()
            processor.resuming.clear()
            for each in (processor.workers, processor.movers, processor.idle, processor.idle_movers):
                each.clear()
        return seats


def leave(seats: list[Seat], timeout: float) -> None:
    """Waits for the threads of these seats; one that hangs is left behind."""
    until = time.monotonic() + timeout
    for seat in seats:
        if seat.thread is not None and seat.thread is not threading.current_thread():
            seat.thread.join(max(0.0, until - time.monotonic()))
